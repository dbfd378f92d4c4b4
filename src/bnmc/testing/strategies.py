"""Hypothesis strategies (extra ``testing``) of chains, states, Gram matrices and generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.arguments import Float64Array, choice, integer
from bnmc._support.extras import import_extra
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.norms import ROW_NORMS
from bnmc.chain.weights import WEIGHTS, weight_law
from bnmc.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


#: Kinds of states of `batches`.
BATCH_KINDS = (
    "generic", "collinear", "tiny variance", "huge scale", "large means", "duplicated",
)  # fmt: skip

#: Laws of weights with independent entries, and without bias.
_INDEPENDENT = tuple(
    law.name
    for law in map(weight_law, WEIGHTS)
    if not law.is_orthogonal and law.bias_over_width == 0.0
)

#: Entries are multiples of 1/_UNIT of modulus up to _LARGEST/_UNIT: floats without rounding.
_UNIT, _LARGEST = 64, 256

#: Largest number of entries that are all drawn; in larger arrays most entries share one value.
_MOST_DRAWN = 1024

#: Range of the binary exponents of scales.
_POWERS = (10, 40)


def activations() -> SearchStrategy[Activation]:
    """Return a strategy of named activations; it shrinks to the linear one.

    Returns
    -------
    SearchStrategy of Activation

    Raises
    ------
    MissingExtraError
        If Hypothesis is missing.

    Examples
    --------
    >>> from bnmc.testing import activations
    >>> from hypothesis import find
    >>> find(activations(), lambda activation: activation(-1.0) >= 0.0)
    Activation.named('relu')
    """
    return _named_activations()


def chains(
    *,
    widths: SearchStrategy[int] | None = None,
    batches: SearchStrategy[int] | None = None,
    activations: SearchStrategy[Any] | None = None,
    norms: SearchStrategy[str] | None = None,
    skips: SearchStrategy[float] | None = None,
    gains: SearchStrategy[float] | None = None,
    weights: SearchStrategy[Any] | None = None,
    epsilons: SearchStrategy[float] | None = None,
) -> SearchStrategy[Chain]:
    """Return a strategy of chains; it shrinks to ``Chain(1, 2, "linear")`` and default arguments.

    Parameters
    ----------
    widths, batches, activations, norms, skips, gains, weights, epsilons : SearchStrategy, optional
        Strategies of the arguments of `Chain`.  By default widths are 1 to 64 and batches 2 to 16.
        All named activations, norms over the batch and laws of independent weights occur, and
        "none".  Gains have moduli from 1/4 to 4, skip connections are 0 or between -1 and 1, and
        eps is 0.  Discrete laws of weights may raise `ZeroVarianceError` in narrow chains; pass
        ``weights=st.just("gaussian")`` to avoid it.

    Returns
    -------
    SearchStrategy of Chain

    Raises
    ------
    MissingExtraError
        If Hypothesis is missing.

    Examples
    --------
    >>> from bnmc.testing import chains
    >>> from hypothesis import find
    >>> find(chains(), lambda chain: chain.width >= 7 and not chain.is_gaussian)
    Chain(width=7, batch=2, activation='linear', weights='uniform')
    """
    st = _strategies()
    sixteenths = st.integers(-16, 16).map(lambda number: number / 16)

    def gain(power: int, negative: bool) -> float:
        return (-1.0) ** negative * 2.0**power

    def chosen(name: str, strategy: Any, default: SearchStrategy[Any]) -> Any:
        if strategy is not None and not isinstance(strategy, st.SearchStrategy):
            raise ArgumentTypeError(name, strategy, "a Hypothesis strategy, or None")
        return default if strategy is None else strategy

    return st.builds(
        Chain,
        chosen("widths", widths, st.integers(1, 64)),
        chosen("batches", batches, st.integers(2, 16)),
        chosen("activations", activations, _named_activations()),
        norm=chosen("norms", norms, st.sampled_from(ROW_NORMS)),
        skip=chosen("skips", skips, st.just(0.0) | sixteenths),
        gain=chosen("gains", gains, st.builds(gain, st.integers(-2, 2), st.booleans())),
        weights=chosen("weights", weights, st.sampled_from(_INDEPENDENT)),
        eps=chosen("epsilons", epsilons, st.just(0.0)),
    )


def batches(
    width: int | SearchStrategy[int] | Chain,
    batch: int | SearchStrategy[int] | None = None,
    *,
    kinds: tuple[str, ...] = BATCH_KINDS,
) -> SearchStrategy[Float64Array]:
    """Return a strategy of pre-normalization states, (width, batch), without constant rows.

    Parameters
    ----------
    width : int, SearchStrategy of int, or Chain
        Number of rows, >= 1; a chain gives width and batch.
    batch : int or SearchStrategy of int, optional
        Number of samples, >= 1; by default 2 to 16.
    kinds : tuple of str
        Kinds of states, with a factor f from 2^-40 to 2^-10:

        - "generic";
        - "collinear": multiples of one sample, plus f times a generic state;
        - "tiny variance": f times a generic state;
        - "huge scale": a generic state divided by f;
        - "large means": a generic state plus 1/f, without rounding;
        - "duplicated": one sample equals another (generic for fewer than 3 samples).

    Returns
    -------
    SearchStrategy of (width, batch) ndarray of float64
        No row is 0, and none is constant if batch > 1.  Entries of generic states are multiples of
        1/64 up to 4, without rounding.  It shrinks to generic rows (1, 0, 0, …).

    Raises
    ------
    ArgumentError, ArgumentTypeError, MissingExtraError
        For arguments that are not allowed, and if Hypothesis is missing.

    Examples
    --------
    >>> from bnmc.testing import batches
    >>> from hypothesis import find
    >>> find(batches(2, 3, kinds=("generic",)), lambda h: h[1, 2] > 0.5)
    array([[1.      , 0.      , 0.      ],
           [0.      , 0.      , 0.515625]])
    """
    st = _strategies()
    if isinstance(width, Chain):
        if batch is not None:
            raise ArgumentError("batch", batch, "None where `width` is a chain")
        batch = width.batch
    widths = _lengths("width", width.width if isinstance(width, Chain) else width)
    counts = st.integers(2, 16) if batch is None else _lengths("batch", batch)
    if not isinstance(kinds, tuple) or not kinds:
        raise ArgumentTypeError("kinds", kinds, f"a tuple of some of {', '.join(BATCH_KINDS)}")
    for kind in kinds:
        choice("kinds", kind, BATCH_KINDS)

    def states(draw: DrawFn) -> Float64Array:
        kind = draw(st.sampled_from(kinds))
        shape = draw(widths), draw(counts)
        h: Float64Array = draw(_entries(*shape))
        if kind == "duplicated" and shape[1] > 2:
            copies = draw(st.permutations(range(shape[1])))
            h[:, copies[0]] = h[:, copies[1]]
            return _varied(h, copies[2])
        h = _varied(h, 0)
        if kind in BATCH_KINDS[1:5]:
            factor = 2.0 ** -draw(st.integers(*_POWERS))
            if kind == "collinear":
                line = draw(_entries(shape[0], 1)) * np.arange(1.0, shape[1] + 1.0)
                return _varied(line + factor * h, 0)
            if kind == "large means":
                return h + 1.0 / factor
            h = h * factor if kind == "tiny variance" else h / factor
        return h

    return st.composite(states)()


def gram_matrices(
    batch: int | SearchStrategy[int] | None = None, *, regular: bool = False
) -> SearchStrategy[Float64Array]:
    """Return a strategy of Gram matrices, (batch, batch): positive semidefinite and not 0.

    Parameters
    ----------
    batch : int or SearchStrategy of int, optional
        Number of samples, >= 1; by default 1 to 16.
    regular : bool, default False
        Whether to add the identity before scaling.  Otherwise many matrices are exactly singular.

    Returns
    -------
    SearchStrategy of (batch, batch) ndarray of float64
        2^k (aᵀa + regular I), without rounding, for -20 <= k <= 20 and a matrix a of integers with
        1 to 2 · batch rows.  It shrinks to matrices with few ones.

    Raises
    ------
    ArgumentError, ArgumentTypeError, MissingExtraError
        For arguments that are not allowed, and if Hypothesis is missing.

    Examples
    --------
    >>> from bnmc.testing import gram_matrices
    >>> from hypothesis import find
    >>> find(gram_matrices(2), lambda G: G[0, 1] < 0)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    st = _strategies()
    counts = st.integers(1, 16) if batch is None else _lengths("batch", batch)
    if not isinstance(regular, bool):
        raise ArgumentTypeError("regular", regular, "a bool")

    def matrices(draw: DrawFn) -> Float64Array:
        n = draw(counts)
        a = _UNIT * draw(_entries(draw(st.integers(1, 2 * n)), n))
        if not a.any():
            a[0, 0] = 1.0
        scale = 2.0 ** draw(st.integers(-20, 20))
        return scale * (a.T @ a + regular * np.eye(n))

    return st.composite(matrices)()


def generators() -> SearchStrategy[np.random.Generator]:
    """Return a strategy of NumPy's random generators; it shrinks to that of seed 0.

    A fixture such as ``bnmc_rng`` is made once for all examples of a test, so it has no place in a
    test with ``given``.

    Returns
    -------
    SearchStrategy of numpy.random.Generator
        ``np.random.default_rng(seed)`` for 0 <= seed < 2³².  Each example has a new one.

    Raises
    ------
    MissingExtraError
        If Hypothesis is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.testing import generators
    >>> from hypothesis import find
    >>> rng = find(generators(), lambda rng: True)
    >>> bool(rng.integers(1000) == np.random.default_rng(0).integers(1000))
    True
    """
    return _strategies().integers(0, 2**32 - 1).map(np.random.default_rng)


def _named_activations() -> Any:
    return _strategies().sampled_from([Activation.named(name) for name in BUILTIN])


def _strategies() -> Any:
    """Import Hypothesis, or raise."""
    return import_extra("hypothesis.strategies", "testing")


def _lengths(name: str, value: Any) -> Any:
    """Return a strategy of lengths for a length or a strategy."""
    st = _strategies()
    if isinstance(value, st.SearchStrategy):
        return value
    return st.just(integer(name, value, low=1))


def _entries(rows: int, columns: int) -> Any:
    """Return a strategy of arrays of generic entries."""
    st = _strategies()
    arrays = import_extra("hypothesis.extra.numpy", "testing").arrays
    numbers = st.integers(-_LARGEST, _LARGEST)
    fill = st.nothing() if rows * columns <= _MOST_DRAWN else None
    return arrays(np.int64, (rows, columns), elements=numbers, fill=fill).map(
        lambda array: array / _UNIT
    )


def _varied(h: Float64Array, column: int) -> Float64Array:
    """Add 1 to the entry in a column of each constant row, in place."""
    h[(h == h[:, :1]).all(axis=1), column] += 1.0
    return h
