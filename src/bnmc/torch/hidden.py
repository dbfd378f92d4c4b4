"""The hidden weight layers of a model, in the order of its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bnmc.errors import ArgumentError
from bnmc.torch.models import called, first_tensor, is_weight_layer, own_weight

if TYPE_CHECKING:
    import torch

__all__ = ["called_weight_layers", "require_own_weight", "visit_weight_layers", "weight_matrices"]


def weight_matrices(model: torch.nn.Module) -> dict[str, Any]:
    """Return all linear layers and convolutions by name, one for each weight.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, module in _weight_layers(model).items():
        weight = own_weight(module)
        if weight is None or id(weight) not in seen:
            seen.add(id(weight))
            found[name] = module
    return found


def require_own_weight(name: str, module: Any) -> None:
    """Raise unless the weight of a layer is a parameter, whose values can be set.

    Raises
    ------
    ArgumentError
        If the weight is computed from other parameters, as by weight or spectral normalization.
    """
    if own_weight(module) is None:
        found = f"the weight of {name!r} is computed from other parameters"
        hint = "torch.nn.utils.parametrize.remove_parametrizations makes it a parameter"
        raise ArgumentError("model", found, "layers whose weights are parameters", hint)


def _weight_layers(model: torch.nn.Module) -> dict[str, Any]:
    found = {
        name: module
        for name, module in model.named_modules()
        if is_weight_layer(module, transposed=False)
    }
    if not found:
        allowed = "a model with linear layers or convolutions"
        raise ArgumentError("model", type(model).__name__, allowed)
    return found


def called_weight_layers(model: torch.nn.Module, batch: torch.Tensor) -> list[tuple[str, Any]]:
    """Return names and modules of the weight layers, in the order of their calls.

    Raises
    ------
    ArgumentError
        If a layer is called twice, two layers share a weight, or the model has no weight layer.
    """
    order: list[tuple[str, Any]] = []
    visit_weight_layers(model, batch, lambda name, module, _: order.append((name, module)))
    names = [name for name, _ in order]
    for name in names:
        if names.count(name) > 1:
            allowed = "a model that calls each weight layer once"
            raise ArgumentError("model", f"{name!r}, called {names.count(name)} times", allowed)
    first: dict[int, str] = {}
    for name, module in order:
        weight = own_weight(module)
        if weight is not None and first.setdefault(id(weight), name) != name:
            found = f"{first[id(weight)]!r} and {name!r} have one weight"
            raise ArgumentError("model", found, "a model that uses each weight once")
    return order


def visit_weight_layers(
    model: torch.nn.Module,
    batch: torch.Tensor,
    visit: Callable[[str, Any, Any], None],
    *,
    after: Callable[[str, Any, Any], None] | None = None,
) -> torch.Tensor:
    """Call the model, and `visit` with name, module and input of each weight layer before its call.

    Parameters
    ----------
    model : torch.nn.Module
    batch : torch.Tensor
    visit : callable
        It may change the weights of the module.
    after : callable, optional
        Called with name, module and output after the call.

    Returns
    -------
    torch.Tensor
        The output of the model.
    """
    handles: list[Any] = []

    def before_of(name: str) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, keywords: Any) -> None:
            visit(name, module, first_tensor([arguments, list(keywords.values())]))

        return hook

    def after_of(name: str) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            if after is not None:
                after(name, module, output)

        return hook

    try:
        for name, module in _weight_layers(model).items():
            handles.append(module.register_forward_pre_hook(before_of(name), with_kwargs=True))
            handles.append(module.register_forward_hook(after_of(name)))
        return called(model, batch)
    finally:
        for handle in handles:
            handle.remove()
