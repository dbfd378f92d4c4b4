"""Fig. 1: the cosine of two samples over depth, with and without batch normalization."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import interval
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

#: Distance between the two nearly equal samples, which have length 1.
_NEAR = 1e-3

#: The networks: their norms, and the two samples from which they start.
_NETWORKS = {
    "batch norm": ("batch-uncentred", [[1.0, 1.0 - _NEAR], [0.0, _NEAR]]),
    "vanilla": ("none", [[1.0, 0.0], [0.0, 1.0]]),
}


class Sizes(NamedTuple):
    """Sizes of the figure."""

    width: Several = 32
    layers: int = 50
    chains: Several = 400


@kit.figure("orthogonalizes-1", Sizes(), chains=20_000)
def fig_1(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 1: the cosine of two samples over depth, with and without batch normalization.

    The paper uses width d = 32, 50 layers and 20 networks.  The network with batch normalization
    starts from two nearly equal samples, e₁ and .999 e₁ + .001 e₂.  The vanilla network starts from
    the orthogonal e₁ and e₂.  Here there are 400 networks of each kind, and 20 000 with `full`.

    Expected: with batch normalization the cosine falls to its plateau within ten layers.  At
    infinite width a layer maps a cosine c to ``c/(1 + √(1−c²))``.  At width d the stationary mean
    is ``E|c| ≃ √(4/(3πd))``, below the ``√(2/(πd))`` of independent samples.  The picture shows
    both theories.  Without normalization the samples align at a known pace: the sine of their angle
    has ``E log sin² = l [ψ((d−1)/2) − ψ(d/2)] ≃ −l/d``, exactly, at every layer l and width d.
    That is the straight line of the right panel.

    The paper does not name the axis, and does not say that the two networks start from opposite
    ends.  At layer 50 the vanilla network of width 32 is still far from collinear, and the number
    of layers until collinearity is proportional to the width.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_1()
    >>> print(found.data.cosine.sel(network="batch norm", layer=50).round(2).item())
    0.11
    """
    d = sizes.width

    def cosines(network: str, progress: Progress) -> Float64Array:
        """Return the cosines of both samples, (networks, layers)."""
        norm, start = _NETWORKS[network]
        grams = simulate(
            Chain(d, 2, "linear", norm=norm), sizes.layers - 1, chains=sizes.chains,
            initial=FirstLayer(start), observables="scaled_gram", **run.options(progress),
        )["scaled_gram"]  # fmt: skip
        return grams[..., 0, 1] / np.sqrt(grams[..., 0, 0] * grams[..., 1, 1])

    layers = np.arange(1, sizes.layers + 1)
    results = kit.Results(run, network=_NETWORKS, layer=layers)
    over = ("network", "layer")
    parts = run.parts(cosines, results.points("network"))
    moduli = kit.each(parts, np.abs)
    cosine = results.add_means("cosine", over, moduli, "absolute cosine of two samples")
    logs = kit.each(parts, lambda cosines: np.log1p(-np.square(cosines)))
    sine = results.add_means("log_squared_sine", over, logs, "log of the squared sine")
    results.add(
        "cosine_at_infinite_width", ("layer",), _cosines_at_infinite_width(sizes.layers),
        "cosine with batch normalization at infinite width",
    )  # fmt: skip
    plateau, exact = math.sqrt(4 / (3 * math.pi * d)), _vanilla_pace(d) * layers
    results.add("cosine_plateau", (), plateau, "stationary mean of the absolute cosine")
    results.add(
        "vanilla_log_squared_sine", ("layer",), exact,
        "exact mean of the log of the squared sine, vanilla",
    )  # fmt: skip
    table = kit.table_of({
        "|cosine|, first layer": cosine.at(layer=0).means(),
        "|cosine|, last layer": cosine.at(layer=-1),
        "theory, last layer": results.column(("network",), {("batch norm",): plateau}),
    })  # fmt: skip
    (_, _, normalised, _), (_, first, vanilla, _) = table.rows
    last_sine = sine.at(layer=-1).cells()["vanilla",]
    findings = (
        f"With batch norm the mean |cosine| at layer {layers[-1]} is {interval(normalised)}; the "
        f"plateau sqrt(4/(3 pi d)) at width {d} is {plateau:.3f}.",
        f"Without it the mean |cosine| has grown from {first:.2f} to {interval(vanilla)}, and "
        f"log sin^2 is {interval(last_sine)}; the exact value is {exact[-1]:.3f}.",
    )
    return results.experiment(
        f"Cosine of two samples, linear networks of width {d}", table, findings, _draw, width=d,
        batch=2, chains=sizes.chains, start=f"cosine 1 - {_NEAR**2 / 2:g}",
    )  # fmt: skip


def _cosines_at_infinite_width(layers: int) -> list[float]:
    cosines = [(1 - _NEAR) / math.hypot(1 - _NEAR, _NEAR)]
    for _ in range(layers):
        cosines.append(cosines[-1] / (1 + math.sqrt(1 - cosines[-1] ** 2)))
    return cosines[1:]


def _vanilla_pace(width: int) -> float:
    """Return ψ((d−1)/2) − ψ(d/2), by which one vanilla layer changes ``E log sin²``, exactly."""
    from scipy.special import digamma

    return float(digamma((width - 1) / 2) - digamma(width / 2))


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2)[0]
    layers = data.layer.values
    labels = ("batch norm, from nearly equal samples", "vanilla, from orthogonal samples")
    for ax, name in ((left, "cosine"), (right, "log_squared_sine")):
        for k, values in enumerate(pictures.curve(data, name)):
            pictures.draw_band(ax, layers, values, COLOURS[k], labels[k])
    left.plot(
        layers, data.cosine_at_infinite_width, ":", color="black", label="batch norm, $d = \\infty$"
    )
    left.axhline(
        float(data.cosine_plateau), color="black", linestyle="--", linewidth=1,
        label=r"plateau $\sqrt{4/(3\pi d)}$",
    )  # fmt: skip
    right.plot(
        layers, data.vanilla_log_squared_sine, "--", color="black", linewidth=1,
        label=r"exact: $\ell\,[\psi(\frac{d-1}{2}) - \psi(\frac{d}{2})]$",
    )  # fmt: skip
    left.set(ylabel="absolute cosine of the two samples", ylim=(0, 1.02), title="As in the paper")
    right.set(ylabel=r"mean of $\log\,\sin^2$ of their angle", title="The angle itself")
    for ax in (left, right):
        ax.set_xlabel("layer")
        ax.legend(fontsize="small")
    figure.suptitle(pictures.about(data, "Cosine of two samples, width {width}"))
