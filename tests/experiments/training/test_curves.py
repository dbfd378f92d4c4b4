"""Bands over networks and the dataset of a training."""

import numpy as np

from bnmc.experiments.parts import Call
from bnmc.experiments.training.curves import Axis, bands, cell, training_dataset
from bnmc.experiments.training.images import Images

IMAGES = Images("x", np.zeros((4, 1, 2, 2)), np.zeros(4, dtype=np.int64))


def results():
    """Two cases with three networks, two records and two layers."""
    rng = np.random.default_rng(0)
    return [
        {
            "epoch": np.tile([0.0, 5.0], (3, 1)), "loss": rng.random((3, 2)),
            "rank": rng.random((3, 2, 2)), "gradient_norm": rng.random((3, 2, 2)),
            "rate": np.array(rate),
        }
        for rate in (0.1, 0.2)
    ]  # fmt: skip


def test_bands_are_of_the_last_layer_and_of_the_first_gradient():
    made = results()
    for name, at in (("rank", 1), ("gradient_norm", 0)):
        found = bands(made, name, (2,))
        assert found.shape == (2, 2, 3)
        np.testing.assert_allclose(found[1, :, 0], made[1][name][..., at].mean(axis=0))
    loss = bands(made, "loss", (2, 1))
    assert loss.shape == (2, 1, 2, 3)
    # Student's quantile of 2 degrees of freedom at 97.5 % is 4.302653.
    reach = 4.302653 * made[0]["loss"][:, 1].std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(loss[0, 0, 1, 2] - loss[0, 0, 1, 0], reach, rtol=1e-6)


def test_a_network_that_diverged_is_named_in_the_table():
    assert cell(np.array([1.0, 0.5, 1.5]), 5).ci == (0.5, 1.5)
    assert cell(np.full(3, np.nan), 5) == "diverged"


def test_the_dataset():
    axes = [Axis("case", ["a", "b"], "network")]
    data = training_dataset(Call("x"), results(), axes, ("loss",), IMAGES, {"width": 3})
    assert data["loss"].dims == ("case", "epoch")
    assert data.epoch.values.tolist() == [0, 5]
    assert data.rate.values.tolist() == [0.1, 0.2]
    assert data.attrs["images"] == "x, 4 images"
    assert data.case.attrs == {"long_name": "network"}
