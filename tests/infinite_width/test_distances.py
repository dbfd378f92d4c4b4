"""The distance of kernels of finite width from the limit."""

import numpy as np
import pytest

from bnmc import Estimate
from bnmc._support.arguments import draw_key
from bnmc.errors import ArgumentError
from bnmc.infinite_width import convergence, logit_divergence, ntk


def test_batch_normalization_converges_as_the_root_of_the_width():
    # A published measurement with other inputs (batches of 7 and 5) has the distances .422, .199
    # and .105 at the widths 64, 256 and 1024; ours are between half and twice as large.
    rng = np.random.default_rng(0)
    x, other = rng.standard_normal((10, 7)), rng.standard_normal((10, 6))
    measured = convergence(
        x, 1, other=other, widths=[64, 256, 1024], chains=25, norm="batch", rng=1
    )
    np.testing.assert_allclose(measured.limit, ntk(x, 1, other=other, norm="batch"))
    ratio = measured.distances.value / [0.422, 0.199, 0.105]
    assert ((ratio > 0.5) & (ratio < 2.0)).all()
    # Five standard errors, and 0.05 for the next order.
    assert abs(measured.slope.value + 0.5) < 5 * measured.slope.stderr + 0.05
    assert measured.slope.stderr < 0.05


def test_the_slope_is_that_of_a_weighted_line():
    x = np.random.default_rng(2).standard_normal((4, 5))
    measured = convergence(x, 2, widths=[16, 32, 128], chains=10, rng=0, activation="tanh")
    weights = measured.distances.value / measured.distances.stderr
    slope, cov = np.polyfit(
        np.log(measured.widths), np.log(measured.distances.value), 1, w=weights, cov="unscaled"
    )
    assert measured.slope.value == pytest.approx(slope[0])
    assert measured.slope.stderr == pytest.approx(np.sqrt(cov[0, 0]))


def test_a_picture():
    x = np.random.default_rng(3).standard_normal((4, 3))
    measured = convergence(x, 1, widths=[16, 32], chains=4, rng=0)
    ax = measured.plot()
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert measured.plot(ax=ax) is ax
    bars, last = ax.containers[0].lines[0].get_ydata(), measured.distances.value[1]
    np.testing.assert_array_equal(bars, measured.distances.value)
    assert ax.lines[-1].get_ydata() == pytest.approx([2**0.5 * last, last])


def test_distances_are_means_over_networks():
    x, options = np.random.default_rng(3).standard_normal((4, 3)), {"weight_variance": 2.0}
    measured = convergence(x, 1, widths=[16, 32], chains=7, rng=0, **options)
    rng = np.random.default_rng([draw_key(0), 1])
    networks = ntk(x, 1, method="monte-carlo", width=32, chains=7, rng=rng, **options)
    far = [np.linalg.norm(each - measured.limit) for each in networks.kernels]
    expected = Estimate.from_samples(np.array(far) / np.linalg.norm(measured.limit))
    assert measured.distances[1].value == pytest.approx(expected.value, rel=1e-12)
    assert measured.distances[1].ci == pytest.approx(expected.ci, rel=1e-12)


def divergences(first, second, m, other, **options):
    """Return 20 divergences of 2000 samples each: N(mean, deviation²) of pairs of arguments."""
    rng = np.random.default_rng(1)

    def outputs(law, count):
        return law[0] + law[1] * rng.standard_normal((count, 2000))

    return [
        logit_divergence(outputs(first, m), outputs(second, other), **options) for _ in range(20)
    ]


@pytest.mark.parametrize(("m", "other"), [(10, 10), (50, 50), (5, 20)])
@pytest.mark.parametrize(
    ("laws", "expected", "accuracy"),
    [(((2.0, 3.0), (2.0, 3.0)), 0.0, 0.01), (((1.0, 2.0), (0.0, 1.0)), 2.0 - np.log(2.0), 0.05)],
)
def test_divergences_are_unbiased(laws, expected, accuracy, m, other):
    """Their mean over 40,000 samples; its error is measured, and the bound is 5.5 of it."""
    values = divergences(*laws, m, other)
    error = np.std(values, ddof=1) / np.sqrt(20)
    assert abs(np.mean(values) - expected) < 5.5 * error
    assert error < accuracy
    raw = np.mean(divergences(*laws, m, other, corrected=False))
    assert raw > expected + 20 * error
    if (m, expected) == (50, 0.0):
        assert raw == pytest.approx(0.042, abs=0.002)


def test_divergence_written_out():
    rng = np.random.default_rng(2)
    f, g = rng.standard_normal((6, 3)) + 1.0, 2.0 * rng.standard_normal((7, 3))
    v, w = np.var(f, axis=0, ddof=1), np.var(g, axis=0, ddof=1)
    gap = np.mean(f, axis=0) - np.mean(g, axis=0)
    expected = np.mean(0.5 * (v / w + gap**2 / w - 1 - np.log(v / w)))
    assert logit_divergence(f, g, corrected=False) == pytest.approx(expected, rel=1e-12)


def test_divergences_do_not_depend_on_the_scale():
    outputs, reference = np.random.default_rng(0).standard_normal((2, 6, 4))
    expected = logit_divergence(outputs, reference)
    for power in (-1000, -500, 500, 1000):
        assert logit_divergence(outputs * 2.0**power, reference * 2.0**power) == expected
    for scale in (1e-200, 1e200):
        with pytest.raises(ArgumentError, match="^outputs: .* does not overflow"):
            logit_divergence(outputs * scale, reference)


def test_a_limit_of_zero_raises():
    with pytest.raises(ArgumentError, match="^x: got 0.0, allowed: inputs whose kernel is not 0"):
        convergence(np.zeros((3, 2)), 1, widths=[4, 8], chains=2, rng=0)


def test_distances_of_large_kernels():
    x = np.random.default_rng(0).standard_normal((3, 2))
    options = {"depth": 1, "widths": [4, 8], "chains": 3, "rng": 0}
    expected = convergence(x, **options).distances.value
    large = convergence(x * 2.0**400, **options).distances.value
    np.testing.assert_array_equal(large, expected)
