"""The law of the Gram matrix at finite width, to leading order in 1/width.

`sectors` solves the equation of the covariance in each sector of the permutation group.
`joint_moments` computes the expectations of up to four activations in it; for large batches,
`transforms` does.  `bias` has the shift of the mean.  `results` has the
predictions at stationarity, and `predicted` joins them, for maps of pairs of samples as well.
`path` has the predictions along the path of one input, and `gaussian` their result.

The package imports `bnmc.mean_field.fixed_point`, `bnmc.mean_field.correlation`,
`bnmc.mean_field.quadrature` and `bnmc.mean_field.map`.  Read `sectors.py` first.
"""
