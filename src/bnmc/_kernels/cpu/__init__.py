"""The CPU kernels, compiled by Numba.

Rows of a layer are worked on in blocks, kept as (column, row), so that neighbouring lanes of a
vector are neighbouring rows.  The package knows arrays and numbers, never a `Chain`; it may import
`_kernels.scalar` and `_kernels.compiling`.  Read `layers.py` first, then `rows.py`.
"""

from bnmc._kernels.compiling import inline_module
from bnmc._kernels.scalar import cholesky, elementary, moments, normal, philox, scaling

for _module in (philox, elementary, normal, cholesky, scaling, moments):
    inline_module(_module)

# Two of them have the names of files here.
del cholesky, elementary, moments, normal, philox, scaling
