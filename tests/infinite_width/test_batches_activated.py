"""Kernels of batch normalization after the activation, against networks of finite width."""

import numpy as np
import pytest

from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width import convergence, nngp, ntk

ORDER = {"norm": "batch", "order": "activation-norm"}
OPTIONS = {**ORDER, "activation": "tanh", "weight_variance": 1.5, "bias_variance": 0.3}
X = np.random.default_rng(0).standard_normal((9, 14))


@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_one_layer_of_finite_networks_has_the_mean_of_the_limit(kernel):
    """Rows of h_0 are Gaussian at every width, so the mean of K and Θ does not depend on it.

    Batches of 7 have 6 dimensions, so fourth moments of 1/|row| are finite.  Of 98 entries
    |z| > 6.5 has the probability 2e-8 (t distribution with 400 degrees of freedom).
    """
    options = {**OPTIONS, "skip": 0.7, "batch": 7}
    limit = kernel(X, 1, rng=0, rtol=4e-3, **options)
    found = kernel(X, 1, method="monte-carlo", width=24, networks=400, rng=1, **options)
    error = np.hypot(found.stderr(), 4e-3 * np.linalg.norm(limit) / len(limit))
    assert (np.abs(found.mean() - limit) < 6.5 * error).all()


@pytest.mark.parametrize(
    ("kernel", "skip"),
    [
        (ntk, 0.7),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((nngp, 0.7), (ntk, 0.0))),
    ],
)
def test_two_layers_of_finite_networks(kernel, skip):
    """Their mean differs from the limit by O(1/width), which 2 m(2d) − m(d) removes.

    Of 98 entries |z| > 6.5 has the probability 1e-7 (t distribution with 150 degrees of freedom).
    """
    options = {**OPTIONS, "skip": skip, "batch": 7}
    limit = kernel(X, 2, rng=0, rtol=4e-3, **options)
    one, two = (
        kernel(X, 2, method="monte-carlo", width=width, networks=150, rng=width, **options)
        for width in (48, 96)
    )
    mean = 2 * two.mean() - one.mean()
    error = np.sqrt(4 * two.stderr() ** 2 + one.stderr() ** 2)
    error = np.hypot(error, 4e-3 * np.linalg.norm(limit) / len(limit))
    assert (np.abs(mean - limit) < 6.5 * error).all()


@pytest.mark.slow
def test_finite_networks_converge_as_the_root_of_the_width():
    found = convergence(
        X[:, :7], 1, widths=[64, 256, 1024], networks=25, rng=1, rtol=5e-3, skip=0.5, **OPTIONS
    )
    # Five standard errors, and 0.05 for the next order.
    assert abs(found.slope + 0.5) < 5 * found.slope_stderr + 0.05
    assert found.slope_stderr < 0.06


def test_a_linear_activation_commutes_with_the_norm():
    options = {"norm": "batch", "activation": "linear", "weight_variance": 1.5, "batch": 7}
    for kernel in (nngp, ntk):
        last = kernel(X, 2, order="activation-norm", **options)
        np.testing.assert_allclose(last, kernel(X, 2, **options), rtol=1e-12)
    # The skip connection adds what it keeps, and its tangents.
    gram = 1.5 * X.T @ X / 9
    found = nngp(X, 1, order="activation-norm", skip=0.5, **options)
    np.testing.assert_allclose(found, 0.25 * gram + nngp(X, 1, **options), rtol=1e-12)
    found = ntk(X, 1, order="activation-norm", skip=0.5, **options)
    np.testing.assert_allclose(found, 0.25 * gram + ntk(X, 1, **options), rtol=1e-12)


def test_batches_of_a_set_are_blocks():
    options = {**OPTIONS, "skip": 0.5, "rng": 0, "rtol": 0.03}
    for kernel in (nngp, ntk):
        whole = kernel(X, 2, batch=7, **options)
        assert (whole == whole.T).all()
        blocks = [
            (whole[:7, :7], kernel(X[:, :7], 2, **options)),
            (whole[:7, 7:], kernel(X[:, :7], 2, other=X[:, 7:], **options)),
            (whole[:, 7:], kernel(X, 2, other=X[:, 7:], batch=(7, 7), **options)),
        ]
        for found, expected in blocks:
            assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    # Between a batch and itself the kernel is that of the batch.
    own = ntk(X[:, :7], 1, **options)
    again = ntk(X[:, :7], 1, other=X[:, :7], **options)
    assert np.linalg.norm(own - again) < 0.1 * np.linalg.norm(own)


def apart(by):
    """Return samples that differ by multiples of `by`, a power of 2, without rounding."""
    return 1.0 + by * np.round(X[:, :7] * 4) / 4


@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_nearly_equal_samples_see_a_linear_activation(kernel):
    """Then N(σ(u)) is N(u) or −N(u).  The rest is of the order of their differences."""
    wide = np.round(X[:, :7] * 4) / 4
    expected = kernel(wide, 1, norm="batch", activation="linear")
    options = {**ORDER, "activation": "tanh", "rng": 0, "rtol": 4e-3}
    found = kernel(apart(2.0**-50), 1, **options)
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    found = kernel(apart(2.0**-20), 1, **options)
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("kernel", [nngp, ntk])
def test_kernels_are_positive_semidefinite(kernel):
    x = X[:, :8].copy()
    x[:, 1] = x[:, 0] * (1 + 1e-16) + 1e-16
    x[:, 2] = x[:, 0] + 1e-9 * x[:, 2]
    for inputs in (x, 1.0 + 2.0**-52 * np.round(8 * X[:, :8])):
        found = kernel(inputs, 2, rng=0, rtol=0.02, skip=0.5, **OPTIONS)
        assert np.isfinite(found).all()
        assert (found == found.T).all()
        values = np.linalg.eigvalsh(found)
        assert values[0] > -1e-9 * values[-1]


def test_bad_input_raises():
    with pytest.raises(ArgumentError, match="no variance"):
        nngp(X, 1, activation="relu", **ORDER)
    with pytest.raises(ArgumentError, match="infinite"):
        ntk(X[:, :3], 1, activation="tanh", **ORDER)
    with pytest.raises(ArgumentError, match="equal samples"):
        nngp(np.ones((3, 4)), 1, activation="tanh", **ORDER)
    with pytest.raises(ArgumentError, match="derivative"):
        ntk(X, 1, activation=lambda x: x * x * x, **ORDER)
    with pytest.raises(NonFiniteError):
        nngp(X, 4, skip=1e100, activation="linear", **ORDER)
    two = nngp(X[:, :2], 1, activation="tanh", rng=0, **ORDER)
    np.testing.assert_allclose(two, [[1, -1], [-1, 1]], atol=1e-12)
    # A network without hidden layers has no norm.
    np.testing.assert_allclose(nngp(X, 0, skip=0.5, **ORDER), X.T @ X / 9)
