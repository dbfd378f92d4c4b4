"""Compiled kernels: the only folder that knows Numba.  It knows arrays and numbers, not chains."""
