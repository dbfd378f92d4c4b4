"""Stages: consecutive layers that one call of a kernel makes."""

from __future__ import annotations

import math
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from numpy.typing import NDArray

from bnmc._kernels.cpu import layers
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.scaling import shift_of
from bnmc.chain.layers import Layer


class Stage(NamedTuple):
    """Consecutive layers of one kind: one call of a kernel makes any number of them.

    first : int
        The first layer.
    end : int
        The layer after the last one.
    layer : Layer
        One of them.  The others may differ in the numbers of their specs.
    specs : (layers or fewer,) array of `layers.records`
        The last one repeats.
    lift : int
        The exponent by which gain and skip of the specs were divided.
    buffers : (int, bool)
        On which the form of the sums depends: panels, and whether the norm is over the features.
    largest : LayerSpec
        Width and groups for which the sums suffice for all layers with such buffers.
    """

    first: int
    end: int
    layer: Layer
    specs: NDArray[Any]
    lift: int
    buffers: tuple[int, bool]
    largest: codes.LayerSpec


def lifted(spec: codes.LayerSpec) -> tuple[codes.LayerSpec, int]:
    """Return a law without normalization divided by a power of 2, and the exponent of that power.

    The exponent is 0 unless the factors of a layer are far from 1.
    """
    lift = shift_of(max(abs(spec.skip), abs(spec.gain)))
    return spec._replace(skip=math.ldexp(spec.skip, -lift), gain=math.ldexp(spec.gain, -lift)), lift


def stages_of(
    layers_of_run: tuple[Layer, ...], specs: tuple[codes.LayerSpec, ...], splits_scale: bool
) -> list[Stage]:
    """Return the stages of all layers, from layer 0 on; the last one has no end."""
    # The scale of layer 0 is that of its covariance.
    pairs = [
        lifted(spec) if number and splits_scale else (spec, 0) for number, spec in enumerate(specs)
    ]

    def kind(number: int) -> tuple[object, ...]:
        linear, rows = layers_of_run[number]
        spec, lift = pairs[number]
        return (
            number > 0, rows.activation, linear.law, linear.convolution, lift, _buffers_of(spec),
        )  # fmt: skip

    # Of all layers with the same buffers.
    widest = {_buffers_of(spec): spec for spec in sorted(specs, key=attrgetter("width"))}
    grouped = {_buffers_of(spec): spec for spec in sorted(specs, key=attrgetter("groups"))}
    stages = []
    for _, group in groupby(range(len(specs)), kind):
        first, *others = group
        last = others[-1] if others else first
        end = last + 1 if last < len(specs) - 1 else codes.MOST_LAYERS
        records = layers.records(*(spec for spec, _ in pairs[first : last + 1]))
        (spec, lift), layer = pairs[first], layers_of_run[first]
        buffers = _buffers_of(spec)
        largest = widest[buffers]._replace(groups=grouped[buffers].groups)
        stages.append(Stage(first, end, layer, records, lift, buffers, largest))
    return stages


def _buffers_of(spec: codes.LayerSpec) -> tuple[int, bool]:
    return layers.panels_of(spec), spec.groups > 0
