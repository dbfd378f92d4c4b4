"""One step of gradient descent flattens the exploding gradients of batch normalization."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Network
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval
from bnmc.plot.axes import COLOURS
from bnmc.training.running import train

_FEATURES, _SAMPLES, _CLASSES = 32, 16, 10

#: Parametrizations of the figure: names of `bnmc.train` by label.
_NAMES = {"μP": "mup", "standard": "standard"}

#: Gradients of which the logarithms are compared, and the text of their variables.
_TEXTS = {
    "before": "before the step",
    "scaled": "after the weights have grown as in the step, without its direction",
    "after": "after the step",
}


class _Sizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, of which the first is the reference width
    depths: numbers of hidden layers, of which the second is that of the picture over the width
    rate: learning rate
    """

    widths: Integers = (128, 512, 1024)
    depths: Integers = (10, 20, 40)
    chains: Several = 8
    rate: float = 0.01


@kit.figure(
    "training-one-step", _Sizes(), widths=(256, 1024, 4096, 16_384), depths=(10, 20, 30, 40, 60)
)
def one_step(run: Run, sizes: _Sizes) -> Experiment:
    r"""How one step of gradient descent flattens exploding gradients under batch normalization.

    In random networks with batch normalization gradients grow exponentially towards the input, and
    Yang et al. (arXiv 1902.08129) observe that a first step of gradient descent flattens them.
    Networks of ReLU and train-mode batch normalization take one step on the cross-entropy of 16
    samples in 10 classes, under "mup" and "standard" of `bnmc.train`, with the rate 0.01 at the
    first width.  The picture shows :math:`\ln \|g_2\|/\|g_L\|`, with :math:`g_l` the gradient of
    the hidden matrix that leads to layer l, for L hidden layers: 0 is flat.

    The step has two effects, which the figure takes apart:

    - Weights grow.  A batch norm hides the scale of W, so ⟨W, g⟩ = 0: a step with the rate η
      multiplies ‖W‖ by ρ = √(1 + η² ‖g‖²/‖W‖²), and with the matrix ρ W the gradient would be
      g/ρ.  The larger a gradient, the more it shrinks.
    - The step has low rank: at most as many directions as samples.  It changes what layers send
      forward and back; the norms divide by what has grown.  This effect is the rest of the change.

    Expected: the low rank decides in networks of 10 and 20 layers, where ρ is near 1.  In deeper
    ones weights grow enough that this effect is the larger one at small width.  Under μP, ‖g‖ does
    not depend on the width, and ρ² − 1 falls like 1/width: so one rate has one answer at every
    width as long as ρ is near 1.  Standard rates have another answer at each width.

    Returns
    -------
    Experiment
        Variables by ``parametrization``, ``depth`` and ``width``.
    """
    results = kit.Results(
        run, parametrization=kit.Axis(_NAMES, "parametrization", ""), depth=sizes.depths,
        width=sizes.widths,
    )  # fmt: skip
    reference = sizes.widths[0]

    def spreads(name: str, depth: int, width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return ln ‖g_2‖/‖g_L‖ of each network, by name."""
        network = Network.of(
            width=[_FEATURES, *depth * [width]], batch=_SAMPLES, activation="relu", norm="batch"
        )
        x = np.random.default_rng(0).standard_normal((_FEATURES, _SAMPLES))
        networks = train(
            network, x, np.arange(_SAMPLES) % _CLASSES, steps=1, learning_rate=sizes.rate,
            parametrization=_NAMES[name], reference_width=reference, chains=sizes.chains,
            observables="gradient_norm", **run.options(progress),
        )  # fmt: skip
        before, after = np.moveaxis(networks["gradient_norm"][..., 1:-1], 1, 0)
        # Hidden matrices have ‖W‖² = width, up to a relative error of 1/width, and the factor 1.
        growth = np.sqrt(1.0 + np.square(sizes.rate * before) / width)
        values = {"before": before, "scaled": before / growth, "after": after}
        return {key: np.log(norms[:, 0] / norms[:, -1]) for key, norms in values.items()}

    per = ("parametrization", "depth", "width")
    points = results.points(*per)
    parts = run.parts(spreads, points, [float(depth * width) for _, depth, width in points])
    values = {key: kit.each(kit.entry(parts, key), Estimate.from_samples) for key in _TEXTS}
    columns = {
        key: results.add(key, per, values[key], f"ln of first over last gradient norm {text}")
        for key, text in _TEXTS.items()
    }
    shares = {
        point: Estimate.from_samples(
            (part["before"] - part["scaled"]) / (part["before"] - part["after"])
        )
        for point, part in parts.items()
    }
    share = results.add("share", per, shares, "part of the change that is growth of the weights")
    narrow, wide = sizes.widths[0], sizes.widths[-1]
    shown, deep = sizes.depths[1], sizes.depths[-1]
    findings = [
        f"{name}, {shown} layers, width {width}, after the step: "
        f"{interval(values['after'][name, shown, width])}; before it: "
        f"{interval(values['before'][name, shown, width])}."
        for name in _NAMES
        for width in (narrow, wide)
    ]
    findings += [
        f"μP, {deep} layers, width {width}: growth of the weights alone makes "
        f"{interval(shares['μP', deep, width])} of the change."
        for width in (narrow, wide)
    ]
    table = kit.table_of({**columns, "share of growth": share})
    return results.experiment(
        "ln of the first over the last gradient norm, before and after one step", table, findings,
        _draw, chains=sizes.chains, rate=sizes.rate, shown=shown,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.2, height=4.4)[0]
    depths, widths, shown = data["depth"].values, data["width"].values, data.attrs["shown"]
    narrow = data.sel(parametrization="μP").isel(width=0)
    for colour, key, label in (
        ("black", "before", "before"), (COLOURS[0], "scaled", "growth of the weights alone"),
        (COLOURS[1], "after", "after the step"),
    ):  # fmt: skip
        pictures.draw_band(left, depths, pictures.curve(narrow, key), colour, label, marker="o")
    pictures.finish(left, f"Width {widths[0]}", "hidden layers", legend=True)
    at = data.sel(depth=shown)
    for colour, name, key, line in (
        ("black", "μP", "before", "-"), (COLOURS[0], "μP", "scaled", "--"),
        (COLOURS[1], "μP", "after", "-"), (COLOURS[2], "standard", "after", "-"),
    ):  # fmt: skip
        label = {"before": "before", "scaled": "growth alone, μP", "after": f"after, {name}"}[key]
        values = pictures.curve(at.sel(parametrization=name), key)
        pictures.draw_band(
            right, widths, values, colour, label, marker="o", linestyle=line,
            linewidth=3.0 if key == "before" else 1.4,
        )  # fmt: skip
    pictures.label_widths(right, widths)
    pictures.finish(right, f"{shown} hidden layers", legend=True)
    for ax in (left, right):
        ax.axhline(0.0, color="0.6", linewidth=0.8)
        ax.set_ylabel(r"$\ln\,\|g_2\|/\|g_L\|$")
    figure.suptitle(pictures.about(data, "One step of rate {rate:g}"))
