"""Compilation of the functions of this package.

`numba_internals` makes compilation fast, and keeps its result on disk.  Without it, `njit` compiles
and keeps the same functions, in more time and with the same results: if Numba is a version that
`numba_internals` does not know, or if the environment variable BNMC_PLAIN_NUMBA is 1.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba import cfunc, njit, types
from numba.core import config
from numba.extending import (
    NativeValue,
    models,
    overload,
    register_jitable,
    register_model,
    typeof_impl,
    unbox,
)

from bnmc._kernels.compile_time import watch_compilation
from bnmc._kernels.emitting import INSTRUCTIONS, emits
from bnmc._kernels.forking import wait_for_compilation
from bnmc._kernels.kernel_cache import folder_of_numba
from bnmc._kernels.scalar.precisions import Both, functions_of
from bnmc.errors import ArgumentTypeError, PlainNumbaWarning


def _internals() -> Any:
    """Return `numba_internals`, or None if Numba is used without it."""
    if os.environ.get("BNMC_PLAIN_NUMBA") == "1":
        return None
    try:
        from bnmc._kernels import numba_internals
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"{error}, so kernels compile slowly; the results are the same", PlainNumbaWarning,
            stacklevel=2,
        )  # fmt: skip
        return None
    wait_for_compilation(numba_internals.LOCKS)
    return numba_internals


_INTERNALS = _internals()
watch_compilation()

#: `contract` alone: sums keep their order, and NaN and infinity keep their meaning.
_FLAGS: Any = {"error_model": "numpy", "fastmath": {"contract"}, "boundscheck": False}

OPTIONS: Any = _FLAGS

#: Of functions that compiled code alone calls.
INLINED: Any = {**_FLAGS, "forceinline": True}

#: Of functions that return arrays, which Numba allows only where references are counted, and of
#: functions of users, which may contain anything.
MAKING: Any = INLINED

if _INTERNALS is not None:
    # Kernels allocate no array, so nobody counts references.
    _FLAGS = {**_FLAGS, "_nrt": False}
    OPTIONS = {**_FLAGS, "pipeline_class": _INTERNALS.WideCompiler}
    INLINED = {
        **_FLAGS, "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
        "pipeline_class": _INTERNALS.InnerCompiler,
    }  # fmt: skip
    MAKING = {**INLINED, "_nrt": True}


def kernel(function: Callable[..., Any], *, inlined: bool = False) -> Any:
    """Compile a function for the CPU, without the GIL, and keep the result on disk if possible.

    With `inlined` it has a copy in each compiled caller, as passing many arrays on takes time.
    """
    if getattr(config, "DISABLE_JIT", False):
        return function
    if _INTERNALS is None:
        compiled = _kept(lambda cache: njit(cache=cache, nogil=True, **OPTIONS)(function))
        compiled.is_kernel = True  # see `compile_time`
        return compiled
    # Functions for C are those of `c_function`; a wrapper that nobody calls costs time to compile.
    options = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True, **_FLAGS}
    return _INTERNALS.Kernel(function, options, inlined)


#: `kernel` of a function with many arguments, that one other kernel calls.
part = partial(kernel, inlined=True)


def c_function(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile a function for C, with an `address`; the result is kept as that of `kernel`."""
    if _INTERNALS is None:
        return _kept(lambda cache: cfunc(signature, cache=cache, **_FLAGS)(function))
    return _INTERNALS.c_function(signature, function, _FLAGS)


def _kept(compile_with: Callable[[bool], Any]) -> Any:
    """Return a function that plain Numba compiles and keeps in the folder of these sources.

    Numba's cache does not notice that another source file was changed, so each version of the
    sources has a folder.
    """
    folder, before = folder_of_numba(), getattr(config, "CACHE_DIR", "")
    config.CACHE_DIR = "" if folder is None else str(folder)  # type: ignore[attr-defined]
    try:
        return compile_with(folder is not None)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]


def inlined(function):
    """Let compiled code call the plain `function`, inlined."""
    return function if function in INSTRUCTIONS else register_jitable(**INLINED)(function)


def makes_array(function):
    """Let compiled code call the plain `function`, which returns an array of others' memory."""
    return register_jitable(**MAKING)(function)


@cache
def inline_module(module):
    """Apply `inlined` to every function that `module` defines."""
    for function in functions_of(module):
        inlined(function)


class Sigma:
    """An activation as an argument of kernels: each has its own Numba type and its own kernels.

    Parameters
    ----------
    digest : str
        Identifies the compiled code.  Two activations with one digest share kernels, in memory and
        on disk.
    functions : dict
        The scalar function for "float32" and "float64".

    Examples
    --------
    >>> from bnmc import kernels
    >>> isinstance(kernels.activation("relu"), kernels.Sigma)
    True
    """

    by_digest: ClassVar[dict[str, Sigma]] = {}

    def __init__(self, digest: str, functions: dict[str, Callable[[Any], Any]]) -> None:
        self.digest = digest
        self.functions = functions
        Sigma.by_digest[digest] = self


class SigmaType(types.Opaque):
    """Numba's name for the type of one `Sigma`."""

    def __init__(self, digest):
        self.digest = digest
        super().__init__(name=f"Sigma({digest})")


register_model(SigmaType)(models.OpaqueModel)


@typeof_impl.register(Sigma)
def _type_of_sigma(value, context):
    return SigmaType(value.digest)


@unbox(SigmaType)
def _unbox_sigma(typ, obj, c):
    return NativeValue(c.context.get_dummy_value())


def activate(sigma, x):
    """Return the activation `sigma` of the scalar `x`, in the dtype of x.

    Functions that Numba compiles may call it, too.

    Parameters
    ----------
    sigma : Sigma
        As `bnmc.kernels.activation` returns it.
    x : float64 or float32

    Returns
    -------
    float64 or float32

    Examples
    --------
    >>> import numba
    >>> from bnmc import kernels
    >>> @numba.njit
    ... def total(sigma, values):
    ...     result = 0.0
    ...     for x in values:
    ...         result += kernels.activate(sigma, x)
    ...     return result
    >>> total(kernels.activation("relu"), (-2.0, 3.0, 4.0))
    7.0
    """
    x = np.float64(x) if type(x) is float else x
    function = _scalar_of(sigma, Sigma, str(getattr(x, "dtype", type(x).__name__)))
    return x.dtype.type(function(x))


def _scalar_of(sigma, kind, dtype):
    """Return the scalar function of a `Sigma`, or of its Numba type, for a dtype."""
    check_sigma(sigma, kind)
    functions = Sigma.by_digest[sigma.digest].functions
    if dtype not in functions:
        raise ArgumentTypeError("x", dtype, "float64 or float32")
    return functions[dtype]


def check_sigma(sigma: object, kind: type | tuple[type, ...]) -> None:
    """Raise `ArgumentTypeError` if `sigma` is no `kind`: `Sigma`, or `SigmaType` at compilation."""
    if not isinstance(sigma, kind):
        allowed = "a value of bnmc.kernels.activation, as in activation('relu')"
        raise ArgumentTypeError("sigma", sigma, allowed)


@overload(activate, jit_options=INLINED)
def _activate(sigma, x):
    function = _scalar_of(sigma, SigmaType, str(x))
    compiled = njit(**MAKING)(function)
    cast = types.float32 if x == types.float32 else types.float64
    return lambda sigma, x: cast(compiled(x))


class Apart(NamedTuple):
    """An activation as an argument of kernels that are compiled once for all activations.

    `address` is the address of a kernel that `compiled_apart` compiled for the activation.
    """

    address: int


def compiled_apart(function: Any, sigma: Sigma, arguments: tuple[types.Type, ...]) -> Any:
    """Compile a kernel of an activation and `arguments`, and return an `Apart` with its address.

    If nothing is compiled (NUMBA_DISABLE_JIT), or Numba is used without `numba_internals`, the
    result is the `Sigma` itself.
    """
    if _INTERNALS is None or not hasattr(function, "overloads"):
        return sigma
    return Apart(_INTERNALS.address_of(function, (SigmaType(sigma.digest), *arguments)))


def calls_apart(function: Any) -> Any:
    """Return a form of the kernel `function` whose first argument may be an `Apart`.

    Called with an `Apart`, it calls the kernel at that address.  That kernel must return nothing
    and be compiled for the same types; its errors are raised here.
    """

    def call_at(sigma, *arguments):
        """Call the kernel at the address in `sigma`.  Compiled code alone can: see `caller`."""
        raise NotImplementedError("only compiled code calls a kernel by its address")

    def call(sigma, *arguments):
        function(sigma, *arguments)

    if _INTERNALS is not None:
        emits(call_at)(_INTERNALS.caller(SigmaType("any")))
    chooses(call, lambda sigma, *_: function if isinstance(sigma, SigmaType) else call_at)
    return call


def chooses(function: Any, choose: Callable[..., Any], leave_out: int = 0) -> None:
    """Let compiled code call, in place of `function`, what `choose` returns for the types.

    The chosen function takes the arguments without the first `leave_out` ones, of which there is
    at most one.
    """
    if _INTERNALS is not None:
        _INTERNALS.chooses(function, choose, leave_out)
    elif leave_out:

        @overload(function, jit_options=INLINED)
        def without_first(first, *rest):
            chosen = choose(first, *rest)
            return lambda first, *rest: chosen(*rest)
    else:

        @overload(function, jit_options=INLINED)
        def with_all(*arguments):
            chosen = choose(*arguments)
            return lambda *arguments: chosen(*arguments)


def by_type(**bodies: Any) -> Any:
    """Return a function that is one of `bodies`, by the name of the type of its first argument."""

    def choose(first, *arguments):
        return bodies[type(first).__name__](first, *arguments)

    def body_of(first, *_):
        return bodies["NoneType" if first is types.none else first.instance_class.__name__]

    chooses(choose, body_of)
    return choose


def by_precision(pair: Both) -> Any:
    """Return the function of a pair for the dtype of an array, which is the first argument."""

    def call(array, *arguments):
        return (pair.single if array.itemsize == 4 else pair.double)(*arguments)

    def function_of(array, *_):
        return pair.single if array.dtype == types.float32 else pair.double

    chooses(call, function_of, leave_out=1)
    return call
