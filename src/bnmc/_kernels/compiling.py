"""Compilation of the functions of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple

from numba import njit, types
from numba.core import cgutils, config
from numba.core.ccallback import CFunc
from numba.core.datamodel.models import OpaqueModel
from numba.core.pythonapi import NativeValue
from numba.core.registry import CPUDispatcher
from numba.extending import (
    intrinsic,
    overload,
    register_jitable,
    register_model,
    typeof_impl,
    unbox,
)

from bnmc._kernels.forking import wait_for_compilation
from bnmc._kernels.kernel_cache import cache_of
from bnmc._kernels.levels import cpu_features, cpu_name
from bnmc._kernels.pipeline import AnyInnerCompiler, InnerCompiler, WideCompiler
from bnmc._kernels.scalar.precisions import functions_of
from bnmc._kernels.wheel_kernels import used_folder

wait_for_compilation()


#: `contract` alone: sums keep their order, and NaN and infinity keep their meaning.  Kernels
#: allocate no array, so nobody counts references.
OPTIONS: Any = {
    "error_model": "numpy",
    "fastmath": {"contract"},
    "boundscheck": False,
    "_nrt": False,
    "pipeline_class": WideCompiler,
}

#: Of functions that compiled code alone calls.
INNER: Any = {
    **OPTIONS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": InnerCompiler,
}

INLINED: Any = {"forceinline": True, **INNER}

#: Of functions that return arrays, which Numba allows only where references are counted.
MAKING: Any = {**INLINED, "_nrt": True}

#: Of functions of users, which may contain anything.
OF_USERS: Any = {**INLINED, "_nrt": True, "pipeline_class": AnyInnerCompiler}

#: Functions of one expression that are one instruction of a GPU.  Numba inlines them: inlining by
#: LLVM, as for other functions, costs loops over normals a fifth of their speed.
EXPRESSIONS = ("product", "root32")


@cache
def host_cpu() -> str:
    """Return name and features of the processor, on which compiled code depends, as one line.

    If kernels come from a wheel, their level is the last part.
    """
    features = [name for name, on in sorted(cpu_features().items()) if on]
    digest = hashlib.sha256(",".join(features).encode()).hexdigest()[:8]
    folder = used_folder()
    return f"{cpu_name()}-{digest}" + ("" if folder is None else f"+{folder.name}")


class Inner(CPUDispatcher):
    """A function as compiled code calls it."""

    #: The compilation counts as that of a kernel; see `compile_time`.
    is_kernel = True

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile the function for the types of a call, one and the same for all constants."""
        return super().get_call_template([types.unliteral(one) for one in args], kws)


class Kernel(CPUDispatcher):
    """A compiled function with machine code for Python, and inner code for compiled callers."""

    is_kernel = True

    @cached_property
    def inner(self) -> Any:
        """The same function as compiled code calls it."""
        inner = _dispatcher(Inner, self.py_func, INNER)
        inner._cache = cache_of(self.py_func, inner=True)
        return inner

    @property
    def _numba_type_(self) -> Any:
        return self.inner._numba_type_


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for the CPU, without the GIL, and keep the result on disk if possible."""
    if getattr(config, "DISABLE_JIT", False):
        return function
    # Functions for C are those of `c_function`; a wrapper that nobody calls costs time to compile.
    options = {"nogil": True, "no_cfunc_wrapper": True, **OPTIONS}
    dispatcher = _dispatcher(Kernel, function, options)
    dispatcher._cache = cache_of(function)
    return dispatcher


def _dispatcher(kind: type[CPUDispatcher], function: Any, options: dict[str, Any]) -> Any:
    """Return what `njit` makes of a function and options, as an instance of `kind`."""
    own = {name: value for name, value in options.items() if name != "pipeline_class"}
    return kind(function, {}, {"nopython": True, **own}, options["pipeline_class"])


def c_function(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile a function for C, with an `address`; the result is kept as that of `kernel`."""
    types_of = signature.args, signature.return_type
    options = {name: value for name, value in OPTIONS.items() if name != "pipeline_class"}
    compiled: Any = CFunc(function, types_of, {}, options, WideCompiler)  # type: ignore[arg-type]
    compiled._cache = cache_of(function)
    compiled.compile()
    return compiled


def inlined(function):
    """Let compiled code call the plain `function`, inlined."""
    options = {**INLINED, "inline": "always"} if function.__name__ in EXPRESSIONS else INLINED
    return register_jitable(**options)(function)


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

    known: ClassVar[dict[str, Sigma]] = {}

    def __init__(self, digest: str, functions: dict[str, Callable[[Any], Any]]) -> None:
        self.digest = digest
        self.functions = functions
        Sigma.known[digest] = self


class SigmaType(types.Opaque):
    """Numba's name for the type of one `Sigma`."""

    def __init__(self, digest):
        self.digest = digest
        super().__init__(name=f"Sigma({digest})")


register_model(SigmaType)(OpaqueModel)


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
    return x.dtype.type(sigma.functions[x.dtype.name](x))


@overload(activate, jit_options=INLINED)
def _activate(sigma, x):
    function = Sigma.known[sigma.digest].functions[str(x)]
    compiled = njit(**OF_USERS)(function)
    cast = types.float32 if x == types.float32 else types.float64
    return lambda sigma, x: cast(compiled(x))


class Apart(NamedTuple):
    """An activation as an argument of kernels that are compiled once for all activations.

    `address` is the address of a kernel that `compiled_apart` compiled for the activation.
    """

    address: int


def compiled_apart(function: Any, sigma: Sigma, arguments: tuple[types.Type, ...]) -> Any:
    """Compile a kernel of an activation and `arguments`, and return an `Apart` with its address.

    If nothing is compiled (NUMBA_DISABLE_JIT), the result is the `Sigma` itself.
    """
    if not hasattr(function, "overloads"):
        return sigma
    signature = (SigmaType(sigma.digest), *arguments)
    if signature not in function.overloads:
        function.compile(signature)
    made = function.overloads[signature]
    return Apart(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


def calls_apart(function: Any) -> Any:
    """Return a form of the kernel `function` whose first argument may be an `Apart`.

    Called with an `Apart`, it calls the kernel at that address.  That kernel must return nothing
    and be compiled for the same types; its errors are raised here.
    """

    def call(sigma, *arguments):
        function(sigma, *arguments)

    @intrinsic
    def call_address(typing_context, address, arguments):
        known = (SigmaType("any"), *arguments.types)

        def codegen(context, builder, signature, values):
            convention = context.call_conv
            kind = convention.get_function_type(types.none, known)
            address, packed = values
            pointer = builder.inttoptr(address, kind.as_pointer())
            given = [context.get_dummy_value(), *cgutils.unpack_tuple(builder, packed)]
            status, _ = convention.call_function(builder, pointer, types.none, known, given)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.none(address, arguments), codegen

    def implementation(sigma, *arguments):
        if isinstance(sigma, SigmaType):
            return lambda sigma, *arguments: function(sigma, *arguments)
        return lambda sigma, *arguments: call_address(sigma.address, arguments)

    overload(call, jit_options=INLINED, strict=False)(implementation)
    return call


def by_precision(name, single, double):
    """Return a function that is `single` or `double` by the dtype of its first argument."""

    def choose(out, *arguments):
        return (single if out.itemsize == 4 else double)(out, *arguments)

    choose.__name__ = choose.__qualname__ = name

    def implementation(out, *arguments):
        return single if out.dtype == types.float32 else double

    overload(choose, jit_options=INLINED, strict=False)(implementation)
    return choose
