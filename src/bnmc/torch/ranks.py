"""`maximize_rank_`: gradient descent on the weights that increases the rank of a hidden layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bnmc._support.arguments import integer, items, real
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.torch.layers import called, called_weight_layers, weight_layers
from bnmc.torch.models import Model, as_batch, as_model, torch
from bnmc.torch.preservation import as_it_was


def maximize_rank_(
    model: Model,
    batches: Any,
    *,
    steps: int = 40,
    learning_rate: float = 1e-3,
    layers: Iterable[str] | None = None,
) -> Model:
    """Increase the rank of a representation by gradient descent, in place.

    Algorithm 1 of Daneshmand et al. (arXiv 2003.01652): for each batch, `steps` steps of plain
    gradient descent on ‖M‖_F / Tr M, M = H Hᵀ, through all weights up to the layer. H is the input
    of the readout, the last weight layer, (samples, features). The loss is 1/√r, with r the
    `bnmc.gram.rank_bound` of the Gram matrix. It needs no labels.

    Parameters
    ----------
    model : torch.nn.Module
        Each weight layer must be called once. The mode of the model is kept.
    batches : torch.Tensor, array_like, or iterable of these
        One batch, or several; a batch has the samples on the first axis.
    steps : int, default 40
        Steps per batch and layer.
    learning_rate : float, default 0.001
        Factor of the gradient, > 0.
    layers : iterable of str, optional
        Names of weight layers, for the layer-wise algorithm of Fig. 6: for each of them in turn,
        the loss is that of its own output, and all weights up to it change.

    Returns
    -------
    torch.nn.Module
        The argument `model`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the samples have collapsed to multiples of one vector, up
        to rounding, so that the gradient is 0. The model is then as before.
    NonFiniteError
        If the loss or a gradient becomes infinite or NaN. The model is then as before.

    Notes
    -----
    A step increases the loss if the learning rate is too large. The function returns the weights of
    the last step, as the published algorithm does, so measure the model afterwards. The loss does
    not depend on the scale of H, so the gradient is inversely proportional to that scale. In a deep
    network without normalization H is small, and the learning rate must be small, too. The
    published rate 0.001 belongs to pixels from 0 to 255. With the gain and the zero biases of
    `gain_for_`, 100 steps at the rate 0.01 multiplied the rank bound of 30 layers of 64 relu
    neurons by 3.4 (64 digits) to 5.4 (32 Gaussian samples).

    Examples
    --------
    >>> import torch, bnmc
    >>> from torch import nn
    >>> from bnmc.torch import maximize_rank_
    >>> seed = torch.manual_seed(0)
    >>> blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(8)]
    >>> model, batch = nn.Sequential(*blocks, nn.Linear(32, 2)), torch.randn(16, 32)
    >>> before = bnmc.torch.measure(model, batch).rank_bound[0, -1]
    >>> model = maximize_rank_(model, batch, steps=60, learning_rate=1.0)
    >>> bool(bnmc.torch.measure(model, batch).rank_bound[0, -1] > before)
    True
    """
    inner = as_model(model)
    steps = integer("steps", steps, low=1)
    learning_rate = real("learning_rate", learning_rate, above=0.0)
    single = isinstance(batches, torch.Tensor) or hasattr(batches, "__array__")
    given = [batches] if single else items("batches", batches, "a batch, or an iterable of batches")
    if not given:
        raise ArgumentError("batches", given, "at least one batch")
    parts = [as_batch(inner, part, "batches") for part in given]
    with as_it_was(inner, cure=True):
        with as_it_was(inner), torch.no_grad():
            order = [name for name, _ in called_weight_layers(inner, parts[0])]
        targets = _targets(order, layers)
        _require_rank(inner, parts[0], targets[0], layers is not None)
        for target in targets:
            for part in parts:
                for _ in range(steps):
                    _step(inner, part, target, layers is not None, learning_rate)
    return model


def _targets(order: list[str], layers: Iterable[str] | None) -> list[str]:
    """Return the layers whose loss is descended, in turn."""
    if layers is None:
        if len(order) < 2:
            allowed = "a model with a hidden layer and a readout"
            raise ArgumentError("model", f"{len(order)} weight layers", allowed)
        return [order[-1]]
    names = items("layers", layers, "names of weight layers")
    for name in names:
        if name not in order:
            raise ArgumentError("layers", name, f"weight layers that are called: {order}")
    if not names:
        raise ArgumentError("layers", names, "at least one weight layer")
    return names


def _require_rank(model: Any, batch: Any, target: str, own_output: bool) -> None:
    """Raise if the rows of a representation are multiples of each other, up to rounding.

    The loss 1/√r is then 1, its maximum, so its gradient is 0.
    """
    with as_it_was(model), torch.no_grad():
        rows = _representation(model, batch, target, own_output)
        loss = float(_inverse_root_rank(rows))
    rounding = float(torch.finfo(rows.dtype).eps) ** 2
    if loss >= 1.0 - max(rounding, 4.0 * float(torch.finfo(torch.float64).eps)):
        at = "output" if own_output else "input"
        value = f"collinear samples in the {at} of {target!r}, up to rounding"
        hint = "there the gradient is 0; bnmc.torch.gain_for_ sets gain and biases of deep networks"
        raise ArgumentError("model", value, "samples that differ there", hint)


def _step(model: Any, batch: Any, target: str, own_output: bool, learning_rate: float) -> None:
    """Do one step of gradient descent on the loss of a layer."""
    loss = _inverse_root_rank(_representation(model, batch, target, own_output))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not (bool(torch.isfinite(loss)) and loss.requires_grad):
        raise NonFiniteError(None, None, f"rank loss of {target!r}")
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None:
                continue
            if not bool(torch.isfinite(gradient).all()):
                raise NonFiniteError(None, None, f"gradient of the rank loss of {target!r}")
            weight.sub_(learning_rate * gradient)


def _representation(model: Any, batch: Any, target: str, own_output: bool) -> Any:
    """Return the output or the input of a weight layer."""
    seen: list[Any] = []
    side = "after" if own_output else "before"
    layer = {target: weight_layers(model)[target]}
    called(model, batch, layer, **{side: lambda name, module, tensor: seen.append(tensor)})
    return seen[0]


def _inverse_root_rank(representation: Any) -> Any:
    """Return ‖M‖_F / Tr M of M = H Hᵀ, in float64: it is near 1 if the samples have collapsed."""
    rows = representation.double().reshape(len(representation), -1)
    rows = rows / rows.detach().abs().max()
    product = rows @ rows.T
    return product.square().sum().sqrt() / product.diagonal().sum()
