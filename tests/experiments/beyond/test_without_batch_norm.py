"""The isometry gap and the edge of chaos beside the map of relu and the closed form of erf."""

import numpy as np
import pytest
from experiment_checks import errors, relu_map
from figure_sizes import FIGURES
from matplotlib.figure import Figure
from scipy import special

import bnmc
from bnmc.experiments.beyond import edge_of_chaos_diagram, without_batch_norm
from bnmc.experiments.pictures import curve
from bnmc.experiments.registry import sizes_of

#: Isometry gaps of relu in the authors' notebook, rounded: means of ten networks of width 1000.
#: With the norm after the activation (input, layers 1, 15 and 30), and before it (layers 1 and 30).
RECORDED = (6.1, 4.2, 1.0, 0.13), (4.5, 5.3)
ROUNDING = (0.05, 0.05, 0.05, 0.005), (0.05, 0.05)


def gap_of(grams):
    values = np.linalg.eigvalsh(grams)
    return np.log(values.mean(axis=-1)) - np.log(values).mean(axis=-1)


def recorded_gaps(generator):
    """One network with the authors' input: its largest singular value is multiplied by 100."""
    u, s, v = np.linalg.svd(generator.standard_normal((10, 1000)), full_matrices=False)
    s[0] *= 100
    x = (u * s) @ v
    first = gap_of(x @ x.T)
    x = (x / np.sqrt(np.square(x).mean(axis=1, keepdims=True))).T
    chain = bnmc.Chain(1000, 10, "relu", norm="layer", order="activation-norm")
    grams = bnmc.simulate(chain, 29, initial=bnmc.FirstLayer(x), rng=generator).gram[0, [0, 14, 29]]
    # Their figure averages the gaps of both matrices of a layer: after the norm, and before it.
    before = (0.5 - 0.5 / np.pi) * grams + 0.5 / np.pi
    chain = bnmc.Chain(1000, 10, "relu", norm="layer")
    others = bnmc.simulate(chain, 29, initial=x, rng=generator).gram[0, [0, 29]]
    lengths = np.sqrt(np.einsum("lii->li", others))
    others = others / (lengths[:, :, None] * lengths[:, None, :])
    return first, *(gap_of(grams) + gap_of(before)) / 2, *gap_of(others)


def gap(c, n=4):
    return -((n - 1) * np.log(1 - c) + np.log(1 + (n - 1) * c)) / n


class TestIsometry:
    FIGURE = "isometry"
    SIZES = FIGURES["isometry"].sizes

    def test_the_mean_field_of_relu(self, data):
        for order, step in (
            ("norm-activation", lambda c: relu_map(c)[0]),
            ("activation-norm", lambda c: (relu_map(c)[0] - 1 / np.pi) / (1 - 1 / np.pi)),
        ):
            c = 1 - 1e-3
            for layer in range(self.SIZES["depth"] + 1):
                predicted = data["predicted"].sel(activation="relu", order=order, layer=layer)
                assert float(predicted) == pytest.approx(gap(c), rel=1e-8)
                c = step(c)
        assert float(data["beta"].sel(activation="relu")) == pytest.approx(1.266529, abs=1e-6)

    def test_networks_follow_the_mean_field(self, data):
        part = data.sel(activation="relu")
        stderr, quantile = errors(curve(part, "gap"), self.SIZES["chains"])
        # log det of a Wishart matrix is (n + 1)/(2 width) below its limit, by eigenvalue and layer.
        bias = 5 * (np.arange(self.SIZES["depth"] + 1) + 1) / self.SIZES["width"]
        assert (np.abs(part["gap"] - part["predicted"]).values <= quantile * stderr + bias).all()
        last = part["gap"].sel(layer=self.SIZES["depth"])
        assert float(last.sel(order="activation-norm")) < 0.3 * float(
            last.sel(order="norm-activation")
        )

    def test_gaps_that_the_authors_recorded(self):
        """20 networks.  The intervals are Student's, at 1e-6 for all six numbers together."""
        generator = np.random.default_rng(5)
        gaps = np.array([recorded_gaps(generator) for _ in range(20)])
        error = gaps.std(axis=0, ddof=1) * np.sqrt(1 / 20 + 1 / 10)
        allowed = special.stdtrit(19, 1 - 1e-6 / 12) * error + np.concatenate(ROUNDING)
        assert np.all(np.abs(gaps.mean(axis=0) - np.concatenate(RECORDED)) < allowed)
        # Without the average over both matrices the gap of layer 30 would be .11 smaller.
        assert allowed[3] < 0.03

    def test_each_activation_has_its_axes(self, figure):
        """Four activations need a second row of three axes."""
        four = figure.data.isel(activation=[0, 1, 0, 1]).assign_coords(activation=list("abcd"))
        figure = Figure()
        without_batch_norm._draw_gaps(four, figure)
        assert sum(bool(ax.lines) for ax in figure.axes) == 4


class TestEdgeOfChaos:
    FIGURE = "edge-of-chaos"
    SIZES = FIGURES["edge-of-chaos"].sizes

    def test_the_edge_and_the_points(self, data):
        assert data["edge"].dims == ("activation", "curve")
        edge = data["edge"].sel(activation="erf").values
        assert edge[0] == pytest.approx(np.pi / 4, rel=1e-12)
        assert data["weight"].values[0] == pytest.approx(np.outer(edge[1:], [0.7, 1.4]), rel=1e-9)
        assert (np.sign(data["predicted"].values[0]) == [[-1, 1], [-1, 1]]).all()

    def test_measured_growth_is_that_of_the_mean_field(self, data):
        stderr, quantile = errors(curve(data, "growth"), self.SIZES["chains"])
        # Logarithms at width d lie below the limit by a few times 1/d per layer.
        allowed = quantile * stderr + 10 / self.SIZES["width"]
        assert (np.abs(data["growth"] - data["predicted"]).values <= allowed).all()
        assert allowed.max() < 0.15

    @pytest.mark.parametrize("sizes", sizes_of("edge-of-chaos"))
    def test_every_place_of_the_diagram_occurs_once(self, sizes):
        """Labels of an axis of the data that occur twice would name no single value."""
        for places in (sizes.curve, sizes.biases, sizes.factors):
            assert (np.diff(places) > 0.0).all()
        assert len(set(sizes.activations)) == len(sizes.activations)
        assert sizes.curve[0] == 0.0

    def test_every_variance_is_a_fixed_point_of_relu(self):
        result = edge_of_chaos_diagram(
            **{**self.SIZES, "activations": ("relu",), "curve": (0.0,), "biases": (0.0,)}
        )
        assert np.exp(result.data["predicted"].values.ravel()) == pytest.approx([0.7, 1.4])
        assert result.data["growth"].values.ravel() == pytest.approx(np.log([0.7, 1.4]), abs=0.1)
        assert [row[3] for row in result.table.rows] == ["ordered", "chaotic"]
