"""What an experiment returns: data, JSON, text and a picture."""

import json

import numpy as np
import pytest

from bnmc import Estimate
from bnmc._support.text import plain
from bnmc.errors import ArgumentTypeError
from bnmc.experiments import kit
from bnmc.experiments.experiment import Table
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.runs import Run
from bnmc.experiments.statistics import proportion


def made():
    """An experiment of nothing."""
    results = kit.Results(Run("none", {}, True, 3), x=kit.Axis("abc", "ex", ""))
    results.add("y", ("x",), [1.0, np.nan, np.inf], "thing", "neurons")
    estimate = Estimate(1.0, 0.1, (0.8, 1.2), 3, "means")
    table = Table(("name", "value", "rest"), (("long name", estimate, None), ("b", 2.5, 7)))

    def draw(data, figure):
        ax = axes_of(figure, 2)[0, 1]
        ax.plot([0, 1], [2, 3])

    return results.experiment(
        "Nothing", table, ("It is nothing.",), draw, batch=3, widths=[1, 2], pair=(0.5, np.nan)
    )


def test_json_has_no_numbers_that_are_none():
    document = json.loads(json.dumps(made().to_dict(), allow_nan=False))
    assert document["variables"]["y"]["data"] == [1.0, None, "Infinity"]
    assert document["attributes"]["pair"] == [0.5, None]
    assert document["rows"][0]["value"] == {
        "value": 1.0, "stderr": 0.1, "ci": [0.8, 1.2], "level": 0.95, "n": 3,
    }  # fmt: skip
    assert document["rows"][1] == {"name": "b", "value": 2.5, "rest": 7}
    with pytest.raises(ArgumentTypeError):
        plain(object())
    assert plain(np.arange(2)) == [0, 1]
    assert plain((-np.inf, {3: np.float32(np.nan)})) == ["-Infinity", {"3": None}]


def test_printed():
    assert str(made()).splitlines() == [
        "Nothing",
        "",
        "name              value  rest",
        "long name  1 [0.8, 1.2]",
        "b                   2.5     7",
        "",
        "It is nothing.",
    ]


def test_shares_are_printed_as_counts_and_percent():
    """The exact interval of 9 of 13 is [0.3857, 0.9091]."""
    share = proportion([True] * 9 + [False] * 4)
    assert Table(("found",), ((share,),)).cells() == [["9 of 13, 69 % [39, 91]"]]


def test_drawn_where_it_is_told():
    figure = made().plot()
    assert [ax.get_lines() != [] for ax in figure.axes] == [False, True]
    assert figure.get_size_inches()[0] == pytest.approx(9.6)
    half = made().plot().subfigures(1, 2)[0]
    assert made().plot(half) is half
    assert len(half.axes) == 2
