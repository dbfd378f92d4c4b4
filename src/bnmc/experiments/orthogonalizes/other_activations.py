"""Fig. 6: deviations of the Gram matrix from its mean, for other activations."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.orthogonalizes.gaps import stationary_mean_gap
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.plot.axes import colours_of, logarithmic
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

_tanh, _sin, _sigmoid = (
    Activation.named(name).scalar("float64") for name in ("tanh", "sin", "sigmoid")
)


# Rows of the paper have length 1, and rows of this library mean square 1.  With 4 samples, a row x
# of this library is the row x/2 of the paper.
def _tanh_of_half(x: Any) -> Any:
    return _tanh(x / 2)


def _sin_of_half(x: Any) -> Any:
    return _sin(x / 2)


def _sigmoid_of_half(x: Any) -> Any:
    return _sigmoid(x / 2)


#: The activations of the figure.  Normalization hides the scale of linear and relu networks.
_OF_HALF = {
    "tanh(x/2)": Activation(_tanh_of_half, name="tanh(x/2)"),
    "sin(x/2)": Activation(_sin_of_half, name="sin(x/2)"),
    "sigmoid(x/2)": Activation(_sigmoid_of_half, name="sigmoid(x/2)"),
}

#: Batch size of the paper.
_BATCH = 4


class Sizes(NamedTuple):
    """Sizes of the figure.

    activations: activations, built-in or those of the paper
    layers: layers of the average, after as many of burn-in
    chains: networks per activation and width
    """

    activations: tuple[Annotated[str, {"allowed": (*BUILTIN, *_OF_HALF)}], ...] = (
        "linear", "relu", *_OF_HALF,
    )  # fmt: skip
    widths: Integers = (16, 32, 64, 128, 256)
    layers: int = 100
    chains: Several = 64


@kit.figure(
    "orthogonalizes-6", Sizes(), widths=(16, 32, 64, 128, 256, 512, 1024), layers=1000
)  # fmt: skip
def fig_6(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 6: with other activations the Gram matrix deviates from its mean to order 1/√d.

    The paper conjectures that ``L = E‖G − E G‖_F`` under the stationary law falls like 1/√d for any
    activation, also if the mean is not orthogonal.  It shows relu, tanh, sin and a sigmoid at batch
    size n = 4 and widths d from 16 to 256, with 5000 layers for the mean and 1000 more for L.  Here
    64 networks are averaged over 100 layers each, after a burn-in of 100 layers.  Linear networks
    are included, because their law is known: ``E‖G − I‖_F² ≃ n(n−1)(n+2)²/(4(n+1)d)``.  With `full`
    the average and the burn-in have 1000 layers, and widths go to 1024.

    Expected: all curves fall with a slope near −1/2.

    If relu maps all entries of a sample to zero, that sample is zero in all later layers, because
    this normalization does not centre.  That happens with probability 2^−d per layer: at width 16
    and 4 samples, in 6 % of the networks within a thousand layers.  Averages are over the networks
    that lost no sample (variable ``alive``).

    Errors of the figure: the authors' loop draws the curve of its last activation, sin, four times.
    It includes relu networks of width 16 that lost a sample.  Its sigmoid is tanh + 1.

    The authors' BN gives rows of length 1, and this library's rows of mean square 1, so the
    authors' activations act on x/√n.  Hence the activations here are ``tanh(x/2)``, ``sin(x/2)``
    and ``sigmoid(x/2)``, which are closer to linear than without the factor.  G is the Gram matrix
    of the activations, as everywhere in this library; the authors use that of their arguments.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_6()  # doctest: +SKIP
    >>> found.plot().savefig("fig_6.png")  # doctest: +SKIP
    """

    def averages(chain: Chain, observable: Any, progress: Progress) -> Float64Array:
        """Return means over layers after the burn-in, of the networks that lost no sample.

        A sample that is zero in one layer is zero in all later layers, so the last layer suffices.
        """
        stationary = simulate(
            chain, 2 * sizes.layers, burn_in=sizes.layers, chains=sizes.chains,
            observables=observable, reduce="layer", **run.options(progress),
        )  # fmt: skip
        last = simulate(chain, 0, initial=stationary.final_state, observables="gram")["gram"][:, -1]
        alive = (np.einsum("cii->ci", last) > 0.0).all(axis=1)
        (moments,) = stationary.moments.values()
        return moments.mean[alive]

    def deviations(name: str, width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return the mean Gram matrix, and the mean distance from it of each network."""
        chain = Chain(width, _BATCH, _OF_HALF.get(name, name), norm="batch-uncentred")
        grams = averages(chain, "gram", lambda done, total: progress(done, 2 * total))
        mean = grams.mean(axis=0)
        around_mean = Distance((mean + mean.T) / 2)
        return mean, averages(
            chain, around_mean, lambda done, total: progress(total + done, 2 * total)
        )

    samples = kit.Axis(range(_BATCH), "sample")
    results = kit.Results(
        run, activation=sizes.activations, width=sizes.widths, sample_i=samples, sample_j=samples
    )  # fmt: skip
    per, points = ("activation", "width"), results.points("activation", "width")
    parts = run.parts(deviations, points, [float(width) for _, width in points])
    L = kit.each(kit.entry(parts, 1), Estimate.from_samples)
    deviation = results.add("deviation", per, L, "mean distance of G from its mean")
    slopes = [slope(sizes.widths, of_widths) for of_widths in deviation.values]
    results.add(
        "slope", ("activation",), dict(zip(results.points("activation"), slopes, strict=True)),
        "slope of log L in log d",
    )  # fmt: skip
    theory = {width: _BATCH * stationary_mean_gap(width, _BATCH) for width in sizes.widths}
    results.add(
        "linear_theory", ("width",), list(theory.values()),
        "the same for linear networks, leading order",
    )  # fmt: skip
    results.add(
        "mean_gram", (*per, "sample_i", "sample_j"), kit.entry(parts, 0), "mean Gram matrix"
    )
    alive = results.add(
        "alive", per, kit.each(L, lambda estimate: estimate.n),
        "networks that lost no sample; L is their mean", "networks",
    )  # fmt: skip
    of_linear = {(name, width): theory[width] for name, width in points if name == "linear"}
    table = kit.table_of({
        "L": deviation, "in theory": results.column(per, of_linear), "networks": alive,
    })  # fmt: skip
    findings = (
        f"{name}: L falls with a slope of {interval(fitted)} in the width; the conjecture is -1/2."
        for name, fitted in zip(sizes.activations, slopes, strict=True)
    )
    return results.experiment(
        f"Deviation of the Gram matrix from its mean against width, batch {_BATCH}", table,
        findings, _draw, batch=_BATCH, chains=sizes.chains, layers=sizes.layers,
        norm="batch-uncentred",
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=8.0, height=4.8)
    widths = data.width.values
    markers = "osv^D"
    colours = colours_of(data.activation.values)
    for index, (name, colour) in enumerate(zip(data.activation.values, colours, strict=True)):
        part = data.sel(activation=name)
        pictures.points(
            ax, part, "deviation", "width", colour=colour, fmt=markers[index % 5],
            label=f"{name}: slope {pictures.signed(part.slope, 3)}",
        )  # fmt: skip
        guide = part.deviation.values[-1] * np.sqrt(widths[-1] / widths)
        ax.plot(widths, guide, color=colour, linewidth=0.8)
    ax.plot([], [], color="grey", linewidth=0.8, label="slope $-1/2$ through the widest")
    if "linear" in data.activation.values:
        ax.plot(
            widths, data.linear_theory, "--", color="black", linewidth=1, label="linear, theory"
        )
    logarithmic(ax)
    pictures.label_widths(ax, widths)
    ax.set(ylabel=r"$L = E\,\|G - E\,G\|_F$")
    figure.legend(fontsize="small", loc="outside right center")
    title = "The Gram matrix deviates from its mean, batch {batch}"
    ax.set_title(pictures.about(data, title, "\n"))
