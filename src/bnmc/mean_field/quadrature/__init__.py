"""Quadrature for activations with corners and jumps, to about 1e-13.

The mean field needs expectations of an activation σ at one or two coordinates of a random vector
that is uniform on a sphere, or normal.  `panels` has Gauss-Legendre rules on panels, `resolution`
cuts an interval into panels on which σ is smooth, with the `candidates` for kinks and narrow
features, `sphere` makes the rules for the sphere and the normal law, `moments` computes the
expectations that the fixed points share, and `table` interpolates functions of an angle.

The errors of these rules come from three sources: `growth` chooses the range of integration and
bounds the rest, `deviation` measures the distance of σ from polynomials on its panels, and
`gradient` finds jumps and singular derivatives.

The package imports NumPy, `bnmc.chain.activations` and `bnmc.mean_field.float64`.  Read
`resolution.py` first, then `sphere.py`.
"""
