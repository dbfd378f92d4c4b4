"""The mean field beside a measurement, and the reasons why it does not apply."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc import gram
from bnmc._support.text import Result
from bnmc.chain.chain import Chain
from bnmc.errors import BnmcError
from bnmc.mean_field.correlation.correlation_map import CorrelationMap
from bnmc.mean_field.field import MeanField
from bnmc.torch.reading import ModelChain

# The fixed point is that of ε = 0, so ε must be at most this part of the variance of a neuron.
_SMALL = 1e-3


@dataclass(frozen=True)
class Prediction(Result):
    """The fixed point of the mean field of a model's chain, or why there is no prediction.

    Attributes
    ----------
    chain : Chain or None
        The chain to which the numbers refer; with ε = 0 if its norm is over the batch.
    values : dict of str to float
        At the fixed point, after many layers of infinite width: ``backward_rate``,
        ``rank_bound``, ``orthogonality_gap``, ``mean_correlation`` and ``scale`` of the
        representations that the weights multiply. Empty if there is no prediction. For chains
        without a norm over the batch, ranks and correlations are missing if they depend on the
        input, or converge slower than exponentially.
    reasons : tuple of str
        Why there is no prediction; empty if there is one.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(3)]
    >>> model = nn.Sequential(*blocks, nn.Linear(32, 2))
    >>> prediction = measure(model, torch.randn(8, 32)).prediction
    >>> prediction.applies, sorted(prediction.values)
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
    pairs = chain.normalization.is_identity or not chain.normalization.acts_on_rows
    try:
        return _of_pairs(chain) if pairs else _over_the_batch(chain)
    except BnmcError as error:
        instead = "; bnmc.backpropagate simulates the chain at its own width"
        return Prediction(chain, reasons=(f"{error}{instead}",))


def _over_the_batch(chain: Chain) -> Prediction:
    """Return the prediction for a norm over the batch."""
    eps = chain.eps
    chain = dataclasses.replace(chain, eps=0.0)
    point = MeanField(chain).fixed_point()
    if not point.stable:
        return Prediction(chain, reasons=(
            f"the fixed point is unstable (deviations ×{point.rate:.4g} per layer), so the Gram "
            "matrices do not converge to it",
        ))  # fmt: skip
    if not math.isfinite(point.backward_rate):
        cause = f"the mean squared gradient is infinite for batches of {chain.batch}"
        return Prediction(chain, reasons=(f"in the limit ε → 0, {cause}",))
    variance = chain.gain * chain.gain * point.b * (1.0 - point.c)
    if eps > _SMALL * variance:
        reason = f"ε = {eps:.3g} is not small against the variance {variance:.3g} of a neuron"
        return Prediction(chain, reasons=(reason,))
    # The Gram matrix of a convolution depends on the view: samples, or samples and positions.
    numbers = {} if chain.convolution is not None else _of_gram(point.gram)
    return Prediction(chain, {
        "backward_rate": point.backward_rate, **numbers,
        "mean_correlation": point.c, "scale": math.sqrt(point.b),
    })  # fmt: skip


def _of_pairs(chain: Chain) -> Prediction:
    """Return the prediction for a norm over the features, or without a norm.

    A layer with weights of variance 1, without bias and skip connection, keeps the mean square and
    the correlation of the activations that it multiplies. So its map predicts these two numbers.
    """
    phase = CorrelationMap.of(chain).phase()
    if not 0.0 < phase.variance < math.inf:
        reason = f"the variance of the neurons tends to {phase.variance:g} with depth"
        instead = (
            "bnmc.mean_field.residual_growth has its law" if chain.skip
            else "bnmc.torch.gain_for_ sets a gain that keeps it"
        )  # fmt: skip
        return Prediction(chain, reasons=(f"{reason}; {instead}",))
    if abs(phase.variance_rate) >= 1.0 - _SMALL:
        return Prediction(chain, reasons=("without a norm the mean field depends on the input",))
    layer = CorrelationMap(
        chain.activation, norm=chain.normalization, order=chain.order, eps=chain.eps
    )
    b = layer.layer.level(phase.variance).following
    values = {"backward_rate": phase.gradient_factor, "scale": math.sqrt(b)}
    if phase.correlation is None or phase.name == "critical":
        # Correlations depend on the inputs, or converge like a power of the depth.
        return Prediction(chain, values)
    c = float(layer(phase.correlation, variance=phase.variance))
    matrix = b * (c + (1.0 - c) * np.eye(chain.batch))
    return Prediction(chain, values | _of_gram(matrix) | {"mean_correlation": c})


def _of_gram(matrix: NDArray[np.float64]) -> dict[str, float]:
    return {
        "rank_bound": float(gram.rank_bound(matrix)),
        "orthogonality_gap": float(gram.orthogonality_gap(matrix)),
    }
