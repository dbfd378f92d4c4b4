"""A model before and after: everything that a measurement or a cure must not change."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from bnmc.torch.models import torch

#: The dictionaries of a module that hold its tensors and submodules.
_CONTAINERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def as_it_was(model: torch.nn.Module, *, cure: bool = False) -> Iterator[None]:
    """Restore a model and all random states at the end of a block.

    Restored bit for bit are parameters, buffers, the mode and the attributes of each module,
    ``requires_grad`` of each parameter, and the random states of PyTorch (CPU and CUDA), NumPy and
    Python. Unless it is a cure, the counters of versions are restored too, so a graph that the
    caller made before can still go backward. Gradients are enabled inside the block, and compiled
    code runs eagerly.

    A cure changes the values of parameters: these remain if the block ends without an error.
    """
    modules = list(model.modules())
    attributes = [dict(module.__dict__) for module in modules]
    contents = [
        {name: dict(values[name]) for name in _CONTAINERS if name in values}
        for values in attributes
    ]
    parameters = _copies(model.parameters())
    buffers = _copies(model.buffers())
    requires = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    failed = True
    try:
        with ExitStack() as stack:
            stack.enter_context(random_states_kept())
            stack.enter_context(torch.inference_mode(False))
            if not cure:
                counted = tuple(tensor for tensor, _ in (*parameters, *buffers))
                stack.enter_context(torch.autograd._unsafe_preserve_version_counter(counted))
            stack.enter_context(torch.enable_grad())
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import is slow
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
        failed = False
    finally:
        for module, values, containers in zip(modules, attributes, contents, strict=True):
            for name, content in containers.items():
                _refill(values[name], content)
            _refill(module.__dict__, values)
        _put_back(buffers)
        if failed or not cure:
            _put_back(parameters)
        for parameter, flag in requires:
            parameter.requires_grad_(flag)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of PyTorch (CPU and CUDA), NumPy and Python after a block."""
    cpu = torch.get_rng_state()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    gpus = torch.cuda.get_rng_state_all() if on_gpu else None
    of_numpy = np.random.get_state()  # noqa: NPY002, a model may draw from it
    of_python = random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def _copies(tensors: Any) -> list[tuple[Any, Any]]:
    return [(tensor, tensor.detach().clone()) for tensor in tensors]


def _put_back(tensors: list[tuple[Any, Any]]) -> None:
    """Copy values back where a bit has changed; ``.data`` keeps the counter of versions."""
    for tensor, copy in tensors:
        if not torch.equal(_bits(tensor.detach()), _bits(copy)):
            tensor.data.copy_(copy)


def _bits(tensor: Any) -> Any:
    """Return the bytes of a tensor, in which −0 differs from 0 and NaN equals NaN."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _refill(target: dict[str, Any], content: dict[str, Any]) -> None:
    """Give a dictionary its former items, in their former order."""
    same = list(target) == list(content) and all(target[key] is content[key] for key in content)
    if not same:
        target.clear()
        target.update(content)
