"""Arrays of other libraries: taken without a copy, kept as they are, refused by name."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc import gram
from bnmc._support.arguments import finite_array, host_array
from bnmc.errors import ArgumentTypeError, BackendError

CHAIN = bnmc.Chain(20, 3, "relu")
START = np.random.default_rng(0).standard_normal((20, 3))


class ByArray:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


class ByDLPack:
    def __init__(self, values):
        self.__dlpack_device__, self._export = values.__dlpack_device__, values.__dlpack__

    def __dlpack__(self, **options):
        return self._export(**options)


class ByInterface:
    def __init__(self, values):
        self.values, self.__array_interface__ = values, values.__array_interface__


class Refusing(ByArray):
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


KINDS = [ByArray, ByDLPack, ByInterface, memoryview]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_taken_without_a_copy_and_in_their_dtype(kind, dtype):
    values = START.astype(dtype)
    result = finite_array("a", kind(values), shape=("width", "batch"))
    assert np.shares_memory(result, values)
    assert result.dtype == values.dtype
    activation = bnmc.Activation.named("relu")(kind(values))
    np.testing.assert_array_equal(activation, np.maximum(values, 0))
    assert activation.dtype == values.dtype
    np.testing.assert_array_equal(gram.gram(kind(values)), gram.gram(values))


@pytest.mark.parametrize("kind", [*KINDS, np.ndarray.tolist])
@pytest.mark.parametrize("leading", [(), (2,)])
def test_a_start_of_any_kind(kind, leading):
    start = np.broadcast_to(START, (*leading, 20, 3)).copy()
    plain = bnmc.simulate(CHAIN, 0, initial=start, rng=0)
    result = bnmc.simulate(CHAIN, 0, initial=kind(start), rng=0)
    assert result.chains == plain.chains == (leading or (1,))[0]
    np.testing.assert_array_equal(result.gram, plain.gram)
    np.testing.assert_array_equal(bnmc.FirstLayer(kind(START)).x, START)


def test_input_is_read_only_and_stays():
    start = START.copy()
    start.flags.writeable = False
    bnmc.simulate(CHAIN, 0, initial=start, rng=0)
    gram.gram(start)
    np.testing.assert_array_equal(start, START)


def test_no_copy_of_large_input():
    """Whether all is finite takes a byte an entry; a copy would take eight."""

    def peak_of(value):
        tracemalloc.start()
        gram.gram(value)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    large = np.ones((200_000, 4))
    for value in (large, large[::2], ByDLPack(large)):
        assert peak_of(value) < 0.25 * large.nbytes
    # What is converted is copied, and the method sees it.
    assert peak_of(large.astype(np.float32)) > large.nbytes


def test_what_refuses_to_be_read():
    for call in (gram.gram, bnmc.FirstLayer, bnmc.Activation.named("relu")):
        with pytest.raises(ArgumentTypeError, match="call detach"):
            call(Refusing(START))
    with pytest.raises(ArgumentTypeError, match="initial.*call detach"):
        bnmc.simulate(CHAIN, 1, initial=Refusing(START))
    with pytest.raises(ArgumentTypeError, match="array of real numbers"):
        host_array("a", [[1.0], [1.0, 2.0]])


class OnDevice:
    """An array of a GPU, as the CUDA array interface shows it."""

    def __init__(self, values):
        self.values = values
        self.__cuda_array_interface__ = {"shape": values.shape}

    def copy_to_host(self):
        return self.values.copy()


def test_arrays_of_a_gpu_are_copied_to_the_host():
    with (
        mock.patch("bnmc._kernels.gpu.device.why_not", return_value=None),
        mock.patch("bnmc._kernels.gpu.device.current_device", return_value=0),
        mock.patch("bnmc._kernels.gpu.device.cuda.as_cuda_array", lambda array: array, create=True),
    ):
        np.testing.assert_array_equal(gram.gram(OnDevice(START)), gram.gram(START))
        np.testing.assert_array_equal(bnmc.FirstLayer(OnDevice(START)).x, START)
    with (
        mock.patch("bnmc._kernels.gpu.device.why_not", return_value="there is none"),
        pytest.raises(BackendError, match="a is an array of a GPU, and there is none"),
    ):
        gram.gram(OnDevice(START))


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_tensors(library):
    if library == "torch":
        torch = pytest.importorskip("torch")
        values, needs_gradient = torch.from_numpy(START), torch.ones(2, 2, requires_grad=True)
        assert np.shares_memory(finite_array("a", values, shape=("n", "m")), START)
        with pytest.raises(ArgumentTypeError, match="detach"):
            gram.gram(needs_gradient)
    else:
        values = pytest.importorskip("jax").numpy.asarray(START.astype(np.float32))
    expected = gram.gram(np.asarray(values))
    np.testing.assert_array_equal(gram.gram(values), expected)
