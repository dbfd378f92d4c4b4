"""A model before and after: everything that a measurement or a cure must not change."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from bnmc.implicit.matrix import ImplicitMatrix
from bnmc.torch.implicit_rows import GaussianRows
from bnmc.torch.models import is_plain, torch


@contextmanager
def as_it_was(model: torch.nn.Module, *, cure: bool = False) -> Iterator[None]:
    """Restore a model and all random states at the end of a block.

    Restored bit for bit are parameters, buffers and their gradients, with their sizes and storages;
    the mode, the hooks and the attributes of each module; tensors, arrays, generators of random
    numbers, lists, dictionaries and sets in attributes; what implicit weights were asked;
    ``requires_grad``; and the random states of PyTorch (CPU and CUDA), NumPy and Python. Other
    objects in attributes are not restored if the model changes them in place. Unless it is a cure,
    the counters of versions are restored too, so a graph that the caller made before can still go
    backward. Gradients are enabled inside the block, and compiled code runs eagerly.

    A cure changes the values of parameters: these remain if the block ends without an error.
    """
    parameters = [_Tensor(parameter) for parameter in model.parameters()]
    saved = _saved(model, parameters)
    failed = True
    try:
        with ExitStack() as stack:
            stack.enter_context(random_states_kept())
            stack.enter_context(torch.inference_mode(False))
            if not cure:
                tensors = (each.tensor for each in (*parameters, *saved) if hasattr(each, "tensor"))
                for tensor in tensors:
                    if not tensor.is_inference():  # PyTorch takes several at once since 2.7
                        stack.enter_context(torch.autograd._unsafe_preserve_version_counter(tensor))
            stack.enter_context(torch.enable_grad())
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import is slow
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
        failed = False
    finally:
        errors = []
        for part in (*saved, *parameters):
            try:
                cured = part in parameters or isinstance(part, _Asked)
                part.restore(keeps_values=cure and not failed and cured)
            except Exception as error:  # the others are restored all the same
                errors.append(error)
        if errors:
            raise errors[0]


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


class _Tensor:
    """A tensor: its bytes, its place in its storage, and its gradient."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.requires_grad, self.is_leaf = tensor, tensor.requires_grad, tensor.is_leaf
        self.gradient = tensor.grad if tensor.is_leaf else None
        self.view = tensor.detach()  # has sizes and strides of its own
        self.size = self.view.untyped_storage().nbytes()
        self.copy = _bytes(self.view).clone()

    def restore(self, *, keeps_values: bool) -> None:
        """Put all back where it has changed; ``.data`` keeps the counter of versions."""
        tensor, storage = self.tensor, self.view.untyped_storage()
        if not keeps_values:
            if _place(tensor) != _place(self.view):
                tensor.data = self.view
            if storage.nbytes() != self.size:
                storage.resize_(self.size)
            content = _bytes(self.view)
            if not torch.equal(content, self.copy):
                content.copy_(self.copy)
        if self.is_leaf:
            if not tensor.is_leaf:
                tensor.detach_()
            tensor.requires_grad_(self.requires_grad)
            if tensor.grad is not self.gradient:
                tensor.grad = self.gradient


class _Content:
    """Anything else: a function that puts its content back."""

    def __init__(self, restore: Callable[[], object]) -> None:
        self._restore = restore

    def restore(self, *, keeps_values: bool) -> None:
        """Put the content back."""
        self._restore()


class _Asked(_Content):
    """What an implicit weight was asked, to which the values of a cure belong."""

    def restore(self, *, keeps_values: bool) -> None:
        """Forget what was asked since."""
        if not keeps_values:
            self._restore()


def _saved(model: Any, parameters: list[_Tensor]) -> list[_Tensor | _Content]:
    """Return all that modules contain, but the parameters, with what restores it."""
    saved: list[_Tensor | _Content] = []
    seen = {id(each.tensor) for each in parameters}
    waiting: list[Any] = [model, *(each.gradient for each in parameters)]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            waiting.append(value.__dict__)
        elif isinstance(value, torch.Tensor):
            if is_plain(value):
                tensor = _Tensor(value)
                saved.append(tensor)
                waiting.append(tensor.gradient)
        elif isinstance(value, (dict, list, tuple, set)):
            waiting += value.values() if isinstance(value, dict) else value
            if not isinstance(value, tuple):
                content = dict(value) if isinstance(value, dict) else list(value)
                saved.append(_Content(partial(_refill, value, content)))
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            saved.append(_Content(partial(np.copyto, value, value.copy())))
        elif isinstance(value, torch.Generator):
            saved.append(_Content(partial(value.set_state, value.get_state())))
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            saved.append(_Content(partial(setattr, bits, "state", bits.state)))
        elif isinstance(value, np.random.RandomState):
            saved.append(_Content(partial(value.set_state, value.get_state())))
        elif isinstance(value, (ImplicitMatrix, GaussianRows)):
            saved.append(_Asked(value.checkpoint()))
        elif isinstance(value, random.Random):
            saved.append(_Content(partial(value.setstate, value.getstate())))
    return saved


def _bytes(tensor: Any) -> Any:
    """Return the bytes from the first to the last element of a tensor, in its own storage.

    In them −0 differs from 0, and NaN equals NaN.
    """
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    count = (1 + last if tensor.numel() else 0) * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(tensor.untyped_storage(), start, (count,), (1,))


def _place(tensor: Any) -> tuple[Any, ...]:
    """Return what determines the bytes of a tensor: its storage, and its elements there."""
    where = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.device
    return *where, tensor.dtype, tensor.shape, tensor.stride()


def _refill(target: Any, content: Any) -> None:
    """Give a list, a dictionary or a set its former items, in their former order."""
    if isinstance(target, dict):
        same = list(target) == list(content) and all(target[key] is content[key] for key in content)
    else:
        same = len(target) == len(content) and all(map(operator.is_, target, content))
    if not same:
        target.clear()
        target.extend(content) if isinstance(target, list) else target.update(content)
