"""`relaxation`: the rate at which the mean of an observable approaches its limit."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, finite_array, integer, real
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.estimate.estimate import Estimate, Estimates, half_width, with_student_interval
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mixing import observed
from bnmc.mixing.rate import RateEstimate, rate_from_artanh, timescale
from bnmc.plot.drawn import Curves
from bnmc.simulation.trajectory import Trajectory

#: Fewest chains for a standard error.
_LEAST_CHAINS = 5

#: The window ends before the deviation is below this many standard errors.
_NOISE = 2.0

#: Timescales between the first layer without a significant bend and the start of the window.
_MARGIN = 1.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Relaxation(Curves, RateEstimate):
    """An exponential fitted to the deviation of the mean of an observable from its limit.

    Attributes
    ----------
    rate, stderr, ci, n, method, level, alpha, timescale
        As in `RateEstimate`; `n` is the number of chains.
    layers : (layers,) ndarray of int
        The recorded layers.
    deviation : Estimates
        Mean over chains less `limit`, (layers,), with the standard errors of the mean.
    limit : Estimate
        The stationary mean E* f, given or fitted.
    amplitude : Estimate
        Fitted deviation at the first layer of `window`.
    window : tuple of (int, int)
        First and last layer of the fit.

    Examples
    --------
    >>> import numpy as np
    >>> import bnmc
    >>> chain = bnmc.Chain(width=1000, batch=4, activation="relu")
    >>> x = np.random.default_rng(5).standard_normal((1000, 4)) + [[3.0, 0.0, 0.0, 0.0]]
    >>> run = bnmc.simulate(chain, 20, chains=100, initial=x, rng=0)
    >>> found = bnmc.mixing.relaxation(run, bnmc.MeanField(chain).fixed_point())
    >>> found.n, found.window[0] < found.window[1], len(found.deviation)
    (100, True, 21)
    """

    _axis = "layers", "layer"
    _curves = MappingProxyType({"deviation": "mean over chains less its limit"})

    layers: NDArray[np.int64]
    deviation: Estimates
    limit: Estimate
    amplitude: Estimate
    window: tuple[int, int]


def relaxation(
    run: Trajectory | ArrayLike,
    star: FixedPoint | Estimate | ArrayLike | None = None,
    observable: str | observed.Function | None = None,
    *,
    window: tuple[int, int] | None = None,
    level: float = 0.95,
) -> Relaxation:
    r"""Fit ``E f(G_l) − E* f = A ρ^l`` to the mean over chains of an observable.

    Parameters
    ----------
    run : Trajectory or (chains, layers) array_like
        A run of at least 5 chains with the same law of layer 0, not the stationary one; or the
        values of an observable.
    star : FixedPoint, (n, n) array_like, Estimate, float or None
        The limit E* f.  A fixed point or Gram matrix G* stands for ``f(G*)``, taken as exact.  The
        standard error of an `Estimate` enters the error of the rate.  None fits the limit to the
        same run, which must then be long enough to reach the limit.
    observable : str or callable, optional
        The name of a scalar observable of the run, or a function of G with real values.  If `star`
        is a Gram matrix, a function.  The default, for a `FixedPoint` of the norm "batch", is a
        component of G whose limit is 0 at any width: of the two subspaces that permutations of the
        batch do not mix, it takes the one that decays more slowly, and in it the direction of the
        mean of the first recorded layer.
    window : tuple of (int, int), optional
        First and last layer of the fit; by default chosen from the data.
    level : float, default 0.95
        Level of the intervals, in (0, 1).

    Returns
    -------
    Relaxation

    Raises
    ------
    PartialEstimateError
        If no decay is significant.  Its `partial` is a `Relaxation` from an earlier window, where
        other modes still contribute, or the `Estimate` of the deviation at the first layer.
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, or layers that are not equally spaced.

    Notes
    -----
    Layers of one chain are correlated, and so are the errors of their means.  The fit uses weights
    from a covariance with one variance and correlations ``r^|l−l′|``, both estimated from the
    chains.  The weights affect only the precision: the standard error comes from the dependence of
    the fitted parameters on each chain (the sandwich formula), which is valid for any covariance.
    The interval contains every ρ at which the derivative of the fit by ρ differs from zero by at
    most Student's quantile times its standard error, with ``chains − 1`` degrees of freedom.  For a
    known ρ the model is linear, so the interval needs no linearization (Fieller's argument).

    The next order of a smooth relaxation is a term ``ρ^{2l}``.  The window starts one and a half
    fitted timescales after the first layer from which such a term is not significant at 5 %,
    because the term biases the fit before it is significant.  If the limit is known, the window
    ends before the first layer whose deviation is below 2 standard errors; it has at least four
    layers.  The deviation at its start must be at least 5 standard errors.  Modes whose rates are
    closer than ρ and ρ² are not resolved: choose an observable to which one of them contributes.

    In 5500 runs each, intervals covered 95.0 % of the time for AR(1) processes of 50 chains.  They
    covered 94.4 to 95.0 % for linear and ReLU chains of widths 100 to 500, with the rate of the
    mean field as truth.

    The mean of a nonlinear f at width d tends to ``f(G*) + O(1/d)``.  Once the deviation is of
    order 1/d, a mean-field `star` is therefore biased: use None or an `Estimate`.  If permutations
    of the batch change neither f nor the law of layer 0, the mean relaxes by squares and products
    of eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.mixing import relaxation
    >>> import bnmc
    >>> chain = bnmc.Chain(width=1000, batch=4, activation="relu")
    >>> x = np.random.default_rng(5).standard_normal((1000, 4)) + [[3.0, 0.0, 0.0, 0.0]]
    >>> run = bnmc.simulate(chain, 20, chains=100, initial=x, rng=0)
    >>> star = bnmc.MeanField(chain).fixed_point()
    >>> found = relaxation(run, star)
    >>> abs(found.rate - star.rate) < 4 * found.stderr
    True
    """
    level = real("level", level, above=0.0, below=1.0)
    series, limit = _series_and_limit(run, star, observable)
    values = series.values[:, :, 0]
    chains, layers = values.shape
    if chains < _LEAST_CHAINS or layers < _LEAST_LAYERS:
        allowed = f"at least {_LEAST_CHAINS} chains and {_LEAST_LAYERS} recorded layers"
        raise ArgumentError("run", values.shape, allowed)
    if not np.ptp(values, axis=0).any():
        raise ArgumentError("run", run, "chains that differ from one another")

    fits: list[_ExponentialFit] = []
    if window is None:
        fit = _asymptotic(values, limit, fits)
    else:
        fit = fit_exponential(values, limit, *_indices(window, series))
    if fit is not None:
        return _result(series, limit, fit, level)
    deviations = values[:, 0] - (limit.value if limit else values[:, -1])
    first = Estimate.from_samples(deviations, level=level, method="deviation at the first layer")
    raise PartialEstimateError(
        "no exponential decay stands out from the noise",
        _result(series, limit, fits[-1], level) if fits else first,
    )


def _series_and_limit(
    run: object, star: object, observable: Any
) -> tuple[observed.Series, Estimate | None]:
    """Read the observable and its limit."""
    if observable is None and isinstance(run, Trajectory):
        centred = run.chain.normalization.hides_common_part
        if not isinstance(star, FixedPoint) or not centred or not star.eigenvalues:
            hint = 'the default is for a FixedPoint of norm "batch" and a batch of 3 or more'
            allowed = "a name in the run or a function of G"
            raise ArgumentError("observable", None, allowed, hint)
        _require_size(run, star.gram)
        first = observed.gram_of(run)[:, 0].mean(axis=0)
        D = observed.sector(first, observed.slowest_sector(star.eigenvalues))
        D /= max(float(np.linalg.norm(D)), np.finfo(np.float64).tiny)
        star, observable = 0.0, partial(np.vdot, D)
    if isinstance(star, Estimate | None):
        return observed.read_scalar(run, observable), star
    matrix = star.gram if isinstance(star, FixedPoint) else finite_array("star", star, shape=(...,))
    if matrix.ndim > 0:
        matrix = finite_array("star", matrix, shape=("n", "n")).astype(np.float64)
        if not isinstance(run, Trajectory) or not callable(observable):
            hint = "only a function of G of a Trajectory can be taken at a matrix"
            raise ArgumentError("star", star, "a number, an Estimate or None", hint)
        _require_size(run, matrix)
    series = observed.read_scalar(run, observable)
    value = real("observable(star)", observable(matrix)) if matrix.ndim else float(matrix)
    return series, Estimate(value, 0.0, (value, value), 1, "given")


def _require_size(run: Trajectory, G: Float64Array) -> None:
    if run.inputs is not None or len(G) != run.chain.batch:
        raise ArgumentError("star", G, f"a Gram matrix of a run of one batch of {len(G)}")


def _indices(window: object, series: observed.Series) -> tuple[int, int]:
    """Return a window of layers as a range of recorded layers."""
    allowed = "two recorded layers, the first one first, and at least 4 layers between them"
    if not (isinstance(window, tuple | list) and len(window) == 2):
        raise ArgumentTypeError("window", window, allowed)
    first, last = (integer("window", layer) for layer in window)
    start, stop = np.searchsorted(series.layers, (first, last + 1)).tolist()
    recorded = series.layers[start:stop]
    if len(recorded) < _LEAST_LAYERS or recorded[0] != first or recorded[-1] != last:
        raise ArgumentError("window", (first, last), allowed)
    return start, stop


def _end(values: Float64Array, limit: Estimate | None, start: int) -> int:
    """Return the end of the window: where noise hides the signal, or the end of the run."""
    if limit is None:
        return int(values.shape[1])
    signal = np.abs(values[:, start:].mean(axis=0) - limit.value)
    noise = np.hypot(values[:, start:].std(axis=0, ddof=1) / math.sqrt(len(values)), limit.stderr)
    hidden = np.append(np.flatnonzero(signal < _NOISE * noise), len(signal))
    return min(start + max(int(hidden[0]), _LEAST_LAYERS - 1), int(values.shape[1]))


def _asymptotic(
    values: Float64Array, limit: Estimate | None, fits: list[_ExponentialFit]
) -> _ExponentialFit | None:
    """Find the window and fit it; append the fits of earlier windows to `fits`."""
    significant = half_width(1.0, len(values) - 1, 0.95)
    against = limit.value if limit else values[:, -1:]
    deviations = values - against
    signal, noise = np.abs(deviations.mean(axis=0)), deviations.std(axis=0, ddof=1)
    is_clear = signal >= _SIGNAL * noise / math.sqrt(len(values))
    is_clear &= signal > 0
    for start in range(int(np.flatnonzero(is_clear)[-1]) + 1 if is_clear.any() else 0):
        fit = fit_exponential(values, limit, start, _end(values, limit, start))
        if fit is None:
            continue
        fits.append(fit)
        if fit.bend <= significant:
            decay = _MARGIN * timescale(abs(float(fit.parameters[-1])))
            later = start + max(1, math.ceil(decay))
            return fit_exponential(values, limit, later, _end(values, limit, later))
    return None


def _result(
    series: observed.Series, limit: Estimate | None, fit: _ExponentialFit, level: float
) -> Relaxation:
    values = series.values[:, :, 0]
    chains = len(values)
    degrees = chains - 1
    rho, stderr = float(fit.parameters[-1]), float(fit.stderr[-1])
    z, error = math.atanh(rho), stderr / (1.0 - rho * rho)
    allowed = half_width(1.0, degrees, level)
    half = allowed * error
    low, high = (end_of_interval(fit.data, z, to, allowed) for to in (-half, half))
    rate = rate_from_artanh(z, error, (low, high), series.stride, chains, "relaxation", level)

    def estimate(index: int, method: str) -> Estimate:
        value, stderr = float(fit.parameters[index]), float(fit.stderr[index])
        return with_student_interval(value, stderr, degrees, chains, method, level)

    if limit is None:
        limit = estimate(1, "fitted limit")
    return Relaxation(
        *astuple(rate),
        layers=series.layers,
        deviation=Estimates(
            values.mean(axis=0) - limit.value,
            values.std(axis=0, ddof=1) / math.sqrt(chains),
            chains,
            "mean over chains",
            level,
        ),
        limit=limit,
        amplitude=estimate(0, "fitted amplitude"),
        window=(int(series.layers[fit.start]), int(series.layers[fit.stop - 1])),
    )


# --- least squares for an exponential through correlated means
#
# The model of the mean over chains at recorded layer l of a window is A ρ^l + c.  The layers of a
# chain are correlated; their covariance is modelled as r^|l−l'| times a variance.

#: Fewest recorded layers of a window if the limit is fitted; one fewer suffices if it is known.
_LEAST_LAYERS = 5

#: Least fitted amplitude, in standard errors.
_SIGNAL = 5.0
#: Iterations of the Gauss–Newton method.
_ITERATIONS = 60

#: Largest modulus of a correlation and of ρ.
_NEARLY_1 = 1.0 - 1e-9

#: Largest artanh ρ of an interval; beyond it the data do not exclude a rate of 1.
_FAR = 7.0

#: Starting values of ρ.
_GRID = np.tanh(np.concatenate([np.linspace(-4.0, -0.05, 50), np.linspace(0.05, 4.0, 80)]))


@dataclass(frozen=True)
class _ExponentialFit:
    """An exponential fitted to a window of recorded layers.

    Attributes
    ----------
    start, stop : int
        The window is ``start:stop`` in recorded layers.
    parameters, stderr : ndarray of float64
        Amplitude, limit (only if it is fitted) and ρ, with standard errors.
    bend : float
        Modulus of the coefficient of an added term ``ρ^{2l}``, in its standard errors.
    data : WhitenedWindow
    """

    start: int
    stop: int
    parameters: Float64Array
    stderr: Float64Array
    bend: float
    data: _WhitenedWindow


def fit_exponential(
    values: Float64Array, limit: Estimate | None, start: int, stop: int
) -> _ExponentialFit | None:
    """Fit an exponential to the means of a window.

    Parameters
    ----------
    values : (chains, layers) ndarray of float64
    limit : Estimate or None
        The limit if it is known; None fits it.
    start, stop : int
        The window is ``start:stop``.

    Returns
    -------
    _ExponentialFit or None
        None if the window is too short, nothing varies, or no exponential is significant.
    """
    if stop - start < _LEAST_LAYERS - (limit is not None):
        return None
    y = values[:, start:stop] - (limit.value if limit else 0.0)
    noise = y - y.mean(axis=0)
    scale = math.sqrt(float(np.square(noise[:, 1:]).sum() * np.square(noise[:, :-1]).sum()))
    if scale == 0.0:
        return None
    r = min(max(float((noise[:, 1:] * noise[:, :-1]).sum()) / scale, -_NEARLY_1), _NEARLY_1)
    data = _WhitenedWindow(r, y, limit)
    rho = _best_rho(data)
    if rho is None:
        return None
    X = np.stack([data.curve(rho), *data.linear], axis=1)
    coefficients = np.linalg.lstsq(X, data.target)[0]
    J = np.column_stack([X, coefficients[0] * data.slope(rho)])
    _, stderr = data.solved(J, X @ coefficients)
    if abs(coefficients[0]) < _SIGNAL * stderr[0]:
        return None
    bend, bend_stderr = data.solved(np.column_stack([J, data.curve(rho * rho)]), X @ coefficients)
    bent = float(abs(bend[-1]) / bend_stderr[-1])
    return _ExponentialFit(start, stop, np.append(coefficients, rho), stderr, bent, data)


def end_of_interval(data: _WhitenedWindow, z: float, half: float, allowed: float) -> float:
    """Return one end of the confidence interval of artanh ρ.

    Parameters
    ----------
    data : WhitenedWindow
    z : float
        The estimate of artanh ρ.
    half : float
        First guess of the end less z; its sign selects the end.
    allowed : float
        Student's quantile.

    Returns
    -------
    float
        The nearest value at which the modulus of the score is `allowed`; infinite if there is
        none up to a modulus of 7.
    """
    from scipy.optimize import brentq

    def excess(z: float) -> float:
        return abs(data.score(math.tanh(z))) - allowed

    if half * 1e-6 == 0.0:  # a level near 0
        return z
    inner, far = 0.0, math.copysign(_FAR, half) - z
    while excess(z + half) <= 0:
        if half == far or abs(z + half) >= _FAR:
            return math.copysign(math.inf, half)
        inner, half = half, 2 * half
        if abs(z + half) > _FAR:
            half = far
    return float(brentq(excess, z + inner, z + half, xtol=1e-6 * abs(half)))


def _best_rho(data: _WhitenedWindow) -> float | None:
    """Return the ρ with the least squared residual at its best amplitude; None on failure.

    The Gauss–Newton method for the projected residual (variable projection) starts from the best
    ρ of a grid.
    """
    target = _without(data.target, data.units)
    curves = _without(data.curve(_GRID[:, None]), data.units)
    explained = np.square(curves @ target) / np.square(curves).sum(axis=1)
    rho = float(_GRID[int(np.argmax(explained))])
    for _ in range(_ITERATIONS):
        unit, slope, norm = data.directions(rho)
        overlap = float(target @ unit)
        if overlap == 0.0:
            break
        step = float(slope @ target) / (float(slope @ slope) * overlap / norm)
        step = math.copysign(min(abs(step), (1.0 - abs(rho)) / 2), step)
        rho += step
        if abs(rho) > _NEARLY_1:  # no decay
            break
        if abs(step) < 1e-11:
            return rho
    return None


def _without(f: Float64Array, units: list[Float64Array]) -> Float64Array:
    """Return the components of f orthogonal to orthonormal vectors."""
    for unit in units:
        f = f - (f @ unit)[..., None] * unit
    return f


class _WhitenedWindow:
    """The layers of a window, whitened for correlations ``r^|l−l'|``.

    Parameters
    ----------
    r : float
        Correlation of successive layers.
    y : (chains, layers) ndarray of float64
        Deviations from the limit, or values if the limit is None.
    limit : Estimate or None
    """

    def __init__(self, r: float, y: Float64Array, limit: Estimate | None) -> None:
        self.r = r
        self.chains, layers = y.shape
        self.time = np.arange(layers)
        self.target = self.white(y.mean(axis=0))
        self.noise = self.white(y - y.mean(axis=0))
        self.constant = self.white(np.ones(layers))
        self.limit_stderr = limit.stderr if limit else 0.0
        self.linear = [] if limit else [self.constant]
        self.units = [self.constant / np.linalg.norm(self.constant)] if self.linear else []

    def white(self, f: Float64Array) -> Float64Array:
        """Whiten functions of the layer, (..., layers)."""
        tail = (f[..., 1:] - self.r * f[..., :-1]) / math.sqrt(1.0 - self.r * self.r)
        return np.concatenate([f[..., :1], tail], axis=-1)

    def curve(self, rho: float | Float64Array) -> Float64Array:
        """Return the whitened exponential ``ρ^l``."""
        return self.white(np.power(rho, self.time, dtype=np.float64))

    def slope(self, rho: float) -> Float64Array:
        """Return the derivative of the curve by ρ."""
        return self.white(self.time * rho ** np.maximum(self.time - 1, 0))

    def errors(self, rows: Float64Array) -> Float64Array:
        """Return standard errors of linear functions of the target (sandwich formula)."""
        variance = np.square(self.noise @ rows.T).sum(axis=0) / (self.chains * (self.chains - 1))
        return np.sqrt(variance + np.square(rows @ self.constant * self.limit_stderr))

    def solved(self, J: Float64Array, fitted: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the first-order change of the parameters, and their standard errors."""
        inverse = np.linalg.pinv(J).astype(np.float64, copy=False)
        return inverse @ (self.target - fitted), self.errors(inverse)

    def directions(self, rho: float) -> tuple[Float64Array, Float64Array, float]:
        """Return the unit vector of the curve, the slope orthogonal to it, and the curve's norm."""
        curve = _without(self.curve(rho), self.units)
        norm = float(np.linalg.norm(curve))
        unit = curve / norm
        return unit, _without(self.slope(rho), [*self.units, unit]), norm

    def score(self, rho: float) -> float:
        """Return Student's statistic of the derivative of the fit by ρ; 0 at the best ρ."""
        _, slope, _ = self.directions(rho)
        return float(slope @ self.target) / float(self.errors(slope[None])[0])
