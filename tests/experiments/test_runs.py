"""Runs of figures: seeds, progress of parts, and folders from which interrupted runs continue."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

import bnmc
from bnmc._support import progress
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreError, StoreMismatchError
from bnmc.experiments import runs
from bnmc.experiments.runs import Run
from bnmc.simulation.store.parts import with_facts, without_facts


class Stopped(KeyboardInterrupt):
    """A Ctrl-C that the tests tell from one of the user's."""


def made(folder, *, stop=4, seed=7, width="3", images=None, calls=None):
    """Return the parts of a figure of four, each of which draws from the generator."""
    run = Run("name", {"width": width}, rng=seed, store=folder)
    offset = run.generator.random()

    def draw(scale, progress):
        if scale > stop:
            raise Stopped
        if calls is not None:
            calls.append(scale)
        return offset + scale * run.generator.standard_normal(3)

    facts = None if images is None else {"images": images}
    return run.parts(draw, [(1,), (2,), (3,), (4,)], facts=facts)


def equal(first, second):
    assert list(first) == list(second)
    for point, values in first.items():
        np.testing.assert_array_equal(values, second[point])


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_an_interrupted_run_goes_on(tmp_path, stop):
    folder, calls = tmp_path / "a" / "parts", []
    if stop < 4:
        with pytest.raises(Stopped):
            made(folder, stop=stop)
    else:
        made(folder)
    equal(made(folder, calls=calls), made(None))
    assert calls == list(range(1, 5))[stop:]


@pytest.mark.parametrize(
    ("other", "named"),
    [({"seed": 8}, "seed = 8"), ({"width": "5"}, "width = 5"), ({"images": "x"}, "images = x")],
)
def test_another_run_is_refused(tmp_path, other, named):
    made(tmp_path / "parts")
    with pytest.raises(StoreMismatchError, match=named):
        made(tmp_path / "parts", **other)


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "3", "[true, null, [1]]", '[false, ["a"], [1, 2], {}]', '[false, null, [], {}]',
        '[false, null, [1], {"bit_generator": "MT19937"}]', '[false, null, [1], null]',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_content_that_is_no_part_is_refused(tmp_path, document):
    made(tmp_path / "parts")
    file = tmp_path / "parts" / "part-0002.npz"
    _, facts = without_facts(file.read_bytes())
    file.write_bytes(with_facts({"document": np.frombuffer(document.encode(), np.uint8)}, facts))
    with pytest.raises(StoreError, match=r"part-0002\.npz: "):
        made(tmp_path / "parts")


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3), np.zeros((0, 3), np.int8), 0.1, -0.0, 5e-324, float("inf"),
        10**30, True, None, "σ", (np.arange(3.0), "a", 2),
        {"a": np.array([1, 2]), "b": [1.5, None]},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_parts_come_back_equal(tmp_path, value):
    first, again = (
        Run("name", {}, store=tmp_path / "parts").parts(lambda progress: value, [()])[()]
        for _ in range(2)
    )
    for part in (first, again):
        assert type(part) is type(value)
        np.testing.assert_equal(part, value)


def test_scalars_of_numpy_become_arrays_with_and_without_a_folder(tmp_path):
    for store in (None, tmp_path / "parts", tmp_path / "parts"):
        part = Run("name", {}, store=store).parts(lambda progress: np.float32(0.1), [()])[()]
        assert (part.shape, part.dtype) == ((), np.float32)


def test_sums_of_a_part_have_the_bits_of_those_of_a_part_that_is_read(tmp_path):
    values = np.random.default_rng(3).standard_normal((3, 20, 50)).transpose(2, 0, 1)
    sums = [
        Run("name", {}, store=folder).parts(lambda progress: values, [()])[()].sum(axis=0)
        for folder in (None, tmp_path, tmp_path)
    ]
    np.testing.assert_array_equal(sums[0], sums[1])
    np.testing.assert_array_equal(sums[0], sums[2])


@pytest.mark.parametrize(
    "value", [print, {1, 2}, b"bytes", 1j, bnmc.Chain(4, 2), {"a": [np.arange(2)]}]
)
def test_other_values_are_no_parts(value):
    with pytest.raises(TypeError, match="JSON"):
        Run("name", {}).parts(lambda progress: value, [()])


def test_calls_have_numbers_of_their_own(tmp_path):
    run = Run("name", {}, store=tmp_path / "parts")
    for value in (1, 2):
        assert run.parts(lambda progress, value=value: value, [()]) == {(): value}
    again = Run("name", {}, store=tmp_path / "parts")
    assert [again.parts(lambda progress: 0, [()])[()] for _ in range(2)] == [1, 2]
    assert json.loads((tmp_path / "parts" / "experiment.json").read_text())["attributes"]


def test_seeds_repeat():
    for rng in (7, np.int64(7)):
        assert Run("name", {}, rng=rng).seed == 7
    first = Run("name", {}, rng=np.random.default_rng(1))
    again = Run("name", {}, rng=first.seed)
    assert first.generator.random() == again.generator.random()
    assert Run("name", {}, rng=None).seed != Run("name", {}, rng=None).seed


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"rng": "x"}, ArgumentTypeError), ({"rng": -1}, ArgumentTypeError),
        ({"progress": "yes"}, ArgumentTypeError), ({"threads": 0}, ArgumentError),
        ({"store": 3}, ArgumentTypeError),
    ],
)  # fmt: skip
def test_bad_arguments(given, error):
    with pytest.raises(error, match=next(iter(given))):
        Run("name", {}, **given)


def test_progress_only_grows_and_ends():
    told = []
    run = Run("name", {}, progress=lambda done, total: told.append((done, total)))

    def make(number, progress):
        progress(1, 2)
        progress(0, 2)
        if number == 3:
            raise Stopped

    run.parts(make, [(1,), (2,)], costs=[1, 3])
    assert told == [(0, 100), (12, 100), (25, 100), (62, 100), (100, 100)]
    told.clear()
    with pytest.raises(Stopped):
        run.parts(make, [(3,)])
    assert told == [(0, 100), (50, 100)]  # what failed is not done


def test_the_rest_is_forecast_once(monkeypatch, capsys):
    """Six seconds pass between any two looks at the clock; two looks come with each report."""
    monkeypatch.setattr(progress, "PATIENT_SECONDS", 3600.0)
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    run = Run("name", {}, rng=0, progress=True)
    run.parts(lambda scale, report: scale, [(scale,) for scale in range(8)])
    said = capsys.readouterr().err.splitlines()
    # The second part begins after 12 s; an eighth of the work is done.
    assert said == ["bnmc: the rest of name, 8 parts, takes about 84 s: the first 12 % took 12 s"]
