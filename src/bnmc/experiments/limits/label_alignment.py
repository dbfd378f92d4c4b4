"""True and random labels: alignment with the tangent kernel, and convergence of training."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc._support.machine import one_blas_thread
from bnmc.bounds.limits import du_residual, du_width
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.limits import ensembles
from bnmc.experiments.sizes import Natural, Several
from bnmc.experiments.statistics import banded, interval, short_interval
from bnmc.infinite_width import alignment as aligned
from bnmc.infinite_width import descent, ntk
from bnmc.plot.axes import COLOURS

#: Probability of failure in the theorem of Du et al.
_DELTA = 0.1

#: Share of |y|² that is left when the labels count as learnt.
_LEFT = 0.1

#: Leading eigenvectors of which the findings give the share.
_LEADING = 10


class Sizes(NamedTuple):
    """Sizes of the figure.

    draws: draws of random labels
    networks: networks of the true labels, and of random ones
    """

    images: ensembles.Count = 200
    draws: Several = 20
    width: int = 512
    networks: Several = 5
    steps: tuple[Natural, ...] = (0, 1, 3, 10, 30, 100, 200)
    classes: ensembles.Classes = (0, 1)


@kit.figure(
    "limits-alignment", Sizes(), trains=True, images=1000, draws=100, width=4096, networks=10,
    steps=(0, 1, 3, 10, 30, 100, 300, 1000),
)  # fmt: skip
def alignment(run: Run, sizes: Sizes) -> Experiment:
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
    ensembles.require_start(sizes.steps)
    if sizes.networks > sizes.draws:
        raise ArgumentError("networks", sizes.networks, f"at most the {sizes.draws} draws")
    inputs = ensembles.standardized(ensembles.two_classes(run.data, sizes.images, 0, sizes.classes))
    n = inputs.train.shape[1]
    true = np.where(inputs.labels, 1.0, -1.0)
    random = np.where(run.generator.random((sizes.draws, n)) < 0.5, 1.0, -1.0)
    labels = {"true": np.tile(true, (sizes.networks, 1)), "random": random[: sizes.networks]}

    def residuals(kind: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return mean squares of networks, (networks, steps), and over those of infinite width."""
        outputs = ensembles.train_ensemble(
            "ntk", inputs.train, labels[kind], sizes.steps, networks=sizes.networks,
            rng=run.generator, threads=run.processors(), progress=progress, width=sizes.width,
            reference_width=1, activation="relu", learning_rate=1.0, loss="squared",
        ).outputs  # fmt: skip
        squares = np.square(outputs - labels[kind][:, None]).mean(axis=-1)
        return squares, squares / _of_infinite_width(
            kernel, outputs[:, 0] - labels[kind], sizes.steps
        )

    with one_blas_thread():
        # `ntk` divides by the number of features.
        kernel = np.asarray(ntk(math.sqrt(len(inputs.train)) * inputs.train, 1), np.float64)
        spectrum = aligned(kernel, np.column_stack([true, *random]))
        squares = spectrum.squares.T  # (1 + draws, n)
        learnt = np.array([_time_left(spectrum.eigenvalues, row) for row in squares])
        times = np.geomspace(0.1, 10.0 * learnt.max(), 81)
        decays = np.array([2.0 * descent(kernel, y, times).loss for y in (true, *random)])
        parts = run.parts(residuals, [("true",), ("random",)], facts={"images": inputs.digest})
    results = kit.Results(
        run, labels=kit.Axis(labels, "labels", ""),
        rank=kit.Axis(np.arange(1, n + 1), "number of the eigenvector"),
        time=kit.Axis(times, "time, in steps of learning rate 1"),
        step=kit.Axis(sizes.steps, "steps of learning rate 1"),
    )  # fmt: skip
    results.add("eigenvalue", ("rank",), spectrum.eigenvalues, "eigenvalue of the kernel")
    share = results.add(
        "share", ("labels", "rank"), _with_random(np.cumsum(squares, axis=1) / n),
        "share of |y|², cumulative", networks=sizes.draws,
    )  # fmt: skip
    results.add(
        "residual", ("labels", "time"), _with_random(decays), "residual over |y|²",
        networks=sizes.draws,
    )  # fmt: skip
    least = float(spectrum.eigenvalues[-1])
    bound = du_residual(times, n, max(least, 1e-300))
    results.add("bound", ("time",), bound, "bound of Du et al.")
    per = ("labels", "step")
    results.add_means("trained", per, kit.entry(parts, 0), "residual of networks")
    ratio = results.add_means(
        "ratio", per, kit.entry(parts, 1), "the same over that of infinite width"
    )
    leading = min(_LEADING, n)
    shares, last = share.at(rank=leading - 1).cells(), ratio.at(step=-1).cells()
    rows = (
        ("true", shares["true",].value, float(learnt[0]), last["true",]),
        ("random", shares["random",], Estimate.from_samples(learnt[1:]), last["random",]),
    )
    table = Table((
        "labels", f"share of {leading} eigenvectors", f"time until {_LEFT:g} is left",
        f"networks over infinite width, step {sizes.steps[-1]}",
    ), rows)  # fmt: skip
    return results.experiment(
        "Alignment of labels with the tangent kernel, and convergence", table,
        _findings(sizes, table, spectrum.eigenvalues), _draw,
        images=f"{inputs.name}, {n} images of classes {sizes.classes[0]} and {sizes.classes[1]}",
        width=sizes.width, networks=sizes.networks, draws=sizes.draws,
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


def _of_infinite_width(
    kernel: Float64Array, residuals: Float64Array, steps: tuple[int, ...]
) -> Float64Array:
    """Return mean squares of residuals (networks, n) after steps, (networks, steps)."""
    values, vectors = np.linalg.eigh(kernel)
    squares = np.square(residuals @ vectors)
    factors = (1.0 - values / len(values)) ** (2 * np.array(steps)[:, None])
    return np.asarray(squares @ factors.T / len(values))


def _findings(sizes: Sizes, table: Table, eigenvalues: Float64Array) -> tuple[str, ...]:
    n, least, leading = len(eigenvalues), float(eigenvalues[-1]), min(_LEADING, len(eigenvalues))
    (_, share, time, ratio), (_, random_share, random_time, random_ratio) = table.rows
    findings = [
        f"The first {leading} of {n} eigenvectors have {share:.3g} of "
        f"the square of the true labels, and {short_interval(random_share)} of that of random "
        f"ones; independent labels have {leading / n:.3g} in expectation.",
        f"Kernel descent leaves a tenth of the true labels after {time:.3g} steps of learning rate "
        f"1, and of random ones after {interval(random_time)}: {random_time.value / time:.3g} "
        "times as many.",
        f"The largest eigenvalue is {eigenvalues[0]:.3g}, the least {least:.3g}.",
        f"Networks of width {sizes.width} have, after {sizes.steps[-1]} steps, "
        f"{short_interval(ratio)} (true labels) and {short_interval(random_ratio)} (random labels) "
        "times the mean square residual of infinite width from their own initial outputs.",
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


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.6, height=4.4)[0]
    ranks = data["rank"].values
    pictures.lines(left, data, "share", "rank", by="labels", text="{} labels")
    for colour, name in zip(COLOURS, data["labels"].values, strict=False):
        part = data.sel(labels=name)
        pictures.draw_band(
            right, data["time"].values, pictures.curve(part, "residual"), colour,
            f"{name} labels, infinite width",
        )  # fmt: skip
        label = f"{name}, width {data.attrs['width']}"
        trained = part.isel(step=slice(1, None))
        pictures.points(right, trained, "trained", "step", colour=colour, label=label)
    left.plot(ranks, data["eigenvalue"] / data["eigenvalue"][0], "k:", linewidth=1.0,
              label=r"$\lambda_k/\lambda_1$")  # fmt: skip
    title, numbers = "Alignment and spectrum", "number $k$ of eigenvectors"
    pictures.finish(left, title, numbers, "share of $|y|^2$", xscale="log", legend=True)
    right.plot(data["time"], data["bound"], "k:", linewidth=1.0, label="bound of Du et al.")
    pictures.finish(right, "Convergence", "time $t$", r"$\|\hat y_t - y\|^2/n$", xscale="log")
    right.set_ylim(0, 1.5 * max(1.0, float(data["trained"].max())))
    right.legend(fontsize="small", loc="upper right", ncols=2)
    figure.suptitle(f"{data.attrs['images']}: means with 95 % intervals")
