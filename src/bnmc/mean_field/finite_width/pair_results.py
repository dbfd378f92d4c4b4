"""`PairFluctuations`: predictions for chains whose map acts on pairs of samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from bnmc._support.arguments import integer
from bnmc.errors import ArgumentError
from bnmc.mean_field.finite_width.results import Fluctuations
from bnmc.mean_field.float64 import FloatArray

__all__ = ["PairFluctuations"]


@dataclass(frozen=True, kw_only=True)
class PairFluctuations(Fluctuations):
    """Fluctuations of chains with a norm over the features, or with biases and no norm.

    `MeanField.fluctuations` returns it and has the formulas. The map of such a chain acts on pairs
    of samples, so `CorrelationMap` has the fixed point, and J is triangular. The predictions are
    those of `Fluctuations`, except that `bias` raises.

    Attributes
    ----------
    relative_square : float
        The squared relative fluctuation r at width 1, from which `least_width` follows. Here Δ is
        relative to the covariance of the pre-activations, with its trace. A norm over the features
        that acts before the activation does not see changes of the lengths of samples.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(1000, 10, "relu", norm="layer", order="activation-norm")
    >>> law = bnmc.MeanField(chain).fluctuations()
    >>> print(law.mean_square(1000), law.least_width)
    0.194797 74
    """

    relative_square: float = field(repr=False)

    def bias(self, width: int) -> FloatArray:
        """Raise `ArgumentError`: the bias of order 1/width is known for norms over the batch only.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        integer("width", width, low=1)
        hint = "at finite width the norm adds a bias of its own; bnmc.simulate measures E G"
        raise ArgumentError("norm", "one over the features", "a norm over the batch", hint)

    @property
    def _relative_square(self) -> float:
        return self.relative_square
