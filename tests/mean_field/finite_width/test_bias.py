"""The bias of E G, against second differences of the map, and simulated chains."""

from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc.chain import Chain
from bnmc.mean_field import MeanField
from bnmc.mean_field.finite_width.bias import _others, _score
from bnmc.mean_field.finite_width.sectors import EntryCovariance


@pytest.mark.parametrize(
    ("activation", "n", "norm", "step", "tolerance"),
    [
        ("relu", 5, "batch", 0.01, 2e-4),
        ("abs", 4, "batch", 0.01, 3e-4),
        ("tanh", 3, "batch-uncentred", 0.03, 2e-3),
        # `test_sectors` guards the map of relu that is not centred.
        pytest.param("relu", 3, "batch-uncentred", 0.001, 1e-4, marks=pytest.mark.slow),
        pytest.param("leaky_relu", 4, "batch-uncentred", 0.001, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_second_differences(activation, n, norm, step, tolerance):
    """½ F″[S], summed over the eigenvectors of S, by central differences of second order."""
    field = MeanField(Chain(width=10, batch=n, activation=activation, norm=norm))
    law = field.fluctuations()
    gram, covariance = law.fixed_point.gram, law.covariance(1)
    entries = list(np.ndindex(n, n))
    S = np.array([[covariance.between(a, b) for b in entries] for a in entries])
    values, vectors = np.linalg.eigh(S)
    middle = field.step(gram, rtol=1e-9, rng=0).gram
    expected = np.zeros((n, n))
    for value, vector in zip(values, vectors.T, strict=True):
        if value > 1e-10:
            change = step * vector.reshape(n, n)
            ends = [field.step(gram + sign * change, rtol=1e-9, rng=0).gram for sign in (1, -1)]
            expected += 0.5 * value * (ends[0] + ends[1] - 2 * middle) / step**2
    scale = np.abs(expected).max()
    # (I − J) times the bias; J is 0 on it if the norm centres or σ is odd.
    bias = 10 * law.bias(10)
    length = step / np.linalg.norm(bias)
    ends = [field.step(gram + s * length * bias, rtol=1e-9, rng=0).gram for s in (1, -1)]
    result = bias - (ends[0] - ends[1]) / (2 * length)
    assert result == pytest.approx(expected, abs=tolerance * scale)
    assert scale > 0.005


def test_the_second_derivative_of_the_density_without_centring():
    """Q of the module's docstring, with all sums over samples written out."""
    n, b, c = 4, 0.7, 0.3
    covariance = EntryCovariance(
        ii_ii=1.0, ii_jj=0.2, ii_ij=0.3, ii_jk=-0.1, ij_ij=0.6, ij_ik=0.15, ij_kl=0.05
    )
    entries = np.ndindex(n, n, n, n)
    S = np.array([covariance.between(e[:2], e[2:]) for e in entries]).reshape((n,) * 4)
    inverse = np.linalg.inv(b * ((1 - c) * np.eye(n) + c * np.ones((n, n))))
    basis = np.array([np.eye(n) / 2.0, (np.ones((n, n)) - np.eye(n)) / np.sqrt(12.0)])
    trivial = mock.Mock(variance=np.einsum("aij,ijkm,bkm->ab", basis, S, basis))
    x = np.array([[1.0, -1.0, 1.0, -1.0], [3.0, -1.0, -1.0, -1.0], [0.2, 1.5, -0.4, -1.3]])
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True))
    f, h = np.array([0.4, -1.1]), np.array([0.9, 0.5])
    for row in x:
        q = f[:, None] + h[:, None] * row
        squared = np.einsum("ai,aj,ijkm,ak,am->a", q, q, S, q, q) * (n + 2.0) / n
        traced = np.einsum("ai,aj,ijkm,km->a", q, q, S, inverse)
        twice = np.einsum("ai,ijkm,jk,am->a", q, S, inverse, q)
        point, sums = mock.Mock(b=b, c=c), ((row**3).sum(), (row**4).sum())
        score = _score(f, h, n, trivial, covariance, point, *sums)
        np.testing.assert_allclose(score, 0.25 * (squared - 2.0 * traced) - twice, rtol=1e-12)


@pytest.mark.parametrize("left", [2, 3])
def test_powers_of_the_other_coordinates(left):
    """Two coordinates have one distance from their mean, three lie on a circle around it."""
    n, sums, squares = 6, np.array([0.3, -1.2]), np.array([0.9, 1.7])
    centre = -sums / left
    radius = np.sqrt(n - squares - left * centre**2)
    if left == 2:
        points = np.array([[1.0, -1.0], [-1.0, 1.0]]) / np.sqrt(2.0)
    else:  # twelve points have all moments of the circle up to the eleventh
        angles = 2.0 * np.pi * (np.arange(12)[:, None] / 12 + np.arange(3) / 3)
        points = np.sqrt(2.0 / 3.0) * np.cos(angles)
    others = centre[:, None, None] + radius[:, None, None] * points
    for power in (3, 4):
        expected = (others**power).sum(axis=-1).mean(axis=-1)
        result = _others(sums, squares, left, n, power)
        np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert (_others(sums, squares, 0, n, 3) == 0.0).all()


# Second differences give the bias, above.
@pytest.mark.slow
def test_simulation():
    """Mean of an entry off the diagonal: 64 chains of 1200 layers of width 250.

    Student's law with 63 degrees of freedom exceeds 7 with a probability of 2e-9. The next order is
    allowed `least_width`/width/10 of the bias.
    """
    chain = Chain(width=250, batch=5, activation="relu")
    law = MeanField(chain).fluctuations()
    run = bnmc.simulate(chain, depth=1240, burn_in=41, chains=64, rng=4)
    i, j = np.triu_indices(5, 1)
    means = (run.gram - law.fixed_point.gram)[..., i, j].mean(axis=(1, 2))
    error = means.std(ddof=1) / 8
    expected = law.bias(chain.width)[0, 1]
    allowed = law.least_width / chain.width / 10 * abs(expected)
    assert abs(means.mean() - expected) < 7 * error + allowed
    assert abs(expected) > 7 * error


def test_no_bias():
    for activation, n in (("linear", 7), ("relu", 3), ("tanh", 2)):
        result = MeanField(Chain(10, n, activation)).fluctuations().bias(1)
        np.testing.assert_allclose(result, 0.0, atol=1e-9)
