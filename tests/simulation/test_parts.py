"""Folders of finished parts: one writer, no links, and what was written is on the disk."""

import os
import signal
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc._support.archives import archived, arrays_of
from bnmc.errors import (
    ArgumentError,
    StoreError,
    StoreInUseError,
    StoreMismatchError,
    StoreReplacedError,
)
from bnmc.experiments.runs import Run
from bnmc.simulation.store import folder as folder_module
from bnmc.simulation.store.parts import PartStore

posix = pytest.mark.skipif(sys.platform == "win32", reason="open folders stay where they are")

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


@pytest.mark.parametrize("facts", [{**FACTS, "seed": "2"}, {**FACTS, "further": "x"}])
def test_other_facts_are_refused(facts, tmp_path):
    written(tmp_path / "parts")
    with pytest.raises(StoreMismatchError, match="seed|further"):
        opened(tmp_path / "parts", facts)
    written(tmp_path / "parts")


def test_a_second_writer_is_refused_and_the_first_one_goes_on(tmp_path):
    with opened(tmp_path / "parts") as store:
        with pytest.raises(StoreInUseError):
            opened(tmp_path / "parts")
        store.write(0, packed(store, 0, np.arange(4)))
        np.testing.assert_array_equal(store.content(0, unpacked), np.arange(4))
    with opened(tmp_path / "parts"):
        pass


@posix
def test_links_are_refused(tmp_path):
    written(tmp_path / "parts")
    (tmp_path / "parts" / "part-0001.npz").rename(tmp_path / "elsewhere.npz")
    os.symlink(tmp_path / "elsewhere.npz", tmp_path / "parts" / "part-0001.npz")
    with pytest.raises(StoreError, match="is a link"):
        opened(tmp_path / "parts")


@posix
@pytest.mark.parametrize("comes", [True, False])
def test_a_folder_that_is_removed_or_replaced_gets_no_part(comes, tmp_path):
    with opened(tmp_path / "parts") as store:
        (tmp_path / "parts").rename(tmp_path / "moved")
        if comes:
            written(tmp_path / "parts", 1)
        with pytest.raises(StoreReplacedError):
            store.write(1, packed(store, 1, np.arange(4)))
    assert not (tmp_path / "parts" / "part-0001.npz").exists()


def test_what_a_dead_writer_left_is_removed(tmp_path):
    written(tmp_path / "parts")
    (tmp_path / "parts" / "part-0003.partial").write_bytes(b"half")
    with opened(tmp_path / "parts"):
        assert not list((tmp_path / "parts").glob("*.partial"))


def test_a_writer_that_died_before_the_header_leaves_an_empty_folder(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "lock").touch()
    (tmp_path / "parts" / "header.partial").touch()
    written(tmp_path / "parts")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(ArgumentError, match="a new or empty folder"):
        opened(tmp_path / "other")


def test_the_disk_has_all_parts_at_the_end(tmp_path):
    synced, names = folder_module.synced, []

    def note(path):
        names.append(os.path.basename(os.path.realpath(path)))
        synced(path)

    with mock.patch.object(folder_module, "synced", note):
        written(tmp_path / "parts")
    assert {"header.json", "part-0000.npz", "part-0001.npz", "part-0002.npz"} <= set(names)


def test_an_error_of_the_disk_is_an_error_of_the_store(tmp_path):
    failing = mock.patch.object(
        folder_module.Folder, "sync", side_effect=OSError(5, "Input/output error")
    )
    with failing, pytest.raises(StoreError, match="Input/output error"):
        written(tmp_path / "parts")
    written(tmp_path / "parts")


KILLED = """
import os, pathlib, signal, sys, numpy as np
sys.path.insert(0, sys.argv[2])
from test_parts import opened, packed

store = opened(pathlib.Path(sys.argv[1]))
for number in range(3):
    store.write(number, packed(store, number, np.arange(number)))
(store.folder.place / "part-0003.partial").write_bytes(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
def test_a_killed_writer_leaves_its_parts_and_no_lock(tmp_path):
    call = [sys.executable, "-c", KILLED, str(tmp_path / "parts"), os.path.dirname(__file__)]
    assert subprocess.run(call, check=False).returncode == -signal.SIGKILL
    with opened(tmp_path / "parts") as store:
        assert [len(store.content(number, unpacked)) for number in range(3)] == [0, 1, 2]
        assert store.content(3, unpacked) is None


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
