"""Stability by batch size: crossings against Gegenbauer series, tables, arguments."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
from mean_field_blocks import exponential, hard_swish, named, symmetric_point
from scipy import special

from bnmc._support.text import dumps
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.mean_field.fixed_point.stability import Crossing, _crossing, atlas, stability


def series_lambda_l(sigma, n, terms=60):
    """λ_L from Gauss-Gegenbauer nodes and E f(x) g(y) = Σ f_k g_k P_k(ρ) dim_k."""
    m = n - 1
    alpha = m / 2 - 1
    t, weight = special.roots_gegenbauer(2 * terms, alpha)
    weight = weight / weight.sum()
    points = np.append(t, -1 / m)
    p = np.ones((terms, points.size))
    p[1] = points
    for k in range(1, terms - 1):
        p[k + 1] = (2 * (k + alpha) * points * p[k] - k * p[k - 1]) / (k + 2 * alpha)
    norms = p[:, :-1] ** 2 @ weight
    x = math.sqrt(m) * t
    value = sigma(x) - weight @ sigma(x)

    def pair(f, g):
        left, right = (p[:, :-1] @ (weight * h) for h in (f, g))
        return float(np.sum(left * right * p[:, -1] / norms))

    mu = weight @ value**2 - pair(value, value)
    own = weight @ (value**2 * (x**2 - 1))
    cross = pair(value * (x**2 - 1), value)
    return n / (2 * mu * (n - 2)) * ((1 - 2 / n) * own - 2 * (1 - 1 / n) * cross)


@pytest.mark.parametrize(("activation", "first"), [("silu", 26), ("gelu", 39)])
def test_crossing_is_where_an_independent_series_puts_it(activation, first):
    before, after = (series_lambda_l(named(activation), n) for n in (first - 1, first))
    assert before < 1 < after
    found = stability(activation, [10, 100])
    (crossing,) = found.crossings
    assert crossing == Crossing(first, False, 0, crossing.value)
    assert crossing.value == pytest.approx(after, abs=1e-11)
    assert symmetric_point(activation, first - 1).eigenvalues[0] == pytest.approx(before, abs=1e-11)


#: What the docstring of `atlas` tabulates for the built-in activations.
SURVEY = {
    "linear": (1.0, 1.0, None),
    "relu": (1.0, 0.733471, None),
    "leaky_relu": (1.0, 0.741218, None),
    "abs": (1.0, 0.0, None),
    "tanh": (0.461071, 0.930470, None),
    "sigmoid": (0.719201, 0.984167, None),
    "sin": (0.313035, 0.850918, None),
    "erf": (0.408567, 0.913583, None),
    "elu": (0.860232, 0.936727, None),
    "celu": (0.860232, 0.936727, None),
    "selu": (0.782648, 0.970680, None),
    "gelu": (1.062116, 0.723288, 39),
    "silu": (1.100947, 0.798510, 26),
}


def test_survey_knows_all_built_in_activations():
    from bnmc._kernels.scalar.activations import BUILTIN

    assert set(SURVEY) == set(BUILTIN)
    for row, (_, _, first) in SURVEY.items():
        if row not in ("elu", "celu"):
            line = next(x for x in atlas.__doc__.splitlines() if x.strip().startswith(f"{row} "))
            assert (str(first) if first else "") == " ".join(line.split()[3:])


@pytest.mark.parametrize("activation", SURVEY)
def test_survey(activation):
    limit_l, limit_m, first = SURVEY[activation]
    found = stability(activation, [4, 10, 30, 100, 2500, 10_000])
    assert [crossing.batch for crossing in found.crossings] == ([] if first is None else [first])
    # Corrections are g/n + O(1/n²): extrapolated from 2500 and 10 000, 1/n² of the smaller is left.
    limit = (4 * found.eigenvalues[-1] - found.eigenvalues[-2]) / 3
    assert limit == pytest.approx([limit_l, limit_m], abs=5e-6)
    # And the limits themselves, by a quadrature of their definition.
    x, weight = special.roots_legendre(400)
    x = np.concatenate([6 * x - 6, 6 * x + 6])
    weight = 6 * np.concatenate([weight, weight]) * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    value = named(activation)(x)
    value = value - weight @ value
    variance = weight @ value**2
    written = [weight @ (value**2 * (x**2 - 1)) / (2 * variance), (weight @ (value * x)) ** 2]
    assert written == pytest.approx([limit_l, limit_m * variance], abs=1e-6)


@pytest.mark.parametrize(
    ("function", "kinks", "first"),
    [
        (hard_swish, (-3.0, 3.0), 20),
        pytest.param(lambda x: math.log1p(math.exp(x)), (), 43, marks=pytest.mark.slow),
        (lambda x: x * x, (), 8),
        pytest.param(lambda x: max(x, 0.0) ** 2, (0.0,), 7, marks=pytest.mark.slow),
        pytest.param(exponential, (), 7, marks=pytest.mark.slow),
    ],
)
def test_survey_of_other_activations(function, kinks, first):
    found = stability(Activation(function, kinks=kinks), [4, 100])
    assert [crossing.batch for crossing in found.crossings] == [first]


def test_batches_in_any_order_and_small_ones():
    found = stability("tanh", [8, 2, 3, 8])
    assert found.batches.tolist() == [2, 3, 8]
    values = found.eigenvalues
    assert values[1:, 0].tolist() == [p.eigenvalues[0] for p in found.points[1:]]
    assert values[2, 1] == found.points[2].eigenvalues[1]
    assert found.rates.tolist() == [p.rate for p in found.points]
    assert found.stable.all()
    assert stability("tanh", [2]).eigenvalues.shape == (1, 0)
    assert stability("tanh", [2]).labels == ()


def test_what_does_not_exist_is_no_zero():
    """A batch of 3 has no λ_M, and one of 2 no λ_L either: NaN, a dash, and null in JSON."""
    found = stability("relu", [2, 3, 4])
    assert np.isnan(found.eigenvalues).tolist() == [[True, True], [False, True], [False, False]]
    rows = [line.split() for line in str(found).splitlines()[2:]]
    assert [row[1:3].count("-") for row in rows] == [2, 1, 0]
    assert rows[1] == ["3", f"{found.points[1].eigenvalues[0]:.6f}", "-", rows[1][1]]
    document = json.loads(dumps(found.eigenvalues.tolist()))
    assert document[0] == [None, None]
    assert document[1] == [found.points[1].eigenvalues[0], None]


def test_uncentred():
    found = stability("linear", [4, 8], norm="batch-uncentred")
    assert found.rates == pytest.approx([4 / 6, 8 / 10], abs=1e-12)
    assert found.labels[0] == "λ_1"


@pytest.mark.parametrize("stable_above", [True, False])
def test_bisection_finds_the_integer(stable_above):
    template = symmetric_point("tanh", 5)
    asked = []

    def at(batch):
        asked.append(batch)
        rate = 0.5 if (batch >= 613) == stable_above else 1.25
        return dataclasses.replace(template, batch=batch, rate=rate, eigenvalues=(0.1, -rate))

    found = _crossing(at, at(4), at(10_000))
    assert found == Crossing(613, stable_above, 1, -0.5 if stable_above else -1.25)
    assert len(asked) <= 2 + 14


def test_table():
    text = str(stability("silu", [20, 30]))
    header, heads, stable, unstable, crossing = text.splitlines()
    assert header == 'silu, norm "batch"'
    assert heads.split() == ["batch", "λ_L", "λ_M", "rate"]
    assert stable.split()[0] == "20"
    assert "unstable" not in stable
    assert unstable.split()[0] == "30"
    assert unstable.endswith("unstable")
    assert crossing == "unstable from batch 26 on (λ_L)"
    back = dataclasses.replace(
        stability("silu", [20]), crossings=(Crossing(7, True, 1, 0.9), Crossing(9, False, 0, 1.1))
    )
    assert str(back).splitlines()[-2:] == [
        "stable from batch 7 on (λ_M)",
        "unstable from batch 9 on (λ_L)",
    ]


def test_results_are_values():
    found = stability("tanh", [4, 8])
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.norm = "none"


@pytest.mark.parametrize("batches", [[], [1], [4, 1.5], "48", 8, [True]])
def test_bad_batches(batches):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="^batches"):
        stability("tanh", batches)


def test_bad_arguments_of_the_atlas():
    with pytest.raises(UnknownNameError, match="did you mean 'silu'"):
        stability("slu", [4])
    with pytest.raises(UnknownNameError, match="^norm"):
        stability("tanh", [4], norm="lager")
    for norm in ("none", "layer"):
        with pytest.raises(ArgumentError, match="^norm"):
            stability("tanh", [4], norm=norm)
    for activations in ("tanh", 3, named("tanh")):
        with pytest.raises(ArgumentTypeError, match="^activations"):
            atlas(activations, [4])
    assert atlas([], [4]) == ()
