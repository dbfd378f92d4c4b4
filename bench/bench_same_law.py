"""How often `assert_same_law` fails right steps, and how soon it finds wrong ones.

Layers are those of tests/numpy_steps.py, in NumPy. Each seed gives another network and another
generator of states.
"""

import inspect
import statistics
import textwrap
import time

import numpy as np
import pytest
from numpy_steps import Network
from scipy.stats import binom

import bnmc
from bench.turns import only
from bnmc._claims.claims import judged
from bnmc.testing import LawMismatch, assert_same_law
from bnmc.testing.same_law import SequentialTest

SEEDS, QUICK_SEEDS, TINY_SEEDS, FEW_ROWS = 1000, 40, 2, 64
ALPHAS = (0.05, 0.01, 0.001)
#: Largest time to explain a mistake, in seconds, and smallest allowed p-value of a count of false
#: alarms, for tests that are exact.
LONGEST, LEAST_P = 10.0, 1e-6
ALPHA = 1e-6

RELU = bnmc.Chain(20, 5, "relu")

RIGHT = {
    "relu, width 10, batch 3": (bnmc.Chain(10, 3, "relu"), {}, 512),
    "tanh, width 20, batch 5, skip 0.5": (
        bnmc.Chain(20, 5, "tanh", skip=0.5), {"skip": 0.5}, 512
    ),
    "linear, uncentred, width 12, batch 12": (
        bnmc.Chain(12, 12, norm="batch-uncentred"), {"centred": False}, 512
    ),
    "relu, width 10, batch 3, uniform weights": (
        bnmc.Chain(10, 3, "relu", weights="uniform"), {"weights": "uniform"}, 512
    ),
}  # fmt: skip


def leaky(x):
    return np.where(x < 0.0, 0.01 * x, x)


WRONG = {
    "eps 1e-5": (RELU, {"eps": 1e-5}),
    "evaluation mode": (RELU, {"norm": lambda h: h}),
    "momentum 0.1": (RELU, {"momentum": 0.1}),
    "no centring": (RELU, {"centred": False}),
    "ddof 1": (RELU, {"ddof": 1}),
    "activation tanh": (RELU, {"sigma": "tanh"}),
    "leaky relu, slope 0.01": (RELU, {"sigma": leaky}),
    "variance 2/width": (RELU, {"scale": 2**0.5}),
    "Linear of PyTorch": (RELU, {"weights": "uniform", "scale": 3**-0.5, "bias": 1.0}),
    "skip connection 0.1": (RELU, {"skip": 0.1}),
    "variance 4 % off": (RELU, {"scale": 1.04**0.5}),
    "uniform weights": (RELU, {"weights": "uniform"}),
    "uniform weights, width 10, batch 3": (bnmc.Chain(10, 3, "relu"), {"weights": "uniform"}),
    "normal weights, truncated at 2": (RELU, {"weights": "truncated"}),
    "orthogonal weights": (RELU, {"weights": "orthogonal"}),
    "one W at all calls": (RELU, {"pool": 1}),
    "seven W in turn": (RELU, {"pool": 7}),
    "rows correlated by 0.2": (RELU, {"weights": "correlated"}),
    "rows alike in pairs": (RELU, {"weights": "twins"}),
}


#: Seeds of a full and of a quick run for each width; quick runs leave out width 1000.
FAULT_SEEDS = {20: (10, 4), 200: (6, 2), 1000: (2, 2)}
ROWS, BATCH = 2**14, 5

FAULTS = {
    "neighbouring rows correlated by +-0.3": {"weights": "paired 0.3"},
    "neighbouring rows correlated by +-0.7": {"weights": "paired 0.7"},
    "second half of rows = +- first half": {"weights": "mirrored"},
    "last W at every even call, random sign": {"reused": 1},
    "last W at every odd call, random sign": {"reused": 2},
    "one W, rows with random signs": {"weights": "same up to signs"},
    "all columns but the first uniform": {"weights": "all but first uniform"},
    "all columns but the first Rademacher": {"weights": "all but first rademacher"},
    "Student's t, 10 degrees of freedom": {"weights": "student 10"},
    "Student's t, 30 degrees of freedom": {"weights": "student 30"},
    "rows of W normalized": {"weights": "unit rows"},
    "Frobenius norm of W normalized": {"weights": "unit Frobenius"},
    "Student's t, 100 degrees of freedom": {"weights": "student 100"},
    "W rounded to float16": {"weights": "float16"},
}

#: Names of faults that the default number of rows does not find at a width.
HIDDEN = {
    20: {"Student's t, 100 degrees of freedom", "W rounded to float16"},
    200: {
        "Frobenius norm of W normalized",
        "Student's t, 100 degrees of freedom",
        "W rounded to float16",
    },
    1000: {
        "rows of W normalized",
        "Frobenius norm of W normalized",
        "Student's t, 100 degrees of freedom",
        "W rounded to float16",
    },
}

#: Fault, width, batch, rows and seeds: what larger numbers and batches find.
LARGER = (
    ("Frobenius norm of W normalized", 200, 20, 2**18, 2),
    ("rows of W normalized", 1000, 20, 2**16, 2),
    ("Student's t, 100 degrees of freedom", 200, 5, 2**18, 1),
    ("rows of W normalized", 1000, 5, 2**18, 1),
)


@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, rows) for name, (_, _, rows) in RIGHT.items()),
     *((name, FEW_ROWS) for name, (chain, _, _) in RIGHT.items() if chain.is_gaussian)],
)  # fmt: skip
def test_false_alarms(turns, name, rows):
    """How many of right steps fail at each alpha; few rows let the exact tests repeat often."""
    chain, options, _ = RIGHT[name]
    rows = turns.of(rows, rows, 16)
    seeds = turns.of(SEEDS, QUICK_SEEDS, TINY_SEEDS)
    turns.group = "Right steps that fail"
    row = f"{name}, {rows} rows"

    def least_level(seed):
        return min(
            level for _, level, _ in levels(layer_of(chain, options, seed), chain, seed, rows)
        )

    least = np.array(turns.timed(row, lambda: [least_level(seed) for seed in range(seeds)]))
    counts = [int(np.count_nonzero(least <= alpha)) for alpha in ALPHAS]
    turns.add(row, {"seeds": seeds} | {
        f"% at {100 * alpha:g} %": 100.0 * count / seeds
        for alpha, count in zip(ALPHAS, counts, strict=True)
    })  # fmt: skip
    # With other weights alpha is asymptotic, by the central limit theorem.
    p = min(
        float(binom.sf(count - 1, seeds, alpha))
        for count, alpha in zip(counts, ALPHAS, strict=True)
    )
    turns.hold(row, "p-value", p, at_least=LEAST_P if chain.is_gaussian else None)


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(turns, mistake):
    """In how many seeds a mistake is detected, after how many calls, and the time to explain it."""
    chain, options = WRONG[mistake]
    seeds = turns.of(SEEDS, QUICK_SEEDS, 1)
    turns.group = f"Wrong steps, alpha {ALPHA:g}"
    count_findings(turns, mistake, chain, options, seeds)
    begun, cause = time.perf_counter(), "not found"
    try:
        assert_same_law(layer_of(chain, options, 0), chain, rng=0, alpha=ALPHA)
    except LawMismatch as error:
        cause = error.causes[0] if error.causes else "?"
    turns.hold(mistake, "s to explain", time.perf_counter() - begun, at_most=LONGEST)
    turns.add(mistake, {"said first": textwrap.shorten(cause, 60, placeholder=" …")})


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("width", only(FAULT_SEEDS, quick=[20, 200], tiny=[20]))
def test_faults(turns, width, fault):
    """After how many calls a wrong law of the weights is detected, by width."""
    is_hidden = fault in HIDDEN[width]
    seeds = turns.of(*FAULT_SEEDS[width], 1)
    turns.group = f"Wrong layers of width {width}, batch {BATCH}, rows {ROWS}, alpha {ALPHA:g}"
    rows = turns.of(ROWS, ROWS, 64)
    seeds = min(seeds, 2) if is_hidden else seeds
    chain = bnmc.Chain(width, BATCH, "relu")
    count_findings(turns, fault, chain, FAULTS[fault], seeds, rows, is_held=not is_hidden)


@pytest.mark.parametrize(
    "case",
    only(LARGER, quick=LARGER[:1], tiny=LARGER[:1]),
    ids=lambda case: f"{case[0]}, {case[1]}, {case[2]}",
)
def test_faults_of_larger_batches(turns, case):
    """What the default number of rows does not detect, larger batches and more rows do."""
    fault, width, batch, rows, seeds = case
    turns.group = "Larger batches and more rows"
    name = f"width {width}, batch {batch}, rows {rows}: {fault}"
    chain = bnmc.Chain(turns.of(width, width, 20), turns.of(batch, batch, 5), "relu")
    rows, seeds = turns.of((rows, seeds), (rows, seeds), (64, 1))
    count_findings(turns, name, chain, FAULTS[fault], seeds, rows)


def count_findings(turns, name, chain, options, seeds, rows=None, is_held=True):
    """Count the seeds that detect a wrong layer, their calls, and the tests that fail first."""

    def ends():
        return [first_failure(layer_of(chain, options, seed), chain, seed, rows)
                for seed in range(seeds)]  # fmt: skip

    failures = [failure for failure in turns.timed(name, ends) if failure is not None]
    calls = [count for count, _ in failures]
    turns.add(name, {
        "seeds": seeds, "s a seed": turns.timings[name].median / seeds,
        "calls, median": float(statistics.median(calls)) if calls else None,
        "calls, most": max(calls, default=None),
        "first test": statistics.mode(test for _, test in failures) if failures else "-",
    })  # fmt: skip
    turns.hold(name, "share of seeds", len(calls) / seeds, at_least=1.0 if is_held else None)


def layer_of(chain, options, seed):
    """Return a layer with its own seed."""
    return Network(chain.width, **{"sigma": chain.activation.name, **options, "seed": 10**6 + seed})


def first_failure(step, chain, seed, rows):
    """Return the calls until a step fails and the test that fails, or None if it passes."""
    stages = levels(step, chain, seed, rows)
    return next(((calls, test) for calls, level, test in stages if level <= ALPHA), None)


def levels(step, chain, seed, rows=None):
    """Yield, for each stage, the calls so far and the least alpha at which the step fails.

    The third part is the name of the clearest failure.
    """
    test = SequentialTest(step, chain, np.random.default_rng(seed))
    if rows is None:
        rows = inspect.signature(assert_same_law).parameters["rows"].default
    stages = test.numbers_of_calls(rows)
    for calls in stages:
        judgements = judged(test.claims_after(calls), 0.5)
        clearest = min(judgements, key=lambda row: (float(row.adjusted or 0.0), row.p_value or 0.0))
        yield test.step.calls, len(stages) * float(clearest.adjusted or 0.0), clearest.claim
