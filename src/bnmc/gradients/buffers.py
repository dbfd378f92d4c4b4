"""The arrays of a backward pass: all rows of a layer, blocks of rows, and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnmc._kernels.cpu import memory, orthogonal, orthogonal_backward
from bnmc._kernels.cpu.backward import Blocks, Rows, Solve
from bnmc._kernels.cpu.memory import aligned_zeros, padded, stride
from bnmc._kernels.cpu.numbers import BLOCK, STRIDE, Work
from bnmc.chain.chain import Chain

__all__ = ["Buffers", "bytes_of_rows"]


class Buffers:
    """What one thread needs, for rows of one dtype forward and one dtype backward.

    Attributes
    ----------
    rows : Rows
    blocks : Blocks
    solve : Solve
    forward : Work
    totals : (4, sums) ndarray of float64
    frame : orthogonal.Frame or None
    rest : orthogonal_backward.Rest or None
        Not None if the weights are orthogonal.
    """

    def __init__(
        self,
        chain: Chain,
        inputs: int,
        forward: np.dtype[Any],
        backward: np.dtype[Any],
        hidden: bool,
    ) -> None:
        columns, n = chain.batch * inputs, chain.batch
        whole = padded(columns)
        tiles, numbers = whole // 4, whole * STRIDE
        blocks = stride(chain.width) // BLOCK
        of_above = (blocks, numbers) if chain.skip != 0.0 else (1, 1)
        self.rows = Rows(
            normals=aligned_zeros((blocks, numbers), forward),
            hidden=aligned_zeros((blocks, numbers), forward),
            scales=aligned_zeros((blocks, inputs * STRIDE), forward),
            delta=aligned_zeros((blocks, numbers), backward),
            above=aligned_zeros(of_above, backward),
        )
        self.blocks = Blocks(
            values=aligned_zeros((numbers,), backward),
            factors=aligned_zeros((BLOCK,), backward),
            partial=aligned_zeros((16,), backward),
            gram_sums=aligned_zeros((tiles * (tiles + 1) // 2 * 16,), np.float64),
            cross_sums=aligned_zeros((tiles * tiles * 16,), np.float64),
            hidden_sums=aligned_zeros((tiles * tiles * 16 if hidden else 0,), np.float64),
        )
        self.solve = Solve(
            covariance=aligned_zeros((columns, columns), np.float64),
            group_means=aligned_zeros((inputs, columns), np.float64),
            diagonal=aligned_zeros((columns,), np.float64),
            panel=aligned_zeros(memory.panel_shape(columns), np.float64),
            twin=aligned_zeros((columns,), np.int64),
            basis=aligned_zeros((whole, whole), np.float64),
            in_basis=aligned_zeros((columns,), np.bool_),
            following=aligned_zeros((whole, whole), np.float64),
            in_following=aligned_zeros((columns,), np.bool_),
            root=aligned_zeros((whole, whole), backward),
            in_root=aligned_zeros((columns,), np.bool_),
            mixing=aligned_zeros((whole, whole), backward),
            right=aligned_zeros((columns, columns), np.float64),
        )
        self.forward: Work = memory.work(n, inputs, forward)
        self.totals = aligned_zeros((4, tiles * tiles * 16), np.float64)
        self.frame = self.rest = None
        if chain.is_orthogonal:
            panels = -(-chain.width // memory.panel_rows(chain.width, columns))
            self.frame = orthogonal.frame(columns, panels, forward)
            self.rest = orthogonal_backward.rest(columns)


def bytes_of_rows(chain: Chain, inputs: int, itemsize: int) -> int:
    """Return the bytes of all rows of a layer in one `Buffers`, about."""
    arrays = 4 if chain.skip != 0.0 else 3
    return arrays * itemsize * padded(chain.batch * inputs) * stride(chain.width)
