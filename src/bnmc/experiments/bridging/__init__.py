"""The figures and claims of *On bridging the gap between mean field and finite width …*.

Joudaki, Daneshmand and Bach, *On bridging the gap between mean field and finite width in deep
random neural networks with batch normalization* (arXiv 2205.13076), and its poster.
Intervals are at level 0.95; bands contain 90 % of the networks.
"""

# One figure per file.  Figures import from this package's `common.py`, not from each other.  Read
# `distance_over_width.py` first; it is the shortest.

from __future__ import annotations

from bnmc.experiments.bridging.certified_mixing import certificate
from bnmc.experiments.bridging.common import ACTIVATIONS as ACTIVATIONS
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.experiments.bridging.condition_number import conditioning
from bnmc.experiments.bridging.distance_over_width import fig_1b
from bnmc.experiments.bridging.error_over_depth import fig_1a
from bnmc.experiments.bridging.poster_distances import poster
from bnmc.experiments.bridging.same_network import two_inputs
from bnmc.experiments.bridging.spectra import fig_2

__all__ = [
    "certificate",
    "conditioning",
    "fig_1a",
    "fig_1b",
    "fig_2",
    "poster",
    "stationary_linear",
    "two_inputs",
]
