"""Fixed points of the map: their entries, their eigenvalues, their limits and stability.

Read `fixed_point.py` first.
"""
