"""Checks of a chain that several estimators make before any work."""

from __future__ import annotations

from bnmc.chain.chain import Chain
from bnmc.chain.norms import NORMS, ROW_NORMS, as_norm
from bnmc.errors import ArgumentError

_NORMALIZING = ", ".join(f'"{name}"' for name in NORMS if not as_norm(name).is_identity)
_NORMALIZING += ' or "group(g)"'
_REASON = "without normalization no stationary law exists"
_REASON_OF_BIASES = (
    "with biases alone a stationary law may exist: measure a run by bnmc.mixing.autocorrelation"
)


def require_stationary_law(chain: Chain, *, reason_as_hint: bool = True) -> None:
    """Raise unless the chain has a normalization, without which it has no known stationary law.

    Parameters
    ----------
    chain : Chain
    reason_as_hint : bool, default True
        Whether the message gives the reason as a hint, in parentheses, or after a colon.

    Raises
    ------
    ArgumentError
        If the normalization is the identity.
    """
    if not chain.normalization.is_identity:
        return
    reason = _REASON_OF_BIASES if chain.bias_variance > 0.0 else _REASON
    if reason_as_hint:
        raise ArgumentError("norm", chain.norm, _NORMALIZING, reason)
    raise ArgumentError("norm", chain.norm, f"{_NORMALIZING}: {reason}")


def require_row_by_row(
    chain: Chain, instead: str, *, without_bias: bool = False, convolutions: bool = False
) -> None:
    """Raise unless layers are N(skip x + gain W σ(x)), with N over the batch or none, without bias.

    Parameters
    ----------
    chain : Chain
    instead : str
        Advice for other chains, for the message.
    without_bias : bool, default False
        Whether to raise for a bias that the norm subtracts, too.
    convolutions : bool, default False
        Whether W may be a convolution.

    Raises
    ------
    ArgumentError
        About `norm`, `order`, `bias_variance` or `convolution`.
    """
    if not convolutions:
        require_fully_connected(chain, instead)
    if not chain.normalization.acts_on_rows:
        allowed = " or ".join(f'"{name}"' for name in ROW_NORMS)
        raise ArgumentError("norm", chain.norm, allowed, instead)
    if not chain.is_row_by_row:
        raise ArgumentError("order", chain.order, '"norm-activation"', instead)
    if chain.shows_bias or (without_bias and chain.bias_variance > 0.0):
        raise ArgumentError("bias_variance", chain.bias_variance, "0", instead)


def require_fully_connected(chain: Chain, instead: str) -> None:
    """Raise if W is a convolution.

    Raises
    ------
    ArgumentError
        About `convolution`; `instead` is the advice in the message.
    """
    if chain.convolution is not None:
        raise ArgumentError("convolution", chain.convolution, "None", instead)


def require_two_samples(chain: Chain) -> None:
    """Raise unless the batch has at least two samples.

    Raises
    ------
    ArgumentError
        If the batch has one sample.
    """
    if chain.batch < 2:
        raise ArgumentError("batch", chain.batch, "an integer >= 2", "one sample is no chain")
