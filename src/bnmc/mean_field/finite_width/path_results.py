"""`PathFluctuations`: predictions for the Gram matrices of one input at finite width."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer, real
from bnmc.errors import LinearTheoryWarning
from bnmc.mean_field.finite_width.gradient import gradient_at
from bnmc.mean_field.finite_width.norms import norm_quantile
from bnmc.mean_field.float64 import FloatArray

__all__ = ["PathFluctuations", "PathPrediction"]

# A layer's least width is this times the width at which the neglected terms are as large as S.
_LINEAR = 10.0


@dataclass(frozen=True, eq=False)
class PathPrediction:
    """A predicted number per layer, with its numerical error.

    Attributes
    ----------
    value : (depth + 1,) ndarray of float64
        The numbers, to leading order in 1/width.
    stderr : (depth + 1,) ndarray of float64
        Their standard errors from randomized quasi-Monte Carlo. Terms of higher order in 1/width
        are not included.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "tanh"))
    >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), 4, rng=0, fluctuations=True)
    >>> found = run.fluctuations.mean_square(1000)
    >>> found.value.shape, bool(found.stderr.max() < 1e-3 * found.value.max())
    ((5,), True)
    """

    value: FloatArray
    stderr: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class PathFluctuations:
    """Fluctuations of the Gram matrices of one input around the mean field, to leading order.

    `MeanField.trajectory` returns it, with the formulas, as `MeanFieldTrajectory.fluctuations`. If
    a width is below `least_widths`, its methods issue a `bnmc.errors.LinearTheoryWarning`. Width 1
    is the unit of S_l, and issues none.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int64
        0, 1, …, depth.
    gram : (depth + 1, batch, batch) ndarray of float64
        The mean field ``F^l(G_0)``.
    covariances : (depth + 1, p, p) ndarray of float64
        S_l: the covariance of G_l at width d is S_l/d. ``p = n(n+1)/2`` coordinates of symmetric
        matrices in an orthonormal basis: the entries of the upper triangle, row by row, those off
        the diagonal times √2.
    stderr : (depth + 1,) ndarray of float64
        Standard errors of the traces of S_l.
    nonlinearity : (depth + 1,) ndarray of float64
        About the relative error of S_l that the linear theory makes at width 1; it is proportional
        to 1/width. See `least_widths`.
    points : int
        Number of evaluations of a row per layer.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "tanh"))
    >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), 4, rng=0, fluctuations=True)
    >>> found = run.fluctuations.mean_square(1000)
    >>> bool(found.value[0] == 0.0), found.value.shape
    (True, (5,))
    >>> low, high = run.fluctuations.band(1000)
    >>> bool(np.all(low**2 <= found.value)), bool(np.all(found.value <= high**2))
    (True, True)
    >>> run.fluctuations.least_widths[:2].tolist(), run.fluctuations.holds_from < 1000
    ([1, 1], True)
    """

    layers: NDArray[np.int64]
    gram: FloatArray
    covariances: FloatArray
    stderr: FloatArray
    nonlinearity: FloatArray
    points: int

    @property
    def least_widths(self) -> NDArray[np.int64]:
        """Width per layer from which on the linear theory holds, within several per cent.

        The linear theory neglects the change of the Jacobian over a fluctuation. In the space that
        the normalization sees at layer l, of dimension m, let Δ be ``G^(−½) (G_l − G) G^(−½)`` with
        ``G = F^l(G_0)``, without its trace if the normalization does not see the scale. Let
        ``r_l = E‖Δ‖²/m²`` at width 1, and ρ_l² the part of the trace of S_l that layer l − 1
        passes on. The neglected terms of all layers, relative to S_l, are about x_l/width with

            x_{l+1} = ρ_{l+1} (x_l + r_l),    x_0 = 0.

        The least width is 10 x_l, or 1. So it is 1 for layers 0 and 1, where the theory is exact.
        The criterion is a heuristic. At stationarity, it is that of `Fluctuations.least_width` with
        ρ in place of the rate.

        Returns
        -------
        (depth + 1,) ndarray of int64
        """
        widths = np.ceil(np.maximum(_LINEAR * self.nonlinearity, 1.0))
        return np.asarray(np.minimum(widths, 2.0**62).astype(np.int64))

    @property
    def holds_from(self) -> int:
        """Width from which on the linear theory holds in all layers: the largest least width."""
        return int(self.least_widths.max())

    def _checked(self, width: int, layer: int | None = None) -> int:
        """Return the width; warn if the linear theory does not hold there."""
        width = integer("width", width, low=1)
        least = self.least_widths
        worst = int(least.argmax()) if layer is None else layer
        if 1 < width < least[worst]:
            warnings.warn(
                f"the linear theory of layer {worst} holds from width {least[worst]} on, but width "
                f"is {width}: simulate, or use fewer layers (least_widths)",
                LinearTheoryWarning,
                stacklevel=3,
            )
        return width

    @property
    def error(self) -> float:
        """The largest relative standard error of the trace of S_l of any layer."""
        traces = np.trace(self.covariances, axis1=1, axis2=2)
        moving = traces > 0.0
        return float(np.max(self.stderr[moving] / traces[moving], initial=0.0))

    def mean_square(self, width: int) -> PathPrediction:
        """Return ``E‖G_l − F^l(G_0)‖_F²`` of every layer.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        width = self._checked(width)
        traces = np.trace(self.covariances, axis1=1, axis2=2)
        return PathPrediction(traces / width, self.stderr / width)

    def covariance(self, layer: int, width: int) -> FloatArray:
        """Return the covariances of the entries of G_l, shape (batch, batch, batch, batch).

        Parameters
        ----------
        layer : int
            Layer l in 0, …, depth.
        width : int
            Width d, >= 1.
        """
        layer = integer("layer", layer, low=0, high=len(self.layers) - 1)
        width = self._checked(width, layer)
        n = self.gram.shape[1]
        i, j = np.triu_indices(n)
        size = np.where(i == j, 1.0, math.sqrt(0.5))
        entries = self.covariances[layer] * size[:, None] * size / width
        index = np.empty((n, n), dtype=np.intp)
        index[i, j] = index[j, i] = np.arange(i.size)
        return np.asarray(entries[index.ravel()][:, index.ravel()].reshape(n, n, n, n))

    def band(
        self,
        width: int,
        observable: Callable[[FloatArray], float] | ArrayLike | None = None,
        *,
        level: float = 0.9,
    ) -> FloatArray:
        """Return the band that contains an observable of a layer with a given probability.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        observable : callable or (batch, batch) array_like, optional
            Maps a Gram matrix to a number, which is linearized at the mean field, or the gradient g
            of ``⟨g, G⟩``. By default the distance ``‖G_l − F^l(G_0)‖_F``, whose law is that of the
            norm of a Gaussian matrix.
        level : float, default 0.9
            Probability, in (0, 1), of each layer by itself. Both tails have the same one.

        Returns
        -------
        (2, depth + 1) ndarray of float64
            Lower and upper end per layer.
        """
        width = self._checked(width)
        level = real("level", level, above=0.0, below=1.0)
        tails = 0.5 * (1.0 - level), 0.5 * (1.0 + level)
        if observable is None:
            spectra = np.linalg.eigvalsh(self.covariances) / width
            return np.array([[norm_quantile(one, tail) for one in spectra] for tail in tails])
        from scipy.special import ndtri

        ends = []
        i, j = np.triu_indices(self.gram.shape[1])
        size = np.where(i == j, 1.0, math.sqrt(2.0))
        for gram, covariance in zip(self.gram, self.covariances, strict=True):
            gradient = gradient_at(observable, gram)
            packed = gradient[i, j] * size
            centre = observable(gram) if callable(observable) else np.sum(gradient * gram)
            spread = math.sqrt(max(float(packed @ covariance @ packed), 0.0) / width)
            ends.append([float(centre) + float(ndtri(tail)) * spread for tail in tails])
        return np.array(ends).T
