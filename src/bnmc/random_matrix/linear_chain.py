"""The linear chain without normalization: moments of its Gram matrix, and Lyapunov exponents.

Given the Gram matrix S of a layer, the next one is a Wishart matrix, so means and covariances
follow from its moments (`WishartMoments`). The representation after many layers is a product of
Gaussian matrices, with or without a skip connection, so its singular values grow with Lyapunov
exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support import arguments
from bnmc._support.arguments import Float64Array
from bnmc._support.linalg import EPS, require_regular
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.gram import validate_gram

#: The squares of entries up to this, and sums of four of them, are float64 numbers.
_LARGEST = 1e153
#: For smaller γ, the first term of the expansion in γ² is exact to rounding.
_TINY_GAMMA = 1e-100
#: Largest number of exponents that a call without `k` returns.
_MOST_EXPONENTS = 10**8


def _count(name: str, value: object, low: int = 1) -> int:
    return arguments.integer(name, value, low=low, high=arguments.LARGEST_INTEGER)


# --- moments


class WishartMoments:
    """Moments of a Wishart matrix ``G = ZᵀZ/d``, where Z has d i.i.d. rows ``N(0, S)``.

    G is the Gram matrix of the linear chain without normalization, one layer after S.

    Parameters
    ----------
    S : (..., n, n) array_like
        Covariances, symmetric and positive semidefinite. ``E G = S``.
    width : int
        d, in 1 … 2⁵³.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `S` is not an array of such matrices, or `width` is not such an integer. The properties
        raise them if the result overflows.

    Examples
    --------
    >>> from bnmc.random_matrix import WishartMoments
    >>> moments = WishartMoments([[1.0, 0.0], [0.0, 1.0]], width=10)
    >>> moments.square
    array([[1.3, 0. ],
           [0. , 1.3]])
    >>> print(moments.deviation, moments.squared_trace.round(12), moments.trace_of_cube.round(12))
    0.6 4.4 4.08
    """

    def __init__(self, S: ArrayLike, width: int) -> None:
        self._S = validate_gram(S, "S")
        self._d = _count("width", width)

    @property
    def square(self) -> Float64Array:
        """``E G² = (1 + 1/d) S² + S Tr S / d``, (..., n, n)."""
        d = self._d
        return self._finite(
            lambda S: (1.0 + 1.0 / d) * (S @ S) + S * _trace(S)[..., None, None] / d
        )

    @property
    def trace_of_square(self) -> Float64Array:
        """``E Tr G² = (1 + 1/d) Tr S² + (Tr S)² / d``, (...)."""
        d = self._d
        return self._finite(lambda S: (1.0 + 1.0 / d) * _trace(S @ S) + _trace(S) ** 2 / d)

    @property
    def squared_trace(self) -> Float64Array:
        """``E (Tr G)² = (Tr S)² + 2 Tr S² / d``, (...)."""
        return self._finite(lambda S: _trace(S) ** 2 + 2.0 * _trace(S @ S) / self._d)

    @property
    def deviation(self) -> Float64Array:
        """``E ‖G − S‖_F² = (Tr S² + (Tr S)²) / d``, (...)."""
        return self._finite(lambda S: (_trace(S @ S) + _trace(S) ** 2) / self._d)

    @property
    def trace_of_cube(self) -> Float64Array:
        """``E Tr G³ = (1 + 3/d + 4/d²) Tr S³ + 3 (1/d + 1/d²) Tr S Tr S² + (Tr S)³/d²``, (...)."""
        d = float(self._d)
        return self._finite(
            lambda S: (
                (1.0 + 3.0 / d + 4.0 / d**2) * _trace(S @ S @ S)
                + 3.0 * (1.0 / d + 1.0 / d**2) * _trace(S) * _trace(S @ S)
                + _trace(S) ** 3 / d**2
            )
        )

    @property
    def inverse(self) -> Float64Array:
        """``E G⁻¹ = S⁻¹ d / (d − n − 1)``, (..., n, n), for d > n + 1 and regular S.

        Raises
        ------
        ArgumentError
            If d <= n + 1: then the expectation does not exist.
        SingularGramError
            If an `S` is singular to rounding, ``λ_min <= n ε λ_max``.
        """
        d, n = self._d, self._S.shape[-1]
        if d <= n + 1:
            raise ArgumentError("width", d, f"an integer > {n + 1}", "E G⁻¹ exists for d > n + 1")
        spectrum, basis = np.linalg.eigh(self._S)
        require_regular("S", spectrum, EPS)
        return self._finite(
            lambda _: (
                (basis / spectrum[..., None, :]) @ np.matrix_transpose(basis) * (d / (d - n - 1))
            )
        )

    def _finite(self, expectation: Callable[[Float64Array], Float64Array]) -> Float64Array:
        with np.errstate(over="ignore", invalid="ignore"):  # raises below, by name
            value = expectation(self._S)
        if not np.isfinite(value).all():
            largest = float(np.abs(self._S).max())
            raise ArgumentError("S", largest, "matrices whose moments do not overflow float64")
        return value


def linear_covariance(G0: ArrayLike, width: int, depth: int) -> Float64Array:
    """Exact covariance of the entries of G_l of the linear chain without normalization.

    With ``X = G_ij G_km`` and ``Y = G_ik G_jm + G_im G_jk``, the expectations after a layer of
    width d are

        E X₊ = X + Y/d,    E Y₊ = 2X/d + (1 + 1/d) Y,

    so ``E X_l = ((1 + 2/d)^l (X₀ + Y₀) + (1 − 1/d)^l (2X₀ − Y₀))/3``. The mean of G_l is G_0. To
    leading order in l/d the covariance is ``Y₀ l/d``.

    Parameters
    ----------
    G0 : (n, n) array_like
        Gram matrix of layer 0, symmetric and positive semidefinite.
    width : int
        d, in 1 … 2⁵³.
    depth : int
        l, in 0 … 2⁵³.

    Returns
    -------
    (n, n, n, n) ndarray of float64
        ``Cov(G_ij, G_km)`` at layer l. Infinite beyond the range of float64.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G0` is not such a matrix, or another argument not an integer in its range.
    ResultTooLargeError
        If n⁴ numbers would not fit in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.random_matrix import linear_covariance, vanilla_deviation
    >>> covariance = linear_covariance(np.eye(3), width=100, depth=20)
    >>> print(np.einsum("ijij", covariance).round(9), vanilla_deviation(100, 3, 20).round(9))
    2.793923105 2.793923105
    """
    S = validate_gram(G0, "G0")
    if S.ndim != 2:
        raise ArgumentError("G0", S.shape, "one matrix")
    d = _count("width", width)
    layers = _count("depth", depth, low=0)
    decay = math.log1p(-1.0 / d) if d > 1 else -1e3  # exp(−1000) is 0 to rounding
    largest = float(np.abs(S).max(initial=0.0))
    if largest > _LARGEST:
        raise ArgumentError("G0", largest, "a matrix whose squares do not overflow float64")
    # X, Y, their sum, the result and two temporary arrays.
    require_memory("G0", 8 * 6 * len(S) ** 4)
    X = np.einsum("ij,km->ijkm", S, S)
    Y = np.einsum("ik,jm->ijkm", S, S) + np.einsum("im,jk->ijkm", S, S)
    both = X + Y
    with np.errstate(over="ignore", invalid="ignore"):  # 0 times infinity is replaced by 0
        grown = np.where(both == 0.0, 0.0, both * np.expm1(layers * math.log1p(2.0 / d)))
        return (grown + (2.0 * X - Y) * np.expm1(layers * decay)) / 3.0


def vanilla_deviation(width: int, batch: int, depth: ArrayLike) -> Float64Array:
    """Exact ``E ‖G_l − I‖_F²`` of the linear chain without normalization, from ``G_0 = I``.

    It is ``n(n+2)/3 (1 + 2/d)^l − n(n−1)/3 (1 − 1/d)^l − n``. Given G, the expectations
    ``E Tr G₊²`` and ``E (Tr G₊)²`` (`WishartMoments`) are linear in Tr G² and (Tr G)². The
    eigenvalues of this linear map are 1 + 2/d and 1 − 1/d.

    This is the expectation of the vanilla curve of Joudaki, Daneshmand and Bach (arXiv 2205.13076).
    At depths beyond d, rare and large G dominate the expectation, so the mean of a simulation is
    usually smaller.

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    batch : int
        n, in 1 … 2⁵³. It may exceed d.
    depth : (...) array_like of int
        Layers l, in 0 … 2⁵³.

    Returns
    -------
    (...) ndarray of float64
        The relative error is about 1e-15, times the exponent 2l/d if that exceeds 1. Infinite
        beyond the range of float64, near l = 355 d.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not an integer in its range.

    Examples
    --------
    >>> from bnmc.random_matrix import vanilla_deviation
    >>> vanilla_deviation(1000, 10, [0, 1, 100]).round(9)
    array([ 0.        ,  0.11      , 11.70...])
    """
    d = _count("width", width)
    n = float(_count("batch", batch))
    layers = arguments.integers("depth", depth, low=0)
    growth = math.log1p(2.0 / d)
    decay = math.log1p(-1.0 / d) if d > 1 else -1e3  # exp(−1000) is 0 to rounding
    # The constants n(n+2)/3, n(n−1)/3 and n cancel. Without them, both terms of the difference are
    # non-negative.
    with np.errstate(over="ignore"):
        grown = n * (n + 2.0) / 3.0 * np.expm1(layers * growth)
        return grown - n * (n - 1.0) / 3.0 * np.expm1(layers * decay)


def _trace(matrices: Float64Array) -> Float64Array:
    return np.trace(matrices, axis1=-2, axis2=-1)


# --- Lyapunov exponents


def lyapunov_ginibre(width: int, k: ArrayLike | None = None) -> Float64Array:
    """Lyapunov exponents of products of independent d × d matrices with entries ``N(0, 1/d)``.

    ``λ_k = ½ [ψ((d−k+1)/2) + ln(2/d)]``, with ψ the digamma function: each factor multiplies the
    k-th squared pivot of the product by an independent ``χ²_{d−k+1}/d`` (Newman 1986). The λ_k are
    the growth rates per layer of the linear chain of gain 1 without normalization. For a batch
    n <= d, the chain has the first n exponents.

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    k : array_like of int, optional
        Indices of the exponents, 1 for the largest. By default all d exponents, for d <= 10⁸.

    Returns
    -------
    ndarray of float64
        Of the shape of `k`. By default (width,), descending.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `width` or `k` is not an integer or lies outside its range.

    Examples
    --------
    >>> from bnmc.random_matrix import lyapunov_ginibre
    >>> lyapunov_ginibre(2).round(12)
    array([-0.28860783, -0.98175501])
    >>> print(lyapunov_ginibre(10**15, 1).round(25))
    -5e-16
    """
    d = _count("width", width)
    if k is None:
        if d > _MOST_EXPONENTS:
            raise ArgumentError("width", d, f"at most {_MOST_EXPONENTS} without k", "pass k")
        index = np.arange(1.0, d + 1.0)
    else:
        index = arguments.integers("k", k, low=1, high=d)
    # For large d, ψ and ln(2/d) cancel. So add ψ(x) − ln x and ln(freedom / d), which are small.
    freedom = d - index + 1.0
    near_one = np.log1p((1.0 - np.minimum(index, d / 2 + 1)) / d)
    log_share = np.where(2.0 * freedom < d, np.log(freedom / d), near_one)
    return 0.5 * (log_share + _digamma_less_log(freedom / 2.0))


def lyapunov_residual(width: int, gamma: ArrayLike) -> Float64Array:
    """Largest Lyapunov exponent of products of independent ``I + γ W``, W of ``N(0, 1)`` entries.

    ``λ₁ = ½ [ln 2γ² + Σ_j Pois(j; μ) ψ(d/2 + j)]``, ``μ = 1/(2γ²)``, with ψ the digamma function.
    Since W is invariant under rotations, each factor multiplies the norm of a vector by an
    independent noncentral chi variable. The products are those of the linear skip chain of
    Daneshmand et al. (arXiv 2003.01652) without normalization.

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    gamma : (...) array_like
        γ in [0, 1e150].

    Returns
    -------
    (...) ndarray of float64
        The relative error is about 1e-14, also for small γ, where ``λ₁ ≃ (d − 2) γ²/2``. For d = 1,
        the absolute error is about 1e-14 where λ₁ changes its sign.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `width` is not such an integer, or `gamma` is not an array of such numbers.

    See Also
    --------
    lyapunov_residual_estimate : the other exponents.

    Notes
    -----
    With the integral of ψ, the sum over j has a closed form:

        2 λ₁ = E₁(μ) + ∫₀¹ e^{−μu} (1 − (1−u)^{d/2−1}) du/u,

    with E₁ the exponential integral. For d >= 2 no term is negative. In ``v = ln(u/(1−u))`` the
    trapezoidal rule converges geometrically, with a step that does not depend on d and γ. For
    d = 2, ``λ₁ = E₁(μ)/2``.

    Examples
    --------
    >>> from bnmc.random_matrix import lyapunov_residual
    >>> lyapunov_residual(100, [1.0, 0.01, 1e-6])
    array([2.30254407e+00, 4.87662638e-03, 4.90000000e-11])
    """
    d = _count("width", width)
    gammas = arguments.real_numbers("gamma", gamma, low=0, high=1e150)
    is_tiny = gammas < _TINY_GAMMA
    mu = 0.5 / np.square(np.where(is_tiny, 1.0, gammas))
    exponents = 0.5 * _mean_digamma_less_log(d / 2.0, mu)
    # The next term of the expansion is smaller by a factor d γ².
    first_order = (d / 2.0 - 1.0) * np.square(np.where(is_tiny, gammas, 0.0))
    return np.where(is_tiny, first_order, exponents)[()]


def lyapunov_residual_estimate(
    width: int, gamma: float, k: int, *, samples: int = 10_000, rng: Any = None
) -> Estimate:
    """Estimate of the k-th Lyapunov exponent of products of ``I + γ W``, W of ``N(0, 1)`` entries.

    The function draws no matrices, and the law of the samples is exact. We know a closed form of
    the largest exponent only (`lyapunov_residual`).

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    gamma : float
        γ in [1e-70, 1e100].
    k : int
        Index of the exponent, 1 … `width`. The largest, 1, has standard error 0. The time is
        proportional to k.
    samples : int, default 10_000
        Independent samples, >= 2.
    rng : optional
        Any argument of `numpy.random.default_rng`.

    Returns
    -------
    Estimate
        Its confidence interval uses the central limit theorem.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range.
    ResultTooLargeError
        If the samples do not fit into the free memory.

    Notes
    -----
    ``O (I + γW) Oᵀ`` has the law of ``I + γW`` for every orthogonal O. So the volume that k vectors
    span grows by independent factors, and ``λ_k = E ln r_k``. Here ``r_k`` is the norm of the k-th
    column of ``Y = I + γW`` after projection onto the complement of the first k−1 columns.

    Given the first k−1 columns, ``r_k²/γ²`` is a noncentral ``χ²_m(τ/γ²)`` with m = d−k+1. τ is the
    squared length of the projection of the unit vector e_k onto the same complement. The k-th row
    of the first k−1 columns is γw with w normal. It is independent of their other rows Y₀, so
    ``1/τ = 1 + γ² w (Y₀ᵀY₀)⁻¹ wᵀ`` (Sherman and Morrison). Since Y₀ is invariant too, w may be
    rotated to ``χ_{k−1} e_{k−1}``. ``1/(Y₀ᵀY₀)⁻¹_{k−1,k−1}`` is the ``r²`` of the last column of
    Y₀, which is the same problem with d−1, k−1 and the same m. Hence, with R_j and χ²_j independent
    given τ_j,

        τ₁ = 1,   R_j ~ χ²_m(τ_j/γ²),   τ_{j+1} = R_j / (R_j + χ²_j),   λ_k = ½ E ln(γ² R_k),

    and given τ_k, the last expectation is the integral in the notes of `lyapunov_residual`.

    Examples
    --------
    >>> from bnmc.random_matrix import lyapunov_residual_estimate
    >>> print(lyapunov_residual_estimate(3, 2.0, 2, rng=0))
    0.79... ± 0.00...
    """
    d = _count("width", width)
    gamma = arguments.real("gamma", gamma, low=1e-70, high=1e100)
    k = arguments.integer("k", k, low=1, high=d)
    samples = arguments.integer("samples", samples, low=2)
    stream = arguments.generator(rng)
    require_memory("samples", 48 * samples)
    freedom = d - k + 1
    log_tau = np.zeros(samples)
    for j in range(1, k):
        # Noncentral chi-square. NumPy's generator limits the noncentrality.
        R = np.square(np.exp(0.5 * log_tau) / gamma + stream.standard_normal(samples))
        if freedom > 1:
            R += stream.chisquare(freedom - 1, samples)
        log_tau = -np.log1p(stream.chisquare(j, samples) / R)
    mu = 0.5 * np.exp(log_tau) / gamma**2
    exponents = 0.5 * (_mean_digamma_less_log(freedom / 2.0, mu) + log_tau)
    return Estimate.from_samples(exponents, method="noncentral chi-square recursion")


def _digamma_less_log(x: Float64Array) -> Float64Array:
    """Return ψ(x) − ln x for x >= 1/2."""
    from scipy.special import digamma

    is_large = x >= 16.0
    small, large = np.where(is_large, 1.0, x), np.where(is_large, x, 16.0)
    # Coefficients −B_2k / 2k, highest power first. The next term is below 1e-18.
    inverse_square = 1.0 / np.square(large)
    series = np.zeros_like(large)
    for coefficient in (691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12):
        series = inverse_square * (coefficient + series)
    return np.where(is_large, series - 0.5 / large, digamma(small) - np.log(small))


def _mean_digamma_less_log(a: float, mu: Float64Array) -> Float64Array:
    """Return E ψ(a + J) − ln μ for J ~ Pois(μ), a >= 1/2, as in `lyapunov_residual`."""
    from scipy.special import exp1

    # The integrand is bounded in the strip |Im v| < π/2, so the error of the rule is exp(−π²/step).
    # Both tails are cut at e^−42 of the integral. To the left the integrand is (a − 1) e^v. To the
    # right it decays as e^−v or, for a = 1/2, as e^−v/2.
    step = 0.1875  # a multiple of 1/16, so that no v is rounded
    start = -42.0 - math.log(a + float(np.max(mu, initial=1.0)))
    total = np.zeros_like(mu)
    for index in range(math.floor(start / step), math.ceil(84.0 / step)):
        v = index * step
        u = 1.0 / (1.0 + math.exp(-v))
        rest = 1.0 / (1.0 + math.exp(v))
        softplus = math.log1p(math.exp(v))
        total += -math.expm1((1.0 - a) * softplus) * rest * np.exp(-mu * u)
    return exp1(mu) + step * total
