"""Matrices that are decided where they are asked: a call against its plain products and normals.

A forward product asks W for 8 columns, a backward one asks Wᵀ, and an update adds their outer
product.  What they cost at least are products with the vectors that are kept (four bases and
images), each once for a product and three times for a projection, and the normals of two answers.
"""

import numpy as np
import pytest

from bench.children import CAN_WATCH, WATCHER, child
from bench.turns import Candidate, only, repeating
from bnmc.implicit import GaussianMatrix, words

COLUMNS = 8
#: A call of width 10**6 takes at most so many times as long as its plain products and normals.
#: Vectors of 65,536 stay in the caches of the plain products, whose blocks are larger.
LIMIT = 2.0
MILLISECONDS = ("ms", lambda seconds: 1e3 * seconds)

#: The largest singular value of a square Gaussian matrix tends to 2; memory is in MB.
#: SciPy stops at the square of `tol`.  With fewer steps of Lanczos before a restart it asks more.
LARGEST, ERROR, MEMORY, STEPS = 2.0, 1e-3, 8_000.0, 60
PROGRAM = """
from scipy.sparse.linalg import svds
from bnmc.implicit import GaussianMatrix

W = GaussianMatrix({width}, {width}, rng=0)
with Watch() as watch:
    value = float(svds(W, k=1, ncv={steps}, tol={error} ** 0.5, return_singular_vectors=False)[0])
print(json.dumps([value, watch.peak(), watch.seconds, W.asked[0]]))
"""


class _UndoneError(Exception):
    """Ends a call whose changes are taken back."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "width", only((65_536, 10**6), quick=(65_536,), tiny=(65_536,)), ids="width {}".format
)
def test_calls(turns, width, dtype):
    """Forward, backward and update of 8 columns, where 160 were asked on either side."""
    width, asked = turns.of((width, 160), (width, 160), (300, 16))
    turns.group = f"Implicit matrix of width {width}, {asked} asked, {COLUMNS} columns, {dtype}"
    rng = np.random.default_rng(0)
    W = GaussianMatrix(width, width, rng=0, dtype=dtype)
    for _ in range(asked // COLUMNS):
        W @ rng.standard_normal((COLUMNS, width), dtype).T
        W.T @ rng.standard_normal((COLUMNS, width), dtype).T
    x = rng.standard_normal((COLUMNS, width), dtype).T

    def calls():
        try:
            with W._unchanged_by_errors():
                y = W @ x
                W.T @ y
                W.update(y, x)
                raise _UndoneError
        except _UndoneError:
            pass

    rows, coordinates = W._basis[0].rows, np.ones((COLUMNS, asked), dtype)

    def plain():
        # Two projections and two answers of new columns; an update projects columns again.
        for _ in range(2 * 4 + 2 * 2):
            x.T @ rows.T
            coordinates @ rows
        for _ in range(2):
            words.normals(1, 1, np.arange(COLUMNS), width, dtype, rows)

    candidates = [
        Candidate("calls", repeating(calls), shown=MILLISECONDS),
        Candidate("plain products and normals", repeating(plain), shown=MILLISECONDS),
    ]
    timings = turns(candidates, rounds=turns.of(5, 3), seconds=0.05)
    over = timings["plain products and normals"].speed_over(timings["calls"])
    turns.hold("calls", "x plain", over, at_most=LIMIT if width == 10**6 else None)


@pytest.mark.skipif(not CAN_WATCH, reason="the peak of a process cannot be reset here")
def test_largest_singular_value(turns):
    """Of a matrix of 8 TB, by SciPy's Lanczos method."""
    width = turns.of(10**6, 10**5, 2000)
    turns.group = f"Largest singular value of a square matrix of order {width}"
    script = WATCHER + PROGRAM.format(width=width, error=ERROR, steps=STEPS)
    value, peak, seconds, asked = child(script)
    turns.record("svds", [seconds])
    turns.add("svds", {"value": value, "asked": asked})
    turns.hold("svds", "MB", peak, at_most=MEMORY)
    if turns.level == 0:
        turns.hold("svds", "error", abs(value - LARGEST), at_most=ERROR)
