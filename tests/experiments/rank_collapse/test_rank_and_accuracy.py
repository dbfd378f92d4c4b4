"""Fig. 1 on digits: 5 networks of each kind, with fixed seeds."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments import kit  # noqa: E402
from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.rank_collapse import rank_and_accuracy  # noqa: E402
from bnmc.experiments.training.runs import Training  # noqa: E402

FIGURE = "rank-collapse-1"

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_ranks_with_batch_norm_are_above_those_without(data):
    rank, bound = curve(data, "rank"), curve(data, "rank_bound")
    assert rank[0, -1, 2] < 8
    np.testing.assert_array_equal(rank[1, :, 0], 32)
    assert np.all(bound[1, :, 1] > bound[0, :, 2])
    assert bound[0, -1, 0] == pytest.approx(1, abs=1e-3)


def test_accuracies_with_batch_norm_are_above_those_without(data):
    accuracy = curve(data, "accuracy")
    assert np.all(accuracy[1, :, 1] > accuracy[0, :, 2])
    assert accuracy[0, -1, 0] == pytest.approx(0.1)
    assert accuracy[1, -1, 0] > 0.5


def test_the_rank_before_training_is_that_of_numpy(data):
    """Ranks of networks that NumPy draws by PyTorch's rule, U(±1/√fan_in), in float32."""
    from bnmc.experiments.training.images import images

    x = images(None, 32, 32).pixels.reshape(32, 64)
    rng = np.random.default_rng(1)
    ranks = []
    for _ in range(200):
        h = x
        for fan_in in (64, *[32] * 11):
            W, b = (rng.uniform(-1, 1, shape) / np.sqrt(fan_in) for shape in ((32, fan_in), (32,)))
            h = np.maximum(h @ W.T + b, 0)
        ranks.append(np.linalg.matrix_rank((h / np.linalg.norm(h)).astype(np.float32)))
    rank = float(data["rank"][0, 1])
    # Means of 5 and of 200 networks; 5.1 standard errors have probability 3.4e-7 if normal.
    assert abs(rank - np.mean(ranks)) <= 5.1 * np.std(ranks) * np.sqrt(1 / 5 + 1 / 200)


def test_findings_without_failure():
    figure = rank_and_accuracy.fig_1(
        width=16, depths=(1,), batch=16, images=160, epochs=15, rates=(0.3,), chains=2, rng=1
    )
    assert "learn at each of these depths" in figure.findings[-1]


def test_variables_are_those_of_the_last_hidden_layer(monkeypatch):
    rng = np.random.default_rng(2)
    results = [
        {name: rng.random((4, 2)) for name in ("rank", "rank_bound", "accuracy", "loss")}
        | {"rate": np.array(0.3)}
        for _ in range(4)
    ]
    monkeypatch.setattr(
        Training, "records", lambda _, cases: dict(zip(cases, results, strict=True))
    )
    data = rank_and_accuracy.fig_1(depths=(1, 3)).data
    for name, of, record in (
        ("rank", "rank", 0), ("rank_bound", "rank_bound", 0), ("trained_rank", "rank", -1),
        ("accuracy", "accuracy", -1), ("loss", "loss", -1),
    ):  # fmt: skip
        expected = np.reshape([part[of][:, record].mean() for part in results], (2, 2))
        np.testing.assert_allclose(data[name], expected, rtol=1e-12)


def test_the_depth_of_the_failure_is_that_without_batch_norm():
    """Batch norm, and other depths, have other ranks."""
    sizes = rank_and_accuracy.Sizes(depths=(1, 3, 6))
    axes = {"network": ["without norm", "batch norm"], "depth": [1, 3, 6]}

    def column(centres):
        values = np.multiply.outer(centres, [1.0, 0.9, 1.1])
        return kit.Column("", axes, values, "", chains=4)

    rank = column([[40.0, 20.0, 10.0], [64.0, 63.0, 62.0]])
    bound = column([[4.0, 1.5, 1.25], [32.0, 31.0, 30.0]])
    accuracy = column([[0.8, 0.1, 0.1], [0.9, 0.85, 0.8]])
    *_, failed, collapsed = rank_and_accuracy._findings(sizes, rank, bound, accuracy)
    assert failed.endswith("from 3 hidden layers on, where the rank is 20 and r is 1.5.")
    assert collapsed.startswith("So training fails before the rank")


def test_networks_that_diverged_have_not_learnt():
    with np.errstate(all="ignore"):
        figure = rank_and_accuracy.fig_1(
            width=8, depths=(1,), batch=8, images=16, epochs=1, rates=(1e300,), chains=2
        )
    assert [row[-1] for row in figure.table.rows] == ["diverged", "diverged"]
    assert figure.findings[-1].endswith("is undecided at 1 hidden layer.")
    assert "is undefined without batch norm and undefined with it" in figure.findings[1]


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not here")
def test_the_published_table_has_the_depths_and_width_of_the_default():
    title, _, _, *lines = (
        (DOCS / "images" / "figures" / "rank-collapse-1.txt").read_text().splitlines()
    )
    sizes = rank_and_accuracy.Sizes()
    assert f"width {sizes.width}," in title
    for network in rank_and_accuracy._NETWORKS:
        rows = [line for line in lines if line.startswith(f"{network}  ")]
        depths = [int(row.removeprefix(network).split()[0]) for row in rows]
        assert depths == list(sizes.depths)
