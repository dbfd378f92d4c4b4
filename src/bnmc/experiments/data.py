"""The dataset of an experiment: variables with their units, intervals and bands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.extras import import_extra
from bnmc._support.version import __version__
from bnmc.experiments.parts import Call
from bnmc.experiments.pictures import curve as curve

if TYPE_CHECKING:
    import xarray

__all__ = ["Variable", "curve", "dataset", "ends", "estimated", "with_band", "with_ends"]


class Variable(NamedTuple):
    """One variable of a dataset.

    Attributes
    ----------
    dims : tuple of str
        Names of the axes.
    values : array_like
        One axis per name in `dims`.
    long_name : str
        Description.
    units : str
        "1" for numbers without a unit, "" for text.
    """

    dims: tuple[str, ...]
    values: ArrayLike
    long_name: str
    units: str = "1"


def dataset(
    variables: Mapping[str, Variable],
    coordinates: Mapping[str, Variable],
    call: Call,
    settings: Mapping[str, Any],
) -> xarray.Dataset:
    """Return the dataset of an experiment.

    Parameters
    ----------
    variables, coordinates : mapping of str to Variable
    call : Call
        Its seed and `full` become attributes, together with the versions of bnmc and NumPy.
    settings : mapping of str to object
        Further attributes: numbers, strings or sequences of them.

    Raises
    ------
    MissingExtraError
        If xarray is not installed.
    """
    xr = import_extra("xarray", "xarray")

    def made(parts: Mapping[str, Variable]) -> dict[str, Any]:
        return {
            name: (one.dims, np.asarray(one.values), {"long_name": one.long_name} | _units(one))
            for name, one in parts.items()
        }

    attributes = {
        "bnmc_version": __version__,
        "numpy_version": np.__version__,
        "seed": str(call.sources.seed),
        "full": int(call.full),
        **settings,
    }
    built: xarray.Dataset = xr.Dataset(made(variables), made(coordinates), attributes)
    return built


def ends(found: Any) -> NDArray[np.float64]:
    """Return the values and intervals of (nested iterables of) estimates.

    The last axis holds the value, the lower end and the upper end.  Each estimate has an attribute
    `ci`, and its value is the attribute `value` or `rate`.
    """
    if isinstance(found, Iterable):
        return np.array([ends(one) for one in found])
    value = found.value if hasattr(found, "value") else found.rate
    return np.array([value, *found.ci], dtype=np.float64)


def estimated(
    name: str, dims: tuple[str, ...], found: Any, long_name: str, units: str = "1"
) -> dict[str, Variable]:
    """Return variables for (nested iterables of) estimates and the ends of their intervals."""
    return with_ends(name, dims, ends(found), long_name, units)


def with_ends(
    name: str, dims: tuple[str, ...], values: ArrayLike, long_name: str, units: str = "1"
) -> dict[str, Variable]:
    """Return variables for means and the ends of their intervals, the last axis of `values`."""
    mean, low, high = np.moveaxis(np.asarray(values, dtype=np.float64), -1, 0)
    return {
        name: Variable(dims, mean, long_name, units),
        f"{name}_low": Variable(dims, low, f"{long_name}, lower end of 95 %", units),
        f"{name}_high": Variable(dims, high, f"{long_name}, upper end of 95 %", units),
    }


def with_band(
    name: str, dims: tuple[str, ...], values: NDArray[np.float64], axis: int, long_name: str
) -> dict[str, Variable]:
    """Return variables for the mean of networks, the axis `axis` of `values`, and 90 % of them."""
    low, high = np.quantile(values, (0.05, 0.95), axis=axis)
    return {
        name: Variable(dims, values.mean(axis=axis), long_name),
        f"{name}_band_low": Variable(dims, low, "5 % of networks"),
        f"{name}_band_high": Variable(dims, high, "95 % of networks"),
    }


def _units(one: Variable) -> dict[str, str]:
    return {"units": one.units} if one.units else {}
