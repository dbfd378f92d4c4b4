"""The law of the Gram matrix at finite width, to leading order in 1/width.

`sectors` solves the equation of the covariance in each sector of the permutation group.
`joint_moments` and `uncentred_moments` compute the expectations of up to four activations in it.
For large batches, `transforms` does. `results` has the predictions at stationarity, and `predicted`
joins them. `pair_moments`, `pair_results` and `pair_fluctuations` have the same for norms over the
features and none. `path` and `path_results` have those along the path of one input. The package
imports `bnmc.mean_field.fixed_point`, `bnmc.mean_field.correlation`, `bnmc.mean_field.quadrature`
and `bnmc.mean_field.map`. Read `sectors.py` first.
"""
