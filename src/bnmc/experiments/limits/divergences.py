"""Divergences of logits from those of a reference, with the jackknife's errors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.statistics import LEVEL
from bnmc.infinite_width import logit_divergence

#: Largest number of groups of networks that are left out in turn.
_MOST_GROUPS = 48


def require_groups(**counts: int) -> None:
    """Require that each number of networks, by the name of its size, has equal groups.

    Without any of them there must be as many networks as `logit_divergence` needs.
    """
    for name, count in counts.items():
        least = 4 if name == "reference_chains" else 2
        parts = _groups(count)
        if not parts or count - count // parts < least:
            allowed = f"a number > {least} with a divisor from 2 to {_MOST_GROUPS}"
            raise ArgumentError(name, count, allowed)


class Compared(NamedTuple):
    """Divergences of one limit at all steps, and with each group of networks left out.

    `values` are (steps,), `limits` (groups, steps) without one group of the limit's networks, and
    `references` (groups, steps) without one of the reference's.
    """

    values: Float64Array
    limits: Float64Array
    references: Float64Array

    @classmethod
    def of(cls, outputs: Float64Array, reference: Float64Array) -> Compared:
        """Return the divergences of outputs (networks, steps, images)."""
        return cls(
            _divergences(outputs, reference),
            np.stack([_divergences(rest, reference) for rest in _without_groups(outputs)]),
            np.stack([_divergences(outputs, rest) for rest in _without_groups(reference)]),
        )

    def at(self, step: int) -> Estimate:
        """Return the divergence at one of the recorded steps."""
        return _jackknifed(self.values[step], self.limits[:, step], self.references[:, step])


def combined(*terms: tuple[float, Compared]) -> Estimate:
    """Return a sum of factors times last divergences.  All have one reference."""
    values, limits, references = (
        [factor * compared[place][..., -1] for factor, compared in terms] for place in range(3)
    )
    return _jackknifed(np.sum(values), *limits, np.sum(references, axis=0))


def _groups(count: int) -> int:
    """Return the number of equal groups of so many networks, 0 if there are none."""
    return max((k for k in range(2, _MOST_GROUPS + 1) if count % k == 0), default=0)


def _without_groups(sample: Float64Array) -> list[Float64Array]:
    """Return a sample without each of its groups, single networks or equal groups of them."""
    parts = np.split(np.arange(len(sample)), _groups(len(sample)))
    return [np.delete(sample, part, axis=0) for part in parts]


def _divergences(outputs: Float64Array, reference: Float64Array) -> Float64Array:
    steps = range(outputs.shape[1])
    return np.array([logit_divergence(outputs[:, k], reference[:, k]) for k in steps])


def _jackknifed(value: float | np.floating[Any], *left_out: Float64Array) -> Estimate:
    """Return a statistic of independent samples with the jackknife's error.

    Parameters
    ----------
    value : float
    *left_out : (groups,) ndarray
        For each sample, the values of the statistic without each of its equal groups of networks.

    Returns
    -------
    Estimate
        With Student's interval for the smallest number of groups.
    """
    variance = sum((len(values) - 1) * float(np.var(values)) for values in left_out)
    fewest, stderr, mean = min(map(len, left_out)), math.sqrt(variance), float(value)
    reach = float(stdtrit(fewest - 1, (1 + LEVEL) / 2)) * stderr
    return Estimate(mean, stderr, (mean - reach, mean + reach), fewest, "jackknife", LEVEL)
