"""Mean squares of fluctuations: measured over predicted, and the difference against width."""

from __future__ import annotations

import math
import time

import numpy as np

import bnmc
from bench.report import Cell, Floor, Report, Table
from bench.unfinished import Cases
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.mean_field import Fluctuations

# Chains whose fixed point has a rate up to this are compared at this width. Their mean squares are
# measured to about this relative standard error. To three standard errors they differ by at most
# the floor.
MOST_RATE, WIDTH, STDERR, FLOOR = 0.95, 10_000, 0.0033, 0.01
BATCHES = (5, 10, 32)

# The widths of the table of remainders, with the relative standard error of each.
SLOPE_WIDTHS, SLOPE_STDERR = (250, 500, 1000, 2000), 0.0015
SLOPE_CASES = (("linear", 10), ("relu", 10))

# Independent chains of a run; each has one mean.
CHAINS = 16

# An activation, a batch size, a width and the standard error that is asked for.
Case = tuple[str, int, int, float]

# A ratio, its standard error, the prediction, and the rate of the fixed point.
Found = tuple[float, float, float, float]


def benchmark(*, quick: bool, minutes: float = math.inf) -> Report:
    """Compare the mean squares of all named activations, and fit the slope of the remainder.

    After `minutes` no other case starts, and the same call continues. The report has figures worth
    keeping if all cases are measured.
    """
    batches, stderr = (BATCHES[:2], 0.01) if quick else (BATCHES, STDERR)
    cases: list[Case] = [(name, n, WIDTH, stderr) for name in BUILTIN for n in batches]
    slopes: list[Case] = [
        (name, n, width, SLOPE_STDERR) for name, n in SLOPE_CASES for width in SLOPE_WIDTHS
    ]
    wanted = cases if quick else [*cases, *slopes]
    kept = Cases("fluctuations")
    end = time.monotonic() + 60.0 * minutes
    found: dict[Case, Found] = {}
    for case in wanted:
        key = " ".join(map(str, case))
        if key in kept or time.monotonic() < end:
            value, error, predicted, rate = kept.row(key, lambda case=case: measured(*case))
            found[case] = value, error, predicted, rate
    report = Report("fluctuations", measured=len(found) == len(wanted))
    add_ratios(report, [(case, found[case]) for case in cases if case in found])
    if report.measured:
        if not quick:
            add_slopes(report, found)
        kept.done()
    else:
        print(f"{len(found)} of {len(wanted)} cases are measured. The same command continues.")
    return report


def measured(name: str, batch: int, width: int, stderr: float) -> list[Cell]:
    """Return the ratio of a case; NaN if its fixed point is unstable or slow."""
    rate = bnmc.MeanField(bnmc.Chain(width, batch, name)).fixed_point().rate
    if rate > MOST_RATE:
        return [math.nan, math.nan, math.nan, rate]
    return [*ratio(name, batch, width, stderr), rate]


def add_ratios(report: Report, found: list[tuple[Case, Found]]) -> None:
    """Add the ratios at one width; those of unstable or slow fixed points are left out."""
    rows: list[list[Cell]] = []
    for (name, batch, _, _), (value, error, predicted, rate) in found:
        rest: list[Cell] = [predicted, value, error, abs(value - 1.0) / error]
        rows.append([name, batch, rate, *(rest if math.isfinite(value) else [None] * 4)])
    title = f"E|G - G*|^2 at width {WIDTH}, norm batch, measured over predicted"
    headers = ["activation", "batch", "rate", "predicted", "ratio", "standard error", "off by"]
    report.tables.append(Table(title, headers, rows))
    kept = [one[:2] for _, one in found if math.isfinite(one[0])]
    values, errors = np.array(kept).reshape(-1, 2).T
    off = np.abs(values - 1.0)
    excess = float(np.max(off - 3.0 * errors, initial=-math.inf))
    what = "largest |ratio - 1| less 3 standard errors"
    report.floors.append(Floor(what, excess, FLOOR, at_most=True))
    report.samples["largest"] = float(off.max(initial=0.0))
    report.samples["beyond 1 %"] = int(np.sum(off > FLOOR))
    report.samples["beyond 3 standard errors"] = int(np.sum(off > 3.0 * errors))
    report.samples["ratio"], report.samples["stderr"] = values.tolist(), errors.tolist()


def add_slopes(report: Report, done: dict[Case, Found]) -> None:
    """Add the remainders ratio − 1 by width, their fits c/width, and the slopes of the positive.

    The errors of the remainders come from 16 chains, so four of them have a false-alarm probability
    of 1e-3 for each width.
    """
    rows: list[list[Cell]] = []
    for name, batch in SLOPE_CASES:
        found = [done[name, batch, width, SLOPE_STDERR][:2] for width in SLOPE_WIDTHS]
        values, errors = np.array(found).T
        rest, inverse = values - 1.0, 1.0 / np.array(SLOPE_WIDTHS, dtype=float)
        weight = (inverse / errors) ** 2
        factor = float(weight @ (rest / inverse) / weight.sum())
        apart = np.abs(rest - factor * inverse) / errors
        for width, one, off, far in zip(SLOPE_WIDTHS, rest, errors, apart, strict=True):
            cells = [f"{name}, batch {batch}", width, float(one), float(off), float(far)]
            rows.append([*cells, None, None])
        fit: list[Cell] = [f"{name}, batch {batch}: c", None, factor, float(weight.sum() ** -0.5)]
        slope: list[Cell] = [None, None]
        if (rest > 0.0).all():
            slope = list(power(np.array(SLOPE_WIDTHS, dtype=float), rest, errors))
        rows.append([*fit, None, *slope])
        what = f"{name}: standard errors of a remainder from c/width"
        report.floors.append(Floor(what, float(apart.max()), 4.0, at_most=True))
    headers = ["chain", "width", "ratio - 1", "standard error", "off c/width by", "slope",
               "its error"]  # fmt: skip
    report.tables.append(Table("Remainder of the linear theory", headers, rows))


def power(widths: np.ndarray, values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Return the exponent of a power law of the width, and its standard error."""
    x, y = np.log(widths), np.log(np.maximum(values, 1e-9))
    weight = (values / errors) ** 2
    centred = x - weight @ x / weight.sum()
    size = float(weight @ centred**2)
    return float(weight @ (centred * y)) / size, 1.0 / math.sqrt(size)


def ratio(name: str, batch: int, width: int, stderr: float) -> tuple[float, float, float]:
    """Return the ratio, its standard error, and the prediction."""
    chain = bnmc.Chain(width, batch, name)
    law = bnmc.MeanField(chain).fluctuations()
    predicted = law.mean_square(width).value
    layers = math.ceil(needed(law) / stderr**2 / CHAINS)
    burn_in = math.ceil(math.log(1e-4) / math.log(min(law.fixed_point.rate, 0.999)))
    run = bnmc.simulate(chain, burn_in + layers, burn_in=burn_in + 1, chains=CHAINS, rng=21)
    deviation = run.gram - law.fixed_point.gram
    means = np.einsum("clij,clij->c", deviation, deviation) / deviation.shape[1] / predicted
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(CHAINS)), predicted


def needed(law: Fluctuations) -> float:
    """Return the relative variance of a mean square over layers, times their number."""
    total = squares = 0.0
    for sector in law.sectors:
        values, memory = np.linalg.eigvalsh(sector.variance), sector.eigenvalue**2
        total += sector.multiplicity * float(values.sum())
        squares += sector.multiplicity * float(values @ values) * (1 + memory) / (1 - memory)
    return 2.0 * squares / total**2
