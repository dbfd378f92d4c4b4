"""Numbered cases that are counted: an interruption or a limit of time loses no count."""

from __future__ import annotations

import collections
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.reliability.stored_runs import SEED
from bench.report import Cell, Floor, Report, Table

#: Seconds between two lines of progress.
PROGRESS_SECONDS = 20.0


class Counting:
    """Cases with the numbers first, first + 1, …; seed and number determine a case.

    To resume a count that was interrupted, begin at the number that its report names.  To repeat a
    case, count one case from its number on.

    Parameters
    ----------
    name : str
    count : int
        Number of cases.
    seed : int
    first : int
        Number of the first case.
    minutes : float
        Limit of time.
    program : str
        Command that a part runs, with its arguments.

    Attributes
    ----------
    ends : Counter
        How often each end of a case occurred.
    findings : list of str
        What must not occur.
    """

    def __init__(
        self,
        name: str,
        count: int,
        seed: int = SEED,
        first: int = 0,
        minutes: float = float("inf"),
        program: str = "RNG_test stdin32 -tlmin 1GB",
    ) -> None:
        self.name, self.count, self.seed, self.first = name, count, seed, first
        self.program = program
        self.ends: collections.Counter[str] = collections.Counter()
        self.findings: list[str] = []
        self.deadline = time.monotonic() + 60.0 * minutes
        self.next = first
        self._begun = self._told = time.monotonic()
        self._stopped = False

    @property
    def done(self) -> int:
        """Number of cases that were counted."""
        return self.next - self.first

    def is_over(self) -> bool:
        """Whether all cases were counted, the time is over, or Ctrl-C was pressed."""
        return self.done >= self.count or self._stopped or time.monotonic() > self.deadline

    def stop(self, *_: Any) -> None:
        """Stop after the current case."""
        self._stopped = True

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of cases, each of which counts when the next one is asked for."""
        while not self.is_over():
            yield self.next
            self.next += 1
            self.tell()

    @contextlib.contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Let Ctrl-C stop the count after the current case."""
        former = signal.signal(signal.SIGINT, self.stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    def tell(self) -> None:
        """Print a line of progress from time to time."""
        now = time.monotonic()
        if now - self._told > PROGRESS_SECONDS:
            self._told = now
            rate = self.done / (now - self._begun)
            line = f"{self.name}: {self.done} of {self.count}, {rate:.3g} a second"
            print(f"{line}, {len(self.findings)} findings", file=sys.stderr, flush=True)

    def add_to(self, report: Report, title: str, floor: str) -> None:
        """Add the ends, the findings, and the floors for the count and for the findings."""
        rows: list[list[Cell]] = [["cases", self.done], *map(list, sorted(self.ends.items()))]
        report.tables.append(Table(title, ["what", "n"], rows))
        if self.findings:
            shown: list[list[Cell]] = [[one[:300]] for one in self.findings[:20]]
            report.tables.append(Table("Findings", ["what"], shown))
        report.samples[self.name] = {
            "seed": self.seed, "first": self.first, "next": self.next,
            "seconds": time.monotonic() - self._begun, "findings": self.findings,
        }  # fmt: skip
        report.floors += [
            Floor(f"{self.name}: cases", self.done, self.count),
            Floor(f"{self.name}: {floor}", len(self.findings), 0, at_most=True),
        ]
