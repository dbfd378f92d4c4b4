"""The steps of a model's forward pass, read from its symbolic trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bnmc.chain.activations import is_torch_module, name_of_module
from bnmc.torch.models import is_weight_layer, torch

#: What to do about a model without a chain, for messages.
INSTEAD = "; bnmc.torch.measure measures the model without a chain"

#: Names of activations by functions and methods of PyTorch.
_FUNCTIONS = {
    "relu": "relu", "relu_": "relu", "tanh": "tanh", "tanh_": "tanh", "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid", "sin": "sin", "sin_": "sin", "erf": "erf", "erf_": "erf", "abs": "abs",
    "selu": "selu", "silu": "silu",
}  # fmt: skip

#: Functions, methods and modules that leave the numbers of a sample as they are.
_NEUTRAL = ("flatten", "view", "reshape", "size", "getattr", "getitem", "contiguous", "Flatten",
            "Identity", "Unflatten")  # fmt: skip

#: Functions that add two tensors.
_SUMS = ("add", "iadd")

#: Names of modules of dropout begin so.
_DROPOUTS = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")

_BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
_FEATURE_NORMS = ("LayerNorm", "RMSNorm", "GroupNorm")
_OTHER_NORMS = (
    "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LocalResponseNorm", "SyncBatchNorm",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Parameters
    ----------
    kind : {"weight", "norm", "activation", "sum", "none", "dropout", "other"}
        "none" changes nothing. "sum" adds the output of an earlier step: a skip connection.
    name : str
        Name of the activation or the norm in bnmc, or of the operation.
    label : str
        Name of the module or the function in the model, for messages.
    module : torch.nn.Module or None
    trouble : str, default ""
        Why a chain does not describe the step.
    source : int, default -1
        The step whose output a sum adds; -1 for the input of the model.
    skip, gain : float, default 1
        Factors of the output of `source`, and of that of the step before the sum.
    projection : Step or None
        The weight layer that the skip connection of a sum goes through.
    """

    kind: str
    name: str
    label: str
    module: Any = None
    trouble: str = ""
    source: int = -1
    skip: float = 1.0
    gain: float = 1.0
    projection: Step | None = None


def steps_of(model: torch.nn.Module) -> tuple[list[Step] | None, list[str]]:
    """Return the steps of a forward pass in order, and what a sequence of steps cannot describe.

    The steps are None if the forward pass cannot be traced.
    """
    if is_weight_layer(model) or not any(True for _ in model.children()):
        return [_of_module(type(model).__name__, model)], []
    tracer = torch.fx.Tracer()
    is_leaf = tracer.is_leaf_module
    tracer.is_leaf_module = lambda module, name: is_weight_layer(module) or is_leaf(module, name)
    try:
        graph = tracer.trace(model)
    except Exception as error:  # forward passes with control flow raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        instead = "specify the network by bnmc.Chain yourself"
        return None, [f"the forward pass cannot be traced ({reason}); {instead}"]
    modules = dict(model.named_modules())
    walk = _Walk(modules, _projections(graph, modules))
    for node in graph.nodes:
        walk.visit(node)
    return walk.steps, walk.troubles


class _Walk:
    """The nodes of a graph, one after the other, as a sequence of steps."""

    def __init__(self, modules: dict[str, Any], projections: dict[Any, Any]) -> None:
        self.modules, self.projections = modules, projections
        self.steps: list[Step] = []
        self.troubles: list[str] = []
        #: For each node the step that it is, and for multiples of a node the node and the factor.
        self.places: dict[Any, int] = {}
        self.multiples: dict[Any, tuple[Any, float]] = {}

    def visit(self, node: Any) -> None:
        """Add the step of a node."""
        if node.op == "placeholder":
            self.places[node] = -1
            return
        if node.op in ("output", "get_attr") or node in self.projections:
            return
        if node.op == "call_module":
            step = _of_module(node.target, self.modules[node.target])
        else:
            name = node.target if isinstance(node.target, str) else node.target.__name__
            if name in ("mul", "imul") and (multiple := _multiple(node)) is not None:
                self.multiples[node] = multiple
                return
            step = _of_function(name, node)
        tensors = _tensors(node)
        if step.kind == "none" and len(tensors) == 1 and tensors[0] not in self.multiples:
            self.places[node] = self.places.get(tensors[0], -1)
            return
        if len(tensors) > 1:
            step = self._joined(step, tensors, plain=not node.kwargs)
        elif tensors and not _is_shape(node):
            if tensors[0] in self.multiples:
                self.troubles.append(f"mul: multiples fit in skip connections only{INSTEAD}")
            elif self.places.get(tensors[0], -1) != len(self.steps) - 1:
                self.troubles.append(
                    f"{step.label}: a branch of its own; a Chain has one branch and a skip "
                    "connection without layers"
                )
        if not _is_shape(node):
            self.places[node] = len(self.steps)
            self.steps.append(step)

    def _joined(self, step: Step, tensors: list[Any], *, plain: bool) -> Step:
        """Return a sum with a skip connection, or note that branches join in another way."""
        ends = [self.multiples.get(tensor, (tensor, 1.0)) for tensor in tensors]
        sources = [self.projections.get(node, node) for node, _ in ends]
        places = [self.places.get(node, -1) for node in sources]
        last = len(self.steps) - 1
        fits = step.name in _SUMS and plain and len(tensors) == 2 and places.count(last) == 1
        if not fits:
            self.troubles.append(
                f"{step.label}: it joins {len(tensors)} branches; a Chain adds one skip connection"
            )
            return Step("none", "join", step.label)
        branch = places.index(last)
        (path, skip), (_, gain) = ends[1 - branch], ends[branch]
        projection = None
        if path in self.projections:
            projection = _of_module(path.target, self.modules[path.target])
        return Step(
            "sum", "sum", step.label, source=places[1 - branch], skip=skip, gain=gain,
            projection=projection,
        )  # fmt: skip


def _projections(graph: Any, modules: dict[str, Any]) -> dict[Any, Any]:
    """Return the weight layers on skip paths, and the node that each of them takes.

    Such a layer leads to a sum alone, and what it takes leads to the sum through other weights too.
    """

    def is_weight(node: Any) -> bool:
        return node.op == "call_module" and is_weight_layer(modules[node.target], transposed=False)

    def has_weights(node: Any, source: Any) -> bool:
        """Whether one path without sums leads from a source to a node, and has weights."""
        weights = 0
        while node is not source:
            inputs = _tensors(node)
            if len(inputs) != 1:
                return False
            weights += is_weight(node)
            (node,) = inputs
        return weights > 0

    projections: dict[Any, Any] = {}
    for node in graph.nodes:
        ends = [(_multiple(tensor) or (tensor, 1.0))[0] for tensor in _tensors(node)]
        if len(ends) != 2:
            continue
        for path, branch in (ends, ends[::-1]):
            if is_weight(path) and len(path.users) == 1 and has_weights(branch, _tensors(path)[0]):
                projections[path] = _tensors(path)[0]
                break
    return projections


def _of_module(label: str, module: Any) -> Step:
    kind = type(module).__name__
    if is_weight_layer(module, transposed=False):
        return Step("weight", kind, label, module, _of_convolution(label, module))
    if kind in _BATCH_NORMS:
        return Step("norm", "batch", label, module)
    if kind in _FEATURE_NORMS:
        return _of_feature_norm(label, kind, module)
    if kind in _OTHER_NORMS:
        instead = "BatchNorm, LayerNorm, RMSNorm and GroupNorm are"
        return Step(
            "norm", kind, label, module, f"{label}: {kind} is no norm of a Chain; {instead}"
        )
    activation = name_of_module(module) if is_torch_module(module) else None
    if activation is not None:
        return Step("activation", activation, label, module)
    off = kind.startswith(_DROPOUTS) and not (module.training and module.p > 0)
    if kind in _NEUTRAL or off:
        return Step("none", kind, label, module)
    other = "dropout" if kind.startswith(_DROPOUTS) else "other"
    return Step(other, kind, label, module, f"{label}: {kind} is no part of a Chain{_hint(kind)}")


def _hint(kind: str) -> str:
    """Return advice on a module that a chain cannot contain."""
    if kind.startswith(_DROPOUTS):
        return "; set its p to 0"
    if hasattr(torch.nn.modules.activation, kind) and kind != "MultiheadAttention":
        return "; bnmc.Chain takes activations of your own as functions"
    return INSTEAD


def _of_convolution(label: str, module: Any) -> str:
    """Return why a convolution does not fit `Chain.conv`; "" if it fits, or for a linear layer."""
    if not hasattr(module, "kernel_size"):
        return ""
    kernel = module.kernel_size
    size = "×".join(map(str, kernel))
    name = f"{label}: a convolution with kernels of {size}"
    if len(kernel) > 2:
        return f"{name} has three axes; a Chain has images"
    if any(number != 1 for number in (*module.stride, *module.dilation, module.groups)):
        return f"{name} with stride, dilation or groups; those of a Chain are 1"
    if all(taps == 1 for taps in kernel):
        return ""
    same = module.padding == "same" or (
        not isinstance(module.padding, str)
        and all(2 * pad + 1 == taps for pad, taps in zip(module.padding, kernel, strict=True))
    )
    if same and module.padding_mode == "circular":
        return ""
    return (
        f"{name} and padding of {module.padding_mode}; that of a Chain has "
        'padding="same", padding_mode="circular"'
    )


def _of_feature_norm(label: str, kind: str, module: Any) -> Step:
    """Return the step of a norm over the features of each sample."""
    if kind == "GroupNorm":
        return Step("norm", f"group({module.num_groups})", label, module)
    name = "layer" if kind == "LayerNorm" else "rms"
    trouble = ""
    if len(module.normalized_shape) > 1:
        shape = tuple(module.normalized_shape)
        trouble = f"{label}: {kind} over {shape}; that of a Chain has one axis, the features"
    return Step("norm", name, label, module, trouble)


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
    if name == "dropout":
        options = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
        if not (options.get("training", True) and options.get("p", 0.5) > 0.0):
            return Step("none", name, name)
        return Step("dropout", name, name, None, f"{name}: it is no part of a Chain{INSTEAD}")
    trouble = f"{name}: this function is no part of a Chain{INSTEAD}"
    return Step("other", name, name, None, trouble)


def _multiple(node: Any) -> tuple[Any, float] | None:
    """Return the tensor and the number of a product, or None if it is another product."""
    numbers = [number for number in node.args if isinstance(number, (int, float))]
    if len(node.args) != 2 or len(numbers) != 1 or len(node.all_input_nodes) != 1:
        return None
    return node.all_input_nodes[0], float(numbers[0])


def _tensors(node: Any) -> list[Any]:
    """Return the tensors among the inputs of a node."""
    return [source for source in node.all_input_nodes if not _is_shape(source)]


def _is_shape(node: Any) -> bool:
    """Whether a node is a number such as the length of an axis, not a tensor."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in ("size", "getattr"):
        return True
    return name == "getitem" and _is_shape(node.args[0])
