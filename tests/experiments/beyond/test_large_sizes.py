"""Large widths and batches beside the laws of linear networks."""

import numpy as np
from experiment_checks import drawn, require_near, stderr_of
from numpy.testing import assert_allclose


class TestScale:
    FIGURE = "scale"

    def test_slopes_and_laws(self, figure):
        data, n = figure.data, 4
        errors = stderr_of(data, "distance", 8)
        law = np.sqrt(16 * 2 * 25 / (4 * 3 * 4 * data["width"].values))
        assert_allclose(data["law"], law)
        for k, width in enumerate(data["width"].values):
            level = float(data["distance"][0, k])
            require_near(level, errors[0, k], 8, law[k], (n**2 / width + 1e-6) * law[k])
        values = data["distance"].values
        slope = np.log(values[:, -1] / values[:, 0]) / np.log(100)
        error = np.hypot(*(errors / values)[:, [0, -1]].T) / np.log(100)
        for k in range(2):
            require_near(slope[k], error[k], 8, -0.5, 0.02 / np.log(100))

    def test_batches(self, figure):
        part = figure.data.sel(large="linear")
        n = part["batch"].values.astype(float)
        exact = n * np.sqrt((n - 2) / ((n - 1) * 2048))
        assert_allclose(part["one_step_law"], exact)
        errors = stderr_of(part, "one_step", 16)
        for k in range(2):
            require_near(float(part["one_step"][k]), errors[k], 16, exact[k])
        assert (figure.data["deeper"] > figure.data["one_step"]).all()
        assert (figure.data["speed"] > 0).all()
        assert (figure.data["pace"] > 0).all()

    def test_picture(self, figure):
        left, middle, right = figure.plot().axes
        assert drawn(left, figure.data["law"])
        assert drawn(middle, figure.data["one_step_law"])
        assert drawn(right, figure.data["pace"][1])
