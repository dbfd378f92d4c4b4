"""Distances of centred Gaussians: Kullback–Leibler, Wasserstein and total variation.

The divergence and the total variation depend on the eigenvalues of ``S2⁻¹ S1`` only. Their
logarithms are known to all digits, also near 0 (`_log_ratios`). The total variation is a contour
integral.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support import linalg
from bnmc._support.arguments import Float64Array, real
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.gram import validate_gram
from bnmc.random_matrix.marchenko_pastur import unit_rule

#: Covariances that differ by more than a factor 1e200 would overflow in each other's units.
_LARGEST_LOG_FACTOR = 200.0 * math.log(10.0)
#: If ``M(0) < exp(−40)``, the distance is 1 to rounding.
_NO_OVERLAP = 40.0
#: Angles α of the contour, in order of preference.
_ANGLES = (0.3, 0.15, 0.075, 0.0)
#: Largest number of halvings of the step.
_HALVINGS = 7


def kl(S1: ArrayLike, S2: ArrayLike, *, rows: ArrayLike = 1) -> Float64Array:
    """Kullback–Leibler divergence of ``N(0, S1)`` from ``N(0, S2)``.

    ``rows/2 · Σ_i (λ_i − 1 − ln λ_i)``, with λ_i the eigenvalues of ``S2⁻¹ S1``.

    Parameters
    ----------
    S1, S2 : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite. The leading axes broadcast.
    rows : (...) array_like, default 1
        Number of independent rows, >= 1. It broadcasts with the leading axes.

    Returns
    -------
    (...) ndarray of float64
        Non-negative. If the ranges differ, infinite. For singular matrices of a common range, the
        divergence is that of the restrictions to the range.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not an array of such matrices, `rows` is not an array of such numbers, or
        their shapes or magnitudes (beyond a factor 1e200) do not match.

    Notes
    -----
    An eigenvalue of at most n ε times the largest counts as zero, as in `bnmc.gram.condition`. Here
    ε is the rounding unit of the input. The relative error of the result is of the order of ε times
    the larger condition number. That holds for close matrices too, where the formula cancels.

    Examples
    --------
    >>> from bnmc.random_matrix import kl
    >>> print(kl([[1.0]], [[2.0]]).round(12), kl([[1.0]], [[2.0]], rows=10).round(12))
    0.096573590... 0.965735902...
    """
    logs, is_same_range, count = _log_ratios(S1, S2, rows)
    is_close = np.abs(logs) < 0.4
    close = _log_excess(np.expm1(np.where(is_close, logs, 0.0)))
    excess = np.where(is_close, close, np.expm1(logs) - logs).sum(axis=-1)
    with np.errstate(over="ignore"):  # the divergence may exceed float64
        return count / 2.0 * np.where(is_same_range, excess, np.inf)


def wasserstein(S1: ArrayLike, S2: ArrayLike, *, rows: ArrayLike = 1) -> Float64Array:
    """Wasserstein distance W₂ of ``N(0, S1)`` and ``N(0, S2)`` (not its square).

    ``W₂² = rows · [Tr S1 + Tr S2 − 2 Tr (S1^½ S2 S1^½)^½]`` (Dowson and Landau 1982; Bures).

    Parameters
    ----------
    S1, S2 : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite, singular or not. The leading axes
        broadcast.
    rows : (...) array_like, default 1
        Number of independent rows, >= 1. It broadcasts with the leading axes.

    Returns
    -------
    (...) ndarray of float64
        Non-negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S1` or `S2` is not an array of such matrices, `rows` is not an array of such numbers, or
        their shapes do not match.

    Notes
    -----
    The function computes ``min_U ‖S1^½ − S2^½ U‖_F`` over orthogonal U, without cancellation. The
    error is of the order of ``ε √(Tr S1 + Tr S2)``. An eigenvalue of at most n ε times the largest
    counts as zero, which changes W₂ by at most the root of the eigenvalue.

    Examples
    --------
    >>> from bnmc.random_matrix import wasserstein
    >>> print(wasserstein([[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]).round(12))
    2.2360679775
    """
    first, second, count, rounding = _checked_covariances(S1, S2, rows)
    largest = np.maximum(np.abs(first).max(axis=(-2, -1)), np.abs(second).max(axis=(-2, -1)))
    scale = np.where(largest > 0, largest, 1.0)
    A, B = (linalg.semidefinite_root(S / scale[..., None, None], rounding) for S in (first, second))
    left, _, right = np.linalg.svd(B @ A)
    distance: Float64Array = np.linalg.norm(A - B @ (left @ right), axis=(-2, -1))
    return np.sqrt(count) * np.sqrt(scale) * distance


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
    logs, is_same_range, count = _log_ratios(S1, S2, rows)
    shape = np.broadcast_shapes(count.shape, is_same_range.shape)
    count, is_same_range = np.broadcast_to(count, shape), np.broadcast_to(is_same_range, shape)
    logs = np.broadcast_to(logs, (*shape, logs.shape[-1]))
    distances = np.ones(shape)
    for index in np.ndindex(shape):
        if is_same_range[index]:
            distances[index] = _distance(logs[index] / 2.0, float(count[index]), atol)
    return distances[()]


# --- pairs of covariances


def _checked_covariances(
    S1: ArrayLike, S2: ArrayLike, rows: ArrayLike
) -> tuple[Float64Array, Float64Array, Float64Array, float]:
    """Return both stacks of covariances, broadcast, `rows`, and the larger rounding unit."""
    given = validate_gram(S1, "S1"), validate_gram(S2, "S2")
    first, second, count = linalg.broadcast_covariances(*given, rows)
    is_single = any(np.asarray(S).dtype == np.float32 for S in (S1, S2))
    rounding = float(np.finfo(np.float32 if is_single else np.float64).eps)
    return first, second, count, rounding


def _whitened(matrices: Float64Array, values: Float64Array, basis: Float64Array) -> Float64Array:
    """Return ``Wᵀ matrices W``. ``Wᵀ S W`` is I on the range of S, and W is 0 off the range.

    S has the eigenvalues `values`, and the eigenvectors `basis`.
    """
    W = basis * (1.0 / np.sqrt(np.where(values == 0, np.inf, values)))[..., None, :]
    return np.matrix_transpose(W) @ matrices @ W


def _log_ratios(
    S1: ArrayLike, S2: ArrayLike, rows: ArrayLike
) -> tuple[Float64Array, NDArray[np.bool_], Float64Array]:
    """Return the logarithms of the eigenvalues of S2⁻¹ S1, if the ranges are equal, and `rows`.

    The logarithms are 0 off a common range.  If the ranges differ, they have no meaning.  Largest
    eigenvalues that differ by a factor beyond 1e200 raise `ArgumentError`.
    """
    first, second, count, rounding = _checked_covariances(S1, S2, rows)
    n = first.shape[-1]
    values1, basis1 = linalg.semidefinite_spectrum(first, rounding)
    values2, basis2 = linalg.semidefinite_spectrum(second, rounding)
    largest1, largest2 = values1[..., -1], values2[..., -1]
    is_regular = (largest1 > 0) & (largest2 > 0)
    magnitudes = [np.log(np.where(is_regular, largest, 1.0)) for largest in (largest1, largest2)]
    is_apart = np.abs(magnitudes[0] - magnitudes[1]) > _LARGEST_LOG_FACTOR
    if is_apart.any():
        allowed = "matrices within a factor 1e200 of those of S1"
        raise ArgumentError("S2", float(np.extract(is_apart, largest2)[0]), allowed)

    is_same_range = (values1 == 0).sum(axis=-1) == (values2 == 0).sum(axis=-1)
    # The variances of `first` along the eigenvectors of `second` that are off its range.
    variances = (basis2 * (first @ basis2)).sum(axis=-2)
    off_range = np.where(values2 == 0, variances, 0.0).max(axis=-1)
    is_same_range &= off_range <= n * rounding * largest1

    # Three ways to find an eigenvalue, accurate near 1, above 1 and below 1.
    excess = np.linalg.eigvalsh(_whitened(first - second, values2, basis2))
    above = np.maximum(np.linalg.eigvalsh(_whitened(first, values2, basis2)), 1.0)
    below = np.maximum(np.linalg.eigvalsh(_whitened(second, values1, basis1))[..., ::-1], 1.0)
    is_close = np.abs(excess) < 0.5
    close = np.log1p(np.where(is_close, excess, 0.0))
    return np.where(is_close, close, np.log(above) - np.log(below)), is_same_range, count


# --- the contour integral of the total variation


def _distance(half_logs: Float64Array, rows: float, atol: float) -> float:
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
    large = size + np.log1p(np.exp(-2.0 * size)) - math.log(2.0)
    return np.where(size < 1.0, 0.5 * np.log1p(np.sinh(small) ** 2), large)


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
    bends = np.where(is_small, 0.5 * (_log_excess(-inner) - _log_excess(inner)), half_logs - slopes)
    total: NDArray[np.complex128] = np.full(s.shape, _log_cosh(half_logs).sum() + 0j)
    for slope, bend in zip(slopes.tolist(), bends.tolist(), strict=True):
        total -= _log_excess(1j * s * slope) + 1j * s * bend
    return -0.5 * rows * total


def _integrand(log_affinity: NDArray[np.complex128], v: Float64Array, angle: float) -> Float64Array:
    return 2.0 / math.pi * (-np.expm1(log_affinity) / np.cosh(v + 1j * angle)).real


def _log_excess(z: NDArray[Any]) -> NDArray[Any]:
    """Return ``z − ln(1 + z)`` for real or complex numbers, without cancellation.

    For |z| < ½ it is ``z² ∫₀¹ t / (1 + tz) dt``, by `unit_rule`.
    """
    is_small = np.abs(z) < 0.5
    small, large = np.where(is_small, z, 0.0), np.where(is_small, 1.0, z)
    integral = sum(weight * node / (1.0 + node * small) for node, weight in unit_rule())
    return np.where(is_small, small * small * integral, large - np.log(1.0 + large))
