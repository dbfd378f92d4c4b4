"""True and random labels: alignment with kernels, convergence, and the bound of Arora et al."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc._support.machine import one_blas_thread
from bnmc.bounds.limits import arora_error, du_residual, du_width
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.limits import ensembles
from bnmc.experiments.limits.ensembles import Classes, Count, two_classes, unit_length
from bnmc.experiments.sizes import Natural, Several
from bnmc.experiments.statistics import banded, interval, short_interval
from bnmc.infinite_width import alignment as aligned
from bnmc.infinite_width import complexity as complexity_of
from bnmc.infinite_width import descent, nngp, ntk
from bnmc.plot.axes import COLOURS

# --- alignment with the tangent kernel, and convergence of training


#: Probability of failure in the theorem of Du et al.
_FAILURE = 0.1

#: Share of |y|² that is left when the labels count as learnt.
_LEFT = 0.1

#: Leading eigenvectors of which the findings give the share.
_LEADING = 10


class _AlignmentSizes(NamedTuple):
    """Sizes of the figure.

    draws: draws of random labels
    chains: networks of the true labels, and of random ones
    """

    images: ensembles.Count = 200
    draws: Several = 20
    width: int = 512
    chains: Several = 5
    steps: tuple[Natural, ...] = (0, 1, 3, 10, 30, 100, 200)
    classes: ensembles.Classes = (0, 1)


@kit.figure(
    "limits-alignment", _AlignmentSizes(), trains=True, images=1000, draws=100, width=4096,
    chains=10, steps=(0, 1, 3, 10, 30, 100, 300, 1000),
)  # fmt: skip
def alignment(run: Run, sizes: _AlignmentSizes) -> Experiment:
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
    if sizes.chains > sizes.draws:
        raise ArgumentError("chains", sizes.chains, f"at most the {sizes.draws} draws")
    inputs = ensembles.standardized(ensembles.two_classes(run.data, sizes.images, 0, sizes.classes))
    n = inputs.train.shape[1]
    true = np.where(inputs.labels, 1.0, -1.0)
    random = np.where(run.generator.random((sizes.draws, n)) < 0.5, 1.0, -1.0)
    labels = {"true": np.tile(true, (sizes.chains, 1)), "random": random[: sizes.chains]}

    def residuals(kind: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return mean squares of networks, (networks, steps), and over those of infinite width."""
        outputs = ensembles.train_ensemble(
            "ntk", inputs.train, labels[kind], sizes.steps, chains=sizes.chains,
            rng=run.generator, threads=run.parallel.threads, progress=progress, width=sizes.width,
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
        "share of |y|², cumulative", chains=sizes.draws,
    )  # fmt: skip
    results.add(
        "residual", ("labels", "time"), _with_random(decays), "residual over |y|²",
        chains=sizes.draws,
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
        _findings_alignment(sizes, table, spectrum.eigenvalues), _draw_alignment,
        images=f"{inputs.name}, {n} images of classes {sizes.classes[0]} and {sizes.classes[1]}",
        width=sizes.width, chains=sizes.chains, draws=sizes.draws,
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


def _findings_alignment(
    sizes: _AlignmentSizes, table: Table, eigenvalues: Float64Array
) -> tuple[str, ...]:
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
        width = float(du_width(n, least, _FAILURE))
        bound = float(du_residual(time, n, least))
        findings.append(
            f"The theorem of Du et al. needs a width of C times {width:.2g} for this kernel "
            f"(probability of failure {_FAILURE}); at the time at which a tenth of the true labels "
            f"is left, its bound of the residual is {bound:.4g}."
        )
    return tuple(findings)


def _draw_alignment(data: Dataset, figure: Drawing) -> None:
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


# --- the bound of Arora et al. beside the test error


#: Probability of failure, and the constant of the second term, which the theorem does not name.
_DELTA, _CONSTANT = 0.05, 1.0

_NAMES = {
    "complexity": "leading term of the bound, √(2 yᵀH⁻¹y/n)",
    "bound": "bound with the unnamed constant 1",
    "loss": "mean loss on test images with labels of the same law",
    "error": "share of test images with true labels that are classified wrongly",
}

_Share: TypeAlias = Annotated[float, {"low": 0.0, "high": 1.0}]

_HEADS = ("leading term", "bound", "loss", "error, true labels")


class _ComplexitySizes(NamedTuple):
    """Sizes of the figure.

    train: largest number of images for training
    test: largest number of images for testing
    shares: shares of random labels
    splits: random splits of the images
    """

    train: Count = 200
    test: Count = 148
    shares: Annotated[tuple[_Share, ...], {"least": 2}] = (
        0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    )  # fmt: skip
    splits: Several = 20
    classes: Classes = (0, 1)


@kit.figure(
    "limits-complexity", _ComplexitySizes(), trains=True, train=1000, test=1000, splits=50,
    shares=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)  # fmt: skip
def complexity(run: Run, sizes: _ComplexitySizes) -> Experiment:
    r"""The bound of the test error by Arora et al., as training labels are randomized.

    A ReLU network with one hidden layer, whose hidden weights are trained, has at infinite width
    the kernel :math:`H_{ij} = x_i^T x_j (π - \arccos x_i^T x_j)/(2π)` for inputs of length 1.
    Trained to the end from outputs 0 it predicts :math:`f(x) = H(x, X) H^{-1} y`.  Arora et al.
    (arXiv 1901.08584, Theorem 5.1) bound its expected loss, for a loss in [0, 1] that is
    1-Lipschitz and 0 at the label, by

    .. math:: \sqrt{2 y^T H^{-1} y / n} + O\Big(\sqrt{\ln(n/(λ_n δ))/n}\Big)

    with probability 1 − δ.  The theorem is for all labels of modulus at most 1.

    A share of the labels :math:`\pm 1` of two classes is replaced by independent random signs.  The
    picture shows the leading term, the bound with the constant 1 (the theorem names none) and
    δ = .05, the loss :math:`\min(|f(x) - y|, 1)` on test images whose labels have the same law, and
    the share of wrong signs on test images with true labels.  Bands are 95 % intervals of the mean
    over random splits of one set of images into 200 for training and 148 for testing; splits
    overlap, so intervals do not contain the choice of the images.

    Expected: leading term, loss and error grow with the share of random labels.  A bound of 1 or
    more is vacuous.

    Returns
    -------
    Experiment
        Variables by ``share``.
    """
    inputs = unit_length(two_classes(run.data, sizes.train, sizes.test, sizes.classes))
    train = inputs.train.shape[1]
    labels = np.where(np.hstack([inputs.labels, inputs.test_labels]), 1.0, -1.0)

    def split(number: int, progress: Progress) -> dict[str, Float64Array]:
        """Return the numbers of one random split, each by share.

        The images whose labels are replaced at one share are replaced at larger ones, too.
        """
        order = run.generator.permutation(len(labels))
        rank = run.generator.random(len(labels))
        signs = np.where(run.generator.random(len(labels)) < 0.5, 1.0, -1.0)
        inner, outer = order[:train], order[train:]
        within, across = kernel[np.ix_(inner, inner)], kernel[np.ix_(outer, inner)]
        least = float(np.linalg.eigvalsh(within)[0])
        numbers: dict[str, list[float]] = {name: [] for name in _NAMES}
        for done, share in enumerate(sizes.shares):
            progress(done, len(sizes.shares))
            given = np.where(rank < share, signs, labels)
            leading = complexity_of(within, given[inner])
            outputs = across @ np.linalg.solve(within, given[inner])
            loss = np.minimum(np.abs(outputs - given[outer]), 1.0).mean()
            numbers["complexity"].append(leading)
            numbers["bound"].append(float(arora_error(leading, train, least, _DELTA, _CONSTANT)))
            numbers["loss"].append(float(loss))
            numbers["error"].append(float(np.mean(np.sign(outputs) != labels[outer])))
        return {name: np.array(values) for name, values in numbers.items()}

    with one_blas_thread():
        x = np.hstack([inputs.train, inputs.test])
        scaled = math.sqrt(len(x)) * x  # `ntk` divides by the number of features
        kernel = np.asarray(ntk(scaled, 1) - nngp(scaled, 1))  # without the output weights
        points = [(number,) for number in range(sizes.splits)]
        parts = run.parts(split, points, facts={"images": inputs.digest})
    results = kit.Results(run, share=kit.Axis(sizes.shares, "share of random labels"))
    samples = {name: np.stack(list(kit.entry(parts, name).values())) for name in _NAMES}
    columns = {
        name: results.add_means(name, ("share",), {(): samples[name]}, text)
        for name, text in _NAMES.items()
    }
    table = kit.table_of(
        dict(zip(_HEADS, columns.values(), strict=True)), ("share of random labels",)
    )
    return results.experiment(
        "Bound of Arora et al. and test error, as labels are randomized", table,
        _findings_complexity(table.rows, samples), _draw_complexity,
        images=inputs.describe(), splits=sizes.splits, delta=_DELTA, constant=_CONSTANT,
    )  # fmt: skip


def _findings_complexity(
    rows: tuple[tuple[Any, ...], ...], samples: dict[str, Float64Array]
) -> tuple[str, ...]:
    vacuous, whole = (
        [f"{row[0]:g}" for row in rows if row[column].ci[0] >= 1.0] for column in (1, 2)
    )
    true, random = ([short_interval(row[1]), short_interval(row[3]), _or_none(row[4])]
                    for row in (rows[0], rows[-1]))  # fmt: skip
    grows = [
        np.mean(np.diff(samples[name], axis=1) > 0.0) for name in ("complexity", "loss", "error")
    ]
    below = float(np.mean(samples["loss"] <= samples["complexity"]))
    return (
        f"With true labels the leading term is {true[0]}, the test loss {true[1]} and the test "
        f"error {true[2]}.",
        f"With labels that are random for a share of {rows[-1][0]:g} they are {random[0]}, "
        f"{random[1]} and {random[2]}.",
        f"The test loss is at most the leading term in {100.0 * below:.3g} % of "
        f"{samples['loss'].size} cases.",
        "The leading term alone is vacuous, with a 95 % interval above 1, at these shares of "
        f"random labels: {', '.join(vacuous) or 'none'}; with the second term and its constant 1: "
        f"{', '.join(whole) or 'none'}.",
        "From one share to the next one, in all splits, the leading term grows in "
        f"{100 * grows[0]:.3g} % of cases, the test loss in {100 * grows[1]:.3g} % and the error "
        f"on true labels in {100 * grows[2]:.3g} %.",
    )


def _or_none(error: Estimate) -> str:
    """Return a share of errors as text; 0 in all splits has no interval from their spread."""
    return short_interval(error) if any((error.value, *error.ci)) else "0 in all splits"


def _draw_complexity(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=6.6, height=4.6)[0, 0]
    labels = {
        "complexity": "leading term of the bound", "bound": "bound, constant 1",
        "loss": "test loss", "error": "test error, true labels",
    }  # fmt: skip
    for colour, (name, label) in zip(COLOURS, labels.items(), strict=False):
        pictures.draw_band(
            ax, data["share"].values, pictures.curve(data, name), colour, label, marker="o"
        )
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle=":", label="vacuous above")
    title, share = "Infinitely wide ReLU network, one hidden layer", "share of random labels"
    pictures.finish(ax, title, share, "loss, error, or bound", ylim=(0, None), legend=True)
    figure.suptitle("{images}:\nmean of {splits} splits, 95 % interval".format(**data.attrs))
