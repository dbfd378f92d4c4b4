"""The layers of a network as compiled functions, for callers in compiled code.

Each function checks its arguments, lays out the workspace and calls the kernels of
`bnmc._kernels.cpu`.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import Sigma, inlined
from bnmc._kernels.cpu import memory, workspace
from bnmc._kernels.cpu.blocks import add_gram, clear_rows, unpack_gram
from bnmc._kernels.cpu.layers import Sums, finish_rows, one_layer
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE
from bnmc._kernels.cpu.rows import event_of, row_of
from bnmc._kernels.cpu.sources import Drawn, Layer, Multiplied
from bnmc._kernels.processor import LINE_BYTES
from bnmc._kernels.scalar import codes
from bnmc.kernels.checks import (
    BAD_ARGUMENT,
    OK,
    SMALL_WORKSPACE,
    Float64Array,
    Law,
    Rows,
    compiled,
    draw_of,
    is_valid,
)


@compiled
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
    r"""Draw one layer of a chain with Gaussian weights, given the previous Gram matrix.

    Let a be the activations of the previous layer, of shape (d, columns), and
    :math:`G = a^T a / d`. Given a, the rows of :math:`W a` are i.i.d. N(0, G), so the kernel draws
    them without drawing W. The rows of layer 0 are N(0, gram) before the normalization, with gain 1
    and without a skip connection. The identity gives the law "gaussian" of `bnmc.simulate`, and
    :math:`1 1^T + 10^{-6} I` the law "collinear".

    Parameters
    ----------
    sigma : Sigma
        The activation, from `activation`.
    law : Law
        The chain, from `law`.
    gram : (columns, columns) float64
        Gram matrix of the previous layer, or covariance of the rows of layer 0. It must be
        symmetric and positive semidefinite. This is not checked: with another matrix the result has
        no meaning, and the status may be OK or ZERO_VARIANCE.
    layer : int
        Number of the layer to draw, >= 0 and below 2**32.
    chain : int
        Number of the chain, >= 0 and below 2**28.
    key : np.uint64
        Key of the random numbers, ``np.uint64(run.key)`` for that of a run. Numba treats a Python
        integer as signed, so convert it.
    out : (columns, columns) float64
        Receives the Gram matrix of the layer. It may be `gram` itself.
    work : workspace
        From `workspace`.
    x : (columns, stride) of the dtype of `work`, optional
        Representation of a chain with a skip connection; the kernel updates it in place, and at
        layer 0 overwrites it. None or an empty array for chains without a skip connection.
    activations : (2, padded columns, stride) of the dtype of `work`, optional
        Receives the activations of all rows in ``activations[0]``.

    Returns
    -------
    int
        A `Status`:

        - OK.
        - ZERO_VARIANCE: the row `failed_row` has no variance.
        - NOT_FINITE: `gram` or the new Gram matrix is not finite, or squares of a row leave the
          range of its dtype.
        - UNRESOLVED: float32 rows do not resolve the pivots of `gram`, or their squares leave the
          range of float32. The kernel leaves `out` equal to `gram`; use a float64 workspace for
          this layer and all later ones, as `bnmc.simulate` does.
        - BAD_ARGUMENT or SMALL_WORKSPACE: nothing was done.

    Examples
    --------
    >>> from bnmc.kernels import conditional_layer
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
    >>> bool(abs(np.trace(out) - 1.5) < 0.3)  # relu keeps half of the squares
    True
    """
    n, whole, stride = law.columns, memory.padded(law.columns), memory.stride(law.width)
    if not (is_valid(law, layer, chain) and gram.shape == (n, n) and out.shape == (n, n)):
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, n):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, n)
    representation = before = following = s.work.block[:0].reshape((0, 1))
    if x is not None and x.size > 0:
        if x.shape[0] != n or x.shape[1] < stride:
            return BAD_ARGUMENT
        if layer == 0:
            x[:, :] = 0.0
        representation = x
    elif law.skip != 0.0:
        return BAD_ARGUMENT
    if activations is not None and activations.size > 0:
        if activations.shape[:2] != (2, whole) or activations.shape[2] < stride:
            return BAD_ARGUMENT
        before, following = activations[1], activations[0]
    # `out[:, :] = gram` would allocate if the two are one array.
    for i in range(n):
        for j in range(n):
            out[i, j] = gram[i, j]
            if not abs(gram[i, j]) < np.inf:
                return codes.NOT_FINITE
    gain = 1.0 if layer == 0 else law.gain
    panel = memory.panel_rows(law.width, n)
    spec = _layer_spec(law, codes.GAUSSIAN, panel, gain, law.skip, law.norm == codes.NORM_CENTRED)
    source = Drawn(codes.STREAM_ROWS, None)
    matrices = Layer(out, representation, before, following)
    return _make_layer(source, sigma, spec, matrices, layer, chain, key, s)


@compiled
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
    """Make one layer by drawing its weights, tile by tile.

    Parameters
    ----------
    sigma, law, chain, key, work, x
        As in `conditional_layer`.
    weights : int
        Law of the weights: the number of a `WeightCode`. See `weight_law`.
    activations : (2, padded columns, stride) of the dtype of `work`
        Activations of two layers, from `bnmc.kernels.activations`. Those of layer l are
        ``activations[l % 2]``; they are zero beyond columns and width. The kernel reads the
        previous layer from one half, and writes this layer to the other.
    layer : int
        Number of the layer to make, >= 1.
    out : (columns, columns) float64
        Receives the Gram matrix of the layer.

    Returns
    -------
    int
        A `Status`, as in `conditional_layer`.

    Examples
    --------
    >>> from bnmc.kernels import conditional_layer, weights_layer
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
    if not (is_valid(law, layer, chain) and layer >= 1 and out.shape == (n, n)):
        return BAD_ARGUMENT
    if not (0 <= weights < codes.GIVEN and law.width <= codes.MOST_ELEMENTS):
        return BAD_ARGUMENT
    if activations.shape[:2] != (2, whole) or activations.shape[2] < stride:
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, n):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, n)
    representation = s.work.block[:0].reshape((0, 1))
    if x is not None and x.size > 0:
        if x.shape[0] != n or x.shape[1] < stride:
            return BAD_ARGUMENT
        representation = x
    elif law.skip != 0.0:
        return BAD_ARGUMENT
    panel = memory.panel_rows(law.width, max(n, law.width))
    spec = _layer_spec(law, weights, panel, law.gain, law.skip, False)
    source = Multiplied(codes.STREAM_WEIGHTS, s.work.block[:0].reshape((0, 1)))
    matrices = Layer(out, representation, activations[(layer + 1) % 2], activations[layer % 2])
    return _make_layer(source, sigma, spec, matrices, layer, chain, key, s)


@compiled
def normalise_activate(sigma: Sigma, law: Law, h: Rows, out: Rows, work: Rows) -> int:
    """Normalize rows and apply the activation σ: σ(N(h)).

    Parameters
    ----------
    sigma, law, work
        As in `conditional_layer`. The kernel reads norm, eps, batch and columns of `law` only; it
        adds no skip connection.
    h : (rows, columns) floating
        Rows before the normalization, any number of them.
    out : (rows, columns) floating
        Receives σ(N(h)). It may be `h` itself.

    Returns
    -------
    int
        A `Status`: OK, BAD_ARGUMENT, SMALL_WORKSPACE, or ZERO_VARIANCE for the row `failed_row`, or
        NOT_FINITE if squares of a row leave the range of the dtype of `work`. The kernel works in
        blocks of 512 rows; after the last two, all blocks before that of the row are written.
        Without a normalization, non-finite numbers pass through.

    Examples
    --------
    >>> from bnmc.kernels import normalise_activate
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
    if not (is_valid(law, 0, 0) and h.shape[1] == law.columns and out.shape == h.shape):
        return BAD_ARGUMENT
    if not workspace.lay_out(work, law.batch, law.columns):
        return SMALL_WORKSPACE
    s = workspace.carve(work, law.batch, law.columns)
    block = s.work.block
    spec = _layer_spec(law, codes.GAUSSIAN, BLOCK, law.gain, 0.0, False)
    nothing = s.work.block[:0].reshape((0, 1))
    matrices = Layer(s.work.covariance, nothing, nothing, nothing)
    for start in range(0, h.shape[0], BLOCK):
        count = min(BLOCK, h.shape[0] - start)
        _load(h, start, count, law.columns, block)
        degenerate = finish_rows(spec, sigma, matrices, start, count, s.work, None)
        if degenerate >= 0:
            s.status[0], s.status[2] = event_of(degenerate), row_of(degenerate)
            return event_of(degenerate)
        for i in range(law.columns):
            for row in range(count):
                out[start + row, i] = block[i * STRIDE + row]
    return OK


@compiled
def normalise_activate_row(sigma: Sigma, law: Law, h: Rows, out: Rows, work: Rows) -> int:
    """Normalize one row and apply the activation, as `normalise_activate` does for several.

    Parameters
    ----------
    sigma, law, work
        As in `normalise_activate`.
    h : (columns,) floating
        Row before the normalization.
    out : (columns,) floating
        Receives σ(N(h)). It may be `h` itself.

    Returns
    -------
    int
        A status, as in `normalise_activate`.

    Examples
    --------
    >>> from bnmc.kernels import normalise_activate_row
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
    row = h.reshape((1, h.shape[0]))
    return normalise_activate(sigma, law, row, out.reshape((1, out.shape[0])), work)


@compiled
def gram(law: Law, a: Rows, out: Float64Array, work: Rows) -> int:
    """Compute the Gram matrix aᵀa/rows of activations, in float64 over blocks of 512 rows.

    Parameters
    ----------
    law : Law
        The chain, from `law`. The kernel reads batch and columns only.
    a : (rows, columns) floating
        Activations.
    out : (columns, columns) float64
        Receives the Gram matrix.
    work : workspace
        From `workspace`.

    Returns
    -------
    int
        A `Status`: OK, NOT_FINITE, BAD_ARGUMENT or SMALL_WORKSPACE.

    Examples
    --------
    >>> from bnmc.kernels import gram
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
    if not (is_valid(law, 0, 0) and rows > 0 and a.shape[1] == n and out.shape == (n, n)):
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
    return OK if unpack_gram(s.work.sums, rows, out) else codes.NOT_FINITE


@compiled
def failed_row(work: Rows) -> int:
    """Return the row without variance that the last call with a workspace met.

    Parameters
    ----------
    work : workspace
        The workspace of that call.

    Returns
    -------
    int
        Index of the row, or -1 if no row failed.

    Examples
    --------
    >>> from bnmc.kernels import failed_row, normalise_activate
    >>> import numpy as np, bnmc
    >>> from bnmc import kernels
    >>> chain, out = bnmc.Chain(1, 2, "relu"), np.zeros((3, 2))
    >>> work = kernels.workspace(chain)
    >>> h = np.array([[0.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    >>> status = normalise_activate(kernels.activation("relu"), kernels.law(chain), h, out, work)
    >>> status == kernels.Status.ZERO_VARIANCE, failed_row(work)
    (True, 1)
    """
    if work.nbytes < 2 * LINE_BYTES:
        return -1
    header = workspace.header_of(work)
    return int(header[workspace.STATUS + 2]) if header[0] == workspace.MAGIC else -1


@inlined
def _load(values, start, count, columns, block):
    """Copy rows to a block, in which the elements of each column are contiguous."""
    for i in range(columns):
        for row in range(count):
            block[i * STRIDE + row] = values[start + row, i]


@inlined
def _layer_spec(law, weights, panel, gain, skip, hides_common):
    """Return what kernels know of a layer of a chain whose parameters are `law`."""
    hides_scale = law.norm != codes.NORM_NONE and law.skip == 0.0 and law.eps == 0.0
    return codes.LayerSpec(
        law.width, law.batch, law.columns, law.width, panel, weights, gain, skip, 0.0, False, 0.0,
        codes.NORM_FIRST, law.norm, 0, False, law.eps, hides_common, hides_scale,
    )  # fmt: skip


@inlined
def _make_layer(source, sigma, spec, layer, number, chain, key, s):
    """Make a layer, and return its status, which the workspace keeps."""
    draw = draw_of(number, chain, key, source.stream)
    # Norms are over the batch: there are no moments.
    sums = Sums(s.total.reshape((1, s.total.size)), s.work.block[:0].reshape((0, 1)), None, None)
    event, place = one_layer(None, source, sigma, spec, layer, draw, s.work, sums)
    if event != OK:
        s.status[0], s.status[1], s.status[2] = event, number, row_of(place)
    return int(event)
