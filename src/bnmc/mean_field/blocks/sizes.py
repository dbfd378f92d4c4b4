"""The sizes of two blocks of samples, and the contrast between the blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BlockSizes"]


@dataclass(frozen=True)
class BlockSizes:
    """Two blocks of samples.

    Attributes
    ----------
    sizes : tuple of int
        Samples s_0 and s_1 of the blocks, each at least 1.
    """

    sizes: tuple[int, int]

    @property
    def batch(self) -> int:
        """Batch size n = s_0 + s_1."""
        return sum(self.sizes)

    @property
    def contrast(self) -> tuple[float, float]:
        """The entries of the unit vector e: constant on either block, orthogonal to (1, …, 1)."""
        first, second = self.sizes
        share = math.sqrt(first * second / self.batch)
        return share / first, -share / second

    def ranks(self, active: tuple[bool, bool]) -> tuple[int, int]:
        """Return the rank of the Gram matrix on the vectors of either block that sum to 0.

        It is s_X − 1 for a block X of distinct samples (`active`), 0 for a collapsed one.
        """
        first, second = (size - 1 if on else 0 for size, on in zip(self.sizes, active, strict=True))
        return first, second
