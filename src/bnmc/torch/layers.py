"""The layers of a model: which ones are measured or changed, and visits of them in a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bnmc._support.arguments import items
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError, UnknownNameError
from bnmc.torch.models import (
    Inputs,
    is_implicit,
    is_weight_layer,
    own_weight,
    shape_of,
    tensor_of,
    torch,
)

#: Called with the name of a module, the module, and its first input or its output.
_Visit = Callable[[str, Any, Any], None]


@dataclass(frozen=True)
class Layers:
    """The observed modules.

    Parameters
    ----------
    modules : dict of str to torch.nn.Module
        By name.
    between : bool
        If true, the modules are weight layers, and each layer ends at the next weight layer. Its
        output is the input of the next weight layer, after norms and activations, also those that
        are functions. If false, the output of a layer is that of its module.
    """

    modules: dict[str, torch.nn.Module]
    between: bool


def chosen_layers(model: torch.nn.Module, layers: object = None) -> Layers:
    """Return the layers of the argument `layers`, or else the blocks of the model.

    The blocks are the modules of one class of the user's (or of `torch.nn`) that contain more than
    half of the weight layers, two or more of them; the outermost such class. If there is no such
    class, each weight layer begins a block, and the next weight layer begins the next block.
    """
    named = dict(model.named_modules())
    if layers is None:
        return _blocks(named)
    allowed = "names of modules, or modules, of the model"
    given = items("layers", layers, allowed)
    if not given:
        raise ArgumentError("layers", layers, allowed)
    chosen: dict[str, Any] = {}
    for layer in given:
        name = layer
        if isinstance(layer, torch.nn.Module):
            name = next((name for name, module in named.items() if module is layer), None)
            if name is None:
                raise ArgumentError("layers", type(layer).__name__, allowed)
        elif not isinstance(layer, str):
            raise ArgumentTypeError("layers", layer, allowed)
        elif layer not in named:
            raise UnknownNameError("layers", layer, [name for name in named if name])
        chosen[name] = named[name]
    return Layers(chosen, between=False)


def forward(
    model: torch.nn.Module, batch: torch.Tensor | Inputs, layers: Layers, visit: _Visit
) -> Any:
    """Call the model on a batch, `visit` with the output of each layer, and return its output.

    The second call of a module has the name of the module and "#2", and so on. If the output of the
    last weight layer is the output of the model, this layer is a readout. A readout is visited only
    if it was chosen or is the only layer.
    """
    calls: Counter[str] = Counter()
    visited = False
    last: tuple[str, Any, Any] | None = None

    def show(name: str, module: Any, tensor: Any) -> None:
        nonlocal visited
        visited = True
        visit(name, module, tensor)

    def before(name: str, module: Any, received: Any) -> None:
        # The input of a weight layer is the output of the layer before.
        if last is not None and received is not None:
            show(*last[:2], received)

    def after(name: str, module: Any, output: Any) -> None:
        nonlocal last
        calls[name] += 1
        full = name if calls[name] == 1 else f"{name}#{calls[name]}"
        tensor = tensor_of(output)
        if layers.between:
            last = full, module, tensor
        elif tensor is None:
            kind = type(output).__name__
            raise ArgumentError("layers", f"{name!r}, with an output of type {kind}", "tensors")
        else:
            show(full, module, tensor)

    output = called(model, batch, layers.modules, before=before, after=after)
    if last is not None:
        name, module, tensor = last
        out, inputs = shape_of(module)[:2]
        whole = tensor_of(output)
        is_readout = whole is tensor or out != inputs
        if not (visited and is_readout):
            show(name, module, whole)
    if not visited:
        allowed = "modules that the forward pass calls"
        raise ArgumentError("layers", sorted(layers.modules), allowed)
    return output


def called(
    model: torch.nn.Module,
    batch: torch.Tensor | Inputs,
    modules: Mapping[str, Any] | None = None,
    *,
    before: _Visit | None = None,
    after: _Visit | None = None,
) -> Any:
    """Return the output of a model, which has a tensor, and visit modules at each of their calls.

    `before` receives the first tensor of the input of a module, `after` its whole output.
    """
    inputs = batch if isinstance(batch, Inputs) else Inputs((batch,))
    handles: list[Any] = []
    try:
        for name, module in (modules or {}).items():
            if before is not None:
                hook: Any = partial(_show_input, before, name)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            if after is not None:
                hook = partial(_show_output, after, name)
                handles.append(module.register_forward_hook(hook))
        output = inputs.through(model)
    except (BnmcError, MemoryError):
        raise
    except Exception as error:  # the forward of a user's model raises anything
        hint = f"{type(error).__name__}: {error}"
        allowed = "a batch that the model takes"
        if any(tensor.dtype == torch.uint8 for tensor in inputs.tensors):
            hint = f"its dtype is uint8: pass batch.float() / 255; {hint}"
        raise ArgumentError("batch", inputs.shapes, allowed, hint) from error
    finally:
        for handle in handles:
            handle.remove()
    if tensor_of(output) is None:
        kind = type(output).__name__
        raise ArgumentError("model", f"an output of type {kind}", "a tensor as output")
    return output


def _show_input(visit: _Visit, name: str, module: Any, arguments: Any, keywords: Any) -> None:
    visit(name, module, tensor_of([*arguments, *keywords.values()]))


def _show_output(visit: _Visit, name: str, module: Any, arguments: Any, output: Any) -> None:
    visit(name, module, output)


def _blocks(named: dict[str, Any]) -> Layers:
    weights = {name: module for name, module in named.items() if is_weight_layer(module)}
    if not weights:
        hint = "the model has no linear layer and no convolution"
        raise ArgumentError("layers", None, "names of modules of the model", hint)
    repeated = _repeated(named, weights)
    return Layers(repeated, between=False) if repeated else Layers(weights, between=True)


def _repeated(named: dict[str, Any], weights: Iterable[str]) -> dict[str, Any]:
    """Return the modules of the outermost class that repeats with most weight layers inside."""
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    by_kind: dict[type, dict[str, Any]] = {}
    for name, module in named.items():
        inner = any(True for _ in module.children())
        if name and inner and not isinstance(module, containers) and not is_weight_layer(module):
            by_kind.setdefault(type(module), {})[name] = module
    total = len(list(weights))
    candidates: list[tuple[bool, int, int, dict[str, Any]]] = []
    for order, (kind, modules) in enumerate(by_kind.items()):
        outer = [name for name in modules if not _is_inside(name, modules)]
        inside = [name for name in weights if _is_inside(name, outer)]
        blocks = {
            name: modules[name]
            for name in outer
            if any(_is_inside(weight, [name]) for weight in inside)
        }
        if len(blocks) > 1 and 2 * len(inside) > total:
            depth = max(name.count(".") for name in blocks)  # a stem is no block
            # A Sequential may also be a stage of blocks, so blocks of a class come first.
            candidates.append((kind is torch.nn.Sequential, depth, order, blocks))
    return min(candidates, key=lambda candidate: candidate[:3])[-1] if candidates else {}


def _is_inside(name: str, modules: Iterable[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


def weight_matrices(model: torch.nn.Module) -> dict[str, Any]:
    """Return all linear layers and convolutions by name, one for each weight; require one."""
    matrices: dict[str, Any] = {}
    seen: set[int] = set()
    for name, module in weight_layers(model).items():
        weight = own_weight(module)
        if weight is None or id(weight) not in seen:
            seen.add(id(weight))
            matrices[name] = module
    return matrices


def require_own_weight(name: str, module: Any) -> None:
    """Raise if a weight is computed from other parameters, as by weight norm, or is implicit."""
    if is_implicit(module):
        value = f"the weight of {name!r} is drawn by direction"
        raise ArgumentError("model", value, "layers whose weights have entries")
    if own_weight(module) is None:
        value = f"the weight of {name!r} is computed from other parameters"
        hint = "torch.nn.utils.parametrize.remove_parametrizations makes it a parameter"
        raise ArgumentError("model", value, "layers whose weights are parameters", hint)


def weight_layers(model: torch.nn.Module) -> dict[str, Any]:
    """Return all linear layers and convolutions by name; require one."""
    layers = {
        name: module
        for name, module in model.named_modules()
        if is_weight_layer(module, transposed=False)
    }
    if not layers:
        allowed = "a model with linear layers or convolutions"
        raise ArgumentError("model", type(model).__name__, allowed)
    return layers


def called_weight_layers(model: torch.nn.Module, batch: torch.Tensor) -> list[tuple[str, Any]]:
    """Return names and modules of the weight layers, in the order of their calls.

    Each layer must be called once, and have a weight that no other layer has.
    """
    order: list[tuple[str, Any]] = []
    layers = weight_layers(model)
    called(model, batch, layers, before=lambda name, module, _: order.append((name, module)))
    calls = Counter(name for name, _ in order)
    users: dict[int, str] = {}
    for name, module in order:
        if calls[name] > 1:
            allowed = "a model that calls each weight layer once"
            raise ArgumentError("model", f"{name!r}, called {calls[name]} times", allowed)
        weight = own_weight(module)
        if weight is not None and (first := users.setdefault(id(weight), name)) != name:
            value = f"{first!r} and {name!r} have one weight"
            raise ArgumentError("model", value, "a model that uses each weight once")
    return order
