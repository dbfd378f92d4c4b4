"""Rows of panels: one for each network of labels such as "NETWORK: START"."""

import pytest

torch = pytest.importorskip("torch")


def test_each_network_has_a_row(fig_5, fig_6):
    figure = fig_5.plot()
    assert len(figure.axes) == 6
    assert [ax.get_title(loc="left") for ax in figure.axes[::3]] == ["perceptron", "convolutions"]
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == ["batch norm", "batch norm, not centred", "batch norm, positive weights"]
    assert len(fig_6.plot().axes) == 2


def test_the_table_has_numbers_before_and_after(fig_6):
    columns = fig_6.table.columns
    assert columns == ("network", "learning rate", "r, before", "accuracy, after")
    assert fig_6.table.rows[3][0] == "batch norm"
    assert fig_6.table.rows[3][2] == float(fig_6.data.rank_bound[3, 0])
    assert fig_6.table.rows[3][3].value == pytest.approx(float(fig_6.data.accuracy[3, -1]))
