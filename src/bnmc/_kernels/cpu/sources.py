"""The sources of rows: how the rows h = skip x + gain W a + b of a layer are made.

`Drawn` and `Haar` draw them given the Gram matrix of the layer before.  `Multiplied` and
`Convolved` multiply by weights, which are made one tile at a time.  A source has two functions,
which the compiler chooses by its type: `prepare`, once a layer, and `make_rows`, once a block of
rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import by_type, inlined, kernel
from bnmc._kernels.cpu.blocks import add_columns, multiply_triangular
from bnmc._kernels.cpu.orthogonal import Frame, orthogonal_factor
from bnmc._kernels.cpu.rows import add_bias, draw_regular, multiply_block
from bnmc._kernels.cpu.sharing import factorise
from bnmc._kernels.scalar.codes import RESOLVED_PIVOT, RUNNING, UNRESOLVED


class Layer(NamedTuple):
    """The arrays of a layer of one chain."""

    gram: np.ndarray  # float64 (columns, columns): of the layer before, then of this one
    x: np.ndarray  # (columns, >= width): what a skip connection adds, likewise; (0, 0) if none does
    a: np.ndarray  # (padded columns, >= fan_in): activations of the layer before, or (0, 0)
    following: np.ndarray  # receives those of this layer, unless it is (0, 0)


class Taps(NamedTuple):
    """The taps of a convolution: first those along one axis of the images, then the others."""

    first: np.ndarray  # int64 (taps, columns): what each tap of an axis sees, or (0, 0)
    second: np.ndarray  # the same along the other axis, which has taps if any axis has
    average: np.ndarray  # float64 (columns, columns)


class Drawn(NamedTuple):
    """Rows given the covariance of the rows of W a: the Gram matrix of a, averaged over taps."""

    stream: np.uint32
    taps: Taps | None = None  # None without a convolution, whose code is not compiled then


class Haar(NamedTuple):
    """Rows given the Gram matrix of a, for orthogonal weights."""

    stream: np.uint32
    frame: Frame
    taps: Taps | None = None


class Multiplied(NamedTuple):
    """Weights times the activations a."""

    stream: np.uint32
    given: np.ndarray  # (panel, fan_in): the weights of a panel, if they are not drawn


class Convolved(NamedTuple):
    """Weights times the activations that all taps of a convolution see."""

    stream: np.uint32
    given: np.ndarray  # as of `Multiplied`
    neighbours: np.ndarray  # int64 (taps, columns): what each tap sees
    unfolded: np.ndarray  # (padded columns, >= fan_in): receives it


# --- once a layer


@kernel
def average_taps(gram, neighbours, out):
    """Average the entries of a symmetric matrix over the taps of a convolution.

    Writes out[i, j] = mean over taps t of gram[neighbours[t, i], neighbours[t, j]].

    gram, out : (columns, columns) float64
    neighbours : (taps, columns) int64
        The column that each tap sees from a column.
    """
    taps, columns = neighbours.shape
    part = 1.0 / taps
    # Rounding keeps the symmetry.  The other half costs less than its copy, column by column.
    for i in range(columns):
        target = out[i]
        for tap in range(taps):
            row, places = gram[neighbours[tap, i]], neighbours[tap]
            for j in range(columns):
                # Unsigned, so that the compiler adds no test for negative indices.
                value = row[np.uintp(places[j])]
                target[j] = value if tap == 0 else target[j] + value
        for j in range(columns):
            target[j] *= part


@inlined
def _factorise_average(taps, threads, gram, spec, work):
    if taps.first.shape[0] > 0:
        average_taps(gram, taps.first, work.covariance)
        gram = work.covariance
    # Not to `work.covariance`: `factorise` compares pivots with the diagonal before centring.
    average_taps(gram, taps.second, taps.average)
    return factorise(threads, taps.average, spec, work)


@inlined
def _factorise_gram(taps, threads, gram, spec, work):
    return factorise(threads, gram, spec, work)


#: factorise_covariance(taps, threads, gram, spec, work) writes the factor of the covariance of the
#: rows of W a + b / gain, given the Gram matrix of a, and returns the least pivot.
factorise_covariance = by_type(Taps=_factorise_average, NoneType=_factorise_gram)


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


@inlined
def may_be_left(layer, work):
    """Return whether float64 rows can make a layer in place of float32 rows."""
    return work.block.itemsize == 4 and layer.x.shape[0] == 0 and layer.a.shape[0] == 0


@inlined
def _prepare_drawn(source, threads, spec, layer, draw, work):
    least_pivot = factorise_covariance(source.taps, threads, layer.gram, spec, work)
    unresolved = least_pivot < RESOLVED_PIVOT and may_be_left(layer, work)
    return UNRESOLVED if unresolved else RUNNING


@inlined
def _prepare_haar(source, threads, spec, layer, draw, work):
    event = _prepare_drawn(source, threads, spec, layer, draw, work)
    if event == RUNNING:
        orthogonal_factor(threads, spec, draw, work, source.frame)
    return event


@inlined
def _prepare_multiplied(source, threads, spec, layer, draw, work):
    return RUNNING


@inlined
def _prepare_convolved(source, threads, spec, layer, draw, work):
    unfold(layer.a, source.neighbours, spec.fan_in // source.neighbours.shape[0], source.unfolded)
    return RUNNING


# --- once a block


@inlined
def _draw(source, spec, layer, start, rows, draw, work):
    draw_regular(work.block, spec.columns, work.regular, start, rows, draw)
    multiply_triangular(work.factor, spec.columns, work.block, work.block, rows)
    if spec.skip != 0.0:
        add_columns(spec.skip, layer.x, start, spec.columns, rows, work.block)


@inlined
def _multiply(source, spec, layer, start, rows, draw, work):
    _multiply_by(source.given, layer.a, spec, layer, start, rows, draw, work)


@inlined
def _multiply_unfolded(source, spec, layer, start, rows, draw, work):
    _multiply_by(source.given, source.unfolded, spec, layer, start, rows, draw, work)


@inlined
def _multiply_by(given, a, spec, layer, start, rows, draw, work):
    multiply_block(spec, given, a, start, rows, draw, work.tile, work.block)
    if spec.bias > 0.0:
        add_bias(spec, start, rows, draw, work.tile, work.block)
    if spec.skip != 0.0:
        add_columns(spec.skip, layer.x, start, spec.columns, rows, work.block)


#: prepare(source, threads, spec, layer, draw, work) returns the code of an event.
prepare = by_type(
    Drawn=_prepare_drawn,
    Haar=_prepare_haar,
    Multiplied=_prepare_multiplied,
    Convolved=_prepare_convolved,
)
#: make_rows(source, spec, layer, start, rows, draw, work) writes rows h to the block of `work`.
make_rows = by_type(Drawn=_draw, Haar=_draw, Multiplied=_multiply, Convolved=_multiply_unfolded)
