"""Samples of the stationary law with a certificate: their law, and the layer that is chosen."""

import math

import numpy as np
import pytest

import bnmc
from bnmc.errors import PartialEstimateError
from bnmc.invariant import certified_sample, sample

RELU = bnmc.Chain(20, 3, "relu")


def test_draws_have_the_invariant_law():
    # From samples near a line, whose law the first layers keep.
    rng = np.random.default_rng(5)
    line = rng.standard_normal((20, 1)) * [1.0, 1.5, 2.0] + 0.1 * rng.standard_normal((20, 3))
    draws = sample(RELU, 4000, atol=0.02, initial=line, rng=0)
    assert draws.gram.shape == (4000, 3, 3)
    assert draws.certificate.layers_to(0.02) == draws.layer
    assert draws.certificate.chains == math.ceil(1.25 * 2 * math.log(40.0) / 0.02)
    assert draws.assumes == draws.certificate.assumes != ()
    assert max(map(len, str(draws).splitlines())) <= 100
    assert " ".join(str(draws).split()) == " ".join(
        [
            f"4000 independent draws from layer {draws.layer} of {RELU}",
            "Their law is within 0.02 of the quasi-stationary law in total variation, by 462 "
            "coupled pairs, at level 0.95.",
            *draws.assumes,
        ]
    )
    truth = bnmc.simulate(RELU, 60, chains=4000, rng=1, burn_in=60).gram[:, -1]
    # Kolmogorov-Smirnov, with Massart's bound for both samples: a false alarm in 1e-6.
    allowed = 2.0 * math.sqrt(math.log(4.0 * 3 / 1e-6) / (2.0 * 4000)) + 0.02
    for of in (lambda g: g[:, 0, 0], lambda g: g[:, 0, 1], bnmc.gram.orthogonality_gap):
        mine, theirs = np.sort(of(draws.gram)), np.sort(of(truth))
        both = np.concatenate([mine, theirs])
        apart = np.searchsorted(mine, both, "right") - np.searchsorted(theirs, both, "right")
        assert np.abs(apart).max() / 4000 < allowed


def test_preactivations_are_normal_rows_given_the_gram_matrix():
    chain = bnmc.Chain(20, 3, "relu", gain=2.0)
    draws = sample(chain, 2000, atol=0.05, rng=3)
    h = draws.preactivations()
    assert h.shape == (2000, 20, 3)
    np.testing.assert_array_equal(h, draws.preactivations())
    # Whitened rows are 40,000 standard normal triples.
    factors = np.linalg.cholesky(4.0 * draws.gram)
    z = np.linalg.solve(factors[:, None], h[..., None])[..., 0].reshape(-1, 3)
    count = len(z)
    assert np.abs(z.mean(axis=0)).max() < 5.5 / math.sqrt(count)
    # Var z² = 2, Var z z' = 1.
    allowed = 5.5 * np.sqrt((1.0 + np.eye(3)) / count)
    assert (np.abs(z.T @ z / count - np.eye(3)) < allowed).all()


def test_too_few_pairs_certify_no_layer(monkeypatch):
    monkeypatch.setattr(certified_sample, "SPARE", 0.1)
    with pytest.raises(PartialEstimateError, match="certified") as raised:
        sample(RELU, 3, atol=0.001, rng=0)
    assert raised.value.partial.chains == math.ceil(0.1 * 2 * math.log(40.0) / 0.001)


def test_the_certificate_and_the_draws_have_random_numbers_of_their_own():
    """The layer is chosen by the certificate, so draws must not depend on its pairs."""
    draws = sample(bnmc.Chain(50, 3, "relu"), 4, atol=0.3, rng=0)
    assert draws.key != draws.certificate.key


def test_states_have_the_covariance_of_their_bias():
    """A bias that the norm subtracts is part of the state, too."""
    for options in ({"norm": "batch"}, {"norm": "rms"}):
        chain = bnmc.Chain(4000, 3, "relu", bias_variance=2.0, gain=0.5, **options)
        gram = np.array([[[1.0, 0.5, 0.2], [0.5, 1.0, 0.1], [0.2, 0.1, 2.0]]])
        (h,) = certified_sample.InvariantSample(chain, gram, 1, 0.1, None, 7).preactivations()
        expected = 0.25 * gram[0] + 2.0
        # An entry has the variance (S_ii S_jj + S_ij²)/d, and 6 standard errors 2e-9.
        size = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / 4000)
        assert (np.abs(h.T @ h / 4000 - expected) < 6.0 * size).all()
