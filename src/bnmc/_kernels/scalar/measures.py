"""Numbers that kernels take of a Gram matrix, so that it need not leave them; see `bnmc.gram`."""

from __future__ import annotations

import numpy as np

#: Which number; the matrix itself is recorded in place of NOTHING.
NOTHING, DISTANCE, GAP, RANK_BOUND = 0, 1, 2, 3


def entry_of(kind, entry, star):
    """Return the entry of the matrix that is measured."""
    # Halves are subtracted, because the difference of two large entries may overflow.
    return 0.5 * entry - 0.5 * star if kind == DISTANCE else entry


def square_of(kind, entry, trace, on_diagonal, size):
    """Return what is summed of an entry; entry and trace are those over the largest entry."""
    if kind != DISTANCE:
        entry = entry / trace if trace > 0.0 else 0.0
    if kind == GAP and on_diagonal:
        entry -= 1.0 / size
    return entry * entry


def number_of(kind, largest, trace, total):
    """Return the number, given the largest entry and the sum; NaN where the trace is not > 0."""
    if kind == DISTANCE:
        return 2.0 * (largest * np.sqrt(total))
    if not trace > 0.0:
        return np.nan
    return np.sqrt(total) if kind == GAP else 1.0 / total
