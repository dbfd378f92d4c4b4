"""The GPU kernels: layers of an ensemble of chains, on the functions of `core`.

A tile of rows of a layer is in shared memory, as (column, row).  Philox makes four words at a time,
which are the normals of four rows, a *quad*; a thread draws and multiplies quads for a chunk of the
columns, and where that is all of them the rows are in registers up to the activations.  The Gram
matrix of a tile is summed in registers, a square of entries a thread, over a share of the rows; the
shares are added in a fixed order, in float64.  No sum is an atomic one, so that bits depend neither
on scheduling nor on the device.

Where there are many chains a block has one, and takes it through all layers with its Gram matrix in
shared memory (`layers`).  Where there are few, the rows of a layer are split over blocks, of which
the one that ends last merges the sums of all (`rows`).  Either way the sums of tiles are added in
the order of the tiles, up to `MOST_RANGES` of them.  In wider layers the tiles belong to so many
ranges, whose sums are added in their order, and only `rows` makes them.  So bits do not depend on
how many blocks there are.

What is recorded of a layer is its Gram matrix, or only numbers of it (`core.measures`).
"""

from __future__ import annotations

from functools import cache
from math import frexp, ldexp, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, int64

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.gpu.device import (
    SIMULATED,
    cuda,
    device_function,
    device_module,
    inverse_root32,
    inverse_root64,
    kernel,
)
from bnmc._kernels.scalar import cholesky as factoring
from bnmc._kernels.scalar import measures, normal, philox
from bnmc._kernels.scalar.cholesky import PIVOT_UNITS

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


_measures = device_module(measures)


measured_entry, measured_square, measured_number = (
    _measures.entry_of,
    _measures.square_of,
    _measures.number_of,
)


# As in `cpu`, which the tests hold these to; that module compiles for the CPU when it is imported.
NORM_NONE, NORM_UNCENTRED, NORM_CENTRED = 0, 1, 2
GAUSSIAN, UNIFORM, RADEMACHER = 0, 1, 2
RESOLVED_PIVOT = 2.0**-13
STREAM_ROWS, STREAM_WEIGHTS = 0x00000000, 0x20000000

# As in `coupling`.
STREAM_RESIDUAL, STREAM_COIN = 0xA0000000, 0xC0000000
PATIENCE = 64
ENDED_BY_ROW, ENDED_BY_OVERFLOW, DEGENERATE = 1, 2, 4
MOST_ELEMENTS = 2**32 - 1

# Where the rows of a layer come from.
DRAWN, MULTIPLIED, GIVEN = 0, 1, 2

# What is known of a chain is one number, the least that has been noted: RUNNING, or the step at
# which it stopped times 2 ** STEP_BITS, plus the row without variance or one of these.
RUNNING, STEP_BITS = 2**62, 36
NOT_FINITE, UNRESOLVED = 2**35, 2**35 + 1
SECOND_WORD = np.uint32(0x10000000)
SQRT3 = 1.7320508075688772

# Of every index, so that the compiler computes it in 32 bits and does not look for negative ones.
u32 = np.uintp


#: Threads of a block, at most; in the simulator few, since each is a thread of Python.
MOST_THREADS = 16 if SIMULATED else 256

#: The same where weights are multiplied, and quads of a tile then: a thread has a share of the
#: elements of a row.
MOST_THREADS_OF_WEIGHTS = 16 if SIMULATED else 448
QUADS_OF_WEIGHTS = 8

#: Registers of a thread, at most: with 256 threads a multiprocessor holds two blocks, or three
#: where a thread accumulates few numbers.
MOST_REGISTERS, FEW_REGISTERS, FEW_ACCUMULATORS = 128, 80, 40

#: The same where weights are multiplied by threads that have all columns.
REGISTERS_OF_WEIGHTS = 144

#: Bytes of shared memory that its blocks share.
SHARED_OF_PROCESSOR = 226 * 1024

#: Threads of a warp, and the largest Gram matrix that one factors alone.
WARP, MOST_OF_WARP = 32, 32

#: Columns of the largest whose rows are in registers then.
MOST_OF_REGISTERS = 16

#: Into how many ranges the tiles of a layer are divided, at most.
MOST_RANGES = 256

#: What a thread keeps in registers: columns of a quad, and the edge of its square of the Gram
#: matrix.
MOST_CHUNK = {"float32": 16, "float64": 8}
MOST_EDGE = {"float32": 8, "float64": 6}


class Spec(NamedTuple):
    """What kernels are compiled for."""

    columns: int
    batch: int
    norm: int
    skipped: bool
    kept: bool
    dtype: str
    digest: str
    source: int = DRAWN
    weights: int = GAUSSIAN


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

    def tiles(self, width: int) -> int:
        """Return the number of tiles of a layer."""
        # Rows of a group of quads are not next to each other: groups are whole.
        return -(-(-(-width // 64) * 64) // (4 * self.quads))

    @property
    def scratch(self) -> int:
        """Sums of entries that the place of the tile has room for."""
        return (self.bytes // 8 - self.tile64) // self.entries


def shape_of(spec: Spec) -> Shape:
    """Divide the work of a block."""
    n, size = spec.columns, np.dtype(spec.dtype).itemsize
    groups = -(-n // MOST_CHUNK[spec.dtype])
    chunk = -(-n // groups)
    multiplied = spec.source == MULTIPLIED
    if multiplied:
        quads = QUADS_OF_WEIGHTS
        wanted = MOST_THREADS_OF_WEIGHTS if groups == 1 else MOST_THREADS
        threads = max(1, wanted // (quads * groups)) * quads * groups
    else:
        quads = max(16, MOST_THREADS // groups // 16 * 16)
        threads = quads * groups
    classes = -(-n // MOST_EDGE[spec.dtype])
    edge = -(-n // classes)
    squares = classes * (classes + 1) // 2
    entries = squares * edge**2
    splits = splits_of(min(max(1, threads // squares), 4 * quads), squares, 4 * quads)
    per_entry = max(1, min(splits, threads // entries))
    # Each of the threads that add an entry has as many shares.
    splits -= splits % per_entry
    lines = lines_of(threads, squares)
    inputs = n // spec.batch
    # Threads of a warp read columns of all classes: these begin in banks apart.
    stride = 4 * quads + max(1, 128 // size // classes % 32)

    totals = 0
    diagonal = totals + entries
    column = diagonal + n
    means = column + 2 * n
    flags = means + inputs * n + inputs * inputs
    # The one share of an entry is added to the total at once.
    partial = totals
    if per_entry > 1:
        partial, flags = flags, flags + per_entry * entries
    end = flags + 2 + n  # int64: the first row without variance, twins, zero
    factor = end * 8 // size
    tile = factor + n * chunk * groups
    tile64 = -(-tile * size // 8)
    tile = tile64 * 8 // size
    # The tile, the scratch of its sums and the covariance are never needed at once.
    numbers = max(classes * edge * stride, edge**2 * lines)
    shares = lines_of(threads)
    if multiplied:
        # A tile of the weights and the activations that it multiplies, where threads share them,
        # and the shares of the products.
        elements = threads // quads
        shared = elements * (4 * quads + chunk * groups) if groups > 1 else 0
        numbers = max(numbers + 4 * round_of(groups, chunk) * shares, shared)
    most = max(numbers * size, n * (n + 1) * 8)
    return Shape(
        threads, quads, chunk, groups, chunk * groups, stride, classes, edge, squares, splits,
        lines, entries, per_entry, totals, diagonal, column, means, partial, flags, factor, tile,
        tile64, tile64 * 8 + -(-most // 8) * 8,
    )  # fmt: skip


def splits_of(most: int, squares: int, rows: int) -> int:
    """Return into how many shares rows are divided, for warps to have the fewest in all."""

    def work(splits: int) -> tuple[int, int]:
        return -(-splits * squares // WARP) * -(-rows // splits), -splits

    return min(range(max(1, most // 2), most + 1), key=work)


def lines_of(threads: int, step: int = QUADS_OF_WEIGHTS) -> int:
    """Return the numbers of a line, so that lines begin `step` banks apart."""
    return -(-threads // 32) * 32 + step % 32


def round_of(groups: int, chunk: int) -> int:
    """Return of how many columns shares are added at once."""
    # So few that 16 columns in float32 go on a device of 163 KiB of shared memory.
    return min(4 if groups == 1 else 8, chunk)


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


@cuda.jit(device=True)
def uniforms32(element, quad, layer, stream, k0, k1):
    """Like `normals32`, uniform on (-sqrt 3, sqrt 3)."""
    width, half = np.float32(2.0 * SQRT3), np.float32(0.5)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    return (
        width * (uniform32(w0) - half),
        width * (uniform32(w1) - half),
        width * (uniform32(w2) - half),
        width * (uniform32(w3) - half),
    )


@cuda.jit(device=True)
def uniforms64(element, quad, layer, stream, k0, k1):
    """Like `normals64`, uniform on (-sqrt 3, sqrt 3)."""
    width = 2.0 * SQRT3
    second = np.uint32(stream | SECOND_WORD)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    v0, v1, v2, v3 = philox4x32(element, quad, layer, second, k0, k1)
    return (
        width * (uniform64(w0, v0) - 0.5),
        width * (uniform64(w1, v1) - 0.5),
        width * (uniform64(w2, v2) - 0.5),
        width * (uniform64(w3, v3) - 0.5),
    )


@cuda.jit(device=True)
def signs(element, quad, layer, stream, k0, k1):
    """Like `normals32`, -1 or 1."""
    half = np.uint32(0x80000000)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    return (
        np.float32(1.0 if w0 < half else -1.0),
        np.float32(1.0 if w1 < half else -1.0),
        np.float32(1.0 if w2 < half else -1.0),
        np.float32(1.0 if w3 < half else -1.0),
    )


@cuda.jit(device=True)
def scaled(value, exponent):
    """Return value * 2**exponent: infinity where that is too large, zero where too small."""
    while exponent > 1000:
        value *= 2.0**1000
        exponent -= 1000
    while exponent < -1000:
        value *= 2.0**-1000
        exponent += 1000
    return value * ldexp(1.0, int(exponent))


class Kernels(NamedTuple):
    """The kernels of one `Spec`; `layers` only where rows are drawn."""

    shape: Shape
    layers: Any
    rows: Any
    couple: Any
    observe: Any
    settle: Any
    renew: Any


@cache
def kernels(spec: Spec) -> Kernels:
    """Compile the kernels of chains of one kind; they are typed when first launched."""
    shape = shape_of(spec)
    columns, batch, norm = spec.columns, spec.batch, spec.norm
    inputs = columns // batch
    skipped, centred = spec.skipped, spec.norm == NORM_CENTRED
    # Rows drawn with the covariance P G P are centred already, but for what a skip connection
    # would let rounding add up to.
    subtracted = centred and (skipped or spec.source != DRAWN)
    kept_rows, source = spec.kept, spec.source
    single = spec.dtype == "float32"
    kind, number = (float32, np.float32) if single else (float64, np.float64)
    sigma = device_function(Sigma.known[spec.digest].functions[spec.dtype])
    draw_normals = normals32 if single else normals64
    draw_weights = (
        draw_normals,
        uniforms32 if single else uniforms64,
        signs,
    )[spec.weights]
    unit = 2.0**-23 if single else 2.0**-52
    rounding = number((batch * unit) ** 2)
    threads, quads, chunk, groups, padded = shape[:5]
    stride, classes, edge, squares, splits, lines = shape[5:11]
    entries, per_entry = shape.entries, shape.per_entry
    at_totals, at_diagonal, at_column, at_means, at_partial, at_flags = shape[13:19]
    at_factor, at_tile, at_tile64 = shape.factor, shape.tile, shape.tile64
    scratch = shape.scratch
    rows_of_split, whole_splits = -(-4 * quads // splits), 4 * quads % splits == 0
    at_grand = at_means + inputs * columns
    at_twin = at_flags + 1
    at_zero = at_twin + columns
    tile_rows, shares = 4 * quads, threads // (quads * groups)
    elements, share_line = threads // quads, lines_of(threads)
    at_weights, at_shares = at_tile, at_tile + max(classes * edge * stride, edge**2 * lines)
    at_multiplied = at_weights + elements * tile_rows
    per_round = round_of(groups, chunk)
    accumulators, sums = 4 * chunk, edge * edge
    units, odd = PIVOT_UNITS, columns | 1
    team = WARP if columns <= MOST_OF_WARP and not SIMULATED else threads
    helpers = team // columns
    in_registers = columns <= MOST_OF_REGISTERS
    inverse_root = inverse_root32 if single else inverse_root64
    # Whether a thread has whole rows, and need not put them where others see them.
    alone = source == DRAWN and groups == 1
    registers = MOST_REGISTERS
    if 2 * shape.bytes > SHARED_OF_PROCESSOR and threads <= 256:
        # A second block has no place beside the first.
        registers = 255
    if source == MULTIPLIED and groups == 1:
        registers = REGISTERS_OF_WEIGHTS
    few = single and accumulators <= FEW_ACCUMULATORS
    stream_tag = STREAM_WEIGHTS if source == MULTIPLIED else STREAM_ROWS

    @cuda.jit(device=True)
    def thread():
        """Return the number of the thread.

        Of what the compiler knows to be always the same it would keep, in registers, all that a
        layer computes from it, so this looks as if it might change.
        """
        whole = cuda.shared.array(0, int64)
        return np.uint32(cuda.threadIdx.x + whole[u32(at_zero)])

    @cuda.jit(device=True)
    def begin():
        """Make `thread` work."""
        whole = cuda.shared.array(0, int64)
        if cuda.threadIdx.x == 0:
            whole[u32(at_zero)] = 0
        cuda.syncthreads()

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
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            doubles[u32(at_totals + entry_of(i, j))] = gram[i, j]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def store_gram(gram):
        """Write the Gram matrix that is in shared memory."""
        doubles = cuda.shared.array(0, float64)
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            gram[i, j] = doubles[u32(at_totals + entry_of(i, j))]

    @cuda.jit(device=True)
    def measure(kind, star, values):
        """Write a number of the Gram matrix of each batch; see `core.measures`."""
        doubles = cuda.shared.array(0, float64)
        t = thread()
        for h in range(inputs):
            for item in range(t, batch * batch, threads):
                i, j = item // batch, item % batch
                entry = doubles[u32(at_totals + entry_of(h * batch + i, h * batch + j))]
                doubles[u32(at_tile64 + item)] = measured_entry(kind, entry, star[i, j])
            cuda.syncthreads()
            for i in range(t, batch, threads):
                largest = 0.0
                for j in range(batch):
                    largest = max(largest, abs(doubles[u32(at_tile64 + i * batch + j)]))
                doubles[u32(at_column + i)] = largest
            cuda.syncthreads()
            largest = 0.0
            for i in range(batch):
                largest = max(largest, doubles[u32(at_column + i)])
            scale = largest if largest > 0.0 else 1.0
            trace = 0.0
            for i in range(batch):
                trace += doubles[u32(at_tile64 + i * (batch + 1))] / scale
            cuda.syncthreads()
            for i in range(t, batch, threads):
                total = 0.0
                for j in range(batch):
                    entry = doubles[u32(at_tile64 + i * batch + j)] / scale
                    total += measured_square(kind, entry, trace, i == j, batch)
                doubles[u32(at_column + i)] = total
            cuda.syncthreads()
            if t == 0:
                total = 0.0
                for i in range(batch):
                    total += doubles[u32(at_column + i)]
                values[h] = measured_number(kind, largest, trace, total)
            cuda.syncthreads()

    @cuda.jit(device=True)
    def record_layer(record, values, kinds, stars, chain, slot):
        """Write what is wanted of the layer whose Gram matrix is in shared memory.

        kinds : (measures,) int64
            Which numbers; if the first is `measures.NOTHING`, the matrix itself.
        stars : (measures, batch, batch) float64
        record, values : (chains, layers, columns, columns), (chains, layers, measures, inputs)
            Of one of them only a place, of no meaning.
        """
        if kinds[0] == measures.NOTHING:
            store_gram(record[chain, slot])
        else:
            for m in range(kinds.size):
                measure(kinds[m], stars[m], values[chain, slot, m])

    @cuda.jit(device=True)
    def meet_team():
        """Wait for the threads that factorise: a warp waits for less than a block does."""
        if team < threads:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    @cuda.jit(device=True)
    def centre(row, at, t):
        """Centre the Gram matrix as `core.centre` does; by symmetry a row is a column."""
        doubles = cuda.shared.array(0, float64)
        if t < columns:
            for h in range(inputs):
                mean = 0.0
                for i in range(h * batch, (h + 1) * batch):
                    mean += row[u32(at + i)]
                doubles[u32(at_means + h * columns + t)] = mean / batch
        meet_team()
        for item in range(t, inputs * inputs, team):
            g, h = item // inputs, item % inputs
            mean = 0.0
            for j in range(g * batch, (g + 1) * batch):
                mean += doubles[u32(at_means + h * columns + j)]
            doubles[u32(at_grand + item)] = mean / batch
        meet_team()
        if t < columns:
            g = t // batch
            for h in range(inputs):
                own = doubles[u32(at_means + h * columns + t)]
                grand = doubles[u32(at_grand + g * inputs + h)]
                for j in range(h * batch, (h + 1) * batch):
                    # The two means are added first, so that the result is symmetric to the bit.
                    means = own + doubles[u32(at_means + g * columns + j)]
                    row[u32(at + j)] = (row[u32(at + j)] - means) + grand

    @cuda.jit(device=True)
    def element_of(row, at, k):
        """Return entry k of a row; of one in registers no index may depend on anything."""
        entry = 0.0
        for j in range(0 if in_registers else k, columns if in_registers else k + 1):
            # Read in any case, for the compiler not to make of this a read of element k.
            other = row[u32(at + j)]
            entry = other if j == k else entry
        return entry

    @cuda.jit(device=True)
    def allow(row, at, t):
        """Return the scale against which a pivot counts as zero; write which samples are copies."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        allowed, of_own = 0.0, 0.0
        if t < columns:
            allowed = doubles[u32(at_diagonal + t)]
            if centred:
                first = t // batch * batch
                mean = 0.0
                for j in range(batch):
                    mean += doubles[u32(at_diagonal + first + j)]
                allowed = max(allowed, mean / batch)
                # The others determine the last sample of a batch, so its pivot is zero.
                if t == first + batch - 1:
                    allowed = np.inf
            of_own = element_of(row, at, t)
            doubles[u32(at_column + t)] = of_own
        meet_team()
        if t < columns:
            twin = t
            for j in range(columns):
                shared, other = row[u32(at + j)], doubles[u32(at_column + j)]
                if j < twin and shared == of_own and other == of_own:
                    twin = j
            whole[u32(at_twin + t)] = twin
            doubles[u32(at_diagonal + t)] = allowed
        meet_team()
        return allowed

    @cuda.jit(device=True)
    def factorise_in_team(row, at, t, gain, eps):
        """Write the factor of the covariance, whose rows the threads have, and the least pivot."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        numbers = cuda.shared.array(0, kind)
        if t < columns:
            doubles[u32(at_diagonal + t)] = element_of(row, at, t)
        if centred:
            centre(row, at, t)
        meet_team()
        allowed = allow(row, at, t)
        scale = gain
        if norm != NORM_NONE and not skipped and eps == 0.0:
            largest = 0.0
            for i in range(columns):
                largest = max(largest, doubles[u32(at_column + i)])
            scale = scale_of((largest,))
        meet_team()
        own = 0.0
        for k in range(columns):
            # Every other step has the same place, so that none is written before it was read.
            at_step = at_column + k % 2 * columns
            entry = 0.0
            if k <= t < columns:
                entry = element_of(row, at, k)
            if t < columns:
                doubles[u32(at_step + t)] = entry
            meet_team()
            pivot = doubles[u32(at_step + k)]
            regular = whole[u32(at_twin + k)] == k
            regular = regular and pivot > units * columns * doubles[u32(at_diagonal + k)]
            inverse = inverse_root64(pivot) if regular else 0.0
            own = pivot if t == k and regular else own
            entry *= inverse
            if t < padded:
                numbers[u32(at_factor + k * padded + t)] = number(scale * entry)
            if in_registers:
                if t < columns:
                    entry *= inverse
                    for j in range(columns):
                        row[u32(at + j)] -= entry * doubles[u32(at_step + j)]
            elif t < helpers * columns:
                # Each row is brought up to date by as many threads as there are.  Its next entry
                # is the owner's, who reads it before the others are waited for.
                i = t % columns
                other, at_row = doubles[u32(at_step + i)] * inverse, at_tile64 + i * odd
                other *= inverse
                for j in range(k + 1 + t // columns, i + 1, helpers):
                    row[u32(at_row + j)] -= other * doubles[u32(at_step + j)]
        # Copies of samples stay copies at every depth.
        meet_team()
        if t < columns:
            doubles[u32(at_diagonal + t)] = own / allowed if own > 0.0 else 0.0
            twin = whole[u32(at_twin + t)]
            if twin != t:
                for k in range(t + 1):
                    numbers[u32(at_factor + k * padded + t)] = (
                        numbers[u32(at_factor + k * padded + twin)] if k <= twin else number(0.0)
                    )
        meet_team()
        if t == 0:
            least = 1.0
            for k in range(columns):
                if whole[u32(at_twin + k)] == k and not (centred and (k + 1) % batch == 0):
                    least = min(least, doubles[u32(at_diagonal + k)])
            doubles[u32(at_column)] = least

    @cuda.jit(device=True)
    def factorise(gain, eps):
        """Write the factor of the covariance; see `cpu.factorise`.  Returns the least pivot."""
        doubles = cuda.shared.array(0, float64)
        row = cuda.local.array(columns if in_registers else 1, float64)
        t = thread()
        if t < team:
            for j in range(columns):
                entry = 0.0
                if t < columns:
                    entry = doubles[u32(at_totals + entry_of(t, j))]
                if in_registers:
                    row[j] = entry
                elif t < columns:
                    doubles[u32(at_tile64 + t * odd + j)] = entry
            if in_registers:
                factorise_in_team(row, 0, t, gain, eps)
            else:
                factorise_in_team(doubles, at_tile64 + t * odd, t, gain, eps)
        cuda.syncthreads()
        return doubles[u32(at_column)]

    @cuda.jit(device=True)
    def clear_sums():
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        for entry in range(thread(), entries, threads):
            doubles[u32(at_totals + entry)] = 0.0
        if thread() == 0:
            whole[u32(at_flags)] = RUNNING
        cuda.syncthreads()

    @cuda.jit(device=True)
    def draw_tile(first_row, element, layer, stream, k0, k1):
        """Write rows W a of a tile, drawn given the factor of their covariance."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(accumulators, kind)
        t = thread()
        q, g = t % quads, t // quads
        quad = np.uint32(first_row // 4 + q)
        for k in range(g, columns, groups):
            at = at_tile + k * stride + q
            if doubles[u32(at_diagonal + k)] > 0.0:
                z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
                numbers[u32(at)] = z0
                numbers[u32(at + quads)] = z1
                numbers[u32(at + 2 * quads)] = z2
                numbers[u32(at + 3 * quads)] = z3
            else:
                for j in range(4):
                    numbers[u32(at + j * quads)] = number(0.0)
        cuda.syncthreads()
        for c in range(accumulators):
            acc[c] = number(0.0)
        for k in range(min(columns, (g + 1) * chunk)):
            at = at_tile + k * stride + q
            z0, z1 = numbers[u32(at)], numbers[u32(at + quads)]
            z2, z3 = numbers[u32(at + 2 * quads)], numbers[u32(at + 3 * quads)]
            of_factor = at_factor + k * padded + g * chunk
            for c in range(chunk):
                entry = numbers[u32(of_factor + c)]
                acc[4 * c] += entry * z0
                acc[4 * c + 1] += entry * z1
                acc[4 * c + 2] += entry * z2
                acc[4 * c + 3] += entry * z3
        cuda.syncthreads()
        for c in range(chunk):
            if g * chunk + c < columns:
                at = at_tile + (g * chunk + c) * stride + q
                for j in range(4):
                    numbers[u32(at + j * quads)] = acc[4 * c + j]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def row_of(first_row, place):
        """Return which row is at a place of a tile's columns."""
        j, quad = place // quads, first_row // 4 + place % quads
        return quad // 16 * 64 + quad % 16 + 16 * j

    @cuda.jit(device=True)
    def finish_row(values, at, step, h, row, skip, eps, x, kept):
        """Turn the entries of a row W a, of one input and a step apart, into activations."""
        whole = cuda.shared.array(0, int64)
        if skipped:
            for i in range(batch):
                values[u32(at + i * step)] += number(skip) * x[h * batch + i, row]
        mean, scale = number(0.0), number(1.0)
        if subtracted:
            for i in range(batch):
                mean += values[u32(at + i * step)]
            mean *= number(1.0 / batch)
        if norm != NORM_NONE:
            variance = number(0.0)
            for i in range(batch):
                deviation = values[u32(at + i * step)] - mean
                variance += deviation * deviation
            variance *= number(1.0 / batch)
            if eps == 0.0 and not variance > rounding * (mean * mean):
                cuda.atomic.min(whole, at_flags, row)
            scale = inverse_root(number(variance + number(eps)))
        for i in range(batch):
            value = number((values[u32(at + i * step)] - mean) * scale)
            if skipped:
                x[h * batch + i, row] = value
            value = number(sigma(value))
            values[u32(at + i * step)] = value
            if kept_rows:
                kept[row, h * batch + i] = value

    @cuda.jit(device=True)
    def finish_tile(first_row, width, skip, eps, x, kept):
        """Turn the rows W a of a tile into activations; rows of no one become zeros."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), inputs * tile_rows, threads):
            h, place = item // tile_rows, item % tile_rows
            row = row_of(first_row, place)
            at = at_tile + h * batch * stride + place
            if row < width:
                finish_row(numbers, at, stride, h, row, skip, eps, x, kept)
            else:
                for i in range(batch):
                    numbers[u32(at + i * stride)] = number(0.0)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def draw_column(acc, k, first, element, quad, layer, stream, k0, k1):
        """Add to rows W a what normal k of these has a part in, from column `first` on."""
        numbers = cuda.shared.array(0, kind)
        z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
        for c in range(first, columns):
            entry = numbers[u32(at_factor + k * padded + c)]
            acc[4 * c] += entry * z0
            acc[4 * c + 1] += entry * z1
            acc[4 * c + 2] += entry * z2
            acc[4 * c + 3] += entry * z3

    @cuda.jit(device=True)
    def draw_columns(acc, first, last, element, quad, layer, stream, k0, k1):
        """Add to rows W a what normals first:last of these have a part in."""
        doubles = cuda.shared.array(0, float64)
        k = first
        while k < last:
            if doubles[u32(at_diagonal + k)] > 0.0:
                draw_column(acc, k, first, element, quad, layer, stream, k0, k1)
                k += 1
                # Two at a time: they share the keys of the rounds.
                if k < last and doubles[u32(at_diagonal + k)] > 0.0:
                    draw_column(acc, k, first, element, quad, layer, stream, k0, k1)
            k += 1

    @cuda.jit(device=True)
    def finish_column(acc, j, row, width, skip, eps, x, kept):
        """Write activations, of one row of a quad that is in registers, to the tile."""
        numbers = cuda.shared.array(0, kind)
        at = at_tile + j * quads + thread()
        if row < width:
            for h in range(inputs):
                finish_row(acc, 4 * h * batch + j, 4, h, row, skip, eps, x, kept)
            for c in range(columns):
                numbers[u32(at + c * stride)] = acc[4 * c + j]
        else:
            for c in range(columns):
                numbers[u32(at + c * stride)] = number(0.0)

    @cuda.jit(device=True)
    def draw_activations(
        first_row, width, element, layer, stream, k0, k1, skip, eps, x, kept
    ):  # fmt: skip
        """Write activations of a tile, of rows drawn given the factor of their covariance."""
        if alone:
            acc = cuda.local.array(accumulators, kind)
            for c in range(accumulators):
                acc[c] = number(0.0)
            quad = np.uint32(first_row // 4 + thread())
            # The first half of the columns has no part of the second half of the normals.
            draw_columns(acc, 0, columns // 2, element, quad, layer, stream, k0, k1)
            draw_columns(acc, columns // 2, columns, element, quad, layer, stream, k0, k1)
            row = row_of(first_row, thread())
            # Constant indices keep the rows in registers.
            finish_column(acc, 0, row, width, skip, eps, x, kept)
            finish_column(acc, 1, row + 16, width, skip, eps, x, kept)
            finish_column(acc, 2, row + 32, width, skip, eps, x, kept)
            finish_column(acc, 3, row + 48, width, skip, eps, x, kept)
            cuda.syncthreads()
        else:
            draw_tile(first_row, element, layer, stream, k0, k1)
            finish_tile(first_row, width, skip, eps, x, kept)

    @cuda.jit(device=True)
    def add_tile():
        """Add the Gram matrix of a tile to the sums."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(sums, kind)
        left = cuda.local.array(edge, kind)
        t = thread()
        split, square = t // squares, t % squares
        ti, tj = 0, square
        while tj > ti:
            ti += 1
            tj -= ti
        for e in range(sums):
            acc[e] = number(0.0)
        if split < splits:
            at_i, at_j = at_tile + ti * stride + split, at_tile + tj * stride + split
            place = 0
            while place < rows_of_split * splits:
                if whole_splits or place + split < tile_rows:
                    for a in range(edge):
                        left[a] = numbers[u32(at_i + a * classes * stride + place)]
                    for b in range(edge):
                        right = numbers[u32(at_j + b * classes * stride + place)]
                        for a in range(edge):
                            acc[a * edge + b] += left[a] * right
                place += splits
        cuda.syncthreads()
        for e in range(sums):
            numbers[u32(at_tile + e * lines + t)] = acc[e]
        cuda.syncthreads()
        for item in range(t, entries * per_entry, threads):
            entry, part = item % entries, item // entries
            at = at_tile + entry // squares * lines + entry % squares
            total = 0.0
            for share in range(splits // per_entry):
                place = at + (share * per_entry + part) * squares
                total += np.float64(numbers[u32(place)])
            # The sum of a tile is a number of its own, whatever is added to it.
            if per_entry == 1:
                doubles[u32(at_totals + entry)] += total
            else:
                doubles[u32(at_partial + item)] = total
        cuda.syncthreads()
        if per_entry > 1:
            for entry in range(t, entries, threads):
                total = 0.0
                for part in range(per_entry):
                    total += doubles[u32(at_partial + part * entries + entry)]
                doubles[u32(at_totals + entry)] += total
            cuda.syncthreads()

    @cuda.jit(device=True)
    def finish_sum(doubles, whole, at, width):
        value = doubles[u32(at)] / width
        doubles[u32(at)] = value
        if not abs(value) < np.inf:
            cuda.atomic.min(whole, at_flags, NOT_FINITE)

    @cuda.jit(device=True)
    def finish_sums(width):
        """Divide the sums by the width, and see whether they are finite."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        t = thread()
        if classes * edge == columns:
            for entry in range(t, entries, threads):
                finish_sum(doubles, whole, at_totals + entry, width)
        else:
            for item in range(t, columns * columns, threads):
                i, j = item // columns, item % columns
                # The entry (j, i) is the same place, or, within a square, has the same bits.
                if i >= j or i % classes == j % classes:
                    finish_sum(doubles, whole, at_totals + entry_of(i, j), width)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def multiply_alone(acc, own, width, quad, layer, stream, k0, k1, a):
        """Add what every so many elements have a part in; a thread has all columns of a quad."""
        for element in range(own, width, elements):
            w0, w1, w2, w3 = draw_weights(np.uint32(element), quad, layer, stream, k0, k1)
            for c in range(columns):
                entry = a[u32(element), c]
                acc[4 * c] += entry * w0
                acc[4 * c + 1] += entry * w1
                acc[4 * c + 2] += entry * w2
                acc[4 * c + 3] += entry * w3

    @cuda.jit(device=True)
    def multiply_tile(first_row, width, gain, layer, stream, k0, k1, a):
        """Write rows W a of a tile: weights exist a few elements at a time."""
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(accumulators, kind)
        t = thread()
        q, g, s = t % quads, t // quads % groups, t // (quads * groups)
        quad, own = np.uint32(first_row // 4 + q), t // quads
        for c in range(accumulators):
            acc[c] = number(0.0)
        if groups == 1:
            multiply_alone(acc, own, width, quad, layer, stream, k0, k1, a)
        for first in range(0, width if groups > 1 else 0, elements):
            w0, w1, w2, w3 = draw_weights(np.uint32(first + own), quad, layer, stream, k0, k1)
            at = at_weights + own * tile_rows + q
            numbers[u32(at)] = w0
            numbers[u32(at + quads)] = w1
            numbers[u32(at + 2 * quads)] = w2
            numbers[u32(at + 3 * quads)] = w3
            for item in range(t, elements * padded, threads):
                element, i = first + item // padded, item % padded
                value = number(0.0)
                if element < width and i < columns:
                    value = a[element, i]
                numbers[u32(at_multiplied + item)] = value
            cuda.syncthreads()
            for element in range(s, elements, shares):
                at = at_weights + element * tile_rows + q
                z0, z1 = numbers[u32(at)], numbers[u32(at + quads)]
                z2, z3 = numbers[u32(at + 2 * quads)], numbers[u32(at + 3 * quads)]
                of_a = at_multiplied + element * padded + g * chunk
                for c in range(chunk):
                    entry = numbers[u32(of_a + c)]
                    acc[4 * c] += entry * z0
                    acc[4 * c + 1] += entry * z1
                    acc[4 * c + 2] += entry * z2
                    acc[4 * c + 3] += entry * z3
            cuda.syncthreads()
        scale = number(gain / sqrt(np.float64(width)))
        for first in range(0, chunk, per_round):
            # A constant index keeps the accumulators in registers.
            for c in range(chunk):
                if first <= c < first + per_round:
                    for j in range(4):
                        numbers[u32(at_shares + (4 * (c - first) + j) * share_line + t)] = acc[
                            4 * c + j
                        ]
            cuda.syncthreads()
            for item in range(t, 4 * per_round * quads * groups, threads):
                place = item % (quads * groups)
                line = item // (quads * groups)
                total = number(0.0)
                for share in range(shares):
                    at = at_shares + line * share_line + share * quads * groups + place
                    total += numbers[u32(at)]
                c = first + line // 4
                i = place // quads * chunk + c
                if c < chunk and i < columns:
                    at = at_tile + i * stride + line % 4 * quads + place % quads
                    numbers[u32(at)] = total * scale
            cuda.syncthreads()

    @cuda.jit(device=True)
    def copy_tile(first_row, width, given):
        """Write given rows to a tile."""
        numbers = cuda.shared.array(0, kind)
        for item in range(thread(), columns * tile_rows, threads):
            i, place = item // tile_rows, item % tile_rows
            row = row_of(first_row, place)
            if row < width:
                numbers[u32(at_tile + i * stride + place)] = number(given[row, i])
        cuda.syncthreads()

    @kernel(FEW_REGISTERS if few else registers)
    def layers(
        grams, xs, record, values, kinds, stars, slots, status, width, skip, gain, eps,
        first_chain, first_layer, k0, k1,
    ):  # fmt: skip
        """Take a chain a block through layers; see `cpu.conditional_layers`."""
        whole = cuda.shared.array(0, int64)
        chain = cuda.blockIdx.x
        x = xs[chain if skipped else 0]
        stream = np.uint32(STREAM_ROWS | (first_chain + chain))
        begin()
        load_gram(grams[chain])
        for step in range(slots.size):
            layer = np.uint32(first_layer + step)
            unresolved = factorise(gain, eps) < RESOLVED_PIVOT
            unresolved = unresolved and single and not skipped
            if unresolved:
                if cuda.threadIdx.x == 0:
                    status[chain] = (step << STEP_BITS) + UNRESOLVED
                break
            clear_sums()
            for first_row in range(0, width, tile_rows):
                draw_activations(first_row, width, 0, layer, stream, k0, k1, skip, eps, x, x)
                add_tile()
            finish_sums(width)
            if whole[u32(at_flags)] != RUNNING:
                if cuda.threadIdx.x == 0:
                    status[chain] = (step << STEP_BITS) + whole[u32(at_flags)]
                break
            if slots[step] >= 0:
                record_layer(record, values, kinds, stars, chain, slots[step])
        store_gram(grams[chain])

    @kernel(registers)
    def observe(grams, record, values, kinds, stars):
        """Record the layer that chains are at, a chain a block, in slot 0."""
        begin()
        load_gram(grams[cuda.blockIdx.x])
        record_layer(record, values, kinds, stars, cuda.blockIdx.x, 0)

    @kernel(registers)
    def settle(grams, xs, kept, exponents, record, first, last, most, status):
        """Divide the state of chains by powers of 2, a chain a block; see `_precision.rescale`.

        grams, xs, kept : (chains, columns, columns), (chains, ...), (chains, ...)
            The state; of rows that are not part of it any array.
        exponents : (chains,) int64
            What the state is in units of.
        record : (chains, slots, columns, columns)
            Its slots first:last become the matrices themselves.
        most : int
            The largest exponent (base 2) of a Gram matrix that stays what it is.
        """
        t, chain = cuda.threadIdx.x, cuda.blockIdx.x
        exponent = exponents[chain]
        for slot in range(first, last):
            for item in range(t, columns * columns, threads):
                i, j = item // columns, item % columns
                value = scaled(record[chain, slot, i, j], exponent)
                record[chain, slot, i, j] = value
                if not abs(value) < np.inf:
                    cuda.atomic.min(status, chain, NOT_FINITE)
        largest = 0.0
        for i in range(columns):
            largest = max(largest, grams[chain, i, i])
        own = np.int64(frexp(largest)[1])
        half = own // 2 if abs(own) > most else 0
        # All threads have read it before any writes.
        cuda.syncthreads()
        if half == 0:
            return
        for item in range(t, columns * columns, threads):
            i, j = item // columns, item % columns
            grams[chain, i, j] = scaled(grams[chain, i, j], -2 * half)
        if skipped:
            rows_of_x = xs.shape[2]
            for item in range(t, columns * rows_of_x, threads):
                i, row = item // rows_of_x, item % rows_of_x
                xs[chain, i, row] = number(scaled(np.float64(xs[chain, i, row]), -half))
        if kept_rows:
            for item in range(t, 2 * kept.shape[2] * columns, threads):
                row, i = item // columns, item % columns
                side, row = row // kept.shape[2], row % kept.shape[2]
                value = number(scaled(np.float64(kept[chain, side, row, i]), -half))
                kept[chain, side, row, i] = value
        if t == 0:
            exponents[chain] += 2 * half

    @cuda.jit(device=True)
    def merge_ranges(sums, chain, ranges):
        """Add the sums of all ranges of a layer, in their order."""
        doubles = cuda.shared.array(0, float64)
        t = thread()
        for first in range(0, ranges, scratch):
            # Brought to shared memory first: what is far away is asked for all at once.
            count = min(scratch, ranges - first)
            for item in range(t, count * entries, threads):
                index = first + item // entries
                doubles[u32(at_tile64 + item)] = sums[chain, index, item % entries]
            cuda.syncthreads()
            for entry in range(t, entries, threads):
                total = 0.0 if first == 0 else doubles[u32(at_totals + entry)]
                for index in range(count):
                    total += doubles[u32(at_tile64 + index * entries + entry)]
                doubles[u32(at_totals + entry)] = total
            cuda.syncthreads()

    @kernel(registers)
    def rows(
        grams, xs, kept, given, sums, arrived, record, values, kinds, stars, slot, status, width,
        skip, gain, eps, first_chain, layer, step, k0, k1,
    ):  # fmt: skip
        """Make one layer of a chain by the blocks of a row of the grid, of which the last merges.

        Parameters are those of `layers` for one layer, and

        kept : (chains, 2, >= width, columns), or (1, 2, 1, 1)
            Activations of even and of odd layers.
        given : (chains or 1, width, columns)
            The rows of layer 0, where they are given.
        sums : (chains, ranges, entries) float64
        arrived : (chains,) int32
            How many blocks have come to an end; zeros before and after.
        """
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        t, part, chain, parts = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.x
        ranges = sums.shape[1]
        # Of this step other blocks note while this one looks; a block that only part of its
        # threads left would hang.
        if status[chain] >> STEP_BITS < step:
            return
        begin()
        x = xs[chain if skipped else 0]
        a, following = kept[chain if kept_rows else 0, (layer + 1) % 2], kept[0, 0]
        if kept_rows:
            following = kept[chain, layer % 2]
        stream = np.uint32(stream_tag | (first_chain + chain))
        counter = np.uint32(layer)
        unresolved = False
        if source == DRAWN:
            load_gram(grams[chain])
            least = factorise(gain, eps)
            unresolved = least < RESOLVED_PIVOT and single and not skipped and not kept_rows
        if unresolved:
            if part == 0 and t == 0:
                status[chain] = (step << STEP_BITS) + UNRESOLVED
            return
        for index in range(part, ranges, parts):
            clear_sums()
            # Rows of a group of quads are not next to each other: groups are whole.
            for first_row in range(index * tile_rows, (width + 63) // 64 * 64, ranges * tile_rows):
                if source == DRAWN:
                    draw_activations(
                        first_row, width, 0, counter, stream, k0, k1, skip, eps, x, following
                    )
                elif source == MULTIPLIED:
                    multiply_tile(first_row, width, gain, counter, stream, k0, k1, a)
                    finish_tile(first_row, width, skip, eps, x, following)
                else:
                    copy_tile(first_row, width, given[chain if given.shape[0] > 1 else 0])
                    finish_tile(first_row, width, skip, eps, x, following)
                add_tile()
            for entry in range(t, entries, threads):
                sums[chain, index, entry] = doubles[u32(at_totals + entry)]
            if t == 0 and whole[u32(at_flags)] != RUNNING:
                cuda.atomic.min(status, chain, (step << STEP_BITS) + whole[u32(at_flags)])
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            whole[u32(at_flags)] = cuda.atomic.add(arrived, chain, 1)
        cuda.syncthreads()
        if whole[u32(at_flags)] != parts - 1:
            return
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            arrived[chain] = 0
            whole[u32(at_flags)] = RUNNING
        merge_ranges(sums, chain, ranges)
        finish_sums(width)
        store_gram(grams[chain])
        if t == 0 and whole[u32(at_flags)] != RUNNING:
            cuda.atomic.min(status, chain, (step << STEP_BITS) + NOT_FINITE)
        if slot >= 0:
            record_layer(record, values, kinds, stars, chain, slot)

    @cuda.jit(device=True)
    def keep_factor(factor, pivots, twins):
        """Write the factor that is in shared memory, and of its columns the pivots."""
        doubles = cuda.shared.array(0, float64)
        whole = cuda.shared.array(0, int64)
        numbers = cuda.shared.array(0, kind)
        t = thread()
        for item in range(t, columns * columns, threads):
            i, k = item // columns, item % columns
            factor[i, k] = numbers[u32(at_factor + k * padded + i)]
        for k in range(t, columns, threads):
            pivots[k] = doubles[u32(at_diagonal + k)]
            twins[k] = whole[u32(at_twin + k)]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def take_factor(factor, pivots):
        """Bring a factor back to shared memory."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        t = thread()
        cuda.syncthreads()
        for item in range(t, columns * columns, threads):
            i, k = item // columns, item % columns
            numbers[u32(at_factor + k * padded + i)] = factor[i, k]
        for k in range(t, columns, threads):
            doubles[u32(at_diagonal + k)] = pivots[k]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def sum_of_entries():
        """Return the sum of the matrix that is in shared memory, to every thread."""
        doubles = cuda.shared.array(0, float64)
        cuda.syncthreads()
        for i in range(thread(), columns, threads):
            total = 0.0
            for j in range(columns):
                total += doubles[u32(at_tile64 + i * columns + j)]
            doubles[u32(at_column + i)] = total
        cuda.syncthreads()
        total = 0.0
        for i in range(columns):
            total += doubles[u32(at_column + i)]
        cuda.syncthreads()
        return total

    @cuda.jit(device=True)
    def solve(lower, pivots, right, identity, out):
        """Write lower^-1 right, or lower^-1, where these are regular; see `coupling`."""
        for item in range(thread(), columns * columns, threads):
            out[item // columns, item % columns] = 0.0
        cuda.syncthreads()
        for j in range(thread(), columns, threads):
            if pivots[j] > 0.0:
                for i in range(j, columns):
                    if pivots[i] > 0.0:
                        entry = 0.0
                        if not identity:
                            entry = right[i, j]
                        elif i == j:
                            entry = 1.0
                        for k in range(j, i):
                            entry -= lower[i, k] * out[k, j]
                        out[i, j] = entry / lower[i, i]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def square_of(lower, shift, pivots):
        """Return |C C^T - shift I|^2 and |C|^2."""
        doubles = cuda.shared.array(0, float64)
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            entry = 0.0
            for k in range(min(i, j) + 1):
                entry += lower[i, k] * lower[j, k]
            if i == j and pivots[i] > 0.0:
                entry -= shift
            doubles[u32(at_tile64 + item)] = entry * entry
        square = sum_of_entries()
        for item in range(thread(), columns * columns, threads):
            entry = lower[item // columns, item % columns]
            doubles[u32(at_tile64 + item)] = entry * entry
        return square, sum_of_entries()

    @cuda.jit(device=True)
    def relative_factor(factors, pivots, eps, relative):
        """Write C = L^-1 L' and return |C C^T - I|; see `coupling.relative_factor`."""
        solve(factors[0], pivots[0], factors[1], False, relative)
        if eps == 0.0:
            square, size = square_of(relative, 0.0, pivots[0])
            root = sqrt(size / square)
            for item in range(thread(), columns * columns, threads):
                relative[item // columns, item % columns] *= root
            cuda.syncthreads()
        return sqrt(square_of(relative, 1.0, pivots[0])[0])

    @cuda.jit(device=True)
    def half_excess(lower, pivots, wishart):
        """Return half the trace of (C^T C - I) Z^T Z over the width."""
        doubles = cuda.shared.array(0, float64)
        for item in range(thread(), columns * columns, threads):
            i, j = item // columns, item % columns
            entry = 0.0
            if pivots[i] > 0.0 and pivots[j] > 0.0:
                for k in range(max(i, j), columns):
                    entry += lower[k, i] * lower[k, j]
                if i == j:
                    entry -= 1.0
            doubles[u32(at_tile64 + item)] = 0.5 * entry * wishart[i, j]
        return sum_of_entries()

    @cuda.jit(device=True)
    def log_determinant(lower, pivots):
        total = 0.0
        for k in range(columns):
            if pivots[k] > 0.0:
                total += log(lower[k, k])
        return total

    @cuda.jit(device=True)
    def same_range(pivots, twins):
        """Whether two covariances have one range; see `coupling.same_range`."""
        last = -1
        for k in range(columns - 1, -1, -1):
            regular = pivots[0, k] > 0.0
            if regular != (pivots[1, k] > 0.0) or twins[0, k] != twins[1, k]:
                return False
            is_copy = twins[0, k] != k
            if centred and last < 0 and not is_copy:
                last = k
            if not regular and not is_copy and k != last:
                return False
        return True

    @cuda.jit(device=True)
    def log_coin(layer, number_of_pair, attempt, k0, k1):
        stream = np.uint32(STREAM_COIN | number_of_pair)
        high = philox4x32(np.uint32(attempt), 0, layer, stream, k0, k1)[0]
        again = np.uint32(stream | SECOND_WORD)
        low = philox4x32(np.uint32(attempt), 0, layer, again, k0, k1)[0]
        return log(uniform64(high, low))

    @cuda.jit(device=True)
    def draw_side(width, eps, element, layer, stream, k0, k1, gram, nothing):
        """Draw rows given the factor in shared memory; return what `status` has of it, and the row.

        The Gram matrix is written to `gram` unless a row has no variance.
        """
        whole = cuda.shared.array(0, int64)
        clear_sums()
        for first_row in range(0, width, tile_rows):
            draw_activations(
                first_row, width, element, layer, stream, k0, k1, 0.0, eps, nothing, nothing
            )
            add_tile()
        finish_sums(width)
        noted = whole[u32(at_flags)]
        cuda.syncthreads()
        store_gram(gram)
        cuda.syncthreads()
        return noted

    @cuda.jit(device=True)
    def draw_squares(width, element, layer, stream, k0, k1, out):
        """Write Z^T Z / width of the normals of a layer."""
        numbers = cuda.shared.array(0, kind)
        clear_sums()
        for first_row in range(0, width, tile_rows):
            t = thread()
            q, g = t % quads, t // quads
            quad = np.uint32(first_row // 4 + q)
            for k in range(g, columns, groups):
                at = at_tile + k * stride + q
                z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
                row = row_of(first_row, q)
                numbers[u32(at)] = z0 if row < width else number(0.0)
                numbers[u32(at + quads)] = z1 if row + 16 < width else number(0.0)
                numbers[u32(at + 2 * quads)] = z2 if row + 32 < width else number(0.0)
                numbers[u32(at + 3 * quads)] = z3 if row + 48 < width else number(0.0)
            cuda.syncthreads()
            add_tile()
        finish_sums(width)
        store_gram(out)
        cuda.syncthreads()

    @kernel(registers)
    def renew(grams, matrix):
        """Make a pair's first matrix its second, and the first a given one, a pair a block."""
        pair = grams[cuda.blockIdx.x]
        for item in range(cuda.threadIdx.x, columns * columns, threads):
            i, j = item // columns, item % columns
            pair[1, i, j] = pair[0, i, j]
            pair[0, i, j] = matrix[i, j]

    @kernel(registers)
    def couple(
        stream_of_rows, grams, factors, pivots, twins, matrices, met, tries, first_replicate,
        first_layer, layers, alone, until, threshold, record, recorded, trace, traced, k0, k1,
        status, nothing, width, gain, eps,
    ):  # fmt: skip
        """Take a pair a block through layers, until it meets; see `coupling.coupled_layers`.

        factors, pivots, twins : (replicates, 2, columns, columns), (replicates, 2, columns) twice
            Work space, and
        matrices : (replicates, 3, columns, columns) float64
            C = L^-1 L', its inverse, and Z^T Z over the width.
        recorded, traced : int
            Of how many pairs there are places in `record` and `trace`.
        """
        t, replicate = cuda.threadIdx.x, cuda.blockIdx.x
        if status[replicate, 0] != 0:
            return
        begin()
        pair = grams[replicate]
        factor, pivot, twin = factors[replicate], pivots[replicate], twins[replicate]
        relative, inverse = matrices[replicate, 0], matrices[replicate, 1]
        wishart = matrices[replicate, 2]
        name = np.uint32(first_replicate + replicate)
        have_met = met[replicate] >= 0
        waited = tries[replicate, 2]
        for step in range(layers):
            layer = np.uint32(first_layer + step)
            if have_met and layer > until:
                break
            together = not have_met and layer > alone
            tried = False
            for side in range(1, -1, -1):
                if side == 0 or together:
                    load_gram(pair[side])
                    least = factorise(gain, eps)
                    keep_factor(factor[side], pivot[side], twin[side])
                    if t == 0 and replicate < traced:
                        trace[replicate, step, 1] = min(least, trace[replicate, step, 1])
            if together:
                distance = np.nan
                if same_range(pivot, twin):
                    distance = relative_factor(factor, pivot, eps, relative)
                    take_factor(factor[0], pivot[0])
                if t == 0 and replicate < traced:
                    trace[replicate, step, 0] = distance
                waited = 0 if distance >= 0.0 else waited + 1
                if t == 0:
                    tries[replicate, 2] = waited
                if waited > PATIENCE:
                    if t == 0:
                        status[replicate, 0] = DEGENERATE
                        status[replicate, 1] = first_layer + step - PATIENCE
                    break
                tried = sqrt(0.5 * width) * distance <= threshold

            stream = np.uint32(stream_of_rows | name)
            noted = draw_side(width, eps, 0, layer, stream, k0, k1, pair[0], nothing)
            refused = False
            if tried and noted == RUNNING:
                draw_squares(width, 0, layer, stream, k0, k1, wishart)
                solve(relative, pivot[0], relative, True, inverse)
                ratio = -half_excess(inverse, pivot[0], wishart)
                ratio -= log_determinant(relative, pivot[0])
                refused = log_coin(layer, name, 0, k0, k1) > width * ratio
                have_met = not refused
                if t == 0:
                    tries[replicate, 0] += 1
                    if refused:
                        tries[replicate, 1] += 1
                    else:
                        met[replicate] = layer
            if together and not have_met and noted == RUNNING:
                take_factor(factor[1], pivot[1])
                residual = np.uint32(STREAM_RESIDUAL | name)
                attempt = 0
                searching = True
                while searching:
                    if refused:
                        # What the law of the second has left, p' - p where that is positive, is
                        # drawn from by rejection: from p', with other normals.
                        stream = residual
                    element = attempt * columns % MOST_ELEMENTS
                    noted = draw_side(width, eps, element, layer, stream, k0, k1, pair[1], nothing)
                    searching = refused and noted == RUNNING
                    if searching:
                        draw_squares(width, element, layer, stream, k0, k1, wishart)
                        attempt += 1
                        # Computed again: kept, it would take registers where rows are drawn.
                        ratio = log_determinant(relative, pivot[0])
                        ratio -= half_excess(relative, pivot[0], wishart)
                        searching = log_coin(layer, name, attempt, k0, k1) <= width * ratio
            if noted != RUNNING:
                if t == 0:
                    row = noted != NOT_FINITE
                    status[replicate, 0] = ENDED_BY_ROW if row else ENDED_BY_OVERFLOW
                    status[replicate, 1] = layer
                    status[replicate, 2] = noted if row else -1
                break
            for item in range(thread(), columns * columns, threads):
                i, j = item // columns, item % columns
                if have_met:
                    pair[1, i, j] = pair[0, i, j]
                if replicate < recorded:
                    record[replicate, step, 0, i, j] = pair[0, i, j]
                    record[replicate, step, 1, i, j] = pair[1, i, j]
            cuda.syncthreads()

    drawn = source == DRAWN and not kept_rows
    coupled = drawn and not single and not skipped and norm != NORM_NONE and inputs == 1
    return Kernels(
        shape, layers if drawn else None, rows, couple if coupled else None, observe, settle,
        renew,
    )  # fmt: skip
