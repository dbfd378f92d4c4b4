"""Scalar functions in plain Python, without Numba: compiled for every target from one source.

Each function works on NumPy scalars, so it runs (and is tested) as ordinary Python; the CPU and
GPU modules compile the same source.  Three habits make the compiled loops vectorise:

* every intermediate result is cast to the dtype that it is meant to have, because Numba, unlike
  NumPy, promotes 32-bit integer arithmetic to 64 bits;
* integer arithmetic that may wrap is done in 64 bits and masked, because NumPy scalars warn where
  machine words wrap;
* conditions are conditional expressions without side effects, which compilers turn into selects.

The package imports NumPy alone.  Read `philox.py` and `normal.py` first.
"""
