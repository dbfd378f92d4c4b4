"""Total variation distance of centred Gaussians, by a contour integral."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, real
from bnmc.errors import PartialEstimateError
from bnmc.random_matrix.covariance_pairs import checked_rows, log_ratios
from bnmc.random_matrix.quadrature import log_excess

__all__ = ["total_variation"]

#: If ``M(0) < exp(−40)``, the distance is 1 to rounding.
_NO_OVERLAP = 40.0
#: Angles α of the contour, in order of preference.
_ANGLES = (0.3, 0.15, 0.075, 0.0)
#: Largest number of halvings of the step.
_HALVINGS = 7


def total_variation(
    S1: ArrayLike, S2: ArrayLike, *, rows: ArrayLike = 1, atol: float = 1e-12
) -> Float64Array:
    """Total variation distance of ``N(0, S1)`` and ``N(0, S2)``, exact to rounding.

    ``TV = sup_B |P₁(B) − P₂(B)| = 1 − ∫ min(p₁, p₂)``, for the joint laws of `rows` independent
    rows. `bnmc.bounds.gaussian` has the two-sided bounds of Devroye, Mehrabian and Reddad.

    Parameters
    ----------
    S1, S2 : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite. The leading axes broadcast.
    rows : (...) array_like, default 1
        Number of independent rows, >= 1. It broadcasts with the leading axes.
    atol : float, default 1e-12
        Largest acceptable estimate of the error of the integral, > 0.

    Returns
    -------
    (...) ndarray of float64
        In [0, 1]. If the ranges differ, 1. For singular matrices of a common range, the distance is
        that of the restrictions to the range.

    Raises
    ------
    PartialEstimateError
        If the last halving of the step still changes a result by more than `atol`. ``partial`` is
        that result, a float.
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not an array of such matrices, `rows` or `atol` lies outside its range,
        or the shapes or magnitudes (beyond a factor 1e200) do not match.

    Notes
    -----
    Let ℓ_i be the logarithms of the eigenvalues of ``S2⁻¹ S1``, L = ln p₁/p₂ and
    ``M(t) = E₁ exp((it − ½) L)``, up to a factor the characteristic function of L under the density
    ∝ √(p₁p₂). We have ``TV = E₁ (1 − e^{−L})₊``, and ``(1 − e^{−x})₊`` has the Laplace transform
    1/(z(z+1)). Shifting the line of Laplace's inversion across the pole at 0 to Re z = −½ gives

        TV = (1/π) ∫₀^∞ Re(1 − M(t)) dt / (t² + ¼),
        M(t) = Π_i [e^{itℓ_i} / (cosh(ℓ_i/2) + 2it sinh(ℓ_i/2))]^{rows/2}.

    M has singularities on the imaginary axis only, outside [−i/2, i/2]. So t may follow the
    hyperbola ``½ sinh(v + iα)``, along which oscillations decay, and the trapezoidal rule in v
    converges geometrically. α is 0.3, or smaller if M would exceed e on the contour. The step is
    halved until the result changes by at most `atol`. The error is then about the square of the
    last change. If ``M(0) < e^{−40}``, which bounds 1 − TV, the result is 1.

    This error is for given ℓ_i. The ℓ_i have errors of ε times the larger condition number.

    Examples
    --------
    For one row in one dimension, the distance is a difference of two chi-square probabilities:

    >>> from bnmc.random_matrix import total_variation
    >>> print(total_variation([[1.0]], [[4.0]]).round(12))
    0.322...
    >>> total_variation([[1.0]], [[1.01]], rows=[1, 100, 10**6]).round(6)
    array([0.002408, 0.028017, 0.999565])
    """
    atol = real("atol", atol, above=0)
    logs, is_same_range = log_ratios(S1, S2)
    count = checked_rows(rows, is_same_range.shape)
    shape = np.broadcast_shapes(count.shape, is_same_range.shape)
    count, is_same_range = np.broadcast_to(count, shape), np.broadcast_to(is_same_range, shape)
    logs = np.broadcast_to(logs, (*shape, logs.shape[-1]))
    distances = np.ones(shape)
    for index in np.ndindex(shape):
        if is_same_range[index]:
            distances[index] = _total_variation(logs[index] / 2.0, float(count[index]), atol)
    return distances[()]


def _total_variation(half_logs: Float64Array, rows: float, atol: float) -> float:
    """Return the distance of one pair, from the ℓ_i/2 of `total_variation`."""
    u = half_logs[np.abs(half_logs) > 1e-100]  # the others add less than 1e-100 √(n rows)
    if u.size == 0:
        return 0.0
    log_cosh = _log_cosh(u)
    if 0.5 * rows * log_cosh.sum() > _NO_OVERLAP:
        return 1.0
    # The distance is symmetric. If Σu >= 0, the product of all e^{itℓ} decays above the real axis.
    if u.sum() < 0:
        u = -u
    # ln M is of order 1 at t = 1/spread. 40 units of v beyond, e^−v is negligible.
    spread = math.sqrt(rows * float(log_cosh.sum()))
    step = 0.1
    grid = np.arange(0.0, 40.0 + math.asinh(1.0 / spread), step)
    for angle in _ANGLES:
        log_affinity = _log_affinity(u, rows, grid, angle)
        if log_affinity.real.max() <= 1.0:
            break
    values = _integrand(log_affinity, grid, angle)
    result = step * (values.sum() - 0.5 * values[0])
    for _ in range(_HALVINGS):
        middles = grid + 0.5 * step
        values = _integrand(_log_affinity(u, rows, middles, angle), middles, angle)
        coarse, result = result, 0.5 * (result + step * values.sum())
        if abs(result - coarse) <= atol:
            return float(np.clip(result, 0.0, 1.0))
        grid, step = np.sort(np.concatenate([grid, middles])), 0.5 * step
    change = abs(result - coarse)
    raise PartialEstimateError(
        f"halving the step still changes the total variation by {change:.1e} > atol", float(result)
    )


def _log_cosh(u: Float64Array) -> Float64Array:
    size = np.abs(u)
    small = np.minimum(size, 1.0)
    return np.where(
        size < 1.0,
        0.5 * np.log1p(np.sinh(small) ** 2),
        size + np.log1p(np.exp(-2.0 * size)) - math.log(2.0),
    )


def _log_affinity(
    half_logs: Float64Array, rows: float, v: Float64Array, angle: float
) -> NDArray[np.complex128]:
    """Return ln M(t) of `total_variation` at ``t = sinh(v + i angle) / 2``, v >= 0."""
    s = np.sinh(v + 1j * angle)
    slopes = np.tanh(half_logs)
    # `bends` is u − tanh u. The loop adds ln(cosh u + i s sinh u) − i s u. Both are sums of terms
    # that do not cancel.
    is_small = np.abs(half_logs) < 0.5
    inner = np.where(is_small, slopes, 0.0)
    bends = np.where(is_small, 0.5 * (log_excess(-inner) - log_excess(inner)), half_logs - slopes)
    total: NDArray[np.complex128] = np.full(s.shape, _log_cosh(half_logs).sum() + 0j)
    for slope, bend in zip(slopes.tolist(), bends.tolist(), strict=True):
        total -= log_excess(1j * s * slope) + 1j * s * bend
    return -0.5 * rows * total


def _integrand(log_affinity: NDArray[np.complex128], v: Float64Array, angle: float) -> Float64Array:
    values: Float64Array = (-np.expm1(log_affinity) / np.cosh(v + 1j * angle)).real
    return 2.0 / math.pi * values
