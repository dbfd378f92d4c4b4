"""Convergence to the stationary law: certified bounds and estimates of the rate per layer.

Each estimator has a file, and so has the result that it returns.  The package may import
`mean_field`, `simulation` and lower levels.  Read `rate.py` first: `RateEstimate` is the result
that all estimators share.  `coupling.py` runs coupled pairs from the given start
and from others and states the assumptions that remain, and `meeting_bound.py` makes the bound of
their meeting times.  `absorption.py` has the probabilities of rare absorbing
events.  The estimators that read a run stand on `observed.py`.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.mixing.absorption import AbsorbingEvent as AbsorbingEvent
from bnmc.mixing.autocorrelation_time import Autocorrelation as Autocorrelation
from bnmc.mixing.autocorrelation_time import autocorrelation
from bnmc.mixing.comparison import Comparison as Comparison
from bnmc.mixing.comparison import ComparisonRow as ComparisonRow
from bnmc.mixing.comparison import compare
from bnmc.mixing.contraction_rate import Contraction as Contraction
from bnmc.mixing.contraction_rate import TwoInputs as TwoInputs
from bnmc.mixing.contraction_rate import contraction, two_inputs
from bnmc.mixing.coupling import CrossedStart as CrossedStart
from bnmc.mixing.implied_timescales import ChapmanKolmogorov as ChapmanKolmogorov
from bnmc.mixing.implied_timescales import Spectrum as Spectrum
from bnmc.mixing.implied_timescales import spectral
from bnmc.mixing.meeting_bound import LaggedDistance as LaggedDistance
from bnmc.mixing.meeting_bound import TVBound as TVBound
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.mixing.rate import RateEstimate as RateEstimate
from bnmc.mixing.relaxation_curve import Relaxation as Relaxation
from bnmc.mixing.relaxation_curve import relaxation

__all__ = [
    "autocorrelation",
    "compare",
    "contraction",
    "relaxation",
    "spectral",
    "tv_bound",
    "two_inputs",
]

make_public(__name__)
