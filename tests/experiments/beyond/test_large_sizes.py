"""Large widths and batches beside the laws of linear networks."""

import numpy as np
from experiment_checks import drawn, require_near, stderr_of
from numpy.testing import assert_allclose

FIGURE = "scale"


def test_slopes_and_laws(data):
    errors, values = stderr_of(data, "distance", 8), data["distance"].values
    n, width = 4, data["width"].values
    law = np.sqrt(16 * 2 * 25 / (4 * 3 * 4 * width))
    assert_allclose(data["law"], law)
    require_near(values[0], errors[0], 8, law, (n**2 / width + 1e-6) * law)
    slope = np.log(values[:, -1] / values[:, 0]) / np.log(100)
    error = np.hypot(*(errors / values)[:, [0, -1]].T) / np.log(100)
    require_near(slope, error, 8, -0.5, 0.02 / np.log(100))


def test_batches(data):
    part = data.sel(large="linear")
    n = part["batch"].values.astype(float)
    exact = n * np.sqrt((n - 2) / ((n - 1) * 2048))
    assert_allclose(part["one_step_law"], exact)
    require_near(part["one_step"], stderr_of(part, "one_step", 16), 16, exact)
    assert (data["deeper"] > data["one_step"]).all()
    assert (data["speed"] > 0).all()
    assert (data["pace"] > 0).all()


def test_picture(figure):
    left, middle, right = figure.plot().axes
    assert drawn(left, figure.data["law"])
    assert drawn(middle, figure.data["one_step_law"])
    assert drawn(right, figure.data["pace"][1])
