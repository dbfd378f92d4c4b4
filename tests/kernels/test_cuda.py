"""`bnmc.kernels.cuda`: device functions in kernels of others, in the simulator and as PTX."""

import sys

import numpy as np
import oracle
import pytest
from programs import finished
from slow_cases import some

import bnmc
from bnmc import kernels
from bnmc._kernels.gpu.device import SIMULATED, cuda
from bnmc.errors import UnknownNameError
from bnmc.kernels import cuda as device

# On a GPU Numba warns of small grids.
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

KEY = 0xFEDCBA9876543210
WORDS = np.uint32(KEY & 0xFFFFFFFF), np.uint32(KEY >> 32)


def launched(kernel, threads, *arrays):
    """Run a kernel of one block on arrays, which are changed."""
    held = [cuda.to_device(array) for array in arrays]
    kernel[1, threads](*held)
    for array, on_device in zip(arrays, held, strict=True):
        array[...] = on_device.copy_to_host()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["normals", "uniforms"])
def test_numbers_are_those_of_the_cpu(name, dtype):
    four = getattr(device, name)(dtype)
    stream, (key0, key1) = np.uint32(kernels.Stream.WEIGHTS + 5), WORDS

    @cuda.jit
    def fill(out):
        quad = cuda.threadIdx.x
        numbers = four(7, quad, 9, stream, key0, key1)
        for j in range(4):
            out[64 * (quad // 16) + quad % 16 + 16 * j] = numbers[j]

    out, expected = np.zeros(128, dtype), np.zeros(128, dtype)
    launched(fill, 32, out)
    getattr(kernels, name)(expected, 7, 0, 9, 5, np.uint64(KEY), kernels.Stream.WEIGHTS)
    # The CPU contracts products and sums; radius and angle are sums of a few terms.
    unit = np.finfo(dtype).eps if name == "normals" else 0.0
    np.testing.assert_allclose(out, expected, rtol=0, atol=16 * unit)


def test_words():
    philox = device.philox()

    @cuda.jit
    def fill(out):
        out[0], out[1], out[2], out[3] = philox(1, 2, 3, 4, 5, 6)

    out = np.zeros(4, np.uint32)
    launched(fill, 1, out)
    assert tuple(out) == tuple(int(word) for word in oracle.philox((1, 2, 3, 4), (5, 6)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "none"])
def test_rows(norm, dtype):
    row = device.normalise_activate_row("relu", norm, dtype)
    eps = 0.1

    @cuda.jit
    def rows(h, out, status):
        t = cuda.threadIdx.x
        status[t] = row(h[t], out[t], eps if t % 2 else 0.0)

    h = np.random.default_rng(0).standard_normal((6, 5)).astype(dtype) + 1
    h[3] = h[4] = 0 if norm == "batch-uncentred" else 0.1
    out, status = np.full_like(h, -1), np.zeros(6, np.int64)
    launched(rows, 6, h, out, status)
    expected = np.full_like(h, -1)
    for t in range(6):
        if t != 4 or norm == "none":
            normalised = oracle.normalise(h[t : t + 1].astype(float), norm, 5, eps * (t % 2))
            expected[t] = np.maximum(normalised[0], 0)
    # Where a row of 5 equal entries is centred, its mean is right to a few units.
    np.testing.assert_allclose(out, expected, rtol=0, atol=64 * np.finfo(dtype).eps)
    without = [t == 4 and norm != "none" for t in range(6)]
    np.testing.assert_array_equal(
        status, np.where(without, kernels.Status.ZERO_VARIANCE, kernels.Status.OK)
    )


@pytest.mark.parametrize("dtype", some(["float64", "float32"], "float64"))
def test_the_least_variance_of_a_row_is_that_of_the_cpu(dtype):
    """The rows are 1 and 1 + 2k units of rounding: their variance is k² units squared.

    A row of n entries has a variance if it exceeds (n units)² of its mean square, so if k > 2.
    """
    row = device.normalise_activate_row("linear", "batch", dtype)

    @cuda.jit
    def rows(h, out, status):
        status[cuda.threadIdx.x] = row(h[cuda.threadIdx.x], out[cuda.threadIdx.x], 0.0)

    h = np.ones((4, 2), dtype)
    h[:, 1] += 2 * np.arange(1, 5).astype(dtype) * np.finfo(dtype).eps
    out, status = np.zeros_like(h), np.full(4, -1)
    launched(rows, 4, h, out, status)
    assert status.tolist() == [kernels.Status.ZERO_VARIANCE] * 2 + [kernels.Status.OK] * 2
    np.testing.assert_array_equal(out, [[0, 0], [0, 0], [-1, 1], [-1, 1]])
    chain = bnmc.Chain(4, 2, "linear")
    law, work = kernels.law(chain), kernels.workspace(chain, dtype)
    linear = kernels.activation("linear")
    for row_of_cpu, expected in zip(h, status, strict=True):
        of_cpu = kernels.normalise_activate_row(linear, law, row_of_cpu, np.zeros(2, dtype), work)
        assert of_cpu == expected


def test_activations_of_the_user():
    swish = bnmc.Activation(lambda x: x / (1 + np.exp(-2 * x)), name="swish")
    function = device.activation(swish, "float64")

    @cuda.jit
    def apply(values):
        values[cuda.threadIdx.x] = function(values[cuda.threadIdx.x])

    values = np.linspace(-3, 3, 8)
    expected = swish(values)
    launched(apply, 8, values)
    np.testing.assert_allclose(values, expected, rtol=2**-48)


def test_bad_arguments_are_refused():
    for call in (
        lambda: device.normals("float16"),
        lambda: device.uniforms("int64"),
        lambda: device.activation("rellu", "float64"),
        lambda: device.normalise_activate_row("relu", "layer", "float64"),
    ):
        with pytest.raises(UnknownNameError):
            call()


COMPILE = """
from unittest import mock
import numba.cuda.dispatcher
import numpy as np
from numba import types
from bnmc._kernels.gpu.device import cuda
from bnmc.kernels import cuda as device

row = device.normalise_activate_row("tanh", "batch", "float32")
four, uniform = device.normals("float32"), device.uniforms("float64")

def user(h, out, numbers):
    t = cuda.grid(1)
    a = four(0, t, 1, np.uint32(0), np.uint32(1), np.uint32(2))
    b = uniform(0, t, 1, np.uint32(0), np.uint32(1), np.uint32(2))
    numbers[t] = a[0] + b[3]
    row(h[t], out[t], 0.0)

rows = types.Array(types.float32, 2, "C")
gpu = mock.Mock(compute_capability=(9, 0))
with mock.patch.object(numba.cuda.dispatcher, "get_current_device", return_value=gpu):
    signature = types.void(rows, rows, types.Array(types.float64, 1, "C"))
    print(cuda.compile_ptx(user, signature, cc=(9, 0))[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NVVM is for Linux alone")
@pytest.mark.skipif(not SIMULATED, reason="the GPU has compiled them already")
# `_kernels/test_gpu_ptx.py` compiles kernels of the same functions each time.
@pytest.mark.slow
def test_they_compile_for_a_gpu():
    done = finished("-c", COMPILE, NUMBA_ENABLE_CUDASIM="0")
    assert ".entry" in done.stdout
    assert "call.uni" not in done.stdout
