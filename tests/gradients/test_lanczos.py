"""Extreme singular values: those of all singular values, their law, and those that are known."""

import numpy as np
import pytest
from gradient_runs import assert_same_law

from bnmc import Chain, errors
from bnmc.gradients import extreme_singular_values, jacobian, lanczos

CASES = {
    "none": Chain(30, 1, "relu", norm="none", weights="uniform"),
    "batch": Chain(8, 4, "tanh", weights="uniform"),
    "skip": Chain(8, 4, "tanh", weights="uniform", skip=0.6),
    "residual": Chain(8, 3, "sin", weights="uniform", skip=1.0, order="pre-activation"),
    "layer after": Chain(
        8, 2, "tanh", norm="layer", order="activation-norm", weights="uniform", skip=0.5
    ),
}


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("name", CASES)
def test_ends_are_those_of_all_singular_values(name, which):
    """Both functions draw the same weights of a law without a form of its own."""
    chain = CASES[name]
    if which == "smallest" and name != "skip":
        chain = Chain(6, 1, "sin", norm="none", weights="uniform")
    ours = extreme_singular_values(chain, 2, which=which, chains=3, rtol=1e-9, rng=1)
    every = jacobian(chain, 2, chains=3, rng=ours.key).squared_singular_values
    expected = every.max(axis=1) if which == "largest" else every.min(axis=1)
    assert np.abs(ours.squares - expected).max() < 1e-8 * every.max()


@pytest.mark.slow
def test_the_law_is_that_of_all_singular_values():
    """Implicit matrices at width 60; two-sample Kolmogorov-Smirnov test of 150 networks a side."""
    chain = Chain(60, 1, "tanh", norm="none", gain=1.5)
    ours = extreme_singular_values(chain, 2, chains=150, rng=1)
    theirs = jacobian(chain, 2, every=2, chains=150, rng=2).squared_singular_values.max(axis=1)
    assert_same_law(np.log(ours.squares)[:, None], np.log(theirs)[:, None])


def test_known_ends():
    """Isometries; and the edge 4 of one Gaussian matrix, with corrections of order d**(-2/3)."""
    haar = Chain(500, 1, "linear", norm="none", weights="haar")
    for which in ("largest", "smallest"):
        ends = extreme_singular_values(haar, 3, which=which, chains=2, rng=0)
        assert np.abs(ends.squares - 1.0).max() < 1e-12
    edge = extreme_singular_values(Chain(20_000, 1, "linear", norm="none"), 1, chains=1, rng=0)
    assert abs(edge.squares[0] - 4.0) < 8 * 20_000 ** (-2 / 3)


def test_results_do_not_depend_on_threads():
    chain = Chain(200, 2, "tanh")
    runs = [
        extreme_singular_values(chain, 2, chains=3, threads=threads, rng=7).squares
        for threads in (1, 3)
    ]
    assert runs[0].tobytes() == runs[1].tobytes()


def test_what_does_not_converge_raises(monkeypatch):
    monkeypatch.setattr(lanczos, "_MOST_STEPS", 20)  # 300 steps of wide layers take seconds
    chain = Chain(60, 1, "linear", norm="none")
    with pytest.raises(errors.PartialEstimateError, match="does not converge"):
        extreme_singular_values(chain, 3, which="smallest", chains=1, rng=0)
    single = extreme_singular_values(Chain(6, 1, "sin", norm="none"), 1, chains=1, rng=0)
    with pytest.raises(errors.PartialEstimateError, match="at least 2"):
        single.mean()
