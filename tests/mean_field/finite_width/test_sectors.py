"""The sectors, against the equation S = J S Jᵀ + C for all n² entries, by brute force."""

import numpy as np
import pytest
from spheres import brute_force, centred_points, full_points

from bnmc.chain import Chain
from bnmc.mean_field import MeanField

CASES = [
    # The midpoint rule with 100 heights is accurate to about 100^-2.
    ("relu", 4, "batch", 2e-4),
    ("selu", 4, "batch", 2e-4),
    ("gelu", 3, "batch", 1e-8),
    ("tanh", 3, "batch-uncentred", 2e-4),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case[:3])))
def both(request):
    name, n, norm, tolerance = request.param
    chain = Chain(width=100, batch=n, activation=name, norm=norm)
    centred = norm == "batch"
    points, weight = centred_points(n, 100 if n == 4 else 2_000) if centred else full_points(100)

    def function(x):
        return np.asarray(chain.activation(x))

    gram, jacobian, stationary = brute_force(function, points, weight, centred=centred)
    return MeanField(chain).fluctuations(), gram, jacobian, stationary, tolerance


def test_mean_square(both):
    law, gram, _, stationary, tolerance = both
    assert law.fixed_point.gram == pytest.approx(gram, rel=tolerance, abs=tolerance)
    found = law.mean_square(1)
    assert found.value == pytest.approx(np.trace(stationary), rel=10 * tolerance)
    assert 0 <= found.stderr < 1e-5 * found.value
    assert law.mean_square(50).value == pytest.approx(found.value / 50, rel=1e-14)


def test_covariance_of_every_pair_of_entries(both):
    law, _, _, stationary, tolerance = both
    n = law.fixed_point.batch
    covariance = law.covariance(10)
    expected = stationary.reshape(n, n, n, n) / 10
    scale = np.abs(expected).max()
    for index in np.ndindex(n, n, n, n):
        found = covariance.between(index[:2], index[2:])
        assert found == pytest.approx(expected[index], abs=10 * tolerance * scale), index


def test_eigenvalues(both):
    law, _, jacobian, _, _ = both
    assert law.sectors[0].eigenvalue == pytest.approx(
        0.0 if law.centred else law.fixed_point.eigenvalues[1]
    )
    expected = max(abs(np.linalg.eigvals(jacobian)))
    assert max(sector.eigenvalue for sector in law.sectors) == pytest.approx(expected, rel=1e-3)
    eigenvalues = np.linalg.eigvals(law.sectors[1].jacobian)
    assert min(abs(eigenvalues - law.fixed_point.eigenvalues[0])) < 1e-10
    n = law.fixed_point.batch
    copies = sum(s.multiplicity * len(s.noise) for s in law.sectors)
    assert copies == n * (n + 1) // 2


def test_autocorrelation(both):
    law, _, jacobian, stationary, tolerance = both
    n = law.fixed_point.batch
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((n, n))
    g = (0.5 * (weights + weights.T)).ravel()
    expected = [g @ np.linalg.matrix_power(jacobian, k) @ stationary @ g for k in (0, 1, 4)]
    expected = np.array(expected) / expected[0]
    found = law.autocorrelation(weights, [0, 1, 4])
    assert found == pytest.approx(expected, abs=100 * tolerance)

    def observable(G):
        return np.exp(np.sum(weights * G))

    # Its gradient is parallel to `weights`.
    assert law.autocorrelation(observable, [0, 1, 4]) == pytest.approx(found, abs=1e-7)


def test_spectrum(both):
    law, gram, _, stationary, tolerance = both
    n = law.fixed_point.batch
    projector = np.eye(n) - (1 / n if law.centred else 0)
    m = n - law.centred
    seen = np.kron(projector, projector)
    traceless = seen - np.outer(projector, projector) / m
    mu = np.sum(projector * gram) / m
    expected = np.trace(traceless @ stationary) / (m * mu**2 * n)
    assert law.spectrum(10).value == pytest.approx(expected, rel=10 * tolerance)
