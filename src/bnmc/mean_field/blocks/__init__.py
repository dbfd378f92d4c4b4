"""Fixed points of the mean-field map with two blocks of samples, under norm "batch".

If the symmetric fixed point is unstable, the chain may converge to one of these.
`block_fixed_point` has the public functions and their result.  `block_map` is the map on matrices
with two blocks, with the eigenvalues of its Jacobian and the roots of the equations for the fixed
points.  It needs expectations given the `lengths` of the parts of a row.

The package imports `bnmc.chain`, `bnmc._support`, `bnmc.errors`, `bnmc.mean_field.fixed_point`,
`bnmc.mean_field.quadrature` and `bnmc.mean_field.float64`.  Read `block_map.py` first.
"""
