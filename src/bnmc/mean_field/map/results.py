"""Results of the mean-field map: one step, and a trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc.mean_field.finite_width.path_results import PathFluctuations
from bnmc.mean_field.float64 import FloatArray

__all__ = ["MapResult", "MeanFieldTrajectory", "Step"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MapResult:
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
class Step(MapResult):
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
class MeanFieldTrajectory(MapResult):
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
