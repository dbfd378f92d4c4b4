"""Ergodic averages of an ensemble: the regularity constant and what Figs. 8 and 9 show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import draw_key, finite_array, integer, items
from bnmc._support.keywords import explains_keywords
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.regularity.averaging import Averages, ErgodicRun, Figures
from bnmc.regularity.ensembles import Float64Array


@explains_keywords
def constant(
    chain: Chain,
    *,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    burn_in: int | None = None,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Estimate:
    """Regularity constant ``α = E Tr(diag(M²)²) / E Tr(M³)`` under the stationary law of a chain.

    Parameters
    ----------
    chain : Chain
        A chain with norm "batch" or "batch-uncentred".  M is computed from x, before the
        activation.  The chains of the paper, `Chain.bn_residual`, are linear.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7).
    rtol : float, default 0.01
        Target relative standard error of α, > 0.
    chains : int, default 64
        Number of independent chains, >= 2.  32 linear chains without a skip connection cost as
        much as one.
    depth : int, default 200000
        Largest number of layers, >= 4.
    burn_in : int, optional
        Layers before the first measured one, from 2 to depth/2.  The default is
        24 (1 + skip²/gain²) √min(width, batch), times 0.01/rtol if that factor exceeds 1.
    threads : int, optional
        Number of threads; the default is the number of processors.  Results do not depend on it.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) layers.
        The total grows if the ensemble needs more layers.

    Returns
    -------
    Estimate
        The interval is Student's over chains and rests on the central limit theorem; `n` is the
        number of chains, and `method` names the layers of the average.

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers; `partial` is the estimate.
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, before any work.
    ResultTooLargeError
        If the state of the chains would not fit in memory, before any work.
    ZeroVarianceError
        If a row has no variance.

    See Also
    --------
    averages : Also ranks and norms.  The package docstring describes the averages.

    Examples
    --------
    >>> from bnmc.regularity import constant
    >>> import bnmc
    >>> alpha = constant(bnmc.Chain.bn_linear(8, 8), rng=0)
    >>> round(alpha.value, 2), alpha.stderr < 0.01 * alpha.value
    (0.91, True)
    """
    run = ErgodicRun(chain, rng, rtol, chains, depth, burn_in, threads, progress, tau=None)
    return run.constant()


@explains_keywords
def averages(
    chain: Chain,
    *,
    tau: float = 0.5,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    burn_in: int | None = None,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Averages:
    """Ergodic averages of all quantities in Figures 8 and 9 of the rank-collapse paper.

    Parameters
    ----------
    chain, rng, chains, depth, burn_in, threads, progress
        As in `constant`.
    tau : float, default 0.5
        Threshold of the soft rank, > 0.
    rtol : float, default 0.01
        Target relative standard error of each average, > 0.

    Returns
    -------
    Averages

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers; `partial` holds the averages.
    ArgumentError, ArgumentTypeError, ResultTooLargeError, ZeroVarianceError
        As in `constant`.

    Examples
    --------
    >>> from bnmc.regularity import averages
    >>> import bnmc
    >>> found = averages(bnmc.Chain.bn_linear(8, 8), rng=0)
    >>> print(f"{found.rank_bound:.2f}, {found.scaled_norm:.2f}")
    2.24 ± 0.01, 1.29 ± 0.01
    """
    return ErgodicRun(chain, rng, rtol, chains, depth, burn_in, threads, progress, tau).averages()


@explains_keywords
def figures(
    widths: Iterable[int] = (4, 8, 16, 32, 64, 128, 256),
    *,
    gamma: float = math.inf,
    tau: float = 0.5,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Figures:
    """Figures 8 and 9 of the rank-collapse paper: the averages against the width d, with n = d.

    Parameters
    ----------
    widths : iterable of int, default (4, 8, 16, 32, 64, 128, 256)
        Widths d >= 1.
    gamma : float, default inf
        Weight scale γ > 0 of `Chain.bn_residual`; inf removes the skip connection.  Chains need
        about 1/γ² times as many layers.
    tau, rng, rtol, chains, depth, threads, progress
        As in `averages`; progress counts layers of all widths so far.

    Returns
    -------
    Figures

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers at some width.  The message names the width;
        `partial` holds the figures up to this width.
    ArgumentError, ArgumentTypeError, ResultTooLargeError
        As in `constant`.

    Examples
    --------
    >>> from bnmc.regularity import figures
    >>> found = figures([4, 8], rng=0)
    >>> found.value("alpha").round(2)
    array([0.95, 0.91])
    >>> bool((found.stderr("alpha") < 0.01 * found.value("alpha")).all())
    True
    """
    progress = as_progress(progress)
    generator = np.random.default_rng(draw_key(rng))
    runs = [
        ErgodicRun(chain, generator, rtol, chains, depth, None, threads, False, tau)
        for chain in _chains_of(widths, gamma)
    ]
    finished: list[Averages] = []

    def so_far() -> Figures:
        done = [averages.chain.width for averages in finished]
        return Figures(float(gamma), np.array(done, np.int64), tuple(finished))

    with Reporter(progress, "figures", "layers") as report:
        before = 0
        for run in runs:
            run.progress = _later(report, before)
            try:
                finished.append(run.averages())
            except PartialEstimateError as error:
                finished.append(cast(Averages, error.partial))
                reason = f"width {run.chain.width}: {error.reason}"
                raise PartialEstimateError(reason, so_far()) from None
            before += run.layer
    return so_far()


def _chains_of(widths: Iterable[int], gamma: float) -> list[Chain]:
    sizes = [
        integer("widths", w, low=1) for w in items("widths", widths, "an iterable of integers")
    ]
    if not sizes:
        raise ArgumentError("widths", sizes, "at least one width")
    return [Chain.bn_residual(width, width, gamma=gamma) for width in sizes]


def _later(report: Progress, before: int) -> Progress:
    """Return a report of layers that come after the first `before`."""
    return lambda done, total: report(before + done, before + total)


def one_step_second_moment(H: ArrayLike) -> Float64Array:
    r"""Mean of ``‖M₊‖_F²`` after one layer without skip connection (γ = ∞), exactly.

    With x = N(W H), uncentred, W of shape (d, d) with i.i.d. Gaussian entries, ``M₊ = x xᵀ / n``
    has ones on its diagonal and elsewhere squared cosines of independent directions, so that

    .. math:: E‖M_+‖_F^2 = d + d (d - 1) \sum_i p_i^2, \qquad
              p_i = E \frac{s_i^2 z_i^2}{\sum_j s_j^2 z_j^2}
              = \int_0^\infty \frac{s_i^2}{1 + 2 t s_i^2} \prod_j (1 + 2 t s_j^2)^{-1/2} dt,

    where s are the singular values of H and z i.i.d. standard normal; the p sum to 1.

    Parameters
    ----------
    H : (..., d, n) array_like
        Representations, of any rank and scale, not zero.  For norm "batch", centre the rows.

    Returns
    -------
    (...) ndarray of float64
        In [2d − 1, d²] for n >= d, to a relative error of about 1e-13.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `H` is not an array of finite real matrices other than zero.

    Notes
    -----
    In log t the integrands are analytic in the strip ``|Im| < π``, so the trapezoidal rule
    converges like exp(−2π²/h) in its step h; it is cut off where less than 1e-17 is left.

    Examples
    --------
    For the identity every p is 1/d.  A matrix of rank one keeps rank one:

    >>> import numpy as np
    >>> from bnmc.regularity import one_step_second_moment
    >>> print(one_step_second_moment(np.eye(4)).round(12), one_step_second_moment(np.ones((4, 4))))
    7.0 16.0
    """
    matrices = finite_array("H", H, shape=(..., "d", "n")).astype(np.float64, copy=False)
    singular = np.linalg.svd(matrices, compute_uv=False)
    largest = singular.max(axis=-1, keepdims=True)
    if (largest <= 0).any():
        raise ArgumentError("H", 0.0, "matrices other than zero")
    spectra = np.square(singular / largest)
    *leading, count = spectra.shape
    sums = [np.square(_shares(spectrum)).sum() for spectrum in spectra.reshape(-1, count)]
    d = matrices.shape[-2]
    return np.asarray(d + d * (d - 1) * np.reshape(sums, leading))


def _shares(spectrum: Float64Array) -> Float64Array:
    """P of `one_step_second_moment`, for squares of singular values with the maximum 1."""
    step = 0.4
    t = np.exp(np.arange(-44.0, 84.0, step))[:, None]
    grown = 1 + 2 * t * spectrum
    product = np.exp(-0.5 * np.log(grown).sum(axis=1, keepdims=True))
    shares = step * (t * spectrum / grown * product).sum(axis=0)
    return shares / shares.sum()
