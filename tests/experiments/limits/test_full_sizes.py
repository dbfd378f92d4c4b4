"""The sizes of `full=True` with few widths, steps and networks, and files of data.

Small files in the formats of MNIST and CIFAR-10 stand in for the data.
"""

import gzip

import numpy as np
import pytest
from slow_cases import pairs

from bnmc import experiments
from bnmc.experiments import limits

#: What shortens the sizes of each figure with images.
FIGURES = {
    "limits-ntk-convergence": {"widths": (16, 32), "networks": 4, "images": 6},
    "limits-alignment": {"draws": 3, "width": 16, "networks": 2, "steps": (0, 1, 3)},
    "limits-complexity": {"splits": 2},
    "limits-kl": {"widths": (8, 16), "networks": 4, "references": 6, "steps": (0, 1, 3)},
    "limits-exponents": {"widths": (8, 16, 32), "networks": 3},
}


def write(folder, data, count):
    """Write random images, of classes 0, 1 and 7 in turn, in the files of a data set."""
    rng = np.random.default_rng(0)
    labels = np.array([0, 1, 7], np.uint8)[np.arange(count) % 3]
    folder.mkdir()
    if data == "cifar":
        rows = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = labels
        for number, part in enumerate(np.array_split(rows, 5), start=1):
            part.tofile(folder / f"data_batch_{number}.bin")
        return
    pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    for name, array in (("train-images-idx3-ubyte", pixels), ("train-labels-idx1-ubyte", labels)):
        lengths = b"".join(one.to_bytes(4, "big") for one in array.shape)
        content = bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))


@pytest.mark.parametrize(("name", "data"), pairs(FIGURES, [None, "mnist", "cifar"]))
def test_full_sizes_and_files(name, data, tmp_path):
    """All images of the files are used, up to the full number; kept parts give the same bits."""
    options = {"full": True, "rng": 3, **FIGURES[name]}
    if data:
        write(tmp_path / "data", data, 90)
        options["data"] = tmp_path / "data"
    found = experiments.run(name, store=tmp_path / "parts", **options)
    kind = {None: "digits", "mnist": "IDX files", "cifar": "CIFAR-10"}[data]
    assert found.data.attrs["images"].startswith(kind)
    if name in ("limits-alignment", "limits-exponents"):
        full = 100 if name == "limits-exponents" and not data else 348  # digits
        assert f"{60 if data else full} images" in found.data.attrs["images"]
    if name in ("limits-complexity", "limits-kl"):
        # 60 of 90 images are of the two classes, in files, and 348 of the digits.
        assert f"{30 if data else 174} images for training" in found.data.attrs["images"]
    values = [one.values for one in found.data.data_vars.values()]
    # The distance from a limit that is not known is NaN.
    allowed = 0.5 if name == "limits-ntk-convergence" else 0.0
    assert np.mean([np.isnan(one.astype(float)).mean() for one in values]) <= allowed
    assert experiments.run(name, store=tmp_path / "parts", **options).data.identical(found.data)
    kept = sorted((tmp_path / "parts").glob("part-*.npz"))
    for one in kept[len(kept) // 2 :]:
        one.unlink()
    assert experiments.run(name, store=tmp_path / "parts", **options).data.identical(found.data)


def test_the_plane_in_full():
    found = limits.plane(full=True)
    assert found.data["region"].shape == (2 * 32 + 1, 3 * 32 + 1)
