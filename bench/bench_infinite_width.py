"""The tangent kernel of many inputs: time, memory, and the same formulas in plain NumPy."""

import numpy as np

from bench.children import CAN_WATCH, memory_of
from bench.turns import SECONDS, Candidate, repeating
from bnmc.infinite_width import ntk

FEATURES, SAMPLES, DEPTH = 784, 2000, 10

#: Seconds and resident GB of a process, at most; speed over the formulas, at least.
LONGEST, GIGABYTES, SPEED = 10.0, 1.0, 1.0

SETUP = """
import numpy as np
from bnmc.infinite_width import ntk
"""
CALL = """
    x = np.random.default_rng(0).standard_normal(({features}, {samples}))
    ntk(x, {depth}, activation="relu", weight_variance=2.0)
"""


def test_tangent_kernel(turns):
    """Time the kernel in turns with the formulas, by the wall and in processor time."""
    features, samples = turns.of((FEATURES, SAMPLES), (FEATURES, SAMPLES), (20, 30))
    turns.group = f"ntk of relu, {samples} inputs, depth {DEPTH}"
    x = np.random.default_rng(0).standard_normal((features, samples))

    def ours():
        return ntk(x, DEPTH, activation="relu", weight_variance=2.0)

    # The root of 1 − c² loses half of the digits on the diagonal.
    difference = float(np.abs(ours() / by_formulas(x, DEPTH) - 1.0).max())
    candidates = [
        Candidate("ntk", repeating(ours), shown=SECONDS),
        Candidate("NumPy", repeating(lambda: by_formulas(x, DEPTH)), shown=SECONDS),
    ]
    timings = turns(candidates, rounds=turns.of(5, 1), seconds=0.001)
    mine, other = timings["ntk"], timings["NumPy"]
    call = CALL.format(features=features, samples=samples, depth=DEPTH).strip()
    turns.hold("ntk", "s", mine.median, at_most=LONGEST)
    turns.hold("ntk", "x NumPy", mine.speed_over(other), at_least=SPEED)
    in_processor_time = mine.on_processor.speed_over(other.on_processor)
    turns.hold("ntk", "x NumPy, processor time", in_processor_time, at_least=SPEED)
    if CAN_WATCH:
        resident = 1e-3 * memory_of(SETUP, call)["peak"]
        turns.hold("ntk", "resident GB of a process", resident, at_most=GIGABYTES)
    turns.hold("ntk", "relative difference from NumPy", difference, at_most=1e-6)


def by_formulas(x, depth):
    """Return the tangent kernel of relu with σ_w² = 2, by the arc-cosine formulas."""
    kernel = 2.0 * x.T @ x / len(x)
    tangent = kernel
    for _ in range(depth):
        root = np.sqrt(np.diagonal(kernel))
        scale = root[:, None] * root
        cosine = np.clip(kernel / scale, -1.0, 1.0)
        slope = 1.0 - np.arccos(cosine) / np.pi
        kernel = scale * np.sqrt(1.0 - cosine**2) / np.pi + kernel * slope
        tangent = kernel + tangent * slope
    return tangent
