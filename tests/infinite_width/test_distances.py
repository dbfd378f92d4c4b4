"""The distance of kernels of finite width from the limit."""

import numpy as np
import pytest

from bnmc.errors import ArgumentError
from bnmc.infinite_width import convergence, ntk


def test_batch_normalization_converges_as_the_root_of_the_width():
    # A published measurement with other inputs (batches of 7 and 5) has the distances .422, .199
    # and .105 at the widths 64, 256 and 1024; ours are between half and twice as large.
    rng = np.random.default_rng(0)
    x, other = rng.standard_normal((10, 7)), rng.standard_normal((10, 6))
    found = convergence(x, 1, other=other, widths=[64, 256, 1024], networks=25, norm="batch", rng=1)
    np.testing.assert_allclose(found.limit, ntk(x, 1, other=other, norm="batch"))
    ratio = found.distances / [0.422, 0.199, 0.105]
    assert ((ratio > 0.5) & (ratio < 2.0)).all()
    # Five standard errors, and 0.05 for the next order.
    assert abs(found.slope + 0.5) < 5 * found.slope_stderr + 0.05
    assert found.slope_stderr < 0.05


def test_the_slope_is_that_of_a_weighted_line():
    x = np.random.default_rng(2).standard_normal((4, 5))
    found = convergence(x, 2, widths=[16, 32, 128], networks=10, rng=0, activation="tanh")
    weights = found.distances / found.stderr
    slope, cov = np.polyfit(
        np.log(found.widths), np.log(found.distances), 1, w=weights, cov="unscaled"
    )
    assert found.slope == pytest.approx(slope[0])
    assert found.slope_stderr == pytest.approx(np.sqrt(cov[0, 0]))


def test_a_picture():
    x = np.random.default_rng(3).standard_normal((4, 3))
    found = convergence(x, 1, widths=[16, 32], networks=4, rng=0)
    ax = found.plot()
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert found.plot(ax=ax) is ax
    line = ax.lines[1].get_ydata()
    assert line == pytest.approx([2**0.5 * found.distances[1], found.distances[1]])


@pytest.mark.parametrize(
    "options",
    [
        {"widths": [16]}, {"widths": [16, 16]}, {"widths": [1, 2]}, {"networks": 1}, {"depth": 0},
        {"width": 9}, {"method": "analytic"}, {"norm": "bath"},
    ],
)  # fmt: skip
def test_bad_input_raises(options):
    with pytest.raises(ArgumentError):
        convergence(np.eye(3), **{"depth": 1, "networks": 2, "widths": [4, 8], **options})
