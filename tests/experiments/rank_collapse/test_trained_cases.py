"""Rows of panels: one for each network of labels such as "NETWORK: START"."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.rank_collapse.trained_cases import broken  # noqa: E402


def test_each_network_has_a_row(small):
    figure = small("rank-collapse-5").plot()
    assert len(figure.axes) == 6
    assert [ax.get_title(loc="left") for ax in figure.axes[::3]] == ["perceptron", "convolutions"]
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == ["batch norm", "batch norm, not centred", "batch norm, positive weights"]
    assert len(small("rank-collapse-6").plot().axes) == 2


def test_the_table_has_numbers_before_and_after(small):
    figure = small("rank-collapse-6")
    columns = figure.table.columns
    assert columns == ("network", "learning rate", "r, before", "accuracy, after")
    assert figure.table.rows[3][0] == "batch norm"
    assert figure.table.rows[3][2] == float(figure.data.rank_bound[3, 0])
    assert figure.table.rows[3][3].value == pytest.approx(float(figure.data.accuracy[3, -1]))


def test_a_broken_network_has_positive_weights():
    model = torch.nn.Linear(20, 20)
    broken("uniform")(model, None, np.random.default_rng(0))
    assert bool((model.weight >= 0).all())
