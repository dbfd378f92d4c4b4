"""The CPU kernels of the backward pass of chains with orthogonal weights.

The names are those of `backward`, and u = z L⁻ᵀ are the orthogonal columns of `orthogonal`, of mean
square 1: W a = u Fᵀ.  With B = a F⁻ᵀ / √width, an orthonormal basis of what the layer saw, and
H = u / √width = W B,

    Wᵀ δ = B Hᵀ δ + Y T,    TᵀT = δᵀ (I - H Hᵀ) δ,

where the columns of Y are a uniformly distributed orthonormal frame orthogonal to B, as many as the
rank of the rest (I - H Hᵀ) δ.  They are those of (I - B Bᵀ) Z (Z: normals), made orthonormal: with
C = Bᵀ Z / √width and S = Zᵀ Z / width - CᵀC = L' L'ᵀ,

    Y T = (Z - √width B C) (E L'⁻¹)ᵀ,    E Eᵀ = TᵀT / width.

So the pass is that with Gaussian weights, with Z (E L'⁻¹)ᵀ in place of rows N(0, δᵀδ / width), and
uᵀδ in place of zᵀδ.  A readout has Gaussian weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.backward import (
    add_sums,
    factorise_delta,
    factorise_layer,
    factorise_seen,
    first_pass,
    mix,
    project_noise,
    second_pass,
    solve_layer,
    take_following,
    unpack_cross,
)
from bnmc._kernels.cpu.blocks import (
    add_gram,
    clear_rows,
    copy_matrix,
    multiply_triangular,
    unpack_gram,
)
from bnmc._kernels.cpu.factor import cholesky
from bnmc._kernels.cpu.memory import aligned_zeros, padded
from bnmc._kernels.cpu.numbers import BLOCK, GROUP
from bnmc._kernels.cpu.orthogonal import (
    invert_root,
    limit_rank,
    multiply_lower,
    orthogonal_factor,
)
from bnmc._kernels.scalar.cholesky import find_twins, scale_of
from bnmc._kernels.scalar.codes import (
    INNER,
    NORM_CENTRED,
    NOT_FINITE,
    ORTHOGONAL_PIVOT,
    READOUT,
    RESOLVED_PIVOT,
    UNRESOLVED,
    ZERO_VARIANCE,
    Draw,
)


class Rest(NamedTuple):
    """Matrices of what δ has outside the range of u, float64."""

    root: np.ndarray  # (padded, padded): E
    gram: np.ndarray  # (columns, columns): S, and work space
    inverse: np.ndarray  # (columns, columns): L'⁻¹


def rest(columns: int) -> Rest:
    """Return the buffers of one thread."""
    whole = padded(columns)
    return Rest(
        aligned_zeros((whole, whole), np.float64),
        aligned_zeros((columns, columns), np.float64),
        aligned_zeros((columns, columns), np.float64),
    )


@kernel
def factorise_rest(state, law, centred, solve, rest):
    """Write E, times a power of two, and an identity in the place of the factor of δᵀδ.

    Called after `factorise_seen`.  Returns the power, and the least pivot as a part of the entry of
    δᵀδ.
    """
    columns = law.columns
    rank = limit_rank(law.width, solve.in_basis, solve.basis)
    for i in range(columns):
        for j in range(columns):
            value = state[0, i, j]
            for k in range(columns):
                if solve.in_basis[k]:
                    value -= state[1, k, i] * state[1, k, j]
            solve.covariance[i, j] = value
        solve.diagonal[i] = state[0, i, i]
    scale = scale_of(solve.diagonal)
    if centred:
        for first in range(0, columns, law.batch):
            solve.diagonal[first + law.batch - 1] = np.inf
    find_twins(solve.covariance, solve.twin)
    cholesky(
        solve.covariance, solve.diagonal, solve.twin, scale, solve.panel, rest.root, solve.in_root
    )
    room = law.width - rank
    dropped = limit_rank(room, solve.in_root, rest.root) == room
    least = 1.0
    for k in range(columns):
        is_last = centred and (k + 1) % law.batch == 0
        # If the space is full, the other pivots are zero.
        if not is_last and state[0, k, k] > 0.0 and (solve.in_root[k] or not dropped):
            least = min(least, solve.diagonal[k])
    for i in range(solve.root.shape[0]):
        for j in range(i + 1):
            solve.root[i, j] = 1.0 if i == j and i < columns else 0.0
    return scale, least


@kernel
def sum_noise(law, panel, rows_of, blocks, total):
    """Sum ZᵀZ over all rows, panel by panel."""
    for first_row in range(0, law.width, panel):
        blocks.gram_sums[:] = 0.0
        last_row = min(first_row + panel, law.width)
        for start in range(first_row, last_row, BLOCK):
            count = min(BLOCK, last_row - start)
            rows = (count + GROUP - 1) // GROUP * GROUP
            delta = rows_of.delta[start // BLOCK]
            clear_rows(delta, 0, law.columns, count, rows)
            add_gram(delta, law.columns, rows, blocks.partial, blocks.gram_sums)
        add_sums(blocks.gram_sums, total)


@kernel
def orthogonalise_noise(law, sums, solve, rest):
    """Write E L'⁻¹ to `root`, and C times its transpose to `right`; return the least pivot.

    `right` holds C in the rows of samples with a column of F.
    """
    columns = law.columns
    right = solve.right
    unpack_gram(sums, law.width, rest.gram)
    for i in range(columns):
        for j in range(columns):
            rest.inverse[i, j] = 1.0 if i == j else 0.0
            for k in range(columns):
                if solve.in_basis[k]:
                    rest.gram[i, j] -= right[k, i] * right[k, j]
    least = invert_root(rest.gram, rest.inverse)
    multiply_lower(rest.root, rest.inverse)
    for i in range(columns):
        for j in range(columns - 1, -1, -1):
            value = 0.0
            for k in range(j + 1):
                value += right[i, k] * rest.root[j, k]
            right[i, j] = value
            solve.root[i, j] = rest.root[i, j] if j <= i else 0.0
    return least


@kernel
def multiply_noise(law, solve, rows_of):
    """Multiply the rows Z by `root`."""
    for start in range(0, law.width, BLOCK):
        rows = (min(BLOCK, law.width - start) + GROUP - 1) // GROUP * GROUP
        delta = rows_of.delta[start // BLOCK]
        multiply_triangular(solve.root, law.columns, delta, delta, rows)


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


@kernel
def orthogonal_backward_layers(
    frame, rest, sigma, slope, law, lift, stage, layer, grams, ratios, xs, state, log_scale,
    stream, noise, key0, key1, panel, record, log_scales, forward, solve, rows_of, blocks, totals,
    status,
):  # fmt: skip
    """Take δ of one chain with orthogonal weights down through layers.

    Parameters are `frame` and `rest`, and those of `backward.backward_layers`, where the second
    matrix of a state is uᵀδ / width.
    """
    layers = record.shape[0]
    guarded = blocks.values.itemsize == 4
    of_gram, of_cross = blocks.gram_sums.shape[0], blocks.cross_sums.shape[0]
    is_centred = law.norm == NORM_CENTRED
    factorise_seen(
        grams[layers], is_centred and stage != READOUT, law, solve, solve.basis, solve.in_basis
    )
    for step in range(layers - 1, -1, -1):
        number = layer - (layers - 1 - step)
        is_readout = stage == READOUT
        draw = Draw(number, stream, key0, key1)
        noises = Draw(number, noise, key0, key1)
        unit = factorise_layer(law, grams[step], forward, solve)
        orthogonal_factor(law, panel, draw, forward, frame)
        if is_readout:
            scale, least = factorise_delta(state[0], law, False, solve)
        else:
            centred = is_centred and stage == INNER
            scale, least = factorise_rest(state, law, centred, solve, rest)
        if guarded and least < RESOLVED_PIVOT:
            status[0], status[1] = UNRESOLVED, number
            return
        x = xs[step if law.skip != 0.0 else 0]
        totals[:] = 0.0
        for first_row in range(0, law.width, panel):
            last_row = min(first_row + panel, law.width)
            degenerate = first_pass(
                sigma, law, x, first_row, last_row, draw, noises, forward.factor,
                forward.regular, solve, rows_of, blocks,
            )  # fmt: skip
            if degenerate >= 0:
                status[0], status[1], status[2] = ZERO_VARIANCE, number, degenerate
                return
            add_sums(blocks.cross_sums, totals[0, :of_cross])
        if not is_readout:
            project_noise(totals[0], law, stage, ratios[step], solve)
            sum_noise(law, panel, rows_of, blocks, totals[1, :of_gram])
            least = orthogonalise_noise(law, totals[1], solve, rest)
            if guarded and least < ORTHOGONAL_PIVOT:
                status[0], status[1] = UNRESOLVED, number
                return
            multiply_noise(law, solve, rows_of)
            totals[1] = 0.0
        for i in range(law.columns):
            for j in range(law.columns):
                state[1, i, j] *= scale
        log_scale += (0 if is_readout else lift) - np.log2(scale)
        if is_readout:
            solve_layer(totals[0], law, stage, ratios[step], state[1], solve)
        else:
            mix(law, stage, ratios[step], state[1], solve)
        gain, skip = (1.0, 0.0) if is_readout else (law.gain, law.skip * scale)
        for first_row in range(0, law.width, panel):
            last_row = min(first_row + panel, law.width)
            second_pass(
                sigma, slope, law, gain, skip, unit, first_row, last_row, solve, rows_of, blocks
            )
            add_sums(blocks.gram_sums, totals[1, :of_gram])
            add_sums(blocks.cross_sums, totals[2, :of_cross])
            add_sums(blocks.hidden_sums, totals[3, : blocks.hidden_sums.shape[0]])
        finite = unpack_gram(totals[1], law.width, state[0])
        unpack_cross(totals[2], law, state[1])
        turn_cross(frame.inverse, state[1])
        if not finite:
            status[0], status[1] = NOT_FINITE, number
            return
        copy_matrix(state[0], record[step, 0])
        copy_matrix(state[1], record[step, 1])
        if record.shape[1] == 3:
            unpack_cross(totals[3], law, record[step, 2])
            for i in range(law.columns):
                for j in range(law.columns):
                    record[step, 2, i, j] /= unit
        log_scales[step] = log_scale
        stage = INNER
        take_following(law, solve)
        if law.skip != 0.0:
            for block in range(rows_of.delta.shape[0]):
                for at in range(np.uintp(rows_of.delta.shape[1])):
                    rows_of.above[block, at] = rows_of.delta[block, at]
