"""Dual activations: the expectations of products of an activation at two normal variables.

Let u, v be centred normal variables with variances p, q and covariance c.  A pair maps (p, q, c)
to V = E σ(u)σ(v) and V′ = E σ′(u)σ′(v).  At a jump of σ or σ′, the value counts as the mean of the
two one-sided limits.  So V and V′ are also defined for variance 0, where u is at a kink with
probability 1.

**Closed forms.**  Arrays broadcast; c is clipped to |c| ≤ √(pq).  Sources: Cho and Saul, *Kernel
methods for deep learning* (2009), for powers of relu; Williams, *Computing with infinite networks*
(1997), for erf.  The formula of gelu follows by three partial integrations: with
D = E φ(u)φ(v) = 1 / (2π √((1+p)(1+q) − c²)), φ the standard normal density,

    E uΦ(u) vΦ(v) = c E Φ(u)Φ(v) + D (pq − c² + c² / (1+p) + c² / (1+q)).

Functions without a closed form are in `series`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import broadcast, real, real_numbers
from bnmc.chain.activations import Activation, ActivationLike, as_activation
from bnmc.chain.homogeneity import homogeneous_slopes
from bnmc.errors import ArgumentError, NonFiniteError, UnknownNameError
from bnmc.mean_field.duals.series import Expand, Expansion, expansion, nearly_equal, pair_terms
from bnmc.mean_field.float64 import EPSILON, FloatArray, within
from bnmc.mean_field.quadrature.profile import Profile, profile
from bnmc.mean_field.quadrature.resolution import Function

# --- closed forms

_Pair = Callable[[FloatArray, FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

# Products of variances between these bounds neither overflow nor lose digits.
_LEAST, _LARGEST = 1e-140, 1e140


class _ClosedForm(NamedTuple):
    """V and V′ of one σ, and its mean E σ(u) as a function of the variance."""

    pair: _Pair
    mean: Callable[[FloatArray], FloatArray]


def scale_and_correlation(
    p: FloatArray, q: FloatArray, c: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return √(pq) and the correlation c / √(pq), clipped to [−1, 1]; 0 if pq = 0."""
    scale = _scale(p, q)
    least = min(p.min(initial=1.0), q.min(initial=1.0))
    divisor = scale if least > 0.0 else np.where(scale > 0.0, scale, 1.0)
    cosine = np.asarray(c / divisor)
    np.minimum(cosine, 1.0, out=cosine)
    np.maximum(cosine, -1.0, out=cosine)
    return scale, cosine if least > 0.0 else np.where(scale > 0.0, cosine, 0.0)


def _scale(p: FloatArray, q: FloatArray) -> FloatArray:
    """Return √(pq); exactly p if p = q, so that ρ = 1 if c = p = q."""
    for variances in (p, q):
        small = variances.min(initial=1.0)
        if not (small >= _LEAST and variances.max(initial=1.0) <= _LARGEST):
            return np.where(p == q, p, np.sqrt(p) * np.sqrt(q))
    # The root of a square is exact.
    return np.asarray(np.sqrt(p * q))


def _clipped(p: FloatArray, q: FloatArray, c: FloatArray) -> FloatArray:
    largest = _scale(p, q)
    return np.asarray(np.clip(c, -largest, largest))


def _sine(cosine: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt((1.0 - cosine) * (1.0 + cosine)))


# --- powers of relu


def _ramp(power: int) -> _ClosedForm:
    """Return the closed form of σ(x) = max(x, 0)^power; for power 0, the unit step."""
    half_moment = {0: 0.5, 1: 1.0 / math.sqrt(2.0 * math.pi), 2: 0.5, 3: math.sqrt(2.0 / math.pi)}

    def pair(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        scale, cosine = scale_and_correlation(p, q, c)
        sine, rest = _sine(cosine), np.arccos(-cosine)
        value = scale**power * _arc_cosine(power, cosine, sine, rest)
        if power == 0:
            return value, np.zeros_like(value)
        slope = power**2 * scale ** (power - 1) * _arc_cosine(power - 1, cosine, sine, rest)
        return value, slope

    return _ClosedForm(pair, lambda q: half_moment[power] * np.sqrt(q) ** power)


def _positive(x: FloatArray) -> FloatArray:
    return np.maximum(x, 0.0)


def _arc_cosine(power: int, cosine: FloatArray, sine: FloatArray, rest: FloatArray) -> FloatArray:
    """Return V of max(x, 0)^power for variances 1; `rest` is π − θ."""
    if power == 0:
        return rest / (2.0 * np.pi)
    if power == 1:
        shape = sine + rest * cosine
    elif power == 2:
        shape = 3.0 * sine * cosine + rest * (1.0 + 2.0 * cosine**2)
    else:
        shape = sine * (4.0 + 11.0 * cosine**2) + rest * cosine * (9.0 + 6.0 * cosine**2)
    # At ρ = −1 the terms cancel to 0, up to rounding of either sign.
    return np.asarray(np.maximum(shape, 0.0) / (2.0 * np.pi))


# --- homogeneous functions of degree 1


def signs(cosine: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return E|u||v|, E sign(u) sign(v) and E|u| 2δ(v) for variances 1 and given correlations."""
    arc, sine = (2.0 / np.pi) * np.arcsin(cosine), (2.0 / np.pi) * _sine(cosine)
    return sine + cosine * arc, arc, sine


def homogeneous(left: float, right: float) -> _ClosedForm:
    """Return the closed form of the function with slope `left` below 0 and `right` above 0.

    With α = (right + left) / 2 and β = (right − left) / 2 it is αx + β|x|, so that V is
    α²c + β²E|u||v| and V′ is α² + β² (2/π) arcsin ρ.
    """
    odd, even = (0.5 * (right + left)) ** 2, (0.5 * (right - left)) ** 2
    centre = 0.5 * (right - left) * math.sqrt(2.0 / math.pi)

    def pair(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        scale, cosine = scale_and_correlation(p, q, c)
        absolute, arc, _ = signs(cosine)
        return scale * (odd * cosine + even * absolute), odd + even * arc

    return _ClosedForm(pair, lambda q: centre * np.sqrt(q))


# --- analytic functions


def _erf(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    c = _clipped(p, q, c)
    # The determinant (1 + 2p)(1 + 2q) − 4c², at least 1.
    root = np.sqrt(1.0 + 2.0 * (p + q) + 4.0 * _determinant(p, q, c))
    # arcsin of a ratio loses half of the digits near 1; arctan2 keeps them.
    return (2.0 / np.pi) * np.arctan2(2.0 * c, root), (4.0 / np.pi) / root


def _determinant(p: FloatArray, q: FloatArray, c: FloatArray) -> FloatArray:
    """Return pq − c², at least 0."""
    root = _scale(p, q)
    return np.asarray(np.maximum((root - c) * (root + c), 0.0))


def _gelu(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    c = _clipped(p, q, c)
    inner = _determinant(p, q, c)
    determinant = 1.0 + p + q + inner
    root = np.sqrt(determinant)
    both = 0.25 + np.arctan2(c, root) / (2.0 * np.pi)
    density = 1.0 / (2.0 * np.pi * root)
    shares = 1.0 / (1.0 + p) + 1.0 / (1.0 + q)
    value = c * both + density * (inner + c**2 * shares)
    return value, both + density * c * (shares + 1.0 / determinant)


def _waves(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return exp(−(p + q)/2) sinh c and exp(−(p + q)/2) cosh c."""
    c, half = _clipped(p, q, c), 0.5 * (p + q)
    rising, falling = 0.5 * np.exp(c - half), 0.5 * np.exp(-c - half)
    # The first form is accurate for small c, and the second one does not overflow.
    small = np.exp(-half) * np.sinh(np.clip(c, -1.0, 1.0))
    return np.where(np.abs(c) < 1.0, small, rising - falling), rising + falling


def _exp(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = np.exp(0.5 * (p + q) + _clipped(p, q, c))
    return value, value


#: The closed forms by name.  "cos", "exp", "step" and names with "^" are no activations of `Chain`.
CLOSED_FORMS: dict[str, _ClosedForm] = {
    "linear": homogeneous(1.0, 1.0),
    "relu": _ramp(1),
    "relu^2": _ramp(2),
    "relu^3": _ramp(3),
    "step": _ramp(0),
    "leaky_relu": homogeneous(0.01, 1.0),
    "abs": homogeneous(-1.0, 1.0),
    "erf": _ClosedForm(_erf, lambda q: 0.0 * q),
    "gelu": _ClosedForm(_gelu, lambda q: q / np.sqrt(2.0 * np.pi * (1.0 + q))),
    "sin": _ClosedForm(_waves, lambda q: 0.0 * q),
    "cos": _ClosedForm(lambda p, q, c: _waves(p, q, c)[::-1], lambda q: np.exp(-0.5 * q)),
    "exp": _ClosedForm(_exp, lambda q: np.exp(0.5 * q)),
}


# Pairs whose integrals are computed at once.
_BLOCK = 32

# Kinks and narrow features that were not declared are found up to this distance from 0.
_GAUSSIAN_LIMIT = 16.0


def _formula(value: Function, derivative: Function, *kinks: float) -> Profile:
    return Profile(value, kinks, _GAUSSIAN_LIMIT, complete=True, given_derivative=derivative)


# The names that `dual` takes and that are no named activations.
_FORMULAS = {
    "relu^2": _formula(lambda x: _positive(x) ** 2, lambda x: 2.0 * _positive(x), 0.0),
    "relu^3": _formula(lambda x: _positive(x) ** 3, lambda x: 3.0 * _positive(x) ** 2, 0.0),
    "step": _formula(lambda x: np.heaviside(x, 0.5), np.zeros_like, 0.0),
    "cos": _formula(np.cos, lambda x: -np.sin(x)),
    "exp": _formula(np.exp, np.exp),
}

# Entries of which a series lacks a larger part, as near correlation 1, are computed by quadrature.
_LACKING = 1e-12


class Side(NamedTuple):
    """The properties of one variable of each pair.

    Attributes
    ----------
    variance : ndarray
    series : tuple of Expansion
        The series of σ, and that of σ′ if V′ is needed; empty if V and V′ have a closed form.
    """

    variance: FloatArray
    series: tuple[Expansion, ...] = ()

    def at(self, index: slice) -> Side:
        """Return the properties of some of the variables."""
        return Side(self.variance[index], tuple(series.at(index) for series in self.series))


@dataclass(frozen=True)
class Dual:
    """The dual activations V and V′ of an activation σ; `dual` returns them.

    For centred normal variables u, v with variances p, q and covariance c,
    ``V = E σ(u)σ(v)`` and ``V′ = E σ′(u)σ′(v)``, with σ′ the derivative almost everywhere.

    Attributes
    ----------
    name : str
        Name of the activation.
    closed_form : bool
        Whether V and V′ have a closed form. Otherwise they are Hermite series.
    function : callable
        σ, elementwise.

    Examples
    --------
    >>> from bnmc.infinite_width import dual
    >>> tanh = dual("tanh")
    >>> value, slope = tanh(1.0, 1.5, 0.6)
    >>> float(value.round(12)), float(slope.round(12))
    (0.196571605627, 0.339318996404)
    """

    name: str
    closed_form: bool
    function: Profile = field(repr=False)
    _form: _ClosedForm | None = field(default=None, repr=False)

    def __call__(
        self, p: ArrayLike, q: ArrayLike, c: ArrayLike, *, rtol: float = 1e-6
    ) -> tuple[FloatArray, FloatArray]:
        """Return V and V′ for variances p, q and covariances c.

        Parameters
        ----------
        p, q : array_like of real numbers
            Variances >= 0.
        c : array_like of real numbers
            Covariances. They may exceed √(pq) in absolute value by rounding, and are then clipped.
            p, q and c broadcast.
        rtol : float, default 1e-6
            Largest acceptable error of a series or quadrature, relative to √(E σ(u)² E σ(v)²) for
            V and to √(E σ′(u)² E σ′(v)²) for V′; > 0. That of a series is a bound.

        Returns
        -------
        value, slope : ndarray of float64
            V and V′. Rounding aside, closed forms have no error. For smooth functions and moderate
            variances the error of a series is near 1e-14.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If the arguments are not such numbers, or the activation has no known derivative.
        NonFiniteError
            If a result is not finite.
        PartialEstimateError
            If the error exceeds `rtol`, as it may for correlations near 1 or −1 if the activation
            has many kinks that are not declared; ``partial`` is the pair of arrays.

        Notes
        -----
        At a jump σ′ counts as the mean of its one-sided limits, so V′ is defined for variance 0.

        Examples
        --------
        >>> from bnmc.infinite_width import dual
        >>> relu = dual("relu")
        >>> value, slope = relu(1.0, 1.0, [-1.0, 0.0, 1.0])
        >>> value.round(6), slope.round(6)
        (array([0.      , 0.159155, 0.5     ]), array([0.  , 0.25, 0.5 ]))
        """
        first, second, product = broadcast(
            p=real_numbers("p", p, low=0), q=real_numbers("q", q, low=0), c=real_numbers("c", c)
        )
        rtol = real("rtol", rtol, above=0.0)
        excess = np.abs(product) - (1.0 + 64.0 * EPSILON) * np.sqrt(first) * np.sqrt(second)
        if (excess > 0.0).any():
            too_large = float(product[excess > 0.0].flat[0])
            raise ArgumentError("c", too_large, "covariances with |c| <= √(p q)")
        if self.closed_form:
            value, slope, _ = self.pair(Side(first), Side(second), product)
        else:
            value, slope, error = np.empty(product.shape), np.empty(product.shape), 0.0
            for start in range(0, product.size, _BLOCK):
                at = slice(start, start + _BLOCK)
                left, right = (self.side(part.reshape(-1)[at], True) for part in (first, second))
                # The diagonal of a square of pairs: the series of each variable is computed once.
                *squares, off = self.pair(left, right, np.diag(product.reshape(-1)[at]))
                value.reshape(-1)[at], slope.reshape(-1)[at] = map(np.diag, squares)
                error = max(error, off)
            require_accuracy(self.name, error, rtol, (value, slope))
        if not (np.isfinite(value).all() and np.isfinite(slope).all()):
            raise NonFiniteError(None, None, f"dual activation of {self.name}")
        return value, slope

    def side(self, variances: FloatArray, needs_slope: bool, expand: Expand = expansion) -> Side:
        """Return what `pair` has to know of the variables of one side.

        `expand` makes the series; a `Tabulated` is faster for many calls.
        """
        if self.closed_form:
            return Side(variances)
        functions = self._functions(needs_slope)
        if len(functions) <= needs_slope:
            hint = "bnmc.Activation(function, derivative=...)"
            raise ArgumentError("activation", self.name, "an activation with a derivative", hint)
        return Side(variances, tuple(expand(function, variances) for function in functions))

    def pair(
        self, left: Side, right: Side, covariance: FloatArray, needs_slope: bool = True
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return V and V′ of all pairs of two sides, and a bound of their relative error.

        Parameters
        ----------
        left, right : Side
            Variables from `side`. Closed forms broadcast their variances with the covariances;
            series take one variable per row and per column.
        covariance : ndarray
        needs_slope : bool, default True
            Whether V′ is needed. If not, a series returns V in its place.
        """
        if self._form is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                return (*self._form.pair(left.variance, right.variance, covariance), 0.0)
        _, cosine = scale_and_correlation(left.variance[:, None], right.variance, covariance)
        functions = self._functions(needs_slope)
        results = [
            _pairs(function, row, column, cosine)
            for function, row, column in zip(functions, left.series, right.series, strict=False)
        ]
        return results[0][0], results[-1][0], max(error for _, error in results)

    @property
    def slopes(self) -> tuple[float, float] | None:
        """Slopes left and right of 0 if σ is positively homogeneous, else None."""
        sigma = self.function.function
        return homogeneous_slopes(sigma) if isinstance(sigma, Activation) else None

    def _functions(self, needs_slope: bool) -> list[Profile]:
        """Return σ and, if it is needed and known, σ′."""
        derivative = self.function.derivative if needs_slope else None
        return [self.function] if derivative is None else [self.function, derivative]

    def mean(self, side: Side) -> FloatArray:
        """Return E σ(u) for each variable of a side."""
        if self._form is not None:
            return self._form.mean(side.variance)
        return side.series[0].coefficients[:, 0]

    def mean_square(self, side: Side) -> FloatArray:
        """Return E σ(u)² for each variable of a side."""
        if self.closed_form:
            return self.pair(side, side, side.variance)[0]
        return side.series[0].mean_square


def dual(activation: ActivationLike | Dual) -> Dual:
    """Return the dual activations V and V′ of an activation.

    Parameters
    ----------
    activation : str, Activation, callable or Dual
        A named activation of the package, or one of "relu^2", "relu^3", "step", "cos" and "exp"; or
        a function as `bnmc.Activation` takes it. V′ of a function needs
        ``Activation(function, derivative=...)``, unless the function is positively homogeneous.

    Returns
    -------
    Dual
        With a closed form for linear, relu and its powers, step, leaky_relu, abs, erf, gelu, sin,
        cos, exp and positively homogeneous functions; with a series for all others.

    Raises
    ------
    UnknownNameError, ArgumentTypeError, ArgumentError
        If it is no such activation, it is not finite on [−4, 4], or its derivative is wrong.

    Notes
    -----
    Closed forms: Cho and Saul (2009) for powers of relu, Williams (1997) for erf;
    `bnmc.mean_field.duals.duals` derives that of gelu. Series: with the normalized Hermite
    polynomials h_k and ``a_k(q) = E σ(√q z) h_k(z)``, ``V = Σ_k a_k(p) a_k(q) ρ^k``, up to 1024
    terms. The rest of a series is bounded by the mean squares, which are computed directly. If the
    series lacks more than 1e-12, as near correlation 1 or −1 if σ or σ′ has kinks, V and V′ are
    computed by quadrature with panels that end at the kinks. Its error is the difference of two
    rules. One pair takes some milliseconds, unless many pairs have the same two variances. Kinks,
    jumps, singular slopes and narrow bumps of a function need not be declared: they are found in
    [−16, 16], up to 32 kinks.

    Examples
    --------
    >>> from bnmc.infinite_width import dual
    >>> dual("relu").closed_form, dual("tanh").closed_form
    (True, False)
    >>> value, slope = dual("cos")(1.0, 1.0, 0.0)
    >>> float(value.round(6)), float(slope)
    (0.367879, 0.0)
    """
    if isinstance(activation, Dual):
        return activation
    if isinstance(activation, str) and activation in _FORMULAS:
        return Dual(activation, True, _FORMULAS[activation], CLOSED_FORMS[activation])
    try:
        function = as_activation(activation)
    except UnknownNameError as error:
        others = (name for name in CLOSED_FORMS if name not in error.names)
        raise UnknownNameError("activation", str(activation), (*error.names, *others)) from None
    return _of_function(function)


@lru_cache(maxsize=64)
def _of_function(function: Activation) -> Dual:
    """Return the dual activation of an activation."""
    form = CLOSED_FORMS.get(function.name) if function.builtin else None
    if not function.builtin:
        function.check()
        at_zero = homogeneous_slopes(function)
        if at_zero is not None:
            form = homogeneous(*at_zero)
        else:
            function.check_derivative()
    return Dual(function.name, form is not None, profile(function, _GAUSSIAN_LIMIT), form)


def _pairs(
    f: Profile, left: Expansion, right: Expansion, correlation: FloatArray
) -> tuple[FloatArray, float]:
    """Return E f(u)f(v) for all pairs, by the series or by quadrature, and the largest error."""
    value, error = pair_terms(left, right, correlation)
    noise = left.noise[:, None] + right.noise
    # If the coefficients are less accurate than the series is long, more terms would not help.
    i, j = np.nonzero((error - noise > np.maximum(noise, _LACKING)) & (correlation != 0.0))
    if i.size:
        integral, off = nearly_equal(f, left.variance[i], right.variance[j], correlation[i, j])
        scale = np.sqrt(left.mean_square[i] * right.mean_square[j])
        off = off / np.where(scale > 0.0, scale, 1.0)
        better = off < error[i, j]
        i, j = i[better], j[better]
        value[i, j], error[i, j] = integral[better], off[better]
    return value, float(error.max(initial=0.0))


def require_accuracy(name: str, error: float, rtol: float, partial: object) -> None:
    """Raise `PartialEstimateError` if an error exceeds the tolerance."""
    advice = "declare kinks of the activation and of its derivative, as Activation(..., kinks=)"
    within(partial, error, rtol, f"series of {name}", f": {advice}")
