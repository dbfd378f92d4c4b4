"""Kernels of networks with batch normalization: by integrals, or estimated to a relative error.

`normalized_batches` has the networks that normalize before the activation, `row_paths` those with
skip connections beside, and `activated_batches` those that normalize after the activation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import Progress, reporting
from bnmc.chain.activations import require_derivative
from bnmc.errors import NonFiniteError, PartialEstimateError
from bnmc.infinite_width.batch_network import BatchNetwork
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.homogeneous import slopes

__all__ = ["batch_kernel"]

#: Independent replicates of the points; standard errors come from their spread.
REPLICATES = 8

# Points of a replicate in the first attempt.
_FEWEST = 1 << 11


def batch_kernel(
    network: BatchNetwork, name: str, rtol: float, key: int, progress: bool | Progress
) -> FloatArray:
    """Return the covariance or the tangent kernel of a network with batch normalization.

    Raises
    ------
    ArgumentError, ZeroVarianceError
        If a batch cannot be normalized, or its tangent kernel is infinite.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the kernel.
    """
    network.activation.check()
    if network.tangent and slopes(network.activation) is None:
        require_derivative(network.activation)
    integrals = network.integrals()
    if integrals is None:
        return _sampled(network, name, rtol, key, progress)
    with reporting(progress, name, "pairs of batches") as report:
        kernel, error = integrals(_Counter(report, network.steps))
    return _accurate(network, kernel, error, rtol, "of the quadrature")


def _sampled(
    network: BatchNetwork, name: str, rtol: float, key: int, progress: bool | Progress
) -> FloatArray:
    """Return the mean of the kernels of all replicates, with more points until `rtol` holds."""
    most = network.most_points
    points, rng = min(_FEWEST, most), np.random.default_rng(key)
    steps = REPLICATES * network.steps
    while True:
        generators = rng.spawn(REPLICATES)
        # Matrices of a block of points are too small for several threads.
        with reporting(progress, name, "pairs of batches") as report, one_blas_thread():
            done = _Counter(report, steps)
            kernels = [network.replicate(points, one, done) for one in generators]
        mean = np.mean(kernels, axis=0)
        spread = np.std(kernels, axis=0, ddof=1) / np.sqrt(REPLICATES)
        norm = float(np.linalg.norm(mean))
        error = float(np.linalg.norm(spread)) / norm if norm > 0.0 else 0.0
        if error <= rtol or points == most:
            what = f"with {REPLICATES} replicates of {points} points"
            return _accurate(network, mean, error, rtol, what)
        # The error falls at best as 1/points: so far from `rtol`, twice the points are too few.
        points = min(most, points * (4 if error > 4.0 * rtol else 2))


def _accurate(
    network: BatchNetwork, kernel: FloatArray, error: float, rtol: float, what: str
) -> FloatArray:
    """Return the kernel; raise if it is not finite, or its error exceeds the tolerance."""
    if not np.isfinite(kernel).all():
        raise NonFiniteError(None, network.depth, "kernel")
    if not error <= rtol:
        raise PartialEstimateError(f"relative error {error:.1e} {what}, rtol is {rtol:.1e}", kernel)
    return kernel


class _Counter:
    """Reports each call as one more step."""

    def __init__(self, report: Any, steps: int) -> None:
        self._report, self._steps, self._done = report, steps, 0
        report(0, steps)

    def __call__(self) -> None:
        self._done += 1
        self._report(self._done, self._steps)
