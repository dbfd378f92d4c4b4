"""The memory of runs: what `simulate` estimates before it begins, against the measured peak.

Each shape has a process of its own.  After a small run has compiled the kernels, a run is made
while its resident set is watched, and then the same run while `tracemalloc` counts the arrays.  The
resident set includes what tracemalloc does not count, such as buffers of BLAS, and lacks pages that
were free before.
"""

import pytest

from bench.children import CAN_WATCH, WATCHER, child
from bench.turns import only

#: Largest ratio of estimate and peak, and of peak and estimate.
FACTOR = 1.3

#: Chain, depth and arguments, as text.
SHAPES = {
    "Gram matrices": ("Chain(100, 10)", 300, "chains=100"),
    "depth 0": ("Chain(20, 10)", 0, "chains=100_000"),
    "mean over chains": ("Chain(20, 3)", 4, "chains=300_000, reduce='chain'"),
    "mean over layers": ("Chain(20, 3)", 4, "chains=300_000, reduce='layer'"),
    "mean over both": ("Chain(20, 3)", 4, "chains=300_000, reduce=('chain', 'layer')"),
    "deep, mean over chains": ("Chain(20, 3)", 40_000, "reduce='chain'"),
    "deep, a number": ("Chain(20, 3)", 200_000, "observables='orthogonality_gap'"),
    "eigenvalues": ("Chain(50, 8)", 300, "chains=200, observables='eigenvalues'"),
    "several observables": (
        "Chain(50, 8)", 200, "chains=200, observables=['gram', 'soft_rank', 'rank_bound']"
    ),
    "nothing recorded": ("Chain(50, 8)", 20, "chains=20_000, observables=()"),
    "batch of 600": ("Chain(300, 600)", 2, ""),
    "batch of 600, eigenvalues": ("Chain(300, 600)", 2, "observables='eigenvalues'"),
    "batch of 500, two threads": ("Chain(3000, 500)", 2, "threads=2"),
    "cross-Gram": ("Chain(50, 6)", 20, "chains=100, inputs=8, observables='cross_gram'"),
    "skip, float64": ("Chain(2000, 10, skip=1.0)", 5, "chains=200"),
    "skip, float32": ("Chain(2000, 10, skip=1.0)", 5, "chains=200, dtype='float32'"),
    "weights, float64": ("Chain(500, 10)", 2, "chains=100, sampler='weights'"),
    "weights, float32": ("Chain(500, 10)", 2, "chains=100, sampler='weights', dtype='float32'"),
    "an array": ("Chain(100_000, 20)", 1, "initial=normals(100_000, 20)"),
    "an array per chain": ("Chain(2000, 10)", 1, "chains=100, initial=normals(100, 2000, 10)"),
    "an array, float32": (
        "Chain(2000, 10)", 1, "chains=100, initial=normals(100, 2000, 10).astype('float32')"
    ),
    "an array of 4 inputs": (
        "Chain(2000, 5)", 1, "chains=100, inputs=4, initial=normals(100, 4, 2000, 5)"
    ),
    "features": ("Chain(100, 200)", 1, "initial=bnmc.FirstLayer(normals(50_000, 200))"),
    "factors": ("Chain(10**6, 30, 'linear', norm='none')", 20, "chains=300"),
    "a store": ("Chain(20, 4)", 300, "chains=2000, threads=2, store=folder + '/run.zarr'"),
    "a store, states": (
        "Chain(1000, 4, skip=1.0)", 10, "chains=1000, threads=2, store=folder + '/run.zarr'"
    ),
    "an executor": ("Chain(20, 4)", 300, "chains=2000, threads=2, executor=executor"),
}  # fmt: skip

PROGRAM = """
import os, shutil, tempfile, tracemalloc, warnings
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import bnmc
from bnmc import Chain
from bnmc.errors import ResultTooLargeError
from bnmc.simulation import memory

warnings.simplefilter("ignore")

def normals(*shape):
    return np.random.default_rng(0).standard_normal(shape)

with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as executor:
    chain = {chain}
    options = {{"threads": 1, **dict({options})}}
    available, memory.available_memory = memory.available_memory, lambda: 0
    try:
        bnmc.simulate(chain, {depth}, rng=0, **options)
    except ResultTooLargeError as error:
        needed = error.requested
    memory.available_memory = available
    small = {{name: options[name] for name in ("sampler", "dtype") if name in options}}
    if "store" in options:
        small["store"] = folder + "/small.zarr"
    narrow = Chain(64, 4, chain.activation, norm=chain.norm, skip=chain.skip)
    bnmc.simulate(narrow, 2, rng=0, **small)
    with Watch() as watch:
        bnmc.simulate(chain, {depth}, rng=0, **options)
    shutil.rmtree(folder + "/run.zarr", ignore_errors=True)
    gc.collect()
    tracemalloc.start()
    bnmc.simulate(chain, {depth}, rng=0, **options)
    peak = tracemalloc.get_traced_memory()[1]
print(json.dumps([needed / 1e6, peak / 1e6, watch.added]))
"""


@pytest.mark.skipif(not CAN_WATCH, reason="the peak of a process cannot be reset")
@pytest.mark.parametrize("name", only(SHAPES, quick=[*SHAPES][::4], tiny=[*SHAPES][:1]))
def test_estimate(turns, name):
    """The estimate of `simulate` against measured peaks."""
    chain, depth, options = SHAPES[name]
    turns.group = "Estimated and measured memory"
    program = WATCHER + PROGRAM.format(chain=chain, depth=depth, options=options)
    needed, peak, resident = turns.timed(name, lambda: child(program))
    turns.add(name, {"estimate MB": needed, "peak of arrays MB": peak, "resident MB": resident})
    # The peak of tiles depends on the order in which threads finish: the estimate is for the
    # latest.
    tiled = "store=" in options or "executor=" in options
    turns.hold(name, "estimate/peak", needed / peak, at_most=None if tiled else FACTOR)
    turns.hold(name, "peak/estimate", peak / needed, at_most=FACTOR)
