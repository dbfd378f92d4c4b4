"""The law of weights and biases of layers, read from their numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import special

from bnmc.torch.models import is_implicit, shape_of, torch

# Rows of a matrix that are tested for orthogonality.
_ROWS = 64

# Deviations of more standard errors than this are not due to chance.
_FAR = 5.0


@dataclass(frozen=True)
class Weights:
    """Law, gain and bias variance of the layers of a chain.

    Parameters
    ----------
    law : str
        `Chain.weights`.
    gain : float
        √(fan_in · mean W²).
    bias_variance : float or None
        Mean square of the biases; None for those of PyTorch's default initialization.
    troubles, bias_troubles : tuple of str
        Properties of the weights, if there is no norm, and of biases that a norm does not subtract,
        that a chain cannot have.
    """

    law: str
    gain: float
    bias_variance: float | None
    troubles: tuple[str, ...]
    bias_troubles: tuple[str, ...]


def weights_of(layers: Sequence[Any]) -> Weights:
    """Return the law of the weights and biases of linear layers or convolutions of one shape."""
    if any(map(is_implicit, layers)):
        return _of_implicit(layers)
    matrices = [layer.weight.detach().double().flatten(1) for layer in layers]
    fan_in, count = matrices[0].shape[1], matrices[0].numel()
    roots = [math.sqrt(float(matrix.square().mean())) for matrix in matrices]
    gains = [root * math.sqrt(fan_in) for root in roots]
    gain = math.sqrt(math.fsum(layer * layer for layer in gains) / len(gains))
    # The root mean square of d² entries has a relative standard error of at most 1/d.
    near = _FAR / math.sqrt(count)
    troubles = () if all(abs(layer - gain) <= near * gain for layer in gains) else (
        "the variances of the weights differ from layer to layer; bnmc.torch.gain_for_ makes them "
        "equal",
    )  # fmt: skip
    laws = Counter(map(_law, matrices, roots))
    law = laws.most_common(1)[0][0]
    precision = float(torch.finfo(layers[0].weight.dtype).eps)
    bound = (1.0 + 4.0 * precision) / math.sqrt(fan_in)
    variance, default, bias_troubles = _biases(layers, fan_in, bound)
    inside = all(float(matrix.abs().max()) <= bound for matrix in matrices)
    # The square of a uniform number has the relative standard deviation 2/√5.
    expected = all(abs(3.0 * layer * layer - 1.0) <= 2.0 * near for layer in gains)
    # The law of a small weight is uncertain; that all entries are within the bound decides.
    if law in ("uniform", "gaussian") and inside and expected:
        law, gain = "pytorch", 1.0 / math.sqrt(3.0)
    else:
        default = False
    return Weights(law, gain, None if default else variance, troubles, bias_troubles)


def _of_implicit(layers: Sequence[Any]) -> Weights:
    """Return the law of weights that are drawn by direction."""
    troubles: tuple[str, ...] = ()
    if not all(map(is_implicit, layers)):
        troubles = ("some weights are drawn by direction, and some have entries",)
    rows, fan_in = shape_of(layers[0])[:2]
    weights = [(layer.std, layer.weight.detach()) for layer in layers if is_implicit(layer)]
    stds = [std * abs(float(weight[0, -1])) for std, weight in weights]
    gain = math.sqrt(math.fsum(std * std for std in stds) / len(stds) * fan_in)
    # Variances may be those of drawn entries.
    near = 1.0 + _FAR / math.sqrt(rows * fan_in)
    if max(stds) > near * min(stds) or any(bool(weight[:, :-1].any()) for _, weight in weights):
        troubles = ("the variances of the weights differ from layer to layer, or were trained",)
    variance, _, bias_troubles = _biases(layers, fan_in, 0.0)
    return Weights("gaussian", gain, variance, troubles, bias_troubles)


def _biases(
    layers: Sequence[Any], fan_in: int, bound: float
) -> tuple[float, bool, tuple[str, ...]]:
    """Return the mean square of all biases, whether they may be PyTorch's, and what is wrong."""
    given = [layer.bias.detach().double() for layer in layers if layer.bias is not None]
    if not given:
        return 0.0, False, ()
    values: torch.Tensor = torch.cat(given)
    square = float(values.square().mean()) * len(given) / len(layers)
    if square == 0.0:
        return 0.0, False, ()
    mean, spread = float(values.mean()), float(values.std(correction=0))
    troubles: list[str] = []
    count = len(values)
    far = special.stdtrit(count - 1, special.ndtr(_FAR)) if count > 1 else math.inf
    if abs(mean) * math.sqrt(max(count - 1, 1)) > far * spread:
        troubles.append(
            f"a bias has the mean {mean:.3g}, that of a Chain 0; torch.nn.init.zeros_ or "
            "reset_parameters() change them"
        )
    if len(given) < len(layers):
        troubles.append("some layers have a bias and some have none; a Chain has equal layers")
    inside = float(values.abs().max()) <= bound
    near = abs(3.0 * fan_in * square - 1.0) <= _FAR / math.sqrt(len(values))
    return square, inside and near and len(given) == len(layers), tuple(troubles)


def _law(weight: torch.Tensor, root: float) -> str:
    # Compare rows, or columns if there are fewer.  A single one says nothing about orthogonality.
    rows = (weight if len(weight) <= weight.shape[1] else weight.T)[:_ROWS]
    product = rows @ rows.T
    product = product / product.diagonal().mean()
    product.diagonal().sub_(1.0)
    if len(rows) > 1 and float(product.abs().max()) < 1e-3:
        return "haar"
    peak = float(weight.abs().max()) / root if root > 0.0 else 0.0
    if peak < 1.01:
        return "rademacher"
    return "uniform" if peak < 1.05 * math.sqrt(3.0) else "gaussian"
