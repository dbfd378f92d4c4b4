"""Results that draw themselves: their curves have the numbers of the results."""

import numpy as np
import pytest

import bnmc
from bnmc import Chain
from bnmc.plot import axes

CHAIN = Chain(40, 4, "relu")
X, Y = np.random.default_rng(0).normal(size=(2, 40, 4))

#: Results, and the numbers of the first curve.
RESULTS = {
    "contraction": (
        lambda: bnmc.mixing.contraction(CHAIN, chains=6, rng=0),
        lambda result: np.median(result.distance, axis=0),
    ),
    "two inputs": (
        lambda: bnmc.mixing.two_inputs(CHAIN, X, Y, depth=3, chains=5, rng=0),
        lambda result: np.median(result.spectral, axis=0),
    ),
    "lagged": (
        lambda: bnmc.mixing.tv_bound(CHAIN, 10, chains=20, rng=0).lagged,
        lambda result: result.bound,
    ),
    "descent": (
        lambda: bnmc.infinite_width.descent([[2.0]], [1.0], [0.0, 0.5], learning_rate=1.0),
        lambda result: result.loss,
    ),
    "stability": (
        lambda: bnmc.mean_field.stability("relu", [3, 4, 8]), lambda result: result.rates
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_curves_have_the_numbers_of_the_result(name):
    make, numbers = RESULTS[name]
    result = make()
    ax = result.plot()
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), numbers(result))
    given = axes.figure()[1][0]
    assert result.plot(ax=given) is given


def test_estimates_have_bars():
    start = np.random.default_rng(5).standard_normal((300, 4)) + np.array([3.0, 0.0, 0.0, 0.0])
    run = bnmc.simulate(Chain(300, 4, "relu"), 12, chains=30, initial=start, rng=0)
    fitted = bnmc.mixing.relaxation(run, bnmc.MeanField(run.chain).fixed_point())
    ax = fitted.plot()
    assert len(ax.containers) == 1
    np.testing.assert_array_equal(ax.containers[0].lines[0].get_ydata(), fitted.deviation.value)
