"""How fast a chain forgets where it started: certificates and estimates, one file an estimator."""

from __future__ import annotations

from bnmc.mixing.autocorrelation import Autocorrelation, autocorrelation
from bnmc.mixing.comparison import Comparison, ComparisonRow, compare
from bnmc.mixing.contraction import Contraction, contraction
from bnmc.mixing.coupling import TVBound, tv_bound
from bnmc.mixing.rate import RateEstimate
from bnmc.mixing.relaxation import Relaxation, relaxation
from bnmc.mixing.spectral import ChapmanKolmogorov, Spectrum, spectral
from bnmc.mixing.two_inputs import TwoInputs, two_inputs

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
