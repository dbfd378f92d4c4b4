"""Layers of linear chains without normalization, as products of triangular Wishart factors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu.factor import Factored, cholesky
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, STRIDE, fill_normals
from bnmc._kernels.scalar.cholesky import find_twins
from bnmc._kernels.scalar.codes import LOG_2, STREAM_CHI, STREAM_FACTOR, Draw
from bnmc._kernels.scalar.elementary import larger, smaller
from bnmc._kernels.scalar.normal import chi


class Factors(NamedTuple):
    """The state of chains: G = exp(log_start) F^T F, brought up to date."""

    #: float64 (chains, columns, columns): row i of F is digits[i] * 2 ** exponents[i].
    digits: np.ndarray
    #: float64 (chains, columns), whole numbers.  Each row has its own, since their ratios under-
    #: and overflow with depth.
    exponents: np.ndarray
    #: float64 (chains,): what the factor of layer 0 leaves out.
    log_start: np.ndarray


class Record(NamedTuple):
    """What is recorded of the layers of chains, in slots."""

    grams: np.ndarray  # float64 (chains, slots, columns, columns): G exp(-log_scale), of trace n
    log_scales: np.ndarray  # float64 (chains, slots)
    #: float64 (chains, slots, columns): log F_ii^2, whose growth rates are twice the Lyapunov
    #: exponents; -inf where the rank is less.
    log_pivots: np.ndarray


@kernel
def factor_layers(spec, state, first, slots, record, work):
    """Take linear chains without normalization through layers, by the factor of a Wishart matrix.

    With G = F^T F, F upper triangular, the next Gram matrix is (T F)^T (T F) gain^2 / width, where
    T is the upper trapezoidal factor of a Wishart matrix (Bartlett): chi variables on the
    diagonal, normals above it.  T F is triangular again, so nothing is ever factored, and the
    cost does not depend on the width.

    `first` is a `Draw` with the numbers of the first layer and, as its stream, of the first chain.
    """
    columns, block = state.digits.shape[1], work.block
    rank = smaller(spec.width, columns)
    for chain in range(state.digits.shape[0]):
        factor, exponent = state.digits[chain], state.exponents[chain]
        number = np.uint32(first.stream + chain)
        stream_chi = np.uint32(STREAM_CHI | number)
        for step in range(slots.shape[0]):
            layer = first.layer + step
            draw = Draw(layer, np.uint32(STREAM_FACTOR | number), first.key0, first.key1)
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
                            entry = chi(
                                spec.width - i, i, layer, stream_chi, first.key0, first.key1
                            )
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
                common = log_of_factors(spec, state.log_start[chain], layer)
                write_factor(factor, exponent, common, record, chain, slots[step])


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
def write_factor(factor, exponent, common, record, chain, slot):
    """Record a factor; `common` is the logarithm of what multiplies F^T F."""
    gram, log_pivots = record.grams[chain, slot], record.log_pivots[chain, slot]
    columns = factor.shape[0]
    largest = -np.inf
    for k in range(columns):
        if _has_entries(factor[k]):
            largest = larger(largest, exponent[k])
    gram[:, :] = 0.0
    for k in range(columns):
        pivot = abs(factor[k, k])
        log_pivots[k] = -np.inf
        if pivot > 0.0:
            log_pivots[k] = common + 2.0 * (np.log(pivot) + exponent[k] * LOG_2)
        if _has_entries(factor[k]):
            scale = 2.0 ** larger(exponent[k] - largest, -1100.0)
            for i in range(k, columns):
                for j in range(k, columns):
                    gram[i, j] += (scale * factor[k, i]) * (scale * factor[k, j])
    trace = 0.0
    for i in range(columns):
        trace += gram[i, i] / columns
    record.log_scales[chain, slot] = -np.inf
    if trace > 0.0:
        record.log_scales[chain, slot] = common + 2.0 * largest * LOG_2 + np.log(trace)
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

    `factor` contains zeros.  The arrays between are work space as `factor.Factored` has it.
    """
    for i in range(matrix.shape[0]):
        diagonal[i] = matrix[i, i]
    find_twins(matrix, twin)
    cholesky(Factored(matrix, diagonal, twin, panel, factor, regular), 1.0)


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
