"""Images of two classes, and ensembles of networks: seeds, threads, interruption, refusals."""

import time

import numpy as np
import pytest

from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.experiments.limits import ensembles
from bnmc.experiments.limits.ensembles import standardized, train_ensemble, two_classes, unit_length
from bnmc.experiments.training.images import digits, images


def cifar(folder, labels, seed=0):
    """Write a file of CIFAR-10's binary version with random pixels, and return its rows."""
    rows = np.random.default_rng(seed).integers(0, 256, (len(labels), 3073), dtype=np.uint8)
    rows[:, 0] = labels
    rows.tofile(folder / "data_batch_1.bin")
    return rows


def test_digits():
    inputs = two_classes(None, 20, 8, (3, 8))
    whole = digits(1740).T.reshape(-1, 10, 64)
    pairs = whole[:14, [3, 8]].reshape(28, 64)  # 3, 8, 3, 8, …
    np.testing.assert_array_equal(inputs.train, pairs[:20].T)
    np.testing.assert_array_equal(inputs.test, pairs[20:].T)
    assert inputs.labels.tolist() == [False, True] * 10
    assert inputs.test_labels.tolist() == [False, True] * 4
    assert "digits, classes 3 and 8, 20 images for training and 8" in inputs.describe()
    assert inputs.digest == images(None, 224, 2).digest()


def test_no_images_for_testing():
    """All images are for training; with 4 for testing 1 or 2 were left of 348."""
    inputs = two_classes(None, 1000, 0, (0, 1))
    assert (inputs.train.shape[1], inputs.test.shape) == (348, (64, 0))
    few = two_classes(None, 20, 0, (0, 1))
    np.testing.assert_array_equal(few.train, two_classes(None, 20, 4, (0, 1)).train)


def test_fewer_images_are_divided_in_proportion():
    inputs = two_classes(None, 400, 200, (0, 1))  # there are 348
    assert (inputs.train.shape[1], inputs.test.shape[1]) == (232, 116)


def test_cifar_is_scaled_by_the_published_numbers(tmp_path):
    rows = cifar(tmp_path, [0, 5, 1, 0, 1, 7, 1, 0, 0, 1, 1])
    inputs = standardized(two_classes(tmp_path, 4, 4, (0, 1)))
    chosen = rows[[0, 2, 3, 4, 6, 7, 8, 9]]
    expected = (chosen[:, 1:].T / 255 - 0.4734) / 0.2516 / np.sqrt(3072)
    np.testing.assert_allclose(np.hstack([inputs.train, inputs.test]), expected, rtol=1e-12)
    assert inputs.labels.tolist() == [False, True, False, True]


def test_scales():
    inputs = two_classes(None, 40, 8, (0, 1))
    scaled, short = standardized(inputs), unit_length(inputs)
    assert scaled.train.mean() == pytest.approx(0.0, abs=1e-14)
    assert np.square(scaled.train).sum() == pytest.approx(40.0)
    gap = (inputs.test - inputs.train.mean()) / inputs.train.std() / 8.0
    np.testing.assert_allclose(scaled.test, gap, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(short.test, axis=0), 1.0, rtol=1e-12)


def test_bad_data(tmp_path):
    with pytest.raises(ArgumentError, match=r"^data: got '.*', allowed: a folder with"):
        two_classes(tmp_path, 4, 4, (0, 1))
    with pytest.raises(ArgumentTypeError, match="^data"):
        two_classes(3, 4, 4, (0, 1))
    cifar(tmp_path, [0, 0, 0, 0, 0, 1, 1, 1, 5, 5])
    with pytest.raises(ArgumentError, match="^data: got '0 images of class 0 or 1 for training'"):
        two_classes(tmp_path, 4, 4, (0, 1))


def test_black_images_have_no_length():
    inputs = two_classes(None, 4, 4, (0, 1))
    with pytest.raises(ArgumentError, match="^data: got 'an image without a pixel above 0'"):
        unit_length(inputs._replace(test=0.0 * inputs.test))


X = np.random.default_rng(5).standard_normal((3, 6)) / np.sqrt(3.0)
Y = X[0] > 0


def outputs(rng, threads=1, labels=Y, chains=4, progress=lambda done, total: None):
    trained = train_ensemble(
        "ntk", X, labels, (0, 3), chains=chains, rng=rng, threads=threads, progress=progress,
        width=16, learning_rate=1.0,
    )  # fmt: skip
    return trained.outputs


def test_results_depend_on_the_state_of_the_generator_only(monkeypatch):
    """Not on threads, nor on groups, and not on the children that the generator has had."""
    told = []
    monkeypatch.setattr(ensembles, "_ROWS", 2 * 16)
    first = outputs(np.random.default_rng(1), 1, progress=lambda *now: told.append(now))
    rng = np.random.default_rng(1)
    rng.spawn(3)
    np.testing.assert_array_equal(outputs(rng, 3), first)
    assert told == [(2, 4), (4, 4)]
    monkeypatch.setattr(ensembles, "_ROWS", 1)
    np.testing.assert_array_equal(outputs(np.random.default_rng(1)), first)
    assert len(np.unique(first[:, 0, 0])) == 4
    assert not np.isin(outputs(rng, 1), first).any()


@pytest.mark.parametrize(("bytes_", "workers"), [(0, 1), (2 * 9216, 2), (3 * 9216 - 1, 2),
                                                 (10**9, 4)])  # fmt: skip
def test_threads_fit_in_memory(bytes_, workers, monkeypatch):
    """A network of width 16 takes 8 * 16 * (4 * 3 + 6 * 10) = 9216 bytes."""
    given, pool = [], ensembles.ThreadPoolExecutor

    def watched(count):
        given.append(count)
        return pool(count)

    monkeypatch.setattr(ensembles, "_ROWS", 16)
    monkeypatch.setattr(ensembles, "available_memory", lambda: bytes_)
    monkeypatch.setattr(ensembles, "ThreadPoolExecutor", watched)
    train_ensemble(
        "ntk", X, Y, (0, 1), chains=5, rng=np.random.default_rng(1), threads=4, width=16,
        progress=lambda done, total: None, test=X[:, :4],
    )  # fmt: skip
    assert given == [workers]


def test_each_network_may_have_its_own_labels():
    same = outputs(np.random.default_rng(1), chains=2)
    other = outputs(np.random.default_rng(1), chains=2, labels=np.stack([Y, ~Y]))
    np.testing.assert_array_equal(other[0], same[0])
    np.testing.assert_array_equal(other[1, 0], same[1, 0])
    assert not np.isclose(other[1, 1], same[1, 1]).all()


def test_networks_that_wait_do_not_run_after_an_interruption(monkeypatch):
    ran = []

    def slow(*given, **options):
        ran.append(1)
        time.sleep(0.01)

    monkeypatch.setattr(ensembles, "train_networks", slow)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outputs(np.random.default_rng(1), 1, chains=1000, progress=stop)
    assert len(ran) < 500
