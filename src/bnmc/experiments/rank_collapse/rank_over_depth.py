"""Fig. 2: the rank over depth, with and without batch normalization."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.bounds import rank_collapse as bounds
from bnmc.chain.chain import Chain
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, short_interval
from bnmc.gram import rank_bound
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre
from bnmc.regularity import constant
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_2"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width (also the batch size), layers, networks, activations, and laws of weights."""

    width: int
    depth: int
    chains: int
    activations: tuple[str, ...] = ("linear", "relu")
    weights: tuple[str, ...] = ("gaussian", "uniform")


DEFAULT = Sizes(32, 2**12, 8)
FULL = Sizes(32, 10**6, 10)

#: The numerical rank counts eigenvalues of the Gram matrix above this multiple of the largest.
_TOLERANCE = 1e-12

_NETWORKS = ("batch norm", "vanilla")


@with_parameters
def fig_2(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    as soon.  With batch normalization r stays above ``2 √(1−α) √d``, the bound of Theorem 14 for
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
    call = Call("rank-collapse-2", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Layers, both ranks, and the regularity constant α.

    Ranks have the shape (activations, networks, laws of weights, layers, 3).
    """

    layers: NDArray[np.int64]
    rank_bounds: Float64Array
    ranks: Float64Array
    alpha: float


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    lower = float(bounds.theorem_14(sizes.width, found.alpha, 0.0))
    rows = tuple(
        (
            name, network, weights, int(found.layers[-1]),
            short_interval(found.rank_bounds[i, j, k, -1]),
            short_interval(found.ranks[i, j, k, -1]),
        )
        for i, name in enumerate(sizes.activations)
        for j, network in enumerate(_NETWORKS)
        for k, weights in enumerate(sizes.weights)
    )  # fmt: skip
    findings = tuple(
        f"{name}, {network}, {weights} weights: at layer {layer} r is {r} and the numerical rank "
        f"{rank}" + (f"; Theorem 14: at least {lower:.2f} for small gamma." if
                     (name, network) == ("linear", "batch norm") else ".")
        for name, network, weights, layer, r, rank in rows
    )  # fmt: skip
    return Experiment(
        call.name,
        f"Rank over depth, width and batch {sizes.width}",
        _data(sizes, call, found, lower),
        Table(("activation", "network", "weights", "layer", "r", "rank at 1e-12"), rows),
        findings,
        _draw,
    )


def _measure(sizes: Sizes, call: Call) -> _Measured:
    d, layers = sizes.width, _doublings(sizes.depth)
    shape = (len(sizes.activations), len(_NETWORKS), len(sizes.weights))
    rank_bounds, ranks = (np.full((*shape, len(layers), 3), np.nan) for _ in range(2))
    cases = list(np.ndindex(shape))
    with call.parts([sizes.depth for _ in cases]) as parts:
        for case in cases:
            name, weights = sizes.activations[case[0]], sizes.weights[case[2]]
            is_vanilla = _NETWORKS[case[1]] == "vanilla"
            gain = math.sqrt(2) if is_vanilla and name == "relu" else 1.0  # keeps the mean square
            norm = "none" if is_vanilla else "batch"
            chain = Chain(d, d, name, norm=norm, gain=gain, weights=weights)
            found = parts.run(_averages_by_depth, chain, layers, sizes.chains, call)
            rank_bounds[case] = banded(found["rank_bound"])
            ranks[case] = banded(found["numerical_rank"])
        alpha = constant(
            Chain(d, d, "linear"), chains=32, rng=call.generator, threads=call.threads
        )  # fmt: skip
    return _Measured(layers, rank_bounds, ranks, alpha.value)


def _doublings(depth: int) -> NDArray[np.int64]:
    """Return the powers of 2 below the depth, and the depth itself."""
    powers = 2 ** np.arange(depth.bit_length())
    return np.append(powers[powers < depth], depth)


def _averages_by_depth(
    chain: Chain, layers: NDArray[np.int64], chains: int, call: Call, *, progress: Progress
) -> dict[str, Float64Array]:
    """Return both ranks, (chains, layers), averaged between each two of the layers."""
    start: Any = "gaussian"
    rng: Any = call.generator
    found: dict[str, list[Float64Array]] = {"rank_bound": [], "numerical_rank": []}
    before = 0
    for layer in layers.tolist():
        every = max(1, (layer - before) // 16)
        # Draws the weights, because a Gram matrix does not resolve its small eigenvalues.
        run = simulate(
            chain, layer - before, chains=chains, initial=start, rng=rng, sampler="weights",
            observables="scaled_gram", every=every, burn_in=every, threads=call.threads,
        )  # fmt: skip
        found["rank_bound"].append(rank_bound(run.scaled_gram).mean(axis=1))
        found["numerical_rank"].append(_numerical_rank(run.scaled_gram).mean(axis=1))
        start, rng, before = run.final_state, None, layer
        progress(layer, int(layers[-1]))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def _numerical_rank(G: Float64Array) -> NDArray[np.int64]:
    eigenvalues = np.linalg.eigvalsh(G)
    ranks: NDArray[np.int64] = (eigenvalues > _TOLERANCE * eigenvalues[..., -1:]).sum(axis=-1)
    return ranks


def _data(sizes: Sizes, call: Call, found: _Measured, lower: float) -> xarray.Dataset:
    d, layers = sizes.width, found.layers
    exponents = lyapunov_ginibre(d)
    lost = 2 * layers[:, None] * (exponents[0] - exponents) > -math.log(_TOLERANCE)
    over = ("activation", "network", "weights", "layer")
    return dataset(
        {
            **with_ends("rank_bound", over, found.rank_bounds, "r, the lower bound of the rank"),
            **with_ends(
                "numerical_rank", over, found.ranks,
                f"eigenvalues of G above {_TOLERANCE:g} of the largest",
            ),
            "theorem_14": Variable((), lower, "bound of r in Theorem 14, for tau = 0"),
            "vanilla_theory": Variable(
                ("layer",), (~lost).sum(axis=1), "directions that Lyapunov exponents leave"
            ),
        },
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "network": Variable(("network",), list(_NETWORKS), "network", ""),
            "weights": Variable(("weights",), list(sizes.weights), "law of weights", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        call,
        {
            "width": d, "batch": d, "chains": sizes.chains, "tolerance": _TOLERANCE,
            "alpha": found.alpha,
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, data.sizes["activation"], 2, height=3.4)
    for column, name in enumerate(data.activation.values):
        one = data.isel(activation=column)
        ranks, rank_bounds = axes[:, column]
        _draw_networks(ranks, one, "numerical_rank")
        _draw_networks(rank_bounds, one, "rank_bound")
        if name == "linear":
            ranks.plot(
                data.layer.values, data.vanilla_theory, ":", color="black",
                label="vanilla, Lyapunov exponents",
            )  # fmt: skip
            rank_bounds.axhline(
                float(data.theorem_14), linestyle=":", color="black", label="Theorem 14"
            )
        ranks.set(ylabel="numerical rank", title=f"{name} networks")
        rank_bounds.set(ylabel="$r$, lower bound of the rank", xlabel="layer")
        if column == 0:
            ranks.legend(fontsize="x-small", loc="lower left")
            rank_bounds.legend(fontsize="x-small", loc="best")
    figure.suptitle(
        f"Rank over depth, width and batch {data.attrs['width']}: "
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )


def _draw_networks(ax: Axes, data: xarray.Dataset, variable: str) -> None:
    """Draw a rank over depth, one colour per network and law of weights."""
    ax.set_yscale("log", base=2)
    colours = iter(COLOURS)
    for first, network in enumerate(data.network.values):
        for second, weights in enumerate(data.weights.values):
            draw_band(
                ax, data.layer.values, curve(data, variable)[first, second], next(colours),
                f"{network}, {weights}", linestyle=("-", "--")[second % 2],
            )  # fmt: skip
    ax.set_xscale("log")
    ax.set(ylim=(0.85, 1.3 * data.attrs["width"]))
    ax.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
