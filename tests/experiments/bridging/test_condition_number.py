"""The bulk of deep layers beside its width in theory."""

import numpy as np
from experiment_checks import require_near, stderr_of
from numpy.testing import assert_allclose

FIGURE = "bridging-conditioning"


def test_the_bulk_narrows_as_the_root_of_the_width(data):
    part = data.sel(activation="tanh")
    spread = (part["largest"] - part["smallest"]).values
    errors = np.hypot(stderr_of(part, "largest", 48), stderr_of(part, "smallest", 48))
    error = np.hypot(*(errors / spread)) / np.log(16)
    # A spread of s has a correction of order s² at width 200.
    bias = 0.1 * spread[0] ** 2 / np.log(16)
    require_near(np.log(spread[1] / spread[0]) / np.log(16), error, 48, -0.5, bias)


def test_windows_are_too_narrow(figure):
    n = 10
    for k, d in enumerate(figure.data["width"].values):
        root = np.sqrt(n / d)
        assert_allclose(figure.data["printed_window"][k], [1 - root, 1 + root])
        assert_allclose(figure.data["mp_window"][k], [(1 - root) ** 2, (1 + root) ** 2])
    for row in figure.table.rows:
        printed = row[4]
        assert printed.ci[1] < 0.5
    start, *_, end = figure.data["condition"].values[0]
    assert start > 50 > 2 > end > 1
