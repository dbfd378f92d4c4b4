"""Laws of the logits of infinitely wide networks beside those of a reference width."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from bnmc._support.linalg import semidefinite_root
from bnmc._support.machine import one_blas_thread
from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.limits import ensembles
from bnmc.experiments.limits.divergences import Compared, combined, require_groups
from bnmc.experiments.sizes import Natural, Several
from bnmc.experiments.statistics import interval
from bnmc.infinite_width import nngp, ntk
from bnmc.plot.axes import COLOURS

#: The scalings whose limits are approximated by wide networks.
_PARTICLES = ("mean-field", "ic-mf", "sym-default", "default")

_SCALINGS = ("ntk", *_PARTICLES)

#: The limit that is nearest to the reference according to the lectures.
_BEST = "ic-mf"


class Sizes(NamedTuple):
    """Sizes of the figure.

    train: largest number of images for training
    test: largest number of images for testing
    widths: two widths, the second of which is twice the first
    reference: width of the reference
    chains: networks of each scaling and width; IC-MF, with which the others are compared, has
        four times as many
    reference_chains: networks of the reference
    rate: learning rate at the reference width
    """

    train: ensembles.Count = 64
    test: ensembles.Count = 96
    widths: tuple[int, int] = (256, 512)
    reference: int = 128
    chains: Several = 12
    reference_chains: Several = 200
    steps: tuple[Natural, ...] = (0, 1, 3, 10, 30, 60, 100, 150, 200)
    rate: float = 0.02
    classes: ensembles.Classes = (0, 1)


@kit.figure(
    "limits-kl", Sizes(), trains=True, train=1000, test=1000, widths=(4096, 8192), chains=50,
    steps=(0, 1, 3, 10, 30, 100, 200, 400, 700, 1000),
)  # fmt: skip
def kl(run: Run, sizes: Sizes) -> Experiment:
    r"""Divergence of the logits of five limits from those of networks of width 128.

    Networks with one hidden layer and leaky ReLU learn two classes by gradient descent on the
    logistic loss, with learning rate .02 at the reference width d* = 128.  Golikov (arXiv
    2006.06574, and lectures) compares limits of infinite width with the reference by

    .. math:: D = E_x\, KL\big(N(E f(x), Var f(x)) \,\|\, N(E f_*(x), Var f_*(x))\big)

    over test images x, with means and variances over initial weights.  `logit_divergence` removes
    the small-sample bias, which is .27 for 10 networks and equal laws.  The picture shows D through
    training.  The NTK limit is exact: outputs with the covariance of the Gaussian process, trained
    by the kernel of infinite width.  The others are networks of width 512 under the scaling; the
    table has width 256, too.

    Expected: the lectures state that IC-MF approximates the reference better than the other limits.
    At step 0 the logits of NTK, IC-MF, default and sym-default have the reference's variance, and
    D = 0 up to the difference of a sum of 128 terms from a normal law.  Under mean field their
    variance is d*/d times it, so :math:`D = \frac12 (d_*/d - 1 + \ln(d/d_*))`, which grows
    without bound: the mean-field limit, whose logits are certain, has D = ∞.  So values for mean
    field belong to their width, and so do those of default and sym-default, whose logits diverge.

    Deviations from the papers: activation with slope .01 on the negative side (.1 there), digits
    instead of CIFAR-10 by default (``data=``), the whole training set in each step.  With
    ``full=True`` the processors work for about 4 hours on digits, and for about 400 on CIFAR-10
    (sum over processors).

    Returns
    -------
    Experiment
        Variables by ``scaling``, ``width`` and ``step``; those of NTK do not depend on the width.
    """
    ensembles.require_start(sizes.steps)
    narrow, wide = sizes.widths
    if wide != 2 * narrow:
        raise ArgumentError("widths", sizes.widths, "two widths, the second twice the first")
    require_groups(chains=sizes.chains, reference_chains=sizes.reference_chains)
    inputs = ensembles.standardized(
        ensembles.two_classes(run.data, sizes.train, sizes.test, sizes.classes)
    )
    counts = dict.fromkeys(_PARTICLES, sizes.chains) | {_BEST: 4 * sizes.chains}

    def logits(name: str, width: int, progress: Progress) -> Float64Array:
        """Return test logits (networks, steps, images), of "ntk" (images, networks, steps)."""
        if name == "ntk":
            return _kernel_limit(inputs, sizes, run.generator, progress)
        is_reference = name == "reference"
        trained = ensembles.train_ensemble(
            "ntk" if is_reference else name, inputs.train, inputs.labels, sizes.steps,
            chains=sizes.reference_chains if is_reference else counts[name], rng=run.generator,
            threads=run.parallel.threads, progress=progress, width=width,
            reference_width=sizes.reference, learning_rate=sizes.rate, test=inputs.test,
        )  # fmt: skip
        return np.asarray(trained.test_outputs)

    points = [(name, width) for name in _PARTICLES for width in sizes.widths]
    costs = [float(counts[name] * width) for name, width in points]
    with one_blas_thread():
        of_limits = run.parts(
            logits, [("reference", sizes.reference), ("ntk", wide), *points],
            [float(sizes.reference_chains * sizes.reference), 1.0, *costs],
            {"images": inputs.digest},
        )  # fmt: skip
    reference = of_limits.pop(("reference", sizes.reference))
    exact = of_limits["ntk", wide].transpose(1, 2, 0)
    of_limits |= {("ntk", narrow): exact, ("ntk", wide): exact}
    compared = {point: Compared.of(outputs, reference) for point, outputs in of_limits.items()}
    results = kit.Results(
        run, scaling=kit.Axis(_SCALINGS, "scaling", ""), width=sizes.widths,
        step=kit.Axis(sizes.steps, "steps"),
    )  # fmt: skip
    axes = ("scaling", "width", "step")
    divergence = results.add(
        "divergence", axes,
        {
            (*point, step): compared[point].at(k)
            for point in compared for k, step in enumerate(sizes.steps)
        },
        "mean over images of the divergence of logits, bias removed",
    )  # fmt: skip
    signs = np.where(inputs.test_labels, 1.0, -1.0)
    wrong = {
        point: np.mean(outputs * signs <= 0.0, axis=(0, 2)) for point, outputs in of_limits.items()
    }
    results.add("error", axes, wrong, "share of wrong signs on test images")
    results.add(
        "reference_error", ("step",), np.mean(reference * signs <= 0.0, axis=(0, 2)),
        "the same of the reference",
    )  # fmt: skip
    last = sizes.steps[-1]
    table = kit.table_of({
        f"step 0, d = {wide}": divergence.at(width=1, step=0),
        f"step {last}, d = {narrow}": divergence.at(width=0, step=-1),
        f"step {last}, d = {wide}": divergence.at(width=1, step=-1),
    })  # fmt: skip
    (_, *limits), *others = table.rows
    return results.experiment(
        f"Divergence of logits from those of width {sizes.reference}",
        Table(table.columns, (("ntk, infinite width", *limits), *others)),
        _findings(sizes, compared), _draw, images=inputs.describe(),
        reference_width=sizes.reference, chains=sizes.chains,
        reference_chains=sizes.reference_chains,
        learning_rate=sizes.rate, activation="leaky_relu",
    )  # fmt: skip


def _kernel_limit(
    inputs: ensembles.TwoClasses, sizes: Sizes, rng: np.random.Generator, progress: Progress
) -> Float64Array:
    """Return test logits of infinitely wide networks under "ntk", (images, networks, steps).

    At the reference width output weights have variance 1/d*, and all weights the same learning
    rate.  So the kernel of the output weights has the factor d* beside that of the input weights.
    """
    both = np.hstack([inputs.train, inputs.test])
    scaled = math.sqrt(len(both)) * both  # the kernels divide by the number of features
    prior = np.asarray(nngp(scaled, 1, activation="leaky_relu"), dtype=np.float64)
    hidden = np.asarray(ntk(scaled, 1, activation="leaky_relu")) - prior
    n = inputs.train.shape[1]
    kernel = sizes.rate / n * (sizes.reference * prior + hidden)[:, :n]
    outputs = semidefinite_root(prior) @ rng.standard_normal((len(prior), sizes.reference_chains))
    recorded = []
    for step in range(sizes.steps[-1] + 1):
        progress(step, sizes.steps[-1] + 1)
        if step in sizes.steps:
            recorded.append(outputs[n:])
        outputs = outputs - kernel @ (expit(outputs[:n]) - inputs.labels[:, None])
    return np.stack(recorded, axis=-1)


# --- findings and picture


def _findings(sizes: Sizes, compared: dict[tuple[str, int], Compared]) -> tuple[str, ...]:
    before, width = sizes.widths
    ratio = sizes.reference / width
    start = 0.5 * (ratio - 1.0 - math.log(ratio))
    last = {point: of_point.at(-1) for point, of_point in compared.items()}
    order = sorted(_SCALINGS, key=lambda name: last[name, width].value)
    listed = ", ".join(f"{name} {interval(last[name, width])}" for name in order)
    # At infinite width, if the error is of order 1/width.
    limit = ((2.0, compared[_BEST, width]), (-1.0, compared[_BEST, before]))
    findings = [
        f"Before training the divergence of mean field at width {width} is "
        f"{interval(compared['mean-field', width].at(0))}; theory {start:.3g}, which grows like "
        "half the logarithm of the width.",
        f"After {sizes.steps[-1]} steps, at width {width} (ntk: infinite width): {listed}.",
        f"{_BEST}, extrapolated to infinite width by 2 D(d) - D(d/2): "
        f"{interval(combined(*limit))}.",
    ]
    for name in _SCALINGS:
        if name != _BEST:
            less = ((-factor, term) for factor, term in limit)
            gap = combined((1.0, compared[name, width]), *less)
            verdict = "no difference is seen"
            if gap.ci[0] > 0.0:
                verdict = f"{_BEST} is nearer to the reference, as the lectures state"
            elif gap.ci[1] < 0.0:
                verdict = f"{name} is nearer to the reference, against the lectures"
            findings.append(
                f"Divergence of {name} minus that extrapolated one: {interval(gap)}: {verdict}."
            )
    doubled = "; ".join(
        f"{name} {interval(last[name, before])} and {interval(last[name, width])}"
        for name in _PARTICLES
    )
    return (
        *findings,
        f"After {sizes.steps[-1]} steps at widths {before} and {width}, which shows the "
        f"error of a finite width: {doubled}.",
    )


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.6, height=4.4)[0]
    steps, wide = data["step"].values, int(data["width"].values[-1])
    for row, name in enumerate(data["scaling"].values):
        label = "ntk, infinite width" if name == "ntk" else f"{name}, $d = {wide}$"
        values = pictures.curve(data, "divergence")[row, -1]
        pictures.draw_band(left, steps, values, COLOURS[row], None, marker="o")
        right.plot(
            steps, data["error"].values[row, -1], "o-", color=COLOURS[row], markersize=3,
            label=label,
        )  # fmt: skip
    left.axhline(0.0, color="black", linewidth=0.8)
    right.plot(
        steps, data["reference_error"], "k--", label=f"width {data.attrs['reference_width']}"
    )
    pictures.finish(left, "Logits of test images", "step", "divergence $D$ from the reference")
    wrong = "share of wrong signs"
    pictures.finish(right, "Test error", "step", wrong, ylim=(0, None), legend=True)
    for ax in (left, right):
        pictures.part_linear(ax, "x", 1.0)
        ax.set_xlim(-0.1, 1.15 * steps[-1])
    pictures.part_linear(left, "y", 0.1)
    figure.suptitle(f"{data.attrs['images']}:\n95 % intervals over networks")
