"""Checks for the tests of experiments: tolerances, and requirements for every experiment."""

import json

import numpy as np
from scipy.stats import t as student

#: Probability that a two-sided check of one true statement fails.
FALSE_ALARM = 5e-7


def require_near(value, stderr, count, expected, bias=0.0):
    """Require that a mean of `count` samples equals `expected`, to its error and a known bias."""
    reach = student.ppf(1 - FALSE_ALARM / 2, count - 1) * stderr + bias
    assert abs(value - expected) <= reach, (value, expected, reach)


def stderr_of(data, name, count):
    """Return the standard errors of which ``name_low`` and ``name_high`` are Student's intervals.

    The level of the intervals is 0.95.
    """
    width = data[f"{name}_high"].values - data[f"{name}_low"].values
    return width / (2 * student.ppf(0.975, count - 1))


def require_sound(found, name):
    """Require that an experiment is described, converts to JSON, and labels every axis."""
    assert found.name == name
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["name"] == name
    assert set(document["variables"]) == set(found.data.data_vars)
    assert len(document["table"]) == len(found.table.rows)
    assert found.data.attrs["seed"].isdigit()
    for variable in found.data.variables.values():
        assert variable.attrs["long_name"]
    text = str(found)
    assert found.title in text
    assert all(sentence.endswith(".") and sentence in text for sentence in found.findings)
    figure = found.plot()
    shown = [ax for ax in figure.axes if ax.get_visible() and ax.get_label() != "<colorbar>"]
    for row in {ax.get_subplotspec().rowspan.start for ax in shown}:
        line = [ax for ax in shown if ax.get_subplotspec().rowspan.start == row]
        assert line[0].get_ylabel() or line[0].get_yticklabels()
    last = max(ax.get_subplotspec().rowspan.stop for ax in shown)
    assert all(ax.get_xlabel() for ax in shown if ax.get_subplotspec().rowspan.stop == last)
    assert all(ax.get_title(loc="left") for ax in shown)
    return figure


def drawn(ax, values):
    """Return whether some line of an axes shows these values."""
    values = np.asarray(values, dtype=float)
    return any(
        len(line.get_ydata()) == len(values)
        and np.allclose(np.asarray(line.get_ydata(), dtype=float), values, equal_nan=True)
        for line in ax.get_lines()
    )
