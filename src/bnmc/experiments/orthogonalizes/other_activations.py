"""Fig. 6: deviations of the Gram matrix from its mean, for other activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.orthogonalizes.common import Float64Array, stationary_mean_gap
from bnmc.experiments.parts import Call, Parts, Store, chosen
from bnmc.experiments.pictures import axes_of, label_widths, logarithmic
from bnmc.experiments.statistics import interval, slope
from bnmc.plot.axes import COLOURS, estimates
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = [
    "DEFAULT",
    "FULL",
    "PUBLISHED",
    "Sizes",
    "experiment",
    "fig_6",
    "sigmoid_of_half",
    "sin_of_half",
    "tanh_of_half",
]


class Sizes(NamedTuple):
    """Activations, widths, layers of the average and of the burn-in, and networks per width."""

    activations: tuple[Activation, ...]
    widths: tuple[int, ...]
    layers: int
    chains: int


_tanh, _sin, _sigmoid = (
    Activation.named(one).scalar("float64") for one in ("tanh", "sin", "sigmoid")
)


# Rows of the paper have length 1, and rows of this library mean square 1.  With 4 samples, a row x
# of this library is the row x/2 of the paper.
def tanh_of_half(x: Any) -> Any:
    """Return tanh(x/2)."""
    return _tanh(x / 2)


def sin_of_half(x: Any) -> Any:
    """Return sin(x/2)."""
    return _sin(x / 2)


def sigmoid_of_half(x: Any) -> Any:
    """Return sigmoid(x/2)."""
    return _sigmoid(x / 2)


#: The activations of the figure.  Normalization hides the scale of linear and relu networks.
PUBLISHED = (
    Activation.named("linear"),
    Activation.named("relu"),
    Activation(tanh_of_half, name="tanh(x/2)"),
    Activation(sin_of_half, name="sin(x/2)"),
    Activation(sigmoid_of_half, name="sigmoid(x/2)"),
)

DEFAULT = Sizes(PUBLISHED, (16, 32, 64, 128, 256), 100, 64)
FULL = Sizes(PUBLISHED, (16, 32, 64, 128, 256, 512, 1024), 1000, 64)

#: Batch size of the paper.
BATCH = 4


@with_parameters
def fig_6(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("orthogonalizes-6", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """By activation and width: L, the mean Gram matrix, and networks that lost no sample."""

    deviations: list[list[Estimate]]
    means: list[list[Float64Array]]
    alive: list[list[int]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    names = [one.name for one in sizes.activations]
    found = _measure(sizes, call)
    slopes = [slope(sizes.widths, one) for one in found.deviations]
    theory = [BATCH * stationary_mean_gap(d, BATCH) for d in sizes.widths]
    per = ("activation", "width")
    data = dataset(
        {
            **estimated("deviation", per, found.deviations, "mean distance of G from its mean"),
            **estimated("slope", ("activation",), slopes, "slope of log L in log d"),
            "linear_theory": Variable(
                ("width",), theory, "the same for linear networks, leading order"
            ),
            "mean_gram": Variable((*per, "sample_i", "sample_j"), found.means, "mean Gram matrix"),
            "alive": Variable(
                per, found.alive, "networks that lost no sample; L is their mean",
                "networks",
            ),
        },
        {
            "activation": Variable(("activation",), names, "activation", ""),
            "width": Variable(("width",), list(sizes.widths), "width"),
        },
        call,
        {"batch": BATCH, "chains": sizes.chains, "layers": sizes.layers, "norm": "batch-uncentred"},
    )  # fmt: skip
    table = Table(
        ("activation", "width", "L", "in theory", "networks"),
        tuple(
            (name, d, one, known if name == "linear" else None, one.n)
            for name, of_widths in zip(names, found.deviations, strict=True)
            for d, one, known in zip(sizes.widths, of_widths, theory, strict=True)
        ),
    )
    findings = tuple(
        f"{name}: L falls with a slope of {interval(fitted)} in the width; the conjecture is -1/2."
        for name, fitted in zip(names, slopes, strict=True)
    )
    title = f"Deviation of the Gram matrix from its mean against width, batch {BATCH}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Measured:
    found = _Measured([], [], [])
    with call.parts(2 * len(sizes.activations) * sizes.widths) as parts:
        for activation in sizes.activations:
            for column in found:
                column.append([])
            for d in sizes.widths:
                chain = Chain(d, BATCH, activation, norm="batch-uncentred")
                run = _stationary_run(chain, "gram", sizes, call, parts)
                mean = run.moments["gram"].mean[_without_lost_sample(run)].mean(axis=0)
                around_mean = Distance((mean + mean.T) / 2)
                run = _stationary_run(chain, around_mean, sizes, call, parts)
                alive = _without_lost_sample(run)
                found.deviations[-1].append(
                    Estimate.from_samples(run.moments["distance"].mean[alive])
                )
                found.means[-1].append(mean)
                found.alive[-1].append(int(alive.sum()))
    return found


def _stationary_run(
    chain: Chain, observable: Any, sizes: Sizes, call: Call, parts: Parts
) -> Trajectory:
    """Simulate, and average an observable over the layers after the burn-in, for each network."""
    return parts.run(
        simulate, chain, 2 * sizes.layers, burn_in=sizes.layers, chains=sizes.chains,
        observables=observable, reduce="layer", rng=call.generator, threads=call.threads,
    )  # fmt: skip


def _without_lost_sample(run: Trajectory) -> NDArray[np.bool_]:
    """Return for each network whether all samples are nonzero in the last layer.

    A sample that is zero in one layer is zero in all later layers, so the last layer suffices.
    """
    last = simulate(run.chain, 0, initial=run.final_state, observables="gram")["gram"][:, -1]
    alive: NDArray[np.bool_] = (np.einsum("cii->ci", last) > 0.0).all(axis=1)
    return alive


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=8.0, height=4.8)
    widths = data.width.values
    markers = "osv^D"
    for index, name in enumerate(data.activation.values):
        found = curve(data, "deviation")[index]
        colour = COLOURS[index % len(COLOURS)]
        label = f"{name}: slope {data.slope.values[index]:.3f}"
        estimates(ax, widths, *found.T, colour=colour, fmt=markers[index % 5], label=label)
        guide = found[-1, 0] * np.sqrt(widths[-1] / widths)
        ax.plot(widths, guide, color=colour, linewidth=0.8)
    ax.plot([], [], color="grey", linewidth=0.8, label="slope $-1/2$ through the widest")
    if "linear" in data.activation.values:
        ax.plot(
            widths, data.linear_theory, "--", color="black", linewidth=1, label="linear, theory"
        )
    logarithmic(ax)
    label_widths(ax, widths)
    ax.set(ylabel=r"$L = E\,\|G - E\,G\|_F$")
    figure.legend(fontsize="small", loc="outside right center")
    ax.set_title(
        f"The Gram matrix keeps to its mean, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
