"""Samplers: the ways to take an ensemble of chains through layers, all with one law.

The package may import `chain`, `_support` and `_kernels`; no sampler knows how a run is divided.
Read `sampler.py` first, then `rows.py` and `conditional.py`.
"""
