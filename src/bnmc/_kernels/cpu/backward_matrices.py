"""Matrices of order `columns` of a backward pass on the CPU: factors, and systems with them.

`backward` has the formulas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.compiling import inlined, kernel
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.blocks import copy_matrix, unpack_gram
from bnmc._kernels.cpu.factor import Factored, cholesky
from bnmc._kernels.cpu.memory import Zeros, aligned_zeros, padded
from bnmc._kernels.cpu.orthogonal import Frame, invert_root, limit_rank, multiply_lower
from bnmc._kernels.cpu.orthogonal import frame as frame_of
from bnmc._kernels.cpu.rows import prepare_factor
from bnmc._kernels.scalar.cholesky import find_twins, scale_of
from bnmc._kernels.scalar.codes import GIVEN
from bnmc._kernels.scalar.elementary import smaller

#: Numbers of a strip of a row of a right-hand side.
_STRIP = vectors.STRIP_BYTES // 8


class Matrices(NamedTuple):
    """Factors of one thread, and right-hand sides of systems with them."""

    basis: np.ndarray  # float64 (padded, padded): the factor F of what the layer above saw
    in_basis: np.ndarray  # bool (columns,): columns of F that are not zero
    following: np.ndarray  # the same of what the layer saw, which is next
    in_following: np.ndarray
    root: np.ndarray  # (padded, padded), dtype of the backward pass: the factor of δᵀδ / width
    in_root: np.ndarray  # bool
    mixing: np.ndarray  # (padded, padded), dtype of the backward pass
    right: np.ndarray  # float64 (padded, whole strips): the right-hand side of systems with F


class Haar(NamedTuple):
    """Buffers of one thread for orthogonal weights; float64, except in `frame`."""

    frame: Frame
    root: np.ndarray  # (padded, padded): E
    gram: np.ndarray  # (columns, columns): S, and work space
    inverse: np.ndarray  # (columns, columns): L'⁻¹


def matrices(columns: int, dtype: DTypeLike, zeros: Zeros = aligned_zeros) -> Matrices:
    """Return the matrices of a backward pass of a dtype."""
    whole = padded(columns)
    return Matrices(
        zeros((whole, whole), np.float64),
        zeros((columns,), np.bool_),
        zeros((whole, whole), np.float64),
        zeros((columns,), np.bool_),
        zeros((whole, whole), dtype),
        zeros((columns,), np.bool_),
        zeros((whole, whole), dtype),
        zeros((whole, -(-columns // _STRIP) * _STRIP), np.float64),
    )


def haar(columns: int, dtype: DTypeLike, zeros: Zeros = aligned_zeros) -> Haar:
    """Return the buffers of one thread for orthogonal weights, for rows of a dtype."""
    whole = padded(columns)
    return Haar(
        frame_of(columns, dtype, zeros=zeros),
        zeros((whole, whole), np.float64),
        zeros((columns, columns), np.float64),
        zeros((columns, columns), np.float64),
    )


@inlined
def is_orthogonal(spec):
    """Return whether the weights that lead to a layer are orthogonal: no others are given."""
    return spec.weights == GIVEN


@kernel
def factorise_seen(gram, spec, work, basis, regular):
    """Write the factor of the covariance that a layer saw, with scale 1; return the scale of rows.

    Parameters
    ----------
    gram : (columns, columns) float64
        The Gram matrix of the layer before.
    basis, regular : ndarray
        Receive the factor, and which of its columns are not zero.
    """
    scale = prepare_factor(gram, spec, spec.hides_common, work)
    factored = Factored(work.covariance, work.diagonal, work.twin, work.panel, basis, regular)
    cholesky(factored, 1.0)
    return scale


@kernel
def factorise_layer(spec, gram_before, work, matrices):
    """Write the factor of what a layer saw, as it is and as its rows were drawn.

    The first one goes to `following`, the other one, as by `rows.factorise`, to `work`.  Returns
    the unit of rows: the scale with which they were drawn, as a multiple of the gain.
    """
    following, in_following = matrices.following, matrices.in_following
    scale = factorise_seen(gram_before, spec, work, following, in_following)
    for i in range(spec.columns):
        work.regular[i] = in_following[i]
        for k in range(np.uintp(i + 1)):
            work.factor[i, k] = scale * following[i, k]
    return scale / spec.gain


@kernel
def take_following(spec, matrices):
    """Move the factor of what the layer saw to that of the layer above."""
    copy_matrix(matrices.following, matrices.basis)
    for i in range(spec.columns):
        matrices.in_basis[i] = matrices.in_following[i]


@kernel
def factorise_noise(haar, spec, above, ratio, centred, products, work, matrices):
    """Prepare the law of Z: return a power of two, and the least pivot of what is factorised.

    Parameters
    ----------
    above : LayerSpec
        Of the layer above.
    ratio : float
        The rows of its map as a multiple of the weights of a row.
    centred, products
        See `backward.Gradient`.
    """
    if haar is not None and is_orthogonal(above):
        return _factorise_rest(products, spec, centred, work, matrices, haar)
    return _factorise_delta(products[0], spec, ratio, centred, work, matrices)


@kernel
def _factorise_delta(gram, spec, ratio, centred, work, matrices):
    """Write the factor of δᵀδ / (weights of a row), times a power of two.

    Returns the power, and the least pivot as a part of its diagonal entry.
    """
    for i in range(spec.columns):
        for j in range(spec.columns):
            work.covariance[i, j] = ratio * gram[i, j]
        work.diagonal[i] = ratio * gram[i, i]
    scale = _factorise_root(spec, centred, work, matrices.root, matrices.in_root)
    return scale, _least_pivot(gram, spec, centred, False, work, matrices)


@kernel
def _factorise_rest(products, spec, centred, work, matrices, haar):
    """Write E, times a power of two, and an identity in the place of the factor of δᵀδ.

    `products` are δᵀδ / width and uᵀδ / width.  Called after `factorise_seen`.  Returns the power,
    and the least pivot as a part of the entry of δᵀδ.
    """
    columns = spec.columns
    rank = limit_rank(spec.width, matrices.in_basis, matrices.basis)
    gram, cross = products[0], products[1]
    for i in range(columns):
        for j in range(columns):
            value = gram[i, j]
            for k in range(columns):
                if matrices.in_basis[k]:
                    value -= cross[k, i] * cross[k, j]
            work.covariance[i, j] = value
        work.diagonal[i] = gram[i, i]
    scale = _factorise_root(spec, centred, work, haar.root, matrices.in_root)
    space = spec.width - rank
    is_full = limit_rank(space, matrices.in_root, haar.root) == space
    root = matrices.root
    for i in range(root.shape[0]):
        for j in range(i + 1):
            root[i, j] = 1.0 if i == j and i < columns else 0.0
    return scale, _least_pivot(gram, spec, centred, is_full, work, matrices)


@kernel
def _factorise_root(spec, centred, work, root, in_root):
    """Write the factor of a covariance of rows of δ, times a power of two, and return that."""
    scale = scale_of(work.diagonal)
    if centred:
        for first in range(0, spec.columns, spec.batch):
            # The others determine the last sample of a batch, so its pivot is zero.
            work.diagonal[first + spec.batch - 1] = np.inf
    find_twins(work.covariance, work.twin)
    factored = Factored(work.covariance, work.diagonal, work.twin, work.panel, root, in_root)
    cholesky(factored, scale)
    return scale


@kernel
def _least_pivot(gram, spec, centred, is_full, work, matrices):
    """Return the least pivot of those of `_factorise_root` that need resolution.

    Samples without a gradient need none.  Twins have the pivot 0, because sums of float32 numbers
    do not tell nearly equal gradients from equal ones.  If the space of rows is full (`is_full`),
    the other pivots are zero.
    """
    least = 1.0
    for k in range(spec.columns):
        is_last = centred and (k + 1) % spec.batch == 0
        if not is_last and gram[k, k] > 0.0 and (matrices.in_root[k] or not is_full):
            least = smaller(least, work.diagonal[k])
    return least


@kernel
def project_noise(cross, spec, centred, ratio, work, matrices):
    """Write F⁻¹ P aᵀZ / width to `right`, in the rows of samples with a column of F.

    P centres if the layer above does, and F⁻¹ is the inverse on the samples with a column of F.

    Parameters
    ----------
    cross : (>= padded * padded,) float64
        aᵀ Z, as `add_cross` sums it.
    centred : bool
        Whether the layer above sees only differences within each batch.
    ratio : (columns,) float64
        The units of the activations, in those of `basis`.
    """
    columns, basis, right = spec.columns, matrices.basis, matrices.right
    unpack_cross(cross, spec, right)
    for i in range(columns):
        _scale_row(right, i, ratio[i])
    if centred:
        _subtract_means(right, columns, spec.batch, work.diagonal)
    # A sample without a column of F plays no part: the place of that column has zeros.
    for first in range(0, columns, 4):
        _subtract_from_four(vectors.load_column, basis, right, first, 0, first)
        for i in range(first, smaller(first + 4, columns)):
            if matrices.in_basis[i]:
                for k in range(first, i):
                    _subtract_row(right, i, basis[i, k], k)
                _scale_row(right, i, 1.0 / basis[i, i])


@kernel
def mix(spec, centred, ratio, cross, work, matrices):
    """Write to `mixing` the matrix M for which Wᵀδ = M a + Z, as columns.

    M is (P F⁻ᵀ (zᵀδ / width - F⁻¹ P aᵀZ / width))ᵀ, with `cross` zᵀδ / width of the layer above.
    The other parameters are those of `project_noise`, whose result is in `right`.
    """
    columns, basis, right = spec.columns, matrices.basis, matrices.right
    for i in range(columns):
        row, above, is_in = right[i], cross[i], matrices.in_basis[i]
        for j in range(np.uintp(columns)):
            row[j] = above[j] - row[j] if is_in else 0.0
    # F⁻ᵀ times that.
    for first in range((columns - 1) // 4 * 4, -1, -4):
        last = smaller(first + 4, columns)
        _subtract_from_four(_row_of_four, basis, right, first, last, columns)
        for i in range(last - 1, first - 1, -1):
            if matrices.in_basis[i]:
                for k in range(i + 1, last):
                    _subtract_row(right, i, basis[k, i], k)
                _scale_row(right, i, 1.0 / basis[i, i])
    if centred:
        _subtract_means(right, columns, spec.batch, work.diagonal)
    for i in range(columns):
        for j in range(columns):
            matrices.mixing[j, i] = ratio[i] * right[i, j]


@inlined
def _row_of_four(matrix, i, k):
    """Return the entries (k, i) … (k, i + 3) of a matrix: `load_column` of its transpose."""
    return matrix[k, i], matrix[k, i + 1], matrix[k, i + 2], matrix[k, i + 3]


@inlined
def _subtract_from_four(four, factor, matrix, i, first, last):
    """Subtract the rows `first`, …, `last` - 1 of a matrix from four rows, from row i on.

    Their weights are four(factor, i, k), with the number k of a row.
    """
    values, columns = vectors.flat(matrix), matrix.shape[1]
    for at in range(0, columns, _STRIP):
        sums = vectors.load_strips(values, i * columns + at, columns)
        for k in range(first, last):
            w0, w1, w2, w3 = four(factor, i, k)
            lanes = vectors.load_strip(values, k * columns + at)
            sums = vectors.add_scaled((-w0, -w1, -w2, -w3), lanes, sums)
        vectors.store_strips(values, i * columns + at, columns, sums)


@kernel
def _subtract_row(matrix, i, weight, k):
    """Subtract row k of a matrix from row i, with a weight."""
    row, other = matrix[i], matrix[k]
    for j in range(np.uintp(row.shape[0])):
        row[j] -= weight * other[j]


@kernel
def _scale_row(matrix, i, factor):
    """Multiply row i of a matrix by a number."""
    row = matrix[i]
    for j in range(np.uintp(row.shape[0])):
        row[j] *= factor


@kernel
def _subtract_means(matrix, columns, batch, means):
    """Subtract from each entry the mean over the rows of its batch; `means` is work space."""
    for first in range(0, columns, batch):
        means[:] = 0.0
        for i in range(first, first + batch):
            row = matrix[i]
            for j in range(np.uintp(columns)):
                means[j] += row[j]
        for j in range(np.uintp(columns)):
            means[j] /= batch
        for i in range(first, first + batch):
            row = matrix[i]
            for j in range(np.uintp(columns)):
                row[j] -= means[j]


@kernel
def unpack_cross(sums, spec, out):
    """Write the matrix of `add_cross`, divided by the width."""
    order = (spec.columns + 3) // 4 * 4
    for i in range(spec.columns):
        row, of_row = out[i], sums[i * order : i * order + spec.columns]
        for j in range(np.uintp(spec.columns)):
            row[j] = of_row[j] / spec.width


@kernel
def orthogonalise_noise(sums, spec, matrices, haar):
    """Write E L'⁻¹ to `root`, and C times its transpose to `right`; return the least pivot.

    `sums` are those of ZᵀZ; `right` holds C in the rows of samples with a column of F.
    """
    columns, right, root = spec.columns, matrices.right, matrices.root
    unpack_gram(sums, spec.width, haar.gram)
    for i in range(columns):
        for j in range(columns):
            haar.inverse[i, j] = 1.0 if i == j else 0.0
            for k in range(columns):
                if matrices.in_basis[k]:
                    haar.gram[i, j] -= right[k, i] * right[k, j]
    least = invert_root(haar.gram, haar.inverse)
    multiply_lower(haar.root, haar.inverse)
    for i in range(columns):
        for j in range(columns - 1, -1, -1):
            value = 0.0
            for k in range(j + 1):
                value += right[i, k] * haar.root[j, k]
            right[i, j] = value
            root[i, j] = haar.root[i, j] if j <= i else 0.0
    return least


@kernel
def turn_cross(inverse, cross):
    """Replace zᵀδ by uᵀδ = L⁻¹ zᵀδ."""
    order = inverse.shape[0]
    for i in range(order - 1, -1, -1):
        for j in range(order):
            value = 0.0
            for k in range(i + 1):
                value += inverse[i, k] * cross[k, j]
            cross[i, j] = value
