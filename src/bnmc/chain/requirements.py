"""Checks of a chain that several estimators make before any work."""

from __future__ import annotations

from bnmc.chain.chain import Chain
from bnmc.chain.norms import NORMS, as_norm
from bnmc.errors import ArgumentError

__all__ = ["require_stationary_law", "require_two_samples"]

_NORMALIZING = " or ".join(f'"{name}"' for name in NORMS if not as_norm(name).is_identity)
_REASON = "without normalization there is no invariant law"


def require_stationary_law(chain: Chain, *, reason_as_hint: bool = True) -> None:
    """Raise unless the chain has a normalization, without which it has no stationary law.

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
    if reason_as_hint:
        raise ArgumentError("norm", chain.norm, _NORMALIZING, _REASON)
    raise ArgumentError("norm", chain.norm, f"{_NORMALIZING}: {_REASON}")


def require_two_samples(chain: Chain) -> None:
    """Raise unless the batch has at least two samples.

    Raises
    ------
    ArgumentError
        If the batch has one sample.
    """
    if chain.batch < 2:
        raise ArgumentError("batch", chain.batch, "an integer >= 2", "one sample is no chain")
