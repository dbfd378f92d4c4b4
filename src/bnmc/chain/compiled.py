"""A chain as compiled kernels take it."""

from __future__ import annotations

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import NonFiniteError, ZeroVarianceError

__all__ = ["law_of", "law_of_start", "raise_stopped", "sigma_of"]


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


def law_of_start(law: codes.Law) -> codes.Law:
    """Return the law of a layer 0 that is drawn given its covariance, as if that were G.

    Layer 0 uses gain 1.  Its skip connection has no effect, as x is zero before it.
    """
    return law._replace(gain=1.0)


def raise_stopped(status: int, chain: int | None, layer: int, row: int) -> None:
    """Raise the error that a kernel's status of a chain stands for.

    Parameters
    ----------
    status : int
        One of the codes of `bnmc._kernels.scalar.codes` but RUNNING.
    chain : int or None
        Number of the chain, for the message.
    layer, row : int

    Raises
    ------
    ZeroVarianceError, NonFiniteError
    """
    if status == codes.ZERO_VARIANCE:
        raise ZeroVarianceError(chain, layer, row)
    raise NonFiniteError(chain, layer, "Gram matrix")
