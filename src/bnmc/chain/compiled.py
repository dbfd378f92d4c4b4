"""A chain as arguments of compiled kernels."""

from __future__ import annotations

import math

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.cpu import memory
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import NonFiniteError, ZeroVarianceError


def sigma_of(activation: Activation) -> Sigma:
    """Return the activation as an argument of kernels."""
    sigma = Sigma.known.get(activation.digest)
    if sigma is None:
        functions = {name: activation.scalar(name) for name in ("float32", "float64")}
        sigma = Sigma(activation.digest, functions)
    return sigma


def spec_of(chain: Chain, inputs: int = 1) -> codes.LayerSpec:
    """Return what kernels know of a layer of a chain, with `inputs` batches side by side."""
    norm, order = chain.normalization, chain.order_code
    hides_scale, gain = norm.hides_scale(chain.eps) and chain.skip == 0.0, chain.gain
    if hides_scale and not norm.acts_on_rows and order == codes.NORM_FIRST and not chain.shows_bias:
        gain = 1.0  # squares of large and small numbers leave the range of float32
    return codes.LayerSpec(
        chain.width,
        chain.batch,
        chain.batch * inputs,
        chain.fan_in,
        memory.panel_rows(chain.width, chain.batch * inputs),
        chain.weight_law.code,
        gain,
        chain.skip,
        math.sqrt(chain.bias_variance) if chain.shows_bias else 0.0,
        chain.weight_law.uniform_bias,
        chain.bias_variance / chain.gain**2 if chain.shows_bias else 0.0,
        order,
        norm.code,
        0 if norm.acts_on_rows else norm.groups,
        norm.centred,
        chain.eps,
        # After an activation, rows of W a are centred if those of a are, but not rows of W a + b.
        norm.hides_common_part and not (order == codes.ACTIVATION_FIRST and chain.shows_bias),
        hides_scale and chain.is_row_by_row,
    )


def spec_of_start(spec: codes.LayerSpec) -> codes.LayerSpec:
    """Return the spec of a layer 0 that is drawn given its covariance, as if that were G.

    Layer 0 uses gain 1, and has neither a skip connection nor a bias.  If the activation comes
    before the norm, the input of layer 0 need not be centred.
    """
    hides_common = spec.hides_common and spec.order != codes.ACTIVATION_FIRST
    return spec._replace(
        gain=1.0, skip=0.0, bias=0.0, shared_variance=0.0, hides_common=hides_common
    )


def norm_of_factor(spec: codes.LayerSpec) -> int:
    """Return the code of the norm for which kernels of a GPU factorise covariances."""
    if spec.hides_common:
        return codes.NORM_CENTRED
    return codes.NORM_NONE if spec.norm == codes.NORM_CENTRED else spec.norm


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
