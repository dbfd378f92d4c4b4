"""The seams for norms over the features and for maps between Gram matrix and covariance."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracle import FORMULAS, normal_threshold

import bnmc
from bnmc._kernels.scalar.codes import NORM_NONE
from bnmc.chain.chain import Chain
from bnmc.chain.norms import Norm
from bnmc.errors import NonFiniteError
from bnmc.simulation import plan
from bnmc.simulation.engine.passes import PassesSampler
from bnmc.simulation.engine.replay import hidden_panels
from bnmc.simulation.tiles import Grid

# A toy norm over the features needs no more than this value.
RMS = Norm("toy-rms", NORM_NONE, "features", centred=False)
GROUPS = Norm("toy-groups", NORM_NONE, "features", centred=True, groups=2)
NETWORKS = 2_000


def reference(norm, sigma, start, skip, depth, rng):
    """Gram matrices of the last layer of networks with real weights, from the formula."""
    width, batch = start.shape
    h = np.repeat(start[None], NETWORKS, axis=0)
    for _ in range(depth + 1):
        grouped = h.reshape(NETWORKS, norm.groups, -1, batch)
        if norm.centred:
            grouped = grouped - grouped.mean(axis=2, keepdims=True)
        x = grouped / np.sqrt((grouped**2).mean(axis=2, keepdims=True))
        x = x.reshape(h.shape)
        a = sigma(x)
        weights = rng.standard_normal((NETWORKS, width, width)) / math.sqrt(width)
        h = skip * x + weights @ a
    return a.swapaxes(1, 2) @ a / width


@pytest.mark.parametrize(("norm", "skip"), [(RMS, 0.0), (GROUPS, 0.0), (RMS, 0.5), (GROUPS, 0.5)])
def test_a_norm_over_the_features_is_a_value(norm, skip):
    # Means of 3 entries and of their squares.
    start = np.random.default_rng(1).standard_normal((6, 2))
    chain = Chain(6, 2, "tanh", norm=norm, skip=skip)
    run = bnmc.simulate(chain, 2, chains=NETWORKS, initial=start, rng=2)
    expected = reference(norm, FORMULAS["tanh"], start, skip, 2, np.random.default_rng(3))
    for power in (1, 2):
        for i, j in ((0, 0), (0, 1), (1, 1)):
            mine, other = run.gram[:, -1, i, j] ** power, expected[:, i, j] ** power
            error = math.sqrt((mine.var() + other.var()) / NETWORKS)
            assert abs(mine.mean() - other.mean()) <= normal_threshold(6) * error


@pytest.mark.parametrize("norm", [RMS, GROUPS])
def test_a_layer_is_the_norm_of_the_rows_that_are_made_again(norm):
    # With eps the norm sees the scale of the rows.
    chain = Chain(1500, 3, "tanh", norm=norm, gain=0.7, eps=0.5)
    state = bnmc.simulate(chain, 2, rng=4).final_state
    sampler = PassesSampler(chain, 1, None, "float64", state.key)
    sampler.take(state)
    h = np.concatenate([rows for _, rows in hidden_panels(sampler, 0, 3)], axis=1).T
    a = np.tanh(norm(h, 0.5))
    following = bnmc.simulate(chain, 1, initial=state).gram[0, -1]
    np.testing.assert_allclose(following, a.T @ a / 1500, rtol=1e-11)
    # The rows have the covariance of the state: gain² G, not a multiple of it.
    covariance = 0.7**2 * state.arrays["gram"][0]
    spread = math.sqrt(2.0 / 1500) * covariance.diagonal().max()
    assert np.abs(h.T @ h / 1500 - covariance).max() <= normal_threshold(9) * spread


def test_several_passes_see_the_same_rows_however_the_run_is_divided():
    chain = Chain(1500, 3, "tanh", norm=GROUPS)
    one = bnmc.simulate(chain, 3, chains=3, rng=0, threads=1).gram
    assert np.array_equal(one, bnmc.simulate(chain, 3, chains=3, rng=0, threads=2).gram)
    half = bnmc.simulate(chain, 1, chains=3, rng=0).final_state
    assert np.array_equal(one[:, 1:], bnmc.simulate(chain, 2, initial=half).gram)


def test_the_covariance_is_a_map_of_the_gram_matrix(monkeypatch):
    class Fourfold:
        is_identity = False

        def __call__(self, gram):
            return 4.0 * gram

    # Powers of 2 are exact: the map is a gain of 2.
    gained = bnmc.simulate(Chain(40, 3, "tanh", norm="none", gain=2.0), 3, chains=2, rng=0)
    monkeypatch.setattr(Chain, "covariance", Fourfold())
    mapped = bnmc.simulate(Chain(40, 3, "tanh", norm="none"), 3, chains=2, rng=0)
    assert np.array_equal(gained.gram, mapped.gram)


def test_the_chain_that_stops_in_a_pass_is_named_wherever_it_is(monkeypatch):
    """A rare value of the activation is no number; the chains before the named one run without."""

    def rare(x):
        return x if x <= 4.0 else np.nan

    chain, run = (
        Chain(40, 3, bnmc.Activation(rare, name="rare"), norm=RMS),
        {"rng": 24, "threads": 1},
    )
    with pytest.raises(NonFiniteError) as alone:
        bnmc.simulate(chain, 4, chains=8, **run)
    stops = alone.value.chain
    assert stops > 0
    bnmc.simulate(chain, 4, chains=stops, **run)
    monkeypatch.setattr(plan, "grid_of", lambda chains, recorded, *_: Grid(chains, recorded, 1, 7))
    with ThreadPoolExecutor(1) as pool, pytest.raises(NonFiniteError) as parted:
        bnmc.simulate(chain, 4, chains=8, executor=pool, **run)
    assert (parted.value.chain, parted.value.layer) == (stops, alone.value.layer)


def test_threads_that_begin_chains_at_once_keep_the_law(monkeypatch):
    """One thread begins its chains while another one is at work on its first chain."""
    chain = Chain(8, 3, "tanh", norm=GROUPS, skip=0.5, gain=1.5)
    expected = bnmc.simulate(chain, 5, chains=2, rng=0, threads=1).gram
    draw, one_layer = PassesSampler._draw_start, PassesSampler._one_layer_by_passes
    inside = [threading.Event(), threading.Event()]
    first_left = threading.Event()

    def draw_start(self, start, first, last):
        if first == 1:
            inside[0].wait(5.0)
        draw(self, start, first, last)
        if first == 0:
            first_left.set()

    def at_once(self, index, layer, *rest):
        if layer == 0:
            inside[index].set()
            (first_left if index == 1 else inside[1]).wait(5.0)
        one_layer(self, index, layer, *rest)

    monkeypatch.setattr(PassesSampler, "_draw_start", draw_start)
    monkeypatch.setattr(PassesSampler, "_one_layer_by_passes", at_once)
    found = bnmc.simulate(chain, 5, chains=2, rng=0, threads=2).gram
    np.testing.assert_array_equal(found, expected)
