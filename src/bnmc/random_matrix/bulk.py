"""Mass and quantiles of the continuous part of the Marchenko–Pastur law, in T = tan(θ/2).

`bnmc.random_matrix.MarchenkoPastur` defines the angle θ. T is 0 at one edge of the bulk, and 1 at
the middle of the range of θ.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.random_matrix.quadrature import unit_rule

__all__ = ["bulk_mass", "bulk_tangent"]


def bulk_mass(root: float, near: Float64Array, far: Float64Array, T: Float64Array) -> Float64Array:
    """Return the mass of the bulk between an edge and the point T <= 1.

    The density in T is ``(16/π) T² / ((1+T²)² (near² + far² T²))``.

    Parameters
    ----------
    root : float
        √γ, for γ <= 1.
    near, far : ndarray of float64
        1 − root and 1 + root for the lower edge, 1 + root and 1 − root for the upper edge.
    T : ndarray of float64
        tan(θ/2) for the angle θ from that edge. It broadcasts with `near` and `far`.

    Returns
    -------
    ndarray of float64
        In [0, 1].
    """
    mass = np.empty(np.broadcast_shapes(near.shape, T.shape))
    near, far, T = (np.broadcast_to(array, mass.shape) for array in (near, far, T))
    # The density has poles at ±i near/far. If T is far above them, the quadrature fails, but the
    # closed form does not cancel. That happens for near < far/1.86 only, so at the lower edge.
    is_steep = far * T >= 1.86 * near

    t, close, distant = T[~is_steep], near[~is_steep], far[~is_steep]
    integral = np.zeros_like(t)
    for node, weight in unit_rule():
        square = np.square(node * t)
        integral += (weight * node**2) / (
            np.square(1.0 + square) * (close**2 + distant**2 * square)
        )
    mass[~is_steep] = 16.0 / math.pi * t**3 * integral

    t, close, distant = T[is_steep], near[is_steep], far[is_steep]
    bend = distant**2 * t - close * distant * np.arctan2(distant * t, close)
    bend -= (1.0 + root**2) * (t - np.arctan(t)) + 2.0 * root * t**3 / (1.0 + t**2)
    mass[is_steep] = bend / (math.pi * root**2)
    return mass


def bulk_tangent(
    root: float, near: Float64Array, far: Float64Array, mass: Float64Array
) -> Float64Array:
    """Return T with ``bulk_mass(root, near, far, T) = mass``."""
    # The density without one factor of its denominator is larger, so both of these are at most T.
    # For a tiny mass the larger of the two is exact to rounding.
    cubic = np.cbrt(3.0 / 16.0 * math.pi * near**2 * mass)
    start = np.maximum(cubic, math.pi / 16.0 * far**2 * mass)
    is_tiny = mass < 1e-100
    T, target = np.where(is_tiny, 0.5, start), np.where(is_tiny, 0.1, mass)
    # T times the density is log-concave in ln T, hence so is the mass. So Newton's iteration in
    # logarithms, started below the root, increases towards the root and never exceeds it.
    for _ in range(60):
        value = bulk_mass(root, near, far, T)
        rise = 16.0 / math.pi * T**3 / (np.square(1.0 + T**2) * (near**2 + far**2 * T**2))
        step = np.where(is_tiny, 0.0, np.log(target / value) * (value / rise))
        T = T * np.exp(step)
        if (np.abs(step) < 1e-9).all():  # the next step would be of the order of its square
            break
    return np.where(is_tiny, start, np.minimum(T, 1.0))
