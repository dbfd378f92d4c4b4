"""Arrays that a user has on a GPU: rows to start from, and room for results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import current_device, free_memory, is_out_of_memory
from bnmc._support.device_arrays import as_device_array
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError


class DeviceRows:
    """Layer 0 before its normalization, in the memory of a GPU.

    Parameters
    ----------
    array : (chains or 1, width, batch) array of a device, or ndarray
        The array of the user, not a copy; or rows on their way to another device.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def array(self) -> Any:
        """The rows on a device: the current one if they are on the host."""
        is_away = isinstance(self._array, np.ndarray)
        return numba_cuda.to_device(self._array) if is_away else self._array

    def part(self, first: int, last: int) -> DeviceRows:
        """Return the rows of some chains, on the host until a device takes them."""
        rows = self._array.copy_to_host()
        return DeviceRows(rows[first:last] if len(rows) > 1 else rows)

    @classmethod
    def of(cls, initial: Any, chain: Chain, chains: int, inputs: int | None) -> DeviceRows:
        """Return the start from an array of a device, or raise a typed error."""
        array = _taken("initial", initial)
        lengths = (chain.width, chain.batch)
        if inputs is not None:
            raise ArgumentError("inputs", inputs, "None for an initial array of a device")
        if array.shape not in (lengths, (chains, *lengths)):
            wanted = f"{lengths} or {(chains, *lengths)}, that is (chains, width, batch)"
            raise ArgumentError("initial", array.shape, wanted)
        if array.dtype not in (np.float32, np.float64):
            raise ArgumentTypeError("initial", str(array.dtype), "float32 or float64")
        if not array.is_c_contiguous():
            raise ArgumentError("initial", "strides", "a C-contiguous array of a device")
        return cls(array.reshape(chains if array.ndim == 3 else 1, *lengths))


def device_result(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the user's array for the Gram matrices of all chains, or raise a typed error."""
    result = _taken("out", array)
    if result.dtype != np.float64:
        raise ArgumentTypeError("out", str(result.dtype), "a float64 array for 'gram'")
    if tuple(result.shape) != shape or not result.is_c_contiguous():
        raise ArgumentError("out", tuple(result.shape), f"a C-contiguous array {shape} for 'gram'")
    return result


def _taken(name: str, array: Any) -> Any:
    """Return an array of any library as an array of Numba."""
    return numba_cuda.as_cuda_array(as_device_array(name, array, current_device()))


@contextmanager
def device_memory(name: str, size: int, hint: str) -> Iterator[None]:
    """Raise a typed error if `size` bytes for an argument exceed the memory of the device."""
    free = free_memory()
    if size > free:
        raise ResultTooLargeError(name, size, free, hint)
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise ResultTooLargeError(name, size, free_memory(), hint) from error
        raise
