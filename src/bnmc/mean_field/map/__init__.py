"""The mean-field map F, from the Gram matrix G of one layer to that of the next.

F(G) = E[σ(φ) σ(φ)ᵀ], with σ the activation, φ = N(h) a normalized row, N the normalization, and
h ~ N(0, gain² G).  `rows` turns G into the law of h, removes the normalization by an integral,
and evaluates it for homogeneous activations; `pairwise` does so for all others.  `iteration` checks
the arguments and iterates.  Layers without norm over the batch are in
`bnmc.mean_field.pairwise_layer`.

The package imports `bnmc.chain`, `bnmc.gram`, `bnmc._support`, `bnmc.errors` and
`bnmc.mean_field.float64`.  Read `iteration.py` first.
"""
