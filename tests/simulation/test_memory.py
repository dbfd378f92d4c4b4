"""The memory that a run needs: the estimate against measured peaks, and what is refused.

The peak is that of `tracemalloc`, which counts the arrays of NumPy.  `pytest
bench/bench_memory.py` has a larger table, with resident memory.
"""

import gc
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from slow_cases import some

from bnmc import Chain, FirstLayer, simulate
from bnmc.errors import ResultTooLargeError
from bnmc.simulation import memory
from bnmc.simulation.engine.rows import RowSampler, bytes_of_thread
from bnmc.simulation.observables import as_observables
from bnmc.simulation.run import takes_milliseconds
from bnmc.simulation.runs import Recorded, Run
from bnmc.simulation.starting import run_of


def normals(*shape):
    return np.random.default_rng(3).standard_normal(shape)


#: Chain, depth and arguments.
SHAPES = {
    "Gram matrices": (Chain(60, 10), 60, {"chains": 100}),
    "depth 0": (Chain(20, 10), 0, {"chains": 20_000}),
    "chains, reduced": (Chain(20, 3), 2, {"chains": 60_000, "reduce": "chain"}),
    "chains and layers, reduced": (Chain(20, 3), 2, {"chains": 60_000, "reduce": "layer"}),
    "eigenvalues": (Chain(50, 8), 50, {"chains": 200, "observables": "eigenvalues"}),
    "deep": (Chain(20, 3), 40_000, {"observables": "orthogonality_gap"}),
    "batch": (Chain(100, 400), 2, {"threads": 2, "sampler": "weights"}),
    "cross-Gram": (
        Chain(50, 6), 20, {"chains": 40, "inputs": 6, "observables": "cross_gram"}
    ),
    "rows of float32": (Chain(2000, 10, skip=1.0), 3, {"chains": 60, "dtype": "float32"}),
    "weights": (Chain(300, 10, skip=1.0), 2, {"chains": 60, "sampler": "weights"}),
    "an array": (Chain(40_000, 20), 1, {"initial": normals(40_000, 20)}),
    "an array per chain": (Chain(2000, 10), 1, {"chains": 40, "initial": normals(40, 2000, 10)}),
    "arrays of several inputs": (
        Chain(2000, 5, skip=1.0), 1, {"chains": 20, "inputs": 3, "initial": normals(20, 3, 2000, 5)}
    ),
    "another precision": (
        Chain(2000, 10), 1, {"chains": 40, "initial": normals(40, 2000, 10).astype(np.float32)}
    ),
    "features": (Chain(50, 100), 1, {"initial": FirstLayer(normals(50_000, 100))}),
    "factors": (Chain(1000, 20, "linear", norm="none"), 20, {"chains": 200}),
}  # fmt: skip


def run_through(chain, depth, observables="gram", **options):
    """Return a run as a value."""
    options = {"chains": 2, "inputs": None, "sampler": "auto", "dtype": "float64", **options}
    run = run_of(chain.repeat(0), "gaussian", rng=None, **options)
    functions = as_observables(observables, options["inputs"] is not None)
    return replace(run, observables=functions, recorded=Recorded(0, 1, depth))


def needed(chain, depth, **options):
    """Return the estimate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available_memory", lambda: 0)
        with pytest.raises(ResultTooLargeError) as caught:
            simulate(chain, depth, rng=0, **options)
    return caught.value.requested


def peak(chain, depth, **options):
    """Return the measured peak of a run, after another one that compiles the kernels."""
    simulate(chain, min(depth, 2), rng=0, **{**options, "store": None})
    gc.collect()
    tracemalloc.start()
    try:
        simulate(chain, depth, rng=0, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


#: Shapes that others include: moments over chains, a matrix per chain, arrays of one input.
SLOW = (
    "chains and layers, reduced", "eigenvalues", "an array per chain", "depth 0", "an array",
    "arrays of several inputs", "another precision",
)  # fmt: skip


@pytest.mark.untraced
@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("shape", some(SHAPES, *(set(SHAPES) - set(SLOW))))
def test_the_estimate_is_within_a_third_of_the_peak(shape):
    chain, depth, options = SHAPES[shape]
    options = {"threads": 1, **options}
    assert 1 / 1.3 < needed(chain, depth, **options) / peak(chain, depth, **options) < 1.3


@pytest.mark.untraced
@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), {"reduce": "chain"}, {"store": True}]
)
def test_the_estimate_of_tiles_bounds_the_peak(options, tmp_path):
    """Within a factor: the peak depends on the order in which threads finish."""
    chain, depth = Chain(20, 4), 300
    options = {"chains": 800, "threads": 2, **options}
    with ThreadPoolExecutor(2) as executor:
        if options.pop("store", False):
            pytest.importorskip("zarr")
            simulate(chain, 2, rng=0, store=tmp_path / "first.zarr")
            options["store"] = tmp_path / "run.zarr"
        else:
            options["executor"] = executor
        assert 1 / 1.3 < needed(chain, depth, **options) / peak(chain, depth, **options) < 2.0


def test_the_message_names_what_would_fit(monkeypatch):
    """With so many chains or layers the run fits, and with 1 % more it does not."""
    chain, available = Chain(20, 10), 50_000_000
    monkeypatch.setattr(memory, "available_memory", lambda: available)
    with pytest.raises(ResultTooLargeError, match="available: 47.7 MiB") as caught:
        simulate(chain, 200, chains=1000, rng=0, threads=1)
    sizes = re.search(r"chains=(\d+) or depth=(\d+) would fit", str(caught.value))
    chains, depth = map(int, sizes.groups())
    assert (chains, depth) < (1000, 200)
    assert simulate(chain, 200, chains=chains, rng=0, threads=1).chains == chains
    assert len(simulate(chain, depth, chains=1000, rng=0, threads=1).layers) == depth + 1
    for more in ({"chains": chains * 101 // 100 + 1}, {"depth": depth + 1 + depth // 50}):
        with pytest.raises(ResultTooLargeError):
            simulate(chain, **{"depth": 200, "chains": 1000, "rng": 0, "threads": 1, **more})


@pytest.mark.parametrize(
    ("chain", "options"),
    [
        (Chain(20, 10), {}), (Chain(20, 3), {"inputs": 4}),
        (Chain(40, 6, "linear", norm="none"), {}), (Chain(30, 10, skip=1.0), {"dtype": "float32"}),
        (Chain(30, 10, skip=1.0), {"sampler": "weights"}),
    ],
)  # fmt: skip
def test_the_state_has_the_bytes_of_its_arrays(chain, options):
    arrays = simulate(chain, 1, chains=3, rng=0, **options).state.arrays
    made = sum(array.nbytes for array in arrays.values())
    assert made == 3 * run_through(chain, 1, **options).bytes_of_chain


def test_a_run_that_nothing_makes_smaller_names_other_ways(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000)
    with pytest.raises(ResultTooLargeError, match=r"\(record fewer layers with every="):
        simulate(Chain(20, 1000), 1, rng=0)


def test_an_array_of_the_caller_costs_nothing(monkeypatch):
    chain, out = Chain(20, 10), np.zeros((100, 301, 10, 10))
    without = needed(chain, 300, chains=100, threads=1)
    assert without - needed(chain, 300, chains=100, threads=1, out={"gram": out}) == out.nbytes


def test_values_in_a_store_take_no_memory(tmp_path):
    """Of ten million layers, the layers of a tile and the numbers of all layers are in memory."""
    chain, depth = Chain(20, 10), 10**7
    stored = needed(chain, depth, chains=100, threads=2, store=tmp_path / "run.zarr")
    assert 8 * depth < stored < 32 * depth + 200_000_000
    assert needed(chain, depth, chains=100, threads=2) > 8 * 100 * 100 * depth
    assert not list(tmp_path.iterdir())


SMALL_CHAINS = [
    Chain(8, 4), Chain(3000, 4, "relu"), Chain(64, 4, norm="layer"), Chain(64, 4, skip=1.0),
    Chain(16, 4, weights="haar"), Chain(130, 2, weights="haar"), Chain.conv(4, 2, shape=(3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("sampler", ["auto", "weights"])
@pytest.mark.parametrize("chain", SMALL_CHAINS)
def test_a_run_that_nobody_estimates_needs_some_megabytes(chain, sampler):
    """With 64 threads their buffers are most of it: 64 MB bound them all."""
    small = 0
    for chains in (1, 3, 10, 100):
        for depth in (0, 1, 10, 100, 1000, 10_000):
            names = ("gram", "eigenvalues")
            run = run_through(chain, depth, names, chains=chains, sampler=sampler)
            request = memory.Request(run, "gaussian", 64, reduce=frozenset({"chain"}))
            is_small = takes_milliseconds(run)
            small += is_small
            assert not is_small or request.bytes() < 2**26
    assert chain.width > 64 or 0 < small < 24


def test_an_array_of_the_caller_is_always_estimated(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 0)
    simulate(Chain(8, 4), 1, rng=0)
    with pytest.raises(ResultTooLargeError):
        simulate(Chain(8, 4), 1, initial=normals(8, 4), rng=0)


def test_a_run_of_exactly_the_available_memory_is_accepted(monkeypatch):
    chain, options = Chain(20, 10), {"chains": 100, "threads": 1}
    size = needed(chain, 30, **options)
    monkeypatch.setattr(memory, "available_memory", lambda: size)
    simulate(chain, 30, rng=0, **options)
    monkeypatch.setattr(memory, "available_memory", lambda: size - 1)
    with pytest.raises(ResultTooLargeError):
        simulate(chain, 30, rng=0, **options)


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "chain",
    [
        Chain(60, 4, "tanh"), Chain(60, 4, "tanh", norm="group(10)"), Chain(60, 4, weights="haar"),
        Chain.conv(8, 2, "tanh", shape=(3, 3), kernel=(2, 2)), Chain(300, 4, "relu", norm="layer"),
    ],
    ids=["batch", "groups", "haar", "convolution", "layer"],
)  # fmt: skip
def test_a_thread_has_the_bytes_of_its_arrays(chain, dtype, sampler):
    run = run_through(chain, 2, sampler=sampler, dtype=dtype)
    made = RowSampler(run)
    stage = run.stages[-1]
    buffers = [made.source(stage, made.dtype), made.sums(stage, made.dtype), made.work()]
    size = sum(array.nbytes for array in arrays_in(list(made.buffers().values())))
    assert buffers
    # The buffers of `Work` begin cache lines.
    assert size <= bytes_of_thread(run) <= size + 64 * 13


def arrays_in(value):
    """Yield the arrays in tuples of arrays and tuples."""
    if isinstance(value, np.ndarray):
        yield value
    elif value is not None:
        for each in value:
            yield from arrays_in(each)


@pytest.mark.parametrize(
    ("chain", "path", "spare"),
    [
        (Chain(30, 4), "conditional", 0),
        (Chain(30, 4, "relu", norm="none"), "conditional", 0),
        (Chain(30, 4, "linear", norm="none"), "factor", 4),
    ],
    ids=["norm", "scale apart", "factor"],
)
def test_a_layer_more_is_estimated_as_the_frames_that_it_has(chain, path, spare, monkeypatch):
    """Matrices and log-scales, pivots of a triangular factor, units of scales split off.

    A factor may have one number per sample to spare: units, though its scale is in its pivots.
    """
    monkeypatch.setattr(memory, "SCALE_TEMPORARIES", 0)  # they are no frames
    frames, chains = [], 5
    made = Run.frames

    def noted(run, layers):
        frames.append(made(run, layers))
        return frames[-1]

    monkeypatch.setattr(Run, "frames", noted)
    simulate(chain, 2, chains=chains, rng=0, threads=1, observables="scaled_gram")
    layers = sum(frame.log_scale.shape[1] for frame in frames)
    assert layers == 3
    size = sum(array.nbytes for frame in frames for array in frame[:5])
    run = run_through(chain, 2, "scaled_gram", chains=chains)
    assert run.path == path
    request = memory.Request(run, "gaussian", 1)
    frame, two = (request._of_chains(chains, 1, most, reduced=False) for most in (1, 2))
    assert size <= (two - frame) * layers <= size + 8 * chains * layers * spare
