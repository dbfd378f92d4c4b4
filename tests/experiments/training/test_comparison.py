"""The words of comparisons; the figures that use them test the rest."""

import numpy as np

from bnmc.experiments.training.comparison import _verdict


def test_words_of_the_comparison():
    low, high, wide = (np.array(one) for one in ([1, 0.5, 1.5], [3, 2, 4.0], [2, 1, 3.0]))
    nan = np.full(3, np.nan)
    assert _verdict(low, high) == "smaller"
    assert _verdict(high, low) == "larger"
    assert _verdict(low, wide) == "equal within the intervals"
    assert _verdict(nan, low) == "diverged"
    assert _verdict(low, nan) == "smaller (the other diverged)"
    assert _verdict(nan, nan) == "diverged"
