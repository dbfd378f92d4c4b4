"""Symmetries of an activation that make linear relations between samples permanent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.activations import Activation

#: Number of points of each sign where the symmetries are tested, and relative tolerance.
_POINTS, _TOLERANCE = 2000, 1e-12


@dataclass(frozen=True)
class ActivationShape:
    """Symmetries of an activation σ on [−reach, reach].

    Attributes
    ----------
    is_zero_at_zero : bool
        Whether σ(0) = 0.
    is_odd, is_even : bool
        Whether σ(−x) = −σ(x), and σ(−x) = σ(x), for x > 0.
    is_odd_about_centre : bool
        Whether σ(x) + σ(−x) is the same for all x > 0.
    is_centred_at_zero : bool
        Whether that sum is 2 σ(0).
    degree : float or None
        p >= 0 if σ(x) = A x^p and σ(−x) = B x^p for x > 0 with constants A, B not both 0.
    above, below : float
        A and B; 0.0 if `degree` is None.
    is_one_sided : bool
        Whether σ is 0 on one side of 0, and not of both signs on the other side.
    """

    is_zero_at_zero: bool
    is_odd: bool
    is_even: bool
    is_odd_about_centre: bool
    is_centred_at_zero: bool
    degree: float | None
    above: float
    below: float
    is_one_sided: bool

    @property
    def has_parity(self) -> bool:
        """Whether σ is odd or even."""
        return self.is_odd or self.is_even

    @property
    def preserves_lines(self) -> bool:
        """Whether uncentred Gram matrices of rank 1 stay of rank 1.

        If G = v vᵀ, all rows are multiples of v, and N takes them to u or −u with u = N(v).  So
        σ(u) and σ(−u) must be proportional.
        """
        return self.has_parity or self.is_one_sided


def activation_shape(activation: Activation, reach: float) -> ActivationShape:
    """Return the symmetries of an activation, tested at points of [−reach, reach].

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.mixing.activation_shape import activation_shape
    >>> shape = activation_shape(Activation.named("relu"), 3.0)
    >>> shape.degree, shape.above, shape.below, shape.is_one_sided
    (1.0, 1.0, 0.0, True)
    """
    # The golden ratio keeps the points off 0 and off round numbers, where σ may jump: values at
    # jumps have probability 0, and may break the symmetry.
    x = reach * (np.arange(_POINTS) + 0.5 * (math.sqrt(5.0) - 1.0)) / _POINTS
    above = np.asarray(activation(x), np.float64)
    below = np.asarray(activation(-x), np.float64)
    zero = float(activation(np.zeros(1))[0])
    size = _TOLERANCE * float(max(np.abs(above).max(), np.abs(below).max()))

    def agree(a: NDArray[np.float64], b: NDArray[np.float64] | float) -> bool:
        return bool((np.abs(a - b) <= size).all())

    total = above + below
    degree, factors = _power(x, above, below, size)
    one_sided = not above.any() or not below.any()
    signed = bool((total >= 0.0).all() or (total <= 0.0).all())
    return ActivationShape(
        is_zero_at_zero=zero == 0.0,
        is_odd=agree(above, -below),
        is_even=agree(above, below),
        is_odd_about_centre=agree(total, float(total[0])),
        is_centred_at_zero=bool(abs(total[0] - 2.0 * zero) <= size),
        degree=degree,
        above=factors[0],
        below=factors[1],
        is_one_sided=one_sided and signed,
    )


def _power(
    x: NDArray[np.float64], above: NDArray[np.float64], below: NDArray[np.float64], size: float
) -> tuple[float | None, tuple[float, float]]:
    """Return the common degree of both sides and their factors, if both are powers."""
    larger = above if abs(above[-1]) >= abs(below[-1]) else below
    middle = larger[len(x) // 2]
    if larger[-1] * middle <= 0.0:
        return None, (0.0, 0.0)
    degree = math.log(larger[-1] / middle) / math.log(x[-1] / x[len(x) // 2])
    degree = round(degree, 9) + 0.0
    powers = x**degree
    factors = above[-1] / powers[-1], below[-1] / powers[-1]
    fits = all(
        (np.abs(side - factor * powers) <= 1e3 * size).all()
        for side, factor in zip((above, below), factors, strict=True)
    )
    return (degree, (float(factors[0]), float(factors[1]))) if fits and degree >= 0.0 else (
        None, (0.0, 0.0)
    )  # fmt: skip
