"""The distortion γ of an activation on the √n-sphere, eq. (10) of the bridging paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnmc._support.arguments import Float64Array, integer, real
from bnmc._support.linalg import EPS
from bnmc.bounds.bridging.sphere_optimizer import (
    best_point,
    contradicted_curvature,
    finite_values,
    largest_excess,
    touching_points,
)
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.code_digest import ScalarFunction
from bnmc.errors import ArgumentTypeError

__all__ = ["CURVATURES", "Distortion", "distortion"]

#: Bounds of |σ″| between the kinks, for the named activations. Bounds other than 0, ½ and 1 are
#: rounded up. Curved σ have these σ″. tanh: −2 tanh/cosh²; erf: −4x e^{−x²}/√π; selu: s α eˣ with
#: its constants s and α; gelu: (2 − x²) exp(−x²/2)/√2π.
CURVATURES = {
    "linear": 0.0,
    "relu": 0.0,
    "leaky_relu": 0.0,
    "abs": 0.0,
    "tanh": 0.76981,
    "sigmoid": 0.09623,
    "sin": 1.0,
    "erf": 0.96789,
    "elu": 1.0,
    "celu": 1.0,
    "selu": 1.75810,
    "gelu": 0.79789,
    "silu": 0.5,
}


@dataclass(frozen=True, eq=False)
class Distortion:
    """Lower and upper bound of the distortion γ of an activation.

    Attributes
    ----------
    lower, upper : float
        ``lower <= γ <= upper``.
    maximiser : (n,) ndarray of float64
        A point x of the sphere ``‖x‖ = √n`` with ``‖σ(x)‖ = lower ‖x‖``, to rounding.
    """

    lower: float
    upper: float
    maximiser: Float64Array


def distortion(
    activation: str | ScalarFunction | Activation,
    batch: int,
    *,
    curvature: float | None = None,
) -> Distortion:
    r"""Bound the distortion of an activation on the √n-sphere, eq. (10), from below and above.

    .. math:: γ := \sup_{x ∈ S} \frac{‖σ(x)‖}{‖x‖}, \quad S := \{x ∈ R^n : ‖x‖ = \sqrt n\}

    Parameters
    ----------
    activation : str, callable or Activation
        σ.
    batch : int
        n in 1 … 10⁸.
    curvature : float, optional
        K >= 0 with ``|σ′(x) − σ′(y)| <= K|x − y|`` for all x, y in [−√n, √n] without a kink of the
        activation between them. The upper bound is certified under this assumption. For a named
        activation K is known. For your own function it is required.

    Returns
    -------
    Distortion

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, σ is not finite on [−√n, √n], a required `curvature` is
        missing, or values of σ contradict it.

    Notes
    -----
    γ² is the largest mean of ``σ(x_i)²`` under the constraint that the mean of ``x_i²`` is 1. For
    every λ it is at most ``λ + max (σ(x)² − λx²)`` over ``|x| <= √n``, because the constraint is
    the only relation between the x_i. Here λ is the slope at 1 of the least concave function above
    the pairs ``(x², σ(x)²)``.

    *Upper bound.* Branch and bound limits the maximum in one variable. On a cell of length w, σ is
    within Kw²/8 of its chord. Cells are refined to a gap of 1e-9 of γ², or up to about a million
    cells. The bound includes rounding errors of σ of a few units of its largest value.

    *Lower bound.* Duality has no gap except for one coordinate. The bound is the largest value at
    two kinds of points x. The entries of the first kind are the two points where the line of slope
    λ touches, and one that gives x the norm √n. Those of the second kind have two values nearby.

    BN maps rows to the part of the sphere that is orthogonal to 1. The upper bound holds there too.

    Examples
    --------
    >>> from bnmc.bounds.bridging import distortion
    >>> gamma = distortion("tanh", 10)
    >>> print(round(gamma.lower, 8), round(gamma.upper, 8))
    0.76159416 0.76159416
    >>> cubic = distortion(lambda x: x**3 / 10, 4, curvature=1.2)
    >>> cubic.maximiser, round(cubic.upper, 8)
    (array([0., 0., 0., 2.]), 0.4)
    """
    sigma = as_activation(activation)
    n = integer("batch", batch, low=1, high=10**8)
    bound = _curvature(sigma, curvature)
    if n == 1:
        both = np.array([1.0, -1.0])
        values = np.abs(finite_values(sigma, both))
        return Distortion(float(values.max()), float(values.max()), both[[values.argmax()]])
    touching, slope = touching_points(sigma, math.sqrt(n))
    largest = largest_excess(sigma, math.nextafter(math.sqrt(n), math.inf), slope, bound)
    upper = math.sqrt(max(slope + largest, 0.0)) * (1 + 8 * EPS)
    x = best_point(sigma, n, touching)
    lower = float(np.linalg.norm(finite_values(sigma, x)) / np.linalg.norm(x)) * (1 - 8 * EPS)
    if lower > upper:
        raise contradicted_curvature(sigma, bound)
    return Distortion(lower, upper, x)


def _curvature(sigma: Activation, given: float | None) -> float:
    if given is not None:
        return real("curvature", given, low=0, high=1e100)
    if not sigma.builtin:
        allowed = f"a bound of |σ″| for the function {sigma.name!r}, which the upper bound rests on"
        raise ArgumentTypeError("curvature", given, allowed)
    return CURVATURES[sigma.name]
