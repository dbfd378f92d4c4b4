"""Settings that all tests share."""

import os

from hypothesis import settings

# GPU kernels run in Numba's simulator, which is chosen when Numba is imported; elsewhere this has
# no effect.  NUMBA_ENABLE_CUDASIM=0 runs them on a GPU.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

# The same examples in every run, and no deadline: the first call of a kernel compiles it.
settings.register_profile("bnmc", deadline=None, derandomize=True)
settings.load_profile("bnmc")
