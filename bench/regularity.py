"""`bnmc.regularity` compared with the loop of the paper's authors, and its time to 1 %."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt

import bnmc
from bench.report import Cell, Floor, Report, Table, usable_cores
from bench.timing import Candidate, Run, Timings, interleave, repeating
from bnmc import regularity

THREADS = usable_cores()
LOOP = "NumPy loop of the authors, with the traces of the figures"
SPEED_WIDTH, SPEED_FLOOR = 32, 20.0
TARGET_WIDTH, TARGET, TARGET_SECONDS = 64, 0.01, 60.0
# One call at that width has one group of lanes for each core. Half of the layers are burn-in, and
# every fourth of the others is measured. Runs are long, as for the paper's figures, because the
# first layers cost several times as much as later ones: their small eigenvalues still decay.
CHAINS, LAYERS = 32 * THREADS, 16_384

Float64 = npt.NDArray[np.float64]


def benchmark(*, quick: bool) -> Report:
    """Measure the speed at one width, the time to a standard error at another, and the figures."""
    verify()
    report = Report("regularity")
    candidates = [
        Candidate(LOOP, authors),
        Candidate("the same without traces", lambda layers: authors(layers, measured=False)),
        Candidate("bnmc.regularity", repeating(ours), units=LAYERS * CHAINS),
    ]
    rounds, seconds = (3, 0.2) if quick else (11, 0.5)
    timings = interleave(candidates, rounds=rounds, seconds=seconds)
    add_speed(report, timings)
    add_target(report, rounds=3 if quick else 7)
    add_figures(report, widths=(4, 8, 16, 32) if quick else (4, 8, 16, 32, 64, 128, 256))
    return report


def authors(layers: int, *, measured: bool = True) -> Run:
    """Return a run of one chain that iterates M itself, as the authors do, in few NumPy calls.

    `measured` adds the traces for the figures in every layer.
    """
    rng = np.random.default_rng(0)

    def run() -> Float64:
        m = np.eye(SPEED_WIDTH)
        found = np.empty((layers, 3))
        for layer in range(layers):
            w = rng.standard_normal((SPEED_WIDTH, SPEED_WIDTH))
            m = w @ m @ w.T
            scale = np.sqrt(m.diagonal())
            m /= scale[:, None]
            m /= scale
            if measured:
                square = m @ m
                of_rows = square.diagonal()
                found[layer] = of_rows.sum(), np.vdot(square, m), of_rows @ of_rows
        return found

    return run


def ours() -> None:
    """Run all layers of an ensemble, with an unreachable target."""
    chain = bnmc.Chain.bn_linear(SPEED_WIDTH, SPEED_WIDTH)
    try:
        regularity.constant(
            chain, rng=0, rtol=1e-12, chains=CHAINS, burn_in=LAYERS // 2, depth=LAYERS,
            threads=THREADS,
        )  # fmt: skip
    except bnmc.errors.PartialEstimateError:
        return
    raise AssertionError("the target cannot have been met")


def verify() -> None:
    """Check that the loop and the library have the same regularity constant."""
    _, cubes, squares = authors(6000)()[300:].T  # type: ignore[misc]
    alpha = squares.mean() / cubes.mean()
    # Batches of 100 layers are independent: autocorrelation times are a few layers.
    residuals = (squares - alpha * cubes).reshape(-1, 100).mean(axis=1)
    stderr = residuals.std(ddof=1) / math.sqrt(residuals.size) / cubes.mean()
    chain = bnmc.Chain.bn_linear(SPEED_WIDTH, SPEED_WIDTH)
    found = regularity.constant(chain, rng=0, rtol=1e-3)
    if not abs(alpha - found.value) <= 6 * math.hypot(stderr, found.stderr):
        raise AssertionError(f"the loop has alpha = {alpha} ± {stderr}, the library {found}")


def add_speed(report: Report, timings: dict[str, Timings]) -> None:
    """Add the time per layer and chain, and the speed of the library relative to the loop."""
    mine = timings["bnmc.regularity"]
    rows: list[list[Cell]] = [
        [name, 1e6 * timing.median, mine.speed_over(timing)] for name, timing in timings.items()
    ]
    title = f"A layer of a chain of width {SPEED_WIDTH}, {THREADS} cores"
    title += f"; the library: {CHAINS} chains of {LAYERS} layers a call"
    report.tables.append(Table(title, ["candidate", "us a layer-chain", "x bnmc"], rows))
    what = f"width {SPEED_WIDTH}, speed over: {LOOP}"
    report.floors.append(Floor(what, mine.speed_over(timings[LOOP]), SPEED_FLOOR))
    report.samples["speed"] = {name: timing.seconds for name, timing in timings.items()}


def add_target(report: Report, *, rounds: int) -> None:
    """Add the time of one call, including burn-in, to a standard error of 1 %."""
    chain = bnmc.Chain.bn_linear(TARGET_WIDTH, TARGET_WIDTH)
    samples, rows = [], []
    for seed in range(rounds):
        start = time.perf_counter()
        found = regularity.constant(chain, rng=seed, rtol=TARGET, threads=THREADS)
        samples.append(time.perf_counter() - start)
        row: list[Cell] = [seed, found.value, found.stderr / found.value, samples[-1]]
        rows.append(row)
    title = f"Regularity constant at width {TARGET_WIDTH}, rtol = {TARGET}, {THREADS} cores"
    report.tables.append(Table(title, ["seed", "alpha", "relative error", "seconds"], rows))
    what = f"seconds to {TARGET:.0%} at width {TARGET_WIDTH}"
    report.floors.append(Floor(what, float(np.median(samples)), TARGET_SECONDS, at_most=True))
    report.samples["target"] = samples


def add_figures(report: Report, *, widths: tuple[int, ...]) -> None:
    """Add Figures 8 and 9 of the paper, without a skip connection, and their time."""
    start = time.perf_counter()
    found = regularity.figures(widths, rng=0, threads=THREADS)
    seconds = time.perf_counter() - start
    names = ("alpha", "rank_bound", "soft_rank", "scaled_norm")
    rows: list[list[Cell]] = [
        [width, *(f"{getattr(one, name)}" for name in names)]
        for width, one in zip(widths, found.averages, strict=True)
    ]
    title = f"Figures 8 and 9, gamma = inf: {seconds:.1f} s"
    headers = ["width", "alpha", "E r", "E soft rank", "E |M|^2 / d^1.5"]
    report.tables.append(Table(title, headers, rows))
    report.samples["figures"] = [seconds]
