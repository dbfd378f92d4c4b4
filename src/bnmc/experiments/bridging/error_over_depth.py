"""TODO-DOC bnmc.experiments.bridging.common.error_over_depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    estimated,
    interval,
    rms,
    sized,
    split,
    with_parameters,
)
from bnmc.experiments.bridging.common import DEFAULT, FULL, FloatArray, stationary_linear
from bnmc.mean_field import MeanField
from bnmc.random_matrix import vanilla_deviation
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_1a"]


@with_parameters
def fig_1a(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 1a: the error of the mean field over depth, with and without batch normalization.

    Linear networks of width 1000 with 5 samples, as in the paper, whose bands are those of 10
    simulations; here there are 200 networks with normalization and five times as many without,
    whose error has heavy tails, over 1000 layers (``full``: 1000 and 5000, over 3000).  Both start
    from orthogonal samples: :math:`G_0 = I` is the fixed point without normalization.

    What should be seen: with normalization the error is the same at every depth, at the root mean
    square of `stationary_linear`; without, it grows as the exact
    :math:`E\|G_l - I\|_F^2 = n(n+2)/3 (1+2/d)^l - n(n-1)/3 (1-1/d)^l - n`.

    Eq. (6), "error ≈ exp(depth/width)", has the exponent of that formula, but neither its scale nor
    its start, as √depth.  The bound exp(3nl/2d) before it is of the operator norm.  In depth it is
    far above the Frobenius norm drawn here, but at l = d/(3n) by no more than 19 % of its mean;
    from n = 8 on it is below there (`bnmc.bounds.bridging.equation_6`).  In great depth the mean
    over any ensemble falls below the exact value: ever fewer networks carry it.  The text calls G*
    the identity; with centring it is (n I − 11ᵀ)/(n−1), which is used here.  The authors' notebook
    has another figure: relu with normalization, from rows that are nearly equal, and a linear
    network without, from Gaussian samples, both of 70 layers.

    Returns
    -------
    Experiment
        Variables by ``norm`` ("batch", "none") and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.fig_1a()  # doctest: +SKIP
    >>> dict(found.data.sizes)  # doctest: +SKIP
    {'norm': 2, 'layer': 201}
    """
    sizes, sources = sized("1a", full, DEFAULT, FULL), Sources(rng)
    width, n = 1000, 5
    samples = sources.generator.standard_normal((width, n))
    orthogonal = np.linalg.qr(samples)[0] * np.sqrt(width)
    chains = {"batch": Chain.bn_mlp(width, n, "linear"), "none": Chain.vanilla(width, n)}
    stars = {"batch": MeanField(chains["batch"]).fixed_point().gram, "none": np.eye(n)}
    counts = {"batch": sizes.networks, "none": sizes.vanilla}
    every = max(1, sizes.depth // sizes.points)
    errors = {}
    with Parts(
        progress, "bridging-1a", [3 * counts["batch"], counts["none"]], sources, full, store
    ) as parts:
        for norm, chain in chains.items():
            run = parts.run(
                simulate, chain, sizes.depth, chains=counts[norm], initial=orthogonal, burn_in=1,
                every=every, rng=sources.generator, observables=Distance(stars[norm]),
                threads=threads,
            )  # fmt: skip
            errors[norm] = run["distance"]
    layers = run.layers
    exact = np.sqrt(vanilla_deviation(width, n, layers))
    growth = np.sqrt(n * (n + 2) / 3) * np.exp(layers / width)
    plateau = np.sqrt(stationary_linear(width, n))
    squares = {norm: [rms(column) for column in values.T] for norm, values in errors.items()}
    bands = {norm: np.quantile(values, (0.05, 0.95), axis=0) for norm, values in errors.items()}
    late = np.square(errors["batch"][:, layers >= sizes.depth // 2])
    deep = rms(np.sqrt(late.mean(axis=1)))
    both = ("norm", "layer")
    unit = "Frobenius norm"

    def stacked(name: str) -> list[FloatArray]:
        return [split(values)[name] for values in squares.values()]

    data = dataset(
        {
            "mean": Variable(both, [v.mean(axis=0) for v in errors.values()], "mean error", unit),
            "band_low": Variable(both, [b[0] for b in bands.values()], "5 % of networks", unit),
            "band_high": Variable(both, [b[1] for b in bands.values()], "95 % of networks", unit),
            "rms": Variable(both, stacked("value"), "root mean square error", unit),
            "rms_low": Variable(both, stacked("low"), "lower end of its interval", unit),
            "rms_high": Variable(both, stacked("high"), "upper end of its interval", unit),
            "exact": Variable(
                both, [np.full(len(layers), plateau), exact],
                "exact r.m.s.; with batch norm that of deep layers, to leading order in 1/width",
                unit,
            ),
            **estimated("level", (), deep, "r.m.s. error of deep layers with batch norm", unit),
            "equation_6": Variable(("layer",), growth, "eq. (6), in scale with the exact", unit),
            "bound": Variable(
                ("layer",), bounds.equation_6(depth=layers, width=width, batch=n),
                "exp(3nl/2d), printed as a bound of the mean operator norm", "operator norm",
            ),
        },
        {
            "norm": Variable(("norm",), list(chains), "normalization", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources, full,
        {
            "width": width, "batch": n, "activation": "linear", "networks": list(counts.values()),
            "initial": "orthogonal samples",
        },
    )  # fmt: skip
    shown = [_nearest(layers, layer) for layer in (1, 10, 100, sizes.depth)]
    table = Table(
        (
            "layer", "batch norm, mean", "no norm, mean", "no norm, r.m.s.",
            "no norm, exact r.m.s.", "exp(layer/width)",
        ),
        tuple(
            (
                int(layers[k]), Estimate.from_samples(errors["batch"][:, k]),
                Estimate.from_samples(errors["none"][:, k]), squares["none"][k], float(exact[k]),
                float(np.exp(layers[k] / width)),
            )
            for k in dict.fromkeys(shown)
        ),
    )  # fmt: skip
    early = shown[2]
    findings = (
        f"With batch norm the error of deep layers is {interval(deep)} (r.m.s.); theory, to "
        f"leading order in 1/width: {plateau:.4g}.",
        f"Without, it is {interval(squares['none'][early])} at layer {layers[early]} (r.m.s.); "
        f"exactly: {exact[early]:.4g}.",
        f"From layer {layers[0]} to {layers[-1]} the mean error grew by the factor "
        f"{_grown(errors['none']):.3g} without batch norm and {_grown(errors['batch']):.3g} with "
        "it.",
    )
    title = "The error of the mean field grows without batch norm and stays put with it"
    return Experiment("bridging-1a", title, data, table, findings, _draw_1a)


def _draw_1a(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS, band

    (ax,) = axes_of(figure, 1, width=7.2, height=5.0).flat
    layers = data["layer"].values
    labels = {"batch": "batch norm", "none": "no normalization"}
    for colour, (norm, label) in zip(COLOURS, labels.items(), strict=False):
        one = data.sel(norm=norm)
        band(ax, layers, one["mean"], one["band_low"], one["band_high"], colour=colour, label=label)
    vanilla, normalised = data["exact"].sel(norm="none"), data["exact"].sel(norm="batch")
    ax.plot(layers, vanilla, "k--", linewidth=1.2, label="no normalization, exact r.m.s.")
    ax.plot(layers, normalised, "k-.", linewidth=1.2, label="batch norm, theory, r.m.s.")
    grey = {"color": "0.4", "linewidth": 1.2}
    ax.plot(layers, data["equation_6"], ":", label="eq. (6), ∝ exp(depth/width)", **grey)
    ax.set_yscale("log")
    top = 20 * float(vanilla.max())
    inside = data["bound"].values < top
    ax.plot(
        layers[inside], data["bound"].values[inside], linestyle=(0, (1, 4)),
        label="printed bound exp(3nl/2d)", **grey,
    )  # fmt: skip
    ax.set_ylim(top=top)
    counts = data.attrs["networks"]
    ax.set_title("The error grows without batch norm and stays put with it", loc="left")
    ax.set_xlabel(
        f"layer\nlinear, n = {data.attrs['batch']}, d = {data.attrs['width']}; mean and 90 % of "
        f"{counts[0]} and {counts[1]} networks"
    )
    ax.set_ylabel(r"error of the mean field, $\|G_\ell - G_*\|_F$")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")


def _nearest(layers: NDArray[np.int64], layer: int) -> int:
    return int(np.abs(layers - layer).argmin())


def _grown(values: FloatArray) -> float:
    """Factor by which the mean grew from the first to the last layer."""
    mean = values.mean(axis=0)
    return float(mean[-1] / mean[0])
