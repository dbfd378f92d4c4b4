"""What the figures of this package share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._common import LEVEL
from bnmc.experiments._experiment import Sources
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

__all__ = ["Float64Array"]

Float64Array = NDArray[np.float64]


class _Sizes(NamedTuple):
    """Sizes of a figure."""

    widths: tuple[int, ...]
    layers: int
    chains: int
    batch: int = 4


#: The small singular values of the nearly collinear inputs of Fig. 2.
_TINY = 1e-6


def _collinear(n: int) -> Float64Array:
    return np.diag([1.0] + [_TINY] * (n - 1))


def _run(
    d: int, n: int, sizes: _Sizes, sources: Sources, threads: int | None, observables: str, *,
    progress: Progress,
) -> Trajectory:  # fmt: skip
    return simulate(
        Chain.bn_linear(d, n), sizes.layers - 1, chains=sizes.chains,
        initial=FirstLayer(_collinear(n)), observables=observables, rng=sources.generator,
        threads=threads, progress=progress,
    )  # fmt: skip


def _gap(eigenvalues: Float64Array) -> Float64Array:
    """V of the eigenvalues of Gram matrices."""
    shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
    gap: Float64Array = np.linalg.norm(shares - 1 / shares.shape[-1], axis=-1)
    return gap


def _wide_gaps(n: int, layers: int) -> Float64Array:
    """V of the chain of infinite width from the nearly collinear input, layer by layer."""
    shares = np.square(np.diag(_collinear(n)))
    found = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        found.append(float(_gap(shares)))
    return np.array(found)


def _freedom(batch: int) -> int:
    return (batch - 1) * (batch + 2) // 2


#: Batch of Fig. 6.
_SAMPLES = 4


def _estimate(interval: Float64Array, count: int) -> Estimate:
    """The estimate of a mean and its interval."""
    from scipy.special import stdtrit

    mean, low, high = (float(end) for end in interval)
    stderr = (high - low) / 2 / float(stdtrit(count - 1, (1 + LEVEL) / 2))
    return Estimate(mean, stderr, (low, high), count, "mean over networks", LEVEL)
