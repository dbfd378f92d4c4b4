"""The GPU kernels: checked against the CPU, then measured against peers and their own roofline.

Everything is measured in one run, with events of the device: this library, the peaks that its
roofline is made of (fused multiply-adds in registers; the library's own normals in registers), and
the same chain in PyTorch (replayed as a CUDA graph), JAX and CuPy, by weights that are drawn, and
in PyTorch and JAX by rows given the Gram matrix, as here.  Peers that are not installed, or were
built without CUDA, are left out.

Without a GPU, NUMBA_ENABLE_CUDASIM=1 runs it all at tiny sizes, where the figures mean nothing.
"""

import importlib.metadata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from numba import float32, float64

import bnmc
from bench import peers
from bench.peers import Size
from bench.roofline import DTYPES, Rates
from bench.turns import BILLIONS, Candidate, repeating
from bnmc._kernels.gpu.device import SIMULATED, cuda, device_function, processors, why_not
from bnmc._kernels.scalar import normal
from bnmc.chain.start import Covariance
from bnmc.simulation.engine.gpu.samplers import GpuSampler
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.runs import Run

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no GPU: {why_not()}")

THREADS = 4 if SIMULATED else 256
ACCUMULATORS, UNROLLED = 8, 8
PER_SECOND = ("chain layers/s", lambda seconds: 1.0 / seconds)


@dataclass(frozen=True)
class Shape:
    """What is simulated, with the least that will do.

    That is layers a second, part of the roofline, and how many times as fast as the fastest peer
    that draws weights, and as the one that does not.
    """

    width: int
    batch: int
    chains: int
    sampler: str = "conditional"
    dtype: str = "float32"
    rate: float | None = None
    roofline: float | None = None
    drawing: float | None = None
    same: float | None = None

    def __str__(self) -> str:
        return f"{self.sampler} {self.dtype} ({self.width}, {self.batch}, {self.chains})"


SHAPES = (
    Shape(1000, 10, 4096, rate=30e6, drawing=60.0, same=8.0),
    Shape(1000, 64, 1024, roofline=0.5, drawing=10.0, same=3.0),
    Shape(1_000_000, 10, 1, roofline=0.5, same=5.0),
    Shape(4096, 16, 1, sampler="weights", roofline=0.5, drawing=3.0),
    Shape(1000, 10, 4096, dtype="float64"),
    Shape(1000, 10, 64, sampler="weights"),
)
TINY = (Shape(20, 2, 2), Shape(20, 2, 1, sampler="weights"))


@pytest.fixture
def turns(turns):
    """Figures of the simulator mean nothing: it is used at tiny sizes, as a test."""
    if SIMULATED and turns.level < 2:
        pytest.skip("the simulator runs with --benchmark-disable only")
    return turns


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_as_the_cpu(turns, dtype):
    """The largest difference of Gram matrices between the CPU and the GPU, of the same numbers."""
    width, batch, depth, chains = turns.of((1000, 10, 30, 300), (1000, 10, 30, 300), (20, 3, 1, 1))
    turns.group = "Gram matrices of the GPU, less those of the CPU"
    chain = bnmc.Chain(width, batch, "relu")
    options = {"rng": 1, "chains": chains, "every": depth, "dtype": dtype}
    theirs, ours = (
        turns.timed(
            f"{backend} {dtype}",
            lambda backend=backend: bnmc.simulate(chain, depth, backend=backend, **options).gram,
        )
        for backend in ("cpu", "cuda")
    )
    difference = float(np.abs(theirs - ours).max() / np.abs(theirs).max())
    # Rounding of sums of `width` terms and of the factors, whose condition is at most 100.  The
    # chain contracts, so errors of earlier layers do not add up.
    allowed = float(100 * np.finfo(dtype).eps * (width**0.5 + 6 * batch + 20))
    turns.hold(f"cuda {dtype}", "largest difference", difference, at_most=allowed)
    assert difference <= allowed


@pytest.mark.parametrize("shape", TINY if SIMULATED else SHAPES, ids=str)
def test_layers(turns, shape):
    """Layers without recording them, beside peers and peaks."""
    turns.group = f"{shape}"
    candidate = our_layers(shape, turns.of(100, 100, 1))
    drawing, same = ([], []) if SIMULATED else gpu_peers(shape)
    rates = Rates(shape.dtype)
    candidates = [candidate, *drawing, *same, *peak_candidates(rates, turns.of(2000, 2000, 2))]
    timings = turns(candidates, rounds=turns.of(15, 5), seconds=0.02)
    mine = timings["bnmc"]
    bound = rates.layer(timings, width=shape.width, batch=shape.batch, sampler=shape.sampler)
    turns.hold("bnmc", "chain layers/s", 1.0 / mine.median, at_least=shape.rate)
    for each in (candidate, *drawing, *same):
        limit = shape.roofline if each is candidate else None
        share = timings[each.name].speed_over(bound)
        turns.hold(each.name, "of the roofline", share, at_least=limit)
    for column, others, limit in (
        ("x drawing W", drawing, shape.drawn), ("x the same sampler", same, shape.same),
    ):  # fmt: skip
        if others:
            speed = min(mine.speed_over(timings[each.name]) for each in others)
            turns.hold("bnmc", column, speed, at_least=limit)
    if not SIMULATED:
        turns.add("bnmc", device_facts())


def device_facts():
    """Return the device, and the versions of what drives it."""
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    facts = {
        "device": name, "compute capability": ".".join(map(str, device.compute_capability)),
        "multiprocessors": processors(),
    }  # fmt: skip
    for package in ("numba-cuda", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def test_gradients(turns):
    """Gradients forward and back on the GPU, and on the threads of the CPU."""
    width, batch, depth, chains, few = turns.of(
        (1000, 10, 100, 4096, 64), (1000, 10, 100, 4096, 64), (20, 2, 1, 2, 1)
    )
    turns.group = f"backpropagate at ({width}, {batch}) through {depth} layers"
    chain = bnmc.Chain(width, batch, "tanh" if SIMULATED else "relu")
    options = {"dtype": "float32", "observables": (), "rng": 0}
    for backend, count in (("cuda", chains), ("cpu", few)):
        run = partial(bnmc.backpropagate, chain, chains=count, backend=backend, **options)
        run(1)  # compiles
        name = f"{backend}, {count} chains"
        turns.timed(name, partial(run, depth))
        rate = depth * count / turns.timings[name].median
        turns.add(name, {"chain layers/s, forward and back": rate})


def test_pairs(turns):
    """Let pairs meet on the GPU and on two cores, with the same random numbers."""
    width, batch, replicates, few = turns.of(
        (1000, 10, 100_000, 1000), (1000, 10, 100_000, 1000), (20, 2, 4, 2)
    )
    turns.group = f"tv_bound at ({width}, {batch}) of {replicates} pairs"
    bound = partial(bnmc.mixing.tv_bound, bnmc.Chain(width, batch, "tanh" if SIMULATED else "relu"),
                    depth=10, rng=1)  # fmt: skip
    lag = 1 if SIMULATED else bound(chains=few, backend="cuda").lag
    of_gpu = turns.timed("GPU", lambda: bound(chains=replicates, backend="cuda", lag=lag))
    with ThreadPoolExecutor(2) as executor:
        of_cpu = turns.timed(
            "two cores, fewer pairs", lambda: bound(chains=few, executor=executor, lag=lag)
        )
    seconds = turns.timings["GPU"].median
    times = turns.timings["two cores, fewer pairs"].median * replicates / few / seconds
    differing = int(np.count_nonzero(of_gpu.meeting_times[:few] != of_cpu.meeting_times))
    turns.add("GPU", {"meet elsewhen than on the CPU": f"{differing} of {few}"})
    turns.hold("GPU", "a second", 1.0 / seconds, at_least=0.5)
    turns.hold("GPU", "x two cores", times, at_least=30.0)


# --- candidates ---------------------------------------------------------------------------------


def device_seconds(run, stream=0):
    """Seconds of the device."""
    if SIMULATED:
        run()
        return 1e-6
    first, last = cuda.event(), cuda.event()
    first.record(stream)
    run()
    last.record(stream)
    last.synchronize()
    return float(cuda.event_elapsed_time(first, last)) * 1e-3


def our_layers(shape, layers):
    """Layers that the library's sampler makes, in calls of so many."""
    chain = bnmc.Chain(shape.width, shape.batch, "relu")
    sampler = GpuSampler(
        Run(chain.repeat(1), shape.sampler, shape.chains, None, shape.dtype, 1, backend="cuda")
    )
    none = np.zeros((shape.chains, 1, 1, 1))
    frames = Frames(np.zeros((shape.chains, 1, shape.batch, shape.batch)), none, none)
    sampler.begin(Covariance(np.eye(shape.batch)), 0, shape.chains, frames)
    slots, done = np.full(layers, -1), 0

    def advance():
        nonlocal done
        sampler.advance(0, shape.chains, done + 1, slots, frames)
        done += layers

    clock = partial(device_seconds, stream=sampler.stream)
    units = layers * shape.chains
    return Candidate("bnmc", repeating(advance), units, PER_SECOND, clock)


def peak_candidates(rates, steps):
    """The two rates of the roofline, with the names of those of the CPU."""
    blocks = 2 if SIMULATED else 8 * processors()
    out = cuda.device_array(blocks * THREADS, rates.dtype)
    number = np.float32 if rates.dtype == "float32" else np.float64
    multiply_add, normals = peak_kernels(rates.dtype)
    key = np.uint32(1), np.uint32(2)
    threads = blocks * THREADS * steps
    return [
        Candidate(
            rates.normals, repeating(lambda: normals[blocks, THREADS](out, *key, steps)),
            4 * threads, BILLIONS, device_seconds,
        ),
        Candidate(
            rates.flops,
            repeating(lambda: multiply_add[blocks, THREADS](out, number(0.5), number(1.0), steps)),
            2 * ACCUMULATORS * UNROLLED * threads, BILLIONS, device_seconds,
        ),
    ]  # fmt: skip


def gpu_peers(shape):
    """What one would write in these packages: drawing W, and by the sampler of the library."""
    # As many chains at a time as 4 GiB of weights.
    size = np.dtype(shape.dtype).itemsize
    chains = max(1, min(shape.chains, (4 << 30) // (size * shape.width**2)))
    weights = {"PyTorch": peers.torch_weights, "JAX": peers.jax_weights, "CuPy": cupy_weights}
    given = {"PyTorch": peers.torch_conditional, "JAX": peers.jax_conditional}
    drawing = [
        peer_candidate(name, name, factory, shape, chains) for name, factory in weights.items()
        if shape.width <= 10_000 and peers.on_gpu(name)
    ]  # fmt: skip
    same = [
        peer_candidate(f"{name}, given G", name, factory, shape, shape.chains)
        for name, factory in given.items()
        if shape.sampler == "conditional" and peers.on_gpu(name)
    ]
    return drawing, same


def peer_candidate(name, package, factory, shape, chains):
    """A peer; the units are layers of a chain."""
    device = {} if package == "CuPy" else {"device": "cuda"}

    def make(layers):
        size = Size(shape.width, shape.batch, layers, (chains,), shape.dtype)
        return factory(size, **device)

    return Candidate(name, make, chains, PER_SECOND, CLOCKS.get(package))


def cupy_weights(size):
    import cupy

    return peers.numpy_weights(size, xp=cupy)


def torch_seconds(run):
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e-3


def cupy_seconds(run):
    import cupy

    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(cupy.cuda.get_elapsed_time(first, last)) * 1e-3


#: JAX has no events, and its runs are long: the clock of the host.
CLOCKS = {"PyTorch": torch_seconds, "CuPy": cupy_seconds}


def peak_kernels(dtype):
    """Kernels that touch registers alone: fused multiply-adds, and the library's normals."""
    kind = float32 if dtype == "float32" else float64
    number = np.float32 if dtype == "float32" else np.float64
    draw = device_function(normal.normals.single if dtype == "float32" else normal.normals.double)

    @cuda.jit
    def multiply_add(out, factor, offset, steps):
        values = cuda.local.array(ACCUMULATORS, kind)
        at = cuda.grid(1)
        for k in range(ACCUMULATORS):
            values[k] = number(at + k)
        for _ in range(steps):
            # As many to a jump that it does not matter.
            for _ in range(UNROLLED):
                for k in range(ACCUMULATORS):
                    values[k] = values[k] * factor + offset
        total = number(0.0)
        for k in range(ACCUMULATORS):
            total += values[k]
        out[at] = total

    @cuda.jit
    def normals(out, k0, k1, steps):
        at = cuda.grid(1)
        total = number(0.0)
        for step in range(steps):
            z0, z1, z2, z3 = draw(np.uint32(step), np.uint32(at), 0, 0, k0, k1)
            total += (z0 + z1) + (z2 + z3)
        out[at] = total

    return multiply_add, normals
