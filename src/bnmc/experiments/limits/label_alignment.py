"""True and random labels: alignment with the tangent kernel, and convergence of training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import Progress
from bnmc.bounds.limits import du_residual, du_width
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.limits.inputs import TwoClasses, standardized, two_classes
from bnmc.experiments.limits.networks import train_ensemble
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval, mean_of_band, short_interval
from bnmc.infinite_width import alignment as aligned
from bnmc.infinite_width import descent, ntk
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "alignment", "experiment"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Images, draws of random labels, width, networks of each labels, steps, and classes."""

    images: int
    draws: int
    width: int
    networks: int
    steps: tuple[int, ...]
    classes: tuple[int, int] = (0, 1)


DEFAULT = Sizes(200, 20, 512, 5, (0, 1, 3, 10, 30, 100, 200))
FULL = Sizes(1000, 100, 4096, 10, (0, 1, 3, 10, 30, 100, 300, 1000))

#: Probability of failure in the theorem of Du et al.
_DELTA = 0.1

#: Share of |y|² that is left when the labels count as learnt.
_LEFT = 0.1

#: Leading eigenvectors of which the findings give the share.
_LEADING = 10


@with_parameters
def alignment(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    r"""True labels align with the leading eigenvectors of the tangent kernel; random ones do not.

    The kernel G is that of an infinitely wide ReLU network with one hidden layer, for 200 images of
    two classes with labels :math:`y_i = \pm 1`.  Gradient flow from outputs 0 with learning rate
    η has (Arora et al., arXiv 1901.08584, Theorem 4.1; Golikov's lectures)

    .. math:: \|\hat y_t - y\|^2 = \sum_i (y^T v_i)^2\, e^{-2 η λ_i t / n},

    with the eigenvalues λ and eigenvectors v of G.  The left picture shows the share of
    :math:`|y|^2` in the first k eigenvectors, and the eigenvalues.  The right one shows the
    relative residual against t, of the true labels and of 20 draws of independent random labels,
    with η = 1; points are networks of width 512 trained by gradient descent from random weights.

    Expected: random labels have the share k/n.  True labels have a larger one and are learnt in
    fewer steps.  A network of infinite width with outputs :math:`f_0` at the start has
    :math:`\hat y_k - y = (1 - ηG/n)^k (f_0 - y)` after k steps.  Networks of finite width differ
    from this, with their own :math:`f_0`, by a relative difference of order 1/√width.

    The dotted line is the bound of Du et al. (arXiv 1810.02054), :math:`e^{-ηλ_n t/n}`.  Its
    theorem is for widths above :math:`C n^6/(δ^3 λ_n^4)` and names no C; a finding has this width
    for C = 1.  The lectures print the bound without the factor :math:`\|\hat y_0 - y\|^2`, and
    with twice the rate.

    Returns
    -------
    Experiment
        Variables by ``labels`` and ``rank``, ``time`` or ``step``.

    Examples
    --------
    >>> from bnmc.experiments import limits
    >>> found = limits.alignment()  # doctest: +SKIP
    """
    call = Call("limits-alignment", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Found(NamedTuple):
    """Results of true labels (row 0) and random ones (row 1), with ends of intervals.

    `shares` are cumulative, (2, n, 3).  `residuals`, of kernel descent, are (2, times, 3).
    `trained` are those of networks, and `ratios` these over those of infinite width, (2, steps, 3).
    `learnt` are the times until a tenth is left.
    """

    eigenvalues: Float64Array
    shares: Float64Array
    times: Float64Array
    residuals: Float64Array
    trained: Float64Array
    ratios: Float64Array
    learnt: tuple[float, Estimate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    inputs = standardized(two_classes(call, sizes.images, 0, sizes.classes))
    with one_blas_thread():
        found = _measure(sizes, call, inputs)
    leading = min(_LEADING, inputs.train.shape[1]) - 1
    last = [mean_of_band(one[-1], sizes.networks) for one in found.ratios]
    rows = (
        ("true", float(found.shares[0, leading, 0]), found.learnt[0], last[0]),
        ("random", mean_of_band(found.shares[1, leading], sizes.draws), found.learnt[1], last[1]),
    )
    columns = (
        "labels", f"share of {leading + 1} eigenvectors", f"time until {_LEFT:g} is left",
        f"networks over infinite width, step {sizes.steps[-1]}",
    )  # fmt: skip
    title = "Alignment of labels with the tangent kernel, and convergence"
    data = _data(sizes, call, found, inputs)
    findings = _findings(sizes, found, leading)
    return Experiment(call.name, title, data, Table(columns, rows), findings, _draw)


def _measure(sizes: Sizes, call: Call, inputs: TwoClasses) -> _Found:
    x = inputs.train
    n = x.shape[1]
    true = np.where(inputs.labels, 1.0, -1.0)
    random = np.where(call.generator.random((sizes.draws, n)) < 0.5, 1.0, -1.0)
    # `ntk` divides by the number of features.
    kernel = np.asarray(ntk(math.sqrt(len(x)) * x, 1), np.float64)
    found = aligned(kernel, np.column_stack([true, *random]))
    squares = found.squares.T  # (1 + draws, n)
    shares = np.cumsum(squares, axis=1) / n
    learnt = np.array([_time_left(found.eigenvalues, one) for one in squares])
    times = np.geomspace(0.1, 10.0 * learnt.max(), 81)
    decays = np.array([2.0 * descent(kernel, y, times).loss for y in (true, *random)])
    trained, ratios = [], []
    with call.parts([1.0, 1.0]) as parts:
        for labels in (np.tile(true, (sizes.networks, 1)), random[: sizes.networks]):
            outputs = parts.run(_outputs, x, labels, sizes, call.generator, call.processors())
            residuals = np.square(outputs - labels[:, None]).mean(axis=-1)
            predicted = _of_infinite_width(kernel, outputs[:, 0] - labels, sizes.steps)
            trained.append(banded(residuals))
            ratios.append(banded(residuals / predicted))
    return _Found(
        found.eigenvalues, _with_random(shares), times, _with_random(decays), np.stack(trained),
        np.stack(ratios), (float(learnt[0]), Estimate.from_samples(learnt[1:])),
    )  # fmt: skip


def _with_random(values: Float64Array) -> Float64Array:
    """Return the first row, which is certain, and the mean of the others with its interval."""
    return np.stack([np.repeat(values[0, :, None], 3, axis=1), banded(values[1:])])


def _time_left(eigenvalues: Float64Array, squares: Float64Array) -> float:
    """Return the time at which a tenth of |y|² is left, by bisection."""
    from scipy.optimize import brentq

    rates, shares = 2.0 * eigenvalues / len(eigenvalues), squares / squares.sum()

    def left(log: float) -> float:
        return float(shares @ np.exp(-rates * math.exp(log))) - _LEFT

    high = 0.0
    while left(high) > 0.0 and high < 60.0:
        high += 1.0
    return math.exp(brentq(left, high - 60.0, high)) if left(high) <= 0.0 else math.inf


def _outputs(
    x: Float64Array,
    labels: Float64Array,
    sizes: Sizes,
    rng: np.random.Generator,
    threads: int,
    progress: Progress,
) -> Float64Array:
    """Return the outputs of one network for each row of labels, (networks, steps, n)."""
    found = train_ensemble(
        "ntk", x, labels, sizes.steps, networks=len(labels), rng=rng, threads=threads,
        progress=progress, width=sizes.width, reference_width=1, activation="relu",
        learning_rate=1.0, loss="squared",
    )  # fmt: skip
    return found.outputs


def _of_infinite_width(
    kernel: Float64Array, residuals: Float64Array, steps: tuple[int, ...]
) -> Float64Array:
    """Return mean squares of residuals (networks, n) after steps, (networks, steps)."""
    values, vectors = np.linalg.eigh(kernel)
    squares = np.square(residuals @ vectors)
    factors = (1.0 - values / len(values)) ** (2 * np.array(steps)[:, None])
    return np.asarray(squares @ factors.T / len(values))


def _findings(sizes: Sizes, found: _Found, leading: int) -> tuple[str, ...]:
    n, least = len(found.eigenvalues), float(found.eigenvalues[-1])
    time, other = found.learnt
    share = short_interval(found.shares[1, leading])
    findings = [
        f"The first {leading + 1} of {n} eigenvectors have {found.shares[0, leading, 0]:.3g} of "
        f"the square of the true labels, and {share} of that of random ones; independent labels "
        f"have {(leading + 1) / n:.3g} in expectation.",
        f"Kernel descent leaves a tenth of the true labels after {time:.3g} steps of learning rate "
        f"1, and of random ones after {interval(other)}: {other.value / time:.3g} times as many.",
        f"The largest eigenvalue is {found.eigenvalues[0]:.3g}, the least {least:.3g}.",
        f"Networks of width {sizes.width} have, after {sizes.steps[-1]} steps, "
        f"{short_interval(found.ratios[0, -1])} (true labels) and "
        f"{short_interval(found.ratios[1, -1])} (random labels) times the mean square residual of "
        "infinite width from their own initial outputs.",
    ]
    if least > 0.0:
        width = float(du_width(n, least, _DELTA))
        bound = float(du_residual(time, n, least))
        findings.append(
            f"The theorem of Du et al. needs a width of C times {width:.2g} for this kernel "
            f"(probability of failure {_DELTA}); at the time at which a tenth of the true labels "
            f"is left, its bound of the residual is {bound:.4g}."
        )
    return tuple(findings)


def _data(sizes: Sizes, call: Call, found: _Found, inputs: TwoClasses) -> xarray.Dataset:
    n, least = len(found.eigenvalues), max(float(found.eigenvalues[-1]), 1e-300)
    return dataset(
        {
            "eigenvalue": Variable(("rank",), found.eigenvalues, "eigenvalue of the kernel"),
            **with_ends("share", ("labels", "rank"), found.shares, "share of |y|², cumulative"),
            **with_ends("residual", ("labels", "time"), found.residuals, "residual over |y|²"),
            "bound": Variable(
                ("time",), du_residual(found.times, n, least), "bound of Du et al."
            ),
            **with_ends("trained", ("labels", "step"), found.trained, "residual of networks"),
            **with_ends(
                "ratio", ("labels", "step"), found.ratios, "the same over that of infinite width"
            ),
        },
        {
            "labels": Variable(("labels",), ["true", "random"], "labels", ""),
            "rank": Variable(("rank",), np.arange(1, n + 1), "number of the eigenvector"),
            "time": Variable(("time",), found.times, "time, in steps of learning rate 1"),
            "step": Variable(("step",), list(sizes.steps), "steps of learning rate 1"),
        },
        call,
        {
            "images": f"{inputs.name}, {n} images of classes {sizes.classes[0]} and "
            f"{sizes.classes[1]}",
            "width": sizes.width, "networks": sizes.networks, "draws": sizes.draws,
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2, width=5.6, height=4.4)[0]
    ranks, names = data["rank"].values, data["labels"].values
    for row, name in enumerate(names):
        draw_band(left, ranks, curve(data, "share")[row], COLOURS[row], f"{name} labels")
        draw_band(
            right, data["time"].values, curve(data, "residual")[row], COLOURS[row],
            f"{name} labels, infinite width",
        )  # fmt: skip
        value, low, high = curve(data, "trained")[row, 1:].T
        right.errorbar(
            data["step"].values[1:], value, [value - low, high - value], fmt="o", markersize=4,
            capsize=2.5, color=COLOURS[row], label=f"{name}, width {data.attrs['width']}",
        )  # fmt: skip
    left.plot(ranks, data["eigenvalue"] / data["eigenvalue"][0], "k:", linewidth=1.0,
              label=r"$\lambda_k/\lambda_1$")  # fmt: skip
    left.set(xscale="log", xlabel="number $k$ of eigenvectors", ylabel="share of $|y|^2$")
    left.set_title("Alignment and spectrum", loc="left")
    right.plot(data["time"], data["bound"], "k:", linewidth=1.0, label="bound of Du et al.")
    right.set(xscale="log", xlabel="time $t$", ylabel=r"$\|\hat y_t - y\|^2/n$")
    right.set_title("Convergence", loc="left")
    right.set_ylim(0, 1.5 * max(1.0, float(data["trained"].max())))
    left.legend(fontsize="small")
    right.legend(fontsize="small", loc="upper right", ncols=2)
    figure.suptitle(f"{data.attrs['images']}: means with 95 % intervals")
