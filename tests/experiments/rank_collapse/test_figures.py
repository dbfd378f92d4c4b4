"""What all figures of the paper must have."""

import json

import numpy as np
import pytest
from approved_pictures import require_approved

from bnmc.experiments.parts import Call
from bnmc.experiments.rank_collapse import (
    rank_over_depth,
    vanilla_collapse,
)

EVERY = ("fig_2", "fig_3b", "lemma_3", "centring")


DRAWN = ("rank_bound", "eigenvalue", "excess_rank", "rank_bound")


@pytest.mark.parametrize("name", EVERY)
def test_an_experiment_is_complete(name, request):
    found = request.getfixturevalue(name)
    assert found.name.startswith("rank-collapse-")
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(set(found.table.columns)) == len(found.table.columns)
    for variable in found.data.variables.values():
        assert variable.attrs["long_name"]
    assert found.data.attrs["seed"].isdigit()
    assert all(sentence.endswith(".") for sentence in found.findings)


@pytest.mark.parametrize(
    ("name", "variable"),
    list(zip(EVERY, DRAWN, strict=True)),
)
def test_a_picture_is_labelled_and_draws_the_data(name, variable, request):
    found = request.getfixturevalue(name)
    figure = found.plot()
    require_approved(found, figure)
    assert figure.get_suptitle() or figure.axes[0].get_title()
    for ax in figure.axes:
        assert ax.get_ylabel()
    assert any(ax.get_legend() is not None for ax in figure.axes)
    drawn = np.concatenate([
        np.ravel(line.get_ydata()).astype(float) for ax in figure.axes for line in ax.lines
    ])  # fmt: skip
    values = found.data[variable].values
    if name == "centring":
        values = values[:, :61]
    assert np.all(np.isin(values[np.isfinite(values)], drawn))


def test_the_same_seed_gives_the_same_data_on_any_number_of_threads():
    sizes = vanilla_collapse.Sizes(4, 0.5, 16, 8, 5)
    one, two = (
        vanilla_collapse.experiment(sizes, Call("rank-collapse-lemma-3", rng=7, threads=t))
        for t in (1, 2)
    )
    assert one.data.identical(two.data)
    assert one.data.attrs["seed"] == "7"


def test_progress_reaches_its_end():
    told = []
    sizes = rank_over_depth.Sizes(4, 6, 3, activations=("linear",), weights=("gaussian",))
    call = Call(
        "rank-collapse-2", progress=lambda done, total: told.append((done, total)), threads=1
    )
    rank_over_depth.experiment(sizes, call)
    assert told == sorted(told)
    assert told[-1] == (100, 100)
