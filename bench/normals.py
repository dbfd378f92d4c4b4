"""Normals per second on one core: the library's kernel, NumPy's generators, and MKL's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np

from bench.report import Cell, Floor, Report, Table
from bench.roofline import DTYPES, NORMALS, library_normals
from bench.timing import Candidate, Run, fastest, interleave, repeating

BLOCK = 1 << 15  # normals per call of the others: it hides the cost of a call, and is cached
FLOAT32_FLOOR = 0.6e9  # normals per second and core
FLOAT64_FLOOR = 1.5  # times the faster of NumPy and MKL


def benchmark(*, quick: bool) -> Report:
    """Time all generators in turn, filling a block that fits the cache."""
    runs = {
        f"NumPy {generator.__name__} {dtype}": numpy_normals(generator, dtype)
        for generator in (np.random.Philox, np.random.PCG64, np.random.SFC64)
        for dtype in DTYPES
    }
    if importlib.util.find_spec("mkl_random") is not None:
        runs["MKL Philox ICDF float64"] = mkl_normals()
    candidates = [
        *(Candidate(f"bnmc {dtype}", library_normals(dtype, 0), NORMALS) for dtype in DTYPES),
        *(Candidate(name, repeating(run), units=BLOCK) for name, run in runs.items()),
    ]
    timings = interleave(candidates, rounds=3 if quick else 15, seconds=0.05)

    report = Report("normals")
    rows: list[list[Cell]] = [[name, 1e-9 / timing.median] for name, timing in timings.items()]
    report.tables.append(Table("Standard normals on one core", ["generator", "1e9 a second"], rows))
    ours = timings["bnmc float64"]
    others = [name for name in runs if name.endswith("float64")]
    rival = fastest(timings, others)
    report.floors = [
        Floor(
            "normals a second a core, float32", 1 / timings["bnmc float32"].median, FLOAT32_FLOOR
        ),
        Floor(
            f"normals float64, speed over {rival}", ours.speed_over(timings[rival]), FLOAT64_FLOOR
        ),
    ]
    report.samples = {name: timing.seconds for name, timing in timings.items()}
    return report


def numpy_normals(generator: Callable[[int], np.random.BitGenerator], dtype: str) -> Run:
    """Return a run of Generator.standard_normal (ziggurat) into an existing block."""
    rng = np.random.Generator(generator(0))
    out = np.empty(BLOCK, dtype)
    return lambda: rng.standard_normal(dtype=out.dtype.type, out=out)


def mkl_normals() -> Run:
    """Return a run of mkl_random's standard_normal, which has float64 only and allocates."""
    import mkl_random

    state = mkl_random.MKLRandomState(0, brng="PHILOX4X32X10")
    return lambda: state.standard_normal(size=BLOCK, method="ICDF")
