"""Powers of the width in one step of training, measured, beside the theory of scalings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.limits import ensembles
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.infinite_width import SCALINGS
from bnmc.plot.axes import COLOURS

_QUANTITIES = (
    "outputs", "kernel of output weights", "kernel of input weights", "change of outputs",
    "square of output weights", "change of output weights", "change of input weights",
    "change of kernel of output weights", "change of kernel of input weights",
)  # fmt: skip

#: The changes of kernels.
_KERNEL_CHANGES = _QUANTITIES[7:]


class Sizes(NamedTuple):
    """Sizes of the figure.

    reference: reference width
    networks: networks of each scaling and width
    """

    images: ensembles.Count = 24
    widths: Integers = (128, 512, 2048, 4096)
    reference: int = 1
    networks: Several = 60
    rate: float = 4.0
    classes: ensembles.Classes = (0, 1)


@kit.figure(
    "limits-exponents", Sizes(), trains=True, images=100, widths=(128, 512, 2048, 8192, 32_768),
    networks=200,
)  # fmt: skip
def exponents(run: Run, sizes: Sizes) -> Experiment:
    r"""Measured powers of the width at the start and in the first step, beside the theory.

    Networks with one hidden layer and leaky ReLU make one step of gradient descent on the logistic
    loss of 24 images of two classes, at widths 128 to 4096.  The slopes in logarithms of root mean
    squares over 60 networks are the measured powers of the outputs, of the two kernels, of their
    relative change, of the change of the outputs, of the relative change of the weights, and of the
    mean square of the output weights.  Output weights have standard deviation
    :math:`d^{q_σ}`, and learning rates are :math:`4 d^{\tilde q}` for weights of variance 1.  With
    smaller rates, random parts of first order hide the second order below at these widths.

    Expected, with output power :math:`q_σ` and powers :math:`\tilde q` of the learning rates
    (Golikov, arXiv 2006.06574): outputs :math:`q_σ + 1/2` (IC-MF: 0), kernels
    :math:`2 q_σ + \tilde q + 1`, change of outputs: that of the larger kernel, relative change of
    weights :math:`q_σ + \tilde q`, square of output weights :math:`2 q_σ`.

    For the change of kernels, the theory has the power of the weights, :math:`δ = q_σ + \tilde q`,
    which holds for each neuron's part.  In the sum over neurons, parts of first order have random
    signs: their relative sum has the power δ − 1/2.  The second order adds parts of one sign, with
    the power 2 δ.  So the relative change of a kernel has max(δ − 1/2, 2 δ): −1 instead of −1/2
    under NTK, and 0 as in the theory if δ = 0.  The table has both.  Which kernels evolve, δ >= 0,
    is the same.

    Returns
    -------
    Experiment
        Variables by ``scaling``, ``quantity`` and ``width``.
    """
    inputs = ensembles.standardized(ensembles.two_classes(run.data, sizes.images, 0, sizes.classes))

    def numbers(scaling: str, width: int, progress: Progress) -> Float64Array:
        """Return all quantities of each network, (networks, quantities)."""
        trained = ensembles.train_ensemble(
            scaling, inputs.train, inputs.labels, (0, 1), networks=sizes.networks,
            rng=run.generator, threads=run.processors(), progress=progress, width=width,
            reference_width=sizes.reference, learning_rate=sizes.rate,
        )  # fmt: skip
        start, end = trained.outputs.swapaxes(0, 1)
        before, after = trained.kernels.swapaxes(0, 1)
        squares = trained.weight_squares[:, 0]
        return np.column_stack(
            [
                _sizes(start), before, _sizes(end - start), squares[:, 0],
                np.sqrt(trained.weight_changes[:, 1] / squares), after / before - 1.0,
            ]
        )  # fmt: skip

    results = kit.Results(
        run, scaling=kit.Axis(SCALINGS, "scaling", ""),
        quantity=kit.Axis(_QUANTITIES, "quantity", ""), width=sizes.widths,
    )  # fmt: skip
    points = results.points("scaling", "width")
    costs = [float(width) for _, width in points]
    parts = run.parts(numbers, points, costs, {"images": inputs.digest})
    per = ("scaling", "quantity")
    values = {
        (scaling, quantity, width): rms(samples[:, j])
        for (scaling, width), samples in parts.items()
        for j, quantity in enumerate(_QUANTITIES)
    }
    results.add("size", (*per, "width"), values, "root mean square over networks")
    slopes = {
        case: slope(sizes.widths, [values[*case, width] for width in sizes.widths])
        for case in results.points(*per)
    }
    power = results.add("power", per, slopes, "measured power of the width")
    printed = results.add("printed", per, _theory(kernels=False), "power of the theory")
    summed = results.add("summed", per, _theory(kernels=True), "power of sums over neurons")
    table = kit.table_of(
        {"measured power": power, "theory": printed, "theory, sum over neurons": summed}
    )
    return results.experiment(
        "Powers of the width at the start and in the first step", table, _findings(table.rows),
        _draw, images=f"{inputs.name}, {inputs.train.shape[1]} images", networks=sizes.networks,
        reference_width=sizes.reference, learning_rate=sizes.rate, activation="leaky_relu",
    )  # fmt: skip


def _sizes(outputs: Float64Array) -> Float64Array:
    """Return root mean squares over samples."""
    return np.asarray(np.sqrt(np.square(outputs).mean(axis=-1)))


def _theory(kernels: bool) -> Float64Array:
    """Return the powers by scaling and quantity; `kernels`: those of sums over neurons."""
    powers = []
    for scaling in SCALINGS.values():
        limit, half = scaling.properties(), 0.5
        output, inputs = (float(scaling.q_sigma + rate) for rate in scaling.q_tilde)
        changes = [float(power) for power in limit.evolution]
        if kernels:
            changes = [max(power - half, 2.0 * power) for power in changes]
        powers.append(
            [
                float(limit.logits), *map(float, limit.kernels), float(max(limit.kernels)),
                2.0 * float(scaling.q_sigma), output, inputs, *changes,
            ]
        )  # fmt: skip
    return np.array(powers)


def _findings(rows: tuple[tuple[Any, ...], ...]) -> tuple[str, ...]:
    findings = []
    for name in SCALINGS:
        others = [row[1:] for row in rows if row[0] == name and row[1] not in _KERNEL_CHANGES]
        quantity, power, theory, _ = max(others, key=lambda row: abs(row[1].value - row[2]))
        findings.append(
            f"{name}: the powers of all quantities but the change of kernels are within "
            f"{abs(power.value - theory):.2g} of the theory; the largest difference is that of "
            f"{quantity}: {interval(power)}, theory {theory:g}."
        )
    for name in SCALINGS:
        changes = "; ".join(
            f"{quantity.removeprefix('change of ')} {interval(power)}, printed {theory:g}, sum "
            f"over neurons {summed:g}"
            for scaling, quantity, power, theory, summed in rows
            if scaling == name and quantity in _KERNEL_CHANGES
        )
        findings.append(f"{name}, relative change of kernels: {changes}.")
    return tuple(findings)


def _draw(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=9.0, height=5.4)[0, 0]
    names, quantities = data["scaling"].values, data["quantity"].values
    places = np.arange(len(quantities), dtype=np.float64)[::-1]
    for row, name in enumerate(names):
        at = places + 0.3 - 0.15 * row
        value, low, high = pictures.curve(data, "power")[row].T
        ax.errorbar(
            value, at, xerr=[value - low, high - value], fmt="o", markersize=4, capsize=2.5,
            color=COLOURS[row], label=str(name),
        )  # fmt: skip
        ax.plot(data["printed"].values[row], at, "|", color="black", markersize=10)
        ax.plot(data["summed"].values[row], at, "x", color="black", markersize=4)
    ax.plot([], [], "|", color="black", markersize=10, label="theory")
    ax.plot([], [], "x", color="black", markersize=4, label="theory, sum over neurons")
    ax.set_yticks(places, list(map(str, quantities)))
    pictures.finish(ax, "Measured powers beside the theory", "power of the width", "quantity")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle("{images}: {networks} networks, 95 % interval".format(**data.attrs))
