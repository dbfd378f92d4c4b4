"""The CPU kernels of the backward pass: gradients through the layers of a chain.

`backward_layers` is the way down; `backward_rows` has its passes over rows, and `backward_matrices`
what it does with matrices of order `columns`.

Let a (width x columns) be the activations of a layer, of which the next layer sees the covariance
K = F Fᵀ, and z (width x columns) the normals that gave its rows, W a = z Fᵀ.  Let δ be the gradient
with respect to these rows.  Given a and z, the weights W are Gaussian, conditioned on W a.  So with
B = a F⁻ᵀ / √width, an orthonormal basis of what the layer saw,

    Wᵀ δ = B (zᵀ δ / √width - Bᵀ Z) + Z,    rows of Z: N(0, δᵀδ / width).

Of δ only δᵀδ and zᵀδ matter: two matrices of order `columns` take the pass from a layer to the
layer below.  The forward rows of a layer are made again, from its counters and the Gram matrix
before it.  A layer takes two passes over its rows, because Bᵀ Z is a sum over all of them:
`first_pass` makes the rows and Z and sums aᵀ Z, `second_pass` makes δ of the layer and its sums.

If W is orthogonal, let u = z L⁻ᵀ be the orthogonal columns of `orthogonal`, of mean square 1:
W a = u Fᵀ.  With H = u / √width = W B,

    Wᵀ δ = B Hᵀ δ + Y T,    TᵀT = δᵀ (I - H Hᵀ) δ,

where the columns of Y are a uniformly distributed orthonormal frame orthogonal to B, as many as the
rank of the rest (I - H Hᵀ) δ.  They are those of (I - B Bᵀ) Z (Z: normals), made orthonormal: with
C = Bᵀ Z / √width and S = Zᵀ Z / width - CᵀC = L' L'ᵀ,

    Y T = (Z - √width B C) (E L'⁻¹)ᵀ,    E Eᵀ = TᵀT / width.

So the pass is that with Gaussian weights, with Z (E L'⁻¹)ᵀ in place of rows N(0, δᵀδ / width), and
uᵀδ in place of zᵀδ.  A readout has Gaussian weights.

A bias that the norm does not subtract is the weight of one more row of a, which is constant, so Z
has one more row, too.  The layers may differ.  F, the law of Z and the factor of Wᵀδ are those of
the map to the layer above, and its width need not be that of a.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.compiling import kernel
from bnmc._kernels.cpu import backward_matrices, backward_rows, memory
from bnmc._kernels.cpu.backward_matrices import (
    Matrices,
    factorise_layer,
    factorise_noise,
    factorise_seen,
    is_orthogonal,
    mix,
    orthogonalise_noise,
    project_noise,
    take_following,
    turn_cross,
    unpack_cross,
)
from bnmc._kernels.cpu.backward_rows import (
    Rows,
    Sums,
    add_bias,
    clear_sums,
    first_pass,
    keep_delta,
    multiply_noise,
    second_pass,
    sum_noise,
    top_pass,
)
from bnmc._kernels.cpu.blocks import copy_matrix, unpack_gram
from bnmc._kernels.cpu.layers import spec_at
from bnmc._kernels.cpu.numbers import Work
from bnmc._kernels.cpu.orthogonal import orthogonal_factor
from bnmc._kernels.cpu.rows import event_of
from bnmc._kernels.scalar.codes import (
    GAUSSIAN,
    NORM_CENTRED,
    NOT_FINITE,
    ORTHOGONAL_PIVOT,
    RESOLVED_PIVOT,
    UNRESOLVED,
    Draw,
    LayerSpec,
)
from bnmc._kernels.scalar.elementary import smaller


class Buffers(NamedTuple):
    """Buffers of one thread."""

    work: Work  # of the forward pass
    matrices: Matrices
    rows: Rows
    sums: Sums


def buffers(
    width: int,
    batch: int,
    inputs: int,
    forward: DTypeLike,
    backward: DTypeLike,
    *,
    skips: bool,
    hidden: bool,
    zeros: memory.Zeros = memory.aligned_zeros,
) -> Buffers:
    """Return the buffers of one thread, for rows of one dtype forward and one dtype backward.

    `width` is that of the widest layer, `skips` if a layer has a skip connection, `hidden` if hᵀδ
    is wanted.
    """
    columns = batch * inputs
    return Buffers(
        memory.work(batch, inputs, forward, zeros=zeros),
        backward_matrices.matrices(columns, backward, zeros),
        backward_rows.rows(width, batch, inputs, forward, backward, skips, zeros),
        backward_rows.sums(columns, hidden, zeros),
    )


class ForwardLayers(NamedTuple):
    """The layers first, …, last of one chain, as the forward pass kept them."""

    #: Of layers first + 1, …; see `layers.records`.
    specs: np.ndarray
    #: (layers + 1, columns, columns) float64
    grams: np.ndarray
    #: (layers, columns) float64, of layers first, …, last - 1; see `project_noise`.
    ratios: np.ndarray
    #: (layers or 1, columns, >= width): the representations of these, with skip connections.
    xs: np.ndarray
    #: The exponent by which gain and skip of `specs` were divided.
    lift: int


class Gradient(NamedTuple):
    """δ of the layer above the first one to reach."""

    #: (2, columns, columns) float64: δᵀδ / width, and zᵀδ / width, or uᵀδ / width under orthogonal
    #: weights; brought up to date.
    products: np.ndarray
    #: δ is in units of 2**log_scale, and of the exponent by which the gain above was divided.
    log_scale: float
    #: Whether δ has the sum zero over each batch.
    centred: bool


class Record(NamedTuple):
    """Receives the results of layers first + 1, …, last."""

    #: (layers, 2 or 3, columns, columns): those of `Gradient`, and hᵀδ / width if it is wanted.
    products: np.ndarray
    log_scales: np.ndarray
    #: (3,) int64: code of an event, its layer and its row.
    status: np.ndarray


def readout_of(spec: LayerSpec) -> LayerSpec:
    """Return the linear map of a Gaussian readout of a layer; δ has products over its width."""
    return spec._replace(
        weights=GAUSSIAN, fan_in=spec.width, gain=1.0, skip=0.0, shared_variance=0.0,
        hides_common=False,
    )  # fmt: skip


@kernel
def begin_backward(haar, specs, given, gram_before, x, draw, buffers, products):
    """Take the direction at the top as δ of the last layer; return whether it is finite.

    Parameters
    ----------
    haar : Haar or None
        None if no weights are orthogonal.
    specs : array of `layers.records`
        That of the last layer comes first.
    given, x, draw
        See `top_pass`.
    gram_before : (columns, columns) float64
        The Gram matrix of the layer before.
    products : (2 or 3, columns, columns) float64
        Receives those of a `Record`.
    """
    work, rows, sums = buffers.work, buffers.rows, buffers.sums
    spec = spec_at(specs, 0)
    unit = factorise_layer(spec, gram_before, work, buffers.matrices)
    if haar is not None and is_orthogonal(spec):
        orthogonal_factor(None, spec, draw, work, haar.frame)
    clear_sums(sums)
    top_pass(spec, given, x, draw, work, rows, sums)
    return _unpack_sums(haar, spec, unit, sums, products)


@kernel
def backward_layers(haar, sigma, slope, layers, above, draw, gradient, record, buffers):
    """Take δ of one chain down through layers.

    Parameters
    ----------
    haar : Haar or None
        None if no weights are orthogonal.
    layers : ForwardLayers
    above : array of `layers.records`
        That of the layer above the first one to reach, or of a readout, comes first.
    draw : Draw
        The address of the normals of the first layer to reach.
    gradient : Gradient
    record : Record
    buffers : Buffers
    """
    work, matrices, rows = buffers.work, buffers.matrices, buffers.rows
    sums, products = buffers.sums, gradient.products
    guarded = rows.delta.itemsize == 4
    steps, log_scale = record.products.shape[0], gradient.log_scale
    centred, above = gradient.centred, spec_at(above, 0)
    factorise_seen(layers.grams[steps], above, work, matrices.basis, matrices.in_basis)
    for step in range(steps - 1, -1, -1):
        spec = spec_at(layers.specs, step)
        address = Draw(draw.layer - (steps - 1 - step), draw.stream, draw.key0, draw.key1)
        unit = factorise_layer(spec, layers.grams[step], work, matrices)
        if haar is not None and is_orthogonal(spec):
            orthogonal_factor(None, spec, address, work, haar.frame)
        # The rows of the map above as a multiple of the weights of a row.
        ratio = above.width / above.fan_in
        scale, least = factorise_noise(haar, spec, above, ratio, centred, products, work, matrices)
        if guarded and least < RESOLVED_PIVOT:
            _stop(record, UNRESOLVED, address, -1)
            return
        clear_sums(sums)
        x = layers.xs[smaller(step, layers.xs.shape[0] - 1)]
        degenerate = first_pass(sigma, spec, x, address, work, matrices, rows, sums)
        if degenerate >= 0:
            _stop(record, event_of(degenerate), address, degenerate)
            return
        if above.shared_variance != 0.0:
            add_bias(spec, above.shared_variance, address, matrices, rows, sums)
        ratios = layers.ratios[step]
        project_noise(sums.cross[1], spec, above.hides_common, ratios, work, matrices)
        if haar is not None and is_orthogonal(above):
            least = _orthogonalise(haar, spec, matrices, rows, sums)
            if guarded and least < ORTHOGONAL_PIVOT:
                _stop(record, UNRESOLVED, address, -1)
                return
        for i in range(spec.columns):
            for j in range(spec.columns):
                products[1, i, j] *= scale * ratio
        log_scale -= np.log2(scale)
        mix(spec, above.hides_common, ratios, products[1], work, matrices)
        clear_sums(sums)
        gain, skip = above.gain, above.skip * scale
        second_pass(sigma, slope, spec, gain, skip, unit, matrices, rows, sums)
        finite = _unpack_sums(haar, spec, unit, sums, record.products[step])
        if not finite:
            _stop(record, NOT_FINITE, address, -1)
            return
        copy_matrix(record.products[step, 0], products[0])
        copy_matrix(record.products[step, 1], products[1])
        record.log_scales[step] = log_scale
        log_scale += layers.lift
        take_following(spec, matrices)
        if spec.skip != 0.0:
            keep_delta(rows)
        centred = spec.norm == NORM_CENTRED
        above = spec


@kernel
def _stop(record, code, address, row):
    """Note an event."""
    record.status[0], record.status[1], record.status[2] = code, address.layer, row


@kernel
def _orthogonalise(haar, spec, matrices, rows, sums):
    """Replace Z by Z (E L'⁻¹)ᵀ, after `project_noise`; return the least pivot."""
    sum_noise(spec, rows, sums)
    least = orthogonalise_noise(sums.gram[1], spec, matrices, haar)
    multiply_noise(spec, matrices.root, rows)
    return least


@kernel
def _unpack_sums(haar, spec, unit, sums, products):
    """Write δᵀδ, zᵀδ or uᵀδ, and hᵀδ if it is wanted, over the width; return whether finite."""
    finite = unpack_gram(sums.gram[1], spec.width, products[0])
    unpack_cross(sums.cross[1], spec, products[1])
    if haar is not None and is_orthogonal(spec):
        turn_cross(haar.frame.inverse, products[1])
    if sums.hidden.shape[1] > 0:
        unpack_cross(sums.hidden[1], spec, products[2])
        for i in range(spec.columns):
            for j in range(spec.columns):
                products[2, i, j] /= unit
    return finite
