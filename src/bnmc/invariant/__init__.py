"""The invariant law of a chain: expectations without bias, samples with a certificate, checks."""

from __future__ import annotations

from bnmc.invariant.check import check
from bnmc.invariant.expectation import expectation
from bnmc.invariant.report import CheckReport, Claim
from bnmc.invariant.sample import InvariantSample, sample

__all__ = ["CheckReport", "Claim", "InvariantSample", "check", "expectation", "sample"]
