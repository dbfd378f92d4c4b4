"""A chain as arguments of compiled kernels: specs of its layers, and stages of alike ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import layers as layer_kernels
from bnmc._kernels.cpu import memory
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.scaling import shift_of
from bnmc.chain.chain import Chain, Layers
from bnmc.chain.layers import Layer, Path
from bnmc.errors import NonFiniteError, ZeroVarianceError


def specs_of(
    layers: Sequence[Layer], inputs: int = 1, *, shows_state: bool = False
) -> tuple[codes.LayerSpec, ...]:
    """Return what kernels know of layers 0, 1, …, of which the last one repeats.

    The middle one of three or more equal ones stands for any number of them.

    Kernels need not draw a part of the rows h that neither this layer nor a later one sees.

    Parameters
    ----------
    layers : sequence of Layer
    inputs : int, default 1
        Number of input batches, side by side.
    shows_state : bool, default False
        Whether the rows h themselves are seen, because their Gram matrices are recorded.
    """
    specs: list[codes.LayerSpec] = []
    hides: dict[int, bool] = {}
    ends = ends_of_skips(layers)
    for number in reversed(range(len(layers))):
        layer = layers[number]
        others = (hides[end] for end in ends[number])
        hides[number] = layer.hides_common_part(others) and not shows_state
        previous = layers[number - 1] if number else None
        if previous is not None and number == len(layers) - 1 and not layer.is_centred(layer):
            previous = None  # the last layer comes after itself, too
        is_centred = layer.is_centred(previous)
        specs.append(_spec_of(layer, inputs, hides[number], is_centred, shows_state))
    return tuple(reversed(specs))


def ends_of_skips(layers: Sequence[Layer]) -> list[list[int]]:
    """Return the places to which skip connections lead from the state of each layer."""
    ends: list[list[int]] = [[] for _ in layers]
    begun: list[tuple[int, Path]] = []
    for number, layer in enumerate(layers):
        begun += [(number - 1, path) for path in layer.begins]
        if layer.skips_from_before and number:
            ends[number - 1].append(number)
        if layer.path is not None:
            begin, path = begun.pop()
            if not path.takes_activations:
                ends[begin].append(number)
    return ends


def _spec_of(
    layer: Layer, inputs: int, hides_common: bool, is_centred: bool, shows_state: bool
) -> codes.LayerSpec:
    linear, rows = layer.linear, layer.rows
    norm, columns = rows.norm, rows.batch * inputs
    bias_variance = 0.0 if hides_common else linear.bias_variance
    hides_scale, gain = rows.hides_scale() and not shows_state, linear.gain
    is_over_features = not norm.acts_on_rows
    if hides_scale and is_over_features and rows.keeps_normed and bias_variance == 0.0:
        gain = 1.0  # squares of large and small numbers leave the range of float32
    return codes.LayerSpec(
        linear.width,
        rows.batch,
        columns,
        linear.fan_in,
        memory.panel_rows(linear.width, columns),
        linear.law.code,
        gain,
        rows.skip,
        math.sqrt(bias_variance),
        linear.law.uniform_bias,
        linear.covariance(shows_bias=not hides_common).variance,
        rows.order,
        norm.code,
        norm.groups if is_over_features else 0,
        norm.centred,
        rows.eps,
        hides_common or is_centred,
        hides_scale and layer.is_row_by_row,
    )


def spec_of(chain: Chain, inputs: int = 1, layer: int = 1) -> codes.LayerSpec:
    """Return what kernels know of layer 0, or of a later one, of a chain."""
    return specs_of(chain.layers, inputs)[min(layer, 1)]


#: Equal layers whose spec an array repeats; more of them end a stage.
_MOST_RECORDS = 32


class Stage(NamedTuple):
    """Consecutive layers of one kind: one call of a kernel makes any number of them.

    first : int
        The first layer.
    end : int
        The layer after the last one.
    layer : Layer
        One of them.  The others may differ in the numbers of their specs.
    specs : (layers or fewer,) array of `bnmc._kernels.cpu.layers.records`
        The last one repeats.
    lift : int
        The exponent by which gain and skip of the specs were divided.
    buffers : (int, bool)
        On which the form of the sums depends: panels, and whether the norm is over the features.
    largest : LayerSpec
        Width and groups for which the sums suffice for all layers with such buffers.
    by_weights : bool
        Whether rows are products with weights.
    level : int, default 0
        Number of blocks that the layers are inside of; each level keeps a representation.
    begins : tuple of Path
        The skip paths that begin at the layer before the first one.
    """

    first: int
    end: int
    layer: Layer
    specs: NDArray[Any]
    lift: int
    buffers: tuple[int, bool]
    largest: codes.LayerSpec
    by_weights: bool
    level: int = 0
    begins: tuple[Path, ...] = ()

    def specs_from(self, layer: int) -> NDArray[Any]:
        """Return the specs from a layer on."""
        return self.specs[min(layer - self.first, len(self.specs) - 1) :]


def lifted(spec: codes.LayerSpec) -> tuple[codes.LayerSpec, int]:
    """Return a law without normalization divided by a power of 2, and the exponent of that power.

    The exponent is 0 unless the factors of a layer are far from 1.
    """
    lift = shift_of(max(abs(spec.skip), abs(spec.gain)))
    return spec._replace(skip=math.ldexp(spec.skip, -lift), gain=math.ldexp(spec.gain, -lift)), lift


def stages_of(
    layers: Layers,
    specs: tuple[codes.LayerSpec, ...],
    by_weights: Sequence[bool],
    splits_scale: bool,
    others: tuple[codes.LayerSpec, ...] = (),
) -> list[Stage]:
    """Return the stages of all layers, from layer 0 on; the last one has no end.

    Layers of `others` are made with the same buffers.
    """
    # The scale of layer 0 is that of its covariance.
    pairs = [
        lifted(spec) if number and splits_scale else (spec, 0) for number, spec in enumerate(specs)
    ]
    counts = [end - first for first, end in pairwise(layers.firsts)] + [1]
    # The last spec of a stage repeats, so many equal layers end a stage.
    ended = [0, *accumulate(count > _MOST_RECORDS for count in counts)]

    # A layer before which skip paths begin is the first one of a stage.
    begun = [*accumulate(bool(layer.begins) for layer in layers.layers)]
    levels = [*accumulate(len(layer.begins) - (layer.path is not None) for layer in layers.layers)]

    def kind(number: int) -> tuple[object, ...]:
        linear, rows = layers.layers[number].linear, layers.layers[number].rows
        spec, lift = pairs[number]
        return (
            number > 0, rows.activation, linear.law, linear.convolution, lift, _buffers_of(spec),
            by_weights[number], ended[number], begun[number], levels[number],
        )  # fmt: skip

    # Of all layers with the same buffers.
    every = (*specs, *others)
    widest = {_buffers_of(spec): spec for spec in sorted(every, key=attrgetter("width"))}
    grouped = {_buffers_of(spec): spec for spec in sorted(every, key=attrgetter("groups"))}
    stages = []
    for _, group in groupby(range(len(specs)), kind):
        first, *following = group
        last = following[-1] if following else first
        end = layers.firsts[last + 1] if last < len(specs) - 1 else codes.MOST_LAYERS
        numbers = [number for number in range(first, last) for _ in range(counts[number])]
        records = layer_kernels.records(*(pairs[number][0] for number in (*numbers, last)))
        (spec, lift), layer = pairs[first], layers.layers[first]
        buffers = _buffers_of(spec)
        largest = widest[buffers]._replace(groups=grouped[buffers].groups)
        stages.append(
            Stage(
                layers.firsts[first], end, layer, records, lift, buffers, largest,
                by_weights[first], levels[first], layer.begins,
            )
        )  # fmt: skip
    return stages


def _buffers_of(spec: codes.LayerSpec) -> tuple[int, bool]:
    return layer_kernels.panels_of(spec), spec.groups > 0


def check_status(status: NDArray[np.int64], first: int, *others: int) -> None:
    """Raise the error of the first chain that a kernel stopped.

    Parameters
    ----------
    status : (chains, 3) ndarray of int
        A code, and the layer and the row that it is about.
    first : int
        Number of the first chain.
    others : int
        Codes besides RUNNING that are no errors.
    """
    stopped = np.flatnonzero(~np.isin(status[:, 0], (codes.RUNNING, *others)))
    if stopped.size:
        code, layer, row = (int(value) for value in status[stopped[0]])
        raise_stopped(code, first + int(stopped[0]), layer, row)


def raise_stopped(status: int, chain: int | None, layer: int | None, row: int) -> None:
    """Raise the error of a kernel's status.

    Parameters
    ----------
    status : int
        One of the codes of `bnmc._kernels.scalar.codes` but RUNNING.
    chain : int or None
        Number of the chain, for the message.
    layer : int or None
    row : int
        The row as `measure_rows` returns it, the column of a sample, or the bytes of a number that
        is too small.

    Raises
    ------
    ZeroVarianceError, NonFiniteError
    """
    if status == codes.ZERO_VARIANCE:
        raise ZeroVarianceError(chain, layer, row)
    if status == codes.FLAT_SAMPLE:
        raise ZeroVarianceError(chain, layer, None, row)
    quantity = "Gram matrix"
    if status == codes.TOO_SMALL:
        quantity = f"Gram matrix, too small for float{8 * row}, is"
    elif row >= codes.ROW_OUT_OF_RANGE:
        quantity = "variance of a row, beyond the range of its dtype, is"
    raise NonFiniteError(chain, layer, quantity)
