"""New random parameters for a model, or new models of a factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch.models import as_model

if TYPE_CHECKING:
    import torch

__all__ = ["as_networks", "reset_parameters"]


def as_networks(
    model: object, networks: int, reset: object
) -> tuple[torch.nn.Module, Callable[[], torch.nn.Module]]:
    """Return a model, and the function that returns the next network.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A callable is a factory: called without arguments, it returns a new model.
    networks : int
    reset : callable or None
        Called with the model, it draws new parameters in place.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If the model is neither, `reset` is not callable, or a parameter belongs to a module without
        ``reset_parameters``.
    """
    torch: Any = import_extra("torch", "torch")
    if reset is not None and not callable(reset):
        raise ArgumentTypeError("reset", reset, "a function of the model")
    if not isinstance(model, torch.nn.Module) and callable(model) and reset is None:
        factory: Callable[[], Any] = model
        made = [as_model(factory())]
        first = made[0]
        return first, lambda: made.pop() if made else as_model(factory())
    inner = as_model(model)
    if reset is not None:
        function: Callable[..., Any] = reset

        def renewed() -> torch.nn.Module:
            with torch.no_grad():
                function(inner)
            return inner

        return inner, renewed
    if networks == 1:
        return inner, lambda: inner
    require_reset(inner)
    return inner, lambda: reset_parameters(inner)


def require_reset(model: torch.nn.Module) -> None:
    """Raise unless `reset_parameters` draws all parameters of a model.

    Raises
    ------
    ArgumentError
        If a parameter belongs to a module without ``reset_parameters``.
    """
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own and _resetter(module) is None:
            allowed = "a model whose modules have reset_parameters, a factory, or reset="
            found = f"{type(module).__name__} {name!r}" if name else type(module).__name__
            raise ArgumentError("model", found, allowed, "for networks > 1")


def reset_parameters(model: torch.nn.Module) -> torch.nn.Module:
    """Draw all parameters anew, by the ``reset_parameters`` of each module; return the model."""
    for module in model.modules():
        resetter = _resetter(module)
        if resetter is not None:
            resetter()
    return model


def _resetter(module: Any) -> Callable[[], Any] | None:
    for name in ("reset_parameters", "_reset_parameters"):  # attention has the second one
        found = getattr(module, name, None)
        if callable(found):
            resetter: Callable[[], Any] = found
            return resetter
    return None
