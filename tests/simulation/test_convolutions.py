"""Convolutional chains: their starts, pairs, and the sampler that is chosen.

`test_formula.py` and `test_law.py` have their formula and their law.
"""

import itertools
import math

import numpy as np
import pytest
from laws import CASES, assert_one_law, law_of

import bnmc
from bnmc.errors import ArgumentError, BackendError, ZeroVarianceError
from bnmc.simulation.engine.pairs import Pairs

# Narrow chains have dependent samples, which float32 runs report.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")


def images(chain, seed, leading=()):
    """Random images for a chain, (…, channels, samples, height, width)."""
    samples = chain.batch // chain.convolution.positions
    shape = (*leading, chain.width, samples, *chain.convolution.shape)
    return np.random.default_rng(seed).standard_normal(shape)


def a_channel_is_zero(row, layer):
    """Return a law of weights of which one row is zero in one layer."""
    layers = itertools.count(1)

    def law(rng, shape):
        weights = rng.standard_normal(shape)
        if next(layers) == layer:
            weights[row] = 0.0
        return weights

    return law


@pytest.mark.parametrize(
    ("options", "layer", "row"),
    [
        ({"activation": "tanh", "weights": a_channel_is_zero(0, 1)}, 1, 0),
        ({"activation": "tanh", "weights": a_channel_is_zero(3, 2)}, 2, 3),
        # Of two pixels, the moduli of normalized inputs are 1.
        ({"activation": "abs", "weights": "gaussian"}, 1, 0),
    ],
)
def test_a_channel_without_variance_is_named(options, layer, row):
    chain = bnmc.Chain(5, 2, convolution=bnmc.Convolution((2, 1), (2, 1)), **options)
    with pytest.raises(ZeroVarianceError) as caught:
        bnmc.simulate(chain, 3, sampler="weights", rng=7)
    assert (caught.value.chain, caught.value.layer, caught.value.row) == (0, layer, row)


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_one_tap_has_the_bits_of_the_fully_connected_chain(sampler):
    convolutional = bnmc.Chain.conv(20, 2, "tanh", shape=(1, 3), kernel=(1, 1))
    connected = bnmc.Chain(20, 6, "tanh")
    runs = [
        bnmc.simulate(chain, 4, chains=3, sampler=sampler, rng=21).gram
        for chain in (convolutional, connected)
    ]
    assert np.array_equal(*runs)


@pytest.mark.slow
@pytest.mark.untraced
def test_coupled_chains_have_the_law_of_the_chain():
    """The chain ahead at layer 3, and that behind, which is at layer 2."""
    chain, rows = CASES["more channels than columns"]
    start = bnmc.chain.start.prepare(chain.repeat(0), rows, 1, None)
    single = law_of(chain, "conditional", 24, 20_000, [3], rows)
    for side, layers in enumerate((3, 4)):
        pairs = Pairs(chain, start, 1, 0, 20_000, 23 + 2 * side)
        pairs.advance(layers)
        assert_one_law(pairs.grams[:, side, None], single)


@pytest.mark.slow
def test_pairs_meet_and_estimate_the_stationary_mean():
    """The coupled mean is that of long runs, within 6 standard errors, 2e-9 by chance."""
    chain = bnmc.Chain.conv(40, 1, "tanh", shape=(1, 4), kernel=(1, 2))
    options = {"chains": 60, "rng": 26}
    estimate = bnmc.invariant.expectation(chain, "orthogonality_gap", **options)
    run = bnmc.simulate(chain, 30, chains=2000, observables="orthogonality_gap", burn_in=30, rng=27)
    values = run["orthogonality_gap"][:, -1]
    error = math.hypot(estimate.stderr, values.std() / math.sqrt(2000))
    assert abs(estimate.value - values.mean()) < 6 * error
    bound = bnmc.mixing.tv_bound(chain, 12, **options)
    assert bound.bound[-1] < 0.5


# --- starts


def test_images_and_their_columns_are_one_start():
    chain = bnmc.Chain.conv(6, 2, "tanh", shape=(2, 3), kernel=(2, 2))
    x = images(chain, 28, leading=(3,))
    for start, rows, more in (
        (x, x.reshape(3, 6, 12), {}),
        (x[0], x[0].reshape(6, 12), {"chains": 2}),
        (x[:2], x[:2].reshape(2, 6, 12), {"inputs": 2}),
        (x[0].tolist(), x[0].reshape(6, 12), {}),
    ):
        by_images = bnmc.simulate(chain, 2, initial=start, rng=29, **more)
        other = bnmc.simulate(chain, 2, initial=rows, rng=29, **more)
        assert np.array_equal(by_images.gram, other.gram)
    assert by_images.gram.shape == (1, 3, 12, 12)
    with pytest.raises(ArgumentError, match="images: \\(6, 2, 2, 3\\), channels first"):
        bnmc.simulate(chain, 2, initial=x[0].swapaxes(0, 1))


def test_a_first_layer_is_a_convolution():
    """Three colours to six channels; the law of layer 0 before the norm is N(0, C(xᵀx/3))."""
    convolution = bnmc.Convolution((2, 2), (1, 2))
    chain = bnmc.Chain(4000, 4, "linear", norm="none", convolution=convolution)
    x = np.random.default_rng(30).standard_normal((3, 1, 2, 2))
    run = bnmc.simulate(chain, 0, initial=bnmc.FirstLayer(x), rng=31)
    rows = x.reshape(3, 4)
    expected = convolution.covariance(rows.T @ rows / 3)
    spread = np.sqrt((np.outer(*[np.diagonal(expected)] * 2) + expected**2) / 4000)
    np.testing.assert_array_less(np.abs(run.gram[0, 0] - expected), 6 * spread)
    two = bnmc.FirstLayer(np.stack([x, x]))
    both = bnmc.simulate(chain, 1, initial=two, inputs=2, observables="cross_gram", rng=32)
    assert both["cross_gram"].shape == (1, 2, 2, 2, 4, 4)


# --- what is chosen, and what is refused


def test_the_cheaper_sampler_is_chosen_and_named():
    wide = bnmc.Chain.conv(256, 1, "tanh", shape=(2, 2), kernel=(2, 2))
    assert bnmc.simulate(wide, 1, rng=38).sampler == "conditional"
    narrow = bnmc.Chain.conv(4, 20, "tanh", shape=(3, 3))
    assert bnmc.simulate(narrow, 1, rng=39).sampler == "weights"


def test_pairs_on_a_gpu_name_their_alternative():
    layer = bnmc.Chain.conv(8, 1, "relu", shape=(2, 2), kernel=(2, 2), norm="layer")
    with pytest.raises(BackendError, match="backend='cpu'"):
        bnmc.mixing.tv_bound(layer, 2, backend="cuda")
