"""The stationary fluctuations of chains whose map acts on pairs of samples.

Norms over the features, biases and no norm leave a map of pairs: the Gram matrix of a layer is a
function of the variances and the correlation of two pre-activations.  Its attractor is the variance
q* of `bnmc.mean_field.correlation`, and the correlation c* of all pairs.  If q* is positive and
finite, c* < 1, and both are stable, the Gram matrices of wide chains fluctuate around

    G* = b ((1−c) I + c 11ᵀ),    q* = gain² b + σ_b²,    q* c* = gain² b c + σ_b²,

with the stationary covariance S/width, S = J S Jᵀ + C in each sector of the permutation group.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.chain.needs import NO_SKIP, TWO_SAMPLES, require
from bnmc.errors import ArgumentError, NotMixing, PartialEstimateError
from bnmc.mean_field.correlation.correlation_map import CorrelationMap
from bnmc.mean_field.correlation.fixed_points import CorrelationPoint
from bnmc.mean_field.correlation.phases import Phase
from bnmc.mean_field.finite_width.pair_moments import COARSE, FINE, PairMoments, pair_moments
from bnmc.mean_field.finite_width.pair_results import PairFluctuations
from bnmc.mean_field.finite_width.results import mean_square_of, require_known
from bnmc.mean_field.finite_width.sectors import Sector, noises, pair_jacobians, stationary
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.float64 import FloatArray

__all__ = ["pair_fluctuations"]

# The errors are judged here, not by the correlation map.
_ANY = 1e100

# Rates above 1 minus this count as 1.
_NEUTRAL = 1e-9

_INSTEAD = "MeanField.trajectory(..., fluctuations=True) predicts the layers up to a depth"


def pair_fluctuations(chain: Chain, rtol: float) -> PairFluctuations:
    """Return the predictions; see `MeanField.fluctuations` for the arguments and errors."""
    require(chain, (TWO_SAMPLES, NO_SKIP), "bnmc.simulate measures this chain")
    field = CorrelationMap.of(chain)
    phase = field.phase(rtol=_ANY)
    q = _variance(chain, phase)
    point = _attractor(chain, field, phase)
    error = phase.error + point.error + _variance_error(field, q)
    level = field.layer.level(q)
    fine, coarse = (
        pair_moments(field.layer, level, q, point.correlation, widest) for widest in (FINE, COARSE)
    )
    if point.correlation == 0.0:  # without biases, and with E x = 0
        fine = fine._replace(pair=0.0)
    star = _fixed_point(chain, phase, fine, error)
    if not error <= rtol:
        raise PartialEstimateError(
            f"fixed point known to {error:.1e} only, rtol is {rtol:.1e}", star
        )
    sectors, others = (_sectors(one, chain.batch) for one in (fine, coarse))
    found = PairFluctuations(
        fixed_point=star,
        sectors=sectors,
        centred=False,
        coarse=others,
        point_error=error,
        activation=chain.activation,
        relative_square=_relative_square(chain, sectors, q, point.correlation),
    )
    require_known(found, rtol)
    return found


def _variance(chain: Chain, phase: Phase) -> float:
    """Return q*; raise unless it is positive, finite and stable."""
    if 0.0 < phase.variance < math.inf and abs(phase.variance_rate) < 1.0 - _NEUTRAL:
        return phase.variance
    happens = "is not changed by a layer at infinite width, and does a random walk at finite width"
    if phase.variance == 0.0:
        happens = "tends to 0"
    elif phase.variance == math.inf:
        happens = "diverges"
    allowed = "a norm, or a gain and biases whose variance has a stable fixed point"
    hint = f"the variance of the pre-activations {happens}. {_INSTEAD}"
    raise ArgumentError("norm", chain.norm, allowed, hint)


def _attractor(chain: Chain, field: CorrelationMap, phase: Phase) -> CorrelationPoint:
    """Return c* < 1; raise if there is no such attractor."""
    if phase.correlation is None:
        allowed = "a function for which correlations have a stable fixed point"
        hint = f"every correlation is a fixed point, so correlations do a random walk. {_INSTEAD}"
        raise ArgumentError("activation", chain.activation.name, allowed, hint)
    if phase.correlation == 1.0:
        raise NotMixing(
            f"the correlation of all samples tends to 1 ({phase.name} phase), so Gram matrices "
            f"become singular and do not fluctuate around a fixed point. {_INSTEAD}; gain and "
            "bias_variance may change the phase",
            phase,
            0.5 * math.log(phase.gradient_factor) if phase.gradient_factor > 0.0 else -math.inf,
            0.0,
        )
    points = field.fixed_points(variance=phase.variance, rtol=_ANY)
    return next(point for point in points if point.stable)


def _variance_error(field: CorrelationMap, q: float) -> float:
    """Return the error of q*, 0 if a layer fixes it."""
    if field.layer.fixes_variance:
        return 0.0
    return max(
        (point.error for point in field.variance_fixed_points() if point.variance == q),
        default=0.0,
    )


def _fixed_point(chain: Chain, phase: Phase, at: PairMoments, error: float) -> FixedPoint:
    n = chain.batch
    pairs = n * (n - 1) // 2
    # A norm with eps 0 fixes the variance: the eigenvalue is that of scaling G*.
    moves = at.of_length != 0.0
    return FixedPoint(
        batch=n,
        b=at.own,
        c=at.pair / at.own,
        eigenvalues=(at.of_length, at.of_pair) if moves else (at.of_pair,),
        multiplicities=(n, pairs) if moves else (pairs,),
        rate=max(abs(at.of_length), abs(at.of_pair)),
        backward_rate=phase.gradient_factor,
        cross_batch=at.pair,
        cross_batch_rate=at.of_pair,
        error=error,
    )


def _sectors(at: PairMoments, batch: int) -> tuple[Sector, ...]:
    jacobians = pair_jacobians(at.of_length, at.of_first, at.of_pair, batch)
    return stationary(noises(at.noise, batch), jacobians, batch)


def _relative_square(chain: Chain, sectors: tuple[Sector, ...], q: float, c: float) -> float:
    """Return the squared relative fluctuation of the covariance of the pre-activations."""
    n = chain.batch
    ones = np.ones((n, n)) / n
    whitener = (np.eye(n) - ones) / math.sqrt(q * (1.0 - c))
    whitener += ones / math.sqrt(q * (1.0 + (n - 1.0) * c))
    lengths_matter = chain.normalization.is_identity or chain.order == "activation-norm"

    def relative(matrix: FloatArray) -> FloatArray:
        change = chain.gain**2 * matrix
        if not lengths_matter:
            own = 0.5 * np.diagonal(change)
            change = change - c * (own[:, None] + own)
            np.fill_diagonal(change, 0.0)
        return np.asarray(whitener @ change @ whitener)

    return mean_square_of(relative, sectors, n) / n**2
