"""Guarantees for wide networks with one hidden layer of relu, trained by gradient flow.

They are quoted in Golikov's lectures *Infinitely wide nets*. G is the tangent kernel of the n
training inputs at infinite width, with least eigenvalue λ > 0. The statements say that a constant
exists, and name none: the functions take it as an argument, so their values have an unknown scale.

Positive arguments lie in [1e-20, 1e20], and `complexity` and `time` are at most 1e20, so that no
formula overflows float64.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bnmc._support.arguments import Float64Array, Reals, checked, integers, real_numbers
from bnmc._support.arithmetic import make_public

__all__ = ["arora_error", "du_residual", "du_width", "song_yang_width"]

# Limits of arguments, with which no formula overflows float64.
_SMALLEST, _LARGEST = 1e-20, 1e20

_positive = partial(real_numbers, low=_SMALLEST, high=_LARGEST)

#: The check of each argument.
_CHECKS = {
    "complexity": partial(real_numbers, low=0, high=_LARGEST),
    "constant": _positive,
    "delta": partial(real_numbers, low=_SMALLEST, below=1),
    "learning_rate": _positive,
    "least_eigenvalue": _positive,
    "samples": partial(integers, low=1),
    "time": partial(real_numbers, low=0, high=_LARGEST),
}


def du_width(
    samples: Reals, least_eigenvalue: Reals, delta: Reals, constant: Reals = 1.0
) -> Float64Array:
    """Width ``C n⁶ / (δ³ λ⁴)`` from which on `du_residual` holds (Du et al., arXiv 1810.02054).

    Parameters
    ----------
    samples : array_like of int
        n >= 1.
    least_eigenvalue : array_like
        λ > 0.
    delta : array_like
        Probability of failure, in (0, 1).
    constant : array_like, default 1
        C > 0, which the theorem does not name.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.limits import du_width
    >>> print(f"{du_width(100, 0.5, 0.1):.3g}")
    1.6e+16
    """
    n, value, failure, factor = checked(_CHECKS, **locals())
    return factor * n**6 / (failure**3 * value**4)


def song_yang_width(
    samples: Reals, least_eigenvalue: Reals, delta: Reals, constant: Reals = 1.0
) -> Float64Array:
    """Width ``C n⁴ ln³(n/δ) / λ⁴`` from which on `du_residual` holds (Song and Yang, 1906.03593).

    Parameters, returned array and errors are those of `du_width`.

    Examples
    --------
    >>> from bnmc.bounds.limits import song_yang_width
    >>> print(f"{song_yang_width(100, 0.5, 0.1):.3g}")
    5.27e+11
    """
    n, value, failure, factor = checked(_CHECKS, **locals())
    return factor * n**4 / value**4 * np.log(n / failure) ** 3


def du_residual(
    time: Reals, samples: Reals, least_eigenvalue: Reals, learning_rate: Reals = 1.0
) -> Float64Array:
    """Bound ``exp(−η λ t / n)`` of ``‖ŷ_t − y‖² / ‖ŷ_0 − y‖²`` (Du et al., Theorem 3.2).

    The lectures print ``exp(−2 η λ t / n)`` without the factor ``‖ŷ_0 − y‖²``. Twice this rate is
    that of infinite width. At finite width the theorem has half of it, because the least eigenvalue
    of the kernel during training is only known to be at least λ/2.

    Parameters
    ----------
    time : array_like
        t >= 0.
    samples : array_like of int
        n >= 1.
    least_eigenvalue : array_like
        λ > 0.
    learning_rate : array_like, default 1
        η > 0.

    Returns
    -------
    ndarray of float64
        In [0, 1].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.limits import du_residual
    >>> print(du_residual([0.0, 20.0], 10, 0.5).round(4))
    [1.     0.3679]
    """
    t, n, value, rate = checked(_CHECKS, **locals())
    return np.exp(-rate * value * t / n)


def arora_error(
    complexity: Reals, samples: Reals, least_eigenvalue: Reals, delta: Reals, constant: Reals = 1.0
) -> Float64Array:
    """Bound of the test error, ``√(2 yᵀG⁻¹y/n) + C √(ln(n/(λδ))/n)`` (Arora et al., 1901.08584).

    Theorem 5.1: with probability at least 1 − δ, the expected loss of a wide network after training
    is at most this, for any loss in [0, 1] that is 1-Lipschitz and 0 at the label.

    Parameters
    ----------
    complexity : array_like
        ``√(2 yᵀG⁻¹y/n)`` >= 0, as `bnmc.infinite_width.complexity` returns it.
    samples, least_eigenvalue, delta, constant : array_like
        As in `du_width`.

    Returns
    -------
    ndarray of float64
        >= 0. Where λδ exceeds n, the logarithm counts as 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.limits import arora_error
    >>> print(arora_error(0.3, 1000, 0.1, 0.05).round(4))
    0.4105
    """
    leading, n, value, failure, factor = checked(_CHECKS, **locals())
    log = np.maximum(np.log(n / (value * failure)), 0.0)
    return leading + factor * np.sqrt(log / n)


make_public(__name__)
