"""The fixed point of the mean-field map that all permutations of the samples preserve.

Results are in `results`.  `symmetric` dispatches on norm and activation and estimates errors;
`isotropic`, `uncentred` (with `angle_table`, `angle_average` and `cross_batch`) compute the fixed
point and the eigenvalues of the Jacobian.  `large_batch` has the limit for infinite batches,
`crossings` the batch sizes at which stability changes, `stability_plot` a picture of them.

The package imports `bnmc.chain`, `bnmc._support`, `bnmc.errors`, `bnmc.mean_field.quadrature`,
`bnmc.mean_field.float64` and, for the picture, `bnmc.plot`.  Read `symmetric.py` first.
"""
