"""One layer applied to given states: normalization, activations and Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as gm
from bnmc._claims.states import LARGEST
from bnmc.chain.chain import Chain
from bnmc.chain.start import normalise
from bnmc.errors import NonFiniteError, ZeroVarianceError

__all__ = ["Layer"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """States before a normalization, with their normalization, activations and Gram matrices.

    Attributes
    ----------
    y : (samples, width, batch) ndarray of float64
        h / gain.
    x, a : (samples, width, batch) ndarray of float64
        N(h) and σ(N(h)).
    gram : (samples, batch, batch) ndarray of float64
        aᵀa / width.
    square : (samples, batch, batch) ndarray of float64
        yᵀy / width.
    """

    y: FloatArray
    x: FloatArray
    a: FloatArray
    gram: FloatArray
    square: FloatArray

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
            x = normalise(chain, states[:, None], True)[:, 0]
        except ZeroVarianceError as error:
            raise ZeroVarianceError(first + (error.chain or 0), None, error.row) from None
        a = chain.activation(x)
        if not (np.abs(a) <= LARGEST).all():
            raise NonFiniteError(None, None, "activation")
        y, gram = states / chain.gain, gm.cross_gram(a, a)
        vanishes = ~(np.trace(gram, 0, 1, 2) > 0.0)
        if vanishes.any():
            raise ZeroVarianceError(first + int(vanishes.argmax()), None, 0)
        return cls(y, x, a, gram, gm.cross_gram(y, y))
