"""Where the symmetric fixed point of the mean-field map loses its stability as the batch grows.

The rate of the fixed point (`bnmc.MeanField.fixed_point`) depends on the activation and the batch
size alone. Where it reaches 1 the chain no longer settles there: `stability` tabulates it and finds
the batch sizes, `atlas` does so for several activations, and `bnmc.mean_field.block_symmetric` and
`partial_collapse` find where the chain settles then. Stability is local: other attractors may
exist beside a stable symmetric fixed point, for relu from a batch of 52 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer, items
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.mean_field.field import MeanField
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.quadrature.sphere import FloatArray

__all__ = ["Crossing", "Stability", "atlas", "stability"]

_ActivationLike = str | Activation | Callable[[Any], Any]


@dataclass(frozen=True)
class Crossing:
    """Where the fixed point becomes unstable, or stable again, as the batch grows.

    Attributes
    ----------
    batch : int
        The first batch size on the far side.
    stable : bool
        Whether the fixed point is stable there.
    eigenvalue : int
        Index of the eigenvalue that crosses ±1: the one of largest modulus on the unstable side.
    value : float
        That eigenvalue at `batch`.
    """

    batch: int
    stable: bool
    eigenvalue: int
    value: float


@dataclass(frozen=True)
class Stability:
    """Stability of the symmetric fixed point for several batch sizes.

    Attributes
    ----------
    activation : str
        Name of the activation.
    norm : str
        The normalization.
    points : tuple of FixedPoint
        The fixed points, by increasing batch size.
    crossings : tuple of Crossing
        Where stability changes, by increasing batch size.
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
        """Rates, shape (batches,)."""
        return np.array([point.rate for point in self.points])

    @property
    def stable(self) -> NDArray[np.bool_]:
        """Where ``rate < 1``, shape (batches,)."""
        return self.rates < 1.0

    @property
    def eigenvalues(self) -> FloatArray:
        """Eigenvalues, shape (batches, kinds); NaN where a batch is too small to have one.

        For norm "batch" the kinds are ``λ_L`` and ``λ_M``, in the order of `FixedPoint`; there is
        no ``λ_M`` below a batch of 4, and no ``λ_L`` below 3.
        """
        kinds = max(len(point.eigenvalues) for point in self.points)
        rows = [(*point.eigenvalues, *[np.nan] * kinds)[:kinds] for point in self.points]
        return np.array(rows, dtype=np.float64).reshape(len(rows), kinds)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the kinds of eigenvalues."""
        kinds = self.eigenvalues.shape[1]
        if self.norm == "batch":
            return ("λ_L", "λ_M")[:kinds]
        return tuple(f"λ_{index + 1}" for index in range(kinds))

    def __str__(self) -> str:
        """A table: a row for each batch size, and where the rate crosses 1."""
        heads = ("batch", *self.labels, "rate")
        lines = [f'{self.activation}, norm "{self.norm}"', "".join(f"{head:>10}" for head in heads)]
        for point, row in zip(self.points, self.eigenvalues, strict=True):
            numbers = "".join(_cell(value) for value in (*row, point.rate))
            lines.append(f"{point.batch:10d}{numbers}" + ("" if point.stable else "  unstable"))
        for crossing in self.crossings:
            state = "stable" if crossing.stable else "unstable"
            lines.append(
                f"{state} from batch {crossing.batch} on ({self.labels[crossing.eigenvalue]})"
            )
        return "\n".join(lines)


def _cell(value: float) -> str:
    """A number of the table; what does not exist is a dash."""
    return f"{'-':>10}" if np.isnan(value) else f"{value:10.6f}"


def stability(
    activation: _ActivationLike, batches: Iterable[int], *, norm: str = "batch"
) -> Stability:
    """Stability of the symmetric fixed point against the batch size, and where the rate crosses 1.

    Parameters
    ----------
    activation : str, Activation or callable
        As `bnmc.Chain` takes it.
    batches : iterable of int
        Batch sizes, ≥ 2, in any order. Between two neighbours of which one is stable and the other
        not, the crossing is found by bisection, to the integer; two crossings between neighbours
        go unseen.
    norm : {"batch", "batch-uncentred"}
        The normalization. The latter as far as `bnmc.MeanField.fixed_point` knows it.

    Returns
    -------
    Stability
        Printed, it is a table.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PartialEstimateError
        As `bnmc.Chain` and `bnmc.MeanField.fixed_point`, or `batches` are not at least one batch
        size.

    Notes
    -----
    As n → ∞ the eigenvalues of the centred norm tend to those of a standard normal φ,

        λ_L → E[(σ−Eσ)²(φ²−1)] / (2 Var σ),    λ_M → (E[σφ])² / Var σ,

    with corrections of order 1/n. The latter is at most 1, by Bessel's inequality. The former
    exceeds 1 where φ² has a mean above 3 under the law reweighted by (σ − Eσ)²: where σ is flat in
    the middle and rises far out. It is 1 for σ linear on both sides of 0, where all n are stable.

    Examples
    --------
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
    known: dict[int, FixedPoint] = {}

    def at(batch: int) -> FixedPoint:
        if batch not in known:
            known[batch] = MeanField(Chain(1, batch, activation, norm=norm)).fixed_point()
        return known[batch]

    points = tuple(at(size) for size in sizes)
    crossings = tuple(_crossing(at, a, b) for a, b in pairwise(points) if a.stable != b.stable)
    return Stability(
        activation=Chain(1, 2, activation).activation.name,
        norm=norm,
        points=points,
        crossings=crossings,
    )


def atlas(
    activations: Iterable[_ActivationLike], batches: Iterable[int], *, norm: str = "batch"
) -> tuple[Stability, ...]:
    """`stability` of several activations.

    Parameters
    ----------
    activations : iterable of str, Activation or callable
    batches : iterable of int
    norm : {"batch", "batch-uncentred"}
        As for `stability`.

    Returns
    -------
    tuple of Stability
        In the order of `activations`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PartialEstimateError
        As `stability`, or `activations` are no iterable.

    Notes
    -----
    What there is to find, norm "batch": the limits of the eigenvalues, and the batch size from
    which the fixed point is unstable. All crossings are those of λ_L.

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
    given = items("batches", batches, "several integers >= 2")
    sizes = sorted({integer("batches", batch, low=2) for batch in given})
    if not sizes:
        raise ArgumentError("batches", sizes, "at least one batch size")
    return sizes


def _crossing(at: Callable[[int], FixedPoint], low: FixedPoint, high: FixedPoint) -> Crossing:
    """The crossing between two fixed points, only one of which is stable."""
    while high.batch - low.batch > 1:
        middle = at((low.batch + high.batch) // 2)
        low, high = (middle, high) if middle.stable == low.stable else (low, middle)
    unstable = high if low.stable else low
    index = int(np.argmax(np.abs(unstable.eigenvalues)))
    value = float(np.real(high.eigenvalues[index]))
    return Crossing(batch=high.batch, stable=high.stable, eigenvalue=index, value=value)
