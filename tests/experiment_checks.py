"""Checks for the tests of experiments: tolerances, and requirements for every experiment."""

import gzip
import inspect
import json

import numpy as np
import numpy_network
from approved_pictures import require_approved
from scipy import special
from scipy.stats import t as student

from bnmc import Chain
from bnmc.experiments.statistics import mean_of_band

#: Probability that a two-sided check of one true statement fails.
FALSE_ALARM = 5e-7

#: Two-sided probability of a false alarm of one comparison.  No test makes more than 50 of them.
CERTAIN = 1e-6 / 50


def require_near(value, stderr, count, expected, bias=0.0):
    """Require that means of `count` samples equal `expected`, to their errors and a known bias."""
    value, stderr, expected = map(np.asarray, (value, stderr, expected))
    reach = student.ppf(1 - FALSE_ALARM / 2, count - 1) * stderr + bias
    assert np.all(np.abs(value - expected) <= reach), (value, expected, reach)


def stderr_of(data, name, count):
    """Return the standard errors of which ``name_low`` and ``name_high`` are Student's intervals.

    The level of the intervals is 0.95.
    """
    width = data[f"{name}_high"].values - data[f"{name}_low"].values
    return width / (2 * student.ppf(0.975, count - 1))


def require_sound(experiment, name, approved=None):
    """Require that an experiment is described, converts to JSON, and labels every axis.

    All axes have a title or a label of their own at the left.

    Its picture must be the approved one of the name `approved`, by default `name`.  An experiment
    that shows times has none: False.
    """
    assert experiment.name == name
    document = json.loads(json.dumps(experiment.to_dict(), allow_nan=False))
    assert document["name"] == name
    assert set(document["variables"]) == set(experiment.data.data_vars)
    assert len(document["rows"]) == len(experiment.table.rows)
    assert experiment.data.attrs["seed"].isdigit()
    for variable in experiment.data.variables.values():
        assert variable.attrs["long_name"]
    text = str(experiment)
    assert experiment.title in text
    assert all(sentence.endswith(".") for sentence in experiment.findings)
    assert all(sentence in text for sentence in experiment.findings[:7])
    figure = experiment.plot()
    shown = [ax for ax in figure.axes if ax.get_visible() and ax.get_label() != "<colorbar>"]
    for row in {ax.get_subplotspec().rowspan.start for ax in shown}:
        line = [ax for ax in shown if ax.get_subplotspec().rowspan.start == row]
        assert line[0].get_ylabel() or line[0].get_yticklabels()
    last = max(ax.get_subplotspec().rowspan.stop for ax in shown)
    assert all(ax.get_xlabel() for ax in shown if ax.get_subplotspec().rowspan.stop == last)
    assert all(ax.get_title(loc="left") or ax.get_title() or ax.get_ylabel() for ax in shown)
    if approved is not False:
        require_approved(experiment, figure, approved)
    return figure


def drawn(ax, values):
    """Return whether some line of an axes shows these values."""
    values = np.asarray(values, dtype=float)
    return any(
        len(line.get_ydata()) == len(values)
        and np.allclose(np.asarray(line.get_ydata(), dtype=float), values, equal_nan=True)
        for line in ax.get_lines()
    )


def errors(bands, count):
    """Return standard errors of intervals (..., 3) of `count` networks, and how many to allow."""
    quantiles = special.stdtrit(count - 1, [0.975, 1 - CERTAIN / 2])
    return (bands[..., 2] - bands[..., 1]) / 2 / quantiles[0], float(quantiles[1])


def reach(estimate):
    """Return the error to allow for an estimate."""
    return special.stdtrit(estimate.n - 1, 1 - CERTAIN / 2) * estimate.stderr


def require_mean(estimate, samples):
    """Require that an estimate, or a mean with its ends, is the mean of samples of networks.

    A mean with its ends is a pair: a row of `banded`, and its count of networks.
    """
    if isinstance(estimate, tuple):
        estimate = mean_of_band(*estimate)
    samples = np.asarray(samples)
    spread = np.hypot(estimate.stderr, samples.std(ddof=1) / np.sqrt(len(samples)))
    allowed = special.stdtrit(estimate.n - 1, 1 - CERTAIN / 2) * spread
    assert abs(estimate.value - samples.mean()) <= allowed, (estimate, samples.mean())
    return spread


def slope_error(data, name):
    """Return the standard error of a slope from the ends of its normal interval."""
    return float(data[f"{name}_high"] - data[f"{name}_low"]) / 2 / special.ndtri(0.975)


def networks(start, width, layers, chains, seed):
    """Return shares of the spectra of plain networks with drawn weights: (chains, layers, n)."""
    generator = np.random.default_rng(seed)
    chain = Chain(width, len(start), "linear", norm="batch-uncentred")
    first = generator.standard_normal((chains, width, len(start))) @ start
    plain = numpy_network.grams(chain, layers - 1, chains, generator, first)
    return np.linalg.eigvalsh(plain) / len(start)


def gaps(shares):
    """Return the orthogonality gap of spectra, given by shares that sum to 1."""
    return np.sqrt(np.sum(np.square(shares - 1 / shares.shape[-1]), axis=-1))


def rank_bound(G):
    """Return the lower bound r of the rank."""
    return np.trace(G, axis1=-2, axis2=-1) ** 2 / np.square(G).sum(axis=(-2, -1))


def relu_map(c):
    """Return 2 E relu relu of two normals of correlation c, in closed form, and its slope."""
    slope = (np.pi - np.arccos(c)) / np.pi
    return np.sqrt(1 - c**2) / np.pi + slope * c, slope


def relu_rate(n):
    """Return the rate of relu in closed form, from the moments of two normals of correlation ρ."""
    J, slope = relu_map(-1 / (n - 1))
    light = ((n - 2) * (1 - J) + n * slope / (n - 1)) / ((n + 1) * (1 - J))
    return max(light, n / (n + 1) * slope / (1 - J))


def idx(array):
    """Return an array of bytes in IDX format."""
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def write_images(folder, kind, labels):
    """Write random images with labels in the files of a data set, "mnist" or "cifar"."""
    rng, labels = np.random.default_rng(0), np.asarray(labels, np.uint8)
    folder.mkdir()
    if kind == "cifar":
        rows = rng.integers(0, 256, (len(labels), 3073), dtype=np.uint8)
        rows[:, 0] = labels
        for number, part in enumerate(np.array_split(rows, 2), start=1):
            part.tofile(folder / f"data_batch_{number}.bin")
        return
    pixels = rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))


def documented(function):
    """Return the docstring of a function as one line, to compare the sizes in it with constants."""
    return " ".join(inspect.getdoc(function).split())
