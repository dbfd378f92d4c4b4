"""Logits of trained networks beside those of a reference width, by `bnmc.train`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc._support.machine import one_blas_thread
from bnmc.chain.chain import Network
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.limits import ensembles
from bnmc.experiments.limits.divergences import Compared, require_groups
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval
from bnmc.infinite_width import SCALINGS
from bnmc.plot.axes import COLOURS
from bnmc.training.running import train

#: Scalings of the lectures, and μP, which is no point of their plane in deep networks.
_SCALINGS = ("ntk", "mean-field", "ic-mf", "sym-default", "default", "mup")

#: Networks whose outputs are replaced at the start are drawn: up to this width if they are deep.
_WIDEST = 1024

_ACTIVATION = "leaky_relu"


class _Sizes(NamedTuple):
    """Sizes of the figure.

    train: largest number of images for training
    test: largest number of images for testing
    hidden: numbers of hidden layers
    reference: width of the reference
    reference_chains: networks of the reference
    steps: steps of gradient descent
    rate: learning rate at the reference width
    """

    train: ensembles.Count = 8
    test: ensembles.Count = 32
    hidden: tuple[int, ...] = (1, 3)
    widths: Integers = (256, 1024, 4096)
    reference: int = 128
    chains: Several = 16
    reference_chains: Several = 96
    steps: int = 20
    rate: float = 0.02
    classes: ensembles.Classes = (0, 1)


@kit.figure(
    "training-limits", _Sizes(), trains=True, train=16, widths=(256, 1024, 4096, 16_384, 100_000),
    chains=48, reference_chains=480, steps=40,
)  # fmt: skip
def logit_divergences(run: Run, sizes: _Sizes) -> Experiment:
    r"""Divergence of trained logits from those of width 128, by scaling, at widths to 100 000.

    Golikov (arXiv 2006.06574, and lectures) asks which limit of infinite width is nearest to a
    network of width 128.  `bnmc.experiments.limits.kl` answers with wide networks of one hidden
    layer.  Here `bnmc.train` takes networks of one and three hidden layers through the same
    gradient descent at any width, with no matrix drawn where that is slower.  The picture shows

    .. math:: D = E_x\, KL\big(N(E f(x), Var f(x)) \,\|\, N(E f_*(x), Var f_*(x))\big)

    over test images x after 20 steps, without the small-sample bias, against the width.  The
    networks have leaky ReLU, and learn two classes with the logistic loss and the rate .02 at
    width 128, where all scalings are the same.

    `bnmc.train` has no logistic loss of one output.  For a positively homogeneous activation its
    cross-entropy of two outputs is the same descent: the difference of the outputs, with inputs
    divided by √2, moves as the logit does, with the same law of its start.

    Expected: D of NTK has a limit, and so has that of IC-MF with one hidden layer.  D of mean field
    grows like half the logarithm of the width, since its logits have no variance in the limit.
    Under default and sym-default the logits diverge, and D with them.  With three hidden layers
    mean field does not learn (see ``training-mean-field``), and IC-MF keeps its start; μP, which is
    mean field for one hidden layer, learns.

    "ic-mf" replaces the outputs at the start, which `bnmc.train` refuses: its networks are drawn by
    `bnmc.infinite_width.train_networks`, with several hidden layers up to width 1024.

    Returns
    -------
    Experiment
        Variables by ``scaling``, ``hidden`` and ``width``.
    """
    require_groups(chains=sizes.chains, reference_chains=sizes.reference_chains)
    images = ensembles.standardized(
        ensembles.two_classes(run.data, sizes.train, sizes.test, sizes.classes)
    )
    names = {1: "1 hidden layer"} | {h: f"{h} hidden layers" for h in sizes.hidden if h > 1}
    results = kit.Results(
        run, scaling=kit.Axis(_SCALINGS, "scaling", ""),
        hidden=kit.Axis(sizes.hidden, "hidden layers"), width=sizes.widths,
    )  # fmt: skip

    def logits(name: str, hidden: int, width: int, progress: Progress) -> Float64Array:
        """Return test logits (networks, 1, images) after training."""
        is_reference = name == "reference"
        return trained_logits(
            "ntk" if is_reference else name, images, sizes, run, progress, hidden=hidden,
            width=width, chains=sizes.reference_chains if is_reference else sizes.chains,
        )  # fmt: skip

    per = ("scaling", "hidden", "width")
    points = [
        *(("reference", hidden, sizes.reference) for hidden in sizes.hidden),
        *(point for point in results.points(*per) if _is_measured(*point)),
    ]
    with one_blas_thread():
        costs = [float(width * hidden) for _, hidden, width in points]
        parts = run.parts(logits, points, costs, {"images": images.digest})
    references = {hidden: parts.pop(("reference", hidden, sizes.reference))
                  for hidden in sizes.hidden}  # fmt: skip
    values = {
        point: Compared.of(outputs, references[point[1]]).at(0) for point, outputs in parts.items()
    }
    divergence = results.add("divergence", per, values, "divergence of logits, bias removed")
    signs = np.where(images.test_labels, 1.0, -1.0)
    wrong = {point: float(np.mean(part * signs <= 0.0)) for point, part in parts.items()}
    results.add("error", per, wrong, "share of wrong signs on test images")
    columns = {
        f"{names[hidden]}, d = {width}": divergence.at(hidden=row, width=column)
        for row, hidden in enumerate(sizes.hidden)
        for column, width in enumerate(sizes.widths)
        if width in (sizes.widths[0], sizes.widths[-1])
    }
    findings = []
    for hidden in sizes.hidden:
        widest = {
            name: max(width for width in sizes.widths if (name, hidden, width) in values)
            for name in _SCALINGS
            if (name, hidden, sizes.widths[0]) in values
        }
        order = sorted(widest, key=lambda name: values[name, hidden, widest[name]].value)
        listed = "; ".join(
            f"{name} {interval(values[name, hidden, widest[name]])}"
            + f" (width {widest[name]})" * (widest[name] < sizes.widths[-1])
            for name in order
        )
        findings.append(f"{names[hidden]}, width {sizes.widths[-1]}: {listed}.")
    return results.experiment(
        f"Divergence of logits from those of width {sizes.reference} after {sizes.steps} steps",
        kit.table_of(columns), findings, _draw, images=images.describe(),
        reference_width=sizes.reference, chains=sizes.chains, steps=sizes.steps,
        reference_chains=sizes.reference_chains, activation=_ACTIVATION,
    )  # fmt: skip


def _is_measured(name: str, hidden: int, width: int) -> bool:
    return name != "ic-mf" or hidden == 1 or width <= _WIDEST


def trained_logits(
    scaling: str,
    images: ensembles.TwoClasses,
    sizes: _Sizes,
    run: Run,
    progress: Progress,
    *,
    hidden: int,
    width: int,
    chains: int,
) -> Float64Array:
    """Return test logits of networks after `sizes.steps` steps, (networks, 1, images)."""
    if scaling in SCALINGS and SCALINGS[scaling].corrected:
        outputs = ensembles.train_ensemble(
            scaling, images.train, images.labels, (sizes.steps,), chains=chains, rng=run.generator,
            threads=run.parallel.threads, progress=progress, width=width, hidden_layers=hidden,
            activation=_ACTIVATION, reference_width=sizes.reference, learning_rate=sizes.rate,
            test=images.test,
        ).test_outputs  # fmt: skip
        return np.asarray(outputs)
    features, samples = images.train.shape
    # Weights of the inputs have variance 1.
    network = Network.of(
        width=[features, *hidden * [width]], batch=samples, activation=_ACTIVATION, norm="none",
        gain=[math.sqrt(features), *(hidden - 1) * [1.0]],
    )  # fmt: skip
    networks = train(
        network, images.train / math.sqrt(2.0), images.labels.astype(np.int64),
        test=images.test / math.sqrt(2.0), steps=sizes.steps, learning_rate=sizes.rate,
        parametrization=SCALINGS.get(scaling, scaling), reference_width=sizes.reference,
        chains=chains, record=[sizes.steps], observables=(), **run.options(progress),
    )  # fmt: skip
    outputs = networks.test_outputs
    assert outputs is not None
    return outputs[..., 1] - outputs[..., 0]


def _draw(data: Dataset, figure: Drawing) -> None:
    hidden, widths = data["hidden"].values, data["width"].values
    axes = pictures.axes_of(figure, len(hidden), width=5.0, height=4.4)[0]
    for ax, layers in zip(axes, hidden, strict=True):
        for row, name in enumerate(data["scaling"].values):
            values = pictures.curve(data.sel(scaling=name, hidden=layers), "divergence")
            line = "--" if name == "mup" else "-"  # as mean field with one hidden layer
            pictures.draw_band(
                ax, widths, values, COLOURS[row], str(name), marker="o", linestyle=line
            )
        ax.axhline(0.0, color="black", linewidth=0.8)
        pictures.label_widths(ax, widths)
        title = "1 hidden layer" if layers == 1 else f"{layers} hidden layers"
        pictures.finish(ax, title, y=f"divergence $D$ from width {data.attrs['reference_width']}")
        pictures.part_linear(ax, "y", 0.1)
        ax.set_ylim(-0.15, None)
    pictures.legend_below(figure, axes[0])
    figure.suptitle(f"{data.attrs['images']}:\nafter {data.attrs['steps']} steps, 95 % intervals")
