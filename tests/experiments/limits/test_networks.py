"""Ensembles of trained networks: seeds, threads, interruption."""

import time

import numpy as np
import pytest

from bnmc.experiments.limits import networks
from bnmc.experiments.limits.networks import train_ensemble

X = np.random.default_rng(5).standard_normal((3, 6)) / np.sqrt(3.0)
Y = X[0] > 0


def outputs(rng, threads=1, labels=Y, networks=4, progress=lambda done, total: None):
    trained = train_ensemble(
        "ntk", X, labels, (0, 3), networks=networks, rng=rng, threads=threads, progress=progress,
        width=16, learning_rate=1.0,
    )  # fmt: skip
    return trained.outputs


def test_results_depend_on_the_state_of_the_generator_only(monkeypatch):
    """Not on threads, nor on groups, and not on the children that the generator has had."""
    told = []
    monkeypatch.setattr(networks, "_ROWS", 2 * 16)
    first = outputs(np.random.default_rng(1), 1, progress=lambda *now: told.append(now))
    rng = np.random.default_rng(1)
    rng.spawn(3)
    np.testing.assert_array_equal(outputs(rng, 3), first)
    assert told == [(2, 4), (4, 4)]
    monkeypatch.setattr(networks, "_ROWS", 1)
    np.testing.assert_array_equal(outputs(np.random.default_rng(1)), first)
    assert len(np.unique(first[:, 0, 0])) == 4
    assert not np.isin(outputs(rng, 1), first).any()


@pytest.mark.parametrize(("bytes_", "workers"), [(0, 1), (2 * 9216, 2), (3 * 9216 - 1, 2),
                                                 (10**9, 4)])  # fmt: skip
def test_threads_fit_in_memory(bytes_, workers, monkeypatch):
    """A network of width 16 takes 8 * 16 * (4 * 3 + 6 * 10) = 9216 bytes."""
    given, pool = [], networks.ThreadPoolExecutor

    def watched(count):
        given.append(count)
        return pool(count)

    monkeypatch.setattr(networks, "_ROWS", 16)
    monkeypatch.setattr(networks, "available_memory", lambda: bytes_)
    monkeypatch.setattr(networks, "ThreadPoolExecutor", watched)
    train_ensemble(
        "ntk", X, Y, (0, 1), networks=5, rng=np.random.default_rng(1), threads=4, width=16,
        progress=lambda done, total: None, test=X[:, :4],
    )  # fmt: skip
    assert given == [workers]


def test_each_network_may_have_its_own_labels():
    same = outputs(np.random.default_rng(1), networks=2)
    other = outputs(np.random.default_rng(1), networks=2, labels=np.stack([Y, ~Y]))
    np.testing.assert_array_equal(other[0], same[0])
    np.testing.assert_array_equal(other[1, 0], same[1, 0])
    assert not np.isclose(other[1, 1], same[1, 1]).all()


def test_networks_that_wait_do_not_run_after_an_interruption(monkeypatch):
    ran = []

    def slow(*given, **options):
        ran.append(1)
        time.sleep(0.01)

    monkeypatch.setattr(networks, "train_networks", slow)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outputs(np.random.default_rng(1), 1, networks=1000, progress=stop)
    assert len(ran) < 500
