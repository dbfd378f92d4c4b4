"""Numba's CUDA target: compiles plain functions for the device, finds devices, launches kernels.

No other file imports the target.  The functions of `scalar` are plain Python.  `device_function`
compiles a copy of a function whose globals are device functions too.  If NUMBA_ENABLE_CUDASIM=1 is
set before the import, kernels run as Python in Numba's simulator: slowly, and without a device.
"""

from __future__ import annotations

import importlib
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numba import config, types
from numba import cuda as _cuda

from bnmc._kernels.scalar import normal, philox
from bnmc._kernels.scalar.precisions import functions_of

__all__ = [
    "SIMULATED",
    "cuda",
    "current_device",
    "device_function",
    "device_module",
    "devices",
    "free_memory",
    "inlined",
    "inverse_root32",
    "inverse_root64",
    "is_out_of_memory",
    "kernel",
    "launch",
    "processors",
    "ready",
    "shared_memory",
    "why_not",
]

#: Typed as Any, because Numba annotates neither its CUDA target nor the simulator.
cuda: Any = _cuda
SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))

# The simulator runs one kernel at a time.
_simulator = threading.Lock()
# `warnings.catch_warnings` is not thread-safe.
_configuring = threading.Lock()

#: Bytes of shared memory that a block may have unless the kernel requests more.
MOST_SHARED_BY_DEFAULT = 48 * 1024

# The device's scalar functions, by NumPy's names.
_OF_MATH = {
    "abs": abs, "absolute": abs, "arctan": math.atan, "arctanh": math.atanh,
    "arcsinh": math.asinh, "ceil": math.ceil, "cos": math.cos, "cosh": math.cosh, "exp": math.exp,
    "expm1": math.expm1, "fabs": math.fabs, "floor": math.floor, "isfinite": math.isfinite,
    "isinf": math.isinf, "isnan": math.isnan, "log": math.log, "log1p": math.log1p,
    "log2": math.log2, "maximum": max, "minimum": min, "power": math.pow, "sin": math.sin,
    "sinh": math.sinh, "sqrt": math.sqrt, "tan": math.tan, "tanh": math.tanh,
}  # fmt: skip
# NumPy's types and constants, which Numba knows on the device.
_KEPT = [
    "bool_",
    "e",
    "euler_gamma",
    "float32",
    "float64",
    "inf",
    "int32",
    "int64",
    "intp",
    "nan",
    "pi",
    "uint32",
    "uint64",
    "uintp",
]


@cache
def _numpy() -> ModuleType:
    """Return the module that replaces NumPy in device functions."""
    if SIMULATED:
        return np
    module = ModuleType("numpy_on_device")
    for name in _KEPT:
        setattr(module, name, getattr(np, name))
    for name, function in _OF_MATH.items():
        setattr(module, name, function)
    return module


def _on_device(value: Any) -> Any:
    """Return the value on the device of a global or captured variable of a function."""
    if value is np:
        return _numpy()
    if isinstance(value, FunctionType):
        return device_function(value)
    if hasattr(value, "py_func"):
        return device_function(value.py_func)
    if isinstance(value, np.ufunc):
        return getattr(_numpy(), value.__name__, value)
    return value


@cache
def device_function(function: Callable[..., Any]) -> Any:
    """Compile a plain function, and the functions that it calls, for the device."""
    if function in _INSTRUCTIONS:
        return _INSTRUCTIONS[function]
    code = function.__code__
    named = _names(code)
    variables = {
        name: _on_device(value) for name, value in function.__globals__.items() if name in named
    }
    variables["__builtins__"] = function.__globals__.get("__builtins__", __builtins__)
    variables["__name__"] = function.__module__
    cells = tuple(CellType(_on_device(cell.cell_contents)) for cell in function.__closure__ or ())
    copy = FunctionType(code, variables, function.__name__, function.__defaults__, cells)
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    # The simulator would only add the cost of its own call.
    return copy if SIMULATED else cuda.jit(device=True)(copy)


def _instruction(text: str, returned: str, taken: str, arguments: int = 1) -> Any:
    """Return a device function that is one instruction of PTX.

    returned, taken : names of the types of the result and of the arguments after conversion
    """
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    known: dict[str, tuple[Any, Any, str]] = {
        "float32": (types.float32, ir.FloatType(), "f"),
        "uint32": (types.uint32, ir.IntType(32), "r"),
        "uint64": (types.uint64, ir.IntType(64), "l"),
    }
    (kind, of_result, letter), (argument, of_argument, own) = known[returned], known[taken]

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        called = ir.FunctionType(of_result, [of_argument] * arguments)
        constraints = ",".join([f"={letter}"] + [own] * arguments)
        return builder.call(ir.InlineAsm(called, text, constraints, False), values)

    def one(context: Any, x: Any) -> Any:
        return kind(argument), code

    def two(context: Any, x: Any, y: Any) -> Any:
        return kind(argument, argument), code

    return intrinsic(two if arguments == 2 else one)


if SIMULATED:
    _INSTRUCTIONS: dict[Callable[..., Any], Any] = {}

    def inverse_root32(x: Any) -> Any:
        """Return 1 / sqrt(x) of a float32; on a GPU within 2^-22.9 of it."""
        return np.float32(1.0) / np.sqrt(np.float32(x))

    def inverse_root64(x: Any) -> Any:
        """Return 1 / sqrt(x) of a float64; on a GPU to an ulp."""
        return 1.0 / np.sqrt(x)
else:
    # Imported explicitly: if numba-cuda is not installed, Numba's own target does not import it.
    from numba.cuda import libdevice

    #: Functions of `scalar` that are one instruction of the device.  The compiler by itself would
    #: multiply twice for the two halves of a product, and treat roots of subnormal numbers apart.
    _INSTRUCTIONS = {
        philox.product: _instruction("mul.wide.u32 $0, $1, $2;", "uint64", "uint32", 2),
        normal.root32: _instruction("sqrt.approx.ftz.f32 $0, $1;", "float32", "float32"),
    }
    inverse_root32 = _instruction("rsqrt.approx.f32 $0, $1;", "float32", "float32")
    inverse_root64 = libdevice.rsqrt


def kernel(most_registers: int) -> Any:
    """Return the decorator of kernels whose threads have at most `most_registers` registers.

    Kernels are compiled to PTX without link-time optimization, as in the tests, so that launched
    kernels use the number of registers that the tests check.
    """
    if SIMULATED:
        return cuda.jit
    return cuda.jit(max_registers=most_registers, lto=False)


def inlined(function: Any) -> Any:
    """Compile a device function as part of every function that calls it.

    Left to itself, the compiler first simplifies a function, and then decides where to copy it: the
    instructions of a kernel would depend on how its code is divided into functions.
    """
    return cuda.jit(device=True, **({} if SIMULATED else {"forceinline": True}))(function)


def _names(code: Any) -> set[str]:
    """Return the names to which a code object and the code objects inside it refer."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _names(constant)
    return names


def device_module(module: ModuleType) -> SimpleNamespace:
    """Return the functions of a module of `scalar`, compiled for the device."""
    found = {function.__name__: device_function(function) for function in functions_of(module)}
    return SimpleNamespace(**found)


def why_not() -> str | None:
    """Return the reason why kernels cannot run on this machine, or None."""
    if SIMULATED:
        return None
    if find_spec("numba_cuda") is None:
        return 'numba-cuda is not installed: pip install "bnmc[cuda13]" (or cuda12)'
    try:
        count = len(cuda.gpus)
    except Exception as error:  # the driver has error types of its own
        text = " ".join(str(error).split()).rstrip(" :")
        return f"no CUDA driver: {text or type(error).__name__}"
    return None if count else "no CUDA device"


def devices() -> list[int]:
    """Return the numbers of all devices."""
    return [0] if SIMULATED else list(range(len(cuda.gpus)))


def current_device() -> int:
    """Return the number of the current device of this thread."""
    return 0 if SIMULATED else int(cuda.get_current_device().id)


def free_memory() -> int:
    """Return the number of free bytes of device memory."""
    return 1 << 30 if SIMULATED else int(cuda.current_context().get_memory_info().free)


def shared_memory() -> int:
    """Return the largest number of bytes of shared memory of a block."""
    if SIMULATED:
        return 227 * 1024
    return int(cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)


def processors() -> int:
    """Return the number of multiprocessors."""
    return 2 if SIMULATED else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of the driver means that device memory is exhausted."""
    return "OUT_OF_MEMORY" in str(error).upper()


def launch(compiled: Any, grid: Any, threads: int, size: int, stream: Any, *arguments: Any) -> None:
    """Launch a kernel with `size` bytes of shared memory per block."""
    ready(compiled, grid, threads, size, stream, arguments)(*arguments)


def ready(
    compiled: Any, grid: Any, threads: int, size: int, stream: Any, arguments: Sequence[Any]
) -> Callable[..., None]:
    """Return a function that launches a kernel with arguments of the types of `arguments`."""
    if SIMULATED:
        return partial(_simulate, compiled, (grid, threads, stream, size))
    if size > MOST_SHARED_BY_DEFAULT:
        types = tuple(compiled.typeof_pyval(argument) for argument in arguments)
        _allow_shared(compiled.compile(types), size)
    # Numba warns about grids of fewer than 128 blocks, but few chains need no more.
    with _configuring, warnings.catch_warnings(action="ignore"):
        configured: Callable[..., None] = compiled[grid, threads, stream, size]
    return configured


def _simulate(compiled: Any, configuration: Any, *arguments: Any) -> None:
    # In the simulator `compiled[configuration]` changes the kernel, so configure under the lock.
    with _simulator:
        compiled[configuration](*arguments)


def _allow_shared(overload: Any, size: int) -> None:
    """Allow blocks of a kernel `size` bytes of shared memory, more than the default limit."""
    driver = importlib.import_module("numba.cuda.cudadrv.driver")

    device = cuda.get_current_device().id
    if getattr(overload, "bnmc_allowed", None) == (device, size):
        return
    function = overload._codelibrary.get_cufunc()
    attribute = driver.binding.CUfunction_attribute
    attribute = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, size, function.handle, device)
    overload.bnmc_allowed = device, size
