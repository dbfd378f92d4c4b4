"""The training figures with the sizes of the papers, files of data, and folders of parts.

Small files in the formats of MNIST and CIFAR-10 stand in for the data.
"""

import numpy as np
import pytest
from experiment_checks import write_images
from figure_sizes import FIGURES

pytest.importorskip("torch")

from bnmc import experiments
from bnmc.errors import StoreMismatchError
from bnmc.experiments.registry import sizes_of
from bnmc.experiments.training import runs

#: The data of the paper, by figure.
DATA = {
    "rank-collapse-1": "mnist", "rank-collapse-4": "cifar", "rank-collapse-5": "cifar",
    "rank-collapse-6": "mnist", "rank-collapse-10": "cifar", "orthogonalizes-3": "cifar",
    "orthogonalizes-4": "cifar", "orthogonalizes-7": "cifar",
}  # fmt: skip


class Stopped(KeyboardInterrupt):
    """A Ctrl-C that the tests tell from one of the user's."""


def counted(monkeypatch, most=None):
    """Count the trained networks; stop before another one than the first so many."""
    calls, train = [], runs.train

    def counting(*arguments):
        if len(calls) == most:
            raise Stopped
        calls.append(arguments)
        return train(*arguments)

    monkeypatch.setattr(runs, "train", counting)
    return calls


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "rank-collapse-6" else
                 pytest.mark.slow)
    for name in DATA
])  # fmt: skip
def test_interrupted_runs_with_files_continue(name, tmp_path, monkeypatch):
    """The result is bit for bit that of an uninterrupted run without folder."""
    write_images(tmp_path / "data", DATA[name], np.arange(20) % 10)
    shorter = {"images": 16, "batch": 8, "epochs": 1, "chains": 2}
    if name == "rank-collapse-4":
        shorter["tests"] = 0
    options = {**FIGURES[name].sizes, **shorter, "rng": 3, "data": tmp_path / "data"}
    with monkeypatch.context() as patch:
        calls = counted(patch, 3)
        with pytest.raises(Stopped):
            experiments.run(name, store=tmp_path / "parts", **options)
        assert len(calls) == 3
    assert len(list((tmp_path / "parts").glob("part-*.npz"))) == 3
    with monkeypatch.context() as patch:
        later = counted(patch)
        again = experiments.run(name, store=tmp_path / "parts", **options)
    with monkeypatch.context() as patch:
        every = counted(patch)
        expected = experiments.run(name, **options)
    assert len(later) == len(every) - 3
    assert again.data.identical(expected.data)
    assert (again.table, again.findings) == (expected.table, expected.findings)
    images = "IDX files" if DATA[name] == "mnist" else "CIFAR-10"
    assert again.data.attrs["images"] == f"{images}, 16 images"
    with pytest.raises(StoreMismatchError, match="images"):
        experiments.run(name, store=tmp_path / "parts", **{**options, "data": None})


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_networks_of_the_papers_run(name, tmp_path, monkeypatch):
    """The first network with the width of the paper: one epoch of one batch, then a stop."""
    _, full = sizes_of(name)
    shorter = {"epochs": 1, "images": full.batch}
    if name == "rank-collapse-4":
        shorter |= {"batches": 1, "steps": 1}
    write_images(tmp_path / "data", DATA[name], np.arange(full.batch) % 10)
    folder = tmp_path / "parts"
    calls = counted(monkeypatch, 1)
    with pytest.raises(Stopped):
        experiments.run(name, full=True, data=tmp_path / "data", store=folder, **shorter)
    assert len(calls) == 1
    assert len(list(folder.glob("part-*.npz"))) == 1
