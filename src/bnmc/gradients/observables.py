"""Recorded functions of the gradient and the Gram matrix of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, choice, returned
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.observables import observables_of

#: Names that `backpropagate` takes as `observables`: matrices over samples, and logs of norms.
MATRICES = ("delta_gram", "gram", "hidden_delta")
LOG_NORMS = ("log_delta_norm", "log_bias_norm")
NAMES = MATRICES + LOG_NORMS

#: Those that a function of the user takes.
_ARGUMENTS = ("gram", "delta_gram", "hidden_delta")

_ALLOWED = f"names among {', '.join(NAMES)}, or functions of (G, δᵀδ, hᵀδ)"


class Gradients(NamedTuple):
    """The gradients δ with respect to h of some layers, of some chains or of one.

    products : ([chains,] layers, 2 or 3, columns, columns) ndarray of float64
        δᵀδ / width, zᵀδ / width with the normals z of the layer, and, if wanted, hᵀδ / width.
    scales : ([chains,] layers) ndarray of float64
        δ is in units of 2**scales.
    """

    products: Float64Array
    scales: Float64Array

    def chain(self, index: int) -> Gradients:
        """Return those of one chain, as a view."""
        return Gradients(self.products[index], self.scales[index])

    def part(self, first: int, last: int) -> Gradients:
        """Return layers first:last of one chain, counted from the first one here, as a view."""
        return Gradients(self.products[first:last], self.scales[first:last])


def in_units(grams: Float64Array, units: NDArray[np.int64]) -> Float64Array:
    """Return matrices times 2**(units[i] + units[j]) in entry (i, j)."""
    if not units.any():
        return grams
    by = units[..., :, None] + units[..., None, :]
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(grams, np.clip(by, -5000, 5000).astype(np.int32))


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
        return (columns, columns) if self.name in MATRICES else self.shape

    def evaluate(self, matrices: Mapping[str, Float64Array]) -> Float64Array:
        """Return the values, (chains, layers, ...), given matrices and log norms by name."""
        if self.function is None:
            return matrices[self.name]
        given = self.function(*(matrices[name] for name in _ARGUMENTS))
        expected = (*matrices["gram"].shape[:2], *self.shape)
        return returned("observables", given, expected, f"{self.name} to return")


def log_norms(products: Float64Array, scales: Float64Array, width: Any) -> dict[str, Float64Array]:
    """Return ln of the norms of δ and of δ 1, which is the gradient of a bias, by name.

    Parameters
    ----------
    products : (chains, layers, columns, columns) ndarray of float64
        δᵀδ / width.
    scales : (chains, layers) ndarray of float64
        δ is in units of 2**scales.
    width : (layers,) array_like
    """
    squares = np.trace(products, axis1=2, axis2=3), products.sum(axis=(2, 3))
    with np.errstate(divide="ignore"):
        logs = (np.log(np.maximum(square, 0.0)) + np.log(width) for square in squares)
        shifts = math.log(2.0) * scales
        return {
            name: 0.5 * log + shifts for name, log in zip(LOG_NORMS, logs, strict=True)
        }  # fmt: skip


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
