"""Time of `MeanField`, and its backward rate compared with automatic differentiation."""

import math

import numpy as np
import pytest

import bnmc

#: Largest seconds.
FIXED_POINT, LARGE_FIXED_POINT, TRAJECTORY = 0.02, 1.0, 5.0
LARGE_BATCH = 10_000
# The wide network for the gradients. It has as many layers before them, to become stationary.
WIDTH, BATCH, LAYERS, SEEDS = 2000, 10, 20, 4


def test_times(turns):
    """Times of fixed points and of a trajectory, after a first call."""
    turns.group = "Mean field of tanh"
    batch, depth, rtol = turns.of((LARGE_BATCH, 100, 1e-4), (LARGE_BATCH, 100, 1e-4), (30, 1, 0.1))
    small, large = (bnmc.MeanField(bnmc.Chain(1000, n, "tanh")) for n in (10, batch))
    x = np.random.default_rng(0).standard_normal((10, 10))
    start = x @ x.T / 10
    jobs = {
        "fixed point, n = 10": (small.fixed_point, FIXED_POINT),
        f"fixed point, n = {batch}": (large.fixed_point, LARGE_FIXED_POINT),
        f"{depth} layers to {rtol}, n = 10": (
            lambda: small.trajectory(start, depth, rtol=rtol), TRAJECTORY
        ),
    }  # fmt: skip
    for name, (job, limit) in jobs.items():
        job()
        turns.timed(name, job, rounds=3 if limit == TRAJECTORY else turns.of(21, 3, 1))
        turns.hold(name, "s", turns.timings[name].median, at_most=limit)


@pytest.mark.parametrize("activation", ["relu", "tanh", "linear"])
def test_backward_rate(turns, activation):
    """The growth of squared gradients in a wide network of JAX, beside the backward rate."""
    pytest.importorskip("jax")
    width, layers, seeds = turns.of((WIDTH, LAYERS, SEEDS), (WIDTH, LAYERS, 2), (16, 6, 2))
    turns.group = f"Growth of squared gradients a layer: JAX, width {width}, batch {BATCH}"
    logs = turns.timed(activation, lambda: np.array(
        [gradient_growth(activation, width, layers, seed) for seed in range(seeds)]
    ))  # fmt: skip
    error = logs.std(ddof=1) / math.sqrt(seeds)
    growth = math.exp(logs.mean())
    rate = bnmc.MeanField(bnmc.Chain(width, BATCH, activation)).fixed_point().backward_rate
    turns.add(activation, {
        "measured": growth, "standard error": float(growth * error), "backward rate": rate
    })  # fmt: skip


def gradient_growth(name, width, layers, seed):
    """Return the mean logarithm of the growth per layer of a squared gradient norm."""
    import jax
    import jax.numpy as jnp

    sigma = {"relu": jax.nn.relu, "tanh": jnp.tanh, "linear": lambda x: x}[name]

    @jax.jit
    def layer(h, w):
        centred = h - h.mean(axis=1, keepdims=True)
        return w @ sigma(centred / jnp.sqrt((centred**2).mean(axis=1, keepdims=True)))

    key = jax.random.key(seed)
    h = jax.random.normal(key, (width, BATCH))
    pulls = []
    for step in range(2 * layers):
        w = jax.random.normal(jax.random.fold_in(key, step), (width, width)) / math.sqrt(width)
        if step < layers:
            h = layer(h, w)
        else:
            h, pull = jax.vjp(lambda h, w=w: layer(h, w), h)
            pulls.append(pull)
    gradient = jax.random.normal(jax.random.fold_in(key, 2 * layers), h.shape)
    norms = []
    for pull in reversed(pulls):
        (gradient,) = pull(gradient)
        norms.append(float((gradient**2).sum()))
    # Skip the first layers of the backward pass: they depend on the initial direction.
    return math.log(norms[-1] / norms[4]) / (len(norms) - 5)
