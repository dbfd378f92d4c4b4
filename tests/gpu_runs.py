"""The same run on the CPU and on a GPU, and by how much the two may differ."""

import numpy as np

from bnmc import simulate


def both(chain, depth, **options):
    """Runs on the CPU and on the GPU."""
    options = {"rng": 11, **options}
    return [simulate(chain, depth, backend=backend, **options) for backend in ("cpu", "cuda")]


def assert_equal_to_rounding(a, b, layers=1):
    """Entries of G are means of products: of d terms, after a factor of n x n and a row's norm.

    Each step is off by at most as many roundings as it has terms, relative to entries of order one.
    The condition of the factors, here at most 100, multiplies them, once, where the chain
    contracts.
    """
    n, d = a.chain.batch * (a.inputs or 1), a.chain.width
    unit = 2.0**-23 if a.dtype == "float32" else 2.0**-52
    # Rounding of random sign adds up like the square root.
    terms = np.sqrt(d) + 3 * n + 20
    assert np.abs(a.gram - b.gram).max() <= 100 * unit * terms * layers
