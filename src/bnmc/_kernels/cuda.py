"""The GPU kernels: layers of an ensemble of chains, on the functions of `core`.

A tile of rows of a layer is in shared memory, as (column, row).  Philox makes four words at a time,
which are the normals of four rows, a *quad*; a thread draws and multiplies quads for a chunk of the
columns.  The Gram matrix of a tile is summed in registers, a square of entries a thread, over a
share of the rows; the shares are added in a fixed order, in float64.  No sum is an atomic one, so
that bits depend neither on scheduling nor on the device.

Where there are many chains a block has one, and takes it through all layers with its Gram matrix in
shared memory.  Where there are few, the rows of a layer are split over blocks, and two phases
alternate: rows, and the merging of their sums.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, int64

from bnmc._kernels.core import cholesky as factoring
from bnmc._kernels.core import normal, philox
from bnmc._kernels.core.cholesky import PIVOT_UNITS
from bnmc._kernels.jit import Sigma
from bnmc._kernels.target import SIMULATED, cuda, device_function, device_module

philox4x32 = device_module(philox).philox4x32
_normal = device_module(normal)
radius32, radius64, sincos32, sincos64, uniform32, uniform64 = (
    _normal.radius32,
    _normal.radius64,
    _normal.sincos32,
    _normal.sincos64,
    _normal.uniform32,
    _normal.uniform64,
)
scale_of = device_module(factoring).scale_of

# As in `cpu`, which the tests hold these to; that module compiles for the CPU when it is imported.
NORM_NONE, NORM_UNCENTRED, NORM_CENTRED = 0, 1, 2
GAUSSIAN, UNIFORM, RADEMACHER = 0, 1, 2
RUNNING, ZERO_VARIANCE, NOT_FINITE, UNRESOLVED = 0, 1, 2, 3
RESOLVED_PIVOT = 2.0**-13
STREAM_ROWS, STREAM_WEIGHTS = 0x00000000, 0x20000000
SECOND_WORD = np.uint32(0x10000000)
SQRT3 = 1.7320508075688772

#: Threads of a block, at most; in the simulator few, since each is a thread of Python.
MOST_THREADS = 16 if SIMULATED else 256
#: What a thread keeps in registers: columns of a quad, and the edge of its square of the Gram
#: matrix.
MOST_CHUNK = {"float32": 16, "float64": 8}
MOST_EDGE = {"float32": 8, "float64": 6}
#: No row: larger than any.
NO_ROW = 2**62


class Spec(NamedTuple):
    """What kernels are compiled for."""

    columns: int
    batch: int
    norm: int
    skipped: bool
    dtype: str
    digest: str


class Shape(NamedTuple):
    """How a block divides its work, and where in shared memory things are."""

    threads: int
    quads: int  # of a tile
    chunk: int  # columns of a thread
    groups: int  # of threads: together they have all columns
    padded: int  # chunk * groups
    stride: int  # of a column of the tile, in numbers
    classes: int  # of columns: those that are equal modulo this
    edge: int  # columns of a class
    squares: int  # pairs of classes
    splits: int  # shares of the rows in the sums of a square
    lines: int  # threads and padding: a line of the scratch
    entries: int  # squares * edge ** 2
    per_entry: int  # threads that add the shares of one entry
    # Offsets, in numbers of the dtype or in float64 as the buffer is.
    totals: int
    diagonal: int
    column: int
    means: int
    partial: int
    flags: int
    factor: int
    tile: int
    tile64: int
    bytes: int


def shape_of(spec: Spec) -> Shape:
    """Divide the work of a block."""
    n, size = spec.columns, np.dtype(spec.dtype).itemsize
    groups = -(-n // MOST_CHUNK[spec.dtype])
    chunk = -(-n // groups)
    quads = max(16, MOST_THREADS // groups // 16 * 16)
    threads = quads * groups
    classes = -(-n // MOST_EDGE[spec.dtype])
    edge = -(-n // classes)
    squares = classes * (classes + 1) // 2
    splits = max(1, threads // squares)
    lines = -(-threads // 32) * 32 + squares % 32
    entries = squares * edge**2
    per_entry = max(1, min(splits, threads // entries))
    inputs = n // spec.batch
    stride = 4 * quads + 1

    totals = 0
    diagonal = totals + entries
    column = diagonal + n
    means = column + n
    partial = means + inputs * n + inputs * inputs
    flags = partial + per_entry * entries * (per_entry > 1)
    end = flags + 2 + n  # int64: the first row without variance, whether finite; twins
    factor = end * 8 // size
    tile = factor + n * chunk * groups
    tile64 = -(-tile * size // 8)
    tile = tile64 * 8 // size
    # The tile, the scratch of its sums and the covariance are never needed at once.
    numbers = max(classes * edge * stride, edge**2 * lines)
    most = max(numbers * size, n * n * 8)
    return Shape(
        threads, quads, chunk, groups, chunk * groups, stride, classes, edge, squares, splits,
        lines, entries, per_entry, totals, diagonal, column, means, partial, flags, factor, tile,
        tile64, tile64 * 8 + -(-most // 8) * 8,
    )  # fmt: skip


@cuda.jit(device=True)
def normals32(element, quad, layer, stream, k0, k1):
    """Return the normals of an element of the four rows of a quad."""
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    radius_a, radius_b = radius32(w0), radius32(w2)
    sine_a, cosine_a = sincos32(w1)
    sine_b, cosine_b = sincos32(w3)
    return radius_a * sine_a, radius_a * cosine_a, radius_b * sine_b, radius_b * cosine_b


@cuda.jit(device=True)
def normals64(element, quad, layer, stream, k0, k1):
    """Return the normals of an element of the four rows of a quad."""
    second = np.uint32(stream | SECOND_WORD)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    v0, v1, v2, v3 = philox4x32(element, quad, layer, second, k0, k1)
    radius_a, radius_b = radius64(w0, v0), radius64(w2, v2)
    sine_a, cosine_a = sincos64(w1, v1)
    sine_b, cosine_b = sincos64(w3, v3)
    return radius_a * sine_a, radius_a * cosine_a, radius_b * sine_b, radius_b * cosine_b


class Kernels(NamedTuple):
    """The kernels of one `Spec`."""

    shape: Shape
    layers: Any
    rows: Any


@cache
def kernels(spec: Spec) -> Kernels:
    """Compile the kernels of chains of one kind; they are typed when first launched."""
    shape = shape_of(spec)
    columns, batch, norm = spec.columns, spec.batch, spec.norm
    inputs = columns // batch
    skipped, centred = spec.skipped, spec.norm == NORM_CENTRED
    # Rows drawn with the covariance P G P are centred already, but for what a skip connection
    # would let rounding add up to.
    subtracted = centred and skipped
    single = spec.dtype == "float32"
    kind, number = (float32, np.float32) if single else (float64, np.float64)
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])
    draw_normals = normals32 if single else normals64
    unit = 2.0**-23 if single else 2.0**-52
    rounding = number((batch * unit) ** 2)
    threads, quads, chunk, groups, padded = shape[:5]
    stride, classes, edge, squares, splits, lines = shape[5:11]
    entries, per_entry = shape.entries, shape.per_entry
    at_totals, at_diagonal, at_column, at_means, at_partial, at_flags = shape[13:19]
    at_factor, at_tile, at_tile64 = shape.factor, shape.tile, shape.tile64
    at_grand = at_means + inputs * columns
    at_twin = at_flags + 2
    tile_rows = 4 * quads
    accumulators, sums = 4 * chunk, edge * edge
    units = PIVOT_UNITS

    @cuda.jit(device=True)
    def entry_of(i, j):
        """Return where the sums of a tile have the entry (i, j) of the Gram matrix."""
        ti, tj, a, b = i % classes, j % classes, i // classes, j // classes
        if ti < tj:
            ti, tj, a, b = tj, ti, b, a
        return (a * edge + b) * squares + ti * (ti + 1) // 2 + tj

    @cuda.jit(device=True)
    def load_gram(gram):
        """Bring a Gram matrix to shared memory, in the order of the sums."""
        doubles = cuda.shared.array(0, float64)
        for item in range(cuda.threadIdx.x, columns * columns, threads):
            i, j = item // columns, item % columns
            doubles[at_totals + entry_of(i, j)] = gram[i, j]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def store_gram(gram):
        """Write the Gram matrix that is in shared memory."""
        doubles = cuda.shared.array(0, float64)
        for item in range(cuda.threadIdx.x, columns * columns, threads):
            i, j = item // columns, item % columns
            gram[i, j] = doubles[at_totals + entry_of(i, j)]

    @cuda.jit(device=True)
    def covariance():
        """Write the covariance of the rows that a normalization sees, as `core.centre` does."""
        doubles = cuda.shared.array(0, float64)
        t = cuda.threadIdx.x
        if centred:
            for item in range(t, inputs * columns, threads):
                h, j = item // columns, item % columns
                mean = 0.0
                for i in range(h * batch, (h + 1) * batch):
                    mean += doubles[at_totals + entry_of(i, j)]
                doubles[at_means + item] = mean / batch
            cuda.syncthreads()
            for item in range(t, inputs * inputs, threads):
                g, h = item // inputs, item % inputs
                mean = 0.0
                for j in range(g * batch, (g + 1) * batch):
                    mean += doubles[at_means + h * columns + j]
                doubles[at_grand + item] = mean / batch
            cuda.syncthreads()
        for item in range(t, columns * columns, threads):
            i, j = item // columns, item % columns
            value = doubles[at_totals + entry_of(i, j)]
            if centred:
                g, h = i // batch, j // batch
                # The two means are added first, so that the result is symmetric to the bit.
                means = doubles[at_means + h * columns + i] + doubles[at_means + g * columns + j]
                value = (value - means) + doubles[at_grand + g * inputs + h]
            doubles[at_tile64 + item] = value
        cuda.syncthreads()

    @cuda.jit(device=True)
    def factorise(gain, eps):
        """Write the factor of the covariance; see `cpu.factorise`.  Returns the least pivot."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        numbers = cuda.shared.array(0, kind)
        t = cuda.threadIdx.x
        covariance()
        for i in range(t, columns, threads):
            doubles[at_diagonal + i] = doubles[at_tile64 + i * columns + i]
        cuda.syncthreads()
        scale = gain
        if norm != NORM_NONE and not skipped and eps == 0.0:
            scale = scale_of(doubles[at_diagonal : at_diagonal + columns])
        cuda.syncthreads()
        for i in range(t, columns, threads):
            own = doubles[at_totals + entry_of(i, i)]
            if centred:
                first = i // batch * batch
                mean = 0.0
                for j in range(first, first + batch):
                    mean += doubles[at_totals + entry_of(j, j)]
                own = max(own, mean / batch)
                # The others determine the last sample of a batch, so its pivot is zero.
                if i == first + batch - 1:
                    own = np.inf
            doubles[at_diagonal + i] = own
            twin = i
            of_own = doubles[at_tile64 + i * columns + i]
            for j in range(i - 1, -1, -1):
                shared = doubles[at_tile64 + j * columns + i]
                if shared == of_own and doubles[at_tile64 + j * columns + j] == of_own:
                    twin = j
            whole[at_twin + i] = twin
        cuda.syncthreads()
        for k in range(columns):
            pivot = doubles[at_tile64 + k * columns + k]
            allowed = doubles[at_diagonal + k]
            regular = whole[at_twin + k] == k and pivot > units * columns * allowed
            inverse = 1.0 / sqrt(pivot) if regular else 0.0
            for i in range(t, padded, threads):
                entry = 0.0
                if k <= i < columns:
                    entry = doubles[at_tile64 + i * columns + k] * inverse
                    doubles[at_column + i] = entry
                numbers[at_factor + k * padded + i] = number(scale * entry)
            cuda.syncthreads()
            if t == 0:
                doubles[at_diagonal + k] = pivot / allowed if regular else 0.0
            if regular:
                rest = columns - k - 1
                for item in range(t, rest * rest, threads):
                    i, j = k + 1 + item // rest, k + 1 + item % rest
                    if j <= i:
                        product = doubles[at_column + i] * doubles[at_column + j]
                        doubles[at_tile64 + i * columns + j] -= product
            cuda.syncthreads()
        least = 1.0
        for k in range(columns):
            twin = whole[at_twin + k]
            if twin == k:
                if not (centred and (k + 1) % batch == 0):
                    least = min(least, doubles[at_diagonal + k])
            else:
                # Copies of samples stay copies at every depth.
                for i in range(t, k + 1, threads):
                    value = numbers[at_factor + i * padded + twin]
                    numbers[at_factor + i * padded + k] = value
        cuda.syncthreads()
        return least

    @cuda.jit(device=True)
    def clear_sums():
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        for entry in range(cuda.threadIdx.x, entries, threads):
            doubles[at_totals + entry] = 0.0
        if cuda.threadIdx.x == 0:
            whole[at_flags] = NO_ROW
            whole[at_flags + 1] = 0
        cuda.syncthreads()

    @cuda.jit(device=True)
    def draw_tile(first_row, layer, stream, k0, k1):
        """Write rows W a of a tile, drawn given the factor of their covariance."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(accumulators, kind)
        t = cuda.threadIdx.x
        q, g = t % quads, t // quads
        quad = np.uint32(first_row // 4 + q)
        for k in range(g, columns, groups):
            at = at_tile + k * stride + q
            if doubles[at_diagonal + k] > 0.0:
                z0, z1, z2, z3 = draw_normals(np.uint32(k), quad, layer, stream, k0, k1)
                numbers[at] = z0
                numbers[at + quads] = z1
                numbers[at + 2 * quads] = z2
                numbers[at + 3 * quads] = z3
            else:
                for j in range(4):
                    numbers[at + j * quads] = number(0.0)
        cuda.syncthreads()
        for c in range(accumulators):
            acc[c] = number(0.0)
        for k in range(min(columns, (g + 1) * chunk)):
            at = at_tile + k * stride + q
            z0, z1 = numbers[at], numbers[at + quads]
            z2, z3 = numbers[at + 2 * quads], numbers[at + 3 * quads]
            of_factor = at_factor + k * padded + g * chunk
            for c in range(chunk):
                entry = numbers[of_factor + c]
                acc[4 * c] += entry * z0
                acc[4 * c + 1] += entry * z1
                acc[4 * c + 2] += entry * z2
                acc[4 * c + 3] += entry * z3
        cuda.syncthreads()
        for c in range(chunk):
            if g * chunk + c < columns:
                at = at_tile + (g * chunk + c) * stride + q
                for j in range(4):
                    numbers[at + j * quads] = acc[4 * c + j]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def row_of(first_row, place):
        """Return which row is at a place of a tile's columns."""
        j, quad = place // quads, first_row // 4 + place % quads
        return quad // 16 * 64 + quad % 16 + 16 * j

    @cuda.jit(device=True)
    def finish_tile(first_row, width, skip, eps, x):
        """Turn the rows W a of a tile into activations; rows of no one become zeros."""
        numbers = cuda.shared.array(0, kind)
        whole = cuda.shared.array(0, int64)
        for item in range(cuda.threadIdx.x, inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_of(first_row, place)
            at = at_tile + h * batch * stride + place
            if row >= width:
                for i in range(batch):
                    numbers[at + i * stride] = number(0.0)
                continue
            if skipped:
                for i in range(batch):
                    numbers[at + i * stride] += number(skip) * x[h * batch + i, row]
            mean, scale = number(0.0), number(1.0)
            if subtracted:
                for i in range(batch):
                    mean += numbers[at + i * stride]
                mean *= number(1.0 / batch)
            if norm != NORM_NONE:
                variance = number(0.0)
                for i in range(batch):
                    deviation = numbers[at + i * stride] - mean
                    variance += deviation * deviation
                variance *= number(1.0 / batch)
                if eps == 0.0 and not variance > rounding * (mean * mean):
                    cuda.atomic.min(whole, at_flags, row)
                scale = number(number(1.0) / sqrt(number(variance + number(eps))))
            for i in range(batch):
                value = number((numbers[at + i * stride] - mean) * scale)
                if skipped:
                    x[h * batch + i, row] = value
                numbers[at + i * stride] = number(sigma(value))
        cuda.syncthreads()

    @cuda.jit(device=True)
    def add_tile():
        """Add the Gram matrix of a tile to the sums."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(sums, kind)
        left = cuda.local.array(edge, kind)
        t = cuda.threadIdx.x
        split, square = t // squares, t % squares
        ti, tj = 0, square
        while tj > ti:
            ti += 1
            tj -= ti
        for e in range(sums):
            acc[e] = number(0.0)
        if split < splits:
            at_i, at_j = at_tile + ti * stride, at_tile + tj * stride
            for place in range(split, tile_rows, splits):
                for a in range(edge):
                    left[a] = numbers[at_i + a * classes * stride + place]
                for b in range(edge):
                    right = numbers[at_j + b * classes * stride + place]
                    for a in range(edge):
                        acc[a * edge + b] += left[a] * right
        cuda.syncthreads()
        for e in range(sums):
            numbers[at_tile + e * lines + t] = acc[e]
        cuda.syncthreads()
        for item in range(t, entries * per_entry, threads):
            entry, part = item % entries, item // entries
            at = at_tile + entry // squares * lines + entry % squares
            total = 0.0
            for share in range(part, splits, per_entry):
                total += np.float64(numbers[at + share * squares])
            if per_entry > 1:
                doubles[at_partial + item] = total
            else:
                doubles[at_totals + entry] += total
        cuda.syncthreads()
        if per_entry > 1:
            for entry in range(t, entries, threads):
                total = 0.0
                for part in range(per_entry):
                    total += doubles[at_partial + part * entries + entry]
                doubles[at_totals + entry] += total
            cuda.syncthreads()

    @cuda.jit(device=True)
    def finish_sums(width):
        """Divide the sums by the width, and see whether they are finite."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        for item in range(cuda.threadIdx.x, columns * columns, threads):
            i, j = item // columns, item % columns
            # The entry (j, i) is the same place, or, within a square, has the same bits.
            if i >= j or i % classes == j % classes:
                entry = at_totals + entry_of(i, j)
                value = doubles[entry] / width
                doubles[entry] = value
                if not abs(value) < np.inf:
                    whole[at_flags + 1] = 1
        cuda.syncthreads()

    @cuda.jit
    def layers(
        grams, xs, record, slots, status, width, skip, gain, eps, first_chain, first_layer, k0, k1
    ):
        """Take a chain a block through layers; see `cpu.conditional_layers`."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        chain = cuda.blockIdx.x
        x = xs[chain if skipped else 0]
        stream = np.uint32(STREAM_ROWS | (first_chain + chain))
        load_gram(grams[chain])
        ended = RUNNING
        for step in range(slots.size):
            layer = np.uint32(first_layer + step)
            least = factorise(gain, eps)
            if single and not skipped and least < RESOLVED_PIVOT:
                ended = UNRESOLVED
            else:
                clear_sums()
                for first_row in range(0, width, tile_rows):
                    draw_tile(first_row, layer, stream, k0, k1)
                    finish_tile(first_row, width, skip, eps, x)
                    add_tile()
                finish_sums(width)
                if whole[at_flags + 1] != 0:
                    ended = NOT_FINITE
                if whole[at_flags] != NO_ROW:
                    ended = ZERO_VARIANCE
            if ended != RUNNING:
                if cuda.threadIdx.x == 0:
                    status[chain, 0] = ended
                    status[chain, 1] = first_layer + step
                    status[chain, 2] = whole[at_flags]
                break
            if slots[step] >= 0:
                store_gram(record[chain, slots[step]])
        if ended == RUNNING or ended == UNRESOLVED:
            store_gram(grams[chain])

    return Kernels(shape, layers, None)
