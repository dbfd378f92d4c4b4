"""Powers of the width in one step of training, measured, beside the theory of scalings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.limits.inputs import TwoClasses, standardized, two_classes
from bnmc.experiments.limits.networks import train_ensemble
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.infinite_width import SCALINGS
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "exponents"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Images, widths, reference width, networks, learning rate, and classes."""

    images: int
    widths: tuple[int, ...]
    reference: int
    networks: int
    rate: float = 4.0
    classes: tuple[int, int] = (0, 1)


DEFAULT = Sizes(24, (128, 512, 2048, 4096), 1, 60)
FULL = Sizes(100, (128, 512, 2048, 8192, 32_768), 1, 200)

_QUANTITIES = (
    "outputs", "kernel of output weights", "kernel of input weights", "change of outputs",
    "square of output weights", "change of output weights", "change of input weights",
    "change of kernel of output weights", "change of kernel of input weights",
)  # fmt: skip

#: The changes of kernels, and the printed power of each in `Properties.evolution`.
_KERNEL_CHANGES = {_QUANTITIES[7]: 0, _QUANTITIES[8]: 1}


@with_parameters
def exponents(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
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
    call = Call("limits-exponents", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Found(NamedTuple):
    """Root mean squares by scaling, quantity and width, and their slopes."""

    values: list[list[list[Estimate]]]
    slopes: list[list[Estimate]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    inputs = standardized(two_classes(call, sizes.images, 0, sizes.classes))
    found = _measure(sizes, call, inputs)
    printed, summed = _theory(kernels=False), _theory(kernels=True)
    rows = tuple(
        (name, quantity, found.slopes[i][j], printed[i, j], summed[i, j])
        for i, name in enumerate(SCALINGS)
        for j, quantity in enumerate(_QUANTITIES)
    )
    columns = ("scaling", "quantity", "measured power", "theory", "theory, sum over neurons")
    title = "Powers of the width at the start and in the first step"
    data = _data(sizes, call, inputs, found, printed, summed)
    findings = _findings(found, printed, summed)
    return Experiment(call.name, title, data, Table(columns, rows), findings, _draw)


def _measure(sizes: Sizes, call: Call, inputs: TwoClasses) -> _Found:
    values: list[list[list[Estimate]]] = []
    threads = call.processors()
    with call.parts([float(width) for _ in SCALINGS for width in sizes.widths]) as parts:
        for name in SCALINGS:
            by_width = [
                parts.run(_numbers, inputs, name, width, sizes, call.generator, threads)
                for width in sizes.widths
            ]
            values.append([[rms(one[:, j]) for one in by_width] for j in range(len(_QUANTITIES))])
    return _Found(values, [[slope(sizes.widths, cells) for cells in row] for row in values])


def _numbers(
    inputs: TwoClasses,
    scaling: str,
    width: int,
    sizes: Sizes,
    rng: np.random.Generator,
    threads: int,
    progress: Progress,
) -> Float64Array:
    """Return all quantities of each network, (networks, quantities)."""
    found = train_ensemble(
        scaling, inputs.train, inputs.labels, (0, 1), networks=sizes.networks, rng=rng,
        threads=threads, progress=progress, width=width, reference_width=sizes.reference,
        learning_rate=sizes.rate,
    )  # fmt: skip
    start, end = found.outputs.swapaxes(0, 1)
    before, after = found.kernels.swapaxes(0, 1)
    squares = found.weight_squares[:, 0]
    return np.column_stack(
        [
            _sizes(start), before, _sizes(end - start), squares[:, 0],
            np.sqrt(found.weight_changes[:, 1] / squares), after / before - 1.0,
        ]
    )  # fmt: skip


def _sizes(outputs: Float64Array) -> Float64Array:
    """Return root mean squares over samples."""
    return np.asarray(np.sqrt(np.square(outputs).mean(axis=-1)))


def _theory(kernels: bool) -> Float64Array:
    """Return the powers by scaling and quantity; `kernels`: those of sums over neurons."""
    found = []
    for scaling in SCALINGS.values():
        known, half = scaling.properties(), 0.5
        output, inputs = (float(scaling.q_sigma + rate) for rate in scaling.q_tilde)
        changes = [float(power) for power in known.evolution]
        if kernels:
            changes = [max(power - half, 2.0 * power) for power in changes]
        found.append(
            [
                float(known.logits), *map(float, known.kernels), float(max(known.kernels)),
                2.0 * float(scaling.q_sigma), output, inputs, *changes,
            ]
        )  # fmt: skip
    return np.array(found)


def _findings(found: _Found, printed: Float64Array, summed: Float64Array) -> tuple[str, ...]:
    values = np.array([[one.value for one in row] for row in found.slopes])
    findings = []
    first = len(_QUANTITIES) - len(_KERNEL_CHANGES)
    for i, name in enumerate(SCALINGS):
        gaps = np.abs(values[i, :first] - printed[i, :first])
        worst = int(gaps.argmax())
        findings.append(
            f"{name}: the powers of all quantities but the change of kernels are within "
            f"{gaps[worst]:.2g} of the theory; the largest difference is that of "
            f"{_QUANTITIES[worst]}: {interval(found.slopes[i][worst])}, theory "
            f"{printed[i, worst]:g}."
        )
    for i, name in enumerate(SCALINGS):
        parts = "; ".join(
            f"{_QUANTITIES[j][len('change of ') :]} {interval(found.slopes[i][j])}, printed "
            f"{printed[i, j]:g}, sum over neurons {summed[i, j]:g}"
            for j in range(first, len(_QUANTITIES))
        )
        findings.append(f"{name}, relative change of kernels: {parts}.")
    return tuple(findings)


def _data(
    sizes: Sizes,
    call: Call,
    inputs: TwoClasses,
    found: _Found,
    printed: Float64Array,
    summed: Float64Array,
) -> xarray.Dataset:
    over = ("scaling", "quantity")
    return dataset(
        {
            **estimated("size", (*over, "width"), found.values, "root mean square over networks"),
            **estimated("power", over, found.slopes, "measured power of the width"),
            "printed": Variable(over, printed, "power of the theory"),
            "summed": Variable(over, summed, "power of sums over neurons"),
        },
        {
            "scaling": Variable(("scaling",), list(SCALINGS), "scaling", ""),
            "quantity": Variable(("quantity",), list(_QUANTITIES), "quantity", ""),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
        },
        call,
        {
            "images": f"{inputs.name}, {inputs.train.shape[1]} images", "networks": sizes.networks,
            "reference_width": sizes.reference, "learning_rate": sizes.rate,
            "activation": "leaky_relu",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ax = axes_of(figure, 1, width=9.0, height=5.4)[0, 0]
    names, quantities = data["scaling"].values, data["quantity"].values
    places = np.arange(len(quantities), dtype=np.float64)[::-1]
    for row, name in enumerate(names):
        at = places + 0.3 - 0.15 * row
        value, low, high = curve(data, "power")[row].T
        ax.errorbar(
            value, at, xerr=[value - low, high - value], fmt="o", markersize=4, capsize=2.5,
            color=COLOURS[row], label=str(name),
        )  # fmt: skip
        ax.plot(data["printed"].values[row], at, "|", color="black", markersize=10)
        ax.plot(data["summed"].values[row], at, "x", color="black", markersize=4)
    ax.plot([], [], "|", color="black", markersize=10, label="theory")
    ax.plot([], [], "x", color="black", markersize=4, label="theory, sum over neurons")
    ax.set_yticks(places, [str(one) for one in quantities])
    ax.set(xlabel="power of the width", ylabel="quantity")
    ax.set_title("Measured powers beside the theory", loc="left")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle(f"{data.attrs['images']}: {data.attrs['networks']} networks, 95 % interval")
