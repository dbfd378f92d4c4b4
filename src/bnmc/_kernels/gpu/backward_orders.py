"""Rows of a tile in a backward pass of layers in passes: every norm, in every order.

With u what the norm N is applied to, h or σ(h), the activations are σ(N(u)), or N(u) itself.  A
norm over the features has its shifts and inverse scales in global memory, from the kernel
`moments`, and the means of gradients from the kernel `average`.  A norm over the batch measures
each row.
"""

from __future__ import annotations

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    activates_first, at_delta, at_second, batch, columns, derivative, features_centred, inputs,
    kind, norm_first, norm_in_branch, number, over_features, row_norm, sigma, skipped, stride,
    subtracts_mean, threads, tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.rows import measure_row, row_of
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.codes import NORM_NONE


def _load_standard(mean, scale, column, row, size, shifts, inverses):
    """Return those of a row, or those of a sample and of the row's group of features."""
    if over_features:
        mean = number(shifts[row // size, column])
        scale = number(inverses[row // size, column])
    return mean, scale


def activate(first_row, width, size, eps, shifts, inverses):
    """Turn the rows h into activations, and padding rows into zeros.

    size : int
        Rows of a group of features.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), inputs * tile_rows, threads):
        h, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        at = at_second + h * batch * stride + place
        if row < width:
            _activate_row(numbers, at, h, row, width, size, eps, shifts, inverses)
        else:
            for i in range(batch):
                numbers[u32(at + i * stride)] = number(0.0)
    cuda.syncthreads()


def _activate_row(values, at, h, row, width, size, eps, shifts, inverses):
    for i in range(batch if activates_first else 0):
        values[u32(at + i * stride)] = number(sigma(values[u32(at + i * stride)]))
    mean, scale = measure_row(values, at, stride, row, width, eps)
    for i in range(batch):
        mean, scale = _load_standard(mean, scale, h * batch + i, row, size, shifts, inverses)
        value = number((values[u32(at + i * stride)] - mean) * scale)
        if not activates_first:
            value = number(sigma(value))
        values[u32(at + i * stride)] = value


def differentiate(first_row, width, size, gain, skip, eps, shifts, inverses, above):
    """Turn Wᵀδ into the gradient with respect to N(u), given h, and padding rows into zeros.

    above : (columns, >= width)
        The gradient of the layer above, if there is a skip connection.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), inputs * tile_rows, threads):
        h, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        at = h * batch * stride + place
        if row < width:
            _differentiate_row(
                numbers, at, h, row, width, size, gain, skip, eps, shifts, inverses, above
            )
        else:
            for i in range(batch):
                numbers[u32(at_delta + at + i * stride)] = number(0.0)
    cuda.syncthreads()


def _differentiate_row(
    values, at, h, row, width, size, gain, skip, eps, shifts, inverses, above
):  # fmt: skip
    mean, scale = number(0.0), number(1.0)
    if not activates_first:
        mean, scale = measure_row(values, at_second + at, stride, row, width, eps)
    for i in range(batch):
        factor = number(gain)
        if not activates_first:
            mean, scale = _load_standard(mean, scale, h * batch + i, row, size, shifts, inverses)
            x = number((values[u32(at_second + at + i * stride)] - mean) * scale)
            factor *= number(derivative(x))
        g = values[u32(at_delta + at + i * stride)] * factor
        if skipped and norm_first:
            g += number(skip) * above[h * batch + i, row]
        values[u32(at_delta + at + i * stride)] = g


def apply(first_row, width):
    """Turn the rows h into the argument u of the norm."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * tile_rows if activates_first else 0, threads):
        i, place = item // tile_rows, item % tile_rows
        if row_of(first_row, place) < width:
            at = at_second + i * stride + place
            numbers[u32(at)] = number(sigma(numbers[u32(at)]))
    if activates_first:
        cuda.syncthreads()


def weigh(first_row, width, size, shifts, inverses):
    """Multiply gradients by N(u), given u, for a norm over the features."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * tile_rows, threads):
        i, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        if row < width:
            at = i * stride + place
            zero, one = number(0.0), number(1.0)
            mean, scale = _load_standard(zero, one, i, row, size, shifts, inverses)
            numbers[u32(at_delta + at)] *= number((numbers[u32(at_second + at)] - mean) * scale)
    cuda.syncthreads()


def lead_through(first_row, width, size, skip, unit, eps, shifts, inverses, means, above):
    """Turn the gradient with respect to N(u) into that with respect to u, given u.

    If the norm is inside the branch, then u is h, and the skip connection adds its part.

    unit : float
        The rows h are in units of which the inverse scales need this factor.
    means : (2, groups, columns) float64
        The means of g and of g N(u) over a group of features.
    """
    numbers = cuda.shared.array(0, kind)
    for item in range(
        thread(), inputs * tile_rows if over_features or row_norm != NORM_NONE else 0, threads
    ):
        h, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        if row < width:
            _lead_row(
                numbers, h * batch * stride + place, h, row, width, size, skip, unit, eps,
                shifts, inverses, means, above,
            )  # fmt: skip
    cuda.syncthreads()


def _lead_row(
    values, at, h, row, width, size, skip, unit, eps, shifts, inverses, means, above
):  # fmt: skip
    mean, scale = measure_row(values, at_second + at, stride, row, width, eps)
    total, along = number(0.0), number(0.0)
    for i in range(batch if not over_features else 0):
        g = values[u32(at_delta + at + i * stride)]
        total += g
        along += g * number((values[u32(at_second + at + i * stride)] - mean) * scale)
    total *= number(1.0 / batch)
    along *= number(1.0 / batch)
    is_centred = features_centred if over_features else subtracts_mean
    # N(u) is 1 or -1 in each entry, whatever u.
    is_constant = eps == 0.0 and (size if over_features else batch) == (2 if is_centred else 1)
    for i in range(batch):
        column = h * batch + i
        mean, scale = _load_standard(mean, scale, column, row, size, shifts, inverses)
        if over_features:
            total = number(means[0, row // size, column])
            along = number(means[1, row // size, column])
        x = number((values[u32(at_second + at + i * stride)] - mean) * scale)
        g = values[u32(at_delta + at + i * stride)] - along * x
        if is_centred:
            g -= total
        g *= number(0.0) if is_constant else number(unit) * scale
        if skipped and norm_in_branch:
            g += number(skip) * above[column, row]
        values[u32(at_delta + at + i * stride)] = g


def finish(first_row, width, skip, above):
    """Turn the gradient with respect to u = σ(h) into that with respect to h, given h."""
    numbers = cuda.shared.array(0, kind)
    for item in range(thread(), columns * tile_rows, threads):
        i, place = item // tile_rows, item % tile_rows
        row = row_of(first_row, place)
        if row < width:
            at = i * stride + place
            g = numbers[u32(at_delta + at)] * number(derivative(numbers[u32(at_second + at)]))
            if skipped:
                g += number(skip) * above[i, row]
            numbers[u32(at_delta + at)] = g
    cuda.syncthreads()
