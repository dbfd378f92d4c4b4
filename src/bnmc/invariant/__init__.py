"""The invariant law of a chain: expectations without bias, samples with a certificate, checks."""

from __future__ import annotations

from bnmc._claims.evidence import Claim
from bnmc.invariant.certified_sample import InvariantSample, sample
from bnmc.invariant.claim_check import check
from bnmc.invariant.report import CheckReport
from bnmc.invariant.stationary_mean import expectation

__all__ = ["CheckReport", "Claim", "InvariantSample", "check", "expectation", "sample"]
