"""Runs in memory and in stores that the tests interrupt, and their comparison bit by bit."""

from pathlib import Path

import numpy as np
import small_stores

import bnmc
from bnmc.experiments.runs import Run

SEED = 2026
#: Of tiles and parts: short runs are to have many.
TILE_SECONDS = 2e-3
DEPTH = 12_000
CHAIN = {"width": 20, "batch": 4, "activation": "relu"}
OBSERVABLES = ["gram", "eigenvalues"]


def run(path=None, **options):
    """Return the run of these tests, in memory or in a store."""
    settings = {"depth": DEPTH, "every": 10, "rng": SEED, "observables": OBSERVABLES, **options}
    return small_stores.run(path, bnmc.Chain(**CHAIN), **settings)


def same(result, expected):
    """Whether two runs have the same bits, their final states included."""
    pairs = [(result[name], expected[name]) for name in OBSERVABLES]
    states = result.final_state.arrays, expected.final_state.arrays
    pairs += [(states[0][name], states[1][name]) for name in states[1]]
    return result.complete and all(np.array_equal(*pair) for pair in pairs)


def finished(path):
    """Return the files of the finished parts of a store, or of a folder of parts."""
    return {str(file.relative_to(path)) for file in path.glob("**/part-*.npz")}


def damaged(path, expected):
    """Return how many finished tiles have other data than an uninterrupted run."""
    import zarr

    group = zarr.open_group(path, mode="r", zarr_format=3)
    of_part, of_block = (int(group.attrs[name]) for name in ("part", "block"))
    wrong = 0
    for name in finished(path):
        part, block = map(int, Path(name).stem.split("-")[1:])
        chains = slice(part * of_part, (part + 1) * of_part)
        slots = slice(block * of_block, (block + 1) * of_block)
        wrong += not all(
            np.array_equal(group[name][chains, slots], expected[name][chains, slots])
            for name in OBSERVABLES
        )
    return wrong


# --- the clients of the store: runs, gradients and figures


def values(path=None):
    """Return the values and the state of the run of these tests."""
    result = run(path)
    return [*(result[name] for name in OBSERVABLES), *result.final_state.arrays.values()]


def gradients(path=None):
    """Return a backward pass in many parts, kept in a folder."""
    chain = bnmc.Chain(40, 4, "tanh")
    result = bnmc.backpropagate(chain, 300, chains=60, rng=SEED, threads=1, store=path)
    return [result.log_gradient_norm]


def figure(path=None):
    """Return twelve parts of an experiment, kept in a folder."""
    chain = bnmc.Chain(**CHAIN)

    def gram(number, progress):
        options = {"threads": 1, "progress": progress, "observables": ["gram"]}
        return bnmc.simulate(chain, 3000, every=10, rng=number, **options)["gram"]

    points = [(number,) for number in range(12)]
    return list(Run("figure", {}, rng=SEED, store=path).parts(gram, points).values())


#: What writes a store or a folder at a path, and returns all values.
CLIENTS = {"simulate": values, "backpropagate": gradients, "figure": figure}
