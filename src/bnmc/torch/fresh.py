"""Fresh networks of a model: its own layers with new weights, beside which a measurement stands."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bnmc import gram
from bnmc.torch.initializing import orthogonal
from bnmc.torch.layers import called, chosen_layers, forward
from bnmc.torch.losses import Loss, gradient_norms
from bnmc.torch.models import Inputs, is_implicit, is_weight_layer, own_weight, torch
from bnmc.torch.preservation import random_states_kept
from bnmc.torch.representations import FloatArray, samples_first
from bnmc.torch.weights import Weights, weights_of

#: Products of a weight and an input, of the forward passes of all fresh networks together.
_PRODUCTS = 1 << 33

#: Fresh networks at most, and at least.
_MOST, _LEAST = 200, 40


@dataclass(frozen=True, eq=False)
class Fresh:
    """New draws of the weights of a copy of a model, made when they are asked for.

    Parameters
    ----------
    model : torch.nn.Module
        A copy, whose weights are drawn anew.
    batch : Inputs
    goal : Loss or None
    layers : sequence of str or None
        The argument `layers` of `measure`.
    weights : tuple of str
        Weight layers whose inputs are observed; () to observe the outputs of the blocks.
    count : int
        Number of networks.
    """

    model: torch.nn.Module
    batch: Inputs
    goal: Loss | None
    layers: Sequence[str] | None
    weights: tuple[str, ...]
    count: int

    def observed(self) -> tuple[FloatArray, FloatArray | None]:
        """Return Gram matrices (networks, layers, n, n), and norms of gradients by weights.

        The seed is the same at each call, and the random states of the process stay.
        """
        with random_states_kept(), torch.inference_mode(False):
            torch.manual_seed(0)
            redraw = redrawing(self.model)
            parts = [self._pass(redraw) for _ in range(self.count)]
        grams = np.array([matrices for matrices, _ in parts])
        return grams, None if self.goal is None else np.array([norms for _, norms in parts])

    def _pass(self, redraw: Callable[[], None]) -> tuple[list[FloatArray], list[float]]:
        """Return what one fresh network gives."""
        redraw()
        grams: list[FloatArray] = []
        weights: list[list[Any]] = []

        def visit(_: str, module: Any, tensor: Any) -> None:
            grams.append(_gram_of(samples_first(module, tensor, self.batch.samples)))
            parameters = module.parameters(recurse=not self.weights)
            weights.append([part for part in parameters if part.ndim > 1 and part.requires_grad])

        with torch.set_grad_enabled(self.goal is not None):
            if self.weights:
                named = dict(self.model.named_modules())
                modules = {name: named.get(name, self.model) for name in self.weights}
                output = called(self.model, self.batch, modules, before=visit)
            else:
                output = forward(
                    self.model, self.batch, chosen_layers(self.model, self.layers), visit
                )
            if self.goal is None:
                return grams, []
            loss = self.goal.mean(output)
        return grams, gradient_norms(loss, weights)


def fresh_networks(
    model: torch.nn.Module,
    batch: Inputs,
    goal: Loss | None,
    layers: Sequence[str] | None,
    weights: tuple[str, ...],
    products: float,
) -> tuple[Fresh | None, str]:
    """Return fresh networks of a model, or None and the reason.

    `products` is the number of products of a weight and an input in one forward pass.
    """
    if any(map(is_implicit, model.modules())):
        return None, "weights are drawn by direction"
    count = min(_MOST, int(_PRODUCTS // max(products, 1.0)))
    if count < _LEAST:
        samples = int(batch.samples * _PRODUCTS / (_LEAST * products))
        remedy = f"; pass {samples} samples or fewer" if samples >= 2 else ""
        return None, f"copies of this model with new weights take too long{remedy}"
    try:
        duplicate = copy.deepcopy(model)
    except Exception as error:  # attributes of a user's module may be anything
        return None, f"the model cannot be copied ({type(error).__name__}: {error})"
    labels = None if goal is None or goal.labels is None else goal.labels.clone()
    inputs = batch.map(torch.clone)
    goal = None if goal is None else replace(goal, labels=labels)
    return Fresh(duplicate, inputs, goal, layers, weights, count), ""


def _gram_of(tensor: torch.Tensor) -> FloatArray:
    """Return the Gram matrix of flattened samples, NaN if a number is not finite."""
    rows = tensor.detach().to("cpu", torch.float64).flatten(1).numpy()
    if not np.isfinite(rows).all():
        return np.full((len(rows), len(rows)), np.nan)
    return gram.cross_gram(rows.T, rows.T)


def redrawing(model: torch.nn.Module) -> Callable[[], None]:
    """Return a function that draws all parameters of a model anew, from their present law.

    The law of linear layers and convolutions is read from their numbers (`weights_of`), from all
    layers of one shape if their variances are equal. The entries of other parameters that differ
    and are not zero change places. So zeros and constants stay.
    """
    by_shape: dict[Any, list[Any]] = {}
    for module in model.modules():
        if is_weight_layer(module) and not is_implicit(module) and own_weight(module) is not None:
            key = type(module), tuple(module.weight.shape), module.bias is None
            by_shape.setdefault(key, []).append(module)
    draws: dict[int, Callable[[], None]] = {}
    for modules in by_shape.values():
        pooled = weights_of(modules)
        for module in modules:
            alone = bool(pooled.troubles or pooled.bias_troubles)
            for part, draw in _draws(module, weights_of([module]) if alone else pooled):
                draws.setdefault(id(part), draw)
    for parameter in model.parameters():
        draws.setdefault(id(parameter), partial(_permute, parameter))

    def redraw() -> None:
        with torch.no_grad():
            for draw in draws.values():
                draw()

    return redraw


def _draws(module: Any, law: Weights) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Yield the weight and the bias of a layer, each with the function that draws it."""
    weight, bias = module.weight, module.bias
    rows, columns = weight.flatten(1).shape
    std = law.gain / math.sqrt(columns)

    def haar() -> None:
        random = np.random.default_rng(int(torch.randint(1 << 62, ()).item()))
        matrix = orthogonal(random, rows, columns) * std * math.sqrt(max(rows, columns))
        weight.copy_(torch.from_numpy(matrix).reshape(weight.shape))

    def rademacher() -> None:
        weight.bernoulli_(0.5).mul_(2.0 * std).sub_(std)

    far = math.sqrt(3.0) * std
    by_law: dict[str, Callable[[], Any]] = {
        "haar": haar, "rademacher": rademacher, "gaussian": lambda: weight.normal_(0.0, std),
    }  # fmt: skip
    if std > 0.0:
        yield weight, by_law.get(law.law, lambda: weight.uniform_(-far, far))
    if bias is not None and law.bias_variance is None:
        bound = 1.0 / math.sqrt(columns)
        yield bias, lambda: bias.uniform_(-bound, bound)


def _permute(parameter: Any) -> None:
    """Let the entries of a parameter that are not zero change places."""
    present = parameter.nonzero(as_tuple=True)
    values = parameter[present]
    parameter[present] = values[torch.randperm(len(values), device=values.device)]
