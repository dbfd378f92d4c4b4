"""`implicit_`: layers replaced by layers whose weights are drawn by direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bnmc._support import arguments
from bnmc._support.keywords import explains_keywords
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.implicit.words import key_of, normals
from bnmc.torch.implicit_attention import ImplicitAttention
from bnmc.torch.implicit_modules import (
    COLUMNS,
    ImplicitConv,
    ImplicitEmbedding,
    ImplicitLayer,
    ImplicitLinear,
    drawn_seed,
)
from bnmc.torch.initializing import resetter
from bnmc.torch.layers import chosen_layers
from bnmc.torch.models import Model, torch

#: The attribute of a layer that stayed dense: the reason in words.
_REASON = "implicit_reason"

#: The reason of a layer that is drawn, with the law that it would have.
_THIN = "its entries take less memory"

#: Names of linear layers of one module, usually with one input: they share directions.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"),
             ("to_q", "to_k", "to_v"), ("wq", "wk", "wv"), ("gate_proj", "up_proj"),
             ("w1", "w3"))  # fmt: skip

#: Layers that may be large; those of the first line are replaced.
_REPLACED = ("Linear", "Conv1d", "Conv2d", "Embedding", "MultiheadAttention")
_OTHERS = ("Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Bilinear",
           "EmbeddingBag", "LSTM", "GRU", "RNN")  # fmt: skip


@explains_keywords
def implicit_(
    model: Model, *, rng: Any = None, layers: Any = None, columns: int = COLUMNS
) -> Model:
    """Replace layers by layers whose weights are drawn by direction, in place.

    Replaced are ``torch.nn.Linear``, ``Embedding``, ``MultiheadAttention``, ``Conv1d`` and
    ``Conv2d`` (by unfolding), and the ``Conv1D`` of transformers. Their weights become Gaussian,
    with mean 0. Tied weights stay tied. Biases and other parameters stay as they are.

    A model on the device "meta" has no weights: its layers get the variance of their own
    initialization, and other parameters are made by the ``reset_parameters`` of their modules. In
    other models the variance is that of the present weights.

    Parameters
    ----------
    model : torch.nn.Module
        A module that contains layers.
    rng : optional
        Seed or generator, any argument of `numpy.random.default_rng`. Default: PyTorch's random
        state.
    layers : sequence of str or torch.nn.Module, optional
        Layers to replace, or modules in which all layers are replaced. Default: all layers whose
        entries take more memory than `columns` directions of each side. Smaller layers stay dense:
        their weights are drawn with the same law.
    columns : int, default 512
        Room of each layer, as in `ImplicitLinear`.

    Returns
    -------
    torch.nn.Module
        The argument `model`. `implicit_layers` lists what was replaced and what was not.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed, `model` is itself a layer, weights are not finite, or a
        module on the device "meta" has no ``reset_parameters``. The model is then as before.

    See Also
    --------
    ImplicitLinear : What such a layer can do.

    Examples
    --------
    A step of gradient descent of a model of 160 GB:

    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import ImplicitSGD, implicit_, implicit_layers
    >>> seed = torch.manual_seed(0)
    >>> with torch.device("meta"):
    ...     first, last = nn.Linear(8, 200_000), nn.Linear(200_000, 1)
    ...     model = nn.Sequential(first, nn.Tanh(), nn.Linear(200_000, 200_000), nn.Tanh(), last)
    >>> model = implicit_(model, rng=0)
    >>> optimizer = ImplicitSGD(model, lr=0.1)
    >>> model(torch.ones(2, 8)).square().mean().backward()
    >>> optimizer.step()
    >>> for name, text in implicit_layers(model).items():
    ...     print(name, text)
    0 dense: its entries take less memory
    2 200000 x 200000, asked for 1 of 512 columns and 1 of 512 rows
    4 dense: its entries take less memory
    """
    columns = arguments.integer("columns", columns, low=1)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError("model", model, "a torch.nn.Module")
    seed = drawn_seed() if rng is None else key_of(rng)
    with torch.no_grad():
        _Replacement(_Plan(model, layers, columns), seed, columns)
    return model


@explains_keywords
def implicit_layers(model: torch.nn.Module) -> dict[str, str]:
    """Return in words what is decided of each layer, and why other layers are dense.

    Parameters
    ----------
    model : torch.nn.Module
        A model after `implicit_`.

    Returns
    -------
    dict of str to str
        For each layer that `implicit_` replaced, or left dense, by name.

    Examples
    --------
    >>> from torch import nn
    >>> from bnmc.torch import implicit_, implicit_layers
    >>> model = implicit_(nn.Sequential(nn.Linear(6000, 6000), nn.Linear(6000, 2)))
    >>> for name, text in implicit_layers(model).items():
    ...     print(name, text)
    0 6000 x 6000, asked for 0 of 512 columns and 0 of 512 rows
    1 dense: its entries take less memory
    """
    described = {}
    for name, module in model.named_modules():
        if isinstance(module, ImplicitLayer) and module.matrix is not None:
            rows, columns = module.matrix.shape
            (right, left), (room, wide) = module.matrix.asked, module.weight.shape
            described[name] = (
                f"{rows} x {columns}, asked for {right} of {wide - 1} columns and {left} of {room} "
                "rows"
            )
        elif isinstance(module, ImplicitLayer):
            described[name] = "dense: its entries take less memory by now"
        elif hasattr(module, _REASON):
            described[name] = f"dense: {getattr(module, _REASON)}"
    return described


class _Plan:
    """Which layers are replaced, and which are not and why; made before anything changes."""

    def __init__(self, model: Any, layers: object, columns: int) -> None:
        self.model = model
        self.replaced: dict[int, Any] = {}
        self.dense: dict[int, tuple[Any, str]] = {}
        #: Weights that other modules than embeddings have, which multiply by them.
        self.multiplied = {
            id(weight)
            for module in model.modules()
            if not isinstance(module, torch.nn.Embedding)
            for weight in module.parameters(recurse=False)
        }
        chosen = [] if layers is None else list(chosen_layers(model, layers).modules.values())
        for part in chosen or [model]:
            for layer in _layers(part):
                reason = _trouble(layer) or self._trouble_of_tie(layer)
                if reason and any(layer is module for module in chosen):
                    raise ArgumentError("layers", type(layer).__name__, "other layers", reason)
                if not reason and not chosen and self._is_thin(layer, columns):
                    reason = _THIN
                if reason:
                    self.dense[id(layer)] = layer, reason
                else:
                    self.replaced[id(layer)] = layer
        self._keep_ties()
        if id(model) in self.replaced:
            allowed = "a module that contains layers, such as torch.nn.Sequential"
            raise ArgumentError("model", type(model).__name__, allowed)
        for name, module in self.remaining():
            if _on_meta(module) and resetter(module) is None:
                value = f"{type(module).__name__} {name!r} on the device 'meta'"
                raise ArgumentError("model", value, "modules that have reset_parameters")

    def _trouble_of_tie(self, layer: Any) -> str:
        """Return why an embedding that is tied to another layer cannot be replaced, or ""."""
        padded = getattr(layer, "padding_idx", None) is not None
        return "it has padding_idx and a tied weight" if padded and self._is_tied(layer) else ""

    def _is_tied(self, layer: Any) -> bool:
        return id(layer.weight) in self.multiplied

    def _is_thin(self, layer: Any, columns: int) -> bool:
        """Whether all entries of a layer take less memory than `columns` directions."""
        if isinstance(layer, torch.nn.Embedding) and not self._is_tied(layer):
            return len(layer.weight) <= 2 * columns
        shapes = [part.weight.flatten(1).shape for part in _parts(layer)]
        room = sum(sum(shape) * sum(min(size, columns) for size in shape) for shape in shapes)
        return sum(math.prod(shape) for shape in shapes) <= room

    def remaining(self) -> Iterator[tuple[str, Any]]:
        """Yield the modules that stay, by name."""
        inside = {id(part) for layer in self.replaced.values() for part in layer.modules()}
        for name, module in self.model.named_modules():
            if id(module) not in inside:
                yield name, module

    def _keep_ties(self) -> None:
        """Leave a layer dense if another module has its weight and stays."""
        while True:
            owners = {
                id(weight): type(module).__name__
                for _, module in self.remaining()
                for weight in module.parameters(recurse=False)
            }
            tied = {
                key: owners[id(part.weight)]
                for key, layer in self.replaced.items()
                for part in _parts(layer)
                if id(part.weight) in owners
            }
            if not tied:
                return
            for key, owner in tied.items():
                reason = f"its weight is tied to a module that stays dense, {owner}"
                self.dense[key] = self.replaced.pop(key), reason


class _Replacement:
    """Carries a plan out."""

    def __init__(self, plan: _Plan, seed: int, columns: int) -> None:
        self.seed, self.columns, self.count = seed, columns, 0
        self.tied: dict[int, ImplicitLayer] = {}
        self.multiplied = plan.multiplied
        device = torch.get_default_device()
        self.device = "cpu" if device.type == "meta" else device
        made = {key: self._made(layer) for key, layer in plan.replaced.items()}
        new = {id(layer) for layer in made.values()}
        for module in list(plan.model.modules()):
            for name, child in module._modules.items():
                if id(child) in made:
                    module._modules[name] = made[id(child)].train(child.training)
            for names in _SIBLINGS:
                children = [module._modules.get(name) for name in names]
                self._join([layer for layer in children if id(layer) in new])
        _leave_fast_paths(plan.model)
        self._give_values([module for _, module in plan.remaining()])
        done: set[int] = set()
        for layer, reason in plan.dense.values():
            setattr(layer, _REASON, reason)
            for part in _parts(layer) if reason == _THIN else ():
                if id(part.weight) not in done:
                    done.add(id(part.weight))
                    self._draw(part)

    def _made(self, layer: Any) -> Any:
        """Return the implicit layer in the place of a layer."""
        options = {}
        if isinstance(layer, torch.nn.Embedding):
            options["is_tied"] = id(layer.weight) in self.multiplied
        parts = [self._implicit(part, **options) for part in _parts(layer)]
        if isinstance(layer, torch.nn.MultiheadAttention):
            return ImplicitAttention(layer, parts[:-1], parts[-1])
        return parts[0]

    def _implicit(self, part: _Part, **options: Any) -> ImplicitLayer:
        """Return an implicit layer with the law of a matrix, or tied as the matrix is."""
        weight, bias = part.weight, part.bias
        device = self.device if weight.is_meta else weight.device
        options |= {"columns": self.columns, "device": device, "dtype": weight.dtype}
        new = part.build(std=part.present_std, rng=self._seed(), **options)
        if isinstance(weight, torch.nn.Parameter):
            first = self.tied.setdefault(id(weight), new)
            if first is not new:
                new.share(first)
        new.weight.requires_grad_(weight.requires_grad)
        if bias is not None:
            if bias.is_meta:
                values = torch.empty(bias.shape, device=device, dtype=bias.dtype)
                values.uniform_(-part.bound, part.bound)
            else:
                values = bias.detach()
            same = isinstance(bias, torch.nn.Parameter) and not bias.is_meta
            new.bias = bias if same else torch.nn.Parameter(values, bias.requires_grad)
        return new

    def _join(self, layers: list[Any]) -> None:
        """Let layers with one input share the directions that they are asked for."""
        for layer in layers[1:]:
            if layer.matrix.shape[1] == layers[0].matrix.shape[1]:
                layer.matrix.join(layers[0].matrix)

    def _draw(self, part: _Part) -> None:
        """Draw the entries of a matrix that stays dense, with the same law."""
        rows, columns = part.weight.flatten(1).shape
        device = torch.empty(0, device=part.weight.device)
        values = normals(key_of(self._seed()), 0, np.arange(rows), columns, "float64", device)
        entries = part.present_std * values.reshape(part.weight.shape)
        padding = part.padding
        part.weight.copy_(entries)
        if padding is not None:
            part.weight[padding] = 0.0

    def _seed(self) -> tuple[int, int]:
        self.count += 1
        return self.seed, self.count

    def _give_values(self, modules: list[Any]) -> None:
        """Give values to tensors of the meta device, by their modules' own initialization."""
        made: dict[int, Any] = {}
        for module in modules:
            if not _on_meta(module):
                continue
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.is_meta:
                        values = torch.empty_like(tensor, device=self.device)
                        if isinstance(tensor, torch.nn.Parameter):
                            values = torch.nn.Parameter(values, tensor.requires_grad)
                        tensors[name] = made.setdefault(id(tensor), values)
            reset = resetter(module)
            assert reset is not None
            reset()


class _Part(NamedTuple):
    """A matrix of a layer: its entries, and what its implicit form is made of.

    `std` is that of its initialization, biases of which are uniform in ±`bound`.  The row `padding`
    is zero.
    """

    weight: Any
    std: float
    build: Callable[..., ImplicitLayer]
    bias: Any = None
    bound: float = 0.0
    padding: int | None = None

    @property
    def present_std(self) -> float:
        """The root mean square of the entries, or `std` if they have no values."""
        if self.weight.is_meta:
            return self.std
        norm = float(torch.linalg.vector_norm(self.weight, dtype=torch.float64))
        size = self.weight.numel() * (1.0 - (self.padding is not None) / len(self.weight))
        if not math.isfinite(norm):
            raise ArgumentError("model", "weights with NaN or infinity", "finite weights")
        return norm / math.sqrt(max(size, 1.0))


def _parts(layer: Any) -> list[_Part]:
    """Return the matrices of a layer that can be replaced."""
    bias = getattr(layer, "bias", None)
    if isinstance(layer, torch.nn.MultiheadAttention):
        return _parts_of_attention(layer)
    weight = layer.weight
    if isinstance(layer, torch.nn.Embedding):
        padding = layer.padding_idx
        return [_Part(weight, 1.0, partial(ImplicitEmbedding, layer), padding=padding)]
    inputs, outputs = weight[0].numel(), len(weight)
    if isinstance(layer, torch.nn.Linear):
        build: Any = partial(ImplicitLinear, inputs, outputs, False)
    elif isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d)):
        build = partial(ImplicitConv, layer)
    else:  # Conv1D of transformers: its weight is transposed
        return [_Part(weight, 0.02, partial(ImplicitLinear, outputs, inputs, False), bias)]
    return [_Part(weight, (3.0 * inputs) ** -0.5, build, bias, inputs**-0.5)]


def _parts_of_attention(layer: Any) -> list[_Part]:
    """Return the projections of query, key and value, in one matrix if possible, and the last."""
    size, packed = layer.embed_dim, layer.in_proj_weight
    if packed is not None:
        weights, stds = [packed], [(2.0 * size) ** -0.5]
        if not packed.is_meta:
            blocks = packed.chunk(3)
            norms = [float(torch.linalg.vector_norm(block)) for block in blocks]
            # The norm of N numbers has the relative standard deviation 1/sqrt(2 N).
            if max(norms) > (1.0 + 10.0 / size) * min(norms):
                weights, stds = list(blocks), stds * 3
    else:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
        stds = [(2.0 / (size + weight.shape[1])) ** 0.5 for weight in weights]
    biases = [None] * len(weights)
    if layer.in_proj_bias is not None:
        biases = list(layer.in_proj_bias.chunk(len(weights)))
    parts = [
        _Part(weight, std, partial(ImplicitLinear, weight.shape[1], len(weight), False), bias)
        for weight, std, bias in zip(weights, stds, biases, strict=True)
    ]
    last = _parts(layer.out_proj)[0]
    return [*parts, last._replace(bound=0.0)]


def _layers(module: Any) -> Iterator[Any]:
    """Yield the layers of a module that may be large, without those inside them."""
    kinds = tuple(getattr(torch.nn, name) for name in (*_REPLACED, *_OTHERS))
    if isinstance(module, kinds) or _is_transposed(module):
        yield module
    else:
        for child in module.children():
            yield from _layers(child)


def _trouble(layer: Any) -> str:
    """Return why a layer cannot be replaced, or ""."""
    if hasattr(layer, "parametrizations"):
        return "its weight is computed from other parameters"
    kind = type(layer).__name__
    exact = [getattr(torch.nn, name) for name in _REPLACED]
    if not (type(layer) in exact or _is_transposed(layer)):
        return f"{kind} has no implicit form"
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(layer, name) for name in names):
        return "it has hooks"
    if getattr(layer, "groups", 1) != 1:
        return "its channels are in groups"
    options = ("bias_k", "add_zero_attn", "max_norm", "scale_grad_by_freq", "sparse")
    values = {name: getattr(layer, name, None) for name in options}
    given = [name for name, value in values.items() if value is not None and value is not False]
    return f"it has {given[0]}" if given else ""


def _is_transposed(layer: Any) -> bool:
    """Whether a layer is the Conv1D of transformers, which need not be installed."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _on_meta(module: Any) -> bool:
    """Whether a module has tensors without values."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(tensor.is_meta for tensor in tensors)


def _leave_fast_paths(model: Any) -> None:
    """Let transformers call their modules, not read the weights of these."""
    for module in model.modules():
        if any(isinstance(part, ImplicitLayer) for part in module.modules()):
            if isinstance(module, torch.nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, torch.nn.TransformerEncoder):
                module.use_nested_tensor = False
