"""`sample`: draws whose law is within a tolerance of the invariant one, by certificate."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer, real
from bnmc._support.keys import draw_key
from bnmc._support.linalg import semidefinite_root
from bnmc._support.progress import Progress
from bnmc._support.workers import as_executor
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.errors import PartialEstimateError
from bnmc.mixing.coupling import tv_bound
from bnmc.mixing.meeting_bound import TVBound
from bnmc.mixing.meetings import MOST_DEPTH
from bnmc.simulation.run import simulate

__all__ = ["InvariantSample", "sample"]


@dataclass(frozen=True)
class InvariantSample:
    """Independent draws of the chain's state, and how far their law is from the invariant one.

    Attributes
    ----------
    chain : Chain
    gram : (size, n, n) ndarray of float64
        Gram matrices of the activations.
    layer : int
        The layer they are of.
    tolerance : float
        What the total variation distance of their law from the invariant law does not exceed, at
        the level of confidence of `certificate`.
    certificate : TVBound
        Where that was read off.
    key : int
        The 64-bit key of the draws.
    """

    chain: Chain
    gram: NDArray[np.float64]
    layer: int
    tolerance: float
    certificate: TVBound
    key: int = field(repr=False)

    def preactivations(self) -> NDArray[np.float64]:
        """Draw h, (size, width, batch): what the next layer normalises, rows N(0, gain² G).

        One for each Gram matrix, so that they have the invariant law of h as nearly as the Gram
        matrices have theirs. The same numbers at every call.
        """
        rng = np.random.default_rng([self.key & 0xFFFFFFFF, self.key >> 32])
        size, n = len(self.gram), self.chain.batch
        out = np.empty((size, self.chain.width, n))
        for index, gram in enumerate(self.gram):
            normals = rng.standard_normal((self.chain.width, n))
            np.matmul(normals, self.chain.gain * semidefinite_root(gram), out=out[index])
        return out


def sample(
    chain: Chain,
    size: int,
    tolerance: float = 0.01,
    *,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    executor: Executor | None = None,
    progress: bool | Progress = False,
) -> InvariantSample:
    """Draw independent states whose law is within a tolerance of the invariant law.

    Parameters
    ----------
    chain : Chain
        As in `bnmc.mixing.tv_bound`.
    size : int
        Number of draws, >= 1.
    tolerance : float, default 0.01
        Largest total variation distance, in [1e-6, 1). The certificate takes 8/tolerance pairs, at
        least 200.
    initial, rng, level, max_layers, executor, progress
        As in `bnmc.mixing.tv_bound`.

    Returns
    -------
    InvariantSample

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.
    NotMixing
        As `bnmc.mixing.tv_bound`.
    PartialEstimateError
        If no layer is certified; ``partial`` is the certificate.

    Notes
    -----
    A certificate (`bnmc.mixing.tv_bound`) is made first, from random numbers of its own; the draws
    are one chain each, taken to the first layer at which the upper end of its confidence interval
    is at most `tolerance`.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=300, batch=4, activation="relu")
    >>> drawn = bnmc.invariant.sample(chain, 10, tolerance=0.05, rng=0)
    >>> drawn.gram.shape, drawn.preactivations().shape
    ((10, 4, 4), (10, 300, 4))
    """
    size = integer("size", size, low=1)
    tolerance = real("tolerance", tolerance, low=1e-6, below=1.0)
    max_layers = integer("max_layers", max_layers, low=1, high=2**30)
    executor = as_executor(executor)
    generator = np.random.default_rng(draw_key(rng))
    replicates = max(200, math.ceil(8.0 / tolerance))
    certificate = tv_bound(
        chain, min(max_layers, MOST_DEPTH), replicates=replicates, initial=initial,
        rng=generator, level=level, max_layers=max_layers, executor=executor, progress=progress,
    )  # fmt: skip
    layer = certificate.layers_to(tolerance)
    if layer is None:
        raise PartialEstimateError(
            f"no layer up to {max_layers} is certified to be within {tolerance}", certificate
        )
    run = simulate(
        chain, layer, chains=size, initial=initial, rng=generator, burn_in=layer, progress=progress
    )
    return InvariantSample(chain, run.gram[:, -1], layer, tolerance, certificate, run.key)
