"""Convolutional networks beside their constant kernels."""

import numpy as np
import pytest

pytest.importorskip("torch")

from bnmc.experiments.limits.convolutional_kernels import tangent_kernels
from bnmc.experiments.training.images import images

FIGURE = "limits-constant-kernel"


def test_the_kernel_classifies_by_least_squares(data):
    """The minimum-norm interpolation in the square root of the kernel has the same outputs."""
    some = images(None, 48, 8)
    whole = tangent_kernels(some.pixels, some.pixels, 2)
    for depth, share in zip(data["depth"].values, data["kernel"].values, strict=True):
        values, vectors = np.linalg.eigh(whole[depth - 1])
        features = vectors * np.sqrt(np.maximum(values, 0.0))
        targets = np.eye(10)[some.labels[:24]] - 0.1
        weights = np.linalg.lstsq(features[:24], targets)[0]
        right = (features[24:] @ weights).argmax(axis=1) == some.labels[24:]
        assert share == right.mean()
        assert share > 0.5


def test_networks_are_tested_after_training(data):
    assert data["epoch"].values.tolist() == [0.0, 5.0, 10.0]
    assert (data["accuracy"].isel(epoch=-1) > data["accuracy"].isel(epoch=0)).any()
