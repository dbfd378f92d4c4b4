"""The Gram matrix of rows in registers, in Numba's simulator: the product in NumPy."""

from unittest import mock

import numpy as np
import pytest
from simulator import fast_simulator

from bnmc import Activation
from bnmc._kernels.gpu import device, shape
from bnmc._kernels.gpu.block import begin
from bnmc._kernels.gpu.build import constants_of
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.gram import store_gram
from bnmc._kernels.gpu.sums import add_quads, clear_sums
from bnmc._kernels.scalar.codes import NORM_CENTRED
from bnmc.chain.activations import sigma_of


@pytest.fixture(scope="module", autouse=True)
def simulator():
    with fast_simulator():
        yield


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
        own = shape.shape_of(spec)
    assert own.passes == passes
    assert own.parts > 1 or threads == 16
    kind, numbers = constants_of(own)["kind"], 4 * columns

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

    add = device.Linker(constants_of(own)).kernel(add, 255)

    rows = np.random.default_rng(6).standard_normal((2, threads, 4, columns)).astype(dtype)
    found = np.zeros((columns, columns))
    device.launch(add, 1, threads, own.bytes, 0, rows, found)
    flat = rows.reshape(-1, columns).astype(float)
    unit = np.finfo(dtype).eps
    # Sums of 4 rows and of up to 16 threads are in the type of the rows.
    np.testing.assert_allclose(
        found, flat.T @ flat, rtol=0, atol=20 * unit * (flat**2).sum(0).max()
    )
