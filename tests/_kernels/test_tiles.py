"""The products of the columns of two tiles on a GPU, in Numba's simulator: those of NumPy."""

from unittest import mock

import numpy as np
import pytest
from simulator import fast_simulator

from bnmc import Activation
from bnmc._kernels.gpu import device, shape
from bnmc._kernels.gpu.block import begin
from bnmc._kernels.gpu.build import constants_of
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.tiles import add_cross
from bnmc._kernels.scalar.codes import NORM_CENTRED
from bnmc.chain.activations import sigma_of


@pytest.fixture(scope="module", autouse=True)
def simulator():
    with fast_simulator():
        yield


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("columns", "has_shares"), [(3, True), (17, True), (34, False)])
def test_sums_of_products(dtype, columns, has_shares):
    """Threads share the rows of a square; if there are more squares than threads, one has all."""
    digest = sigma_of(Activation.named("tanh")).digest
    spec = shape.Spec(columns, columns, NORM_CENTRED, False, False, dtype, digest, slope=digest)
    with mock.patch.object(shape, "MOST_THREADS_BACKWARD", 16):
        own = shape.shape_of(spec)
    assert (own.threads >= own.cross_classes**2) == has_shares
    room = shape.room_of(own)
    stride, rows = own.stride, own.tile_rows
    first, second, delta = room.first, room.second, room.delta
    kind = constants_of(own)["kind"]

    def add(left, right, sums):
        numbers = cuda.shared.array(0, kind)
        begin()
        for at in range(cuda.threadIdx.x, columns * rows, cuda.blockDim.x):
            c, row = at // rows, at % rows
            numbers[first + c * stride + row] = left[c, row]
            numbers[second + c * stride + row] = right[c, row]
        cuda.syncthreads()
        add_cross(first, second, delta, sums, 2)

    add = device.Linker(constants_of(own, room)).kernel(add, 255)

    rng = np.random.default_rng(columns)
    left, right = rng.standard_normal((2, columns, rows)).astype(dtype)
    found = np.ones(2 + columns**2)
    device.launch(add, 1, own.threads, room.bytes, 0, left, right, found)
    assert (found[:2] == 1.0).all()
    a, b = left.astype(float), right.astype(float)
    # Sums of up to all rows are in the type of the rows.
    bound = rows * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b).T + 1.0)
    assert (np.abs(found[2:].reshape(columns, columns) - 1.0 - a @ b.T) <= bound).all()
