"""Batch normalization with skip connections: paths of rows against closed integrals."""

import numpy as np
import pytest
from infinite_width_checks import assert_unbiased

from bnmc import Activation
from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import as_norm
from bnmc.infinite_width.batches import NormalizedBatches
from bnmc.infinite_width.networks import HiddenLayer, Weights
from bnmc.infinite_width.row_paths import RowPaths

X = np.random.default_rng(0).standard_normal((9, 14))


@pytest.mark.parametrize("tangent", [False, True])
def test_one_layer_of_paths_has_the_kernel_of_integrals(tangent):
    weights, relu = Weights(1.5, 0.3), Activation.named("relu")
    layer = HiddenLayer(RowMap(relu, as_norm("batch"), NORM_FIRST, 1), weights, 0.7)
    # Batches of different scales.
    for sets in ([X[:, :7]], [X[:, :7], 1e-5 * X[:, 7:]]):
        network = sets, [(7,)] * len(sets), weights, (layer,), tangent
        exact, error = NormalizedBatches(*network).integrals()(lambda: None)
        assert error < 1e-8
        paths = RowPaths(*network)
        assert_unbiased(
            [paths.replicate(1 << 11, np.random.default_rng(i), lambda: None) for i in range(16)],
            exact,
        )
