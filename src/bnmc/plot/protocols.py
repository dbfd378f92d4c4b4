"""The attributes of a run that pictures read, as protocols, and the check of an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentTypeError

__all__ = ["Moments", "Run", "about_chain", "as_run", "fixed_gram", "is_run"]


class Moments(Protocol):
    """Mean and variance of an observable over the chains of a run."""

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean, shape (layers, ...)."""

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance, of the same shape."""


class Run(Protocol):
    """A run to draw: `bnmc.Trajectory`, or any object with its attributes."""

    @property
    def chain(self) -> Chain:
        """The chain."""

    @property
    def chains(self) -> int:
        """Number of networks."""

    @property
    def layers(self) -> NDArray[np.int64]:
        """Recorded layers, shape (layers,)."""

    @property
    def observables(self) -> Mapping[str, NDArray[np.float64]]:
        """Values by name, shape (chains, layers, ...)."""

    @property
    def moments(self) -> Mapping[str, Moments]:
        """Means and variances by name, if the run was reduced."""

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of each observable."""


_ATTRIBUTES = ("chain", "chains", "layers", "observables", "moments", "dims")


def is_run(value: object) -> bool:
    """Whether a value has the attributes of a run."""
    try:
        return all(hasattr(value, name) for name in _ATTRIBUTES)
    except Exception:  # a foreign object may raise anything
        return False


def as_run(name: str, value: object, allowed: str = "a Trajectory") -> Run:
    """Return an argument as a run.

    Raises
    ------
    ArgumentTypeError
        If `value` lacks an attribute of a run.
    """
    if not is_run(value):
        raise ArgumentTypeError(name, value, allowed)
    return cast(Run, value)


def fixed_gram(star: Any, run: Run) -> NDArray[np.float64]:
    """Return the Gram matrix of a fixed point, or `star` itself if it is a matrix.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no finite matrix of shape (batch, batch), for the batch of the run.
    """
    n = run.chain.batch
    matrix: ArrayLike = getattr(star, "gram", star)
    return finite_array("star", matrix, shape=(n, n)).astype(np.float64)


def about_chain(chain: Chain) -> str:
    """Return activation, normalization, width and batch of a chain, for a title."""
    norms = {"batch": "batch norm", "batch-uncentred": "uncentred batch norm", "none": "no norm"}
    norm = norms.get(chain.norm, chain.norm)
    return f"{chain.activation.name}, {norm}, width {chain.width}, batch {chain.batch}"
