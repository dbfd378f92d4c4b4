"""The mean-field map and its trajectories: what they return, and how accurately it is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bnmc._support.arguments import finite_array, integer, real
from bnmc.chain.chain import Chain
from bnmc.errors import (
    ArgumentError,
    NonFiniteError,
    PartialEstimateError,
    ResultTooLargeError,
    ZeroVarianceError,
)
from bnmc.gram import validate_gram
from bnmc.mean_field.map.homogeneous import homogeneous_map, slopes
from bnmc.mean_field.map.laplace import EPSILON, FloatArray, Rows, gaussian_rows
from bnmc.mean_field.map.pairwise import pairwise_maps

__all__ = ["MeanFieldTrajectory", "Step", "step", "trajectory"]
_R = TypeVar("_R", bound="_Result")

#: Independent shifts of the lattice, of which standard errors are.
SHIFTS = 8

# Angles of the lattice, one refinement after the other.  The number of nodes grows by two each
# time: little is lost on lattices that turn out too coarse, and little where one would have done.
_ANGLES = (5, 7, 11, 15, 21, 31, 43, 61, 87, 123, 173, 245, 347, 491, 693, 981)

# Rounding of an entry ij, in units of √(F_ii F_jj).
_ROUNDING = 16.0 * EPSILON


@dataclass(frozen=True, eq=False, kw_only=True)
class _Result:
    """What `Step` and `MeanFieldTrajectory` share; as an array, each is its `gram`."""

    gram: FloatArray
    stderr: FloatArray
    error: float
    method: str
    nodes: int
    key: int | None

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.gram, dtype=dtype, copy=copy)


@dataclass(frozen=True, eq=False, kw_only=True)
class Step(_Result):
    """One step ``F(G)`` of the mean-field map; `MeanField.step` makes it.

    It can be used as the array `gram`: ``numpy.asarray(step)``.

    Attributes
    ----------
    gram : (batch, batch) ndarray of float64
        ``F(G)``, symmetric.
    stderr : (batch, batch) ndarray of float64
        Standard error of each entry, rounding included; zeros where ``method`` is "homogeneous".
    error : float
        Relative error, in the Frobenius norm: ``‖stderr‖ / ‖gram‖``, or the estimated error of the
        quadrature where ``method`` is "homogeneous".
    method : str
        "homogeneous", a closed form or a one-dimensional integral for activations with
        ``σ(cx) = c σ(x)`` for c > 0; else "lattice", the mean over 8 random shifts of a lattice.
    nodes : int
        Nodes of the lattice for each pair of samples and each shift; 0 without a lattice.
    key : int or None
        The 64-bit key of the shifts, ``rng=numpy.random.default_rng(seed)`` draws it; None
        without a lattice.
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanFieldTrajectory(_Result):
    """The iterates ``G_{l+1} = F(G_l)`` of the mean-field map; `MeanField.trajectory` makes it.

    It can be used as the array `gram`: ``numpy.asarray(trajectory)``.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int64
        0, 1, …, depth.
    gram : (depth + 1, batch, batch) ndarray of float64
        ``gram[0]`` is the matrix that was given.
    stderr : (depth + 1, batch, batch) ndarray of float64
        Standard errors, which include what errors of the layers before do to a layer; zeros for
        layer 0, and where ``method`` is "homogeneous".
    error : float
        The largest relative error of a layer, as in `Step`; where ``method`` is "homogeneous"
        that of a single step.
    method, nodes, key
        As in `Step`; `nodes` is the largest number of a layer.
    """

    layers: NDArray[np.int64]


def step(chain: Chain, G: ArrayLike, rtol: float, rng: Any, max_nodes: int) -> Step:
    """``F(G)``: see `MeanField.step`."""
    run = _run(chain, "G", G, 1, rtol, rng, max_nodes)
    return _judged(
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
    """``G0, F(G0), …``: see `MeanField.trajectory`."""
    return _judged(_run(chain, "G0", G0, depth, rtol, rng, max_nodes), rtol)


def _judged(result: _R, rtol: float) -> _R:
    """The result, or the error that says that it is not accurate enough."""
    if result.error <= rtol:
        return result
    nodes = f" with {result.nodes} nodes for each pair and shift" if result.nodes else ""
    raise PartialEstimateError(
        f"relative error {result.error:.1e}{nodes}, rtol is {rtol:.1e}", result
    )


def _run(
    chain: Chain, name: str, G0: ArrayLike, depth: int, rtol: float, rng: Any, max_nodes: int
) -> MeanFieldTrajectory:
    """The trajectory, as accurate as `rtol` or as `max_nodes` allow."""
    from bnmc._support.keys import draw_key  # slow to import
    from bnmc._support.machine import available_memory

    if chain.skip != 0:
        hint = "with a skip connection the Gram matrix alone does not say what comes next"
        raise ArgumentError("skip", chain.skip, "0", hint)
    depth = integer("depth", depth, low=0)
    rtol = real("rtol", rtol, above=0.0)
    max_nodes = integer("max_nodes", max_nodes, low=1)
    key = draw_key(rng)
    chain.activation.check()
    with np.errstate(over="ignore", invalid="ignore"):  # found where they appear, layer by layer
        first = _first_layer(chain, name, G0)
        size, available = 2 * (depth + 1) * first.gram.nbytes, available_memory()
        if size > available:
            raise ResultTooLargeError("depth", size, available, "go on from the last layer")
        found = slopes(chain.activation)
        if found is not None:
            return _homogeneous(chain, first, depth, *found)
        return _lattice(chain, first, depth, key, rtol, max_nodes)


class _FirstLayer(NamedTuple):
    gram: FloatArray
    rows: Rows


def _first_layer(chain: Chain, name: str, G: ArrayLike) -> _FirstLayer:
    """The matrix that was given, checked, and the rows that it makes."""
    given = finite_array(name, G, shape=(chain.batch, chain.batch))
    gram = validate_gram(given, name)
    rows = gaussian_rows(chain, gram, float(np.finfo(given.dtype).eps))
    if not rows.has_variance:
        allowed = "samples that are not all equal" if chain.norm == "batch" else "samples not all 0"
        raise ArgumentError(name, float(np.abs(gram).max()), allowed, "no row can be normalized")
    return _FirstLayer(gram, rows)


def _next_rows(chain: Chain, gram: FloatArray, layer: int) -> Rows:
    """The rows that make a layer, from the Gram matrix of the layer before."""
    rows = gaussian_rows(chain, gram)
    if not rows.has_variance:
        raise ZeroVarianceError(None, layer, 0)
    return rows


def _require_finite(gram: FloatArray, layer: int) -> None:
    if not np.isfinite(gram).all():
        raise NonFiniteError(None, layer, "mean-field Gram matrix")


def _homogeneous(
    chain: Chain, first: _FirstLayer, depth: int, left: float, right: float
) -> MeanFieldTrajectory:
    grams, worst = [first.gram], 0.0
    for layer in range(1, depth + 1):
        rows = first.rows if layer == 1 else _next_rows(chain, grams[-1], layer)
        gram, error = homogeneous_map(rows, left, right)
        _require_finite(gram, layer)
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
    """Replicates of the whole trajectory, on finer and finer lattices."""
    shifts = np.random.default_rng(key).random((SHIFTS, 2))
    for angles, next_angles in zip(_ANGLES, (*_ANGLES[1:], math.inf), strict=True):
        grams, stderrs, worst, most = [first.gram], [np.zeros_like(first.gram)], 0.0, 0
        states = np.repeat(first.gram[None], SHIFTS, axis=0)
        for layer in range(1, depth + 1):
            rows = [first.rows if layer == 1 else _next_rows(chain, G, layer) for G in states]
            states, nodes = pairwise_maps(rows, chain.activation, angles, shifts)
            most = max(most, nodes)
            mean = np.mean(states, axis=0)
            _require_finite(mean, layer)
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
    spread = np.std(states, axis=0, ddof=1) / math.sqrt(len(states))
    size = np.sqrt(np.abs(np.diagonal(mean)))
    return np.asarray(spread + _ROUNDING * size[:, None] * size)


def _relative(error: FloatArray, value: FloatArray) -> float:
    norm = float(np.linalg.norm(value))
    return float(np.linalg.norm(error)) / norm if norm > 0.0 else 0.0
