"""The CPU kernels: one loop over the layers of chains.

A source makes the rows h of a layer (`sources`).  What follows is the same for all: rows are
normalized and activated in place, and their Gram matrix is added to that of their panel.  Rows are
worked on in blocks of `BLOCK`, kept as (column, row) so that neighbouring lanes of a vector are
neighbouring rows.

A norm over the features takes two passes over the rows: `sum_moments`, then `sum_rows`.  The rows
of the second pass are kept by the first, or made again from the same counters, with the same bits.

`advance` is plain Python, which `layers` is compiled from.  Threads that share layers run it as
Python; see `sharing`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._kernels.compiling import by_type, inlined, kernel, part
from bnmc._kernels.cpu.blocks import (
    add_gram,
    clear_rows,
    copy_matrix,
    keep_columns,
    repeat_first_row,
    unpack_gram,
)
from bnmc._kernels.cpu.memory import Zeros, aligned_zeros, stride, tile_sums
from bnmc._kernels.cpu.moments import (
    Moments,
    add_moments,
    merge_moments,
    moments_of,
    normalise_samples,
)
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE, Work
from bnmc._kernels.cpu.rows import (
    activate_block,
    event_of,
    load_columns,
    measure_rows,
    scale_rows,
)
from bnmc._kernels.cpu.scaling import Units, record_units, renew_units
from bnmc._kernels.cpu.sharing import keep_sums, merge, shared
from bnmc._kernels.cpu.sources import Layer, make_rows, may_be_left, prepare
from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    NORM_CENTRED,
    NORM_FIRST,
    NOT_FINITE,
    ROW_OUT_OF_RANGE,
    RUNNING,
    TOO_SMALL,
    UNRESOLVED,
    Draw,
    LayerSpec,
)
from bnmc._kernels.scalar.elementary import larger, smaller

#: Most bytes of the rows of a layer that are kept from the first pass to the second.  Rows that do
#: not fit in a cache of the processor are made again.
KEPT_BYTES = 1 << 21


class State(NamedTuple):
    """The state of chains, brought up to date."""

    grams: np.ndarray  # float64 (chains, columns, columns)
    xs: np.ndarray  # (chains, columns, >= width), or (chains, 0, 0) if no skip connection adds them
    activations: np.ndarray  # (chains, 2, padded columns, >= width), or (chains, 2, 0, 0)
    units: Units | None = None  # None if no scale is split off


class Course(NamedTuple):
    """Through which layers chains go, and what is recorded of them."""

    first_chain: int
    first_layer: int
    key0: np.uint32
    key1: np.uint32
    slots: np.ndarray  # int64 (layers,): index of each layer in `record`, or -1
    record: np.ndarray  # float64 (chains, slots, columns, columns)
    units: np.ndarray  # int64 (chains, slots, columns): the exponents of recorded matrices
    # int64 (chains, 3): what stopped a chain, in which layer, and the row, or the bytes of a number
    status: np.ndarray
    least: float  # the smallest diagonal entry of a Gram matrix that sums over rows do not round
    zeros: bool  # whether a diagonal entry may be exactly zero
    whole: bool  # whether a matrix is too small if all diagonal entries are, or if any entry is


class States(NamedTuple):
    """What is recorded of the rows h, in the slots of the record of a course."""

    panels: np.ndarray  # float64: sums, as `Sums.panels`
    record: np.ndarray  # float64 (chains, slots, columns, columns): Gram matrices
    units: np.ndarray  # int64 (chains, slots, columns): exponents, without the lift of their layer


class Sums(NamedTuple):
    """Sums over all rows of a layer, and the rows between two passes."""

    panels: np.ndarray  # float64 (1, sums), or (panels, sums) if threads share a layer
    hidden: np.ndarray  # (columns, >= width): the rows h, or (0, 0) if they are not kept here
    moments: Moments | None  # None unless the norm is over the features
    states: States | None = None  # None unless Gram matrices of h are recorded


def sums_of(
    spec: LayerSpec,
    dtype: DTypeLike,
    *,
    keeps_rows: bool = False,
    shared: bool = False,
    with_states: bool = False,
    zeros: Zeros = aligned_zeros,
) -> Sums:
    """Return the buffers of one thread.

    Parameters
    ----------
    spec : LayerSpec
        Of the largest of the layers that are made with these buffers.
    dtype : dtype
        Of rows.
    keeps_rows : bool
        Whether rows are kept here between two passes, if they are few enough.
    shared : bool
        Whether threads share layers.
    with_states : bool
        Whether there are sums over h, too.
    zeros : callable
        Makes the arrays.
    """
    columns, panels = spec.columns, panels_of(spec)
    keeps = keeps_rows and spec.groups > 0 and rows_fit(spec.width, columns, dtype)
    sums = panels if shared else 1, tile_sums(columns)
    nothing = np.zeros((0, 0, 0, 0)), np.zeros((0, 0, 0), np.int64)
    return Sums(
        zeros(sums, np.float64),
        zeros((columns, stride(spec.width)), dtype) if keeps else np.zeros((0, 0), dtype),
        moments_of(columns, panels, spec.groups, zeros),
        States(zeros(sums, np.float64), *nothing) if with_states else None,
    )


def rows_fit(width: int, columns: int, dtype: DTypeLike) -> bool:
    """Return whether the rows of a layer are few enough to be kept."""
    return columns * stride(width) * np.dtype(dtype).itemsize <= KEPT_BYTES


#: The fields of a `LayerSpec` in an array of them.
_RECORD = np.dtype(list(get_type_hints(LayerSpec).items()), align=True)


@lru_cache(maxsize=64)
def records(*specs: LayerSpec) -> NDArray[Any]:
    """Return the specs of consecutive layers for kernels; all later layers have the last one.

    Nobody writes to the array, which is kept: a short run feels the time to make it.
    """
    return np.array(list(specs), _RECORD)


@inlined
def spec_at(specs, step):
    """Return the spec of a layer, given an array of `records`."""
    at = specs[smaller(step, specs.shape[0] - 1)]
    return LayerSpec(
        at["width"], at["batch"], at["columns"], at["fan_in"], at["panel"], at["weights"],
        at["gain"], at["skip"], at["bias"], at["uniform_bias"], at["shared_variance"], at["order"],
        at["norm"], at["groups"], at["centred"], at["eps"], at["hides_common"], at["hides_scale"],
    )  # fmt: skip


@inlined
def panels_of(spec):
    """Return the number of panels of a layer."""
    return (spec.width - 1) // spec.panel + 1


# --- blocks of rows


@inlined
def _activate_rows(spec, sigma, rows, work):
    """Apply the activation to rows as they are."""
    work.scales[:] = 1.0
    activate_block(sigma, work.block, spec.columns, spec.batch, rows, work.scales)


@inlined
def measure_samples(spec, sigma, number, start, count, work, moments):
    """Add a block of rows h, which are used up, to the moments of samples."""
    if spec.order == ACTIVATION_FIRST:
        _activate_rows(spec, sigma, (count + GROUP - 1) // GROUP * GROUP, work)
    # The sums of the Gram matrix are free until the second pass.
    add_moments(spec, number, start, count, work.block, work.sums, moments)


@inlined
def finish_rows(spec, sigma, layer, start, count, work, moments):
    """Turn the rows h of a block into activations; return a row without variance, or -1.

    The block holds `count` rows from `start` on, and arbitrary finite numbers up to the next
    multiple of `GROUP`, which become zeros: they count for nothing in the Gram matrix.
    """
    block, scales, columns = work.block, work.scales, spec.columns
    rows = (count + GROUP - 1) // GROUP * GROUP
    keeps_x = layer.x.shape[0] > 0
    # Padding rows may lack variance, which would end the normalization of the others.
    repeat_first_row(block, columns, count, rows)
    if keeps_x and spec.order != NORM_FIRST:
        keep_columns(block, columns, rows, start, layer.x)
    if spec.order == ACTIVATION_FIRST:
        _activate_rows(spec, sigma, rows, work)
    normalise_samples(moments, spec, start, rows, block)
    # Rows that were drawn without their means have none to subtract.  With a skip connection
    # rounding would add up in the mean.
    have_none = spec.hides_common and spec.order != ACTIVATION_FIRST and not keeps_x
    degenerate = measure_rows(
        block, rows, spec, spec.norm == NORM_CENTRED and not have_none, scales
    )
    if degenerate >= 0:
        return start + degenerate
    shows_normalised = keeps_x and spec.order == NORM_FIRST
    if shows_normalised or spec.order == ACTIVATION_FIRST:
        scale_rows(block, spec, rows, scales)
    if shows_normalised:
        keep_columns(block, columns, rows, start, layer.x)
        scales[:] = 1.0
    if spec.order != ACTIVATION_FIRST:
        activate_block(sigma, block, columns, spec.batch, rows, scales)
    clear_rows(block, 0, columns, count, rows)
    if layer.following.shape[0] > 0:
        keep_columns(block, columns, rows, start, layer.following)
    return -1


# --- Gram matrices of h


@inlined
def _add_to_states(states, spec, count, rows, work):
    clear_rows(work.block, 0, spec.columns, count, rows)
    sums = work.sums[work.sums.shape[0] // 2 :]
    add_gram(work.block, spec.columns, rows, work.partial, sums)


@inlined
def _keep_states(states, number, work):
    keep_sums(number, work.sums[work.sums.shape[0] // 2 :], states.panels)


@inlined
def _record_states(states, threads, spec, chain, slot, units, least, zeros):
    record_units(units, chain, slot, states.units)
    gram, tiles = states.record[chain, slot], (spec.columns + 3) // 4
    finite = merge(threads, states.panels, spec.width, gram, 0, tiles)
    small = is_too_small(gram, zeros, least, False, False)
    return NOT_FINITE if not finite else TOO_SMALL if small else RUNNING


@inlined
def _add_nothing(states, spec, count, rows, work):
    pass


@inlined
def _keep_nothing(states, number, work):
    pass


@inlined
def _record_nothing(states, threads, spec, chain, slot, units, least, zeros):
    return RUNNING


#: Adds the rows h of a block to their Gram matrix.
_add_states = by_type(States=_add_to_states, NoneType=_add_nothing)
#: Keeps that of a panel.
_keep = by_type(States=_keep_states, NoneType=_keep_nothing)
#: Writes that of a layer, with at most so many zero samples, to a slot; returns an event.
_record = by_type(States=_record_states, NoneType=_record_nothing)


# --- panels


@part
def sum_moments(first_panel, last_panel, work, source, sigma, spec, layer, draw, sums):
    """Make the rows of panels, and sum the moments of their samples: the first of two passes."""
    hidden = layer.following if layer.following.shape[0] > 0 else sums.hidden
    for number in range(first_panel, last_panel):
        last_row = smaller((number + 1) * spec.panel, spec.width)
        for start in range(number * spec.panel, last_row, BLOCK):
            count = smaller(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            make_rows(source, spec, layer, start, rows, draw, work)
            if hidden.shape[0] > 0:
                keep_columns(work.block, spec.columns, rows, start, hidden)
            measure_samples(spec, sigma, number, start, count, work, sums.moments)
    return -1


@inlined
def _rows_again(moments, source, spec, layer, start, rows, draw, work, hidden):
    if hidden.shape[0] > 0:
        load_columns(hidden, spec.columns, rows, start, work.block)
    else:
        make_rows(source, spec, layer, start, rows, draw, work)


@inlined
def _rows_once(moments, source, spec, layer, start, rows, draw, work, hidden):
    make_rows(source, spec, layer, start, rows, draw, work)


#: Writes the rows h of a block, which a first pass may have made before.
_rows_of_pass = by_type(Moments=_rows_again, NoneType=_rows_once)


@part
def sum_rows(first_panel, last_panel, work, source, sigma, spec, layer, draw, sums):
    """Make panels of a layer, and sum their Gram matrices; return a row without variance, or -1."""
    hidden = layer.following if layer.following.shape[0] > 0 else sums.hidden
    for number in range(first_panel, last_panel):
        work.sums[:] = 0.0
        last_row = smaller((number + 1) * spec.panel, spec.width)
        for start in range(number * spec.panel, last_row, BLOCK):
            count = smaller(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            _rows_of_pass(sums.moments, source, spec, layer, start, rows, draw, work, hidden)
            _add_states(sums.states, spec, count, rows, work)
            degenerate = finish_rows(spec, sigma, layer, start, count, work, sums.moments)
            if degenerate >= 0:
                return degenerate
            add_gram(work.block, spec.columns, rows, work.partial, work.sums)
        keep_sums(number, work.sums, sums.panels)
        _keep(sums.states, number, work)
    return -1


_share_moments, _share_rows = shared(sum_moments), shared(sum_rows)

# --- layers


@inlined
def _take_moments(moments, threads, source, sigma, spec, layer, draw, work, sums):
    _share_moments(threads, 0, panels_of(spec), work, source, sigma, spec, layer, draw, sums)
    return merge_moments(spec, work.block, moments)


@inlined
def _take_none(moments, threads, source, sigma, spec, layer, draw, work, sums):
    return RUNNING, -1


#: The first of two passes; returns the code of an event, and its sample.
_first_pass = by_type(Moments=_take_moments, NoneType=_take_none)


@kernel
def _count_zeros(gram):
    """Return the number of samples that are zero."""
    count = 0
    for i in range(gram.shape[0]):
        count += gram[i, i] == 0.0
    return count


@kernel
def _are_tiny(gram, spec, least):
    """Return whether squares of W a, given the Gram matrix of a, are below `least`."""
    largest = 0.0
    for i in range(gram.shape[0]):
        largest = larger(largest, gram[i, i])
    size = abs(spec.gain) * np.sqrt(largest + spec.shared_variance)
    return not spec.hides_scale and size < np.sqrt(least)


@kernel
def is_too_small(gram, before, least, zeros, whole):
    """Return whether sums over rows rounded a Gram matrix; see `Course`.

    before : int
        Number of samples that were zero in the layer before, and may be zero here.
    """
    now, small = _count_zeros(gram), 0
    for i in range(gram.shape[0]):
        small += 0.0 < gram[i, i] < least
    if whole:
        return small + now == gram.shape[0] and (small > 0 or (now > before and not zeros))
    return small > 0 or (now > before and not zeros)


@inlined
def one_layer(threads, source, sigma, spec, layer, draw, work, sums):
    """Make one layer of one chain; return the code of an event, and its row or its sample."""
    event, place = prepare(source, threads, spec, layer, draw, work), -1
    if event == RUNNING:
        event, place = _first_pass(
            sums.moments, threads, source, sigma, spec, layer, draw, work, sums
        )
    if event == RUNNING:
        panels = panels_of(spec)
        place = _share_rows(threads, 0, panels, work, source, sigma, spec, layer, draw, sums)
        if place >= ROW_OUT_OF_RANGE and may_be_left(layer, work):
            return UNRESOLVED, place
        tiles = (spec.columns + 3) // 4
        finite = merge(threads, sums.panels, spec.width, layer.gram, 0, tiles)
        if not finite or place >= 0:
            event = event_of(place) if finite else NOT_FINITE
    return event, place


def advance(threads, source, sigma, specs, state, course, work, sums):
    """Take chains through layers.

    Parameters
    ----------
    threads : None or object
        See `sharing`.
    source : Drawn, Haar, Multiplied or Convolved
    sigma : Sigma or Apart
    specs : (layers or fewer,) array of `records`
    state : State
        A chain stops at its first event.  With the code UNRESOLVED it stops before the layer: its
        Gram matrix has pivots that float32 rows would not resolve, so float64 rows must make it.
    course : Course
    work : Work
    sums : Sums
        This and the three before may be plain tuples, whose types Numba finds in less time.
    """
    state, course, work, sums = State(*state), Course(*course), Work(*work), Sums(*sums)
    for chain in range(state.grams.shape[0]):
        gram, x, units = state.grams[chain], state.xs[chain], state.units
        both, status = state.activations[chain], course.status[chain]
        stream = np.uint32(source.stream | np.uint32(course.first_chain + chain))
        for step in range(course.slots.shape[0]):
            number, slot = course.first_layer + step, course.slots[step]
            spec = spec_at(specs, step)
            layer = Layer(gram, x, both[(number + 1) % 2], both[number % 2])
            draw = Draw(number, stream, course.key0, course.key1)
            before, least = _count_zeros(gram), course.least
            tiny = _are_tiny(gram, spec, least) and spec.skip == 0.0
            event, place = one_layer(threads, source, sigma, spec, layer, draw, work, sums)
            if event == RUNNING:
                zeros = course.zeros and not (course.whole and tiny)
                if is_too_small(gram, before, least, zeros, course.whole):
                    event = TOO_SMALL
                elif slot >= 0:
                    allowed = before if tiny else spec.columns
                    event = _record(sums.states, threads, spec, chain, slot, units, least, allowed)
                place = work.block.itemsize
            if event == RUNNING:
                finite = renew_units(units, chain, gram, x, layer.following, spec.width)
                event = RUNNING if finite else NOT_FINITE
            if event != RUNNING:
                status[0], status[1], status[2] = event, number, place
                break
            if slot >= 0:
                copy_matrix(gram, course.record[chain, slot])
                record_units(units, chain, slot, course.units)


layers = kernel(advance)


@kernel
def gram_of_rows(a, width, work, gram):
    """Write the Gram matrix of activations a, (columns, >= width) and zero beyond, to `gram`.

    Returns whether the Gram matrix is finite.
    """
    work.sums[:] = 0.0
    columns = gram.shape[0]
    for start in range(0, width, BLOCK):
        rows = (smaller(BLOCK, width - start) + GROUP - 1) // GROUP * GROUP
        for k in range(columns):
            values, others = work.block[k * STRIDE : k * STRIDE + rows], a[k, start : start + rows]
            for row in range(rows):
                values[row] = others[row]
        add_gram(work.block, columns, rows, work.partial, work.sums)
    return unpack_gram(work.sums, width, gram)


@kernel
def update_moments(values, count, mean, squares):
    """Add rows of `values`, one after the other, to running moments (Welford).

    values : (rows, items) float64; mean, squares : (items,) float64
        `squares` is the sum of squared deviations.  Returns the new count.
    """
    for row in range(values.shape[0]):
        count += 1
        for item in range(values.shape[1]):
            deviation = values[row, item] - mean[item]
            mean[item] += deviation / count
            squares[item] += deviation * (values[row, item] - mean[item])
    return count
