"""`jacobian_law`: singular values of Jacobians of random networks of infinite width."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import chi2, qmc

from bnmc._support.arguments import Float64Array, real
from bnmc.chain.activations import Activation, require_derivative, slope_at
from bnmc.chain.chain import Chain, Network, as_network, layer_at, require_no_blocks
from bnmc.chain.layers import Layer
from bnmc.chain.needs import FULLY_CONNECTED, NO_SKIP, require
from bnmc.errors import ArgumentError
from bnmc.mean_field.field import MeanField
from bnmc.mean_field.pairwise_layer import PairwiseLayer
from bnmc.random_matrix.product_law import Factor, ProductLaw

#: Quantiles, none of them 0, at which an expectation over a normal variable is taken.
_QUANTILES = 20_000

#: Eigenvalues that stand for a law of squared slopes; and, under a norm over the batch, of the
#: matrices of a row and of its variance.
_VALUES, _OF_ROW, _OF_VARIANCE = 60, 8, 10

#: Points on the sphere of normalized rows, at most, and about this many operations.
_POINTS, _OPERATIONS = 1 << 13, 1 << 26


def jacobian_law(
    chain: Chain | Network, depth: int | None = None, *, mean_square: float | None = None
) -> ProductLaw:
    r"""Return the law of squared singular values of a Jacobian at infinite width.

    The Jacobian is that of `jacobian` for networks without skip connections,

    .. math:: J = D_L W_L \cdots D_1 W_1,

    where D_l is the derivative of norm and activation of layer l.  At infinite width the matrices
    are asymptotically free, and the law of :math:`D^T D` follows from the mean field.

    Parameters
    ----------
    chain : Chain or Network
        Without skip connection and convolution.  A norm over the batch needs eps = 0, the order
        "norm-activation" and a fixed point of the mean field that hides no direction of the batch
        from the others: every activation under norm "batch", odd ones under "batch-uncentred".
    depth : int, optional
        Number of layers of a chain, >= 1.
    mean_square : float, optional
        Mean of the squared activations a_0 of a sample, > 0; for norms over the features and for
        none.  Default: that of the start "gaussian".  Under a norm over the batch the start is
        "gaussian".

    Returns
    -------
    ProductLaw

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the law is not known, or an argument is not allowed.

    Notes
    -----
    Without a norm over the batch, D_l is diagonal.  With q_l the variance of h_l, its squares are
    σ′(√q_l z)² for z ~ N(0, 1), over the square of the divisor of the norm.  Derivatives of the
    norm itself have a low rank, which the limit does not contain.

    Under a norm over the batch, D_l has a block for each row: with φ the normalized row, uniform
    on a sphere, m its dimension, :math:`S = \mathrm{diag}(σ'(φ))` and P the projector of
    the norm of the next layer, the block of a layer that is not the last is

    .. math:: D^T D = \frac{n}{g^2 μ χ^2_m}\, Q S P S Q, \qquad Q = P - φ φ^T / n,

    with g the gain, and μ the eigenvalue of the previous Gram matrix on the range of P.  The block
    of the last layer, which no norm follows, is the same with :math:`Q S^2 Q`.  The permutations of
    the samples act irreducibly on the range of P.  So the limit depends only on the law of the
    eigenvalues of a random block, as if these were numbers in free factors.  The mean of these
    eigenvalues, times g², is the backward rate (`bnmc.mean_field.FixedPoint`).  If m <= 4, the
    second moment of the law is infinite.  For every m the eigenvalues have no upper bound: if a row
    has a small variance over the batch, its normalization has large derivatives.  The mean over φ
    uses up to 8192 quasi-random points; its relative error is about 1e-3.

    Examples
    --------
    >>> import bnmc
    >>> from bnmc.gradients import jacobian_law
    >>> law = jacobian_law(bnmc.Chain(100, 1, "relu", norm="none", gain=2**0.5), 10)
    >>> print(f"{law.mean:.6f} {law.dispersion:.6f} {law.largest:.4f}")
    1.000000 20.000000 54.4109
    >>> two, three = (jacobian_law(bnmc.Chain(100, 10, "relu"), depth) for depth in (2, 3))
    >>> print(f"{three.mean / two.mean:.2f}")  # the backward rate
    1.70
    """
    network = as_network(chain, depth, low=1)
    require_no_blocks(network, "bnmc.gradients.jacobian simulates them")
    for of_layer in network.chains:
        require(of_layer, (FULLY_CONNECTED, NO_SKIP), "bnmc.gradients.jacobian simulates it")
        of_layer.activation.check()
        require_derivative(of_layer.activation)
    if mean_square is not None:
        mean_square = real("mean_square", mean_square, above=0.0)
    numbers = range(1, network.depth + 1)
    if any(layer_at(network, number).rows.norm.axis == "batch" for number in numbers):
        return _over_batches(network, mean_square)
    return _over_samples(network, mean_square)


# --- samples that do not mix


def activated(layer: Layer, variance: float) -> tuple[float, float, float]:
    """Return the mean of a², the divisor of the norm and the variance of the argument of σ.

    `variance` is that of the rows h.
    """
    pairs = replace(PairwiseLayer.of(layer), weight_variance=1.0, bias_variance=0.0, skip=0.0)
    level = pairs.levels(np.array([variance]))
    return float(level.following[0]), float(level.scale[0]), float(pairs.argument(variance))


def _over_samples(network: Network, mean_square: float | None) -> ProductLaw:
    mean = activated(layer_at(network, 0), 1.0)[0] if mean_square is None else mean_square
    factors: list[Factor] = []
    for number in range(1, network.depth + 1):
        linear = layer_at(network, number).linear
        variance = linear.gain * linear.gain * mean + linear.bias_variance
        mean, divisor, of_argument = activated(layer_at(network, number), variance)
        law = _slopes(layer_at(network, number).rows.activation, of_argument)
        columns = layer_at(network, number - 1).linear.width
        square = divisor * divisor
        factors.append(
            Factor(
                columns,
                linear.width,
                linear.gain * linear.gain / square,
                law.values,
                is_orthogonal=linear.law.is_orthogonal,
                moments=law.moments,
            )
        )
        if len(factors) > 1 and _agree(factors[-1], factors[-2]):
            factors[-1] = factors[-2]
    return ProductLaw(factors)


def _agree(factor: Factor, other: Factor) -> bool:
    """Whether two factors are equal up to rounding, as at a fixed point of the variance."""
    same_shape = (factor.columns, factor.rows, factor.is_orthogonal) == (
        other.columns, other.rows, other.is_orthogonal
    )  # fmt: skip
    if not same_shape or factor.values.shape != other.values.shape:
        return False
    return np.allclose(
        [factor.variance, *factor.values], [other.variance, *other.values], rtol=1e-9, atol=0.0
    )


class _Law(NamedTuple):
    """Eigenvalues that stand for a law, and its first two moments."""

    values: Float64Array
    moments: tuple[float, float]


@lru_cache(maxsize=1024)
def _slopes(activation: Activation, variance: float) -> _Law:
    """Return the law of σ′(z)² for z ~ N(0, variance)."""
    z = np.sqrt(variance) * ndtri((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return _law(slope_at(activation, z) ** 2, _VALUES)


def _law(values: Float64Array, count: int) -> _Law:
    """Return means of equal parts of sorted values; or the values, if few of them differ."""
    moments = float(values.mean()), float((values**2).mean())
    if len(np.unique(values)) <= 4:
        return _Law(values, moments)
    parts = np.array_split(np.sort(values, axis=None), count)
    return _Law(np.array([part.mean() for part in parts]), moments)


# --- batches


def _over_batches(network: Network, mean_square: float | None) -> ProductLaw:
    if mean_square is not None:
        raise ArgumentError("mean_square", mean_square, "None under a norm over the batch")
    batch, depth = network.batch, network.depth
    mixing = layer_at(network, 1).rows.norm
    dimensions = mixing.dimensions(batch)
    factors: list[Factor] = []
    for number in range(1, depth + 1):
        layer, before = layer_at(network, number), layer_at(network, number - 1)
        for option, value, holds, allowed in (
            ("norm", layer.rows.norm.name, layer.rows.norm == mixing, "one norm in all layers"),
            ("order", layer.rows.order, layer.is_row_by_row, '"norm-activation"'),
            ("eps", layer.rows.eps, layer.rows.eps == 0.0, "0; chain.idealized() has eps 0"),
            ("batch", batch, dimensions >= 3, "4 or more; 3 under norm 'batch-uncentred'"),
        ):
            if not holds:
                raise ArgumentError(option, value, allowed, "the limit law is not known")
        spread = _variance_of(network, number - 1)
        law = _of_rows(layer.rows.activation, batch, mixing.centred, number < depth)
        scale = batch / (spread * layer.linear.gain**2)
        chances = (np.arange(_OF_VARIANCE) + 0.5) / _OF_VARIANCE
        values = np.multiply.outer(law.values, scale / chi2.ppf(chances, dimensions))
        mean, square = law.moments
        of_chi = 1.0 / (dimensions - 2)
        of_chi_square = of_chi / (dimensions - 4) if dimensions > 4 else np.inf
        factors.append(
            Factor(
                before.linear.width * dimensions,
                layer.linear.width * dimensions,
                layer.linear.gain**2,
                values.reshape(-1),
                is_orthogonal=layer.linear.law.is_orthogonal,
                moments=(scale * of_chi * mean, scale**2 * of_chi_square * square),
                is_bounded=False,
            )
        )
        same = len(factors) > 1 and np.array_equal(factors[-1].values, factors[-2].values)
        if same and factors[-1].rows == factors[-2].rows == factors[-1].columns:
            factors[-1] = factors[-2]
    return ProductLaw(factors, layer_at(network, 0).linear.width * batch)


def _variance_of(network: Network, number: int) -> float:
    """Return the eigenvalue of the Gram matrix of a layer on what the next norm sees."""
    rows = layer_at(network, number).rows
    centred = layer_at(network, number + 1).rows.norm.centred
    if rows.norm.is_identity and number == 0:
        a = rows.activation(ndtri((np.arange(_QUANTILES) + 0.5) / _QUANTILES))
        if not centred and abs(a.mean()) > 1e-6 * a.std():
            raise ArgumentError("activation", rows.activation.name, "an odd function in layer 0")
        return float(a.var())
    chains, depths = zip(*network.stages, strict=True)
    chain = next(
        each for each, last in zip(chains, accumulate(depths), strict=True) if number <= last
    )
    point = MeanField(chain).fixed_point()
    if not centred and abs(point.c) > 1e-9:
        allowed = "an odd function under norm 'batch-uncentred'"
        raise ArgumentError("activation", rows.activation.name, allowed)
    return point.b * (1.0 - point.c)


@lru_cache(maxsize=64)
def _of_rows(activation: Activation, batch: int, centred: bool, is_inner: bool) -> _Law:
    """Return the law of the eigenvalues of Q S P S Q, or of Q S² Q for the last layer."""
    basis = np.eye(batch)
    if centred:
        # Columns orthogonal to (1, …, 1).
        basis = np.linalg.qr(np.eye(batch) - 1.0 / batch)[0][:, : batch - 1]
    dimensions = basis.shape[1]
    most = max(_OPERATIONS // dimensions**3, 64)
    points = 1 << int(np.log2(min(_POINTS, most)))
    normals = ndtri(qmc.Sobol(dimensions, rng=np.random.default_rng(0)).random(points) + 2.0**-33)
    units = normals / np.linalg.norm(normals, axis=1)[:, None]
    slopes = slope_at(activation, np.sqrt(batch) * units @ basis.T)
    if is_inner:
        inner = np.einsum("ij,pi,ik->pjk", basis, slopes, basis)
        inner = inner @ inner
    else:
        inner = np.einsum("ij,pi,ik->pjk", basis, slopes**2, basis)
    across = np.eye(dimensions) - units[:, :, None] * units[:, None, :]
    values = np.linalg.eigvalsh(across @ inner @ across)
    values[:, 0] = 0.0  # along φ
    return _law(np.maximum(values, 0.0).reshape(-1), _OF_ROW)
