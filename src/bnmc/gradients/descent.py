"""The backward pass of one chain, from the last layer to the first."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import backward, memory, orthogonal, orthogonal_backward, rows
from bnmc._kernels.cpu.blocks import unpack_gram
from bnmc._kernels.cpu.numbers import BLOCK, STRIDE
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import raise_stopped, sigma_of, spec_of
from bnmc.chain.homogeneity import splits_scale
from bnmc.chain.slopes import slope_of
from bnmc.errors import NonFiniteError
from bnmc.gradients.buffers import Buffers
from bnmc.gradients.forward import Stretch
from bnmc.simulation.engine.precision import lifted
from bnmc.simulation.engine.sampler import FloatArray

__all__ = ["Descent"]


class Descent:
    """The gradient of one chain with respect to h of a layer; methods take it to lower layers.

    With δ (width x columns) this gradient and z (width x columns) the normals of the layer, the
    state is δᵀδ / width and zᵀδ / width, in units of 4**log_scale and 2**log_scale.  If the weights
    are orthogonal, the columns of z made orthogonal take the place of z.

    Parameters
    ----------
    chain : Chain
    inputs : int
    key : int
    number : int
        Number of the chain in the ensemble.
    dtype : str
        Precision of the rows.
    hidden : bool
        Whether hᵀδ is wanted too.
    buffers : dict
        Buffers of the thread, by the two dtypes; filled as needed.
    """

    def __init__(
        self,
        chain: Chain,
        inputs: int,
        key: int,
        number: int,
        dtype: str,
        hidden: bool,
        buffers: dict[tuple[str, str], Buffers],
    ) -> None:
        self.chain, self.inputs, self.number = chain, inputs, number
        self.spec, self.lift = spec_of(chain, inputs), 0
        if splits_scale(chain):
            self.spec, self.lift = lifted(self.spec)
        self.stage = codes.TOP
        self.log_scale = 0.0
        columns = self.spec.columns
        self.state = np.zeros((2, columns, columns))
        self._hidden = hidden
        self._dtype = dtype
        #: Precision of δ, which is float64 if the gradients of samples are too alike for float32.
        self.backward_dtype = dtype
        self._buffers = buffers
        #: With a skip connection, δ of the layer of the state: the buffers serve other chains too.
        self.above: FloatArray | None = None
        self._keys = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        self._streams = tuple(
            np.uint32(stream | np.uint32(number))
            for stream in (codes.STREAM_ROWS, codes.STREAM_BACKWARD, codes.STREAM_START)
        )
        self._panel = memory.panel_rows(chain.width, columns)

    # --- the top

    def begin_with_rows(
        self,
        given: NDArray[np.float64] | None,
        layer: int,
        gram_before: NDArray[np.float64],
        x: FloatArray,
        is_wide: bool,
    ) -> NDArray[np.float64]:
        """Take the direction at the top: rows δ of `layer`, (columns, width), or normal ones.

        Parameters
        ----------
        given : (columns, width) ndarray or None
        layer : int
        gram_before : (columns, columns) ndarray
            Gram matrix of the layer before.
        x : (columns, >= width) ndarray
            Representation of the layer before, if there is a skip connection.
        is_wide : bool
            Whether the rows of the layer are float64.

        Returns
        -------
        (2 or 3, columns, columns) ndarray
            The state, and hᵀδ / width if it is wanted.
        """
        forward = "float64" if is_wide else self._dtype
        own = self._pick(forward)
        self._factorise(gram_before, own)
        rows_given = np.zeros((0, 1)) if given is None else given
        draws = [codes.Draw(layer, stream, *self._keys) for stream in self._streams[:2]]
        if own.frame is not None:
            orthogonal.orthogonal_factor(self.spec, self._panel, draws[0], own.forward, own.frame)
        tiles = own.totals.shape[1]
        own.totals[:] = 0.0
        for first in range(0, self.spec.width, self._panel):
            last = min(first + self._panel, self.spec.width)
            backward.top_pass(
                self.spec, rows_given, x.astype(forward, copy=False), first, last, *draws,
                own.forward.factor, own.forward.regular, own.rows, own.blocks,
            )  # fmt: skip
            own.totals[1, : own.blocks.gram_sums.size] += own.blocks.gram_sums
            own.totals[2, :tiles] += own.blocks.cross_sums
            own.totals[3, : own.blocks.hidden_sums.size] += own.blocks.hidden_sums
        if not unpack_gram(own.totals[1], self.spec.width, self.state[0]):
            raise NonFiniteError(self.number, layer, "gradient")
        backward.unpack_cross(own.totals[2], self.spec, self.state[1])
        if own.frame is not None:
            orthogonal_backward.turn_cross(own.frame.inverse, self.state[1])
        self.stage = codes.TOP
        if self.chain.skip != 0.0:
            self.above = own.rows.delta.copy()
        if not self._hidden:
            return self.state.copy()
        of_hidden = np.zeros_like(self.state[:1])
        backward.unpack_cross(own.totals[3], self.spec, of_hidden[0])
        of_hidden /= backward.unit_of(gram_before, self.spec, own.solve)
        return np.concatenate([self.state, of_hidden])

    def readout(
        self, classes: int, layer: int, gram: NDArray[np.float64], units: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draw the outputs of a Gaussian readout of the last layer.

        Returns
        -------
        outputs : (classes, columns) ndarray
            V a, where V has independent entries N(0, 1/width).
        normals : (classes, columns) ndarray
            The normals that gave them.
        """
        own = self._pick("float64")
        backward.factorise_seen(
            gram, False, self.spec, own.solve, own.solve.basis, own.solve.in_basis
        )
        columns = self.spec.columns
        normals = np.zeros((classes, columns))
        draw = codes.Draw(layer, self._streams[2], *self._keys)
        block = own.blocks.values
        for first in range(0, classes, BLOCK):
            count = min(BLOCK, classes - first)
            rows.draw_regular(block, columns, own.solve.in_basis, first, BLOCK, draw)
            drawn = block.reshape(-1, STRIDE)[:columns, :count]
            normals[first : first + count] = drawn.T
        basis = np.tril(own.solve.basis[:columns, :columns]) * own.solve.in_basis
        with np.errstate(over="ignore"):
            return np.ldexp(normals @ basis.T, units.astype(np.int32)), normals

    def begin_with_readout(
        self, gradient: NDArray[np.float64], normals: NDArray[np.float64]
    ) -> None:
        """Take the gradient with respect to the outputs, (classes, columns)."""
        largest = float(np.abs(gradient).max())
        exponent = int(np.frexp(largest)[1]) if largest > 0.0 else 0
        scaled = np.ldexp(gradient, -exponent)
        self.log_scale = float(exponent)
        self.state[0] = scaled.T @ scaled / self.spec.width
        self.state[1] = normals.T @ scaled / self.spec.width
        self.stage = codes.READOUT

    # --- for kernels of another device

    def copy_above(self, rows: NDArray[Any]) -> None:
        """Copy δ of the layer of the state to rows, (columns, >= width)."""
        assert self.above is not None
        of_columns = self.above.reshape(len(self.above), -1, STRIDE).swapaxes(0, 1)
        whole = of_columns[..., :BLOCK].reshape(of_columns.shape[0], -1)
        rows[:] = whole[: rows.shape[0], : rows.shape[1]]

    def blocks_of(self, rows: NDArray[Any]) -> FloatArray:
        """Return δ of a layer as `above`, given rows, (columns, >= width)."""
        columns, count = memory.padded(len(rows)), memory.stride(self.spec.width) // BLOCK
        above: FloatArray = np.zeros((count, columns, STRIDE), rows.dtype)
        whole = rows[:, : count * BLOCK].reshape(len(rows), count, BLOCK)
        above[:, : len(rows), :BLOCK] = whole.swapaxes(0, 1)
        return above.reshape(count, columns * STRIDE)

    def basis_of(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factor of what the layer above saw, given the Gram matrix of the layer."""
        solve, columns = self._pick("float64").solve, self.spec.columns
        centred = self.spec.norm == codes.NORM_CENTRED and self.stage != codes.READOUT
        backward.factorise_seen(gram, centred, self.spec, solve, solve.basis, solve.in_basis)
        basis: NDArray[np.float64] = np.tril(solve.basis[:columns, :columns]) * solve.in_basis
        return basis

    # --- the way down

    def through(
        self,
        stretch: Stretch,
        index: int,
        last: int,
        states: NDArray[np.float64],
        log_scales: NDArray[np.float64],
    ) -> None:
        """Go down to the layer after the first of a stretch.

        Parameters
        ----------
        stretch : Stretch
        index : int
            The chain's place in it.
        last : int
            The layer to reach first: that of the state, or below it by one.
        states : (layers, 2 or 3, columns, columns) ndarray
            Receives the states, and hᵀδ / width if it is wanted, of layers `stretch.first` + 1, …,
            `last`.
        log_scales : (layers,) ndarray
            Receives their scales.
        """
        first = stretch.first
        layers = last - first
        grams = np.ascontiguousarray(stretch.grams[index, : layers + 1])
        units = stretch.units[index, : layers + 1]
        ratios = np.exp2(units[:-1] - units[1:] + float(self.lift))
        xs = stretch.xs[index]
        turn = self._first_wide(stretch, index, grams)
        done = layers
        while done > 0:
            is_wide = done - 1 >= turn
            forward = "float64" if is_wide else self._dtype
            low = turn if is_wide else 0
            reached = self._piece(
                forward, first + done, grams[low : done + 1], ratios[low:done],
                xs[low:done] if self.chain.skip != 0.0 else xs,
                states[low:done], log_scales[low:done],
            )  # fmt: skip
            done = low + reached
            if reached:
                # The gradients are too alike for float32.
                self.backward_dtype = "float64"

    def _piece(
        self,
        forward: str,
        layer: int,
        grams: NDArray[np.float64],
        ratios: NDArray[np.float64],
        xs: NDArray[Any],
        states: NDArray[np.float64],
        log_scales: NDArray[np.float64],
    ) -> int:
        """Go down from `layer` by all layers of `states`; return how many remain."""
        own = self._pick(forward)
        if self.above is not None:
            own.rows.above[:] = self.above
        status = np.zeros(3, np.int64)
        dtypes = np.dtype(forward).name, own.rows.delta.dtype.name
        kernel = backward.backward_layers
        if own.frame is not None:
            kernel = partial(orthogonal_backward.orthogonal_backward_layers, own.frame, own.rest)
        kernel(
            backward.activation(sigma_of(self.chain.activation), *dtypes),
            backward.derivative(slope_of(self.chain.activation), *dtypes),
            self.spec, self.lift, self.stage, layer, grams, ratios,
            xs.astype(forward, copy=False), self.state, self.log_scale, *self._streams[:2],
            *self._keys, self._panel, states, log_scales,
            own.forward, own.solve, own.rows, own.blocks, own.totals, status,
        )  # fmt: skip
        if self.chain.skip != 0.0:
            self.above = own.rows.above.copy()
        remaining = 0
        if status[0] == codes.UNRESOLVED:
            remaining = int(status[1]) - (layer - len(states))
        elif status[0]:
            raise_stopped(int(status[0]), self.number, int(status[1]), int(status[2]))
        if remaining < len(states):
            self.stage = codes.INNER
            self.log_scale = float(log_scales[remaining])
        return remaining

    def _first_wide(self, stretch: Stretch, index: int, grams: NDArray[np.float64]) -> int:
        """Return k: the rows of layer `first` + 1 + k and later ones are float64 by need."""
        if self._dtype == "float64" or stretch.wide_before[index]:
            return 0
        if not stretch.wide[index]:
            return len(grams)
        own = self._pick("float32")
        for k in range(len(grams) - 1):
            if self._factorise(grams[k], own) < codes.RESOLVED_PIVOT:
                return k
        return len(grams)

    def _factorise(self, gram: NDArray[np.float64], own: Buffers) -> float:
        work = own.forward
        least: float = rows.factorise(gram, self.spec, work)
        return least

    def _pick(self, forward: str) -> Buffers:
        """Return the buffers for rows of a dtype."""
        key = forward, "float64" if forward == "float64" else self.backward_dtype
        if key not in self._buffers:
            dtypes = np.dtype(key[0]), np.dtype(key[1])
            self._buffers[key] = Buffers(self.chain, self.inputs, *dtypes, self._hidden)
        return self._buffers[key]
