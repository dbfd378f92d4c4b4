"""Figs. 2 and 7: the rank over depth, with and without batch normalization and its centring."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.bounds import orthogonalizes as gap_bounds
from bnmc.bounds import rank_collapse as bounds
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval, short_interval
from bnmc.gram import rank_bound
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre
from bnmc.regularity import constant
from bnmc.simulation.observables import Observable
from bnmc.simulation.run import simulate

# --- Fig. 2


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


class _RankSizes(NamedTuple):
    """Sizes of the figure.

    width: width and batch size; at width 2 batch norm leaves rank 1, and below 16 samples of a row
        may become equal with the activation abs or the weights rademacher
    """

    width: Annotated[int, {"low": 3}] = 32
    depth: int = 2**12
    chains: Several = 8
    activations: tuple[Builtin, ...] = ("linear", "relu")
    weights: tuple[Annotated[str, {"allowed": ("gaussian", "uniform", "rademacher")}], ...] = (
        "gaussian", "uniform",
    )  # fmt: skip


@kit.figure("rank-collapse-2", _RankSizes(), depth=10**6, chains=10)
def fig_2(run: Run, sizes: _RankSizes) -> Experiment:
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
                chain, layer - before, chains=sizes.chains, initial=start, rng=rng,
                sampler="weights", observables="scaled_gram", every=every, burn_in=every,
                threads=run.parallel.threads, executor=run.parallel.executor,
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
    alpha = constant(
        linear, chains=32, rng=run.generator, threads=run.parallel.threads,
        executor=run.parallel.executor,
    ).value  # fmt: skip
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
        Table((*per, "layer", "r", "rank at 1e-12"), tuple(rows)), findings, _draw_rank,
        width=d, batch=d, chains=sizes.chains, rtol=_TOLERANCE, alpha=alpha,
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


def _draw_rank(data: Dataset, figure: Drawing) -> None:
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


# --- Fig. 7's claim on the chain: the rank with and without centring


#: The variables of both quantities, with their descriptions and heads in the table.
_QUANTITIES = {
    "rank_bound": ("r, lower bound of the rank", "r"),
    "common_part": ("part of the squares that samples share", "common part"),
}

#: The variables of their theory.
_IN_THEORY = {"rank_bound": "rank_in_theory", "common_part": "common_part_in_theory"}


class _CentringSizes(NamedTuple):
    """Sizes of the figure.

    width: width; in narrower relu networks without centring all neurons may become 0
    batch: batch size; one of the networks has one sample less
    depth: number of layers, of which averages are over the second half
    """

    width: Annotated[int, {"low": 40}] = 128
    batch: Annotated[int, {"low": 3}] = 16
    depth: int = 120
    chains: Several = 100


@kit.figure("rank-collapse-centring", _CentringSizes(), width=512, batch=32, depth=400, chains=1000)
def centring(run: Run, sizes: _CentringSizes) -> Experiment:
    r"""Fig. 7's claim on the chain: the effect of centring on the rank.

    The paper drops the mean from batch normalization, argues that rows are centred on average under
    the stationary law (Lemma 4), and shows in Fig. 7 that a VGG net trains as well without
    centring.  Here r is measured with and without centring over depth, for linear and ReLU networks
    that start from nearly equal samples.  Width d and batch size n are 128 and 16 (512 and 32 with
    `full`).

    For linear networks the claim holds, exactly: centring removes one dimension.  The law of the
    centred chain is that of the uncentred chain with one sample less, and
    ``E 1/r = 1/m + E V² ≃ 1/m + (m−1)(m+2)²/(4m(m+1)d)``, with V the orthogonality gap and m =
    n − 1 or n (drawn).  Without centring, the squared mean of a row is on average 1/n of its mean
    square, as for any other direction.

    For ReLU networks the claim fails.  Without centring all samples have a common part, which the
    fixed point of the mean field describes (drawn).  As the batch size grows, r tends to 1/c*², and
    centring reduces the correlations c* from about .5 to .3.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.centring()  # doctest: +SKIP
    >>> found.plot().savefig("centring.png")  # doctest: +SKIP
    """
    d, n, half = sizes.width, sizes.batch, sizes.depth // 2
    cases = {
        "linear, centred": Chain(d, n, "linear"),
        "linear, uncentred": Chain(d, n, "linear", norm="batch-uncentred"),
        "linear, uncentred, one sample less": Chain(d, n - 1, "linear", norm="batch-uncentred"),
        "relu, centred": Chain(d, n, "relu"),
        "relu, uncentred": Chain(d, n, "relu", norm="batch-uncentred"),
    }
    results = kit.Results(
        run, case=kit.Axis(cases, "network", ""), layer=np.arange(sizes.depth + 1)
    )
    per = ("case",)

    def ranks_and_common_parts(case: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return r and the part of the squares that samples share, (networks, layers)."""
        measured = simulate(
            cases[case], sizes.depth, chains=sizes.chains, initial="collinear",
            observables=["rank_bound", Observable(_common_part, name="common_part")],
            **run.options(progress),
        )  # fmt: skip
        return measured["rank_bound"], measured["common_part"]

    parts = run.parts(ranks_and_common_parts, results.points(*per))
    theory = {(case,): _in_theory(chain) for case, chain in cases.items()}
    columns = {}
    for place, (name, (text, head)) in enumerate(_QUANTITIES.items()):
        samples = kit.entry(parts, place)
        results.add_means(name, ("case", "layer"), samples, text)
        deep = kit.each(samples, lambda values: values[:, half:].mean(axis=1))
        columns[head] = results.column(per, kit.each(deep, Estimate.from_samples))
        columns[f"{head} in theory"] = results.add(
            _IN_THEORY[name], per, kit.entry(theory, place), f"{head} in theory"
        )
    ranks = list(map(interval, columns["r"].values))
    stars = columns["r in theory"].values
    findings = (
        f"Linear: centred r is {ranks[0]}, uncentred {ranks[1]}, and with "
        f"one sample less {ranks[2]}: the law of the centred one.",
        f"ReLU: centred r is {ranks[3]} (fixed point {stars[3]:.3f}), uncentred "
        f"{ranks[4]} (fixed point {stars[4]:.3f}).",
    )
    return results.experiment(
        f"Rank with and without centring, width {d}, batch {n}",
        kit.table_of(columns, ("network",)), findings, _draw_centring, width=d, batch=n,
        chains=sizes.chains, start="nearly equal samples", settled_from_layer=half,
    )  # fmt: skip


def _common_part(G: Float64Array) -> float:
    """Return ``1ᵀ G 1 / (n Tr G)``: the squared mean over samples, relative to the mean square."""
    return float(G.sum() / (len(G) * np.trace(G)))


def _in_theory(chain: Chain) -> tuple[float, float]:
    """Return the stationary r and common part.

    For linear networks r is to order 1/d, and the common part is exact, by symmetry.  For other
    networks both are those of infinite width.
    """
    if chain.activation.name == "linear":
        norm = chain.normalization
        m = norm.dimensions(chain.batch)
        inverse = 1 / m + float(gap_bounds.stationary_squared_gap(chain.width, m))
        return 1 / inverse, 0.0 if norm.hides_common_part else 1 / chain.batch
    star = MeanField(chain).fixed_point().gram
    return float(rank_bound(star)), _common_part(star)


def _draw_centring(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 3, width=4.6)[0]
    near = data.sel(layer=slice(60))
    for case, colour in zip(data["case"].values, COLOURS, strict=False):
        activation, label = case.split(", ", 1)
        style = "--" if "less" in case else "-"
        ax = axes[0] if activation == "linear" else axes[1]
        for panel, name, text in ((ax, "rank_bound", label), (axes[2], "common_part", case)):
            values = pictures.curve(near.sel(case=case), name)
            pictures.draw_band(panel, near["layer"].values, values, colour, text, linestyle=style)
            theory = float(data[_IN_THEORY[name]].sel(case=case))
            panel.axhline(theory, color=colour, linestyle=":", linewidth=1)
    axes[0].plot([], [], ":", color="grey", label="theory, order $1/d$")
    axes[1].plot([], [], ":", color="grey", label=r"fixed point, $d = \infty$")
    bound = "$r$, lower bound of the rank"
    for ax, title, y, ends in (
        (axes[0], "linear", bound, (0, None)), (axes[1], "relu", bound, (0, None)),
        (axes[2], "what samples share", "part of squares", (-0.02, 1.02)),
    ):  # fmt: skip
        ax.set(title=title, xlabel="layer", ylabel=y, ylim=ends)
        ax.legend(fontsize="small")
    text = "Batch norm with and without centring, width {width}, batch {batch}"
    figure.suptitle(pictures.about(data, text))
