"""The shape of a block: how its threads divide the work, and where in shared memory its arrays are.

*Making rows.*  A tile has `quads` quads of rows.  Its columns are divided into `groups` of `chunk`
columns, and each thread makes one quad of one group.  If weights are multiplied, several threads
share a quad of a group: each multiplies a share of the elements of a row.

*Summing the Gram matrix of a tile of whole rows.*  If a thread has all columns of its quad, it sums
the products of its four rows in registers, a *vector* of 16 bytes of entries at a time, and writes
them to shared memory.  `parts` threads then add the sums of all threads for one vector.  If there
are more than `_MOST_VECTORS` vectors, this takes several passes.

*Summing the Gram matrix of another tile.*  Two columns belong to the same class if their numbers
are equal modulo `classes`.  A pair of classes is a square of `edge` by `edge` entries.  Each thread
sums one square over one of `splits` shares of the rows; `per_entry` threads then add the shares of
one entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bnmc._kernels.gpu.device import SIMULATED
from bnmc._kernels.scalar import codes

# Sources of the rows of a layer: drawn given a Gram matrix, weights times activations, given, or
# kept by the first of two passes.
DRAWN, MULTIPLIED, GIVEN, KEPT = 0, 1, 2, 3

# Laws of biases.
NO_BIAS, NORMAL_BIAS, UNIFORM_BIAS = 0, 1, 2

#: Largest number of threads of a block; small in the simulator, whose threads are Python threads.
MOST_THREADS = 16 if SIMULATED else 256
#: The same in a backward pass, whose blocks have three tiles.
MOST_THREADS_BACKWARD = 16 if SIMULATED else 128
#: The same if weights are multiplied, and then the quads of a tile.
_MOST_THREADS_OF_WEIGHTS = 16 if SIMULATED else 448
_QUADS_OF_WEIGHTS = 8
#: Threads of a warp.
_WARP = 32
#: Largest number of ranges into which the tiles of a layer are divided.
MOST_RANGES = 256
#: What a thread keeps in registers, at most: columns of a quad, and the edge of its square of the
#: Gram matrix.
_MOST_CHUNK = {"float32": 16, "float64": 8}
_MOST_EDGE = {"float32": 8, "float64": 6}

#: Bytes that a thread reads and writes at once, and how many of these a thread has in a pass: few
#: enough that three blocks of 256 threads fit into the shared memory of a multiprocessor.
_VECTOR, _MOST_VECTORS = 16, 9
#: Largest number of threads that add the sums of one vector.
_MOST_PARTS = 32

#: Columns of the largest matrix that one warp factors, and of the largest matrix whose rows are in
#: registers meanwhile.
_MOST_OF_WARP, _MOST_OF_REGISTERS = 32, 16
#: Largest edge of the square of products of two tiles that a thread sums.  The shares of all
#: threads then fit in a tile.
_MOST_EDGE_OF_CROSS = 4

#: Largest numbers of registers of a thread.  With 256 threads of 128 registers, a multiprocessor
#: runs two blocks; with 80 registers, enough if a thread accumulates few numbers, it runs three.
MOST_REGISTERS, _FEW_REGISTERS, _FEW_ACCUMULATORS = 128, 80, 40
#: The same if weights are multiplied by threads that have all columns.
_REGISTERS_OF_WEIGHTS = 144
#: Bytes of shared memory of a multiprocessor.
_SHARED_OF_PROCESSOR = 226 * 1024

# The type of every index into shared memory, so that the compiler computes it in 32 bits and
# without a test for negative numbers.
u32 = np.uintp


class Spec(NamedTuple):
    """The properties of chains for which kernels are compiled."""

    columns: int  # batch times inputs
    batch: int
    norm: int  # over the batch
    skipped: bool  # whether there is a skip connection
    keeps_rows: bool  # whether activations are written to global memory
    dtype: str  # of rows
    digest: str  # of the activation, a key of `Sigma.by_digest`
    source: int = DRAWN
    weights: int = codes.GAUSSIAN
    scaled: bool = False  # whether the scale of each sample is split off
    slope: str = ""  # digest of the derivative, a key of `Sigma.by_digest`, for a backward pass
    centred: bool = False  # whether rows of W a are drawn without their mean over each batch
    is_orthogonal: bool = False  # whether the weights are orthogonal
    narrow: bool = False  # whether the normals of float64 rows are those of float32 ones
    covered: bool = False  # whether the covariance of the rows of pairs is not the Gram matrix
    # Of layers in passes over their rows, see `passes`.
    in_passes: bool = False
    order: int = codes.NORM_FIRST
    over_features: bool = False  # whether there is a norm over the features
    features_centred: bool = False  # whether that norm subtracts the mean
    bias: int = NO_BIAS  # the law of biases, if weights are multiplied
    is_convolved: bool = False  # whether the weights have several taps

    @property
    def rows_of_gram(self) -> int:
        """Rows of the array of a Gram matrix, whose last row holds the units if there are any."""
        return self.columns + self.scaled

    @property
    def inputs(self) -> int:
        """Batches of a chain."""
        return self.columns // self.batch

    @property
    def one_block_suffices(self) -> bool:
        """Whether a block can take a chain through layers: rows stay on no device array."""
        is_plain = self.source == DRAWN and not self.is_orthogonal and not self.in_passes
        return is_plain and not self.keeps_rows and not (self.scaled and self.skipped)

    @property
    def subtracts_mean(self) -> bool:
        """Whether the norm over the batch subtracts the mean of a row.

        Rows drawn with the covariance P G P are centred already.  With a skip connection the mean
        is subtracted nevertheless, since rounding errors would add up over layers.
        """
        has_mean = self.source != DRAWN or self.in_passes or not self.centred
        return self.norm == codes.NORM_CENTRED and (has_mean or self.skipped)

    @property
    def norm_first(self) -> bool:
        """Whether the state of a residual chain is the normalized one."""
        return self.order == codes.NORM_FIRST

    @property
    def norm_in_branch(self) -> bool:
        """Whether the norm is inside the branch of a residual chain."""
        return self.order == codes.NORM_IN_BRANCH

    @property
    def activates_first(self) -> bool:
        """Whether the activation comes before the norm."""
        return self.order == codes.ACTIVATION_FIRST

    @property
    def single(self) -> bool:
        """Whether rows are float32."""
        return self.dtype == "float32"


class _Places(NamedTuple):
    """Offsets of the arrays in shared memory, in numbers of each array's own type."""

    # float64
    totals: int  # the sums of entries, then the Gram matrix
    diagonal: int
    column: int  # two columns of the factor in turns, and other work space of a number per column
    means: int
    grand: int
    units: int  # exponents of the samples, whole numbers
    partial: int  # shares of sums
    moments: int  # shares of moments, two numbers a thread
    # int64
    flags: int  # the first row without variance, or another reason to stop
    twin: int
    zero: int
    # uint32: the words of the elements of a layer
    words: int
    # The type of rows.
    factor: int
    tile: int
    weights: int
    multiplied: int
    shares: int  # of products, or of sums
    # The tile in float64, and the end of all arrays in bytes.
    tile64: int
    end: int


@dataclass(frozen=True)
class Shape:
    """The constants of a block; see the beginning of this file."""

    spec: Spec
    threads: int
    quads: int  # of a tile
    groups: int  # of threads: together they have all columns
    chunk: int  # columns of a thread
    stride: int  # of a column of the tile, in numbers
    classes: int  # of columns
    edge: int  # columns of a class
    splits: int  # shares of the rows in the sums of a square
    per_entry: int  # threads that add the shares of one entry

    @property
    def padded(self) -> int:
        """Columns of all groups, and as many more as fill a vector."""
        return _up(self.chunk * self.groups, self.vector if self.whole_rows else 1)

    @property
    def vector(self) -> int:
        """Numbers of a vector."""
        return _VECTOR // np.dtype(self.spec.dtype).itemsize

    @property
    def passes(self) -> int:
        """Passes in which the sums of whole rows are added."""
        return -(-self.entries // (self.vector * _MOST_VECTORS))

    @property
    def vectors(self) -> int:
        """Vectors of a pass."""
        return _up(self.entries, self.vector * self.passes) // (self.vector * self.passes)

    @property
    def vector_stride(self) -> int:
        """Vectors between those of two threads: odd, so that these begin in different banks."""
        return self.vectors | 1

    @property
    def parts(self) -> int:
        """Threads that add the sums of one vector."""
        parts = _MOST_PARTS
        while parts > 1 and (parts * self.vectors > self.threads or self.threads % parts):
            parts //= 2
        return parts

    @property
    def element_words(self) -> int:
        """Words of an element that its quads share."""
        return (4 if self.spec.single else 8) if self.whole_rows else 0

    @property
    def accumulators(self) -> int:
        """Numbers of rows that a thread accumulates."""
        return 4 * self.chunk

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return 4 * self.quads

    @property
    def per_square(self) -> int:
        """Entries of a square."""
        return self.edge**2

    @property
    def squares(self) -> int:
        """Pairs of classes."""
        return _squares(self.classes)

    @property
    def entries(self) -> int:
        """Entries of all squares."""
        return self.squares * self.edge**2

    @property
    def line(self) -> int:
        """Length of a line of sums: a number per thread, and padding."""
        return _line(self.threads, self.squares)

    @property
    def whole_rows(self) -> bool:
        """Whether a thread draws whole rows, so that no other thread needs them."""
        return _has_whole_rows(self.spec, self.groups)

    @property
    def shares(self) -> int:
        """Threads that share the elements of a row in a product with weights."""
        return self.threads // (self.quads * self.groups)

    @property
    def elements(self) -> int:
        """Elements of a row whose weights exist at a time."""
        return self.threads // self.quads

    @property
    def share_line(self) -> int:
        """Length of a line of shares of products."""
        return _line(self.threads, _QUADS_OF_WEIGHTS)

    @property
    def per_round(self) -> int:
        """Columns whose shares of products are added at once."""
        # Few enough that 16 columns in float32 fit into 163 KiB of shared memory.
        return min(4 if self.groups == 1 else 8, self.chunk)

    @property
    def team(self) -> int:
        """Threads that factor a matrix together."""
        is_warp = self.spec.columns <= _MOST_OF_WARP and not SIMULATED
        return _WARP if is_warp else self.threads

    @property
    def in_registers(self) -> bool:
        """Whether each thread keeps its row of a matrix in registers while it is factored."""
        return self.spec.columns <= _MOST_OF_REGISTERS

    @property
    def cross_classes(self) -> int:
        """Classes of columns whose products with one another are summed."""
        return -(-self.spec.columns // _MOST_EDGE_OF_CROSS)

    @property
    def cross_edge(self) -> int:
        """Columns of such a class."""
        return -(-self.spec.columns // self.cross_classes)

    @property
    def cross_square(self) -> int:
        """Products of two such classes."""
        return self.cross_edge**2

    @property
    def most_registers(self) -> int:
        """The largest number of registers of a thread of every forward kernel except `layers`."""
        if self.spec.source == MULTIPLIED and self.groups == 1:
            return _REGISTERS_OF_WEIGHTS
        if 2 * self.bytes > _SHARED_OF_PROCESSOR and self.threads <= 256:
            # Shared memory has no room for a second block, so one block may have all registers.
            return 255
        return MOST_REGISTERS

    @property
    def registers_of_layers(self) -> int:
        """The largest number of registers of a thread of the kernel `layers`."""
        few = self.spec.single and self.accumulators <= _FEW_ACCUMULATORS
        return _FEW_REGISTERS if few else self.most_registers

    @cached_property
    def at(self) -> _Places:
        """Where in shared memory the arrays are."""
        return _places_of(self)

    @property
    def bytes(self) -> int:
        """Bytes of shared memory."""
        return self.at.end

    @property
    def scratch(self) -> int:
        """Number of ranges of tiles whose sums of all entries fit in the memory of a tile."""
        return (self.bytes // 8 - self.at.tile64) // self.entries

    def tiles(self, width: int) -> int:
        """Return the number of tiles of a layer."""
        # The rows of a quad are 16 apart, so rows come in whole groups of 64.
        return -(-(-(-width // 64) * 64) // self.tile_rows)


def shape_of(spec: Spec) -> Shape:
    """Divide the work of a block among its threads."""
    n = spec.columns
    groups = -(-n // _MOST_CHUNK[spec.dtype])
    chunk = -(-n // groups)
    if spec.source == MULTIPLIED:
        quads = _QUADS_OF_WEIGHTS
        wanted = _MOST_THREADS_OF_WEIGHTS if groups == 1 else MOST_THREADS
        threads = max(1, wanted // (quads * groups)) * quads * groups
    else:
        most = MOST_THREADS_BACKWARD if spec.slope else MOST_THREADS
        quads = max(16, most // groups // 16 * 16)
        threads = quads * groups
    # Sums of whole rows are in the order of the lower triangle, which is that of classes of one.
    whole_rows = _has_whole_rows(spec, groups)
    classes = n if whole_rows else -(-n // _MOST_EDGE[spec.dtype])
    edge = -(-n // classes)
    squares = _squares(classes)
    splits = _splits(min(max(1, threads // squares), 4 * quads), squares, 4 * quads)
    per_entry = max(1, min(splits, threads // (squares * edge**2)))
    if whole_rows:
        splits = per_entry = 1
    # Each of the threads that add an entry has equally many shares.
    splits -= splits % per_entry
    # The threads of a warp read columns of all classes, so these begin in different banks.
    stride = 4 * quads + max(1, 128 // np.dtype(spec.dtype).itemsize // classes % 32)
    return Shape(spec, threads, quads, groups, chunk, stride, classes, edge, splits, per_entry)


def _has_whole_rows(spec: Spec, groups: int) -> bool:
    return spec.source == DRAWN and groups == 1 and not spec.in_passes and not spec.slope


def _squares(classes: int) -> int:
    return classes * (classes + 1) // 2


def _splits(most: int, squares: int, rows: int) -> int:
    """Return the number of shares of `rows` rows that gives the warps the least work."""

    def work(splits: int) -> tuple[int, int]:
        return -(-splits * squares // _WARP) * -(-rows // splits), -splits

    return min(range(max(1, most // 2), most + 1), key=work)


def _up(number: int, step: int) -> int:
    """Return the least multiple of `step` that is not less than `number`."""
    return -(-number // step) * step


def _line(threads: int, step: int) -> int:
    """Return the length of a line, such that lines begin `step` banks apart."""
    return -(-threads // 32) * 32 + step % 32


def _places_of(shape: Shape) -> _Places:
    spec, n, inputs = shape.spec, shape.spec.columns, shape.spec.inputs
    size = np.dtype(spec.dtype).itemsize
    totals = 0
    diagonal = totals + shape.entries
    column = diagonal + n
    means = column + 2 * n
    grand = means + inputs * n
    units = grand + inputs * inputs
    flags = units + (n if spec.scaled else 0)
    # If an entry has one share, it is added to the total at once.
    partial = totals
    if shape.per_entry > 1:
        partial, flags = flags, flags + shape.per_entry * shape.entries
    moments = flags
    if spec.over_features:
        flags += 2 * shape.threads
    twin = flags + 1
    zero = twin + n
    words = _up((zero + 1) * 8, _VECTOR) // 4
    factor = (words + n * shape.element_words) * 4 // size
    tile64 = _up((factor + n * shape.padded) * size, _VECTOR) // 8
    tile = tile64 * 8 // size
    # A block never needs the tile, the scratch of its sums and the covariance at once.
    numbers = max(shape.classes * shape.edge * shape.stride, shape.edge**2 * shape.line)
    if shape.whole_rows:
        numbers = shape.threads * shape.vector_stride * shape.vector
    shares = tile + numbers
    if shape.whole_rows:
        numbers += shape.parts * shape.vectors * shape.vector
    multiplied = tile + shape.elements * shape.tile_rows
    if spec.source == MULTIPLIED:
        # If threads share a row, the tile of the weights and the activations that it multiplies
        # are in shared memory; the shares of the products always are.
        shared = shape.elements * (shape.tile_rows + shape.padded) if shape.groups > 1 else 0
        numbers = max(numbers + 4 * shape.per_round * shape.share_line, shared)
    end = tile64 * 8 + -(-max(numbers * size, n * (n + 1) * 8) // 8) * 8
    return _Places(
        totals, diagonal, column, means, grand, units, partial, moments, flags, twin, zero, words,
        factor, tile, tile, multiplied, shares, tile64, end,
    )  # fmt: skip


class Room(NamedTuple):
    """Offsets of a backward pass in shared memory, in numbers of each array's own type."""

    # float64: the pivots of what the layer saw
    seen: int
    # The type of rows: the factor of what the layer saw, that of δᵀδ, and `mixing`.
    factor: int
    root: int
    mixing: int
    first: int
    second: int
    delta: int
    bytes: int

    @property
    def most_registers(self) -> int:
        """The largest number of registers of a thread."""
        # Blocks have at most 128 threads, so that fewer registers would not let more of them run.
        blocks = max(1, _SHARED_OF_PROCESSOR // self.bytes)
        return MOST_REGISTERS if blocks > 2 else 255


def room_of(shape: Shape) -> Room:
    """Return where the arrays are; the gradient is the tile of `shape`, δᵀδ has its factor."""
    n, size = shape.spec.columns, np.dtype(shape.spec.dtype).itemsize
    seen = shape.bytes // 8
    factor = -(-(seen + n) * 8 // _VECTOR) * _VECTOR // size
    mixing = factor + n * shape.padded
    first = mixing + n * shape.padded
    tile = shape.cross_classes * shape.cross_edge * shape.stride
    second = first + tile
    end = -(-(second + tile) * size // 8) * 8
    return Room(seen, factor, shape.at.factor, mixing, first, second, shape.at.tile, end)
