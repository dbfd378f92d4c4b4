"""What compiled code takes, made from what Python has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu import workspace as cpu_workspace
from bnmc._kernels.scalar.codes import GIVEN, Law
from bnmc._support.arguments import choice, integer
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import law_of, sigma_of
from bnmc.errors import ArgumentError, ArgumentTypeError, NonFiniteError, ZeroVarianceError
from bnmc.kernels.layers import (
    BAD_ARGUMENT,
    NOT_FINITE,
    SMALL_WORKSPACE,
    UNRESOLVED,
    ZERO_VARIANCE,
    failed_row,
)

Rows = NDArray[np.floating[Any]]


def activation(spec: str | Activation | Callable[[Any], Any]) -> Sigma:
    """Return an activation as kernels take it.

    Parameters
    ----------
    spec : str, Activation or callable
        A named activation, or any scalar function that Numba compiles.

    Returns
    -------
    Sigma
        The same for equal activations, in every process: compiled code is kept by the digest of
        the function.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no activation, does not compile, or is not finite on [-4, 4].

    Examples
    --------
    >>> import numba
    >>> from bnmc import kernels
    >>> relu = kernels.activation("relu")
    >>> @numba.njit
    ... def twice(x):
    ...     return 2.0 * kernels.activate(relu, x)
    >>> twice(-1.0), twice(3.0)
    (0.0, 6.0)
    """
    known = as_activation(spec)
    known.check()
    return sigma_of(known)


def law(chain: Chain, inputs: int = 1) -> Law:
    """Return what kernels need to know of a chain.

    Parameters
    ----------
    chain : Chain
    inputs : int, default 1
        Batches that go side by side through the same network, each normalised on its own.

    Returns
    -------
    Law
        A named tuple: width, batch, columns = batch x inputs, norm (0 none, 1 uncentred, 2
        centred), skip, gain, eps.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `chain` is no `Chain`, or `inputs` no integer >= 1.

    Examples
    --------
    >>> import bnmc
    >>> law(bnmc.Chain(100, 4, "relu", skip=0.5), inputs=2)
    Law(width=100, batch=4, columns=8, norm=2, skip=0.5, gain=1.0, eps=0.0)
    """
    return law_of(_chain(chain), integer("inputs", inputs, low=1))


def weight_law(chain: Chain) -> int:
    """Return how `weights_layer` calls the law of the weights of a chain.

    Parameters
    ----------
    chain : Chain

    Returns
    -------
    int
        `GAUSSIAN`, `UNIFORM` or `RADEMACHER`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `chain` is no `Chain`, or its weights are drawn by a function.

    Examples
    --------
    >>> import bnmc
    >>> from bnmc import kernels
    >>> weight_law(bnmc.Chain(10, 2, weights="rademacher")) == kernels.RADEMACHER
    True
    """
    code = _chain(chain).weight_law.code
    if code == GIVEN:
        raise ArgumentError("weights", chain.weights, "a law with a name")
    return code


def workspace(
    chain: Chain, dtype: DTypeLike = "float64", *, inputs: int = 1, threads: int | None = None
) -> Rows:
    """Return memory for the kernels.

    Parameters
    ----------
    chain : Chain
    dtype : {"float64", "float32"}
        Precision of rows and weights.
    inputs : int, default 1
        As in `law`.
    threads : int, optional
        With it the result has a first axis: ``work[t]`` is the workspace of thread t.

    Returns
    -------
    (numbers,) or (threads, numbers) ndarray of the dtype

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> import bnmc
    >>> workspace(bnmc.Chain(10**6, 8), "float32", threads=4).ndim
    2
    """
    kind = _precision(dtype)
    columns = _chain(chain).batch * integer("inputs", inputs, low=1)
    size = cpu_workspace.workspace_bytes(chain.batch, columns, kind.itemsize)
    # Whole cache lines, so that no two threads write to one.
    numbers = int(cpu_workspace.lines(size)) // kind.itemsize
    if threads is None:
        return memory.aligned_zeros((numbers,), kind)
    return memory.aligned_zeros((integer("threads", threads, low=1), numbers), kind)


def activations(chain: Chain, dtype: DTypeLike = "float64", *, inputs: int = 1) -> Rows:
    """Return zeros for the activations of a chain: the state of `weights_layer`.

    Parameters
    ----------
    chain, dtype, inputs
        As in `workspace`.

    Returns
    -------
    (2, padded columns, stride) ndarray
        Columns are rounded up to a multiple of four, rows to one of 512.  Those of layer l are
        ``activations[l % 2].T[:width, :columns]``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> import bnmc
    >>> activations(bnmc.Chain(1000, 6)).shape
    (2, 8, 1024)
    """
    columns = _chain(chain).batch * integer("inputs", inputs, low=1)
    shape = (2, memory.padded(columns), memory.stride(chain.width))
    return memory.aligned_zeros(shape, _precision(dtype))


def representation(chain: Chain, dtype: DTypeLike = "float64", *, inputs: int = 1) -> Rows:
    """Return zeros for the representation x of a chain with a skip connection.

    Parameters
    ----------
    chain, dtype, inputs
        As in `workspace`.

    Returns
    -------
    (columns, stride) ndarray
        x is ``representation.T[:width]``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> import bnmc
    >>> representation(bnmc.Chain(1000, 6, skip=1.0)).shape
    (6, 1024)
    """
    columns = _chain(chain).batch * integer("inputs", inputs, low=1)
    return memory.aligned_zeros((columns, memory.stride(chain.width)), _precision(dtype))


def raise_status(status: int, work: Rows, *, layer: int, chain: int = 0) -> None:
    """Raise the typed error that a status code stands for; nothing where it is `OK`.

    Parameters
    ----------
    status : int
        What a kernel returned.
    work : workspace
        Of that call.
    layer, chain : int
        For the message.

    Raises
    ------
    ZeroVarianceError, NonFiniteError
        As `bnmc.simulate` does.
    ArgumentError
        For `BAD_ARGUMENT` and `SMALL_WORKSPACE`, and for `UNRESOLVED`, which says that the layer
        needs a float64 workspace.

    Examples
    --------
    >>> import bnmc
    >>> from bnmc import kernels
    >>> raise_status(kernels.NOT_FINITE, kernels.workspace(bnmc.Chain(10, 2)), layer=7)
    Traceback (most recent call last):
        ...
    bnmc.errors.NonFiniteError: Gram matrix no longer finite in chain 0, layer 7
    """
    if status:
        _raise(status, failed_row(work), layer, chain)


def _raise(status: int, row: int, layer: int, chain: int) -> NoReturn:
    if status == ZERO_VARIANCE:
        raise ZeroVarianceError(chain, layer, row)
    if status == NOT_FINITE:
        raise NonFiniteError(chain, layer, "Gram matrix")
    allowed = {
        UNRESOLVED: "a float64 workspace from this layer on, for pivots that float32 loses",
        BAD_ARGUMENT: "arrays of the shapes that the function documents, and a valid law",
        SMALL_WORKSPACE: "a workspace of this batch, these inputs and this dtype",
    }
    raise ArgumentError("status", status, allowed.get(status, "a status of bnmc.kernels"))


def _chain(chain: Chain) -> Chain:
    if not isinstance(chain, Chain):
        raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
    return chain


def _precision(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        raise ArgumentTypeError("dtype", dtype, "'float64' or 'float32'") from None
    return np.dtype(choice("dtype", name, ("float64", "float32")))
