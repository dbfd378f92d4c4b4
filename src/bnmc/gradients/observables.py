"""Recorded functions of the gradient and the Gram matrix of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import choice
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.observables import observables_of

#: Names that `backpropagate` takes as `observables`.
NAMES = ("delta_gram", "gram", "hidden_delta")

_ALLOWED = f"names among {', '.join(NAMES)}, or functions of (G, δᵀδ, hᵀδ)"


@dataclass(frozen=True)
class GradientView:
    """Some layers of some chains, for observables.

    Attributes
    ----------
    chain : Chain
    gram : (chains, layers, columns, columns) ndarray
    states : (chains, layers, 2 or 3, columns, columns) ndarray
        δᵀδ / width, zᵀδ / width and, if wanted, hᵀδ / width.
    """

    chain: Chain
    gram: NDArray[np.float64]
    states: NDArray[np.float64]

    def value(self, name: str) -> NDArray[np.float64]:
        """Return the matrices (chains, layers, columns, columns) of a name."""
        if name == "gram":
            return self.gram
        place = 0 if name == "delta_gram" else 2
        return self.states[:, :, place] * self.chain.width


def in_units(grams: NDArray[np.float64], units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return matrices times 2**(units[i] + units[j]) in entry (i, j)."""
    if not units.any():
        return grams
    by = units[..., :, None] + units[..., None, :]
    with np.errstate(over="ignore", under="ignore"):
        matrices: NDArray[np.float64] = np.ldexp(grams, np.clip(by, -5000, 5000).astype(np.int32))
    return matrices


@dataclass(frozen=True)
class GradientObservable:
    """A recorded function of (G, δᵀδ, hᵀδ), or one of these.

    Attributes
    ----------
    name : str
    function : callable or None
        None for a matrix by its name.
    shape : tuple of int
        Shape of one value.
    """

    name: str
    function: Callable[..., ArrayLike] | None = None
    shape: tuple[int, ...] = ()

    @property
    def needs_hidden(self) -> bool:
        """Whether the value depends on hᵀδ."""
        return self.function is not None or self.name == "hidden_delta"

    def shape_of(self, columns: int) -> tuple[int, ...]:
        """Return the shape of the value of one layer."""
        return self.shape if self.function is not None else (columns, columns)

    def evaluate(self, view: GradientView) -> NDArray[np.float64]:
        """Return the values, (chains, layers, ...)."""
        if self.function is None:
            return view.value(self.name)
        matrices = [view.value(name) for name in ("gram", "delta_gram", "hidden_delta")]
        given = np.asarray(self.function(*matrices))
        expected = (*matrices[0].shape[:2], *self.shape)
        allowed = f"{self.name} to return real numbers of shape {expected}"
        if given.dtype.kind not in "biuf":
            raise ArgumentTypeError("observables", given, allowed)
        if given.shape != expected:
            raise ArgumentError("observables", given.shape, allowed)
        return given.astype(np.float64)


def as_gradient_observables(wanted: Any) -> tuple[GradientObservable, ...]:
    """Return the observables that an argument `observables` means, without equal names."""
    return observables_of(wanted, _ALLOWED, _observable)


def _observable(name: str | None, value: Any) -> GradientObservable:
    if isinstance(value, str):
        return GradientObservable(choice("observables", value, NAMES))
    shape: Any = ()
    if isinstance(value, tuple) and len(value) == 2:
        value, shape = value
    if not callable(value):
        raise ArgumentTypeError("observables", value, _ALLOWED)
    if name is None:
        name = str(getattr(value, "__name__", type(value).__name__))
    if name in NAMES or not name.isidentifier():
        raise ArgumentError("observables", name, f"an identifier besides {', '.join(NAMES)}")
    return GradientObservable(name, value, tuple(int(length) for length in shape))
