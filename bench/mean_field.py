"""Time of `MeanField`, and its backward rate compared with automatic differentiation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

import bnmc
from bench.report import Cell, Floor, Report, Table

FIXED_POINT_SECONDS, LARGE_BATCH_SECONDS, TRAJECTORY_SECONDS = 0.02, 1.0, 5.0
LARGE_BATCH = 10_000
# The wide network for the gradients. It has as many layers before them, to become stationary.
WIDTH, BATCH, LAYERS, SEEDS = 2000, 10, 20, 4


def benchmark(*, quick: bool) -> Report:
    """Time fixed points and a trajectory; compare backward rates with JAX."""
    report = Report("mean_field")
    add_times(report, rounds=3 if quick else 21)
    add_backward(report, seeds=2 if quick else SEEDS)
    return report


def add_times(report: Report, *, rounds: int) -> None:
    """Add median times of fixed points and of a trajectory, after a first call."""
    small = bnmc.MeanField(bnmc.Chain(1000, 10, "tanh"))
    large = bnmc.MeanField(bnmc.Chain(1000, LARGE_BATCH, "tanh"))
    x = np.random.default_rng(0).standard_normal((10, 10))
    start = x @ x.T / 10
    jobs: list[tuple[str, Callable[[], object], int, float]] = [
        ("fixed point, n = 10", small.fixed_point, rounds, FIXED_POINT_SECONDS),
        (f"fixed point, n = {LARGE_BATCH}", large.fixed_point, rounds, LARGE_BATCH_SECONDS),
        ("100 layers to 1e-4, n = 10", lambda: small.trajectory(start, 100, rtol=1e-4), 3,
         TRAJECTORY_SECONDS),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, job, repeats, floor in jobs:
        job()
        seconds = [timed(job) for _ in range(repeats)]
        median = float(np.median(seconds))
        rows.append([name, 1e3 * median, 1e3 * floor])
        report.floors.append(Floor(f"tanh, seconds of {name}", median, floor, at_most=True))
        report.samples[name] = seconds
    report.tables.append(Table("Mean field of tanh", ["what", "ms", "floor, ms"], rows))


def timed(job: Callable[[], object]) -> float:
    """Return the seconds that a job takes."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def add_backward(report: Report, *, seeds: int) -> None:
    """Compare the growth of squared gradients in a wide network with the backward rate."""
    rows: list[list[Cell]] = []
    for name in ("relu", "tanh", "linear"):
        logs = np.array([gradient_growth(name, seed) for seed in range(seeds)])
        rate = bnmc.MeanField(bnmc.Chain(WIDTH, BATCH, name)).fixed_point().backward_rate
        error = logs.std(ddof=1) / math.sqrt(seeds)
        rows.append([name, math.exp(logs.mean()), math.exp(logs.mean()) * error, rate])
    title = f"Growth of squared gradients a layer: JAX, width {WIDTH}, batch {BATCH}, {seeds} runs"
    headers = ["activation", "measured", "standard error", "backward rate"]
    report.tables.append(Table(title, headers, rows))


def gradient_growth(name: str, seed: int) -> float:
    """Return the mean logarithm of the growth per layer of a squared gradient norm."""
    import jax
    import jax.numpy as jnp

    sigma = {"relu": jax.nn.relu, "tanh": jnp.tanh, "linear": lambda x: x}[name]

    @jax.jit
    def layer(h: jax.Array, w: jax.Array) -> jax.Array:
        centred = h - h.mean(axis=1, keepdims=True)
        return w @ sigma(centred / jnp.sqrt((centred**2).mean(axis=1, keepdims=True)))

    key = jax.random.key(seed)
    h = jax.random.normal(key, (WIDTH, BATCH))
    pulls = []
    for step in range(2 * LAYERS):
        w = jax.random.normal(jax.random.fold_in(key, step), (WIDTH, WIDTH)) / math.sqrt(WIDTH)
        if step < LAYERS:
            h = layer(h, w)
        else:
            h, pull = jax.vjp(lambda h, w=w: layer(h, w), h)
            pulls.append(pull)
    gradient = jax.random.normal(jax.random.fold_in(key, 2 * LAYERS), h.shape)
    norms = []
    for pull in reversed(pulls):
        (gradient,) = pull(gradient)
        norms.append(float((gradient**2).sum()))
    # Skip the first layers of the backward pass: they depend on the initial direction.
    return math.log(norms[-1] / norms[4]) / (len(norms) - 5)
