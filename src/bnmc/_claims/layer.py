"""One layer applied to given states: normalization, activations and Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as gm
from bnmc._claims.states import LARGEST
from bnmc.chain.chain import Chain
from bnmc.chain.convolution import Convolution
from bnmc.chain.start import apply
from bnmc.errors import NonFiniteError, ZeroVarianceError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """States h of a chain, and what the law of the next states depends on.

    Attributes
    ----------
    y : (samples, width, batch) ndarray of float64
        h / gain.
    x, a : (samples, width, batch) ndarray of float64
        What the skip connection keeps, and what W multiplies: N(h) and σ(N(h)), or those of another
        order.
    gram : (samples, batch, batch) ndarray of float64
        aᵀa / width, averaged over the taps of a convolution, plus the variance of the bias over
        gain²: the covariance of rows of (W a + b 1ᵀ / gain).
    square : (samples, batch, batch) ndarray of float64
        yᵀy / width.
    convolution : Convolution or None
        That of the chain.
    """

    y: FloatArray
    x: FloatArray
    a: FloatArray
    gram: FloatArray
    square: FloatArray
    convolution: Convolution | None = field(default=None, kw_only=True)

    @property
    def factors(self) -> FloatArray:
        """What rows of W multiply, (samples, weights of a row, batch)."""
        if self.convolution is None:
            return self.a
        *leading, n = self.a.shape
        seen = self.a[..., self.convolution.neighbours(n)]
        return seen.reshape(leading[0], -1, n)

    @classmethod
    def of(cls, chain: Chain, h: NDArray[np.floating[Any]], first: int) -> Layer:
        """Apply norm and activation to states h.

        Parameters
        ----------
        chain : Chain
        h : (samples, width, batch) ndarray
        first : int
            Number of the first sample, for messages.

        Raises
        ------
        ZeroVarianceError
            For a row with zero variance, or a sample whose activations are all 0.
        NonFiniteError
            If the activation overflows.
        """
        states = h.astype(np.float64)
        try:
            x, a = (one[:, 0] for one in apply(chain, states[:, None], True))
        except ZeroVarianceError as error:
            number = first + (error.chain or 0)
            raise ZeroVarianceError(number, None, error.row, error.sample) from None
        if not (np.abs(a) <= LARGEST).all():
            raise NonFiniteError(None, None, "activation")
        y, gram = states / chain.gain, gm.cross_gram(a, a)
        vanishes = ~(np.trace(gram, 0, 1, 2) > 0.0)
        if vanishes.any():
            raise ZeroVarianceError(first + int(vanishes.argmax()), None, 0)
        if chain.convolution is not None:
            gram = chain.convolution.covariance(gram)
        gram = gram + chain.bias_variance / chain.gain**2
        return cls(y, x, a, gram, gm.cross_gram(y, y), convolution=chain.convolution)
