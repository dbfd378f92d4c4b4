"""Normals per second on one core: the library's kernel, NumPy's generators, and MKL's.

MKL makes a float64 normal of one 32-bit word: its uniforms are multiples of 2**-32, and so are the
probabilities of its normals, to errors of about 1e-10.  The library takes 64 bits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np

from bench.report import Cell, Floor, Report, Table
from bench.roofline import DTYPES, NORMALS, library_normals
from bench.timing import Candidate, Run, fastest, interleave, repeating

BLOCK = 1 << 15  # normals per call of the others: it hides the cost of a call, and is cached
FLOAT32_FLOOR = 0.6e9  # normals per second and core
FLOAT64_FLOOR = 1.5  # times the fastest of NumPy
MKL_FLOOR = 1.0  # times the random bits that MKL turns into float64 normals

#: Random bits of a normal of the library and of NumPy's ziggurat.
BITS = {"float32": 32, "float64": 64}
MKL = "MKL Philox ICDF float64"


def benchmark(*, quick: bool) -> Report:
    """Time all generators in turn, filling a block that fits the cache."""
    runs = {
        f"NumPy {generator.__name__} {dtype}": numpy_normals(generator, dtype)
        for generator in (np.random.Philox, np.random.PCG64, np.random.SFC64)
        for dtype in DTYPES
    }
    if importlib.util.find_spec("mkl_random") is not None:
        runs[MKL] = mkl_normals()
    candidates = [
        *(Candidate(f"bnmc {dtype}", library_normals(dtype, 0), NORMALS) for dtype in DTYPES),
        *(Candidate(name, repeating(run), units=BLOCK) for name, run in runs.items()),
    ]
    timings = interleave(candidates, rounds=3 if quick else 15, seconds=0.05)

    report = Report("normals")
    bits = {name: BITS[name.split()[-1]] for name in timings}
    if MKL in runs:
        bits[MKL] = mkl_bits()
    rows: list[list[Cell]] = [
        [name, bits[name], 1e-9 / timing.median] for name, timing in timings.items()
    ]
    headers = ["generator", "random bits of a normal", "1e9 a second"]
    report.tables.append(Table("Standard normals on one core", headers, rows))
    ours = timings["bnmc float64"]
    rival = fastest(timings, [name for name in runs if name.endswith("float64") and name != MKL])
    report.floors = [
        Floor(
            "normals a second a core, float32", 1 / timings["bnmc float32"].median, FLOAT32_FLOOR
        ),
        Floor(
            f"normals float64, speed over {rival}", ours.speed_over(timings[rival]), FLOAT64_FLOOR
        ),
    ]
    if MKL in runs:
        # MKL makes a normal of half of the bits, so its normals are not those of float64.
        ratio = ours.speed_over(timings[MKL]) * bits["bnmc float64"] / bits[MKL]
        report.floors.append(Floor(f"random bits, speed over {MKL}", ratio, MKL_FLOOR))
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


def mkl_bits() -> int:
    """Return the random bits of a uniform of MKL's generator, which its normals have, too."""
    import mkl_random

    uniforms = mkl_random.MKLRandomState(0, brng="PHILOX4X32X10").uniform(size=BLOCK)
    return next(bits for bits in range(54) if np.all(uniforms * 2.0**bits % 1.0 == 0.0))
