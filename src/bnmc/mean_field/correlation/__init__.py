"""Chains whose mean field acts on pairs: no norm, norms over the features, and biases.

`CorrelationMap` is the map of variances and correlations, with its fixed points and phases.
`edge_of_chaos` is the curve between the phases, `isometry_rate` the rate at which inputs become
orthogonal if a norm follows the activation, and `residual_growth` the growth laws of residual
networks.

The sources are Poole, Lahiri, Raghu, Sohl-Dickstein and Ganguli (arXiv 1606.05340); Schoenholz,
Gilmer, Ganguli and Sohl-Dickstein (arXiv 1611.01232); Yang and Schoenholz (arXiv 1712.08969); and
Joudaki, Daneshmand and Bach (arXiv 2305.18399).

The package imports `bnmc._support`, `bnmc.errors`, `bnmc.chain`, and of `bnmc.mean_field` the dual
activations and the panels.  Read `layer.py` first, then `correlation_map.py`.
"""
