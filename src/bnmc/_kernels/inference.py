"""Numba's type inference, for kernels: each kind of call is resolved once.

Numba tries the templates of a function one after the other, dozens for an operator, at each call
that it meets.  `KernelInference` remembers what it found for calls with numbers.  While it runs,
the target is `Kernels`, so that Numba compiles its own functions, such as `min`, as inner code of
kernels too; see `pipeline`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from numba.core import types
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.target_extension import CPU, dispatcher_registry, target_registry
from numba.core.typed_passes import NopythonTypeInference

__all__ = ["KernelInference", "Kernels"]


class Kernels(CPU):
    """The processor, as the target of kernels."""


target_registry["bnmc kernels"] = Kernels
dispatcher_registry[Kernels] = CPUDispatcher


class _Target:
    """The part of a target context that type inference sees."""

    target = Kernels

    def __init__(self, context: Any) -> None:
        self.enable_nrt = context.enable_nrt


class _Calls:
    """A typing context that remembers the signatures of calls with numbers."""

    #: By function and types.  The function is kept, too, so that no other one takes its number.
    known: ClassVar[dict[tuple[Any, ...], tuple[Any, Any]]] = {}

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call, or None."""
        function = func if isinstance(func, types.Type) else self._context._lookup_global(func)
        if kws or not _is_plain(function, args):
            return self._context.resolve_function_type(func, args, kws)
        key = id(function), tuple(args)
        if key not in self.known:
            found = self._context.resolve_function_type(func, args, kws)
            if found is None:
                return None
            self.known[key] = function, found
        return self.known[key][1]


def _is_plain(function: Any, args: Any) -> bool:
    """Return whether a call of a function of Numba has numbers alone."""
    if type(function) is not types.Function and not isinstance(function, types.NumberClass):
        return False
    return all(isinstance(one, (types.Integer, types.Float, types.Boolean)) for one in args)


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelInference(NopythonTypeInference):
    """Type inference with `_Calls` as the typing context."""

    _name = "kernel_inference"

    def run_pass(self, state: Any) -> bool:
        """Infer the types of a function."""
        typing_context, target_context = state.typingctx, state.targetctx
        state.typingctx, state.targetctx = _Calls(typing_context), _Target(target_context)
        try:
            return bool(super().run_pass(state))
        finally:
            state.typingctx, state.targetctx = typing_context, target_context
