"""Checks for the tests of experiments: tolerances, and requirements for every experiment."""

import inspect
import json

import numpy as np
from approved_pictures import require_approved
from scipy import special
from scipy.stats import t as student

#: Probability that a two-sided check of one true statement fails.
FALSE_ALARM = 5e-7

#: Two-sided probability of a false alarm of one comparison.  No test makes more than 50 of them.
CERTAIN = 1e-6 / 50


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


def require_sound(found, name, approved=None):
    """Require that an experiment is described, converts to JSON, and labels every axis.

    All axes have a title or a label of their own at the left.

    Its picture must be the approved one of the name `approved`, by default `name`.  An experiment
    that shows times has none: False.
    """
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
    assert all(ax.get_title(loc="left") or ax.get_title() or ax.get_ylabel() for ax in shown)
    if approved is not False:
        require_approved(found, figure, approved)
    return figure


def drawn(ax, values):
    """Return whether some line of an axes shows these values."""
    values = np.asarray(values, dtype=float)
    return any(
        len(line.get_ydata()) == len(values)
        and np.allclose(np.asarray(line.get_ydata(), dtype=float), values, equal_nan=True)
        for line in ax.get_lines()
    )


def errors(found, count):
    """Return standard errors of intervals (..., 3) of `count` networks, and how many to allow."""
    quantiles = special.stdtrit(count - 1, [0.975, 1 - CERTAIN / 2])
    return (found[..., 2] - found[..., 1]) / 2 / quantiles[0], float(quantiles[1])


def reach(found):
    """Return the error to allow for an estimate."""
    return special.stdtrit(found.n - 1, 1 - CERTAIN / 2) * found.stderr


def slope_error(data, name):
    """Return the standard error of a slope from the ends of its normal interval."""
    return float(data[f"{name}_high"] - data[f"{name}_low"]) / 2 / special.ndtri(0.975)


def networks(start, width, layers, chains, seed):
    """Return shares of the spectra of plain networks with drawn weights: (chains, layers, n)."""
    generator = np.random.default_rng(seed)
    features, n = np.shape(start)
    x = np.broadcast_to(start, (chains, features, n))
    found = []
    for _ in range(layers):
        x = generator.standard_normal((chains, width, x.shape[1])) @ x
        x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        found.append(np.square(np.linalg.svd(x, compute_uv=False)) / width)
    return np.stack(found, axis=1)


def gaps(shares):
    """Return the orthogonality gap of spectra, given by shares that sum to 1."""
    return np.sqrt(np.sum(np.square(shares - 1 / shares.shape[-1]), axis=-1))


def rank_bound(G):
    """Return the lower bound r of the rank."""
    return np.trace(G, axis1=-2, axis2=-1) ** 2 / np.square(G).sum(axis=(-2, -1))


def relu_rate(n):
    """Return the rate of relu in closed form, from the moments of two normals of correlation ρ."""
    rho = -1 / (n - 1)
    slope = (np.pi - np.arccos(rho)) / np.pi
    J = np.sqrt(1 - rho**2) / np.pi + slope * rho
    light = ((n - 2) * (1 - J) + n * slope / (n - 1)) / ((n + 1) * (1 - J))
    return max(light, n / (n + 1) * slope / (1 - J))


def documented(function):
    """Return the docstring of a function as one line, to compare the sizes in it with constants."""
    return " ".join(inspect.getdoc(function).split())
