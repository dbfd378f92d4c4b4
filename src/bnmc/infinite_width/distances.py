"""Distances of networks of finite width from a limit: `convergence` and `logit_divergence`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma

from bnmc._support.arguments import draw_key, finite_array, integer, items
from bnmc._support.linalg import binary_scale, require_finite
from bnmc._support.progress import Progress
from bnmc._support.text import Result
from bnmc._support.workers import Parallel
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate, Estimates, with_student_interval
from bnmc.infinite_width.kernels import MOST_LAYERS, ntk
from bnmc.infinite_width.networks import SimulatedKernel
from bnmc.mean_field.float64 import FloatArray
from bnmc.plot.axes import COLOURS
from bnmc.plot.drawn import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Convergence(Curves, Result):
    """Distances of tangent kernels of finite width from their limit.

    `plot` draws the distances against the width, and a line of slope −1/2 through the last one.

    Attributes
    ----------
    widths : (widths,) ndarray of int64
    distances : Estimates
        For each width, the mean over networks of ``‖Θ − Θ_∞‖_F / ‖Θ_∞‖_F``.
    slope : Estimate
        Slope of log distance against log width by weighted least squares. Theory: −1/2 for large
        widths.
    limit : ndarray of float64
        Θ_∞.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import convergence
    >>> x = np.random.default_rng(0).standard_normal((4, 5))
    >>> found = convergence(x, 1, widths=[32, 512], weight_variance=2.0, rng=0)
    >>> found.widths, bool(found.distances[1].value < found.distances[0].value)
    (array([ 32, 512]), True)
    """

    widths: NDArray[np.int64]
    distances: Estimates
    slope: Estimate
    limit: FloatArray

    _axis = "widths", "width"
    _curves = MappingProxyType({"distances": "relative distance of tangent kernels"})
    _scale = "log"

    def _draw(self, ax: Axes) -> None:
        super()._draw(ax)
        line = self.distances.value[-1] * np.sqrt(self.widths[-1] / self.widths)
        ax.plot(self.widths, line, "--", color=COLOURS[1], label="slope −1/2")
        ax.set_xscale("log")
        ax.legend(fontsize="small")


def convergence(
    x: ArrayLike,
    depth: int,
    *,
    widths: Iterable[int] = (64, 128, 256, 512),
    chains: int = 50,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
    **options: Any,
) -> Convergence:
    """Measure how fast tangent kernels of finite networks converge to that of infinite width.

    Parameters
    ----------
    x, depth
        As in `ntk`; depth >= 1.
    widths : iterable of int, default (64, 128, 256, 512)
        At least two different widths >= 2.
    chains : int, default 50
        Networks of each width, >= 2.
    rng : optional
        Seed of the networks, and of the limit if it is estimated.
    threads, executor, progress
        As in `ntk`, for each width.
    timeout : float, optional
        Seconds, > 0, after which no network begins.  The result then has fewer networks of some
        widths, at least 2 of each.
    **options
        Other arguments of `ntk` except `method`, `width` and `dtype`.

    Returns
    -------
    Convergence

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the limit is 0.
    NonFiniteError, ResultTooLargeError, PartialEstimateError
        As `ntk`; also if `timeout` ends before 2 networks of each width are finished.

    Notes
    -----
    If differences of the samples of a batch have 3 or 4 dimensions, norm "batch" makes the variance
    of the kernel infinite. Distances then decrease more slowly than with the power −1/2, and
    their standard errors are unreliable.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import convergence
    >>> found = convergence(np.eye(5), 2, widths=[64, 512], norm="layer", chains=20, rng=0)
    >>> print(f"slope {found.slope:.2f}")
    slope -0.52 ± 0.05
    """
    depth = integer("depth", depth, low=1, high=MOST_LAYERS)
    sizes = [integer("widths", width, low=2) for width in items("widths", widths, "integers >= 2")]
    if len(set(sizes)) < 2:
        raise ArgumentError("widths", sizes, "at least two different widths")
    chains = integer("chains", chains, low=2)
    for name in ("method", "width", "dtype"):
        if name in options:
            raise ArgumentError(name, options[name], "arguments of ntk except this one")
    key = draw_key(rng)
    parallel = Parallel.of(threads, executor, progress, timeout)
    options |= parallel.options
    limit = np.asarray(ntk(x, depth, rng=key, timeout=timeout, **options))
    if not limit.any():
        raise ArgumentError("x", 0.0, "inputs whose kernel is not 0")
    samples, scale = [], binary_scale(limit)
    for number, width in enumerate(sizes):
        finite = ntk(
            x, depth, method="monte-carlo", width=width, chains=chains,
            rng=np.random.default_rng([key, number]), timeout=parallel.stop.seconds_left, **options,
        )  # fmt: skip
        assert isinstance(finite, SimulatedKernel)
        if finite.chains < 2:
            raise parallel.stop.error(f"only {number} of {len(sizes)} widths are finished")
        far = finite.kernels / scale - limit / scale
        far = np.sqrt(np.square(far).sum(axis=(1, 2)) / np.square(limit / scale).sum())
        samples.append(far)
    distances = np.array([far.mean() for far in samples])
    stderr = np.array([far.std(ddof=1) / math.sqrt(len(far)) for far in samples])
    least = min(map(len, samples))
    logs = np.log(sizes), np.log(distances)
    line, covariance = np.polyfit(*logs, 1, w=distances / stderr, cov="unscaled")
    error = float(np.sqrt(covariance[0, 0]))
    slope = with_student_interval(
        float(line[0]), error, least - 1, least, "weighted least squares", 0.95
    )
    estimates = Estimates(distances, stderr, least, "mean over networks")
    return Convergence(np.array(sizes), estimates, slope, limit)


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
        If the arrays have other shapes, too few networks, or no variance, or the divergence
        overflows float64.

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
    given, f_scale, g_scale = f, binary_scale(f, 0), binary_scale(g, 0)
    f, g = f / f_scale, g / g_scale
    for name, values, least in (("outputs", f, 2), ("reference", g, 4)):
        if len(values) < least:
            raise ArgumentError(name, f"{len(values)} networks", f"at least {least} networks")
        if not values.var(axis=0).all():
            raise ArgumentError(name, "a variance of 0", "outputs that differ between networks")
    with np.errstate(all="ignore"):  # raises below, by name
        unit = f_scale / g_scale
        v, other = f.var(axis=0, ddof=1), g.var(axis=0, ddof=1)
        ratio = v / other * unit * unit
        shift = np.square(g.mean(axis=0) - f.mean(axis=0) * unit) / other
        logs = np.log(ratio)
    require_finite("outputs", given, ratio, shift, logs)
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
