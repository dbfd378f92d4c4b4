"""Fluctuations along a path: against closed forms, the stationary law, and simulated chains."""

import warnings
from unittest import mock

import numpy as np
import pytest
from scipy import stats

import bnmc
from bnmc.chain import Chain
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    LinearTheoryWarning,
    PartialEstimateError,
)
from bnmc.mean_field import MeanField, PathFluctuations
from bnmc.mean_field.finite_width.gaussian import packed
from bnmc.mean_field.finite_width.path import _relative_square
from bnmc.random_matrix import linear_covariance

START = np.array([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]])


def along(chain, start, depth, **options) -> PathFluctuations:
    options = {"rng": 3, "fluctuation_rtol": 0.05} | options
    return MeanField(chain).trajectory(start, depth, fluctuations=True, **options).fluctuations


def test_linear_chain_without_normalization():
    """To leading order in depth/width, Cov(G_ij, G_km) = (G_ik G_jm + G_im G_jk) l/d."""
    depth, width = 5, 10**9
    gain = 0.5
    law = along(Chain(width=10, batch=3, activation="linear", norm="none", gain=gain), START, depth)
    expected = linear_covariance(START, width, depth) * gain ** (4 * depth)
    found = law.covariance(depth, width)
    scale = np.abs(expected).max()
    # Eight replicates of 1024 points, whose errors are below 3 % of the largest entry each.
    assert found == pytest.approx(expected, abs=0.1 * scale)
    total = law.mean_square(width)
    expected = np.einsum("ijij", expected)
    assert abs(total.value[depth] - expected) < 8 * total.stderr[depth]
    assert total.stderr[depth] < 0.05 * expected


def test_one_sample_relu_without_normalization():
    """G is multiplied by the mean of d squares σ(z)², of relative variance 5/d, in each layer."""
    law = along(Chain(10, 1, "relu", norm="none", gain=np.sqrt(2.0)), [[3.0]], 7)
    found = law.mean_square(1000)
    expected = 9.0 * 5.0 * np.arange(8) / 1000
    assert np.all(np.abs(found.value - expected) <= 8 * found.stderr)
    assert np.all(found.stderr[1:] < 0.05 * expected[1:])


@pytest.mark.parametrize(
    ("activation", "norm"),
    [("relu", "batch"), pytest.param("tanh", "batch-uncentred", marks=pytest.mark.slow)],
    ids=str,
)
def test_deep_layers_are_stationary(activation, norm):
    """Student's law with 7 degrees of freedom exceeds 25 with probability 4e-8."""
    chain = Chain(width=10, batch=4, activation=activation, norm=norm)
    law = along(chain, np.diag([1.0, 2.0, 3.0, 4.0]), 40)
    expected = MeanField(chain).fluctuations().mean_square(1).value
    found = law.mean_square(1)
    assert abs(found.value[-1] - expected) < 25 * found.stderr[-1]
    assert found.stderr[-1] < 0.02 * expected


@pytest.mark.parametrize(
    ("options", "activation"),
    [({}, "relu"), ({"norm": "none", "gain": 1.3}, "tanh"), ({"eps": 0.3, "gain": 0.7}, "relu")],
    ids=str,
)
def test_coverage_and_mean_square(options, activation):
    """The 90 % bands of 600 chains of width 4000, and their mean squares.

    The count in a band is binomial, and leaves its quantiles of 1e-9 and 1 − 1e-9 with probability
    2e-9; there are 20 counts. The linear theory is off by about 1/√width, 1 % of the chains.
    """
    width, depth, chains, n = 4000, 5, 600, 3
    chain = Chain(width=width, batch=n, activation=activation, **options)
    x = np.random.default_rng(11).standard_normal((width, n)) @ np.diag([1.0, 2.0, 3.0])
    x[:, 1] += x[:, 0]
    run = bnmc.simulate(chain, depth, chains=chains, initial=x, rng=12)
    field = MeanField(chain).trajectory(
        run.gram[0, 0], depth, rtol=1e-5, rng=13, fluctuations=True, fluctuation_rtol=0.02
    )
    law = field.fluctuations
    deviation = run.gram - field.gram
    distance = np.linalg.norm(deviation, axis=(-2, -1))
    weights = np.arange(9.0).reshape(3, 3)
    entries = np.sum(weights * run.gram, axis=(-2, -1))
    few, many = stats.binom(chains, 0.9).ppf([1e-9, 1 - 1e-9])
    for values, observable in ((distance, None), (entries, weights)):
        low, high = law.band(width, observable)
        inside = np.sum((values >= low) & (values <= high), axis=0)[1:]
        assert np.all(inside >= few - 0.01 * chains), inside
        assert np.all(inside <= many + 0.01 * chains), inside
    low, high = law.band(width, lambda G: float(np.sum(weights * G)))
    np.testing.assert_allclose([low, high], law.band(width, weights), rtol=1e-6)
    # 7 standard errors are 1e-9 for means of 600 (nearly exponential) squares; 2 % for the next
    # order and 25 standard errors of the prediction (7 degrees of freedom).
    square = distance**2
    predicted = law.mean_square(width)
    error = 7 * square.std(axis=0, ddof=1) / np.sqrt(chains) + 25 * predicted.stderr
    off = np.abs(square.mean(axis=0) - predicted.value)
    assert np.all(off <= error + 0.02 * predicted.value)
    assert np.all(predicted.value[0] == 0.0)


def test_least_widths_without_normalization():
    """Linear chains: S_l = l S_1, so r_l = l (m+1)/m, and layer l has (l−1)/l of it from before.

    Relative to G, one layer makes Δ = W − I with W the Gram matrix of standard normal rows, and
    E‖Δ‖² = m(m+1)/d.
    """
    law = along(Chain(width=10, batch=3, activation="linear", norm="none"), START, 6)
    expected = np.zeros(7)
    for layer in range(1, 6):
        rho = np.sqrt(layer / (layer + 1))
        expected[layer + 1] = rho * (expected[layer] + layer * 4 / 3)
    # The standard error of a trace is at most 3 % of it.
    assert law.nonlinearity == pytest.approx(expected, rel=0.1, abs=1e-12)
    assert law.least_widths.tolist()[:2] == [1, 1]
    assert law.least_widths[6] == law.holds_from == np.ceil(10 * law.nonlinearity[6])


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_least_widths_of_deep_layers(activation):
    """Those of the stationary law, with ρ in place of the rate."""
    chain = Chain(width=10, batch=4, activation=activation)
    found = along(chain, np.diag([1.0, 2.0, 3.0, 4.0]), 16)
    law = MeanField(chain).fluctuations()
    sectors = law.sectors
    carried = sum(
        s.multiplicity * np.trace(s.jacobian @ s.variance @ s.jacobian.T) for s in sectors
    )
    total = sum(s.multiplicity * np.trace(s.variance) for s in sectors)
    rho, r = np.sqrt(carried / total), law.relative_square
    # Standard errors are 5 %, and rate¹⁶ < 1e-3.
    assert found.nonlinearity[-1] == pytest.approx(rho * r / (1 - rho), rel=0.2)
    assert found.least_widths[-1] <= 1.2 * law.least_width


def test_the_linear_theory_holds_from_least_width():
    """Linear chains, whose exact covariance at finite width is known: within 10 % from there on.

    At a fifth of the width, the difference exceeds 10 %.
    """
    depth = 6
    law = along(
        Chain(width=10, batch=3, activation="linear", norm="none"),
        START,
        depth,
        fluctuation_rtol=0.02,
    )

    def excess(width):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = law.mean_square(width)
        exact = np.einsum("ijij", linear_covariance(START, width, depth))
        assert predicted.stderr[depth] < 0.02 * predicted.value[depth]
        return exact / predicted.value[depth] - 1

    assert abs(excess(law.holds_from)) < 0.1
    assert excess(law.holds_from // 5) > 0.1


def test_warning_below_the_least_width():
    law = along(Chain(10, 3, "linear", norm="none"), START, 5)
    least = law.least_widths
    for call in (law.mean_square, law.band):
        with pytest.warns(LinearTheoryWarning, match=f"layer 5 holds from width {least[5]}"):
            call(int(least[5]) - 1)
    with pytest.warns(LinearTheoryWarning, match=f"layer 4 holds from width {least[4]}"):
        law.covariance(4, int(least[4]) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for width in (1, law.holds_from):
            law.mean_square(width)
            law.band(width)
        law.covariance(4, int(least[4]))


def test_jumps_have_a_jacobian():
    """A step function: no derivative is taken, so S is that of the stationary equation."""
    activation = bnmc.Activation(lambda x: 1.0 if x > 0.2 else 0.0, kinks=(0.2,))
    chain = Chain(10, 3, activation)
    law = along(chain, np.diag([1.0, 2.0, 2.0]), 30, fluctuation_rtol=0.1, rtol=1e-3)
    expected = MeanField(chain).fluctuations(rtol=1e-2).mean_square(1).value
    found = law.mean_square(1)
    assert abs(found.value[-1] - expected) < 25 * found.stderr[-1]


def test_singular_inputs():
    """Equal samples remain equal: their rows of S are equal, too."""
    start = np.ones((3, 3))
    start[2] = start[:, 2] = 0.0
    start[2, 2] = 2.0
    law = along(Chain(10, 3, "tanh", norm="batch-uncentred"), start, 3)
    found = law.covariance(3, 10)
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)
    # eps hides rows that are 0.
    law = along(Chain(10, 2, "tanh", eps=0.1), np.zeros((2, 2)), 2)
    assert np.all(law.mean_square(1).value == 0.0)
    assert np.all(law.band(1) == 0.0)
    assert law.error == 0.0


def test_reproducible_and_no_cost_if_not_asked():
    chain = Chain(10, 3, "tanh")
    first, second = (along(chain, START, 2, rng=5) for _ in range(2))
    np.testing.assert_array_equal(first.covariances, second.covariances)
    plain = MeanField(chain).trajectory(START, 2, rng=5)
    assert plain.fluctuations is None
    np.testing.assert_array_equal(plain.gram, first.gram)


def test_what_raises():
    with pytest.raises(ArgumentError, match="weights"):
        along(Chain(10, 3, "tanh", weights="haar"), START, 2)
    with pytest.raises(ArgumentTypeError, match="fluctuations"):
        MeanField(Chain(10, 3, "tanh")).trajectory(START, 2, fluctuations=1)
    for name in ("fluctuation_rtol", "max_points"):
        with pytest.raises(ArgumentError, match=name):
            along(Chain(10, 3, "tanh"), START, 2, **{name: 0})
    with pytest.raises(PartialEstimateError, match="mean square known to") as caught:
        along(Chain(10, 3, "tanh"), START, 2, fluctuation_rtol=1e-9, max_points=600)
    law = caught.value.partial.fluctuations
    assert law.error > 1e-9
    for call in (law.mean_square, law.band, lambda width: law.covariance(1, width)):
        with pytest.raises(ArgumentError, match="width"):
            call(0)
    with pytest.raises(ArgumentError, match="layer"):
        law.covariance(3, 10)
    with pytest.raises(ArgumentError, match="level"):
        law.band(10, level=1.0)
    with pytest.raises(ArgumentError, match="observable"):
        law.band(10, np.eye(2))


def test_relative_square_leaves_out_the_size_if_only_the_direction_counts():
    """E‖A‖²/m², less that of the trace if there is no damping, from 7 symmetric matrices A."""
    A = np.random.default_rng(5).standard_normal((7, 3, 3))
    A += A.swapaxes(1, 2)
    entries = packed(A)
    seen = entries.T @ entries / 7
    square, trace = np.square(A).sum(axis=(1, 2)), np.trace(A, axis1=1, axis2=2)
    for damping, expected in ((0.0, square - trace**2 / 3), (0.1, square)):
        rows = mock.Mock(vectors=np.zeros((4, 3)), damping=damping)
        assert _relative_square(seen, rows) == pytest.approx(expected.mean() / 9, rel=1e-12)
