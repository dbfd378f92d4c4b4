"""The tangent kernel of many inputs: time, memory, and the same formulas in plain NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import bench.startup as startup
from bench.report import Cell, Floor, Report, Table, usable_cores
from bnmc.infinite_width import ntk

FEATURES, SAMPLES, DEPTH = 784, 2000, 10

#: Seconds and resident GB of a process, at most; speed over the formulas, at least.
SECONDS, GIGABYTES, SPEED = 10.0, 1.0, 1.0

PROGRAM = """
import json, resource
import numpy as np
from bnmc.infinite_width import ntk
x = np.random.default_rng(0).standard_normal(({features}, {samples}))
ntk(x, {depth}, activation="relu", weight_variance=2.0)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6))
"""


def benchmark(*, quick: bool) -> Report:
    """Time the kernel in turns with the formulas, by the wall and in processor time."""
    report = Report("infinite-width")
    x = np.random.default_rng(0).standard_normal((FEATURES, SAMPLES))
    ours, formulas = ntk(x, DEPTH, activation="relu", weight_variance=2.0), by_formulas(x, DEPTH)
    # The root of 1 − c² loses half of the digits on the diagonal.
    difference = float(np.abs(ours / formulas - 1.0).max())
    del ours, formulas
    jobs: dict[str, Callable[[], object]] = {
        "ntk": lambda: ntk(x, DEPTH, activation="relu", weight_variance=2.0),
        "NumPy": lambda: by_formulas(x, DEPTH),
    }
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for _ in range(1 if quick else 5):
        for name, job in jobs.items():
            samples[name].append(timed(job))
    clocks = {name: np.array(each) for name, each in samples.items()}
    ratios = np.median(clocks["NumPy"] / clocks["ntk"], axis=0)
    program = PROGRAM.format(features=FEATURES, samples=SAMPLES, depth=DEPTH)
    memory = startup.child(program)
    rows: list[list[Cell]] = [
        [name, *np.median(each, axis=0).tolist()] for name, each in clocks.items()
    ]
    rows.append(["NumPy over ntk", *ratios.tolist()])
    title = f"ntk of relu, {SAMPLES} inputs, depth {DEPTH}, {usable_cores()} cores"
    report.tables.append(Table(title, ["what", "seconds", "processor seconds"], rows))
    report.samples |= {name: each[:, 0].tolist() for name, each in clocks.items()}
    report.floors += [
        Floor("seconds", float(np.median(clocks["ntk"][:, 0])), SECONDS, at_most=True),
        Floor("times as fast as NumPy", float(ratios[0]), SPEED),
        Floor("times as fast as NumPy, in processor time", float(ratios[1]), SPEED),
        Floor("resident GB of the process", memory, GIGABYTES, at_most=True),
        Floor("relative difference from NumPy", difference, 1e-6, at_most=True),
    ]
    return report


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of all threads that a job takes."""
    wall, processor = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - processor


def by_formulas(x: NDArray[np.float64], depth: int) -> NDArray[np.float64]:
    """Return the tangent kernel of relu with σ_w² = 2, by the arc-cosine formulas."""
    kernel = 2.0 * x.T @ x / len(x)
    tangent = kernel
    for _ in range(depth):
        root = np.sqrt(np.diagonal(kernel))
        scale = root[:, None] * root
        cosine = np.clip(kernel / scale, -1.0, 1.0)
        slope = 1.0 - np.arccos(cosine) / np.pi
        kernel = scale * np.sqrt(1.0 - cosine**2) / np.pi + kernel * slope
        tangent = kernel + tangent * slope
    return tangent
