"""The picture of the stability of several activations."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.mean_field.fixed_point.stability import atlas, stability
from bnmc.plot.stability import plot_stability


def test_plot_shows_moduli_and_crossings():
    entries = atlas(["silu", "tanh"], [2, 3, 4, 16, 64])
    ax = plot_stability(entries)
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    lines = {line.get_label(): line for line in ax.lines}
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["silu", "tanh", r"$\lambda_L$", r"$\lambda_M$"]
    for entry in entries:
        for kind, symbol in enumerate((r"\lambda_L", r"\lambda_M")):
            line = lines[f"{entry.activation} ${symbol}$"]
            np.testing.assert_array_equal(line.get_xdata(), entry.batches[1 + kind :])
            expected = np.abs(entry.eigenvalues[1 + kind :, kind])
            np.testing.assert_array_equal(line.get_ydata(), expected)
    (crossing,) = entries[0].crossings
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert {line.get_marker() for line in ax.lines} == {"", "None", "o"}  # few have no others
    assert [(d.get_xdata()[0], d.get_ydata()[0]) for d in dots] == [(26, crossing.value)]
    assert [text.get_text() for text in ax.texts] == ["n = 26", "unstable"]
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in ax.lines)
    ax.figure.canvas.draw()


def test_plot_of_all_activations_has_no_two_alike():
    entries = atlas(list(BUILTIN), [3, 4, 8])
    ax = plot_stability(entries)
    legend = ax.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*BUILTIN, r"$\lambda_L$", r"$\lambda_M$"]
    looks = [(line.get_color(), line.get_marker()) for line in legend.get_lines()[:-2]]
    assert len(set(looks)) == len(BUILTIN)
    lines = {line.get_label(): line for line in ax.lines}
    for name, look in zip(BUILTIN, looks, strict=True):
        curves = [lines[rf"{name} $\lambda_{kind}$"] for kind in "LM"]
        assert [(line.get_color(), line.get_marker()) for line in curves] == [look] * 2
        assert [line.get_linestyle() for line in curves] == ["-", "--"]
    ax.figure.canvas.draw()
    assert legend.get_window_extent().x0 > ax.get_window_extent().x1
    assert ax.get_window_extent().width > 0.7 * ax.figure.bbox.width


@pytest.mark.parametrize(
    ("batches", "labels"),
    [
        ([3, 4, 5, 8, 12, 16, 24, 32, 48, 64], [3, 4, 5, 8, 12, 16, 24, 32, 48, 64]),
        ([4, 10, 11, 12, 13, 14, 100, 1000], [4, 10, 13, 100, 1000]),
        ([8], [8]),
    ],
)
def test_plot_labels_batches_that_stay_apart(batches, labels):
    ax = plot_stability(stability("tanh", batches))
    ax.figure.canvas.draw()
    shown = ax.get_xticklabels()
    assert [text.get_text() for text in shown] == list(map(str, labels))
    boxes = [text.get_window_extent() for text in shown]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_plot_takes_one_entry_and_axes():
    axes = Figure().add_subplot()
    assert plot_stability(stability("abs", [3, 4, 5]), ax=axes) is axes
    assert min(axes.lines[1].get_ydata()) > 0  # λ_M of abs is negative


@pytest.mark.parametrize(
    ("entries", "error", "words"),
    [
        *((entries, ArgumentTypeError, "^entries") for entries in (3, [3], "silu")),
        ([], ArgumentError, "^entries"),
        ([stability("tanh", [4]), stability("tanh", [4], norm="batch-uncentred")], ArgumentError,
         "one norm"),
    ],
)  # fmt: skip
def test_bad_entries(entries, error, words):
    with pytest.raises(error, match=words):
        plot_stability(entries)
