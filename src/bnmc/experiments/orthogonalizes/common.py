"""Inputs, the law of the stationary gap, and starts of training: shared by several figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.bounds.orthogonalizes import stationary_squared_gap
from bnmc.errors import ArgumentError
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.training.networks import mlp, xavier_
from bnmc.torch.orthogonalizing import POWERS, orthogonalize_

if TYPE_CHECKING:
    import torch

#: All singular values of the nearly collinear inputs except the largest, which is 1.
SMALL_SINGULAR_VALUE = 1e-6

#: Labels of the starts of training without batch normalization, in Figs 4 and 7.
STARTS = ("Xavier", "orthogonal start")


def collinear_samples(batch: int) -> Float64Array:
    """Return nearly collinear inputs, shape (batch, batch), by their singular values."""
    return np.diag([1.0] + [SMALL_SINGULAR_VALUE] * (batch - 1))


def gap_of_spectrum(eigenvalues: Float64Array) -> Float64Array:
    """Return the orthogonality gap V of Gram matrices with these eigenvalues, the last axis."""
    shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
    gap: Float64Array = np.linalg.norm(shares - 1 / shares.shape[-1], axis=-1)
    return gap


def traceless_dimensions(batch: int) -> int:
    """Return the dimension of the traceless symmetric matrices, (n − 1)(n + 2)/2."""
    return (batch - 1) * (batch + 2) // 2


def stationary_mean_gap(width: int, batch: int) -> float:
    """Return the stationary mean of V, to leading order in 1/d.

    In the stationary law ``HᵀH − I/n`` is normal, and its law is invariant under rotations of the
    samples.  So V is a multiple of a χ variable with m degrees of freedom, m the dimension of the
    traceless symmetric matrices.
    """
    m = traceless_dimensions(batch)
    ratio = math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2)) * math.sqrt(2 / m)
    return math.sqrt(float(stationary_squared_gap(width, batch))) * ratio


def xavier(features: int, width: int, depth: int, norm: str = "none") -> torch.nn.Module:
    """Return a ReLU network without biases, with Xavier's weights and gain √2."""
    return xavier_(mlp(features, width, depth, norm=norm, bias=False), gain=np.sqrt(2.0))


def orthogonal_start(samples: int, power: float) -> Callable[[Any, Any, np.random.Generator], None]:
    """Return a preparation: orthogonal representations of some images, with small outputs.

    The weights of the hidden layers after the first become those of `bnmc.torch.orthogonalize_`.
    The authors scale each of these layers such that its output has the norm 1 over all `samples`
    and neurons, not the root mean square 1.  For ReLU networks without biases this is one factor of
    all later layers, so it is applied to the second weight layer.

    Parameters
    ----------
    samples : int
        Number of images that are orthogonalized.
    power : {-1, -0.5, 0.5}

    Raises
    ------
    ArgumentError
        If it is another power.
    """
    if power not in POWERS:
        raise ArgumentError("power", power, ", ".join(f"{allowed:g}" for allowed in POWERS))

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        torch: Any = import_extra("torch", "torch")
        some = inputs[:samples]
        orthogonalize_(model, some, power=power, rng=rng)
        kinds = torch.nn.Linear, torch.nn.Conv2d
        _, second, *_ = (module for module in model if isinstance(module, kinds))
        with torch.no_grad():
            sizes: list[int] = []
            hook = second.register_forward_hook(lambda *given: sizes.append(given[2].numel()))
            model(some)
            hook.remove()
            second.weight.div_(np.sqrt(sizes[0]))

    return prepare
