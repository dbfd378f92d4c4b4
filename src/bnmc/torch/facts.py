"""Facts of a model at work: what the rules of the outlook judge (`outlook.py`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from bnmc._support.text import Result
from bnmc.torch.models import torch
from bnmc.torch.representations import FloatArray

#: A gradient above this part of its weight counts as a signal.
_SIGNAL = 1e-6

#: Adam adds this number to the root of the squared gradient.
_EPS_OF_ADAM = 1e-8

#: A norm below this one, the smallest number of float32, counts as this one.
_SMALLEST = 1e-38

#: Rows and their gradients that agree to so many parts are equal.
_EQUAL = 1e4

#: A factor below this size whose gradient is larger than itself moves before the weights behind it.
_SMALL_FACTOR = 1e-3

#: Exponents of rows of equal units are compared for weights of at most so many entries.
_MOST_ENTRIES = 1 << 24


@dataclass(frozen=True)
class Facts(Result):
    """The numbers of one network that decide whether it trains; NaN where there is none.

    Attributes
    ----------
    trainable : bool
        Whether gradients were measured, that is, whether there is a loss.
    loss, chance : float
        Mean loss of the batch, and that of the best constant output: ln C of C classes, or half the
        variance of the targets. The chance of a loss of your own is NaN.
    without_signal : float
        Share of the weight matrices with ‖G‖/‖W‖ < 1e-6, G the gradient. Zero weights, and zero
        gradients behind a zero weight or factor, are left out. So are such gradients if factors
        are small and move first, as those of the branches of ConvNeXt, 1e-6.
    small_gradients : float
        Share of the entries of gradients, other than zeros, below the ε = 1e-8 of Adam.
    lost : float
        Share of the entries of gradients that are zero in float16, of those that are not zero. All
        other facts are those of a loss that was scaled, whose gradients keep these entries.
    state_gradient_ratio : float
        ‖∂L/∂h‖ of the first block over that of the last one; of blocks of equal shape, if there are
        two.
    state_gradient_rate : float
        Factor per block by which ‖∂L/∂h‖² grows towards the input, between these two blocks.
    state_gradient_bend : str
        The block before which ‖∂L/∂h‖ changes by more than a factor 3, and by more than its mean
        factor cubed; "" if there is none.
    state_gradient_span : tuple of str
        The last and the first one of these two blocks, and how many blocks have their shape, in
        words; () if these are the last and the first block of all.
    effective_rank : float
        exp of the entropy of the normalized singular values of the last block.
    input_correlation, first_correlation, last_correlation : float
        Mean cosine of two samples: of the batch, of the first block, of the last block.
    output_spread : float
        Standard deviation of an output over the samples, mean over outputs.
    zero_head : bool
        Whether the last weight matrix is zero.
    least_live_units : float
        The smallest number of live units of a ReLU, or of a block without negative outputs, in
        which some units are zero for all samples; infinite if there is no such layer.
    all_dead : bool
        Whether the output of some ReLU is zero for all samples.
    numbers_per_channel : float
        The smallest count over which batch normalization takes its statistics.
    running_statistics : bool
        Whether a batch norm is in eval mode, and uses its running statistics.
    clones : float
        The largest share of the units of a layer that equal others, with equal gradients.
    probabilities : bool
        Whether outputs are probabilities already before a cross-entropy.
    most_of_chance : float
        The largest loss, in parts of the chance, from which models still train.
    without_gradient : tuple of str
        Parameters that require a gradient and have none, or zero.
    zero_by_design : bool
        Whether a parameter that is zero has a gradient: it moves first, and others follow.
    measured_share : float
        Part of the parameters that the measured layers contain.
    overflow : str
        The first number that is infinite or NaN in the dtype of the model. The facts are then those
        in float64.
    takes_gain : bool
        Whether `gain_for_` takes the model; False if no rule asks for a gain.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> seed = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> facts = measure(model, torch.randn(9, 4), labels=torch.arange(9) % 3).facts
    >>> round(facts.chance, 4), facts.without_signal, facts.without_gradient
    (1.0986, 0.0, ())
    """

    trainable: bool
    loss: float = math.nan
    chance: float = math.nan
    without_signal: float = 0.0
    small_gradients: float = 0.0
    lost: float = 0.0
    state_gradient_ratio: float = math.nan
    state_gradient_rate: float = math.nan
    state_gradient_bend: str = ""
    state_gradient_span: tuple[str, ...] = field(default=(), repr=False)
    effective_rank: float = math.nan
    input_correlation: float = math.nan
    first_correlation: float = math.nan
    last_correlation: float = math.nan
    output_spread: float = math.nan
    zero_head: bool = False
    least_live_units: float = math.nan
    all_dead: bool = False
    numbers_per_channel: float = math.nan
    running_statistics: bool = field(default=False, repr=False)
    clones: float = 0.0
    probabilities: bool = False
    most_of_chance: float = field(default=100.0, repr=False)
    without_gradient: tuple[str, ...] = ()
    zero_by_design: bool = False
    measured_share: float = math.nan
    overflow: str = ""
    takes_gain: bool = field(default=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts, for JSON; None for NaN and infinity."""
        values: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not math.isfinite(value):
                value = None
            values[each.name] = list(value) if isinstance(value, tuple) else value
        return values


def ratio_of_states(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], norms: Sequence[float]
) -> dict[str, Any]:
    """Return the norm of the first gradient of a state over that of the last, as facts.

    States of the most frequent shape are compared, or all of them if no shape repeats. A norm below
    the range of float32 counts as its smallest number.
    """
    chosen = _compared(shapes)
    if len(chosen) < 2:
        return {}
    logs = np.log(np.maximum([norms[place] for place in chosen], _SMALLEST))
    steps = np.abs(np.diff(logs))
    place, growth = int(np.argmax(steps)), logs[0] - logs[-1]
    stands_out = steps[place] > max(math.log(3.0), 3.0 * steps.mean())
    ratio, rate = np.exp(np.clip([growth, 2.0 * growth / len(steps)], -700.0, 700.0))
    share = f"{len(chosen)} of {len(names)} blocks, of one shape"
    some = len(chosen) < len(names)
    return {
        "state_gradient_ratio": float(ratio), "state_gradient_rate": float(rate),
        "state_gradient_bend": names[chosen[place + 1]] if stands_out else "",
        "state_gradient_span": (names[chosen[-1]], names[chosen[0]], share) if some else (),
    }  # fmt: skip


def ratios_of_states(shapes: Sequence[tuple[int, ...]], norms: Sequence[float]) -> FloatArray:
    """Return each norm over that with which `ratio_of_states` compares the first one."""
    sizes = np.maximum(norms, _SMALLEST)
    return np.exp(np.clip(np.log(sizes) - np.log(sizes[_compared(shapes)[-1]]), -700.0, 700.0))


def _compared(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the places of the most frequent shape, or all of them if no shape repeats."""
    (shape, count), *_ = Counter(shapes).most_common(1) or [((), 0)]
    return [place for place, each in enumerate(shapes) if count == 1 or each == shape]


def _is_small_factor(weight: Any, gradient: Any) -> bool:
    """Whether a parameter is a vector of one small value, and has a larger gradient."""
    values = weight.detach().abs()
    least, most = float(values.min()), float(values.max())
    one_axis = weight.numel() == max(weight.shape, default=1)
    small = one_axis and 0.0 < least == most < _SMALL_FACTOR
    return small and float(gradient.double().norm()) > float(weight.detach().double().norm())


def _clones_of(weight: Any, gradient: Any) -> float:
    """Return the share of the rows of a weight that equal another one, with their gradients."""
    rows = len(weight)
    if rows <= 2 or weight.numel() > _MOST_ENTRIES or not bool(gradient.any()):
        return 0.0
    parts = [
        part.detach().flatten(1).double() / part.detach().abs().max().double()
        for part in (weight, gradient)
    ]
    joined = (torch.cat(parts, dim=1) * _EQUAL).round()
    return 1.0 - (len(torch.unique(joined, dim=0)) - 1) / (rows - 1)


def _small_share(gradients: Sequence[Any]) -> float:
    """Return the share of entries of gradients, other than zeros, below the ε of Adam."""
    sizes = [(gradient != 0.0).sum().item() for gradient in gradients]
    if sum(sizes) == 0:
        return 1.0
    small = [
        ((gradient != 0.0) & (gradient.abs() < _EPS_OF_ADAM)).sum().item() for gradient in gradients
    ]
    return float(sum(small) / sum(sizes))


def gradient_facts(parameters: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the gradients of parameters; None is a gradient that does not exist."""
    moves = {
        name: gradient is not None and bool(gradient.any()) for name, gradient in gradients.items()
    }
    zero_by_design = any(
        moves[name] and not name.endswith("bias") and not bool(weight.any())
        for name, weight in parameters.items()
    )
    small_factors = any(
        moves[name] and not name.endswith("bias") and _is_small_factor(weight, gradients[name])
        for name, weight in parameters.items()
    )
    matrices = {name: weight for name, weight in parameters.items() if weight.ndim > 1}
    signals, clones = [], 0.0
    for name, weight in matrices.items():
        gradient, size = gradients[name], float(weight.detach().double().norm())
        if gradient is None or size == 0.0 or (zero_by_design and not moves[name]):
            continue
        signal = float(gradient.double().norm()) / size
        if signal >= _SIGNAL or not small_factors:
            signals.append(signal)
        if weight is not list(matrices.values())[-1]:
            clones = max(clones, _clones_of(weight, gradient))
    weak = [value < _SIGNAL for value in signals]
    return {
        "without_signal": float(np.mean(weak)) if weak else 0.0,
        "small_gradients": _small_share([each for each in gradients.values() if each is not None]),
        "clones": clones,
        "without_gradient": tuple(name for name, moved in moves.items() if not moved),
        "zero_by_design": zero_by_design,
    }


def live_units(output: Any, *, second: bool) -> tuple[int, int]:
    """Return the numbers of live units of an output, and of all; features are on the last axis.

    Of images, and of sequences of models with one-dimensional convolutions, the features are on the
    second axis.
    """
    axis = 1 if output.ndim > 3 or (output.ndim == 3 and second) else output.ndim - 1
    rows = output.detach().movedim(axis, -1).flatten(0, -2)
    return int((rows != 0.0).any(dim=0).sum()), rows.shape[-1]


def spread_of(output: Any) -> float:
    """Return the standard deviation over the samples of each output, mean over outputs."""
    rows = output.detach().double().flatten(1)
    return float(rows.std(dim=0, correction=0).mean())


def are_probabilities(output: Any) -> bool:
    """Whether outputs of several classes are probabilities already."""
    values = output.detach().double()
    if values.ndim < 2 or values.shape[1] < 2:
        return False
    sums = values.sum(dim=1)
    return bool((values >= 0.0).all()) and bool(((sums - 1.0).abs() < 1e-3).all())
