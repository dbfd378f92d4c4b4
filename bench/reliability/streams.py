"""The random words and normals of runs, in the order of their use, through PractRand.

A case is one GiB of a stream of 32-bit words.  ``--program`` names a program that reads such words
from standard input, with its arguments; `RNG_test` of PractRand 0.94 on the path is the default.
What it prints is kept, and no line may say FAIL.

The words are those of the float64 rows of a conditional run: layer by layer, and group of rows by
group.  The normals are those that the kernels make of these words; the distribution function of
the normal law maps each to a word.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from scipy.special import ndtr

import bnmc.kernels as kernels
from bench.reliability.counting import Counting
from bench.report import Report, Table
from bnmc._kernels.scalar.codes import SECOND_WORD

#: Shape of the layers, and rows that the kernels draw of one column at once.
WIDTH, BATCH, GROUP = 1024, 64, 64
#: Bytes of one case.
CASE = 1 << 30

Words = np.ndarray[Any, np.dtype[np.uint32]]
Source = Callable[[int, int], Words]


def add_words(report: Report, counting: Counting) -> None:
    """Test the words from which the kernels make normals."""
    _add(report, counting, words)


def add_normals(report: Report, counting: Counting) -> None:
    """Test the normals, as words."""
    _add(report, counting, normals)


def _add(report: Report, counting: Counting, source: Source) -> None:
    command = shlex.split(counting.program)
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{command[0]}: no such program; --program names another one")
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=False
    )
    assert child.stdin is not None
    printed: list[str] = []
    reader = threading.Thread(target=_read, args=(child.stdout, printed))
    reader.start()
    layer = 0
    try:
        with counting.until_interrupted():
            for _ in counting.numbers():
                sent = 0
                while sent < CASE:
                    layer += 1
                    content = source(counting.seed, layer)
                    child.stdin.write(content.data)
                    sent += content.nbytes
    except BrokenPipeError:
        printed.append(f"FAIL: the program ended within GiB {counting.next}")
    finally:
        child.kill()
        child.wait()
        reader.join()
    counting.findings += [line for line in printed if "FAIL" in line]
    report.tables.append(Table(counting.program, ["printed"], [[line] for line in printed]))
    counting.add_to(report, f"GiB of {counting.name}", "failed tests")


def _read(lines: Any, printed: list[str]) -> None:
    printed.extend(line.decode(errors="replace").rstrip() for line in lines)


# --- the streams --------------------------------------------------------------------------------


def words(seed: int, layer: int) -> Words:
    """Return the words of one layer."""
    return _words(np.uint64(seed), layer, kernels.ROWS)  # type: ignore[no-any-return]


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


def normals(seed: int, layer: int) -> Words:
    """Return the normals of one layer as words, by the normal distribution function."""
    found = _normals(np.uint64(seed), layer, kernels.ROWS)
    return (ndtr(found) * 2.0**32).astype(np.uint64).astype(np.uint32)  # type: ignore[no-any-return]


@njit
def _normals(key, layer, stream):  # type: ignore[no-untyped-def]
    out = np.empty(WIDTH * BATCH)
    at = 0
    for first in range(0, WIDTH, GROUP):
        for element in range(BATCH):
            kernels.normals(out[at : at + GROUP], element, first, layer, 0, key, stream)
            at += GROUP
    return out
