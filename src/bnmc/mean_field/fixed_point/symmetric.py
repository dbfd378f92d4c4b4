"""The symmetric fixed point of the mean-field map, with an estimate of its error.

The fixed point is computed twice, with a fine and a coarse quadrature.  The error is their
difference plus the bounds of `bnmc.mean_field.fixed_point.expectations`.  Which formulas apply
depends on the norm and the activation.

Let w ~ N(0, G*) be a row and φ = N(w) its normalization, n the batch size, σ the activation and
σ_i = σ(φ_i).  φ is uniform on a sphere of radius √n in two cases: under a centring norm, on the
sphere of the space orthogonal to (1, …, 1); under a norm that does not centre, if σ is odd, on the
sphere of the whole space, as G* is then a multiple of I.  In these cases there are closed forms;
`MeanField.fixed_point` has them.  Otherwise `bnmc.mean_field.fixed_point.uncentred` solves an
equation for the correlation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from bnmc._support.arguments import choice, real
from bnmc.chain.activations import Activation, ActivationLike, as_activation
from bnmc.chain.chain import Chain
from bnmc.chain.needs import SYMMETRIC_FIXED_POINT, require
from bnmc.chain.norms import NORMS, Norm, as_norm
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point import expectations, results
from bnmc.mean_field.fixed_point.uncentred import uncentred
from bnmc.mean_field.float64 import FloatArray, difference, within
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points
from bnmc.mean_field.quadrature.resolution import Function
from bnmc.mean_field.quadrature.sphere import Moments, SphereRule, moments, sphere_rule

# The names of the norms whose mean-field map has a symmetric fixed point.
_SYMMETRIC_NORMS = tuple(name for name in NORMS if as_norm(name).has_symmetric_fixed_point)

# Nodes per panel of the fine and of the coarse quadrature.
_ORDER, _COARSE_ORDER = 32, 20


def fixed_point(chain: Chain, rtol: float) -> results.FixedPoint:
    """Return the fixed point; see `MeanField.fixed_point` for the arguments and errors."""
    point, errors = fixed_point_and_errors(chain)
    return within(point, point.error, rtol, "fixed point", f" (worst is {worst_of(errors)})")


def fixed_point_and_errors(chain: Chain) -> tuple[results.FixedPoint, dict[str, float]]:
    """Return the fixed point, whatever its error, and the errors of its numbers by name.

    The errors are absolute for numbers below 1, relative for larger ones.
    """
    require(chain, SYMMETRIC_FIXED_POINT)
    n, norm = chain.batch, chain.normalization
    point, errors = fixed_point_of_batch(chain.activation, n, norm)
    kinds = len(point.eigenvalues)
    if norm.hides_common_part:
        sectors: tuple[str, ...] = ("differences", "rest")[:kinds]
    elif kinds == 2:
        sectors = ("differences", "pairs")
    else:
        sectors = ("constants", "differences", "differences", "rest")[:kinds]
    sizes = results.sector_sizes((1, 1), n, (0, 0))
    multiplicities = tuple(sizes[sector] for sector in sectors)
    star = results.FixedPoint(**asdict(point), batch=n, multiplicities=multiplicities)
    if chain.convolution is not None:
        modes = tuple(results.fourier_modes(chain.convolution, n, star.eigenvalues, sectors))
        star = replace(star, modes=modes, rate=max(mode.rate for mode in modes))
    return star, errors


def fixed_point_of_batch(
    activation: Activation, batch: float, norm: Norm
) -> tuple[results.SymmetricFixedPoint, dict[str, float]]:
    """Return the fixed point for a batch of any size, and the errors of its numbers by name.

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
    with expectations.quadrature_errors_as_arguments(activation):
        fine, coarse, bounds = _fine_and_coarse(activation, batch, norm)
    names = ("b", "c", "rate", "backward_rate", "cross_batch", "cross_batch_rate")
    errors = {name: difference(getattr(fine, name), getattr(coarse, name)) for name in names}
    pairs = zip(fine.eigenvalues, coarse.eigenvalues, strict=True)
    errors |= {f"eigenvalues[{i}]": difference(*pair) for i, pair in enumerate(pairs)}
    errors |= {name: errors[name] + bound for name, bound in bounds.items()}
    errors = {name: value + fine.error for name, value in errors.items()}
    total = errors[worst_of(errors)]
    return replace(fine, error=total if total <= math.inf else math.inf), errors


def worst_of(errors: dict[str, float]) -> str:
    """Return the name of the largest error; NaN counts as largest."""
    return max(errors, key=lambda name: (not errors[name] <= math.inf, errors[name]))


def _fine_and_coarse(
    activation: Activation, batch: float, norm: Norm
) -> tuple[results.SymmetricFixedPoint, results.SymmetricFixedPoint, dict[str, float]]:
    """Return the fixed point from both quadratures, and the bounds of `accuracy` by name.

    The `error` of both is only the rounding error.
    """
    centres, dimension = norm.hides_common_part, norm.dimensions(batch)
    correlation = -1.0 / dimension if centres else 0.0
    sigma = expectations.resolved(activation, dimension)
    isotropic = is_isotropic(activation, batch, norm)
    if isotropic:
        rules = [
            sphere_rule(activation, dimension, correlation, sigma.profile.breaks, order)
            for order in (_ORDER, _COARSE_ORDER)
        ]
        fine, coarse = ((centred if centres else odd)(sigma, batch, rule) for rule in rules)
    else:
        fine, coarse, sigma = uncentred(activation, batch)
    bounds = expectations.value_errors(fine, sigma, batch, centred=centres, isotropic=isotropic)
    return fine, coarse, bounds


# --- rows that are uniform on a sphere

# If the standard deviation of σ on the sphere, relative to its root mean square, is at most this,
# σ is constant to rounding and G* has rank one.
_CONSTANT = 1e-12


def is_isotropic(activation: Activation, batch: float, norm: Norm) -> bool:
    """Return whether normalized rows are uniform on a sphere at the fixed point.

    The norm centres, or σ is odd on the range of a coordinate.  A correlation c of 0 does not tell:
    other activations may have that, too.
    """
    if norm.hides_common_part:
        return True
    sigma = expectations.resolved(activation, norm.dimensions(batch))
    return is_odd(activation, sigma.profile.breaks)


def is_odd(function: Function, breaks: FloatArray) -> bool:
    """Return whether a function is odd, to rounding, at 512 points and on its panels `breaks`."""
    nodes = panel_points(breaks, gauss_legendre(8).nodes)[0].ravel()
    points = np.concatenate([np.linspace(0.0, breaks[-1], 513)[1:], np.abs(nodes[nodes != 0.0])])
    plus, minus = function(points), function(-points)
    return bool(np.all(np.abs(plus + minus) <= 4.0 * np.finfo(np.float64).eps * np.abs(plus)))


def centred(
    sigma: expectations.Resolved, batch: float, rule: SphereRule
) -> results.SymmetricFixedPoint:
    """Return the fixed point under a centring norm.

    Parameters
    ----------
    sigma : Resolved
        The activation σ.
    batch : float
        n ≥ 2, an integer or ``inf``.
    rule : SphereRule
        Rule for two coordinates of φ, with values of σ.

    Raises
    ------
    ArgumentError
        If σ is constant on the sphere.
    """
    e, x = 1.0 / batch, rule.x
    m = moments(rule, batch)
    b, mu = rule.mean(rule.value**2), m.spread
    _require_spread(sigma, batch, mu, b)
    eigenvalues = []
    if batch > 2:
        eigenvalues.append((1.0 - e) * m.diagonal[1] / (2.0 * (1.0 - 2.0 * e) * mu))
    if batch > 3:
        eigenvalues.append((1.0 - e) * m.mixed / mu)
    # For gradients on the sphere of radius √n, n ∇x·∇x = n − 1 − x² and n ∇x·∇y = −1 − xy.
    alone = sigma.energy(rule, 1.0 - e - e * x * x)
    pair = rule.mean(rule.slope * (rule.slope_given[0] + x * rule.slope_given[1]))
    return results.SymmetricFixedPoint(
        b=b,
        c=(m.covariance + m.mean**2) / b,
        eigenvalues=tuple(eigenvalues),
        rate=max(map(abs, eigenvalues), default=0.0),
        backward_rate=math.inf if sigma.explodes else (alone + e * pair) / (mu * (1.0 - 3.0 * e)),
        cross_batch=m.mean**2,
        cross_batch_rate=(m.first * _mean_length(batch - 1)) ** 2 / ((1.0 - e) * mu),
        error=expectations.rounding_error(mu, b),
        jacobians=_centred_jacobians(m, batch, eigenvalues),
    )


def _centred_jacobians(m: Moments, n: float, eigenvalues: list[float]) -> tuple[FloatArray, ...]:
    """Return the Jacobian in each sector under a centring norm, for finite n.

    It sees the traceless part of PΔP, P the projector orthogonal to 1, so it is u vᵀ in sector
    "standard", with u the image of P diag(e) P.
    """
    if n <= 2 or n == math.inf:
        return (np.zeros((2, 2)), np.zeros((1, 1))) if n == 2 else ()
    root = math.sqrt(2.0 / (n - 2.0))
    # E σ₁²(x₁²−1) and E σ₁σ₂(x₁²−1); given x₁, x₂ has mean −x₁/(n−1).
    alone = m.squares[1] + 2.0 * m.mean * m.second
    pair = m.cross[1] + m.mean * m.second * (n - 2.0) / (n - 1.0)
    image = np.array([0.5 * alone, 0.5 * (n - 1.0) * root * pair]) / m.spread
    jacobians = [np.zeros((2, 2)), np.outer(image, [1.0, -root])]
    return (*jacobians, *(np.array([[value]]) for value in eigenvalues[1:]))


def odd(
    sigma: expectations.Resolved, batch: float, rule: SphereRule
) -> results.SymmetricFixedPoint:
    """Return the fixed point of an odd σ under a norm that does not centre.

    The parameters are those of `centred`.
    """
    e, x, value = 1.0 / batch, rule.x, rule.value
    b = rule.mean(value**2)
    _require_spread(sigma, batch, b, b)
    diagonal = rule.mean(value**2 * (x * x - 1.0)) / (2.0 * b * (1.0 - e))
    off = rule.mean(value * x * rule.given[1]) / b
    jacobians = np.diag([0.0, off]), np.diag([diagonal, off]), np.array([[off]])
    slopes = sigma.energy(rule, 1.0 - e * x * x)
    return results.SymmetricFixedPoint(
        b=b,
        c=0.0,
        eigenvalues=(diagonal, off),
        rate=max(abs(diagonal), abs(off)),
        backward_rate=math.inf if sigma.explodes else slopes / (b * (1.0 - 2.0 * e)),
        cross_batch=0.0,
        cross_batch_rate=(rule.mean(value * x) * _mean_length(batch)) ** 2 / b,
        error=expectations.rounding_error(b, b),
        jacobians=() if batch == math.inf else results.of_batch(int(batch), *jacobians),
    )


def _require_spread(sigma: expectations.Resolved, batch: float, mu: float, b: float) -> None:
    """Raise `ArgumentError` if σ is constant on the sphere, so that G* has rank one."""
    if not mu > _CONSTANT**2 * b:
        allowed = f"a function that is not constant on the sphere of a batch of {batch}"
        hint = "G* has rank one and the Jacobian does not exist"
        raise ArgumentError("activation", sigma.profile.name, allowed, hint)


def _mean_length(dimension: float) -> float:
    """Return √(2/m) Γ((m+1)/2)/Γ(m/2): E|z|/√m for a standard normal z in m dimensions."""
    if dimension < 300:
        scaled = math.sqrt(2 / dimension) * math.gamma((dimension + 1) / 2)
        return scaled / math.gamma(dimension / 2)
    # Stirling's series: the Gamma function would overflow.
    y = 2.0 / dimension
    terms = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144)
    return sum(term * y**power for power, term in enumerate(terms))


# --- batches of infinite size


@dataclass(frozen=True, kw_only=True)
class Limit(results.SymmetricFixedPoint):
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


def limit(activation: ActivationLike, *, norm: str = "batch", rtol: float = 1e-8) -> Limit:
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
    norm = choice("norm", norm, _SYMMETRIC_NORMS)
    rtol = real("rtol", rtol, above=0.0)
    point, errors = fixed_point_of_batch(function, math.inf, as_norm(norm))
    note = f" (worst is {worst_of(errors)})"
    return within(Limit(**asdict(point)), point.error, rtol, "fixed point", note)
