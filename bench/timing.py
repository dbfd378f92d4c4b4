"""Timing on a machine that drifts: candidates take turns, and medians are compared.

The clock rate and the neighbours of a shared machine change within minutes by more than the
differences that matter.  So no candidate is measured on its own: every round runs each of them
once, one after the other, and speed ratios are formed within a round before the median over
rounds is taken.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

Run = Callable[[], object]

# Thread pools of BLAS and OpenMP spin for a while after their work is done (NumPy's OpenBLAS for
# about 0.1 s: JAX right after NumPy takes 1.6 times as long).  So each candidate first runs
# untimed for longer than that, which also brings its own data and threads back.
SETTLE_SECONDS = 0.15


@dataclass(frozen=True)
class Candidate:
    """Something to time: ``make(size)`` returns a call that does ``size * units`` units of work.

    ``size`` is what calibration may choose (layers, repetitions); ``units`` is what it may not
    (chains in the ensemble, elements in the buffer).
    """

    name: str
    make: Callable[[int], Run]
    units: float = 1.0

    def renamed(self, name: str) -> Candidate:
        return replace(self, name=name)


@dataclass(frozen=True)
class Timings:
    """Seconds per unit of work, one entry per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def speed_over(self, other: Timings) -> float:
        """How many times faster than `other`: the median over rounds of the ratio."""
        pairs = zip(other.seconds, self.seconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def interleave(
    candidates: Sequence[Candidate],
    *,
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timings]:
    """Time the candidates round robin; each call is made to last about `seconds` of a clock."""
    prepared = {item.name: _calibrate(item, seconds, clock) for item in candidates}
    if len(prepared) != len(candidates):
        raise ValueError("two candidates have the same name")
    samples: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(rounds):
        for name, (run, work) in prepared.items():
            _settle(run)
            samples[name].append(_clock(run, clock) / work)
    return {name: Timings(tuple(values)) for name, values in samples.items()}


def fastest(timings: dict[str, Timings], names: Sequence[str]) -> str:
    """The candidate with the smallest median."""
    return min(names, key=lambda name: timings[name].median)


def at_once(runs: Sequence[Run], pool: ThreadPoolExecutor) -> Run:
    """One call that makes all `runs` at the same time, one thread each."""

    def together() -> None:
        for future in [pool.submit(run) for run in runs]:
            future.result()

    return together


def repeated(run: Run, times: int) -> Run:
    """One call that makes `run` so many times."""

    def several() -> None:
        for _ in range(times):
            run()

    return several


def repeating(run: Run) -> Callable[[int], Run]:
    """For `Candidate.make`: the size is the number of repetitions of `run`."""
    return partial(repeated, run)


def _calibrate(
    candidate: Candidate, seconds: float, clock: Callable[[], float]
) -> tuple[Run, float]:
    """A warmed-up call of about the wanted length, and its work."""
    size = 2
    while True:
        run = candidate.make(size)
        run()  # compiles, where the candidate does
        elapsed = _clock(run, clock)
        # A call of a third of the wanted length is long enough to extrapolate from, once.
        if elapsed >= seconds / 3:
            break
        growth = min(seconds / max(elapsed, 1e-9), 1000.0)
        size = max(size + 1, round(size * growth))
    return run, size * candidate.units


def _settle(run: Run) -> None:
    end = time.perf_counter() + SETTLE_SECONDS
    while time.perf_counter() < end:
        run()


def _clock(run: Run, clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start
