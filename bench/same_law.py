"""How often `assert_same_law` fails right steps, and how soon it finds wrong ones.

Layers are those of tests/numpy_steps.py, in NumPy (extra ``test``). The number of rows is the
default of `assert_same_law`. Each seed gives another network and another generator of states.
"""

from __future__ import annotations

import inspect
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bnmc
from bench.report import Cell, Floor, Report, Table

SEEDS, QUICK_SEEDS, FEW_ROWS = 1000, 40, 64
ALPHAS = (0.05, 0.01, 0.001)
#: Largest time to explain a mistake, in seconds, and smallest allowed p-value of a count of false
#: alarms, for tests that are exact.
SECONDS, LEAST_P = 10.0, 1e-6
ALPHA = 1e-6

RELU = bnmc.Chain(20, 5, "relu")

RIGHT: dict[str, tuple[bnmc.Chain, dict[str, Any], int]] = {
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


def leaky(x: np.ndarray[Any, Any]) -> Any:
    return np.where(x < 0.0, 0.01 * x, x)


WRONG: dict[str, tuple[bnmc.Chain, dict[str, Any]]] = {
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


def benchmark(*, quick: bool) -> Report:
    """Count false alarms and findings over seeds, and time whole calls."""
    report = Report("testing")
    seeds = QUICK_SEEDS if quick else SEEDS
    add_false_alarms(report, seeds)
    add_findings(report, seeds)
    return report


def false_alarms(*, quick: bool) -> Report:
    """Count false alarms of the exact tests alone, with few rows: many repetitions in minutes."""
    report = Report("false-alarms")
    add_false_alarms(report, QUICK_SEEDS if quick else SEEDS, rows=FEW_ROWS, gaussian=True)
    return report


def add_false_alarms(
    report: Report, seeds: int, rows: int | None = None, gaussian: bool = False
) -> None:
    """Add the percentage of right steps that fail at each alpha.

    `rows` replaces the numbers of rows of the table; `gaussian` leaves out other weights.
    """
    from scipy.stats import binom

    table: list[list[Cell]] = []
    for name, (chain, options, rows_of) in RIGHT.items():
        if gaussian and not chain.is_gaussian:
            continue
        least = np.zeros(seeds)
        for seed in range(seeds):
            stages = levels(network(chain, options, seed), chain, seed, rows or rows_of)
            least[seed] = min(level for _, level, _ in stages)
        counts = [int(np.count_nonzero(least <= alpha)) for alpha in ALPHAS]
        table.append([name, seeds, *(100.0 * count / seeds for count in counts)])
        report.samples[name] = least.tolist()
        if chain.is_gaussian:  # otherwise alpha is asymptotic, by the central limit theorem
            p = min(
                float(binom.sf(count - 1, seeds, alpha))
                for count, alpha in zip(counts, ALPHAS, strict=True)
            )
            report.floors.append(Floor(f"p-value of the false alarms of {name}", p, LEAST_P))
    headers = ["right step", "seeds", *(f"% at {100 * alpha:g} %" for alpha in ALPHAS)]
    report.tables.append(Table("Right steps that fail", headers, table))


def add_findings(report: Report, seeds: int) -> None:
    """Add the number of detected wrong steps, their calls, and the time to explain them."""
    from bnmc.testing import LawMismatch, assert_same_law

    rows: list[list[Cell]] = []
    for name, (chain, options) in WRONG.items():
        calls = [found_after(network(chain, options, seed), chain, seed) for seed in range(seeds)]
        found = [one for one in calls if one is not None]
        start, cause = time.perf_counter(), "not found"
        try:
            assert_same_law(network(chain, options, 0), chain, rng=0, alpha=ALPHA)
        except LawMismatch as error:
            cause = error.causes[0] if error.causes else "?"
        seconds = time.perf_counter() - start
        middle = statistics.median(found) if found else None
        rows.append([name, len(found), middle, max(found, default=None), seconds, cause[:60]])
        report.samples[name] = calls
        report.floors.append(Floor(f"share of seeds that find: {name}", len(found) / seeds, 1.0))
        report.floors.append(Floor(f"s to explain: {name}", seconds, SECONDS, at_most=True))
    headers = ["mistake", f"found of {seeds}", "calls, median", "calls, most", "s", "said first"]
    report.tables.append(Table(f"Wrong steps, alpha {ALPHA:g}", headers, rows))


def network(chain: bnmc.Chain, options: dict[str, Any], seed: int) -> Any:
    """Return a layer with its own seed."""
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from numpy_steps import Network

    known = {"sigma": chain.activation.name, **options, "seed": 10**6 + seed}
    return Network(chain.width, **known)


def found_after(step: Any, chain: bnmc.Chain, seed: int) -> int | None:
    """Return the calls until a step fails, without its explanation, or None if it passes."""
    return next((calls for calls, level, _ in levels(step, chain, seed) if level <= ALPHA), None)


def levels(
    step: Any, chain: bnmc.Chain, seed: int, rows: int | None = None
) -> Iterator[tuple[int, float, str]]:
    """Yield, for each stage, the calls so far and the least alpha at which the step fails.

    The third part is the name of the clearest failure.
    """
    from bnmc._claims.claims import judged
    from bnmc.testing import assert_same_law
    from bnmc.testing.same_law import SequentialTest, numbers_of_calls

    test = SequentialTest(step, chain, np.random.default_rng(seed))
    if rows is None:
        rows = inspect.signature(assert_same_law).parameters["rows"].default
    stages = numbers_of_calls(chain, rows)
    for calls in stages:
        rows_of = judged(test.claims_after(calls), 0.5)
        clearest = min(rows_of, key=lambda row: (float(row.adjusted or 0.0), row.p_value or 0.0))
        yield test.step.calls, len(stages) * float(clearest.adjusted or 0.0), clearest.claim
