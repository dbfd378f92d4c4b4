"""Several trained networks: seeds, learning rates, random images, and kept parts."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.errors import ArgumentError, MissingExtraError, StoreMismatchError  # noqa: E402
from bnmc.experiments.parts import Call  # noqa: E402
from bnmc.experiments.training import runs  # noqa: E402
from bnmc.experiments.training.networks import mlp  # noqa: E402
from bnmc.experiments.training.runs import Case, images_of, trained  # noqa: E402
from bnmc.experiments.training.trainer import Plan  # noqa: E402

BUILD = partial(mlp, 64, 8, 1)
PLAN = Plan(2, 16, 0.1)


def made(*cases, rng=1, store=None, count=32, **further):
    call = Call("x", rng=rng, store=store)
    return trained(call, cases, images_of(call, count, 16), PLAN, 2, **further)


def test_networks_differ_and_the_seed_repeats_them():
    (first,), (again,), (other,) = (made(Case(BUILD, (0.1,)), rng=rng) for rng in (1, 1, 2))
    assert first["loss"].shape == (2, 3)
    assert first["loss"][0, 0] != first["loss"][1, 0]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["loss"], other["loss"])


def test_the_best_learning_rate_is_that_of_the_smallest_final_loss():
    (best,) = made(Case(BUILD, (1e-6, 0.3, 1e30)))
    assert best["rate"] == 0.3


def test_a_preparation_changes_the_network_before_the_training():
    def prepare(model, inputs, rng):
        assert inputs.shape == (32, 1, 8, 8)
        assert float(inputs.max()) == 255.0
        with torch.no_grad():
            model[-1].weight.zero_()
            model[-1].bias.zero_()

    (found,) = made(Case(BUILD, (1e-6,), prepare), scale=(250.0, 5.0))
    np.testing.assert_allclose(found["loss"][:, 0], np.log(10), rtol=1e-12)


def test_noise_replaces_the_images():
    seen = []
    noise = Case(BUILD, (0.1,), lambda model, inputs, rng: seen.append(inputs), noise=True)
    made(noise)
    assert len({one.numpy().tobytes() for one in seen}) == 2
    pixels = torch.stack(seen).numpy()
    assert 0 <= pixels.min() < 0.01
    assert 0.99 < pixels.max() <= 1
    # The mean of 4096 uniform numbers, within 5.1 standard errors (probability 4e-7).
    assert abs(pixels.mean() - 0.5) < 5.1 / np.sqrt(12 * pixels.size)


def test_an_interrupted_call_continues(tmp_path, monkeypatch):
    cases = Case(BUILD, (0.1, 0.2)), Case(partial(BUILD, norm="batch"), (0.1,))
    expected = made(*cases)
    real, calls = runs.train, []

    def until(*arguments):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(runs, "train", until)
    with pytest.raises(KeyboardInterrupt):
        made(*cases, store=tmp_path / "parts")
    monkeypatch.setattr(runs, "train", lambda *given: calls.append(1) or real(*given))
    found = made(*cases, store=tmp_path / "parts")
    assert len(calls) == 6
    for one, other in zip(expected, found, strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    with pytest.raises(StoreMismatchError, match="images"):
        made(*cases, store=tmp_path / "parts", count=48)


def test_what_is_missing_is_told_before_any_work(monkeypatch):
    with pytest.raises(ArgumentError, match="threads"):
        images_of(Call("x", threads=0), 32, 16)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"bnmc\[torch\]"):
        images_of(Call("x"), 32, 16)
