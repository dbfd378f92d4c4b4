"""Numba's compiler, for wide vectors, and for functions that only compiled code calls.

Numba makes machine code of every function, and runs all passes of LLVM on it.  A function that
compiled code calls is then linked there, and goes through all passes again, as often as it is
nested.  `InnerCompiler` leaves both to the outermost function, which `WideCompiler` compiles: LLVM
then sees each function once, with everything that is inlined into it.  That takes half of the time.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

__all__ = ["InnerCompiler", "InnerLibrary", "WideCompiler", "entry_of"]


class WideLower(Lower):
    """Translates functions into loops over the widest vectors of the processor.

    For processors of Intel, LLVM uses half of the width by default, which costs half the speed.
    """

    def setup_function(self, fndesc):
        super().setup_function(fndesc)
        # `attributes.add` refuses what llvmlite does not know.
        set.add(self.function.attributes, '"prefer-vector-width"="512"')


@register_pass(mutates_CFG=True, analysis_only=False)
class WideLowering(NativeLowering):
    _name = "wide_lowering"

    @property
    def lowering_class(self):
        return WideLower


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
    """Numba's compiler with `WideLower` in its place."""

    lowering = WideLowering

    def define_pipelines(self):
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [
            (self.lowering if step is NativeLowering else step, why) for step, why in manager.passes
        ]
        manager.finalize()
        return [manager]


class InnerCompiler(WideCompiler):
    """The compiler of functions that only compiled code calls."""

    lowering = InnerLowering
