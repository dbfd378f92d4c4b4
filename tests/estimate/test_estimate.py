"""`Estimate`."""

import dataclasses
import math
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bnmc.errors import ArgumentError
from bnmc.estimate import Estimate
from bnmc.estimate.estimate import Estimates
from bnmc.mixing import RateEstimate


def estimate(value=1.0, stderr=0.1, **fields):
    return Estimate(
        **{"value": value, "stderr": stderr, "ci": (0.8, 1.2), "n": 10, "method": "test", **fields}
    )


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (0.791093, 0.000123, "0.79109 ± 0.00012"),
        (1.0, 0.0996, "1.00 ± 0.10"),
        (1.0, 0.0994, "1.000 ± 0.099"),
        (-3.14159, 0.5, "-3.14 ± 0.50"),
        (12345.6, 678.9, "12346 ± 679"),
        (0.0, 0.25, "0.00 ± 0.25"),
        (0.0, 2.5e-9, "(0.0 ± 2.5)e-09"),
        (1.23456e-8, 1.2e-11, "(1.2346 ± 0.0012)e-08"),
        (1.23456e-8, 2.5e-7, "(0.1 ± 2.5)e-07"),
        (-6.02214e23, 1.5e19, "(-6.02214 ± 0.00015)e+23"),
        (4e-320, 1e-320, "(4.0 ± 1.0)e-320"),
        (1.5e308, 1e307, "(1.50 ± 0.10)e+308"),
        (0.5, 0.0, "0.5 ± 0"),
    ],
)
def test_text_shows_two_digits_of_the_standard_error(value, stderr, text):
    assert str(estimate(value, stderr)) == text
    assert f"{estimate(value, stderr)}" == text


@given(
    st.floats(-1e300, 1e300, allow_subnormal=False),
    st.floats(1e-300, 1e300, allow_subnormal=False),
)
def test_text_is_within_half_a_unit_of_its_last_digit(value, stderr):
    if abs(value) > 1e12 * stderr:  # then the text has more digits than a float64
        return
    text = str(estimate(value, stderr))
    mantissas, _, exponent = text.strip("(").partition(")e")
    shown_value, shown_stderr = (
        float(f"{part}e{exponent or 0}") for part in mantissas.split(" ± ")
    )
    assert abs(shown_stderr - stderr) <= 0.0501 * stderr
    assert abs(shown_value - value) <= 0.0501 * stderr


def test_format_specification_applies_to_both_numbers():
    assert f"{estimate(1.23456, 0.0321):.3f}" == "1.235 ± 0.032"
    assert f"{estimate(1.23456, 0.0321):+.1e}" == "+1.2e+00 ± +3.2e-02"


def test_fields_are_canonical():
    made = estimate(np.float32(0.5), np.float64(1), ci=[0, math.inf], n=np.int64(3))
    assert dataclasses.astuple(made) == (0.5, 1.0, (0.0, math.inf), 3, "test", 0.95, ())
    assert type(made.value) is type(made.stderr) is float
    assert type(made.n) is int
    assert type(made.ci) is tuple
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))


def test_assumptions_are_sentences():
    made = estimate(assumes=["No wells."])
    assert made.assumes == ("No wells.",)
    assert made.as_json()["assumes"] == ("No wells.",)
    assert "assumes" not in estimate().as_json()


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate().value = 2.0


def test_compatible_adds_the_variances():
    a, b = estimate(0.0, 3.0), estimate(5.0, 4.0)  # one standard error of the difference apart
    assert a.compatible(b, sigmas=1)
    assert b.compatible(a, sigmas=1)
    assert not a.compatible(b, sigmas=0.999)


def test_compatible_with_an_exact_number():
    assert estimate(1.0, 0.1).compatible(1.4)
    assert not estimate(1.0, 0.1).compatible(1.41)
    assert estimate(1.0, 0.0).compatible(1)


@pytest.mark.parametrize(("other", "sigmas"), [(math.nan, 4), (1.0, -1), (1.0, math.nan)])
def test_compatible_refuses_what_has_no_meaning(other, sigmas):
    with pytest.raises(ArgumentError):
        estimate().compatible(other, sigmas)


def test_exp_maps_value_and_interval():
    slope = estimate(0.7, 0.01, ci=(-math.inf, 0.72), assumes=["No wells."])
    growth = (math.exp(0.7), math.exp(0.7) * 0.01, (0.0, math.exp(0.72)))
    assert dataclasses.astuple(slope.exp()) == (*growth, 10, "test", 0.95, ("No wells.",))
    assert estimate(709.0, 0.01, ci=(709.0, 710.0)).exp().ci[1] == math.inf
    with pytest.raises(ArgumentError, match=r"^value: got inf"):
        estimate(710.0, 0.01, ci=(709.0, 711.0)).exp()


def test_from_samples_against_scipy():
    samples = np.random.default_rng(5).exponential(size=17)
    made = Estimate.from_samples(samples, level=0.9, method="exponential")
    interval = stats.t(16, samples.mean(), stats.sem(samples)).interval(0.9)
    assert made.value == pytest.approx(samples.mean(), rel=1e-15)
    assert made.stderr == pytest.approx(stats.sem(samples), rel=1e-14)
    assert made.ci == pytest.approx(interval, rel=1e-12)
    assert (made.n, made.method, made.level) == (17, "exponential", 0.9)


def test_from_samples_works_in_float64():
    samples = np.full(1 << 12, 1.1, np.float32)
    made = Estimate.from_samples(samples)
    assert made.value == pytest.approx(float(np.float32(1.1)), rel=1e-15)
    assert made.stderr < 1e-15


def test_sums_with_constants_and_multiples_map_value_error_and_interval():
    first = estimate(1.0, 0.1, ci=(0.8, 1.3), assumes=("some",))
    results = {
        "2 a": (2 * first, 2.0, 0.2, (1.6, 2.6)),
        "a (-2)": (first * -2, -2.0, 0.2, (-2.6, -1.6)),
        "a / 4": (first / 4, 0.25, 0.025, (0.2, 0.325)),
        "a + 1": (1 + first, 2.0, 0.1, (1.8, 2.3)),
        "a - 1": (first - np.float64(1), 0.0, 0.1, (-0.2, 0.3)),
        "1 - a": (1 - first, 0.0, 0.1, (-0.3, 0.2)),
        "-a": (-first, -1.0, 0.1, (-1.3, -0.8)),
        "0 a": (0 * estimate(1.0, 0.1, ci=(0.8, np.inf)), 0.0, 0.0, (0.0, 0.0)),
    }
    for name, (result, value, stderr, ci) in results.items():
        assert (result.value, result.stderr) == pytest.approx((value, stderr), abs=1e-15), name
        assert result.ci == pytest.approx(ci, abs=1e-15), name
        assert (result.n, result.level) == (first.n, first.level)
    assert (1 - first).assumes == ("some",)
    rate = RateEstimate(0.5, 0.1, (0.3, 0.7), n=3, method="test")
    assert type(3 * rate) is Estimate


@pytest.mark.parametrize("other", [True, "2", None, 1j])
def test_other_arithmetic_is_refused(other):
    """Also of two estimates, whose errors may depend on each other."""
    for second in (other, estimate(1.0, 0.1)):
        for calculate in (operator.add, operator.sub, operator.mul, operator.truediv):
            with pytest.raises(TypeError):
                calculate(estimate(1.0, 0.1), second)


def test_several_estimates_have_intervals_of_student_or_their_own():
    values, errors = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.1, 0.2], [0.3, 0.4]])
    means = Estimates(values, errors, 12, "mean", level=0.9)
    law = stats.t(11, values[1, 0], errors[1, 0])
    assert means[1, 0].ci == pytest.approx(law.interval(0.9), rel=1e-12)
    assert (means[1, 0].n, means[1, 0].level, means[1, 0].assumes) == (12, 0.9, ())
    exact = Estimates(values[0], errors[0], 1, "exact", ci=np.array([[0.0, 5.0], [1.0, 2.5]]))
    assert [estimate.ci for estimate in exact] == [(0.0, 5.0), (1.0, 2.5)]
    assert exact.to_dict()["ci"] == [[0.0, 5.0], [1.0, 2.5]]
