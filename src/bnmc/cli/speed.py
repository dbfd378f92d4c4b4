"""The measurements of ``bnmc bench``: layers per second of bnmc, and of a loop in NumPy."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bnmc._support.arguments import real
from bnmc._support.progress import Progress, as_progress, reporting
from bnmc._support.workers import thread_count
from bnmc.chain.chain import Chain
from bnmc.simulation.run import simulate

# Rounds of measurements. Each round measures all programs in turn, since the speed of a machine
# drifts; the result is the median over rounds.
_ROUNDS = 3

# Networks of an ensemble per thread.
_NETWORKS = 4


class _Program(NamedTuple):
    """A program to measure: its name, networks, normals per layer, and a function of layers."""

    name: str
    networks: int
    normals: int
    run: Callable[[int], object]


def layer_speeds(
    chain: Chain,
    *,
    seconds: float = 0.5,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> list[dict[str, Any]]:
    """Measure layers per second, and the normals drawn for them, of NumPy and of bnmc.

    Parameters
    ----------
    chain : Chain
        With a normalization, Gaussian weights and no skip connection.
    seconds : float, default 0.5
        Approximate duration of a measurement, above 0 and at most 60.
    threads : int, optional
        Threads of bnmc, >= 1. Default: all processors. NumPy uses the threads of its BLAS.
    progress : bool or callable
        As for `bnmc.simulate`; it counts measurements.

    Returns
    -------
    list of dict
        For each program "what", "layers_per_second" of all networks together,
        "normals_per_second", and "speed", which is relative to NumPy. The first is NumPy.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc import Chain
    >>> from bnmc.cli.speed import layer_speeds
    >>> rows = layer_speeds(Chain(1000, 10, "relu"))  # doctest: +SKIP
    >>> rows[1]["speed"] > 20  # doctest: +SKIP
    True
    """
    seconds = real("seconds", seconds, above=0.0, high=60.0)
    count = thread_count(threads)
    programs = _programs(chain, count)
    with reporting(as_progress(progress), "bench", "measurements") as report:
        total = len(programs) * (_ROUNDS + 1)
        layers = []
        for done, program in enumerate(programs):
            program.run(1)  # compiles
            layers.append(_layers_in(program.run, seconds))
            report(done + 1, total)
        speeds: list[list[float]] = [[] for _ in programs]
        for turn in range(_ROUNDS):
            for index, program in enumerate(programs):
                begun = time.perf_counter()
                program.run(layers[index])
                taken = time.perf_counter() - begun
                speeds[index].append(program.networks * layers[index] / taken)
                report(len(programs) * (turn + 1) + index + 1, total)
    medians = [statistics.median(measured) for measured in speeds]
    return [
        {
            "what": program.name, "layers_per_second": speed,
            "normals_per_second": speed * program.normals, "speed": speed / medians[0],
        }
        for program, speed in zip(programs, medians, strict=True)
    ]  # fmt: skip


def _programs(chain: Chain, threads: int) -> list[_Program]:
    """Return NumPy first, then one network, an ensemble, and an ensemble in float32."""
    networks = _NETWORKS * threads
    normals = chain.width * chain.normalization.dimensions(chain.batch)
    ensemble = f"{networks} networks, {threads} thread" + "s" * (threads > 1)
    return [
        _Program(
            "NumPy, weights drawn", 1, chain.width**2, lambda layers: _run_numpy(chain, layers)
        ),
        _Program("one network", 1, normals, lambda layers: _run_bnmc(chain, layers, 1, 1)),
        _Program(
            ensemble, networks, normals, lambda layers: _run_bnmc(chain, layers, networks, threads)
        ),
        _Program(
            f"{ensemble}, float32", networks, normals,
            lambda layers: _run_bnmc(chain, layers, networks, threads, "float32"),
        ),
    ]  # fmt: skip


def _run_bnmc(
    chain: Chain, layers: int, networks: int, threads: int, dtype: str = "float64"
) -> None:
    simulate(
        chain, layers, chains=networks, rng=0, every=max(layers, 1), dtype=dtype, threads=threads,
        backend="cpu",
    )  # fmt: skip


def _run_numpy(chain: Chain, layers: int) -> None:
    """Draw a matrix of weights for each layer, multiply, normalize and activate."""
    rng = np.random.default_rng(0)
    width, batch = chain.width, chain.batch
    a = rng.standard_normal((width, batch))
    for _ in range(layers):
        h = rng.standard_normal((width, width)) @ a / math.sqrt(width)
        if chain.normalization.centred:
            h -= h.mean(axis=1, keepdims=True)
        a = chain.activation(h / np.sqrt(np.square(h).mean(axis=1, keepdims=True)))
    a.T @ a / width


def _layers_in(run: Callable[[int], object], seconds: float) -> int:
    """Return the number of layers that take about a number of seconds."""
    layers = 1
    while True:
        begun = time.perf_counter()
        run(layers)
        taken = time.perf_counter() - begun
        if taken > seconds / 4:
            return max(1, round(layers * seconds / taken))
        layers *= 4
