"""Moments of up to four coordinates, against brute force and Monte Carlo."""

import json
from operator import attrgetter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from mean_field_oracles import jump, normalized_rows, sampled_rows
from slow_cases import pairs, slow

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain import Chain
from bnmc.chain.activations import Activation, as_activation
from bnmc.mean_field.finite_width.joint_moments import (
    Cuts,
    joint_moments,
    nested_moments,
    odd_moments,
    uncentred_moments,
)
from bnmc.mean_field.fixed_point import uncentred
from bnmc.mean_field.fixed_point.symmetric import fixed_point_of_batch

REFERENCE = Path(__file__).parents[2] / "reference"
FOURTH = attrgetter("m4", "m31", "m22", "m211", "m1111")


def by_power_sums(s):
    """Averages over all ordered tuples of distinct samples, for each row of s: (rows, 5)."""
    n = s.shape[1]
    p1, p2, p3, p4 = ((s**k).sum(axis=1) for k in (1, 2, 3, 4))
    pairs, triples = n * (n - 1), n * (n - 1) * (n - 2)
    columns = [p4 / n, (p3 * p1 - p4) / pairs, (p2**2 - p4) / pairs]
    columns.append((p2 * p1**2 - p2**2 - 2 * p3 * p1 + 2 * p4) / triples)
    if n > 3:
        quadruples = p1**4 - 6 * p1**2 * p2 + 3 * p2**2 + 8 * p1 * p3 - 6 * p4
        columns.append(quadruples / (triples * (n - 3)))
    else:
        columns.append(np.zeros(len(s)))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("name", "circle"), pairs(BUILTIN, [True, False]))
def test_brute_force_on_the_circle_and_the_sphere(name, circle):
    n, order = (3, 10_000) if circle else (4, 250)
    activation = as_activation(name)
    points, weight = normalized_rows(n, order)
    expected = weight @ by_power_sums(np.asarray(activation(points)))
    fine, coarse = joint_moments(activation, n)
    # Of kinks, the rule with 250 heights is accurate to about 250^-2.
    tolerance = 1e-7 if n == 3 else 5e-5
    assert FOURTH(fine) == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert FOURTH(coarse) == pytest.approx(expected, rel=1e-4, abs=1e-4)


#: Kinks and units that others at n = 5 have, too.
LATER = ("leaky_relu", "abs", "elu", "celu")


@pytest.mark.parametrize(
    ("n", "name"),
    [
        pytest.param(n, name, marks=[pytest.mark.slow] if n == 5 and name in LATER else [])
        for n in (4, 5)
        for name in BUILTIN
    ],
)
def test_table_by_mpmath(name, n):
    """`tests/reference/make_joint_moments.py` made the table, accurate to 1e-10."""
    table = json.loads((REFERENCE / "joint_moments.json").read_text())
    assert sorted(table[str(n)]) == sorted(BUILTIN)
    expected = table[str(n)][name]
    fine, coarse = joint_moments(as_activation(name), n)
    # The rules agree to 1e-6 times the squared variance, or more.
    assert FOURTH(fine) == pytest.approx(expected, rel=0, abs=2e-6 * expected[0])
    assert FOURTH(coarse) == pytest.approx(expected, rel=0, abs=5e-6 * expected[0])


@pytest.mark.slow
def test_monte_carlo():
    """10⁷ rows for each of three activations and n = 6.

    A number is allowed 6 standard errors: 2e-9 for a normal law, 15 numbers, 3e-8 in all.
    """
    rng, n, rows, blocks = np.random.default_rng(2026), 6, 100_000, 100
    activations = {name: as_activation(name) for name in ("relu", "tanh", "sigmoid")}
    means = {name: [] for name in activations}
    for _ in range(blocks):
        x = sampled_rows(Chain(1, n, "linear"), np.eye(n), rows, rng)
        for name, activation in activations.items():
            means[name].append(by_power_sums(np.asarray(activation(x))).mean(axis=0))
    for name, activation in activations.items():
        result = np.array(means[name])
        fine, _ = joint_moments(activation, n)
        z = (result.mean(axis=0) - FOURTH(fine)) / (result.std(axis=0, ddof=1) / np.sqrt(blocks))
        assert np.all(np.abs(z) < 6), (name, z)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 64, 1000])
def test_linear(n):
    """E (vᵀφ)⁴ on the sphere of radius √n in m dimensions is 3 n² |v|⁴/(m(m+2))."""
    m = n - 1
    diagonal, off = 1 - 1 / n, -1 / n  # of the projector
    unit = n**2 / (m * (m + 2))
    fine, coarse = joint_moments(as_activation("linear"), n)
    for moments in (fine, coarse):
        assert moments.m4 == pytest.approx(3 * unit * diagonal**2, rel=1e-11)
        assert moments.m31 == pytest.approx(3 * unit * diagonal * off, rel=1e-11)
        assert moments.m22 == pytest.approx(unit * (diagonal**2 + 2 * off**2), rel=1e-11)
        m211 = unit * (diagonal * off + 2 * off**2) if n > 2 else 0.0
        assert moments.m211 == pytest.approx(m211, rel=1e-9, abs=1e-14)
        assert moments.m1111 == pytest.approx(
            3 * unit * off**2 if n > 3 else 0.0, rel=1e-7, abs=1e-14
        )


NARROW = {
    "bump at 0": lambda x: np.tanh(x) + np.exp(-((x / 0.04) ** 2)),
    "bump": lambda x: np.tanh(x) + np.exp(-(((x - 0.7) / 0.04) ** 2)),
    "low bump": lambda x: np.tanh(x) + 0.01 * np.exp(-(((x - 0.7) / 0.04) ** 2)),
    "steep": lambda x: np.tanh(30.0 * x - 9.0),
    "bump and kink": lambda x: np.maximum(x, 0.0) + np.exp(-(((x + 0.5) / 0.04) ** 2)),
}


@pytest.mark.parametrize(
    ("n", "order", "name"),
    [
        *((3, 100_000, name) for name in NARROW if name != "steep"),
        (4, 700, "steep"),
        slow(3, 100_000, "steep"),
        slow(4, 700, "bump"),
    ],
)
def test_the_difference_of_both_rules_bounds_the_error_at_narrow_features(n, order, name):
    """The rule of 700 heights has an error of 1e-7, that of 10⁵ angles one of rounding.

    At a kink the latter has an error of 1e-9.
    """
    points, weight = normalized_rows(n, order)
    expected = weight @ by_power_sums(NARROW[name](points))
    fine, coarse = (np.array(FOURTH(joint)) for joint in joint_moments(Activation(NARROW[name]), n))
    assert np.all(np.abs(fine - expected) <= np.abs(fine - coarse) + (2e-9 if n == 3 else 2e-7))
    assert fine == pytest.approx(coarse, abs=2e-6)


def test_undeclared_jumps_and_fast_growth():
    # The rule is of first order for jumps.
    points, weight = normalized_rows(4, 300)
    for function, tolerance in ((jump, 5e-3), (lambda x: np.exp(2.0 * x), 1e-3)):
        activation = Activation(function)
        fine, _ = joint_moments(activation, 4)
        expected = weight @ by_power_sums(np.asarray(activation(points)))
        assert FOURTH(fine) == pytest.approx(expected, rel=tolerance, abs=tolerance * expected[0])


@pytest.mark.parametrize("name", ["tanh", "sin", "linear"])
def test_odd_moments(name):
    activation = as_activation(name)
    fine, coarse = odd_moments(activation, 2)
    angle = 2 * np.pi * (np.arange(1000) + 0.5) / 1000
    s = np.asarray(activation(np.sqrt(2) * np.stack([np.cos(angle), np.sin(angle)])))
    for moments in (fine, coarse):
        assert moments.m4 == pytest.approx(np.mean(s[0] ** 4), rel=1e-12)
        assert moments.m22 == pytest.approx(np.mean(s[0] ** 2 * s[1] ** 2), rel=1e-12)
        assert (moments.m31, moments.m211, moments.m1111) == (0, 0, 0)


@pytest.mark.parametrize(
    ("kinks", "narrow"),
    [([], []), ([0.0], []), ([-0.5, 0.5], []), ([], [0.2, 0.3]), ([0.0], [0.1])],
)
@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_the_size_of_a_nested_rule_is_the_number_of_its_points(n, kinks, narrow):
    """The last of the nested evaluations has all points."""
    sizes = []

    def function(x):
        sizes.append(x.size)
        return np.tanh(x)

    cuts = Cuts(n, np.array(kinks), np.array(narrow))
    nested_moments(function, cuts, 8.0, 2)
    assert cuts.size(2) == max(sizes)


# --- The rules for moments under a norm that does not centre, one finer than the other


def test_the_first_result_is_that_of_the_finer_rule():
    """Nothing agrees to 0, so all rules are tried then, and the last two differ by rounding.

    The first two rules agree to 1.  The finer one of them is nearer to the last rule of all.
    """
    chain = Chain(width=100, batch=2, activation="sigmoid", norm="batch-uncentred")
    # The block between two batches takes a second, and the moments of one do not depend on it.
    with mock.patch.object(uncentred, "cross_batch", return_value=(0.0, 0.0)):
        point, _ = fixed_point_of_batch(chain.activation, 2, chain.normalization)

    def found(rtol):
        return np.array(uncentred_moments(chain.activation, 2, point, rtol))

    exact, confirmed = found(0.0)
    rounding = np.abs(exact - confirmed).max()
    fine, coarse = (np.abs(result - exact).max() for result in found(1.0))
    assert rounding < 1e-13
    assert 10.0 * rounding < fine < 0.1 * coarse
