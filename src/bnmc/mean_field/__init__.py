"""The infinite-width limit of a chain: its Gram matrices, its fixed points, their stability.

Let G be the Gram matrix of a batch of n samples at one layer of a chain without skip connections.
At infinite width a layer maps G to

    F(G) = E[σ(φ) σ(φ)ᵀ],    φ = N(w),    w ~ N(0, gain² G),

with σ the activation, applied entrywise, N the normalization and w a row with one entry per sample.
`MeanField` evaluates F, its iterates and its fixed point that all permutations of the samples
preserve, with the eigenvalues of the Jacobian there. `MeanField.fluctuations` predicts how far the
Gram matrices of chains of finite width are from that fixed point, and `MeanField.trajectory` from
the path of one input. `stability` and `atlas` find the
batch sizes at which that fixed point loses its stability, `limit` its limit for large batches, and
`block_symmetric` and `partial_collapse` other fixed points.

Without a norm over the batch the map acts on pairs of samples: `CorrelationMap` has its fixed
points and phases, `edge_of_chaos` the curve between the phases, `isometry_rate` and
`residual_growth` further rates.

The sources are Joudaki, Daneshmand and Bach, *On bridging the gap between mean field and finite
width in deep random neural networks with batch normalization* (arXiv 2205.13076), and Yang,
Pennington, Rao, Sohl-Dickstein and Schoenholz, *A mean field theory of batch normalization* (arXiv
1902.08129). The formulas for the eigenvalues of the Jacobian, as integrals over two coordinates,
are derived here.

The package imports `bnmc._support`, `bnmc.errors`, `bnmc.chain`, `bnmc.gram` and, for pictures,
`bnmc.plot`. Read `field.py` first.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

from bnmc._support.arithmetic import ignore_underflow
from bnmc.mean_field.blocks.block_fixed_point import (
    BlockFixedPoint,
    block_symmetric,
    partial_collapse,
)
from bnmc.mean_field.correlation.correlation_map import CorrelationMap, PairTrajectory
from bnmc.mean_field.correlation.fixed_points import CorrelationPoint, VariancePoint
from bnmc.mean_field.correlation.phases import EdgeOfChaos, Phase, edge_of_chaos
from bnmc.mean_field.correlation.residual import (
    GrowthLaw,
    IsometryRate,
    ResidualGrowth,
    isometry_rate,
    residual_growth,
)
from bnmc.mean_field.field import MeanField
from bnmc.mean_field.finite_width.gaussian import PathFluctuations, PathPrediction
from bnmc.mean_field.finite_width.results import Fluctuations, PairFluctuations, Prediction
from bnmc.mean_field.finite_width.sectors import EntryCovariance, Sector
from bnmc.mean_field.fixed_point.results import FixedPoint, FourierMode
from bnmc.mean_field.fixed_point.stability import Crossing, Stability, atlas, stability
from bnmc.mean_field.fixed_point.symmetric import Limit, limit
from bnmc.mean_field.map.iteration import MeanFieldTrajectory, Step

__all__ = [
    "BlockFixedPoint",
    "CorrelationMap",
    "CorrelationPoint",
    "Crossing",
    "EdgeOfChaos",
    "EntryCovariance",
    "FixedPoint",
    "Fluctuations",
    "FourierMode",
    "GrowthLaw",
    "IsometryRate",
    "Limit",
    "MeanField",
    "MeanFieldTrajectory",
    "PairFluctuations",
    "PairTrajectory",
    "PathFluctuations",
    "PathPrediction",
    "Phase",
    "Prediction",
    "ResidualGrowth",
    "Sector",
    "Stability",
    "Step",
    "VariancePoint",
    "atlas",
    "block_symmetric",
    "edge_of_chaos",
    "isometry_rate",
    "limit",
    "partial_collapse",
    "plot_stability",
    "residual_growth",
    "stability",
]

#: Modules that the documentation named under this package, and where they are now.
_MOVED = {"pairwise": "bnmc.mean_field.map.pairwise"}

if TYPE_CHECKING:
    from bnmc.plot.stability import plot_stability
else:  # so that type checkers still report unknown names

    def __getattr__(name: str) -> object:
        if name == "plot_stability":  # the first use imports the pictures
            from bnmc.plot.stability import plot_stability

            return plot_stability
        if name not in _MOVED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        message = f"bnmc.mean_field.{name} has moved to {_MOVED[name]}; the old name goes in 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return importlib.import_module(_MOVED[name])


ignore_underflow(__name__)
