"""The symmetric fixed point of the mean-field map, with an estimate of its error.

The fixed point is computed twice, with a fine and a coarse quadrature.  The error is their
difference plus the bounds of `accuracy`.  Which formulas apply depends on the norm and the
activation.  If N(w) of a row w ~ N(0, G*) is uniform on a sphere, `isotropic` has closed forms.
That is so for centring norms, and for odd activations.  Otherwise `uncentred` solves an equation
for the correlation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TypeVar

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.norms import NORMS, Norm, as_norm
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field.fixed_point.accuracy import resolved, value_errors
from bnmc.mean_field.fixed_point.fourier import fourier_modes
from bnmc.mean_field.fixed_point.isotropic import centred, is_odd, odd
from bnmc.mean_field.fixed_point.results import FixedPoint, SymmetricFixedPoint
from bnmc.mean_field.fixed_point.uncentred import uncentred
from bnmc.mean_field.quadrature.deviation import InfiniteMomentError
from bnmc.mean_field.quadrature.resolution import UnresolvedError
from bnmc.mean_field.quadrature.sphere import normal_rule, sphere_rule

__all__ = [
    "SYMMETRIC_NORMS",
    "fixed_point",
    "fixed_point_and_errors",
    "fixed_point_of_batch",
    "require_accuracy",
]

#: The names of the norms whose mean-field map has a symmetric fixed point.
SYMMETRIC_NORMS = tuple(name for name in NORMS if as_norm(name).has_symmetric_fixed_point)

_Point = TypeVar("_Point", bound=SymmetricFixedPoint)

# Nodes per panel of the fine and of the coarse quadrature.
_ORDER, _COARSE_ORDER = 32, 20


def fixed_point(chain: Chain, rtol: float) -> FixedPoint:
    """Return the fixed point; see `MeanField.fixed_point` for the arguments and errors."""
    found, errors = fixed_point_and_errors(chain)
    return require_accuracy(found, _worst(errors), rtol)


def fixed_point_and_errors(chain: Chain) -> tuple[FixedPoint, dict[str, float]]:
    """Return the fixed point, whatever its error, and the errors of its numbers by name.

    The errors are absolute for numbers below 1, relative for larger ones.
    """
    _require_symmetric_fixed_point(chain)
    n, norm = chain.batch, chain.normalization
    point, errors = _of_batch(chain.activation, n, norm)
    kinds = len(point.eigenvalues)
    if norm.hides_common_part:
        sectors: tuple[str, ...] = ("differences", "rest")[:kinds]
    elif kinds == 2:
        sectors = ("differences", "pairs")
    else:
        sectors = ("constants", "differences", "differences", "rest")[:kinds]
    dimensions = {
        "constants": 1, "differences": n - 1, "pairs": n * (n - 1) // 2, "rest": n * (n - 3) // 2
    }  # fmt: skip
    found = FixedPoint(
        **asdict(point), batch=n, multiplicities=tuple(dimensions[sector] for sector in sectors)
    )
    if chain.convolution is not None:
        modes = fourier_modes(chain.convolution, n, found.eigenvalues, sectors)
        found = replace(found, modes=modes, rate=max(mode.rate for mode in modes))
    return found, errors


def fixed_point_of_batch(
    activation: Activation, batch: float, norm: Norm
) -> tuple[SymmetricFixedPoint, str]:
    """Return the fixed point for a batch of any size, and the name of its least accurate number.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    batch : float
        Batch size n ≥ 2, an integer or ``inf``.
    norm : Norm
        A normalization with a symmetric fixed point; eps is 0.

    Raises
    ------
    ArgumentError
        If the activation has no such fixed point, or quadrature cannot resolve it.
    """
    point, errors = _of_batch(activation, batch, norm)
    return point, _worst(errors)


def _worst(errors: dict[str, float]) -> str:
    """Return the name of the largest error; NaN counts as largest."""
    return max(errors, key=lambda name: (not errors[name] <= math.inf, errors[name]))


def _of_batch(
    activation: Activation, batch: float, norm: Norm
) -> tuple[SymmetricFixedPoint, dict[str, float]]:
    """Return the fixed point, and the errors of its numbers by name."""
    allowed = "a function that quadrature resolves"
    try:
        fine, coarse, bounds = _fine_and_coarse(activation, batch, norm)
    except InfiniteMomentError as error:
        allowed = "a function with a fixed point"
        raise ArgumentError("activation", activation.name, allowed, str(error)) from None
    except UnresolvedError as error:
        raise ArgumentError("activation", activation.name, allowed, str(error)) from None
    names = ("b", "c", "rate", "backward_rate", "cross_batch", "cross_batch_rate")
    errors = {name: _difference(getattr(fine, name), getattr(coarse, name)) for name in names}
    pairs = zip(fine.eigenvalues, coarse.eigenvalues, strict=True)
    errors |= {f"eigenvalues[{i}]": _difference(*pair) for i, pair in enumerate(pairs)}
    errors |= {name: errors[name] + bound for name, bound in bounds.items()}
    errors = {name: value + fine.error for name, value in errors.items()}
    total = errors[_worst(errors)]
    return replace(fine, error=total if total <= math.inf else math.inf), errors


def require_accuracy(point: _Point, worst: str, rtol: float) -> _Point:
    """Return the fixed point; raise `PartialEstimateError` if its error exceeds `rtol`.

    `worst` is the name of the least accurate number, for the message.
    """
    if not point.error <= rtol:
        raise PartialEstimateError(
            f"fixed point known to {point.error:.1e} only, rtol is {rtol:.1e} (worst is {worst})",
            point,
        )
    return point


def _require_symmetric_fixed_point(chain: Chain) -> None:
    """Raise `ArgumentError` if the chain has no symmetric fixed point with a Jacobian."""
    norm = chain.normalization
    if not norm.has_symmetric_fixed_point:
        allowed = " or ".join(f'"{name}"' for name in SYMMETRIC_NORMS)
        hint = (
            "without a norm over the batch the map acts on pairs of samples: use "
            "bnmc.mean_field.CorrelationMap.of(chain)"
        )
        if chain.convolution is not None:
            hint += " of the chain without convolution, which has the same fixed points"
        raise ArgumentError("norm", chain.norm, allowed, hint)
    if chain.shows_bias:
        hint = "with a bias it depends on the gain: iterate bnmc.MeanField(chain).trajectory"
        raise ArgumentError("bias_variance", chain.bias_variance, "0", hint)
    if chain.skip != 0:
        raise ArgumentError("skip", chain.skip, "0", "bnmc.simulate measures this chain")
    if chain.eps != 0:
        raise ArgumentError("eps", chain.eps, "0", "iterate bnmc.MeanField(chain).trajectory")
    if chain.batch < 2:
        raise ArgumentError("batch", chain.batch, "an integer >= 2", "one sample has no Jacobian")


def _fine_and_coarse(
    activation: Activation, batch: float, norm: Norm
) -> tuple[SymmetricFixedPoint, SymmetricFixedPoint, dict[str, float]]:
    """Return the fixed point from both quadratures, and the bounds of `accuracy` by name.

    The `error` of both is only the rounding error.
    """
    centres, dimension = norm.hides_common_part, norm.dimensions(batch)
    correlation = -1.0 / dimension if centres else 0.0
    known = resolved(activation, dimension)
    if not centres and not is_odd(activation, known.breaks):
        fine, coarse, known = uncentred(activation, batch)
        return fine, coarse, value_errors(fine, known, batch, centred=False, isotropic=False)
    solve = centred if centres else odd
    rules = [
        normal_rule(activation, known.breaks, order)
        if batch == math.inf
        else sphere_rule(activation, int(dimension), correlation, known.breaks, order)
        for order in (_ORDER, _COARSE_ORDER)
    ]
    fine, coarse = (solve(activation, batch, rule, known.gradient) for rule in rules)
    return fine, coarse, value_errors(fine, known, batch, centred=centres, isotropic=True)


def _difference(fine: complex, coarse: complex) -> float:
    """Return |fine − coarse|, relative to `fine` if that exceeds 1."""
    return 0.0 if fine == coarse else abs(fine - coarse) / max(1.0, abs(fine))
