"""Convergence to the stationary law: certified bounds and estimates of the rate per layer.

Each estimator has a file, and so has the result that it returns.  The package may import
`mean_field`, `simulation` and lower levels.  Read `rate.py` first: `RateEstimate` is the result
that all estimators share.  `coupling.py` runs coupled pairs from the given start
and from others and states the assumptions that remain, and `meeting_bound.py` makes the bound of
their meeting times.  `absorption.py` has the probabilities of rare absorbing
events.  The estimators that read a run stand on `observed.py`.
"""

from __future__ import annotations

from bnmc._support.arithmetic import ignore_underflow
from bnmc.mixing.absorption import AbsorbingEvent
from bnmc.mixing.autocorrelation_time import Autocorrelation, autocorrelation
from bnmc.mixing.comparison import Comparison, ComparisonRow, compare
from bnmc.mixing.contraction_rate import Contraction, TwoInputs, contraction, two_inputs
from bnmc.mixing.coupling import CrossedStart
from bnmc.mixing.implied_timescales import ChapmanKolmogorov, Spectrum, spectral
from bnmc.mixing.meeting_bound import LaggedDistance, TVBound, tv_bound
from bnmc.mixing.rate import RateEstimate
from bnmc.mixing.relaxation_curve import Relaxation, relaxation

__all__ = [
    "AbsorbingEvent",
    "Autocorrelation",
    "ChapmanKolmogorov",
    "Comparison",
    "ComparisonRow",
    "Contraction",
    "CrossedStart",
    "LaggedDistance",
    "RateEstimate",
    "Relaxation",
    "Spectrum",
    "TVBound",
    "TwoInputs",
    "autocorrelation",
    "compare",
    "contraction",
    "relaxation",
    "spectral",
    "tv_bound",
    "two_inputs",
]

ignore_underflow(__name__)
