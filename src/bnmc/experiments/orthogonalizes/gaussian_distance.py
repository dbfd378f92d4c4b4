"""Corollary 3: the Wasserstein distance of W H from a Gaussian matrix, over depth."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.orthogonalizes.gaps import gap_of_spectrum
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import interval, slope
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

#: Squared singular values of the input, relative to the largest.
_SPREAD = 0.2


class Sizes(NamedTuple):
    """Sizes of the figure.

    chains: networks per width
    wide: a further width
    wide_layers: its number of layers
    wide_chains: its networks
    """

    widths: tuple[int, ...] = (32, 512)
    layers: int = 40
    chains: Several = 200
    wide: int = 10**6
    wide_layers: int = 40
    wide_chains: Several = 8
    batch: Several = 4


@kit.figure(
    "orthogonalizes-wasserstein", Sizes(), widths=(32, 512, 8192), chains=1000, wide_chains=20
)  # fmt: skip
def wasserstein(run: Run, sizes: Sizes) -> Experiment:
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
    n = sizes.batch
    if sizes.wide in sizes.widths:
        raise ArgumentError("wide", sizes.wide, "a width that is not among widths")
    layers_of = dict.fromkeys(sizes.widths, sizes.layers) | {sizes.wide: sizes.wide_layers}
    networks_of = dict.fromkeys(sizes.widths, sizes.chains) | {sizes.wide: sizes.wide_chains}
    start = FirstLayer(np.diag([1.0] + [math.sqrt(_SPREAD)] * (n - 1)))

    def distances(width: int, progress: Progress) -> tuple[Float64Array, Float64Array, float]:
        """Return squared distances, (networks, layers), their bound 2n V, and the least share."""
        eigenvalues = simulate(
            Chain(width, n, "linear", norm="batch-uncentred"), layers_of[width] - 1,
            chains=networks_of[width],
            initial=start, observables="eigenvalues", **run.options(progress),
        )["eigenvalues"]  # fmt: skip
        shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
        least = min(float(shares.min()), 1 / n)
        return bounds.wasserstein_squared(eigenvalues), gap_of_spectrum(eigenvalues), least

    depth = np.arange(max(layers_of.values()))
    results = kit.Results(run, width=layers_of, layer=depth + 1)
    per, per_layer = ("width",), ("width", "layer")
    parts = run.parts(
        distances, results.points("width"),
        [float(width * layers * networks_of[width]) for width, layers in layers_of.items()],
    )  # fmt: skip
    # NaN in layers that a width lacks.
    there = {width: np.where(depth < layers, 0.0, np.nan) for width, layers in layers_of.items()}
    squares, gaps = (
        kit.each(kit.entry(parts, place), lambda values: _padded(values, len(depth)))
        for place in (0, 1)
    )
    results.add_means("distance", per_layer, squares, "mean squared Wasserstein-2 distance")
    wide = _distances_at_infinite_width(n, len(depth))
    results.add(
        "theory", per_layer, {(d,): _theory(d, n, wide) + there[d] for d in layers_of},
        "the same in theory, leading order in 1/d",
    )  # fmt: skip
    lemma = kit.each(gaps, lambda values: 2 * n * values.mean(axis=0))
    results.add("lemma_2", per_layer, lemma, "bound 2n E V of Lemma 2")
    corollary = {
        (d,): bounds.corollary_3(depth, d, n, alpha) + there[d]
        for (d,), (_, _, alpha) in parts.items()
    }
    results.add("corollary_3", per_layer, corollary, "bound of Corollary 3")
    plateaus = {
        (d,): Estimate.from_samples(squares[:, layers_of[d] // 2 :].mean(axis=1))
        for (d,), (squares, _, _) in parts.items()
    }
    largest = 2 * (1 - 1 / math.sqrt(n))
    results.add("largest", (), largest, "largest possible distance")
    fitted = slope(list(layers_of), list(plateaus.values()))
    results.add("slope", (), {(): fitted}, "slope of the plateau in the width")
    table = kit.table_of({
        "alpha": results.add(
            "alpha", per, kit.entry(parts, 2), "smallest share of the spectrum that occurred"
        ),
        "W2^2, deeper half": results.add("plateau", per, plateaus, "mean over the deeper half"),
        "theory": results.column(per, [_floor(d, n) for d in layers_of]),
        "Corollary 3, last layer": results.column(
            per, {(d,): corollary[d,][layers - 1] for d, layers in layers_of.items()}
        ),
    })  # fmt: skip
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
    return results.experiment(
        f"Distance of W H from a Gaussian matrix, batch {n}", table, findings, _draw, batch=n,
        chains=list(networks_of.values()), start=f"shares of 1 and {_SPREAD}",
    )  # fmt: skip


def _padded(values: Float64Array, layers: int) -> Float64Array:
    """Return values (networks, layers) with NaN in further layers."""
    further = ((0, 0), (0, layers - values.shape[1]))
    return np.pad(values, further, constant_values=np.nan)


def _theory(width: int, batch: int, wide: Float64Array) -> Float64Array:
    """Return the mean squared distance by layer, to leading order in 1/d.

    `wide` has the distances of the chain of infinite width.
    """
    depth = np.arange(len(wide))
    remembered = (batch / (batch + 2)) ** (2 * (depth + 1))
    return wide + _floor(width, batch) * (1 - remembered)


def _distances_at_infinite_width(batch: int, layers: int) -> Float64Array:
    """Return the squared distance of the chain of infinite width, layer by layer."""
    shares = np.array([1.0] + [_SPREAD] * (batch - 1))
    distances = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        distances.append(float(bounds.wasserstein_squared(shares)))
    return np.array(distances)


def _floor(width: int, batch: int) -> float:
    """Return the stationary mean of the squared distance, to leading order in 1/d.

    If ``σ_i² = 1/n + δ_i`` then ``(σ_i − 1/√n)² ≃ n δ_i²/4``.
    """
    return batch / 4 * float(bounds.stationary_squared_gap(width, batch))


def _draw(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=8.4, height=4.8)
    ax.set_yscale("log")
    layers, largest = data.layer.values, float(data.largest)
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        exponent = math.log10(width)
        name = f"10^{{{exponent:.0f}}}" if exponent.is_integer() else str(width)
        values = pictures.curve(data, "distance")[index]
        pictures.draw_band(ax, layers, values, colour, f"$d = {name}$")
        ax.plot(layers, data.theory[index], "--", color="black", linewidth=0.8)
        ax.plot(layers, data.lemma_2[index], ":", color=colour)
        bound = data.corollary_3.values[index]
        below = bound < largest
        ax.plot(layers[below], bound[below], "-.", color=colour)
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
