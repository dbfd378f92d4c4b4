"""TODO-DOC bnmc.experiments.orthogonalizes.common.cosine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments._common import banded, chosen, curve, draw_band, with_ends
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
    with_parameters,
)
from bnmc.experiments.orthogonalizes.common import _estimate, _Sizes
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_1"]
_FIG_1 = _Sizes((32,), 50, 400, batch=2), _Sizes((32,), 50, 20_000, batch=2)


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

    The paper has width 32, 50 layers and 20 networks.  The network with batch normalization starts
    from two nearly equal samples, e₁ and .999 e₁ + .001 e₂, the vanilla network from the
    orthogonal e₁ and e₂.  Here are 400 networks of each, and 20 000 with `full`.

    With batch normalization the cosine falls to its plateau within ten layers.  At infinite width
    a layer takes a cosine c to ``c/(1 + √(1−c²))``, at width d it settles where
    ``E|c| ≃ √(4/(3πd))``, below the ``√(2/(πd))`` of independent samples: both are drawn.
    Without it the samples align, at a known pace: the sine of their angle has
    ``E log sin² = l [ψ((d−1)/2) − ψ(d/2)] ≃ −l/d``, exactly at every layer l and width d:
    the straight line of the right panel.

    The print names neither the axis nor that the two networks start from opposite ends: at layer
    50 the vanilla network of width 32 is still far from collinear, and wider ones need
    proportionally more layers.

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
    return _fig_1(chosen(_FIG_1, full), full, rng, progress, threads, store)


def _fig_1(
    sizes: _Sizes,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d = sizes.widths[0]
    starts = {
        "batch norm": (Chain.bn_linear(d, 2), [[1.0, 1.0 - _NEAR], [0.0, _NEAR]]),
        "vanilla": (Chain.vanilla(d, 2), [[1.0, 0.0], [0.0, 1.0]]),
    }
    cosines, log_sines = [], []
    with Parts(progress, "orthogonalizes-1", [1, 1], sources, full, store) as parts:
        for chain, columns in starts.values():
            run = parts.run(
                simulate, chain, sizes.layers - 1, chains=sizes.chains, initial=FirstLayer(columns),
                observables="scaled_gram", rng=sources.generator, threads=threads,
            )  # fmt: skip
            found = run["scaled_gram"]
            scale = np.sqrt(found[..., 0, 0] * found[..., 1, 1])
            cosine = found[..., 0, 1] / scale
            cosines.append(banded(np.abs(cosine)))
            log_sines.append(banded(np.log1p(-np.square(cosine))))
    layers = np.arange(1, sizes.layers + 1)
    pace = vanilla_pace(d)
    wide = [(1 - _NEAR) / math.hypot(1 - _NEAR, _NEAR)]
    for _ in layers:
        wide.append(wide[-1] / (1 + math.sqrt(1 - wide[-1] ** 2)))
    plateau = math.sqrt(4 / (3 * math.pi * d))
    over = ("network", "layer")
    data = dataset(
        {
            **with_ends("cosine", over, cosines, "absolute cosine of two samples"),
            **with_ends("log_squared_sine", over, log_sines, "log of the squared sine"),
            "cosine_at_infinite_width": Variable(
                ("layer",), wide[1:], "cosine with batch normalization at infinite width"
            ),
            "cosine_plateau": Variable((), plateau, "stationary mean of the absolute cosine"),
            "vanilla_log_squared_sine": Variable(
                ("layer",), pace * layers, "exact mean of the log of the squared sine, vanilla"
            ),
        },
        {
            "network": Variable(("network",), list(starts), "network", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources,
        full,
        {"width": d, "batch": 2, "chains": sizes.chains, "start": f"cosine 1 - {_NEAR**2 / 2:g}"},
    )
    last = [_estimate(one[-1], sizes.chains) for one in (*cosines, log_sines[1])]
    table = Table(
        ("network", "|cosine|, first layer", "|cosine|, last layer", "theory, last layer"),
        (
            ("batch norm", float(cosines[0][0, 0]), last[0], plateau),
            ("vanilla", float(cosines[1][0, 0]), last[1], None),
        ),
    )
    findings = (
        f"With batch norm the mean |cosine| at layer {layers[-1]} is {interval(last[0])}; the "
        f"plateau sqrt(4/(3 pi d)) at width {d} is {plateau:.3f}.",
        f"Without it the mean |cosine| has grown from {cosines[1][0, 0]:.2f} to "
        f"{interval(last[1])}, and log sin^2 is {interval(last[2])}; the exact law has "
        f"{pace * layers[-1]:.3f}.",
    )
    title = f"Cosine of two samples, linear networks of width {d}"
    return Experiment("orthogonalizes-1", title, data, table, findings, _draw_1)


#: How far apart the two samples of Fig. 1 are.
_NEAR = 1e-3


def vanilla_pace(width: int) -> float:
    """``E log sin²`` of the angle between two samples that one vanilla layer adds, exactly."""
    from scipy.special import digamma

    return float(digamma((width - 1) / 2) - digamma(width / 2))


def _draw_1(data: xarray.Dataset, figure: Figure) -> None:
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
