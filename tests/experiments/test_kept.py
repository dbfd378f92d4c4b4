"""Interrupted experiments continue, and folders hold nothing else."""

import errno
import pathlib

import numpy as np
import pytest

import bnmc
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    StoreError,
    StoreMismatchError,
)
from bnmc.experiments.part_files import Foreign, packed, unpacked
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
            file = tmp_path / "parts" / f"part-{number:04d}.npz"
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
        write = pathlib.Path.write_bytes

        def full(self, content):
            if self.name.startswith("part-"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(self, content)

        monkeypatch.setattr(pathlib.Path, "write_bytes", full)
        with pytest.raises(StoreError, match="No space left on device"):
            self.made(tmp_path / "parts")
        files = {file.name for file in (tmp_path / "parts").iterdir()}
        assert files == {"experiment.json", "lock"}

    def test_parts_of_another_run_are_refused(self, tmp_path):
        """A part is bound to its experiment, its seed and its number."""
        self.made(tmp_path / "parts")
        self.made(tmp_path / "other", seed=8)
        parts, other = (
            [tmp_path / folder / f"part-{number:04d}.npz" for number in range(4)]
            for folder in ("parts", "other")
        )
        before = parts[1].read_bytes()
        parts[1].write_bytes(other[1].read_bytes())
        with pytest.raises(StoreMismatchError, match="seed = 8"):
            self.made(tmp_path / "parts")
        parts[1].write_bytes(parts[2].read_bytes())
        with pytest.raises(StoreMismatchError, match="part = 2"):
            self.made(tmp_path / "parts")
        parts[1].write_bytes(before)
        np.testing.assert_array_equal(self.made(tmp_path / "parts"), self.made(None))

    def test_content_that_the_call_cannot_make_is_refused(self, tmp_path):
        self.made(tmp_path / "parts")
        file = tmp_path / "parts" / "part-0002.npz"
        _, identity = unpacked(file.read_bytes(), ())
        square = bnmc.Activation(lambda x: x * x, name="square")
        file.write_bytes(packed(bnmc.Chain(5, 3, square), identity))
        with pytest.raises(StoreError, match=r"part-0002\.npz: .*square"):
            self.made(tmp_path / "parts")

    def test_no_function_is_kept(self, tmp_path):
        def mine(rng, rows, columns):
            return rng.standard_normal((rows, columns))

        with (
            pytest.raises(Foreign, match="a function is nothing"),
            Parts(False, "x", [1.0], SEVEN, False, tmp_path / "parts") as run,
        ):
            run.run(lambda *, progress: bnmc.Chain(4, 2, weights=mine))
