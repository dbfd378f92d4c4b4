"""Arguments of kernels, made in Python, errors of their statuses, and the digest of their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels import kernel_cache
from bnmc._kernels.compiling import Sigma
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu import workspace as cpu_workspace
from bnmc._kernels.scalar.codes import GIVEN, NOT_FINITE, UNRESOLVED, ZERO_VARIANCE
from bnmc._support.arguments import integer, precision
from bnmc.chain.activations import Activation, as_activation, sigma_of
from bnmc.chain.chain import Chain, as_chain
from bnmc.chain.compiled import raise_stopped, spec_of
from bnmc.chain.needs import INDEPENDENT_ENTRIES, NO_BIAS, ROW_BY_ROW, require
from bnmc.errors import ArgumentError
from bnmc.kernels.checks import BAD_ARGUMENT, OK, SMALL_WORKSPACE, Law, Rows, Status
from bnmc.kernels.layers import failed_row


def activation(spec: str | Activation | Callable[[Any], Any]) -> Sigma:
    """Return an activation as an argument of kernels.

    Parameters
    ----------
    spec : str, Activation or callable
        Name of an activation, or any scalar function that Numba compiles.

    Returns
    -------
    Sigma
        Equal activations give the same value, also in other processes: a digest of the function
        identifies its compiled code.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `spec` is no activation, does not compile, or is not finite on [-4, 4].

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
    checked = as_activation(spec)
    checked.check()
    return sigma_of(checked)


def law(chain: Chain, inputs: int = 1) -> Law:
    """Return the parameters of a chain as an argument of kernels.

    Parameters
    ----------
    chain : Chain
    inputs : int, default 1
        Number of input batches, >= 1. They go through the same network side by side, and each is
        normalized on its own.

    Returns
    -------
    Law
        A named tuple of width, batch, columns = batch × inputs, norm, skip, gain and eps. The norm
        is 0 for none, 1 for uncentred and 2 for centred batch normalization.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `chain` is no `Chain`, or `inputs` is no integer >= 1; for orthogonal weights, norms over
        the features, biases, and orders other than "norm-activation".

    Examples
    --------
    >>> from bnmc.kernels import law
    >>> import bnmc
    >>> law(bnmc.Chain(100, 4, "relu", skip=0.5), inputs=2)
    Law(width=100, batch=4, columns=8, norm=2, skip=0.5, gain=1.0, eps=0.0)
    """
    # With orthogonal weights the rows of a layer depend on each other.
    needs = INDEPENDENT_ENTRIES, *ROW_BY_ROW, NO_BIAS
    require(chain, needs, "bnmc.simulate makes such chains")
    spec = spec_of(chain, integer("inputs", inputs, low=1))
    return Law(*(getattr(spec, name) for name in Law._fields))


def weight_law(chain: Chain) -> int:
    """Return the law of the weights of a chain as an argument of `weights_layer`.

    Parameters
    ----------
    chain : Chain

    Returns
    -------
    int
        The number of a `WeightCode`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `chain` is no `Chain`, or its weights are orthogonal or drawn by a function of the user.

    Examples
    --------
    >>> from bnmc.kernels import weight_law
    >>> import bnmc
    >>> from bnmc import kernels
    >>> weight_law(bnmc.Chain(10, 2, weights="rademacher")) == kernels.WeightCode.RADEMACHER
    True
    """
    code = as_chain(chain).layers[1].linear.law.code
    if code == GIVEN:
        allowed = "a law of independent entries that has a name"
        raise ArgumentError("weights", chain.weights, allowed)
    return code


def workspace(
    chain: Chain, dtype: DTypeLike = "float64", *, inputs: int = 1, threads: int | None = None
) -> Rows:
    """Return memory that a kernel works in.

    Parameters
    ----------
    chain : Chain
    dtype : {"float64", "float32"}
        Precision of rows and weights.
    inputs : int, default 1
        Number of input batches, as in `law`.
    threads : int, optional
        Number of threads, >= 1. If given, ``work[t]`` is the workspace of thread t.

    Returns
    -------
    ndarray of the dtype, shape (numbers,) or (threads, numbers)
        Zeros. The number of elements grows with batch × inputs, not with the width.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels import workspace
    >>> import bnmc
    >>> workspace(bnmc.Chain(10**6, 8), "float32", threads=4).ndim
    2
    """
    kind = np.dtype(precision(dtype))
    columns = _columns(chain, inputs)
    size = cpu_workspace.workspace_bytes(chain.batch, columns, kind.itemsize)
    # Whole cache lines: two threads never write to the same line.
    numbers = int(memory.lines(size)) // kind.itemsize
    if threads is None:
        return memory.aligned_zeros((numbers,), kind)
    return memory.aligned_zeros((integer("threads", threads, low=1), numbers), kind)


def activations(chain: Chain, dtype: DTypeLike = "float64", *, inputs: int = 1) -> Rows:
    """Return zeros for the activations of two layers, which `weights_layer` reads and writes.

    Parameters
    ----------
    chain, dtype, inputs
        As in `workspace`.

    Returns
    -------
    ndarray of the dtype, shape (2, padded columns, stride)
        The second axis is batch × inputs rounded up to a multiple of 4, the third the width rounded
        up to a multiple of 512. The activations of layer l are
        ``activations[l % 2].T[:width, :columns]``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels import activations
    >>> import bnmc
    >>> activations(bnmc.Chain(1000, 6)).shape
    (2, 8, 1024)
    """
    columns = _columns(chain, inputs)
    shape = (2, memory.padded(columns), memory.stride(chain.width))
    return memory.aligned_zeros(shape, np.dtype(precision(dtype)))


def representation(chain: Chain, dtype: DTypeLike = "float64", *, inputs: int = 1) -> Rows:
    """Return zeros for the representation x of a chain with a skip connection.

    Parameters
    ----------
    chain, dtype, inputs
        As in `workspace`.

    Returns
    -------
    ndarray of the dtype, shape (columns, stride)
        With columns = batch × inputs, and the width rounded up to a multiple of 512 as stride. x,
        of shape (width, columns), is ``representation.T[:width]``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels import representation
    >>> import bnmc
    >>> representation(bnmc.Chain(1000, 6, skip=1.0)).shape
    (6, 1024)
    """
    columns = _columns(chain, inputs)
    return memory.aligned_zeros((columns, memory.stride(chain.width)), np.dtype(precision(dtype)))


def raise_status(status: int, work: Rows, *, layer: int, chain: int = 0) -> None:
    """Raise the typed error of a status, or return if the status is `Status.OK`.

    Parameters
    ----------
    status : int
        Status that a kernel returned.
    work : workspace
        Workspace of that call.
    layer : int
        Number of the layer, for the message.
    chain : int, default 0
        Number of the chain, for the message.

    Raises
    ------
    ZeroVarianceError
        For `Status.ZERO_VARIANCE`.
    NonFiniteError
        For `Status.NOT_FINITE`.
    ArgumentError
        For all other statuses. `Status.UNRESOLVED` means that the layer needs a float64 workspace.

    Examples
    --------
    >>> from bnmc.kernels import raise_status
    >>> import bnmc
    >>> from bnmc import kernels
    >>> raise_status(kernels.Status.NOT_FINITE, kernels.workspace(bnmc.Chain(10, 2)), layer=7)
    Traceback (most recent call last):
        ...
    bnmc.errors.NonFiniteError: Gram matrix no longer finite in chain 0, layer 7
    """
    if status == OK:
        return
    if status in (ZERO_VARIANCE, NOT_FINITE):
        raise_stopped(status, chain, layer, failed_row(work))
    remedies = {
        UNRESOLVED: "a float64 workspace from this layer on, for pivots that float32 loses",
        BAD_ARGUMENT: "arrays of the shapes that the function documents, and a valid law",
        SMALL_WORKSPACE: "a workspace of kernels.workspace(chain, dtype, inputs=...)",
    }
    error = ArgumentError("status", status, remedies.get(status, "a status of bnmc.kernels"))
    if status in remedies:
        error.args = (f"status {status}, {Status(status).name}: pass {error.allowed}",)
    raise error


def digest() -> str:
    """Return a digest of what the code of the kernels depends on, apart from the processor.

    Put it into the key of a cache that holds compiled code or results of the kernels, for example
    into the name of the folder of Numba's cache: Numba does not notice that a function has changed
    which a cached function calls.

    Returns
    -------
    str
        16 hexadecimal digits. They change with the sources of the kernels and activations, with
        the versions of Python and Numba, and with settings of Numba that change the code. The
        digest of your own activation is not part of them: ``activation(function).digest``.

    Examples
    --------
    >>> from bnmc.kernels import digest
    >>> len(digest())
    16
    """
    return kernel_cache.version()


def _columns(chain: Chain, inputs: int) -> int:
    return as_chain(chain).batch * integer("inputs", inputs, low=1)
