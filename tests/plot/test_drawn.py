"""Results that draw themselves: their curves have the numbers of the results."""

import numpy as np
import pytest

import bnmc
from bnmc import Chain
from bnmc.plot import axes

CHAIN = Chain(40, 4, "relu")
X, Y = np.random.default_rng(0).normal(size=(2, 40, 4))

#: Independent numbers, as those of a run of 300 layers.
NOISE = np.random.default_rng(1).standard_normal((20, 300))

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
        lambda: bnmc.mean_field.stability("relu", [3, 4, 8]),
        lambda result: result.rates,
    ),
    "posterior": (
        lambda: bnmc.infinite_width.posterior([[2.0]], [[1.0]], [3.0], [0.0, 0.5]),
        lambda result: result.mean[:, 0],
    ),
    "networks in training": (
        lambda: bnmc.infinite_width.train_networks(
            "ntk", X[:8], X[0] > 0, [0, 2], width=9, chains=5, rng=0
        ),
        lambda result: np.median(result.outputs[:, :, 0], axis=0),
    ),
    "mean field": (
        lambda: bnmc.MeanField(CHAIN).trajectory(np.diag([1.0, 2.0, 3.0, 4.0]), 3),
        lambda result: [np.trace(matrix) / 4 for matrix in result.gram],
    ),
    "pair": (
        lambda: bnmc.mean_field.CorrelationMap("tanh").trajectory(3, correlation=[0.5, 0.9]),
        lambda result: result.correlation[:, 0],
    ),
    "figures": (
        lambda: bnmc.regularity.figures([4, 8], rng=0, rtol=0.1),
        lambda result: result.value("alpha"),
    ),
}

RESULTS |= {
    "run": (
        lambda: bnmc.simulate(CHAIN, 5, chains=4, rng=0),
        lambda result: bnmc.gram.orthogonality_gap(result.gram).mean(axis=0),
    ),
    "autocorrelation": (
        lambda: bnmc.mixing.autocorrelation(NOISE, least_times=5.0),
        lambda result: result.correlation,
    ),
    "spectrum": (
        lambda: bnmc.mixing.spectral(NOISE, [1, 2]),
        lambda result: [rate.value for rate in result.rates],
    ),
    "edge of chaos": (
        lambda: bnmc.mean_field.edge_of_chaos("relu", [0.0, 0.0]), lambda result: [2.0, 2.0]
    ),
    "alignment": (
        lambda: bnmc.infinite_width.alignment([[2.0, 0.0], [0.0, 1.0]], [[3.0, 1.0], [4.0, 0.0]]),
        lambda result: [10.0, 16.0],
    ),
}  # fmt: skip

#: Results whose kernels are an image.
KERNELS = {
    "tangent": lambda: bnmc.gradients.tangent_kernel(CHAIN, 2, chains=5, rng=0),
    "simulated": lambda: bnmc.infinite_width.ntk(X, 1, method="monte-carlo", chains=5, rng=0),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_curves_have_the_numbers_of_the_result(name):
    make, numbers = RESULTS[name]
    result = make()
    ax = result.plot()
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), numbers(result))
    given = axes.figure()[1][0]
    assert result.plot(ax=given) is given


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_images(name):
    result = KERNELS[name]()
    ax = result.plot()
    np.testing.assert_array_equal(ax.images[0].get_array(), np.median(result.kernels, axis=0))


def edges_of(collection):
    """Return the least and the largest ordinate of a band at its last point."""
    x, y = collection.get_paths()[0].vertices.T
    return y[x == x.max()].min(), y[x == x.max()].max()


def test_bands_have_the_widths_of_the_law():
    law = bnmc.infinite_width.posterior([[2.0]], [[1.0]], [3.0], [0.0, 0.5], learning_rate=0.1)
    decay = np.exp(-0.1)
    ends = 3.0 * (1.0 - decay) + np.array([-2.0, 2.0]) * decay
    assert edges_of(law.plot().collections[0]) == pytest.approx(ends)
    path = bnmc.MeanField(CHAIN).trajectory(np.diag([1.0, 2.0, 3.0, 4.0]), 0)
    assert edges_of(path.plot().collections[0]) == (1.0, 4.0)


def test_a_run_draws_what_it_recorded_or_its_distance():
    star = bnmc.MeanField(CHAIN).fixed_point()
    options = {"chains": 4, "rng": 0}
    run = bnmc.simulate(CHAIN, 5, **options)
    distances = bnmc.gram.distance(run.gram, star.gram).mean(axis=0)
    np.testing.assert_array_equal(run.plot(star=star).lines[0].get_ydata(), distances)
    ranks = bnmc.simulate(CHAIN, 5, observables=["rank_bound"], **options)
    assert ranks.plot().get_ylabel() == "lower bound of the rank"
    assert len(bnmc.plot.overview(run, star).axes) == 2  # from the Gram matrices


def test_estimates_have_bars():
    start = np.random.default_rng(5).standard_normal((300, 4)) + np.array([3.0, 0.0, 0.0, 0.0])
    run = bnmc.simulate(Chain(300, 4, "relu"), 12, chains=30, initial=start, rng=0)
    fitted = bnmc.mixing.relaxation(run, bnmc.MeanField(run.chain).fixed_point())
    ax = fitted.plot()
    assert len(ax.containers) == 1
    np.testing.assert_array_equal(ax.containers[0].lines[0].get_ydata(), fitted.deviation.value)
