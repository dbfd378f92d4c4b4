"""TODO-DOC bnmc.experiments.orthogonalizes.common.gaussian_distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._common import banded, chosen, curve, draw_band, ends, with_ends
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
from bnmc.experiments.orthogonalizes.common import Float64Array, _gap, _Sizes
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["wasserstein"]
_WASSERSTEIN = (
    (_Sizes((32, 512), 40, 200), _Sizes((10**6,), 40, 8)),
    (_Sizes((32, 512, 8192), 40, 1000), _Sizes((10**6,), 40, 20)),
)


@with_parameters
def wasserstein(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollary 3: how far W H is from a Gaussian matrix, over depth, and the bounds.

    The paper has the theorem and no figure.  For given H the squared Wasserstein-2 distance of W H
    from i.i.d. normal entries is ``Σ (σ_i − 1/√n)²``; its mean over H is drawn, which bounds that
    of the law of W H.  Batch 4, widths 32, 512 and a million, from samples whose spectrum has the
    shares (1, .2, .2, .2); with `full` more networks, deeper.

    The distance falls by ``(n/(n+2))²`` a layer to ``(n/4) E V² ≃ (n−1)(n+2)²/(16(n+1)d)``, both
    drawn as theory.  The bound of Lemma 2, ``2n E V``, falls at half that pace, to a floor of order
    ``1/√d``.  Corollary 3 needs a bound α of the smallest squared singular value; with the
    smallest that occurred in any of the networks and layers, it says something only at widths of
    a million, and there exceeds the distance by five orders of magnitude.  The print takes α for
    the singular values themselves, with which the theorem is false (`bnmc.bounds.orthogonalizes`).

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.wasserstein()  # doctest: +SKIP
    >>> found.plot().savefig("wasserstein.png")  # doctest: +SKIP
    """
    return _wasserstein(chosen(_WASSERSTEIN, full), full, rng, progress, threads, store)


#: Squared singular values of the input of `wasserstein`, relative to the largest.
_SPREAD = 0.2


def _wasserstein(
    groups: tuple[_Sizes, ...],
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n = groups[0].batch
    sizes = [(d, group.layers, group.chains) for group in groups for d in group.widths]
    deepest = max(layers for _, layers, _ in sizes)
    shape = (len(sizes), deepest)
    distances, lemmas = np.full((*shape, 3), np.nan), np.full(shape, np.nan)
    corollaries, theories = np.full(shape, np.nan), np.full(shape, np.nan)
    alphas, settled = [], []
    start = np.diag([1.0] + [math.sqrt(_SPREAD)] * (n - 1))
    wide = _wide_distances(n, deepest)
    with Parts(
        progress,
        "orthogonalizes-wasserstein",
        [math.prod(one) for one in sizes],
        sources,
        full,
        store,
    ) as parts:
        for index, (d, layers, chains) in enumerate(sizes):
            run = parts.run(
                simulate, Chain.bn_linear(d, n), layers - 1, chains=chains,
                initial=FirstLayer(start),
                observables="eigenvalues", rng=sources.generator, threads=threads,
            )  # fmt: skip
            eigenvalues = run["eigenvalues"]
            squares = bounds.wasserstein_squared(eigenvalues)
            shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
            alphas.append(min(float(shares.min()), 1 / n))
            distances[index, :layers] = banded(squares)
            settled.append(Estimate.from_samples(squares[:, layers // 2 :].mean(axis=1)))
            lemmas[index, :layers] = 2 * n * _gap(eigenvalues).mean(axis=0)
            depth = np.arange(layers)
            corollaries[index, :layers] = bounds.corollary_3(depth, d, n, alphas[-1])
            remembered = (n / (n + 2)) ** (2 * (depth + 1))
            theories[index, :layers] = wide[:layers] + _floor(d, n) * (1 - remembered)
    widths = [d for d, _, _ in sizes]
    floors = [_floor(d, n) for d in widths]
    fitted = slope(widths, settled)
    per_layer = ("width", "layer")
    data = dataset(
        {
            **with_ends(
                "distance",
                per_layer, distances, "mean squared Wasserstein-2 distance"
            ),
            "theory": Variable(per_layer, theories, "the same in theory, leading order in 1/d"),
            "lemma_2": Variable(per_layer, lemmas, "bound 2n E V of Lemma 2"),
            "corollary_3": Variable(per_layer, corollaries, "bound of Corollary 3"),
            "alpha": Variable(("width",), alphas, "smallest share of the spectrum that occurred"),
            **with_ends("plateau", ("width",), ends(settled), "mean over the deeper half"),
            "largest": Variable((), 2 * (1 - 1 / math.sqrt(n)), "largest distance there is"),
            **with_ends("slope", (), ends([fitted])[0], "slope of the plateau in the width"),
        },
        {
            "width": Variable(("width",), widths, "width"),
            "layer": Variable(("layer",), np.arange(1, deepest + 1), "layer"),
        },
        sources,
        full,
        {
            "batch": n, "chains": [chains for *_, chains in sizes],
            "start": f"shares of 1 and {_SPREAD}",
        },
    )  # fmt: skip
    last = [corollaries[index, layers - 1] for index, (_, layers, _) in enumerate(sizes)]
    table = Table(
        ("width", "alpha", "W2^2, deeper half", "theory", "Corollary 3, last layer"),
        tuple(zip(widths, alphas, settled, floors, last, strict=True)),
    )
    findings = (
        f"The distance settles with a slope of {interval(fitted)} in the width, in theory -1; the "
        "floors of the bounds have slope -1/2.",
        *(
            f"At width {d} it settles at {interval(end)}, in theory {floor:.3g}; Corollary 3 has "
            f"{bound:.3g}, {'less' if bound < 2 * (1 - n**-0.5) else 'more'} than the largest "
            "distance there is."
            for d, end, floor, bound in zip(widths, settled, floors, last, strict=True)
        ),
    )
    title = f"Distance of W H from a Gaussian matrix, batch {n}"
    return Experiment("orthogonalizes-wasserstein", title, data, table, findings, _draw_wasserstein)


def _wide_distances(n: int, layers: int) -> Float64Array:
    """The squared distance of the chain of infinite width, layer by layer."""
    shares = np.array([1.0] + [_SPREAD] * (n - 1))
    found = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        found.append(float(bounds.wasserstein_squared(shares)))
    return np.array(found)


def _floor(width: int, batch: int) -> float:
    """Where the squared distance settles: ``σ_i² = 1/n + δ_i`` has ``(σ_i − 1/√n)² ≃ n δ_i²/4``."""
    return batch / 4 * float(bounds.stationary_squared_gap(width, batch))


def _draw_wasserstein(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=8.4, height=4.8)
    ax.set_yscale("log")
    layers = data.layer.values
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        exponent = math.log10(width)
        name = f"10^{{{exponent:.0f}}}" if exponent.is_integer() else str(width)
        draw_band(ax, layers, curve(data, "distance")[index], colour, f"$d = {name}$")
        ax.plot(layers, data.theory[index], "--", color="black", linewidth=0.8)
        ax.plot(layers, data.lemma_2[index], ":", color=colour)
        bound = data.corollary_3.values[index]
        below = bound < float(data.largest)
        ax.plot(layers[below], bound[below], "-.", color=colour)
    ax.axhline(float(data.largest), color="grey", linewidth=1)
    ax.annotate(
        "largest distance there is",
        (layers[-1] / 2, float(data.largest)),
        va="top",
        xytext=(0, -3),
        textcoords="offset points",
        color="grey",
        fontsize="small",
    )
    for style, label in (
        ("--", "theory, leading order in $1/d$"),
        (":", "Lemma 2, $2n\\,E\\,V$"),
        ("-.", "Corollary 3, where it says something"),
    ):
        ax.plot([], [], style, color="black", linewidth=1, label=label)
    ax.set_ylim(data.theory.min() / 4, 4)
    ax.set(xlabel="layer", ylabel=r"mean of $W_2^2$, units of $E\,\|W H\|_F^2$")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 0.9))
    ax.set_title(
        f"Distance of $W H$ from a Gaussian matrix, batch {data.attrs['batch']}:\n"
        "mean over networks, 95 % interval"
    )
