"""Launches of the kernels that take some chains from layer to layer, forward or back.

A layer takes as many launches as it has parts: the covariance of the rows, or the activations that
all taps see; the moments, or the sums that make normals orthogonal; the rows; new units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu import gram, layers, passes
from bnmc._kernels.gpu import shape as shapes
from bnmc._kernels.gpu.arguments import NOTHING, Address, Frames, Passes, State, Target, Work
from bnmc._kernels.gpu.block import (
    NOT_STOPPED,
    REASON_MASK,
    STEP_BITS,
    STOPPED_FLAT,
    STOPPED_NOT_FINITE,
    STOPPED_TOO_SMALL,
)
from bnmc._kernels.gpu.build import Kernels, kernels_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import processors, ready
from bnmc._kernels.gpu.shape import DRAWN, MOST_RANGES, Shape, Spec
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation, sigma_of
from bnmc.chain.compiled import raise_stopped
from bnmc.chain.convolution import Convolution
from bnmc.chain.homogeneity import keeps_scale
from bnmc.chain.layers import Layer

#: Blocks per multiprocessor among which the layers of few chains are split.
BLOCKS_OF_PROCESSOR = 2

#: Threads of a block of the kernels that do one thing per entry.
_THREADS = 256


def is_covered(layer: Layer, law: codes.LayerSpec) -> bool:
    """Whether the covariance of the rows of W a is not the Gram matrix itself."""
    return layer.linear.convolution is not None or law.shared_variance > 0.0


def kernel_spec(layer: Layer, law: codes.LayerSpec, dtype: str, source: int = DRAWN) -> Spec:
    """Return the properties for which kernels of a layer are compiled."""
    spec = Spec(
        law.columns,
        law.batch,
        law.norm,
        layer.rows.skip != 0.0,
        source in (shapes.MULTIPLIED, shapes.KEPT),
        dtype,
        sigma_of(layer.rows.activation).digest,
        source,
        law.weights if source == shapes.MULTIPLIED else 0,
        keeps_scale(layer),
        centred=law.hides_common,
    )
    if layer.is_plain and law.shared_variance == 0.0:
        return spec
    bias = shapes.NO_BIAS
    if source == shapes.MULTIPLIED and law.bias > 0.0:
        bias = shapes.UNIFORM_BIAS if law.uniform_bias else shapes.NORMAL_BIAS
    return spec._replace(
        in_passes=True,
        order=law.order,
        over_features=law.groups > 0,
        features_centred=law.centred,
        bias=bias,
        is_convolved=source == shapes.MULTIPLIED and layer.linear.convolution is not None,
    )


def neighbours(convolution: Convolution | None, columns: int) -> Any:
    """Return the column that each tap sees from a column, on the device."""
    taps = np.arange(columns)[None] if convolution is None else convolution.neighbours(columns)
    return numba_cuda.to_device(np.ascontiguousarray(taps, np.int64))


class Launches:
    """Kernels that are launched for each of several layers of some chains.

    Parameters
    ----------
    shape : Shape
    count : int
        Number of chains.
    width, sums : int
        Rows of a layer, and numbers that are summed over its rows.
    stream : stream of the device, or 0
    status : (chains,) ndarray or None
        Notes of `block` to begin with.

    Attributes
    ----------
    work : Work
    ranges, blocks : int
        Ranges of the tiles of a layer, and blocks among which they are divided.
    """

    def __init__(
        self,
        shape: Shape,
        count: int,
        width: int,
        sums: int,
        stream: Any,
        status: NDArray[np.int64] | None = None,
    ) -> None:
        self.count, self.stream = count, stream
        self.ranges = min(shape.tiles(width), MOST_RANGES)
        self.blocks = -(-BLOCKS_OF_PROCESSOR * processors() // count)
        if status is None:
            status = np.full(count, NOT_STOPPED)
        self.work = Work(
            numba_cuda.to_device(status, stream=stream),
            numba_cuda.to_device(np.zeros(count, np.int32), stream=stream),
            numba_cuda.device_array((count, self.ranges, sums), np.float64),
        )
        #: Number of the next launch.
        self.step = 0
        self._launches: list[Callable[..., None]] = []
        #: What the kernels work on, which must live until they have ended.
        self._held: list[Any] = []

    def add(
        self, kernels: Kernels, kernel: Callable[..., None], blocks: int, *fixed: Any, ends: int = 3
    ) -> None:
        """Add a kernel; its arguments end with `ends` integers.

        Each chain has at most `blocks` blocks in a row of the grid.  With 0 it has one, and the
        grid has one axis.
        """
        start = self.prepared(kernels, kernel, blocks, (*fixed, *(0,) * ends))
        self.add_function(lambda *varying: start(*fixed, *varying))
        self._held.append(fixed)

    def add_each(self, kernel: Any, grid: Any, *fixed: Any) -> None:
        """Add a kernel of any shape."""
        start = ready(kernel, grid, _THREADS, 0, self.stream, (*fixed, 0, 0, 0))
        self.add_function(lambda *varying: start(*fixed, *varying))
        self._held.append(fixed)

    def add_function(self, launch: Callable[..., None]) -> None:
        """Add a function that launches a kernel."""
        self._launches.append(launch)

    def prepared(
        self, kernels: Kernels, kernel: Callable[..., None], blocks: int, arguments: Sequence[Any]
    ) -> Callable[..., None]:
        """Return a function that launches a kernel; see `add`."""
        grid = (min(blocks, self.blocks), self.count) if blocks else (self.count, 1)
        # Prepared once, since a layer may be as short as the launch of a kernel by Python.
        return ready(
            kernels.of(kernel), grid, kernels.shape.threads, kernels.bytes, self.stream, arguments
        )

    @property
    def count_of_layer(self) -> int:
        """Number of launches for a layer."""
        return len(self._launches)

    def run(self, layers: Iterable[tuple[int, ...]]) -> None:
        """Launch the kernels for each layer, given what varies but for the number of the launch."""
        for varying in layers:
            for launch in self._launches:
                launch(*varying, self.step)
                self.step += 1

    def clear(self) -> None:
        """Forget the kernels, not what they work on."""
        self._launches = []

    def of_layers(self, notes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return notes with the number of the layer in the place of that of the launch."""
        layers = (notes >> STEP_BITS) // self.count_of_layer
        of_layers = (layers << STEP_BITS) + (notes & REASON_MASK)
        return np.where(notes == NOT_STOPPED, notes, of_layers)


def raise_noted(reason: int, chain: int, layer: int, bytes_of_number: int = 8) -> None:
    """Raise the error of a note of a kernel, but for STOPPED_UNRESOLVED."""
    if reason == STOPPED_TOO_SMALL:
        raise_stopped(codes.TOO_SMALL, chain, layer, bytes_of_number)
    if reason >= STOPPED_FLAT:
        raise_stopped(codes.FLAT_SAMPLE, chain, layer, reason - STOPPED_FLAT)
    is_finite = reason != STOPPED_NOT_FINITE
    raise_stopped(codes.ZERO_VARIANCE if is_finite else codes.NOT_FINITE, chain, layer, reason)


def forward(
    layer: Layer, law: codes.LayerSpec, spec: Spec, state_of: State, targets: Sequence[Target],
    address: Address, number: int, slots: NDArray[np.int64], stream: Any, given: Any = NOTHING,
) -> Launches:  # fmt: skip
    """Launch the kernels that take some chains through equal layers.

    Parameters
    ----------
    layer, law, spec : Layer, LayerSpec, Spec
    state_of, address : State, Address
    targets : sequence of Target
        For the Gram matrices of a; and for those of h, if they are recorded.
    number : int
        Of the first layer.
    slots : (layers,) int64
        Where each layer is recorded; -1 for nowhere.
    stream : stream of the device
    given : (chains or 1, width, columns) array of the device
        Layer 0, if it is given.
    """
    kernels, count = kernels_of(spec), state_of.grams.shape[0]
    launches = Launches(kernels.shape, count, law.width, kernels.shape.entries, stream)
    work, of, ranges, (target, *of_states) = launches.work, given, launches.ranges, targets
    one_block = spec.one_block_suffices and not of_states
    if one_block and ranges == kernels.shape.tiles(law.width) and (
        launches.blocks == 1 or ranges == 1
    ):  # fmt: skip
        steps = numba_cuda.to_device(slots, stream=stream)
        of_all = state_of, law, target, steps, work.status, address
        launches.add(kernels, layers.layers, 0, *of_all, ends=2)
        launches.run([(number,)])
        return launches
    arrays = {
        name: numba_cuda.device_array(
            (count, *lengths), spec.dtype if name == "factors" else np.float64
        )
        for name, lengths in lengths_of_work(layer, law, spec, number).items()
    }
    rows = kernels
    if spec.in_passes:
        of = Passes(*(arrays.get(name, NOTHING) for name in Passes._fields))
        of = of._replace(covariances=arrays.get("covariances", state_of.grams))
        grid, convolution = (launches.blocks, count), layer.linear.convolution
        taps = neighbours(convolution, spec.columns)
        if "covariances" in arrays:
            of_rows = taps, law.shared_variance, of.covariances
            launches.add_each(passes.cover, count, state_of.grams, *of_rows)
        if spec.is_convolved:
            width = law.fan_in // taps.shape[0]
            launches.add_each(passes.unfold, grid, state_of.activations, width, taps, of.factors)
        if spec.over_features:
            tiles = kernels.shape.tiles(law.width)
            launches.add(kernels, passes.moments, tiles, state_of, of, law, work, address)
            if spec.source == shapes.MULTIPLIED:
                spec_of_rows = spec._replace(source=shapes.KEPT, weights=0)
                rows = kernels_of(spec_of_rows._replace(bias=shapes.NO_BIAS, is_convolved=False))
    if spec.is_orthogonal:
        of = Frames(**arrays)
        # One block makes all sums of zᵀz that a layer needs.
        each = codes.MOST_PASSES if min(launches.blocks, ranges) == 1 else 1
        for first in range(0, codes.MOST_PASSES, each):
            of_frame = state_of, of, first, first + each, law, work, address
            launches.add(kernels, layers.frame, ranges, *of_frame)
    if of_states:
        _add_states(launches, rows.shape.spec, state_of, of, law, of_states[0], address)
    launches.add(rows, layers.rows, ranges, state_of, of, law, target, work, address)
    if spec.scaled:
        launches.add(kernels, gram.rescale, 0, state_of, law.width, work.status)
    launches.run((slot, number + step) for step, slot in enumerate(slots.tolist()))
    return launches


def _add_states(
    launches: Launches, spec: Spec, state_of: State, of: Any, law: codes.LayerSpec, target: Target,
    address: Address,
) -> None:  # fmt: skip
    """Add the kernel `rows` without norm and activation, on a copy of the state, where it records.

    It makes the rows h that the next kernel makes again, so that its Gram matrix is that of h.
    """
    identity = sigma_of(Activation.named("linear")).digest
    bare = spec._replace(norm=codes.NORM_NONE, order=codes.NORM_FIRST, digest=identity)
    kernels = kernels_of(bare._replace(over_features=False))
    changed = {"grams": state_of.grams} | ({"xs": state_of.xs} if spec.skipped else {})
    copies = {
        name: numba_cuda.device_array(there.shape, there.dtype) for name, there in changed.items()
    }
    fixed = state_of._replace(**copies), of, law, target, launches.work, address
    start = launches.prepared(kernels, layers.rows, launches.ranges, (*fixed, 0, 0, 0))

    def record(slot: int, number: int, step: int) -> None:
        if slot >= 0:
            for name, there in changed.items():
                copies[name].copy_to_device(there, stream=launches.stream)
            start(*fixed, slot, number, step)

    launches.add_function(record)


def lengths_of_work(
    layer: Layer, law: codes.LayerSpec, spec: Spec, number: int = 1
) -> dict[str, tuple[int, ...]]:
    """Return lengths of arrays of one chain, by their names in `Passes` or `Frames`."""
    n = spec.columns
    if spec.is_orthogonal:
        return {"inverse": (n, n), "matrices": (spec.rows_of_gram, n), "leasts": ()}
    lengths: dict[str, tuple[int, ...]] = {}
    # Layer 0 is drawn given its covariance itself.
    if spec.source == DRAWN and number > 0 and is_covered(layer, law):
        lengths["covariances"] = (n, n)
    if spec.is_convolved:
        lengths["factors"] = (law.fan_in, n)
    if spec.over_features:
        places = passes.segments_of(kernels_of(spec).shape, law.width, law.groups)
        lengths["segments"] = (places, 2, n)
        lengths["shifts"] = lengths["scales"] = (law.groups, n)
    return lengths


def bytes_of_work(layer: Layer, law: codes.LayerSpec, spec: Spec) -> int:
    """Return the bytes of those arrays."""
    sizes = {"factors": np.dtype(spec.dtype).itemsize}
    lengths = lengths_of_work(layer, law, spec)
    return sum(sizes.get(name, 8) * math.prod(shape) for name, shape in lengths.items())
