"""The mean field beside a measurement, and the reasons why it does not apply."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from bnmc import gram
from bnmc.chain.chain import Chain
from bnmc.errors import BnmcError
from bnmc.mean_field.field import MeanField
from bnmc.torch.reading import ModelChain

__all__ = ["Prediction", "predicted"]

# The fixed point is that of ε = 0, so ε must be at most this part of the variance of a neuron.
_SMALL = 1e-3


@dataclass(frozen=True)
class Prediction:
    """The fixed point of the mean field of a model's chain, or why there is no prediction.

    Attributes
    ----------
    chain : Chain or None
        The chain with ε = 0, to which the numbers refer.
    values : dict of str to float
        At the fixed point, after many layers of infinite width: ``backward_rate``,
        ``rank_bound``, ``orthogonality_gap``, ``mean_correlation`` and ``scale`` of the
        representations after the activation. Empty if there is no prediction.
    reasons : tuple of str
        Why there is no prediction; empty if there is one.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(3)]
    >>> found = measure(nn.Sequential(*blocks, nn.Linear(32, 2)), torch.randn(8, 32)).prediction
    >>> found.applies, sorted(found.values)
    (True, ['backward_rate', 'mean_correlation', 'orthogonality_gap', 'rank_bound', 'scale'])
    """

    chain: Chain | None
    values: dict[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def applies(self) -> bool:
        """Whether there is a prediction."""
        return not self.reasons

    def sentence(self, growth: tuple[float, float] | None) -> str:
        """Return prediction and measurement of the growth of squared gradients, in one line.

        Parameters
        ----------
        growth : tuple of (float, float) or None
            The measured growth per layer and its standard error, NaN if it is unknown.
        """
        if not self.applies:
            more = len(self.reasons) - 3
            tail = f"; and {more} more" if more > 0 else ""
            return f"no prediction: {'; '.join(self.reasons[:3])}{tail}"
        rate = self.values["backward_rate"]
        text = f"infinite width: squared gradients ×{rate:.4g} per layer, towards the input"
        if growth is None:
            return text
        error = "" if math.isnan(growth[1]) else f" ± {growth[1]:.1g}"
        return f"{text}; measured ×{growth[0]:.4g}{error}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return {
            "chain": None if self.chain is None else repr(self.chain),
            "values": dict(self.values), "reasons": list(self.reasons),
        }  # fmt: skip


def predicted(reading: ModelChain) -> Prediction:
    """Return the prediction of the mean field for the chain of a model."""
    if reading.chain is None or reading.unfit:
        return Prediction(None, reasons=reading.unfit)
    chain = reading.chain
    if chain.normalization.is_identity:
        return Prediction(None, reasons=("without a norm the mean field depends on the input",))
    eps = chain.eps
    chain = dataclasses.replace(chain, eps=0.0)
    try:
        point = MeanField(chain).fixed_point()
    except BnmcError as error:
        return Prediction(chain, reasons=(str(error),))
    if not point.stable:
        return Prediction(chain, reasons=(
            f"the fixed point is unstable (deviations ×{point.rate:.4g} per layer), so the Gram "
            "matrices do not converge to it",
        ))  # fmt: skip
    if not math.isfinite(point.backward_rate):
        reason = f"the mean squared gradient is infinite for batches of {chain.batch}"
        return Prediction(chain, reasons=(reason,))
    variance = chain.gain**2 * point.b * (1.0 - point.c)
    if eps > _SMALL * variance:
        reason = f"ε = {eps:.3g} is not small against the variance {variance:.3g} of a neuron"
        return Prediction(chain, reasons=(reason,))
    values = {
        "backward_rate": point.backward_rate,
        "rank_bound": float(gram.rank_bound(point.gram)),
        "orthogonality_gap": float(gram.orthogonality_gap(point.gram)),
        "mean_correlation": point.c,
        "scale": math.sqrt(point.b),
    }
    return Prediction(chain, values)
