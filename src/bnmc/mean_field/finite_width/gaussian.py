"""Gaussian symmetric matrices: coordinates, norms, linear observables; `PathFluctuations`.

A symmetric n × n matrix has p = n(n+1)/2 coordinates in an orthonormal basis: the entries of its
upper triangle, row by row, those off the diagonal times √2.  So the inner product of coordinates is
that of the matrices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, integer, real
from bnmc._support.text import Result
from bnmc.errors import ArgumentError, LinearTheoryWarning
from bnmc.estimate.estimate import Estimate
from bnmc.mean_field.float64 import FloatArray


def packed(matrices: FloatArray) -> FloatArray:
    """Return coordinates of symmetric matrices, shape (..., p)."""
    i, j = np.triu_indices(matrices.shape[-1])
    return np.asarray(matrices[..., i, j] * np.where(i == j, 1.0, math.sqrt(2.0)))


def unpacked(coordinates: FloatArray) -> FloatArray:
    """Return the symmetric matrices with some coordinates, shape (..., n, n)."""
    n = math.isqrt(2 * coordinates.shape[-1])
    i, j = np.triu_indices(n)
    matrices = np.empty((*coordinates.shape[:-1], n, n))
    matrices[..., i, j] = matrices[..., j, i] = coordinates * np.where(i == j, 1.0, math.sqrt(0.5))
    return matrices


def products(rows: FloatArray) -> FloatArray:
    """Return the coordinates of vvᵀ for each row v, shape (rows, p)."""
    i, j = np.triu_indices(rows.shape[1])
    scaled = rows * math.sqrt(2.0)
    entries = np.where(i == j, rows[:, i], scaled[:, i])
    entries *= rows[:, j]
    return np.asarray(entries)


# --- the norm of a Gaussian vector

# Step and ends of the trapezoidal rule in the logarithm of the variable.
_STEP, _LAST = 0.05, 40.0

# From this effective number of components on, Imhof's integral replaces Talbot's contour, which
# then loses digits.
_MANY = 30.0

# Nodes of the contour. Step and nodes of Imhof's integral, for Σλ = 1: with 30 equal components its
# integrand at the last node is below 1e-15.
_CONTOUR, _IMHOF_STEP, _IMHOF_NODES = 24, 0.1, 2000


def mean_norm(variances: Sequence[tuple[float, int]], mean: float = 0.0) -> float:
    """Return E‖z‖ of a Gaussian vector z.

    With Q = ‖z‖², λ the variances of its independent components, and m the mean of the first one,

        E √Q = 1/(2√π) ∫₀^∞ (1 − E e^(−sQ)) s^(−3/2) ds,
        E e^(−sQ) = exp(−s m²/(1 + 2sλ₁)) Π (1 + 2sλ)^(−1/2).

    The trapezoidal rule in log s converges exponentially.

    Parameters
    ----------
    variances : sequence of (float, int)
        The variances λ ≥ 0, each with its multiplicity; that of the first one is 1.
    mean : float, default 0
        m. All other components have mean 0.
    """
    total = sum(variance * count for variance, count in variances) + mean**2
    if total <= 0.0:
        return 0.0
    # In units of the total the integrand is centred near s = 1, and decays like e^(∓|log s|/2).
    v = np.arange(-2.0 * _LAST, 2.0 * _LAST + _STEP, _STEP)
    s = np.exp(v)
    log_mean = -s * mean**2 / total / (1.0 + 2.0 * s * max(variances[0][0], 0.0) / total)
    for variance, count in variances:  # rounding may make a variance of 0 negative
        log_mean -= 0.5 * count * np.log1p(2.0 * s * max(variance, 0.0) / total)
    integral = _STEP * float(np.sum(-np.expm1(log_mean) * np.exp(-0.5 * v)))
    return math.sqrt(total) * integral / (2.0 * math.sqrt(math.pi))


def norm_quantile(variances: FloatArray, probability: float) -> float:
    """Return a quantile of ‖z‖ for a Gaussian vector z of mean 0.

    Let Q = ‖z‖², λ be the variances of its independent components, and 1 their sum. If few of them
    count, that is 1/Σλ² is at most 30, the law of Q is the inverse of its Laplace transform
    ``Π (1 + 2sλ)^(−½)``, by Talbot's contour. All singularities are negative numbers, so the
    contour converges geometrically. If many count, it is the integral of Imhof (1961),

        P(Q ≤ x) = ½ − (1/π) ∫₀^∞ sin(½ Σ arctan(2λu) − ux) / (u Π (1 + 4λ²u²)^¼) du.

    Parameters
    ----------
    variances : ndarray of shape (components,)
        λ. Negative ones, which rounding causes, count as 0.
    probability : float
        In (0, 1).
    """
    from scipy.optimize import brentq

    positive = np.maximum(variances, 0.0)
    total = float(positive.sum())
    if total == 0.0:
        return 0.0
    shares = positive[positive > 0.0] / total
    law = _by_talbot if 1.0 / float(np.sum(shares**2)) <= _MANY else _by_imhof

    def excess(log_square: float) -> float:
        return law(shares, math.exp(log_square)) - probability

    # Q ≥ 1 + 2√t + 2t has a probability of at most e^(−t) (Laurent and Massart 2000).
    t = -math.log1p(-probability)
    ends = _chernoff(shares, math.log(probability)), math.log(1.0 + 2.0 * math.sqrt(t) + 2.0 * t)
    return math.sqrt(total * math.exp(brentq(excess, *ends, xtol=1e-9, rtol=1e-9)))


def _chernoff(shares: FloatArray, log_probability: float) -> float:
    """Return a lower bound of the logarithm of a quantile of Q.

    P(Q ≤ x) ≤ e^(sx) E e^(−sQ) for all s > 0, and least if x = Σ λ/(1 + 2sλ). Far below this bound
    the contour would overflow.
    """
    from scipy.optimize import brentq

    def location(s: float) -> float:
        return float(np.sum(shares / (1.0 + 2.0 * s * shares)))

    def excess(log_s: float) -> float:
        s = math.exp(log_s)
        log_laplace = -0.5 * float(np.sum(np.log1p(2.0 * s * shares)))
        return s * location(s) + log_laplace - log_probability

    return math.log(location(math.exp(brentq(excess, -30.0, 60.0, xtol=1e-6, rtol=1e-9))))


def _by_talbot(shares: FloatArray, x: float) -> float:
    """Return P(Q ≤ x) by Talbot's contour, in the form of Abate and Valkó (2004)."""
    k = np.arange(1, _CONTOUR)
    angle = k * np.pi / _CONTOUR
    cotangent = 1.0 / np.tan(angle)
    points = np.concatenate([[0.4 * _CONTOUR], 0.4 * k * np.pi * (cotangent + 1j)])
    factors = 1.0 + 1j * angle * (1.0 + cotangent**2) - 1j * cotangent
    weights = np.exp(points) * np.concatenate([[0.5], factors])
    s = points / x
    logs = np.log1p(2.0 * s[:, None] * shares).sum(axis=1)
    return float(0.4 / x * np.sum((weights * np.exp(-0.5 * logs) / s).real))


def _by_imhof(shares: FloatArray, x: float) -> float:
    """Return P(Q ≤ x) by the midpoint rule, which converges geometrically."""
    u = _IMHOF_STEP * (np.arange(_IMHOF_NODES) + 0.5)
    products = 2.0 * u[:, None] * shares
    phase = 0.5 * np.arctan(products).sum(axis=1) - u * x
    log_size = 0.25 * np.log1p(products**2).sum(axis=1)
    return 0.5 - _IMHOF_STEP / math.pi * float(np.sum(np.sin(phase) * np.exp(-log_size) / u))


# --- observables

# Step of the central differences, relative to the mean of the diagonal.
_DIFFERENCE = 1e-5


def gradient_at(
    observable: Callable[[FloatArray], float] | ArrayLike, gram: FloatArray
) -> FloatArray:
    """Return the gradient of an observable at a Gram matrix, a symmetric matrix.

    Parameters
    ----------
    observable : callable or (batch, batch) array_like
        Maps a Gram matrix to a number; or the gradient itself.
    gram : ndarray of shape (batch, batch)
        The Gram matrix.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the gradient has another shape or is not finite.
    """
    n = len(gram)
    if not callable(observable):
        given = finite_array("observable", observable, shape=(n, n)).astype(np.float64)
        return np.asarray(0.5 * (given + given.T))
    step = _DIFFERENCE * float(np.trace(gram)) / n
    gradient = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            change = np.zeros((n, n))
            change[i, j] = change[j, i] = step
            ends = [float(observable(gram + sign * change)) for sign in (1.0, -1.0)]
            slope = (ends[0] - ends[1]) / (2.0 * step)
            gradient[i, j] = gradient[j, i] = slope if i == j else 0.5 * slope
    checked = finite_array("gradient of observable", gradient, shape=(n, n))
    return checked.astype(np.float64, copy=False)


# --- the path of one input

# A layer's least width is this times the width at which the neglected terms are as large as S.
_LINEAR = 10.0


@dataclass(frozen=True, eq=False)
class PathPrediction(Result):
    """A predicted number per layer, with its numerical error.

    Attributes
    ----------
    value : (depth + 1,) ndarray of float64
        The numbers, to leading order in 1/width.
    stderr : (depth + 1,) ndarray of float64
        Their standard errors from randomized quasi-Monte Carlo. Terms of higher order in 1/width
        are not included.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "tanh"))
    >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), 4, rng=0, fluctuations=True)
    >>> found = run.fluctuations.mean_square(1000)
    >>> found.value.shape, bool(found.stderr.max() < 1e-3 * found.value.max())
    ((5,), True)
    >>> found[0].value
    0.0
    """

    value: FloatArray
    stderr: FloatArray

    def __getitem__(self, layer: int) -> Estimate:
        """Return the prediction of a layer, with an interval of two standard errors."""
        value, stderr = float(self.value[layer]), float(self.stderr[layer])
        ci = value - 2.0 * stderr, value + 2.0 * stderr
        return Estimate(value, stderr, ci, 1, "leading order in 1/width")


@dataclass(frozen=True, eq=False, kw_only=True)
class PathFluctuations(Result):
    """Fluctuations of the Gram matrices of one input around the mean field, to leading order.

    `MeanField.trajectory` returns it, with the formulas, as `MeanFieldTrajectory.fluctuations`. If
    a width is below `least_widths`, its methods issue a `bnmc.errors.LinearTheoryWarning`. Width 1
    is the unit of S_l, and issues none. A `bnmc.Network` has widths of its own, so its methods take
    no width.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int64
        0, 1, …, depth.
    gram : (depth + 1, batch, batch) ndarray of float64
        The mean field ``F^l(G_0)``.
    covariances : (depth + 1, p, p) ndarray of float64
        S_l: the covariance of G_l at width d is S_l/d, and S_l itself for a network.
        ``p = n(n+1)/2`` coordinates of symmetric matrices in an orthonormal basis: the entries of
        the upper triangle, row by row, those off the diagonal times √2.
    stderr : (depth + 1,) ndarray of float64
        Standard errors of the traces of S_l.
    nonlinearity : (depth + 1,) ndarray of float64
        About the relative error of S_l that the linear theory makes at width 1, or at the widths of
        a network; it is proportional to 1/width. See `least_widths`.
    points : int
        Number of evaluations of a row per layer.
    widths : (depth + 1,) ndarray of int64 or None
        The widths of the layers of a network; None for a chain.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "tanh"))
    >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), 4, rng=0, fluctuations=True)
    >>> found = run.fluctuations.mean_square(1000)
    >>> bool(found.value[0] == 0.0), found.value.shape
    (True, (5,))
    >>> low, high = run.fluctuations.band(1000)
    >>> bool(np.all(low**2 <= found.value)), bool(np.all(found.value <= high**2))
    (True, True)
    >>> run.fluctuations.least_widths[:2].tolist(), run.fluctuations.holds_from < 1000
    ([1, 1], True)
    """

    layers: NDArray[np.int64]
    gram: FloatArray
    covariances: FloatArray
    stderr: FloatArray
    nonlinearity: FloatArray
    points: int
    widths: NDArray[np.int64] | None = None

    @property
    def least_widths(self) -> NDArray[np.int64]:
        """Width per layer from which on the linear theory holds, within several per cent.

        The linear theory neglects the change of the Jacobian over a fluctuation. In the space that
        the normalization sees at layer l, of dimension m, let Δ be ``G^(−½) (G_l − G) G^(−½)`` with
        ``G = F^l(G_0)``, without its trace if the normalization does not see the scale. Let
        ``r_l = E‖Δ‖²/m²`` at width 1, and ρ_l² the part of the trace of S_l that layer l − 1
        passes on. The neglected terms of all layers, relative to S_l, are about x_l/width with

            x_{l+1} = ρ_{l+1} (x_l + r_l),    x_0 = 0.

        The least width is 10 x_l, or 1. So it is 1 for layers 0 and 1, where the theory is exact.
        The criterion is a heuristic. At stationarity, it is that of `Fluctuations.least_width` with
        ρ in place of the rate. For a network x_l has the factors 1/d_l of its widths d_l. If all
        widths grow by one factor, the least width of layer l is 10 x_l d_l.

        Returns
        -------
        (depth + 1,) ndarray of int64
        """
        units = 1.0 if self.widths is None else self.widths
        widths = np.ceil(np.maximum(_LINEAR * self.nonlinearity * units, 1.0))
        return np.asarray(np.minimum(widths, 2.0**62).astype(np.int64))

    @property
    def holds_from(self) -> int:
        """Width from which on the linear theory holds in all layers: the largest least width.

        For a network, the factor of all its widths from which on it holds: 1 if it does.
        """
        return int(min(np.ceil(max(_LINEAR * self.nonlinearity.max(), 1.0)), 2.0**62))

    def _checked(self, width: int | None, layer: int | None = None) -> int:
        """Return what S_l is divided by; warn if the linear theory does not hold."""
        worst = int(self.nonlinearity.argmax()) if layer is None else layer
        least = int(self.least_widths[worst])
        if self.widths is None:
            width = integer("width", width, low=1)
            wide = width == 1 or width >= least
        elif width is None:
            width = int(self.widths[worst])
            wide = width >= least
        else:
            raise ArgumentError("width", width, "None for a network, which has its own widths")
        if not wide:
            message = f"the linear theory of layer {worst} holds from width {least} on, but "
            message += f"width is {width}: simulate, or use fewer layers (least_widths)"
            warnings.warn(message, LinearTheoryWarning, stacklevel=4)
        return width if self.widths is None else 1

    @property
    def error(self) -> float:
        """The largest relative standard error of the trace of S_l of any layer."""
        traces = np.trace(self.covariances, axis1=1, axis2=2)
        moving = traces > 0.0
        return float(np.max(self.stderr[moving] / traces[moving], initial=0.0))

    def mean_square(self, width: int | None = None) -> PathPrediction:
        """Return ``E‖G_l − F^l(G_0)‖_F²`` of every layer.

        Parameters
        ----------
        width : int, optional
            Width d of a chain, >= 1.
        """
        width = self._checked(width)
        traces = np.trace(self.covariances, axis1=1, axis2=2)
        return PathPrediction(traces / width, self.stderr / width)

    def covariance(self, layer: int, width: int | None = None) -> FloatArray:
        """Return the covariances of the entries of G_l, shape (batch, batch, batch, batch).

        Parameters
        ----------
        layer : int
            Layer l in 0, …, depth.
        width : int, optional
            Width d of a chain, >= 1.
        """
        layer = integer("layer", layer, low=0, high=len(self.layers) - 1)
        width = self._checked(width, layer)
        # Both axes of the coordinates become those of a matrix.
        rows = unpacked(self.covariances[layer] / width)
        return unpacked(np.moveaxis(rows, 0, -1))

    def band(
        self,
        width: int | None = None,
        observable: Callable[[FloatArray], float] | ArrayLike | None = None,
        *,
        level: float = 0.9,
    ) -> FloatArray:
        """Return the band that contains an observable of a layer with a given probability.

        Parameters
        ----------
        width : int, optional
            Width d of a chain, >= 1.
        observable : callable or (batch, batch) array_like, optional
            Maps a Gram matrix to a number, which is linearized at the mean field, or the gradient g
            of ``⟨g, G⟩``. By default the distance ``‖G_l − F^l(G_0)‖_F``, whose law is that of the
            norm of a Gaussian matrix.
        level : float, default 0.9
            Probability, in (0, 1), of each layer by itself. Both tails have the same one.

        Returns
        -------
        (2, depth + 1) ndarray of float64
            Lower and upper end per layer.
        """
        width = self._checked(width)
        level = real("level", level, above=0.0, below=1.0)
        tails = 0.5 * (1.0 - level), 0.5 * (1.0 + level)
        if observable is None:
            spectra = np.linalg.eigvalsh(self.covariances) / width
            ends = [[norm_quantile(spectrum, tail) for spectrum in spectra] for tail in tails]
            return np.array(ends)
        from scipy.special import ndtri

        limits = []
        for gram, covariance in zip(self.gram, self.covariances, strict=True):
            gradient = gradient_at(observable, gram)
            direction = packed(gradient)
            centre = observable(gram) if callable(observable) else np.sum(gradient * gram)
            spread = math.sqrt(max(float(direction @ covariance @ direction), 0.0) / width)
            limits.append([float(centre) + float(ndtri(tail)) * spread for tail in tails])
        return np.array(limits).T
