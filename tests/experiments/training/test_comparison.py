"""The words of comparisons; the figures that use them test the rest."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from bnmc.experiments import orthogonalizes
from bnmc.experiments.pictures import curve
from bnmc.experiments.training.comparison import _test, _verdict


def test_words_of_the_comparison():
    low, high, wide = (np.array(band) for band in ([1, 0.5, 1.5], [3, 2, 4.0], [2, 1, 3.0]))
    nan = np.full(3, np.nan)
    assert _verdict(low, high) == "smaller"
    assert _verdict(high, low) == "larger"
    assert _verdict(low, wide) == "undecided"
    assert _verdict(nan, low) == "diverged"
    assert _verdict(low, nan) == "smaller (the other diverged)"
    assert _verdict(nan, nan) == "diverged"


def test_findings_say_undecided_where_intervals_overlap():
    """The finding names the depths whose intervals overlap, and what undecided means."""
    figure = orthogonalizes.fig_4(
        width=8, depths=(2, 3), batch=16, images=32, epochs=1, every=1, rates=(0.01,), chains=2,
        rng=1,
    )  # fmt: skip
    loss = curve(figure.data, "loss")[..., -1, :]
    for row, sentence in ((0, figure.findings[-3]), (2, figure.findings[-2])):
        words = [_verdict(loss[1, column], loss[row, column]) for column in range(2)]
        assert sentence.split(": ", 1)[1].startswith(f"{words[0]} at 2, {words[1]} at 3")
        assert ("(undecided: the intervals overlap)" in sentence) == ("undecided" in words)
    assert "undecided" in figure.findings[-3]  # two networks of each kind have wide intervals


def test_a_claim_is_tested_if_the_start_has_its_property_and_both_learn():
    low, high = np.array([0.3, 0.2, 0.4]), np.array([0.9, 0.8, 1.0])
    learnt, chance = np.array([1.0, 0.9, 1.1]), np.array([2.29, 2.28, 2.3])
    assert "is tested at" in _test("smaller", (high, learnt), (low, learnt))
    for plain, start in (((low, learnt), (high, learnt)), ((low, learnt), (low, learnt))):
        assert "not smaller than" in _test("smaller", plain, start).replace("{aim}", "smaller")
    for first, second in ((learnt, chance), (chance, learnt), (learnt, np.full(3, np.nan))):
        assert _test("smaller", (high, first), (low, second)).endswith("do not learn.")


def test_a_curve_that_diverges_is_named_in_the_legend():
    figure = orthogonalizes.fig_4(
        width=8, depths=(2, 3), batch=16, images=32, epochs=1, every=1, rates=(0.01,), chains=2,
        rng=1,
    )  # fmt: skip
    data = figure.data.copy(deep=True)
    for end in ("", "_low", "_high"):
        data[f"loss{end}"][1, 0, -1] = np.nan
    labels = replace(figure, data=data).plot().axes[0].get_legend_handles_labels()[1]
    assert labels == ["Xavier", "orthogonal start (diverges)", "batch norm"]
