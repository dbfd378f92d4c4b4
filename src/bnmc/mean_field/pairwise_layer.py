"""One layer of an infinitely wide network without norm over the batch: a map of pairs of samples.

Let h_l be the pre-activations of layer l, N the normalization of a sample over the features, and

    h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b      (order "norm-activation"),
    h_{l+1} = skip h_l + W N(σ(h_l)) + b         (order "activation-norm"),
    h_{l+1} = skip h_l + W σ(N(h_l)) + b         (order "pre-activation"),

W with entries of variance σ_w²/width, b with entries of variance σ_b².  At infinite width the
features of h_l are independent Gaussian vectors with one entry per sample.  Let K be their
covariance, q its diagonal, Θ the tangent kernel, and V[C] = E σ(u)σ(u)ᵀ, V′[C] = E σ′(u)σ′(u)ᵀ for
u ~ N(0, C).  Let s be the vector of the numbers by which N divides the samples; the table has their
squares.  Products ∘ are entry by entry.  One layer replaces K and Θ by

    K ← skip² P + σ_w² A + σ_b²,    Θ ← skip² Θ_P + σ_w² Θ_A + (σ_w² A + σ_b²).

=================  ============  =======  ===================  ==========  =======================
norm and order     s²            P        A                    Θ_P         Θ_A
=================  ============  =======  ===================  ==========  =======================
none               1             K        V[K]                 Θ           Θ ∘ V′[K]
"norm-activation"  q + eps       K/(ssᵀ)  V[K/(ssᵀ)]           Θ/(ssᵀ)     Θ/(ssᵀ) ∘ V′[K/(ssᵀ)]
"pre-activation"   q + eps       K        V[K/(ssᵀ)]           Θ           Θ/(ssᵀ) ∘ V′[K/(ssᵀ)]
"activation-norm"  V_ii − m²     K        (V[K] − mmᵀ)/(ssᵀ)   Θ           Θ/(ssᵀ) ∘ V′[K]
                   + eps
=================  ============  =======  ===================  ==========  =======================

Here m = E σ(u) for a norm that subtracts means, else 0.  The normalization multiplies tangents by
1/s; its derivative in the direction of h itself is a matrix of rank one, whose part vanishes with
the width.  Before σ the means over the features are 0 at infinite width, so layer, RMS and group
normalization are the same there.  Group normalization with a fixed number of groups is layer
normalization: each group is infinitely wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import numpy as np

from bnmc.chain.chain import ORDERS
from bnmc.chain.layers import Layer, RowMap
from bnmc.chain.norms import Norm
from bnmc.mean_field.duals.duals import Dual, Side, dual
from bnmc.mean_field.duals.series import Expand, expansion
from bnmc.mean_field.float64 import FloatArray

_Real = TypeVar("_Real", float, FloatArray)

_NAMES = {code: name for name, code in ORDERS.items()}

#: A variance of σ below this part of E σ² is rounding: a norm would divide by it.
NO_VARIANCE = 1e-13


class Level(NamedTuple):
    """The samples before one layer, each alone.

    Attributes
    ----------
    side : Side
        What the dual activation has to know of the arguments of σ.
    scale : ndarray of shape (samples,)
        Divisor of the normalization, s.
    mean : ndarray of shape (samples,)
        E σ, which a norm after σ subtracts; else 0.
    following : ndarray of shape (samples,)
        The variances of the next pre-activations.
    """

    side: Side
    scale: FloatArray
    mean: FloatArray
    following: FloatArray

    def at(self, index: slice) -> Level:
        """Return the level of some of the samples."""
        return Level(self.side.at(index), *(part[index] for part in self[1:]))

    @property
    def flat(self) -> int | None:
        """The first sample that cannot be normalized, if there is one."""
        flat = self.scale <= 0.0
        return int(flat.argmax()) if flat.any() else None


@dataclass(frozen=True, eq=False, kw_only=True)
class PairwiseLayer:
    """A layer that acts on pairs of samples.

    Attributes
    ----------
    sigma : Dual
        The dual activation.
    norm : {"none", "layer", "rms"}
        "layer" stands for all norms over the features that subtract the mean, "rms" for those that
        do not.
    order : {"norm-activation", "activation-norm", "pre-activation"}
    weight_variance, bias_variance, skip, eps : float
    """

    sigma: Dual
    norm: str = "none"
    order: str = "norm-activation"
    weight_variance: float = 1.0
    bias_variance: float = 0.0
    skip: float = 0.0
    eps: float = 0.0

    @classmethod
    def of(cls, layer: Layer) -> Self:
        """Return a layer whose norm, if it has one, acts over the features."""
        linear, rows = layer.linear, layer.rows
        return cls.of_rows(rows, linear.gain * linear.gain, linear.bias_variance, rows.skip)

    @classmethod
    def of_rows(cls, rows: RowMap, weight_variance: float, bias: float, skip: float) -> Self:
        """Return such a layer from its rows, with the weights behind it."""
        return cls(
            sigma=dual(rows.activation),
            norm=kind_of(rows.norm),
            order=_NAMES[rows.order],
            weight_variance=weight_variance,
            bias_variance=bias,
            skip=skip,
            eps=rows.eps,
        )

    @property
    def norm_is_first(self) -> bool:
        """Whether σ acts on the normalized pre-activation, or there is no normalization."""
        return self.norm == "none" or self.order != "activation-norm"

    @property
    def streams_normalized(self) -> bool:
        """Whether the skip connection carries the normalized pre-activation."""
        return self.norm != "none" and self.order == "norm-activation"

    def argument(self, q: _Real) -> _Real:
        """Return the variance of the argument of σ."""
        return q / (q + self.eps) if self.norm != "none" and self.norm_is_first else q

    def stream(self, q: _Real) -> _Real:
        """Return the variance that the skip connection carries."""
        return self.argument(q) if self.streams_normalized else q

    def weighed(self, stream: _Real, outputs: _Real) -> _Real:
        """Return (co)variances after the layer from those of the stream and of the outputs."""
        return self.skip * self.skip * stream + self.weight_variance * outputs + self.bias_variance

    def levels(self, q: FloatArray, slopes: bool = False, expand: Expand = expansion) -> Level:
        """Return the samples of variances q.

        Parameters
        ----------
        q : ndarray of shape (samples,)
        slopes : bool
            Whether the tangent kernel is needed.
        expand : callable, optional
            As of `Dual.side`.
        """
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            # A sample 0 has no normalized variance: `flat` tells.
            side = self.sigma.side(np.nan_to_num(self.argument(q), posinf=np.inf), slopes, expand)
            outputs = self.sigma.mean_square(side)
            scale, mean = np.ones_like(q), np.zeros_like(q)
            if self.norm != "none" and self.norm_is_first:
                scale = np.sqrt(q + self.eps)
            elif not self.norm_is_first:
                if self.norm == "layer":
                    mean = self.sigma.mean(side)
                lengths = outputs - mean**2
                lengths = np.where(lengths > NO_VARIANCE * outputs, lengths, 0.0)
                scale, outputs = np.sqrt(lengths + self.eps), lengths / (lengths + self.eps)
            return Level(side, scale, mean, self.weighed(self.stream(q), outputs))

    def step(
        self, left: Level, right: Level, kernel: FloatArray, tangent: FloatArray | None, same: bool
    ) -> tuple[FloatArray, FloatArray | None, float]:
        """Return K and Θ after the layer, and the largest error of the dual activation.

        Parameters
        ----------
        left, right : Level
            The samples of the rows and of the columns.
        kernel : ndarray of shape (rows, columns)
            K before the layer.
        tangent : ndarray of shape (rows, columns) or None
            Θ before the layer; None if it is not needed.
        same : bool
            Whether rows and columns are the same samples.  The diagonal is then known from the
            levels, without the rounding that would make correlations differ from 1.
        """
        seen = kernel
        if self.norm != "none":
            scale = left.scale[:, None] * right.scale
            if self.norm_is_first:
                seen = kernel / scale
                if same:
                    np.fill_diagonal(seen, left.side.variance)
        rows = left.side
        if not rows.series:  # closed forms broadcast
            rows = rows._replace(variance=rows.variance[:, None])
        value, slope, error = self.sigma.pair(rows, right.side, seen, tangent is not None)
        if not self.norm_is_first:
            value = (value - left.mean[:, None] * right.mean) / scale
        fresh = self.weight_variance * value + self.bias_variance
        stream = seen if self.streams_normalized else kernel
        if tangent is not None:
            if self.streams_normalized:
                tangent = tangent / scale
            elif self.norm != "none":
                slope = slope / scale
            slope = slope * self.weight_variance
            slope += self.skip * self.skip
            slope *= tangent
            slope += fresh
            tangent = slope
        kernel = self.skip * self.skip * stream + fresh if self.skip else fresh
        if same:
            np.fill_diagonal(kernel, left.following)
        return kernel, tangent, error


def kind_of(norm: Norm) -> str:
    """Return "none", "layer" or "rms" for a norm over the features, or none."""
    return "none" if norm.is_identity else "layer" if norm.centred else "rms"
