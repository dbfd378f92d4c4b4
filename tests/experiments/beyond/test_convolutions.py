"""Convolutions with and without batch norm, on a small scale."""

import numpy as np
from experiment_checks import documented

import bnmc
from bnmc.experiments.beyond import conv
from bnmc.experiments.registry import sizes_of

FIGURE = "conv"


def test_the_first_values_are_those_of_simulate(data):
    """The first part takes its key from the seed, before all others."""
    chain = bnmc.Chain.conv(32, 1, "relu", shape=(3, 3))
    run = bnmc.simulate(chain, 24, chains=4, rng=np.random.default_rng(5), every=10)
    assert data["layer"].values.tolist() == run.layers.tolist() == [0, 10, 20, 24]
    g = run.gram
    trace = np.trace(g, axis1=-2, axis2=-1)
    rank = trace**2 / (g**2).sum(axis=(-2, -1))
    gap = np.linalg.norm(g / trace[..., None, None] - np.eye(9) / 9, axis=(-2, -1))
    part = data.sel(activation="relu", layers="convolution", norm="batch")
    np.testing.assert_allclose(part["rank"], rank.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(part["gap"], gap.mean(axis=0), rtol=1e-12)


def test_pixels_become_equal_without_norm_alone(data):
    last = data.isel(layer=-1).sel(activation="relu")
    for layers in ("convolution", "fully connected"):
        part = last.sel(layers=layers)
        assert float(part["rank_high"].sel(norm="none")) < 2.0
        assert float(part["rank_low"].sel(norm="batch")) > 2.5


def test_the_sizes_are_those_of_the_docstring():
    text, (default, full) = documented(conv), sizes_of("conv")
    for sizes, form in (
        (default, "Networks of {0} channels with circular {4} × {5} convolutions take "
         "{1} images of {2} × {3} independent pixels through {6} layers"),
        (full,
         "(``full``: {0} channels, {1} images of {2} × {3} pixels, {6} layers)"),
    ):  # fmt: skip
        given = sizes.channels, sizes.samples, *sizes.shape, 3, 3, sizes.depth
        assert form.format(*given) in text
