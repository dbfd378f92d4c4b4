"""P-values and verdicts of claims, against SciPy and against repetitions."""

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats

from bnmc._claims.claims import Claim, Evidence, assessed, judged


def test_p_values_are_those_of_student_with_halls_correction():
    x = np.random.default_rng(19).gamma(2.0, size=(300, 1)) - 2.1
    (row,) = [assessed("mean", Evidence.of(x + 5, np.full((300, 1), 5.0)), 2e-16)]
    t, skew = stats.ttest_1samp(x[:, 0], 0.0).statistic, stats.skew(x[:, 0])
    # Hall (1992), with moments of ddof 0 in the skewness; ours has ddof 1, a factor (1 − 1/N)^1.5.
    skew *= (1 - 1 / 300) ** 1.5
    corrected = t + skew * (t**2 / 3 + 1 / 6) / 300**0.5 + skew**2 * t**3 / (27 * 300)
    assert row.p_value == pytest.approx(2 * stats.t.sf(abs(corrected), 299), rel=1e-9)
    assert row.statistic == pytest.approx(x.mean() + 5)
    assert row.stderr == pytest.approx(x.std(ddof=1) / 300**0.5)
    mirrored = np.concatenate([x, 0.2 - x])  # no skewness: Student's test itself
    (row,) = [assessed("mean", Evidence.of(mirrored), 2e-16)]
    assert row.p_value == pytest.approx(stats.ttest_1samp(mirrored[:, 0], 0).pvalue, rel=1e-9)


# The correction is compared with its formula above.
@pytest.mark.slow
@pytest.mark.untraced
def test_the_correction_mends_the_tails_of_skew_statistics():
    """χ² with one degree of freedom, 200 samples: Student's test alone has 4 times the alarms."""
    x = np.random.default_rng(20).chisquare(1, (200, 10_000)) - 1
    p = np.array([assessed("", Evidence.of(x[:, [k]]), 2e-16).p_value for k in range(10_000)])
    student = stats.ttest_1samp(x, 0, axis=0).pvalue
    allowed = stats.binom.isf(FALSE_ALARM, 10_000, 1e-3)
    assert np.count_nonzero(p <= 1e-3) <= allowed < np.count_nonzero(student <= 1e-3)


def test_the_worst_of_several_statistics_counts_as_many_times():
    x = np.random.default_rng(21).standard_normal((300, 4))
    x[:, 2] += 0.3
    single = assessed("third", Evidence.of(x[:, 2]), 2e-16)
    worst = assessed("all", Evidence.of(x), 2e-16)
    assert worst.p_value == pytest.approx(4 * single.p_value, rel=1e-12)
    assert (worst.count, worst.statistic) == (4, pytest.approx(single.statistic))


def test_numbers_that_are_equal_to_rounding_are_equal():
    ones = np.ones(100)
    noise = 1e-15 * np.random.default_rng(22).standard_normal(100)
    assert assessed("same", Evidence.of(ones + noise, ones), 2e-16).p_value == 1.0
    assert assessed("off", Evidence.of(ones + 1e-9, ones), 2e-16).p_value == 0.0
    assert assessed("coarse", Evidence.of(ones + 1e-9, ones), 1e-7).p_value == 1.0
    # The magnitude of what cancels is that of its parts.
    assert assessed("cancels", Evidence.of(noise, 0.0, ones), 2e-16).p_value == 1.0


def test_holms_method():
    values = [0.2, 1e-5, 0.0004, None, 0.03]
    rows = judged([Claim(str(p), 0.0, 0.0, 1.0, p_value=p) for p in values], alpha=0.0015)
    adjusted = [row.adjusted for row in rows]
    assert adjusted[3] is None
    expected = [0.2, 4e-5, 0.0012, 0.06]
    assert [adjusted[k] for k in (0, 1, 2, 4)] == pytest.approx(expected)
    assert [row.verdict for row in rows] == ["holds", "fails", "fails", "reported", "holds"]
    # never below that of a smaller p-value, never above 1
    rows = judged([Claim("", 0.0, 0.0, 1.0, p_value=p) for p in (0.4, 0.45)], alpha=0.05)
    assert [row.adjusted for row in rows] == pytest.approx([0.8, 0.8])
