"""A chain as arguments of compiled kernels."""

from __future__ import annotations

import math

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import NonFiniteError, ZeroVarianceError


def sigma_of(activation: Activation) -> Sigma:
    """Return the activation as an argument of kernels."""
    known = Sigma.known.get(activation.digest)
    if known is None:
        functions = {name: activation.scalar(name) for name in ("float32", "float64")}
        known = Sigma(activation.digest, functions)
    return known


def law_of(chain: Chain, inputs: int = 1) -> codes.Law:
    """Return the parameters of a chain for kernels, with `inputs` batches side by side.

    If the chain is not row by row (`Chain.is_row_by_row`), the law specifies the part of the
    covariance of the rows of W a that the norm ignores, and `style_of` specifies the rest. The code
    of a norm over the features is then that of no norm. Unless the norm ignores the scale, eps is
    not 0.
    """
    norm = chain.normalization
    columns = chain.batch * inputs
    if chain.is_row_by_row:
        return codes.Law(
            chain.width, chain.batch, columns, norm.code, chain.skip, chain.gain, chain.eps
        )
    code, gain = norm.code, chain.gain
    if chain.order_code == codes.ACTIVATION_FIRST and chain.shows_bias:
        code = codes.NORM_NONE  # rows of W a are centred if those of a are, rows of W a + b are not
    first = chain.order_code == codes.NORM_FIRST
    if first and chain.skip == 0.0 and norm.hides_scale(chain.eps) and not chain.shows_bias:
        gain = 1.0  # squares of large and small numbers leave the range of float32
    return codes.Law(chain.width, chain.batch, columns, code, chain.skip, gain, 1.0)


def style_of(chain: Chain) -> codes.Style:
    """Return the parameters of layers that the law of a chain does not contain."""
    norm = chain.normalization
    return codes.Style(
        chain.order_code,
        norm.code,
        norm.groups if norm.axis == "features" else 0,
        norm.centred,
        chain.eps,
        math.sqrt(chain.bias_variance) if chain.shows_bias else 0.0,
        chain.weight_law.uniform_bias,
    )


def law_of_start(law: codes.Law, order: int = codes.NORM_FIRST) -> codes.Law:
    """Return the law of a layer 0 that is drawn given its covariance, as if that were G.

    Layer 0 uses gain 1.  Its skip connection has no effect, as x is zero before it.  If the
    activation comes before the norm, the input of layer 0 need not be centred.
    """
    if order == codes.ACTIVATION_FIRST:
        return law._replace(gain=1.0, norm=codes.NORM_NONE)
    return law._replace(gain=1.0)


def raise_stopped(status: int, chain: int | None, layer: int, row: int) -> None:
    """Raise the error of a kernel's status.

    Parameters
    ----------
    status : int
        One of the codes of `bnmc._kernels.scalar.codes` but RUNNING.
    chain : int or None
        Number of the chain, for the message.
    layer : int
    row : int
        The row, or the column of a sample.

    Raises
    ------
    ZeroVarianceError, NonFiniteError
    """
    if status == codes.ZERO_VARIANCE:
        raise ZeroVarianceError(chain, layer, row)
    if status == codes.FLAT_SAMPLE:
        raise ZeroVarianceError(chain, layer, None, row)
    raise NonFiniteError(chain, layer, "Gram matrix")
