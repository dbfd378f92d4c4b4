"""A layer of a large batch against the same arithmetic by BLAS and LAPACK.

A layer draws normals, multiplies them by a triangular factor (trmm), adds the products of columns
(syrk) and factors their sum (potrf, in float64).  The normals are those of the library's kernel;
the rest is OpenBLAS, through SciPy.  Normalization and activation, which BLAS does not know, count
against the library.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.linalg import blas, lapack

import bnmc
from bench.report import Cell, Floor, Report, Table, usable_cores
from bench.roofline import normals_candidate
from bench.timing import Candidate, Run, Timings, interleave, repeating

THREADS = usable_cores()
DTYPES = ("float32", "float64")

#: (width, batch): wider than the batch, so that no Gram matrix is singular: float32 chains would
#: then go on in float64.
SHAPES = ((1000, 128), (1000, 256), (1000, 512), (2000, 1024), (4000, 2048), (8000, 4096))
QUICK = SHAPES[:5]

#: A layer takes at most so many times as long as its arithmetic by BLAS and LAPACK.
LIMIT = 1.6


def benchmark(*, quick: bool) -> Report:
    """A chain for each core, and one on all cores, without recorded layers between."""
    report = Report("large-batches")
    rows: list[list[Cell]] = []
    for width, batch in QUICK if quick else SHAPES:
        rounds, seconds = _effort(batch, quick)
        with ThreadPoolExecutor(THREADS) as pool:
            candidates = [item for dtype in DTYPES for item in _candidates(dtype, width, batch)]
            candidates += [normals_candidate(dtype, pool, THREADS) for dtype in DTYPES]
            timings = interleave(candidates, rounds=rounds, seconds=seconds)
        for dtype in DTYPES:
            layer, parts = timings[f"layer {dtype}"], _parts(timings, dtype, width, batch)
            blas_layer = Timings(tuple(map(sum, zip(*parts.values(), strict=True))))
            ratio = blas_layer.speed_over(layer)
            each = [1e3 * float(np.median(part)) for part in parts.values()]
            alone = blas_layer.speed_over(timings[f"one chain {dtype}"])
            shape = f"({width}, {batch})"
            rows.append([shape, dtype, 1e3 * layer.median, *each, ratio, alone])
            what = f"({width}, {batch}) {dtype}: layer over BLAS and LAPACK"
            report.floors.append(Floor(what, ratio, LIMIT, at_most=True))
        report.samples[f"({width}, {batch})"] = {k: v.seconds for k, v in timings.items()}
    headers = ["(width, batch)", "dtype", "layer, ms", "normals", "trmm", "syrk", "potrf", "ratio"]
    headers += ["ratio of one chain"]
    title = f"A layer of one of {THREADS} chains, {THREADS} threads, relu, sampler 'conditional'"
    report.tables.append(Table(title, headers, rows))
    return report


def _effort(batch: int, quick: bool) -> tuple[int, float]:
    """Return the rounds and the seconds of a call.

    A layer of the largest batch takes seconds, and so does the start of a call, whose buffers are
    new: several layers share it.
    """
    if batch > 2048:
        return 1, 8.0
    return (3, 0.05) if quick or batch > 1024 else (5, 0.2)


def _candidates(dtype: str, width: int, batch: int) -> list[Candidate]:
    """A layer of one chain of an ensemble and of a single one; products and factor by BLAS."""
    rng = np.random.default_rng(0)
    rows = np.asfortranarray(rng.standard_normal((batch, width)), dtype=dtype)
    gram = np.asfortranarray(rows.astype(np.float64) @ rows.T / width)
    lower = np.asfortranarray(np.tril(gram), dtype=dtype)
    single = dtype == "float32"
    trmm, syrk = (blas.strmm, blas.ssyrk) if single else (blas.dtrmm, blas.dsyrk)
    return [
        Candidate(f"layer {dtype}", layers_from_state(dtype, width, batch, THREADS), units=THREADS),
        Candidate(f"one chain {dtype}", layers_from_state(dtype, width, batch, 1)),
        Candidate(f"trmm {dtype}", repeating(lambda: trmm(1.0, lower, rows, lower=1))),
        Candidate(f"syrk {dtype}", repeating(lambda: syrk(1.0, rows, lower=1))),
        Candidate(f"potrf {dtype}", repeating(lambda: lapack.dpotrf(gram, lower=1))),
    ]


def layers_from_state(dtype: str, width: int, batch: int, chains: int) -> Callable[[int], Run]:
    """Return what makes a call of so many layers, from a layer that is there."""
    chain = bnmc.Chain(width, batch, "relu")
    started = bnmc.simulate(chain, 1, chains=chains, rng=0, dtype=dtype, sampler="conditional")
    state = started.final_state

    def make(layers: int) -> Run:
        return lambda: bnmc.simulate(
            chain, layers, initial=state, every=layers, dtype=dtype, threads=THREADS
        )

    return make


def _parts(
    timings: dict[str, Timings], dtype: str, width: int, batch: int
) -> dict[str, tuple[float, ...]]:
    """Seconds of each part of a layer by others, round by round."""
    normals = timings[f"normals {dtype}"].seconds
    parts = {"normals": tuple(width * batch * each for each in normals)}
    return parts | {name: timings[f"{name} {dtype}"].seconds for name in ("trmm", "syrk", "potrf")}
