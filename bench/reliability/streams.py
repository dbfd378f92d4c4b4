"""The random words and normals of runs, in the order of their use, through a battery of tests.

``--program`` names a program that reads words of 32 bits from standard input, and writes lines of a
test, its p-value and the words read so far, separated by tabs, to standard error.  `testu01.c` is
such a program; its arguments follow its name: ``--program "./testu01 crush"``.

The words are those of the float64 rows of a conditional run: layer by layer, and group of rows by
group.  The normals are those that the kernels make of these words; the distribution function of
the normal law maps each to a word.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from scipy.special import ndtr

import bnmc.kernels as kernels
from bench.reliability.counting import Counting
from bench.report import Cell, Floor, Report, Table
from bnmc._kernels.scalar.codes import SECOND_WORD

#: Probability that a sound stream fails one of all tests.
FALSE_ALARM = 1e-6
#: Shape of the layers, and rows that the kernels draw of one column at once.
WIDTH, BATCH, GROUP = 1024, 16, 64

Source = Callable[[int, int], np.ndarray[Any, Any]]


def add_stream(report: Report, counting: Counting) -> None:
    """Send words and normals to the program, for half of the time each."""
    if not counting.program:
        report.measured = report.measured and bool(report.tables)
        return
    limit = max(1.0, min(0.5 * counting.seconds_left(), threading.TIMEOUT_MAX))
    for name, source in (("words", words), ("normals", normals)):
        values, sent = _tested(counting, source, limit)
        level = FALSE_ALARM / (2.0 * max(1, len(values)))
        # A test that ends at its limit of p-values writes 0 or 1 itself.
        failed = [one for one in values if not level <= one[1] <= 1.0 - level]
        tail = sum(min(p, 1.0 - p) < 1e-3 for _, p, _ in values)
        read = max((count for _, _, count in values), default=0)
        row: list[Cell] = [name, counting.program, len(values), tail, len(failed), 4e-9 * read]
        headers = ["stream", "program", "p-values", "beyond 1e-3", "failed", "GB read"]
        report.tables.append(Table(f"Tests of the {name}", headers, [row]))
        report.samples[f"{name}: p-values"] = [list(one) for one in values]
        report.samples[f"{name}: bytes sent"] = sent
        report.floors.append(Floor(f"{name}: failed tests", len(failed), 0, at_most=True))
        report.floors.append(Floor(f"{name}: p-values", len(values), 1))
        counting.next += 1


def _tested(
    counting: Counting, source: Source, limit: float
) -> tuple[list[tuple[str, float, int]], int]:
    """Return the p-values of a stream, and the bytes that were sent."""
    values: list[tuple[str, float, int]] = []
    command = shlex.split(counting.program)
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stderr is not None
    timer = threading.Timer(limit, child.kill)
    reader = threading.Thread(target=_read, args=(child.stderr, values))
    timer.start()
    reader.start()
    sent = layer = 0
    try:
        while child.poll() is None:
            layer += 1
            content = source(counting.seed, layer)
            child.stdin.write(content.data)
            sent += content.nbytes
    except BrokenPipeError:
        pass
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        reader.join()
    return values, sent


def _read(lines: Any, values: list[tuple[str, float, int]]) -> None:
    for line in lines:
        name, *rest = line.decode().rstrip("\n").split("\t")
        if len(rest) == 2:
            values.append((name, float(rest[0]), int(rest[1])))


# --- the streams --------------------------------------------------------------------------------


def words(seed: int, layer: int) -> np.ndarray[Any, Any]:
    """Return the words of some layers."""
    return _words(np.uint64(seed), layer, kernels.ROWS)


@njit
def _words(key, layer, stream):  # type: ignore[no-untyped-def]
    out = np.empty(2 * WIDTH * BATCH, np.uint32)
    k0, k1 = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    at = 0
    for group in range(WIDTH // GROUP):
        for element in range(BATCH):
            for row in range(group * GROUP // 4, (group + 1) * GROUP // 4):
                # A float64 normal takes two words, of two counters.
                for half in (np.uint32(0), SECOND_WORD):
                    four = kernels.philox(element, row, layer, np.uint32(stream | half), k0, k1)
                    for word in four:
                        out[at] = word
                        at += 1
    return out


def normals(seed: int, layer: int) -> np.ndarray[Any, Any]:
    """Return the normals of some layers as words, by the normal distribution function."""
    found = _normals(np.uint64(seed), layer, kernels.ROWS)
    return (ndtr(found) * 2.0**32).astype(np.uint64).astype(np.uint32)


@njit
def _normals(key, layer, stream):  # type: ignore[no-untyped-def]
    out = np.empty(WIDTH * BATCH)
    at = 0
    for first in range(0, WIDTH, GROUP):
        for element in range(BATCH):
            kernels.normals(out[at : at + GROUP], element, first, layer, 0, key, stream)
            at += GROUP
    return out
