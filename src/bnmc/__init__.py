"""The Markov chain of a deep random network with batch normalization.

A `Chain` specifies a network, `simulate` runs an ensemble of networks through depth, and a
`Trajectory` holds the recorded layers.  `backpropagate` simulates gradients.  `MeanField` is the
limit of infinite width, and `infinite_width` holds its kernels and its training.  `mixing`
estimates rates of convergence to the stationary law, and `invariant` computes and tests that law.
`regularity` and `bounds` hold the quantities and the inequalities of the papers, `random_matrix`
and `gram` functions of matrices, and `experiments` the figures.  `kernels` serves your own compiled
code, `testing` the tests of your own layers, and `torch` your PyTorch models.  A name is imported
when it is first used, so importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bnmc._support.version import __version__

__all__ = [
    "Activation",
    "Chain",
    "Convolution",
    "Distance",
    "Estimate",
    "FirstLayer",
    "GroupNorm",
    "MeanField",
    "Observable",
    "SoftRank",
    "Trajectory",
    "__version__",
    "backpropagate",
    "bounds",
    "drawn_biases",
    "drawn_weights",
    "errors",
    "experiments",
    "gradients",
    "gram",
    "infinite_width",
    "invariant",
    "kernels",
    "mean_field",
    "mixing",
    "plot",
    "random_matrix",
    "regularity",
    "simulate",
    "testing",
    "torch",
    "warmup",
]

if TYPE_CHECKING:
    from bnmc import (
        bounds,
        errors,
        experiments,
        gradients,
        gram,
        infinite_width,
        invariant,
        kernels,
        mean_field,
        mixing,
        plot,
        random_matrix,
        regularity,
        testing,
        torch,
    )
    from bnmc.chain.activations import Activation
    from bnmc.chain.chain import Chain
    from bnmc.chain.convolution import Convolution
    from bnmc.chain.norms import GroupNorm
    from bnmc.chain.start import FirstLayer
    from bnmc.estimate.estimate import Estimate
    from bnmc.gradients.backpropagation import backpropagate
    from bnmc.gradients.warming import warmup
    from bnmc.mean_field import MeanField
    from bnmc.simulation.observables import Distance, Observable, SoftRank
    from bnmc.simulation.run import drawn_biases, drawn_weights, simulate
    from bnmc.simulation.trajectory import Trajectory

#: The module of each name, imported when the name is first used.
_HOMES = {
    "Activation": "chain.activations",
    "backpropagate": "gradients.backpropagation",
    "Chain": "chain.chain",
    "Convolution": "chain.convolution",
    "Distance": "simulation.observables",
    "Estimate": "estimate.estimate",
    "FirstLayer": "chain.start",
    "GroupNorm": "chain.norms",
    "MeanField": "mean_field",
    "Observable": "simulation.observables",
    "SoftRank": "simulation.observables",
    "Trajectory": "simulation.trajectory",
    "drawn_biases": "simulation.run",
    "drawn_weights": "simulation.run",
    "simulate": "simulation.run",
    "warmup": "gradients.warming",
}
_MODULES = (
    "bounds",
    "errors",
    "experiments",
    "gradients",
    "gram",
    "infinite_width",
    "invariant",
    "kernels",
    "mean_field",
    "mixing",
    "plot",
    "random_matrix",
    "regularity",
    "testing",
    "torch",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bnmc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'bnmc' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bnmc.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
