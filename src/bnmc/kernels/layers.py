"""The compiled functions of `bnmc.kernels`: thin faces of `bnmc._kernels`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.compiling import Sigma, inlined, kernel
from bnmc._kernels.cpu import memory, workspace
from bnmc._kernels.cpu.blocks import add_gram, clear_rows, unpack_gram
from bnmc._kernels.cpu.layers import conditional_layers, weighted_layers
from bnmc._kernels.cpu.numbers import BLOCK, GROUP
from bnmc._kernels.cpu.rows import finish_block
from bnmc._kernels.scalar.codes import GIVEN, NORM_NONE, STREAM_ROWS, STREAM_WEIGHTS, Law

OK, ZERO_VARIANCE, NOT_FINITE, UNRESOLVED = 0, 1, 2, 3
BAD_ARGUMENT, SMALL_WORKSPACE = 4, 5

#: Streams of random numbers: of the rows that are drawn given a Gram matrix, and of weights.
ROWS, WEIGHTS = int(STREAM_ROWS), int(STREAM_WEIGHTS)

#: What counters have room for.
_MOST_LAYERS, _MOST_CHAINS, _MOST_ROWS = 1 << 32, 1 << 28, 1 << 33

Rows = NDArray[np.floating[Any]]

Float64Array = NDArray[np.float64]

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function) -> Function:
    """Compile a function, which keeps its type: that of what Python may call."""
    dispatcher: Function = kernel(function)
    return dispatcher


@_compiled
def conditional_layer(
    sigma: Sigma,
    law: Law,
    gram: Float64Array,
    layer: int,
    chain: int,
    key: np.uint64,
    out: Float64Array,
    work: Rows,
    x: Rows | None = None,
    activations: Rows | None = None,
) -> int:
    r"""Draw a layer given the Gram matrix of the one before; Gaussian weights, any norm.

    Given activations a with :math:`G = a^T a / d`, rows of :math:`W a` are i.i.d. N(0, G).  Rows of
    layer 0 are N(0, gram) before the normalization, without gain and skip connection: the identity
    is the law "gaussian" of `bnmc.simulate`, 11ᵀ + 1e-6 I is "collinear".

    Parameters
    ----------
    sigma : Sigma
        Of `activation`.
    law : Law
        Of `law`.
    gram : (columns, columns) float64
        Gram matrix of the layer before, or the covariance of rows of layer 0.
    layer, chain : int
        Numbers of the layer that is drawn, >= 0 and below 2**32, and of the chain, below 2**28.
    key : np.uint64
        ``np.uint64(run.key)``.  (Numba takes Python's integers for signed ones.)
    out : (columns, columns) float64
        Receives the Gram matrix of the layer; may be `gram` itself.
    work : workspace
    x : (columns, stride) of the dtype of `work`, optional (None, or an empty array)
        With a skip connection: the representation, which is brought up to date; at layer 0 what
        was in it is overwritten.
    activations : (2, padded columns, stride), optional
        Receives the activations of all rows in ``activations[0]``.

    Returns
    -------
    int
        `OK`; `ZERO_VARIANCE`, of the row `failed_row`; `NOT_FINITE`; `BAD_ARGUMENT`;
        `SMALL_WORKSPACE`; or `UNRESOLVED`, where `out` is `gram`: float32 rows would not resolve
        its pivots, so this layer and all later ones are for a float64 workspace, as in
        `bnmc.simulate`.

    Examples
    --------
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain = bnmc.Chain(1000, 3, "relu")
    >>> sigma, law, work = (
    ...     kernels.activation("relu"),
    ...     kernels.law(chain),
    ...     kernels.workspace(chain),
    ... )
    >>> out = np.zeros((3, 3))
    >>> conditional_layer(sigma, law, np.eye(3), 1, 0, np.uint64(7), out, work)
    0
    >>> bool(abs(np.trace(out) - 1.5) < 0.3)  # half of the squares of what is normalised
    True
    """
    n, whole, stride = law.columns, memory.padded(law.columns), memory.stride(law.width)
    if not (_is_valid(law, layer, chain) and gram.shape == (n, n) and out.shape == (n, n)):
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, n):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, n)
    xs, kept = s.no_x, s.no_activations
    if x is not None and x.size > 0:
        if x.shape[0] != n or x.shape[1] < stride:
            return BAD_ARGUMENT
        if layer == 0:
            x[:, :] = 0.0
        xs = x.reshape((1, n, x.shape[1]))
    elif law.skip != 0.0:
        return BAD_ARGUMENT
    if activations is not None and activations.size > 0:
        if activations.shape[:2] != (2, whole) or activations.shape[2] < stride:
            return BAD_ARGUMENT
        kept = activations.reshape((1, 2, whole, activations.shape[2]))
    # Not `out[:, :] = gram`, which allocates where the two are one.
    for i in range(n):
        for j in range(n):
            out[i, j] = gram[i, j]
    gain = 1.0 if layer == 0 else law.gain
    law = Law(law.width, law.batch, n, law.norm, law.skip, gain, law.eps)
    conditional_layers(
        sigma, law, out.reshape((1, n, n)), xs, kept, chain, layer, s.slots, s.record,
        memory.panel_rows(law.width, n), _low(key), _high(key), s.total, s.work, s.status,
    )  # fmt: skip
    return int(s.status[0, 0])


@_compiled
def weights_layer(
    sigma: Sigma,
    law: Law,
    weights: int,
    activations: Rows,
    layer: int,
    chain: int,
    key: np.uint64,
    out: Float64Array,
    work: Rows,
    x: Rows | None = None,
) -> int:
    """Draw the weights of a layer, a tile at a time, and multiply by the activations before.

    Parameters
    ----------
    weights : int
        `GAUSSIAN`, `UNIFORM` or `RADEMACHER`; see `weight_law`.
    activations : (2, padded columns, stride) of the dtype of `work`
        Those of layer l are ``activations[l % 2]``, zero beyond columns and width: the other half
        is read, this half is written.  See `bnmc.kernels.activations`.
    layer : int
        Number of the layer that is made, >= 1.
    out : (columns, columns) float64
        Receives the Gram matrix of the layer.
    sigma, law, chain, key, work, x
        As in `conditional_layer`.

    Returns
    -------
    int
        `OK`, `ZERO_VARIANCE`, `NOT_FINITE`, `BAD_ARGUMENT` or `SMALL_WORKSPACE`.

    Examples
    --------
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain = bnmc.Chain(50, 3, "relu", skip=0.5, weights="uniform")
    >>> sigma, law = kernels.activation("relu"), kernels.law(chain)
    >>> work, out, key = kernels.workspace(chain), np.eye(3), np.uint64(7)
    >>> a, x = kernels.activations(chain), kernels.representation(chain)
    >>> conditional_layer(sigma, law, np.eye(3), 0, 0, key, out, work, x, a)
    0
    >>> weights_layer(sigma, law, kernels.weight_law(chain), a, 1, 0, key, out, work, x)
    0
    >>> rows = a[1].T[:50, :3]
    >>> bool(np.allclose(rows.T @ rows / 50, out))
    True
    """
    n, whole, stride = law.columns, memory.padded(law.columns), memory.stride(law.width)
    if not (_is_valid(law, layer, chain) and layer >= 1 and out.shape == (n, n)):
        return BAD_ARGUMENT
    if not 0 <= weights < GIVEN:
        return BAD_ARGUMENT
    if activations.shape[:2] != (2, whole) or activations.shape[2] < stride:
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, n):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, n)
    xs = s.no_x
    if x is not None and x.size > 0:
        if x.shape[0] != n or x.shape[1] < stride:
            return BAD_ARGUMENT
        xs = x.reshape((1, n, x.shape[1]))
    elif law.skip != 0.0:
        return BAD_ARGUMENT
    weighted_layers(
        sigma, law, weights, s.no_weights, out.reshape((1, n, n)), xs,
        activations.reshape((1, 2, whole, activations.shape[2])), chain, layer, s.slots, s.record,
        memory.panel_rows(law.width, max(n, law.width)), _low(key), _high(key), s.total, s.work,
        s.status,
    )  # fmt: skip
    return int(s.status[0, 0])


@_compiled
def normalise_activate(sigma: Sigma, law: Law, h: Rows, out: Rows, work: Rows) -> int:
    """Normalise rows and apply the activation: σ(N(h)).

    Parameters
    ----------
    sigma, law, work
        As in `conditional_layer`; of `law` only norm, eps, batch and columns matter.
    h : (rows, columns) floating
        Any number of rows before the normalization; nothing is added to them, whatever the skip
        connection.
    out : (rows, columns) floating
        May be `h` itself.

    Returns
    -------
    int
        `OK`, `ZERO_VARIANCE` (of the row `failed_row`; rows before its block of 512 are written),
        `BAD_ARGUMENT` or `SMALL_WORKSPACE`.  What is not finite is passed on without a norm.

    Examples
    --------
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain = bnmc.Chain(2, 2, "relu")
    >>> out = np.zeros((2, 2))
    >>> normalise_activate(
    ...     kernels.activation("relu"),
    ...     kernels.law(chain),
    ...     np.array([[1.0, 3.0], [5.0, 4.0]]),
    ...     out,
    ...     kernels.workspace(chain),
    ... )
    0
    >>> out
    array([[0., 1.],
           [1., 0.]])
    """
    if not (_is_valid(law, 0, 0) and h.shape[1] == law.columns and out.shape == h.shape):
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, law.columns):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, law.columns)
    block = s.work.block
    plain = Law(law.width, law.batch, law.columns, law.norm, 0.0, law.gain, law.eps)
    nothing = s.no_activations[0, 0]
    for start in range(0, h.shape[0], BLOCK):
        count = min(BLOCK, h.shape[0] - start)
        _load(h, start, count, law.columns, block)
        degenerate = finish_block(
            sigma, plain, start, count, s.no_x[0], nothing, block, s.work.means, s.work.scales
        )
        if degenerate >= 0:
            s.status[0, 0], s.status[0, 2] = ZERO_VARIANCE, degenerate
            return ZERO_VARIANCE
        for i in range(law.columns):
            for row in range(count):
                out[start + row, i] = block[i * BLOCK + row]
    return OK


@_compiled
def normalise_activate_row(sigma: Sigma, law: Law, h: Rows, out: Rows, work: Rows) -> int:
    """Normalise one row and apply the activation, as `normalise_activate`.

    Parameters
    ----------
    h, out : (columns,) floating
    sigma, law, work
        As in `normalise_activate`.

    Returns
    -------
    int
        As `normalise_activate`.

    Examples
    --------
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain, out = bnmc.Chain(1, 2, "relu"), np.zeros(2)
    >>> normalise_activate_row(
    ...     kernels.activation("relu"),
    ...     kernels.law(chain),
    ...     np.array([1.0, 3.0]),
    ...     out,
    ...     kernels.workspace(chain),
    ... )
    0
    >>> out
    array([0., 1.])
    """
    one = (1, h.shape[0])
    return normalise_activate(sigma, law, h.reshape(one), out.reshape((1, out.shape[0])), work)


@_compiled
def gram(law: Law, a: Rows, out: Float64Array, work: Rows) -> int:
    """Gram matrix aᵀa/rows of activations, summed in float64 over blocks of 512 rows.

    Parameters
    ----------
    law : Law
        Of it only batch and columns matter.
    a : (rows, columns) floating
    out : (columns, columns) float64
    work : workspace

    Returns
    -------
    int
        `OK`, `NOT_FINITE`, `BAD_ARGUMENT` or `SMALL_WORKSPACE`.

    Examples
    --------
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain, out = bnmc.Chain(2, 2, "relu"), np.zeros((2, 2))
    >>> gram(kernels.law(chain), np.array([[1.0, 1.0], [1.0, -1.0]]), out, kernels.workspace(chain))
    0
    >>> out
    array([[1., 0.],
           [0., 1.]])
    """
    n, rows = law.columns, a.shape[0]
    if not (_is_valid(law, 0, 0) and rows > 0 and a.shape[1] == n and out.shape == (n, n)):
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, n):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, n)
    s.work.sums[:] = 0.0
    for start in range(0, rows, BLOCK):
        count = min(BLOCK, rows - start)
        whole = (count + GROUP - 1) // GROUP * GROUP
        _load(a, start, count, n, s.work.block)
        clear_rows(s.work.block, 0, n, count, whole)
        add_gram(s.work.block, n, whole, s.work.partial, s.work.sums)
    plain = Law(rows, n, n, NORM_NONE, 0.0, 1.0, 0.0)
    return OK if unpack_gram(s.work.sums, plain, out) else NOT_FINITE


@_compiled
def failed_row(work: Rows) -> int:
    """Return the row without variance of the last call that had this workspace, or -1.

    Parameters
    ----------
    work : workspace

    Returns
    -------
    int
        -1 too where nothing failed.

    Examples
    --------
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain, out = bnmc.Chain(1, 2, "relu"), np.zeros((3, 2))
    >>> work = kernels.workspace(chain)
    >>> h = np.array([[0.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    >>> status = normalise_activate(kernels.activation("relu"), kernels.law(chain), h, out, work)
    >>> status == kernels.ZERO_VARIANCE, failed_row(work)
    (True, 1)
    """
    if work.nbytes < 2 * workspace.LINE:
        return -1
    header = workspace.header_of(work)
    return int(header[workspace.STATUS + 2]) if header[0] == workspace.MAGIC else -1


@inlined
def _low(key):
    return np.uint32(np.uint64(key) & np.uint64(0xFFFFFFFF))


@inlined
def _high(key):
    return np.uint32(np.uint64(key) >> np.uint64(32))


@inlined
def _is_valid(law, layer, chain):
    """Whether no memory is touched that is not there, and no counter is used twice."""
    return (
        0 < law.width <= _MOST_ROWS
        and 0 < law.batch <= law.columns < _MOST_CHAINS
        and law.columns % law.batch == 0
        and 0 <= law.norm <= 2
        and 0 <= layer < _MOST_LAYERS
        and 0 <= chain < _MOST_CHAINS
        and law.eps >= 0.0
    )


@inlined
def _load(values, start, count, columns, block):
    """Bring rows to a block, one column after the other."""
    for i in range(columns):
        for row in range(count):
            block[i * BLOCK + row] = values[start + row, i]
