"""Numba's CUDA target: compiles plain functions for the device, finds devices, launches kernels.

No other file imports the target.  Device functions, like those of `scalar`, are plain Python.  A
`Linker` compiles a copy of a function whose globals are device functions and constants.  If
NUMBA_ENABLE_CUDASIM=1 is set before the import, kernels run as Python in Numba's simulator: slowly,
and without a device.
"""

from __future__ import annotations

import importlib
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from types import CellType, FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np
from numba import config, types

from bnmc._kernels.gpu import box_muller
from bnmc._kernels.scalar import normal, philox

with warnings.catch_warnings(action="ignore"):  # numba-cuda uses what NumPy 2.5 deprecates
    from numba import cuda as _cuda

#: Typed as Any, because Numba annotates neither its CUDA target nor the simulator.
cuda: Any = _cuda
SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))

# The simulator runs one kernel at a time.
_simulator = threading.Lock()
# `warnings.catch_warnings` is not thread-safe.
_configuring = threading.Lock()

#: Bytes of shared memory that a block may have unless the kernel requests more.
_MOST_SHARED_BY_DEFAULT = 48 * 1024

# The device's scalar functions, by NumPy's names.
_OF_MATH = {
    "abs": abs, "absolute": abs, "arctan": math.atan, "arctanh": math.atanh,
    "arcsinh": math.asinh, "maximum": max, "minimum": min, "power": math.pow,
}  # fmt: skip
_OF_MATH |= {
    name: getattr(math, name)
    for name in (
        "ceil", "cos", "cosh", "exp", "expm1", "fabs", "floor", "isfinite", "isinf", "isnan",
        "log", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh",
    )
}  # fmt: skip
# NumPy's types and constants, which Numba knows on the device.
_KEPT = (
    "bool_", "e", "euler_gamma", "float32", "float64", "inf", "int32", "int64", "intp", "nan", "pi",
    "uint32", "uint64", "uintp",
)  # fmt: skip


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


#: Functions of `scalar` that have another form on a GPU.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    normal.radius.single: box_muller.radius32,
    normal.sincos.single: box_muller.sincos32,
}


class Placeholder:
    """Stands for a constant of a block, or for a function, until a `Linker` replaces it."""


class Linker:
    """Compiles plain functions for the device, with constants in the place of `Placeholder`s.

    Numba treats a global integer as a literal, and only literals size local arrays and remove
    branches.  So a function is compiled from a copy whose globals are the constants, and the copies
    of the functions that it calls.  Linkers share a copy if its constants are the same.

    Parameters
    ----------
    names : dict
        The constants and functions by the names of their placeholders.
    """

    #: Compiled copies by function and by what was replaced in it.
    _copies: ClassVar[dict[Any, Any]] = {}

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._linked: dict[Callable[..., Any], Any] = {}

    def function(self, function: Callable[..., Any]) -> Any:
        """Compile a function, and the functions that it calls, for the device."""
        if function in _INSTRUCTIONS:
            return _INSTRUCTIONS[function]
        function = _FORMS.get(function, function)
        if function not in self._linked:
            copy, replaced = self._copy(function)
            key = function, replaced
            if key not in self._copies:
                self._copies[key] = _compiled(copy, getattr(function, "is_inlined", False))
            self._linked[function] = self._copies[key]
        return self._linked[function]

    def kernel(self, function: Callable[..., Any], most_registers: int) -> Any:
        """Compile a kernel whose threads have at most `most_registers` registers."""
        return kernel(most_registers)(self._copy(function)[0])

    def _copy(self, function: Any) -> tuple[FunctionType, tuple[Any, ...]]:
        """Return a copy of a function with other globals, and what differs."""
        code, given = function.__code__, function.__globals__
        if hidden := [n for n in code.co_varnames if isinstance(given.get(n), Placeholder)]:
            raise NameError(f"{function.__name__} hides the constants {hidden}")
        mentioned = _names(code)
        names = [name for name in given if name in mentioned]
        values = [given[name] for name in names]
        names += code.co_freevars
        values += [cell.cell_contents for cell in function.__closure__ or ()]
        linked = [self._on_device(name, value) for name, value in zip(names, values, strict=True)]
        variables = dict(zip(names, linked, strict=True))
        cells = tuple(CellType(variables.pop(name)) for name in code.co_freevars)
        variables["__builtins__"] = given.get("__builtins__", __builtins__)
        variables["__name__"] = function.__module__
        copy = FunctionType(code, variables, function.__name__, function.__defaults__, cells)
        copy.__module__ = function.__module__
        copy.__qualname__ = function.__qualname__
        replaced = zip(names, values, linked, strict=True)
        return copy, tuple((name, new) for name, old, new in replaced if new is not old)

    def _on_device(self, name: str, value: Any) -> Any:
        """Return the value on the device of a global or captured variable of a function."""
        if isinstance(value, Placeholder):
            if name not in self._names:
                raise NameError(f"the constant {name} has no value")
            value = self._names[name]
            if not isinstance(value, FunctionType):
                return value
        if value is np:
            return _numpy()
        if isinstance(value, FunctionType) and not value.__module__.startswith("numba"):
            return self.function(value)
        if hasattr(value, "py_func"):
            return self.function(value.py_func)
        if isinstance(value, np.ufunc):
            return getattr(_numpy(), value.__name__, value)
        return value


def _compiled(copy: FunctionType, is_inlined: bool) -> Any:
    if not SIMULATED:
        return cuda.jit(device=True, **({"forceinline": True} if is_inlined else {}))(copy)
    # The simulator puts a block's own `cuda` there; otherwise it only adds the cost of its call.
    return cuda.jit(device=True)(copy) if "cuda" in copy.__globals__ else copy


def device_function(function: Callable[..., Any]) -> Any:
    """Compile a function without placeholders, and the functions that it calls."""
    return Linker({}).function(function)


def _instruction(text: str, returned: str, taken: str, arguments: int = 1) -> Any:
    """Return a device function that is one instruction of PTX.

    returned, taken : names of the types of the result and of the arguments after conversion
    """
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    forms: dict[str, tuple[Any, Any, str]] = {
        "float32": (types.float32, ir.FloatType(), "f"),
        "uint32": (types.uint32, ir.IntType(32), "r"),
        "uint64": (types.uint64, ir.IntType(64), "l"),
    }
    (kind, of_result, letter), (argument, of_argument, other) = forms[returned], forms[taken]

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        called = ir.FunctionType(of_result, [of_argument] * arguments)
        constraints = ",".join([f"={letter}"] + [other] * arguments)
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
    """Mark a device function that is compiled as part of every function that calls it.

    Left to itself, the compiler first simplifies a function, and then decides where to copy it: the
    instructions of a kernel would depend on how its code is divided into functions.
    """
    function.is_inlined = True
    return function


def _names(code: Any) -> set[str]:
    """Return the names to which a code object and the code objects inside it refer."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _names(constant)
    return names


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
    # For these types alone, because finding the types of tuples would take longer than a launch.
    special = compiled.specialize(*arguments)
    if size > _MOST_SHARED_BY_DEFAULT:
        _allow_shared(next(iter(special.overloads.values())), size)
    # Numba warns about grids of fewer than 128 blocks, but few chains need no more.
    with _configuring, warnings.catch_warnings(action="ignore"):
        configured: Callable[..., None] = special[grid, threads, stream, size]
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
