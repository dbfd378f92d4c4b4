"""The Markov chain of a deep random network with batch normalization.

A `Chain` specifies a network, `simulate` runs an ensemble of networks through depth, and a
`Trajectory` holds the recorded layers.  `backpropagate` simulates gradients.  `MeanField` is the
limit of infinite width, and `infinite_width` holds its kernels and its training.  `mixing`
estimates rates of convergence to the stationary law, and `invariant` computes and tests that law.
`regularity` and `bounds` hold the quantities and the inequalities of the papers, `random_matrix`
and `gram` functions of matrices, and `experiments` the figures.  `kernels` serves your own compiled
code, `testing` the tests of your own layers, and `torch` your PyTorch models.  `implicit` holds
random matrices that are drawn by direction, and `train` runs gradient descent with them.
A name is imported when it is first used, so importing the package costs nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from bnmc._support.version import __version__ as __version__

if TYPE_CHECKING:  # an import as the same name is public to type checkers
    from bnmc import bounds as bounds
    from bnmc import errors as errors
    from bnmc import experiments as experiments
    from bnmc import gradients as gradients
    from bnmc import gram as gram
    from bnmc import implicit as implicit
    from bnmc import infinite_width as infinite_width
    from bnmc import invariant as invariant
    from bnmc import kernels as kernels
    from bnmc import mean_field as mean_field
    from bnmc import mixing as mixing
    from bnmc import plot as plot
    from bnmc import random_matrix as random_matrix
    from bnmc import regularity as regularity
    from bnmc import testing as testing
    from bnmc import torch as torch
    from bnmc import training as training
    from bnmc.chain.activations import Activation as Activation
    from bnmc.chain.chain import Chain as Chain
    from bnmc.chain.chain import Network as Network
    from bnmc.chain.chain import Residual as Residual
    from bnmc.chain.convolution import Convolution as Convolution
    from bnmc.chain.norms import GroupNorm as GroupNorm
    from bnmc.chain.start import FirstLayer as FirstLayer
    from bnmc.estimate.estimate import Estimate as Estimate
    from bnmc.estimate.estimate import Estimates as Estimates
    from bnmc.gradients.backpropagation import backpropagate as backpropagate
    from bnmc.gradients.warming import warmup as warmup
    from bnmc.mean_field import MeanField as MeanField
    from bnmc.simulation.observables import Distance as Distance
    from bnmc.simulation.observables import Observable as Observable
    from bnmc.simulation.observables import SoftRank as SoftRank
    from bnmc.simulation.run import drawn_biases as drawn_biases
    from bnmc.simulation.run import drawn_weights as drawn_weights
    from bnmc.simulation.run import simulate as simulate
    from bnmc.simulation.store.reading import open as open
    from bnmc.simulation.trajectory import Trajectory as Trajectory
    from bnmc.training.running import train as train

#: The module of each name, imported when the name is first used.
_HOMES = {
    "Activation": "chain.activations", "Chain": "chain.chain", "Convolution": "chain.convolution",
    "Distance": "simulation.observables", "Estimate": "estimate.estimate",
    "Estimates": "estimate.estimate", "FirstLayer": "chain.start", "GroupNorm": "chain.norms",
    "MeanField": "mean_field", "Network": "chain.chain", "Residual": "chain.chain",
    "Observable": "simulation.observables", "SoftRank": "simulation.observables",
    "Trajectory": "simulation.trajectory", "backpropagate": "gradients.backpropagation",
    "drawn_biases": "simulation.run", "drawn_weights": "simulation.run",
    "open": "simulation.store.reading", "simulate": "simulation.run",
    "train": "training.running", "warmup": "gradients.warming",
}  # fmt: skip
_MODULES = (
    "bounds", "errors", "experiments", "gradients", "gram", "implicit", "infinite_width",
    "invariant", "kernels", "mean_field", "mixing", "plot", "random_matrix", "regularity",
    "testing", "torch", "training",
)  # fmt: skip

#: Names that the reference documents beside what returns or takes them.
_BESIDE = {"Estimates", "GroupNorm", "Trajectory"}

__all__ = sorted([*({*_HOMES} - _BESIDE), *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bnmc.{name}")
    if name not in _HOMES:
        where = _found_in(name)
        hint = f"; did you mean bnmc.{where}.{name}?" if where else ""
        raise AttributeError(f"module 'bnmc' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"bnmc.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def _found_in(name: str) -> str | None:
    """Return the first module whose ``__all__`` has a name, by its text: nothing is imported."""
    for module in () if name.startswith("_") else _MODULES:
        with contextlib.suppress(OSError):
            text = pkgutil.get_data("bnmc", f"{module}/__init__.py") or b""
            if f'"{name}"'.encode() in text.partition(b"__all__ = ")[2].partition(b"]")[0]:
                return module
    return None


def __dir__() -> list[str]:
    return __all__
