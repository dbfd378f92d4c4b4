"""The one place that imports Numba's CUDA target, and what compiles `core` for it.

The functions of `core` are plain Python.  Here each is compiled once more, as a function of the
device, in a copy of its module whose other functions are such too.  With NUMBA_ENABLE_CUDASIM=1 set
before the import, kernels run as Python: slowly, without a device.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numba import config, cuda

__all__ = ["SIMULATED", "cuda", "device_function", "device_module", "kernel"]

SIMULATED = bool(config.ENABLE_CUDASIM)

# Functions of NumPy by those that the device has for scalars.
_OF_MATH = {
    "abs": abs, "absolute": abs, "arctan": math.atan, "arctanh": math.atanh,
    "arcsinh": math.asinh, "ceil": math.ceil, "cos": math.cos, "cosh": math.cosh, "exp": math.exp,
    "expm1": math.expm1, "fabs": math.fabs, "floor": math.floor, "isfinite": math.isfinite,
    "isinf": math.isinf, "isnan": math.isnan, "log": math.log, "log1p": math.log1p,
    "log2": math.log2, "maximum": max, "minimum": min, "power": math.pow, "sin": math.sin,
    "sinh": math.sinh, "sqrt": math.sqrt, "tan": math.tan, "tanh": math.tanh,
}  # fmt: skip
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
    """Return what stands for NumPy in functions of the device."""
    if SIMULATED:
        return np
    module = ModuleType("numpy_on_device")
    for name in _KEPT:
        setattr(module, name, getattr(np, name))
    for name, function in _OF_MATH.items():
        setattr(module, name, function)
    return module


def _on_device(value: Any) -> Any:
    """Return what a variable of a function stands for on the device."""
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
    return cuda.jit(device=True)(copy)


def kernel(most_registers: int) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel whose threads have so many registers at most."""
    if SIMULATED:
        return cuda.jit  # type: ignore[no-any-return]
    return cuda.jit(max_registers=min(255, most_registers // 8 * 8))  # type: ignore[no-any-return]


def _names(code: Any) -> set[str]:
    """Return the names that a code, or one within it, refers to."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _names(constant)
    return names


def device_module(module: ModuleType) -> SimpleNamespace:
    """Return the functions that a module of `core` defines, for the device."""
    found = {
        name: device_function(function)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
    }
    return SimpleNamespace(**found)
