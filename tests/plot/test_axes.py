"""The style of pictures: figures, bands, intervals and ticks."""

import io
import itertools
import pickle

import matplotlib as mpl
import numpy as np
import pytest
from slow_cases import slow

from bnmc import plot
from bnmc.chain.activations import BUILTIN
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.plot import axes
from bnmc.plot.axes import (
    colours_of,
    label_ends,
    label_layers,
    label_modules,
    logarithmic,
    mark_unstable,
)


@pytest.mark.parametrize("columns", [0, -1, 1.5, "2"])
def test_columns_of_a_figure(columns):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="^columns"):
        plot.figure(columns=columns)


@pytest.mark.parametrize(("width", "inches"), [("column", 3.3), ("page", 6.8)])
def test_a_figure_fits_a_paper(width, inches):
    picture, (ax, _) = plot.figure(columns=2, width=width)
    assert picture.get_size_inches().tolist() == pytest.approx([inches, 0.75 * inches / 2])
    ax.set(xlabel="layer", ylabel="distance")
    texts = [ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels()]
    assert {text.get_fontsize() for text in texts} == {8.0}
    with pytest.raises(UnknownNameError, match="^width: got 'collumn'"):
        plot.figure(width="collumn")


@pytest.mark.parametrize(("kind", "fonts"), [("pdf", b"/Type0"), slow("ps", b"/FontType 42")])
def test_files_have_fonts_of_type_42(kind, fonts, tmp_path):
    """Of a path, in PDF also a stream, after pickling; the settings of Matplotlib stay."""
    before = dict(mpl.rcParams)
    picture, (ax,) = plot.figure()
    ax.set_title("law")
    picture = pickle.loads(pickle.dumps(picture))
    stream, path = io.BytesIO(), tmp_path / f"picture.{kind}"
    picture.savefig(path)
    contents = [path.read_bytes()]
    if kind == "pdf":
        picture.savefig(stream, format=kind)
        contents.append(stream.getvalue())
    for content in contents:
        assert fonts in content
        assert b"/FontType 3 " not in content
        assert b"/Subtype /Type3" not in content
    assert dict(mpl.rcParams) == before


def test_each_activation_has_one_colour():
    every = colours_of(BUILTIN)
    assert len(set(every)) == len(BUILTIN)
    assert colours_of(["tanh(x/2)", "relu"]) == colours_of(["tanh", "relu"])
    mine = colours_of(["mine", "relu", "yours"])
    assert len(set(mine)) == 3
    assert mine[1] == every[list(BUILTIN).index("relu")]


def test_ticks_name_modules():
    ax = plot.figure()[1][0]
    label_modules(ax, [f"encoder.layers.{layer}.attention" for layer in range(20)])
    assert ax.get_xticks().tolist() == [1, 4, 7, 10, 13, 16, 19]
    assert ax.get_xticklabels()[2].get_text() == "encod…layers.6.attention"
    ax.figure.canvas.draw()


def test_labels_at_the_ends_of_curves_do_not_overlap():
    ax = plot.figure()[1][0]
    ends = [1.0, 1.01, 0.99, 5.0, 4.99]
    ax.set(xlim=(-3, 10), ylim=(0, 5))
    label_ends(ax, ends, list("abcde"), plot.COLOURS)
    heights = sorted(text.xyann[1] for text in ax.texts)
    assert all(second - first > 0.2 for first, second in itertools.pairwise(heights))
    assert heights[-1] <= 5
    order = [text.get_text() for text in sorted(ax.texts, key=lambda text: text.xyann[1])]
    assert order == list("cabed")
    assert {text.xy for text in ax.texts} == {(0.0, end) for end in ends}


def test_bands_and_intervals_have_their_numbers():
    ax = plot.figure()[1][0]
    x, middle = np.array([1.0, 2.0, 4.0]), np.array([2.0, 3.0, np.nan])
    plot.band(ax, x, middle, middle - 1, middle + 2, colour="#0072B2", label="curve")
    corners = ax.collections[0].get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (1.0, 5.0)
    plot.estimates(ax, x, middle, middle - 0.5, middle + 0.25, colour="#D55E00", fmt="s")
    (bars,) = ax.containers[0][2]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()[:2]]
    assert ends == [[1.5, 2.25], [2.5, 3.25]]
    assert ax.get_legend_handles_labels()[1] == ["curve"]


@pytest.mark.parametrize(("highest", "marked"), [(0.999, False), (1.001, True)])
def test_the_range_above_1_is_marked_where_a_curve_reaches_it(highest, marked):
    ax = plot.figure()[1][0]
    ax.plot([4, 8, 16], [0.6, 0.9, highest])
    limits = ax.get_ylim()
    mark_unstable(ax)
    line = ax.lines[-1]
    assert list(line.get_ydata()) == [1.0, 1.0]
    assert [text.get_text() for text in ax.texts] == ["unstable"] * marked
    assert len(ax.patches) == marked
    if marked:
        (grey,) = ax.patches
        assert grey.get_y() == 1.0
        assert grey.get_y() + grey.get_height() == max(limits) == max(ax.get_ylim())
        assert grey.get_zorder() < line.get_zorder()


def test_multiples_of_ticks_increase_within_a_decade_and_contain_the_decade():
    for multiples in axes._MULTIPLES:
        assert multiples[0] == 1.0
        assert (np.diff([*multiples, 10.0]) > 1e-9).all()


def test_plain_ticks_are_plain():
    ax = plot.figure()[1][0]
    ax.set(xscale="log", yscale="log", xlim=(10, 5000), ylim=(0.1, 3))
    plot.plain_ticks(ax.xaxis, [100, 1600])
    plot.plain_ticks(ax.yaxis)
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["100", "1600"]
    assert {"0.2", "0.5", "1", "2"} <= {text.get_text() for text in ax.get_yticklabels()}
    assert ax.get_xticks(minor=True).size == 0


@pytest.mark.parametrize("low", [0.21, 0.6, 0.97, 1.0, 137.0])
@pytest.mark.parametrize("ratio", [1.3, 1.7, 4.5, 30.0, 5000.0])
def test_a_logarithmic_axis_has_at_least_three_labels(low, ratio):
    ax = plot.figure()[1][0]
    ax.set(yscale="log", ylim=(low, ratio * low))
    plot.plain_ticks(ax.yaxis)
    ax.figure.canvas.draw()
    shown = [tick for tick in ax.get_yticks() if low <= tick <= ratio * low]
    assert 3 <= len(shown) <= 15


def test_ticks_of_layers_are_integers():
    """Matplotlib's mine ticks of three layers are 0, 0.25, …, as the second axes show."""
    layered, plain = plot.figure(columns=2)[1]
    for ax in (layered, plain):
        ax.plot([0, 1, 2], [3.0, 2.0, 1.0])
    label_layers(layered, "depth")
    assert layered.get_xlabel() == "depth"
    assert all(tick == round(tick) for tick in layered.get_xticks())
    assert any(tick != round(tick) for tick in plain.get_xticks())


@pytest.mark.parametrize(("highest", "plain"), [(0.9, True), (1.0, False)])
def test_an_axis_below_three_decades_has_plain_ticks(highest, plain):
    ax = plot.figure()[1][0]
    ax.set(yscale="log", ylim=(0.001, highest))
    before = ax.yaxis.get_major_formatter()
    logarithmic(ax)
    assert (ax.yaxis.get_major_formatter() is not before) is plain
