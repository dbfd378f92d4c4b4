"""The sizes of `full=True` with few widths, steps and networks, and files of data.

Small files in the formats of MNIST and CIFAR-10 stand in for the data.
"""

import numpy as np
import pytest
from experiment_checks import write_images
from slow_cases import pairs

from bnmc import experiments
from bnmc.experiments import limits

#: What shortens the sizes of each figure with images.
FIGURES = {
    "limits-ntk-convergence": {"widths": (16, 32), "chains": 4, "images": 6},
    "limits-alignment": {"draws": 3, "width": 16, "chains": 2, "steps": (0, 1, 3)},
    "limits-complexity": {"splits": 2},
    "limits-kl": {"widths": (8, 16), "chains": 4, "reference_chains": 6, "steps": (0, 1, 3)},
    "limits-exponents": {"widths": (8, 16, 32), "chains": 3},
}


@pytest.mark.parametrize(("name", "data"), pairs(FIGURES, [None, "mnist", "cifar"]))
def test_full_sizes_and_files(name, data, tmp_path):
    """All images of the files are used, up to the full number."""
    options = {"full": True, "rng": 3, **FIGURES[name]}
    if data:
        write_images(tmp_path / "data", data, np.tile([0, 1, 7], 30))
        options["data"] = tmp_path / "data"
    figure = experiments.run(name, **options)
    kind = {None: "digits", "mnist": "IDX files", "cifar": "CIFAR-10"}[data]
    assert figure.data.attrs["images"].startswith(kind)
    if name in ("limits-alignment", "limits-exponents"):
        full = 100 if name == "limits-exponents" and not data else 348  # digits
        assert f"{60 if data else full} images" in figure.data.attrs["images"]
    if name in ("limits-complexity", "limits-kl"):
        # 60 of 90 images are of the two classes, in files, and 348 of the digits.
        assert f"{30 if data else 174} images for training" in figure.data.attrs["images"]
    values = [variable.values for variable in figure.data.data_vars.values()]
    # The distance from a limit that is not known is NaN.
    allowed = 0.5 if name == "limits-ntk-convergence" else 0.0
    assert np.mean([np.isnan(numbers.astype(float)).mean() for numbers in values]) <= allowed


def test_the_plane_in_full():
    figure = limits.plane(full=True)
    assert figure.data["region"].shape == (2 * 32 + 1, 3 * 32 + 1)
