"""The stationary law of a chain: unbiased expectations, certified samples, tests of claims.

The package may import `mixing`, `_claims` and lower levels.  Read `certified_sample.py` first: a
sample carries the bound of its distance from the stationary law.  `claim_check.py` tests claims
about the law, and reports them beside distances without a test.
"""

from __future__ import annotations

from bnmc._claims.claims import Claim as Claim
from bnmc._support.arithmetic import make_public
from bnmc.invariant.certified_sample import InvariantSample as InvariantSample
from bnmc.invariant.certified_sample import sample
from bnmc.invariant.claim_check import CheckReport as CheckReport
from bnmc.invariant.claim_check import check
from bnmc.invariant.stationary_mean import expectation

__all__ = ["check", "expectation", "sample"]

make_public(__name__)
