"""The backward pass of one network, from the last layer to the first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import backward, backward_matrices, backward_rows, memory, rows
from bnmc._kernels.cpu.layers import records
from bnmc._kernels.cpu.numbers import BLOCK, STRIDE
from bnmc._kernels.scalar import codes
from bnmc._support.arguments import Float64Array
from bnmc.chain.activations import sigma_of, slope_of
from bnmc.chain.compiled import Stage, lifted, raise_stopped
from bnmc.errors import NonFiniteError
from bnmc.gradients.directions import Direction, Readout, scaled
from bnmc.gradients.observables import Gradients
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import FloatArray
from bnmc.simulation.runs import Run

#: The key of the buffers of a sampler that are those of a backward pass.
_OF_PASS = "backward"

#: With the arrays that orthogonal weights need.
_Buffers = tuple[backward_matrices.Haar | None, backward.Buffers]


class Stretch(NamedTuple):
    """Layers first, …, last of some chains.

    grams : (chains, layers + 1, columns, columns) float64
        Entry (i, j) of a Gram matrix is in units of 2**(units[i] + units[j]).
    units : (chains, layers + 1, columns) int64
        Zeros unless the scale is split off.
    xs : (chains, layers, columns, >= width), or (chains, 1, 1, 1) without a skip connection
        The representations of all layers but the last one.
    wide_before : (chains,) bool
        The float32 chains that had float64 rows in the first layer.
    wide : (chains,) bool
        The float32 chains that have float64 rows in the last layer.
    """

    first: int
    grams: Float64Array
    units: NDArray[np.int64]
    xs: FloatArray
    wide_before: NDArray[np.bool_]
    wide: NDArray[np.bool_]

    @property
    def layers(self) -> int:
        """Number of layers after the first one."""
        return self.grams.shape[1] - 1


class Descent:
    """The gradient of one chain with respect to h of a layer; methods take it to lower layers.

    With δ (width x columns) this gradient and z (width x columns) the normals of the layer, the
    state is δᵀδ / width and zᵀδ / width, in units of 4**log_scale and 2**log_scale.  If the weights
    are orthogonal, the columns of z made orthogonal take the place of z.

    The way goes stage by stage, as forward: what varies within a stage is in its specs.

    Parameters
    ----------
    sampler : Sampler
        Of the forward pass; it keeps the buffers of the thread.
    index : int
        The place of the chain among those of the sampler.
    hidden : bool
        Whether hᵀδ is wanted too.
    """

    def __init__(self, sampler: Sampler, index: int, hidden: bool) -> None:
        self._sampler, self._index, self._hidden = sampler, index, hidden
        self._run, self.number = sampler.run, sampler.offset + index
        self._dtype = sampler.dtype.name
        #: Code of the map above: none at the top, a readout, or a layer of the network.
        self.stage = codes.TOP
        self.log_scale = 0.0
        self.state = np.zeros((2, sampler.columns, sampler.columns))
        #: Precision of δ, which is float64 if the gradients of samples are too alike for float32.
        self.backward_dtype = self._dtype
        #: With skip connections, δ of the layer of the state: the buffers serve other chains too.
        self.above: FloatArray | None = None

    # --- the top

    def begin(self, direction: Direction, stretch: Stretch, products: Float64Array) -> int:
        """Take the direction at the last layer; return the number of layers with known products.

        Parameters
        ----------
        direction : Direction
        stretch : Stretch
            The last one.
        products : (layers, 2 or 3, columns, columns) ndarray
            Gets those of the last layer, if its gradient is the direction itself.
        """
        index, last = self._index, stretch.first + stretch.layers
        if isinstance(direction, Readout):
            self._begin_with_readout(direction, stretch)
            return 0
        forward = "float64" if stretch.wide[index] else self._dtype
        haar, buffers = self._pick(forward)
        if not backward.begin_backward(
            haar, self._run.stage(last).specs_from(last), direction.of(self.number),
            stretch.grams[index, -2], stretch.xs[index, -1].astype(forward, copy=False),
            self._draw(last), buffers, products[-1],
        ):  # fmt: skip
            raise NonFiniteError(self.number, last, "gradient")
        self.state[:] = products[-1, :2]
        self.stage = codes.TOP
        if self._run.keeps_x:
            self.above = buffers.rows.delta.copy()
        return 1

    def _begin_with_readout(self, direction: Readout, stretch: Stretch) -> None:
        """Draw the outputs of a Gaussian readout of the last layer, and take their gradient."""
        layer, units = stretch.first + stretch.layers, stretch.units[self._index, -1]
        spec = backward.readout_of(self._run.spec(layer))
        basis, is_regular = self._basis(stretch.grams[self._index, -1], spec)
        draw, block = self._draw(layer, codes.STREAM_START), self._pick("float64")[1].rows.values
        normals = backward_rows.normals_of(direction.classes, is_regular, draw, block)
        with np.errstate(over="ignore"):
            outputs = np.ldexp(normals @ basis.T, units.astype(np.int32))
        gradient, exponent = scaled(direction.of_columns(outputs, self.number, layer))
        self.log_scale = float(exponent)
        self.state[0] = gradient.T @ gradient / spec.width
        self.state[1] = normals.T @ gradient / spec.width
        self.stage = codes.READOUT

    # --- for kernels of another device

    def blocks_of(self, rows: NDArray[Any]) -> FloatArray:
        """Return δ of a layer as `above`, given rows, (columns, >= width)."""
        columns, count = memory.padded(len(rows)), memory.stride(_widest(self._run)) // BLOCK
        above: FloatArray = np.zeros((count, columns, STRIDE), rows.dtype)
        whole = rows[:, : count * BLOCK].reshape(len(rows), count, BLOCK)
        above[:, : len(rows), :BLOCK] = whole.swapaxes(0, 1)
        return above.reshape(count, columns * STRIDE)

    def basis_of(self, gram: Float64Array) -> Float64Array:
        """Return the factor of what the layer above saw, given the Gram matrix of the layer."""
        spec = self._run.spec(self._run.depth)
        if self.stage == codes.READOUT:
            spec = backward.readout_of(spec)
        # The bias is in these covariances already.
        return self._basis(gram, spec._replace(shared_variance=0.0))[0]

    # --- the way down

    def through(self, stretch: Stretch, index: int, gradients: Gradients) -> None:
        """Go down to the layer after the first of a stretch.

        Parameters
        ----------
        stretch : Stretch
        index : int
            The chain's place in it.
        gradients : Gradients
            Receives those of layers `stretch.first` + 1, …; the last one is the layer to reach
            first: that of the state, or below it by one.
        """
        done = len(gradients.scales)
        grams = np.ascontiguousarray(stretch.grams[index, : done + 1])
        units, xs = stretch.units[index], stretch.xs[index]
        turn = self._first_wide(stretch, index, grams)
        while done > 0:
            layer, is_wide = stretch.first + done, done - 1 >= turn
            stage = self._run.stage(layer)
            low = max(stage.first - stretch.first - 1, turn if is_wide else 0)
            specs = stage.specs_from(stretch.first + 1 + low)
            ratios = np.exp2(units[low:done] - units[low + 1 : done + 1] + float(stage.lift))
            layers = backward.ForwardLayers(
                specs, grams[low : done + 1], ratios,
                xs[low:done] if self._run.keeps_x else xs, stage.lift,
            )  # fmt: skip
            reached = self._piece(
                "float64" if is_wide else self._dtype,
                layer, stage, layers, gradients.part(low, done),
            )  # fmt: skip
            done = low + reached
            if reached:
                # The gradients are too alike for float32.
                self.backward_dtype = "float64"

    def _piece(
        self,
        forward: str,
        layer: int,
        stage: Stage,
        layers: backward.ForwardLayers,
        gradients: Gradients,
    ) -> int:
        """Go down from `layer` through layers of a stage; return how many remain.

        `forward` is the dtype of their rows.
        """
        haar, buffers = self._pick(forward)
        if self.above is not None:
            buffers.rows.above[:] = self.above
        count, status = len(gradients.scales), np.zeros(3, np.int64)
        dtypes = np.dtype(forward).name, buffers.rows.delta.dtype.name
        if self.stage == codes.READOUT:
            above, lift = records(backward.readout_of(self._run.spec(layer))), 0
        else:
            stage_above = self._run.stage(layer + 1)
            above, lift = stage_above.specs_from(layer + 1), stage_above.lift
        norm_above = self._run.spec(layer + 1).norm
        centred = norm_above == codes.NORM_CENTRED and self.stage == codes.INNER
        activation = stage.layer.rows.activation
        backward.backward_layers(
            haar,
            backward_rows.activation(sigma_of(activation), *dtypes),
            backward_rows.derivative(slope_of(activation), *dtypes),
            layers._replace(xs=layers.xs.astype(forward, copy=False)), above, self._draw(layer),
            backward.Gradient(self.state, self.log_scale + lift, centred),
            backward.Record(*gradients, status), buffers,
        )  # fmt: skip
        if self._run.keeps_x:
            self.above = buffers.rows.above.copy()
        remaining = 0
        if status[0] == codes.UNRESOLVED:
            remaining = int(status[1]) - (layer - count)
        elif status[0]:
            raise_stopped(int(status[0]), self.number, int(status[1]), int(status[2]))
        if remaining < count:
            self.stage = codes.INNER
            self.log_scale = float(gradients.scales[remaining])
        return remaining

    def _first_wide(self, stretch: Stretch, index: int, grams: Float64Array) -> int:
        """Return k: the rows of layer `first` + 1 + k and later ones are float64 by need."""
        if self._dtype == "float64" or stretch.wide_before[index]:
            return 0
        if not stretch.wide[index]:
            return len(grams)
        work = self._sampler.work()
        for k in range(len(grams) - 1):
            spec = self._run.spec(stretch.first + 1 + k)
            if self._run.splits_scale:
                spec, _ = lifted(spec)
            if rows.factorise(grams[k], spec, work) < codes.RESOLVED_PIVOT:
                return k
        return len(grams)

    def _basis(
        self, gram: Float64Array, spec: codes.LayerSpec
    ) -> tuple[Float64Array, NDArray[np.bool_]]:
        """Return the factor of what a map saw of a Gram matrix, and its columns with entries."""
        buffers, columns = self._pick("float64")[1], spec.columns
        basis, is_regular = buffers.matrices.basis, buffers.matrices.in_basis
        backward_matrices.factorise_seen(gram, spec, buffers.work, basis, is_regular)
        return np.tril(basis[:columns, :columns]) * is_regular, is_regular

    def _draw(self, layer: int, stream: np.uint32 = codes.STREAM_ROWS) -> codes.Draw:
        """Return the address of the random numbers of a layer."""
        return self._sampler.addressed(layer, stream, self._index)

    def _pick(self, forward: str) -> _Buffers:
        """Return the buffers of the thread for rows of a dtype; drop those for another one."""
        dtypes = forward, "float64" if forward == "float64" else self.backward_dtype
        key = _OF_PASS, *dtypes
        present: dict[Any, Any] = self._sampler.buffers()
        for other in [other for other in present if other[0] == _OF_PASS and other != key]:
            del present[other]
        return self._sampler.buffer(key, lambda: buffers_of(self._run, self._hidden, *dtypes))


def buffers_of(
    run: Run,
    hidden: bool,
    forward: str,
    backward_dtype: str,
    zeros: memory.Zeros = memory.aligned_zeros,
) -> _Buffers:
    """Return the buffers of a thread, for rows of one dtype forward and one dtype backward."""
    buffers = backward.buffers(
        _widest(run), run.batch, run.inputs or 1, forward, backward_dtype,
        skips=run.keeps_x, hidden=hidden, zeros=zeros,
    )  # fmt: skip
    is_orthogonal = any(layer.linear.law.is_orthogonal for layer in run.layers[1:])
    haar = backward_matrices.haar(run.columns, forward, zeros) if is_orthogonal else None
    return haar, buffers


def _widest(run: Run) -> int:
    """Return the largest width of a layer."""
    return max(spec.width for spec in run.specs[1:])
