"""The run of the tests of stores: of four chains, with or without a store."""

import bnmc

RELU = bnmc.Chain(30, 4, "relu")


def run(path=None, chain=RELU, depth=20, **options):
    """Return the run, in the store at `path` if there is one."""
    settings = {"chains": 4, "rng": 3, "threads": 1, "store": path, **options}
    return bnmc.simulate(chain, depth, **settings)
