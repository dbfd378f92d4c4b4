"""The exact mean of a first step, against networks of plain NumPy."""

import numpy as np
import pytest

from bnmc.experiments.training_law.first_step import first_step


@pytest.mark.parametrize(("width", "hidden"), [(3, 1), (6, 2)])
def test_means_of_networks(width, hidden):
    """100 000 networks: within 5 standard errors, which fails by chance with p = 6e-7 each.

    The kernel before and after a step of rate 1e-6 times 1/E Θ, from products in loops.
    """
    rng, count, features = np.random.default_rng(4), 100_000, 3
    x = np.array([0.8, -1.0, 0.5])
    shapes = [(width, features), *(hidden - 1) * [(width, width)], (1, width)]
    variances = [0.7 / features, *hidden * [1.3 / width]]
    rates = [1.0, *(0.5 for _ in range(hidden - 1)), 2.0]
    weights = [np.sqrt(s) * rng.standard_normal((count, *shape))
               for s, shape in zip(variances, shapes, strict=True)]  # fmt: skip

    def parts(matrices):
        """Return inputs and backward vectors of each matrix, and the outputs."""
        a = [np.broadcast_to(x, (count, features))]
        for matrix in matrices[:-1]:
            a.append(np.maximum(np.einsum("nij,nj->ni", matrix, a[-1]), 0.0))
        delta = [np.ones((count, 1))]
        for matrix, active in zip(matrices[:0:-1], a[:0:-1], strict=True):
            delta.insert(0, np.einsum("nij,ni->nj", matrix, delta[0]) * (active > 0.0))
        return a, delta, np.einsum("nij,nj->ni", matrices[-1], a[-1])[:, 0]

    def kernel(a, delta):
        return sum(rate * (p**2).sum(axis=1) * (q**2).sum(axis=1)
                   for rate, p, q in zip(rates, a, delta, strict=True))  # fmt: skip

    square = float(x @ x)
    exact = first_step(width, hidden, [variances[0] * square, *variances[1:]], [square, *rates[1:]])
    a, delta, f = parts(weights)
    eta = 1e-6 / exact.kernel
    moved = [
        matrix - eta * rate * f[:, None, None] * np.einsum("ni,nj->nij", q, p)
        for matrix, rate, p, q in zip(weights, rates, a, delta, strict=True)
    ]
    before = kernel(a, delta)
    change = (kernel(*parts(moved)[:2]) - before) / eta
    for values, mean in ((before, exact.kernel), (change, exact.change)):
        error = values.std() / np.sqrt(count)
        assert abs(values.mean() - mean) < 5 * error
        assert 5 * error < 0.15 * abs(mean)


def test_one_unit_a_layer():
    """By hand: all units are active with probability 2^−H, and E W⁴ = 3 s² of other matrices."""
    variances, rates = [0.7, 1.1, 0.4, 1.7, 0.9], [1.0, 0.5, 2.0, 0.3, 1.5]
    change = 0.0
    for k in range(5):
        for m in range(k):
            others = [3 * s**2 for at, s in enumerate(variances) if at not in (k, m)]
            pair = rates[k] * rates[m] * variances[k] * variances[m]
            change -= 4 * pair * np.prod(others) / 2**4
    assert first_step(1, 4, variances, rates).change == pytest.approx(change)
