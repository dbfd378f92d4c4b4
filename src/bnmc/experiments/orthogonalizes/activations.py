"""TODO-DOC bnmc.experiments.orthogonalizes.common.activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._common import chosen, curve, ends, label_widths, logarithmic, with_ends
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    interval,
    slope,
    with_parameters,
)
from bnmc.experiments.orthogonalizes.common import _SAMPLES
from bnmc.experiments.orthogonalizes.gap import mean_gap
from bnmc.plot.axes import COLOURS, estimates
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_6"]


class _Activations(NamedTuple):
    """Sizes of Fig. 6: `layers` settle before as many are averaged over."""

    activations: tuple[Activation, ...]
    widths: tuple[int, ...]
    layers: int
    chains: int


# Rows of length 1 are x/2 where those of mean square 1 are x.  `_kept` knows the names of these.
_tanh, _sin, _sigmoid = (
    Activation.named(one).scalar("float64") for one in ("tanh", "sin", "sigmoid")
)


def _tanh_half(x: Any) -> Any:
    return _tanh(x / 2)


def _sin_half(x: Any) -> Any:
    return _sin(x / 2)


def _sigmoid_half(x: Any) -> Any:
    return _sigmoid(x / 2)


_PUBLISHED = (
    # Of these two normalization undoes the scale.
    Activation.named("linear"),
    Activation.named("relu"),
    Activation(_tanh_half, name="tanh(x/2)"),
    Activation(_sin_half, name="sin(x/2)"),
    Activation(_sigmoid_half, name="sigmoid(x/2)"),
)


_FIG_6 = (
    _Activations(_PUBLISHED, (16, 32, 64, 128, 256), 100, 64),
    _Activations(_PUBLISHED, (16, 32, 64, 128, 256, 512, 1024), 1000, 64),
)


@with_parameters
def fig_6(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 6: with other activations the Gram matrix keeps to its mean, to order 1/√d.

    The paper conjectures that ``L = E‖G − E G‖_F`` under the invariant law falls like 1/√d for any
    activation, where the mean need no longer be orthogonal.  It has relu, tanh, sin and a sigmoid,
    batch 4, widths 16 to 256, 5000 layers for the mean and 1000 more for L.  Here 64 networks are
    averaged over 100 layers each, after as many, and of linear networks the law is known:
    ``E‖G − I‖_F² ≃ n(n−1)(n+2)²/(4(n+1)d)``.  With `full` 1000 layers, and widths up to 1024.

    All curves fall with a slope near −1/2.

    Without centring a sample that relu takes to zero in every neuron is zero for ever, at each
    layer with probability 2^−d: at width 16 a thousand layers of 4 samples bring that about in 6 %
    of the networks.  Averages are of networks that lost no sample (``alive`` of them).

    What the figure gets wrong: the authors' loop draws the curve of its last activation, sin, four
    times; it keeps relu networks of width 16 that lost a sample; and their sigmoid is tanh + 1.

    Their BN gives rows length 1, and this library's mean square 1, so that their activations see
    x/√n: here ``tanh(x/2)``, ``sin(x/2)`` and ``sigmoid(x/2)``, nearer to linear than without.  G
    is of the activations, as everywhere in this library; theirs is of what they are applied to.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_6()  # doctest: +SKIP
    >>> found.plot().savefig("fig_6.png")  # doctest: +SKIP
    """
    return _fig_6(chosen(_FIG_6, full), full, rng, progress, threads, store)


def _fig_6(
    sizes: _Activations,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n, names = _SAMPLES, [one.name for one in sizes.activations]
    deviations: list[list[Estimate]] = []
    means, alive = [], []
    with Parts(
        progress,
        "orthogonalizes-6",
        2 * len(sizes.activations) * sizes.widths,
        sources,
        full,
        store,
    ) as parts:
        for activation in sizes.activations:
            of_widths = []
            for d in sizes.widths:
                chain = Chain(d, n, activation, norm="batch-uncentred")

                def settled(observable: Any, chain: Chain = chain) -> Trajectory:
                    return parts.run(
                        simulate, chain, 2 * sizes.layers, burn_in=sizes.layers,
                        chains=sizes.chains,
                        observables=observable, reduce="layer", rng=sources.generator,
                        threads=threads,
                    )  # fmt: skip

                run = settled("gram")
                mean = run.moments["gram"].mean[_alive(run)].mean(axis=0)
                run = settled(Distance((mean + mean.T) / 2))
                kept = _alive(run)
                of_widths.append(Estimate.from_samples(run.moments["distance"].mean[kept]))
                means.append(mean)
                alive.append(int(kept.sum()))
            deviations.append(of_widths)
    slopes = [slope(sizes.widths, one) for one in deviations]
    theory = [n * mean_gap(d, n) for d in sizes.widths]
    shape = (len(sizes.activations), len(sizes.widths), n, n)
    data = dataset(
        {
            **with_ends(
                "deviation",
                ("activation", "width"), [ends(one) for one in deviations],
                "mean distance of G from its mean",
            ),
            **with_ends("slope", ("activation",), ends(slopes), "slope of log L in log d"),
            "linear_theory": Variable(
                ("width",), theory, "the same for linear networks, leading order"
            ),
            "mean_gram": Variable(
                ("activation", "width", "sample_i", "sample_j"), np.reshape(means, shape),
                "mean Gram matrix",
            ),
            "alive": Variable(
                ("activation", "width"), np.reshape(alive, shape[:2]),
                "networks that lost no sample, of which L is the mean", "networks",
            ),
        },
        {
            "activation": Variable(("activation",), names, "activation", ""),
            "width": Variable(("width",), list(sizes.widths), "width"),
        },
        sources,
        full,
        {"batch": n, "chains": sizes.chains, "layers": sizes.layers, "norm": "batch-uncentred"},
    )  # fmt: skip
    table = Table(
        ("activation", "width", "L", "in theory", "networks"),
        tuple(
            (name, d, one, known if name == "linear" else None, one.n)
            for name, found in zip(names, deviations, strict=True)
            for d, one, known in zip(sizes.widths, found, theory, strict=True)
        ),
    )
    findings = tuple(
        f"{name}: L falls with a slope of {interval(fitted)} in the width; conjectured is -1/2."
        for name, fitted in zip(names, slopes, strict=True)
    )
    title = f"Deviation of the Gram matrix from its mean against width, batch {n}"
    return Experiment("orthogonalizes-6", title, data, table, findings, _draw_6)


def _alive(run: Trajectory) -> NDArray[np.bool_]:
    """Which networks lost no sample: one that is zero in a layer is zero in all that follow."""
    last = simulate(run.chain, 0, initial=run.final_state, observables="gram")["gram"][:, -1]
    alive: NDArray[np.bool_] = (np.einsum("cii->ci", last) > 0.0).all(axis=1)
    return alive


def _draw_6(data: xarray.Dataset, figure: Figure) -> None:
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
