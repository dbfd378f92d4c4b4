"""What all figures of the paper must have."""

import json

import numpy as np
import pytest
from approved_pictures import require_approved

from bnmc.experiments.orthogonalizes import (
    cosine,
    gap_over_width,
)
from bnmc.experiments.orthogonalizes.common import Sizes
from bnmc.experiments.parts import Call

EVERY = ("fig_1", "fig_2a", "fig_2b", "fig_6", "wasserstein")


@pytest.mark.parametrize("name", EVERY)
def test_an_experiment_is_complete(name, request):
    found = request.getfixturevalue(name)
    assert found.name.startswith("orthogonalizes-")
    json.dumps(found.to_dict(), allow_nan=False)
    for variable in found.data.variables.values():
        assert variable.attrs["long_name"]
    assert found.data.attrs["seed"].isdigit()
    assert all(sentence.endswith(".") for sentence in found.findings)
    for name, values in found.data.items():
        if f"{name}_low" in found.data:
            there = np.isfinite(values)
            assert bool((found.data[f"{name}_low"] <= values).where(there, True).all())


@pytest.mark.parametrize("name", EVERY)
def test_a_picture_is_labelled_and_draws_the_data(name, request):
    found = request.getfixturevalue(name)
    figure = found.plot()
    require_approved(found, figure)
    for ax in figure.axes:
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert ax.get_legend() is not None or figure.legends
    assert figure.get_suptitle() or figure.axes[0].get_title()
    drawn = [line.get_ydata() for ax in figure.axes for line in ax.lines]
    main = {"fig_1": "cosine", "fig_2a": "gap", "fig_2b": "gap", "fig_6": "deviation"}
    expected = found.data[main.get(name, "distance")].values
    expected = expected.reshape(-1, expected.shape[-1])
    for curve_ in expected:
        assert any(np.array_equal(curve_, line, equal_nan=True) for line in drawn)


def test_the_same_seed_gives_the_same_data_on_any_number_of_threads():
    sizes = Sizes((8, 16), 110, 6)
    one, two = (
        gap_over_width.experiment(sizes, Call("orthogonalizes-2b", rng=7, threads=t))
        for t in (1, 2)
    )
    assert one.data.identical(two.data)
    assert one.data.attrs["seed"] == "7"


def test_progress_reaches_its_end():
    told = []
    call = Call(
        "orthogonalizes-1", progress=lambda done, total: told.append((done, total)), threads=1
    )
    cosine.experiment(Sizes((8,), 4, 3, batch=2), call)
    assert told == sorted(told)
    assert told[-1] == (100, 100)
