"""`fluctuations`: the predicted fluctuations of a chain around its mean-field fixed point."""

from __future__ import annotations

import math

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, NotMixing, PartialEstimateError
from bnmc.mean_field.finite_width.joint_moments import (
    JointMoments,
    joint_moments,
    odd_moments,
)
from bnmc.mean_field.finite_width.results import Fluctuations
from bnmc.mean_field.finite_width.sectors import (
    Sector,
    centred_jacobians,
    noises,
    odd_jacobians,
    stationary,
)
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.fixed_point.symmetric import fixed_point
from bnmc.mean_field.quadrature.resolution import UnresolvedError

__all__ = ["fluctuations"]


def fluctuations(chain: Chain, rtol: float) -> Fluctuations:
    """Return the predictions; see `MeanField.fluctuations` for the arguments and errors."""
    if chain.weights == "haar":
        raise ArgumentError(
            "weights", chain.weights, "a law of independent entries", "rows of W a are dependent"
        )
    point = fixed_point(chain, rtol)
    if not point.stable:
        raise NotMixing(
            f"the fixed point is unstable: small deviations grow by {point.rate:.6g} per layer, so "
            "the chain does not fluctuate around it",
            point,
            math.log(point.rate),
            0.0,
        )
    n, centres = chain.batch, chain.normalization.hides_common_part
    if not centres and point.c != 0.0:
        raise ArgumentError(
            "activation",
            chain.activation.name,
            'an odd function under norm "batch-uncentred"',
            "for other functions the joint moments depend on the correlation of the fixed point",
        )
    try:
        pair = (joint_moments if centres else odd_moments)(chain.activation, n)
    except UnresolvedError as error:
        raise ArgumentError(
            "activation", chain.activation.name, "a function that quadrature resolves", str(error)
        ) from None
    fine, coarse = (_sectors(moments, n, point, centres) for moments in pair)
    found = Fluctuations(fixed_point=point, sectors=fine, centred=centres, coarse=coarse)
    distance = found.mean_square(1)
    if distance.stderr > rtol * distance.value:
        raise PartialEstimateError(
            f"the mean square is known to {distance.stderr / distance.value:.1e} only, rtol is "
            f"{rtol:.1e}",
            found,
        )
    return found


def _sectors(
    moments: JointMoments, batch: int, point: FixedPoint, centres: bool
) -> tuple[Sector, ...]:
    """Return the sectors for one set of moments."""
    jacobians = centred_jacobians(moments, batch, point) if centres else odd_jacobians(batch, point)
    return stationary(noises(moments, batch), jacobians, batch)
