"""Steps of networks in NumPy, written from their formulas, and their mistakes."""

import numpy as np
import numpy_network
from numpy_network import gram_of, standardised
from oracle import FORMULAS
from scipy import special, stats


class Running:
    """The norm of evaluation mode, by means and variances (ddof = 1) over states seen so far."""

    def __init__(self, momentum):
        self.momentum, self.mean, self.variance = momentum, 0.0, 1.0

    def __call__(self, h):
        for name, moment in ("mean", h.mean(axis=1)), ("variance", h.var(axis=1, ddof=1)):
            former = (1.0 - self.momentum) * getattr(self, name)
            setattr(self, name, former + self.momentum * moment)
        return (h - self.mean[:, None]) / np.sqrt(self.variance[:, None])


def truncated(rng, shape):
    """Normal numbers, truncated at two deviations, of variance 1."""
    low = special.ndtr(-2.0)
    numbers = special.ndtri(rng.uniform(low, 1.0 - low, shape))
    return numbers / stats.truncnorm.std(-2.0, 2.0)


def paired(correlation):
    """Rows 2j and 2j + 1 correlated by +c for even j and by −c for odd j."""

    def law(rng, shape):
        rows = rng.standard_normal(shape)
        odd = rows[1::2].copy()
        signs = np.where(np.arange(len(odd)) % 2, -1.0, 1.0)[:, None]
        common = correlation * signs * rows[0::2][: len(odd)]
        rows[1::2] = common + np.sqrt(1.0 - correlation**2) * odd
        return rows

    return law


def mirrored(rng, shape):
    """The second half of the rows equal to the first, up to signs drawn anew."""
    first = rng.standard_normal((-(-shape[0] // 2), shape[1]))
    signs = rng.choice([-1.0, 1.0], (shape[0] // 2, 1))
    return np.vstack([first, signs * first[: shape[0] // 2]])


def all_but_first(law):
    """A Gaussian first column; the others of another law."""

    def sampler(rng, shape):
        weights = LAWS[law](rng, shape)
        weights[:, 0] = rng.standard_normal(shape[0])
        return weights

    return sampler


class SameUpToSigns:
    """One matrix at all calls, each row with a random sign."""

    def __init__(self):
        self.weights = None

    def __call__(self, rng, shape):
        if self.weights is None:
            self.weights = rng.standard_normal(shape)
        return rng.choice([-1.0, 1.0], (shape[0], 1)) * self.weights


def unit_rows(rng, shape):
    rows = rng.standard_normal(shape)
    return np.sqrt(shape[1]) * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def unit_frobenius(rng, shape):
    weights = rng.standard_normal(shape)
    return np.sqrt(weights.size) * weights / np.linalg.norm(weights)


def student(degrees):
    def law(rng, shape):
        return rng.standard_t(degrees, shape) * np.sqrt((degrees - 2) / degrees)

    return law


LAWS = {
    **numpy_network.LAWS,
    "paired 0.3": paired(0.3),
    "paired 0.7": paired(0.7),
    "mirrored": mirrored,
    "same up to signs": SameUpToSigns,
    "all but first uniform": all_but_first("uniform"),
    "all but first rademacher": all_but_first("rademacher"),
    "unit rows": unit_rows,
    "unit Frobenius": unit_frobenius,
    "student 10": student(10),
    "student 30": student(30),
    "student 100": student(100),
    "float16": lambda rng, shape: rng.standard_normal(shape).astype(np.float16).astype(float),
    "truncated": truncated,
    "permutations": lambda rng, shape: (
        np.sqrt(shape[0])
        * rng.choice([-1.0, 1.0], (shape[0], 1))
        * rng.permutation(np.eye(shape[0]))
    ),
    "orthogonal": lambda rng, shape: np.sqrt(shape[0]) * stats.ortho_group.rvs(shape[0], 1, rng),
    "twins": lambda rng, shape: np.repeat(rng.standard_normal((shape[0] // 2, shape[1])), 2, 0),
    "correlated": lambda rng, shape: (
        np.sqrt(0.8) * rng.standard_normal(shape) + np.sqrt(0.2) * rng.standard_normal(shape[1])
    ),
}


class Network:
    """h -> skip N(h) + scale (W σ(N(h)) + b), with W drawn anew, or one of a few, or the last one.

    States are (..., width, batch), each with a W of its own if W is drawn anew.  The weights "rows"
    are Gaussian, too: given a, the rows of W a are N(0, aᵀa / width).
    """

    def __init__(
        self, width=20, sigma="relu", *, weights="gaussian", scale=1.0, skip=0.0, pool=0,
        bias=0.0, norm=standardised, momentum=0.0, reused=0, seed=1, **options,
    ):  # fmt: skip
        self.sigma = FORMULAS.get(sigma, sigma)
        if momentum:
            norm = Running(momentum)
        self.norm = lambda h: norm(h, **options)
        self.scale, self.skip, self.bias, self.width = scale, skip, bias, width
        self.rng, self.law, self.calls = np.random.default_rng(seed), LAWS.get(weights), 0
        if isinstance(self.law, type):
            self.law = self.law()
        self.pool = [self.draw() for _ in range(pool)]
        self.reused, self.last = reused, None

    def draw(self, *shape):
        shape = shape or (self.width, self.width)
        return self.law(self.rng, shape) / np.sqrt(shape[-1])

    def next_weights(self, *shape):
        """New weights, but at every second call the last ones with a random sign, if `reused`.

        1 and 2 choose between even and odd calls.
        """
        if self.pool:
            return self.pool[self.calls % len(self.pool)]
        if self.reused and self.calls % 2 == self.reused - 1 and self.last is not None:
            return self.rng.choice([-1.0, 1.0]) * self.last
        self.last = self.draw(*shape)
        return self.last

    def rows(self, a):
        if self.law is not None:
            return self.next_weights(*a.shape[:-1], a.shape[-2]) @ a
        values, vectors = np.linalg.eigh(gram_of(a))
        root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
        return self.rng.standard_normal(a.shape) @ root.swapaxes(-1, -2)

    def __call__(self, h):
        self.calls += 1
        x = self.norm(h)
        rows = self.rows(self.sigma(x))
        if self.bias:
            numbers = LAWS["uniform"](self.rng, (self.width, 1))
            rows = rows + self.bias * numbers / np.sqrt(self.width)
        return self.skip * x + self.scale * rows


# --- networks near their stationary law


def step_of(sigma, rng, *, variance=1.0, weights="rows", **options):
    """Return a step for states of any width, of one network for each state."""
    return Network(sigma=sigma, seed=rng, weights=weights, scale=np.sqrt(variance), **options)


def after(step, h, layers):
    for _ in range(layers):
        h = step(h)
    return h


def settled(chain, step, count, rng, layers=12):
    """States of a network that started from Gaussian ones, which are near the stationary law."""
    return after(step, rng.standard_normal((count, chain.width, chain.batch)), layers)


def row_of(report, claim):
    (row,) = [row for row in report.rows if row.claim == claim]
    return row
