"""Expectations given the angle of a row, against sums over the whole sphere."""

import numpy as np
import pytest
from spheres import centred_points

from bnmc.chain.activations import as_activation
from bnmc.mean_field.fixed_point.expectations import angle_tables


def points_of(n):
    """Points and weights of the centred sphere, exact for polynomials of degree 79."""
    if n == 3:
        return centred_points(3, 80)
    height, weight = np.polynomial.legendre.leggauss(40)
    angle = 2 * np.pi * (np.arange(80) + 0.5) / 80
    radius = np.sqrt(1 - height**2)[:, None]
    across = np.broadcast_to(height[:, None], (40, 80))
    unit = np.stack([radius * np.cos(angle), radius * np.sin(angle), across], axis=-1)
    basis = np.linalg.svd(np.ones((1, 4)))[2][1:]
    return 2 * unit.reshape(-1, 3) @ basis, np.repeat(weight / 160, 80)


def columns_by_sums(n, angle):
    """The 13 columns at one angle, with the logistic function for σ."""
    x, weight = points_of(n)
    phi = np.sin(angle) + np.cos(angle) * x
    s = 1 / (1 + np.exp(-phi))
    slope = s * (1 - s)
    deviation = s - s.mean(axis=1, keepdims=True)
    first, square, share = x[:, 0], x[:, 0] ** 2 - 1, n / (n - 1)
    by_mean, own = share * s.mean(axis=1) * s[:, 0], share * deviation[:, 0] ** 2
    mixed = np.zeros(len(x))
    if n > 3:
        mixed = s[:, 0] * s[:, 1] * (x[:, 0] - x[:, 2]) * (x[:, 1] - x[:, 3])
    K = np.eye(n) - phi[:, :, None] * phi[:, None, :] / n
    diagonal = K @ (slope[:, :, None] ** 2 * K)
    outer = np.einsum("rij,rj->ri", K, slope)
    outer = outer[:, :, None] * outer[:, None, :] / n
    rows = [
        s[:, 0], s[:, 0] * first, s[:, 0] ** 2, (deviation**2).sum(axis=1) / (n - 1),
        by_mean * first, by_mean * square, own * first, own * square, mixed,
    ]  # fmt: skip
    for A in (np.cos(angle) ** 2 * diagonal, np.cos(angle) ** 2 * outer):
        rows += [A.sum(axis=(1, 2)) / n, np.einsum("rii->r", A) / (n - 1)]
    return np.stack(rows) @ weight


@pytest.mark.parametrize("n", [3, 4])
def test_all_columns_are_the_stated_expectations(n):
    *tables, _ = angle_tables(as_activation("sigmoid"), n)
    angles = np.array([-1.2, -0.4, 0.3, 1.0])
    expected = np.stack([columns_by_sums(n, angle) for angle in angles], axis=1)
    for table in tables:
        # The tables are resolved to 1e-10.
        np.testing.assert_allclose(table(angles), expected, rtol=0, atol=1e-9)
