"""The steps of a model's forward pass, read from its symbolic trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bnmc._support.extras import import_extra
from bnmc.chain.activation_names import is_torch_module, name_of_module
from bnmc.torch.models import is_weight_layer

if TYPE_CHECKING:
    import torch

__all__ = ["Step", "activation_name", "steps_of"]

#: Names of activations by functions and methods of PyTorch.
_FUNCTIONS = {
    "relu": "relu", "relu_": "relu", "tanh": "tanh", "tanh_": "tanh", "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid", "sin": "sin", "sin_": "sin", "erf": "erf", "erf_": "erf", "abs": "abs",
    "selu": "selu", "silu": "silu",
}  # fmt: skip

#: Functions, methods and modules that leave the numbers of a sample as they are.
_NEUTRAL = ("flatten", "view", "reshape", "size", "getattr", "getitem", "contiguous", "Flatten",
            "Identity", "Unflatten")  # fmt: skip

_NORMS = {"BatchNorm1d": "batch", "BatchNorm2d": "batch", "BatchNorm3d": "batch"}
_OTHER_NORMS = (
    "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "LocalResponseNorm", "SyncBatchNorm",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Parameters
    ----------
    kind : {"weight", "norm", "activation", "none", "other"}
        "none" changes nothing.
    name : str
        Name of the activation or the norm in bnmc, or of the operation.
    label : str
        Name of the module or the function in the model, for messages.
    module : torch.nn.Module or None
    trouble : str, default ""
        Why a chain does not describe the step.
    """

    kind: str
    name: str
    label: str
    module: Any = None
    trouble: str = ""


def steps_of(model: torch.nn.Module) -> tuple[list[Step] | None, list[str]]:
    """Return the steps of a forward pass in order, and what a sequence of steps cannot describe.

    The steps are None if the forward pass cannot be traced.
    """
    fx: Any = import_extra("torch.fx", "torch")
    if is_weight_layer(model) or not any(True for _ in model.children()):
        return [_of_module(type(model).__name__, model)], []
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # forward passes with control flow raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        return None, [f"the forward pass cannot be traced ({reason})"]
    modules = dict(model.named_modules())
    steps: list[Step] = []
    troubles: list[str] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if node.op == "call_module":
            steps.append(_of_module(node.target, modules[node.target]))
        else:
            name = node.target if isinstance(node.target, str) else node.target.__name__
            step = _of_function(name, node)
            steps.append(step)
        tensors = [one for one in node.all_input_nodes if not _is_shape(one)]
        if len(tensors) > 1:
            troubles.append(f"{steps[-1].label}: it joins {len(tensors)} branches")
            steps[-1] = Step("none", "join", steps[-1].label)
    return steps, troubles


def activation_name(module: Any) -> str | None:
    """Return the name in bnmc of an activation module, or None."""
    return name_of_module(module) if is_torch_module(module) else None


def _of_module(label: str, module: Any) -> Step:
    kind = type(module).__name__
    if is_weight_layer(module, transposed=False):
        trouble = ""
        if kind != "Linear" and hasattr(module, "kernel_size"):
            size = "×".join(map(str, module.kernel_size))
            trouble = f"{label}: a convolution with kernels of {size} has samples at all positions"
        return Step("weight", kind, label, module, trouble)
    if kind in _NORMS:
        return Step("norm", _NORMS[kind], label, module)
    if kind in _OTHER_NORMS:
        return Step("norm", kind, label, module, f"{label}: {kind} is no norm of a Chain")
    activation = activation_name(module)
    if activation is not None:
        return Step("activation", activation, label, module)
    if kind in _NEUTRAL or (kind.startswith("Dropout") and not (module.training and module.p > 0)):
        return Step("none", kind, label, module)
    return Step("other", kind, label, module, f"{label}: {kind} is no part of a Chain")


def _of_function(name: str, node: Any) -> Step:
    name = name.strip("_")
    if name in _FUNCTIONS:
        return Step("activation", _FUNCTIONS[name], name)
    if name == "gelu" and node.kwargs.get("approximate", "none") == "none":
        return Step("activation", "gelu", name)
    slope = node.kwargs.get("negative_slope", node.args[1] if len(node.args) > 1 else 0.01)
    if name == "leaky_relu" and slope == 0.01:
        return Step("activation", "leaky_relu", name)
    if name in _NEUTRAL:
        return Step("none", name, name)
    return Step("other", name, name, None, f"{name}: this function is no part of a Chain")


def _is_shape(node: Any) -> bool:
    """Whether a node is a number such as the length of an axis, not a tensor."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in ("size", "getattr"):
        return True
    return name == "getitem" and _is_shape(node.args[0])
