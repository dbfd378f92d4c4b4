"""What all networks with batch normalization share: batches, pairs of batches, and their kernel.

The outputs of the samples of a batch depend on the whole batch.  So a layer maps the covariances of
all pairs of samples of two batches at once: first those of each batch with itself, which determine
the law of its rows, then those between two batches, given the laws of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import NonFiniteError
from bnmc.infinite_width.batch_law import BatchLaw, batch_law, require_finite_tangents
from bnmc.mean_field.float64 import FloatArray

__all__ = ["BatchNetwork", "Key", "LayerwiseNetwork", "Report", "centred"]

# Most points of a replicate, and beyond 2^16 points the most coordinates of all of them.
_MOST, _COORDINATES = 1 << 18, 1 << 25

Key = tuple[int, int]
Report = Callable[[], None]


@dataclass(frozen=True)
class BatchNetwork(ABC):
    """A network with batch normalization, and its inputs.

    Attributes
    ----------
    inputs : ndarray of shape (features, samples)
        The batches one after the other.
    sizes : tuple of int
        Number of samples of each batch.
    rows : int
        Number of batches that are rows of the kernel.  The others are its columns; if there are no
        others, all batches are both.
    depth : int
    activation : Activation
    weight_variance, bias_variance, skip : float
    tangent : bool
        Whether the tangent kernel is needed.
    """

    inputs: FloatArray
    sizes: tuple[int, ...]
    rows: int
    depth: int
    activation: Activation
    weight_variance: float
    bias_variance: float
    skip: float
    tangent: bool

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of reports of the integrals, and of each call of `replicate`."""

    @property
    @abstractmethod
    def most_points(self) -> int:
        """Largest number of points of a replicate."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Numbers that a replicate with the most points keeps in memory, about."""

    def integrals(self) -> Callable[[Report], tuple[FloatArray, float]] | None:
        """Return what computes the kernel and its relative error by integrals, or None."""
        return None

    @abstractmethod
    def replicate(self, points: int, rng: np.random.Generator, report: Report) -> FloatArray:
        """Return an estimate of the kernel from some random points."""

    @property
    def one_set(self) -> bool:
        """Whether the kernel is that of one set with itself."""
        return self.rows == len(self.sizes)

    @property
    def pairs(self) -> list[Key]:
        """The pairs of batches whose kernels are needed, i <= j."""
        last = len(self.sizes)
        if self.one_set:
            return [(i, j) for i in range(last) for j in range(i, last)]
        return [(i, j) for i in range(self.rows) for j in range(self.rows, last)]

    @property
    def own_and_pairs(self) -> set[Key]:
        """The needed pairs, and each batch with itself."""
        return {*self.pairs, *((i, i) for i in range(len(self.sizes)))}

    def parts(self) -> list[FloatArray]:
        """Return the inputs of each batch."""
        return np.split(self.inputs, np.cumsum(self.sizes)[:-1], axis=1)

    def weighed(self, products: FloatArray) -> FloatArray:
        """Return σ_w² times a matrix, plus σ_b²."""
        return np.asarray(self.weight_variance * products + self.bias_variance)

    def products(self, parts: list[FloatArray]) -> dict[Key, FloatArray]:
        """Return σ_w² times the mean products of features, of all pairs and own batches."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = {
                (i, j): self.weight_variance * (parts[i].T @ parts[j] / len(self.inputs))
                for i, j in self.own_and_pairs
            }
        if not all(np.isfinite(one).all() for one in found.values()):
            raise NonFiniteError(None, 0, "kernel")
        return found

    def law(self, kernel: FloatArray, depth: int, batch: int) -> BatchLaw:
        """Return the law of a row of a batch as its normalization sees it, or raise."""
        name = "x" if batch < self.rows else "other"
        # The width does not matter.
        law = batch_law(Chain(1, len(kernel), self.activation), kernel, depth, name)
        if self.tangent:
            require_finite_tangents(law, name)
        return law

    def assembled(self, blocks: dict[Key, FloatArray]) -> FloatArray:
        """Return the blocks of all pairs as one matrix."""
        last = len(self.sizes)
        columns = range(last) if self.one_set else range(self.rows, last)
        return np.block(
            [
                [blocks[i, j] if (i, j) in blocks else blocks[j, i].T for j in columns]
                for i in range(self.rows)
            ]
        )


class LayerwiseNetwork(BatchNetwork):
    """A network whose rows are Gaussian in all layers, so that points of one layer suffice."""

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Number of coordinates of a point."""

    @property
    def steps(self) -> int:
        """Number of reports: one for each pair and layer."""
        return self.depth * len(self.own_and_pairs)

    @property
    def most_points(self) -> int:
        """Largest number of points of a replicate."""
        points = _MOST
        while points > 1 << 16 and points * self.coordinates > _COORDINATES:
            points //= 2
        return points

    @property
    def numbers(self) -> int:
        """Numbers of the points and of their uniform origins."""
        return 2 * self.most_points * self.coordinates


def centred(batch: FloatArray) -> FloatArray:
    """Return the samples of a batch, (features, samples), minus their mean."""
    # Half of the numbers, so that sums do not overflow.
    return np.asarray(batch - 2.0 * (0.5 * batch).mean(axis=1, keepdims=True))
