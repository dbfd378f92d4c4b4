"""Batch sizes at which the symmetric fixed point of the mean-field map loses its stability.

The rate of the fixed point (`MeanField.fixed_point`) depends on the norm, the activation and the
batch size only. If the rate is at least 1, the fixed point is unstable, and the Gram matrices of
the chain do not converge to it. `stability` tabulates the rate and finds the batch sizes at which
it crosses 1. `atlas` does so for several activations. `bnmc.mean_field.block_symmetric` and
`bnmc.mean_field.partial_collapse` find other fixed points. Stability is a local property: other
attractors may exist beside a stable symmetric fixed point, for relu from a batch of 52 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer, items
from bnmc._support.text import Result, first_of, plain, text_table
from bnmc.chain.activations import ActivationLike, as_activation
from bnmc.chain.chain import Chain
from bnmc.chain.needs import NORM_OVER_BATCH
from bnmc.chain.norms import as_norm
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.fixed_point.symmetric import fixed_point
from bnmc.mean_field.float64 import FloatArray

# Largest acceptable error of the fixed points, the default of `MeanField.fixed_point`.
_RTOL = 1e-8

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Crossing(Result):
    """A batch size at which the symmetric fixed point changes its stability.

    Attributes
    ----------
    batch : int
        The smallest batch size after the change.
    stable : bool
        Whether the fixed point is stable at `batch`.
    eigenvalue : int
        Index of the eigenvalue whose modulus crosses 1: the one of largest modulus on the unstable
        side.
    value : float
        That eigenvalue at `batch`.

    Examples
    --------
    >>> from bnmc.mean_field import stability
    >>> (crossing,) = stability("silu", [8, 16, 32, 64]).crossings
    >>> crossing.batch, crossing.stable, round(crossing.value, 4)
    (26, False, 1.0007)
    """

    batch: int
    stable: bool
    eigenvalue: int
    value: float


@dataclass(frozen=True)
class Stability(Result):
    """Stability of the symmetric fixed point for several batch sizes.

    Attributes
    ----------
    activation : str
        Name of the activation.
    norm : str
        Name of the normalization.
    points : tuple of FixedPoint
        The fixed points, by increasing batch size.
    crossings : tuple of Crossing
        The changes of stability, by increasing batch size.

    Examples
    --------
    >>> from bnmc.mean_field import stability
    >>> found = stability("silu", [8, 16, 32, 64])
    >>> [crossing.batch for crossing in found.crossings], found.labels
    ([26], ('λ_L', 'λ_M'))
    """

    activation: str
    norm: str
    points: tuple[FixedPoint, ...]
    crossings: tuple[Crossing, ...]

    @property
    def batches(self) -> NDArray[np.int64]:
        """Batch sizes, shape (batches,)."""
        return np.array([point.batch for point in self.points])

    @property
    def rates(self) -> FloatArray:
        """Largest moduli of the eigenvalues, shape (batches,)."""
        return np.array([point.rate for point in self.points])

    @property
    def stable(self) -> NDArray[np.bool_]:
        """Whether ``rate < 1``, shape (batches,)."""
        return self.rates < 1.0

    @property
    def eigenvalues(self) -> FloatArray:
        """Eigenvalues, shape (batches, kinds); NaN if the batch is too small for the eigenvalue.

        For norm "batch" the kinds are ``λ_L`` and ``λ_M``, in the order of `FixedPoint`; ``λ_L``
        needs a batch of at least 3, ``λ_M`` one of at least 4.
        """
        kinds = max(len(point.eigenvalues) for point in self.points)
        rows = [(*point.eigenvalues, *[np.nan] * kinds)[:kinds] for point in self.points]
        return np.array(rows, dtype=np.float64).reshape(len(rows), kinds)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the kinds of eigenvalues."""
        kinds = self.eigenvalues.shape[1]
        if as_norm(self.norm).hides_common_part:
            return ("λ_L", "λ_M")[:kinds]
        return tuple(f"λ_{index + 1}" for index in range(kinds))

    def __str__(self) -> str:
        """Return the table of the first batch sizes, in 25 lines; `table` has all of them."""
        return self._text(18, 3)

    def table(self) -> str:
        """Return a table: one row per batch size, then one line per crossing."""
        return self._text(len(self.points), len(self.crossings))

    def _text(self, most: int, most_crossings: int) -> str:
        heads = ("batch", *self.labels, "rate", "")
        cells = np.column_stack([self.eigenvalues, self.rates])
        rows = [
            (str(point.batch), *map(_cell, row), "" if point.stable else "  unstable")
            for point, row in zip(self.points, cells, strict=True)
        ]
        align = ">" * (len(heads) - 1) + "<"
        shown, more = first_of(rows, most, "batch sizes: see table()")
        table = text_table(heads, shown, align=align, gap="", least_width=10)
        changes = [
            f"{'stable' if crossing.stable else 'unstable'} from batch {crossing.batch} on "
            f"({self.labels[crossing.eigenvalue]})"
            for crossing in self.crossings
        ]
        lines, others = first_of(changes, most_crossings, "changes")
        head = f'{self.activation}, norm "{self.norm}"'
        return "\n".join([head, table, *more, *lines, *others])

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the rate against the batch size, as `bnmc.mean_field.plot_stability`.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw in. Default: those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
            If Matplotlib is not installed.
        """
        from bnmc.plot.stability import plot_stability

        return plot_stability([self], ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return the table for `json.dumps`; crossings are batch sizes and whether stable."""
        return {
            "activation": self.activation,
            "batches": self.batches.tolist(),
            "rates": self.rates.tolist(),
            "stable": self.stable.tolist(),
            "eigenvalues": plain(self.eigenvalues),
            "crossings": [[crossing.batch, crossing.stable] for crossing in self.crossings],
        }


def _cell(value: float) -> str:
    """Return a cell of the table; a dash for NaN."""
    return "-" if np.isnan(value) else f"{value:.6f}"


def stability(
    activation: ActivationLike, batches: Iterable[int], *, norm: str = "batch"
) -> Stability:
    """Stability of the symmetric fixed point by batch size, with the crossings of rate 1.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `bnmc.Chain`.
    batches : iterable of int
        Batch sizes, ≥ 2, in any order. If the fixed point is stable at one and unstable at the next
        size, bisection finds the smallest size after the change. Two changes between neighbouring
        sizes are not found.
    norm : {"batch", "batch-uncentred"}
        The normalization; eps is 0.

    Returns
    -------
    Stability
        ``print`` shows it as a table.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is out of range, `batches` is empty, or the activation has no symmetric fixed
        point; see `MeanField.fixed_point`.
    PartialEstimateError
        If a fixed point is not known to 1e-8.

    Notes
    -----
    Let n be the batch size, σ the activation and φ standard normal. Under norm "batch", as n → ∞,
    the eigenvalues of `MeanField.fixed_point` tend to

        λ_L → E[(σ−Eσ)²(φ²−1)] / (2 Var σ),    λ_M → (E[σφ])² / Var σ,

    with corrections of order 1/n. By Bessel's inequality the limit of λ_M is at most 1. The limit
    of λ_L exceeds 1 if φ² has a mean above 3 under the law with density proportional to (σ − Eσ)²:
    if σ is flat near 0 and grows far from 0. It is 1 for σ linear on both sides of 0; then the
    fixed point is stable for all n.

    Examples
    --------
    >>> from bnmc.mean_field import stability
    >>> print(stability("silu", [8, 16, 32, 64]))
    silu, norm "batch"
         batch       λ_L       λ_M      rate
             8  0.801765  0.610768  0.801765
            16  0.941825  0.697287  0.941825
            32  1.018941  0.745895  1.018941  unstable
            64  1.059325  0.771681  1.059325  unstable
    unstable from batch 26 on (λ_L)
    """
    sizes = _sizes(batches)
    if as_norm(norm).axis != "batch":
        raise NORM_OVER_BATCH.refusal(norm, "bnmc.mean_field.CorrelationMap takes other norms")

    @cache
    def at(batch: int) -> FixedPoint:
        return fixed_point(Chain(1, batch, activation, norm=norm), _RTOL)

    points = tuple(at(size) for size in sizes)
    crossings = tuple(_crossing(at, a, b) for a, b in pairwise(points) if a.stable != b.stable)
    return Stability(as_activation(activation).name, as_norm(norm).name, points, crossings)


def atlas(
    activations: Iterable[ActivationLike], batches: Iterable[int], *, norm: str = "batch"
) -> tuple[Stability, ...]:
    """`stability` of several activations.

    Parameters
    ----------
    activations : iterable of str, Activation or callable
        The activations.
    batches : iterable of int
        Batch sizes, as for `stability`.
    norm : {"batch", "batch-uncentred"}
        The normalization, as for `stability`.

    Returns
    -------
    tuple of Stability
        In the order of `activations`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PartialEstimateError
        As `stability`, or if `activations` is not iterable.

    Notes
    -----
    For norm "batch", the table has the limits of the eigenvalues for large batches, and the
    smallest batch size from which the fixed point is unstable. All crossings are those of λ_L.

    =============  ========  ========  =============
    σ              λ_L, ∞    λ_M, ∞    unstable from
    =============  ========  ========  =============
    linear         1         1
    relu           1         0.733471
    leaky_relu     1         0.741218
    abs            1         0
    tanh           0.461071  0.930470
    sigmoid        0.719201  0.984167
    sin            0.313035  0.850918
    erf            0.408567  0.913583
    elu, celu      0.860232  0.936727
    selu           0.782648  0.970680
    gelu           1.062116  0.723288  39
    silu           1.100947  0.798510  26
    softplus       1.056125  0.920761  43
    mish           1.000977  0.805507  2178
    hard swish     1.155802  0.822531  20
    square         2         0         8
    relu squared   2         0.509296  7
    exp            2.581977  0.581977  7
    =============  ========  ========  =============

    Examples
    --------
    >>> from bnmc.mean_field import atlas
    >>> for entry in atlas(["relu", "gelu", "silu"], [10, 100]):
    ...     print(entry.activation, [crossing.batch for crossing in entry.crossings])
    relu []
    gelu [39]
    silu [26]
    """
    several = items("activations", activations, "several activations")
    sizes = _sizes(batches)
    return tuple(stability(activation, sizes, norm=norm) for activation in several)


def _sizes(batches: Iterable[int]) -> list[int]:
    """Check the batch sizes; return them sorted, each once."""
    given = items("batches", batches, "several integers >= 2")
    sizes = sorted({integer("batches", batch, low=2) for batch in given})
    if not sizes:
        raise ArgumentError("batches", sizes, "at least one batch size")
    return sizes


def _crossing(at: Callable[[int], FixedPoint], low: FixedPoint, high: FixedPoint) -> Crossing:
    """Return the crossing between two batch sizes; the fixed point of one of them is stable."""
    while high.batch - low.batch > 1:
        middle = at((low.batch + high.batch) // 2)
        low, high = (middle, high) if middle.stable == low.stable else (low, middle)
    unstable = high if low.stable else low
    index = int(np.argmax(np.abs(unstable.eigenvalues)))
    value = float(np.real(high.eigenvalues[index]))
    return Crossing(batch=high.batch, stable=high.stable, eigenvalue=index, value=value)
