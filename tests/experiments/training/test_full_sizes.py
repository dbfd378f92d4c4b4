"""The training figures with the sizes of the papers, files of data, and folders of parts.

Small files in the formats of MNIST and CIFAR-10 stand in for the data.
"""

import gzip

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc import experiments  # noqa: E402
from bnmc.errors import StoreMismatchError  # noqa: E402
from bnmc.experiments.orthogonalizes import (  # noqa: E402
    gap_and_training,
    orthogonal_convolutions,
    orthogonal_perceptrons,
)
from bnmc.experiments.rank_collapse import (  # noqa: E402
    broken_norm,
    gradient_directions,
    pretrained_ranks,
    rank_and_accuracy,
    rank_in_training,
)
from bnmc.experiments.training import runs  # noqa: E402

#: Module of each figure, the data of the paper, small sizes, and what shortens the paper's sizes.
FIGURES = {
    "rank-collapse-1": (
        rank_and_accuracy, "mnist", (8, (1, 2), 8, 16, 1, (0.1,), 2), {"epochs": 1, "images": 128}
    ),
    "rank-collapse-4": (
        pretrained_ranks, "cifar", (8, (2,), 8, 16, 1, 1, 1, 2, 0.01, (0.01,), 255.0, 2),
        {"epochs": 1, "images": 64, "batches": 1, "steps": 1},
    ),
    "rank-collapse-5": (
        broken_norm, "cifar", (8, 2, ((2,), (2,)), 8, 16, 1, 0.05, 2), {"epochs": 1, "images": 64}
    ),
    "rank-collapse-6": (
        rank_in_training, "mnist", (8, 4, 8, 16, 1, (1, 2), 4, 1.0, 0.1, 2),
        {"epochs": 1, "images": 32},
    ),
    "rank-collapse-10": (
        gradient_directions, "cifar", (((2,), (2,)), 8, 16, 1, 0.01, 2),
        {"epochs": 1, "images": 64},
    ),
    "orthogonalizes-3": (
        gap_and_training, "cifar", (8, (2, 4), 8, 16, 1, 1, 0.03, 2), {"epochs": 1, "images": 500}
    ),
    "orthogonalizes-4": (
        orthogonal_perceptrons, "cifar", (8, (2, 4), 8, 16, 1, 1, -0.5, (0.01,), 2),
        {"epochs": 1, "images": 500},
    ),
    "orthogonalizes-7": (
        orthogonal_convolutions, "cifar", (((2,), (2,)), (1, 2), 16, 8, 16, 1, 1, (0.03,), 2),
        {"epochs": 1, "images": 30},
    ),
}  # fmt: skip


def write(folder, data, count):
    """Write random images with all ten labels in the files of a data set."""
    rng = np.random.default_rng(0)
    labels = (np.arange(count) % 10).astype(np.uint8)
    folder.mkdir()
    if data == "cifar":
        rows = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = labels
        half = count // 2
        rows[:half].tofile(folder / "data_batch_1.bin")
        rows[half:].tofile(folder / "data_batch_2.bin")
        return
    pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    for name, array in (("train-images-idx3-ubyte", pixels), ("train-labels-idx1-ubyte", labels)):
        lengths = b"".join(one.to_bytes(4, "big") for one in array.shape)
        header = bytes([0, 0, 8, array.ndim]) + lengths
        (folder / f"{name}.gz").write_bytes(gzip.compress(header + array.tobytes()))


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
    pytest.param(name, marks=() if name in ("rank-collapse-6", "orthogonalizes-7") else
                 pytest.mark.slow)
    for name in FIGURES
])  # fmt: skip
def test_interrupted_runs_with_files_continue(name, tmp_path, monkeypatch):
    """The result is bit for bit that of an uninterrupted run without folder."""
    module, data, small, _ = FIGURES[name]
    monkeypatch.setattr(module, "FULL", module.Sizes(*small))
    write(tmp_path / "data", data, 20)
    options = {"full": True, "rng": 3, "data": tmp_path / "data"}
    with monkeypatch.context() as patch:
        calls = counted(patch, 3)
        with pytest.raises(Stopped):
            experiments.run(name, store=tmp_path / "parts", **options)
        assert len(calls) == 3
    assert len(list((tmp_path / "parts").glob("part-*.npz"))) == 3
    with monkeypatch.context() as patch:
        later = counted(patch)
        found = experiments.run(name, store=tmp_path / "parts", **options)
    with monkeypatch.context() as patch:
        every = counted(patch)
        expected = experiments.run(name, **options)
    assert len(later) == len(every) - 3
    assert found.data.identical(expected.data)
    assert (found.table, found.findings) == (expected.table, expected.findings)
    images = "IDX files" if data == "mnist" else "CIFAR-10"
    assert found.data.attrs["images"] == f"{images}, 16 images"
    with pytest.raises(StoreMismatchError, match="images"):
        experiments.run(name, store=tmp_path / "parts", **{**options, "data": None})


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_networks_of_the_papers_run(name, tmp_path, monkeypatch):
    """The first network with the width of the paper: one epoch of one batch, then a stop."""
    module, data, _, shorter = FIGURES[name]
    sizes = module.FULL._replace(**shorter)
    monkeypatch.setattr(module, "FULL", sizes)
    write(tmp_path / "data", data, sizes.images)
    folder = tmp_path / "parts"
    calls = counted(monkeypatch, 1)
    with pytest.raises(Stopped):
        experiments.run(name, full=True, data=tmp_path / "data", store=folder)
    assert len(calls) == 1
    assert len(list(folder.glob("part-*.npz"))) == 1
