"""How fast a chain forgets where it started: certificates and estimates, one file an estimator."""

from __future__ import annotations
