"""The mean-field limit of several hidden layers: whether its outputs move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.experiments.training_law.networks import SAMPLES, stable_rate, trained
from bnmc.plot.axes import COLOURS, logarithmic

#: Activations and numbers of hidden layers.  The sigmoid is not 0 at 0.
_NETWORKS = {
    "tanh, 1 hidden layer": ("tanh", 1), "tanh, 2 hidden layers": ("tanh", 2),
    "tanh, 3 hidden layers": ("tanh", 3), "tanh, 4 hidden layers": ("tanh", 4),
    "sigmoid, 3 hidden layers": ("sigmoid", 3),
}  # fmt: skip


class _Sizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, of which the first is the reference width
    steps: steps of gradient descent
    """

    widths: Integers = (64, 256, 1024, 4096)
    chains: Several = 16
    steps: int = 10


@kit.figure("training-mean-field", _Sizes(), widths=(64, 256, 1024, 4096, 16_384, 65_536, 262_144))
def mean_field_depth(run: Run, sizes: _Sizes) -> Experiment:
    r"""Whether the mean-field limit of networks with several hidden layers learns.

    Golikov (arXiv 2006.06574, and lectures) argues: if φ(0) = 0 and initial weights have mean 0,
    the mean-field limit of three or more hidden layers vanishes.  Networks with 1 to 4 hidden
    layers under "mean-field" (see `bnmc.train`) take 10 steps of gradient descent on the squared
    loss of 4 samples, all with the target 1.  The learning rate is 0.18 times the stable rate at
    the first width.  The picture shows the root mean square of the outputs
    after these steps; slopes are those between the last two widths.

    Expected: with tanh the outputs do not depend on the width for one and two hidden layers, and
    fall like 1/width for three and 1/width² for four.  The reason: hidden weights of size 1/width
    between layers of size width^−½ give products of size 1/width, forward and backward, so the
    steps of the middle matrices vanish.  With the sigmoid, whose value at 0 is ½, the outputs of
    three hidden layers do not vanish.

    Returns
    -------
    Experiment
        Variables by ``network`` and ``width``.
    """
    results = kit.Results(run, network=_NETWORKS, width=sizes.widths)
    reference = sizes.widths[0]

    def outputs(name: str, width: int, progress: Progress) -> Float64Array:
        """Return the root mean square of the outputs of each network after training."""
        activation, hidden = _NETWORKS[name]
        rate = 0.18 * stable_rate(activation, hidden, reference, run)
        networks = trained(
            width, activation, hidden, sizes.chains, run, targets=SAMPLES * [1.0],
            steps=sizes.steps, learning_rate=rate, parametrization="mean-field",
            reference_width=reference, record=[sizes.steps], progress=progress,
        )  # fmt: skip
        return np.asarray(np.sqrt(np.square(networks.outputs[:, 0, :, 0]).mean(axis=1)))

    points = results.points("network", "width")
    costs = [float(width * _NETWORKS[name][1]) for name, width in points]
    values = kit.each(run.parts(outputs, points, costs), Estimate.from_samples)
    column = results.add("outputs", ("network", "width"), values, "root mean square of the outputs")
    ends = sizes.widths[-2:]
    slopes = {(name,): slope(ends, [values[name, width] for width in ends]) for name in _NETWORKS}
    text = "slope of its logarithm between the last two widths"
    fitted = results.add("slope", ("network",), slopes, text)
    last = ends[-1]
    findings = [
        f"{name}: after {sizes.steps} steps the outputs are {interval(values[name, last])} at "
        f"width {last}, slope {interval(slopes[name,])}."
        for name in _NETWORKS
    ]
    columns = {f"d = {d}": column.at(width=k).means() for k, d in enumerate(sizes.widths)}
    return results.experiment(
        f"Outputs in the mean-field scaling after {sizes.steps} steps towards 1",
        kit.table_of({**columns, "slope": fitted}), findings, _draw,
        chains=sizes.chains, steps=sizes.steps,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=6.4, height=4.6)[0, 0]
    for row, name in enumerate(data["network"].values):
        label = f"{name}: slope {pictures.signed(round(float(data['slope'][row]), 2) + 0.0, 2)}"
        values = pictures.curve(data, "outputs")[row]
        line = "s--" if "sigmoid" in str(name) else "o-"
        pictures.draw_band(
            ax, data["width"].values, values, COLOURS[row], label, marker=line[0],
            linestyle=line[1:],
        )  # fmt: skip
    pictures.label_widths(ax, data["width"].values)
    logarithmic(ax)
    title = pictures.about(data, "Mean field, {steps} steps")
    pictures.finish(ax, title, y="root mean square of the outputs", legend=True)
