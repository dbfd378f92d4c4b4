"""Fig. 1: the cosine of two samples over depth, with and without batch normalization."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.orthogonalizes.common import Sizes
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval, mean_of_band
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "experiment", "fig_1", "vanilla_pace"]

DEFAULT = Sizes((32,), 50, 400, batch=2)
FULL = Sizes((32,), 50, 20_000, batch=2)

#: Distance between the two nearly equal samples, which have length 1.
_NEAR = 1e-3


@with_parameters
def fig_1(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("orthogonalizes-1", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes, which have one width and batch size 2."""
    d = sizes.widths[0]
    starts = {
        "batch norm": (Chain.bn_linear(d, 2), [[1.0, 1.0 - _NEAR], [0.0, _NEAR]]),
        "vanilla": (Chain.vanilla(d, 2), [[1.0, 0.0], [0.0, 1.0]]),
    }
    cosines, log_sines = [], []
    with call.parts([1, 1]) as parts:
        for chain, columns in starts.values():
            run = parts.run(
                simulate, chain, sizes.layers - 1, chains=sizes.chains, initial=FirstLayer(columns),
                observables="scaled_gram", rng=call.generator, threads=call.threads,
            )  # fmt: skip
            found = run["scaled_gram"]
            scale = np.sqrt(found[..., 0, 0] * found[..., 1, 1])
            cosine = found[..., 0, 1] / scale
            cosines.append(banded(np.abs(cosine)))
            log_sines.append(banded(np.log1p(-np.square(cosine))))
    layers = np.arange(1, sizes.layers + 1)
    theory = _Theory(
        _cosines_at_infinite_width(sizes.layers),
        math.sqrt(4 / (3 * math.pi * d)),
        vanilla_pace(d) * layers,
    )
    over = ("network", "layer")
    data = dataset(
        {
            **with_ends("cosine", over, cosines, "absolute cosine of two samples"),
            **with_ends("log_squared_sine", over, log_sines, "log of the squared sine"),
            "cosine_at_infinite_width": Variable(
                ("layer",), theory.wide, "cosine with batch normalization at infinite width"
            ),
            "cosine_plateau": Variable(
                (), theory.plateau, "stationary mean of the absolute cosine"
            ),
            "vanilla_log_squared_sine": Variable(
                ("layer",), theory.vanilla, "exact mean of the log of the squared sine, vanilla"
            ),
        },
        {
            "network": Variable(("network",), list(starts), "network", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        call,
        {"width": d, "batch": 2, "chains": sizes.chains, "start": f"cosine 1 - {_NEAR**2 / 2:g}"},
    )  # fmt: skip
    normalised, vanilla, sine = (
        mean_of_band(one[-1], sizes.chains) for one in (*cosines, log_sines[1])
    )
    first = [float(one[0, 0]) for one in cosines]
    table = Table(
        ("network", "|cosine|, first layer", "|cosine|, last layer", "theory, last layer"),
        (
            ("batch norm", first[0], normalised, theory.plateau),
            ("vanilla", first[1], vanilla, None),
        ),
    )
    findings = (
        f"With batch norm the mean |cosine| at layer {layers[-1]} is {interval(normalised)}; the "
        f"plateau sqrt(4/(3 pi d)) at width {d} is {theory.plateau:.3f}.",
        f"Without it the mean |cosine| has grown from {first[1]:.2f} to "
        f"{interval(vanilla)}, and log sin^2 is {interval(sine)}; the exact value is "
        f"{theory.vanilla[-1]:.3f}.",
    )
    title = f"Cosine of two samples, linear networks of width {d}"
    return Experiment(call.name, title, data, table, findings, _draw)


class _Theory(NamedTuple):
    """Cosines at infinite width, stationary mean cosine, and mean log sin² of vanilla networks."""

    wide: list[float]
    plateau: float
    vanilla: NDArray[np.floating[Any]]


def _cosines_at_infinite_width(layers: int) -> list[float]:
    cosines = [(1 - _NEAR) / math.hypot(1 - _NEAR, _NEAR)]
    for _ in range(layers):
        cosines.append(cosines[-1] / (1 + math.sqrt(1 - cosines[-1] ** 2)))
    return cosines[1:]


def vanilla_pace(width: int) -> float:
    """Return ψ((d−1)/2) − ψ(d/2), by which one vanilla layer changes ``E log sin²``, exactly."""
    from scipy.special import digamma

    return float(digamma((width - 1) / 2) - digamma(width / 2))


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    layers = data.layer.values
    labels = ("batch norm, from nearly equal samples", "vanilla, from orthogonal samples")
    for network, (colour, label) in enumerate(zip(COLOURS[:2], labels, strict=True)):
        for ax, name in ((left, "cosine"), (right, "log_squared_sine")):
            draw_band(ax, layers, curve(data, name)[network], colour, label)
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
    figure.suptitle(
        f"Cosine of two samples, width {data.attrs['width']}: "
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
