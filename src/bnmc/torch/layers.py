"""The layers of a model: which ones are measured, and their outputs in a forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bnmc._support.arguments import items
from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.torch.models import called, first_tensor, is_weight_layer

if TYPE_CHECKING:
    import torch

__all__ = ["Layers", "chosen_layers", "forward"]

#: Called with the name of a layer, its module and its output.
Visit = Callable[[str, Any, Any], None]


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

    Raises
    ------
    ArgumentTypeError, ArgumentError, UnknownNameError
        If `layers` does not contain names of modules or modules of the model, or if it is None and
        the model has no weight layer.
    """
    named = dict(model.named_modules())
    if layers is None:
        return _blocks(named)
    allowed = "names of modules, or modules, of the model"
    torch: Any = import_extra("torch", "torch")
    given = items("layers", layers, allowed)
    if not given:
        raise ArgumentError("layers", layers, allowed)
    chosen: dict[str, Any] = {}
    for one in given:
        if isinstance(one, torch.nn.Module):
            name = next((name for name, module in named.items() if module is one), None)
            if name is None:
                raise ArgumentError("layers", type(one).__name__, allowed)
        elif not isinstance(one, str):
            raise ArgumentTypeError("layers", one, allowed)
        elif one not in named:
            raise UnknownNameError("layers", one, [name for name in named if name])
        else:
            name = one
        chosen[name] = named[name]
    return Layers(chosen, between=False)


def forward(
    model: torch.nn.Module, batch: torch.Tensor, layers: Layers, visit: Visit
) -> torch.Tensor:
    """Call the model on a batch, and `visit` with the output of each layer.

    The second call of a module has the name of the module and "#2", and so on. If the output of the
    last weight layer is the output of the model, this layer is a readout. A readout is visited only
    if it was chosen or is the only layer.

    Returns
    -------
    torch.Tensor
        The output of the model.
    """
    passing = _Passing(layers, visit)
    handles: list[Any] = []
    try:
        for name, module in layers.modules.items():
            if layers.between:
                handles.append(module.register_forward_pre_hook(passing.before(), with_kwargs=True))
            handles.append(module.register_forward_hook(passing.after(name)))
        output = called(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    passing.end(output)
    return output


class _Passing:
    """The state of one forward pass: the calls of modules, and the last one."""

    def __init__(self, layers: Layers, visit: Visit) -> None:
        self.layers = layers
        self.visit = visit
        self.calls: Counter[str] = Counter()
        self.visited = 0
        self.last: tuple[str, Any, Any] | None = None

    def before(self) -> Callable[..., None]:
        """Return the hook before a weight layer: its input is the output of the layer before."""

        def hook(module: Any, arguments: Any, keywords: Any) -> None:
            received = first_tensor([arguments, list(keywords.values())])
            if self.last is not None and received is not None:
                self._visit(self.last[0], self.last[1], received)

        return hook

    def after(self, name: str) -> Callable[..., None]:
        """Return the hook after a module."""

        def hook(module: Any, arguments: Any, output: Any) -> None:
            self.calls[name] += 1
            full = name if self.calls[name] == 1 else f"{name}#{self.calls[name]}"
            if self.layers.between:
                self.last = (full, module, first_tensor(output))
                return
            tensor = first_tensor(output)
            if tensor is None:
                kind = type(output).__name__
                raise ArgumentError("layers", f"{name!r}, with an output of type {kind}", "tensors")
            self._visit(full, module, tensor)

        return hook

    def end(self, output: Any) -> None:
        """Visit what remains after the forward pass."""
        if self.layers.between and self.last is not None:
            name, module, own = self.last
            if not self.visited or not (output is own or _changes_width(module)):
                self._visit(name, module, output)
        if not self.visited:
            raise ArgumentError(
                "layers", sorted(self.layers.modules), "modules that the forward pass calls"
            )

    def _visit(self, name: str, module: Any, tensor: Any) -> None:
        self.visited += 1
        self.visit(name, module, tensor)


def _changes_width(module: Any) -> bool:
    shape = module.weight.shape
    return bool(shape[0] != shape[1])


def _blocks(named: dict[str, Any]) -> Layers:
    weights = {name: module for name, module in named.items() if is_weight_layer(module)}
    if not weights:
        hint = "the model has no linear layer and no convolution"
        raise ArgumentError("layers", None, "names of modules of the model", hint)
    repeated = _repeated(named, weights)
    return Layers(repeated, between=False) if repeated else Layers(weights, between=True)


def _repeated(named: dict[str, Any], weights: Iterable[str]) -> dict[str, Any]:
    """Return the modules of the outermost class that repeats with most weight layers inside."""
    torch: Any = import_extra("torch", "torch")
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    by_kind: dict[type, dict[str, Any]] = {}
    for name, module in named.items():
        inner = any(True for _ in module.children())
        if name and inner and not isinstance(module, containers) and not is_weight_layer(module):
            by_kind.setdefault(type(module), {})[name] = module
    total = len(list(weights))
    found: list[tuple[bool, int, int, dict[str, Any]]] = []
    for order, (kind, modules) in enumerate(by_kind.items()):
        outer = {
            name: module
            for name, module in modules.items()
            if not any(name.startswith(f"{other}.") for other in modules)
        }
        inside = [one for one in weights if any(one.startswith(f"{name}.") for name in outer)]
        if len(outer) > 1 and 2 * len(inside) > total:
            outer = {
                name: module
                for name, module in outer.items()
                if any(one.startswith(f"{name}.") for one in inside)
            }
            depth = min(name.count(".") for name in outer)
            # A Sequential may also be a stage of blocks, so blocks of a class come first.
            found.append((kind is torch.nn.Sequential, depth, order, outer))
    found = [one for one in found if len(one[-1]) > 1]
    return min(found, key=lambda one: one[:3])[-1] if found else {}
