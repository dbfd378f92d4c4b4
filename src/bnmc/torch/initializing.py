"""New parameters for a model: `haar_` and `break_`, its own initialization, or a factory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bnmc._support.arguments import choice, generator, real
from bnmc.chain.weights import weight_law
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch.layers import require_own_weight, weight_matrices
from bnmc.torch.models import Model, as_model, is_implicit, torch
from bnmc.torch.preservation import as_it_was

#: The ways to break a model.
_BREAKS = ("absolute", "uniform", "small")


def haar_(model: Model, *, gain: float = 1.0, rng: Any = None) -> Model:
    """Draw the weights of all linear layers and convolutions as orthogonal matrices, in place.

    A weight of shape (out, in, kernel...) becomes, as a matrix with out rows and m columns, the
    gain times √(max(out, m)/m) times a uniformly distributed matrix with orthonormal rows or
    columns (Haar measure). So its entries have the variance gain²/m, as those of ``Chain`` with
    ``weights="haar"``. Biases of these layers become 0.

    Parameters
    ----------
    model : torch.nn.Module
    gain : float, default 1
        Factor of the weights, not 0.
    rng : optional
        Seed or generator, any argument of `numpy.random.default_rng`. The random state of PyTorch
        does not change.

    Returns
    -------
    torch.nn.Module
        The argument `model`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the model has no such layer, a weight is computed from other parameters, or an argument
        is not allowed. The model is then as before.

    Examples
    --------
    >>> import torch
    >>> from bnmc.torch import haar_
    >>> model = haar_(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), rng=0)
    >>> weight = model[0].weight.detach()
    >>> torch.allclose(weight @ weight.T, torch.eye(3), atol=1e-6)
    True
    """
    inner = as_model(model)
    gain = real("gain", gain)
    if gain == 0.0:
        raise ArgumentError("gain", gain, "a finite real number other than 0")
    random = generator(rng)
    with as_it_was(inner, cure=True), torch.no_grad():
        for name, module in weight_matrices(inner).items():
            require_own_weight(name, module)
            rows, columns = module.weight.flatten(1).shape
            matrix = orthogonal(random, rows, columns) * gain * math.sqrt(max(rows, columns))
            matrix = torch.from_numpy(matrix / math.sqrt(columns))
            module.weight.copy_(matrix.reshape(module.weight.shape))
            if module.bias is not None:
                module.bias.zero_()
    return model


def break_(model: Model, *, how: str = "absolute", rng: Any = None) -> Model:
    r"""Break a model in place, so that batch normalization no longer keeps the ranks.

    The experiments of Daneshmand et al. (arXiv 2003.01652, Figs 5 and 6) start from weights that
    are not symmetric about 0.

    Parameters
    ----------
    model : torch.nn.Module
    how : {"absolute", "uniform", "small"}
        "absolute": each parameter w becomes 2 \|w\|, as in the authors' code. "uniform": each
        weight of two or more axes is drawn uniformly from [0, √12 s], with s its standard
        deviation, as in the paper. "small": each parameter, also those of norms, is drawn uniformly
        from [0, 0.1].
    rng : optional
        Seed or generator, any argument of `numpy.random.default_rng`. The random state of PyTorch
        does not change.

    Returns
    -------
    torch.nn.Module
        The argument `model`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If `model` is no module, or `how` is no such name.

    Examples
    --------
    >>> import torch
    >>> from bnmc.torch import break_
    >>> model = break_(torch.nn.Linear(3, 3))
    >>> bool((model.weight >= 0).all())
    True
    """
    inner = as_model(model)
    how = choice("how", how, _BREAKS)
    random = generator(rng)
    for name, module in inner.named_modules():
        if is_implicit(module):
            require_own_weight(name, module)
    with as_it_was(inner, cure=True), torch.no_grad():
        for weight in inner.parameters():
            if how == "absolute":
                weight.copy_(2.0 * weight.abs())
            elif how == "small" or weight.ndim > 1:
                high = 0.1 if how == "small" else math.sqrt(12.0) * float(weight.double().std())
                weight.copy_(torch.from_numpy(random.uniform(0.0, high, tuple(weight.shape))))
    return model


def orthogonal(random: Any, rows: int, columns: int) -> Any:
    """Return a uniformly distributed matrix with orthonormal rows, or columns if they are fewer."""
    draw = weight_law("haar").entries
    least, most = sorted((rows, columns))
    matrix = draw(random, (least, most)) / math.sqrt(most)
    return matrix if rows == least else matrix.T


def as_networks(
    model: object, networks: int, reset: object
) -> tuple[torch.nn.Module, Callable[[], torch.nn.Module]]:
    """Return a model, and the function that returns the next network.

    A callable is a factory: called without arguments, it returns a new model. `reset`, or else the
    ``reset_parameters`` of the modules, draws new parameters in place.
    """
    if reset is not None and not callable(reset):
        raise ArgumentTypeError("reset", reset, "a function of the model")
    if not isinstance(model, torch.nn.Module) and callable(model) and reset is None:
        factory: Callable[[], Any] = model
        made = [as_model(factory())]
        first = made[0]
        return first, lambda: made.pop() if made else as_model(factory())
    inner = as_model(model)
    if reset is None and networks == 1:
        return inner, lambda: inner
    if reset is None:
        _require_reset(inner)
    draw: Callable[[Any], Any] = _reset_parameters if reset is None else reset

    def renewed() -> torch.nn.Module:
        with torch.no_grad():
            draw(inner)
        return inner

    return inner, renewed


def _require_reset(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and resetter(module) is None:
            allowed = "a model whose modules have reset_parameters, a factory, or reset="
            value = f"{type(module).__name__} {name!r}" if name else type(module).__name__
            raise ArgumentError("model", value, allowed, "for networks > 1")


def _reset_parameters(model: torch.nn.Module) -> None:
    for module in model.modules():
        reset = resetter(module)
        if reset is not None:
            reset()


def resetter(module: Any) -> Callable[[], Any] | None:
    """Return the method that draws new parameters of a module, or None."""
    names = ("reset_parameters", "_reset_parameters")  # attention has the second one
    methods = (getattr(module, name, None) for name in names)
    return next((method for method in methods if callable(method)), None)
