"""Which sampler takes a chain through its layers."""

from __future__ import annotations

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.weights import WeightsSampler
from bnmc.simulation.engine.wishart import FactorSampler

__all__ = ["SAMPLERS", "choose_sampler"]

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.path: sampler for sampler in (ConditionalSampler, WeightsSampler, FactorSampler)
}


def choose_sampler(chain: Chain, inputs: int | None, wanted: str, dtype: str) -> type[Sampler]:
    """Return the cheapest valid sampler, or the wanted one; raise if that is not valid."""
    if wanted == "weights":
        return WeightsSampler
    if chain.is_orthogonal and chain.is_row_by_row and not chain.shows_bias:
        return ConditionalSampler
    if not chain.is_gaussian:
        if wanted == "conditional":
            raise ArgumentError(
                "sampler",
                wanted,
                "'weights' or 'auto' unless the weights are Gaussian or Haar",
                "Haar: for norms over the batch before the activation, without bias"
                if chain.is_orthogonal
                else "",
            )
        return WeightsSampler
    if chain.is_vanilla_linear:
        return FactorSampler
    if wanted == "conditional":
        return ConditionalSampler
    sizes = chain, chain.batch * (inputs or 1), np.dtype(dtype)
    by_weights = WeightsSampler.seconds(*sizes) < ConditionalSampler.seconds(*sizes)
    return WeightsSampler if by_weights else ConditionalSampler
