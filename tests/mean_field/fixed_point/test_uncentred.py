"""The fixed point under the norm that does not centre, for activations that are not odd."""

import math
from functools import cache

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats
from slow_cases import some

import bnmc
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point import uncentred

NORM = "batch-uncentred"


def field(activation, n):
    return bnmc.MeanField(bnmc.Chain(1000, n, activation, norm=NORM))


@cache
def fixed_point(activation, n):
    return field(activation, n).fixed_point()


@pytest.mark.parametrize(
    ("name", "c"), [("relu", 0.487), pytest.param("sigmoid", 0.970, marks=pytest.mark.slow)]
)
def test_published_correlations(name, c):
    assert fixed_point(name, 5).c == pytest.approx(c, abs=5e-4)


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("n", [2, 4, 20])
def test_relu_is_a_fixed_point_of_the_map(n):
    # The map of homogeneous activations is an integral of one dimension, made elsewhere.
    mean_field = field("relu", n)
    fixed = fixed_point("relu", n)
    np.testing.assert_allclose(np.asarray(mean_field.step(fixed.gram)), fixed.gram, rtol=1e-9)


def directions(n):
    """Symmetric matrices of each irreducible part: (number of eigenvalues in it, basis)."""
    e = np.eye(n)
    ones = np.ones((n, n))
    contrast = e[0] - e[1]
    parts = [(1, [np.eye(n), ones])]
    parts.append(
        (2, [np.diag(contrast), np.outer(contrast, np.ones(n)) + np.outer(np.ones(n), contrast)])
    )
    if n > 3:
        mixed = np.outer(e[0] - e[1], e[2] - e[3])
        parts.append((1, [mixed + mixed.T]))
    return parts


@pytest.mark.parametrize("n", [4, 5])
def test_the_jacobian_of_relu_is_that_of_finite_differences(n):
    mean_field = field("relu", n)
    fixed = fixed_point("relu", n)
    step = 1e-4
    found = []
    for _, basis in directions(n):
        block = np.empty((len(basis), len(basis)))
        shapes = np.stack([one.ravel() for one in basis], axis=1)
        for column, direction in enumerate(basis):
            ahead = np.asarray(mean_field.step(fixed.gram + step * direction, rtol=1e-12))
            back = np.asarray(mean_field.step(fixed.gram - step * direction, rtol=1e-12))
            change = (ahead - back).ravel() / (2 * step)
            # Permutations allow no other direction: the block is closed under the Jacobian.
            block[:, column], residual, *_ = np.linalg.lstsq(shapes, change, rcond=None)
            assert np.sqrt(residual.sum()) < 1e-6
        found += np.linalg.eigvals(block).tolist()
    # The scale of G is not seen: its eigenvalue is 0.
    least = min(found, key=abs)
    assert abs(least) < 1e-6
    found.remove(least)
    order = sorted(np.abs(found))
    assert sorted(np.abs(fixed.eigenvalues)) == pytest.approx(order, abs=2e-6)
    assert fixed.rate == pytest.approx(order[-1], abs=2e-6)


def test_multiplicities_make_up_all_symmetric_matrices():
    for n in (4, 5):
        fixed = fixed_point("relu", n)
        assert sum(fixed.multiplicities) + 1 == n * (n + 1) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "sigmoid", "silu"])
def test_wide_networks_settle_there(name):
    # 24 chains of width 5e4 from layer 25 on: errors of the mean over chains, 5.5 standard errors
    # and the O(1/d) shift of the mean. False alarms: 2 in 1e8 for each of 3 numbers.
    chain = bnmc.Chain(50_000, 4, name, norm=NORM)
    fixed = bnmc.MeanField(chain).fixed_point()
    gram = bnmc.simulate(chain, 25, chains=24, burn_in=25, rng=0).gram[:, -1]
    diagonal = gram.trace(axis1=1, axis2=2) / 4
    pairs = (gram.sum(axis=(1, 2)) - 4 * diagonal) / 12
    for values, expected in ((diagonal, fixed.b), (pairs, fixed.b * fixed.c)):
        error = values.std(ddof=1) / np.sqrt(24)
        assert abs(values.mean() - expected) < 5.5 * error + 20.0 / chain.width


@pytest.mark.untraced
@pytest.mark.parametrize("name", some(["tanh", "sin"], "tanh"))
def test_odd_activations_are_the_special_case(name):
    # Almost odd: what is not odd is 1e-9 of it, so all numbers agree to about as much.
    sigma = bnmc.Chain(10, 2, name).activation.scalar("float64")
    almost = bnmc.Activation(lambda x: sigma(x) + 1e-9 * x * x, name="almost")
    odd, other = fixed_point(name, 5), field(almost, 5).fixed_point()
    assert other.b == pytest.approx(odd.b, rel=1e-8)
    assert other.c == pytest.approx(0.0, abs=1e-8)
    assert other.rate == pytest.approx(odd.rate, rel=1e-7)
    assert other.backward_rate == pytest.approx(odd.backward_rate, rel=1e-6)


def test_of_several_fixed_points_both_quadratures_return_the_same(monkeypatch):
    """No activation is known that has several: other stretches √(g₀/(n g₁)) stand for them."""
    stretches = uncentred._stretches

    def several(table, batch):
        (one,) = stretches(table, batch)
        return [0.5 * one, one, 2.0 * one]

    monkeypatch.setattr(uncentred, "_stretches", several)
    # Between two batches there is no fixed point that belongs to another stretch.
    monkeypatch.setattr(uncentred, "cross_batch", lambda *_: (0.0, 0.0))
    fine, coarse, _ = uncentred.uncentred(bnmc.Chain(10, 2, "relu").activation, 2)
    assert coarse.c == pytest.approx(fine.c, abs=1e-9)
    assert coarse.rate == pytest.approx(fine.rate, rel=1e-9)


def test_a_singular_fixed_point_is_refused():
    with pytest.raises(ArgumentError, match="constant"):
        field(bnmc.Activation(lambda x: 1.0 + 0.0 * x, name="one"), 4).fixed_point()


# --- The block between two batches under a norm that does not centre, against simulated rows


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_a_layer_keeps_the_block(activation):
    """400,000 pairs of rows of covariances G in a batch, κ between batches: E σσ′ is κ."""
    n, count = 4, 400_000
    chain = bnmc.Chain(10, n, activation, norm="batch-uncentred")
    fixed = bnmc.MeanField(chain).fixed_point()
    whole = np.full((2 * n, 2 * n), fixed.cross_batch)
    for one in (slice(0, n), slice(n, None)):
        whole[one, one] = fixed.gram
    rows = np.random.default_rng(5).standard_normal((count, 2 * n)) @ np.linalg.cholesky(whole).T
    first, second = (
        chain.activation(h / np.sqrt(np.square(h).mean(axis=1, keepdims=True)))
        for h in (rows[:, :n], rows[:, n:])
    )
    samples = first.mean(axis=1) * second.mean(axis=1)
    error = samples.std() / math.sqrt(count)
    assert abs(samples.mean() - fixed.cross_batch) < stats.norm.isf(FALSE_ALARM / 2) * error
    # A block that is wrong by a fifth is seen: X′(ρ)/κ_max is the part of it that a layer keeps.
    assert 0.2 * fixed.cross_batch * (1.0 - fixed.cross_batch_rate) > 10 * error
