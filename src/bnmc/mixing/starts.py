"""Starts other than the given one, from which a coupled chain has to reach the same law.

A chain can have several wells: sets of states that it leaves very rarely.  Pairs of chains that
start alike fall into the same well and meet.  The starts of this module are far apart, so chains
that begin there and meet nevertheless have left the wells that separate them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, Representation

Start = Covariance | Representation

#: The name of the given start, for pairs with a lag of one layer.
SAME_START = "the same start, one layer behind"

#: Variance of the independent part of samples near a line, or near to one another.
_SMALL_VARIANCE = 0.01


@dataclass(frozen=True)
class CrossedStart:
    """Pairs of one chain from the given start and one chain from another start.

    Attributes
    ----------
    name : str
        The other start, in words.
    waiting_times : (pairs,) ndarray of int
        Layers after the coupling began until the pair met, without absorbed pairs.
    absorbed : int
        Number of pairs of which a chain reached an absorbing state of `absorbing_events`.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=200, batch=3, activation="relu")
    >>> start = bnmc.mixing.tv_bound(chain, depth=20, replicates=50, rng=0).crossed_starts[0]
    >>> start.name, len(start.waiting_times), start.absorbed
    ('the same start, one layer behind', 32, 0)
    """

    name: str
    waiting_times: NDArray[np.int64]
    absorbed: int = 0


def other_starts(chain: Chain, start: Start) -> dict[str, Start]:
    """Return the starts to couple with `start`, by name.

    Parameters
    ----------
    chain : Chain
    start : Covariance or Representation
        The given law of layer 0.

    Returns
    -------
    dict of str to (Covariance or Representation)
        The given start itself; samples near a line; independent samples; one sample with n times
        the variance of the others, and a block of samples that nearly coincide (from these, chains
        move to the block-symmetric attractors of `bnmc.mean_field.stability`); the given batch in
        another order.  Starts with the same law as another one are left out.
    """
    n = chain.batch
    identity = np.eye(n)
    places = np.linspace(1.0, 2.0, n)
    covariances = {
        "independent samples": identity,
        "samples near a line": np.outer(places, places) + _SMALL_VARIANCE * identity,
    }
    if n >= 3:
        in_block = (np.arange(n) >= n // 2).astype(np.float64)
        own = np.where(in_block == 1.0, _SMALL_VARIANCE, 1.0)
        covariances["one sample that stands out"] = np.diag(np.where(np.arange(n) == 0, n, 1.0))
        covariances["a block of samples that nearly coincide"] = np.outer(
            in_block, in_block
        ) + np.diag(own)
    found: dict[str, Start] = {SAME_START: start}
    for name, matrix in covariances.items():
        if not (isinstance(start, Covariance) and np.array_equal(start.matrix, matrix)):
            found[name] = Covariance(matrix)
    orders = {"the batch in reverse order": np.arange(n)[::-1]}
    if n >= 3:
        orders["the batch shifted by one sample"] = np.roll(np.arange(n), 1)
    for name, order in orders.items():
        reordered = _reordered(start, order)
        if reordered is not None:
            found[name] = reordered
    return found


def _reordered(start: Start, order: NDArray[np.int64]) -> Start | None:
    """Return the start with its samples in another order; None if its law is the same."""
    if isinstance(start, Representation):
        return Representation(start.x[..., order], start.a[..., order])
    matrix = start.matrix[np.ix_(order, order)]
    return None if np.array_equal(matrix, start.matrix) else Covariance(matrix)
