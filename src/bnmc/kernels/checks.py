"""Statuses of kernels, their limits, and the checks that the compiled functions share."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import types
from numpy.typing import NDArray

from bnmc._kernels.compiling import Sigma, SigmaType, check_sigma, inlined, kernel
from bnmc._kernels.scalar.codes import (
    GAUSSIAN,
    MOST_CHAINS,
    MOST_LAYERS,
    MOST_ROWS,
    NOT_FINITE,
    RADEMACHER,
    RUNNING,
    STREAM_ROWS,
    STREAM_WEIGHTS,
    UNIFORM,
    UNRESOLVED,
    ZERO_VARIANCE,
    Draw,
)
from bnmc.errors import ArgumentTypeError

#: Statuses beside those of a chain, which are in `bnmc._kernels.scalar.codes`.
OK, BAD_ARGUMENT, SMALL_WORKSPACE = RUNNING, 4, 5

#: Arrays of the dtype of a workspace, and arrays that are float64 in any case.
Rows = NDArray[np.floating[Any]]
Float64Array = NDArray[np.float64]

Function = TypeVar("Function", bound=Callable[..., Any])


class Status(IntEnum):
    """What a kernel returns: `raise_status` raises the error of a status.

    Attributes
    ----------
    OK
        The layer is done.
    ZERO_VARIANCE
        The row `failed_row` has no variance.
    NOT_FINITE
        A number is not finite, or its square leaves the range of the dtype.
    UNRESOLVED
        The layer needs a float64 workspace.
    BAD_ARGUMENT
        An array has another shape, or the law or an address is not valid.
    SMALL_WORKSPACE
        The workspace is too small for the law; nothing is done. A larger one is fine. Its dtype is
        the precision of the call.

    Examples
    --------
    >>> from bnmc.kernels import Status
    >>> Status(1).name, Status.OK == 0
    ('ZERO_VARIANCE', True)
    """

    OK = RUNNING
    ZERO_VARIANCE = ZERO_VARIANCE
    NOT_FINITE = NOT_FINITE
    UNRESOLVED = UNRESOLVED
    BAD_ARGUMENT = BAD_ARGUMENT
    SMALL_WORKSPACE = SMALL_WORKSPACE


class WeightCode(IntEnum):
    """Codes of the laws of independent weights, as `weights_layer` takes them.

    Examples
    --------
    >>> import bnmc
    >>> bnmc.kernels.WeightCode(bnmc.kernels.weight_law(bnmc.Chain(10, 2, weights="uniform")))
    <WeightCode.UNIFORM: 1>
    """

    GAUSSIAN = GAUSSIAN
    UNIFORM = UNIFORM
    RADEMACHER = RADEMACHER


class Stream(IntEnum):
    """Streams of random numbers: rows drawn given a Gram matrix, and weights.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc import kernels
    >>> out = np.empty(64)
    >>> kernels.normals(out, 0, 0, 1, 0, np.uint64(7), kernels.Stream.WEIGHTS)
    0
    """

    ROWS = int(STREAM_ROWS)
    WEIGHTS = int(STREAM_WEIGHTS)


class Law(NamedTuple):
    """The properties of a chain that its kernels need; `columns` is batch times inputs.

    Examples
    --------
    >>> import bnmc
    >>> law = bnmc.kernels.law(bnmc.Chain(width=100, batch=10, activation="relu"))
    >>> isinstance(law, bnmc.kernels.Law), int(law.width), int(law.columns)
    (True, 100, 10)
    """

    width: int
    batch: int
    columns: int
    norm: int
    skip: float
    gain: float
    eps: float


def compiled(function: Function) -> Function:
    """Compile a function for callers in Python and under ``numba.njit``.

    The declared type is that of the function, so that type checkers see its parameters.
    """
    dispatcher: Any = kernel(function)
    dispatcher.check = partial(_check, [*signature(function).parameters])
    checked: Function = dispatcher
    return checked


def _check(names: list[str], *values: Any, **by_name: Any) -> None:
    """Raise `ArgumentTypeError` if `sigma` or `law` is not one, as a value or as a Numba type."""
    given = {**dict(zip(names, values, strict=False)), **by_name}
    if "sigma" in given:
        check_sigma(given["sigma"], (Sigma, SigmaType))
    if "law" in given and not isinstance(given["law"], (Law, types.NamedTuple)):
        allowed = "a value of bnmc.kernels.law, as in law(chain)"
        raise ArgumentTypeError("law", given["law"], allowed)


@inlined
def is_valid(law, layer, chain):
    """Whether a kernel stays within its arrays and uses no counter twice."""
    return (
        0 < law.width <= MOST_ROWS
        and 0 < law.batch <= law.columns < MOST_CHAINS
        and law.columns % law.batch == 0
        and 0 <= law.norm <= 2
        and is_address(layer, chain)
        and law.eps >= 0.0
    )


@inlined
def is_address(layer, chain):
    """Whether the counter has room for the numbers of a layer and a chain."""
    return 0 <= layer < MOST_LAYERS and 0 <= chain < MOST_CHAINS


@inlined
def draw_of(layer, chain, key, stream):
    """Return the address of the numbers of a layer, without element and row."""
    address, key = np.uint32(np.uint32(stream) | np.uint32(chain)), np.uint64(key)
    low, high = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    return Draw(layer, address, low, high)
