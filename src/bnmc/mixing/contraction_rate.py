"""Two chains with common random numbers: `contraction` under the same normals, and `two_inputs`.

`contraction` is the rate at which two chains driven by the same normals approach each other.
`two_inputs` has the distances of two inputs of one network, *On bridging …*, Corollaries 2 and 4.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram as grams
from bnmc._kernels.scalar import codes
from bnmc._support.arguments import Float64Array, draw_key, finite_array, integer, real
from bnmc._support.machine import require_memory
from bnmc._support.progress import Progress
from bnmc._support.text import Result
from bnmc._support.workers import Parallel
from bnmc.chain.chain import Chain
from bnmc.chain.needs import STATIONARY, require
from bnmc.chain.start import FirstLayer, Start
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate, half_width
from bnmc.mixing.coupling import CoupledPairs, of_instability
from bnmc.mixing.rate import RateEstimate, WithRate
from bnmc.plot.drawn import Curves
from bnmc.simulation.engine.pairs import APART, Pairs
from bnmc.simulation.run import simulate

#: The exponent is estimated between these two distances.  Below the first, the distance changes by
#: a linear map and points in the direction that shrinks most slowly.  The second is well above
#: rounding.
_NEAR, _NEAREST = 1e-4, 1e-10

#: Layers between two checks of whether all pairs are near.
BLOCK_LAYERS = 64


@dataclass(frozen=True)
class Contraction(Curves, WithRate):
    """The contraction of pairs of chains under common normals.

    Attributes
    ----------
    rate_estimate : RateEstimate
        exp(exponent), with its error.
    exponent : Estimate or None
        The finite-width Lyapunov exponent: mean change per layer of the natural logarithm of a
        small distance; None if successive layers are independent, so that the rate is 0.
    distance : (chains, layers) ndarray of float64
        ``‖L⁻¹S′L⁻ᵀ − I‖_F``, minimized over the scale of S′, before each layer from layer 1 on.
        S = LLᵀ and S′ are the covariances of the rows of the two chains.  0 after the first
        distance below 1e-10, where rounding is left.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.mixing.contraction(bnmc.Chain(2000, 5, "relu"), rng=0)
    >>> found.distance.shape[0], round(found.rate, 2)
    (32, 0.61)
    """

    _axis = "layers", "layer"
    _curves = MappingProxyType({"distance": "distance of two chains: median, 90 % of the pairs"})
    _scale = "log"

    rate_estimate: RateEstimate
    exponent: Estimate | None
    distance: Float64Array

    @property
    def layers(self) -> NDArray[np.int64]:
        """The layers of `distance`, from 1 on."""
        return np.arange(1, self.distance.shape[1] + 1)


def contraction(
    chain: Chain,
    *,
    chains: int = 32,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: bool | Progress = False,
) -> Contraction:
    r"""Estimate the rate at which two chains under common normals approach each other.

    Parameters
    ----------
    chain : Chain
        With a norm, Gaussian weights and no skip connection: then the Gram matrix of the
        activations that W multiplies is a Markov chain, for each norm, order, bias and convolution.
    chains : int, default 32
        Number of independent pairs of chains, >= 2.
    initial, rng, level, threads, executor, progress
        As in `tv_bound`.  The two chains of a pair start independently; if `initial` is a batch,
        the second chain starts one layer later.  There is no time limit: the pairs that are near by
        then would be the fast ones, so the rate would be too small.
    max_layers : int, default 4000
        Layers after which a pair that has not reached a distance of 1e-10 counts as failed.

    Returns
    -------
    Contraction

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `tv_bound`.
    ResultTooLargeError
        If the pairs do not fit in memory.
    NotMixing
        If some pairs do not reach a distance of 1e-10 within `max_layers`, or lose rank.

    Notes
    -----
    Both chains draw their rows as L z and L′z, with L and L′ the Cholesky factors of their
    covariances.  At small distances, each layer changes the distance by a random linear map.  The
    estimate of its top Lyapunov exponent is a ratio of two sums over pairs.  The numerator is the
    change of the logarithm of the distance from the first layer below 1e-4 to the first layer below
    1e-10; the denominator is the number of these layers.  The standard error is that of a ratio of
    means of independent pairs.  At infinite width exp(exponent) is the rate of the mean-field fixed
    point (``bnmc.MeanField(chain).fixed_point().rate``).

    Two inputs of one network share the weights and do not contract in this way; see `two_inputs`.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=2000, batch=5, activation="relu")
    >>> found = bnmc.mixing.contraction(chain, rng=0)
    >>> abs(found.rate - bnmc.MeanField(chain).fixed_point().rate) < 0.02
    True
    """
    parallel = Parallel.of(threads, executor, progress)
    coupled = CoupledPairs(chain, initial, rng, max_layers, parallel)
    chains = integer("chains", chains, low=2, high=2**20)
    level = real("level", level, above=0.0, below=1.0)
    # Five arrays hold distances and pivots of at least two blocks of layers.
    numbers = 10 * BLOCK_LAYERS
    parts = coupled.map(_approach, 0, chains, "contraction", coupled.max_layers, numbers=numbers)
    longest = max(part.shape[1] for part in parts)
    # NaN for the layers that a part of the pairs does not need.
    padded = [
        np.pad(part, ((0, 0), (0, longest - part.shape[1]), (0, 0)), constant_values=np.nan)
        for part in parts
    ]
    trace = np.concatenate(padded)
    distance, pivot = trace[..., 0], trace[..., 1]
    nearest = distance < _NEAREST
    if not nearest.any(axis=1).all():
        raise _not_mixing(chain, distance, pivot)
    # Later distances are rounding errors.
    last = nearest.argmax(axis=1)
    layers = np.arange(distance.shape[1])
    distance = np.where(layers <= last[:, None], distance, 0.0)[:, : last.max() + 1]
    first = (distance < _NEAR).argmax(axis=1)
    rows = np.arange(chains)
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.log(distance[rows, last]) - np.log(distance[rows, first])
    took = (last - first).astype(np.float64)
    # Infinite if successive layers are independent: the remaining distance is a rounding error.
    exponent, stderr = -math.inf, 0.0
    if np.isfinite(fall).all() and took.sum() > 0.0:
        exponent = float(fall.sum() / took.sum())
        stderr = float(np.std(fall - exponent * took, ddof=1) / math.sqrt(chains) / took.mean())
    half = half_width(stderr, chains - 1, level)
    rate = math.exp(exponent)
    estimate = RateEstimate(
        rate, rate * stderr, (math.exp(exponent - half), min(1.0, math.exp(exponent + half))),
        chains, "common normals", level,
    )  # fmt: skip
    log_rate = None
    if rate > 0.0:
        log_rate = Estimate(
            exponent, stderr, (exponent - half, exponent + half), chains, "common normals", level
        )
    return Contraction(estimate, log_rate, distance)


def _approach(
    chain: Chain, start: Start, key: int, first: int, last: int, max_layers: int
) -> Float64Array:
    """Return distance and least pivot of pairs, (pairs, layers, 2), until all are near.

    Pairs that lose rank count as near here.
    """
    pairs = Pairs(chain, start, 1, first, last, key, threshold=APART)
    pairs.advance(1)
    traces: list[Float64Array] = []
    near = np.zeros(last - first, np.bool_)
    while pairs.layer <= max_layers and not near.all():
        layers = min(BLOCK_LAYERS, 1 + max_layers - pairs.layer)
        trace = pairs.advance(layers, traced=last - first)[1]
        traces.append(trace)
        near |= (trace[..., 0] < _NEAREST).any(axis=1) | (pairs.status[:, 0] == codes.DEGENERATE)
    return np.concatenate(traces, axis=1)


def _not_mixing(chain: Chain, distance: Float64Array, pivot: Float64Array) -> NotMixing:
    """Return the error for pairs that do not approach each other."""
    apart = ~(distance < _NEAREST).any(axis=1)
    with np.errstate(divide="ignore"):
        exponent = _mean_slope(np.log(distance[apart]))
        trend = _mean_slope(np.log10(pivot[apart]))
    reason = (
        f"{np.count_nonzero(apart)} of {len(distance)} pairs do not approach in "
        f"{distance.shape[1]} layers: their distance changes by a factor of e^{exponent:.2g} per "
        f"layer, the least pivot of their Gram matrices by 10^{trend:.2g}"
    )
    return NotMixing(of_instability(chain) + reason, distance, exponent, trend)


def _mean_slope(values: Float64Array) -> float:
    """Return the mean change per layer, from the first to the last finite value of each row."""
    change, layers = 0.0, 0
    for row in values:
        finite = np.flatnonzero(np.isfinite(row))
        if finite.size > 1:
            change += float(row[finite[-1]] - row[finite[0]])
            layers += int(finite[-1] - finite[0])
    return change / layers if layers else math.nan


# --- two inputs of one network


@dataclass(frozen=True)
class TwoInputs(Curves, Result):
    """Distances between the Gram matrices of two inputs of the same networks.

    Attributes
    ----------
    layers : (layers,) ndarray of int
    spectral : (chains, layers) ndarray of float64
        ``Σ_i |λ_i/λ′_i − 1|``, both sorted in ascending order: the quantity of Corollary 2.
    relative : (chains, layers) ndarray of float64
        ‖G⁻¹G′ − I‖_F: the quantity of Corollary 4.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 500, 4))
    >>> found = bnmc.mixing.two_inputs(bnmc.Chain(500, 4, "relu"), x, y, depth=20, rng=0)
    >>> bool(found.relative[:, 20].mean() < found.relative[:, 0].mean())
    True
    """

    _axis = "layers", "layer"
    _curves = MappingProxyType(
        {
            "spectral": "|λ/λ′ − 1|, summed: median, 90 % of the networks",
            "relative": "relative deviation",
        }
    )
    _scale = "log"

    layers: NDArray[np.int64]
    spectral: Float64Array
    relative: Float64Array


def two_inputs(
    chain: Chain,
    x: ArrayLike,
    y: ArrayLike,
    *,
    depth: int = 50,
    chains: int = 100,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> TwoInputs:
    r"""Compare the Gram matrices of two inputs of the same random networks.

    Parameters
    ----------
    chain : Chain
        With a normalization.
    x, y : (width, batch) array_like
        The inputs; their Gram matrices at layer 0 must be regular.
    depth : int, default 50
        Number of layers, >= 0.
    chains : int, default 100
        Number of independent networks; both inputs pass through each of them.
    rng, threads, executor, progress
        As in `bnmc.simulate`.
    timeout : float, optional
        Seconds, > 0, after which the result has the layers that all networks have reached.

    Returns
    -------
    TwoInputs

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For arguments that are not allowed.
    SingularGramError
        If a Gram matrix is singular.  For a linear chain with centred rows, only the part
        orthogonal to the vector of ones must be regular: the Gram matrix always maps this vector
        to 0, so the orthogonal parts are compared.
    PartialEstimateError
        If no layer is finished within `timeout`.

    Notes
    -----
    By Corollaries 2 and 4 of Joudaki, Daneshmand and Bach (arXiv 2205.13076), under their
    assumption of geometric ergodicity both quantities decrease to a level of order
    n ‖G*^{-1/2}‖/√d (for the second, times the distortion of the activation), with d the width, n
    the batch and G* the Gram matrix of the fixed point.  They do not converge to 0: the Gram
    matrices of two inputs fluctuate differently, even though they share the weights.  Under a
    centred norm they do so independently, to leading order in 1/d.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 500, 4))
    >>> found = bnmc.mixing.two_inputs(bnmc.Chain(500, 4, "relu"), x, y, depth=20, rng=0)
    >>> found.relative.shape
    (100, 21)
    """
    require(chain, STATIONARY)
    inputs = [
        finite_array(name, value, shape=(chain.width, chain.batch)).astype(np.float64, copy=False)
        for name, value in (("x", x), ("y", y))
    ]
    depth = integer("depth", depth, low=0)
    chains = integer("chains", chains, low=1)
    parallel, key = Parallel.of(threads, executor, progress, timeout), draw_key(rng)
    # The matrices of both inputs, with each other four; their regular parts; and temporary arrays.
    require_memory("depth, chains", 8 * 8 * chains * (depth + 1) * chain.batch**2)
    run = simulate(
        chain, depth, chains=chains, initial=np.stack(inputs), inputs=2, rng=key,
        timeout=timeout, **parallel.options,
    )  # fmt: skip
    if not run.layers.size:
        raise parallel.stop.error("no layer is finished")
    first, second = (_regular_part(chain, run.gram[:, :, k]) for k in range(2))
    relative = grams.relative_deviation(first, second)
    grams.relative_deviation(second, first)  # raises if G′ is singular
    ratio = grams.eigenvalues(first) / grams.eigenvalues(second)
    return TwoInputs(run.layers, np.abs(ratio - 1.0).sum(axis=-1), relative)


def _regular_part(chain: Chain, gram: Float64Array) -> Float64Array:
    """Return G, or its part orthogonal to the ones if only this part can be regular."""
    is_last = chain.layers[1].rows.activates_first
    if not ((chain.activation.is_linear or is_last) and chain.normalization.hides_common_part):
        return gram
    from scipy.linalg import helmert

    basis = helmert(chain.batch)
    return np.asarray(basis @ gram @ basis.T)
