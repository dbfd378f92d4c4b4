"""A layer of a large batch against the same arithmetic by BLAS and LAPACK.

A layer draws normals, multiplies them by a triangular factor (trmm), adds the products of columns
(syrk) and factors their sum (potrf, in float64).  The normals are those of the library's kernel;
the rest is OpenBLAS, through SciPy.  Normalization and activation, which BLAS does not know, count
against the library.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.linalg import blas, lapack

import bnmc
from bench.roofline import DTYPES, Rates
from bench.turns import THREADS, Candidate, Timing, only, repeating

#: (width, batch): wider than the batch, so that no Gram matrix is singular: float32 chains would
#: then go on in float64.
SHAPES = ((1000, 128), (1000, 256), (1000, 512), (2000, 1024), (4000, 2048), (8000, 4096))

#: A layer takes at most so many times as long as its arithmetic by BLAS and LAPACK.
LIMIT = 1.6
MILLISECONDS = ("ms", lambda seconds: 1e3 * seconds)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", only(SHAPES, quick=SHAPES[:4], tiny=SHAPES), ids=str)
def test_layers(turns, shape, dtype):
    """A chain for each core, and one on all cores, without recorded layers between."""
    width, batch = turns.of(shape, shape, (20, 8))
    turns.group = f"({width}, {batch}), relu, {dtype}, a chain for each of {THREADS} cores"
    # A layer of the largest batch takes seconds, and so does the start of a call, whose buffers are
    # new: several layers share it.
    rounds, seconds = turns.of((5, 0.2), (3, 0.05))
    if batch > 1024:
        rounds, seconds = (1, 8.0) if batch > 2048 else (3, 0.05)
    with ThreadPoolExecutor(THREADS) as pool:
        candidates = [
            Candidate("layer", layers_from_state(dtype, width, batch, THREADS), THREADS,
                      MILLISECONDS),
            Candidate("layer of one chain", layers_from_state(dtype, width, batch, 1), 1,
                      MILLISECONDS),
            *blas_parts(dtype, width, batch), Rates(dtype).candidates(pool)[0],
        ]  # fmt: skip
        timings = turns(candidates, rounds=rounds, seconds=seconds)
    normals = Timing(tuple(width * batch * each for each in timings[f"normals {dtype}"].seconds))
    parts = [normals, *(timings[name] for name in ("trmm", "syrk", "potrf"))]
    together = Timing(tuple(map(sum, zip(*(part.seconds for part in parts), strict=True))))
    turns.hold("layer", "ratio", together.speed_over(timings["layer"]), at_most=LIMIT)
    alone = together.speed_over(timings["layer of one chain"])
    turns.add("layer of one chain", {"ratio": alone})
    turns.add(f"normals {dtype}", {"ms": 1e3 * normals.median})


def blas_parts(dtype, width, batch):
    """Products and factor by BLAS and LAPACK."""
    rng = np.random.default_rng(0)
    rows = np.asfortranarray(rng.standard_normal((batch, width)), dtype=dtype)
    gram = np.asfortranarray(rows.astype(np.float64) @ rows.T / width)
    lower = np.asfortranarray(np.tril(gram), dtype=dtype)
    single = dtype == "float32"
    trmm, syrk = (blas.strmm, blas.ssyrk) if single else (blas.dtrmm, blas.dsyrk)
    runs = {
        "trmm": lambda: trmm(1.0, lower, rows, lower=1),
        "syrk": lambda: syrk(1.0, rows, lower=1),
        "potrf": lambda: lapack.dpotrf(gram, lower=1),
    }
    return [Candidate(name, repeating(run), shown=MILLISECONDS) for name, run in runs.items()]


def layers_from_state(dtype, width, batch, chains):
    """For `Candidate.make`: so many layers, from a layer that is there."""
    chain = bnmc.Chain(width, batch, "relu")
    started = bnmc.simulate(chain, 1, chains=chains, rng=0, dtype=dtype, sampler="conditional")
    state = started.final_state

    def make(layers):
        return lambda: bnmc.simulate(
            chain, layers, initial=state, every=layers, dtype=dtype, threads=THREADS
        )

    return make
