"""The contraction under common normals: its rate, its interval, and where there is none.

Two inputs through the same networks are compared with networks written out in NumPy.
"""

import importlib
import math

import numpy as np
import numpy_network
import pytest
import scipy.linalg
import scipy.stats
from slow_cases import slow
from stationary_processes import AtOnce

import bnmc
from bnmc._support import workers
from bnmc.errors import NotMixing, SingularGramError
from bnmc.mixing.contraction_rate import contraction, two_inputs

# The package has a function of this name.
module = importlib.import_module("bnmc.mixing.contraction_rate")


@pytest.mark.parametrize(
    ("chain", "options"),
    [
        (bnmc.Chain(10_000, 5, "tanh"), {"chains": 8}),
        slow(bnmc.Chain(10_000, 5, "relu"), {"chains": 8}),
        slow(bnmc.Chain(10_000, 10, "relu"), {"chains": 8}),
        (bnmc.Chain(500, 3, "relu", norm="layer", order="activation-norm"), {}),
        slow(bnmc.Chain(2000, 3, "sin", norm="rms", bias_variance=0.05), {}),
    ],
    ids=str,
)  # fmt: skip
def test_the_rate_of_a_wide_chain_is_that_of_the_mean_field(chain, options):
    result = contraction(chain, rng=0, **options)
    if chain.norm == "batch":
        expected = bnmc.MeanField(chain).fixed_point().rate
        assert result.rate == pytest.approx(expected, rel=0.01)
    else:
        expected = bnmc.mean_field.CorrelationMap.of(chain).phase().correlation_rate
    # As far as the error allows: 7 standard errors, and 1/d for the finite width.
    assert abs(result.rate - expected) < 7.0 * result.rate_estimate.stderr + 10.0 / chain.width
    assert result.rate_estimate.stderr < 0.02
    assert result.alpha == 1.0 - result.rate


def test_the_estimate_is_that_of_the_distances():
    result = contraction(bnmc.Chain(100, 4, "relu"), chains=16, rng=1)
    assert np.isfinite(result.distance).all()
    falls, layers = [], []
    for distance in result.distance:
        distance = distance[: np.flatnonzero(distance)[-1] + 1]
        start = np.flatnonzero(distance < 1e-4)[0]
        assert (distance[:-1] >= 1e-10).all()
        assert distance[-1] < 1e-10
        falls.append(math.log(distance[-1] / distance[start]))
        layers.append(len(distance) - 1 - start)
    exponent = sum(falls) / sum(layers)
    residuals = np.array(falls) - exponent * np.array(layers)
    stderr = residuals.std(ddof=1) / 4.0 / np.mean(layers)
    assert result.exponent.value == pytest.approx(exponent, rel=1e-12)
    assert result.exponent.stderr == pytest.approx(stderr, rel=1e-9)
    assert result.rate == pytest.approx(math.exp(exponent), rel=1e-12)
    assert result.rate_estimate.n == 16
    assert result.rate_estimate.stderr == pytest.approx(result.rate * stderr, rel=1e-9)
    # Student's interval for the exponent: one that is 10 % too wide is another one.
    half = scipy.stats.t.isf(0.025, 15) * stderr
    expected = (math.exp(exponent - half), math.exp(exponent + half))
    assert result.rate_estimate.ci == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_interval_covers(monkeypatch):
    # 700 seeds of 12 pairs; the truth by 1000 times as many. A share of 95 % has a standard error
    # of 0.8 % here; an error that is stated 20 % too small, a share of 89 %, is missed with
    # probability 0.004.
    monkeypatch.setattr(workers, "available_processors", lambda: 1)
    monkeypatch.setattr(module, "BLOCK_LAYERS", 32)
    chain = bnmc.Chain(12, 3, "relu")
    truth = contraction(chain, chains=12_000, rng=0).rate
    covered = []
    for seed in range(700):
        low, high = contraction(chain, chains=12, rng=[1, seed], executor=AtOnce()).rate_estimate.ci
        covered.append(low <= truth <= high)
    assert 0.925 <= np.mean(covered) <= 0.975


def test_two_centred_samples_forget_everything_in_one_layer():
    result = contraction(bnmc.Chain(20, 2, "relu"), chains=4, rng=0)
    assert result.rate == 0.0
    assert result.alpha == 1.0
    assert result.exponent is None
    assert result.rate_estimate.ci == (0.0, 0.0)


def test_a_given_batch_is_a_start():
    x = np.random.default_rng(0).normal(size=(100, 4))
    result = contraction(bnmc.Chain(100, 4, "relu"), initial=x, chains=4, rng=0)
    # Before layer 2 the chain ahead is at layer 1 and the other at layer 0, which all pairs share.
    assert len(np.unique(result.distance[:, 0])) == 4


def growth(regular, width, layers, chains=8):
    """Return the exponents of the smallest eigenvalue of linear chains, while it is small.

    The other regular - 1 dimensions are a chain of their own.  The smallest eigenvalue is that of
    what is left of one more normal in each row, after regression on these.
    """
    rng = np.random.default_rng([regular, width])
    factor = np.broadcast_to(np.eye(regular - 1), (chains, regular - 1, regular - 1))
    exponents = []
    for _ in range(layers):
        rows = rng.standard_normal((chains, width, regular - 1)) @ factor.swapaxes(1, 2)
        scale = math.sqrt(regular) / np.linalg.norm(rows, axis=2, keepdims=True)
        rows, small = rows * scale, rng.standard_normal((chains, width, 1)) * scale
        gram, across = rows.swapaxes(1, 2) @ rows, rows.swapaxes(1, 2) @ small
        left = np.square(small).sum(axis=1)
        left -= (across * np.linalg.solve(gram, across)).sum(axis=1)
        exponents.append(np.log(left[:, 0] / width))
        factor = np.linalg.cholesky(gram / width)
    return np.mean(exponents[layers // 10 :], axis=0)


@pytest.mark.parametrize(
    ("regular", "below", "above", "layers"),
    [(4, 6, 8, 1500), (9, 26, 31, 3000), pytest.param(19, 98, 120, 4000, marks=pytest.mark.slow)],
)
def test_linear_chains_lose_rank_below_the_thresholds_of_the_results(regular, below, above, layers):
    """Longer runs put each exponent ten standard errors from 0: false alarms are below 1e-6."""
    assert below < regular**2 / 4 + regular - 1 < above
    for width, sign in ((below, -1), (above, 1)):
        assert sign * growth(regular, width, layers).mean() > 0.0


def test_a_chain_that_loses_rank_does_not_contract():
    with pytest.raises(NotMixing, match="do not approach") as raised:
        contraction(bnmc.Chain(25, 10, "linear"), chains=8, rng=0)
    # log10 of the least eigenvalue falls by 28 in 2000 layers.
    assert -0.03 < raised.value.pivot_trend < -0.007
    assert raised.value.partial.shape[0] == 8


@pytest.mark.parametrize("max_layers", [1, 3, 65])
def test_pairs_that_are_not_near_in_time(max_layers):
    chain = bnmc.Chain(400, 5, "relu")
    if max_layers == 65:
        assert contraction(chain, chains=4, rng=0, max_layers=max_layers).distance.shape[1] <= 65
        return
    with pytest.raises(NotMixing, match=f"4 of 4 pairs do not approach in {max_layers} layers"):
        contraction(chain, chains=4, rng=0, max_layers=max_layers)


def test_an_unstable_fixed_point_is_named_before_what_the_pairs_did():
    chain = bnmc.Chain(200, 64, "gelu")
    rate = bnmc.MeanField(chain).fixed_point().rate
    message = rf"^the fixed point is unstable \(rate {rate:.4g} .* run, 2 of 2 pairs do not"
    with pytest.raises(NotMixing, match=message):
        contraction(chain, chains=2, rng=0, max_layers=5)


# --- two inputs of one network

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 60, 4))


def certificates(first, second):
    relative = np.linalg.norm(np.linalg.inv(first) @ second - np.eye(len(first)))
    ratio = np.sort(np.linalg.eigvalsh(first)) / np.sort(np.linalg.eigvalsh(second))
    return np.abs(ratio - 1.0).sum(), relative


HELMERT = scipy.linalg.helmert(4)


@pytest.mark.parametrize(
    ("activation", "depth", "chains", "part"),
    [
        pytest.param("relu", 3, 4000, lambda gram: gram, marks=pytest.mark.slow),
        # Of a centred linear chain the regular part is compared.
        ("linear", 2, 2000, lambda gram: HELMERT @ gram @ HELMERT.T),
    ],
)
def test_two_inputs_are_as_through_networks_written_out(activation, depth, chains, part):
    chain = bnmc.Chain(60, 4, activation)
    inputs = two_inputs(chain, X, Y, depth=depth, chains=chains, rng=0)
    np.testing.assert_array_equal(inputs.layers, np.arange(depth + 1))
    # One W for both inputs, each normalized by itself.
    both = np.concatenate([X, Y], axis=1)
    grams = numpy_network.grams(chain, depth, chains, np.random.default_rng(1), both, inputs=2)
    expected = np.array([
        [certificates(part(gram[:4, :4]), part(gram[4:, 4:])) for gram in network]
        for network in grams
    ])  # fmt: skip
    for number, ours in enumerate((inputs.spectral, inputs.relative)):
        theirs = expected[..., number]
        assert ours.shape == (chains, depth + 1)
        np.testing.assert_allclose(ours[:, 0], theirs[:, 0], rtol=1e-9)
        # 5.5 standard errors, 6 times: a false alarm in 2.3e-7.
        error = np.hypot(ours.std(axis=0), theirs.std(axis=0))[1:] / np.sqrt(chains)
        assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0))[1:] < 5.5 * error).all()


def test_the_same_input_twice_stays_the_same():
    result = two_inputs(bnmc.Chain(60, 4, "relu"), X, X, depth=5, chains=3, rng=0)
    # The condition number of G is below 100, and rounding 1e-16.
    assert result.relative.max() < 1e-11
    assert result.spectral.max() < 1e-11


def test_weights_in_common_do_not_let_the_distance_vanish():
    result = two_inputs(bnmc.Chain(60, 4, "relu"), X, Y, depth=60, chains=50, rng=0)
    assert result.relative[:, -1].min() > 1e-3


def test_a_singular_gram_matrix_is_an_error():
    copies = X.copy()
    copies[:, 3] = copies[:, 0]
    chain = bnmc.Chain(60, 4, "relu")
    for x, y in ((copies, Y), (X, copies)):
        with pytest.raises(SingularGramError):
            two_inputs(chain, x, y, depth=2, chains=2, rng=0)
