"""`logit_divergence`: the distance of the outputs of a limit from those of finite networks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma

from bnmc._support.arguments import finite_array
from bnmc.errors import ArgumentError

__all__ = ["logit_divergence"]


def logit_divergence(outputs: ArrayLike, reference: ArrayLike, *, corrected: bool = True) -> float:
    """Mean over samples of KL(N(E f, Var f) ‖ N(E f*, Var f*)), from networks with many seeds.

    Parameters
    ----------
    outputs : (networks, samples) array_like
        Outputs f of m >= 2 networks.
    reference : (references, samples) array_like
        Outputs f* of m* >= 4 networks of the reference.
    corrected : bool, default True
        Whether the small-sample bias is removed, for all normal laws.

    Returns
    -------
    float
        ``½ mean(v/v* + (μ* − μ)²/v* − 1 − ln(v/v*))``, with means μ and unbiased variances v over
        the networks. A corrected value may be negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the arrays have other shapes, too few networks, or no variance.

    Notes
    -----
    With ν = m − 1, ν* = m* − 1, estimates in place of moments, and normal outputs,
    ``E[v/v*] = ν*/(ν*−2)`` times its true value, ``(μ* − μ)²`` is too large by v/m + v*/m*, and
    ``ln v`` is too large by ψ(ν/2) − ln(ν/2). The correction removes all three, so that the
    expectation is that of the true moments, whatever these are. Without it, the expectation for
    equal laws is ``½[ν*/(ν*−2) (1 + 1/m + 1/m*) − 1 − ψ(ν/2) + ln(ν/2) + ψ(ν*/2) − ln(ν*/2)]``:
    0.271 for m = m* = 10, and 0.042 for 50. Golikov (arXiv 2003.05884) prints values without this
    correction.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import logit_divergence
    >>> one, other = np.random.default_rng(0).standard_normal((2, 10, 10_000))
    >>> round(logit_divergence(one, other, corrected=False), 2)
    0.27
    >>> abs(logit_divergence(one, other)) < 0.02
    True
    """
    f = finite_array("outputs", outputs, shape=("networks", "samples")).astype(np.float64)
    g = finite_array("reference", reference, shape=("networks", f.shape[1])).astype(np.float64)
    for name, values, least in (("outputs", f, 2), ("reference", g, 4)):
        if len(values) < least:
            raise ArgumentError(name, f"{len(values)} networks", f"at least {least} networks")
        if not values.var(axis=0).all():
            raise ArgumentError(name, "a variance of 0", "outputs that differ between networks")
    v, other = f.var(axis=0, ddof=1), g.var(axis=0, ddof=1)
    ratio = v / other
    shift = np.square(g.mean(axis=0) - f.mean(axis=0)) / other
    logs = np.log(ratio)
    if corrected:
        nu, other_nu = len(f) - 1, len(g) - 1
        deflation = (other_nu - 2) / other_nu
        shift = deflation * (shift - ratio / len(f)) - 1.0 / len(g)
        ratio = deflation * ratio
        logs = logs - _mean_log(nu) + _mean_log(other_nu)
    return 0.5 * float(np.mean(ratio + shift - 1.0 - logs))


def _mean_log(freedom: int) -> float:
    """Return E ln(v) of a sample variance v with expectation 1."""
    return float(digamma(freedom / 2) - math.log(freedom / 2))
