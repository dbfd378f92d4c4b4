"""Laws of the logits of infinitely wide networks beside those of a reference width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, stdtrit

from bnmc._support.linalg import semidefinite_root
from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import Progress
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.limits.inputs import TwoClasses, standardized, two_classes
from bnmc.experiments.limits.networks import train_ensemble
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import LEVEL, interval
from bnmc.infinite_width import logit_divergence, nngp, ntk
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "kl"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Images, widths, reference width, networks, those of the reference, steps, rate, classes.

    IC-MF, with which the others are compared, has four times as many networks.
    """

    train: int
    test: int
    widths: tuple[int, int]
    reference: int
    networks: int
    references: int
    steps: tuple[int, ...]
    rate: float = 0.02
    classes: tuple[int, int] = (0, 1)


DEFAULT = Sizes(64, 96, (256, 512), 128, 12, 200, (0, 1, 3, 10, 30, 60, 100, 150, 200))
FULL = Sizes(
    1000, 1000, (4096, 8192), 128, 50, 200, (0, 1, 3, 10, 30, 100, 200, 400, 700, 1000)
)  # fmt: skip

#: The scalings whose limits are approximated by wide networks.
_PARTICLES = ("mean-field", "ic-mf", "sym-default", "default")

_SCALINGS = ("ntk", *_PARTICLES)

#: Largest number of groups of networks that are left out in turn.
_GROUPS = 48

#: The limit that is nearest to the reference according to the lectures.
_BEST = "ic-mf"


@with_parameters
def kl(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
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
    call = Call("limits-kl", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Logits(NamedTuple):
    """Test logits (networks, steps, images): of the reference, and by scaling of each width."""

    reference: Float64Array
    wide: dict[str, list[Float64Array]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    inputs = standardized(two_classes(call, sizes.train, sizes.test, sizes.classes))
    with one_blas_thread():
        found = _logits(sizes, call, inputs)
    compared = {
        name: [_Compared.of(wide, found.reference) for wide in found.wide[name]]
        for name in _SCALINGS
    }
    narrow, wide = sizes.widths
    columns = (
        "scaling", f"step 0, d = {wide}", f"step {sizes.steps[-1]}, d = {narrow}",
        f"step {sizes.steps[-1]}, d = {wide}",
    )  # fmt: skip
    rows = tuple(
        (
            "ntk, infinite width" if name == "ntk" else name,
            second.at(0), first.at(-1), second.at(-1),
        )
        for name, (first, second) in compared.items()
    )  # fmt: skip
    title = f"Divergence of logits from those of width {sizes.reference}"
    data = _data(sizes, call, inputs, compared, found)
    findings = _findings(sizes, compared)
    return Experiment(call.name, title, data, Table(columns, rows), findings, _draw)


def _logits(sizes: Sizes, call: Call, inputs: TwoClasses) -> _Logits:
    costs = [float(sizes.references * sizes.reference), 1.0]
    numbers = {name: sizes.networks * (4 if name == _BEST else 1) for name in _PARTICLES}
    costs += [float(number * width) for number in numbers.values() for width in sizes.widths]
    wide: dict[str, list[Float64Array]] = {}
    threads = call.processors()
    with call.parts(costs) as parts:
        reference = parts.run(
            _trained,
            inputs,
            "ntk",
            sizes.reference,
            sizes.references,
            sizes,
            call.generator,
            threads,
        )
        exact = parts.run(_kernel_limit, inputs, sizes, call.generator)
        wide["ntk"] = [exact, exact]
        for name, number in numbers.items():
            wide[name] = [
                parts.run(_trained, inputs, name, width, number, sizes, call.generator, threads)
                for width in sizes.widths
            ]
    return _Logits(reference, wide)


def _trained(
    inputs: TwoClasses,
    scaling: str,
    width: int,
    networks: int,
    sizes: Sizes,
    rng: np.random.Generator,
    threads: int,
    progress: Progress,
) -> Float64Array:
    """Return test logits of trained networks, (networks, steps, images)."""
    found = train_ensemble(
        scaling, inputs.train, inputs.labels, sizes.steps, networks=networks, rng=rng,
        threads=threads, progress=progress, width=width, reference_width=sizes.reference,
        learning_rate=sizes.rate, test=inputs.test,
    )  # fmt: skip
    return np.asarray(found.test_outputs)


def _kernel_limit(
    inputs: TwoClasses, sizes: Sizes, rng: np.random.Generator, progress: Progress
) -> Float64Array:
    """Return test logits of infinitely wide networks under the scaling "ntk".

    At the reference width output weights have variance 1/d*, and all weights the same learning
    rate.  So the kernel of the output weights has the factor d* beside that of the input weights.
    """
    both = np.hstack([inputs.train, inputs.test])
    scaled = math.sqrt(len(both)) * both  # the kernels divide by the number of features
    prior = np.asarray(nngp(scaled, 1, activation="leaky_relu"), dtype=np.float64)
    hidden = np.asarray(ntk(scaled, 1, activation="leaky_relu")) - prior
    n = inputs.train.shape[1]
    kernel = sizes.rate / n * (sizes.reference * prior + hidden)[:, :n]
    outputs = semidefinite_root(prior) @ rng.standard_normal((len(prior), sizes.references))
    found = []
    for step in range(sizes.steps[-1] + 1):
        progress(step, sizes.steps[-1] + 1)
        if step in sizes.steps:
            found.append(outputs[n:].T)
        outputs = outputs - kernel @ (expit(outputs[:n]) - inputs.labels[:, None])
    return np.stack(found, axis=1)


# --- divergences and their errors


class _Compared(NamedTuple):
    """Divergences of one limit at all steps, and with each group of networks left out.

    `values` are (steps,), `own` (groups, steps) without one group of the limit's networks, and
    `references` (groups, steps) without one of the reference's.
    """

    values: Float64Array
    own: Float64Array
    references: Float64Array

    @classmethod
    def of(cls, outputs: Float64Array, reference: Float64Array) -> _Compared:
        """Return the divergences of outputs (networks, steps, images)."""
        return cls(
            _divergences(outputs, reference),
            np.stack([_divergences(one, reference) for one in _without_groups(outputs)]),
            np.stack([_divergences(outputs, one) for one in _without_groups(reference)]),
        )

    def at(self, step: int) -> Estimate:
        """Return the divergence at one of the recorded steps."""
        return jackknifed(self.values[step], self.own[:, step], self.references[:, step])

    def extrapolated(self, narrow: _Compared) -> Estimate:
        """Return the last divergence at infinite width, if its error is of order 1/width.

        `narrow` has half of the width.
        """
        value, own, references = self._last()
        first, others, before = narrow._last()
        return jackknifed(2.0 * value - first, 2.0 * own, others, 2.0 * references - before)

    def minus(self, narrow: _Compared, wide: _Compared) -> Estimate:
        """Return the last divergence minus that of another limit, extrapolated from two widths.

        All three are compared with one reference.
        """
        value, own, references = self._last()
        less, its, shared = wide._last()
        first, others, before = narrow._last()
        return jackknifed(
            value - 2.0 * less + first, own, 2.0 * its, others,
            references - 2.0 * shared + before,
        )  # fmt: skip

    def _last(self) -> tuple[Any, Float64Array, Float64Array]:
        value, own, references = (part[..., -1] for part in self)
        return value, own, references


def _without_groups(sample: Float64Array) -> list[Float64Array]:
    """Return a sample without each of its groups, single networks or equal groups of them."""
    groups = max(k for k in range(2, _GROUPS + 1) if len(sample) % k == 0)
    return [np.delete(sample, own, axis=0) for own in np.split(np.arange(len(sample)), groups)]


def _divergences(outputs: Float64Array, reference: Float64Array) -> Float64Array:
    steps = range(outputs.shape[1])
    return np.array([logit_divergence(outputs[:, k], reference[:, k]) for k in steps])


def jackknifed(value: float | np.floating[Any], *left_out: Float64Array) -> Estimate:
    """Return a statistic of independent samples with the jackknife's error.

    Parameters
    ----------
    value : float
    *left_out : (groups,) ndarray
        For each sample, the values of the statistic without each of its equal groups of networks.

    Returns
    -------
    Estimate
        With Student's interval for the smallest number of groups.
    """
    variance = sum((len(one) - 1) * float(np.var(one)) for one in left_out)
    fewest, stderr, mean = min(map(len, left_out)), math.sqrt(variance), float(value)
    reach = float(stdtrit(fewest - 1, (1 + LEVEL) / 2)) * stderr
    return Estimate(mean, stderr, (mean - reach, mean + reach), fewest, "jackknife", LEVEL)


# --- results


def _findings(sizes: Sizes, compared: dict[str, list[_Compared]]) -> tuple[str, ...]:
    width = sizes.widths[1]
    ratio = sizes.reference / width
    start = 0.5 * (ratio - 1.0 - math.log(ratio))
    last = {name: [one.at(-1) for one in ones] for name, ones in compared.items()}
    order = sorted(_SCALINGS, key=lambda name: last[name][1].value)
    listed = ", ".join(f"{name} {interval(last[name][1])}" for name in order)
    findings = [
        f"Before training the divergence of mean field at width {width} is "
        f"{interval(compared['mean-field'][1].at(0))}; theory {start:.3g}, which grows like half "
        "the logarithm of the width.",
        f"After {sizes.steps[-1]} steps, at width {width} (ntk: infinite width): {listed}.",
    ]
    narrow, wide = compared[_BEST]
    findings.append(
        f"{_BEST}, extrapolated to infinite width by 2 D(d) - D(d/2): "
        f"{interval(wide.extrapolated(narrow))}."
    )
    for name in _SCALINGS:
        if name != _BEST:
            gap = compared[name][1].minus(narrow, wide)
            verdict = "no difference is seen"
            if gap.ci[0] > 0.0:
                verdict = f"{_BEST} is nearer to the reference, as the lectures state"
            elif gap.ci[1] < 0.0:
                verdict = f"{name} is nearer to the reference, against the lectures"
            findings.append(
                f"Divergence of {name} minus that extrapolated one: {interval(gap)}: {verdict}."
            )
    doubled = "; ".join(
        f"{name} {interval(last[name][0])} and {interval(last[name][1])}" for name in _PARTICLES
    )
    findings.append(
        f"After {sizes.steps[-1]} steps at widths {sizes.widths[0]} and {width}, which shows the "
        f"error of a finite width: {doubled}."
    )
    return tuple(findings)


def _data(
    sizes: Sizes,
    call: Call,
    inputs: TwoClasses,
    compared: dict[str, list[_Compared]],
    found: _Logits,
) -> xarray.Dataset:
    divergences = [
        [[one.at(k) for k in range(len(sizes.steps))] for one in ones] for ones in compared.values()
    ]
    signs = np.where(inputs.test_labels, 1.0, -1.0)
    wrong = [[np.mean(one * signs <= 0.0, axis=(0, 2)) for one in found.wide[n]] for n in _SCALINGS]
    return dataset(
        {
            **estimated(
                "divergence", ("scaling", "width", "step"), divergences,
                "mean over images of the divergence of logits, bias removed",
            ),
            "error": Variable(
                ("scaling", "width", "step"), wrong, "share of wrong signs on test images"
            ),
            "reference_error": Variable(
                ("step",), np.mean(found.reference * signs <= 0.0, axis=(0, 2)),
                "the same of the reference",
            ),
        },
        {
            "scaling": Variable(("scaling",), list(_SCALINGS), "scaling", ""),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
            "step": Variable(("step",), list(sizes.steps), "steps"),
        },
        call,
        {
            "images": inputs.describe(), "reference_width": sizes.reference,
            "networks": sizes.networks, "references": sizes.references,
            "learning_rate": sizes.rate, "activation": "leaky_relu",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2, width=5.6, height=4.4)[0]
    steps, wide = data["step"].values, int(data["width"].values[-1])
    for row, name in enumerate(data["scaling"].values):
        label = "ntk, infinite width" if name == "ntk" else f"{name}, $d = {wide}$"
        values = curve(data, "divergence")[row, -1]
        draw_band(left, steps, values, COLOURS[row], None, marker="o")
        right.plot(
            steps, data["error"].values[row, -1], "o-", color=COLOURS[row], markersize=3,
            label=label,
        )  # fmt: skip
    left.axhline(0.0, color="black", linewidth=0.8)
    right.plot(
        steps, data["reference_error"], "k--", label=f"width {data.attrs['reference_width']}"
    )
    left.set(xlabel="step", ylabel="divergence $D$ from the reference")
    left.set_xscale("symlog", linthresh=1.0)
    left.set_yscale("symlog", linthresh=0.1)
    left.set_title("Logits of test images", loc="left")
    right.set(xlabel="step", ylabel="share of wrong signs", ylim=(0, None))
    right.set_xscale("symlog", linthresh=1.0)
    right.set_title("Test error", loc="left")
    for ax in (left, right):
        ax.set_xlim(-0.1, 1.15 * steps[-1])
    right.legend(fontsize="small")
    figure.suptitle(f"{data.attrs['images']}:\n95 % intervals over networks")
