"""Layers of linear chains without normalization, as products of triangular Wishart factors."""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.factor import cholesky
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE, fill_normals
from bnmc._kernels.scalar.cholesky import find_twins
from bnmc._kernels.scalar.codes import LOG_2, STREAM_CHI, STREAM_FACTOR, Draw
from bnmc._kernels.scalar.elementary import larger, smaller
from bnmc._kernels.scalar.normal import chi


@kernel
def factor_layers(
    spec, factors, exponents, log_start, first_chain, first_layer, slots, record, log_scales,
    log_pivots, key0, key1, work,
):  # fmt: skip
    """Take linear chains without normalization through layers, by the factor of a Wishart matrix.

    With G = F^T F, F upper triangular, the next Gram matrix is (T F)^T (T F) gain^2 / width, where
    T is the upper trapezoidal factor of a Wishart matrix (Bartlett): chi variables on the
    diagonal, normals above it.  T F is triangular again, so nothing is ever factored, and the
    cost does not depend on the width.

    Parameters
    ----------
    factors : (chains, columns, columns) float64
        The state, brought up to date: row i of F is factors[i] * 2 ** exponents[i].
    exponents : (chains, columns) float64
        Whole numbers.  Each row has its own, since their ratios under- and overflow with depth.
    log_start : (chains,) float64
        What the factor of layer 0 leaves out: G_0 = exp(log_start) F^T F.
    record : (chains, slots, columns, columns) float64
        Receives G times exp(-log_scale), of trace n.
    log_scales : (chains, slots) float64
    log_pivots : (chains, slots, columns) float64
        Receives log F_ii^2, whose growth rates are twice the Lyapunov exponents; -inf where the
        rank is less.
    """
    columns = factors.shape[1]
    block = work.block
    rank = smaller(spec.width, columns)
    for chain in range(factors.shape[0]):
        factor, exponent = factors[chain], exponents[chain]
        stream = np.uint32(STREAM_FACTOR | np.uint32(first_chain + chain))
        stream_chi = np.uint32(STREAM_CHI | np.uint32(first_chain + chain))
        for step in range(slots.shape[0]):
            layer = first_layer + step
            draw = Draw(layer, stream, key0, key1)
            for i in range(columns):
                # Row i of T F needs rows k >= i of F alone, so it can take the place of row i.
                # The row i of T: a chi variable and the normals of the elements k > i.
                if i % BLOCK == 0:
                    rows = (smaller(BLOCK, columns - i) + GROUP - 1) // GROUP * GROUP
                    fill_normals(block, 0, 0, columns, i, rows, draw)
                row = work.panel[0]
                row[:] = 0.0
                largest = -np.inf
                for k in range(i, columns):
                    if _has_entries(factor[k]):
                        largest = larger(largest, exponent[k])
                if i < rank and largest > -np.inf:
                    for k in range(i, columns):
                        if k == i:
                            entry = chi(spec.width - i, i, layer, stream_chi, key0, key1)
                        else:
                            entry = block[k * STRIDE + i % BLOCK]
                        entry *= 2.0 ** larger(exponent[k] - largest, -1100.0)
                        for j in range(k, columns):
                            row[j] += entry * factor[k, j]
                size = 0.0
                for j in range(columns):
                    size = larger(size, abs(row[j]))
                shift = np.floor(np.log2(size)) if size > 0.0 else 0.0
                for j in range(columns):
                    factor[i, j] = row[j] * 2.0**-shift
                exponent[i] = largest + shift if size > 0.0 else 0.0
            if slots[step] >= 0:
                common = log_of_factors(spec, log_start[chain], layer)
                write_factor(
                    factor, exponent, common, record[chain, slots[step]], log_scales[chain],
                    log_pivots[chain], slots[step],
                )  # fmt: skip


@kernel
def _has_entries(row):
    """Return whether any number of a row is not zero."""
    result = False
    for value in row:
        result = result or value != 0.0
    return result


@kernel
def log_of_factors(spec, log_start, layer):
    """Return the logarithm of what multiplies F^T F: each layer has a factor gain^2 / width."""
    return log_start + layer * (2.0 * np.log(abs(spec.gain)) - np.log(spec.width))


@kernel
def write_factor(factor, exponent, common, gram, log_scales, log_pivots, slot):
    """Write the scaled Gram matrix of a factor, its log-scale and its log-pivots.

    `common` is the logarithm of what multiplies F^T F.
    """
    columns = factor.shape[0]
    largest = -np.inf
    for k in range(columns):
        if _has_entries(factor[k]):
            largest = larger(largest, exponent[k])
    gram[:, :] = 0.0
    for k in range(columns):
        pivot = abs(factor[k, k])
        log_pivots[slot, k] = -np.inf
        if pivot > 0.0:
            log_pivots[slot, k] = common + 2.0 * (np.log(pivot) + exponent[k] * LOG_2)
        if _has_entries(factor[k]):
            scale = 2.0 ** larger(exponent[k] - largest, -1100.0)
            for i in range(k, columns):
                for j in range(k, columns):
                    gram[i, j] += (scale * factor[k, i]) * (scale * factor[k, j])
    trace = 0.0
    for i in range(columns):
        trace += gram[i, i] / columns
    log_scales[slot] = -np.inf
    if trace > 0.0:
        log_scales[slot] = common + 2.0 * largest * LOG_2 + np.log(trace)
        for i in range(columns):
            for j in range(columns):
                gram[i, j] /= trace


@kernel
def triangularise(a, factor):
    """Write the upper triangular R with R^T R = a a^T and a diagonal that is not negative.

    By Householder's reflections, in the order of the samples.

    Parameters
    ----------
    a : (columns, rows) float64
        One sample per row; it is used up.
    factor : (columns, columns) float64
        Receives R.
    """
    columns, rows = a.shape
    factor[:, :] = 0.0
    for k in range(columns):
        if k < rows:
            reflect(a, k)
        for i in range(smaller(k + 1, rows)):
            factor[i, k] = a[k, i]
    for i in range(columns):
        if factor[i, i] < 0.0:
            for j in range(i, columns):
                factor[i, j] = -factor[i, j]


@kernel
def semidefinite_factor(matrix, diagonal, twin, regular, panel, factor):
    """Write the lower triangular factor of a positive semidefinite matrix, which is used up.

    `factor` contains zeros.  The arrays between are work space as `factor.cholesky` takes it.
    """
    for i in range(matrix.shape[0]):
        diagonal[i] = matrix[i, i]
    find_twins(matrix, twin)
    cholesky(matrix, diagonal, twin, 1.0, panel, factor, regular)


@kernel
def reflect(a, k):
    """Reflect all samples so that sample k is zero beyond its entry k."""
    columns, rows = a.shape
    size = 0.0
    for i in range(k, rows):
        size = larger(size, abs(a[k, i]))
    if size == 0.0:
        return
    square = 0.0
    for i in range(k, rows):
        a[k, i] /= size
        square += a[k, i] * a[k, i]
    norm = np.sqrt(square)
    turned = -norm if a[k, k] > 0.0 else norm
    a[k, k] -= turned
    for j in range(k + 1, columns):
        product = 0.0
        for i in range(k, rows):
            product += a[k, i] * a[j, i]
        product /= -turned * a[k, k]
        for i in range(k, rows):
            a[j, i] -= product * a[k, i]
    a[k, k] = size * turned
    for i in range(k + 1, rows):
        a[k, i] = 0.0
