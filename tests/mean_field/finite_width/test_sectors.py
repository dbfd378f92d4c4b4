"""The sectors, against the equation S = J S Jᵀ + C for all n² entries, by brute force."""

from unittest import mock

import numpy as np
import pytest
from mean_field_oracles import brute_force, normalized_rows

from bnmc.chain import Chain
from bnmc.mean_field import MeanField
from bnmc.mean_field.fixed_point import uncentred
from bnmc.mean_field.fixed_point.symmetric import fixed_point_of_batch

CASES = [
    # Of kinks, the rule with 100 heights is accurate to about 100^-2.
    ("relu", 4, "batch", 2e-4),
    ("selu", 4, "batch", 2e-4),
    ("gelu", 3, "batch", 1e-8),
    ("tanh", 3, "batch-uncentred", 2e-4),
    # These have a mean, so that their fixed points have correlated samples.
    pytest.param(("relu", 3, "batch-uncentred", 2e-4), marks=pytest.mark.slow),
    ("selu", 2, "batch-uncentred", 1e-6),
    pytest.param(("sigmoid", 3, "batch-uncentred", 2e-4), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case[:3])))
def both(request):
    name, n, norm, tolerance = request.param
    chain = Chain(width=100, batch=n, activation=name, norm=norm)
    centred = norm == "batch"
    points, weight = normalized_rows(n, 1000 if n - centred == 2 else 100, centred)
    expected = brute_force(chain.activation, points, weight, centred=centred)
    # The block between two batches takes 3 s, and the law of one batch does not depend on it.
    with mock.patch.object(uncentred, "cross_batch", return_value=(0.0, 0.0)):
        law = MeanField(chain).fluctuations()
    return law, tolerance, *expected


def test_mean_square(both):
    law, tolerance, gram, _, stationary, _ = both
    assert law.fixed_point.gram == pytest.approx(gram, rel=tolerance, abs=tolerance)
    prediction = law.mean_square(1)
    assert prediction.value == pytest.approx(np.trace(stationary), rel=10 * tolerance)
    assert 0 <= prediction.stderr < 1e-4 * prediction.value
    assert law.mean_square(50).value == pytest.approx(prediction.value / 50, rel=1e-14)


def test_covariance_of_every_pair_of_entries(both):
    law, tolerance, _, _, stationary, _ = both
    n = law.fixed_point.batch
    covariance = law.covariance(10)
    expected = stationary.reshape(n, n, n, n) / 10
    scale = np.abs(expected).max()
    for index in np.ndindex(n, n, n, n):
        result = covariance.between(index[:2], index[2:])
        assert result == pytest.approx(expected[index], abs=10 * tolerance * scale), index


def test_eigenvalues(both):
    law, _, _, jacobian, _, _ = both
    point = law.fixed_point
    alone = 0 if point.c else 1  # Φ′(c), or that of matrices with zero diagonal
    assert law.sectors[0].eigenvalue == pytest.approx(
        0.0 if law.centred else point.eigenvalues[alone], rel=1e-5
    )
    expected = max(abs(np.linalg.eigvals(jacobian)))
    assert max(sector.eigenvalue for sector in law.sectors) == pytest.approx(expected, rel=1e-3)
    eigenvalues = np.linalg.eigvals(law.sectors[1].jacobian)
    assert min(abs(eigenvalues - point.eigenvalues[0 if law.centred or not point.c else 1])) < 1e-5
    n = law.fixed_point.batch
    copies = sum(s.multiplicity * len(s.noise) for s in law.sectors)
    assert copies == n * (n + 1) // 2


def test_autocorrelation(both):
    law, tolerance, _, jacobian, stationary, _ = both
    n = law.fixed_point.batch
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((n, n))
    g = (0.5 * (weights + weights.T)).ravel()
    expected = [g @ np.linalg.matrix_power(jacobian, k) @ stationary @ g for k in (0, 1, 4)]
    expected = np.array(expected) / expected[0]
    result = law.autocorrelation(weights, [0, 1, 4])
    assert result == pytest.approx(expected, abs=100 * tolerance)

    def observable(G):
        return np.exp(np.sum(weights * G))

    # Its gradient is parallel to `weights`.
    assert law.autocorrelation(observable, [0, 1, 4]) == pytest.approx(result, abs=1e-7)


def test_spectrum(both):
    law, tolerance, gram, _, stationary, _ = both
    n = law.fixed_point.batch
    outlier = law.centred or law.fixed_point.c != 0
    projector = np.eye(n) - (1 / n if outlier else 0)
    m = n - outlier
    seen = np.kron(projector, projector)
    traceless = seen - np.outer(projector, projector) / m
    mu = np.sum(projector * gram) / m
    expected = np.trace(traceless @ stationary) / (m * mu**2 * n)
    assert law.spectrum(10).value == pytest.approx(expected, rel=10 * tolerance)


def test_least_width(both):
    law, tolerance, gram, _, stationary, _ = both
    n = law.fixed_point.batch
    # The pseudo-inverse root of what the norm sees.
    projector = np.eye(n) - law.centred / n
    values, vectors = np.linalg.eigh(projector @ gram @ projector)
    positive = values > 1e-9
    whitener = (vectors[:, positive] / np.sqrt(values[positive])) @ vectors[:, positive].T
    seen = whitener @ gram @ whitener
    m = positive.sum()
    double = np.kron(whitener, whitener)
    both_sides = double @ stationary @ double
    square = np.trace(both_sides) - seen.ravel() @ both_sides @ seen.ravel() / m
    expected = 10 * square / m**2 / (1 - law.fixed_point.rate)
    assert law.least_width == pytest.approx(expected, rel=20 * tolerance, abs=1.01)


def test_bias(both):
    law, tolerance, *_, bias = both
    # A sum of terms of order 1.
    assert law.bias(10) == pytest.approx(bias / 10, abs=tolerance / 10)
    assert np.abs(bias).max() > 0.005 or (law.centred and law.fixed_point.batch == 3)


def test_pairs_of_four_samples_without_centring():
    """The least batch with matrices of zero diagonal and zero row sums has two of them."""
    chain = Chain(width=100, batch=4, activation="gelu", norm="batch-uncentred")
    # This rule is accurate to about 1e-6 for a smooth function.
    points, weight = normalized_rows(4, 10, centred=False)
    _, jacobian, *_ = brute_force(chain.activation, points, weight, centred=False)
    with mock.patch.object(uncentred, "cross_batch", return_value=(0.0, 0.0)):
        point, _ = fixed_point_of_batch(chain.activation, 4, chain.normalization)
    pairs = np.array([[0, 1, -1, 0], [1, 0, 0, -1], [-1, 0, 0, 1], [0, -1, 1, 0]]) / np.sqrt(8)
    result = point.jacobians
    assert len(result) == 3
    assert result[2].item() == pytest.approx(pairs.ravel() @ jacobian @ pairs.ravel(), rel=1e-5)
