"""Gradients: speed against PyTorch's autograd, memory, and limits of infinite width.

The networks have relu and centred batch normalization; the gradient at the top has independent
normal entries, and the result is the gradient norm of every layer.  PyTorch draws a new W (width x
width) in each layer, differentiates through networks of `LAYERS` layers, and takes the norms.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import bench.startup as startup
import bnmc
from bench.report import Cell, Floor, Report, Table, usable_cores
from bench.timing import Candidate, Run, interleave, repeating

THREADS = usable_cores()

#: Layers of a network of PyTorch: all its weights and their gradients are in memory.
LAYERS = 10

#: Width and batch, with the smallest speed ratio to PyTorch.
SHAPES = {(1000, 10): 150.0, (4000, 10): 700.0, (500, 20): 40.0, (1000, 100): 8.0}

#: Largest time of forward and backward pass, in forward passes.
PASSES = 5.0

#: Width, batch and layers of passes that may add `MOST_MB`.
LONG = ((1000, 10, 100_000), (1_000_000, 10, 100))
MOST_MB = 200.0

#: Activations, and widths with the number of chains, at which rates are measured.
ACTIVATIONS = ("linear", "relu", "tanh", "gelu")
WIDTHS = {1000: 160, 10_000: 40}

#: Widths at which tangent kernels are compared with the limit, and networks of each.
TANGENT_WIDTHS = (64, 256, 1024, 4096)
TANGENT_CHAINS = 200

#: Largest difference of the slope of their distance from -1/2.
SLOPE_ERROR = 0.05

MEMORY = """
import gc, json, os, threading, time
import bnmc

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

options = {{"dtype": "float32", "observables": (), "threads": 1, "rng": 0}}
bnmc.backpropagate(bnmc.Chain(64, {batch}), 2, **options)
gc.collect()
before, most, ended = resident(), [0], threading.Event()

def watch():
    while not ended.is_set():
        most[0] = max(most[0], resident())
        time.sleep(0.001)

watching = threading.Thread(target=watch)
watching.start()
begun = time.perf_counter()
bnmc.backpropagate(bnmc.Chain({width}, {batch}), {depth}, **options)
seconds = time.perf_counter() - begun
ended.set()
watching.join()
print(json.dumps([most[0] - before, seconds]))
"""


def benchmark(*, quick: bool) -> Report:
    """Speed, memory, rates and tangent kernels."""
    report = Report("gradients")
    add_speed(report, quick)
    add_memory(report, quick)
    add_rates(report, quick)
    add_tangent_kernels(report, quick)
    return report


def add_speed(report: Report, quick: bool) -> None:
    """Time of a layer forward and backward, in turns."""
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        verify()
    rows: list[list[Cell]] = []
    for (width, batch), least in SHAPES.items():
        candidates = [forward(width, batch), backward(width, batch)]
        if has_torch:
            candidates.append(autograd(width, batch))
        rounds, seconds = (3, 0.05) if quick else (7, 0.2)
        found = interleave(candidates, rounds=rounds, seconds=seconds)
        once, both = found["forward"], found["backpropagate"]
        passes = once.speed_over(both)
        row: list[Cell] = [f"({width}, {batch})", 1e6 * both.median, passes]
        report.floors.append(
            Floor(f"({width}, {batch}): forward passes", passes, PASSES, at_most=True)
        )
        if has_torch:
            ratio = both.speed_over(found["PyTorch"])
            row += [1e6 * found["PyTorch"].median, ratio]
            report.floors.append(Floor(f"({width}, {batch}): x PyTorch", ratio, least))
        rows.append(row)
        report.samples[f"({width}, {batch})"] = {
            name: list(timing.seconds) for name, timing in found.items()
        }
    headers = ["width, batch", "us a layer-chain", "forward passes", "PyTorch us", "x PyTorch"]
    title = f"Forward and backward, float32, {THREADS} cores"
    report.tables.append(Table(title, headers[: 5 if has_torch else 3], rows))


def processor_time(*, quick: bool) -> Report:
    """Processor time of one thread, in turns: what other programs do hardly changes it."""
    report = Report("gradients-cpu")
    has_torch = importlib.util.find_spec("torch") is not None
    rows: list[list[Cell]] = []
    for (width, batch), least in SHAPES.items():
        layers = max(4, int((3e5 if quick else 3e6) / (width * batch * (1 + batch / 30))))
        runs = {
            "forward": (forward(width, batch, 1).make(layers), 4 * layers),
            "backpropagate": (backward(width, batch, 1).make(layers), 4 * layers),
        }
        if has_torch:
            # A network of width 4000 takes seconds, half of it for the weights.
            count = 4 if width >= 4000 else LAYERS
            runs["PyTorch"] = (torch_network(width, batch, count, threads=1), count)
        times = _in_turns(runs, 3 if quick else 5)
        passes = float(np.median(times["backpropagate"] / times["forward"]))
        microseconds = {name: 1e6 * float(np.median(one)) for name, one in times.items()}
        row: list[Cell] = [
            f"({width}, {batch})", microseconds["forward"], microseconds["backpropagate"], passes
        ]  # fmt: skip
        report.floors.append(
            Floor(f"({width}, {batch}): forward passes", passes, PASSES, at_most=True)
        )
        if has_torch:
            ratio = float(np.median(times["PyTorch"] / times["backpropagate"]))
            row += [microseconds["PyTorch"], ratio]
            report.floors.append(Floor(f"({width}, {batch}): x PyTorch", ratio, least))
        rows.append(row)
        report.samples[f"({width}, {batch})"] = {name: list(one) for name, one in times.items()}
    headers = ["width, batch", "forward us", "both us", "forward passes", "PyTorch us", "x PyTorch"]
    title = "Processor time of a layer, forward, and forward and backward, float32, one thread"
    report.tables.append(Table(title, headers[: 6 if has_torch else 4], rows))
    return report


def _in_turns(runs: dict[str, tuple[Run, int]], rounds: int) -> dict[str, Any]:
    """Return the processor seconds of a unit of work of each run, one per round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run, _ in runs.values():
        run()
    for _ in range(rounds):
        for name, (run, units) in runs.items():
            begun = time.process_time()
            run()
            found[name].append((time.process_time() - begun) / units)
    return {name: np.array(values) for name, values in found.items()}


def _options(layers: int, threads: int) -> dict[str, Any]:
    return {
        "depth": layers, "chains": 4 * threads, "dtype": "float32", "threads": threads, "rng": 0
    }  # fmt: skip


def forward(width: int, batch: int, threads: int = THREADS) -> Candidate:
    """The forward pass of an ensemble; the unit is one layer of one chain."""
    chain = bnmc.Chain(width, batch, "relu")

    def make(layers: int) -> Run:
        return lambda: bnmc.simulate(
            chain, sampler="conditional", every=layers, **_options(layers, threads)
        )

    return Candidate("forward", make, units=4 * threads)


def backward(width: int, batch: int, threads: int = THREADS) -> Candidate:
    """Forward and backward pass of the same ensemble."""
    chain = bnmc.Chain(width, batch, "relu")

    def make(layers: int) -> Run:
        return lambda: bnmc.backpropagate(chain, observables=(), **_options(layers, threads))

    return Candidate("backpropagate", make, units=4 * threads)


def autograd(width: int, batch: int) -> Candidate:
    """PyTorch, one network of `LAYERS` layers at a time."""
    return Candidate("PyTorch", repeating(torch_network(width, batch)), units=LAYERS)


def torch_network(
    width: int, batch: int, layers: int = LAYERS, threads: int = THREADS
) -> Callable[[], list[float]]:
    """Return a call that draws a network and returns the gradient norms of its weights."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    scale = width**-0.5

    def run() -> list[float]:
        x = torch.randn(width, batch)
        x = _normalized(x)
        weights = []
        h = x
        for _ in range(layers):
            weights.append(torch.randn(width, width).requires_grad_())
            # Scaling the activations is cheaper than scaling W; so its gradient is too small by
            # the root of the width.
            h = weights[-1] @ (torch.relu(x) * scale)
            x = _normalized(h)
        gradients = torch.autograd.grad(h, weights, torch.randn(width, batch))
        return [float(one.norm()) / scale for one in gradients]

    return run


def _normalized(h: Any) -> Any:
    centred = h - h.mean(1, keepdim=True)
    return centred * (centred * centred).mean(1, keepdim=True).rsqrt()


def verify() -> None:
    """Raise unless the networks of PyTorch have the gradient norms of the library."""
    width, batch, layers, count = 60, 6, 5, 1000
    run = torch_network(width, batch, layers)
    # Such small matrices are faster on one thread.
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    theirs = np.log([run() for _ in range(count)])
    ours = bnmc.backpropagate(
        bnmc.Chain(width, batch, "relu"), layers, chains=count, observables=(), rng=0
    ).log_gradient_norm
    error = np.sqrt((theirs.var(axis=0) + ours.var(axis=0)) / count)
    if not (np.abs(theirs.mean(axis=0) - ours.mean(axis=0)) < 6 * error).all():
        raise AssertionError(f"PyTorch: {theirs.mean(axis=0)}, not {ours.mean(axis=0)}")


def add_memory(report: Report, quick: bool) -> None:
    """What long and wide passes add to the resident set of a process."""
    rows: list[list[Cell]] = []
    for width, batch, depth in LONG:
        layers = depth // 20 if quick else depth
        added, seconds = startup.child(MEMORY.format(width=width, batch=batch, depth=layers))
        rows.append([f"({width}, {batch})", layers, added / 1e6, seconds])
        what = f"({width}, {batch}), {layers} layers: MB added"
        report.floors.append(Floor(what, added / 1e6, MOST_MB, at_most=True))
    headers = ["width, batch", "layers", "MB added", "seconds"]
    report.tables.append(Table("Memory of one backward pass", headers, rows))


def add_rates(report: Report, quick: bool) -> None:
    """The growth of gradients beside the backward rate of the mean field."""
    rows: list[list[Cell]] = []
    for width, chains in list(WIDTHS.items())[: 1 if quick else None]:
        for name in ACTIVATIONS:
            chain = bnmc.Chain(width, 10, name)
            rate = bnmc.backpropagate(
                chain, 80, chains=chains, dtype="float32", observables=(), threads=THREADS, rng=1
            ).rate()
            predicted = bnmc.MeanField(chain).fixed_point().backward_rate
            difference, error = rate.value / predicted - 1.0, rate.stderr / rate.value
            rows.append([name, width, rate.value, predicted, 100 * difference, 100 * error])
            if width == max(WIDTHS):
                sigmas = abs(difference) / error
                report.floors.append(Floor(f"{name}: sigmas", sigmas, 3.0, at_most=True))
                report.floors.append(Floor(f"{name}: % error", 100 * error, 0.2, at_most=True))
    headers = ["activation", "width", "rate", "mean field", "difference %", "stderr %"]
    report.tables.append(Table("Squared gradient norm per layer, batch 10", headers, rows))


def add_tangent_kernels(report: Report, quick: bool) -> None:
    """Tangent kernels of networks of finite width, and their distance from `infinite_width.ntk`.

    Inputs of all widths are copies of the same eight rows, so layer 0 has one Gram matrix.  Its
    activations are the inputs of the infinite network, whose outputs contain the gain.
    """
    rng = np.random.default_rng(3)
    x, depth, gain = rng.standard_normal((8, 5)) + 0.5, 3, 2.0**0.5
    limit = bnmc.infinite_width.ntk(np.maximum(x, 0.0), depth, weight_variance=gain**2) / gain**2
    rows: list[list[Cell]] = []
    logs = []
    widths = TANGENT_WIDTHS[: 3 if quick else None]
    chains = TANGENT_CHAINS // (4 if quick else 1)
    for width in widths:
        found = bnmc.gradients.tangent_kernel(
            bnmc.Chain(width, 5, "relu", norm="none", gain=gain), depth, chains=chains,
            initial=np.tile(x, (width // 8, 1)), rng=0, threads=THREADS,
        )  # fmt: skip
        squares = ((found.kernels - limit) ** 2).sum(axis=(1, 2)) / (limit**2).sum()
        distance = float(squares.mean()) ** 0.5
        error = float(squares.std()) / len(squares) ** 0.5 / (2.0 * distance)
        rows.append([width, distance, error])
        logs.append(np.log(distance))
    slope = np.polyfit(np.log(widths), logs, 1)[0]
    floor = SLOPE_ERROR * (2.0 if quick else 1.0)
    report.floors.append(
        Floor("tangent kernels: |slope + 1/2|", abs(float(slope) + 0.5), floor, at_most=True)
    )
    title = f"Distance of tangent kernels from the limit, relu, {depth} layers: slope {slope:.3f}"
    report.tables.append(Table(title, ["width", "relative distance", "stderr"], rows))
