"""The words of comparisons; the figures that use them test the rest."""

import numpy as np
import pytest

pytest.importorskip("torch")

from bnmc.experiments.data import curve
from bnmc.experiments.orthogonalizes import orthogonal_perceptrons
from bnmc.experiments.parts import Call
from bnmc.experiments.statistics import overlap_note
from bnmc.experiments.training.comparison import _verdict


def test_words_of_the_comparison():
    low, high, wide = (np.array(one) for one in ([1, 0.5, 1.5], [3, 2, 4.0], [2, 1, 3.0]))
    nan = np.full(3, np.nan)
    assert _verdict(low, high) == "smaller"
    assert _verdict(high, low) == "larger"
    assert _verdict(low, wide) == "undecided"
    assert _verdict(nan, low) == "diverged"
    assert _verdict(low, nan) == "smaller (the other diverged)"
    assert _verdict(nan, nan) == "diverged"


def test_findings_say_undecided_where_intervals_overlap():
    """The finding names the depths whose intervals overlap, and what undecided means."""
    sizes = orthogonal_perceptrons.Sizes(8, (2, 3), 16, 32, 1, 1, -0.5, (0.01,), 2)
    found = orthogonal_perceptrons.experiment(sizes, Call("orthogonalizes-4", rng=1))
    loss = curve(found.data, "loss")[..., -1, :]
    for row, sentence in ((0, found.findings[1]), (2, found.findings[2])):
        words = [_verdict(loss[1, column], loss[row, column]) for column in range(2)]
        assert sentence.split(": ", 1)[1].startswith(f"{words[0]} at 2, {words[1]} at 3")
        assert ("(undecided: the intervals overlap)" in sentence) == ("undecided" in words)
    assert "undecided" in found.findings[1]  # two networks of each kind have wide intervals


def test_note_of_overlapping_intervals():
    low, high, wide = (np.array(one) for one in ([1, 0.5, 1.5], [3, 2, 4.0], [2, 1, 3.0]))
    note = " (undecided: the intervals overlap)"
    assert overlap_note(low, wide) == overlap_note(wide, high) == overlap_note(low, low) == note
    assert overlap_note(low, high) == overlap_note(high, low) == ""
