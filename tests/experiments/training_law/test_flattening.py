"""Gradients before and after one step."""

import numpy as np

FIGURE = "training-one-step"


def test_a_step_flattens_and_growth_is_a_part_of_it(data):
    before, scaled, after = (data[name].isel(depth=-1) for name in ("before", "scaled", "after"))
    assert (after < before).all()
    assert (scaled < before).all()


def test_growth_of_the_weights():
    """Under batch norm, ρ W has the gradient g/ρ, and a step enlarges ‖W‖² by η² ‖g‖².

    Formulas of the docstring, on drawn matrices of PyTorch's kind in plain NumPy.
    """
    rng = np.random.default_rng(0)
    x, w, v = rng.standard_normal((5, 6)), rng.standard_normal((4, 5)), rng.standard_normal((4, 6))

    def value(matrix):
        h = matrix @ x
        h = h - h.mean(axis=1, keepdims=True)
        return float((v * np.maximum(h / h.std(axis=1, keepdims=True), 0.0)).sum())

    def gradient(matrix):
        result, step = np.zeros_like(matrix), 1e-6
        for at in np.ndindex(matrix.shape):
            moved = matrix.copy()
            moved[at] += step
            result[at] = value(moved)
            moved[at] -= 2 * step
            result[at] -= value(moved)
        return result / (2 * step)

    g = gradient(w)
    np.testing.assert_allclose(gradient(2.0 * w), g / 2.0, atol=1e-7)
    assert abs((w * g).sum()) < 1e-7 * np.linalg.norm(w) * np.linalg.norm(g)


def test_both_parametrizations_are_one_at_the_first_width(figure):
    data = figure.data.isel(width=0)
    before, low, high = (data[f"before{end}"] for end in ("", "_low", "_high"))
    error = np.sqrt(((high - low) ** 2).sum("parametrization")) / 2
    gap = before.sel(parametrization="μP") - before.sel(parametrization="standard")
    assert (abs(gap) < 3 * error).all()
