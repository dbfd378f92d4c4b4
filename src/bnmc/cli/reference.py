"""The Gram matrix G* with which ``bnmc simulate`` compares a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.errors import BnmcError
from bnmc.mean_field.field import MeanField

__all__ = ["Reference", "reference_of"]


@dataclass(frozen=True)
class Reference:
    """The Gram matrix G* of a chain at infinite width.

    Attributes
    ----------
    gram : (batch, batch) ndarray of float64 or None
        G*; None if it is not known.
    note : str
        A sentence that says where it comes from, or why it is not known.
    facts : dict
        Numbers about it, for JSON.
    """

    gram: NDArray[np.float64] | None
    note: str
    facts: dict[str, Any] = field(default_factory=dict)


def reference_of(chain: Chain, x: NDArray[np.float64]) -> Reference:
    """Return G* of a chain with the input x of shape (features, batch).

    Usually G* is the fixed point of the mean field. Linear layers without normalization and with
    skip² + gain² = 1 keep every Gram matrix at infinite width. For these, G* is the Gram matrix of
    the input; orthogonal samples then give the identity, as in Fig. 1a of *On bridging …*.
    """
    keeps_scale = bool(np.isclose(chain.skip**2 + chain.gain**2, 1.0, rtol=1e-12, atol=0.0))
    without = chain.normalization.is_identity and not chain.shows_bias
    if without and chain.activation.is_linear and keeps_scale:
        note = "G*: the Gram matrix of the input, which linear networks preserve at infinite width"
        return Reference(x.T @ x / len(x), note, {"kind": "input"})
    try:
        fixed = MeanField(chain).fixed_point()
    except BnmcError as error:
        return Reference(None, f"G*: unknown ({error})", {"kind": None})
    facts = {name: getattr(fixed, name) for name in ("b", "c", "rate", "stable")}
    warning = "" if fixed.stable else "; it is unstable, so networks may not converge to it"
    note = (
        f"G*: fixed point of the mean field, diagonal {fixed.b:.6g}, correlation {fixed.c:.6g}, "
        f"perturbations ×{fixed.rate:.4g} per layer{warning}"
    )
    return Reference(fixed.gram, note, {"kind": "fixed point", **facts})
