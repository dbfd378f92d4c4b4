"""Convolutions with circular padding, as maps of Gram matrices and of activations."""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.blocks import copy_matrix
from bnmc._kernels.cpu.layers import merge_panels, multiply_panels
from bnmc._kernels.scalar.codes import NOT_FINITE, STREAM_WEIGHTS, ZERO_VARIANCE, Draw


@kernel
def average_shifts(grams, neighbours, out):
    """Average the entries of symmetric matrices over the taps of a convolution.

    Writes out[:, i, j] = mean over taps t of grams[:, neighbours[t, i], neighbours[t, j]].

    grams, out : (matrices, columns, columns) float64
    neighbours : (taps, columns) int64
        The column that each tap sees from a column.
    """
    taps, columns = neighbours.shape
    share = 1.0 / taps
    for number in range(grams.shape[0]):
        gram, average = grams[number], out[number]
        # Rounding keeps the symmetry.  The other half costs less than its copy, column by column.
        for i in range(columns):
            target = average[i]
            for tap in range(taps):
                row, places = gram[neighbours[tap, i]], neighbours[tap]
                for j in range(columns):
                    # Unsigned, so that the compiler adds no test for negative indices.
                    value = row[np.uintp(places[j])]
                    target[j] = value if tap == 0 else target[j] + value
            for j in range(columns):
                target[j] *= share


@kernel
def unfold(a, neighbours, width, out):
    """Write the activations that all taps see, one tap after the other.

    a : (>= columns, >= width)
    neighbours : (taps, columns) int64
    out : (>= columns, >= taps * width)
    """
    taps, columns = neighbours.shape
    for i in range(columns):
        for tap in range(taps):
            row = a[neighbours[tap, i]]
            for k in range(width):
                out[i, tap * width + k] = row[k]


@kernel
def convolved_layers(
    neighbours, factors, panel_sums, sigma, spec, weights, given, grams, xs, activations,
    first_chain, first_layer, slots, record, panel, key0, key1, total, work, status, exponents,
    units, lift,
):  # fmt: skip
    """Take chains through layers whose weights are drawn: convolutions.

    Parameters are those of `layers.weighted_layers`, and

    neighbours : (taps, columns) int64
        As in `unfold`.
    factors : (padded columns, >= taps * width)
        Receives the activations that all taps see.  The rows after the columns are zero.
    panel_sums : (panels, sums) float64
        Receives the sums of each panel.
    given : (1, taps * width)
        Not used but for its shape.
    """
    panels = panel_sums.shape[0]
    for chain in range(activations.shape[0]):
        gram = grams[chain]
        x = xs[chain if spec.skip != 0.0 else 0]
        stream = np.uint32(STREAM_WEIGHTS | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            layer = first_layer + step
            draw = Draw(layer, stream, key0, key1)
            unfold(activations[chain, (layer + 1) % 2], neighbours, spec.width, factors)
            degenerate = multiply_panels(
                sigma, spec, weights, given, factors, x, activations[chain, layer % 2], 0, panels,
                panel, draw, work, panel_sums,
            )  # fmt: skip
            finite = degenerate >= 0 or merge_panels(panel_sums, spec.width, total, gram)
            if not finite or degenerate >= 0:
                status[chain, 0] = ZERO_VARIANCE if finite else NOT_FINITE
                status[chain, 1] = layer
                status[chain, 2] = degenerate
                break
            if slots[step] >= 0:
                copy_matrix(gram, record[chain, slots[step]])
