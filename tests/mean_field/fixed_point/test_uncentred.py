"""The fixed point under the norm that does not centre, for activations that are not odd."""

import math
from functools import cache

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats
from slow_cases import slow

import bnmc
from bnmc.chain.activations import Activation
from bnmc.mean_field import MeanField
from bnmc.mean_field.fixed_point import uncentred


def chain_of(activation, n, width=1000):
    return bnmc.Chain(width, n, activation, norm="batch-uncentred")


@cache
def fixed_point(activation, n):
    return MeanField(chain_of(activation, n)).fixed_point()


@pytest.mark.parametrize(
    ("name", "c"), [("relu", 0.487), pytest.param("sigmoid", 0.970, marks=pytest.mark.slow)]
)
def test_published_correlations(name, c):
    assert fixed_point(name, 5).c == pytest.approx(c, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "sigmoid", "silu"])
def test_wide_networks_settle_there(name):
    # 24 chains of width 5e4 from layer 25 on: errors of the mean over chains, 5.5 standard errors
    # and the O(1/d) shift of the mean. False alarms: 2 in 1e8 for each of 3 numbers.
    chain = chain_of(name, 4, 50_000)
    fixed = MeanField(chain).fixed_point()
    gram = bnmc.simulate(chain, 25, chains=24, burn_in=25, rng=0).gram[:, -1]
    diagonal = gram.trace(axis1=1, axis2=2) / 4
    pairs = (gram.sum(axis=(1, 2)) - 4 * diagonal) / 12
    for values, expected in ((diagonal, fixed.b), (pairs, fixed.b * fixed.c)):
        error = values.std(ddof=1) / np.sqrt(24)
        assert abs(values.mean() - expected) < 5.5 * error + 20.0 / chain.width


# Odd activations have reference values, and others published correlations, each time.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "sin"])
def test_odd_activations_are_the_special_case(name):
    # Almost odd: what is not odd is 1e-9 of it, so all numbers agree to about as much.
    sigma = Activation.named(name).scalar("float64")
    almost = Activation(lambda x: sigma(x) + 1e-9 * x * x, name="almost")
    odd, other = fixed_point(name, 3), fixed_point(almost, 3)
    assert other.b == pytest.approx(odd.b, rel=1e-8)
    assert other.c == pytest.approx(0.0, abs=1e-8)
    assert other.rate == pytest.approx(odd.rate, rel=1e-7)
    assert other.backward_rate == pytest.approx(odd.backward_rate, rel=1e-6)


def test_of_several_fixed_points_both_quadratures_return_the_same(monkeypatch):
    """No activation is known that has several: other stretches √(g₀/(n g₁)) stand for them."""
    stretches = uncentred._stretches

    def several(table, batch):
        (stretch,) = stretches(table, batch)
        return [0.5 * stretch, stretch, 2.0 * stretch]

    monkeypatch.setattr(uncentred, "_stretches", several)
    # Between two batches there is no fixed point that belongs to another stretch.
    monkeypatch.setattr(uncentred, "cross_batch", lambda *_: (0.0, 0.0))
    fine, coarse, _ = uncentred.uncentred(Activation.named("relu"), 2)
    assert coarse.c == pytest.approx(fine.c, abs=1e-9)
    assert coarse.rate == pytest.approx(fine.rate, rel=1e-9)


# --- The block between two batches under a norm that does not centre, against simulated rows


@pytest.mark.parametrize(("activation", "count"), [("relu", 150_000), slow("sigmoid", 400_000)])
def test_a_layer_keeps_the_block(activation, count):
    """Pairs of rows of covariances G in a batch, κ between batches: E σσ′ is κ."""
    n = 5
    chain, fixed = chain_of(activation, n), fixed_point(activation, n)
    whole = np.full((2 * n, 2 * n), fixed.cross_batch)
    whole[:n, :n] = whole[n:, n:] = fixed.gram
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
