"""The bias of E G, against second differences of the map, and simulated chains."""

import numpy as np
import pytest

import bnmc
from bnmc.chain import Chain
from bnmc.mean_field import MeanField


@pytest.mark.parametrize(
    ("activation", "n", "norm", "step", "tolerance"),
    [
        ("relu", 5, "batch", 0.01, 2e-4),
        ("abs", 4, "batch", 0.01, 3e-4),
        ("tanh", 3, "batch-uncentred", 0.03, 2e-3),
        # The map of relu that is not centred is guarded by `test_sectors`.
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
    found = bias - (ends[0] - ends[1]) / (2 * length)
    assert found == pytest.approx(expected, abs=tolerance * scale)
    assert scale > 0.005


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
        found = MeanField(Chain(10, n, activation)).fluctuations().bias(1)
        np.testing.assert_allclose(found, 0.0, atol=1e-9)
