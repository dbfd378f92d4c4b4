"""The bound of Arora et al.: kernel, leading term and predictions written out."""

import numpy as np
import pytest
from experiment_checks import drawn, require_sound

from bnmc.experiments.limits import complexity_bound
from bnmc.experiments.limits.inputs import two_classes, unit_length
from bnmc.experiments.parts import Call

SIZES = complexity_bound.Sizes(60, 40, (0.0, 0.5, 1.0), 8)


@pytest.fixture(scope="module")
def found():
    return complexity_bound.experiment(SIZES, Call("limits-complexity", rng=1))


def test_one_split_written_out():
    """H of Arora et al., with the order and the signs of the generator."""
    inputs = unit_length(two_classes(Call("name"), 12, 8, (3, 8)))
    found = complexity_bound._measure(
        SIZES._replace(splits=1), Call("limits-complexity", rng=4), inputs
    )
    x = np.hstack([inputs.train, inputs.test])
    y = np.where(np.hstack([inputs.labels, inputs.test_labels]), 1.0, -1.0)
    products = np.clip(x.T @ x, -1.0, 1.0)
    H = products * (np.pi - np.arccos(products)) / (2 * np.pi)
    rng = np.random.default_rng(4)
    order = rng.permutation(20)
    rank, signs = rng.random(20), np.where(rng.random(20) < 0.5, 1.0, -1.0)
    inner, outer = order[:12], order[12:]
    G = H[np.ix_(inner, inner)]
    for column, share in enumerate(SIZES.shares):
        given = np.where(rank < share, signs, y)
        weights = np.linalg.solve(G, given[inner])
        f = H[np.ix_(outer, inner)] @ weights
        leading = np.sqrt(2 * given[inner] @ weights / 12)
        second = np.sqrt(np.log(12 / (np.linalg.eigvalsh(G)[0] * 0.05)) / 12)
        expected = {
            "complexity": leading, "bound": leading + second,
            "loss": np.minimum(np.abs(f - given[outer]), 1.0).mean(),
            "error": np.mean(f * y[outer] <= 0),
        }  # fmt: skip
        for name, value in expected.items():
            assert found[name][0, column] == pytest.approx(value, rel=1e-6), name


def test_the_bound_holds_and_grows(found):
    for name in ("complexity", "loss"):
        values = found.data[name].values
        assert (np.diff(values) > 0).all()
    assert (found.data["loss"] <= found.data["complexity"]).all()
    assert float(found.data["error"][0]) < 0.05
    # Eight overlapping splits of 40 test images with random training labels.
    assert abs(float(found.data["error"][-1]) - 0.5) < 0.3


def test_picture(found):
    figure = require_sound(found, "limits-complexity")
    for name in ("complexity", "bound", "loss", "error"):
        assert drawn(figure.axes[0], found.data[name])
    assert "100 % of 24 cases" in found.findings[2]


def test_interrupted_runs_go_on(tmp_path):
    sizes = complexity_bound.Sizes(8, 8, (0.0, 1.0), 3)
    whole = complexity_bound.experiment(sizes, Call("limits-complexity"))
    complexity_bound.experiment(sizes, Call("limits-complexity", store=tmp_path))
    (tmp_path / "part-0002.npz").unlink()
    again = complexity_bound.experiment(sizes, Call("limits-complexity", store=tmp_path))
    assert again.data.identical(whole.data)
