"""Training from Gaussian, orthogonal and rank-maximized weights, against the width."""

from __future__ import annotations

import math
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

_STARTS = ("Gaussian", "orthogonal", "maximized")
_FEATURES, _SAMPLES, _CLASSES = 12, 12, 3


class _StartSizes(NamedTuple):
    """Sizes of the figure.

    hidden: hidden layers
    steps: steps of gradient descent
    rate: learning rate
    """

    activations: tuple[str, ...] = ("tanh", "relu")
    widths: Integers = (64, 128, 256)
    chains: Several = 12
    hidden: int = 8
    steps: int = 20
    rate: float = 0.05


@kit.figure(
    "training-orthogonal-start", _StartSizes(), widths=(64, 256, 1024, 4096, 10_000), chains=24
)
def orthogonal_start(run: Run, sizes: _StartSizes) -> Experiment:
    r"""The loss after training from three starts: Gaussian, orthogonal, and rank-maximized.

    *Batch normalization orthogonalizes …* (arXiv 2106.03970, figures 3 and 4) trains networks
    without norm from weights that make the samples of a batch orthogonal in each layer.  Here the
    hidden matrices are Gaussian, uniform orthogonal, or orthogonal times what makes the batch
    orthogonal (``start="maximized"`` of `bnmc.train`), at any width.  The networks have 8 hidden
    layers, gain 1 (tanh) or √2 (ReLU), and take 20 steps of SGD on the cross-entropy of 12 samples
    in 3 classes, with the rates of standard/n.

    Expected: the rank-maximized start has the lowest loss at each width.  A part of this is scale:
    it keeps the root mean square 1 of each layer, where that of tanh falls with depth.  Orthogonal
    weights alone do not help: their loss is about that of Gaussian ones at large width.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``start`` and ``width``.
    """
    results = kit.Results(
        run, activation=sizes.activations, start=kit.Axis(_STARTS, "start", ""), width=sizes.widths
    )

    def losses(activation: str, start: str, width: int, progress: Progress) -> Float64Array:
        """Return the loss and the orthogonality gap of the last layer, before and after."""
        gain = math.sqrt(2.0) if activation == "relu" else 1.0
        law = "haar" if start == "orthogonal" else "gaussian"
        network = Network.of(
            width=[_FEATURES, *sizes.hidden * [width]], batch=_SAMPLES, activation=activation,
            norm="none", gain=[1.0, *(sizes.hidden - 1) * [gain]],
            weights=["gaussian", *(sizes.hidden - 1) * [law]],
        )  # fmt: skip
        x = np.random.default_rng(0).standard_normal((_FEATURES, _SAMPLES))
        networks = train(
            network, x, np.arange(_SAMPLES) % _CLASSES, steps=sizes.steps,
            learning_rate=sizes.rate, parametrization="standard/n",
            reference_width=sizes.widths[0], readout_gain=gain, chains=sizes.chains,
            start="maximized" if start == "maximized" else "random",
            record=[0, sizes.steps], layers=[sizes.hidden], **run.options(progress),
        )  # fmt: skip
        return np.stack([networks.loss, networks["orthogonality_gap"][..., 0]])

    per = ("activation", "start", "width")
    points = results.points(*per)
    parts = run.parts(losses, points, [float(width) for *_, width in points])
    ends = (("loss", 0, 1, "loss after training"), ("gap", 1, 0, "orthogonality gap at the start"))
    columns = {
        name: results.add(
            name, per,
            {point: Estimate.from_samples(part[row, :, time]) for point, part in parts.items()},
            text,
        )
        for name, row, time, text in ends
    }  # fmt: skip
    findings = []
    for activation in sizes.activations:
        for width in sizes.widths:
            values = {
                start: Estimate.from_samples(parts[activation, start, width][0, :, 1])
                for start in _STARTS
            }
            best = min(values, key=lambda start: values[start].value)
            findings.append(
                f"{activation}, width {width}: the lowest loss is that of the {best} start, "
                f"{interval(values[best])}; Gaussian {interval(values['Gaussian'])}."
            )
    return results.experiment(
        f"Loss after {sizes.steps} steps, by start", kit.table_of(columns), findings, _draw,
        chains=sizes.chains, hidden=sizes.hidden, steps=sizes.steps,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    axes = pictures.axes_of(figure, len(names), width=4.8, height=4.0)[0]
    for ax, name in zip(axes, names, strict=True):
        for row, start in enumerate(data["start"].values):
            values = pictures.curve(data.sel(activation=name, start=start), "loss")
            pictures.draw_band(
                ax, data["width"].values, values, COLOURS[row], str(start), marker="o"
            )
        pictures.label_widths(ax, data["width"].values)
        pictures.finish(ax, str(name), y="loss", legend=True)
    figure.suptitle(pictures.about(data, "{hidden} hidden layers, {steps} steps"))
