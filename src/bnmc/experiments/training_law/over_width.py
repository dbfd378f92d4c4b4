"""Steps of gradient descent against the width: change of the tangent kernel, and of each layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.experiments.training_law.first_step import FirstStep, first_step
from bnmc.experiments.training_law.networks import FEATURES, GAINS, inputs, stable_rate, trained
from bnmc.plot.axes import COLOURS, logarithmic

# --- the tangent kernel

#: Networks of the figure: parametrization, activation, and the learning rate over the stable one.
_CASES = {
    "NTK, tanh": ("ntk", "tanh", 0.18), "NTK, ReLU": ("ntk", "relu", 0.12),
    "NTK, GELU": ("ntk", "gelu", 0.18), "standard/n, tanh": ("standard/n", "tanh", 0.18),
    "μP, tanh": ("mup", "tanh", 0.18), "mean field, tanh": ("mean-field", "tanh", 0.18),
}  # fmt: skip

#: The part of the figure about the first step of one sample, and its learning rate over 1/E Θ.
_FIRST, _SMALL = "first step", 1e-5


class _KernelSizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, of which the first is the reference width
    hidden: hidden layers
    steps: steps of gradient descent
    first_chains: networks of the first step of one sample
    """

    widths: Integers = (100, 300, 1000, 3000)
    chains: Several = 24
    hidden: int = 3
    steps: int = 5
    first_chains: Several = 400


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
    the units changes its sign, and more units become inactive than active.

    The second picture has the first step as Hanin and Nica (arXiv 1909.05989) take it: ReLU, one
    sample, and the derivative in the learning rate η of a step on f²/2, which has no such changes
    of sign.  They prove that the mean change of Θ over its mean is of the order β e^{5β}, with β
    the number of hidden layers over the width.  The line is the exact mean of
    −(dΘ/dη)/(E Θ)², which `first_step.py` derives.

    Returns
    -------
    Experiment
        Variables by ``case`` and ``width``.
    """
    results = kit.Results(
        run, case=kit.Axis(_CASES, "parametrization and activation", ""), width=sizes.widths
    )
    reference = sizes.widths[0]
    first = {width: _first_step(width, reference, sizes.hidden) for width in sizes.widths}

    def changes(case: str, width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return the change of the kernel of each network, and shares of units that switch."""
        if case == _FIRST:
            mean = first[width].kernel
            networks = trained(
                width, "relu", sizes.hidden, sizes.first_chains, run, targets=[0.0], steps=1,
                learning_rate=_SMALL / mean, parametrization="ntk", reference_width=reference,
                observables="kernel", progress=progress,
            )  # fmt: skip
            kernel = networks["kernel"][:, :, 0, 0]
            return {"change": (kernel[:, 0] - kernel[:, 1]) / (_SMALL * mean)}
        parametrization, activation, share = _CASES[case]
        rate = share * stable_rate(activation, sizes.hidden, reference, run)
        networks = trained(
            width, activation, sizes.hidden, sizes.chains, run, steps=sizes.steps,
            learning_rate=rate, parametrization=parametrization, reference_width=reference,
            record=[0, sizes.steps], observables=("kernel", "sign_changes"), progress=progress,
        )  # fmt: skip
        switches = networks["sign_changes"][:, 1].mean(axis=1)
        return {"change": networks.kernel_change[:, 1], "starts": switches[:, 0],
                "stops": switches[:, 1]}  # fmt: skip

    points = [*results.points("case", "width"), *((_FIRST, width) for width in sizes.widths)]
    parts = run.parts(changes, points, [float(width) for _, width in points])
    measured = {(d,): Estimate.from_samples(parts.pop((_FIRST, d))["change"]) for d in sizes.widths}
    theory = {(width,): value.relative for width, value in first.items()}
    values = {point: Estimate.from_samples(part["change"]) for point, part in parts.items()}
    change = results.add("change", ("case", "width"), values, "relative change of the kernel")
    for name, text in (("starts", "active"), ("stops", "inactive")):
        shares = {point: float(part[name].mean()) for point, part in parts.items()}
        results.add(name, ("case", "width"), shares, f"share of units that become {text}")
    results.add("first_step", ("width",), measured, "relative change in a first step over η E Θ")
    results.add("first_step_theory", ("width",), theory, "its exact mean")
    slopes = {
        (case,): slope(sizes.widths, [values[case, width] for width in sizes.widths])
        for case in _CASES
    }
    fitted = results.add("slope", ("case",), slopes, "slope of its logarithm")
    listed = "; ".join(f"{case} {interval(estimate)}" for (case,), estimate in slopes.items())
    findings = [f"Slopes: {listed}."]
    ends = (reference, sizes.widths[-1])
    stops, starts = ([float(parts["NTK, ReLU", width][name].mean()) for width in ends]
                     for name in ("stops", "starts"))  # fmt: skip
    findings += [
        f"ReLU under NTK, width {ends[0]} and {ends[1]}: shares {stops[0]:.2g} and "
        f"{stops[1]:.2g} of units become inactive, {starts[0]:.2g} and {starts[1]:.2g} become "
        "active.",
        *(
            f"First step of one sample, width {width}: the mean kernel falls, in units of η E Θ, "
            f"by {interval(measured[width,])}; exact mean at width {width}: {theory[width,]:.4g}."
            for width in ends
        ),
    ]
    columns = {f"d = {d}": change.at(width=k).means() for k, d in enumerate(sizes.widths)}
    return results.experiment(
        f"Change of the tangent kernel after {sizes.steps} steps",
        kit.table_of({**columns, "slope": fitted}), findings, _draw_change,
        chains=sizes.chains, hidden=sizes.hidden, steps=sizes.steps,
        first_chains=sizes.first_chains,
    )  # fmt: skip


def _first_step(width: int, reference: int, hidden: int) -> FirstStep:
    """Return the exact means of the first step of one sample, of ReLU networks under NTK."""
    square, gain = float(np.square(inputs(1)).sum()), GAINS["relu"]
    factor = reference / width
    return first_step(
        width, hidden, [square / FEATURES, *hidden * [gain**2 / width]],
        [square, *hidden * [factor]],
    )  # fmt: skip


def _draw_change(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.6, height=4.6)[0]
    widths = data["width"].values
    for row, case in enumerate(data["case"].values):
        label = f"{case}: slope {pictures.signed(data['slope'][row], 2)}"
        values = pictures.curve(data, "change")[row]
        pictures.draw_band(left, widths, values, COLOURS[row % len(COLOURS)], label, marker="o")
    title = f"{data.attrs['steps']} steps, {data.attrs['chains']} networks"
    pictures.finish(left, title, y=r"$\|\Theta_t - \Theta_0\|\,/\,\|\Theta_0\|$", legend=True)
    right.plot(widths, data["first_step_theory"], "k--", label="exact mean")
    values = pictures.curve(data, "first_step")
    pictures.draw_band(right, widths, values, COLOURS[1], "NTK, ReLU: networks", marker="o")
    title = f"First step of one sample, {data.attrs['first_chains']} networks"
    y = r"$-E\,(d\Theta/d\eta)\,/\,(E\,\Theta)^2$"
    pictures.finish(right, title, y=y, legend=True)
    for ax in (left, right):
        pictures.label_widths(ax, widths)
        logarithmic(ax)
    figure.suptitle(f"{data.attrs['hidden']} hidden layers: means, 95 % intervals")


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
        rate = 0.18 * stable_rate("tanh", sizes.hidden, reference, run)
        is_muon = name == "Muon"
        networks = trained(
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
    figure.suptitle(pictures.about(data, "{hidden} hidden layers, after step {steps}"))
