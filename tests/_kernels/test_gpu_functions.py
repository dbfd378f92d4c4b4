"""Device functions in Numba's simulator: products as in NumPy, random numbers as on the CPU."""

from unittest import mock

import numpy as np
import pytest
from numba import int64
from oracle import philox, weights

from bnmc import Activation
from bnmc._kernels.gpu import device, shape, words
from bnmc._kernels.gpu.block import NOT_STOPPED, STOPPED_NOT_FINITE, begin
from bnmc._kernels.gpu.box_muller import radius32, sincos32
from bnmc._kernels.gpu.build import constants_of
from bnmc._kernels.gpu.device import cuda, device_function
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.rows import measure_row
from bnmc._kernels.gpu.sums import add_quads, clear_sums
from bnmc._kernels.gpu.tiles import add_cross
from bnmc._kernels.scalar import codes, normal
from bnmc._kernels.scalar.codes import NORM_CENTRED
from bnmc.chain.activations import sigma_of

pytestmark = [pytest.mark.usefixtures("simulator"), pytest.mark.filterwarnings("ignore:Grid size")]


@pytest.mark.parametrize(
    ("dtype", "columns", "passes"),
    [
        ("float32", 1, 1),
        ("float32", 10, 2),
        ("float32", 16, 4),
        ("float64", 3, 1),
        ("float64", 8, 2),
    ],
)
@pytest.mark.parametrize("threads", [16, 64])
def test_sums_of_quads(dtype, columns, passes, threads):
    """Two tiles, and as many parts as the threads of a block make."""
    digest = sigma_of(Activation.named("relu")).digest
    spec = shape.Spec(columns, columns, NORM_CENTRED, False, False, dtype, digest)
    with mock.patch.object(shape, "MOST_THREADS", threads):
        block = shape.shape_of(spec)
    assert block.passes == passes
    assert block.parts > 1 or threads == 16
    kind, numbers = constants_of(block)["kind"], 4 * columns

    def add(rows, out):
        quad = cuda.local.array(numbers, kind)
        begin()
        clear_sums()
        for tile in range(rows.shape[0]):
            for c in range(columns):
                for k in range(4):
                    quad[4 * c + k] = rows[tile, cuda.threadIdx.x, k, c]
            add_quads(quad)
        store_gram(out)

    add = device.Linker(constants_of(block)).kernel(add, 255)

    rows = np.random.default_rng(6).standard_normal((2, threads, 4, columns)).astype(dtype)
    product = np.zeros((columns, columns))
    device.launch(add, 1, threads, block.bytes, 0, rows, product)
    flat = rows.reshape(-1, columns).astype(float)
    unit = np.finfo(dtype).eps
    # Sums of 4 rows and of up to 16 threads are in the type of the rows.
    np.testing.assert_allclose(
        product, flat.T @ flat, rtol=0, atol=20 * unit * (flat**2).sum(0).max()
    )


# --- rows whose squares are no normal numbers


RANGES = [
    ((1.0, -1.0), NOT_STOPPED, NOT_STOPPED),
    ((0.0, 0.0), 3, NOT_STOPPED),
    ((3.0, 3.0), 3, NOT_STOPPED),
    ((2.0**-50, -(2.0**-50)), NOT_STOPPED, NOT_STOPPED),  # the least variance
    ((2.0**-51, -(2.0**-51)), STOPPED_NOT_FINITE, NOT_STOPPED),
    ((2.0**60, -(2.0**60)), STOPPED_NOT_FINITE, STOPPED_NOT_FINITE),  # the first that is too large
    ((2.0**59, -(2.0**59)), NOT_STOPPED, NOT_STOPPED),
    ((np.nan, 1.0), 3, STOPPED_NOT_FINITE),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in which the simulator computes
@pytest.mark.parametrize("centred", [False, True])
def test_notes_of_rows_beyond_float32(centred):
    """Without eps and with it, for row 3 of 4, and none for row 4, which is padding."""
    digest = sigma_of(Activation.named("tanh")).digest
    # Rows that are drawn with a centred covariance keep their mean, which is rounding.
    block = shape.shape_of(
        shape.Spec(2, 2, NORM_CENTRED, False, False, "float32", digest, centred=centred)
    )

    kind, at_flags = (constants_of(block)[name] for name in ("kind", "at_flags"))

    def measure(rows, width, out):
        numbers = cuda.local.array(2, kind)
        whole = cuda.shared.array(0, int64)
        for case in range(rows.shape[0]):
            for eps in range(2):
                for row in range(3, 5):
                    whole[at_flags] = NOT_STOPPED
                    for i in range(2):
                        numbers[i] = rows[case, i]
                    measure_row(numbers, 0, 1, row, width, np.float32(eps))
                    out[case, eps, row - 3] = whole[at_flags]

    measure = device.Linker(constants_of(block)).kernel(measure, 255)
    rows = np.array([values for values, *_ in RANGES], np.float32)
    notes = np.zeros((len(rows), 2, 2), np.int64)
    device.launch(measure, 1, 1, block.bytes, 0, rows, 4, notes)
    expected = np.array([notes for _, *notes in RANGES])
    if centred:
        expected[2] = NOT_STOPPED
    np.testing.assert_array_equal(notes[..., 0], expected)
    assert (notes[..., 1] == NOT_STOPPED).all()


# --- the products of the columns of two tiles on a GPU, in Numba's simulator: those of NumPy


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("columns", "has_shares"), [(3, True), (17, True), (34, False)])
def test_sums_of_products(dtype, columns, has_shares):
    """Threads share the rows of a square; if there are more squares than threads, one has all."""
    digest = sigma_of(Activation.named("tanh")).digest
    spec = shape.Spec(columns, columns, NORM_CENTRED, False, False, dtype, digest, slope=digest)
    with mock.patch.object(shape, "MOST_THREADS_BACKWARD", 16):
        block = shape.shape_of(spec)
    assert (block.threads >= block.cross_classes**2) == has_shares
    room = shape.room_of(block)
    stride, rows = block.stride, block.tile_rows
    first, second, delta = room.first, room.second, room.delta
    kind = constants_of(block)["kind"]

    def add(left, right, sums):
        numbers = cuda.shared.array(0, kind)
        begin()
        for at in range(cuda.threadIdx.x, columns * rows, cuda.blockDim.x):
            c, row = at // rows, at % rows
            numbers[first + c * stride + row] = left[c, row]
            numbers[second + c * stride + row] = right[c, row]
        cuda.syncthreads()
        add_cross(first, second, delta, sums, 2)

    add = device.Linker(constants_of(block, room)).kernel(add, 255)

    rng = np.random.default_rng(columns)
    left, right = rng.standard_normal((2, columns, rows)).astype(dtype)
    products = np.ones(2 + columns**2)
    device.launch(add, 1, block.threads, room.bytes, 0, left, right, products)
    assert (products[:2] == 1.0).all()
    a, b = left.astype(float), right.astype(float)
    # Sums of up to all rows are in the type of the rows.
    bound = rows * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b).T + 1.0)
    assert (np.abs(products[2:].reshape(columns, columns) - 1.0 - a @ b.T) <= bound).all()


# --- philox in two parts, in Numba's simulator: the words of the whole, to the bit


def test_parts_are_the_whole():
    draws = np.random.default_rng(3).integers(0, 2**32, (60, 6), dtype=np.uint32)
    draws[0], draws[1], draws[2, 3:] = 0, 2**32 - 1, 2**32 - 1
    results = np.zeros((60, 4), np.uint32)
    words_of_element, words_of_quad, finish_words = (
        device_function(function)
        for function in (words.words_of_element, words.words_of_quad, words.finish_words)
    )

    @cuda.jit
    def fill(draws, out):
        for i in range(draws.shape[0]):
            element, quad, layer, stream, k0, k1 = draws[i]
            e0, e1, e2, e3 = words_of_element(element, layer, stream, k0, k1)
            q0, q1 = words_of_quad(quad, layer, k0)
            out[i] = finish_words(e0, e1, e2, e3, q0, q1, k0, k1)

    fill[1, 1](draws, results)
    *counter, k0, k1 = draws.T
    for row, result in enumerate(results):
        expected = philox([word[row : row + 1] for word in counter], (k0[row], k1[row]))
        assert np.array_equal(result, np.concatenate(expected))


# --- random numbers of the four rows of a quad on a GPU, in Numba's simulator: those of the CPU


@pytest.mark.parametrize(
    ("law", "four", "dtype"),
    [
        (codes.UNIFORM, normal.centred_uniforms.single, np.float32),
        (codes.UNIFORM, normal.centred_uniforms.double, np.float64),
        (codes.RADEMACHER, normal.signs.single, np.float32),
    ],
)
def test_all_four_rows_of_a_quad_have_their_weights(law, four, dtype):
    """Rows 16 apart; narrow layers have no row for the last numbers of a quad."""
    four = device_function(four)
    draw = codes.Draw(
        9, np.uint32(codes.STREAM_WEIGHTS | np.uint32(5)), np.uint32(7), np.uint32(2**32 - 1)
    )

    @cuda.jit
    def fill(out, stream, k0, k1):
        for quad in range(32):
            quads = four(np.uint32(7), np.uint32(quad), 9, stream, k0, k1)
            for j in range(4):
                out[64 * (quad // 16) + quad % 16 + 16 * j] = quads[j]

    out = cuda.to_device(np.zeros(128, dtype))
    fill[1, 1](out, *draw[1:])
    exact = weights(law, np.array([7]), np.arange(128), draw, dtype)[0]
    assert np.abs(out.copy_to_host() - exact).max() <= 2 * np.finfo(dtype).eps


# --- radius and angle of float32 normals on a GPU, in Numba's simulator: the formula in float64


#: Ends of quadrants and of eighths of a turn, the largest uniforms, and words by chance.
WORDS = np.concatenate([
    [0, 1, 2**32 - 1, 2**32 - 128, 2**32 - 129, 2**32 - 256, 3037000500],
    (np.arange(1, 16) * 2**28)[:, None].repeat(3, 1).ravel() + np.tile([-1, 0, 1], 15),
    np.random.default_rng(4).integers(0, 2**32, 1000),
]).astype(np.uint32)  # fmt: skip


def test_the_formula():
    results = np.zeros((len(WORDS), 3), np.float32)
    radius, sincos = device_function(radius32), device_function(sincos32)

    @cuda.jit
    def fill(words, out):
        for i in range(words.size):
            out[i, 0] = radius(words[i])
            out[i, 1], out[i, 2] = sincos(words[i])

    fill[1, 1](WORDS, results)
    # The uniform is rounded to float32, and is less than 1.
    below_one = np.float32(2.0**32 - 256.0)
    uniform = np.minimum(WORDS.astype(np.float32) + np.float32(0.5), below_one).astype(float)
    angle = 2.0 * np.pi * (WORDS.astype(float) + 0.5) / 2.0**32
    expected = np.stack(
        [np.sqrt(-2.0 * np.log(uniform / 2.0**32)), np.sin(angle), np.cos(angle)], axis=1
    )
    # Sine and cosine in float64 have absolute errors of an ulp of the angle.
    error = np.abs(results - expected) - 2.0**-50
    assert (error <= 4 * 2.0**-23 * np.abs(expected)).all()
