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
1902.08129). `MeanField.fixed_point` has the eigenvalues of the Jacobian as integrals over two
coordinates. The documentation page *Derivations* has the formulas that are not in these papers.

The package imports `bnmc._support`, `bnmc.errors`, `bnmc.chain`, `bnmc.gram` and, for pictures,
`bnmc.plot`. Read `field.py` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnmc._support.arithmetic import make_public
from bnmc.mean_field.blocks.block_fixed_point import BlockFixedPoint as BlockFixedPoint
from bnmc.mean_field.blocks.block_fixed_point import block_symmetric, partial_collapse
from bnmc.mean_field.correlation.correlation_map import CorrelationMap
from bnmc.mean_field.correlation.correlation_map import PairTrajectory as PairTrajectory
from bnmc.mean_field.correlation.fixed_points import CorrelationPoint as CorrelationPoint
from bnmc.mean_field.correlation.fixed_points import VariancePoint as VariancePoint
from bnmc.mean_field.correlation.phases import EdgeOfChaos as EdgeOfChaos
from bnmc.mean_field.correlation.phases import Phase as Phase
from bnmc.mean_field.correlation.phases import edge_of_chaos
from bnmc.mean_field.correlation.residual import GrowthLaw as GrowthLaw
from bnmc.mean_field.correlation.residual import IsometryRate as IsometryRate
from bnmc.mean_field.correlation.residual import ResidualGrowth as ResidualGrowth
from bnmc.mean_field.correlation.residual import isometry_rate, residual_growth
from bnmc.mean_field.field import MeanField as MeanField
from bnmc.mean_field.finite_width.gaussian import PathFluctuations as PathFluctuations
from bnmc.mean_field.finite_width.gaussian import PathPrediction as PathPrediction
from bnmc.mean_field.finite_width.results import Fluctuations as Fluctuations
from bnmc.mean_field.finite_width.results import PairFluctuations as PairFluctuations
from bnmc.mean_field.finite_width.results import Prediction as Prediction
from bnmc.mean_field.finite_width.sectors import EntryCovariance as EntryCovariance
from bnmc.mean_field.finite_width.sectors import Sector as Sector
from bnmc.mean_field.finite_width.stationary_bulk import StationaryBulk as StationaryBulk
from bnmc.mean_field.fixed_point.results import FixedPoint as FixedPoint
from bnmc.mean_field.fixed_point.results import FourierMode as FourierMode
from bnmc.mean_field.fixed_point.stability import Crossing as Crossing
from bnmc.mean_field.fixed_point.stability import Stability as Stability
from bnmc.mean_field.fixed_point.stability import atlas, stability
from bnmc.mean_field.fixed_point.symmetric import Limit as Limit
from bnmc.mean_field.fixed_point.symmetric import limit
from bnmc.mean_field.map.iteration import MeanFieldTrajectory as MeanFieldTrajectory
from bnmc.mean_field.map.iteration import Step as Step

__all__ = [
    "CorrelationMap",
    "atlas",
    "block_symmetric",
    "edge_of_chaos",
    "isometry_rate",
    "limit",
    "partial_collapse",
    "residual_growth",
    "stability",
]

if TYPE_CHECKING:
    from bnmc.plot.stability import plot_stability as plot_stability
else:  # so that type checkers still report unknown names

    def __getattr__(name: str) -> object:
        if name != "plot_stability":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from bnmc.plot.stability import plot_stability  # the first use imports the pictures

        return plot_stability


make_public(__name__)
