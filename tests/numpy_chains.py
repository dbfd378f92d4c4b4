"""Networks in NumPy, written from their formulas, for checks of the stationary law."""

import math

import numpy as np
from numpy_network import haar_matrices
from oracle import FORMULAS


def normalised(h, ddof=0, centred=True):
    if centred:
        h = h - h.mean(axis=-1, keepdims=True)
    return h / np.sqrt((h**2).sum(axis=-1, keepdims=True) / (h.shape[-1] - ddof))


def network(sigma, rng, *, variance=1.0, weights="rows", skip=0.0, **norm):
    """Return a function from states (..., width, batch) to the next, every one with its own W.

    "rows" stands for Gaussian weights too: rows of W a are N(0, aᵀa/width).
    """
    draw = {
        "uniform": lambda shape: rng.uniform(-math.sqrt(3), math.sqrt(3), shape),
        "rademacher": lambda shape: rng.choice([-1.0, 1.0], shape),
        "normal": rng.standard_normal,
        "haar": lambda shape: (
            haar_matrices(rng, math.prod(shape[:-2]), shape[-1]).reshape(shape)
            * math.sqrt(shape[-1])
        ),
    }
    function = FORMULAS[sigma] if isinstance(sigma, str) else sigma

    def step(h):
        x = normalised(h, **norm)
        a, width = function(x), h.shape[-2]
        if weights == "rows":
            values, vectors = np.linalg.eigh(np.swapaxes(a, -1, -2) @ a / width)
            root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
            new = rng.standard_normal(h.shape) @ np.swapaxes(root, -1, -2)
        else:
            new = draw[weights]((*h.shape[:-1], width)) @ a / math.sqrt(width)
        return skip * x + math.sqrt(variance) * new

    return step


def after(step, h, layers):
    for _ in range(layers):
        h = step(h)
    return h


def settled(chain, step, count, rng, layers=12):
    """States of a network that started from Gaussian ones, which are near the stationary law."""
    return after(step, rng.standard_normal((count, chain.width, chain.batch)), layers)


def row_of(report, claim):
    (row,) = [row for row in report.rows if row.claim == claim]
    return row
