"""Estimates: a number with its standard error and confidence interval, and the intervals.

The package may import `_support` and `errors`. Read `estimate.py` first.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.estimate.estimate import Estimate

__all__ = ["Estimate"]

make_public(__name__)
