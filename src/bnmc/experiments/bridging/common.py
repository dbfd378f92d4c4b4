"""What the figures of this package share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer

__all__ = ["DEFAULT", "FULL", "FloatArray", "stationary_linear"]

FloatArray = NDArray[np.float64]

#: The activations of the paper's set F.
ACTIVATIONS = ("relu", "tanh", "sigmoid", "sin", "selu", "celu")

#: Sizes of each experiment, and what ``full`` changes of them.
DEFAULT: dict[str, dict[str, Any]] = {
    "1a": {"depth": 1000, "networks": 200, "vanilla": 1000, "points": 200},
    "1b": {"widths": (100, 200, 400, 800, 1600, 3200), "chains": 16, "first": 41, "last": 599},
    "2": {"activations": ACTIVATIONS, "width": 500, "layer": 20, "chains": 200},
    "poster": {
        "activations": ("relu", "tanh"), "depth": 40, "chains": 64,
        "widths": (100, 200, 400, 800, 1600, 3200), "batches": (4, 6, 10, 16, 25, 40),
    },
    "two-inputs": {
        "activations": ("relu", "tanh"), "widths": (250, 1000, 4000), "depth": 60, "chains": 64,
    },
    "conditioning": {
        "activations": ("relu", "tanh"), "widths": (200, 400, 800, 1600, 3200), "depth": 60,
        "chains": 64,
    },
    "certificate": {
        "activations": ("linear", *ACTIVATIONS), "width": 1000, "replicates": 500, "pairs": 32,
        "depth": 40,
    },
}  # fmt: skip


FULL: dict[str, dict[str, Any]] = {
    "1a": {"depth": 3000, "networks": 1000, "vanilla": 5000},
    "1b": {"widths": (100, 200, 500, 1000, 2000, 5000, 10000), "chains": 32},
    "2": {"width": 1000, "chains": 1000},
    "poster": {
        "activations": ACTIVATIONS, "chains": 256,
        "widths": (100, 200, 400, 800, 1600, 3200, 6400, 12800),
    },
    "two-inputs": {
        "activations": ACTIVATIONS, "widths": (250, 1000, 4000, 16000), "chains": 256,
    },
    "conditioning": {
        "activations": ACTIVATIONS, "chains": 256, "widths": (200, 400, 800, 1600, 3200, 6400),
    },
    "certificate": {"replicates": 5000},
}  # fmt: skip


def stationary_linear(width: int, batch: int) -> float:
    r"""Mean square of :math:`\|G - G_*\|_F` in deep linear layers with batch normalization.

    :math:`n^2 (m-1)(m+2)^2 / (4 m (m+1) d)` with m = n − 1, to leading order in 1/d: that of one
    layer, :math:`n^2 (m-1)/(m d)`, over 1 − λ² with λ = m/(m+2).

    Parameters
    ----------
    width, batch : int
        d >= 1 and n >= 2.

    Returns
    -------
    float

    Examples
    --------
    >>> round(stationary_linear(1000, 10), 4)
    0.2689
    """
    d, m = integer("width", width, low=1), integer("batch", batch, low=2) - 1
    return (m + 1) ** 2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1) * d)


def _regular(matrices: FloatArray) -> FloatArray:
    """The part of Gram matrices orthogonal to the ones, in n - 1 dimensions."""
    from scipy.linalg import helmert

    basis = helmert(matrices.shape[-1])
    part: FloatArray = basis @ matrices @ basis.T
    return part


def _windows(batch: int, width: int) -> list[tuple[float, float]]:
    root = float(np.sqrt(batch / width))
    return [(1.0 - root, 1.0 + root), ((1.0 - root) ** 2, (1.0 + root) ** 2)]
