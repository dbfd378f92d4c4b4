"""The bound of Arora et al.: kernel, leading term and predictions written out."""

import numpy as np

from bnmc.experiments import limits
from bnmc.experiments.limits.ensembles import two_classes, unit_length

FIGURE = "limits-complexity"


def test_splits_written_out():
    """H of Arora et al., with the orders and the signs of the generator."""
    shares = (0.0, 0.5, 1.0)
    result = limits.complexity(train=12, test=8, classes=(3, 8), shares=shares, splits=2, rng=4)
    inputs = unit_length(two_classes(None, 12, 8, (3, 8)))
    x = np.hstack([inputs.train, inputs.test])
    y = np.where(np.hstack([inputs.labels, inputs.test_labels]), 1.0, -1.0)
    products = np.clip(x.T @ x, -1.0, 1.0)
    H = products * (np.pi - np.arccos(products)) / (2 * np.pi)
    rng = np.random.default_rng(4)
    expected = {name: np.zeros(3) for name in ("complexity", "bound", "loss", "error")}
    for _ in range(2):
        order = rng.permutation(20)
        rank, signs = rng.random(20), np.where(rng.random(20) < 0.5, 1.0, -1.0)
        inner, outer = order[:12], order[12:]
        G = H[np.ix_(inner, inner)]
        for column, share in enumerate(shares):
            given = np.where(rank < share, signs, y)
            weights = np.linalg.solve(G, given[inner])
            f = H[np.ix_(outer, inner)] @ weights
            leading = np.sqrt(2 * given[inner] @ weights / 12)
            second = np.sqrt(np.log(12 / (np.linalg.eigvalsh(G)[0] * 0.05)) / 12)
            expected["complexity"][column] += leading / 2
            expected["bound"][column] += (leading + second) / 2
            expected["loss"][column] += np.minimum(np.abs(f - given[outer]), 1.0).mean() / 2
            expected["error"][column] += np.mean(f * y[outer] <= 0) / 2
    for name, values in expected.items():
        np.testing.assert_allclose(result.data[name], values, rtol=1e-6, err_msg=name)


def test_the_bound_holds_and_grows(data):
    for name in ("complexity", "loss"):
        values = data[name].values
        assert (np.diff(values) > 0).all()
    assert (data["loss"] <= data["complexity"]).all()
    assert float(data["error"][0]) < 0.05
    # Eight overlapping splits of 40 test images with random training labels.
    assert abs(float(data["error"][-1]) - 0.5) < 0.3
