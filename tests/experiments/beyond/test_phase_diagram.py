"""The phase diagram beside the closed form of erf."""

import numpy as np
import pytest
from experiment_checks import errors
from figure_sizes import FIGURES

from bnmc.experiments.beyond import edge_of_chaos_diagram
from bnmc.experiments.pictures import curve
from bnmc.experiments.registry import sizes_of

SIZES = FIGURES["edge-of-chaos"].sizes


FIGURE = "edge-of-chaos"


def test_the_edge_and_the_points(data):
    assert data["edge"].dims == ("activation", "curve")
    edge = data["edge"].sel(activation="erf").values
    assert edge[0] == pytest.approx(np.pi / 4, rel=1e-12)
    assert data["weight"].values[0] == pytest.approx(np.outer(edge[1:], [0.7, 1.4]), rel=1e-9)
    assert (np.sign(data["predicted"].values[0]) == [[-1, 1], [-1, 1]]).all()


def test_measured_growth_is_that_of_the_mean_field(data):
    stderr, quantile = errors(curve(data, "growth"), SIZES["networks"])
    # Logarithms at width d lie below the limit by a few times 1/d per layer.
    allowed = quantile * stderr + 10 / SIZES["width"]
    assert (np.abs(data["growth"] - data["predicted"]).values <= allowed).all()
    assert allowed.max() < 0.15


@pytest.mark.parametrize("sizes", sizes_of("edge-of-chaos"))
def test_every_place_of_the_diagram_occurs_once(sizes):
    """Labels of an axis of the data that occur twice would name no single value."""
    for places in (sizes.curve, sizes.biases, sizes.factors):
        assert (np.diff(places) > 0.0).all()
    assert len(set(sizes.activations)) == len(sizes.activations)
    assert sizes.curve[0] == 0.0


def test_every_variance_is_a_fixed_point_of_relu():
    result = edge_of_chaos_diagram(
        **{**SIZES, "activations": ("relu",), "curve": (0.0,), "biases": (0.0,)}
    )
    assert np.exp(result.data["predicted"].values.ravel()) == pytest.approx([0.7, 1.4])
    assert result.data["growth"].values.ravel() == pytest.approx(np.log([0.7, 1.4]), abs=0.1)
    assert [row[3] for row in result.table.rows] == ["ordered", "chaotic"]
