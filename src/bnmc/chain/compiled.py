"""A chain as compiled kernels take it."""

from __future__ import annotations

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain

__all__ = ["law_of", "sigma_of"]


def sigma_of(activation: Activation) -> Sigma:
    """Return the activation as kernels take it."""
    known = Sigma.known.get(activation.digest)
    if known is None:
        functions = {name: activation.scalar(name) for name in ("float32", "float64")}
        known = Sigma(activation.digest, functions)
    return known


def law_of(chain: Chain, inputs: int = 1) -> codes.Law:
    """Return the chain as kernels take it, with so many batches side by side.

    The code of a norm over the features is that of no norm: kernels then draw rows that are not
    normalized.
    """
    norm = chain.normalization
    return codes.Law(
        chain.width,
        chain.batch,
        chain.batch * inputs,
        norm.code if norm.acts_on_rows else codes.NORM_NONE,
        chain.skip,
        chain.gain,
        chain.eps,
    )
