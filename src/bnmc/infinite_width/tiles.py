"""Kernels of networks whose norms act on each sample: computed tile by tile, through all layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.workers import Calls, Parallel, Shared
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.networks import Weights
from bnmc.mean_field.duals.duals import require_accuracy
from bnmc.mean_field.duals.series import Tabulated, expansion
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.pairwise_layer import Level, PairwiseLayer

# Rows and columns of a tile: about ten arrays of 0.5 MB stay in the cache through all layers.
_TILE = 256

# Series of a deeper network are interpolated between variances.
_DEEP = 32


@dataclass(eq=False)
class TiledKernel:
    """A kernel whose entries depend on two samples each.

    Attributes
    ----------
    inputs : list of ndarray of shape (features, samples)
        One set, or two.
    first : Weights
        Those of the inputs.
    layers : sequence of PairwiseLayer
        The hidden layers, each with the weights behind it.
    tangent : bool
        Whether the kernel is the tangent kernel, or the covariance of the outputs.
    """

    inputs: list[FloatArray]
    first: Weights
    layers: Sequence[PairwiseLayer]
    tangent: bool

    def compute(
        self, name: str, rtol: float, dtype: str, parallel: Parallel
    ) -> NDArray[np.floating[Any]]:
        """Return the kernel, tile by tile: each tile goes through all layers."""
        place = None
        if len(self.inputs) == 1:
            # Equal inputs get equal entries, whatever the rounding of their products.
            distinct, position = np.unique(self.inputs[0], axis=1, return_inverse=True)
            if distinct.shape[1] < position.size:
                self.inputs, place = [distinct], position.reshape(-1)
        result_type = np.dtype(dtype)
        rows, columns = self.inputs[0].shape[1], self.inputs[-1].shape[1]
        hint = "compute blocks with other=, or use dtype=float32"
        require_memory("x", rows * columns * result_type.itemsize, hint)
        with one_blas_thread():
            sides = [
                self._levels(inputs, argument)
                for inputs, argument in zip(self.inputs, ("x", "other"), strict=False)
            ]
        result = np.empty((rows, columns), result_type)
        tiles = list(_tiles(rows, columns, symmetric=len(sides) == 1))
        # NumPy computes tiles in parallel, as it releases the lock of the interpreter.  Threads of
        # BLAS would wait for these.
        calls = _Tiles(
            Shared("executor", parallel.executor, partial(_tile_of, self, sides)), tiles, result,
            symmetric=len(sides) == 1,
        )  # fmt: skip
        with one_blas_thread():
            parallel.results(calls, name, "tiles", least=len(tiles))
        error = max(calls.results, default=0.0)
        if not np.isfinite(result).all():
            raise NonFiniteError(None, len(self.layers), "kernel")
        if place is not None:
            result = result[place[:, None], place]
        names = dict.fromkeys(layer.sigma.name for layer in self.layers)
        require_accuracy(", ".join(names), error, rtol, result)
        return result

    def _levels(self, x: FloatArray, argument: str) -> tuple[FloatArray, list[Level]]:
        """Return the variances of h_0 of one set of inputs, and its levels of all layers."""
        with np.errstate(over="ignore"):
            first = variances = self._first(np.einsum("fs,fs->s", x, x))
        _require_finite(variances, 0)
        levels: list[Level] = []
        expand = Tabulated() if len(self.layers) > _DEEP else expansion
        before: tuple[Any, FloatArray] | None = None
        for number, layer in enumerate(self.layers, 1):
            if before is not None and layer is before[0] and np.array_equal(variances, before[1]):
                levels.append(levels[-1])  # a fixed point of the variances, bit by bit
                continue
            before = layer, variances
            levels.append(layer.levels(variances, self.tangent, expand))
            if levels[-1].flat is not None:
                allowed = f'samples that norm="{layer.norm}" can divide by their deviation'
                without = f"sample {levels[-1].flat} without variance"
                raise ArgumentError(argument, without, allowed)
            variances = levels[-1].following
            _require_finite(variances, number)
        return first, levels

    def _first(self, products: FloatArray) -> FloatArray:
        features = self.inputs[0].shape[0]
        return np.asarray(self.first.variance / features * products + self.first.bias)

    def _tile(
        self, sides: list[tuple[FloatArray, list[Level]]], i: slice, j: slice
    ) -> tuple[FloatArray, float]:
        """Return the kernel of some rows and columns, and the largest error of a layer."""
        left, right = self.inputs[0][:, i], self.inputs[-1][:, j]
        on_diagonal = len(sides) == 1 and i == j
        error = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            kernel = self._first(left.T @ right)
            if on_diagonal:
                np.fill_diagonal(kernel, sides[0][0][i])
            tangent = kernel if self.tangent else None
            last: tuple[Any, ...] = ()
            is_fixed = False  # whether the last step changed no bit
            for layer, *both in zip(self.layers, sides[0][1], sides[-1][1], strict=True):
                if is_fixed and all(a is b for a, b in zip(last, (layer, *both), strict=True)):
                    continue
                last, before = (layer, *both), (kernel, tangent)
                levels = both[0].at(i), both[1].at(j)
                kernel, tangent, more = layer.step(*levels, kernel, tangent, on_diagonal)
                error = max(error, more)
                is_fixed = all(
                    np.array_equal(new, old)
                    for new, old in zip((kernel, tangent), before, strict=True)
                    if new is not None and old is not None
                )
        result = kernel if tangent is None else tangent
        if on_diagonal:
            # Products of the same numbers, in one order or the other, may round differently.
            result = 0.5 * (result + result.T)
        return result, error


def _tile_of(
    kernel: TiledKernel, sides: list[tuple[FloatArray, list[Level]]], i: slice, j: slice
) -> tuple[FloatArray, float]:
    with one_blas_thread():  # another process has threads of its own
        return kernel._tile(sides, i, j)


class _Tiles(Calls[Any]):
    """Tiles of a matrix, which are written to it as they come; the results are their errors."""

    def __init__(
        self,
        function: Shared,
        tiles: Sequence[tuple[slice, slice]],
        matrix: NDArray[np.floating[Any]],
        *,
        symmetric: bool,
    ) -> None:
        super().__init__(function, tiles)
        self._tiles, self._matrix, self._symmetric = tiles, matrix, symmetric

    def take(self, part: int, block: int, result: Any) -> bool:
        """Write a tile, and keep its error."""
        (i, j), (tile, error) = self._tiles[part], result
        with np.errstate(over="ignore"):  # beyond the range of float32
            self._matrix[i, j] = tile
        if self._symmetric and i != j:
            self._matrix[j, i] = self._matrix[i, j].T
        return super().take(part, block, error)


def _require_finite(variances: FloatArray, layer: int) -> None:
    if not np.isfinite(variances).all():
        raise NonFiniteError(None, layer, "variance")


def _tiles(rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of all tiles, or of those on and above the diagonal."""
    for i in range(0, rows, _TILE):
        for j in range(i if symmetric else 0, columns, _TILE):
            yield slice(i, min(rows, i + _TILE)), slice(j, min(columns, j + _TILE))
