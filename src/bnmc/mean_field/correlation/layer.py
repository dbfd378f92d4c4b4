"""One layer of an infinitely wide network, as a map of the variance q and the correlation c.

Let h_l be the pre-activations of two inputs whose variances are equal, N the normalization over the
features, and

    h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b      (order "norm-activation"),
    h_{l+1} = skip h_l + W N(σ(h_l)) + b         (order "activation-norm"),
    h_{l+1} = skip h_l + W σ(N(h_l)) + b         (order "pre-activation"),

W with entries of variance σ_w²/width, b with entries of variance σ_b².  At infinite width the
coordinates of h_l are independent normal pairs with variance q and correlation c.  One layer maps

    q ← skip² p + σ_w² t (V(r, 1) − m²) + σ_b²,
    c ← (skip² p c + σ_w² t (V(r, c) − m²) + σ_b²) / q_new,

with V(r, c) = E σ(u)σ(v) for normal u, v of variance r and correlation c.

=================  =============  =============  =============================================
norm and order     p              r              m and t
=================  =============  =============  =============================================
none               q              q              m = 0, t = 1
"norm-activation"  q / (q + eps)  q / (q + eps)  m = 0, t = 1
"pre-activation"   q              q / (q + eps)  m = 0, t = 1
"activation-norm"  q              q              m = E σ(u) for a norm that subtracts means,
                                                 else 0; t = 1 / (V(r, 1) − m² + eps)
=================  =============  =============  =============================================

Before σ the means over the features are 0 at infinite width, so layer, RMS and group normalization
are the same there.  Group normalization with a fixed number of groups is layer normalization: each
group is infinitely wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from bnmc._support.arguments import choice, real
from bnmc.chain.chain import Chain, as_chain
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.mean_field.correlation.functions import (
    ActivationLike,
    GaussianFunction,
    gaussian_function,
)
from bnmc.mean_field.correlation.gaussian_moments import Moments, moments, rough_moments

__all__ = ["NORMS", "ORDERS", "Level", "PairLayer", "layer_of", "pair_layer"]

#: Normalizations over the features, and none; a string that begins with "group" is one, too.
NORMS = ("none", "layer", "rms", "group")
ORDERS = ("norm-activation", "activation-norm", "pre-activation")

# Largest variance and factor: their squares and products are far from the end of float64.
_MOST = 1e100

# A part of E σ² below this is rounding: the norm would divide by it.
_NO_VARIANCE = 1e-13


class Level(NamedTuple):
    """The quantities of a layer whose inputs have a given variance.

    Attributes
    ----------
    inner : Moments
        At r, the variance of the argument of σ.
    stream : float
        p, the variance that the skip connection carries.
    mean : float
        m.
    factor : float
        t.
    following : float
        The variance after the layer.
    variance_slope : float
        The derivative of `following` with respect to q.
    gradient : float
        Φ′(1) if q is a fixed point: the factor of the expected squared gradient norm per layer of
        backpropagation.  It is ``skip² p/q + σ_w² t r E σ′(u)² / q``.
    error, gradient_error : float
        Relative errors of `following` and of `gradient`.
    """

    inner: Moments
    stream: float
    mean: float
    factor: float
    following: float
    variance_slope: float
    gradient: float
    error: float
    gradient_error: float


@dataclass(frozen=True, eq=False)
class PairLayer:
    """A layer: activation, variances, normalization.

    Attributes
    ----------
    function : GaussianFunction
    weight_variance, bias_variance, skip, eps : float
    norm : {"none", "layer", "rms"}
        "layer" stands for all norms over the features that subtract the mean, "rms" for those that
        do not.
    order : {"norm-activation", "activation-norm", "pre-activation"}
    """

    function: GaussianFunction
    weight_variance: float
    bias_variance: float
    norm: str
    order: str
    skip: float
    eps: float

    @property
    def norm_is_first(self) -> bool:
        """Whether σ acts on the normalized pre-activation, or there is no normalization."""
        return self.norm == "none" or self.order != "activation-norm"

    @property
    def streams_normalized(self) -> bool:
        """Whether the skip connection carries the normalized pre-activation."""
        return self.norm != "none" and self.order == "norm-activation"

    @property
    def fixes_variance(self) -> bool:
        """Whether the variance after the layer does not depend on that of its input."""
        normalized = self.norm != "none" and self.eps == 0.0
        return normalized and (self.skip == 0.0 or self.streams_normalized)

    @property
    def is_scale_free(self) -> bool:
        """Whether the layer commutes with scaling, but for its bias: homogeneous and no norm."""
        return self.norm == "none" and self.function.slopes is not None

    @property
    def scale_rate(self) -> float:
        """Factor of the variance per layer, without bias, of a layer that is scale-free."""
        assert self.function.slopes is not None
        left, right = self.function.slopes
        return self.skip**2 + self.weight_variance * 0.5 * (left * left + right * right)

    def level(self, variance: float) -> Level:
        """Return the level at a variance q > 0.

        Raises
        ------
        ArgumentError
            If σ has no finite mean square, or is constant and is to be normalized.
        """
        return self._level(variance, moments(self.function, self._inner(variance)))

    def rough_level(self, variance: float) -> Level:
        """Return the level at q > 0 without errors, ``inf`` where the mean square is not finite."""
        return self._level(variance, rough_moments(self.function, self._inner(variance)))

    def _inner(self, variance: float) -> float:
        if self.norm == "none" or not self.norm_is_first:
            return variance
        return variance / (variance + self.eps)

    def _level(self, variance: float, inner: Moments) -> Level:
        w, skip = self.weight_variance, self.skip**2
        if self.norm_is_first:
            mean, factor = 0.0, 1.0
            stream = inner.variance if self.streams_normalized else variance
            part, error = inner.square, inner.error
            shrink = (
                1.0
                if self.norm == "none"
                else self.eps / (variance + self.eps) / (variance + self.eps)
            )
            slope = skip * (shrink if self.streams_normalized else 1.0)
            slope += w * shrink * inner.square_slope
        else:
            mean, stream = (inner.mean if self.norm == "layer" else 0.0), variance
            lengths = inner.square - mean**2
            if not lengths > _NO_VARIANCE * inner.square:
                allowed = f'a function that is not constant, since norm="{self.norm}" follows it'
                raise ArgumentError("activation", self.function.name, allowed)
            factor = 1.0 / (lengths + self.eps)
            part, error = lengths * factor, 3.0 * inner.error * inner.square / lengths
            change = inner.square_slope - (2.0 * mean * inner.mean_slope if mean else 0.0)
            slope = skip + w * self.eps * factor * factor * change
        following = skip * stream + w * part + self.bias_variance
        gradient = skip * stream + w * factor * inner.variance * inner.gradient
        return Level(
            inner=inner,
            stream=stream,
            mean=mean,
            factor=factor,
            following=following,
            variance_slope=slope,
            gradient=gradient / variance,
            error=error,
            gradient_error=inner.gradient_error + (0.0 if self.norm_is_first else error),
        )

    def growth(self, variance: float) -> float:
        """Return the variance after the layer minus that before, without errors."""
        following = self.rough_level(variance).following
        return following - variance if following < math.inf else math.inf


def pair_layer(
    activation: ActivationLike,
    weight_variance: float,
    bias_variance: float,
    norm: str | Norm,
    order: str,
    skip: float,
    eps: float,
) -> PairLayer:
    """Check the arguments and return the layer.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed.
    """
    return PairLayer(
        function=gaussian_function(activation),
        weight_variance=real("weight_variance", weight_variance, low=1.0 / _MOST, high=_MOST),
        bias_variance=real("bias_variance", bias_variance, low=0.0, high=_MOST),
        norm=_kind(norm),
        order=choice("order", order, ORDERS),
        skip=real("skip", skip, low=-_MOST, high=_MOST),
        eps=real("eps", eps, low=0.0, high=_MOST),
    )


def layer_of(chain: Chain) -> PairLayer:
    """Return the layer of a chain.

    Raises
    ------
    ArgumentError
        If the chain normalizes over the batch, or has positions, whose maps do not act on pairs.
    """
    chain = as_chain(chain)
    # A bias adds its variance to all covariances; every other map mixes samples or positions.
    if chain.covariance.convolution is not None:
        hint = (
            "its map acts on the Gram matrix of samples and positions: bnmc.MeanField(chain).step; "
            "fixed points are those of the chain without convolution"
        )
        raise ArgumentError("chain", chain, "a chain of fully connected layers", hint)
    return pair_layer(
        chain.activation,
        chain.gain**2,
        getattr(chain, "bias_variance", 0.0),
        chain.normalization,
        getattr(chain, "order", "norm-activation"),
        chain.skip,
        chain.eps,
    )


def _kind(norm: str | Norm) -> str:
    """Return "none", "layer" or "rms" for an argument `norm`."""
    if isinstance(norm, Norm):
        if norm.axis == "batch":
            raise _of_batch(norm.name)
        return "none" if norm.is_identity else "layer" if norm.centred else "rms"
    if not isinstance(norm, str):
        raise ArgumentTypeError("norm", norm, ", ".join(NORMS))
    if norm.startswith("batch"):
        raise _of_batch(norm)
    if norm.startswith("group"):
        return "layer"
    return choice("norm", norm, NORMS)


def _of_batch(name: str) -> ArgumentError:
    hint = "with a norm over the batch the map acts on Gram matrices: use bnmc.MeanField(chain)"
    return ArgumentError("norm", name, ", ".join(NORMS), hint)
