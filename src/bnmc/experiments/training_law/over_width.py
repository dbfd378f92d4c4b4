"""Steps of gradient descent against the width: change of the tangent kernel, and of each layer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bnmc.chain.chain import Network
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.plot.axes import COLOURS, logarithmic
from bnmc.training.running import train

#: Features and samples of the inputs of both figures, whose targets are 1 and −1 by turns.
_FEATURES, _SAMPLES = 10, 4

#: Gains with which activations keep the size of a layer.
_GAINS = {"tanh": 1.0, "relu": math.sqrt(2.0), "gelu": math.sqrt(1.5)}


def _trained(
    width: int, activation: str, hidden: int, chains: int, run: Run, **settings: Any
) -> Any:
    """Return networks with hidden layers of a width and one output, trained on the squared loss."""
    gain = _GAINS[activation]
    widths = [_FEATURES, *hidden * [width]]
    network = Network.of(
        width=widths, batch=_SAMPLES, activation=activation, norm="none",
        gain=[1.0, *(hidden - 1) * [gain]],
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((_FEATURES, _SAMPLES))
    targets = 1.0 - 2.0 * (np.arange(_SAMPLES) % 2)
    return train(
        network, x, targets[:, None], loss="squared", readout_gain=gain, chains=chains,
        **{**run.options(False), **settings},
    )  # fmt: skip


def _stable_rate(activation: str, hidden: int, width: int, run: Run) -> float:
    """Return 2n/λ_max of the mean tangent kernel of networks of a width, before training."""
    networks = _trained(
        width, activation, hidden, 64, run, steps=0, learning_rate=1.0, observables="kernel"
    )
    return float(2 * _SAMPLES / np.linalg.eigvalsh(networks["kernel"][:, 0].mean(axis=0))[-1])


# --- the tangent kernel

#: Networks of the figure: parametrization, activation, and the learning rate over the stable one.
_CASES = {
    "NTK, tanh": ("ntk", "tanh", 0.18), "NTK, ReLU": ("ntk", "relu", 0.12),
    "NTK, GELU": ("ntk", "gelu", 0.18), "standard/n, tanh": ("standard/n", "tanh", 0.18),
    "μP, tanh": ("mup", "tanh", 0.18), "mean field, tanh": ("mean-field", "tanh", 0.18),
}  # fmt: skip


class _KernelSizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, of which the first is the reference width
    hidden: hidden layers
    steps: steps of gradient descent
    """

    widths: Integers = (100, 300, 1000, 3000)
    chains: Several = 24
    hidden: int = 3
    steps: int = 5


@kit.figure(
    "training-kernel-change", _KernelSizes(), widths=(100, 1000, 10_000, 100_000), chains=32
)
def kernel_change(run: Run, sizes: _KernelSizes) -> Experiment:
    r"""How the change of the tangent kernel depends on the width, by parametrization.

    Networks without norm, with 3 hidden layers and one output, take 5 steps of gradient descent
    on the squared loss of 4 samples.  The networks are `bnmc.train`'s: at widths to 100 000 (full
    size) their dynamics are exact in law and no matrix is drawn.  The learning rate at the first
    width is 0.18 (ReLU: 0.12) times 2n/λ_max, the stable rate of the linearized network.  The
    picture shows ‖Θ_t − Θ_0‖/‖Θ_0‖ against the width, with Θ the tangent kernel with learning rates
    (see `bnmc.train`).

    Expected: slope −1 under NTK and standard/n for smooth activations; slope 0 under μP and mean
    field, except that with two or more hidden layers the mean-field kernel itself vanishes.  The
    slope of ReLU is about −0.6: a step moves pre-activations by width^−½, so a share width^−½ of
    the units changes its sign, and more units stop than start to be active.

    Returns
    -------
    Experiment
        Variables by ``case`` and ``width``.
    """
    results = kit.Results(
        run, case=kit.Axis(_CASES, "parametrization and activation", ""), width=sizes.widths
    )
    reference = sizes.widths[0]

    def changes(case: str, width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return the change of the kernel of each network, and shares of units that switch."""
        parametrization, activation, share = _CASES[case]
        rate = share * _stable_rate(activation, sizes.hidden, reference, run)
        networks = _trained(
            width, activation, sizes.hidden, sizes.chains, run, steps=sizes.steps,
            learning_rate=rate, parametrization=parametrization, reference_width=reference,
            record=[0, sizes.steps], observables=("kernel", "sign_changes"), progress=progress,
        )  # fmt: skip
        switches = networks["sign_changes"][:, 1].mean(axis=1)
        return {"change": networks.kernel_change[:, 1], "starts": switches[:, 0],
                "stops": switches[:, 1]}  # fmt: skip

    points = results.points("case", "width")
    parts = run.parts(changes, points, [float(width) for _, width in points])
    values = {point: Estimate.from_samples(part["change"]) for point, part in parts.items()}
    change = results.add("change", ("case", "width"), values, "relative change of the kernel")
    for name, text in (("starts", "start"), ("stops", "stop")):
        shares = {point: float(part[name].mean()) for point, part in parts.items()}
        results.add(name, ("case", "width"), shares, f"share of units that {text} to be active")
    slopes = {
        (case,): slope(sizes.widths, [values[case, width] for width in sizes.widths])
        for case in _CASES
    }
    fitted = results.add("slope", ("case",), slopes, "slope of its logarithm")
    findings = [f"{case}: slope {interval(estimate)}." for (case,), estimate in slopes.items()]
    first, last = ("NTK, ReLU", reference), ("NTK, ReLU", sizes.widths[-1])
    stops, starts = ([float(parts[at][name].mean()) for at in (first, last)]
                     for name in ("stops", "starts"))  # fmt: skip
    findings.append(
        f"ReLU under NTK, width {reference} and {sizes.widths[-1]}: shares {stops[0]:.2g} and "
        f"{stops[1]:.2g} of units stop to be active, {starts[0]:.2g} and {starts[1]:.2g} start."
    )
    columns = {f"d = {d}": change.at(width=k).means() for k, d in enumerate(sizes.widths)}
    return results.experiment(
        f"Change of the tangent kernel after {sizes.steps} steps",
        kit.table_of({**columns, "slope": fitted}), findings, _draw_change,
        chains=sizes.chains, hidden=sizes.hidden, steps=sizes.steps,
    )  # fmt: skip


def _draw_change(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=6.4, height=4.6)[0, 0]
    widths = data["width"].values
    for row, case in enumerate(data["case"].values):
        label = f"{case}: slope {float(data['slope'][row]):.2f}"
        values = pictures.curve(data, "change")[row]
        pictures.draw_band(ax, widths, values, COLOURS[row % len(COLOURS)], label, marker="o")
    pictures.label_widths(ax, widths)
    logarithmic(ax)
    title = pictures.about(data, "{hidden} hidden layers, {steps} steps")
    pictures.finish(ax, title, y=r"$\|\Theta_t - \Theta_0\|\,/\,\|\Theta_0\|$", legend=True)


# --- each layer

_PARAMETRIZATIONS = ("standard", "standard/n", "ntk", "mean-field", "mup", "symmetric", "Muon")


class _CoordinateSizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, of which the first is the reference width
    hidden: hidden layers
    steps: steps of gradient descent
    """

    widths: Integers = (64, 256, 1024, 4096)
    chains: Several = 16
    hidden: int = 3
    steps: int = 1


@kit.figure("coordinate-check", _CoordinateSizes(), widths=(64, 256, 1024, 4096, 16_384, 65_536))
def coordinate_check(run: Run, sizes: _CoordinateSizes) -> Experiment:
    r"""How far each layer and the outputs move in steps of gradient descent, by parametrization.

    The check that users of μP make: the root mean square of the change of each layer must not
    depend on the width.  Networks with 3 hidden layers of tanh and one output take a step of
    gradient descent on the squared loss of 4 samples, under six parametrizations, and with Muon for
    hidden matrices and μP's rates for the others.  The learning rate is 0.18 times the stable rate
    of the first width.

    Expected slopes of (layer 1, 2, 3, outputs) in one step: standard −½, ½, ½, 1; standard/n
    −3/2, −½, −½, 0; NTK −½, −½, −½, 0; mean field −1, −½, −1, −1; μP and Muon 0, 0, 0, 0; symmetric
    0, 0, 0, ½.

    Returns
    -------
    Experiment
        Variables by ``parametrization``, ``place`` and ``width``.
    """
    places = [*(f"layer {layer + 1}" for layer in range(sizes.hidden)), "outputs"]
    results = kit.Results(
        run, parametrization=kit.Axis(_PARAMETRIZATIONS, "parametrization", ""),
        place=kit.Axis(places, "layer", ""), width=sizes.widths,
    )  # fmt: skip
    reference = sizes.widths[0]

    def movements(name: str, width: int, progress: Progress) -> Float64Array:
        """Return the movement of each layer and of the outputs, for each network."""
        rate = 0.18 * _stable_rate("tanh", sizes.hidden, reference, run)
        is_muon = name == "Muon"
        networks = _trained(
            width, "tanh", sizes.hidden, sizes.chains, run, steps=sizes.steps,
            learning_rate=rate, parametrization="mup" if is_muon else name,
            optimizer="muon" if is_muon else "sgd", reference_width=reference,
            record=[sizes.steps], observables="movement", progress=progress,
        )  # fmt: skip
        return np.asarray(networks["movement"][:, 0])

    points = results.points("parametrization", "width")
    parts = run.parts(movements, points, [float(width) for _, width in points])
    values = {
        (name, place, width): Estimate.from_samples(part[:, number])
        for (name, width), part in parts.items()
        for number, place in enumerate(places)
        if np.isfinite(part).all()
    }
    results.add(
        "movement", ("parametrization", "place", "width"), values, "root mean square change"
    )
    slopes = {
        (name, place): slope(
            [width for width in sizes.widths if (name, place, width) in values],
            [
                values[name, place, width]
                for width in sizes.widths
                if (name, place, width) in values
            ],
        )
        for name in _PARAMETRIZATIONS
        for place in places
    }
    fitted = results.add("slope", ("parametrization", "place"), slopes, "slope of its logarithm")
    columns = {place: fitted.at(place=number).means() for number, place in enumerate(places)}
    largest = {
        name: max(abs(slopes[name, place].value) for place in places) for name in _PARAMETRIZATIONS
    }
    findings = [
        f"{name}: the slope that differs most from 0 is {size:.2f}."
        for name, size in largest.items()
    ]
    return results.experiment(
        "Slopes of the movement against the width", kit.table_of(columns), findings,
        _draw_movements, chains=sizes.chains, hidden=sizes.hidden, steps=sizes.steps,
    )  # fmt: skip


def _draw_movements(data: Dataset, figure: Drawing) -> None:
    shown = data["place"].values[[0, -2, -1]]
    axes = pictures.axes_of(figure, len(shown), width=4.2, height=4.2)[0]
    widths = data["width"].values
    for ax, place in zip(axes, shown, strict=True):
        part = data.sel(place=place)
        for row, name in enumerate(data["parametrization"].values):
            values = pictures.curve(part, "movement")[row]
            colour = (*COLOURS, "black")[row]
            pictures.draw_band(ax, widths, values, colour, str(name), marker="o")
        pictures.label_widths(ax, widths)
        logarithmic(ax)
        pictures.finish(ax, f"{place}", y="root mean square change")
    pictures.legend_below(figure, axes[0])
    figure.suptitle(pictures.about(data, "{hidden} hidden layers, {steps} step(s)"))
