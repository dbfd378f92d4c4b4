"""Fixed points of the mean-field map with two blocks of samples, under norm "batch".

If the symmetric fixed point is unstable, the chain may converge to one of these.
`block_fixed_point` has the public functions and `results` their result; `roots` solves the
equations for the fixed points.  `block_map` is the map and its Jacobian on matrices with two
blocks, `modes` the eigenvalues of the Jacobian.  Both need expectations `given_lengths`, which use
the quadrature of `lengths`, the `block_moments` of one block with their `pair_series`, and the
`pieces` of the activation.

The package imports `bnmc.chain`, `bnmc._support`, `bnmc.errors`, `bnmc.mean_field.quadrature` and
`bnmc.mean_field.float64`.  Read `block_map.py` first.
"""
