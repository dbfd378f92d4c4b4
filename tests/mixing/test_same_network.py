"""Two inputs through the same networks, compared with networks written out in NumPy."""

import numpy as np
import pytest
import scipy.linalg

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError
from bnmc.mixing.same_network import two_inputs

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 60, 4))


def normalise(h):
    h = h - h.mean(axis=-1, keepdims=True)
    return h / np.sqrt((h**2).mean(axis=-1, keepdims=True))


def certificates(first, second):
    relative = np.linalg.norm(np.linalg.inv(first) @ second - np.eye(len(first)))
    ratio = np.sort(np.linalg.eigvalsh(first)) / np.sort(np.linalg.eigvalsh(second))
    return np.abs(ratio - 1.0).sum(), relative


def by_hand(activation, depth, chains, seed, part=lambda gram: gram):
    """Both certificates in each layer, (2, chains, layers), with one W for both inputs."""
    rng = np.random.default_rng(seed)
    out = np.empty((2, chains, depth + 1))
    for chain in range(chains):
        x, y = normalise(X), normalise(Y)
        for layer in range(depth + 1):
            a, b = activation(x), activation(y)
            out[:, chain, layer] = certificates(part(a.T @ a / 60), part(b.T @ b / 60))
            w = rng.normal(size=(60, 60)) / np.sqrt(60)
            x, y = normalise(w @ a), normalise(w @ b)
    return out


@pytest.mark.slow
def test_two_inputs_are_as_through_networks_written_out():
    chains, depth = 4000, 3
    found = two_inputs(bnmc.Chain(60, 4, "relu"), X, Y, depth=depth, chains=chains, rng=0)
    np.testing.assert_array_equal(found.layers, np.arange(depth + 1))
    expected = by_hand(lambda x: np.maximum(x, 0.0), depth, chains, 1)
    for mine, theirs in zip((found.spectral, found.relative), expected, strict=True):
        assert mine.shape == (chains, depth + 1)
        np.testing.assert_allclose(mine[:, 0], theirs[:, 0], rtol=1e-9)
        # 5.5 standard errors, 6 times: a false alarm in 2.3e-7.
        error = np.hypot(mine.std(axis=0), theirs.std(axis=0))[1:] / np.sqrt(chains)
        assert (np.abs(mine.mean(axis=0) - theirs.mean(axis=0))[1:] < 5.5 * error).all()


def test_of_a_centred_linear_chain_the_regular_part_is_compared():
    found = two_inputs(bnmc.Chain(60, 4, "linear"), X, Y, depth=2, chains=2000, rng=0)
    basis = scipy.linalg.helmert(4)
    expected = by_hand(lambda x: x, 2, 2000, 1, lambda gram: basis @ gram @ basis.T)
    for mine, theirs in zip((found.spectral, found.relative), expected, strict=True):
        np.testing.assert_allclose(mine[:, 0], theirs[:, 0], rtol=1e-9)
        error = np.hypot(mine.std(axis=0), theirs.std(axis=0))[1:] / np.sqrt(2000)
        assert (np.abs(mine.mean(axis=0) - theirs.mean(axis=0))[1:] < 5.5 * error).all()


def test_the_same_input_twice_stays_the_same():
    found = two_inputs(bnmc.Chain(60, 4, "relu"), X, X, depth=5, chains=3, rng=0)
    # The condition number of G is below 100, and rounding 1e-16.
    assert found.relative.max() < 1e-11
    assert found.spectral.max() < 1e-11


def test_weights_in_common_do_not_let_the_distance_vanish():
    found = two_inputs(bnmc.Chain(60, 4, "relu"), X, Y, depth=60, chains=50, rng=0)
    assert found.relative[:, -1].min() > 1e-3


def test_a_singular_gram_matrix_is_an_error():
    copies = X.copy()
    copies[:, 3] = copies[:, 0]
    chain = bnmc.Chain(60, 4, "relu")
    for x, y in ((copies, Y), (X, copies)):
        with pytest.raises(SingularGramError):
            two_inputs(chain, x, y, depth=2, chains=2, rng=0)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"chain": bnmc.Chain(60, 4, "linear", norm="none")}, ArgumentError, "norm"),
        ({"chain": 3}, ArgumentTypeError, "chain"),
        ({"x": X[:, :3]}, ArgumentError, "x: "),
        ({"y": np.full((60, 4), np.nan)}, ArgumentError, "y: "),
        ({"x": "x"}, ArgumentTypeError, "x: "),
        ({"depth": -1}, ArgumentError, "depth"),
        ({"chains": 0}, ArgumentError, "chains"),
    ],
)
def test_bad_input(options, error, said):
    with pytest.raises(error, match=said):
        two_inputs(**({"chain": bnmc.Chain(60, 4, "relu"), "x": X, "y": Y, "rng": 0} | options))
