"""Dual activations: expectations of products of an activation at two normal variables.

`duals` has `dual`, which returns them for an activation, and those with a formula; `series`
computes those of any other function by Hermite series.  `bnmc.infinite_width` exports `dual` and
`Dual`; `correlation` uses them for its maps.

The package imports `bnmc.chain.activations`, `bnmc._kernels` and `bnmc.mean_field`.  Read
`duals.py` first.
"""
