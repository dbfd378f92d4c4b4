"""The demonstration: exact errors, starts, and the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from bnmc.experiments.bridging.linear_networks import equation_6
from bnmc.experiments.demonstration import LinearRuns, draw, simulate_digits, simulate_linear
from bnmc.random_matrix import vanilla_deviation


def vanilla_error(width: int, batch: int, layers: Any) -> Any:
    return np.sqrt(vanilla_deviation(width, batch, layers))


@pytest.fixture(scope="module")
def comparison() -> LinearRuns:
    return simulate_linear(depth=30, chains=40, seed=1)


class TestDemo:
    def test_exact_error_at_one_layer(self) -> None:
        # G_1 = BᵀB/d with standard normal B: n diagonal entries of variance 2/d, n(n−1) of 1/d.
        n, d = 5, 70
        assert vanilla_error(d, n, 1) == pytest.approx(np.sqrt(n * (n + 1) / d), rel=1e-14)
        assert vanilla_error(d, n, 0) == 0

    def test_exact_error_at_one_sample(self) -> None:
        # ‖x‖² is then a product of l independent χ²_d/d: E (‖x‖² − 1)² = (1 + 2/d)^l − 1.
        layers = np.arange(50)
        np.testing.assert_allclose(
            vanilla_error(20, 1, layers), np.sqrt(1.1**layers - 1), rtol=1e-12
        )

    def test_exact_error_of_width_one(self) -> None:
        # G_1 = z² of a standard normal z where n = 1 and d = 1.
        assert vanilla_error(1, 1, 1) == pytest.approx(np.sqrt(2.0))

    def test_eq_6_is_how_the_exact_error_grows(self) -> None:
        layers = np.array([20_000, 21_000])
        exact = vanilla_error(1000, 5, layers)
        rough = equation_6(1000, layers)
        assert exact[1] / exact[0] == pytest.approx(rough[1] / rough[0], rel=2e-3)

    def test_simulation_has_the_exact_error(self) -> None:
        # 2000 networks: the mean of the squared error is normal to good accuracy, so one of five
        # is more than 5.3 standard errors off with a probability of at most 6e-7.
        vanilla = simulate_linear(depth=10, chains=400, seed=3).vanilla
        layers = [0, 1, 4, 6, 9]
        squares = np.square(vanilla["distance"][:, layers])
        stderr = squares.std(axis=0, ddof=1) / np.sqrt(len(squares))
        exact = np.square(vanilla_error(1000, 5, vanilla.layers[layers]))
        assert (stderr < 0.025 * exact).all()
        assert (np.abs(squares.mean(axis=0) - exact) < 5.3 * stderr).all()

    def test_starts_are_orthogonal(self, comparison: LinearRuns) -> None:
        assert comparison.vanilla.layers[0] == comparison.normalised.layers[0] == 1
        assert comparison.vanilla.chains == 5 * comparison.normalised.chains
        assert comparison.vanilla.mean("distance")[0] < 0.3

    def test_picture(self, comparison: LinearRuns) -> None:
        found = simulate_digits(seed=1)
        drawn = draw(found, comparison)
        assert isinstance(drawn, Figure)
        left, right = drawn.axes
        for ax in (left, right):
            assert ax.get_title(loc="left")
            assert ax.get_xlabel()
            assert ax.get_ylabel()
            assert ax.get_legend() is not None
            assert ax.get_yscale() == "log"
        labels = [line.get_label() for line in right.lines]
        assert labels[:2] == ["batch norm", "no normalization"]
        assert any("eq. (6)" in str(label) for label in labels)
        np.testing.assert_array_equal(
            right.lines[2].get_ydata(), vanilla_error(1000, 5, np.arange(1, 31))
        )
        final = found.runs["relu"].mean("distance")[-1]
        assert final < 0.5 * found.runs["relu"].mean("distance")[0]
        drawn.canvas.draw()
