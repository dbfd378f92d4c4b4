"""The measurements of ``bnmc bench``: layers per second of bnmc, and of a loop in NumPy."""

from __future__ import annotations

import itertools
import math
import statistics
from functools import partial
from typing import Any

import numpy as np

from bnmc._support.arguments import real
from bnmc._support.progress import Progress, as_progress, reporting, with_forecast
from bnmc._support.workers import thread_count
from bnmc.chain.chain import Chain
from bnmc.simulation.run import simulate
from bnmc.testing.machine_limits import Peak

# Rounds of measurements. Each round measures all programs in turn, since the speed of a machine
# drifts; the result is the median over rounds.
_ROUNDS = 3

# Networks of an ensemble per thread.
_NETWORKS = 4

# The name of the program that speeds are relative to.
_NUMPY = "NumPy, weights drawn"


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
    programs = _programs(chain, thread_count(threads))
    total, numbers = len(programs) * (_ROUNDS + 1), itertools.count(1)
    label = with_forecast("bench", total * seconds)
    with reporting(as_progress(progress), label, "measurements") as report:

        def counted(value: float) -> float:
            report(next(numbers), total)
            return value

        layers = [counted(_layers_in(program, seconds)) for program, _ in programs.values()]
        pairs = [
            (program, int(n)) for (program, _), n in zip(programs.values(), layers, strict=True)
        ]
        rounds = [
            [counted(1.0 / program.seconds(n)) for program, n in pairs] for _ in range(_ROUNDS)
        ]
    speeds = dict(zip(programs, map(statistics.median, zip(*rounds, strict=True)), strict=True))
    return [
        {
            "what": name, "layers_per_second": speed,
            "normals_per_second": speed * programs[name][1], "speed": speed / speeds[_NUMPY],
        }
        for name, speed in speeds.items()
    ]  # fmt: skip


def _programs(chain: Chain, threads: int) -> dict[str, tuple[Peak, int]]:
    """Return NumPy, one network and ensembles, each with the normals of its layers."""
    normals = chain.width * chain.normalization.dimensions(chain.batch)
    several = _NETWORKS * threads
    ensemble = f"{several} networks, {threads} thread" + "s" * (threads > 1)

    def ours(networks: int, threads: int, dtype: str = "float64") -> tuple[Peak, int]:
        def run(layers: int) -> object:
            return simulate(
                chain, layers, chains=networks, rng=0, every=layers, dtype=dtype, threads=threads,
                backend="cpu",
            )  # fmt: skip

        return Peak(run, networks), normals

    return {
        _NUMPY: (Peak(partial(_run_numpy, chain), 1), chain.width**2),
        "one network": ours(1, 1),
        ensemble: ours(several, threads),
        f"{ensemble}, float32": ours(several, threads, "float32"),
    }


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


def _layers_in(program: Peak, seconds: float) -> int:
    """Return the number of layers that take about a number of seconds."""
    program.run(1)  # compiles
    layers = 1
    while (taken := program.seconds(layers) * program.units * layers) <= seconds / 4:
        layers *= 4
    return max(1, round(layers * seconds / taken))
