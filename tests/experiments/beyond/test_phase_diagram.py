"""The phase diagram beside the closed form of erf."""

import numpy as np
import pytest
from experiment_checks import CERTAIN, drawn
from figure_sizes import FIGURES
from scipy import special

from bnmc.experiments.beyond import edge_of_chaos_diagram
from bnmc.experiments.registry import sizes_of

SIZES = FIGURES["edge-of-chaos"].sizes


@pytest.fixture
def found(small):
    return small("edge-of-chaos")


def test_the_edge_and_the_points(found):
    q = found.data
    assert q["edge"].dims == ("activation", "curve")
    edge = q["edge"].sel(activation="erf").values
    assert edge[0] == pytest.approx(np.pi / 4, rel=1e-12)
    assert q["weight"].values[0] == pytest.approx(np.outer(edge[1:], [0.7, 1.4]), rel=1e-9)
    assert (np.sign(q["predicted"].values[0]) == [[-1, 1], [-1, 1]]).all()


def test_measured_growth_is_that_of_the_mean_field(found):
    growth, theory = found.data["growth"].values, found.data["predicted"].values
    width = found.data["growth_high"].values - found.data["growth_low"].values
    stderr = width / 2 / special.stdtrit(SIZES["networks"] - 1, 0.975)
    # Logarithms at width d lie below the limit by a few times 1/d per layer.
    allowed = special.stdtrit(SIZES["networks"] - 1, 1 - CERTAIN / 2) * stderr + 10 / SIZES["width"]
    assert (np.abs(growth - theory) <= allowed).all()
    assert allowed.max() < 0.15


def test_it_is_sound(found):
    figure = found.plot()
    assert drawn(figure.axes[0], SIZES["curve"])
    assert len(found.findings) == 1
    assert "4 of 4 points off the edge" in found.findings[0]


@pytest.mark.parametrize("sizes", sizes_of("edge-of-chaos"))
def test_every_place_of_the_diagram_occurs_once(sizes):
    """Labels of an axis of the data that occur twice would name no single value."""
    for places in (sizes.curve, sizes.biases, sizes.factors):
        assert (np.diff(places) > 0.0).all()
    assert len(set(sizes.activations)) == len(sizes.activations)
    assert sizes.curve[0] == 0.0


def test_every_variance_is_a_fixed_point_of_relu():
    found = edge_of_chaos_diagram(
        **{**SIZES, "activations": ("relu",), "curve": (0.0,), "biases": (0.0,)}
    )
    assert np.exp(found.data["predicted"].values.ravel()) == pytest.approx([0.7, 1.4])
    assert found.data["growth"].values.ravel() == pytest.approx(np.log([0.7, 1.4]), abs=0.1)
    assert [row[3] for row in found.table.rows] == ["ordered", "chaotic"]
