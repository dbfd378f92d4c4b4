"""Linear networks with and without batch normalization, from orthogonal samples.

Fig. 1a and ``bnmc demo`` both compare these networks.  Their errors are known in closed form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer
from bnmc._support.progress import Progress
from bnmc.bounds.orthogonalizes import stationary_squared_distance
from bnmc.chain.chain import Chain
from bnmc.mean_field.field import MeanField
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

__all__ = [
    "BATCH",
    "WIDTH",
    "Case",
    "equation_6",
    "linear_cases",
    "orthogonal_samples",
    "simulate_errors",
    "stationary_linear",
]

FloatArray = NDArray[np.float64]

#: Width and batch size of the paper's Fig. 1a.
WIDTH, BATCH = 1000, 5


class Case(NamedTuple):
    """A chain and the Gram matrix of its mean-field fixed point, shape (batch, batch)."""

    chain: Chain
    fixed_point: FloatArray


def linear_cases() -> dict[str, Case]:
    """Return the linear networks of Fig. 1a by the name of their normalization.

    Without normalization every Gram matrix is a fixed point of the mean field; the networks start
    at the identity.
    """
    normalised = Chain.bn_mlp(WIDTH, BATCH, "linear")
    return {
        "batch": Case(normalised, MeanField(normalised).fixed_point().gram),
        "none": Case(Chain.vanilla(WIDTH, BATCH), np.eye(BATCH)),
    }


def orthogonal_samples(generator: np.random.Generator) -> FloatArray:
    """Draw orthogonal inputs of shape (WIDTH, BATCH) whose Gram matrix is the identity."""
    basis = np.linalg.qr(generator.standard_normal((WIDTH, BATCH)))[0]
    samples: FloatArray = basis * np.sqrt(WIDTH)
    return samples


def simulate_errors(
    case: Case,
    depth: int,
    *,
    networks: int,
    inputs: FloatArray,
    every: int = 1,
    rng: Any,
    threads: int | None,
    progress: bool | Progress,
) -> Trajectory:
    """Simulate networks from the same inputs; record the error of the mean field from layer 1 on.

    The error is the observable "distance": the Frobenius distance of the Gram matrix from
    ``case.fixed_point``.
    """
    return simulate(
        case.chain, depth, chains=networks, initial=inputs, burn_in=1, every=every, rng=rng,
        observables=Distance(case.fixed_point), threads=threads, progress=progress,
    )  # fmt: skip


def equation_6(width: int, layers: ArrayLike) -> FloatArray:
    """Growth exp(layer / width) of the error of the mean field: eq. (6) of *On bridging …*.

    Parameters
    ----------
    width : int
    layers : array_like of int

    Returns
    -------
    ndarray of float64
        Same shape as `layers`.

    Examples
    --------
    >>> from bnmc.experiments.bridging.linear_networks import equation_6
    >>> equation_6(1000, [0, 1000]).round(4)
    array([1.    , 2.7183])
    """
    growth: FloatArray = np.exp(np.asarray(layers, dtype=np.float64) / width)
    return growth


def stationary_linear(width: int, batch: int) -> float:
    r"""Mean square of :math:`\|G - G_*\|_F` in deep linear layers with batch normalization.

    :math:`n^2 (m-1)(m+2)^2 / (4 m (m+1) d)` with d the width, n the batch size and m = n − 1, to
    leading order in 1/d (`bnmc.bounds.orthogonalizes.stationary_squared_distance`).  One layer
    adds the mean square :math:`n^2 (m-1)/(m d)`; the sum over all former layers divides it by
    1 − λ², with λ = m/(m+2).

    Parameters
    ----------
    width, batch : int
        d >= 1 and n >= 2.

    Returns
    -------
    float

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an integer.

    Examples
    --------
    >>> from bnmc.experiments.bridging import stationary_linear
    >>> round(stationary_linear(1000, 10), 4)
    0.2689
    """
    width, batch = integer("width", width, low=1), integer("batch", batch, low=2)
    return float(stationary_squared_distance(width, batch))
