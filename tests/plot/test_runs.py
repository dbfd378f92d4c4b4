"""Pictures of runs, predictions and spectra: what is drawn is what was simulated."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

import bnmc
from bnmc import plot
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

CHAIN = bnmc.Chain(40, 4, "linear")
STAR = bnmc.MeanField(CHAIN).fixed_point().gram


def simulated(**options):
    given = {"chains": 50, "rng": 0, "observables": ["gram", "eigenvalues", "orthogonality_gap"]}
    return bnmc.simulate(CHAIN, 12, **(given | options))


@pytest.fixture(scope="module")
def run():
    return simulated()


def band(ax, index=0):
    """Lower and upper edge of a band, by layer, read back from its polygon."""
    vertices = ax.collections[index].get_paths()[0].vertices
    layers = np.unique(vertices[:, 0])
    at = [vertices[vertices[:, 0] == layer, 1] for layer in layers]
    return np.array([y.min() for y in at]), np.array([y.max() for y in at])


def test_line_is_the_mean_and_band_the_quantiles(run):
    ax = plot.trajectory(run, star=STAR, level=0.8)
    distance = bnmc.gram.distance(run.gram, STAR)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), run.layers)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), distance.mean(axis=0))
    low, high = band(ax)
    np.testing.assert_allclose(low, np.quantile(distance, 0.1, axis=0), rtol=1e-12)
    np.testing.assert_allclose(high, np.quantile(distance, 0.9, axis=0), rtol=1e-12)
    assert ax.get_yscale() == "log"
    assert ax.get_legend() is None


def test_recorded_distance_is_drawn_as_the_computed_one(run):
    recorded = plot.trajectory(simulated(observables=bnmc.Distance(STAR)))
    computed = plot.trajectory(run, star=STAR)
    np.testing.assert_allclose(
        recorded.lines[0].get_ydata(), computed.lines[0].get_ydata(), rtol=1e-12
    )


def test_reduced_run_has_the_band_of_a_normal_law(run):
    ax = plot.trajectory(simulated(reduce="chain"), "orthogonality_gap", level=0.5)
    gap = run.orthogonality_gap
    reach = norm.ppf(0.75) * gap.std(axis=0, ddof=1)
    low, high = band(ax)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), gap.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(low, gap.mean(axis=0) - reach, rtol=1e-10)
    np.testing.assert_allclose(high, gap.mean(axis=0) + reach, rtol=1e-10)


def test_components_share_a_colour(run):
    ax = plot.trajectory({"linear": run}, "eigenvalues")
    assert len(ax.lines) == 4
    assert {line.get_color() for line in ax.lines} == {plot.COLOURS[0]}
    np.testing.assert_array_equal(ax.lines[3].get_ydata(), run.eigenvalues.mean(axis=0)[:, 3])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["linear"]
    assert ax.get_yscale() == "linear"


def test_labelled_runs_into_given_axes(run):
    _, (left, right) = plot.figure(columns=2)
    returned = plot.trajectory({"a": run, "b": run}, "orthogonality_gap", ax=right)
    assert returned is right
    assert not left.lines
    assert [line.get_color() for line in right.lines] == list(plot.COLOURS[:2])
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["a", "b"]


def test_several_runs_without_labels(run):
    ax = plot.trajectory([run, run], "orthogonality_gap")
    assert len(ax.lines) == 2
    assert ax.get_legend() is None


def test_a_new_figure_says_which_chain_and_band(run):
    of_run = f"linear, batch norm, width 40, batch 4: mean and 80 % of {run.chains} networks"
    ax = plot.trajectory(run, "orthogonality_gap", level=0.8)
    assert ax.get_title() == of_run
    wider = bnmc.simulate(bnmc.Chain(50, 4), 2, chains=3, observables="orthogonality_gap", rng=0)
    both = plot.trajectory({"a": run, "b": wider}, "orthogonality_gap")
    assert both.get_title() == f"Mean and 90 % of 3 or {run.chains} networks"


@pytest.mark.parametrize("reduce", [(), "chain"])
def test_single_chain_has_no_band(reduce):
    ax = plot.trajectory(simulated(chains=1, reduce=reduce), "orthogonality_gap")
    assert len(ax.lines) == 1
    assert not ax.collections
    assert ax.get_title() == "linear, batch norm, width 40, batch 4: 1 network"


def test_zero_has_no_place_on_a_logarithmic_axis(run):
    ax = plot.trajectory(simulated(chains=1), star=run.gram[0, 0])
    heights = np.asarray(ax.lines[0].get_ydata())
    assert np.isnan(heights[0])
    assert (heights[1:] > 0).all()
    ax.figure.canvas.draw()


def test_overview(run):
    picture = plot.overview(run)
    assert [ax.get_title() for ax in picture.axes] == ["Orthogonality gap", "Spectrum"]
    assert "linear, batch norm, width 40, batch 4" in picture.get_suptitle()
    both = simulated(observables=[bnmc.Distance(STAR), "orthogonality_gap", "eigenvalues"])
    assert plot.overview(both).axes[0].get_title() == "Distance from G*"


def test_overview_of_a_fixed_point(run):
    star = bnmc.MeanField(CHAIN).fixed_point()
    left, right = plot.overview(run, star).axes
    dashed = [[line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == "--"]
              for ax in (left, right)]  # fmt: skip
    assert dashed[0] == pytest.approx([float(bnmc.gram.orthogonality_gap(STAR))], abs=1e-11)
    assert dashed[1] == pytest.approx([0.0, 4 / 3], abs=1e-11)
    assert right.get_yscale() == "linear"  # the eigenvalue 0 is rounding, not a decade


def test_spectrum_of_many_decades_has_a_logarithmic_axis():
    deep = bnmc.simulate(
        bnmc.Chain(20, 4, "linear", norm="none"), 200, chains=8, observables="eigenvalues", rng=0
    )
    assert plot.trajectory(deep, "eigenvalues").get_yscale() == "log"


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        *((lambda run, level=level: plot.trajectory(run, "orthogonality_gap", level=level), error,
           "^level") for level, error in (
               (0, ArgumentError), (1, ArgumentError), (np.nan, ArgumentError),
               ("high", ArgumentTypeError))),
        (lambda run: plot.trajectory(run, "eigenvalue"), UnknownNameError,
         "did you mean 'eigenvalues'"),
        (lambda run: plot.trajectory(run, "eigenvalues", star=STAR), ArgumentError, "^observable"),
        (lambda run: plot.trajectory(run, star=np.eye(3)), ArgumentError, r"^star: .*\(4, 4\)"),
        (lambda _: plot.trajectory(simulated(reduce="layer"), "gram"), ArgumentError, "by layer"),
        (lambda _: plot.trajectory([]), ArgumentError, "at least one"),
        (lambda _: plot.trajectory(3, "gram"), ArgumentTypeError, "^runs"),
        (lambda run: plot.trajectory([run, "run"], "gram"), ArgumentTypeError, "^runs"),
        (lambda _: plot.trajectory({"a": None}, "gram"), ArgumentTypeError, "^runs"),
        (lambda _: plot.trajectory(Refusing()), ArgumentTypeError, "^runs"),
        (lambda _: plot.trajectory(bnmc.simulate(CHAIN, 3, chains=2, rng=0)), ArgumentError,
         "^observable: got 'distance'.*star=bnmc"),
        (lambda _: plot.trajectory(simulated(observables="eigenvalues"), star=STAR), ArgumentError,
         "^runs: got \"one without 'gram'"),
        (lambda run: plot.overview(run, np.eye(3)), ArgumentError, "^star"),
        (lambda _: plot.overview(3), ArgumentTypeError, "^run: got 3"),
        (lambda run: plot.spectrum(run, layer=13), ArgumentError, "^layer"),
        (lambda run: plot.spectrum(run, layer=-14), ArgumentError, "^layer"),
        (lambda run: plot.spectrum(run, layer=1.5), ArgumentTypeError, "^layer"),
        (lambda _: plot.spectrum(3), ArgumentTypeError, "^run"),
        (lambda _: plot.spectrum(simulated(observables="eigenvalues")), ArgumentError, "^run"),
        (lambda _: plot.spectrum(simulated(reduce="chain")), ArgumentError, "^run"),
        (lambda run: plot.spectrum(run, star=np.eye(3)), ArgumentError, "^star"),
        (lambda run: plot.predicted_band(run, 100), ArgumentTypeError, "fluctuations"),
    ],
)  # fmt: skip
def test_arguments_that_are_not_allowed(run, draw, error, words):
    with pytest.raises(error, match=words):
        draw(run)


def test_no_global_state():
    script = """
import io, sys, bnmc.plot
assert not [name for name in sys.modules if "bnmc.simul" in name]
from bnmc import plot
assert "matplotlib" not in sys.modules
run = bnmc.simulate(bnmc.Chain(20, 3), 3, chains=4, rng=0)
plot.trajectory(run, star=run.gram[0, -1]).figure.savefig(io.BytesIO())
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_spectrum_is_of_the_bulk_and_has_its_law(run):
    star = bnmc.MeanField(CHAIN).fixed_point()
    ax = plot.spectrum(run, star=star)
    # Of linear networks with batch norm the ones have the eigenvalue 0, the others the trace.
    bulk = np.linalg.eigvalsh(run.gram[:, -1])[:, 1:].ravel()
    edges = np.array([patch.get_x() for patch in ax.patches])
    heights = [patch.get_height() for patch in ax.patches]
    width = ax.patches[0].get_width()
    counts, _ = np.histogram(bulk, np.append(edges, edges[-1] + width))
    assert abs(counts / (len(bulk) * width) - heights).max() <= 1.01 / (len(bulk) * width)
    assert sum(heights) * width == pytest.approx(1.0)
    law = bnmc.random_matrix.MarchenkoPastur(4 / 40, variance=bulk.mean())
    x, density = ax.lines[0].get_data()
    np.testing.assert_allclose(density, law.pdf(x), rtol=1e-9)
    assert np.trapezoid(density, x) == pytest.approx(1.0, abs=2e-3)
    dashed = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    assert dashed == pytest.approx([star.b * (1 - star.c)], abs=1e-11)
    assert ax.get_title() == "linear, batch norm, width 40, batch 4: 50 networks"
    assert ax.get_xlabel() == plot.spectrum(run, layer=12).get_xlabel() == "eigenvalue of $G_{12}$"


def test_band_and_median():
    path = bnmc.MeanField(bnmc.Chain(100, 3, "tanh")).trajectory(
        np.diag([1.0, 2.0, 3.0]), 4, rng=0, fluctuations=True
    )
    law = path.fluctuations
    for observable in (None, np.diag([1.0, 0.0, 0.0])):
        ax = plot.predicted_band(law, 100, observable, level=0.8, label="d = 100")
        assert ax.get_title() == "predicted, width 100, band 80%"
        (line,), (area,) = ax.lines, ax.collections
        low, high = law.band(100, observable, level=0.8)
        np.testing.assert_array_equal(line.get_xdata(), np.arange(5))
        heights = area.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(low.min())
        assert heights.max() == pytest.approx(high.max())
        assert np.all((low <= line.get_ydata()) & (line.get_ydata() <= high))
    # The median of a linear observable is the mean field.
    np.testing.assert_allclose(line.get_ydata(), path.gram[:, 0, 0])
    assert line.get_label() == "d = 100"
    same = plot.predicted_band(law, 100, ax=ax)
    assert same is ax
    assert len(ax.lines) == 2


def made(**changes):
    grams = np.random.default_rng(0).random((6, 3, 4, 4))
    attributes = {
        "network": CHAIN.repeat(2), "chains": 6, "layers": np.arange(3), "moments": {},
        "observables": {"gram": grams @ grams.swapaxes(-1, -2)},
        "dims": {"gram": ("chain", "layer", "sample_i", "sample_j")},
    }  # fmt: skip
    return SimpleNamespace(**attributes | changes)


def test_an_object_with_the_attributes_is_drawn():
    run = made()
    ax = plot.trajectory(run, star=np.eye(4))
    distance = bnmc.gram.distance(run.observables["gram"], np.eye(4))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), distance.mean(axis=0))
    assert plot.spectrum(run).get_xlabel() == "eigenvalue of $G_{2}$"


def test_a_title_says_that_layers_differ():
    network = CHAIN.repeat(2) + bnmc.Chain(9, 4, "tanh").repeat(1)
    run = bnmc.simulate(network, chains=2, rng=0)
    assert plot.spectrum(run).get_title() == "network of 3 layers, batch 4: 2 networks"


class Refusing:
    def __getattr__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize("name", ["network", "chains", "layers", "moments", "observables", "dims"])
def test_an_object_that_lacks_an_attribute_is_no_run(name):
    run = made()
    plot.spectrum(run)
    delattr(run, name)
    with pytest.raises(ArgumentTypeError, match="^run: .*allowed: a Trajectory$"):
        plot.spectrum(run)
