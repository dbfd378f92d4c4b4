"""`limit`: the symmetric fixed point of the mean-field map for batches of infinite size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bnmc._support.arguments import choice, real
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.norms import as_norm
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.fixed_point.symmetric import (
    SYMMETRIC_NORMS,
    fixed_point_of_batch,
    require_accuracy,
)

__all__ = ["Limit", "limit"]


@dataclass(frozen=True, kw_only=True)
class Limit(SymmetricFixedPoint):
    """The limits of the numbers of a `FixedPoint` for batch size n → ∞.

    Attributes
    ----------
    b, c, eigenvalues, rate, backward_rate, cross_batch, cross_batch_rate, error
        As in `FixedPoint`. Under norm "batch-uncentred" the eigenvalues include the one of
        multiplicity 1, on the matrix of ones.

    Examples
    --------
    >>> from bnmc.mean_field import limit
    >>> tanh = limit("tanh")
    >>> round(tanh.b, 6), round(tanh.c, 6), round(tanh.rate, 6)
    (0.394294, 0.0, 0.93047)
    """


def limit(
    activation: str | Activation | Callable[[Any], Any],
    *,
    norm: str = "batch",
    rtol: float = 1e-8,
) -> Limit:
    """Limit of the symmetric fixed point and its rates for batch size n → ∞.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `bnmc.Chain`.
    norm : {"batch", "batch-uncentred"}
        The normalization; eps is 0.
    rtol : float, default 1e-8
        Largest acceptable `Limit.error`, > 0.

    Returns
    -------
    Limit

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the activation is constant, quadrature cannot resolve it, or its mean square is infinite
        for a standard normal variable (σ grows like exp(x²/4) or faster, so there is no fixed
        point). Also if another argument is out of range.
    PartialEstimateError
        If the error exceeds `rtol`; ``partial`` is the limit. The error is ``inf`` if σ² overflows
        before the integrand of its mean square decays, as for ``exp(|x|^1.9)``.

    Notes
    -----
    The error is a bound under the assumption that `MeanField.fixed_point` states. How σ grows where
    it exceeds 1e150 is extrapolated from smaller values.

    In the limit, the normalized entries of a row are independent. Let σ be the activation, z a
    standard normal variable, ``a₁ = E[σ(z) z]``, ``μ = Var σ(z)`` and ``σ̃ = σ − E σ(z)``. Under
    norm "batch",

        b = E σ(z)²,    b c = (E σ(z))²,    λ_L = E[σ̃(z)²(z²−1)]/(2μ),    λ_M = a₁²/μ,

    with λ_L and λ_M the eigenvalues of `MeanField.fixed_point`. The backward rate is
    ``E σ′(z)²/μ``, the entry between two batches is ``(E σ(z))²``, and its rate is λ_M. For relu,
    c = 1/π, λ_M = π/(2(π−1)), and the backward rate is π/(π−1). For finite n the numbers differ
    from the limits by terms of order 1/n.

    Examples
    --------
    >>> from bnmc.mean_field import limit
    >>> relu = limit("relu")
    >>> round(relu.c, 9), round(relu.backward_rate, 6), round(relu.eigenvalues[1], 6)
    (0.318309886, 1.466942, 0.733471)
    """
    function = as_activation(activation)
    function.check()
    norm = choice("norm", norm, SYMMETRIC_NORMS)
    rtol = real("rtol", rtol, above=0.0)
    point, worst = fixed_point_of_batch(function, math.inf, as_norm(norm))
    return require_accuracy(Limit(**asdict(point)), worst, rtol)
