"""Rows of a tile in a backward pass: activated, differentiated, led through the norm.

Plain layers have their norm over the batch, or none, before the activation; `differentiate_at_once`
leads their gradients through both.  Layers in passes have every norm, in every order.  With u what
the norm N is applied to, h or σ(h), the activations are σ(N(u)), or N(u) itself.  A norm over the
features has its shifts and inverse scales in global memory, from the kernel `moments`, and the
means of gradients from the kernel `average`.  A norm over the batch measures each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bnmc._kernels.gpu.constants import (
    activates_first, at_delta, at_second, batch, centred, derivative, features_centred, norm,
    norm_first, norm_in_branch, number, over_features, sigma, skipped, stride,
    subtracts_mean,
)  # fmt: skip
from bnmc._kernels.gpu.device import inlined
from bnmc._kernels.gpu.rows import each_entry, each_row, measure_row
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.scalar.codes import NORM_NONE


class Standard(NamedTuple):
    """What a norm subtracts, and so on, of one chain."""

    eps: Any
    #: Of a norm over the features: rows of a group, and what `Standards` has.
    size: Any
    shifts: Any
    inverses: Any
    means: Any
    #: Of the layer above; a readout has one.
    taps: Any


class Gradient(NamedTuple):
    """What makes the gradient of a layer, besides the matrices in shared memory."""

    #: With a skip connection, δ of the layer above, and its factor.
    above: Any
    skip: Any
    #: The factor of Wᵀδ.
    gain: Any
    #: The rows h are in units of which inverse scales need this factor.
    unit: Any
    #: Whether hᵀδ is wanted.
    hidden: Any


@inlined
def _load_standard(mean, scale, column, row, of):
    """Return those of a row, or those of a sample and of the row's group of features."""
    if over_features:
        mean = number(of.shifts[row // of.size, column])
        scale = number(of.inverses[row // of.size, column])
    return mean, scale


# --- plain layers


def differentiate_at_once(first_row, width, gradient, eps):
    """Turn Wᵀδ in the tile `delta` into the gradient with respect to the rows h in `second`."""
    each_row(_differentiate_at_once, at_delta, first_row, width, (gradient, eps))


@inlined
def _differentiate_at_once(values, at, h, row, width, layer):
    gradient, eps = layer
    share, at_g, at_h = number(1.0 / batch), at_delta + at, at_second + at
    mean, scale = measure_row(values, at_h, stride, row, width, eps)
    total, along = number(0.0), number(0.0)
    for i in range(batch):
        x = number((values[u32(at_h + i * stride)] - mean) * scale)
        g = values[u32(at_g + i * stride)] * (number(gradient.gain) * number(derivative(x)))
        if skipped:
            g += number(gradient.skip) * gradient.above[h * batch + i, row]
        values[u32(at_g + i * stride)] = g
        if centred:
            total += g
        along += g * x
    if norm != NORM_NONE:
        total *= share
        along *= share
        factor = number(gradient.unit) * scale
        # N(h) is 1 or -1 in each entry, whatever h.
        if batch == (2 if centred else 1) and eps == 0.0:
            factor = number(0.0)
        for i in range(batch):
            x = number((values[u32(at_h + i * stride)] - mean) * scale)
            g = values[u32(at_g + i * stride)] - total
            values[u32(at_g + i * stride)] = (g - along * x) * factor


# --- layers in passes


def activate(first_row, width, of):
    """Turn the rows h into activations, and padding rows into zeros."""
    each_row(_activate_row, at_second, first_row, width, of)


@inlined
def _activate_row(values, place, h, row, width, of):
    at = at_second + place
    for i in range(batch if activates_first else 0):
        values[u32(at + i * stride)] = number(sigma(values[u32(at + i * stride)]))
    mean, scale = measure_row(values, at, stride, row, width, of.eps)
    for i in range(batch):
        mean, scale = _load_standard(mean, scale, h * batch + i, row, of)
        value = number((values[u32(at + i * stride)] - mean) * scale)
        if not activates_first:
            value = number(sigma(value))
        values[u32(at + i * stride)] = value


def differentiate(first_row, width, gradient, of):
    """Turn Wᵀδ into the gradient with respect to N(u), given h, and padding rows into zeros."""
    each_row(_differentiate_row, at_delta, first_row, width, (gradient, of))


@inlined
def _differentiate_row(values, at, h, row, width, layer):
    gradient, of = layer
    mean, scale = number(0.0), number(1.0)
    if not activates_first:
        mean, scale = measure_row(values, at_second + at, stride, row, width, of.eps)
    for i in range(batch):
        factor = number(gradient.gain)
        if not activates_first:
            mean, scale = _load_standard(mean, scale, h * batch + i, row, of)
            x = number((values[u32(at_second + at + i * stride)] - mean) * scale)
            factor *= number(derivative(x))
        g = values[u32(at_delta + at + i * stride)] * factor
        if skipped and norm_first:
            g += number(gradient.skip) * gradient.above[h * batch + i, row]
        values[u32(at_delta + at + i * stride)] = g


def apply(first_row, width):
    """Turn the rows h into the argument u of the norm."""
    if activates_first:
        each_entry(_apply, -1, first_row, width, at_second)


@inlined
def _apply(values, place, i, row, at_tile_of_h):
    at = at_tile_of_h + place
    values[u32(at)] = number(sigma(values[u32(at)]))


def weigh(first_row, width, of):
    """Multiply gradients by N(u), given u, for a norm over the features."""
    each_entry(_weigh, -1, first_row, width, of)


@inlined
def _weigh(values, at, i, row, of):
    mean, scale = _load_standard(number(0.0), number(1.0), i, row, of)
    values[u32(at_delta + at)] *= number((values[u32(at_second + at)] - mean) * scale)


def lead_through(first_row, width, gradient, of):
    """Turn the gradient with respect to N(u) into that with respect to u, given u.

    If the norm is inside the branch, then u is h, and the skip connection adds its part.
    """
    if over_features or norm != NORM_NONE:
        each_row(_lead_row, -1, first_row, width, (gradient, of))


@inlined
def _lead_row(values, at, h, row, width, layer):
    gradient, of = layer
    mean, scale = measure_row(values, at_second + at, stride, row, width, of.eps)
    total, along = number(0.0), number(0.0)
    for i in range(batch if not over_features else 0):
        g = values[u32(at_delta + at + i * stride)]
        total += g
        along += g * number((values[u32(at_second + at + i * stride)] - mean) * scale)
    total *= number(1.0 / batch)
    along *= number(1.0 / batch)
    is_centred = features_centred if over_features else subtracts_mean
    # N(u) is 1 or -1 in each entry, whatever u.
    least = 2 if is_centred else 1
    is_constant = of.eps == 0.0 and (of.size if over_features else batch) == least
    for i in range(batch):
        column = h * batch + i
        mean, scale = _load_standard(mean, scale, column, row, of)
        if over_features:
            total = number(of.means[0, row // of.size, column])
            along = number(of.means[1, row // of.size, column])
        x = number((values[u32(at_second + at + i * stride)] - mean) * scale)
        g = values[u32(at_delta + at + i * stride)] - along * x
        if is_centred:
            g -= total
        g *= number(0.0) if is_constant else number(gradient.unit) * scale
        if skipped and norm_in_branch:
            g += number(gradient.skip) * gradient.above[column, row]
        values[u32(at_delta + at + i * stride)] = g


def finish(first_row, width, gradient):
    """Turn the gradient with respect to u = σ(h) into that with respect to h, given h."""
    each_entry(_finish, -1, first_row, width, gradient)


@inlined
def _finish(values, at, i, row, gradient):
    g = values[u32(at_delta + at)] * number(derivative(values[u32(at_second + at)]))
    if skipped:
        g += number(gradient.skip) * gradient.above[i, row]
    values[u32(at_delta + at)] = g
