"""A chain as arguments of compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bnmc._kernels.cpu import memory
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.layers import Layer
from bnmc.errors import NonFiniteError, ZeroVarianceError


def specs_of(
    layers: Sequence[Layer], inputs: int = 1, *, shows_state: bool = False
) -> tuple[codes.LayerSpec, ...]:
    """Return what kernels know of layers 0, 1, …, of which the last one repeats.

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
    hides, following = True, layers[-1]
    for number in reversed(range(len(layers))):
        layer = layers[number]
        hides = layer.hides_common_part(hides, following.rows.skip) and not shows_state
        previous = layers[number - 1] if number else None
        if previous is not None and number == len(layers) - 1 and not layer.is_centred(layer):
            previous = None  # the last layer comes after itself, too
        specs.append(_spec_of(layer, inputs, hides, layer.is_centred(previous), shows_state))
        following = layer
    return tuple(reversed(specs))


def _spec_of(
    layer: Layer, inputs: int, hides_common: bool, is_centred: bool, shows_state: bool
) -> codes.LayerSpec:
    linear, rows = layer
    norm, columns = rows.norm, rows.batch * inputs
    bias_variance = 0.0 if hides_common else linear.bias_variance
    hides_scale, gain = rows.hides_scale() and not shows_state, linear.gain
    is_first, without_bias = rows.order == codes.NORM_FIRST, bias_variance == 0.0
    if hides_scale and norm.axis == "features" and is_first and without_bias:
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
        norm.groups if norm.axis == "features" else 0,
        norm.centred,
        rows.eps,
        hides_common or is_centred,
        hides_scale and layer.is_row_by_row,
    )


def spec_of(chain: Chain, inputs: int = 1, layer: int = 1) -> codes.LayerSpec:
    """Return what kernels know of layer 0, or of a later one, of a chain."""
    return specs_of(chain.layers, inputs)[min(layer, 1)]


def norm_of_factor(spec: codes.LayerSpec) -> int:
    """Return the code of the norm for which kernels of a GPU factorise covariances."""
    if spec.hides_common:
        return codes.NORM_CENTRED
    return codes.NORM_NONE if spec.norm == codes.NORM_CENTRED else spec.norm


def raise_stopped(status: int, chain: int | None, layer: int, row: int) -> None:
    """Raise the error of a kernel's status.

    Parameters
    ----------
    status : int
        One of the codes of `bnmc._kernels.scalar.codes` but RUNNING.
    chain : int or None
        Number of the chain, for the message.
    layer : int
    row : int
        The row, or the column of a sample.

    Raises
    ------
    ZeroVarianceError, NonFiniteError
    """
    if status == codes.ZERO_VARIANCE:
        raise ZeroVarianceError(chain, layer, row)
    if status == codes.FLAT_SAMPLE:
        raise ZeroVarianceError(chain, layer, None, row)
    raise NonFiniteError(chain, layer, "Gram matrix")
