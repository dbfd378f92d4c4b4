"""`bnmc.regularity` compared with the loop of the paper's authors, and its time to 1 %."""

import math

import numpy as np
import pytest

import bnmc
from bench.turns import LAYER, THREADS, Candidate, repeating
from bnmc import regularity

LOOP = "NumPy loop of the authors, with the traces of the figures"
SPEED_WIDTH, SPEED_FLOOR = 32, 20.0
TARGET_WIDTH, TARGET, TARGET_SECONDS = 64, 0.01, 60.0
# One call at that width has one group of lanes for each core. Half of the layers are burn-in, and
# every fourth of the others is measured. Runs are long, as for the paper's figures, because the
# first layers cost several times as much as later ones: their small eigenvalues still decay.
CHAINS, LAYERS = 32 * THREADS, 16_384
WIDTHS = (4, 8, 16, 32, 64, 128, 256)


@pytest.fixture(scope="module")
def verified():
    """Check that the loop and the library have the same regularity constant."""
    _, cubes, squares = authors(6000)()[300:].T
    alpha = squares.mean() / cubes.mean()
    # Batches of 100 layers are independent: autocorrelation times are a few layers.
    residuals = (squares - alpha * cubes).reshape(-1, 100).mean(axis=1)
    stderr = residuals.std(ddof=1) / math.sqrt(residuals.size) / cubes.mean()
    chain = bnmc.Chain(SPEED_WIDTH, SPEED_WIDTH, "linear", norm="batch-uncentred")
    ours = regularity.constant(chain, rng=0, rtol=1e-3)
    if not abs(alpha - ours.value) <= 6 * math.hypot(stderr, ours.stderr):
        raise AssertionError(f"the loop has alpha = {alpha} ± {stderr}, the library {ours}")


def test_speed(turns, verified):
    """The time per layer and chain, and the speed of the library relative to the loop."""
    layers = turns.of(LAYERS, LAYERS, 64)
    turns.group = f"A layer of a chain of width {SPEED_WIDTH}; {CHAINS} chains of {layers} layers"
    candidates = [
        Candidate(LOOP, authors, 1, LAYER),
        Candidate(
            "the same without traces", lambda layers: authors(layers, measured=False), 1, LAYER
        ),
        Candidate("bnmc.regularity", repeating(lambda: ours(layers)), layers * CHAINS, LAYER),
    ]
    rounds, seconds = turns.of((11, 0.5), (3, 0.2))
    timings = turns(candidates, rounds=rounds, seconds=seconds)
    mine = timings["bnmc.regularity"]
    for name, limit in ((LOOP, SPEED_FLOOR), ("the same without traces", None)):
        turns.hold(name, "x bnmc", mine.speed_over(timings[name]), at_least=limit)


def authors(layers, *, measured=True):
    """Return a run of one chain that iterates M itself, as the authors do, in few NumPy calls.

    `measured` adds the traces for the figures in every layer.
    """
    rng = np.random.default_rng(0)

    def run():
        m = np.eye(SPEED_WIDTH)
        traces = np.empty((layers, 3))
        for layer in range(layers):
            w = rng.standard_normal((SPEED_WIDTH, SPEED_WIDTH))
            m = w @ m @ w.T
            scale = np.sqrt(m.diagonal())
            m /= scale[:, None]
            m /= scale
            if measured:
                square = m @ m
                of_rows = square.diagonal()
                traces[layer] = of_rows.sum(), np.vdot(square, m), of_rows @ of_rows
        return traces

    return run


def ours(layers):
    """Run all layers of an ensemble, with an unreachable target."""
    with pytest.raises(bnmc.errors.PartialEstimateError):
        regularity.constant(
            bnmc.Chain(SPEED_WIDTH, SPEED_WIDTH, "linear", norm="batch-uncentred"),
            rng=0, rtol=1e-12, chains=CHAINS,
            burn_in=layers // 2, depth=layers, threads=THREADS,
        )  # fmt: skip


def test_target(turns):
    """The time of one call, including burn-in, to a standard error of 1 %."""
    width, rtol, seeds = turns.of((TARGET_WIDTH, TARGET, 7), (TARGET_WIDTH, TARGET, 3), (8, 0.5, 1))
    turns.group = f"Regularity constant at width {width}, rtol = {rtol}"
    chain = bnmc.Chain(width, width, "linear", norm="batch-uncentred")
    for seed in range(seeds):
        name = f"seed {seed}"
        alpha = turns.timed(
            name, lambda s=seed: regularity.constant(chain, rng=s, rtol=rtol, threads=THREADS)
        )
        turns.add(name, {"alpha": alpha.value, "relative error": alpha.stderr / alpha.value})
    median = float(np.median([timing.median for timing in turns.timings.values()]))
    turns.hold(name, "median of all, s", median, at_most=TARGET_SECONDS)


def test_figures(turns):
    """Figures 8 and 9 of the paper, without a skip connection, and their time."""
    widths = turns.of(WIDTHS, WIDTHS[:4], (4,))
    options = turns.of({}, {}, {"rtol": 0.5})
    turns.group = "Figures 8 and 9, gamma = inf"
    figures = turns.timed(
        "all widths", lambda: regularity.figures(widths, rng=0, threads=THREADS, **options)
    )
    names = {"alpha": "alpha", "rank_bound": "E r", "soft_rank": "E soft rank",
             "scaled_norm": "E |M|^2 / d^1.5"}  # fmt: skip
    for width, averages in zip(widths, figures.averages, strict=True):
        turns.add("all widths", {
            f"{title}, {width}": f"{getattr(averages, name)}" for name, title in names.items()
        })  # fmt: skip
