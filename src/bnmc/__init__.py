"""The Markov chain of a deep random network with batch normalization.

A `Chain` says which Markov chain, `simulate` runs an ensemble of it through depth, a `Trajectory`
holds what was recorded.  `MeanField` is the limit of infinite width, `mixing` says how fast a chain
forgets, `invariant` what it settles into, `regularity` and `bounds` have the quantities and the
inequalities of the papers, `random_matrix` and `gram` functions of matrices, `experiments` the
figures.  `kernels` is for compiled code of your own, `testing` for tests of your own layers.  Names
are imported when they are first used, so importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "Chain",
    "Distance",
    "Estimate",
    "FirstLayer",
    "MeanField",
    "Observable",
    "SoftRank",
    "Trajectory",
    "__version__",
    "bounds",
    "drawn_weights",
    "errors",
    "experiments",
    "gram",
    "invariant",
    "kernels",
    "mean_field",
    "mixing",
    "plot",
    "random_matrix",
    "regularity",
    "simulate",
    "testing",
    "warmup",
]

if TYPE_CHECKING:
    from bnmc import (
        bounds,
        errors,
        experiments,
        gram,
        invariant,
        kernels,
        mean_field,
        mixing,
        plot,
        random_matrix,
        regularity,
        testing,
    )
    from bnmc.activations import Activation
    from bnmc.chain import Chain
    from bnmc.estimate import Estimate
    from bnmc.initial import FirstLayer
    from bnmc.mean_field import MeanField
    from bnmc.observables import Distance, Observable, SoftRank
    from bnmc.simulation import drawn_weights, simulate
    from bnmc.trajectory import Trajectory
    from bnmc.warming import warmup

_HOMES = {
    "Activation": "activations",
    "Chain": "chain",
    "Distance": "observables",
    "Estimate": "estimate",
    "FirstLayer": "initial",
    "MeanField": "mean_field",
    "Observable": "observables",
    "SoftRank": "observables",
    "Trajectory": "trajectory",
    "drawn_weights": "simulation",
    "simulate": "simulation",
    "warmup": "warming",
}
_MODULES = (
    "bounds",
    "errors",
    "experiments",
    "gram",
    "invariant",
    "kernels",
    "mean_field",
    "mixing",
    "plot",
    "random_matrix",
    "regularity",
    "testing",
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
