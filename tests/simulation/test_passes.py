"""Norms over the features, biases, and the orders of norm and activation: bits, and their ends.

`test_formula.py` and `test_law.py` have their formula and their law.
"""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from laws import CASES

import bnmc
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.simulation import segment

# Narrow chains have dependent samples, which float32 runs report.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")


def test_norms_that_are_the_same_have_the_same_bits():
    """Orders without norm, residual blocks without skip, biases that centring removes."""
    plain = {"width": 40, "batch": 3, "activation": "tanh"}
    for first, other in (
        ({"norm": "none"}, {"norm": "none", "order": "activation-norm"}),
        ({"norm": "rms"}, {"norm": "rms", "order": "pre-activation"}),
        ({}, {"bias_variance": 0.5}),
        ({"norm": "layer"}, {"norm": "group(1)"}),
        ({"norm": "group(4)"}, {"norm": bnmc.GroupNorm(4)}),
    ):
        runs = [
            bnmc.simulate(bnmc.Chain(**plain, **options), 3, chains=2, rng=0).gram
            for options in (first, other)
        ]
        assert np.array_equal(*runs)


def test_copies_of_a_sample_stay_copies_to_the_bit():
    x = np.random.default_rng(19).standard_normal((12, 4))
    x[:, 2] = x[:, 0]
    names = "layer", "groups, skip", "layer after", "batch after, gain", "none, bias"
    for name in (*names, "copies, batch", "copies, batch-uncentred", "copies, none"):
        chain = replace(CASES[name][0], width=12, batch=4)
        for sampler in ("conditional", "weights"):
            g = bnmc.simulate(chain, 5, initial=x, rng=20, sampler=sampler).gram[0]
            assert np.array_equal(g[:, 2], g[:, 0])


# The wide layer has two panels of rows, and its last group is in both.
@pytest.mark.parametrize("width", [90, 6000])
def test_unit_samples_have_unit_size(width):
    """After layer normalization a sample has mean square 1 exactly, in every group."""
    chain = bnmc.Chain(width, 3, "relu", norm="group(3)", order="activation-norm")
    g = bnmc.simulate(chain, 4, chains=2, rng=21).gram
    np.testing.assert_allclose(np.diagonal(g, axis1=-2, axis2=-1), 1.0, rtol=1e-13)


# --- what cannot be normalized


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_without_variance_is_named(monkeypatch, sampler, threads):
    """The activation is 0 except for rare rows, so a group of 2 features soon has none."""
    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    chain = bnmc.Chain(2000, 3, "relu", norm="group(1000)", order="activation-norm")
    start = 1.0 + np.random.default_rng(26).random((2000, 3))
    with pytest.raises(ZeroVarianceError, match="chain 0, layer 1, sample") as caught:
        bnmc.simulate(chain, 3, initial=start, sampler=sampler, threads=threads, rng=27)
    assert caught.value.sample in (0, 1, 2)
    assert caught.value.row is None
    assert pickle.loads(pickle.dumps(caught.value)).sample == caught.value.sample
    bnmc.simulate(
        bnmc.Chain(2000, 3, "relu", norm="group(1000)", order="activation-norm", eps=1e-5), 3,
        initial=start, sampler=sampler, threads=threads, rng=27,
    )  # fmt: skip


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_one_sample_without_variance_is_named(monkeypatch, sampler, threads):
    """Its features in the first chain have one size, which the activation takes to 0."""

    def beyond(x):
        return max(abs(x) - 1.5, 0.0)

    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    chain = bnmc.Chain(40, 3, bnmc.Activation(beyond, name="beyond"), norm="rms")
    start = np.random.default_rng(31).standard_normal((2, 40, 3))
    start[0, :, 2] = 1.0
    with pytest.raises(ZeroVarianceError, match="chain 0, layer 1, sample 2") as caught:
        bnmc.simulate(chain, 2, initial=start, sampler=sampler, threads=threads, rng=32)
    assert (caught.value.sample, caught.value.row) == (2, None)


def test_a_flat_start_is_refused():
    x = np.random.default_rng(28).standard_normal((6, 3))
    x[:, 1] = 0.5
    chain = bnmc.Chain(6, 3, "tanh", norm="layer")
    with pytest.raises(ZeroVarianceError, match="the input, sample 1"):
        bnmc.simulate(chain, 1, initial=x)
    with pytest.raises(ZeroVarianceError, match="chain 1, layer 0, sample 1"):
        bnmc.simulate(chain, 1, initial=np.stack([x + np.arange(6)[:, None], x]))
    x[:, 1] = 0.0
    with pytest.raises(ZeroVarianceError, match="the input, sample 1"):
        bnmc.simulate(chain, 1, initial=bnmc.FirstLayer(x))
    bnmc.simulate(bnmc.Chain(6, 3, "tanh", norm="layer", eps=0.1), 1, initial=x)
    with pytest.raises(ZeroVarianceError, match="the input, row 0"):
        bnmc.simulate(
            bnmc.Chain(6, 3, "relu", order="activation-norm"), 1, initial=-np.ones((6, 3))
        )


def test_the_chain_that_stops_in_a_pass_is_named():
    """A rare value of the activation is no number; the chains before the named one run without."""

    def rare(x):
        return x if x <= 4.0 else np.nan

    chain = bnmc.Chain(40, 3, bnmc.Activation(rare, name="rare"), norm="rms")
    with pytest.raises(NonFiniteError) as alone:
        bnmc.simulate(chain, 4, chains=40, rng=24, threads=1)
    assert alone.value.chain > 0
    bnmc.simulate(chain, 4, chains=alone.value.chain, rng=24, threads=1)


def test_the_scale_of_the_weights_does_not_matter_before_a_norm_of_samples():
    """In float32 the squares of such numbers under- and overflow."""
    plain = bnmc.simulate(bnmc.Chain(30, 3, "tanh", norm="rms"), 2, dtype="float32", rng=29).gram
    for gain in (1e-30, 1e30):
        chain = bnmc.Chain(30, 3, "tanh", norm="rms", gain=gain)
        assert np.array_equal(plain, bnmc.simulate(chain, 2, dtype="float32", rng=29).gram)
