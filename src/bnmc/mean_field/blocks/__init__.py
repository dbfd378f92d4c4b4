"""Block-symmetric fixed points: what replaces a fixed point that is unstable.

Read `block_map.py` first.
"""
