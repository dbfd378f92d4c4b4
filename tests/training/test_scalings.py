"""Parametrizations against the published tables, and the weights at the start."""

import numpy as np
import pytest

import bnmc
from bnmc.infinite_width import SCALINGS
from bnmc.training import course
from bnmc.training.scalings import powers_of

X = np.random.default_rng(0).standard_normal((6, 4))


@pytest.mark.parametrize(
    ("name", "deviations", "rates"),
    [
        ("standard", (0, 0, 0), (0, 0, 0)),
        ("standard/n", (0, 0, 0), (-1, -1, -1)),
        ("ntk", (0, 0, 0), (0, -1, -1)),
        ("mean-field", (0, -0.5, -0.5), (1, 0, -1)),
        ("mup", (0, 0, -0.5), (1, 0, -1)),
        ("symmetric", (0, 0, 0), (0.5, -0.5, -0.5)),
    ],
)
def test_powers_are_those_of_the_papers(name, deviations, rates):
    assert powers_of(name) == (deviations, rates)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [("standard", "default"), ("ntk", "ntk"), ("mean-field", "mean-field"),
     ("symmetric", "sym-default")],
)  # fmt: skip
def test_a_scaling_is_a_parametrization(name, scaling):
    assert powers_of(SCALINGS[scaling]) == powers_of(name)


def test_each_matrix_has_the_powers_of_its_own_width(monkeypatch):
    models = []

    class Watched(course.Model):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            models.append(self)

    monkeypatch.setattr(course, "Model", Watched)
    network = bnmc.Network.of(width=[6, 400, 900, 200], batch=4, norm="none", gain=[1, 2, 3])
    bnmc.train(
        network, X, np.ones((4, 600)), loss="squared", steps=0, learning_rate=1.0, rng=0,
        parametrization="mean-field", reference_width=100, readout_gain=5.0, matrices="drawn",
    )  # fmt: skip
    (model,) = models
    factors = [matrix.factor for matrix in model.architecture.matrices]
    assert factors == pytest.approx([4.0, 1.0, 1.0, 0.5])
    deviations = [1 / 6**0.5, 2 / 20 / 2, 3 / 30 / 3, 5 / 200**0.5 / 2**0.5]
    # 2400 to 360,000 entries: six standard errors.
    for value, deviation in zip(model.values, deviations, strict=True):
        assert value.std() == pytest.approx(deviation, rel=6 / (2 * value.size) ** 0.5)


@pytest.mark.parametrize("matrices", ["implicit", "drawn"])
def test_orthogonal_weights_keep_lengths(matrices):
    network = bnmc.Network.of(
        width=[6, 30, 30, 30], batch=4, norm="none", weights=["gaussian", "haar", "haar"],
        gain=[1.0, 0.5, 2.0],
    )  # fmt: skip
    run = bnmc.train(
        network, X, [0, 1, 0, 1], steps=0, learning_rate=1.0, rng=0, matrices=matrices,
        observables="gram",
    )  # fmt: skip
    first, second, third = run["gram"][0, 0]
    np.testing.assert_allclose(second, first / 4, rtol=1e-10)
    np.testing.assert_allclose(third, first, rtol=1e-10)


@pytest.mark.parametrize("matrices", ["implicit", "drawn"])
def test_a_maximized_start_makes_samples_orthogonal(matrices):
    """Also after an activation; h has the Gram matrix 1 times the width over the samples."""
    network = bnmc.Network.of(width=[6, 30, 30, 30], batch=4, norm="none", activation="linear")
    run = bnmc.train(
        network, X, [0, 1, 0, 1], steps=0, learning_rate=1.0, rng=0, matrices=matrices,
        start="maximized", observables=("gram", "size"),
    )  # fmt: skip
    _, second, third = run["gram"][0, 0]
    np.testing.assert_allclose(second, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(third, np.eye(4), atol=1e-9)
    assert run["size"][0, 0, 1:3] == pytest.approx([1.0, 1.0])
