"""The fixed point of the mean-field map that all permutations of the samples preserve.

`results` has the result, with the modes of a convolution.  `symmetric` dispatches on norm and
activation, has the formulas for rows that are uniform on a sphere, and estimates the errors.
`uncentred` has the other case, and the entries between two batches.  Both use `expectations`: what
is known about the activation, and averages over the angle of a row.  `stability` has the batch
sizes at which the stability changes.

The package imports `bnmc.chain`, `bnmc._support`, `bnmc.errors`, `bnmc.mean_field.quadrature` and
`bnmc.mean_field.float64`.  Read `symmetric.py` first.
"""
