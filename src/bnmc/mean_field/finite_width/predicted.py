"""`fluctuations`: the predicted fluctuations of a chain around its mean-field fixed point."""

from __future__ import annotations

import math

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.needs import FULLY_CONNECTED, require
from bnmc.errors import ArgumentError, NotMixing, PartialEstimateError
from bnmc.mean_field.finite_width.bias import mean_bias
from bnmc.mean_field.finite_width.joint_moments import (
    joint_moments,
    odd_moments,
)
from bnmc.mean_field.finite_width.pair_fluctuations import pair_fluctuations
from bnmc.mean_field.finite_width.results import Fluctuations, require_known
from bnmc.mean_field.finite_width.sectors import (
    Sector,
    centred_jacobians,
    noises,
    odd_jacobians,
    stationary,
    uncentred_jacobians,
)
from bnmc.mean_field.finite_width.uncentred_moments import uncentred_moments
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.fixed_point.symmetric import fixed_point_and_errors
from bnmc.mean_field.quadrature.resolution import UnresolvedError

__all__ = ["fluctuations", "require_independent"]

# Numbers of the fixed point that are not part of the law of G.
_ELSEWHERE = ("backward_rate", "cross_batch", "cross_batch_rate")

# Rules for the joint moments agree to this, in units of the relative error that is asked for.
_AGREED = 0.3


def fluctuations(chain: Chain, rtol: float) -> Fluctuations:
    """Return the predictions; see `MeanField.fluctuations` for the arguments and errors."""
    require_independent(chain)
    instead = "MeanField.trajectory(..., fluctuations=True) has them along the path of an input"
    require(chain, [FULLY_CONNECTED], instead)
    if not chain.normalization.has_symmetric_fixed_point:
        return pair_fluctuations(chain, rtol)
    point, errors = fixed_point_and_errors(chain)
    used = {name: error for name, error in errors.items() if name not in _ELSEWHERE}
    worst = max(used, key=lambda name: (not used[name] <= math.inf, used[name]))
    if not used[worst] <= rtol:
        raise PartialEstimateError(
            f"fixed point known to {used[worst]:.1e} only, rtol is {rtol:.1e} (worst is {worst})",
            point,
        )
    if not point.stable:
        raise NotMixing(
            f"the fixed point is unstable: small deviations grow by {point.rate:.6g} per layer, so "
            "the chain does not fluctuate around it",
            point,
            math.log(point.rate),
            0.0,
        )
    centres = chain.normalization.hides_common_part
    try:
        fine, coarse = _sectors(chain.activation, chain.batch, point, centres, rtol)
    except UnresolvedError as error:
        raise ArgumentError(
            "activation", chain.activation.name, "a function that quadrature resolves", str(error)
        ) from None
    known = centres or point.c == 0.0
    found = Fluctuations(
        fixed_point=point,
        sectors=fine,
        centred=centres,
        coarse=coarse,
        point_error=used[worst],
        activation=chain.activation,
        mean_shift=mean_bias(chain.activation, point, fine, centres) if known else None,
    )
    require_known(found, rtol)
    return found


def require_independent(chain: Chain) -> None:
    """Raise `ArgumentError` if the weights are not independent."""
    if chain.weights == "haar":
        hint = "rows of W a are dependent: measure the spread of a run of bnmc.simulate"
        raise ArgumentError("weights", chain.weights, "a law of independent entries", hint)


def _sectors(
    activation: Activation, batch: int, point: FixedPoint, centres: bool, rtol: float
) -> list[tuple[Sector, ...]]:
    """Return the sectors by a fine and by a coarse quadrature."""
    if centres or point.c == 0.0:  # 0 is exact: σ is odd
        pair = (joint_moments if centres else odd_moments)(activation, batch)
        jacobians_of = centred_jacobians if centres else odd_jacobians
        return [
            stationary(noises(one.covariance, batch), jacobians_of(one, batch, point), batch)
            for one in pair
        ]
    return [
        stationary(
            noises(one.joint.covariance, batch),
            uncentred_jacobians(one.trivial, one.standard, batch, point),
            batch,
        )
        for one in uncentred_moments(activation, batch, point, _AGREED * rtol)
    ]
