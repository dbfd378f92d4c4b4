"""How fast a chain forgets where it started: certificates and estimates, one file an estimator."""

from __future__ import annotations

from bnmc.mixing.autocorrelation_time import Autocorrelation, autocorrelation
from bnmc.mixing.comparison import Comparison, ComparisonRow, compare
from bnmc.mixing.contraction_rate import Contraction, contraction
from bnmc.mixing.implied_timescales import ChapmanKolmogorov, Spectrum, spectral
from bnmc.mixing.meeting_bound import TVBound, tv_bound
from bnmc.mixing.rate import RateEstimate
from bnmc.mixing.relaxation_curve import Relaxation, relaxation
from bnmc.mixing.same_network import TwoInputs, two_inputs

__all__ = [
    "Autocorrelation",
    "ChapmanKolmogorov",
    "Comparison",
    "ComparisonRow",
    "Contraction",
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
