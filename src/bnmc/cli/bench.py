"""``bnmc bench``: how fast this machine simulates, beside NumPy that draws the weights."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._support.arguments import integer, real
from bnmc._support.machine import available_processors
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc.chain.chain import Chain
from bnmc.simulation.run import simulate

__all__ = ["measure"]
ROUNDS = 3

#: Networks of an ensemble for each processor.
NETWORKS = 4


def measure(
    chain: Chain,
    *,
    seconds: float = 0.5,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> list[dict[str, Any]]:
    """Measure layers a second, and the normals that they draw.

    Each way of simulating runs for about `seconds` in each of three rounds, in turn with the
    others, since a machine's speed drifts; the median over rounds is reported.

    Parameters
    ----------
    chain : Chain
        With a normalization, Gaussian weights and no skip connection.
    seconds : float, default 0.5
        Above 0, at most 60.
    threads : int, optional
        All processors unless given; NumPy takes what its BLAS takes.
    progress : bool or callable
        As for `bnmc.simulate`; it counts measurements.

    Returns
    -------
    list of dict
        With "what", "layers_per_second", "normals_per_second" and "speed", over that of NumPy.

    Examples
    --------
    >>> import bnmc
    >>> rows = measure(bnmc.Chain(1000, 10, "relu"))  # doctest: +SKIP
    >>> rows[1]["speed"] > 20  # doctest: +SKIP
    True
    """
    seconds = real("seconds", seconds, above=0.0, high=60.0)
    count = available_processors() if threads is None else integer("threads", threads, low=1)
    networks = NETWORKS * count
    width, batch = chain.width, chain.batch
    own = width * (batch - (chain.norm == "batch"))
    together = f"{networks} networks, {count} thread" + "s" * (count > 1)
    ways: list[tuple[str, int, int, Callable[[int], object]]] = [
        ("NumPy, weights drawn", 1, width**2, lambda layers: _drawn(chain, layers)),
        ("one network", 1, own, lambda layers: _run(chain, layers, 1, 1)),
        (together, networks, own, lambda layers: _run(chain, layers, networks, count)),
        (
            f"{together}, float32", networks, own,
            lambda layers: _run(chain, layers, networks, count, "float32"),
        ),
    ]  # fmt: skip
    with Reporter(as_progress(progress), "bench", "measurements") as report:
        total = len(ways) * (ROUNDS + 1)
        layers = []
        for done, (_, _, _, work) in enumerate(ways):
            work(1)  # compiles
            layers.append(_enough(work, seconds))
            report(done + 1, total)
        speeds: list[list[float]] = [[] for _ in ways]
        for turn in range(ROUNDS):
            for index, (_, together_, _, work) in enumerate(ways):
                begun = time.perf_counter()
                work(layers[index])
                speeds[index].append(together_ * layers[index] / (time.perf_counter() - begun))
                report(len(ways) * (turn + 1) + index + 1, total)
    middle = [statistics.median(one) for one in speeds]
    return [
        {
            "what": what, "layers_per_second": speed, "normals_per_second": speed * normals,
            "speed": speed / middle[0],
        }
        for (what, _, normals, _), speed in zip(ways, middle, strict=True)
    ]  # fmt: skip


def _run(chain: Chain, layers: int, networks: int, threads: int, dtype: str = "float64") -> None:
    simulate(
        chain, layers, chains=networks, rng=0, every=max(layers, 1), dtype=dtype, threads=threads,
        backend="cpu",
    )  # fmt: skip


def _drawn(chain: Chain, layers: int) -> None:
    """What a loop in NumPy does: draw a matrix of weights, multiply, normalise, activate."""
    rng = np.random.default_rng(0)
    width, batch = chain.width, chain.batch
    a = rng.standard_normal((width, batch))
    for _ in range(layers):
        h = rng.standard_normal((width, width)) @ a / math.sqrt(width)
        if chain.norm == "batch":
            h -= h.mean(axis=1, keepdims=True)
        a = chain.activation(h / np.sqrt(np.square(h).mean(axis=1, keepdims=True)))
    a.T @ a / width


def _enough(work: Callable[[int], object], seconds: float) -> int:
    """Return how many layers take about so long."""
    layers = 1
    while True:
        begun = time.perf_counter()
        work(layers)
        taken = time.perf_counter() - begun
        if taken > seconds / 4:
            return max(1, round(layers * seconds / taken))
        layers *= 4
