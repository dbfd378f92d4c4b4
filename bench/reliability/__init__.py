"""Runs that are killed, interrupted, cut and damaged: counts, and what it costs.

Every run is compared bit by bit with one that nothing happened to.  Read `parts.py` first.
"""
