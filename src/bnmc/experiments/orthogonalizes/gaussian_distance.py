"""Corollary 3: the Wasserstein distance of W H from a Gaussian matrix, over depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.orthogonalizes.common import Float64Array, Sizes, gap_of_spectrum
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval, slope
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "distances_at_infinite_width", "experiment", "wasserstein"]

#: One `Sizes` per group of widths with the same depth and number of networks.
DEFAULT = Sizes((32, 512), 40, 200), Sizes((10**6,), 40, 8)
FULL = Sizes((32, 512, 8192), 40, 1000), Sizes((10**6,), 40, 20)

#: Squared singular values of the input, relative to the largest.
_SPREAD = 0.2


@with_parameters
def wasserstein(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollary 3: the distance of W H from a Gaussian matrix over depth, and the bounds.

    The paper contains the theorem and no figure.  Given H, with singular values σ_i, the squared
    Wasserstein-2 distance between W H and i.i.d. normal entries is ``Σ (σ_i − 1/√n)²``.  The
    picture shows its mean over H, which bounds the squared distance for the law of W H.  The batch
    size is n = 4, and the widths d are 32, 512 and a million.  The input has a spectrum with the
    shares (1, .2, .2, .2).  With `full` there are more networks and one more width.

    Expected: the distance falls by ``(n/(n+2))²`` per layer, to ``(n/4) E V² ≃
    (n−1)(n+2)²/(16(n+1)d)``, with V the orthogonality gap.  Both are drawn as theory.  The bound of
    Lemma 2, ``2n E V``, falls at half that pace, to a floor of order ``1/√d``.  Corollary 3 needs a
    lower bound α of the smallest squared singular value.  Here α is the smallest value in any
    network and layer.  With it the corollary is vacuous except at width a million, and there it
    exceeds the distance by five orders of magnitude.  The print bounds the singular values by α,
    not their squares, and with that the theorem is false (`bnmc.bounds.orthogonalizes`).

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.wasserstein()  # doctest: +SKIP
    >>> found.plot().savefig("wasserstein.png")  # doctest: +SKIP
    """
    call = Call("orthogonalizes-wasserstein", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _OneWidth(NamedTuple):
    """Results at one width.

    By layer: squared distances with their intervals, (layers, 3), their theory and their bounds.
    `plateau` is the mean over the deeper half, and `floor` its theory.  `alpha` is the smallest
    share of the spectrum.
    """

    distances: Float64Array
    theory: Float64Array
    lemma: Float64Array
    corollary: Float64Array
    plateau: Estimate
    floor: float
    alpha: float


def experiment(groups: tuple[Sizes, ...], call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    n = groups[0].batch
    widths = [d for group in groups for d in group.widths]
    found = _measure(groups, call)
    fitted = slope(widths, [one.plateau for one in found])
    largest = 2 * (1 - n**-0.5)
    table = Table(
        ("width", "alpha", "W2^2, deeper half", "theory", "Corollary 3, last layer"),
        tuple(
            (d, one.alpha, one.plateau, one.floor, one.corollary[-1])
            for d, one in zip(widths, found, strict=True)
        ),
    )
    findings = (
        f"The stationary distance has the slope {interval(fitted)} in the width, in theory -1; the "
        "floors of the bounds have slope -1/2.",
        *(
            f"At width {d} it converges to {interval(plateau)}, in theory {floor:.3g}; Corollary 3 "
            f"has {bound:.3g}, {'less' if bound < largest else 'more'} than the largest "
            "possible distance."
            for d, _, plateau, floor, bound in table.rows
        ),
    )
    title = f"Distance of W H from a Gaussian matrix, batch {n}"
    return Experiment(
        call.name, title, _data(groups, call, widths, found, fitted), table, findings, _draw
    )


def _measure(groups: tuple[Sizes, ...], call: Call) -> list[_OneWidth]:
    points = [(d, group) for group in groups for d in group.widths]
    n = groups[0].batch
    start = FirstLayer(np.diag([1.0] + [math.sqrt(_SPREAD)] * (n - 1)))
    wide = distances_at_infinite_width(n, max(group.layers for group in groups))
    found = []
    with call.parts([d * group.layers * group.chains for d, group in points]) as parts:
        for d, group in points:
            run = parts.run(
                simulate, Chain.bn_linear(d, n), group.layers - 1, chains=group.chains,
                initial=start, observables="eigenvalues", rng=call.generator,
                threads=call.threads,
            )  # fmt: skip
            found.append(_at_width(d, group, run["eigenvalues"], wide))
    return found


def _at_width(
    d: int, group: Sizes, eigenvalues: Float64Array, wide: Float64Array
) -> _OneWidth:  # fmt: skip
    """Evaluate eigenvalues, (networks, layers, n), beside the chain of infinite width."""
    n, depth = group.batch, np.arange(group.layers)
    squares = bounds.wasserstein_squared(eigenvalues)
    shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
    alpha = min(float(shares.min()), 1 / n)
    floor = _floor(d, n)
    remembered = (n / (n + 2)) ** (2 * (depth + 1))
    return _OneWidth(
        distances=banded(squares),
        theory=wide[: group.layers] + floor * (1 - remembered),
        lemma=2 * n * gap_of_spectrum(eigenvalues).mean(axis=0),
        corollary=bounds.corollary_3(depth, d, n, alpha),
        plateau=Estimate.from_samples(squares[:, group.layers // 2 :].mean(axis=1)),
        floor=floor,
        alpha=alpha,
    )


def distances_at_infinite_width(batch: int, layers: int) -> Float64Array:
    """Return the squared distance of the chain of infinite width, layer by layer."""
    shares = np.array([1.0] + [_SPREAD] * (batch - 1))
    found = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        found.append(float(bounds.wasserstein_squared(shares)))
    return np.array(found)


def _floor(width: int, batch: int) -> float:
    """Return the stationary mean of the squared distance, to leading order in 1/d.

    If ``σ_i² = 1/n + δ_i`` then ``(σ_i − 1/√n)² ≃ n δ_i²/4``.
    """
    return batch / 4 * float(bounds.stationary_squared_gap(width, batch))


def _data(
    groups: tuple[Sizes, ...], call: Call, widths: list[int], found: list[_OneWidth],
    fitted: Estimate,
) -> xarray.Dataset:  # fmt: skip
    n, deepest = groups[0].batch, max(group.layers for group in groups)
    per_layer = ("width", "layer")

    def padded(values: list[Float64Array]) -> Float64Array:
        """Stack arrays of different depth, with NaN in the layers that they lack."""
        array = np.full((len(values), deepest, *values[0].shape[1:]), np.nan)
        for row, one in zip(array, values, strict=True):
            row[: len(one)] = one
        return array

    return dataset(
        {
            **with_ends(
                "distance", per_layer, padded([one.distances for one in found]),
                "mean squared Wasserstein-2 distance",
            ),
            "theory": Variable(
                per_layer, padded([one.theory for one in found]),
                "the same in theory, leading order in 1/d",
            ),
            "lemma_2": Variable(
                per_layer, padded([one.lemma for one in found]), "bound 2n E V of Lemma 2"
            ),
            "corollary_3": Variable(
                per_layer, padded([one.corollary for one in found]), "bound of Corollary 3"
            ),
            "alpha": Variable(
                ("width",), [one.alpha for one in found],
                "smallest share of the spectrum that occurred",
            ),
            **estimated(
                "plateau", ("width",), [one.plateau for one in found], "mean over the deeper half"
            ),
            "largest": Variable((), 2 * (1 - 1 / math.sqrt(n)), "largest possible distance"),
            **estimated("slope", (), fitted, "slope of the plateau in the width"),
        },
        {
            "width": Variable(("width",), widths, "width"),
            "layer": Variable(("layer",), np.arange(1, deepest + 1), "layer"),
        },
        call,
        {
            "batch": n, "chains": [group.chains for group in groups for _ in group.widths],
            "start": f"shares of 1 and {_SPREAD}",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=8.4, height=4.8)
    ax.set_yscale("log")
    _draw_curves(ax, data)
    layers, largest = data.layer.values, float(data.largest)
    ax.axhline(largest, color="grey", linewidth=1)
    ax.annotate(
        "largest possible distance", (layers[-1] / 2, largest), va="top", xytext=(0, -3),
        textcoords="offset points", color="grey", fontsize="small",
    )  # fmt: skip
    for style, label in (
        ("--", "theory, leading order in $1/d$"),
        (":", "Lemma 2, $2n\\,E\\,V$"),
        ("-.", "Corollary 3, where it is not vacuous"),
    ):
        ax.plot([], [], style, color="black", linewidth=1, label=label)
    ax.set_ylim(data.theory.min() / 4, 4)
    ax.set(xlabel="layer", ylabel=r"mean of $W_2^2$, units of $E\,\|W H\|_F^2$")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 0.9))
    ax.set_title(
        f"Distance of $W H$ from a Gaussian matrix, batch {data.attrs['batch']}:\n"
        "mean over networks, 95 % interval"
    )


def _draw_curves(ax: Axes, data: xarray.Dataset) -> None:
    """Draw distances, theory and bounds, one colour per width."""
    layers, largest = data.layer.values, float(data.largest)
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        exponent = math.log10(width)
        name = f"10^{{{exponent:.0f}}}" if exponent.is_integer() else str(width)
        draw_band(ax, layers, curve(data, "distance")[index], colour, f"$d = {name}$")
        ax.plot(layers, data.theory[index], "--", color="black", linewidth=0.8)
        ax.plot(layers, data.lemma_2[index], ":", color=colour)
        bound = data.corollary_3.values[index]
        below = bound < largest
        ax.plot(layers[below], bound[below], "-.", color=colour)
