"""The GPU kernels, in Numba's simulator: the CPU's trajectories to rounding, and how they fail.

With NUMBA_ENABLE_CUDASIM=0 on a machine with a GPU the same tests run there.
"""

import contextlib
import ctypes
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from gpu_runs import assert_equal_to_rounding, both
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws import haar
from numba import float64, int64
from oracle import normals, user_function
from slow_cases import pairs, slow, some

from bnmc import Activation, Chain, Convolution, Distance, errors, gram, simulate
from bnmc._kernels.gpu import device, shape
from bnmc._kernels.gpu.block import begin
from bnmc._kernels.gpu.build import constants_of, kernels_of
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.pairs import draw_squares
from bnmc._kernels.gpu.passes import segments_of
from bnmc._kernels.scalar import codes
from bnmc._support.device_arrays import _Tensor as DLTensor
from bnmc._support.device_arrays import as_device_array, is_device_array
from bnmc.chain.activations import sigma_of
from bnmc.chain.compiled import spec_of
from bnmc.chain.start import Covariance
from bnmc.mixing import tv_bound
from bnmc.simulation.engine.gpu import launches, samplers
from bnmc.simulation.engine.gpu.arrays import DeviceRows
from bnmc.simulation.engine.gpu.pairs import GpuPairs, bytes_of_pair
from bnmc.simulation.engine.gpu.samplers import GpuSampler
from bnmc.simulation.engine.pairs import APART, THRESHOLD, Pairs
from bnmc.simulation.runs import Recorded, Run, seconds_of
from bnmc.simulation.starting import choose_backend, run_of

# On a GPU Numba warns of small grids, and of arrays of the host, of kernels of the tests.
pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.filterwarnings("ignore:Grid size"),
    pytest.mark.filterwarnings("ignore:Host array used"),
]

LAYERS = int(os.environ.get("BNMC_LAYERS", "120"))
X = np.random.default_rng(5).standard_normal((70, 3))
# The simulator's threads of Python do not inherit `np.errstate`.
IN_THREADS = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def test_the_simulator_shows_a_missing_barrier():
    """Threads run forwards and backwards in turns, so a race with a neighbour shows on one side."""
    if not device.SIMULATED:
        pytest.skip("needs NUMBA_ENABLE_CUDASIM=1")

    @cuda.jit
    def look_at_neighbours(board, seen, barriers):
        thread = cuda.threadIdx.x
        for turn in range(2):
            board[thread] = turn + 1
            if barriers:
                cuda.syncthreads()
            seen[turn, 0, thread] = board[(thread + 1) % 4]
            seen[turn, 1, thread] = board[(thread - 1) % 4]
            cuda.syncthreads()

    @cuda.jit
    def leave():
        if cuda.threadIdx.x != 2:
            cuda.syncthreads()

    board, seen = np.zeros(4), np.zeros((2, 2, 4))
    look_at_neighbours[1, 4](board, seen, True)
    assert (seen == np.array([1, 2])[:, None, None]).all()
    board[:] = 0
    look_at_neighbours[1, 4](board, seen, False)
    wrong = (seen != np.array([1, 2])[:, None, None]).any(axis=2)
    assert wrong.any(axis=0).all()
    # Threads that wait for one that has ended: an error instead of a test that never ends.
    with pytest.raises(threading.BrokenBarrierError):
        leave[1, 4]()


def test_the_simulator_shows_shared_memory_that_nobody_wrote():
    """Zeros would hide a kernel that lacks a first write."""
    if not device.SIMULATED:
        pytest.skip("needs NUMBA_ENABLE_CUDASIM=1")

    @cuda.jit
    def look(doubles, whole):
        doubles[0] = cuda.shared.array(0, float64)[1]
        whole[0] = cuda.shared.array(0, int64)[1]

    doubles, whole = np.zeros(1), np.zeros(1, np.int64)
    device.launch(look, 1, 1, 16, 0, doubles, whole)
    assert np.isnan(doubles[0])
    assert whole[0] == -1


ROWS, WEIGHTS, SINGLE = {"sampler": "conditional"}, {"sampler": "weights"}, {"dtype": "float32"}
AFTER, UNCENTRED = {"order": "activation-norm"}, {"norm": "batch-uncentred"}


def biased(width=9, batch=2, **options):
    return Chain(width, batch, "tanh", bias_variance=0.3, **options)


#: Chains whose layers take one pass over the rows.
IN_ONE_PASS = {
    "two tiles": (Chain(70, 3, "relu"), {}),
    "uncentred, two chunks": (Chain(20, 9, "tanh", **UNCENTRED), {}),
    "no norm": (Chain(20, 2, "gelu", norm="none", gain=1.5), {}),
    "eps, two inputs": (Chain(20, 2, "sin", eps=0.1, gain=0.5), {"inputs": 2}),
    "skip": (Chain(20, 3, "selu", skip=0.5), ROWS),
    "skip, an array": (Chain(20, 3, "erf", skip=0.5), {**ROWS, "initial": X[:20, :3]}),
    "copies of samples": (Chain(20, 4, "sigmoid"), {"initial": X[:20, [0, 1, 1, 2]]}),
    "a function of the user": (Chain(20, 3, Activation(user_function)), {}),
    "weights, float32, skip": (Chain(20, 3, "leaky_relu", skip=0.2, gain=0.7), WEIGHTS | SINGLE),
    "uniform weights": (Chain(20, 3, "relu", norm="none", weights="uniform"), {"initial": X[:20]}),
    "uniform weights, float32": (Chain(20, 3, "relu", weights="uniform"), SINGLE),
    "fewer rows than samples": (Chain(4, 8, "tanh", **UNCENTRED), {**ROWS, "chains": 3}),
    "more columns than registers": (Chain(20, 17, "tanh", **UNCENTRED), ROWS),
    "signs, two tiles": (Chain(21, 3, "erf", weights="rademacher"), {}),
}
#: Every pair of norm, order, bias and sampler is among these, and each dtype and law of biases with
#: both passes.
IN_PASSES = {
    "layer": (Chain(9, 2, "tanh", norm="layer"), ROWS),
    "layer after, bias": (biased(norm="layer", **AFTER), WEIGHTS),
    "layer, residual, bias": (Chain.resnet(9, 2, "tanh", norm="layer", bias_variance=0.3), ROWS),
    "rms, bias": (biased(norm="rms", weights="pytorch"), WEIGHTS),
    "rms after": (Chain(9, 2, "tanh", norm="rms", eps=0.1, **AFTER), ROWS | SINGLE),
    "rms, residual": (Chain.resnet(9, 2, "tanh", norm="rms"), WEIGHTS),
    "groups, skip, two tiles": (Chain(66, 2, "tanh", norm="group(3)", skip=0.5), ROWS | SINGLE),
    "groups after, skip, two tiles": (biased(34, norm="group(2)", skip=0.5, **AFTER), WEIGHTS),
    "groups, residual, bias": (biased(8, norm="group(2)", order="pre-activation", skip=1.0), ROWS),
    "batch after, bias": (biased(batch=3, **AFTER), ROWS),
    "batch, residual": (Chain.resnet(9, 3, "tanh"), WEIGHTS | SINGLE),
    "no norm, bias": (biased(norm="none", weights="rademacher"), WEIGHTS),
    "uncentred, bias": (biased(skip=0.5, **UNCENTRED), ROWS),
    "more groups than threads": (Chain(40, 2, "tanh", norm="group(20)"), ROWS),
    "convolution, bias": (
        biased(9, 6, norm="layer", convolution=Convolution((3, 2), (2, 2))),
        ROWS,
    ),
    "convolution, weights, bias": (
        biased(batch=3, norm="rms", convolution=Convolution((1, 3), (1, 2))),
        WEIGHTS,
    ),
}
ORTHOGONAL = {
    "haar, two tiles": (haar(70, 3, "relu"), {}),
    "haar, two tiles, float32": (haar(70, 3, "relu"), SINGLE),
    "haar, skip, eps, an array": (
        haar(20, 3, skip=0.5, gain=0.7, eps=0.1), {"initial": X[:20, :3]},
    ),
    "haar, two inputs, uncentred": (haar(20, 2, **UNCENTRED), {"inputs": 2}),
    "haar, no norm": (haar(20, 2, "gelu", norm="none", gain=1.5), {}),
    "haar, copies of samples": (haar(20, 4, "sigmoid"), {"initial": X[:20, [0, 1, 1, 2]]}),
    "haar, normals that need further sums": (haar(5, 6), {}),
    "haar, fewer rows than samples": (haar(4, 8, **UNCENTRED), {}),
    "haar, more columns than whole rows": (haar(20, 9, **UNCENTRED), {}),
}  # fmt: skip
CASES = IN_ONE_PASS | IN_PASSES | ORTHOGONAL
#: Each norm, order, sampler and dtype, skip connections, biases and taps are in other cases.
LATER = {
    "uncentred, two chunks", "skip", "uniform weights, float32", "fewer rows than samples",
    "rms, bias", "groups, skip, two tiles", "groups, residual, bias", "convolution, weights, bias",
    "haar, two tiles, float32", "haar, skip, eps, an array", "haar, copies of samples",
    "haar, fewer rows than samples",
}  # fmt: skip


@pytest.mark.parametrize("what", some(CASES, *(what for what in CASES if what not in LATER)))
def test_trajectories_are_those_of_the_cpu(what):
    chain, options = CASES[what]
    a, b = both(chain, 1 if what in IN_ONE_PASS else 2, **options)
    assert (a.backend, b.backend) == ("cpu", "cuda")
    assert (a.key, a.sampler, a.dtype) == (b.key, b.sampler, b.dtype)
    assert_equal_to_rounding(a, b, 2 if what in ORTHOGONAL else 1)
    # A GPU does not look after the precision of float32 rows.
    assert set(a.final_state.arrays) - {"unresolved"} == set(b.final_state.arrays)
    for name, others in b.final_state.arrays.items():
        values = a.final_state.arrays[name]
        assert (values.shape, values.dtype) == (others.shape, others.dtype)


@pytest.mark.parametrize("width", [1, 20, 700])
def test_times_of_as_many_numbers_are_equal(width):
    """A layer of as many columns as the width has takes as many normals as a weight matrix; those
    of float64 take twice as long."""
    layer = Chain(width, 3, "relu").layers[1]
    single, double = (
        [seconds_of(path, layer, width, dtype, "cuda") for path in ("conditional", "weights")]
        for dtype in ("float32", "float64")
    )
    assert single[0] == pytest.approx(single[1], rel=1e-12, abs=0.0)
    assert double[0] == pytest.approx(double[1], rel=1e-12, abs=0.0)
    launched = seconds_of("conditional", layer, 0, "float32", "cuda")
    growth = 2.0 * (single[0] - launched)
    assert double[0] - launched == pytest.approx(growth, rel=1e-6, abs=0.0)


@pytest.mark.parametrize("dtype", some(["float32", "float64"], "float32"))
def test_rounding_does_not_grow_with_depth(dtype):
    a, b = both(Chain(40, 3, "relu"), 8, dtype=dtype, chains=2, every=4)
    assert_equal_to_rounding(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "norm"), [("relu", "batch"), ("tanh", "batch-uncentred")])
def test_trajectories_stay_together_where_chains_contract(activation, norm):
    """Through LAYERS layers; as many as are asked for by BNMC_LAYERS=10000 (10 minutes a chain).

    Roundings of a layer are a disturbance that later layers contract.  What they make of it shows
    where the CPU runs the same chain, of the same normals, in float32: it leaves the trajectory of
    float64 by `response`, which is to units of float32 what the difference of CPU and GPU is to
    those of float64.  Their roundings are of as many operations, done in another order: those of
    one are up to twice as large, and the two may have opposite signs, hence a factor of 4; the
    float32 normals are not rounded more than the rows made of them.
    """
    chain = Chain(16, 3, activation, norm=norm)
    options = {"rng": 3, "sampler": "conditional"}
    exact = simulate(chain, 10_000, backend="cpu", **options).gram
    single = simulate(chain, 10_000, backend="cpu", dtype="float32", **options)
    assert single.widened == ()
    response = np.abs(exact - single.gram).max()
    # It contracts: without it the differences of 10,000 layers would have come to order one.
    assert response < 1e-4
    with divided(BLOCKS_OF_PROCESSOR=0.5):
        by_gpu = simulate(chain, LAYERS, backend="cuda", **options).gram
    assert np.abs(by_gpu - exact[:, : LAYERS + 1]).max() <= 4 * 2.0**-29 * response


# --- shapes -------------------------------------------------------------------------------------

# In the simulator a tile has 64 rows of a drawn layer, 32 of one of weights; a thread has at most
# 16 columns in float32, 8 in float64, and an edge of 8 or 6 of the Gram matrix.
WIDTHS = (1, 2, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)
BATCHES = (1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 17)


@st.composite
def runs(draw):
    """A chain, and options of a run that the GPU takes."""
    sampler = draw(st.sampled_from(["conditional", "weights"]))
    norm = draw(st.sampled_from(["none", "batch-uncentred", "batch"]))
    inputs = draw(st.sampled_from([None, 1, 2]))
    batch = draw(st.sampled_from(BATCHES if inputs != 2 else BATCHES[:8]))
    law = draw(st.sampled_from(["gaussian", "uniform", "rademacher"]))
    widths = WIDTHS if sampler == "conditional" else WIDTHS[:-3]
    chain = Chain(
        draw(st.sampled_from(widths)),
        max(batch, 2 if norm == "batch" else 1),
        draw(st.sampled_from(["relu", "tanh"])),
        norm=norm,
        skip=draw(st.sampled_from([0.0, 0.5])),
        eps=draw(st.sampled_from([0.0, 0.1])) if norm != "none" else 0.0,
        weights=law if sampler == "weights" else "gaussian",
    )
    options = {"sampler": sampler, "inputs": inputs, "chains": draw(st.integers(1, 3))}
    options["dtype"] = draw(st.sampled_from(["float32", "float64"]))
    options["rng"] = draw(st.integers(0, 100))
    return chain, options


def least_pivots(gram, batch, centred):
    """The least pivot of a covariance, relative to its diagonal, and the size of those in doubt.

    If a matrix is singular, its last pivots are rounding errors, of n units over the least other
    pivot.  They count as zero up to 16 n units, so they are in doubt after a pivot below 1/16.
    """
    n = len(gram)
    if centred:
        project = np.eye(n) - np.kron(np.eye(n // batch), np.full((batch, batch), 1 / batch))
        gram = project @ gram @ project
    rest, diagonal, least, is_singular = gram.copy(), np.diagonal(gram), 1.0, False
    for k in range(n):
        pivot = rest[k, k]
        if pivot > 1e-10 * diagonal[k]:
            least = min(least, pivot / diagonal[k])
        else:
            is_singular = True
        if pivot > 16 * 2.0**-52 * n * diagonal[k]:
            rest -= np.outer(rest[:, k], rest[k]) / pivot
    return least, n * 2.0**-52 / least if is_singular and least < 1 / 16 else 0.0


SINGULAR = {"sampler": "conditional", "inputs": None, "dtype": "float64"}


@pytest.mark.untraced
@IN_THREADS
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@example((Chain(5, 7, "tanh", norm="none"), {**SINGULAR, "chains": 2, "rng": 1}))
@example((Chain(5, 6, "tanh", norm="none"), {**SINGULAR, "chains": 3, "rng": 42}))
@given(runs())
@settings(max_examples=50 if os.environ.get("BNMC_FUZZ") == "1" else 1)
def test_shapes(run):
    """Layer 0 of a law, and from the CPU's layer 0 the next.

    A number goes through as many roundings as sums have terms, which random signs let add up like
    the root of the width.  The largest entries stand for the scale, and a factor of 10 for rows
    that are divided by a small norm: over rows the mean of 1 / norm is at most that of one of two
    normals, sqrt(pi / 2), three times that with these widths.  Roundings of the factor, in float64,
    are divided by its least pivot.  A direction whose pivot is in doubt may be there or not: it has
    the size of the root of the pivot.
    """
    chain, options = run
    outcomes = []
    for backend in ("cpu", "cuda"):
        try:
            outcomes.append(simulate(chain, 0, backend=backend, **options))
        except errors.ZeroVarianceError as error:
            outcomes.append((error.chain, error.layer))
    assert (outcomes[0] == outcomes[1]) or not isinstance(outcomes[0], tuple)
    if isinstance(outcomes[0], tuple):
        return
    begun, other = outcomes
    unit = 2.0**-23 if begun.dtype == "float32" else 2.0**-52
    n = chain.batch * (begun.inputs or 1)
    terms = 10 * (np.sqrt(chain.width) + 3 * n + 20)
    start = begun.final_state.arrays["gram"]
    there = other.final_state.arrays["gram"]
    assert np.abs(start - there).max() <= unit * terms * max(np.abs(start).max(), 1.0)
    ended = []
    for backend in ("cpu", "cuda"):
        try:
            run = simulate(chain, 1, initial=begun.final_state, backend=backend, dtype=begun.dtype)
            ended.append(run.final_state.arrays["gram"])
        except errors.ZeroVarianceError as error:
            ended.append((error.chain, error.layer))
    if isinstance(ended[0], tuple):
        assert ended[0] == ended[1]
        return
    for before, first, second in zip(start, *ended, strict=True):
        least, in_doubt = 1.0, 0.0
        if options["sampler"] == "conditional":
            least, in_doubt = least_pivots(before, chain.batch, chain.norm == "batch")
        relative = terms * (unit + 2.0**-52 / least) + 10 * np.sqrt(in_doubt)
        assert np.abs(first - second).max() <= relative * max(np.abs(ended[0]).max(), 1.0)


OF_SAMPLERS = ("MOST_OF_GRID", "STAGING_BYTES", "LEAST_OF_PROCESSOR")


@contextlib.contextmanager
def divided(**values):
    """Divide runs in another way: functions of modules return a value, or constants have it."""
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            module = "samplers" if name in OF_SAMPLERS else "launches"
            new = value if name.isupper() else mock.Mock(return_value=value)
            stack.enter_context(mock.patch(f"bnmc.simulation.engine.gpu.{module}.{name}", new))
        yield


TWO_DEVICES = mock.patch("bnmc._kernels.gpu.device.devices", return_value=[0, 0])
SMALL = Chain(16, 2, "relu", **UNCENTRED)
#: Runs, and divisions of them: blocks of rows, also of layers in passes, and chunks of chains.
DIVISIONS = {
    "rows": (Chain(70, 2, "relu", **UNCENTRED), 1, {}, [{"BLOCKS_OF_PROCESSOR": 0.5}]),
    "passes": (
        biased(130, norm="group(5)"), 1, ROWS,
        [{"processors": number, "BLOCKS_OF_PROCESSOR": 1} for number in (1, 2)],
    ),
    "chunks": (SMALL, 2, {"chains": 3, "burn_in": 1}, [{"MOST_OF_GRID": 1}]),
    "chunks by weights": (SMALL, 1, {**WEIGHTS, "chains": 2}, [{"MOST_OF_GRID": 1}]),
}  # fmt: skip


@pytest.mark.parametrize("what", some(DIVISIONS, "rows", "passes", "chunks"))
def test_bits_do_not_depend_on_the_division_of_a_run(what):
    chain, depth, options, divisions = DIVISIONS[what]
    runs = []
    for division in ({}, *divisions):
        with divided(**division):
            runs.append(simulate(chain, depth, rng=2, backend="cuda", **options).gram)
    for other in runs[1:]:
        assert np.array_equal(other, runs[0])
    assert len(np.unique(runs[0][..., 0, 0])) == runs[0][..., 0, 0].size


def test_bits_do_not_depend_on_the_device():
    """Neither on its multiprocessors nor on what other chains there are."""
    chain = Chain(130, 5, "tanh", norm="none")

    def run(count, processors):
        with divided(processors=processors):
            return simulate(chain, 1, rng=2, backend="cuda", chains=count)

    # Three tiles: of a block each, of two blocks, and of one that is the chain's.
    runs = [run(1, 100), run(1, 1), run(2, 1)]
    assert_equal_to_rounding(runs[0], simulate(chain, 1, rng=2, backend="cpu"))
    with divided(MOST_RANGES=2):
        # Two ranges, of a block each and of one for both.
        ranges = [run(1, 1), run(2, 1)]
        # Where shared memory has room for the sums of one of them.
        kernels_of.cache_clear()
        with mock.patch.object(shape.Shape, "scratch", 1):
            ranges.append(run(1, 1))
        kernels_of.cache_clear()
    for first, *others in (runs, ranges):
        for other in others:
            assert np.array_equal(first.gram[0], other.gram[0])
    # The order of the sums is another one, which shows in some of the 15 entries.
    assert not np.array_equal(runs[0].gram, ranges[0].gram)


# One block makes further sums, and several blocks make one, among the trajectories above.
@pytest.mark.slow
def test_blocks_make_further_sums_of_orthogonal_rows():
    """The first sum of a layer leaves a pivot below the limit, so each layer makes a second one.

    Of several blocks, each launch makes one sum; one block makes all of them in one launch.  The
    sums of one layer, and the counts of blocks that have made them, serve the next one.
    """
    chain = haar(70, 2, **UNCENTRED)

    def run(processors, chains=1, most=10):
        with divided(processors=processors, MOST_OF_GRID=most):
            return simulate(chain, 2, rng=2, backend="cuda", chains=chains)

    kernels_of.cache_clear()
    with mock.patch("bnmc._kernels.gpu.layers.ORTHOGONAL_PIVOT", 1.0 - 1e-9):
        runs = [run(100, 2), run(1, 2), run(1, 2, 1), run(100)]
    kernels_of.cache_clear()
    for other in runs[1:]:
        assert np.array_equal(other.gram, runs[0].gram[: other.chains])
    assert_equal_to_rounding(simulate(chain, 2, rng=2, chains=2), runs[0], 2)


def test_a_chunk_has_as_many_chains_as_its_memory_allows():
    with divided(STAGING_BYTES=1, LEAST_OF_PROCESSOR=1):
        sampler = GpuSampler(
            Run(SMALL.repeat(1), "conditional", 3, None, "float64", backend="cuda")
        )
        assert sampler._most_of_chunk(32) == device.processors()
        assert sampler._most_of_chunk(0) > 3


def test_chains_that_are_divided_among_devices():
    chain = replace(SMALL, skip=0.3)
    start = np.random.default_rng(8).standard_normal((3, 16, 2))
    options = {"backend": "cuda", **ROWS}
    for initial in (start, start[0], "gaussian"):
        whole = simulate(chain, 1, rng=2, initial=initial, chains=3, **options)
        with TWO_DEVICES:
            parts = simulate(chain, 1, rng=2, initial=initial, chains=3, **options)
        assert np.array_equal(whole.gram, parts.gram)
        for name, values in whole.final_state.arrays.items():
            assert np.array_equal(values, parts.final_state.arrays[name]), name
    more = simulate(chain, 1, initial=whole.final_state, **options)
    options["observables"] = "orthogonality_gap"
    with TWO_DEVICES:
        again = simulate(chain, 1, initial=parts.final_state, **options)
    gaps = gram.orthogonality_gap(more.gram)
    np.testing.assert_allclose(again["orthogonality_gap"], gaps, rtol=1e-14)


@IN_THREADS
def test_a_device_names_the_chain_that_fails():
    chain = Chain(16, 2, "relu", norm="none")
    bad = np.random.default_rng(8).standard_normal((3, 16, 2))
    bad[2] = 1e200
    with TWO_DEVICES, pytest.raises(errors.NonFiniteError) as error:
        simulate(chain, 1, initial=bad, backend="cuda")
    assert error.value.chain == 2


# --- chains of any scale ---------------------------------------------------------------------


def assert_equal_in_logarithms(a, b, layers=1):
    """A chain that contracts to one direction lets a layer's roundings add up in the logarithm."""
    unit = 2.0**-23 if a.dtype == "float32" else 2.0**-52
    allowed = 100 * unit * (np.sqrt(a.chain.width) + 3 * a.chain.batch + 20)
    traces = [np.trace(run["scaled_gram"], axis1=-2, axis2=-1) for run in (a, b)]
    logs = [np.log(trace) + run["log_scale"] for trace, run in zip(traces, (a, b), strict=True)]
    assert np.abs(logs[0] - logs[1]).max() <= allowed * layers
    shapes = [
        run["scaled_gram"] / trace[..., None, None]
        for trace, run in zip(traces, (a, b), strict=True)
    ]
    assert np.abs(shapes[0] - shapes[1]).max() <= allowed


IN_LOGARITHMS = ["scaled_gram", "log_scale"]
SCALED = {
    # A layer divides G by 2**15, so that 70 go as far as 1100 without a gain.
    "conditional": (
        Chain(10, 1, "leaky_relu", norm="none", gain=2.0**-7), {"blocks": 0.5},
        max(70, LAYERS // 2),
    ),
    "large": (Chain(12, 2, "leaky_relu", norm="none", gain=2.0**40), {"blocks": 0.5}, 20),
    "rows split": (Chain(70, 2, "relu", norm="none", gain=2.0**-80), {}, 8),
    "skip, float32": (
        Chain(12, 2, "abs", norm="none", skip=2.0**15, gain=2.0**14),
        {"sampler": "conditional", "dtype": "float32"}, 32,
    ),
    "weights, skip": (
        Chain(10, 2, "relu", norm="none", skip=2.0**-60, gain=2.0**-61, weights="uniform"), {}, 10,
    ),
}  # fmt: skip


@pytest.mark.untraced
@IN_THREADS
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize("what", some(SCALED, "rows split", "weights, skip"))
def test_the_scale_is_split_off(what):
    """As on the CPU, to any depth, and from one to the other and back."""
    chain, options, depth = SCALED[what]
    options = {"rng": 5, "observables": IN_LOGARITHMS, **options}
    blocks = options.pop("blocks", 2)
    a = simulate(chain, depth, **options)
    with divided(BLOCKS_OF_PROCESSOR=blocks):
        b = simulate(chain, depth, backend="cuda", **options)
    assert np.abs(a["log_scale"][:, -1]).min() > 600
    assert_equal_in_logarithms(a, b, depth)
    # What is handed over says the same: the state is in units of a power of 2.
    for begun in (a, b):
        for backend in ("cpu", "cuda"):
            ended = simulate(
                chain, 1, initial=begun.final_state, backend=backend, observables=IN_LOGARITHMS,
                dtype=begun.dtype,
            )  # fmt: skip
            start = begun.final_state.arrays
            assert start["exponent"][0].any()
            logs = np.log(np.diag(start["gram"][0])) + 2.0 * np.log(2.0) * start["exponent"][0]
            total = np.logaddexp.reduce(logs)
            here = np.log(np.trace(ended["scaled_gram"][0, 0])) + ended["log_scale"][0, 0]
            assert here == pytest.approx(total, rel=1e-14)
            np.testing.assert_allclose(
                ended["log_scale"][:, 0], begun["log_scale"][:, -1], rtol=1e-12
            )
            assert abs(ended["log_scale"][0, -1] - a["log_scale"][0, -1]) < 300


@pytest.mark.slow
@IN_THREADS
def test_numbers_and_arrays_of_the_device_of_chains_of_any_scale(as_host_array):
    chain = Chain(12, 2, "leaky_relu", norm="none", gain=2.0**100)
    options = {"rng": 5, "chains": 2, "backend": "cuda"}
    full = simulate(chain, 8, observables=IN_LOGARITHMS, **options)
    with TWO_DEVICES:
        run = simulate(chain, 8, observables=["rank_bound", "orthogonality_gap"], **options)
        again = simulate(chain, 8, observables=IN_LOGARITHMS, **options)
    for name in IN_LOGARITHMS:
        assert np.array_equal(again[name], full[name])
    assert np.abs(run["rank_bound"] - gram.rank_bound(full["scaled_gram"])).max() < 1e-14
    # A distance is that of the matrix itself, which is in range for a few layers.
    star = np.eye(2)
    near = simulate(chain, 4, observables=["gram", Distance(star)], **options)
    alone = simulate(chain, 4, observables=Distance(star), **options)
    assert near["gram"].max() > 2.0**700
    assert np.array_equal(alone["distance"], gram.distance(near["gram"], star))
    given = ByDLPack(np.zeros((2, 5, 2, 2)))
    simulate(chain, 4, out={"gram": given}, **options)
    assert np.array_equal(given.values, near["gram"])
    with pytest.raises(errors.NonFiniteError, match="too large for float64"):
        simulate(chain, 8, out={"gram": ByDLPack(np.zeros((2, 9, 2, 2)))}, **options)


@pytest.mark.parametrize("skip", [0.0, 2.0**-8])
def test_the_scale_of_orthogonal_layers_is_split_off(skip):
    """Each sample gets the unit that it has on the CPU; two layers leave the range of one unit."""
    chain = haar(12, 2, "relu", norm="none", gain=2.0**-8, skip=skip)
    a, b = both(chain, 3, observables=["scaled_gram", "log_scale"])
    units = [run.final_state.arrays["exponent"] for run in (a, b)]
    assert (units[0] < -8).all()
    assert np.array_equal(*units)
    for name in ("scaled_gram", "log_scale"):
        np.testing.assert_allclose(b[name], a[name], rtol=1e-12, atol=1e-12)


def test_a_scale_that_cannot_be_split_off():
    chain = Chain(12, 2, "tanh", norm="none", gain=2.0**-60)
    for backend in ("cpu", "cuda"):
        with pytest.raises(errors.NonFiniteError, match="too small for float64") as error:
            simulate(chain, 9, rng=0, backend=backend)
        assert error.value.chain == 0


# --- numbers in place of Gram matrices ------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "sampler"),
    [
        pytest.param(SMALL, "conditional", id="conditional"),
        pytest.param(SMALL, "weights", id="weights", marks=pytest.mark.slow),
        pytest.param(haar(16, 2, **UNCENTRED), "conditional", id="haar"),
    ],
)
def test_only_numbers_leave_the_device(chain, sampler):
    star = np.array([[0.5, -0.25], [-0.25, 0.5]])
    wanted = ["orthogonality_gap", Distance(star), "rank_bound"]
    options = {"rng": 4, "inputs": 2, "chains": 2, "sampler": sampler, "backend": "cuda"}
    full = simulate(chain, 2, **options)
    seen = []
    make = GpuSampler._target

    def target_of(self, frames):
        seen.append(make(self, frames))
        return seen[-1]

    with mock.patch.object(GpuSampler, "_target", target_of):
        run = simulate(chain, 2, observables=wanted, **options)
    assert seen
    assert all(target.record.size == 1 for target in seen)
    # The sums of 4 terms of a few roundings each; the numbers are of order one.
    allowed = 32 * 2.0**-52
    assert run["distance"].shape == (2, 3, 2)
    assert np.abs(run["distance"] - gram.distance(full.gram, star)).max() <= allowed
    gaps = gram.orthogonality_gap(full.gram)
    assert np.abs(run["orthogonality_gap"] - gaps).max() <= allowed
    assert np.abs(run["rank_bound"] - gram.rank_bound(full.gram)).max() <= allowed
    assert len(np.unique(gaps)) > 8


def test_numbers_beside_the_matrix_and_their_moments():
    chain = Chain(16, 2, "relu", norm="batch-uncentred")
    options = {"rng": 4, "chains": 2, "backend": "cuda"}
    full = simulate(chain, 1, observables=["gram", "rank_bound"], **options)
    assert np.array_equal(full["rank_bound"], gram.rank_bound(full.gram))
    run = simulate(chain, 1, observables="rank_bound", reduce="chain", **options)
    mean = full["rank_bound"].mean(axis=0)
    np.testing.assert_allclose(run.moments["rank_bound"].mean, mean, rtol=1e-14)


#: Gram matrices whose squares leave float64, the identity, and a single number.
GIVEN = {
    "any": X[:20], "large": 1e150 * X[:20], "small": 1e-140 * X[:20], "identity": np.eye(20, 3),
    "one": X[:20, :1],
}  # fmt: skip


@IN_THREADS
@pytest.mark.parametrize("rows", GIVEN)
def test_numbers_of_rows_that_are_given(rows):
    x = GIVEN[rows]
    chain, options = Chain(*x.shape, "gelu", norm="none"), {"initial": x, "rng": 1}
    (matrix,) = simulate(chain, 0, **options).gram[0]
    star = np.full_like(matrix, 0.25 * matrix[0, 0])
    wanted = ["rank_bound", "orthogonality_gap", Distance(star)]
    run = simulate(chain, 0, backend="cuda", observables=wanted, **options)
    assert run["rank_bound"] == pytest.approx(gram.rank_bound(matrix), rel=1e-12)
    assert run["orthogonality_gap"] == pytest.approx(gram.orthogonality_gap(matrix), abs=1e-12)
    assert run["distance"] == pytest.approx(gram.distance(matrix, star), rel=1e-12, abs=0.0)


def test_a_gram_matrix_of_zeros_has_no_gap():
    start = -np.ones((4, 1))
    for backend in ("cpu", "cuda"):
        with pytest.raises(errors.ArgumentError, match="positive trace"):
            simulate(
                Chain(4, 1, "relu", norm="none"), 0, initial=start, backend=backend,
                observables="rank_bound",
            )  # fmt: skip


#: Of three samples: rows of two, centred and normalised, are 1 and -1 whatever they were.
GO_ON = {
    "conditional": (Chain(20, 3, "tanh", skip=0.5), ROWS),
    "weights": (Chain(20, 3, "tanh", skip=0.5), WEIGHTS),
    "haar": (haar(20, 3, skip=0.5), {}),
    "passes": (Chain.resnet(9, 3, "tanh", norm="layer", bias_variance=0.3), ROWS),
    "passes by weights": (Chain.resnet(9, 3, "tanh", norm="layer", bias_variance=0.3), WEIGHTS),
}


@pytest.mark.parametrize("what", some(GO_ON, *(set(GO_ON) - {"passes by weights"})))
def test_a_run_goes_on_elsewhere(what):
    chain, options = GO_ON[what]
    whole = simulate(chain, 2, rng=3, backend="cpu", **options)
    for first, second in (("cpu", "cuda"), ("cuda", "cpu")):
        begun = simulate(chain, 1, rng=3, backend=first, **options)
        ended = simulate(chain, 1, initial=begun.final_state, backend=second)
        assert ended.layers.tolist() == [1, 2]
        parts = np.concatenate([begun.gram, ended.gram[:, 1:]], axis=1)
        assert_equal_to_rounding(whole, mock.Mock(gram=parts), 2 if what == "haar" else 1)


#: Of a block each, and of blocks that share their rows.
@pytest.mark.parametrize(
    "chain",
    [*(Chain(width, 2, "tanh", **UNCENTRED) for width in (40, 70)), haar(20, 2, **UNCENTRED)],
    ids=["a block", "blocks", "haar"],
)
def test_float32_chains_go_on_in_float64(chain):
    options = {"chains": 2, "initial": "collinear", **SINGLE, **ROWS}
    a, b = both(chain, 1, **options)
    assert a.widened == b.widened == (0, 1)
    assert_equal_to_rounding(a, b)
    again = simulate(chain, 1, initial=b.final_state, backend="cuda")
    assert again.widened == (0, 1)


def test_small_float32_chains_go_on_in_float64():
    """Before squares of the rows, which become smaller by a factor of 16 a layer, are rounded."""
    chain = Chain(20, 2, "tanh", norm="none", gain=0.25)
    a, b = both(chain, 4, chains=2, initial=2.0**-46 * np.eye(20, 2), **SINGLE, **ROWS)
    assert a.widened == b.widened == (0, 1)
    np.testing.assert_allclose(b.gram[:, -1], a.gram[:, -1], rtol=1e-4)
    with pytest.raises(errors.NonFiniteError, match="too small for float32"):
        simulate(chain, 1, initial=2.0**-63 * np.eye(20, 2), backend="cuda", **SINGLE, **ROWS)


@pytest.mark.filterwarnings("ignore:overflow")  # of NumPy, in which the simulator computes
@pytest.mark.parametrize(("norm", "gain"), [slow("none", 2.0**-4), ("batch", 2.0**64)])
def test_the_layer_whose_squares_leave_float32_is_named(norm, gain):
    """A later layer of the same block would hide it."""
    chain, layers = Chain(20, 2, "tanh", norm=norm, gain=gain, eps=float(norm != "none")), []
    for backend in ("cpu", "cuda"):
        with pytest.raises(errors.NonFiniteError) as caught:
            simulate(chain, 40, sampler="weights", backend=backend, rng=0, **SINGLE)
        layers.append(caught.value.layer)
    assert layers[0] == layers[1] is not None


@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize("bias_variance", some([0.0, 0.2], 0.0))
def test_float32_chains_in_passes_go_on_in_float64(bias_variance):
    """A bias is added to the covariance of each layer once, also in the layer that is repeated."""
    x = np.random.default_rng(1).standard_normal((20, 3))
    x[:, 2] = x[:, 1] * (1 + 1e-5 * x[:, 0])
    chain = Chain(20, 3, "tanh", norm="layer", bias_variance=bias_variance)
    a, b = both(chain, 2, initial=x, **ROWS, **SINGLE)
    assert a.widened == b.widened == (0,)
    assert np.abs(a.gram - b.gram).max() <= 1e-10


def test_a_chain_goes_on_in_float64_after_layers_that_are_recorded():
    chain = Chain(16, 2, "sigmoid", norm="none", gain=0.5)
    options = {"initial": X[:16, :2], "rng": 6, **SINGLE, **ROWS}
    assert simulate(chain, 2, backend="cuda", **options).widened == ()
    a, b = both(chain, 4, **options)
    assert a.widened == b.widened == (0,)
    # The condition is below 1e4, at 2^-13 of a pivot; rounding is multiplied by its root.
    assert_equal_to_rounding(a, b)


# --- how they fail --------------------------------------------------------------------------


GROUPS = Chain(8, 2, "relu", norm="group(4)", **AFTER)
FAILURES = {
    "a row": (Chain(20, 2, "abs"), {}, errors.ZeroVarianceError),
    "a row, haar": (haar(20, 2, "abs"), {}, errors.ZeroVarianceError),
    "overflow, haar": (haar(20, 2, "gelu", norm="none", gain=1e100), {}, errors.NonFiniteError),
    "overflow": (Chain(20, 2, "gelu", norm="none", gain=1e100), ROWS, errors.NonFiniteError),
    "overflow by weights": (
        Chain(20, 2, "gelu", norm="none", gain=1e100),
        WEIGHTS,
        errors.NonFiniteError,
    ),
    "a sample": (GROUPS, ROWS, errors.ZeroVarianceError),
    "a sample by weights": (GROUPS, WEIGHTS, errors.ZeroVarianceError),
    "moments": (
        Chain(8, 2, "linear", norm="layer", gain=1e200, **AFTER),
        {},
        errors.NonFiniteError,
    ),
}


@IN_THREADS
@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_is_that_of_the_cpu(what):
    chain, options, kind = FAILURES[what]
    raised = []
    for backend in ("cpu", "cuda"):
        with pytest.raises(kind) as error:
            simulate(chain, 4, rng=0, backend=backend, **options)
        raised.append(error.value)
    a, b = raised
    assert (a.chain, a.layer) == (b.chain, b.layer)
    if chain is GROUPS:
        assert (str(a), b.row) == (str(b), None)


@IN_THREADS
def test_a_start_that_overflows():
    for weights, size, options, match in (
        ("uniform", 1e39, SINGLE, "float32 representation"), ("gaussian", 1e200, {}, "Gram")
    ):  # fmt: skip
        chain, x = Chain(20, 2, "gelu", norm="none", weights=weights), np.full((20, 2), size)
        with pytest.raises(errors.NonFiniteError, match=match):
            simulate(chain, 1, initial=x, backend="cuda", **options)


def test_what_is_missing():
    with mock.patch.object(device, "why_not", return_value="no CUDA device"):
        with pytest.raises(errors.BackendError, match="no CUDA device"):
            simulate(Chain(20, 2), 1, backend="cuda")
        with mock.patch("bnmc.simulation.starting.WORTH_A_GPU", 0.0):
            assert simulate(Chain(20, 2), 1, rng=0).backend == "cpu"
    with mock.patch("bnmc.simulation.starting.WORTH_A_GPU", 0.0):
        # A simulator never pays.
        with mock.patch.object(device, "SIMULATED", True):
            assert simulate(Chain(20, 2), 1, rng=0).backend == "cpu"
        with mock.patch.object(device, "SIMULATED", False):
            with mock.patch.object(device, "find_spec", return_value=None):
                assert "bnmc[cuda13]" in device.why_not()
            with mock.patch.object(device, "find_spec"), mock.patch.object(device, "cuda") as fake:
                fake.gpus = []
                assert device.why_not() == "no CUDA device"
                fake.gpus = [0]
                assert device.why_not() is None
                type(fake).gpus = mock.PropertyMock(side_effect=RuntimeError("driver\nis old"))
                assert device.why_not() == "no CUDA driver: driver is old"


@pytest.mark.parametrize(
    ("chain", "options", "match"),
    [
        (Chain(20, 2, "linear", norm="none"), {}, "Wishart factors.*backend=.cpu"),
        (Chain(20, 2, weights=np.random.Generator.normal), {}, "runs on the CPU.*backend=.cpu"),
        (haar(20, 3), WEIGHTS, "drawn on the CPU alone.*backend='cpu', or sampler='conditional'"),
        (haar(20, 3, norm="layer"), {}, "backend='cpu', or sampler='conditional'"),
        (Chain(20, 300), {}, "300 columns in float64 need .* bytes of shared memory"),
    ],
    ids=["factors", "a function", "matrices", "haar and layer norm", "shared memory"],
)
def test_chains_without_gpu_kernels(chain, options, match):
    with pytest.raises(errors.BackendError, match=match):
        simulate(chain, 1, backend="cuda", **options)


def test_out_of_memory():
    chain = Chain(20, 2, "tanh", weights="uniform")
    with (
        mock.patch("bnmc.simulation.engine.gpu.arrays.free_memory", return_value=1000),
        pytest.raises(errors.ResultTooLargeError, match="fewer chains"),
    ):
        simulate(chain, 1, chains=10, backend="cuda")
    failure = mock.patch.object(
        GpuSampler, "_launches", side_effect=RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
    )
    with failure, pytest.raises(errors.ResultTooLargeError):
        simulate(Chain(20, 2), 1, backend="cuda")
    failure = mock.patch.object(GpuSampler, "_launches", side_effect=KeyError("else"))
    with failure, pytest.raises(KeyError, match="else"):
        simulate(Chain(20, 2), 1, backend="cuda")
    # The process goes on.
    assert simulate(Chain(20, 2), 1, rng=0, backend="cuda").backend == "cuda"


# --- arrays of a device ---------------------------------------------------------------------


class OnDevice:
    """An array of another library."""

    def __init__(self, values):
        self.values = values
        self.ndim = values.ndim
        self.__cuda_array_interface__ = {"shape": values.shape}

    def __len__(self):
        return len(self.values)


def as_cuda_array_by(taken):
    """Let Numba take arrays of other libraries in this way."""
    module = "bnmc.simulation.engine.gpu.samplers.numba_cuda"
    return mock.patch(f"{module}.as_cuda_array", taken, create=True)


@pytest.fixture
def as_cuda_array():
    def taken(array):
        on_device = cuda.to_device(array.values)
        on_device.is_c_contiguous = lambda: array.values.flags.c_contiguous
        return on_device

    with as_cuda_array_by(taken):
        yield


def test_starts_on_the_device_that_are_not_allowed(as_cuda_array):
    chain = Chain(70, 3, "relu")

    def fails(error, values, **options):
        with pytest.raises(error):
            simulate(chain, 1, initial=OnDevice(values), **{"backend": "cuda", **options})

    fails(errors.ArgumentError, X, backend="cpu")
    fails(errors.ArgumentError, X[:60])
    fails(errors.ArgumentError, np.asfortranarray(X))
    fails(errors.ArgumentError, X, inputs=1)
    fails(errors.ArgumentTypeError, X.astype(np.int64))
    on_device = cuda.to_device(X)
    assert DeviceRows(on_device).array is on_device


class ByDLPack:
    """An array of another library that has DLPack alone; in the memory of the host in truth."""

    def __init__(self, values, device=(2, 0)):
        self.values, self.device = values, device
        self.ndim, self.shape = values.ndim, values.shape
        self.streams = []

    def __len__(self):
        return len(self.values)

    def __dlpack_device__(self):
        if isinstance(self.device, Exception):
            raise self.device
        return self.device

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.values.__dlpack__()


@pytest.fixture
def as_host_array():
    """What Numba does on a device, with pointers to the memory of the host."""
    if not device.SIMULATED:
        pytest.skip("a GPU cannot read the capsules of these tests, which point to the host")
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    def taken(array):
        interface = dict(array.__cuda_array_interface__)
        interface.pop("stream")
        host = SimpleNamespace(__array_interface__=interface)
        return FakeCUDAArray(np.asarray(host))

    with as_cuda_array_by(taken):
        yield


@DTYPES
@pytest.mark.parametrize(
    ("norm", "kind", "fixture", "shape"),
    [
        ("batch", OnDevice, "as_cuda_array", (70, 3)),
        ("batch", ByDLPack, "as_host_array", (2, 16, 2)),
        ("layer", ByDLPack, "as_host_array", (2, 16, 2)),
    ],
)
def test_a_start_on_the_device(norm, kind, fixture, shape, dtype, request):
    request.getfixturevalue(fixture)
    chain = Chain(*shape[-2:], "relu", norm=norm)
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    given = kind(x)
    a = simulate(chain, 1, rng=1, initial=x.astype(np.float64), backend="cpu", dtype=dtype)
    b = simulate(chain, 1, rng=1, initial=given, dtype=dtype)
    assert (b.backend, getattr(given, "streams", [1])) == ("cuda", [1])
    assert_equal_to_rounding(a, b)


def test_a_start_of_one_device_for_several(as_host_array):
    chain = Chain(16, 2, "relu")
    x = np.random.default_rng(3).standard_normal((3, 16, 2))
    for start in (x, x[0]):
        alone = simulate(chain, 1, rng=1, initial=ByDLPack(start), chains=3)
        with TWO_DEVICES:
            several = simulate(chain, 1, rng=1, initial=ByDLPack(start), chains=3)
        assert np.array_equal(alone.gram, several.gram)
        with divided(MOST_OF_GRID=2):
            chunks = simulate(chain, 0, rng=1, initial=ByDLPack(start), chains=3)
        assert np.array_equal(chunks.gram[:, 0], alone.gram[:, 0])


def test_arrays_by_dlpack():
    values = np.arange(6.0).reshape(2, 3)
    view = as_device_array("x", ByDLPack(values.T), 0)
    assert (view.ndim, len(view)) == (2, 3)
    interface = view.__cuda_array_interface__
    assert (interface["shape"], interface["strides"]) == ((3, 2), (8, 24))
    assert interface["data"] == (values.ctypes.data, False)
    assert as_device_array("x", ByDLPack(values[:0]), 0).__cuda_array_interface__["data"][0] == 0
    with pytest.raises(errors.ArgumentTypeError, match="DLPack type 0 of 64 bits"):
        as_device_array("x", ByDLPack(np.arange(3)), 0)
    with pytest.raises(errors.ArgumentError, match="on device 1"):
        as_device_array("x", ByDLPack(values, (2, 1)), 0)
    assert not is_device_array(ByDLPack(values, (1, 0)))
    assert not is_device_array(ByDLPack(values, BufferError("on two devices")))
    assert not is_device_array(values)


def test_a_dlpack_tensor_without_strides():
    """With an offset, as the standard has it and NumPy never does."""
    values = np.arange(6, dtype=np.float32)
    shape = (ctypes.c_int64 * 1)(4)
    tensor = DLTensor(values.ctypes.data, 2, 0, 1, 2, 32, 1, shape, None, 8)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    given = ByDLPack(values)
    given.__dlpack__ = lambda stream: new(ctypes.addressof(tensor), b"dltensor", None)
    interface = as_device_array("x", given, 0).__cuda_array_interface__
    assert interface["data"][0] == values.ctypes.data + 8
    assert (interface["shape"], interface["strides"], interface["typestr"]) == ((4,), None, "<f4")


def test_results_stay_on_the_device(as_host_array):
    chain = Chain(16, 2, "relu", norm="batch-uncentred")
    options = {"rng": 4, "chains": 2, "every": 2, "backend": "cuda"}
    for burn_in in (0, 1):
        expected = simulate(chain, 3, burn_in=burn_in, **options)
        given = ByDLPack(np.zeros(expected.gram.shape))
        with TWO_DEVICES, mock.patch("bnmc.simulation.segment.TASK_SECONDS", 1e-12):
            run = simulate(chain, 3, burn_in=burn_in, out={"gram": given}, **options)
        assert run.gram is given
        assert len(np.unique(expected.gram[:, :, 0, 0])) == expected.gram[:, :, 0, 0].size
        assert np.array_equal(given.values, expected.gram)
    begun = ByDLPack(np.zeros((2, 2, 2, 2)))
    more = simulate(chain, 1, initial=expected.final_state, backend="cuda", out={"gram": begun})
    assert np.array_equal(begun.values[:, 0], expected.gram[:, -1])
    assert np.array_equal(begun.values[:, 1], more.final_state.arrays["gram"])
    of_rows = ByDLPack(np.zeros((1, 1, 2, 2)))
    rows = simulate(chain, 0, initial=X[:16, :2], backend="cuda", out={"gram": of_rows})
    assert np.array_equal(of_rows.values[:, 0], rows.final_state.arrays["gram"])


def test_results_on_the_device_that_are_not_allowed(as_host_array):
    def fails(error, values, match, **options):
        options = {"backend": "cuda", "out": {"gram": ByDLPack(values)}, **options}
        with pytest.raises(error, match=match):
            simulate(Chain(16, 2), 1, **options)

    good = np.zeros((1, 2, 2, 2))
    fails(errors.ArgumentError, good, "'cuda'", backend="cpu")
    fails(errors.ArgumentError, good, "alone", observables=["gram", "rank_bound"])
    fails(errors.ArgumentError, good, "alone", reduce="chain")
    fails(errors.ArgumentError, good, "alone", inputs=1)
    fails(
        errors.ArgumentError,
        good,
        "rank_bound",
        out={"gram": ByDLPack(good), "rank_bound": np.zeros((1, 2))},
    )
    fails(errors.ArgumentError, good[:, :1], "C-contiguous")
    fails(errors.ArgumentError, np.zeros((1, 2, 2, 2), order="F"), "C-contiguous")
    fails(errors.ArgumentTypeError, good.astype(np.float32), "float64")


# --- pairs that meet ------------------------------------------------------------------------


def pairs_of(kind, chain, layers, start=None, first=3, count=2, key=2024, threshold=THRESHOLD):
    """Pairs after so many layers, in several calls, with their records and steps."""
    start = Covariance(np.eye(chain.batch)) if start is None else start
    pairs = kind(chain, start, 1, first, first + count, key, threshold)
    options = {"until": 3 if len(layers) > 1 else layers[0], "record": True, "traced": 1}
    parts = [pairs.advance(number, **options) for number in layers]
    return pairs, *(np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))


def tried(pairs, record):
    return pairs.tries[:, 1].sum() > 0


def one_meets(pairs, record):
    """A pair that meets goes on until layer 3 and then stays, while the other one moves."""
    return sorted(pairs.met) == [-1, 2]


def none_meets(pairs, record):
    return (pairs.met < 0).all()


def copies_stay(pairs, record):
    return np.isfinite(record).all() and np.array_equal(record[..., 0, :], record[..., 1, :])


PLAIN = Chain(20, 3, "tanh", **UNCENTRED)
COPIES = Covariance(np.array([[1.0, 1.0, 0.2], [1.0, 1.0, 0.2], [0.2, 0.2, 1.0]]))
#: Thresholds are so large that maximal couplings are refused.  Some pairs are refused where the two
#: laws are close, so that a draw of what a refusal leaves is seldom kept.  Rows of few samples are
#: in registers, others in shared memory; 48 rows end a block of 16.
PAIRS = {
    "centred": (Chain(20, 3, "tanh"), (3,), {"threshold": 3.0}, tried),
    "eps": (Chain(20, 3, "tanh", eps=0.1, **UNCENTRED), (3,), {"threshold": 9.0}, tried),
    "bias": (biased(20, **UNCENTRED), (2, 2), {"key": 3, "threshold": 3.0}, one_meets),
    "convolution": (
        Chain.conv(12, 1, "relu", shape=(1, 3), kernel=(1, 2)), (2, 2),
        {"key": 12, "threshold": 3.0}, one_meets,
    ),
    "refused": (PLAIN, (3,), {"key": 14, "first": 8, "count": 1, "threshold": 0.8}, tried),
    "refused, again": (PLAIN, (3,), {"key": 56, "first": 29, "count": 1, "threshold": 1.2}, tried),
    "the same normals": (Chain(20, 2, "relu"), (2,), {"threshold": APART}, none_meets),
    "in shared memory": (Chain(48, 17, "linear"), (1,), {"threshold": APART}, none_meets),
    "copies": (PLAIN, (3,), {"start": COPIES, "count": 1}, copies_stay),
}  # fmt: skip


@pytest.mark.parametrize(
    "what", some(PAIRS, *(set(PAIRS) - {"refused, again", "convolution", "eps"}))
)
def test_pairs_are_those_of_the_cpu(what):
    chain, layers, options, happened = PAIRS[what]
    (a, record_a, trace_a), (b, record_b, trace_b) = (
        pairs_of(kind, chain, layers, **options) for kind in (Pairs, GpuPairs)
    )
    assert happened(a, record_b)
    for counts in ("met", "tries", "status"):
        assert np.array_equal(getattr(a, counts), getattr(b, counts)), counts
    # The condition of the factors is below 1e4, and a few layers double what it makes of rounding.
    allowed = 1e-12 if happened is none_meets else 1e-10
    np.testing.assert_allclose(b.grams, a.grams, rtol=0, atol=allowed)
    np.testing.assert_allclose(record_b, record_a, rtol=0, atol=allowed)
    np.testing.assert_allclose(trace_b, trace_a, rtol=1e-9)


@pytest.mark.parametrize("batch", some([1, 2, 3, 7], 1, 3))
def test_bytes_of_a_pair_are_those_of_its_arrays(batch):
    chain = Chain(20, batch, "tanh", norm="batch-uncentred")
    pairs = GpuPairs(chain, Covariance(np.eye(batch)), 1, 0, 5, 2024)
    # All pairs share what taps see.
    arrays = pairs._grams, *pairs._work[1:], pairs.met, pairs.tries, pairs.status
    assert sum(array.size * array.dtype.itemsize for array in arrays) == 5 * bytes_of_pair(batch)


@IN_THREADS
@pytest.mark.parametrize(("width", "columns"), pairs([66, 82, 98, 114], [3, 17]))
def test_squares_of_normals_are_those_of_the_rows_of_a_layer(columns, width):
    """Normals of few samples are in registers, others in a tile.

    A thread has the rows r, r + 16, r + 32 and r + 48.  For each of these four, one width is the
    first row that the layer does not have.
    """
    digest = sigma_of(Activation.named("linear")).digest
    spec = shape.Spec(
        columns, columns, codes.NORM_CENTRED, False, False, "float64", digest, centred=True
    )
    own_shape = shape.shape_of(spec)
    assert own_shape.whole_rows == (columns == 3)
    draw = codes.Draw(5, codes.STREAM_ROWS | 2, np.uint32(2**32 - 1), np.uint32(12345))

    def fill(law, layer, stream, k0, k1, pivots, out):
        begin()
        draw_squares(law, 0, codes.Draw(layer, stream, k0, k1), pivots, out)

    fill = device.Linker(constants_of(own_shape)).kernel(fill, 255)

    squares = np.zeros((columns, columns))
    words = (np.uint32(5), np.uint32(draw.stream), draw.key0, draw.key1)
    law, pivots = spec_of(Chain(width, columns)), np.ones(columns)
    device.launch(fill, 1, own_shape.threads, own_shape.bytes, 0, law, *words, pivots, squares)
    z = np.asarray(normals(np.arange(columns), np.arange(width), draw, np.float64), float)
    np.testing.assert_allclose(squares, z @ z.T / width, rtol=0, atol=1e-13)


def test_pairs_that_cannot_go_on():
    # Two samples that are equal in one of the chains alone: the ranges differ.
    chain = Chain(20, 3, "tanh")
    pairs = [kind(chain, Covariance(np.eye(3)), 1, 0, 1, 5) for kind in (Pairs, GpuPairs)]
    moved = []
    for pair in pairs:
        grams = pair.grams.copy()
        grams[0, 0] = COPIES.matrix
        pair.grams = grams
        pair.layer = 4
        pair.advance(1)
        assert pair.waiting.all()
        moved.append(pair.grams.copy())
        # Rank may come back: only then is it lost.
        pair.tries[:, 2] = codes.PATIENCE
        pair.advance(1)
    # Each chain moves with the normals of its own range.
    np.testing.assert_allclose(*moved, rtol=0, atol=1e-10)
    assert np.array_equal(pairs[0].tries, pairs[1].tries)
    assert np.array_equal(pairs[0].status, pairs[1].status)
    assert pairs[1].status[0, :2].tolist() == [codes.DEGENERATE, 6 - codes.PATIENCE]


@IN_THREADS
def test_a_pair_with_a_row_without_variance():
    chain = Chain(20, 2, "abs")
    with pytest.raises(errors.ZeroVarianceError) as error:
        pairs_of(GpuPairs, chain, (3,), count=1)
    assert error.value.chain == 3


def test_a_certificate():
    chain = Chain(20, 2, "tanh")
    options = {"lag": 1, "chains": 2, "rng": 0}
    a = tv_bound(chain, 2, **options)
    b = tv_bound(chain, 2, backend="cuda", **options)
    assert np.array_equal(a.meeting_times, b.meeting_times)
    with pytest.raises(errors.ArgumentError, match="executor"):
        tv_bound(chain, 2, backend="cuda", executor=ThreadPoolExecutor(1))
    with (
        mock.patch.object(device, "why_not", return_value="no CUDA device"),
        pytest.raises(errors.BackendError, match="no CUDA device"),
    ):
        tv_bound(chain, 2, backend="cuda")
    with (
        mock.patch("bnmc.simulation.engine.gpu.pairs.shared_memory", return_value=10),
        pytest.raises(errors.BackendError, match="shared memory"),
    ):
        tv_bound(chain, 2, backend="cuda", **options)


# Below, pairs on two devices fail, and pairs go one by one.
@pytest.mark.slow
@pytest.mark.untraced
def test_pairs_that_are_divided_among_devices():
    """And on each of these into ranges: meeting times are those of one launch."""
    chain = Chain(20, 2, "tanh", norm="batch-uncentred")
    options = {"lag": 1, "chains": 3, "rng": 0, "backend": "cuda"}
    whole = tv_bound(chain, 2, **options)
    assert len(set(whole.meeting_times.tolist())) > 1
    selected, made = {}, {}
    make = GpuPairs.__init__

    @contextlib.contextmanager
    def select(number):
        selected[threading.get_ident()] = number
        yield

    def noted(self, chain, start, lag, first, last, *others, **named):
        make(self, chain, start, lag, first, last, *others, **named)
        made[first, last] = selected[threading.get_ident()]

    with (
        mock.patch("bnmc.simulation.engine.gpu.pairs.devices", return_value=[4, 7]),
        mock.patch.object(cuda, "gpus", {number: select(number) for number in (4, 7)}),
        mock.patch("bnmc.simulation.engine.gpu.pairs.MOST_OF_RANGE", 1),
        mock.patch.object(GpuPairs, "__init__", noted),
    ):
        parts = tv_bound(chain, 2, **options)
    assert made == {(0, 1): 4, (1, 2): 7, (2, 3): 7}
    assert np.array_equal(whole.meeting_times, parts.meeting_times)
    assert np.array_equal(whole.bound, parts.bound)
    assert (whole.tries, whole.refusals) == (parts.tries, parts.refusals)
    # More devices than pairs.
    with mock.patch("bnmc.simulation.engine.gpu.pairs.devices", return_value=[0] * 3):
        two = tv_bound(chain, 2, **{**options, "chains": 2})
    assert np.array_equal(two.meeting_times, whole.meeting_times[:2])


@IN_THREADS
def test_the_first_pair_that_fails_is_named():
    with (
        mock.patch("bnmc.simulation.engine.gpu.pairs.devices", return_value=[0, 0]),
        pytest.raises(errors.ZeroVarianceError) as error,
    ):
        tv_bound(Chain(20, 2, "abs"), 2, lag=1, chains=2, rng=0, backend="cuda")
    assert error.value.chain == 0


def test_pairs_that_a_device_has_no_memory_for():
    chain = Chain(20, 2, "tanh")
    options = {"lag": 1, "chains": 2, "rng": 0, "backend": "cuda"}
    with (
        mock.patch("bnmc.simulation.engine.gpu.arrays.free_memory", return_value=100),
        pytest.raises(errors.ResultTooLargeError, match="chains.*fewer pairs"),
    ):
        tv_bound(chain, 2, **options)
    failure = mock.patch(
        "bnmc.simulation.engine.gpu.pairs.launch",
        side_effect=RuntimeError("CUDA_ERROR_OUT_OF_MEMORY"),
    )
    with failure, pytest.raises(errors.ResultTooLargeError, match="chains"):
        tv_bound(chain, 2, **options)
    # Where a pair takes half of what is free, or more, they go one by one; the process goes on.
    with mock.patch("bnmc.simulation.engine.gpu.pairs.free_memory", return_value=1):
        one_by_one = tv_bound(chain, 2, **options)
    assert np.array_equal(one_by_one.meeting_times, tv_bound(chain, 2, **options).meeting_times)


# --- how kernels are launched ---------------------------------------------------------------


def test_a_launch_warns_of_nothing_and_asks_for_shared_memory():
    """As on a GPU, where Numba warns of small grids."""
    launched = []

    class Compiled:
        def __init__(self, types):
            self.overloads = {types: types}

        def __getitem__(self, configuration):
            warnings.warn("Grid size 3 will likely result in low occupancy", stacklevel=1)
            return lambda *arguments: launched.append((configuration, arguments))

        @staticmethod
        def specialize(*arguments):
            return Compiled(tuple(map(type, arguments)))

    with (
        mock.patch.object(device, "SIMULATED", False),
        mock.patch.object(device, "_allow_shared") as allowed,
    ):
        device.launch(Compiled, 3, 32, 100, 7, 1, 2.0)
        assert not allowed.called
        device.launch(Compiled, 3, 32, 50_000, 7, 1, 2.0)
    allowed.assert_called_once_with((int, float), 50_000)
    assert launched == [((3, 32, 7, 100), (1, 2.0)), ((3, 32, 7, 50_000), (1, 2.0))]


# --- how a block divides its work -----------------------------------------------------------


@pytest.mark.parametrize("threads", [16, 256])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", [shape.DRAWN, shape.MULTIPLIED])
def test_buffers_do_not_overlap(threads, dtype, source):
    sigma = sigma_of(Activation.named("relu"))
    patches = mock.patch.multiple(shape, MOST_THREADS=threads, _MOST_THREADS_OF_WEIGHTS=threads)
    for columns in range(1, 65):
        spec = shape.Spec(columns, columns, 2, False, False, dtype, sigma.digest, source)
        with patches:
            block = shape.shape_of(spec)
        at, size = block.at, np.dtype(dtype).itemsize
        ends = [at.totals + block.entries, at.diagonal + columns, at.column + columns,
                at.means + columns + 1]  # fmt: skip
        begins = [at.diagonal, at.column, at.means, at.flags]
        assert all(e <= b for e, b in zip(ends, begins, strict=True))
        assert (at.flags + 2 + columns) * 8 <= at.factor * size
        assert (at.factor + columns * block.padded) * size <= at.tile64 * 8
        assert at.tile * size == at.tile64 * 8
        assert block.padded >= columns
        if block.whole_rows:
            numbers = block.threads * block.vector_stride * block.vector
            assert (at.zero + 1) * 8 <= at.words * 4
            assert (at.words + columns * block.element_words) * 4 <= at.factor * size
            assert at.words * 4 % 16 == at.factor * size % 16 == at.tile * size % 16 == 0
            assert block.padded * size % 16 == block.vector_stride * block.vector * size % 16 == 0
            assert block.passes * block.vectors * block.vector >= block.entries
            assert block.vectors <= block.vector_stride
            assert block.parts * block.vectors <= block.threads
            assert block.threads % block.parts == 0
            assert at.tile + numbers <= at.shares
            assert (at.shares + block.parts * block.vectors * block.vector) * size <= at.end
        else:
            # Words are shared by the quads of whole rows alone, so no others take memory.
            assert at.words * 4 == at.factor * size
        assert block.classes * block.edge >= columns
        assert 1 <= block.splits <= max(1, block.threads // block.squares)
        # The squares of all classes hold every entry of the lower triangle.
        places = {
            (max(i % block.classes, j % block.classes), min(i % block.classes, j % block.classes))
            for i in range(columns)
            for j in range(i + 1)
        }
        assert len(places) <= block.squares


def spec_in_passes(columns, source):
    """Return the spec of layers in passes over a norm of features."""
    digest = sigma_of(Activation.named("relu")).digest
    return shape.Spec(
        columns, columns, codes.NORM_NONE, False, False, "float64", digest, source,
        in_passes=True, over_features=True, features_centred=True,
    )  # fmt: skip


@pytest.mark.parametrize("threads", [16, 256])
@pytest.mark.parametrize("source", [shape.DRAWN, shape.MULTIPLIED, shape.KEPT])
def test_buffers_of_passes_do_not_overlap(threads, source):
    patches = mock.patch.multiple(shape, MOST_THREADS=threads, _MOST_THREADS_OF_WEIGHTS=threads)
    for columns in range(1, 65):
        with patches:
            block = shape.shape_of(spec_in_passes(columns, source))
        assert not block.whole_rows
        shares = block.per_entry * block.entries if block.per_entry > 1 else 0
        assert block.at.partial + shares <= block.at.moments or shares == 0
        assert block.at.moments + 2 * block.threads <= block.at.flags
        assert block.at.zero + 1 <= block.at.factor
        assert block.threads >= columns


def test_segments_have_places_of_their_own():
    """Of tiles whose rows lie among those of the next tile, too."""
    for source in (shape.DRAWN, shape.MULTIPLIED):
        tiles = shape.shape_of(spec_in_passes(2, source))
        rows = max(tiles.tile_rows, 64)
        per_block = rows // tiles.tile_rows
        for width, groups in ((66, 1), (66, 33), (200, 50), (64, 4)):
            pairs = {(row // rows, row * groups // width) for row in range(width)}
            places = [
                (block + group) * per_block + tile
                for block, group in pairs
                for tile in range(per_block)
            ]
            assert len(set(places)) == len(places)
            assert max(places) < segments_of(tiles, width, groups)


@pytest.mark.parametrize(
    ("chain", "source"),
    [
        (biased(130, norm="group(5)"), shape.DRAWN),
        (Chain(130, 2, "tanh", norm="layer", **AFTER), shape.MULTIPLIED),
        (IN_PASSES["convolution, weights, bias"][0], shape.MULTIPLIED),
    ],
    ids=["groups", "layer", "convolution"],
)
def test_the_bytes_of_a_chain_are_those_of_its_arrays(chain, source):
    law, layer = spec_of(chain), chain.layers[1]
    spec = launches.kernel_spec(layer, law, "float64", source)
    lengths = launches.lengths_of_work(layer, law, spec)
    needed = {"covariances", "factors", "segments", "shifts", "scales"}
    needed -= {"covariances"} if source == shape.MULTIPLIED else set()
    needed -= set() if spec.is_convolved else {"factors"}
    assert set(lengths) == needed
    made = sum(np.zeros(length).nbytes for length in lengths.values())
    assert made == launches.bytes_of_work(layer, law, spec)


@pytest.mark.parametrize(("side", "backend"), [(4, "cuda"), (12, "cpu")])
def test_auto_takes_the_cpu_if_no_block_has_room(side, backend):
    chain = Chain.conv(100, 1, "relu", shape=(side, side))
    options = {"chains": 10**6, "inputs": None, "rng": None}
    run = run_of(chain.repeat(0), "gaussian", sampler="auto", dtype="float32", **options)
    run = replace(run, recorded=Recorded(0, 1, 1000))
    with (
        mock.patch.object(device, "SIMULATED", False),
        mock.patch.object(device, "why_not", return_value=None),
        mock.patch("bnmc.simulation.engine.gpu.samplers.shared_memory", return_value=227 * 1024),
    ):
        assert choose_backend("auto", run, 1) == backend


def test_ranges_of_consecutive_numbers():
    """Numbers with one missing between them are in two ranges."""
    numbers = np.array([3, 4, 6, 9, 10, 11])
    assert samplers._ranges(numbers) == [(3, 5), (6, 7), (9, 12)]
    assert samplers._ranges(numbers[:1]) == [(3, 4)]
    assert samplers._ranges(numbers[:0]) == []


def test_kernels_are_made_once():
    sigma = sigma_of(Activation.named("relu"))
    spec = shape.Spec(3, 3, codes.NORM_CENTRED, False, False, "float64", sigma.digest)
    assert kernels_of(spec) is kernels_of(spec)


NARROW = {
    "conditional": (Chain(2, 1, "leaky_relu", norm="none", gain=0.1), {"dtype": "float32"}, 10),
    "two samples": (
        Chain(3, 2, "leaky_relu", norm="none", gain=0.1), {"sampler": "conditional"}, 10,
    ),
    "skip": (
        Chain(2, 1, "leaky_relu", norm="none", skip=0.001, gain=0.1), {"sampler": "conditional"},
        10,
    ),
    "weights": (
        Chain(3, 2, "leaky_relu", norm="none", weights="rademacher", gain=0.01),
        {"dtype": "float32"}, 10,
    ),
}  # fmt: skip


@pytest.mark.untraced
@IN_THREADS
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
# The scales of weights and of a skip connection are split off above.
@pytest.mark.parametrize("what", some(NARROW, "conditional", "two samples"))
def test_narrow_chains_keep_their_scale_in_any_cut(what):
    """As on the CPU: units of samples, state and record, of layers at once or in three parts."""
    chain, options, depth = NARROW[what]
    options = {"rng": 3, "observables": IN_LOGARITHMS, **options}
    cpu = simulate(chain, depth, **options)
    whole = simulate(chain, depth, backend="cuda", **options)
    total = [np.log(np.trace(run["scaled_gram"][0, -1])) for run in (cpu, whole)]
    assert total[0] + cpu["log_scale"][0, -1] < -25
    # Two nearly collinear samples are resolved to the root of the rounding.
    assert abs(total[0] - total[1]) < (1e-5 if what == "two samples" else 1e-3)
    first = simulate(chain, 3, backend="cuda", **options)
    second, third = first, first
    for layers in (1, depth - 4):
        second, third = (
            third,
            simulate(
                chain, layers, initial=third.final_state, backend="cuda", observables=IN_LOGARITHMS
            ),
        )
    for part in (first, second, third):
        at = slice(int(part.layers[0]), int(part.layers[-1]) + 1)
        for name in IN_LOGARITHMS:
            assert np.array_equal(part[name], whole[name][:, at])
    for name, values in whole.final_state.arrays.items():
        if name == "activations":  # the half of the layer before may be in other units
            values, other = values[:, depth % 2], third.final_state.arrays[name][:, depth % 2]
        else:
            other = third.final_state.arrays[name]
        assert np.array_equal(values, other)
    exponents = [run.final_state.arrays["exponent"] for run in (cpu, whole)]
    assert np.array_equal(*exponents)
    assert exponents[0].all()


@pytest.mark.parametrize("size", [1e-160, 1e160])
def test_given_rows_of_any_size_keep_their_scale(size, as_host_array):
    chain = Chain(12, 2, "leaky_relu", norm="none")
    x = np.random.default_rng(1).normal(size=(12, 2)) * size
    options = {"rng": 5, "observables": IN_LOGARITHMS, "backend": "cuda"}
    host = simulate(chain, 2, initial=x, **options)
    device = simulate(chain, 2, initial=ByDLPack(x), **options)
    for name in IN_LOGARITHMS:
        assert np.array_equal(host[name], device[name])
    assert_equal_in_logarithms(
        host, simulate(chain, 2, initial=x, **options | {"backend": "cpu"}), 2
    )
