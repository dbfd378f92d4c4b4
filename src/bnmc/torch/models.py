"""PyTorch, and the arguments `model` and `batch`: checked and unwrapped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bnmc._support.arguments import host_array
from bnmc._support.extras import LazyExtra
from bnmc.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    import torch as torch
else:
    torch = LazyExtra("torch", "torch")

#: A model, which functions that change it in place return.
Model = TypeVar("Model")

_KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d")
_TRANSPOSED = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


def as_model(model: object) -> torch.nn.Module:
    """Return the eager module inside ``torch.compile`` and ``DataParallel``; require values."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    inner: Any = model
    while True:
        if isinstance(inner, parallel):
            inner = inner.module
        elif isinstance(getattr(inner, "_orig_mod", None), torch.nn.Module):
            inner = inner._orig_mod
        else:
            break
    if not isinstance(inner, torch.nn.Module) or isinstance(inner, torch.jit.ScriptModule):
        allowed = "a torch.nn.Module, such as torchvision.models.resnet18()"
        hint = "no torch.jit script" if isinstance(inner, torch.nn.Module) else ""
        raise ArgumentTypeError("model", model, allowed, hint)
    lazy = (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer)
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        if isinstance(tensor, lazy):
            hint = f"call the model once: {name!r} has no shape yet"
        elif tensor.device.type == "meta":
            hint = f"{name!r} is on the device 'meta', without values"
        elif tensor.is_inference():
            hint = f"make the model outside: {name!r} was made in torch.inference_mode()"
        elif not is_plain(tensor):
            hint = f"{name!r} is quantized, or no dense tensor of one array"
        else:
            continue
        raise ArgumentError("model", type(inner).__name__, "initialized parameters", hint)
    return inner


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is an array of bytes: dense, not quantized, and no wrapper of others."""
    kind = type(tensor)
    wraps = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
    return bool(dense and not wraps and tensor.device.type != "meta")


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model for a batch; each has the samples on its first axis.

    Parameters
    ----------
    positional : tuple of torch.Tensor
    named : dict of str to torch.Tensor
    forward : callable or None
        Called with the model and the arguments, in place of the model.
    """

    positional: tuple[torch.Tensor, ...] = ()
    named: dict[str, torch.Tensor] = field(default_factory=dict)
    forward: Callable[..., Any] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All arguments."""
        return [*self.positional, *self.named.values()]

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.tensors[0])

    @property
    def shapes(self) -> Any:
        """The shape of the argument, or those of several ones."""
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        return shapes[0] if len(shapes) == 1 else shapes

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """Return the arguments after a function of each of them."""
        named = {name: function(tensor) for name, tensor in self.named.items()}
        return replace(self, positional=tuple(map(function, self.positional)), named=named)

    def through(self, model: torch.nn.Module) -> Any:
        """Return the output of a model."""
        if self.forward is not None:
            return self.forward(model, *self.positional, **self.named)
        return model(*self.positional, **self.named)


def as_inputs(model: torch.nn.Module, batch: object, forward: object = None) -> Inputs:
    """Return a batch, a tuple of arguments, or a mapping of keyword arguments."""
    if forward is not None and not callable(forward):
        raise ArgumentTypeError("forward", forward, "a function of the model and the batch")
    inputs = Inputs()
    if isinstance(batch, Mapping) and batch:
        named = {name: as_batch(model, part, f"batch[{name!r}]") for name, part in batch.items()}
        inputs = Inputs((), named)
    elif isinstance(batch, tuple) and any(isinstance(part, torch.Tensor) for part in batch):
        parts = enumerate(batch)
        inputs = Inputs(tuple(as_batch(model, part, f"batch[{place}]") for place, part in parts))
    else:
        inputs = Inputs((as_batch(model, batch),))
    if any(len(tensor) != inputs.samples for tensor in inputs.tensors):
        raise ArgumentError("batch", inputs.shapes, "as many samples in each argument")
    return replace(inputs, forward=forward)


def tensor_of(output: Any) -> torch.Tensor | None:
    """Return an output that is a tensor, or the first tensor with axes in a collection.

    Collections are tuples, lists, mappings and dataclasses. A number, as the loss that some models
    put first, is taken only if there is nothing else.
    """
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        output = list(output.values())
    elif is_dataclass(output):
        output = [getattr(output, part.name) for part in fields(output)]
    if not isinstance(output, (tuple, list)):
        return None
    tensors = [tensor for tensor in map(tensor_of, output) if tensor is not None]
    return next((tensor for tensor in tensors if tensor.ndim > 0), tensors[0] if tensors else None)


def as_batch(model: torch.nn.Module, batch: object, name: str = "batch") -> torch.Tensor:
    """Return the batch as a finite dense tensor of at least 2 samples, on the model's device.

    A tensor keeps its dtype. Floating-point numbers of another array get the dtype of the model.
    """
    floating = [weight for weight in model.parameters() if weight.is_floating_point()]
    device = floating[0].device if floating else "cpu"
    tensor: Any = batch
    several = isinstance(batch, tuple) and any(isinstance(part, torch.Tensor) for part in batch)
    if isinstance(batch, Mapping) or several:
        hint = "for a model of several inputs, write a module of one input around it"
        raise ArgumentTypeError(name, type(batch).__name__, "an array of real numbers", hint)
    if batch is None:
        raise ArgumentTypeError(name, None, "a batch of samples, which is required")
    if isinstance(batch, torch.utils.data.DataLoader):
        hint = "pass one batch: x, y = next(iter(loader))"
        raise ArgumentTypeError(name, type(batch).__name__, "an array of real numbers", hint)
    if isinstance(batch, list) and any(isinstance(part, torch.Tensor) for part in batch):
        hint = "for a batch of a DataLoader: x, y = batch"
        raise ArgumentTypeError(name, "a list of tensors", "an array of real numbers", hint)
    if not isinstance(batch, torch.Tensor):
        array = host_array(name, batch)
        if array.dtype.kind not in "fiu":
            hint = f"its dtype is {array.dtype}"
            raise ArgumentTypeError(name, batch, "an array of real numbers", hint)
        tensor = torch.from_numpy(np.array(array))  # a copy, as the array may be read-only
        if tensor.is_floating_point():
            tensor = tensor.to(floating[0].dtype if floating else torch.get_default_dtype())
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
        where = f"a tensor of layout {tensor.layout} on the device {tensor.device.type!r}"
        raise ArgumentError(name, where, "a dense tensor with values")
    if tensor.is_complex():
        raise ArgumentTypeError(name, batch, "an array of real numbers")
    if tensor.ndim == 0 or len(tensor) < 2 or tensor.numel() == 0:
        raise ArgumentError(name, tuple(tensor.shape), "at least 2 samples, on the first axis")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise ArgumentError(name, "an infinite number or NaN", "finite numbers")
    return (tensor.clone() if tensor.is_inference() else tensor).detach().to(device)


def is_weight_layer(module: Any, *, transposed: bool = True) -> bool:
    """Whether a module is linear or a convolution."""
    kinds = (*_KINDS, *_TRANSPOSED) if transposed else _KINDS
    named = isinstance(module, tuple(getattr(torch.nn, name) for name in kinds))
    return named or (_may_be_implicit(module) and hasattr(module, "bias"))


def is_implicit(module: Any) -> bool:
    """Whether the weight of a layer is drawn by direction, so it has no entries."""
    return _may_be_implicit(module) and module.matrix is not None


def _may_be_implicit(module: Any) -> bool:
    """Whether a module is an `ImplicitLayer`, whose file need not be loaded for the question."""
    loaded = sys.modules.get("bnmc.torch.implicit_modules")
    return loaded is not None and isinstance(module, loaded.ImplicitLayer)


def shape_of(module: Any) -> tuple[int, ...]:
    """Return the shape of the entries of a weight."""
    return tuple(module.matrix.shape if is_implicit(module) else module.weight.shape)


def own_weight(module: Any) -> torch.nn.Parameter | None:
    """Return the weight of a layer if it is a parameter of its own.

    It is None if the weight is computed from other parameters, as by weight normalization: then
    each access of ``module.weight`` may make a new tensor.
    """
    weight: torch.nn.Parameter | None = module._parameters.get("weight")
    return weight
