"""`haar_` and `break_`: new weights for all layers of a model, without data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from bnmc._support.arguments import choice, generator, real
from bnmc._support.extras import import_extra
from bnmc.chain.weights import weight_law
from bnmc.errors import ArgumentError
from bnmc.torch.hidden import require_own_weight, weight_matrices
from bnmc.torch.models import as_model
from bnmc.torch.preservation import as_it_was

if TYPE_CHECKING:
    pass

__all__ = ["BREAKS", "break_", "haar_", "orthogonal"]

Model = TypeVar("Model")

#: The ways to break a model.
BREAKS = ("absolute", "uniform", "small")


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
    torch: Any = import_extra("torch", "torch")
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
    torch: Any = import_extra("torch", "torch")
    inner = as_model(model)
    how = choice("how", how, BREAKS)
    random = generator(rng)
    with as_it_was(inner, cure=True), torch.no_grad():
        for parameter in inner.parameters():
            one: Any = parameter
            if how == "absolute":
                one.copy_(2.0 * one.abs())
            elif how == "small" or one.ndim > 1:
                high = 0.1 if how == "small" else math.sqrt(12.0) * float(one.double().std())
                one.copy_(torch.from_numpy(random.uniform(0.0, high, tuple(one.shape))))
    return model


def orthogonal(random: Any, rows: int, columns: int) -> Any:
    """Return a uniformly distributed matrix with orthonormal rows, or columns if they are fewer."""
    draw = weight_law("haar").entries
    least, most = sorted((rows, columns))
    matrix = draw(random, (least, most)) / math.sqrt(most)
    return matrix if rows == least else matrix.T
