"""A faster compiler and another cache, from parts of Numba that no documentation promises.

Numba makes machine code of every function, and runs all passes of LLVM on it.  A function that
compiled code calls is then linked there, and goes through all passes again, as often as it is
nested.  `InnerCompiler` leaves both to the outermost function, which `WideCompiler` compiles: LLVM
then sees each function once, with everything that is inlined into it.  That takes half of the time.

No documentation of Numba promises the following names; no other file of the package uses them.  If
one is missing, or Numba is newer than `_NEWEST`, `compiling` uses `njit` and `cfunc` as they are,
and the results are the same.

- `compiler.CompilerBase`, `compiler.DefaultPassBuilder`, `compiler_machinery.register_pass`,
  `typed_passes.NativeLowering`, `lowering.Lower.setup_function`: a compiler whose last pass asks
  LLVM for vectors of 512 bits and a stack of whole cache lines.
- `codegen.JITCodeLibrary` with `_optimize_final_module`, `_finalize_final_module`, `_final_module`,
  `_shared_module`, `_get_module_for_linking`; `flags.no_compile`; `_dynfunc.make_function`;
  `targetctx.insert_user_function`: inner code, which has no machine code and is kept as bitcode.
- `codegen._module_pass_manager`: the passes of LLVM of the function that Python calls.
- `registry.CPUDispatcher` with `get_call_template`, `_compile_for_args` and `_numba_type_`: the one
  function that Python calls and the other one that compiled code calls.
- `_cache` of dispatchers and of `ccallback.CFunc`, `caching.NullCache`, `codegen.magic_tuple`,
  `serialize.dumps`, `CompileResult._reduce` and `_rebuild`, `compiler.compile_result`: another
  cache than Numba's, see `kernel_cache`.
- `get_pointer_to_function`, `fndesc.llvm_func_name`, `context.call_conv`: calls by address, so that
  kernels are compiled once for all activations.
- `resolve_value_type`, `get_call_type` and `get_function` of contexts, with `AbstractTemplate` and
  `infer_global`: a function that is chosen by the types of its arguments, without one more
  function to compile for each combination of types.
- `global_compiler_lock` and `ffi.lib._lock` of llvmlite: forks, see `forking`.

The interface for extensions (`numba.extending`, `cgutils`, typing templates, data models), which is
documented in part, is used where vectors and activations are defined, and in `emitting`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi
from numba import _dynfunc, types, version_info  # type: ignore[attr-defined]
from numba.core import cgutils, config
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder, compile_result
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.core.typed_passes import NativeLowering
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin

from bnmc._kernels import kernel_cache
from bnmc._kernels.processor import LINE_BYTES

#: The newest version of Numba that was tried, as in pyproject.toml.
_NEWEST = (0, 68)

if version_info.short > _NEWEST:
    raise ImportError(f"bnmc does not know Numba {version_info.string}")


class _WideLower(Lower):
    """Translates functions into loops over the widest vectors of the processor.

    For processors of Intel, LLVM uses half of the width by default, which costs half the speed.
    Vectors for which there is no register go to the stack, where they would lie across two cache
    lines: by chance, whole runs in float64 took a third longer.
    """

    def setup_function(self, fndesc):
        super().setup_function(fndesc)
        # `attributes.add` refuses what llvmlite does not know.
        set.add(self.function.attributes, '"prefer-vector-width"="512"')
        self.function.attributes.alignstack = LINE_BYTES


class _OuterLibrary(JITCodeLibrary):
    """Machine code of a function with all that it calls, by the passes of LLVM's level 2.

    Level 3 copies loops, for each value of a condition that does not change in them.  A first run
    would take half a second more, and the kernels would be no faster.
    """

    def _optimize_final_module(self) -> None:
        codegen, level = self._codegen, min(getattr(config, "OPT", 2), 2)
        for options in ({"loop_vectorize": False, "opt": 0, "cost": "cheap"}, {"opt": level}):
            passes, builder = codegen._module_pass_manager(**options)
            passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class _WideLowering(NativeLowering):
    _name = "wide_lowering"

    @property
    def lowering_class(self):
        return _WideLower

    def run_pass(self, state):
        if state.library is None:
            state.library = _OuterLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return super().run_pass(state)


class InnerLibrary(JITCodeLibrary):
    """Code that is linked into that of its callers, and is optimized and made machine code there.

    LLVM has simplified every function by itself, which callers need in order to optimize it well.
    """

    def _optimize_final_module(self) -> None:
        """Leave the passes over the linked code to the callers."""

    def _finalize_final_module(self) -> None:
        """Make no machine code."""
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return the name and the code in a form that `of_bitcode` takes."""
        return self.name, "bitcode", self._get_module_for_linking().as_bitcode()

    @classmethod
    def of_bitcode(cls, codegen: Any, name: str, bitcode: bytes) -> InnerLibrary:
        """Return the library of a result of `serialize_using_object_code`."""
        self = cls(codegen, name)
        self._final_module = self._shared_module = llvm.parse_bitcode(bitcode)
        self._finalize_final_module()
        return self


def _entry_of(description: Any, environment: Any, library: InnerLibrary) -> Any:
    """Return an object by which Numba knows a function that has no machine code."""
    name = description.qualname.rsplit(".", 1)[-1]
    return _dynfunc.make_function(
        description.lookup_module(), name, f"inner code of {name}", 0, environment, (library,)
    )


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(_WideLowering):
    """Translation into LLVM's code of a function that has no address and no wrappers."""

    _name = "inner_lowering"

    def run_pass(self, state):
        context = state.targetctx
        state.library = library = InnerLibrary(context.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        library.finalize()
        lowered = state["cr"]
        entry = _entry_of(lowered.fndesc, lowered.env, library)
        context.insert_user_function(entry, lowered.fndesc, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class WideCompiler(CompilerBase):
    """Numba's compiler with `_WideLowering` in its place."""

    lowering = _WideLowering

    def define_pipelines(self):
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [
            (self.lowering if step is NativeLowering else step, why) for step, why in manager.passes
        ]
        manager.finalize()
        return [manager]


class InnerCompiler(WideCompiler):
    """The compiler of functions that only compiled code calls."""

    lowering = _InnerLowering


class KernelCache(NullCache):
    """What Numba asks for compiled code, and gives compiled code to."""

    def __init__(self, function: Any, *, inner: bool = False) -> None:
        self._function = function
        self._inner = inner

    @property
    def cache_path(self) -> str:
        return str(kernel_cache.folders()[0])

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return compiled code of the wheel or the disk, or None."""
        target_context.refresh()
        entry = self._entry(sig, target_context.codegen())
        if entry is None:
            return None
        compiled = kernel_cache.load(entry, partial(_rebuilt, target_context))
        # Two named tuples may have one name.
        same = compiled is not None and compiled.signature.args == getattr(sig, "args", sig)
        return compiled if same else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code on the disk if possible."""
        entry = self._entry(sig, data.codegen)
        if entry is not None:
            kernel_cache.save(entry, partial(_dumped, data))

    def _entry(self, sig: Any, codegen: Any) -> kernel_cache.Entry | None:
        function, cells = self._function, b""
        if function.__closure__ is not None:
            try:
                cells = dumps(tuple(cell.cell_contents for cell in function.__closure__))
            except Exception as error:  # pickling raises many errors
                kernel_cache.tell_unwritten(function, error)
                return None
        processor = repr(codegen.magic_tuple())
        return kernel_cache.Entry(function, repr(sig), processor, cells, self._inner)


def _dumped(compiled: Any) -> bytes:
    """Return compiled code as bytes."""
    if compiled.library.has_dynamic_globals or not all(code.can_cache for code in compiled.lifted):
        raise ValueError("it refers to memory of this process")
    return bytes(dumps(compiled._reduce()))


#: What `CompileResult._reduce` returns.
_PARTS = (
    "library", "fndesc", "environment", "signature", "objectmode", "lifted", "type_annotation",
    "reload_init", "referenced_envs",
)  # fmt: skip


def _rebuilt(target_context: Any, parts: Any) -> Any:
    """Return the compiled function of which `_dumped` kept the parts."""
    values = dict(zip(_PARTS, parts, strict=True))
    name, kind, bitcode = values["library"]
    if kind != "bitcode":
        return CompileResult._rebuild(target_context, *parts)
    for reload in values["reload_init"]:
        reload()
    library = InnerLibrary.of_bitcode(target_context.codegen(), name, bitcode)
    return compile_result(
        **{**values, "library": library},
        entry_point=_entry_of(values["fndesc"], values["environment"], library),
        target_context=target_context,
        typing_context=target_context.typing_context,
    )


def _accept(*args: Any, **kws: Any) -> None:
    """Accept all arguments."""


class Inner(CPUDispatcher):
    """A function as compiled code calls it."""

    #: The compilation counts as that of a kernel; see `compile_time`.
    is_kernel = True

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals, targetoptions, InnerCompiler)
        self._cache = KernelCache(py_func, inner=True)
        self.check: Callable[..., None] = _accept

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile the function for the types of a call, one and the same for all constants."""
        self.check(*args, **kws)
        return super().get_call_template([types.unliteral(kind) for kind in args], kws)


class Kernel(CPUDispatcher):
    """A compiled function with machine code for Python, and inner code for compiled callers."""

    is_kernel = True

    def __init__(self, py_func: Any, options: dict[str, Any], inlined: bool) -> None:
        super().__init__(py_func, {}, options, WideCompiler)
        self._cache = KernelCache(py_func)
        # Without a value, it would be that of the function which happens to be the first caller.
        self._inner_options = {**options, "no_cpython_wrapper": True, "forceinline": inlined}
        #: Called before a compilation, with the arguments or, of a compiled caller, their types.
        self.check: Callable[..., None] = _accept

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        self.check(*args)
        return super()._compile_for_args(*args, **kws)  # type: ignore[misc]

    @cached_property
    def inner(self) -> Any:
        """The same function as compiled code calls it."""
        inner = Inner(self.py_func, {}, self._inner_options)
        inner.check = self.check
        return inner

    @property
    def _numba_type_(self) -> Any:
        return self.inner._numba_type_


def c_function(signature: Any, function: Any, options: dict[str, Any]) -> Any:
    """Compile a function for C, with an `address`; the result is kept as that of a `Kernel`."""
    types_of = signature.args, signature.return_type
    compiled: Any = CFunc(function, types_of, {}, options, WideCompiler)  # type: ignore[arg-type]
    compiled._cache = KernelCache(function)
    compiled.compile()
    return compiled


# --- calls by type


def chooses(function: Any, choose: Callable[..., Any], leave_out: int) -> None:
    """Let compiled code call what `choose` returns; see `compiling.chooses`."""

    def chosen(context: Any, kinds: Any) -> tuple[Any, Any]:
        callee = context.resolve_value_type(choose(*kinds))
        return callee, callee.get_call_type(context, kinds[leave_out:], {})

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            called = chosen(self.context, args)[1]
            return called.return_type(*args[:leave_out], *called.args)

    infer_global(function, types.Function(Template))

    @lower_builtin(function, types.VarArg(types.Any))
    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        callee, called = chosen(context.typing_context, signature.args)
        return context.get_function(callee, called)(builder, arguments[leave_out:])


# --- calls by address


def address_of(kernel: Any, signature: tuple[types.Type, ...]) -> int:
    """Return the address of a kernel's machine code, compiled for the types of its arguments."""
    if signature not in kernel.overloads:
        kernel.compile(signature)
    compiled = kernel.overloads[signature]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def caller(first: types.Type) -> Any:
    """Return what `emits` takes for calls of a kernel by the address in an `Apart`.

    The kernel's first argument has the type `first`, which takes no memory.  The kernel must return
    nothing; its errors are raised.
    """

    def body(apart, *arguments):
        kinds = (first, *arguments)

        def codegen(context, builder, signature, values):
            convention = context.call_conv
            kernel = convention.get_function_type(types.none, kinds).as_pointer()
            address = builder.inttoptr(builder.extract_value(values[0], 0), kernel)
            given = [context.get_dummy_value(), *values[1:]]
            status, _ = convention.call_function(builder, address, types.none, kinds, given)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.none(apart, *arguments), codegen

    return body


#: The locks of a compilation, in the order in which it takes them; see `forking`.
LOCKS = (global_compiler_lock, ffi.lib._lock)
