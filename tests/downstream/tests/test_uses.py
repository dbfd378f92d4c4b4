"""Tests of the downstream package, with the fixtures and tools that bnmc brings."""

from concurrent.futures import ThreadPoolExecutor

import downstream
import numpy as np
import pytest

import bnmc
from bnmc.testing import LawMismatch, assert_same_law

CHAIN = bnmc.Chain(40, 3)


def test_its_loop_gives_the_bits_of_simulate():
    chain = bnmc.Chain(40, 3, "relu")
    run = bnmc.simulate(chain, 5, rng=1, sampler="conditional")
    last = run.gram[0, -1]
    expected = np.abs(last[np.tril_indices(3, -1)]).max()
    assert downstream.correlation_after(chain, 5, run.key) == expected


def test_its_call_of_c(bnmc_rng):
    a = bnmc_rng.standard_normal((40, 3))
    np.testing.assert_allclose(downstream.gram_by_c(CHAIN, a), a.T @ a / 40, rtol=0, atol=1e-12)


def test_its_tasks_on_an_executor():
    chains = [bnmc.Chain(width, 3) for width in (10, 40)]
    with ThreadPoolExecutor(2) as executor:
        gaps = downstream.mean_gaps(chains, 4, executor)
    assert gaps == [downstream._mean_gap(chain, 4) for chain in chains]


def test_its_layer_is_a_layer_of_the_chain(bnmc_rng):
    assert_same_law(downstream.Layer(40, bnmc_rng), CHAIN, rng=0, rows=512)
    with pytest.raises(LawMismatch, match="ddof"):
        assert_same_law(downstream.Layer(40, bnmc_rng, ddof=1), CHAIN, rng=0)


def test_the_installed_package_is_typed():
    from importlib.resources import files

    assert files("bnmc").joinpath("py.typed").is_file()
