"""One layer of an infinitely wide network, as a map of variances and of covariances.

Let h_l be the pre-activations of layer l, with h_0 = W_0 x + b_0, N the normalization of a sample
over the features, and

    h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b      (order "norm-activation"),
    h_{l+1} = skip h_l + W N(σ(h_l)) + b         (order "activation-norm").

At infinite width the coordinates of h_l are independent Gaussian processes.  Their covariances K_l
and tangent kernels Θ_l obey, with C = K / (s sᵀ) and T = Θ / (s sᵀ) the normalized kernels,
s_i = √K_ii for a norm and 1 without,

    K_{l+1} = skip² C + σ_w² V[C] + σ_b²,
    Θ_{l+1} = skip² T + σ_w² V[C] + σ_b² + σ_w² T ⊙ V′[C].

The normalization multiplies tangents by 1/s.  Its derivative in the direction of h itself is a
matrix of rank one, whose part vanishes with the width.  For the other order V[K] is normalized,
after the product of the means is subtracted if N subtracts means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.mean_field.duals.duals import Dual, Side
from bnmc.mean_field.float64 import FloatArray

__all__ = ["NORMS", "ORDERS", "Layers", "Level"]

#: Normalizations of a sample over the features.
NORMS = ("none", "layer", "rms")
ORDERS = ("norm-activation", "activation-norm")


class Level(NamedTuple):
    """The inputs of one layer, each alone.

    Attributes
    ----------
    side : Side
        What the dual activation has to know of the inputs of σ.
    scale : ndarray of shape (inputs,)
        Divisor of the normalization.
    mean : ndarray of shape (inputs,)
        E σ, which a norm after σ subtracts; else 0.
    following : ndarray of shape (inputs,)
        The variances of the next pre-activations.
    """

    side: Side
    scale: FloatArray
    mean: FloatArray
    following: FloatArray

    def at(self, index: slice) -> Level:
        """Return the level of some of the inputs."""
        return Level(self.side.at(index), *(part[index] for part in self[1:]))


@dataclass(frozen=True)
class Layers:
    """The layers of a network.

    Attributes
    ----------
    dual : Dual
    norm : {"none", "layer", "rms"}
    order : {"norm-activation", "activation-norm"}
    weight_variance, bias_variance, skip : float
    tangent : bool
        Whether the tangent kernel is needed.
    """

    dual: Dual
    norm: str
    order: Literal["norm-activation", "activation-norm"] | str
    weight_variance: float
    bias_variance: float
    skip: float
    tangent: bool

    def levels(self, variances: FloatArray, depth: int, name: str) -> list[Level]:
        """Return the levels of `depth` layers, from the variances of h_0.

        Raises
        ------
        ArgumentError
            If a sample has no variance and is to be normalized; `name` is the argument.
        NonFiniteError
            If a variance overflows.
        """
        found = []
        for layer in range(depth + 1):
            if not np.isfinite(variances).all():
                raise NonFiniteError(None, layer, "variance")
            if layer < depth:
                found.append(self._level(variances, name))
                variances = found[-1].following
        return found

    def _level(self, variances: FloatArray, name: str) -> Level:
        one, zero = np.ones_like(variances), np.zeros_like(variances)
        if self._norm_is_first:
            scale = np.sqrt(variances) if self.norm != "none" else one
            inputs = one if self.norm != "none" else variances
            self._require_variance(scale, name)
            side = self.dual.side(inputs, self.tangent)
            mean, outputs, stream = zero, self.dual.mean_square(side), inputs
        else:
            side = self.dual.side(variances, self.tangent)
            mean = self.dual.mean(side) if self.norm == "layer" else zero
            scale = np.sqrt(np.maximum(self.dual.mean_square(side) - mean**2, 0.0))
            self._require_variance(scale, name)
            outputs, stream = one, variances
        with np.errstate(over="ignore"):
            following = self._weigh(stream, outputs)
        return Level(side, scale, mean, following)

    def step(
        self,
        left: Level,
        right: Level,
        kernel: FloatArray,
        tangent: FloatArray,
        same: bool,
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return K and Θ after one layer, and the largest error of the dual activation.

        Parameters
        ----------
        left, right : Level
            The inputs of the rows and of the columns.
        kernel, tangent : ndarray of shape (rows, columns)
            K and Θ before the layer.
        same : bool
            Whether rows and columns are the same inputs. The diagonal is then known from the
            levels, without the rounding that would make correlations differ from 1.
        """
        scale = left.scale[:, None] * right.scale
        if self.norm != "none" and self._norm_is_first:
            kernel, tangent = kernel / scale, tangent / scale
            if same:
                np.fill_diagonal(kernel, left.side.variance)
        sides = _columns(left.side), right.side
        value, slope, error = self.dual.pair(*sides, kernel, self.tangent)
        if not self._norm_is_first:
            value = (value - left.mean[:, None] * right.mean) / scale
            slope = slope / scale
        fresh = self.weight_variance * value + self.bias_variance
        # A series that needs no slopes returns the values in their place.
        slope = slope * self.weight_variance
        slope += self.skip**2
        slope *= tangent
        slope += fresh
        kernel = self.skip**2 * kernel + fresh if self.skip else fresh
        if same:
            np.fill_diagonal(kernel, left.following)
        return kernel, slope, error

    @property
    def _norm_is_first(self) -> bool:
        return self.norm == "none" or self.order == "norm-activation"

    def _weigh(self, stream: FloatArray, outputs: FloatArray) -> FloatArray:
        """Return the variance of the sum of skip connection, product with the weights and bias."""
        return self.skip**2 * stream + self.weight_variance * outputs + self.bias_variance

    def _require_variance(self, scale: FloatArray, name: str) -> None:
        without = np.nonzero(scale <= 0.0)[0]
        if without.size and self.norm != "none":
            raise ArgumentError(
                name, f"sample {int(without[0])} without variance",
                f'samples that norm="{self.norm}" can divide by their deviation',
            )  # fmt: skip


def _columns(side: Side) -> Side:
    """Return a side whose variances broadcast along rows."""
    return side if side.value is not None else side._replace(variance=side.variance[:, None])
