"""Any layer of a chain again, from the counters of its random numbers.

A run keeps Gram matrices and no rows.  All random numbers are addressed by key, chain, layer, row
and element, so the rows of a layer can be made again, as often as needed, from the state before it;
and its weights from the key alone.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.cpu import layers, memory, numbers, rows, sources
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation, sigma_of
from bnmc.chain.compiled import raise_stopped
from bnmc.chain.needs import ROWS_ALONE, require
from bnmc.simulation.engine.rows import RowSampler, given_panels
from bnmc.simulation.engine.state import FloatArray, State
from bnmc.simulation.runs import Run


def replaying(state: State) -> RowSampler:
    """Return a sampler that makes the layer after a state again.

    Parameters
    ----------
    state : State
        Of the sampler "conditional" or "weights".

    Raises
    ------
    ArgumentError
        If layers are not row by row.
    """
    require(state.chain, ROWS_ALONE, "the rows of other layers are not made again")
    sampler = RowSampler(Run.of_state(state))
    sampler.take(state)
    return sampler


def representation(sampler: RowSampler, index: int) -> FloatArray:
    """Return x = N(skip x + gain W a) of one chain in the layer after the state of a sampler.

    It is (columns, width).  Without normalization, numbers beyond the range of the dtype are
    infinite or zero.  The kernels of a run keep the activations of rows.  With the identity as
    activation these are the rows themselves, with the bits that they had in the run.

    Raises
    ------
    ZeroVarianceError
        If a row of h has no variance.
    """
    number, width = sampler.layer + 1, sampler.spec.width
    dtype = np.dtype(np.float64) if sampler.wide[index] else sampler.dtype
    stage = sampler.run.stage(number)
    source = sampler.source(stage, dtype)
    layer = sources.Layer(
        sampler.grams[index].copy(),
        sampler.xs[index].astype(dtype),
        sampler.activations[index, (number + 1) % 2].astype(dtype, copy=False),
        memory.aligned_zeros((sampler.columns, memory.stride(width)), dtype),
    )
    draw = sampler.addressed(number, source.stream, index)
    identity = rows.activation(sigma_of(Activation.named("linear")), dtype.name)
    event, degenerate = layers.one_layer(
        sampler.threads_of(index, number), source, identity, sampler.spec, layer, draw,
        sampler.work(dtype), sampler.sums(stage, dtype),
    )  # fmt: skip
    if event == codes.UNRESOLVED:
        sampler.widen(index)
        return representation(sampler, index)
    if degenerate >= 0:
        raise_stopped(event, index, number, degenerate)
    x: FloatArray = layer.following[:, :width]
    if sampler.exponents is not None:
        by = np.clip(sampler.exponents[index] + sampler.lift, -5000, 5000).astype(np.int32)
        with np.errstate(over="ignore"):
            np.ldexp(x, by[:, None], out=x)
    return x


def weights_of_layer(run: Run, number: int, layer: int) -> FloatArray:
    """Return the weights W of a layer of one chain of the sampler "weights", (width, fan_in).

    Those of a convolution are (channels, channels, height, width), output channel first.
    """
    weights, linear = unit_weights_of_layer(run, number, layer), run.layer(layer).linear
    weights /= np.sqrt(weights.dtype.type(linear.fan_in))
    if linear.convolution is None:
        return weights
    taps = weights.reshape(linear.width, *linear.convolution.kernel, -1)
    return np.ascontiguousarray(taps.transpose(0, 3, 1, 2))


def unit_weights_of_layer(run: Run, number: int, layer: int) -> FloatArray:
    """Return the weights W with entries of variance 1, (width, fan_in)."""
    sampler, spec = RowSampler(run.changed(chains=1, first=number)), run.spec(layer)
    width, length = spec.width, spec.fan_in
    weights = np.zeros((width, length), sampler.dtype)
    draw = sampler.addressed(layer, codes.STREAM_WEIGHTS, 0)
    tile = sampler.work().tile
    panel_of, given = None, np.zeros((0, 0), sampler.dtype)
    if spec.weights == codes.GIVEN:
        panel_of = given_panels(sampler.run, 0, layer)
    for panel, first in enumerate(range(0, width, spec.panel)):
        given = given if panel_of is None else panel_of(panel)
        for row in range(first, min(first + spec.panel, width), numbers.BLOCK):
            for column in range(0, length, numbers.TILE):
                part = weights[row : row + numbers.BLOCK, column : column + numbers.TILE]
                rows, columns = part.shape
                numbers.fill_weights(
                    spec.weights, given, tile, column, columns, row, numbers.BLOCK, draw
                )
                part[:] = tile.reshape(numbers.TILE, numbers.STRIDE)[:columns, :rows].T
    return weights


def biases_of_layer(run: Run, number: int, layer: int) -> FloatArray:
    """Return the biases of a layer of one chain of the sampler "weights", (width,)."""
    sampler, linear = RowSampler(run.changed(chains=1, first=number)), run.layer(layer).linear
    width, tile = linear.width, sampler.work().tile
    unit = np.zeros(memory.stride(width), sampler.dtype)
    draw = sampler.addressed(layer, codes.STREAM_WEIGHTS, 0)
    fill = numbers.fill_uniforms if linear.law.uniform_bias else numbers.fill_normals
    for row in range(0, width, numbers.BLOCK):
        fill(tile, 0, linear.fan_in, 1, row, numbers.BLOCK, draw)
        unit[row : row + numbers.BLOCK] = tile[: numbers.BLOCK]
    return unit[:width] * sampler.dtype.type(np.sqrt(linear.bias_variance))
