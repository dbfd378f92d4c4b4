"""Norms and the block of a transformer in NumPy, forward and back, with implicit matrices.

States are (width, tokens).  Matrices answer products with columns and with those of the transpose,
so a pass forward and back has the law of drawn weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

from bnmc.experiments.kit import Float64Array
from bnmc.implicit import GaussianMatrix

#: ε of layer normalization, as in PyTorch.
EPS = 1e-5


class Standardized:
    """Rows (axis 1) or columns (axis 0) without mean, over their standard deviations.

    Attributes
    ----------
    values : ndarray
    """

    def __init__(self, x: Float64Array, axis: int, eps: float = 0.0) -> None:
        centred = x - x.mean(axis, keepdims=True)
        self._axis = axis
        self._spread = np.sqrt(np.square(centred).mean(axis, keepdims=True) + eps)
        self.values: Float64Array = centred / self._spread

    def backward(self, g: Float64Array) -> Float64Array:
        """Return the gradient with respect to x, given that with respect to `values`."""
        along = (g * self.values).mean(self._axis, keepdims=True)
        centred = g - g.mean(self._axis, keepdims=True)
        return np.asarray((centred - self.values * along) / self._spread)


def layer_norm(x: Float64Array) -> Standardized:
    """Return columns with layer normalization."""
    return Standardized(x, 0, EPS)


def attention(q: Float64Array, k: Float64Array) -> Float64Array:
    """Return causal attention, (heads, queries, keys).

    Parameters
    ----------
    q, k : (heads, size, tokens) ndarray
    """
    logits = q.mT @ k / math.sqrt(q.shape[1])
    seen = np.where(np.tri(q.shape[2], dtype=bool), logits, -np.inf)
    weights = np.exp(seen - seen.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


class Block:
    """A block of a transformer: causal attention, then GELU, with layer normalization before each.

    Parameters
    ----------
    width, heads : int
    scale : callable
        Standard deviation of a weight, from the number of columns.
    residual : float
        Further factor of the two matrices whose products are added to the state.
    rng : numpy.random.Generator

    Attributes
    ----------
    matrices : tuple of GaussianMatrix
        Queries, keys and values; output of the attention; up; down.  Biases are 0.
    attention : (heads, tokens, tokens) ndarray
        After a forward pass.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        scale: Callable[[int], float],
        residual: float,
        rng: np.random.Generator,
    ) -> None:
        shapes = (
            (3 * width, width, 1.0), (width, width, residual), (4 * width, width, 1.0),
            (width, 4 * width, residual),
        )  # fmt: skip
        self.heads = heads
        self.matrices = tuple(
            GaussianMatrix(rows, columns, scale=factor * scale(columns), rng=rng, dtype="float32")
            for rows, columns, factor in shapes
        )

    def forward(self, x: Float64Array) -> Float64Array:
        """Return the next state, of shape (width, tokens) as x."""
        qkv, out, up, down = self.matrices
        self._first = layer_norm(x)
        self._qkv = (qkv @ self._first.values).reshape(3, self.heads, -1, x.shape[1])
        q, k, v = self._qkv
        self.attention = attention(q, k)
        x = x + out @ (v @ self.attention.mT).reshape(x.shape)
        self._second = layer_norm(x)
        self._h = up @ self._second.values
        return np.asarray(x + down @ (self._h * ndtr(self._h)))

    def backward(self, g: Float64Array) -> Float64Array:
        """Return the gradient with respect to the state, given that of the next state."""
        qkv, out, up, down = self.matrices
        density = np.exp(-0.5 * self._h**2) / math.sqrt(2.0 * math.pi)
        slope = ndtr(self._h) + self._h * density
        g = g + self._second.backward(up.T @ (slope * (down.T @ g)))
        q, k, v = self._qkv
        p, heads = self.attention, (out.T @ g).reshape(v.shape)
        through = heads.mT @ v
        logits = p * (through - (p * through).sum(-1, keepdims=True)) / math.sqrt(q.shape[1])
        inner = np.stack([k @ logits.mT, q @ logits, heads @ p])
        return np.asarray(g + self._first.backward(qkv.T @ inner.reshape(-1, g.shape[1])))
