"""`gain_for_`: weights whose gain gives gradients a wanted growth, by the mean field."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from scipy import optimize

from bnmc._support.arguments import real
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, BnmcError
from bnmc.mean_field.correlation.correlation_map import CorrelationMap
from bnmc.mean_field.duals.duals import Dual, dual
from bnmc.mean_field.field import MeanField
from bnmc.torch.layers import require_own_weight, weight_matrices
from bnmc.torch.models import Model, as_model, torch
from bnmc.torch.preservation import as_it_was
from bnmc.torch.reading import ModelChain, chain_of

# The fixed point of a neuron's variance is searched between these values.
_LEAST, _MOST = 1e-8, 25.0

# Over this many layers, from variance 1, the scale must stay within a factor of 1000.
_LAYERS = 50

# Size of the images of convolutions; gains do not depend on it.
_IMAGES = (256, 256)

# Alternatives for a normalized model.
_ACTIVATIONS = ("tanh", "relu", "elu", "selu")
_BATCHES = (16, 64, 256)


def gain_for_(model: Model, target: float = 1.0, *, batch: int = 64) -> Model:
    """Scale the hidden weights such that gradients grow by a wanted factor per layer, in place.

    For a model without normalization, each weight of the layers of `chain_of` is scaled to the mean
    square gain²/fan_in, and its bias becomes 0. The gain is that of the mean field: with q the
    variance of a neuron at its fixed point and z standard normal,

        q = gain² E σ(√q z)²,    target = gain² E σ′(√q z)².

    Parameters
    ----------
    model : torch.nn.Module
    target : float, default 1
        Growth of the squared norm of the gradient by the neurons, per layer towards the input, > 0.
        With 1, gradients neither explode nor vanish.
    batch : int, default 64
        Batch size of the recommendation for a normalized model.

    Returns
    -------
    torch.nn.Module
        The argument `model`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, the chain does not describe the model, or a weight is
        computed from other parameters. If no gain reaches the target and keeps the scale, as for
        gelu. If the model has batch normalization, which
        hides the gain: the message then recommends the activation and the batch size whose backward
        rate is nearest to `target`.

    Notes
    -----
    For homogeneous activations every q is a fixed point, at one gain: √2 for relu. Only the target
    1 is then possible, because ``E σ(√q z)² = q E σ′(√q z)²``. For bounded activations such as
    tanh, the gain at which the target is 1 is that where q goes to 0, so q decreases slowly with
    depth.

    Examples
    --------
    >>> from torch import nn
    >>> from bnmc.torch import chain_of, gain_for_
    >>> layers = [one for _ in range(5) for one in (nn.Linear(100, 100), nn.ReLU())]
    >>> model = gain_for_(nn.Sequential(*layers, nn.Linear(100, 10)))
    >>> round(chain_of(model).chain.gain, 6)
    1.414214
    """
    inner = as_model(model)
    layers, gain = _layers_and_gain(inner, real("target", target, above=0.0), batch)
    with as_it_was(inner, cure=True), torch.no_grad():
        for module in layers:
            root = module.weight.double().square().mean().sqrt()
            module.weight.mul_(gain / (math.sqrt(module.weight[0].numel()) * root))
            if module.bias is not None:
                module.bias.zero_()
    return model


def takes_gain(model: torch.nn.Module) -> bool:
    """Whether `gain_for_` takes a model, and does not raise."""
    try:
        _layers_and_gain(model, 1.0, 64)
    except BnmcError:
        return False
    return True


def _layers_and_gain(model: torch.nn.Module, target: float, batch: int) -> tuple[list[Any], float]:
    """Return the hidden weight layers of a model, and the gain that reaches the target."""
    reading = chain_of(model, batch=batch, shape=_IMAGES)
    chain = reading.chain
    if chain is not None and not chain.normalization.is_identity:
        rate = _backward_rate(chain)
        about = "" if rate is None else f", backward rate {rate:.4g} at batch {chain.batch}"
        raise ArgumentError(
            "model", f"norm {chain.norm!r}{about}", "a model without normalization, which hides "
            "the gain", _recommendation(chain, target),
        )  # fmt: skip
    chain = _described(reading)
    if chain.skip != 0.0:
        allowed = "a model without skip connections"
        hint = "bnmc.mean_field.residual_growth has the growth of residual networks"
        raise ArgumentError("model", f"skip connections of factor {chain.skip:g}", allowed, hint)
    gain = _gain(dual(chain.activation), target)
    modules = weight_matrices(model)
    for name in reading.layers:
        require_own_weight(name, modules[name])
    return [modules[name] for name in reading.layers], gain


def _described(reading: ModelChain) -> Chain:
    """Return the chain of a model.  Biases and gains may have any values: they are replaced."""
    replaced = ("a bias", "variances")
    troubles = [text for text in reading.unfit if not any(words in text for words in replaced)]
    if reading.chain is None or troubles:
        allowed = "a model whose hidden layers are those of a Chain"
        reasons = troubles or list(reading.unfit)
        more = len(reasons) - 1
        tail = f"; bnmc.torch.chain_of(model).unfit has {more} more" if more else ""
        raise ArgumentError("model", "layers that no Chain has", allowed, f"{reasons[0]}{tail}")
    return reading.chain


def _gain(duals: Dual, target: float) -> float:
    """Return the gain of a mean field without normalization whose gradients grow by `target`."""

    def moments(variance: float) -> tuple[float, float]:
        value, slope = duals(variance, variance, variance, rtol=1e-3)
        return float(value), float(slope)

    def excess(logarithm: float) -> float:
        """At a fixed point gain² = q / E σ², so gradients grow by q E σ′² / E σ²."""
        value, slope = moments(math.exp(logarithm))
        return math.exp(logarithm) * slope / value - target

    low, high = math.log(_LEAST), math.log(_MOST)
    ends = excess(low), excess(high)
    if abs(ends[0]) < 1e-6:
        place = low
    elif ends[0] * ends[1] > 0.0:
        factors = sorted(target + end for end in ends)
        allowed = f"a factor between {factors[0]:.4g} and {factors[1]:.4g} for {duals.name}"
        raise ArgumentError("target", target, allowed)
    else:
        place = float(optimize.brentq(excess, low, high, xtol=1e-12))
    gain = math.sqrt(math.exp(place) / moments(math.exp(place))[0])
    variance = 1.0
    for _ in range(_LAYERS):
        variance = gain * gain * moments(variance)[0]
        if not 1e-3 < variance < 1e3:
            allowed = "an activation whose scale a gain keeps"
            hint = f"with the gain {gain:.4g} the scale diverges or vanishes; use relu or tanh"
            raise ArgumentError("model", duals.name, allowed, hint)
    return gain


def _backward_rate(chain: Chain) -> float | None:
    """Return the backward rate at the fixed point for ε = 0, or None if there is none."""
    chain = dataclasses.replace(chain, eps=0.0)
    try:
        if not chain.normalization.acts_on_rows:
            return CorrelationMap.of(chain).phase().backward_rate
        point = MeanField(chain).fixed_point()
    except BnmcError:
        return None
    return point.backward_rate if point.stable and math.isfinite(point.backward_rate) else None


def _recommendation(chain: Chain, target: float) -> str:
    """Return the activation and the batch size whose backward rate is nearest to the target."""
    rates: list[tuple[float, float, str, int]] = []
    for name in _ACTIVATIONS:
        for batch in _BATCHES:
            rate = _backward_rate(Chain(chain.width, batch, name, norm=chain.norm))
            if rate is not None:
                rates.append((abs(math.log(rate / target)), rate, name, batch))
    if not rates:
        return ""
    _, rate, name, batch = min(rates)
    return f"nearest to {target:g}: {name} with batches of {batch}, backward rate {rate:.4g}"
