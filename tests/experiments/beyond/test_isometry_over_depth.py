"""The isometry gap over depth, beside the map of relu."""

import numpy as np
import pytest
from experiment_checks import CERTAIN, drawn, require_sound
from matplotlib.figure import Figure
from scipy import special

from bnmc.experiments.beyond import isometry_over_depth
from bnmc.experiments.parts import Call

SIZES = isometry_over_depth.Sizes(
    activations=("relu", "sigmoid"), width=2000, batch=4, depth=14, networks=8
)


@pytest.fixture(scope="module")
def found():
    return isometry_over_depth.experiment(SIZES, Call("isometry", rng=3))


def gap(c, n=4):
    return -((n - 1) * np.log(1 - c) + np.log(1 + (n - 1) * c)) / n


def J(c):
    return (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / np.pi


def test_the_mean_field_of_relu(found):
    for order, step in (
        ("norm-activation", J),
        ("activation-norm", lambda c: (J(c) - 1 / np.pi) / (1 - 1 / np.pi)),
    ):
        c = 1 - isometry_over_depth.GAP
        for layer in range(SIZES.depth + 1):
            predicted = found.data["predicted"].sel(activation="relu", order=order, layer=layer)
            assert float(predicted) == pytest.approx(gap(c), rel=1e-8)
            c = step(c)
    assert float(found.data["beta"].sel(activation="relu")) == pytest.approx(1.266529, abs=1e-6)


def test_networks_follow_the_mean_field(found):
    one = found.data.sel(activation="relu")
    width = (one["gap_high"] - one["gap_low"]).values
    stderr = width / 2 / special.stdtrit(SIZES.networks - 1, 0.975)
    allowed = special.stdtrit(SIZES.networks - 1, 1 - CERTAIN / 2) * stderr
    # log det of a Wishart matrix is below its limit by (n + 1)/(2 width) per eigenvalue and layer.
    allowed += 5 * (np.arange(SIZES.depth + 1) + 1) / SIZES.width
    assert (np.abs(one["gap"] - one["predicted"]).values <= allowed).all()
    last = one["gap"].sel(layer=SIZES.depth)
    assert float(last.sel(order="activation-norm")) < 0.3 * float(last.sel(order="norm-activation"))


def test_it_is_sound(found):
    figure = require_sound(found, "isometry")
    last = found.data["gap"].sel(activation="relu", order="activation-norm")
    assert drawn(figure.axes[0], last.values)
    assert "β = 1.266529 (recorded: 1.265)" in found.findings[0]
    # sigmoid is ordered with the norm before it: its Gram matrices become singular.
    sigmoid = found.data["gap"].sel(activation="sigmoid", order="norm-activation")
    assert np.isnan(sigmoid.values[-1])
    assert "beyond rounding" in found.findings[1]
    assert found.table.rows[2][-1] is None


def test_each_activation_has_its_axes(found):
    """Four activations need a second row of three axes."""
    four = found.data.isel(activation=[0, 1, 0, 1]).assign_coords(activation=list("abcd"))
    figure = Figure()
    isometry_over_depth._draw(four, figure)
    assert sum(bool(ax.lines) for ax in figure.axes) == 4
