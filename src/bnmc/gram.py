"""Functions of representations and of their Gram matrices.

A representation ``a`` is a (width, batch) matrix with one sample in each column. Its Gram matrix is
``G = aᵀ a / width``, (batch, batch). Every function broadcasts over leading axes, so it takes one
matrix or the (chains, layers, ...) stack that a simulation returns. Only NumPy is needed.

Arguments may be of any real type, in any array that has `__array__`, a buffer or `__dlpack__`.
float64 arrays on the host are not copied, and arrays on a GPU are copied to the host. Tests of
symmetry and singularity use the rounding unit of the input, float32 or float64. All arithmetic and
all results are float64, scaled so that intermediate squares neither overflow nor vanish. Functions
that return matrices write them to your own array if ``out=`` is given. `out` may be the input
itself. After an error its content is undefined.

The orthogonality gap, the ranks and the spectrum of a representation depend on it through its Gram
matrix only, so they take Gram matrices only. The V(H) of Daneshmand, Joudaki and Bach
(arXiv 2106.03970), for example, is ``orthogonality_gap(gram(H))``.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, instance, integer, real, result_array
from bnmc._support.arithmetic import make_public
from bnmc._support.linalg import (
    SLACK,
    binary_scale,
    is_singular,
    require_finite,
    require_regular,
    rounding_unit,
)
from bnmc.errors import ArgumentError, LayoutWarning

Float64Array = NDArray[np.float64]

__all__ = [
    "centre",
    "condition",
    "correlation",
    "cross_gram",
    "distance",
    "eigenvalues",
    "gram",
    "orthogonality_gap",
    "rank_bound",
    "relative_deviation",
    "soft_rank",
    "validate_gram",
]


def gram(
    a: ArrayLike, *, samples_first: bool = False, out: Float64Array | None = None
) -> Float64Array:
    """Gram matrix ``aᵀ a / width`` of a representation.

    Parameters
    ----------
    a : (width, batch) or (networks, width, batch) array_like
        Representations, with one sample in each column.
    samples_first : bool, default False
        Whether the samples are in the rows, as in PyTorch: `a` then has shape (batch, width) or
        (networks, batch, width). Flatten images: ``images.reshape(len(images), -1)``.
    out : (..., batch, batch) ndarray of float64, optional
        Array for the result, which the function returns.

    Returns
    -------
    (..., batch, batch) ndarray of float64
        Symmetric, positive semidefinite.

    Warns
    -----
    LayoutWarning
        If there are more samples than features, so the samples may be on the other axis.
        `cross_gram` of an array with itself does not warn.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `a` is not an array of finite real numbers of that shape, its squares overflow,
        `samples_first` is no bool, or `out` is not a writable float64 array of the shape of the
        result.

    Examples
    --------
    >>> from bnmc.gram import gram
    >>> gram([[1.0, 1.0], [1.0, -1.0]])
    array([[1., 0.],
           [0., 1.]])
    >>> gram([[3.0, 0.0, 0.0, 4.0]], samples_first=True)  # 1 sample × 4 features
    array([[6.25]])
    """
    is_transposed = instance("samples_first", samples_first, bool, "True or False")
    representation = _representation("a", a)
    if representation.ndim > 3:
        rows = "batch, width" if is_transposed else "width, batch"
        allowed = f"({rows}) or (networks, {rows}); flatten images"
        raise ArgumentError("a", representation.shape, allowed)
    if is_transposed:
        representation = representation.swapaxes(-1, -2)
    width, batch = representation.shape[-2:]
    if batch > width:
        along, other = ("row", "columns") if is_transposed else ("column", "rows")
        remedy = "omit samples_first" if is_transposed else "pass samples_first=True"
        warnings.warn(
            f"a has {batch} {along}s and {width} {other}: {batch} samples × {width} features, one "
            f"sample in each {along}; if the samples are in the {other}, {remedy}",
            LayoutWarning,
            stacklevel=3,
        )
    return _product("a", representation, representation, out)


def cross_gram(a: ArrayLike, b: ArrayLike, *, out: Float64Array | None = None) -> Float64Array:
    """Cross-Gram matrix ``aᵀ b / width`` of two representations of the same width.

    Parameters
    ----------
    a : (..., width, n) array_like
    b : (..., width, m) array_like
        Representations. The leading axes broadcast.
    out : (..., n, m) ndarray of float64, optional
        Array for the result, which the function returns.

    Returns
    -------
    (..., n, m) ndarray of float64

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `a` or `b` is not an array of finite real numbers, their shapes do not match, their
        products overflow, or `out` is not a writable float64 array of the shape of the result.

    Examples
    --------
    >>> from bnmc.gram import cross_gram
    >>> cross_gram([[1.0, 1.0], [1.0, -1.0]], [[2.0], [0.0]])
    array([[1.],
           [1.]])
    """
    first = _representation("a", a)
    second = _representation("b", b)
    if first.shape[-2] != second.shape[-2]:
        raise ArgumentError("b", second.shape, f"a representation of width {first.shape[-2]}")
    _require_broadcast("b", second.shape, first.shape)
    return _product("b", first, second, out)


def distance(G: ArrayLike, H: ArrayLike) -> Float64Array:
    """Frobenius distance ``‖G − H‖_F``.

    Parameters
    ----------
    G, H : (..., n, m) array_like
        Gram matrices (n = m) or cross-Gram matrices. The leading axes broadcast.

    Returns
    -------
    (...) ndarray of float64
        Non-negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` or `H` is not an array of finite real numbers, their shapes do not match, or the
        distance overflows float64.

    Examples
    --------
    >>> from bnmc.gram import distance
    >>> print(distance([[1.0, 0.0], [0.0, 1.0]], [[1.0, 3.0], [4.0, 1.0]]))
    5.0
    """
    first = finite_array("G", G, shape=(..., "n", "m")).astype(np.float64, copy=False)
    second = finite_array("H", H, shape=(..., "n", "m")).astype(np.float64, copy=False)
    _require_same_matrix("H", second.shape, first.shape)
    # Subtract halves, because the difference of two large entries may overflow.
    with np.errstate(over="ignore"):  # raises below, by name
        result: Float64Array = 2 * _frobenius_norm(first / 2 - second / 2)
    require_finite("H", second, result)
    return result


def relative_deviation(G: ArrayLike, H: ArrayLike) -> Float64Array:
    """Deviation ``‖G⁻¹ H − I‖_F`` of H from a regular Gram matrix G.

    The deviation is at least the root of the sum of the squared eigenvalues of ``G⁻¹ H − I``. So
    3/2 of it bounds the total variation distance of N(0, G) and N(0, H) from above (Devroye,
    Mehrabian and Reddad, arXiv 1810.08693). It is not symmetric in G and H.

    Parameters
    ----------
    G, H : (..., n, n) array_like
        Gram matrices. The leading axes broadcast.

    Returns
    -------
    (...) ndarray of float64
        Non-negative.

    Raises
    ------
    SingularGramError
        If a `G` is singular to rounding, ``λ_min <= n ε λ_max``, or indefinite.
    ArgumentError, ArgumentTypeError
        If `G` or `H` is not an array of finite, symmetric matrices, their shapes do not match, or
        the deviation overflows float64.

    Examples
    --------
    >>> from bnmc.gram import relative_deviation
    >>> print(relative_deviation([[2.0, 0.0], [0.0, 4.0]], [[2.0, 0.0], [0.0, 6.0]]))
    0.5
    """
    first, rounding = _symmetric("G", G)
    second, _ = _symmetric("H", H)
    _require_same_matrix("H", second.shape, first.shape)
    require_regular("G", _spectrum(first)[0], rounding)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = _frobenius_norm(np.linalg.solve(first, second) - np.eye(first.shape[-1]))
    if not np.isfinite(deviation).all():
        allowed = "matrices whose deviation from G float64 can hold"
        raise ArgumentError("H", float(np.abs(second).max()), allowed)
    return deviation


def orthogonality_gap(G: ArrayLike) -> Float64Array:
    """Orthogonality gap ``‖G / Tr G − I / n‖_F``.

    The gap is 0 for orthogonal samples of equal norm and ``sqrt(1 − 1/n)`` for collinear samples.
    It does not depend on the scale of G. For any H with Gram matrix G, it is the V(H) of
    Daneshmand, Joudaki and Bach (arXiv 2106.03970), ``‖HᵀH / ‖H‖_F² − I/n‖_F``.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices.

    Returns
    -------
    (...) ndarray of float64
        In [0, sqrt(1 − 1/n)].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices of positive trace.

    Examples
    --------
    >>> from bnmc.gram import orthogonality_gap
    >>> print(orthogonality_gap([[1.0, 1.0], [1.0, 1.0]]).round(6))
    0.707107
    """
    shares = _trace_one(G)
    n = shares.shape[-1]
    return _frobenius_norm(shares - np.eye(n) / n)


def rank_bound(G: ArrayLike) -> Float64Array:
    """Lower bound ``r = (Tr G)² / ‖G‖_F²`` of the rank, for every scale of G.

    This is the ``r(H) = (Tr M)² / ‖M‖_F²``, ``M = H Hᵀ / n``, of Daneshmand et al.
    (arXiv 2003.01652, eq. 4 and Lemma 1), because M and G have the same non-zero eigenvalues up to
    a factor. If the rows of H are normalized (``Tr M = width``), then ``soft_rank >= (1 − τ)² r``.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices.

    Returns
    -------
    (...) ndarray of float64
        In [1, n] for positive semidefinite G, and never above its rank.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices of positive trace.

    Examples
    --------
    >>> from bnmc.gram import rank_bound
    >>> print(rank_bound([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]))
    2.0
    """
    sum_of_squares: Float64Array = np.square(_trace_one(G)).sum(axis=(-2, -1))
    return 1 / sum_of_squares


def soft_rank(G: ArrayLike, tau: float, *, width: int) -> NDArray[np.intp]:
    """Soft rank ``#{i : σ_i(x)² / n >= τ}`` of a representation x, from its Gram matrix.

    Daneshmand et al. (arXiv 2003.01652, section 2) count the singular values σ_i of the width × n
    matrix x, the square roots of ``width · λ_i(G)``. So the condition is
    ``λ_i(G) · width / n >= τ``: an eigenvalue of ``M = x xᵀ / n`` is at least τ. After rounding, an
    exact rank has no meaning, but the soft rank does, because its threshold is explicit.

    The Gram matrices of a run belong to ``σ(x)``, with σ the activation. So their soft rank is that
    of ``σ(x)``, and for linear chains that of x.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices ``xᵀ x / width``.
    tau : float
        Threshold τ > 0.
    width : int
        Number of rows of x, >= 1.

    Returns
    -------
    (...) ndarray of intp
        In 0 … min(n, width), for a threshold above the rounding of the eigenvalues.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices, `tau` is not a positive number, or
        `width` is not a positive integer.

    Examples
    --------
    The first and the third row are equal, and orthogonal to the second. M has the eigenvalues 2, 1
    and 0:

    >>> import numpy as np
    >>> from bnmc.gram import cross_gram, soft_rank
    >>> x = np.array([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
    >>> print(soft_rank(cross_gram(x, x), 0.5, width=3))
    2
    """
    width = integer("width", width, low=1)
    tau = real("tau", tau, above=0)
    spectrum, scale = _spectrum(_symmetric("G", G)[0])
    # Divide the threshold, because multiplying the eigenvalues may overflow.
    with np.errstate(over="ignore"):  # no eigenvalue reaches an infinite threshold
        threshold = tau * (spectrum.shape[-1] / width) / scale
    counts: NDArray[np.intp] = np.count_nonzero(spectrum >= threshold, axis=-1)
    return counts


def eigenvalues(G: ArrayLike) -> Float64Array:
    """Eigenvalues of symmetric matrices, ascending.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices, symmetric to rounding.

    Returns
    -------
    (..., n) ndarray of float64
        The error is of the order of ε times the largest eigenvalue. Zero eigenvalues of a singular
        matrix may be slightly negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices, or an eigenvalue overflows float64.

    Examples
    --------
    >>> from bnmc.gram import eigenvalues
    >>> eigenvalues([[2.0, 1.0], [1.0, 2.0]]).round(12)
    array([1., 3.])
    """
    matrices, _ = _symmetric("G", G)
    spectrum, scale = _spectrum(matrices)
    with np.errstate(over="ignore"):  # raises below, by name
        spectrum *= scale
    require_finite("G", matrices, spectrum)
    return spectrum


def condition(G: ArrayLike) -> Float64Array:
    """Condition number ``λ_max / λ_min``.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices.

    Returns
    -------
    (...) ndarray of float64
        At least 1. If G is singular to rounding, ``λ_min <= n ε λ_max``, or indefinite, the
        quotient has no meaning, and the result is infinite.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices.

    Examples
    --------
    >>> from bnmc.gram import condition
    >>> condition([[[1.0, 0.0], [0.0, 8.0]], [[1.0, 1.0], [1.0, 1.0]]])
    array([ 8., inf])
    """
    matrices, rounding = _symmetric("G", G)
    spectrum, _ = _spectrum(matrices)
    singular = is_singular(spectrum, rounding)
    smallest = np.where(singular, 1, spectrum[..., 0])
    quotients: Float64Array = np.where(singular, np.inf, spectrum[..., -1] / smallest)
    return quotients


def correlation(G: ArrayLike, *, out: Float64Array | None = None) -> Float64Array:
    """Correlations ``G_ij / sqrt(G_ii G_jj)``, the cosines of the angles between samples.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices.
    out : (..., n, n) ndarray of float64, optional
        Array for the result, which the function returns.

    Returns
    -------
    (..., n, n) ndarray of float64
        1 on the diagonal, and in [−1, 1] elsewhere, to rounding.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices with positive diagonals, or `out` is
        not a writable float64 array of their shape.

    Examples
    --------
    >>> from bnmc.gram import correlation
    >>> correlation([[4.0, 1.0], [1.0, 1.0]])
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    matrices, _ = _symmetric("G", G)
    result = _result(out, matrices.shape)
    squared_norms = np.diagonal(matrices, axis1=-2, axis2=-1)
    if (squared_norms <= 0).any():
        raise ArgumentError("G", float(squared_norms.min()), "a positive diagonal")
    norms = np.sqrt(squared_norms)
    products: Float64Array = norms[..., :, None] * norms[..., None, :]
    return np.divide(matrices, products, out=result)


def centre(G: ArrayLike, *, out: Float64Array | None = None) -> Float64Array:
    """Gram matrix ``P G P`` of the centred samples, ``P = I − 11ᵀ/n``.

    Parameters
    ----------
    G : (..., n, n) array_like
        Gram matrices.
    out : (..., n, n) ndarray of float64, optional
        Array for the result, which the function returns.

    Returns
    -------
    (..., n, n) ndarray of float64
        Symmetric. Rows and columns sum to zero, to rounding.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of finite, symmetric matrices, an entry of the result overflows
        float64, or `out` is not a writable float64 array of their shape.

    Examples
    --------
    >>> from bnmc.gram import centre
    >>> centre([[1.0, 0.0], [0.0, 1.0]])
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    matrices, _ = _symmetric("G", G)
    result = _result(out, matrices.shape)
    scale = binary_scale(matrices, (-2, -1))[..., None, None]
    np.divide(matrices, scale, out=result)
    means = result.mean(axis=-1)
    # Add the two means first: their sum is symmetric in every bit.
    removed: Float64Array = means[..., :, None] + means[..., None, :]
    removed -= means.mean(axis=-1)[..., None, None]
    result -= removed
    with np.errstate(over="ignore"):  # raises below, by name
        result *= scale
    require_finite("G", scale, result)
    return result


def validate_gram(G: ArrayLike, name: str = "G") -> Float64Array:
    """Return `G` as float64 if it can be a Gram matrix.

    Parameters
    ----------
    G : (..., n, n) array_like
        Matrices to check.
    name : str, default "G"
        Name of the argument, for the message.

    Returns
    -------
    (..., n, n) ndarray of float64
        Finite, and, to rounding, symmetric and positive semidefinite. The tolerance is 1024
        rounding units of the input, relative to the largest entry or eigenvalue.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `G` is not an array of such matrices.

    Examples
    --------
    >>> from bnmc.gram import validate_gram
    >>> validate_gram([[1.0, 2.0], [2.0, 1.0]])
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentError: G: got -1.0, allowed: no negative eigenvalue
    """
    matrices, rounding = _symmetric(name, G)
    spectrum, scale = _spectrum(matrices)
    negative = spectrum[..., 0] < -SLACK * rounding * np.abs(spectrum[..., -1])
    if negative.any():
        least = float((spectrum * scale)[negative][0, 0])
        raise ArgumentError(name, least, "no negative eigenvalue")
    return matrices


def _representation(name: str, value: ArrayLike) -> Float64Array:
    array = finite_array(name, value, shape=(..., "width", "batch"))
    return array.astype(np.float64, copy=False)


def _result(out: Float64Array | None, shape: tuple[int, ...]) -> Float64Array:
    """Return the array for a result: `out`, or a new array."""
    return np.empty(shape) if out is None else result_array("out", out, shape)


def _product(
    name: str, first: Float64Array, second: Float64Array, out: Float64Array | None
) -> Float64Array:
    leading = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    product = _result(out, (*leading, first.shape[-1], second.shape[-1]))
    with np.errstate(over="ignore", invalid="ignore"):  # raises below, by name
        np.matmul(np.swapaxes(first, -2, -1), second, out=product)
        product /= first.shape[-2]
    if not np.isfinite(product).all():
        raise ArgumentError(
            name, float(np.abs(second).max()), "entries whose products do not overflow float64"
        )
    return product


def _symmetric(name: str, value: ArrayLike) -> tuple[Float64Array, float]:
    """Return symmetric matrices as float64, and the rounding unit of the argument."""
    array = finite_array(name, value, shape=(..., "n", "n"))
    rounding = rounding_unit(array)
    matrices = array.astype(np.float64, copy=False)
    largest = np.abs(matrices).max(axis=(-2, -1))
    # In place: NumPy reuses temporary arrays by itself on some versions of Python only.
    differences = matrices / 2
    differences -= np.swapaxes(matrices, -2, -1) / 2
    half_asymmetry = np.abs(differences, out=differences).max(axis=(-2, -1))
    if (half_asymmetry > SLACK * rounding * (largest / 2)).any():
        difference = 2 * float(half_asymmetry.max())
        raise ArgumentError(name, difference, "symmetric matrices, |G_ij − G_ji| = 0 to rounding")
    return matrices, rounding


def _trace_one(G: ArrayLike) -> Float64Array:
    """Return ``G / Tr G``."""
    matrices, _ = _symmetric("G", G)
    # Divide by the largest entry first, so that the trace can neither overflow nor vanish.
    largest = np.abs(matrices).max(axis=(-2, -1), keepdims=True)
    scaled = matrices / np.where(largest > 0, largest, 1)
    traces = np.trace(scaled, axis1=-2, axis2=-1)[..., None, None]
    if (traces <= 0).any():
        raise ArgumentError("G", float(traces.min()), "matrices of positive trace")
    shares: Float64Array = scaled / traces
    return shares


def _frobenius_norm(matrices: Float64Array) -> Float64Array:
    largest = np.abs(matrices).max(axis=(-2, -1))
    scaled = matrices / np.where(largest > 0, largest, 1)[..., None, None]
    norms: Float64Array = largest * np.sqrt(np.square(scaled).sum(axis=(-2, -1)))
    return norms


def _spectrum(matrices: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return ascending eigenvalues divided by a scale, and the scales, (..., 1)."""
    scale = binary_scale(matrices, (-2, -1))[..., None]
    return np.linalg.eigvalsh(matrices / scale[..., None]).astype(np.float64, copy=False), scale


def _require_broadcast(name: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    try:
        np.broadcast_shapes(shape[:-2], other[:-2])
    except ValueError:
        raise ArgumentError(
            name, shape, f"leading axes that broadcast with those of shape {other}"
        ) from None


def _require_same_matrix(name: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    if shape[-2:] != other[-2:]:
        raise ArgumentError(name, shape, f"matrices of shape {other[-2:]}")
    _require_broadcast(name, shape, other)


make_public(__name__)
