"""Compiled kernels, which know arrays and numbers but no chains.

With `bnmc.kernels`, this is the only package that knows Numba.  Of the rest of `bnmc`, it imports
`bnmc.errors` alone.
Read `compiling.py` first, then `cpu/layers.py`.
"""
