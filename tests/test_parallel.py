"""Parallel work: all long functions take the same keywords, and executors change no bits."""

import dataclasses
import inspect
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from test_public_api import MODULES, callables_of

import bnmc
from bnmc import Chain, infinite_width
from bnmc._support import interruption, workers
from bnmc._support.workers import Parallel
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.experiments import beyond, limits
from bnmc.gradients import tangent
from bnmc.infinite_width import tiles
from bnmc.invariant import claim_check
from bnmc.mixing import comparison
from bnmc.simulation import run as simulating

#: Functions whose work is in tasks, with what they take besides `threads`, `executor` and
#: `progress`.  Pairs that meet early are no sample of all pairs, so coupled pairs have no time
#: limit: it would bias the estimate.  The docstrings of these functions say so.
LONG = {
    "bnmc.backpropagate": "timeout store backend",
    "bnmc.gradients.backpropagate": "timeout store backend",
    "bnmc.simulate": "timeout store backend",
    "bnmc.train": "timeout store",
    "bnmc.training.train": "timeout store",
    "bnmc.training.largest_rate": "timeout",
    "bnmc.experiments.run": "timeout store",
    "bnmc.gradients.extreme_singular_values": "timeout",
    "bnmc.gradients.jacobian": "timeout",
    "bnmc.gradients.tangent_kernel": "timeout",
    "bnmc.infinite_width.convergence": "timeout",
    "bnmc.infinite_width.nngp": "timeout",
    "bnmc.infinite_width.ntk": "timeout",
    "bnmc.infinite_width.train_networks": "timeout",
    "bnmc.invariant.check": "timeout",
    "bnmc.invariant.expectation": "",
    "bnmc.invariant.sample": "",
    "bnmc.mixing.compare": "timeout",
    "bnmc.mixing.contraction": "",
    "bnmc.mixing.tv_bound": "backend",
    "bnmc.mixing.two_inputs": "timeout",
    "bnmc.regularity.averages": "timeout",
    "bnmc.regularity.constant": "timeout",
    "bnmc.regularity.figures": "timeout",
}
KEYWORDS = {"threads", "executor", "progress", "timeout", "store", "backend"}

#: Functions with some of these keywords that run no tasks of an executor.
OTHERS = {
    "bnmc.kernels.workspace"
}  # fmt: skip


def keywords_of(function):
    return KEYWORDS & set(inspect.signature(function).parameters)


def test_long_functions_take_the_same_keywords():
    for module in MODULES:
        for name, function in callables_of(__import__(module, fromlist=["_"])):
            if inspect.isclass(function):  # a result may have a store, or a time limit
                continue
            try:
                taken = keywords_of(function)
            except ValueError:  # functions compiled for C
                continue
            full = f"{module}.{name}"
            if module.startswith("bnmc.experiments.") or full in OTHERS or not taken:
                continue
            expected = {"threads", "executor", "progress", *LONG[full].split()}
            assert taken == expected, full
            assert ("timeout" in taken) != ("There is no time limit: " in inspect.getdoc(function))


def test_figures_take_an_executor():
    for function in (beyond.gap, limits.plane):
        assert keywords_of(function) == KEYWORDS - {"backend"}


RELU = Chain(30, 4, "relu")
LINEAR = Chain(8, 8, "linear", norm="batch-uncentred")
X, Y = np.random.default_rng(0).normal(size=(2, 30, 4))

#: Calls of long functions, and the numbers of their results.
CALLS = {
    "tangent_kernel": lambda **o: (
        bnmc.gradients.tangent_kernel(RELU, 2, chains=5, rng=0, **o).kernels
    ),
    "jacobian": lambda **o: (
        bnmc.gradients.jacobian(Chain(9, 3, "tanh"), 2, chains=3, rng=0, **o).log_singular_values
    ),
    "contraction": lambda **o: bnmc.mixing.contraction(RELU, chains=8, rng=0, **o).rate,
    "tv_bound": lambda **o: bnmc.mixing.tv_bound(RELU, 20, chains=20, rng=0, **o).bound,
    "two_inputs": lambda **o: (
        bnmc.mixing.two_inputs(RELU, X, Y, depth=3, chains=4, rng=0, **o).spectral
    ),
    "expectation": lambda **o: (
        bnmc.invariant.expectation(RELU, "orthogonality_gap", chains=20, rng=0, **o).value
    ),
    "sample": lambda **o: bnmc.invariant.sample(RELU, 5, 0.2, rng=0, **o).gram,
    "nngp": lambda **o: infinite_width.nngp(Chain(9, 2, "tanh", norm="layer"), X, 2, **o),
    "nngp, batch": lambda **o: infinite_width.nngp(
        X[:, :3], 2, activation="tanh", norm="batch", batch=3, skip=0.5, rtol=0.1, rng=0, **o
    ),
    "ntk": lambda **o: (
        infinite_width.ntk(X, 2, method="monte-carlo", width=16, chains=5, rng=0, **o).kernels
    ),
    "train_networks": lambda **o: (
        infinite_width.train_networks(
            "ntk", X, X[0] > 0, [0, 5], width=700, chains=5, rng=0, **o
        ).outputs
    ),
    "constant": lambda **o: (
        bnmc.regularity.constant(LINEAR, rtol=0.05, chains=32, rng=0, **o).value
    ),
    "constant, simulated": lambda **o: (
        bnmc.regularity.constant(
            Chain.bn_residual(6, 6, gamma=1.0), rtol=0.1, chains=20, rng=0, **o
        ).value
    ),
}


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", CALLS)
def test_results_depend_neither_on_threads_nor_on_the_executor(name, processes):
    call = CALLS[name]
    whole = call(threads=1)
    np.testing.assert_array_equal(call(threads=3), whole)
    np.testing.assert_array_equal(call(executor=processes), whole)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_named(name):
    with pytest.raises(ArgumentError, match="^threads: got 0"):
        CALLS[name](threads=0)
    with pytest.raises(ArgumentTypeError, match="^executor: got 3"):
        CALLS[name](executor=3)
    with pytest.raises(ArgumentTypeError, match="^progress: got 3"):
        CALLS[name](progress=3)


def test_a_figure_runs_on_an_executor():
    sizes = {"widths": (50, 60), "activations": ("tanh",), "batches": (4,), "chains": 3, "last": 70}
    alone = bnmc.experiments.run("gap", first=5, **sizes)
    with ThreadPoolExecutor(2) as pool:
        other = bnmc.experiments.run("gap", first=5, executor=pool, **sizes)
    assert alone.data.identical(other.data)


def spending(patch):
    """Return a progress: each of the finished steps takes a second of the time limit.

    Work that begins anew comes after the work before.
    """
    clock = {"before": 0.0, "done": 0.0}

    def report(done, total):
        if done < clock["done"]:
            clock["before"] += clock["done"]
        clock["done"] = done

    patch.setattr(interruption.time, "monotonic", lambda: sum(clock.values()))
    return report


def test_a_time_limit_returns_the_first_networks(monkeypatch):
    monkeypatch.setattr(tangent, "TOGETHER_BYTES", 1)
    spend = spending(monkeypatch)
    whole = bnmc.gradients.tangent_kernel(RELU, 2, chains=40, rng=0)
    options = {"chains": 40, "rng": 0, "threads": 1, "progress": spend}
    part = bnmc.gradients.tangent_kernel(RELU, 2, timeout=3.0, **options)
    assert 3 <= part.chains < 40
    np.testing.assert_array_equal(part.kernels, whole.kernels[: part.chains])
    spend(0, 40)
    monkeypatch.setattr(interruption.Stop, "__call__", lambda stop: True)
    with pytest.raises(PartialEstimateError, match="timeout=3 seconds"):
        bnmc.gradients.tangent_kernel(RELU, 2, timeout=3.0, **options)


def test_a_time_limit_returns_the_first_trained_networks(monkeypatch):
    def trained(**options):
        return infinite_width.train_networks(
            "ntk", X, X[0] > 0, [0, 2], width=1024, chains=4, rng=0, threads=1, **options
        )

    part = trained(timeout=1.0, progress=spending(monkeypatch))
    monkeypatch.setattr(interruption.Stop, "__call__", lambda stop: True)
    with pytest.raises(PartialEstimateError, match="no networks are finished within timeout=3 s"):
        trained(timeout=3.0)
    monkeypatch.undo()
    assert 1 <= len(part.outputs) < 4
    np.testing.assert_array_equal(part.outputs, trained().outputs[: len(part.outputs)])


def test_a_time_limit_returns_the_first_layers(monkeypatch):
    monkeypatch.setattr(simulating, "TILE_SECONDS", 1e-4)
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        options = {"progress": spending(patch), "executor": pool, "chains": 4, "rng": 0}
        part = bnmc.mixing.two_inputs(RELU, X, Y, depth=1000, timeout=500.0, **options)
        patch.setattr(interruption.Stop, "__call__", lambda stop: True)
        with pytest.raises(PartialEstimateError, match="no layer is finished within timeout=9 sec"):
            bnmc.mixing.two_inputs(RELU, X, Y, depth=1000, timeout=9.0, **options)
    count = len(part.layers)
    assert 1 <= count < 1000
    whole = bnmc.mixing.two_inputs(RELU, X, Y, depth=count - 1, chains=4, rng=0)
    np.testing.assert_array_equal(part.spectral, whole.spectral)


def test_a_time_limit_ends_a_figure_between_two_parts(tmp_path, monkeypatch):
    sizes = {"widths": (50, 60), "activations": ("tanh",), "batches": (4,), "chains": 3, "last": 70}
    sizes |= {"first": 5, "store": tmp_path / "parts"}
    checks = iter([False])
    with monkeypatch.context() as patch:
        patch.setattr(interruption.Stop, "__call__", lambda stop: next(checks, stop._end))
        with pytest.raises(PartialEstimateError, match="^1 parts, which .* within timeout=9 s"):
            bnmc.experiments.run("gap", timeout=9.0, **sizes)
    part = bnmc.experiments.run("gap", timeout=1e9, **sizes)
    whole = bnmc.experiments.run("gap", **sizes | {"store": None})
    assert part.data.identical(whole.data)


def test_a_time_limit_of_kernels(monkeypatch):
    """Fewer networks are a result, also of a convergence; fewer tiles or replicates are none."""
    x = X[:4, :3]

    def simulated(**options):
        return infinite_width.ntk(x, 1, method="monte-carlo", width=9, chains=8, rng=0, **options)

    def measured(**options):
        return infinite_width.convergence(x, 1, widths=[5, 9], chains=8, rng=0, **options)

    with monkeypatch.context() as patch:
        part = simulated(threads=1, timeout=3.0, progress=spending(patch))
    assert 3 <= part.chains < 8
    np.testing.assert_array_equal(part.kernels, simulated().kernels[: part.chains])
    with monkeypatch.context() as patch:  # the first width takes 8 seconds
        fewer = measured(threads=1, timeout=11.5, progress=spending(patch))
    whole = measured()
    assert 3 <= fewer.distances.n < 8
    assert fewer.distances.value[0] == whole.distances.value[0]
    monkeypatch.setattr(tiles, "_TILE", 2)
    monkeypatch.setattr(interruption.Stop, "__call__", lambda stop: stop._end is not None)
    with pytest.raises(PartialEstimateError, match="no networks are finished within timeout=3 s"):
        simulated(timeout=3.0)
    assert infinite_width.nngp(x, 1).shape == (3, 3)
    with pytest.raises(PartialEstimateError, match="no tiles are finished within timeout=3 s"):
        infinite_width.nngp(x, 1, timeout=3.0)
    of_batches = {"norm": "batch", "batch": 3, "rng": 0, "other": X[:4, 1:4], "timeout": 3.0}
    with pytest.raises(PartialEstimateError, match="only 1 of 6 pairs of batches are finished"):
        infinite_width.nngp(x, 2, **of_batches)
    attempts, results_of = [], workers.results_of
    monkeypatch.setattr(
        workers, "results_of", lambda *work: attempts.append(work) or results_of(*work)
    )
    monkeypatch.setattr(interruption.Stop, "__call__", lambda stop: len(attempts) > 1)
    with pytest.raises(PartialEstimateError, match="replicates are finished") as caught:
        infinite_width.nngp(x, 2, activation="tanh", rtol=1e-9, threads=1, **of_batches)
    assert caught.value.partial.shape == (3, 3)


def test_a_time_limit_of_a_check_leaves_the_first_samples(monkeypatch):
    samples = np.random.default_rng(0).standard_normal((500, *X.shape))

    def checked(count, **options):
        return bnmc.invariant.check(RELU, samples=samples[:count], rng=0, **options)

    monkeypatch.setattr(claim_check, "BLOCK_NUMBERS", 100 * X.size)
    part = checked(500, timeout=250.0, progress=spending(monkeypatch))
    assert part.chains == 300
    assert part.rows == checked(300).rows
    with pytest.raises(PartialEstimateError, match="only 100 samples are tested within timeout=9"):
        checked(500, timeout=9.0, progress=spending(monkeypatch))


def test_a_time_limit_of_a_comparison_leaves_rows_without_estimates(monkeypatch):
    clock, limits = [0.0], []
    contraction, simulate = comparison.contraction, comparison.simulate

    def slow(*arguments, **options):
        clock[0] = 9.0
        return contraction(*arguments, **options)

    def shorter(*arguments, timeout, **options):
        """Simulate a run, the first time one that ends within the burn-in."""
        limits.append(timeout)
        run = simulate(*arguments, **options)
        return run if len(limits) > 1 else dataclasses.replace(run, layers=run.layers[:0])

    monkeypatch.setattr(interruption.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(comparison, "contraction", slow)
    monkeypatch.setattr(comparison, "simulate", shorter)
    few = {"contraction": 2, "tv_bound": 2, "runs": 5}
    table = bnmc.mixing.compare(RELU, rng=0, chains=few, timeout=1.5)
    assert limits == [1e-9, 1e-9]
    notes = {row.name: row.note for row in table.rows}
    assert notes["mean field"] == notes["contraction"] == ""
    assert notes["tv_bound"] == "the estimator does not begin within timeout=1.5 seconds"
    assert notes["spectral"] == "no layer after the burn-in is finished within timeout=1.5 seconds"
    assert "within" not in notes["relaxation"]


def test_a_time_limit_ends_the_averages():
    with pytest.raises(PartialEstimateError, match="standard error") as caught:
        bnmc.regularity.constant(LINEAR, rtol=1e-6, chains=32, rng=0, burn_in=64, timeout=1e-9)
    assert abs(caught.value.partial.value - 0.912) < 0.05
    with pytest.raises(ArgumentError, match="^timeout: got 0"):
        bnmc.regularity.constant(LINEAR, timeout=0)


def test_options_are_those_of_another_function():
    pool = ThreadPoolExecutor(1)
    assert Parallel.of(2, pool, True).options == {"threads": 2, "executor": pool, "progress": True}


def test_threads_fit_beside_the_results(monkeypatch):
    monkeypatch.setattr(workers, "available_memory", lambda: 1000)
    counts = [Parallel.of(8).fitting(*sizes).threads for sizes in ((10, 0), (200, 350), (200, 990))]
    assert counts == [8, 3, 1]
