"""Quadrature for activations with corners and jumps, to about 1e-13.

The mean field needs expectations of an activation σ at one or two coordinates of a random vector
that is uniform on a sphere, or normal.  `panels` has Gauss-Legendre rules on panels and tables on
panels, `resolution` cuts an interval into panels on which σ is smooth, `sphere` makes the rules for
the sphere and the normal law, `deviation` bounds the errors of these rules, and `profile` has all
that is known of one activation.

The package imports `bnmc._kernels`, `bnmc.chain.activations` and `bnmc.mean_field.float64`.  Read
`profile.py` first, then `resolution.py` and `sphere.py`.
"""
