"""Pictures of predictions: the band that is drawn is the one that is predicted."""

import numpy as np
import pytest

from bnmc import MeanField, plot
from bnmc.chain import Chain
from bnmc.errors import ArgumentTypeError


def test_band_and_median():
    path = MeanField(Chain(100, 3, "tanh")).trajectory(
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
    with pytest.raises(ArgumentTypeError, match="fluctuations"):
        plot.predicted_band(path, 100)
