"""Parts as bytes and back: results of all kinds are equal, and nothing else is made."""

import io
import json
import math
import zipfile

import numpy as np
import pytest

import bnmc
from bnmc._support import archives
from bnmc.chain.activations import Activation
from bnmc.experiments.orthogonalizes import other_activations
from bnmc.experiments.part_files import Damaged, Foreign, packed, unpacked
from bnmc.experiments.parts import Call

#: Experiments whose parts hold all kinds of results: module, small sizes, and the module and names
#: of the functions that make a part.
KINDS = {
    "orthogonalizes-6": (
        other_activations,
        other_activations.Sizes(other_activations.PUBLISHED, widths=(16, 32), layers=10, chains=6),
        (other_activations, "simulate"),
    ),
}

IDENTITY = {"seed": "7", "part": "0"}


def made_once(make):
    """A maker that fails if it makes a part again.  Only the makers of parts report progress."""

    def guard(*arguments, **named):
        assert "progress" not in named, "made again"
        return make(*arguments, **named)

    return guard


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_result_can_be_kept(name, tmp_path, monkeypatch):
    module, sizes, (place, *makers) = KINDS[name]
    first = module.experiment(sizes, Call(name, store=tmp_path / "parts"))
    for maker in makers:
        monkeypatch.setattr(place, maker, made_once(getattr(place, maker)))
    again = module.experiment(sizes, Call(name, store=tmp_path / "parts"))
    assert again.data.identical(first.data)
    assert str(again) == str(first)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -(10**30), 0.1, -0.0, math.inf, 5e-324, "", "σ\u0000", (), [], {},
        (1, [2.0, ("a", None)], {"a": {3: "b"}}), {("a", 1): 2.0}, np.float32(0.1), np.int8(-3),
        np.bool_(True), np.zeros((0, 3)), np.arange(6.0).reshape(2, 3).T, np.array("text"),
        np.array([1j, np.nan]), np.random.default_rng(3).bit_generator.state,
        bnmc.Chain(5, 3, "tanh", norm="batch-uncentred", skip=0.5, gain=2.0, eps=1e-5),
        bnmc.Estimate(1.0, 0.1, (0.8, math.inf), 10, "test", 0.9, ("No wells.",)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_come_back_equal_and_of_the_same_type(value):
    found, identity = unpacked(packed(value, IDENTITY), ())
    assert identity == IDENTITY
    assert type(found) is type(value)
    if isinstance(value, np.ndarray | np.generic):
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)
    else:
        assert found == value
        assert repr(found) == repr(value)


def test_nan_comes_back():
    assert math.isnan(unpacked(packed(math.nan, IDENTITY), ())[0])


def test_a_run_comes_back_with_its_state():
    run = bnmc.simulate(bnmc.Chain(20, 3, "relu"), 4, chains=2, rng=0)
    found, _ = unpacked(packed(run, IDENTITY), ())
    np.testing.assert_array_equal(found.gram, run.gram)
    assert found.final_state.layer == run.final_state.layer
    for name, values in run.final_state.arrays.items():
        np.testing.assert_array_equal(found.final_state.arrays[name], values)
    assert (found.chain, found.key, found.dims) == (run.chain, run.key, dict(run.dims))


def test_activations_are_those_of_the_caller():
    mine = Activation(lambda x: x * x, name="square")
    content = packed(bnmc.Chain(5, 3, mine), IDENTITY)
    assert unpacked(content, [mine])[0].activation is mine
    other = Activation(lambda x: x * x * x, name="square")
    with pytest.raises(Foreign):
        unpacked(content, [other])
    impostor = Activation(lambda x: x, name="relu")
    with pytest.raises(Foreign, match="none of the caller's"):
        unpacked(packed(bnmc.Chain(5, 3, impostor), IDENTITY), ())


@pytest.mark.parametrize(
    "value",
    [
        print, lambda x: x, object(), {1, 2}, np.array([None]), np.zeros(1, "M8[s]"),
        np.zeros(1, [("a", "f8")]), b"bytes", 1j, bnmc.MeanField,
        bnmc.Chain(4, 2, weights=lambda rng, shape: rng.standard_normal(shape)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_other_values_are_not_written(value):
    with pytest.raises(Foreign, match="is nothing that an experiment keeps"):
        packed((1, [value]), IDENTITY)


def made_of(tree, document=None):
    """Bytes with a right digest and any document."""
    if document is None:
        document = json.dumps({"identity": IDENTITY, "value": tree})
    found = {"document": np.frombuffer(document.encode(), np.uint8)}
    return archives.archived(found)


@pytest.mark.parametrize(
    "tree",
    [
        None, [], 3, "plain", ["plain", [1]], ["plain"], ["int", "x"], ["int", [1]],
        ["float", "1..0"], ["array", "missing"], ["scalar", "document", 1], ["tuple", 3],
        ["dict", [[1]]], ["dict", [[["list", []], ["int", "1"]]]],
        ["result", "Popen", []], ["result", "type", []], ["result", "Estimate", []],
        ["result", "Chain", []], ["result", "__class__", []],
        ["result", "Estimate", [["__class__", ["int", "1"]]]],
        ["activation", "os.system", "x"], ["chain", ["plain", "relu"], ["plain", None]],
        ["chain", ["activation", "relu", "relu"], ["dict", [[["plain", "width"], ["int", "-1"]]]]],
        ["eval", "1"],
    ],
    ids=str,
)  # fmt: skip
def test_hostile_documents_make_nothing(tree):
    with pytest.raises((Foreign, Damaged)):
        unpacked(made_of(tree), ())


def test_nested_documents_and_bombs_are_refused(monkeypatch):
    depth = 100_000
    document = '{"identity": {}, "value": ' + '["list", [' * depth + "]]" * depth + "}"
    with pytest.raises((Foreign, Damaged)):
        unpacked(made_of(None, document=document), ())
    monkeypatch.setattr(archives, "available_memory", lambda: 10_000)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("document.npy", bytes(20_000))
    with pytest.raises(archives.TooLarge, match="more than the available memory"):
        unpacked(file.getvalue(), ())


def test_every_flipped_byte_is_noticed():
    content = packed((np.arange(3.0), {"a": 1}), IDENTITY)
    value, _ = unpacked(content, ())
    for at in range(0, len(content), 3):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        try:
            found, identity = unpacked(bytes(changed), ())
        except Damaged:
            continue
        # Bytes that neither names nor contents depend on, such as times of the archive.
        np.testing.assert_array_equal(found[0], value[0])
        assert (found[1], identity) == (value[1], IDENTITY)


def test_truncated_content_is_damaged():
    content = packed(1.0, IDENTITY)
    for size in (0, 1, len(content) // 2, len(content) - 1):
        with pytest.raises(Damaged):
            unpacked(content[:size], ())
