"""Steps of networks in NumPy, written from their formulas, and their mistakes."""

import numpy as np
from oracle import FORMULAS
from scipy import special, stats


def normalised(h, *, ddof=0, eps=0.0, centred=True, axis=1):
    x = h - h.mean(axis=axis, keepdims=True) if centred else h
    variance = np.square(x).sum(axis=axis, keepdims=True) / (h.shape[axis] - ddof)
    return x / np.sqrt(variance + eps)


class Running:
    """The norm of evaluation mode, by means and variances (ddof = 1) over states seen so far."""

    def __init__(self, momentum):
        self.momentum, self.mean, self.variance = momentum, 0.0, 1.0

    def __call__(self, h):
        for name, own in ("mean", h.mean(axis=1)), ("variance", h.var(axis=1, ddof=1)):
            kept = (1.0 - self.momentum) * getattr(self, name)
            setattr(self, name, kept + self.momentum * own)
        return (h - self.mean[:, None]) / np.sqrt(self.variance[:, None])


def truncated(rng, shape):
    """Normal numbers, truncated at two deviations, of variance 1."""
    low = special.ndtr(-2.0)
    numbers = special.ndtri(rng.uniform(low, 1.0 - low, shape))
    return numbers / stats.truncnorm.std(-2.0, 2.0)


LAWS = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), shape),
    "rademacher": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "truncated": truncated,
    "orthogonal": lambda rng, shape: np.sqrt(shape[0]) * stats.ortho_group.rvs(shape[0], 1, rng),
    "twins": lambda rng, shape: np.repeat(rng.standard_normal((shape[0] // 2, shape[1])), 2, 0),
    "correlated": lambda rng, shape: (
        np.sqrt(0.8) * rng.standard_normal(shape) + np.sqrt(0.2) * rng.standard_normal(shape[1])
    ),
}


class Network:
    """h -> skip N(h) + scale W σ(N(h)), with W drawn anew, or one of a few."""

    def __init__(
        self, width=20, sigma="relu", *, weights="gaussian", scale=1.0, skip=0.0, pool=0,
        bias=0.0, norm=normalised, momentum=0.0, seed=1, **options,
    ):  # fmt: skip
        self.sigma = FORMULAS.get(sigma, sigma)
        if momentum:
            norm = Running(momentum)
        self.norm = lambda h: norm(h, **options)
        self.scale, self.skip, self.bias, self.width = scale, skip, bias, width
        self.rng, self.law, self.calls = np.random.default_rng(seed), LAWS[weights], 0
        self.pool = [self.draw() for _ in range(pool)]

    def draw(self):
        return self.law(self.rng, (self.width, self.width)) / np.sqrt(self.width)

    def __call__(self, h):
        self.calls += 1
        weights = self.pool[self.calls % len(self.pool)] if self.pool else self.draw()
        x = self.norm(h)
        bias = self.bias * LAWS["uniform"](self.rng, (self.width, 1)) / np.sqrt(self.width)
        return self.skip * x + self.scale * (weights @ self.sigma(x) + bias)
