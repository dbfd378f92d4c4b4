"""Candidates in turns, floors and tables: what pytest-benchmark lacks on a machine that drifts.

The clock rate and the neighbours of a shared machine change within minutes by more than the
differences that matter.  So every round runs each candidate once, one after the other, and speed
ratios are formed within a round before the median over rounds is taken.  Each candidate becomes a
benchmark of pytest-benchmark, in the group of its test.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Run = Callable[[], object]
Cell = str | int | float | None
#: A column of the table, and its value by the seconds of a unit of work.
Shown = tuple[str, Callable[[float], float]]

MICROSECONDS: Shown = ("us", lambda seconds: 1e6 * seconds)
LAYER: Shown = ("us a layer-chain", lambda seconds: 1e6 * seconds)
SECONDS: Shown = ("s", float)
BILLIONS: Shown = ("1e9 a second", lambda seconds: 1e-9 / seconds)

#: Cores that this process may run on.
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

# Thread pools of BLAS and OpenMP spin for a while after their work is done: JAX right after NumPy
# takes 1.6 times as long.  By the processor time of a process that sleeps, NumPy's OpenBLAS spins
# for 2^28 ticks (0.10 s at 2.6 GHz, 0.13 s at 2 GHz), PyTorch for 0.02 s, and JAX not at all.  So
# each candidate first runs untimed for longer than that, which also brings its own data and
# threads back.
SETTLE_SECONDS = 0.15


@dataclass(frozen=True)
class Candidate:
    """Something to time: ``make(size)`` returns a call that does ``size * units`` units of work.

    `size` is what calibration may choose (layers, repetitions); `units` is what it may not (chains
    in the ensemble, elements in the buffer).  `clock` returns the seconds of a call on another
    device.
    """

    name: str
    make: Callable[[int], Run]
    units: float = 1.0
    shown: Shown = MICROSECONDS
    clock: Callable[[Run], float] | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds per unit of work by round, on the clock of the benchmark and of the processor."""

    seconds: tuple[float, ...]
    processor: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def on_processor(self) -> Timing:
        return Timing(self.processor)

    def speed_over(self, other: Timing) -> float:
        """How many times faster than `other`: the median over rounds of the ratio."""
        pairs = zip(other.seconds, self.seconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


Timings = Mapping[str, Timing]

#: The kinds of runs: all, ``--quick``, and a call of everything at tiny sizes, which is what
#: ``--benchmark-disable`` makes.
FULL, QUICK, TINY = 0, 1, 2


def only(values: Iterable[Any], *, quick: Container[Any], tiny: Container[Any]) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`, of which shorter runs take only some."""

    def levels(value: Any) -> tuple[int, ...]:
        return (FULL, *[QUICK] * (value in quick), *[TINY] * (value in tiny))

    return [pytest.param(value, marks=pytest.mark.runs(*levels(value))) for value in values]


class Turns:
    """The fixture `turns`: times candidates, and keeps columns and floors of each.

    Parameters
    ----------
    benchmark : BenchmarkFixture
    level : int
        `FULL`, `QUICK` or `TINY`.
    """

    def __init__(self, benchmark: Any, level: int) -> None:
        self._benchmark = benchmark
        self._entries: dict[str, Any] = {}
        self._stats: dict[str, Any] = {}
        self.timings: dict[str, Timing] = {}
        self.level = level
        self.group = benchmark.group or benchmark.name.removeprefix("test_")
        self.missed: list[str] = []
        benchmark._mode = "turns"  # the fixture is used, though its own test is not timed

    def of(self, *sizes: T) -> T:
        """Return the size of a full, a quick or a tiny run; the last one if fewer are given."""
        return sizes[min(self.level, len(sizes) - 1)]

    def __call__(
        self,
        candidates: Sequence[Candidate],
        *,
        rounds: int,
        seconds: float,
        by_processor: bool = False,
    ) -> dict[str, Timing]:
        """Time candidates round robin, each call for about `seconds`; make benchmarks of them."""
        timings, sizes = self.interleaved(candidates, rounds=rounds, seconds=seconds)
        for candidate in candidates:
            timing = timings[candidate.name]
            if by_processor:
                timing = Timing(timing.processor, timing.processor)
            timings[candidate.name] = timing
            self._record(candidate.name, timing, candidate.shown, sizes[candidate.name])
        return timings

    def interleaved(
        self, candidates: Sequence[Candidate], *, rounds: int, seconds: float
    ) -> tuple[dict[str, Timing], dict[str, int]]:
        """Time candidates round robin; return their timings and sizes, and keep nothing."""
        calls = {item.name: self._calibrated(item, seconds) for item in candidates}
        if len(calls) != len(candidates):
            raise ValueError("two candidates have the same name")
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in range(self.of(rounds, rounds, 1)):
            for item in candidates:
                run, size = calls[item.name]
                self._settle(run)
                work = size * item.units
                wall, processor = _clocks(run, item.clock)
                samples[item.name].append((wall / work, processor / work))
        timings = {name: Timing(*zip(*pairs, strict=True)) for name, pairs in samples.items()}
        return timings, {name: size for name, (_, size) in calls.items()}

    def timed(self, name: str, call: Callable[[], T], *, rounds: int = 1) -> T:
        """Return the result of a call, whose seconds become a benchmark, without a warm-up."""
        results: list[T] = []
        clocks = [_clocks(lambda: results.append(call()), None) for _ in range(rounds)]
        self._record(name, Timing(*zip(*clocks, strict=True)), SECONDS, 1)
        return results[-1]

    def record(self, name: str, seconds: Sequence[float], shown: Shown = SECONDS) -> Timing:
        """Make a benchmark of seconds that were measured elsewhere."""
        timing = Timing(tuple(seconds))
        self._record(name, timing, shown, 1)
        return timing

    def add(self, name: str, columns: Mapping[str, Cell]) -> None:
        """Add columns to the table, in the row of a candidate that was timed."""
        self._entries[name].extra_info.update(columns)

    def hold(
        self,
        name: str,
        column: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Add a column with the limit, if any, that its value has to keep; a NaN misses it."""
        limit = at_most if at_least is None else at_least
        info = self._entries[name].extra_info
        info[column] = value
        if limit is None:
            return
        info.setdefault("floors", {})[column] = ["<=" if at_least is None else ">=", limit]
        met = value <= limit if at_least is None else value >= limit
        if not met:
            self.missed.append(floor_line(self.group, name, column, info))

    def _record(self, name: str, timing: Timing, shown: Shown, size: int) -> None:
        if name not in self._entries:
            entry = copy.copy(self._benchmark)
            entry.name, entry.fullname = name, f"{self._benchmark.fullname}::{name}"
            entry.group, entry.extra_info = self.group, {}
            entry.param = entry.params = None
            self._entries[name] = entry
            if not entry.disabled:
                self._stats[name] = entry._make_stats(size)
        if name in self._stats:
            for seconds in timing.seconds:
                self._stats[name].update(seconds * size)
        self.timings[name] = timing
        info = self._entries[name].extra_info
        info[shown[0]] = shown[1](timing.median)
        if timing.processor and timing.processor != timing.seconds:
            info["processor"] = list(timing.processor)

    def _calibrated(self, candidate: Candidate, seconds: float) -> tuple[Run, int]:
        """Return a warmed-up call of about the wanted length, and its size."""
        size = 1
        while True:
            run = candidate.make(size)
            run()  # compiles, where the candidate does
            if self.level == 2:
                return run, size
            elapsed, _ = _clocks(run, candidate.clock)
            # A call of a third of the wanted length is long enough to extrapolate from, once.
            if elapsed >= seconds / 3:
                return run, size
            growth = min(seconds / max(elapsed, 1e-9), 1000.0)
            size = max(size + 1, round(size * growth))

    def _settle(self, run: Run) -> None:
        end = time.perf_counter() + self.of(SETTLE_SECONDS, SETTLE_SECONDS, 0.0)
        while time.perf_counter() < end:
            run()


def _clocks(run: Run, clock: Callable[[Run], float] | None) -> tuple[float, float]:
    """Return the seconds of a call on the wall or a device, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    seconds = run() if clock is None else clock(run)
    processor = time.process_time() - processor
    if clock is None:
        seconds = time.perf_counter() - wall
    return max(float(seconds), 1e-9), max(processor, 1e-9)  # type: ignore[arg-type]


def fastest(timings: Timings, names: Sequence[str]) -> str:
    """The candidate with the smallest median."""
    return min(names, key=lambda name: timings[name].median)


def at_once(runs: Sequence[Run], pool: ThreadPoolExecutor) -> Run:
    """One call that makes all `runs` at the same time, one thread each."""

    def together() -> None:
        for future in [pool.submit(run) for run in runs]:
            future.result()

    return together


def repeating(run: Run) -> Callable[[int], Run]:
    """For `Candidate.make`: the size is the number of repetitions of `run`."""

    def several(times: int) -> None:
        for _ in range(times):
            run()

    return lambda times: partial(several, times)


def cpu_model() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return sys.platform
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else sys.platform


# --- tables -------------------------------------------------------------------------------------


@dataclass
class Table:
    """The benchmarks of a group: one row each, with its columns."""

    title: str
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)

    @property
    def headers(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    def cells(self) -> Iterator[list[str]]:
        """Yield the texts of the headers and of each row."""
        yield ["", *self.headers]
        for name, row in self.rows.items():
            yield [name, *(number(row.get(column)) for column in self.headers)]


def tables(benchmarks: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the groups of a file of pytest-benchmark, in its order, with scalar columns only."""
    groups: dict[str, Table] = {}
    for entry in benchmarks:
        table = groups.setdefault(entry["group"], Table(entry["group"]))
        table.rows[entry["name"]] = {
            column: value
            for column, value in entry["extra_info"].items()
            if not isinstance(value, (list, dict))
        }
    return list(groups.values())


def floor_lines(benchmarks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each floor, which says whether it is met."""
    return [
        floor_line(entry["group"], entry["name"], column, entry["extra_info"])
        for entry in benchmarks
        for column in entry["extra_info"].get("floors", ())
    ]


def floor_line(group: str, name: str, column: str, info: Mapping[str, Any]) -> str:
    sign, limit = info["floors"][column]
    value = info[column]
    verdict = "met   " if (value <= limit if sign == "<=" else value >= limit) else "MISSED"
    return f"{verdict}  {group}: {name}: {column}: {number(value)} {sign} {number(limit)}"


def number(value: Cell) -> str:
    """Four significant digits, without an exponent where a reader can do without."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.3e}"
    return f"{value:.4g}"
