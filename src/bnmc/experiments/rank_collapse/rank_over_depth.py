"""TODO-DOC bnmc.experiments.rank_collapse.common.rank_over_depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as grams
from bnmc._support.progress import Progress
from bnmc.bounds import rank_collapse as bounds
from bnmc.chain.chain import Chain
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
    with_parameters,
)
from bnmc.experiments.rank_collapse.common import Float64Array, _interval
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre
from bnmc.regularity import ergodic
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_2"]

#: Eigenvalues of the Gram matrix below this part of the largest do not count in a numerical rank.
_TOLERANCE = 1e-12


class _Depths(NamedTuple):
    """Sizes of Fig. 2."""

    width: int
    depth: int
    chains: int
    activations: tuple[str, ...] = ("linear", "relu")
    weights: tuple[str, ...] = ("gaussian", "uniform")


_FIG_2 = _Depths(32, 2**12, 8), _Depths(32, 10**6, 10)


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

    The paper has width 32, batch 32, Gaussian inputs, linear and ReLU networks of up to a million
    layers, no skip connection, and 10 networks.  By default networks have 4096 layers; `full` has
    a million (a quarter of an hour on 2 cores).  Weights are Gaussian and uniform, and batch
    normalization centres, as in the authors' code.  Each point averages the layers since the one
    before.

    Vanilla networks collapse to rank one: of linear ones with Gaussian weights the Lyapunov
    exponents λ are known, and layer l keeps about as many directions as have
    ``2 l (λ₁ − λ_k) <= log 1e12`` (drawn).  Vanilla ReLU networks, with weights of variance 2/d so
    that their size is kept in the mean square, collapse as soon; their scale, which is lost all the
    same, is split off.  With batch normalization r settles above the bound
    ``2 √(1−α) √d`` that Theorem 14 has for small γ (drawn, with α measured), for both laws of
    weights.  The numerical rank of linear networks is then still falling; that of ReLU networks
    stays full, or nearly so.

    What the figure gets wrong: ``function_relu`` in the authors' code is tanh, so that its right
    panel shows a tanh network; and its rank is that of NumPy's ``matrix_rank``, whose threshold
    (here 7e-15 of the largest singular value) goes unsaid, though the rank is still falling.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_2()  # doctest: +SKIP
    >>> found.plot().savefig("fig_2.png")  # doctest: +SKIP
    """
    return _fig_2(chosen(_FIG_2, full), full, rng, progress, threads, store)


def _fig_2(
    sizes: _Depths,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d = sizes.width
    networks = ("batch norm", "vanilla")
    layers = _doublings(sizes.depth)
    shape = (len(sizes.activations), len(networks), len(sizes.weights), len(layers))
    bounds_of_rank, ranks = np.full((*shape, 3), np.nan), np.full((*shape, 3), np.nan)
    cases = list(np.ndindex(shape[:3]))
    with Parts(
        progress, "rank-collapse-2", [sizes.depth for _ in cases], sources, full, store
    ) as parts:
        for case in cases:
            name, weights = sizes.activations[case[0]], sizes.weights[case[2]]
            is_vanilla = networks[case[1]] == "vanilla"
            keeps_size = math.sqrt(2) if is_vanilla and name == "relu" else 1.0
            chain = Chain(
                d, d, name, norm="none" if is_vanilla else "batch", gain=keeps_size, weights=weights
            )
            found = parts.run(_averages_by_depth, chain, layers, sizes.chains, sources, threads)
            bounds_of_rank[case] = banded(found["rank_bound"])
            ranks[case] = banded(found["numerical_rank"])
        alpha = ergodic.constant(
            Chain(d, d, "linear"), chains=32, rng=sources.generator, threads=threads
        )
    lower = float(bounds.theorem_14(d, alpha.value, 0.0))
    exponents = lyapunov_ginibre(d)
    lost = 2 * layers[:, None] * (exponents[0] - exponents) > -math.log(_TOLERANCE)
    over = ("activation", "network", "weights", "layer")
    data = dataset(
        {
            **with_ends("rank_bound", over, bounds_of_rank, "r, the lower bound of the rank"),
            **with_ends(
                "numerical_rank",
                over, ranks, f"eigenvalues of G above {_TOLERANCE:g} of the largest"
            ),
            "theorem_14": Variable((), lower, "bound of r in Theorem 14, for tau = 0"),
            "vanilla_theory": Variable(
                ("layer",), (~lost).sum(axis=1), "directions that Lyapunov exponents leave"
            ),
        },
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "network": Variable(("network",), list(networks), "network", ""),
            "weights": Variable(("weights",), list(sizes.weights), "law of weights", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources,
        full,
        {"width": d, "batch": d, "chains": sizes.chains, "tolerance": _TOLERANCE,
         "alpha": alpha.value},
    )  # fmt: skip
    rows = []
    for case in cases:
        rows.append((
            sizes.activations[case[0]], networks[case[1]], sizes.weights[case[2]],
            int(layers[-1]), _interval(bounds_of_rank[case][-1]), _interval(ranks[case][-1]),
        ))  # fmt: skip
    table = Table(("activation", "network", "weights", "layer", "r", "rank at 1e-12"), tuple(rows))
    findings = tuple(
        f"{name}, {network}, {weights} weights: at layer {layer} r is {r} and the numerical rank "
        f"{rank}" + (f"; Theorem 14 has at least {lower:.2f} for small gamma." if
                     (name, network) == ("linear", "batch norm") else ".")
        for name, network, weights, layer, r, rank in rows
    )  # fmt: skip
    title = f"Rank over depth, width and batch {d}"
    return Experiment("rank-collapse-2", title, data, table, findings, _draw_2)


def _doublings(depth: int) -> NDArray[np.int64]:
    """1, 2, 4 … and the depth itself."""
    powers = 2 ** np.arange(depth.bit_length())
    return np.append(powers[powers < depth], depth)


def _averages_by_depth(
    chain: Chain, layers: NDArray[np.int64], chains: int, sources: Sources,
    threads: int | None, *, progress: Progress,
) -> dict[str, Float64Array]:  # fmt: skip
    """Go from layer to layer; average over those in between: (chains, layers) each."""
    start: Any = "gaussian"
    rng: Any = sources.generator
    found: dict[str, list[Float64Array]] = {"rank_bound": [], "numerical_rank": []}
    before = 0
    for layer in layers.tolist():
        every = max(1, (layer - before) // 16)
        # Weights are drawn, since a Gram matrix alone forgets what it does not resolve.
        run = simulate(
            chain, layer - before, chains=chains, initial=start, rng=rng, sampler="weights",
            observables="scaled_gram", every=every, burn_in=every, threads=threads,
        )  # fmt: skip
        found["rank_bound"].append(grams.rank_bound(run.scaled_gram).mean(axis=1))
        found["numerical_rank"].append(_numerical_rank(run.scaled_gram).mean(axis=1))
        start, rng, before = run.final_state, None, layer
        progress(layer, int(layers[-1]))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def _numerical_rank(G: Float64Array) -> NDArray[np.int64]:
    eigenvalues = np.linalg.eigvalsh(G)
    ranks: NDArray[np.int64] = (eigenvalues > _TOLERANCE * eigenvalues[..., -1:]).sum(axis=-1)
    return ranks


def _draw_2(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, data.sizes["activation"], 2, height=3.4)
    layers = data.layer.values
    for column, name in enumerate(data.activation.values):
        for row, (variable, label) in enumerate(
            (("numerical_rank", "numerical rank"), ("rank_bound", "$r$, lower bound of the rank"))
        ):
            ax = axes[row, column]
            ax.set_yscale("log", base=2)
            colours = iter(COLOURS)
            for first, network in enumerate(data.network.values):
                for second, weights in enumerate(data.weights.values):
                    draw_band(
                        ax, layers, curve(data, variable)[column, first, second], next(colours),
                        f"{network}, {weights}", linestyle=("-", "--")[second % 2],
                    )  # fmt: skip
            if name == "linear" and variable == "numerical_rank":
                ax.plot(
                    layers, data.vanilla_theory, ":", color="black",
                    label="vanilla, Lyapunov exponents",
                )  # fmt: skip
            if name == "linear" and variable == "rank_bound":
                ax.axhline(float(data.theorem_14), linestyle=":", color="black", label="Theorem 14")
            ax.set_xscale("log")
            ax.set(ylim=(0.85, 1.3 * data.attrs["width"]), ylabel=label)
            ax.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
            if row == 0:
                ax.set_title(f"{name} networks")
            else:
                ax.set_xlabel("layer")
            if column == 0:
                ax.legend(fontsize="x-small", loc="best" if row else "lower left")
    figure.suptitle(
        f"Rank over depth, width and batch {data.attrs['width']}: "
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
