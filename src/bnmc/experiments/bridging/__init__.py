"""The figures and claims of *On bridging the gap between mean field and finite width …*.

Joudaki, Daneshmand and Bach, *On bridging the gap between mean field and finite width in deep
random neural networks with batch normalization* (arXiv 2205.13076), and its poster.
Intervals are at level 0.95; bands contain 90 % of the networks.
"""

# One file per measurement, with several figures.  Files import from this package's `common.py`, not
# from each other.  Read `fig_1b` in `distances.py` first; it is the shortest.

from __future__ import annotations

from bnmc.experiments.bridging.certified_mixing import certificate
from bnmc.experiments.bridging.common import ACTIVATIONS as ACTIVATIONS
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.experiments.bridging.distances import fig_1a, fig_1b, poster
from bnmc.experiments.bridging.spectra import conditioning, fig_2, two_inputs

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
