"""How fast a chain forgets where it started: certificates and estimates, one file an estimator."""

from __future__ import annotations

from bnmc.mixing.contraction import Contraction, contraction
from bnmc.mixing.coupling import TVBound, tv_bound
from bnmc.mixing.rate import RateEstimate
from bnmc.mixing.two_inputs import TwoInputs, two_inputs

__all__ = [
    "Contraction",
    "RateEstimate",
    "TVBound",
    "TwoInputs",
    "contraction",
    "tv_bound",
    "two_inputs",
]
