"""Interrupted experiments continue, and folders hold nothing else."""

import errno
import hashlib
import importlib
import os
import pathlib
import pickle

import numpy as np
import pytest

import bnmc
import bnmc._support.extras
import bnmc.chain.activations
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    StoreError,
    StoreMismatchError,
)
from bnmc.experiments.parts import Parts, Sources

SEVEN = Sources(7)


class Stopped(KeyboardInterrupt):
    """A Ctrl-C that the tests tell from one of the user's."""


class TestStore:
    """An experiment of four runs, each of which draws from the generator, as do lines between."""

    def made(self, folder, runs=4, seed=7, full=False, label="x", calls=None):
        sources, found = Sources(seed), []

        def draw(scale, *, progress):
            if len(found) == runs:
                raise Stopped
            if calls is not None:
                calls.append(scale)
            return scale * sources.generator.standard_normal(3)

        with Parts(False, label, [1.0] * 4, sources, full, folder) as run:
            for scale in range(1, 5):
                offset = sources.generator.random()
                found.append(offset + run.run(draw, scale))
        return np.stack(found)

    @pytest.mark.parametrize("stop", [0, 1, 3, 4])
    def test_an_interrupted_experiment_goes_on(self, tmp_path, stop):
        folder, calls = tmp_path / "a" / "parts", []
        if stop < 4:
            with pytest.raises(Stopped):
                self.made(folder, stop)
        else:
            self.made(folder)
        np.testing.assert_array_equal(self.made(folder, calls=calls), self.made(None))
        assert calls == list(range(1, 5))[stop:]

    def test_a_damaged_part_is_made_again(self, tmp_path):
        expected = self.made(tmp_path / "parts")
        for number, content in ((0, b""), (1, b"nonsense"), (3, None)):
            file = tmp_path / "parts" / f"part-{number:04d}.pickle"
            file.write_bytes(file.read_bytes()[:-1] if content is None else content)
        calls = []
        np.testing.assert_array_equal(self.made(tmp_path / "parts", calls=calls), expected)
        assert calls == [1, 2, 4]

    @pytest.mark.parametrize(
        ("other", "named"),
        [({"seed": 8}, "seed = 8"), ({"full": True}, "full = True"), ({"label": "y"}, "= y")],
    )
    def test_another_experiment_is_refused(self, tmp_path, other, named):
        self.made(tmp_path / "parts")
        with pytest.raises(StoreMismatchError, match=named):
            self.made(tmp_path / "parts", **other)

    def test_what_is_no_store_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        for path in (tmp_path, tmp_path / "file"):
            with pytest.raises(ArgumentError, match="a new or empty folder"):
                self.made(path)
        with pytest.raises(ArgumentTypeError, match="store"):
            self.made(3)
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "experiment.json").write_text("{")
        with pytest.raises(StoreError, match="is damaged"):
            self.made(tmp_path / "damaged")
        with pytest.raises(StoreError, match="Not a directory"):
            self.made(tmp_path / "file" / "parts")

    def test_a_part_that_cannot_be_written_is_an_error(self, tmp_path, monkeypatch):
        def full(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(pathlib.Path, "write_bytes", full)
        with pytest.raises(StoreError, match="No space left on device"):
            self.made(tmp_path / "parts")
        assert [file.name for file in (tmp_path / "parts").iterdir()] == ["experiment.json"]

    @pytest.mark.parametrize(
        "foreign",
        [
            os.system, eval, pathlib.Path, importlib.import_module,
            bnmc._support.extras.import_extra,
            bnmc.chain.activations._unpickled,
        ],
    )  # fmt: skip
    def test_nothing_foreign_is_called(self, tmp_path, foreign):
        class Trap:
            def __reduce__(self):
                return foreign, ("bnmc",)

        self.made(tmp_path / "parts")
        pickled = pickle.dumps((Trap(), {}))
        digest = hashlib.sha256(pickled).digest()
        (tmp_path / "parts" / "part-0002.pickle").write_bytes(digest + pickled)
        with pytest.raises(StoreError, match="is nothing that an experiment keeps"):
            self.made(tmp_path / "parts")

    def test_no_function_comes_along_with_a_chain(self, tmp_path):
        def mine(rng, rows, columns):
            return rng.standard_normal((rows, columns))

        folder = tmp_path / "parts"
        with Parts(False, "x", [1.0], SEVEN, False, folder) as run:
            run.run(lambda *, progress: bnmc.Chain(4, 2, weights=mine))
        with (
            pytest.raises(StoreError, match="a function is nothing"),
            Parts(False, "x", [1.0], SEVEN, False, folder) as run,
        ):
            run.run(None)

    def test_no_name_within_a_name_is_followed(self, tmp_path):
        self.made(tmp_path / "parts")
        for name in ("files.os.system", "os.system"):
            pickled = pickle.PROTO + b"\x04" + b"".join(
                [pickle.SHORT_BINUNICODE + bytes([len(one)]) + one.encode() for one in
                 ("bnmc._support.files", name)]
            ) + pickle.STACK_GLOBAL + pickle.STOP  # fmt: skip
            digest = hashlib.sha256(pickled).digest()
            (tmp_path / "parts" / "part-0000.pickle").write_bytes(digest + pickled)
            with pytest.raises(StoreError, match="is nothing that an experiment keeps"):
                self.made(tmp_path / "parts")
