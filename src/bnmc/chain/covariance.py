"""The covariance of the rows of the next layer, as a map of the Gram matrix.

Given the activations a of a layer, the rows of W a are i.i.d. N(0, G) with G = aᵀa / width.  A map
stands between G and that covariance: the identity for layers that are fully connected and have no
bias, the sum of G and a constant for layers with a bias, and an average of shifted entries of G for
convolutions.  Functions that draw rows or integrate over them use
`Chain.covariance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.convolution import Convolution


class CovarianceMap(Protocol):
    """A map of Gram matrices, (..., n, n), to covariances of the same shape."""

    @property
    def is_identity(self) -> bool:
        """Whether one call of a kernel may make many layers, because the map is the identity."""
        ...

    def __call__(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of the rows of W a."""
        ...


class Identity:
    """The covariance is the Gram matrix."""

    is_identity = True

    def __call__(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Gram matrix itself."""
        return gram


IDENTITY = Identity()


@dataclass(frozen=True)
class WithBias:
    """The covariance is G plus a constant: all samples share the bias of a row.

    Parameters
    ----------
    variance : float
        Variance of the bias, divided by the square of the gain.
    """

    variance: float

    is_identity = False

    def __call__(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Gram matrix plus the variance in all entries."""
        return gram + self.variance


@dataclass(frozen=True)
class OfConvolution:
    """The covariance is that of a convolution, plus a constant for a bias.

    Parameters
    ----------
    convolution : Convolution
    bias : float, default 0
        Variance of the bias, divided by the square of the gain.
    """

    convolution: Convolution
    bias: float = 0.0

    is_identity = False

    def __call__(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the average of G over the taps, plus the variance in all entries."""
        return self.convolution.covariance(gram) + self.bias
