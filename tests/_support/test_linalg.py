"""Roots and singularity of positive semidefinite matrices."""

import numpy as np
import pytest

import bnmc
from bnmc._support import linalg
from bnmc.errors import SingularGramError


def test_root_of_a_stack_of_matrices_of_every_rank():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5)) * np.array([1, 0, 1e-3])[:, None, None]
    grams = np.swapaxes(x, 1, 2) @ x
    roots = linalg.semidefinite_root(grams)
    np.testing.assert_allclose(np.swapaxes(roots, 1, 2) @ roots, grams, atol=1e-14)
    for gram, root in zip(grams, roots, strict=True):
        np.testing.assert_array_equal(linalg.semidefinite_root(gram), root)


def flipped_eigh(matrices):
    """Return eigenvalues, and eigenvectors with every other sign changed."""
    values, vectors = eigh(matrices)
    return values, vectors * np.where(np.arange(vectors.shape[-1]) % 2, 1.0, -1.0)


eigh = np.linalg.eigh


def test_signs_of_eigenvectors_play_no_part(monkeypatch):
    """LAPACK leaves them open, so they differ between processors."""
    gram = np.array([[2.0, 1.0, 0.5], [1.0, 2.0, 0.2], [0.5, 0.2, 1.0]])
    chain = bnmc.Chain(12, 3, "relu")
    root = linalg.semidefinite_root(gram)
    kernels = bnmc.gradients.tangent_kernel(chain, 2, chains=3, rng=0).kernels
    states = bnmc.invariant.sample(chain, 2, 0.9, rng=0).preactivations()
    monkeypatch.setattr(np.linalg, "eigh", flipped_eigh)
    np.testing.assert_allclose(linalg.semidefinite_root(gram), root, rtol=1e-13)
    again = bnmc.gradients.tangent_kernel(chain, 2, chains=3, rng=0).kernels
    np.testing.assert_allclose(again, kernels, rtol=1e-9)
    again = bnmc.invariant.sample(chain, 2, 0.9, rng=0).preactivations()
    np.testing.assert_allclose(again, states, rtol=1e-9, atol=1e-9)


def test_singular_spectra_are_named_with_their_index():
    spectra = np.array([[[1.0, 2.0], [2 * linalg.EPS, 1.0]], [[-1.0, 1.0], [0.0, 0.0]]])
    np.testing.assert_array_equal(
        linalg.is_singular(spectra, linalg.EPS), [[False, True], [True, True]]
    )
    linalg.require_regular("G", spectra[0, 0], linalg.EPS)
    with pytest.raises(SingularGramError, match="G") as caught:
        linalg.require_regular("G", spectra, linalg.EPS)
    assert caught.value.index == (0, 1)


def test_rounding_units():
    assert linalg.rounding_unit(np.ones(1)) == linalg.EPS
    assert linalg.rounding_unit(np.ones(1, np.float32)) == 2.0**-23
