"""Fig. 2: the rank over depth, with and without batch normalization."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.bounds import rank_collapse as bounds
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import short_interval
from bnmc.gram import rank_bound
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre
from bnmc.regularity import constant
from bnmc.simulation.run import simulate

#: The networks, with their norms.
_NETWORKS = {"batch norm": "batch", "vanilla": "none"}

#: The numerical rank counts eigenvalues of the Gram matrix above this multiple of the largest.
_TOLERANCE = 1e-12

#: Least width with the activation abs, or with signs as weights: in narrower networks all samples
#: of a row may become equal, and batch normalization divides by their variance.
_LEAST = 16

#: Both ranks, with their descriptions.
_RANKS = {
    "rank_bound": "r, the lower bound of the rank",
    "numerical_rank": f"eigenvalues of G above {_TOLERANCE:g} of the largest",
}


class Sizes(NamedTuple):
    """Sizes of the figure.

    width: width and batch size; at width 2 batch norm leaves rank 1, and below 16 samples of a row
        may become equal with the activation abs or the weights rademacher
    """

    width: Annotated[int, {"low": 3}] = 32
    depth: int = 2**12
    networks: Several = 8
    activations: tuple[Builtin, ...] = ("linear", "relu")
    weights: tuple[Annotated[str, {"allowed": ("gaussian", "uniform", "rademacher")}], ...] = (
        "gaussian", "uniform",
    )  # fmt: skip


@kit.figure("rank-collapse-2", Sizes(), depth=10**6, networks=10)
def fig_2(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 2: the rank of the last layer over depth, with and without batch normalization.

    The paper uses width d = 32, batch size 32, Gaussian inputs, no skip connection, and 10 linear
    and ReLU networks of up to a million layers.  By default networks have 4096 layers here.  With
    `full` they have a million, which takes a quarter of an hour on 2 cores.  Weights are Gaussian
    and uniform.  Batch normalization centres, as in the authors' code.  Each point averages the
    layers since the point before.

    Expected: vanilla networks collapse to rank one.  For linear networks with Gaussian weights the
    Lyapunov exponents λ are known: at layer l the numerical rank is about the number of directions
    k with ``2 l (λ₁ − λ_k) <= log 1e12`` (drawn).  Vanilla ReLU networks have weights of variance
    2/d, which keeps their mean square; their scale still decays, and is split off.  They collapse
    as soon.  If all neurons of a narrow one are 0 for all samples, its rank is 0 from there on.
    With batch normalization r stays above ``2 √(1−α) √d``, the bound of Theorem 14 for
    small γ (drawn, with measured α), for both laws of weights.  The numerical rank of linear
    networks is still falling in the last layers; that of ReLU networks stays full, or nearly so.

    Errors of the figure: ``function_relu`` in the authors' code is tanh, so the right panel shows a
    tanh network.  The rank is that of NumPy's ``matrix_rank``, with a threshold of 7e-15 of the
    largest singular value.  The paper does not name the threshold, although the rank is still
    falling.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_2()  # doctest: +SKIP
    >>> found.plot().savefig("fig_2.png")  # doctest: +SKIP
    """
    d, depth = sizes.width, sizes.depth
    if d < _LEAST and ("abs" in sizes.activations or "rademacher" in sizes.weights):
        allowed = f"an integer >= {_LEAST} with the activation abs or the weights rademacher"
        raise ArgumentError("width", d, allowed, "samples of a row may become equal")
    results = kit.Results(
        run, activation=sizes.activations, network=_NETWORKS, weights=sizes.weights,
        layer=_doublings(depth),
    )  # fmt: skip
    layers, per = results.axes["layer"], ("activation", "network", "weights")

    def ranks(
        name: str, network: str, weights: str, progress: Progress
    ) -> tuple[Float64Array, Float64Array]:
        """Return r and the numerical rank, (networks, layers), averaged between the layers."""
        is_vanilla = network == "vanilla"
        gain = math.sqrt(2) if is_vanilla and name == "relu" else 1.0  # keeps the mean square
        chain = Chain(d, d, name, norm=_NETWORKS[network], gain=gain, weights=weights)
        start: Any = "gaussian"
        rng: Any = run.generator
        means = []
        for before, layer in itertools.pairwise([0, *layers]):
            every = max(1, (layer - before) // 16)
            # Draws the weights, because a Gram matrix does not resolve its small eigenvalues.
            passed = simulate(
                chain, layer - before, chains=sizes.networks, initial=start, rng=rng,
                sampler="weights", observables="scaled_gram", every=every, burn_in=every,
                threads=run.threads,
            )  # fmt: skip
            grams = passed.scaled_gram
            means.append((_rank_bound(grams).mean(axis=1), _numerical_rank(grams).mean(axis=1)))
            start, rng = passed.final_state, None
            progress(layer, depth)
        r, numerical_ranks = np.stack(means, axis=-1)
        return r, numerical_ranks

    points = results.points(*per)
    parts = run.parts(ranks, points)
    columns = [
        results.add_means(name, (*per, "layer"), kit.entry(parts, place), text)
        for place, (name, text) in enumerate(_RANKS.items())
    ]
    linear = Chain(d, d, "linear")
    alpha = constant(linear, chains=32, rng=run.generator, threads=run.threads).value
    lower = float(bounds.theorem_14(d, alpha, 0.0))
    results.add("theorem_14", (), lower, "bound of r in Theorem 14, for tau = 0")
    exponents = lyapunov_ginibre(d)
    lost = 2 * np.array(layers)[:, None] * (exponents[0] - exponents) > -math.log(_TOLERANCE)
    results.add(
        "vanilla_theory", ("layer",), (~lost).sum(axis=1),
        "directions that Lyapunov exponents leave",
    )  # fmt: skip
    last = [column.at(layer=-1).cells() for column in columns]
    rows = [(*point, depth, *(short_interval(cells[point]) for cells in last)) for point in points]
    findings = (
        f"{name}, {network}, {weights} weights: at layer {layer} r is {r} and the numerical rank "
        f"{rank}" + (f"; Theorem 14: at least {lower:.2f} for small gamma." if
                     (name, network) == ("linear", "batch norm") else ".")
        for name, network, weights, layer, r, rank in rows
    )  # fmt: skip
    return results.experiment(
        f"Rank over depth, width and batch {d}",
        Table((*per, "layer", "r", "rank at 1e-12"), tuple(rows)), findings, _draw,
        width=d, batch=d, chains=sizes.networks, tolerance=_TOLERANCE, alpha=alpha,
    )  # fmt: skip


def _doublings(depth: int) -> NDArray[np.int64]:
    """Return the powers of 2 below the depth, and the depth itself."""
    powers = 2 ** np.arange(depth.bit_length())
    return np.append(powers[powers < depth], depth)


def _rank_bound(G: Float64Array) -> Float64Array:
    """Return r, which is 0 of the zero matrices of relu networks without an active neuron."""
    vanished = np.abs(G).max(axis=(-2, -1)) == 0.0
    r: Float64Array = rank_bound(np.where(vanished[..., None, None], np.eye(G.shape[-1]), G))
    return np.where(vanished, 0.0, r)


def _numerical_rank(G: Float64Array) -> NDArray[np.int64]:
    eigenvalues = np.linalg.eigvalsh(G)
    ranks: NDArray[np.int64] = (eigenvalues > _TOLERANCE * eigenvalues[..., -1:]).sum(axis=-1)
    return ranks


def _draw(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, data.sizes["activation"], 2, height=3.4)
    for column, name in enumerate(data["activation"].values):
        of_name = data.sel(activation=name)
        ranks, rank_bounds = axes[:, column]
        _draw_networks(ranks, of_name, "numerical_rank")
        _draw_networks(rank_bounds, of_name, "rank_bound")
        if name == "linear":
            ranks.plot(
                data["layer"].values, data["vanilla_theory"], ":", color="black",
                label="vanilla, Lyapunov exponents",
            )  # fmt: skip
            rank_bounds.axhline(
                float(data["theorem_14"]), linestyle=":", color="black", label="Theorem 14"
            )
        ranks.set(ylabel="numerical rank", title=f"{name} networks")
        rank_bounds.set(ylabel="$r$, lower bound of the rank", xlabel="layer")
        if column == 0:
            ranks.legend(fontsize="x-small", loc="lower left")
            rank_bounds.legend(fontsize="x-small", loc="best")
    figure.suptitle(pictures.about(data, "Rank over depth, width and batch {width}"))


def _draw_networks(ax: Any, data: Dataset, name: str) -> None:
    """Draw a rank over depth, one colour per network and law of weights."""
    ax.set_yscale("log", base=2)
    colours = itertools.cycle(COLOURS)
    for network in data["network"].values:
        for index, weights in enumerate(data["weights"].values):
            pictures.draw_band(
                ax, data["layer"].values,
                pictures.curve(data.sel(network=network, weights=weights), name), next(colours),
                f"{network}, {weights}", linestyle=("-", "--")[index % 2],
            )  # fmt: skip
    ax.set_xscale("log")
    ax.set(ylim=(0.85, 1.3 * data.attrs["width"]))
    ax.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
