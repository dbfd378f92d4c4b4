"""The mean-field map of a norm over the batch after the activation, by random points.

F(G) = E N(σ(w)) N(σ(w))ᵀ for a row w ~ N(0, Σ) is an expectation over one coordinate per sample.
Each set of scrambled Sobol points is an unbiased estimate, and contains the negative of each
point.  If eps > 0, a row of equal outputs has N = 0: ReLU makes one of every row of negative
numbers, so for n independent samples the diagonal is at most 1 − 2⁻ⁿ.
"""

from __future__ import annotations

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.chain.layers import RowMap
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.rows import Rows

#: The numbers of points are powers of 2, near this times the square of the angles of a lattice.
_POINTS_OF_ANGLES = 20.0

# Points whose rows are computed at once.
_BLOCK = 1 << 12


def points_map(
    rows: list[Rows], row_map: RowMap, angles: int, shifts: FloatArray, number: int
) -> tuple[FloatArray, int]:
    """Return F(G) for the laws of rows, one for each set of points, and the points of a set.

    NaN if a row has no variance, and eps is 0.

    Parameters
    ----------
    rows : list of Rows
    row_map : RowMap
        Activation, norm and eps.
    angles : int
        The number of points is near 20 times its square.
    shifts : ndarray of shape (len(rows), 2)
        Numbers in [0, 1), the seeds of the points.
    number : int
        The layer, whose points are independent of those of other layers.
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    points = 1 << round(np.log2(_POINTS_OF_ANGLES * angles**2))
    grams = np.zeros((len(rows), row_map.batch, row_map.batch))
    for law, shift, gram in zip(rows, shifts, grams, strict=True):
        seeds = [*(shift * 2.0**52).astype(np.int64).tolist(), number]
        sampler = qmc.Sobol(max(1, law.rank), scramble=True, rng=np.random.default_rng(seeds))
        root = law.vectors * np.sqrt(law.values)
        for _ in range(0, points // 2, _BLOCK):
            # Points are multiples of 2⁻³⁰, and 0 is one of them.
            half = ndtri(sampler.random(min(points // 2, _BLOCK)) + 2.0**-31)[:, : law.rank]
            for z in (half, -half):
                outputs = row_outputs(row_map, z @ root.T)
                gram += outputs.T @ outputs
    return grams / points, points


def row_outputs(row_map: RowMap, rows: FloatArray) -> FloatArray:
    """Return what a row becomes by the activation, and by a norm over the batch after it."""
    values = np.asarray(row_map.activation(rows), dtype=np.float64)
    if row_map.norm.axis == "batch" and row_map.activates_first:
        return row_map.norm(values, row_map.eps)
    return values


def require_rows_vary(activation: Activation, norm: Norm) -> None:
    """Raise if σ is constant on an interval, so that a norm after it cannot normalize some rows."""
    values = activation(np.linspace(-4.0, 3.9, 2001))
    flat = (values[2:] == values[1:-1]) & (values[1:-1] == values[:-2])
    if not norm.centred:
        flat &= values[2:] == 0.0
    if np.any(flat):
        raise constant_rows(activation, norm)


def constant_rows(activation: Activation, norm: Norm) -> ArgumentError:
    """Return the error about rows of equal outputs."""
    return ArgumentError(
        "activation", activation.name,
        f'a function whose outputs differ in every batch, with norm="{norm.name}" after it',
        "without eps, a row of equal outputs has no variance",
    )  # fmt: skip
