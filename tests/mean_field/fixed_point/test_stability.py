"""Stability by batch size: crossings against Gegenbauer series, tables, arguments."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
from mean_field_oracles import EXP, HARD_SWISH, fixed_point, gegenbauer_fixed_point, limits_of
from slow_cases import some

from bnmc._support.text import dumps
from bnmc.chain.activations import Activation
from bnmc.mean_field.fixed_point.stability import Crossing, _crossing, atlas, stability


@pytest.mark.parametrize(("activation", "first"), [("silu", 26), ("gelu", 39)])
def test_crossing_is_where_an_independent_series_puts_it(activation, first):
    sigma = Activation.named(activation)
    before, after = (gegenbauer_fixed_point(sigma, n)[2] for n in (first - 1, first))
    assert before < 1 < after
    result = stability(activation, [10, 100])
    (crossing,) = result.crossings
    assert crossing == Crossing(first, False, 0, crossing.value)
    assert crossing.value == pytest.approx(after, abs=1e-11)
    assert fixed_point(activation, first - 1).eigenvalues[0] == pytest.approx(before, abs=1e-11)


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


@pytest.mark.parametrize("activation", some(SURVEY, *list(SURVEY)[::2]))
def test_survey(activation):
    limit_l, limit_m, first = SURVEY[activation]
    result = stability(activation, [4, 10, 30, 100, 2500, 10_000])
    assert [crossing.batch for crossing in result.crossings] == ([] if first is None else [first])
    # Corrections are g/n + O(1/n²): extrapolated from 2500 and 10 000, 1/n² of the smaller is left.
    limit = (4 * result.eigenvalues[-1] - result.eigenvalues[-2]) / 3
    assert limit == pytest.approx([limit_l, limit_m], abs=5e-6)
    expected = limits_of(Activation.named(activation))[2:4]
    assert expected == pytest.approx([limit_l, limit_m], abs=1e-6)


@pytest.mark.parametrize(
    ("activation", "first"),
    [
        (HARD_SWISH, 20),
        pytest.param(lambda x: math.log1p(math.exp(x)), 43, marks=pytest.mark.slow),
        (lambda x: x * x, 8),
        pytest.param(
            Activation(lambda x: max(x, 0.0) ** 2, kinks=(0.0,)), 7, marks=pytest.mark.slow
        ),
        pytest.param(EXP, 7, marks=pytest.mark.slow),
    ],
)
def test_survey_of_other_activations(activation, first):
    assert [crossing.batch for crossing in stability(activation, [4, 100]).crossings] == [first]


def test_batches_in_any_order_and_small_ones():
    result = stability("tanh", [8, 2, 3, 8])
    assert result.batches.tolist() == [2, 3, 8]
    values = result.eigenvalues
    assert values[1:, 0].tolist() == [p.eigenvalues[0] for p in result.points[1:]]
    assert values[2, 1] == result.points[2].eigenvalues[1]
    assert result.rates.tolist() == [p.rate for p in result.points]
    assert result.stable.all()
    assert stability("tanh", [2]).eigenvalues.shape == (1, 0)
    assert stability("tanh", [2]).labels == ()


def test_what_does_not_exist_is_no_zero():
    """A batch of 3 has no λ_M, and one of 2 no λ_L either: NaN, a dash, and null in JSON."""
    result = stability("relu", [2, 3, 4])
    assert np.isnan(result.eigenvalues).tolist() == [[True, True], [False, True], [False, False]]
    rows = [line.split() for line in str(result).splitlines()[2:]]
    assert [row[1:3].count("-") for row in rows] == [2, 1, 0]
    assert rows[1] == ["3", f"{result.points[1].eigenvalues[0]:.6f}", "-", rows[1][1]]
    document = json.loads(dumps(result.eigenvalues.tolist()))
    assert document[0] == [None, None]
    assert document[1] == [result.points[1].eigenvalues[0], None]


def test_uncentred():
    result = stability("linear", [4, 8], norm="batch-uncentred")
    assert result.rates == pytest.approx([4 / 6, 8 / 10], abs=1e-12)
    assert result.labels[0] == "λ_1"


@pytest.mark.parametrize("stable_above", [True, False])
def test_bisection_finds_the_integer(stable_above):
    template = fixed_point("tanh", 5)
    asked = []

    def at(batch):
        asked.append(batch)
        rate = 0.5 if (batch >= 613) == stable_above else 1.25
        return dataclasses.replace(template, batch=batch, rate=rate, eigenvalues=(0.1, -rate))

    result = _crossing(at, at(4), at(10_000))
    assert result == Crossing(613, stable_above, 1, -0.5 if stable_above else -1.25)
    assert len(asked) <= 2 + 14


def test_table():
    header, *rows, crossing = str(stability("silu", [20, 30])).splitlines()
    assert header == 'silu, norm "batch"'
    heads, stable, unstable = (row.split() for row in rows)
    assert heads == ["batch", "λ_L", "λ_M", "rate"]
    assert (stable[0], len(stable)) == ("20", 4)
    assert (unstable[0], unstable[4:]) == ("30", ["unstable"])
    assert crossing == "unstable from batch 26 on (λ_L)"
    crossings = Crossing(7, True, 1, 0.9), Crossing(9, False, 0, 1.1)
    back = str(dataclasses.replace(stability("silu", [20]), crossings=crossings))
    assert back.endswith("\nstable from batch 7 on (λ_M)\nunstable from batch 9 on (λ_L)")


def test_results_are_values():
    result = stability("tanh", [4, 8])
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.norm = "none"
