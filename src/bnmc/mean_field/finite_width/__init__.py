"""The law of the stationary Gram matrix at finite width, to leading order in 1/width.

`sectors` solves the equation of the covariance in each sector of the permutation group,
`joint_moments` computes the expectations of up to four activations in it, `results` has the
predictions, and `predicted` joins them. The package imports `bnmc.mean_field.fixed_point` and
`bnmc.mean_field.quadrature`. Read `sectors.py` first.
"""
