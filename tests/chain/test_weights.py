"""Laws of weights as values: what they state is true of the numbers that they draw.

The default initialization of ``torch.nn.Linear`` as a law of weights comes second.
"""

import math
import pickle

import numpy as np
import pytest
from numpy_network import normalised
from oracle import FALSE_ALARM
from slow_cases import some

import bnmc
from bnmc.chain.weights import WEIGHTS, weight_law
from bnmc.errors import ArgumentError
from bnmc.simulation import segment
from bnmc.simulation.engine.replay import biases_of_layer, weights_of_layer
from bnmc.simulation.runs import Run
from bnmc.testing import LawMismatch, assert_same_law
from bnmc.testing.examples import from_features_last


@pytest.mark.parametrize("name", WEIGHTS)
def test_entries_have_the_moments_that_the_law_states(name):
    law = weight_law(name)
    # Small matrices, as an orthogonal one is dear.
    rng = np.random.default_rng(0)
    entries = np.stack([law.entries(rng, (20, 20)) for _ in range(2500)])
    assert entries.shape == (2500, 20, 20)
    # Of 10⁶ numbers with kurtosis at most 3, and x⁴ of variance at most 96: 6 standard errors.
    assert abs(entries.mean()) < 6e-3
    assert abs(np.square(entries).mean() - 1.0) < 6e-3 * np.sqrt(2.0)
    # An orthogonal matrix of order d has 3 d / (d + 2).
    fourth = 3.0 * 20 / 22 if law.is_orthogonal else law.fourth_moment
    assert abs((entries**4).mean() - fourth) < 6e-3 * np.sqrt(96.0)
    assert law.is_symmetric


def test_the_law_of_a_sampler_draws_from_it():
    law = weight_law(lambda rng, shape: rng.choice([-1.0, 1.0], shape))
    same = np.random.default_rng(1).choice([-1.0, 1.0], (3, 3))
    np.testing.assert_array_equal(law.entries(np.random.default_rng(1), (3, 3)), same)
    assert not law.is_symmetric
    assert law.fourth_moment is None


@pytest.mark.parametrize(
    ("rows", "order"),
    [*(pytest.param(k, k, marks=pytest.mark.slow) for k in (1, 4)), (2, 5)],
)
def test_haar_entries_are_rows_of_orthogonal_matrices(rows, order):
    law = weight_law("haar")
    matrices = [law.entries(np.random.default_rng(seed), (rows, order)) for seed in range(2000)]
    for each in matrices:
        np.testing.assert_allclose(each @ each.T, order * np.eye(rows), atol=1e-12 * order)
    # Each entry, to third order symmetric, has the mean 0: of 2000 with variance 1, at 6 errors.
    assert np.abs(np.mean(matrices, axis=0)).max() < 6.0 / np.sqrt(2000)
    assert law.samplers == ("conditional", "weights")


def chain_of(width, batch, activation="tanh", **options):
    return bnmc.Chain(width, batch, activation, weights="pytorch", **options)


# --- the law of nn.Linear as a value


def test_gain_and_bias_are_those_of_linear_unless_they_are_given():
    chain = chain_of(12, 4)
    assert (chain.gain, chain.bias_variance) == (1.0 / math.sqrt(3.0), 1.0 / 36.0)
    assert repr(chain) == "Chain(width=12, batch=4, activation='tanh', weights='pytorch')"
    without = chain_of(12, 4, bias_variance=0.0)
    assert (without.gain, without.bias_variance) == (chain.gain, 0.0)
    assert chain_of(12, 4, gain=1.0).gain == 1.0
    for each in (chain, without, chain_of(12, 4, gain=1.0, bias_variance=0.5)):
        assert eval(repr(each), {"Chain": bnmc.Chain}) == each
        assert pickle.loads(pickle.dumps(each)) == each


def test_other_laws_keep_their_defaults():
    for law in ("gaussian", "uniform", "haar"):
        chain = bnmc.Chain(12, 4, weights=law)
        assert (chain.gain, chain.bias_variance) == (1.0, 0.0)


def test_functions_of_gaussian_rows_name_the_alternative():
    chain = chain_of(12, 4)
    with pytest.raises(ArgumentError, match=r"^sampler: .*'weights' or 'auto'"):
        bnmc.simulate(chain, 1, sampler="conditional")
    with pytest.raises(ArgumentError, match='^weights: .*"gaussian"'):
        bnmc.mixing.tv_bound(chain, 5)


def test_the_mean_field_has_the_variances_at_this_width():
    """E x² = E G / 3 + 1/(3 width); the norm over the batch sees neither."""
    field = bnmc.mean_field.CorrelationMap.of(chain_of(30, 4, "linear", norm="none"))
    (point,) = field.variance_fixed_points()
    # q = q/3 + 1/90
    assert point.variance == pytest.approx(1.0 / 60.0, rel=1e-12)
    star = bnmc.MeanField(chain_of(30, 4, "relu")).fixed_point()
    assert star.rate == bnmc.MeanField(bnmc.Chain(30, 4, "relu")).fixed_point().rate


# --- its numbers


def test_weights_and_biases_are_uniform_within_the_bounds_of_linear():
    chain = chain_of(200, 2)
    weights = chain.gain * weights_of_layer(
        Run(chain.repeat(1), "weights", 1, None, "float64", 1), 0, 1
    )
    wide = chain_of(40_000, 1, norm="none")
    for width, values in (
        (200, weights.ravel()),
        (40_000, biases_of_layer(Run(wide.repeat(1), "weights", 1, None, "float64", 1), 0, 1)),
    ):
        unit = values * math.sqrt(width)
        assert np.abs(unit).max() <= 1.0 + 1e-14
        # The distance of Dvoretzky, Kiefer, Wolfowitz and Massart from the uniform law.
        limit = math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * len(unit)))
        places = np.arange(len(unit) + 1) / len(unit)
        levels = (np.sort(unit) + 1.0) / 2.0
        assert max(np.abs(levels - places[1:]).max(), np.abs(levels - places[:-1]).max()) <= limit


@pytest.mark.parametrize("order", ["norm-activation", "activation-norm"])
def test_layers_are_those_of_the_drawn_weights_and_biases(order):
    start = np.random.default_rng(2).standard_normal((21, 3))
    chain = chain_of(21, 3, norm="rms", order=order, eps=0.01)
    run = bnmc.simulate(chain, 1, initial=start, rng=3)
    w, b = bnmc.drawn_weights(run, 1), bnmc.drawn_biases(run, 1)

    def activated(h):
        if order == "activation-norm":
            return normalised(np.tanh(h), "rms", 0.01)
        return np.tanh(normalised(h, "rms", 0.01))

    a = activated(w @ activated(start) / math.sqrt(3.0) + b[:, None])
    np.testing.assert_allclose(run.gram[0, 1], a.T @ a / 21, rtol=1e-12)


def test_bits_do_not_depend_on_threads_and_panels(monkeypatch):
    chain = chain_of(1300, 3, norm="layer", eps=1e-5)
    first = bnmc.simulate(chain, 2, chains=2, rng=4, threads=1).gram
    assert np.array_equal(first, bnmc.simulate(chain, 2, chains=2, rng=4, threads=2).gram)
    half = bnmc.simulate(chain, 1, chains=2, rng=4).final_state
    assert np.array_equal(first[:, 1:], bnmc.simulate(chain, 1, initial=half).gram)
    # All threads share each layer of one chain.
    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    assert np.array_equal(first[:1], bnmc.simulate(chain, 2, rng=4, threads=2).gram)


# --- the law


@pytest.fixture
def torch():
    """PyTorch on one thread, with its random state restored afterwards."""
    module = pytest.importorskip("torch")
    threads, state = module.get_num_threads(), module.random.get_rng_state()
    module.set_num_threads(1)
    module.manual_seed(9)
    yield module
    module.set_num_threads(threads)
    module.random.set_rng_state(state)


NORMS = {"batch": "BatchNorm1d", "layer": "LayerNorm"}


@pytest.mark.parametrize("norm", some(NORMS, "batch"))
def test_blocks_of_torch_as_they_come_have_the_law(torch, norm):
    normalise = getattr(torch.nn, NORMS[norm])(12, dtype=torch.float64)

    def step(h):
        linear = torch.nn.Linear(12, 12, dtype=torch.float64)
        return linear(torch.relu(normalise(torch.as_tensor(h)))).detach()

    chain = chain_of(12, 4, "relu", norm=norm, eps=1e-5)
    assert_same_law(from_features_last(step), chain, rng=10, rows=256)
    without = chain_of(12, 4, "relu", norm=norm, eps=1e-5, bias_variance=0.0)
    with pytest.raises(LawMismatch):
        assert_same_law(from_features_last(step), without, rng=10)
