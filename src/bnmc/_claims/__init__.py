"""Claims about a law, and the evidence for them: what `invariant` and `testing` share.

A claim compares a sample mean with its expectation under the law of a chain.  The package may
import `chain`, `estimate`, `gram` and lower levels.  Read `claims.py` first.
"""
