"""A claimed error is a bound: awkward activations against references that share no code.

`mean_field_awkward` defines the activations and computes the references.
"""

import json
import math
from unittest import mock

import numpy as np
import pytest
from mean_field_awkward import FUNCTIONS, INFINITE, PATH, Plain, activation
from mean_field_oracles import normalized_rows

from bnmc.chain.activations import as_activation
from bnmc.chain.chain import Chain
from bnmc.chain.norms import as_norm
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field import MeanField, limit
from bnmc.mean_field.fixed_point.expectations import Resolved, angle_tables
from bnmc.mean_field.fixed_point.symmetric import fixed_point_of_batch, worst_of
from bnmc.mean_field.quadrature.profile import Singularity
from bnmc.mean_field.quadrature.sphere import SphereRule

REFERENCE = json.loads(PATH.read_text(encoding="utf-8"))

#: The default of `limit` and `MeanField.fixed_point`.
RTOL = 1e-8

#: The fixed point costs seconds if many short panels resolve a singularity in two coordinates.
SLOW = {"10": [name for name in FUNCTIONS if name.startswith(("|x", "±", "√", "∛", "x log"))]}
SLOW["3"] = [name for name in SLOW["10"] if name not in ("|x|^1.3", "√max(x, 0)")]
SLOW["10"] += ["sin 20x", "x + sin 45x", "cos x²"]

#: Each time, such a function is tested at another n, or one with a like singularity.
LATER = {
    "10": [
        "narrow bump at .25", "bump at sin 1", "bump at .7", "bump of 1e-3", "tanh 1e5x",
        "tanh 300x", "exp |x|^1.5", "sin 1/(x² + .05)", "log(x² + 1e-6)",
    ],
    "3": [
        "bump at .7", "narrow bump at .25", "bump at sin 1", "x + sin 45x", "|x|^1.3", "tanh 1e5x",
        "exp |x|^1.5",
    ],
    "2 uncentred": ["log(x² + 1e-6)", "|x − .3|", "step at .3"],
}  # fmt: skip

#: Each function runs with every second batch each time.
CASES = [
    pytest.param(
        name,
        batch,
        marks=[pytest.mark.slow] if (i + j) % 2 or name in LATER.get(batch, ()) else [],
    )
    for i, (name, row) in enumerate(REFERENCE.items())
    for j, batch in enumerate(row)
    if name not in SLOW.get(batch, ())
]

#: Numbers that are not known to 1e-8, with the reason.  The error must still be a bound.
NOT_KNOWN = {
    ("exp x²/4.2", "inf"): "σ² overflows at x = 38, where the integrand is 1e-15 of its maximum",
    ("1000 + |x − sin 1|", "3"): "values of 1000 have a rounding error of 1e-13",
    ("1 + 1e-8 tanh", "inf"): "fluctuations of 1e-8 have a rounding error of 1e-16",
    ("1 + 1e-8 tanh", "3"): "fluctuations of 1e-8 have a rounding error of 1e-16",
    ("1 + 1e-8 tanh", "10"): "fluctuations of 1e-8 have a rounding error of 1e-16",
}


def found(name, batch):
    """The fixed point, its least accurate number, and whether its error exceeds 1e-8."""
    kind = "batch-uncentred" if "uncentred" in batch else "batch"
    size = math.inf if batch == "inf" else int(batch.split()[0])
    point, errors = fixed_point_of_batch(Plain(name), size, as_norm(kind))
    return point, worst_of(errors)


def misses(point, expected):
    """Absolute errors of numbers below 1, relative errors of larger ones, by name."""
    for key, value in expected.items():
        got = getattr(point, key)
        pairs = zip(got, value, strict=False) if isinstance(value, list) else [(got, value)]
        for number, text in pairs:
            truth = float(text)
            if math.isnan(truth):
                continue  # not in the reference
            miss = 0.0 if number == truth else abs(number - truth) / max(1.0, abs(truth))
            yield key, miss, number, truth


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "batch"),
    CASES,
    ids=lambda value: value,
)
def test_a_claimed_error_is_a_bound(name, batch):
    expected = REFERENCE[name][batch]
    if expected == INFINITE:
        with pytest.raises(ArgumentError, match="mean square is infinite"):
            found(name, batch)
        return
    point, worst = found(name, batch)
    for key, miss, number, truth in misses(point, expected):
        assert miss <= point.error, (key, number, truth, point.error)
    # If the error is above the default of rtol, the call raises.
    if not point.error <= RTOL:
        assert worst == "backward_rate" or (name, batch) in NOT_KNOWN


def test_there_are_many_awkward_functions():
    assert len(FUNCTIONS) >= 40
    assert len(CASES) >= 120


@pytest.mark.parametrize(
    ("name", "number", "value"),
    [
        ("exp |x|^1.5", "b", 2071202.604246526792),
        ("exp 4x", "b", math.exp(32)),
        ("|x|^.3", "backward_rate", math.inf),
        ("|x|^.45", "backward_rate", math.inf),
        ("|x|^.6", "backward_rate", 9.1755017657417),
    ],
)
def test_public_functions_on_the_reported_cases(name, number, value):
    assert getattr(limit(activation(name)), number) == pytest.approx(value, rel=1e-9)


def test_an_infinite_mean_square_has_no_fixed_point():
    grows = activation("exp x²/4")
    with pytest.raises(ArgumentError, match="^activation: .*mean square is infinite"):
        limit(grows)
    # The sphere of a finite batch is bounded.
    assert MeanField(Chain(1, 3, grows)).fixed_point().b == pytest.approx(
        float(REFERENCE["exp x²/4"]["3"]["b"]), rel=1e-12
    )


def test_a_derivative_that_float64_cannot_resolve_raises():
    with pytest.raises(PartialEstimateError, match="backward_rate") as caught:
        limit(activation("|x − .3|^.6"))
    partial = caught.value.partial
    expected = float(REFERENCE["|x − .3|^.6"]["inf"]["backward_rate"])
    assert 1e-8 < abs(partial.backward_rate - expected) / expected <= partial.error


def test_an_integral_that_overflows_is_not_a_number():
    """E exp(2|z|^1.9) is finite, about exp(6e5): σ overflows before the integrand decays."""
    from bnmc.chain.activations import Activation

    with pytest.raises(PartialEstimateError) as caught:
        limit(Activation(lambda x: math.exp(abs(x) ** 1.9)))
    assert caught.value.partial.error == math.inf


def test_named_activations_keep_a_small_error():
    for name in ("relu", "tanh", "gelu", "selu"):
        assert limit(name).error < 1e-10
        assert MeanField(Chain(1, 10, name)).fixed_point().error < 1e-10
    assert np.isfinite(limit("relu", norm="batch-uncentred").error)


def _singular_at(spot, dimension):
    sigma = mock.Mock(steep=np.empty(0), singular=[spot])
    return Resolved(sigma, dimension, edge=1.0, tail=0.0)


def test_nodes_at_the_ends_of_a_singular_interval_count():
    """They belong to the panels beyond; the energy of the interval stands for what is inside."""
    x, slope = np.array([0.0, 0.25, 0.375, 0.5, 0.75]), np.array([1.0, 2.0, 9.0, 3.0, 4.0])
    none = np.zeros((3, 5))
    rule = SphereRule(x, np.full(5, 0.2), none[0], none, slope, none[:2])
    spot = Singularity(point=0.375, low=0.25, high=0.5, energy=7.0, error=0.0, change=0.0)
    factor = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    density = math.exp(-0.5 * 0.375**2) / math.sqrt(2.0 * math.pi)
    expected = 0.2 * (1.0 * 1.0 + 4.0 * 2.0 + 9.0 * 4.0 + 16.0 * 5.0) + 7.0 * density * 3.0
    assert _singular_at(spot, math.inf).energy(rule, factor) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dimension", [3.0, 10.0, math.inf])
def test_the_error_near_a_singular_point_is_that_of_its_mirror_image(dimension):
    """Coordinates of spheres are symmetric, and factors of pairs grow like 1 + x²."""

    def error(point):
        spot = Singularity(point, point - 0.1, point + 0.1, energy=1.0, error=0.0, change=0.01)
        return _singular_at(spot, dimension).energy_error(2.0, 0.5)

    assert error(-1.5) == error(1.5) > 0.0
    if dimension == math.inf:
        ratio = math.exp(-0.5 * 1.5**2) * (1.0 + 1.5**2)
        assert error(1.5) / error(0.0) == pytest.approx(ratio, rel=1e-14)


# --- Expectations given the angle of a row, against sums over the whole sphere


def columns_by_sums(n, angle):
    """The 13 columns at one angle, with the logistic function for σ."""
    x, weight = normalized_rows(n, 40)  # exact for polynomials of degree 79
    phi = np.sin(angle) + np.cos(angle) * x
    s = 1 / (1 + np.exp(-phi))
    slope = s * (1 - s)
    deviation = s - s.mean(axis=1, keepdims=True)
    first, square, share = x[:, 0], x[:, 0] ** 2 - 1, n / (n - 1)
    by_mean, alone = share * s.mean(axis=1) * s[:, 0], share * deviation[:, 0] ** 2
    mixed = np.zeros(len(x))
    if n > 3:
        mixed = s[:, 0] * s[:, 1] * (x[:, 0] - x[:, 2]) * (x[:, 1] - x[:, 3])
    K = np.eye(n) - phi[:, :, None] * phi[:, None, :] / n
    diagonal = K @ (slope[:, :, None] ** 2 * K)
    outer = np.einsum("rij,rj->ri", K, slope)
    outer = outer[:, :, None] * outer[:, None, :] / n
    rows = [
        s[:, 0], s[:, 0] * first, s[:, 0] ** 2, (deviation**2).sum(axis=1) / (n - 1),
        by_mean * first, by_mean * square, alone * first, alone * square, mixed,
    ]  # fmt: skip
    for A in (np.cos(angle) ** 2 * diagonal, np.cos(angle) ** 2 * outer):
        rows += [A.sum(axis=(1, 2)) / n, np.einsum("rii->r", A) / (n - 1)]
    return np.stack(rows) @ weight


@pytest.mark.parametrize("n", [3, 4])
def test_all_columns_are_the_stated_expectations(n):
    *tables, _ = angle_tables(as_activation("sigmoid"), n)
    angles = np.array([-1.2, -0.4, 0.3, 1.0])
    expected = np.stack([columns_by_sums(n, angle) for angle in angles], axis=1)
    for table in tables:
        # The tables are resolved to 1e-10.
        np.testing.assert_allclose(table(angles), expected, rtol=0, atol=1e-9)
