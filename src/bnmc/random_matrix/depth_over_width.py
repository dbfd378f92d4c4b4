"""Laws of deep networks without norm, at widths that are not large compared with the depth.

What is random in one layer vanishes like 1/width, and adds up over the layers, so laws depend on
the sum of 1/width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import polygamma, psi
from scipy.stats import binom

from bnmc._support.arguments import (
    LARGEST_INTEGER,
    Float64Array,
    finite_array,
    generator,
    integer,
    integers,
    real,
)
from bnmc._support.linalg import EPS, binary_scale, require_finite, semidefinite_root
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError
from bnmc.gram import validate_gram

#: Widths up to this have exact moments; beyond, terms of order width⁻³ are below rounding.
_EXACT = 10**5


class LogNorm(NamedTuple):
    """Mean and variance of the logarithm of a squared norm; see `log_norm`.

    Attributes
    ----------
    mean, variance : float
        Given that no layer is inactive.
    death : float
        Probability that all neurons of some layer are inactive.

    Examples
    --------
    >>> from bnmc.random_matrix import log_norm
    >>> print(log_norm([1, 2]).death)
    0.625
    """

    mean: float
    variance: float
    death: float


def log_norm(widths: ArrayLike, slopes: Sequence[float] = (0.0, 1.0)) -> LogNorm:
    """Return mean and variance of ln of the growth of the squared norm of one input.

    Layer l is ``a_l = σ(W_l a_{l−1})`` with σ(x) = p x for x > 0 and q x for x < 0, width d_l, and
    weights N(0, 2/((p² + q²) d_{l−1})), which keep the mean of ``‖a‖²/d``. The law is that of
    ``ln (‖a_L‖²/d_L)/(‖a_0‖²/d_0)``: a sum of independent terms, one a layer.

    Parameters
    ----------
    widths : (L,) array_like of int
        d_1, …, d_L, each in 1 … 2⁵³.
    slopes : (float, float), default (0.0, 1.0)
        q and p, the slopes left and right of 0: (0, 1) is ReLU, (1, 1) the identity, (−1, 1) the
        absolute value.

    Returns
    -------
    LogNorm
        Mean and variance, given that no layer is inactive, and the probability that one is. If one
        slope is 0, the norm is 0 with that probability, so the mean of the logarithm is −∞.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `widths` is not such an array, or `slopes` are not two finite numbers, not both 0.

    Notes
    -----
    A term is ln of the mean of d independent y, distributed like σ(z)²/E σ(z)² for z ~ N(0, 1). If
    one slope is 0, or both have one square, it is ln(χ²_K/E χ²_K) with K binomial, or K = d. Its
    mean is E ψ(K/2) − ln(E K/2), and its variance E ψ′(K/2) + Var ψ(K/2). Otherwise, and for widths
    above 10⁵, mean and variance are expansions, with errors of order d⁻³: −k₂/2d + (k₃/3 − ¾k₂²)/d²
    and k₂/d + (5k₂²/2 − k₃)/d², with k₂ and k₃ the cumulants of y. ReLU has k₂ = 5, the identity 2
    (Hanin and Nica, arXiv 1812.05994).

    Examples
    --------
    Fifty layers of ReLU of width 100:

    >>> from bnmc.random_matrix import log_norm
    >>> law = log_norm([100] * 50)
    >>> print(f"{law.mean:.4f} {law.variance:.4f} {law.death:.1e}")
    -1.2710 2.5970 3.9e-29
    """
    q, p = _slopes(slopes)
    values, counts = np.unique(integers("widths", widths), return_counts=True)
    is_half = 0.0 in (q, p)
    means, variances = [], []
    for d in values:
        if d <= _EXACT and (is_half or abs(q) == abs(p)):
            mean, variance = _exact(int(d), is_half)
        else:
            k2, k3 = _cumulants(q, p)
            mean = -k2 / (2.0 * d) + (k3 / 3.0 - 0.75 * k2**2) / d**2
            variance = k2 / d + (2.5 * k2**2 - k3) / d**2
        means.append(mean)
        variances.append(variance)
    alive = float(counts @ np.log1p(-np.exp2(-values))) if is_half else 0.0
    return LogNorm(float(counts @ means), float(counts @ variances), -math.expm1(alive))


def four_point_vertex(width: int, depth: int, slopes: Sequence[float] | None = None) -> float:
    """Return (Var K)/(E K)², K the variance of a pre-activation given the layers before.

    The network has no norm, `depth` hidden layers of equal width, and weights at criticality. If
    `slopes` are given, σ(x) = p x for x > 0 and q x for x < 0, and the result is (1 + k₂/d)^l − 1,
    exactly, with k₂ as in `log_norm`. Otherwise σ is smooth with σ(0) = σ″(0) = 0, such as tanh and
    sin, and it is ⅔ l/d to leading order in 1/d and in l (Roberts, Yaida and Hanin, arXiv
    2106.10165, 5.4).

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    depth : int
        l, in 0 … 2⁵³.
    slopes : (float, float), optional
        q and p, as in `log_norm`.

    Returns
    -------
    float
        At least 0. Infinite if it exceeds float64.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.random_matrix import four_point_vertex
    >>> print(round(four_point_vertex(100, 10), 4), round(four_point_vertex(100, 10, (0, 1)), 4))
    0.0667 0.6289
    """
    d = integer("width", width, low=1, high=LARGEST_INTEGER)
    depth = integer("depth", depth, low=0, high=LARGEST_INTEGER)
    if slopes is None:
        return 2.0 * depth / (3.0 * d)
    k2, _ = _cumulants(*_slopes(slopes))
    with np.errstate(over="ignore"):
        return float(np.expm1(depth * math.log1p(k2 / d)))


def tangent_kernel_dispersion(width: int, depth: int) -> float:
    """Return E Θ²/(E Θ)² of the tangent kernel of one input, for ReLU of gain² 2 without norm.

    The network has L hidden layers of width d, one output, and the parametrization of tangent
    kernels, so Θ is a sum over its L + 1 matrices, of equal means.

    Parameters
    ----------
    width : int
        d, in 1 … 2⁵³.
    depth : int
        L, in 0 … 10⁷.

    Returns
    -------
    float
        At least 1. Infinite if it exceeds float64.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an integer.

    Notes
    -----
    The result is exact: (1 + 5/d)^L times the mean of ``⅓ + ⅔ ρ^|l−m|`` over pairs of matrices,
    with ρ = (1 − 1/d)/(1 + 5/d). For L, d → ∞ and L/d = λ it tends to
    ``e^{5λ} (⅓ + ⅔ · 2(6λ − 1 + e^{−6λ})/(6λ)²)``. Proof: let B be the product of the layers
    between two matrices, and a the activations after it. From layer to layer, ``P = E ‖a‖² ‖B‖²``
    and ``R = E ‖Bᵀa‖²`` become (1 + 1/d)P + 4R/d and 2P/d + (1 + 3/d)R. The matrix of this map has
    the eigenvalues 1 + 5/d and 1 − 1/d. Seleznova and Kutyniok (arXiv 2202.00553) give
    ``e^{5λ} (1 − (1 − e^{−4λ})/4λ)/2λ``, without R, which is smaller, by 3/(2λ) at large λ.

    Examples
    --------
    >>> from bnmc.random_matrix import tangent_kernel_dispersion
    >>> print(round(tangent_kernel_dispersion(100, 10), 4))
    1.4298
    """
    d = integer("width", width, low=1, high=LARGEST_INTEGER)
    matrices = integer("depth", depth, low=0, high=10**7) + 1
    apart = np.arange(matrices)
    pairs = np.where(apart == 0, 1.0, 2.0) * (matrices - apart) / float(matrices) ** 2
    ratio = (1.0 - 1.0 / d) / (1.0 + 5.0 / d)
    with np.errstate(over="ignore", under="ignore"):
        mean = 1.0 / 3.0 + 2.0 / 3.0 * float(pairs @ ratio**apart)
        return mean * float(np.exp(depth * math.log1p(5.0 / d)))


def shaped_relu(
    gram: ArrayLike,
    time: float,
    slopes: Sequence[float] = (-1.0, 1.0),
    *,
    paths: int = 1,
    steps: int = 100,
    rng: Any = None,
) -> Float64Array:
    """Sample the covariance of shaped ReLU networks at a depth over width of `time`.

    The slopes of a network of width d are 1 + c_±/√d. As depth and width tend to infinity, with
    depth/width → t, the Gram matrix V follows the equation ``dV = b(V) dt + dM``, where ``dM`` has
    the covariance ``V_ik V_jl + V_il V_jk``, and with the correlation ρ_ij
    ``b_ij = (c₊ − c₋)²/2π (√(1 − ρ²) − ρ arccos ρ) √(V_ii V_jj)`` (Li, Nica and Roy, arXiv
    2206.02768, Theorem 3.2).

    Parameters
    ----------
    gram : (n, n) array_like
        V at time 0, symmetric and positive semidefinite.
    time : float
        t, in [0, 1e6].
    slopes : (float, float), default (-1.0, 1.0)
        c₋ and c₊, in [−1000, 1000].
    paths : int, default 1
        Number of independent samples.
    steps : int, default 100
        Steps of the integrator, more than n t and (c₊ − c₋)² t/2π. A step adds b dt, and draws a
        Wishart matrix of 1/dt degrees of freedom, whose covariance is that of dM, so V stays a
        covariance. Moments have errors of order dt.
    rng : optional
        Any argument of `numpy.random.default_rng`.

    Returns
    -------
    (paths, n, n) ndarray of float64

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or a sample exceeds float64.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.random_matrix import shaped_relu
    >>> V = shaped_relu([[1.0, 0.3], [0.3, 1.0]], 1.0, paths=2000, rng=0)
    >>> print(V[:, 0, 0].mean().round(1), np.log(V[:, 0, 0]).mean().round(1))
    1.0 -1.0
    """
    start = validate_gram(gram, "gram")
    if start.ndim != 2:
        raise ArgumentError("gram", start.shape, "one matrix (n, n)")
    scale = binary_scale(start)
    n, time = len(start), real("time", time, low=0.0, high=1e6)
    left, right = (real("slopes", slope, low=-1e3, high=1e3) for slope in _pair(slopes))
    strength = (right - left) ** 2 / (2.0 * math.pi)
    paths = integer("paths", paths, low=1)
    steps = integer("steps", steps, low=int(max(n, strength) * time) + 1)
    random = generator(rng)
    require_memory("paths", 32 * paths * n * n)
    V = np.repeat(start[None] / scale, paths, axis=0)
    if time < 1e-100:  # changes of order √t are below rounding
        return scale * V
    dt = time / steps
    for _ in range(steps):
        V = _wishart(V + strength * dt * _drift(V), 1.0 / dt, random)
    with np.errstate(over="ignore"):
        V *= scale
    require_finite("gram", start, V)
    return V


def _pair(slopes: Sequence[float]) -> Float64Array:
    return finite_array("slopes", slopes, shape=(2,)).astype(np.float64)


def _slopes(slopes: Sequence[float]) -> tuple[float, float]:
    """Return slopes whose larger one is ±1; the law does not depend on their scale."""
    pair = _pair(slopes)
    largest = float(abs(pair).max())
    if largest == 0.0:
        raise ArgumentError("slopes", tuple(slopes), "two numbers that are not both 0")
    q, p = pair / largest
    return float(q), float(p)


def _cumulants(q: float, p: float) -> tuple[float, float]:
    """Return the second and third cumulant of σ(z)²/E σ(z)²."""
    second = (q**2 + p**2) / 2.0
    fourth, sixth = (q**4 + p**4) / 2.0 / second**2, (q**6 + p**6) / 2.0 / second**3
    return 3.0 * fourth - 1.0, 15.0 * sixth - 9.0 * fourth + 2.0


def _exact(d: int, is_half: bool) -> tuple[float, float]:
    """Return mean and variance of ln(χ²_K/E χ²_K), K binomial (d, ½) and at least 1, or K = d."""
    if not is_half:
        return float(psi(d / 2.0)) - math.log(d / 2.0), float(polygamma(1, d / 2.0))
    k = np.arange(1.0, d + 1.0)
    weights = binom.pmf(k, d, 0.5)
    weights /= weights.sum()
    terms = psi(k / 2.0) - math.log(d / 4.0)
    mean = float(weights @ terms)
    return mean, float(weights @ (polygamma(1, k / 2.0) + (terms - mean) ** 2))


def _drift(V: Float64Array) -> Float64Array:
    """Return (√(1 − ρ²) − ρ arccos ρ) √(V_ii V_jj) of matrices (paths, n, n)."""
    lengths = np.sqrt(np.einsum("...ii->...i", V))
    scale = lengths[:, :, None] * lengths[:, None, :]
    rho = np.clip(np.divide(V, scale, out=np.ones_like(V), where=scale > 0.0), -1.0, 1.0)
    return scale * (np.sqrt(1.0 - rho**2) - rho * np.arccos(rho))


def _wishart(S: Float64Array, freedom: float, random: np.random.Generator) -> Float64Array:
    """Return Wishart matrices of mean S and real degrees of freedom, by Bartlett's factors."""
    n = S.shape[-1]
    lower = np.tril(random.standard_normal(S.shape), -1)
    squares = random.chisquare(freedom - np.arange(n), S.shape[:-1])
    lower[:, range(n), range(n)] = np.sqrt(squares)
    root = semidefinite_root(S, EPS) @ lower / math.sqrt(freedom)
    return root @ root.mT
