"""After how many calls `assert_same_law` finds wrong layers of width 20, 200 and 1000.

Layers are those of tests/numpy_steps.py, in NumPy (extra ``test``), with relu. The weights of each
have mean 0 and variance 1/width; what is wrong is their law, or that they are not independent.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import bnmc
from bench.report import Cell, Floor, Report, Table
from bench.same_law import ALPHA, levels, network

#: Seeds for each width; quick runs leave out width 1000.
SEEDS, QUICK_SEEDS = {20: 10, 200: 6, 1000: 2}, {20: 4, 200: 2}
ROWS, BATCH = 2**14, 5

FAULTS: dict[str, dict[str, Any]] = {
    "neighbouring rows correlated by +-0.3": {"weights": "paired 0.3"},
    "neighbouring rows correlated by +-0.7": {"weights": "paired 0.7"},
    "second half of rows = +- first half": {"weights": "mirrored"},
    "last W at every even call, random sign": {"reused": 1},
    "last W at every odd call, random sign": {"reused": 2},
    "one W, rows with random signs": {"weights": "same up to signs"},
    "all columns but the first uniform": {"weights": "all but first uniform"},
    "all columns but the first Rademacher": {"weights": "all but first rademacher"},
    "Student's t, 10 degrees of freedom": {"weights": "student 10"},
    "Student's t, 30 degrees of freedom": {"weights": "student 30"},
    "rows of W normalized": {"weights": "unit rows"},
    "Frobenius norm of W normalized": {"weights": "unit Frobenius"},
    "Student's t, 100 degrees of freedom": {"weights": "student 100"},
    "W rounded to float16": {"weights": "float16"},
}

#: Names of faults that the default number of rows does not find at a width.
HIDDEN = {
    20: {"Student's t, 100 degrees of freedom", "W rounded to float16"},
    200: {
        "Frobenius norm of W normalized",
        "Student's t, 100 degrees of freedom",
        "W rounded to float16",
    },
    1000: {
        "rows of W normalized",
        "Frobenius norm of W normalized",
        "Student's t, 100 degrees of freedom",
        "W rounded to float16",
    },
}

#: Fault, width, batch, rows and seeds: what larger numbers and batches find.
LARGER = (
    ("Frobenius norm of W normalized", 200, 20, 2**18, 2),
    ("rows of W normalized", 1000, 20, 2**16, 2),
    ("Student's t, 100 degrees of freedom", 200, 5, 2**18, 1),
    ("rows of W normalized", 1000, 5, 2**18, 1),
)


def benchmark(*, quick: bool) -> Report:
    """Count the calls until each fault is found."""
    report = Report("faults")
    for width, seeds in (QUICK_SEEDS if quick else SEEDS).items():
        rows = []
        for fault in FAULTS:
            hidden = fault in HIDDEN[width]
            row = found(report, fault, width, BATCH, ROWS, min(seeds, 2) if hidden else seeds)
            rows.append(row)
            if not hidden:
                share = float(row[2]) / float(row[1])  # type: ignore[arg-type]
                report.floors.append(Floor(f"share found at width {width}: {fault}", share, 1.0))
        title = f"Width {width}, batch {BATCH}, rows {ROWS}, alpha {ALPHA:g}"
        report.tables.append(Table(title, HEADERS, rows))
    return report


def larger(*, quick: bool) -> Report:
    """Count the calls until larger batches and more rows find what the default does not."""
    report, rows = Report("faults-larger"), []
    for fault, width, batch, least, seeds in LARGER[: 1 if quick else None]:
        name = f"width {width}, batch {batch}, rows {least}: {fault}"
        row = found(report, fault, width, batch, least, seeds)
        rows.append([name, *row[1:]])
        share = float(row[2]) / float(row[1])  # type: ignore[arg-type]
        report.floors.append(Floor(f"share found at {name}", share, 1.0))
    report.tables.append(Table("Larger batches and more rows", HEADERS, rows))
    return report


HEADERS = ["fault", "seeds", "found", "calls, median", "calls, most", "first test", "s per run"]


def found(report: Report, fault: str, width: int, batch: int, rows: int, seeds: int) -> list[Cell]:
    """Return a row of the table: how many seeds find a fault, and after how many calls."""
    chain = bnmc.Chain(width, batch, "relu")
    calls: list[int] = []
    tests: list[str] = []
    start = time.perf_counter()
    for seed in range(seeds):
        step = network(chain, FAULTS[fault], seed)
        for so_far, level, test in levels(step, chain, seed, rows):
            if level <= ALPHA:
                calls.append(so_far)
                tests.append(test)
                break
    seconds = (time.perf_counter() - start) / seeds
    report.samples[f"{fault}, width {width}, batch {batch}, rows {rows}"] = calls
    middle = float(np.median(calls)) if calls else None
    first = statistics.mode(tests) if tests else "-"
    print(f"{fault}, width {width}: {calls} of {seeds} seeds, {seconds:.1f} s each", flush=True)
    return [fault, seeds, len(calls), middle, max(calls, default=None), first, seconds]
