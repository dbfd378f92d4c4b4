"""The verdict of a measurement: one or two sentences on gradients and ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Findings", "verdict"]

# Gradients count as stable if the ratio of first and last norm is between 1/this and this.
_STABLE = 10.0

# Samples count as indistinguishable above this mean correlation.
_SAME = 0.95

# A rank that counts only singular values above this part of the largest one is not a rank.
_COARSE = 0.1


@dataclass(frozen=True)
class Findings:
    """The numbers that a verdict is about.

    Parameters
    ----------
    gradient_norms : (networks, layers) ndarray or None
        Norms of the gradients of layers that can be compared.
    rank, soft_rank, mean_correlation : (networks, layers) ndarray
    most : (layers,) ndarray of int
        Largest possible rank of each layer.
    view : {"sample", "position"}
        What the rows of the representations are.
    threshold : float
        Singular values above this part of the largest one count for the rank.
    """

    gradient_norms: NDArray[np.float64] | None
    rank: NDArray[np.int64]
    soft_rank: NDArray[np.int64]
    mean_correlation: NDArray[np.float64]
    most: NDArray[np.int64]
    view: str
    threshold: float


def verdict(found: Findings) -> str:
    """Return one sentence on gradients, if they were measured, and one on ranks."""
    sentences = [] if found.gradient_norms is None else [_of_gradients(found.gradient_norms)]
    return " ".join([*sentences, _of_ranks(found)])


def _of_gradients(norms: NDArray[np.float64]) -> str:
    layers = norms.shape[1]
    with np.errstate(divide="ignore"):
        logs = np.log(norms).mean(axis=0)
    if not np.isfinite(logs[[0, -1]]).all():
        return "Gradients vanish: that of the first or the last compared layer is zero."
    growth = logs[0] - logs[-1]
    rate = _factor(2.0 * growth / (layers - 1))
    per_layer = f"squared gradient norms change by the factor {rate} per layer"
    if abs(growth) <= math.log(_STABLE):
        return (
            f"Gradients are stable: {per_layer} towards the input, ×{_factor(growth)} in norm over "
            f"{layers} layers."
        )
    if growth > 0.0:
        return (
            f"Gradients explode towards the input: squared norms grow by the factor {rate} per "
            f"layer, so norms by ×{_factor(growth)} over {layers} layers."
        )
    return (
        f"Gradients vanish towards the input: squared norms change by the factor {rate} per "
        f"layer, so norms by ×{_factor(growth)} over {layers} layers."
    )


def _factor(logarithm: float) -> str:
    """Return a factor, of which exp may overflow."""
    if abs(logarithm) < 600.0:
        return f"{math.exp(logarithm):.3g}"
    return f"10^{logarithm / math.log(10.0):.0f}"


def _of_ranks(found: Findings) -> str:
    rows = f"{found.view}s"
    rank, soft = (values.mean(axis=0) for values in (found.rank, found.soft_rank))
    correlation = float(found.mean_correlation[:, -1].mean())
    over = f"over {len(rank)} layers" if len(rank) > 1 else "in 1 layer"
    if rank[-1] == 0:
        return "The last layer is zero for all samples."
    coarse = found.threshold > _COARSE
    softly = f"the soft rank goes from {_number(soft[0])} to {_number(soft[-1])} {over}"
    same = not math.isnan(correlation) and correlation > _SAME
    if same or _halved(soft, found.most):
        shown = "" if math.isnan(correlation) else f", mean correlation {correlation:.3g}"
        kept = "" if coarse else f" (rank {_number(rank[-1])} of {int(found.most[-1])})"
        return f"The {rows} collapse: {softly}{shown}{kept}."
    if coarse:
        return f"{softly[0].upper()}{softly[1:]}. The precision is too low for a rank."
    of = f"{_number(rank[-1])} of {int(found.most[-1])} {over}."
    if _halved(rank, found.most):
        return f"The rank falls from {_number(rank[0])} to {of}"
    return f"The rank keeps {of}"


def _halved(values: NDArray[np.float64], most: NDArray[np.int64]) -> bool:
    """Whether a rank, as a part of the largest possible one, falls below half of its first value.

    The width of the layers bounds ranks: a narrow last layer alone is no collapse.
    """
    return bool(values[-1] / most[-1] < 0.5 * values[0] / most[0])


def _number(value: Any) -> str:
    return f"{float(value):.3g}"
