"""Claims about a law, and the evidence for them: shared by `invariant` and `testing`.

A claim compares a sample mean with its expectation under the law of a chain.  The package may
import `chain`, `estimate`, `gram` and lower levels.  Read `layer.py` first, then `claims.py`.
"""
