"""One step and the iterates of the mean-field map, with an estimate of their errors.

`step` and `trajectory` evaluate `MeanField.step` and `MeanField.trajectory`.  Homogeneous
activations use `homogeneous_map`.  Others use `pairwise_maps` on lattices with 8 random shifts:
each shift has its own trajectory, so the standard errors include propagated errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bnmc._support.arguments import draw_key, finite_array, integer, real
from bnmc._support.machine import available_memory
from bnmc.chain.chain import Chain
from bnmc.errors import (
    ArgumentError,
    NonFiniteError,
    ResultTooLargeError,
    ZeroVarianceError,
)
from bnmc.gram import validate_gram
from bnmc.mean_field.finite_width.gaussian import PathFluctuations
from bnmc.mean_field.float64 import EPSILON, FloatArray, within
from bnmc.mean_field.map.homogeneous import homogeneous_map, slopes
from bnmc.mean_field.map.norm_after import normalized_gram, sample_moments
from bnmc.mean_field.map.pairwise import pairwise_maps
from bnmc.mean_field.map.rows import Rows, follows_activation, gaussian_rows


@dataclass(frozen=True, eq=False, kw_only=True)
class _MapResult:
    """The attributes that `Step` and `MeanFieldTrajectory` share; they convert to `gram`."""

    gram: FloatArray
    stderr: FloatArray
    error: float
    method: str
    nodes: int
    key: int | None

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.gram, dtype=dtype, copy=copy)


@dataclass(frozen=True, eq=False, kw_only=True)
class Step(_MapResult):
    """One step F(G) of the mean-field map; returned by `MeanField.step`.

    ``numpy.asarray(step)`` is `gram`.

    Attributes
    ----------
    gram : (batch, batch) ndarray of float64
        F(G), symmetric.
    stderr : (batch, batch) ndarray of float64
        Standard error of each entry, rounding included; zeros if `method` is "homogeneous".
    error : float
        Relative error in the Frobenius norm.  If `method` is "lattice", it is ‖stderr‖ / ‖gram‖; if
        `method` is "homogeneous", the estimated error of the quadrature.
    method : {"homogeneous", "lattice"}
        "homogeneous" for activations with σ(cx) = c σ(x) for all c > 0: a closed form or a
        one-dimensional integral.  "lattice" for all others: the mean over 8 random shifts of a
        lattice of nodes.
    nodes : int
        Nodes of the lattice per pair of samples and per shift; 0 if `method` is "homogeneous".
    key : int or None
        The 64-bit key of the random shifts: ``rng=numpy.random.default_rng(seed)`` draws it.  None
        if `method` is "homogeneous".

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> step = bnmc.MeanField(bnmc.Chain(1000, 3, "relu")).step(np.diag([1.0, 2.0, 3.0]))
    >>> step.method, step.gram.shape, np.asarray(step) is step.gram
    ('homogeneous', (3, 3), True)
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanFieldTrajectory(_MapResult):
    """The iterates G_{l+1} = F(G_l) of the mean-field map; returned by `MeanField.trajectory`.

    ``numpy.asarray(trajectory)`` is `gram`.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int64
        0, 1, …, depth.
    gram : (depth + 1, batch, batch) ndarray of float64
        The Gram matrices; ``gram[0]`` is the argument ``G0``.
    stderr : (depth + 1, batch, batch) ndarray of float64
        Standard errors, which include the propagated errors of earlier layers.  Zeros for layer 0,
        and for all layers if `method` is "homogeneous".
    error : float
        The largest relative error of any layer, as in `Step`.  If `method` is "homogeneous", errors
        are not propagated: it is the largest error of a single step.
    method, nodes, key
        As in `Step`; `nodes` is the largest number of any layer.
    fluctuations : PathFluctuations or None
        The fluctuations around this path at finite width, if they were asked for.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "relu"))
    >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), depth=5)
    >>> run.gram.shape, run.method
    ((6, 3, 3), 'homogeneous')
    """

    layers: NDArray[np.int64]
    fluctuations: PathFluctuations | None = None


_R = TypeVar("_R", bound=_MapResult)

#: Independent random shifts of the lattice; the standard errors come from their spread.
SHIFTS = 8

# Angles of the lattice, one refinement after the other.  Each refinement doubles the number of
# nodes: that wastes little on lattices that are too coarse, and exceeds the necessary number by a
# factor of at most 2.
_ANGLES = (5, 7, 11, 15, 21, 31, 43, 61, 87, 123, 173, 245, 347, 491, 693, 981)

# Rounding error of an entry (i, j), in units of √(F_ii F_jj).
_ROUNDING = 16.0 * EPSILON


def step(chain: Chain, G: ArrayLike, rtol: float, rng: Any, max_nodes: int) -> Step:
    """Return F(G); see `MeanField.step` for the arguments."""
    run = _run(chain, "G", G, 1, rtol, rng, max_nodes)
    return _accurate(
        Step(
            gram=run.gram[1],
            stderr=run.stderr[1],
            error=run.error,
            method=run.method,
            nodes=run.nodes,
            key=run.key,
        ),
        rtol,
    )


def trajectory(
    chain: Chain, G0: ArrayLike, depth: int, rtol: float, rng: Any, max_nodes: int
) -> MeanFieldTrajectory:
    """Return G0, F(G0), F(F(G0)), …; see `MeanField.trajectory` for the arguments."""
    return _accurate(_run(chain, "G0", G0, depth, rtol, rng, max_nodes), rtol)


def _accurate(result: _R, rtol: float) -> _R:
    """Return the result; raise `PartialEstimateError` if its error exceeds `rtol`."""
    nodes = f" with {result.nodes} nodes for each pair and shift" if result.nodes else ""
    return within(result, result.error, rtol, "Gram matrix", nodes)


def _run(
    chain: Chain, name: str, G0: ArrayLike, depth: int, rtol: float, rng: Any, max_nodes: int
) -> MeanFieldTrajectory:
    """Check the arguments and return the trajectory, refined to `rtol` or up to `max_nodes`."""
    if chain.skip != 0:
        hint = (
            "with a skip connection the next Gram matrix depends on more than this one; "
            "bnmc.simulate measures this chain"
            if chain.normalization.axis == "batch" or chain.convolution is not None
            else "bnmc.mean_field.CorrelationMap.of(chain) has skip connections"
        )
        raise ArgumentError("skip", chain.skip, "0", hint)
    depth = integer("depth", depth, low=0)
    rtol = real("rtol", rtol, above=0.0)
    max_nodes = integer("max_nodes", max_nodes, low=1)
    key = draw_key(rng)
    chain.activation.check()
    with np.errstate(over="ignore", invalid="ignore"):  # `_require_finite` checks each layer
        first = _first_layer(chain, name, G0)
        size, available = 2 * (depth + 1) * first.gram.nbytes, available_memory()
        if size > available:
            raise ResultTooLargeError("depth", size, available, "go on from the last layer")
        found = slopes(chain.activation)
        if found is not None:
            return _homogeneous(chain, first, depth, *found)
        return _lattice(chain, first, depth, key, rtol, max_nodes)


class _FirstLayer(NamedTuple):
    """The Gram matrix of layer 0, and the law of the rows of layer 1."""

    gram: FloatArray
    rows: Rows


def _first_layer(chain: Chain, name: str, G: ArrayLike) -> _FirstLayer:
    """Check the Gram matrix of the argument `name`."""
    given = finite_array(name, G, shape=(chain.batch, chain.batch))
    gram = validate_gram(given, name)
    rows = gaussian_rows(chain, gram, float(np.finfo(given.dtype).eps))
    if not rows.has_variance:
        allowed = "samples not all 0"
        if chain.normalization.hides_common_part:
            allowed = "samples that are not all equal"
        if chain.normalization.axis == "features":
            allowed = "a matrix whose diagonal has no 0"
        raise ArgumentError(name, float(np.abs(gram).max()), allowed, "no row can be normalized")
    return _FirstLayer(gram, rows)


def _next_rows(chain: Chain, gram: FloatArray, layer: int) -> Rows:
    """Return the law of the rows of a layer, from the Gram matrix of the layer before."""
    rows = gaussian_rows(chain, gram)
    if not rows.has_variance:
        if chain.normalization.axis == "features":
            sample = int(np.diagonal(chain.covariance(gram)).argmin())
            raise ZeroVarianceError(None, layer, None, sample)
        raise ZeroVarianceError(None, layer, 0)
    return rows


def _after_norm(
    chain: Chain, before: FloatArray, products: FloatArray, layer: int
) -> tuple[FloatArray, float]:
    """Return the Gram matrix of a layer from E σσᵀ, and the error of the means of its samples."""
    if not follows_activation(chain):
        return products, 0.0
    at = sample_moments(chain, before)
    return normalized_gram(chain, products, at.means, layer), at.error


def _require_finite(gram: FloatArray, layer: int) -> None:
    if not np.isfinite(gram).all():
        raise NonFiniteError(None, layer, "mean-field Gram matrix")


def _homogeneous(
    chain: Chain, first: _FirstLayer, depth: int, left: float, right: float
) -> MeanFieldTrajectory:
    """Return the trajectory for a homogeneous activation with these slopes."""
    grams, worst = [first.gram], 0.0
    for layer in range(1, depth + 1):
        rows = first.rows if layer == 1 else _next_rows(chain, grams[-1], layer)
        gram, error = homogeneous_map(rows, left, right)
        _require_finite(gram, layer)
        gram, more = _after_norm(chain, grams[-1], gram, layer)
        error += more
        grams.append(gram)
        worst = max(worst, error)
    return MeanFieldTrajectory(
        layers=np.arange(depth + 1),
        gram=np.array(grams),
        stderr=np.zeros((depth + 1, *first.gram.shape)),
        error=worst,
        method="homogeneous",
        nodes=0,
        key=None,
    )


def _lattice(
    chain: Chain, first: _FirstLayer, depth: int, key: int, rtol: float, max_nodes: int
) -> MeanFieldTrajectory:
    """Return the mean of 8 trajectories, one per shift, on lattices refined until `rtol` holds."""
    shifts = np.random.default_rng(key).random((SHIFTS, 2))
    for angles, next_angles in zip(_ANGLES, (*_ANGLES[1:], math.inf), strict=True):
        grams, stderrs, worst, most = [first.gram], [np.zeros_like(first.gram)], 0.0, 0
        states = np.repeat(first.gram[None], SHIFTS, axis=0)
        for layer in range(1, depth + 1):
            rows = [first.rows if layer == 1 else _next_rows(chain, G, layer) for G in states]
            products, nodes = pairwise_maps(rows, chain.activation, angles, shifts)
            most = max(most, nodes)
            _require_finite(products, layer)
            pairs = zip(states, products, strict=True)
            normed = [_after_norm(chain, before, one, layer) for before, one in pairs]
            states = np.array([gram for gram, _ in normed])
            mean = np.mean(states, axis=0)
            _require_finite(mean, layer)
            worst = max(worst, *(error for _, error in normed))
            grams.append(mean)
            stderrs.append(_standard_error(states, mean))
            worst = max(worst, _relative(stderrs[-1], mean))
            refinable = most * (next_angles / angles) ** 2 <= max_nodes
            if worst > rtol and refinable:
                break
        else:
            break
    return MeanFieldTrajectory(
        layers=np.arange(depth + 1),
        gram=np.array(grams),
        stderr=np.array(stderrs),
        error=worst,
        method="lattice",
        nodes=most,
        key=key,
    )


def _standard_error(states: FloatArray, mean: FloatArray) -> FloatArray:
    """Return the standard error of each entry of the mean of the states, plus rounding."""
    spread = np.std(states, axis=0, ddof=1) / math.sqrt(len(states))
    size = np.sqrt(np.abs(np.diagonal(mean)))
    return np.asarray(spread + _ROUNDING * size[:, None] * size)


def _relative(error: FloatArray, value: FloatArray) -> float:
    norm = float(np.linalg.norm(value))
    return float(np.linalg.norm(error)) / norm if norm > 0.0 else 0.0
