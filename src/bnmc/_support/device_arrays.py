"""Arrays of any library in the memory of a GPU, read without a copy.

Two protocols give access to such arrays: the CUDA array interface of Numba, and DLPack. An array
that has DLPack only is wrapped in a view with the CUDA array interface.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError

# Codes of the DLPack standard: of devices, and of floating-point numbers.
_CUDA, _CUDA_MANAGED = 2, 13
_FLOAT = 2

#: The default stream in DLPack and in the CUDA array interface.
_DEFAULT_STREAM = 1


def is_device_array(value: object) -> bool:
    """Whether a value is an array in the memory of a GPU."""
    return hasattr(value, "__cuda_array_interface__") or _device_of(value) is not None


def as_device_array(name: str, value: Any, current: int) -> Any:
    """Return an array of the current device with ``__cuda_array_interface__``.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        An array for which `is_device_array` is true.
    current : int
        Number of the current device.

    Returns
    -------
    object
        `value` itself, or a view of its memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the array is on another device, or is neither float32 nor float64.
    """
    if hasattr(value, "__cuda_array_interface__"):
        return value
    number = _device_of(value)
    if number != current:
        raise ArgumentError(name, f"on device {number}", f"an array of device {current}")
    return _View(name, value)


def to_host(name: str, value: Any) -> Any:
    """Return a copy of an array of a GPU as a NumPy array.

    Raises
    ------
    BackendError
        If this process cannot use a GPU.
    ArgumentError, ArgumentTypeError
        As in `as_device_array`.
    """
    from bnmc._kernels.gpu.device import cuda, current_device, why_not

    reason = why_not()
    if reason is not None:
        raise BackendError("cuda", f"{name} is an array of a GPU, and {reason}")
    return cuda.as_cuda_array(as_device_array(name, value, current_device())).copy_to_host()


def require_gpu(executor: object) -> None:
    """Raise if an executor is given, or kernels cannot run on a GPU of this machine.

    Raises
    ------
    ArgumentError, BackendError
    """
    from bnmc._kernels.gpu.device import why_not

    if executor is not None:
        raise ArgumentError("executor", executor, "None with backend='cuda'")
    if reason := why_not():
        raise BackendError("cuda", reason)


def _device_of(value: object) -> int | None:
    """Return the number of the GPU of an array with DLPack, or None."""
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        return None
    try:
        kind, number = value.__dlpack_device__()
    except (BufferError, RuntimeError, TypeError, ValueError):  # e.g. on several devices
        return None
    return int(number) if kind in (_CUDA, _CUDA_MANAGED) else None


class _Tensor(ctypes.Structure):
    """DLTensor of the DLPack standard, the first field of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _View:
    """A view with the CUDA array interface of an array that another library exports by DLPack.

    The view keeps the capsule under its original name; so the capsule, when it is deleted, releases
    the array of the other library.
    """

    def __init__(self, name: str, array: Any) -> None:
        self._capsule = array.__dlpack__(stream=_DEFAULT_STREAM)
        tensor = _Tensor.from_address(_pointer_of(self._capsule, b"dltensor"))
        if (tensor.code, tensor.lanes) != (_FLOAT, 1) or tensor.bits not in (32, 64):
            what = f"DLPack type {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes"
            raise ArgumentTypeError(name, what, "float32 or float64")
        size = tensor.bits // 8
        self.shape: tuple[int, ...] = tuple(tensor.shape[: tensor.ndim])
        self.ndim = tensor.ndim
        strides = None
        if tensor.strides:
            strides = tuple(size * stride for stride in tensor.strides[: tensor.ndim])
        address = (tensor.data or 0) + tensor.byte_offset
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": f"<f{size}",
            # The interface requires address 0 for an array without elements.
            "data": (address if math.prod(self.shape) else 0, False),
            "strides": strides,
            "stream": _DEFAULT_STREAM,
            "version": 3,
        }

    def __len__(self) -> int:
        return self.shape[0]
