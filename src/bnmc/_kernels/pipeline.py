"""Numba's compiler, for wide vectors, and for functions that only compiled code calls.

Numba makes machine code of every function, and runs all passes of LLVM on it.  A function that
compiled code calls is then linked there, and goes through all passes again, as often as it is
nested.  `InnerCompiler` leaves both to the outermost function, which `WideCompiler` compiles: LLVM
then sees each function once, with everything that is inlined into it.  That takes half of the time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import llvmlite.binding as llvm
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.target_extension import jit_registry
from numba.core.typed_passes import (
    AnnotateTypes,
    DumpParforDiagnostics,
    NativeLowering,
    NopythonRewrites,
    NoPythonSupportedFeatureValidation,
    NopythonTypeInference,
)
from numba.core.untyped_passes import (
    FindLiterallyCalls,
    InlineClosureLikes,
    LiteralPropagationSubPipelinePass,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    RewriteDynamicRaises,
    RewriteSemanticConstants,
    WithLifting,
)

from bnmc._kernels.inference import KernelInference, Kernels

__all__ = ["AnyInnerCompiler", "InnerCompiler", "InnerLibrary", "WideCompiler", "entry_of"]

#: Passes of Numba that do nothing to kernels, each of which goes through the whole function: for
#: closures, `with`, arithmetic on whole arrays, `literal_unroll`, constant `ndim`, reports.
NEEDLESS = {
    AnnotateTypes, DumpParforDiagnostics, FindLiterallyCalls, InlineClosureLikes,
    LiteralPropagationSubPipelinePass, LiteralUnroll, MakeFunctionToJitFunction, NopythonRewrites,
    NoPythonSupportedFeatureValidation, RewriteDynamicRaises, RewriteSemanticConstants, WithLifting,
}  # fmt: skip


#: Bytes of a cache line, and of the widest vectors.
LINE_BYTES = 64


class WideLower(Lower):
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


class WideLibrary(JITCodeLibrary):
    """Machine code of a function with all that it calls.

    LLVM runs the passes of level 2.  Level 3 adds copies of loops, for each value of a condition
    that does not change in them: they take half as long again to compile, and gain nothing.
    """

    def _optimize_final_module(self) -> None:
        options = {"loop_vectorize": self._codegen._loopvect, "slp_vectorize": False}
        level = self._codegen._opt_level
        cheap, of_cheap = self._codegen._module_pass_manager(**options, opt=level, cost="cheap")
        cheap.run(self._final_module, of_cheap)
        full, of_full = self._codegen._module_pass_manager(opt=min(getattr(config, "OPT", 2), 2))
        full.run(self._final_module, of_full)


@register_pass(mutates_CFG=True, analysis_only=False)
class WideLowering(NativeLowering):
    _name = "wide_lowering"

    @property
    def lowering_class(self):
        return WideLower

    def run_pass(self, state):
        if state.library is None:
            state.library = WideLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return super().run_pass(state)


class InnerLibrary(JITCodeLibrary):
    """Code that is linked into that of its callers, and is optimized and made machine code there.

    LLVM has simplified every function by itself, which callers need in order to optimize it well.
    """

    def finalize(self) -> None:
        """Link the code of the functions that this one calls."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._final_module.verify()
        self._finish()

    def _finish(self) -> None:
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
        self._finish()
        return self


def entry_of(description: Any, environment: Any, library: InnerLibrary) -> Any:
    """Return an object by which Numba knows a function that has no machine code."""
    name = description.qualname.rsplit(".", 1)[-1]
    return _dynfunc.make_function(
        description.lookup_module(), name, f"inner code of {name}", 0, environment, (library,)
    )


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(WideLowering):
    """Translation into LLVM's code of a function that has no address and no wrappers."""

    _name = "inner_lowering"

    def run_pass(self, state):
        context, flags = state.targetctx, state.flags
        library = InnerLibrary(context.codegen(), state.func_id.func_qualname)
        library._reload_init.update(state.reload_init)
        state.library = library
        description = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir, state.typemap, state.return_type, state.calltypes,
            mangler=context.mangler, inline=flags.forceinline, noalias=flags.noalias,
            abi_tags=[flags.get_mangle_string()],
        )  # fmt: skip
        with context.push_code_library(library):
            lower = self.lowering_class(
                context, library, description, state.func_ir, metadata=state.metadata
            )
            lower.lower()
        library.finalize()
        entry = entry_of(description, lower.env, library)
        context.insert_user_function(entry, description, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = _LowerResult(description, lower.call_helper, cfunc=entry, env=lower.env)
        return True


class WideCompiler(CompilerBase):
    """Numba's compiler with `WideLower` in its place, and without the passes of `left_out`."""

    lowering = WideLowering
    left_out: ClassVar[set[Any]] = NEEDLESS

    def define_pipelines(self):
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        places = {NativeLowering: self.lowering, NopythonTypeInference: KernelInference}
        manager.passes = [
            (places.get(step, step), why)
            for step, why in manager.passes
            if step not in self.left_out
        ]
        manager.finalize()
        return [manager]


class InnerCompiler(WideCompiler):
    """The compiler of functions that only compiled code calls."""

    lowering = InnerLowering


class AnyInnerCompiler(InnerCompiler):
    """The same for functions of users and of Numba, which may contain anything."""

    left_out: ClassVar[set[Any]] = set()


def _inner(**options: Any) -> Any:
    """Return what compiles a function of Numba that kernels call."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    compiler = options.pop("pipeline_class", AnyInnerCompiler)
    return lambda function: CPUDispatcher(function, {}, options, compiler)


jit_registry[Kernels] = _inner
