"""The GPU kernels: checked against the CPU, then measured against peers and their own roofline.

Everything is measured in one run, with events of the device: this library, the peaks that its
roofline is made of (fused multiply-adds in registers; the library's own normals in registers), and
the same chain in PyTorch (`randn` into one buffer and `bmm`, replayed as a CUDA graph), JAX (`jit`
of `vmap` of `scan`) and CuPy (`standard_normal` and `matmul`), by weights that are drawn, and in
PyTorch and JAX by rows given the Gram matrix, as here.  Peers that are not installed, or were built
without CUDA, are left out.  Candidates take turns, and medians are compared.

Without a GPU, NUMBA_ENABLE_CUDASIM=1 runs it all at tiny sizes, where the figures mean nothing and
are not kept.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import float32, float64

import bnmc
from bench.report import Cell, Floor, Report, Table
from bnmc._kernels.gpu.device import SIMULATED, cuda, device_function, processors, why_not
from bnmc._kernels.scalar import normal
from bnmc.chain.start import Covariance
from bnmc.simulation.engine.gpu.samplers import GpuSampler
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.runs import Run
from bnmc.testing.machine_limits import layer_seconds

#: The peers that do not draw weights either.
SAME_SAMPLER = ("torch, given G", "jax, given G")
THREADS = 4 if SIMULATED else 256
ACCUMULATORS, UNROLLED = 8, 8


@dataclass(frozen=True)
class Shape:
    """A row of the table, with the least that will do.

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
    drawn: float | None = None
    same: float | None = None

    @property
    def label(self) -> str:
        return f"{self.sampler} {self.dtype} ({self.width}, {self.batch}, {self.chains})"


SHAPES = (
    Shape(1000, 10, 4096, rate=30e6, drawn=60.0, same=8.0),
    Shape(1000, 64, 1024, roofline=0.5, drawn=10.0, same=3.0),
    Shape(1_000_000, 10, 1, roofline=0.5, same=5.0),
    Shape(4096, 16, 1, sampler="weights", roofline=0.5, drawn=3.0),
    Shape(1000, 10, 4096, dtype="float64"),
    Shape(1000, 10, 64, sampler="weights"),
)
TINY = (Shape(20, 2, 2), Shape(20, 2, 1, sampler="weights"))
#: What is checked, beside the tests, which run on a GPU too.
CHECKED = ("float64", "float32")


def benchmark(*, quick: bool = False) -> Report:
    """Check, measure, and hand back the tables."""
    report = Report("gpu")
    reason = why_not()
    if reason is not None:
        report.tables.append(Table("not run", ["reason"], [[reason]]))
        report.measured = False
        return report
    report.measured = not SIMULATED
    report.tables += [_device(), _checks()]
    shapes = TINY if SIMULATED else SHAPES
    rounds = 2 if SIMULATED else 5 if quick else 15
    peaks = {dtype: _peaks(dtype, rounds) for dtype in {shape.dtype for shape in shapes}}
    report.tables.append(
        Table(
            "peaks",
            ["dtype", "FMA flop/s", "normals/s"],
            [[dtype, *rates] for dtype, rates in sorted(peaks.items())],
        )
    )
    rows: list[list[Cell]] = []
    for shape in shapes:
        flops, normals = peaks[shape.dtype]
        bound = layer_seconds(shape.width, shape.batch, shape.sampler, 1 / normals, 1 / flops)
        candidates = {"bnmc": _ours(shape), **_peers(shape)}
        seconds = _measure(candidates, rounds)
        for name, values in seconds.items():
            median = statistics.median(values)
            rows.append([shape.label, name, 1.0 / median, bound / median])
        report.samples[shape.label] = seconds
        ours = statistics.median(seconds["bnmc"])
        if shape.rate is not None:
            report.floors.append(Floor(f"layers/s {shape.label}", 1.0 / ours, shape.rate))
        if shape.roofline is not None:
            report.floors.append(Floor(f"roofline {shape.label}", bound / ours, shape.roofline))
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        same = [medians.pop(name) for name in SAME_SAMPLER if name in medians]
        others = [value for name, value in medians.items() if name != "bnmc"]
        if shape.drawn is not None and others:
            times = min(others) / ours
            report.floors.append(Floor(f"times drawn weights {shape.label}", times, shape.drawn))
        if shape.same is not None and same:
            times = min(same) / ours
            report.floors.append(Floor(f"times same sampler {shape.label}", times, shape.same))
    headers = ["(width, batch, chains)", "who", "chain layers/s", "of the roofline"]
    report.tables.append(Table("layers", headers, rows))
    _meet(report)
    _gradients(report)
    return report


def _device() -> Table:
    """The device, and what drives it."""
    rows: list[list[Cell]] = []
    if not SIMULATED:
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
        rows += [
            ["name", name],
            ["compute capability", ".".join(map(str, device.compute_capability))],
            ["multiprocessors", processors()],
        ]
    for package in ("numba-cuda", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x"):
        try:
            rows.append([package, importlib.metadata.version(package)])
        except importlib.metadata.PackageNotFoundError:
            continue
    return Table("device", ["what", "which"], rows)


# --- checks


def _checks() -> Table:
    """The largest difference of Gram matrices between the CPU and the GPU, of the same numbers."""
    width, depth = (20, 1) if SIMULATED else (1000, 30)
    batch, chains = (3, 1) if SIMULATED else (10, 300)
    chain = bnmc.Chain(width, batch, "relu")
    rows: list[list[Cell]] = []
    for dtype in CHECKED:
        options: dict[str, Any] = {"rng": 1, "chains": chains, "every": depth, "dtype": dtype}
        grams = [
            bnmc.simulate(chain, depth, backend=backend, **options).gram
            for backend in ("cpu", "cuda")
        ]
        difference = np.abs(grams[0] - grams[1]).max() / np.abs(grams[0]).max()
        # As in the tests.
        allowed = 100 * np.finfo(dtype).eps * (width**0.5 + 6 * batch + 20)
        rows.append([dtype, float(difference), "ok" if difference <= allowed else "DIFFERENT"])
    return Table("against the CPU", ["dtype", "largest difference", "verdict"], rows)


# --- gradients


def _gradients(report: Report) -> None:
    """Take gradients forward and back on the GPU, and on the threads of the CPU."""
    width, batch, depth, chains, few = (20, 2, 1, 2, 1) if SIMULATED else (1000, 10, 100, 4096, 64)
    chain = bnmc.Chain(width, batch, "tanh" if SIMULATED else "relu")
    rows: list[list[Cell]] = []
    label = f"({width}, {batch}, {depth}, {chains})"
    for backend, count in (("cuda", chains), ("cpu", few)):
        options: dict[str, Any] = {"dtype": "float32", "observables": (), "backend": backend}
        bnmc.backpropagate(chain, 1, chains=count, rng=0, **options)  # compiles
        start = time.perf_counter()
        bnmc.backpropagate(chain, depth, chains=count, rng=0, **options)
        rate = depth * count / (time.perf_counter() - start)
        rows.append([label, backend, rate])
    heads = ["(width, batch, depth, chains)", "backend", "chain layers/s, forward and back"]
    report.tables.append(Table("backpropagate", heads, rows))


# --- pairs that meet


def _meet(report: Report) -> None:
    """Let pairs meet on the GPU and on two cores, with the same random numbers."""
    width, batch, replicates, few = (20, 2, 4, 2) if SIMULATED else (1000, 10, 100_000, 1000)
    chain = bnmc.Chain(width, batch, "tanh" if SIMULATED else "relu")
    options: dict[str, Any] = {"depth": 10, "rng": 1}
    lag = 1
    if not SIMULATED:
        lag = bnmc.mixing.tv_bound(chain, replicates=few, backend="cuda", **options).lag
    options["lag"] = lag
    seconds = {}
    start = time.perf_counter()
    of_gpu = bnmc.mixing.tv_bound(chain, replicates=replicates, backend="cuda", **options)
    seconds["GPU"] = time.perf_counter() - start
    with ThreadPoolExecutor(2) as executor:
        start = time.perf_counter()
        of_cpu = bnmc.mixing.tv_bound(chain, replicates=few, executor=executor, **options)
        seconds["two cores"] = (time.perf_counter() - start) * replicates / few
    differing = int(np.count_nonzero(of_gpu.meeting_times[:few] != of_cpu.meeting_times))
    headers = ["(width, batch, pairs)", "who", "seconds", "meet elsewhen than on the CPU"]
    label = f"({width}, {batch}, {replicates})"
    report.tables.append(
        Table(
            "tv_bound",
            headers,
            [[label, who, value, f"{differing} of {few}"] for who, value in seconds.items()],
        )
    )
    if not SIMULATED:
        report.floors.append(Floor(f"tv_bound/s {label}", 1.0 / seconds["GPU"], 0.5))
        times = seconds["two cores"] / seconds["GPU"]
        report.floors.append(Floor(f"times two cores {label}", times, 30.0))


# --- timing


def _measure(candidates: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds a layer of one chain; candidates take turns."""
    for candidate in candidates.values():
        candidate()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            seconds[name].append(candidate())
    return seconds


def _timed(run: Callable[[], object], stream: Any = 0) -> float:
    """Seconds of the device."""
    if SIMULATED:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    first, last = cuda.event(), cuda.event()
    first.record(stream)
    run()
    last.record(stream)
    last.synchronize()
    return float(cuda.event_elapsed_time(first, last)) * 1e-3


def _ours(shape: Shape) -> Callable[[], float]:
    """Layers that the library's sampler makes, without recording them."""
    chain = bnmc.Chain(shape.width, shape.batch, "relu")
    sampler = GpuSampler(
        Run(chain, shape.sampler, shape.chains, None, shape.dtype, 1, backend="cuda")
    )
    none = np.zeros((shape.chains, 1, 1, 1))
    frames = Frames(np.zeros((shape.chains, 1, shape.batch, shape.batch)), none, none)
    sampler.begin(Covariance(np.eye(shape.batch)), 0, shape.chains, frames)
    layers = 1 if SIMULATED else 100
    done = 0

    def run() -> float:
        nonlocal done
        slots = np.full(layers, -1)
        seconds = _timed(
            lambda: sampler.advance(0, shape.chains, done + 1, slots, frames), sampler.stream
        )
        done += layers
        return seconds / (layers * shape.chains)

    return run


# --- peaks


def peak_kernels(dtype: str) -> tuple[Any, Any]:
    """Kernels that touch registers alone: fused multiply-adds, and the library's normals."""
    kind = float32 if dtype == "float32" else float64
    number = np.float32 if dtype == "float32" else np.float64
    draw = device_function(normal.normals.single if dtype == "float32" else normal.normals.double)

    @cuda.jit
    def multiply_add(out: Any, factor: Any, offset: Any, steps: Any) -> None:
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
    def normals(out: Any, k0: Any, k1: Any, steps: Any) -> None:
        at = cuda.grid(1)
        total = number(0.0)
        for step in range(steps):
            z0, z1, z2, z3 = draw(np.uint32(step), np.uint32(at), 0, 0, k0, k1)
            total += (z0 + z1) + (z2 + z3)
        out[at] = total

    return multiply_add, normals


def _peaks(dtype: str, rounds: int) -> tuple[float, float]:
    """Floating-point operations and normals a second."""
    blocks = 2 if SIMULATED else 8 * processors()
    steps = 2 if SIMULATED else 2000
    out = cuda.device_array(blocks * THREADS, dtype)
    number = np.float32 if dtype == "float32" else np.float64
    multiply_add, normals = peak_kernels(dtype)
    key = np.uint32(1), np.uint32(2)
    candidates = {
        "FMA": lambda: _timed(
            lambda: multiply_add[blocks, THREADS](out, number(0.5), number(1.0), steps)
        ),
        "normals": lambda: _timed(lambda: normals[blocks, THREADS](out, *key, steps)),
    }
    seconds = {name: statistics.median(v) for name, v in _measure(candidates, rounds).items()}
    threads = blocks * THREADS * steps
    flops = 2 * ACCUMULATORS * UNROLLED
    return threads * flops / seconds["FMA"], threads * 4 / seconds["normals"]


# --- peers


def _peers(shape: Shape) -> dict[str, Callable[[], float]]:
    """The same chain: what one would write in these packages."""
    makers = {"torch": _torch, "jax": _jax, "cupy": _cupy}
    found: dict[str, Callable[[], float]] = {}
    if SIMULATED:
        return found
    if shape.sampler == "conditional":
        same = {"torch": _torch_conditional, "jax": _jax_conditional}
        for (package, maker), name in zip(same.items(), SAME_SAMPLER, strict=True):
            if _has_gpu(package):
                found[name] = maker(shape)
    if shape.width > 10_000:
        return found
    # As many chains at a time as 4 GiB of weights.
    size = np.dtype(shape.dtype).itemsize
    chains = max(1, min(shape.chains, (4 << 30) // (size * shape.width**2)))
    for package, draws in makers.items():
        if _has_gpu(package):
            run = draws(shape, chains)
            found[package] = lambda run=run, chains=chains: run() / chains
    return found


def _has_gpu(package: str) -> bool:
    """Return whether a package is installed, and of a build that uses the GPU."""
    if importlib.util.find_spec(package) is None:
        return False
    if package == "torch":
        import torch

        return bool(torch.cuda.is_available())
    if package == "jax":
        # It would take most of the memory for itself.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        return bool(jax.default_backend() == "gpu")
    return True


def _torch(shape: Shape, chains: int) -> Callable[[], float]:
    import torch

    dtype = getattr(torch, shape.dtype)
    d, n = shape.width, shape.batch
    x = torch.randn(chains, d, n, dtype=dtype, device="cuda")
    w = torch.empty(chains, d, d, dtype=dtype, device="cuda")

    def layer() -> None:
        a = torch.relu(x) * d**-0.5
        torch.randn(w.shape, out=w)
        h = torch.bmm(w, a)
        variance, mean = torch.var_mean(h, dim=2, correction=0, keepdim=True)
        x.copy_((h - mean) * torch.rsqrt(variance))
        torch.bmm(a.transpose(1, 2), a)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()

    def run() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(10):
            graph.replay()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e-4

    return run


def _torch_conditional(shape: Shape, device: str = "cuda") -> Callable[[], float]:
    """Seconds a layer of a chain, of rows drawn given the Gram matrix of the layer before."""
    import torch

    d, n, chains = shape.width, shape.batch, shape.chains
    options: dict[str, Any] = {"dtype": getattr(torch, shape.dtype), "device": device}
    centre = torch.eye(n, **options) - 1.0 / n
    gram = torch.eye(n, **options).repeat(chains, 1, 1)
    z = torch.empty(chains, d, n - 1, **options)

    def layer() -> Any:
        # Rows are centred, so that all but one of their entries determine that one.
        covariance = (centre @ gram @ centre)[:, :-1, :-1]
        factor, _ = torch.linalg.cholesky_ex(covariance)
        factor = torch.cat([factor, -factor.sum(dim=1, keepdim=True)], dim=1)
        torch.randn(z.shape, out=z)
        h = z @ factor.transpose(1, 2)
        a = torch.relu(h * torch.rsqrt((h * h).mean(dim=2, keepdim=True)))
        gram.copy_(a.transpose(1, 2) @ a / d)
        return gram

    def run() -> float:
        if device == "cpu":
            start = time.perf_counter()
            layer()
            return (time.perf_counter() - start) / chains
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(10):
            layer()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e-4 / chains

    run.gram = gram  # type: ignore[attr-defined]
    return run


def _jax(shape: Shape, chains: int) -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    d, n, layers = shape.width, shape.batch, 10

    def layer(x: Any, key: Any) -> tuple[Any, Any]:
        a = jax.nn.relu(x) * d**-0.5
        h = jax.random.normal(key, (d, d), x.dtype) @ a
        h = h - h.mean(axis=1, keepdims=True)
        return h * jax.lax.rsqrt((h * h).mean(axis=1, keepdims=True)), a.T @ a

    @jax.jit
    @jax.vmap
    def chain(x: Any, key: Any) -> Any:
        return jax.lax.scan(layer, x, jax.random.split(key, layers))

    with jax.enable_x64(shape.dtype == "float64"):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((chains, d, n)), shape.dtype)
        keys = jax.random.split(jax.random.key(0), chains)

    def run() -> float:
        # The clock of the host: JAX has no events, and these runs are long.
        with jax.enable_x64(shape.dtype == "float64"):
            start = time.perf_counter()
            jax.block_until_ready(chain(x, keys))
            return (time.perf_counter() - start) / layers

    return run


def _jax_conditional(shape: Shape) -> Callable[[], float]:
    """Like `_torch_conditional`."""
    import jax
    import jax.numpy as jnp

    d, n, chains, layers = shape.width, shape.batch, shape.chains, 10

    def layer(gram: Any, key: Any) -> tuple[Any, None]:
        centre = jnp.eye(n, dtype=gram.dtype) - 1.0 / n
        factor = jnp.linalg.cholesky((centre @ gram @ centre)[:, :-1, :-1])
        factor = jnp.concatenate([factor, -factor.sum(axis=1, keepdims=True)], axis=1)
        h = jax.random.normal(key, (chains, d, n - 1), gram.dtype) @ factor.swapaxes(1, 2)
        a = jax.nn.relu(h * jax.lax.rsqrt((h * h).mean(axis=2, keepdims=True)))
        return a.swapaxes(1, 2) @ a / d, None

    @jax.jit
    def go(gram: Any, key: Any) -> Any:
        return jax.lax.scan(layer, gram, jax.random.split(key, layers))[0]

    def run() -> float:
        # Products of 10 bits, JAX's default on a GPU, would not be this law.
        exact = jax.default_matmul_precision("float32")
        with jax.enable_x64(shape.dtype == "float64"), exact:
            start = time.perf_counter()
            run.gram = jax.block_until_ready(go(run.gram, key))  # type: ignore[attr-defined]
            return (time.perf_counter() - start) / layers / chains

    with jax.enable_x64(shape.dtype == "float64"):
        key = jax.random.key(0)
        run.gram = jnp.tile(jnp.eye(n, dtype=shape.dtype), (chains, 1, 1))  # type: ignore[attr-defined]
    return run


def _cupy(shape: Shape, chains: int) -> Callable[[], float]:
    import cupy

    d, n, layers = shape.width, shape.batch, 10
    generator = cupy.random.default_rng(0)
    x = generator.standard_normal((chains, d, n), dtype=shape.dtype)

    def layer(x: Any) -> Any:
        a = cupy.maximum(x, 0) * x.dtype.type(d**-0.5)
        h = generator.standard_normal((chains, d, d), dtype=shape.dtype) @ a
        h -= h.mean(axis=2, keepdims=True)
        cupy.matmul(a.transpose(0, 2, 1), a)
        return h / cupy.sqrt((h * h).mean(axis=2, keepdims=True))

    def run() -> float:
        nonlocal x
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record()
        for _ in range(layers):
            x = layer(x)
        last.record()
        last.synchronize()
        return float(cupy.cuda.get_elapsed_time(first, last)) * 1e-3 / layers

    return run
