"""The map of the mean field, G to E[σ(φ) σ(φ)ᵀ], by activation and norm.

Read `map.py` first.
"""
