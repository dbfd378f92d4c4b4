"""Compiled kernels, which know arrays and numbers but no chains.

With `bnmc.kernels`, this is the only package that knows Numba.  It imports nothing else of `bnmc`.
Read `compiling.py` first, then `cpu/layers.py`.
"""
