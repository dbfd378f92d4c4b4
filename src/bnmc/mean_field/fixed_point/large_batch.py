"""`limit`: the fixed point of the mean-field map as the batch grows without bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bnmc._support.arguments import choice, real
from bnmc.chain.activations import Activation, as_activation
from bnmc.mean_field.fixed_point.fixed_point import judged, settled
from bnmc.mean_field.fixed_point.results import Star

__all__ = ["Limit", "limit"]


@dataclass(frozen=True, kw_only=True)
class Limit(Star):
    """The limits of the numbers of a `FixedPoint` for batches of size n → ∞.

    Attributes
    ----------
    b, c, eigenvalues, rate, backward_rate, cross_batch, cross_batch_rate, error
        As those of `FixedPoint`. The eigenvalue of the non-centring norm that belongs to c, of
        multiplicity 1, is among them.
    """


def limit(
    activation: str | Activation | Callable[[Any], Any],
    *,
    norm: str = "batch",
    rtol: float = 1e-8,
) -> Limit:
    """Limit of the symmetric fixed point, and of its rates, for batches of size n → ∞.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `bnmc.Chain`.
    norm : {"batch", "batch-uncentred"}
        The normalization.
    rtol : float, optional
        Largest acceptable `Limit.error`, > 0.

    Returns
    -------
    Limit

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The activation is constant, or none that quadrature resolves, or another argument is not
        allowed.
    PartialEstimateError
        The error estimate exceeds `rtol`; ``partial`` is the limit.

    Notes
    -----
    A sample of a large batch does not feel what normalizes it: with z a standard normal number, and
    a_k = E σ(z) He_k(z), the centred norm has

        b = E σ(z)²,    b c = (E σ(z))²,    λ_L = E[σ̃(z)²(z²−1)]/(2μ),    λ_M = a₁²/μ,

    σ̃ = σ − E σ(z), μ = Var σ(z), the backward factor E σ′(z)²/μ, and between two batches the entry
    (E σ(z))² and the rate λ_M. For relu c = 1/π, λ_M = π/(2(π−1)) and the backward factor is
    π/(π−1). Values of finite batches approach them as 1/n.

    Examples
    --------
    >>> relu = limit("relu")
    >>> round(relu.c, 9), round(relu.backward_rate, 6), round(relu.eigenvalues[1], 6)
    (0.318309886, 1.466942, 0.733471)
    """
    function = as_activation(activation)
    function.check()
    norm = choice("norm", norm, ("batch", "batch-uncentred"))
    rtol = real("rtol", rtol, above=0.0)
    star, worst = settled(function, math.inf, norm)
    return judged(Limit(**asdict(star)), worst, rtol)
