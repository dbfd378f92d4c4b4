"""Folders of finished parts.  `test_store.py` and `test_folder.py` test what all stores share."""

import json

import numpy as np
import pytest

import bnmc
from bnmc._support.archives import archived, arrays_of
from bnmc.errors import ArgumentError, StoreError, StoreInUseError, StoreMismatchError
from bnmc.experiments.runs import Run
from bnmc.simulation.store.folder import Folder
from bnmc.simulation.store.parts import PartStore

FACTS = {"seed": "1", "bnmc_version": "0"}


class Store(PartStore):
    header, what = "header.json", "an earlier test"


def opened(path, facts=FACTS, **settings):
    return Store(path, facts, settings)


def packed(store, number, values):
    facts = np.array([f"{name}={fact}" for name, fact in store.facts_of(number).items()])
    return archived({"values": values, "facts": facts})


def unpacked(content):
    arrays = arrays_of(content)
    return arrays["values"], dict(fact.split("=") for fact in arrays["facts"].tolist())


def written(path, count=3):
    with opened(path) as store:
        for number in range(count):
            store.write(number, packed(store, number, np.arange(number)))
        store.finish()


def test_parts_come_back_from_another_opening(tmp_path):
    written(tmp_path / "parts")
    with opened(tmp_path / "parts", size=7) as store:
        assert [len(store.content(number, unpacked)) for number in range(3)] == [0, 1, 2]
        assert store.content(3, unpacked) is None
        assert "size" not in store.stored


def test_a_folder_keeps_its_own_settings(tmp_path):
    with opened(tmp_path / "parts", size=2):
        pass
    with opened(tmp_path / "parts", size=7) as store:
        assert store.stored["size"] == 2


def test_a_damaged_part_is_missing_and_one_of_another_run_or_number_raises(tmp_path):
    written(tmp_path / "parts")
    with opened(tmp_path / "other", {**FACTS, "seed": "2"}) as store:
        store.write(1, packed(store, 1, np.arange(1)))
    file, second = (tmp_path / "parts" / f"part-{number:04d}.npz" for number in (1, 2))
    sound, foreign = file.read_bytes(), (tmp_path / "other" / file.name).read_bytes()
    with opened(tmp_path / "parts") as store:
        for content in (b"", b"nonsense", sound[:-1]):
            file.write_bytes(content)
            assert store.content(1, unpacked) is None
        for content, named in ((foreign, "seed = 2"), (second.read_bytes(), "part = 2")):
            file.write_bytes(content)
            with pytest.raises(StoreMismatchError, match=named):
                store.content(1, unpacked)


@pytest.mark.parametrize("facts", [{**FACTS, "seed": "2"}, {**FACTS, "further": "x"}])
def test_other_facts_are_refused(facts, tmp_path):
    written(tmp_path / "parts")
    with pytest.raises(StoreMismatchError, match="seed|further"):
        opened(tmp_path / "parts", facts)
    written(tmp_path / "parts")


def test_a_writer_that_died_before_the_header_leaves_an_empty_folder(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "lock").touch()
    (tmp_path / "parts" / "header.partial").touch()
    written(tmp_path / "parts")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(ArgumentError, match="a new or empty folder"):
        opened(tmp_path / "other")


class Overtaken(Store):
    """Another process makes the folder, with parts of 3, when this writer is about to."""

    def _document(self, document):
        with opened(self.path, size=3):
            return document


def test_the_first_header_stays_where_locks_have_no_effect(tmp_path, monkeypatch):
    for name in ("lock", "require_lock", "unlock"):
        monkeypatch.setattr(Folder, name, lambda *_: None)
    with Overtaken(tmp_path / "parts", FACTS, {"size": 4}) as store:
        assert store.stored["size"] == 3
        assert store.facts_of(0)["identity"] == store.stored["identity"]
    assert {file.name for file in (tmp_path / "parts").iterdir()} == {"header.json", "lock"}


class Late(Store):
    """The header is not there yet, but when the writer looks at the files, header and parts are."""

    def _require_free(self):
        written(self.path)
        super()._require_free()


def test_a_folder_that_another_process_began_meanwhile_is_used(tmp_path):
    with Late(tmp_path / "parts", FACTS) as store:
        assert len(store.content(2, unpacked)) == 2


def test_every_byte_of_a_header_has_a_part_in_its_checksum(tmp_path):
    """A flipped bit is damage, another computation, or leaves the document the same."""
    written(tmp_path / "parts")
    header = tmp_path / "parts" / "header.json"
    intact = header.read_bytes()
    for bit in range(0, 8 * len(intact), 7):
        content = bytearray(intact)
        content[bit // 8] ^= 1 << bit % 8
        header.write_bytes(content)
        try:
            opened(tmp_path / "parts").opened.close()
        except (StoreError, StoreMismatchError):
            continue
        assert json.loads(content) == json.loads(intact)


def test_gradients_and_experiments_have_one_writer(tmp_path):
    def again(*_):
        with pytest.raises(StoreInUseError):
            run()

    def run(progress=False):
        return bnmc.backpropagate(
            bnmc.Chain(20, 4, "tanh"), 2, rng=0, store=tmp_path / "gradients", progress=progress
        )

    run(again)
    assert run().complete

    def parts(make):
        return Run("x", {}, store=tmp_path / "figure").parts(make, [()])

    def nested(progress):
        with pytest.raises(StoreInUseError):
            parts(lambda progress: 4)
        return 3

    assert parts(nested) == {(): 3}
    assert parts(lambda progress: 4) == {(): 3}
