"""The figures of *Batch normalization provably avoids rank collapse*, on the chain.

Daneshmand, Kohler, Bach, Hofmann and Lucchi, arXiv 2003.01652.  The chain is
``H₊ = BN(H + γ W H)``, `bnmc.Chain.bn_residual`, with W of unit variance; γ = ∞ stands for no skip
connection.  ``M = H Hᵀ / N`` has, up to zeros, d/N times the eigenvalues of the Gram matrix: the
same ones where N = d, as in all figures here but `centring`.  ``r(H) = (Tr M)²/‖M‖_F²`` bounds the
rank from below.

A rank needs a threshold.  Three are in use here: the soft rank counts eigenvalues of M of at least
1/2, the numerical rank those of at least 1e-12 of the largest (so singular values of 1e-6), and r
needs none.  The small eigenvalues fall for ever, exponentially in depth, with batch normalization
as well: a numerical rank goes on falling where r and the soft rank have settled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as grams
from bnmc import regularity
from bnmc._progress import Progress
from bnmc.bounds import orthogonalizes as gap_bounds
from bnmc.bounds import rank_collapse as bounds
from bnmc.chain import Chain
from bnmc.estimate import Estimate
from bnmc.experiments._common import (
    banded,
    chosen,
    curve,
    draw_band,
    ends,
    label_widths,
    logarithmic,
    with_ends,
)
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
from bnmc.mean_field import MeanField
from bnmc.observables import Observable
from bnmc.plot import COLOURS, estimates
from bnmc.random_matrix import lyapunov_ginibre, lyapunov_residual, lyapunov_residual_estimate
from bnmc.simulation import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["centring", "fig_2", "fig_3a", "fig_3b", "fig_8", "fig_9", "lemma_3"]

Float64Array = NDArray[np.float64]

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
        alpha = regularity.constant(
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


class _Gamma(NamedTuple):
    """One strength of the weights: widths, networks, target of the standard error, most layers."""

    gamma: float
    widths: tuple[int, ...]
    chains: int
    rtol: float = 0.01
    depth: int = 200_000


_ENSEMBLES = (
    (
        _Gamma(math.inf, (8, 16, 32, 64, 128), 64),
        _Gamma(1.0, (8, 16, 32), 16, 0.03),
        _Gamma(0.1, (8, 16), 8, 0.03),
    ),
    (
        _Gamma(math.inf, (8, 16, 32, 64, 128, 256), 64),
        _Gamma(1.0, (8, 16, 32, 64, 128), 16),
        _Gamma(0.1, (8, 16, 32, 64), 16, 0.02, 10**6),
        _Gamma(0.01, (8, 16, 32), 8, 0.03, 10**7),
    ),
)


@with_parameters
def fig_3a(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 3a: the rank of deep layers against the width, for several γ.

    The paper has batch n = d, widths 8 to 256 and γ down to .01, averages of the soft rank over a
    million layers of one network, and the curve √d beside them.  Here independent networks are
    averaged over depth once they have settled: γ = ∞ (no skip connection) up to width 128, γ = 1
    to 32, γ = .1 to 16.  `full` goes to 256, 128, 64, and to γ = .01 up to 32, in some tens of
    minutes: the chain needs 1/γ² times as many layers to settle.

    Both grow somewhat faster than √d at these widths, r with a slope of .55 and the soft rank with
    .64, with little difference between the γ; r lies above the bound ``2 √(1−α) √d`` of Theorem 14
    with the measured α (lines), which itself has a slope of .61, as α falls.

    What the figure gets wrong: the authors' code averages two ranks in one list, NumPy's
    ``matrix_rank`` and the number of eigenvalues above 1e-9, whose thresholds differ by six orders
    of magnitude, where the text has the soft rank.  It iterates M itself, which over 10⁵ layers
    loses symmetry and positivity, so that ``matrix_rank`` is 6.7 where H Hᵀ, with the same weights,
    has 4.7 (width 8, γ = .01, a million layers); r is the same.  And its horizontal axis, labelled
    d, is √d.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3a()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3a.png")  # doctest: +SKIP
    """
    return _fig_3a(chosen(_ENSEMBLES, full), full, rng, progress, threads, store)


def _fig_3a(
    groups: tuple[_Gamma, ...], full: bool, rng: Any, progress: bool | Progress,
    threads: int | None, store: Store = None,
) -> Experiment:  # fmt: skip
    sources = Sources(rng)
    found = _measured(groups, "rank-collapse-3a", sources, full, progress, threads, store)
    names = {"rank_bound": "r, lower bound of the rank", "soft_rank": "soft rank, tau = 1/2"}
    slopes = {name: [_slope(one, name) for one in found] for name in names}
    alphas = _table_of(found, "alpha")[..., 0]
    widths = _widths(found)
    with np.errstate(invalid="ignore"):
        theory = 2 * np.sqrt(1 - alphas) * np.sqrt(widths)
    data = _dataset_of(
        found, groups, names, sources, full,
        {
            "theorem_14": Variable(("gamma", "width"), theory, "bound of r in Theorem 14"),
            **with_ends(
                "rank_bound_slope",
                ("gamma",), ends(slopes["rank_bound"]), "slope of log r in log d"
            ),
            **with_ends(
                "soft_rank_slope",
                ("gamma",), ends(slopes["soft_rank"]), "slope of the log soft rank in log d"
            ),
        },
    )  # fmt: skip
    table = Table(
        ("gamma", "width", "r", "soft rank", "bound of r"),
        tuple(
            (_gamma_name(one), average.chain.width, average.rank_bound, average.soft_rank,
             float(bounds.theorem_14(average.chain.width, min(average.alpha.value, 1 - 1e-9), 0)))
            for one in found for average in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {_gamma_name(one)}: r grows with a slope of {interval(fitted)} in the "
        f"width, the soft rank with {interval(soft)}; the theorem has 1/2."
        for one, fitted, soft in zip(found, slopes["rank_bound"], slopes["soft_rank"], strict=True)
    )
    return Experiment(
        "rank-collapse-3a", "Rank against width, batch = width", data, table, findings, _draw_3a
    )


def _measured(
    groups: tuple[_Gamma, ...], label: str, sources: Sources, full: bool,
    progress: bool | Progress, threads: int | None, store: Store,
) -> list[regularity.Figures]:  # fmt: skip
    """Average over the invariant law at each γ and width."""
    costs = [
        group.chains * sum(d**1.5 * (d + 30) for d in group.widths) * (1 + group.gamma**-2)
        for group in groups
    ]
    found = []
    with Parts(progress, label, costs, sources, full, store) as parts:
        for group in groups:
            found.append(
                parts.run(
                    regularity.figures, group.widths, gamma=group.gamma, chains=group.chains,
                    rtol=group.rtol,
                    depth=group.depth, rng=sources.generator, threads=threads,
                )
            )  # fmt: skip
    return found


def _widths(found: list[regularity.Figures]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([one.widths for one in found]))


def _table_of(found: list[regularity.Figures], name: str) -> Float64Array:
    """Estimates by γ and width, (γ, widths, 3), NaN where there are none."""
    widths = _widths(found)
    table = np.full((len(found), len(widths), 3), np.nan)
    for row, one in zip(table, found, strict=True):
        row[np.isin(widths, one.widths)] = ends(getattr(part, name) for part in one.averages)
    return table


def _slope(found: regularity.Figures, name: str) -> Estimate:
    values = [getattr(one, name) for one in found.averages]
    return slope(found.widths, values, method="weighted least squares of logs")


def _dataset_of(
    found: list[regularity.Figures], groups: tuple[_Gamma, ...], names: dict[str, str],
    sources: Sources, full: bool, others: dict[str, Variable],
) -> xarray.Dataset:  # fmt: skip
    measured: dict[str, Variable] = {}
    for name, label in names.items():
        measured |= with_ends(name, ("gamma", "width"), _table_of(found, name), label)
    return dataset(
        measured | others,
        {
            "gamma": Variable(("gamma",), [one.gamma for one in found], "strength of the weights"),
            "width": Variable(("width",), _widths(found), "width and batch"),
        },
        sources,
        full,
        {"chains": [group.chains for group in groups], "tau": found[0].averages[0].tau,
         "layers": [average.layers[1] for one in found for average in one.averages]},
    )  # fmt: skip


def _gamma_name(found: regularity.Figures) -> str:
    return "inf" if math.isinf(found.gamma) else f"{found.gamma:g}"


def _gamma_label(gamma: float) -> str:
    return r"$\gamma = \infty$" if math.isinf(gamma) else rf"$\gamma = {gamma:g}$"


_MARKERS = "osv^D"


def _draw_widths(ax: Axes, data: xarray.Dataset, name: str) -> None:
    """Draw a quantity against the width, one colour a γ."""
    widths, shared = data.width.values, np.isfinite(data[name].values).sum(axis=0) > 1
    for index, gamma in enumerate(data.gamma.values):
        found = curve(data, name)[index]
        there = np.isfinite(found[:, 0])
        # Points that agree would hide each other.
        beside = np.where(shared, 1.04 ** (index - len(data.gamma) // 2), 1.0) * widths
        estimates(
            ax, beside[there], *found[there].T,
            colour=COLOURS[index % len(COLOURS)], fmt=_MARKERS[index % 5],
            label=_gamma_label(gamma),
        )  # fmt: skip


def _draw_3a(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    widths = data.width.values
    for ax, name in ((left, "rank_bound"), (right, "soft_rank")):
        _draw_widths(ax, data, name)
        ax.plot(widths, np.sqrt(widths), "--", color="black", linewidth=1, label=r"$\sqrt{d}$")
        logarithmic(ax)
        label_widths(ax, widths)
        ax.set(ylabel=data[name].attrs["long_name"].replace("tau = 1/2", r"$\tau = 1/2$"))
    for index, theory in enumerate(data.theorem_14.values):
        left.plot(widths, theory, ":", color=COLOURS[index % len(COLOURS)])
    left.plot([], [], ":", color="grey", label=r"bound $2\sqrt{1-\alpha}\sqrt{d}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle("Rank of deep layers against width, batch = width: 95 % intervals")


class _Spectrum(NamedTuple):
    """Sizes of Fig. 3b; `shown` eigenvalues are drawn."""

    width: int
    depth: int
    chains: int
    shown: int = 10


_FIG_3B = _Spectrum(50, 100, 64), _Spectrum(50, 100, 500)


@with_parameters
def fig_3b(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 3b: the ten largest eigenvalues of M over depth, from nearly equal samples.

    The paper has width and batch 50 and 100 layers of one network; its input is a constant
    matrix of about 50 plus noise of 1e-5, and γ is .01 with weights of standard deviation 100, so
    1.  Here are 64 networks, and 500 with `full`.

    All but the largest eigenvalue start near 1e-13 and rise, the first of them within ten layers;
    the largest falls from d.  They come to what the chain has from Gaussian inputs (strokes at the
    right): it forgets its start, one eigenvalue after the other.

    What the figure gets wrong: the authors' code iterates M itself in float64, and the small
    eigenvalues of the print are those of rounding errors.  By layer 5 its tenth eigenvalue is 30
    times too large, by layer 10 a thousand times, and until layer 100 it hides how slowly the
    directions come back; the largest two are right.  Iterating H with the same weights, in float64
    or longer, gives what is shown here.  The authors also write ``x @ x.T`` for a vector, which is
    a number, so that their input is constant but for the noise, and their first M has no unit
    diagonal.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3b()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3b.png")  # doctest: +SKIP
    """
    return _fig_3b(chosen(_FIG_3B, full), full, rng, progress, threads, store)


def _fig_3b(
    sizes: _Spectrum,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d = sizes.width
    chain = Chain.bn_residual(d, d, gamma=1.0)
    noise = sources.generator.standard_normal((sizes.chains, d, d))
    with Parts(progress, "rank-collapse-3b", [1, 2], sources, full, store) as parts:
        run = parts.run(
            simulate, chain, sizes.depth, initial=d + 1e-5 * noise, sampler="weights",
            observables="eigenvalues", rng=sources.generator, threads=threads,
        )  # fmt: skip
        settled = parts.run(
            simulate, chain, 4 * sizes.depth, burn_in=2 * sizes.depth, every=4, chains=sizes.chains,
            observables="eigenvalues", rng=sources.generator, threads=threads,
        )  # fmt: skip
    eigenvalues = run["eigenvalues"]
    logs = _largest_logs(eigenvalues, sizes.shown)
    levels = np.exp(banded(_largest_logs(settled["eigenvalues"], sizes.shown).mean(axis=1)))
    r = banded(np.square(eigenvalues.sum(axis=-1)) / np.square(eigenvalues).sum(axis=-1))
    data = dataset(
        {
            **with_ends(
                "eigenvalue",
                ("layer", "mode"), np.exp(banded(logs)),
                "eigenvalues of M, geometric mean",
            ),
            **with_ends(
                "settled",
                ("mode",), levels, "the same from Gaussian inputs, deep layers"
            ),
            **with_ends("rank_bound", ("layer",), r, "r, lower bound of the rank"),
        },
        {
            "layer": Variable(("layer",), run.layers, "layer"),
            "mode": Variable(("mode",), np.arange(1, sizes.shown + 1), "eigenvalue, largest first"),
        },
        sources,
        full,
        {"width": d, "batch": d, "gamma": 1.0, "chains": sizes.chains,
         "start": f"{d} plus noise of 1e-5"},
    )  # fmt: skip
    found = curve(data, "eigenvalue")
    first, tenth, last = found[[0, 10, sizes.depth]]
    table = Table(
        ("eigenvalue", "layer 0", "layer 10", "last layer", "from Gaussian inputs"),
        tuple(
            (mode + 1, first[mode, 0], tenth[mode, 0], _interval(last[mode]),
             _interval(levels[mode]))
            for mode in range(sizes.shown)
        ),
    )  # fmt: skip
    findings = (
        f"The second eigenvalue rises from {first[1, 0]:.1e} to {tenth[1, 0]:.2f} in ten layers, "
        f"while the largest falls from {first[0, 0]:.1f} to {tenth[0, 0]:.1f}.",
        f"At layer {sizes.depth} the largest is {_interval(last[0])} and the second "
        f"{_interval(last[1])}; from Gaussian inputs {_interval(levels[0])} and "
        f"{_interval(levels[1])}.",
        f"r rises from {r[0, 0]:.2f} to {_interval(r[-1])}.",
    )
    title = f"Largest eigenvalues of M from nearly equal samples, width and batch {d}"
    return Experiment("rank-collapse-3b", title, data, table, findings, _draw_3b)


def _largest_logs(eigenvalues: Float64Array, count: int) -> Float64Array:
    """Logarithms of the largest eigenvalues, of ascending ones: largest first."""
    logs: Float64Array = np.log(np.maximum(eigenvalues[..., : -count - 1 : -1], _SMALLEST))
    return logs


_SMALLEST = float(np.finfo(np.float64).tiny)


def _draw_3b(data: xarray.Dataset, figure: Figure) -> None:
    from matplotlib import colormaps

    ((ax,),) = axes_of(figure, 1, width=7.6, height=4.8)
    ax.set_yscale("log")
    layers = data.layer.values
    colours = colormaps["viridis"](np.linspace(0, 0.9, data.sizes["mode"]))
    for index, (mode, colour) in enumerate(zip(data.mode.values, colours, strict=True)):
        draw_band(ax, layers, curve(data, "eigenvalue")[:, index], colour, rf"$\lambda_{{{mode}}}$")
        ax.plot(layers[[-1]] * [1.01, 1.06], data.settled.values[[index, index]], color=colour)
    ax.plot([], [], color="grey", label="from Gaussian\ninputs (right)")
    ax.set(
        xlabel="layer",
        ylabel="eigenvalues of $M$, geometric mean",
        ylim=(1e-14, 100),
    )
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(
        f"Largest eigenvalues of $M$ from nearly equal samples, width and batch "
        f"{data.attrs['width']}:\nmean of {data.attrs['chains']} networks, 95 % interval"
    )


@with_parameters
def fig_8(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 8: the regularity constant of the invariant law against the width.

    ``α = E Tr(diag(M²)²) / E Tr(M³)`` (Definition 3), by averages over depth, batch n = d.  The
    paper does not print its γ or its number of layers.  Sizes here are those of `fig_3a`.

    α falls with the width, and is below .9 for d > 10, as the paper says: at γ = ∞ from .912 at
    width 8 to .833 at 128.  The text proves α < 1 under an invariant law only; by Cauchy–Schwarz
    it is at most 1 under every law (drawn).  Small γ have the same α to within a few percent.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_8()  # doctest: +SKIP
    >>> found.plot().savefig("fig_8.png")  # doctest: +SKIP
    """
    return _fig_8(chosen(_ENSEMBLES, full), full, rng, progress, threads, store)


def _fig_8(
    groups: tuple[_Gamma, ...], full: bool, rng: Any, progress: bool | Progress,
    threads: int | None, store: Store = None,
) -> Experiment:  # fmt: skip
    sources = Sources(rng)
    found = _measured(groups, "rank-collapse-8", sources, full, progress, threads, store)
    data = _dataset_of(found, groups, {"alpha": "regularity constant"}, sources, full, {})
    table = Table(
        ("gamma", "width", "alpha"),
        tuple(
            (_gamma_name(one), part.chain.width, part.alpha)
            for one in found for part in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {_gamma_name(one)}: alpha falls from {interval(one.averages[0].alpha)} at "
        f"width {one.widths[0]} to {interval(one.averages[-1].alpha)} at {one.widths[-1]}; "
        "the paper has less than .9 for widths above 10."
        for one in found
    )
    title = "Regularity constant against width, batch = width"
    return Experiment("rank-collapse-8", title, data, table, findings, _draw_8)


def _draw_8(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    _draw_widths(ax, data, "alpha")
    ax.axhline(1.0, color="black", linewidth=1)
    ax.annotate(
        "largest there is (Lemma 10)", (0.98, 1.0), xycoords=("axes fraction", "data"), ha="right",
        va="top", xytext=(0, -3), textcoords="offset points", fontsize="small",
    )  # fmt: skip
    ax.axhline(0.9, color="grey", linestyle="--", linewidth=1, label="paper: below it for $d > 10$")
    label_widths(ax, data.width.values)
    ax.set(ylabel=r"regularity constant $\alpha$", ylim=(None, 1.02))
    # Between the two lines, to the right, where alpha is small.
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.72), fontsize="small")
    ax.set_title("Regularity constant of the invariant law, batch = width:\n95 % intervals")


@with_parameters
def fig_9(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 9: the mean of ``‖M‖_F²`` under the invariant law against ``d^{3/2}``.

    Sizes are those of `fig_3a`; the paper does not print its own.

    ``E‖M‖_F²`` grows a little slower than ``d^{3/2}``, as α falls: at γ = ∞ it is 1.30 d^{3/2} at
    width 8 and 1.17 at 32.  Lemma 13 bounds it by ``d^{3/2}/(2√(1−α))`` for small γ; with the
    measured α the bound (drawn) holds at γ = ∞ as well.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_9()  # doctest: +SKIP
    >>> found.plot().savefig("fig_9.png")  # doctest: +SKIP
    """
    return _fig_9(chosen(_ENSEMBLES, full), full, rng, progress, threads, store)


def _fig_9(
    groups: tuple[_Gamma, ...], full: bool, rng: Any, progress: bool | Progress,
    threads: int | None, store: Store = None,
) -> Experiment:  # fmt: skip
    sources = Sources(rng)
    found = _measured(groups, "rank-collapse-9", sources, full, progress, threads, store)
    slopes = [_slope(one, "squared_norm") for one in found]
    alphas = _table_of(found, "alpha")[..., 0]
    theory = _widths(found) ** 1.5 / (2 * np.sqrt(1 - alphas))
    data = _dataset_of(
        found, groups,
        {"squared_norm": "mean of the squared norm of M", "alpha": "regularity constant"},
        sources, full,
        {
            "lemma_13": Variable(("gamma", "width"), theory, "bound of Lemma 13, alpha measured"),
            **with_ends("slope", ("gamma",), ends(slopes), "slope of log E|M|^2 in log d"),
        },
    )  # fmt: skip
    table = Table(
        ("gamma", "width", "E|M|^2", "over d^1.5", "Lemma 13 over d^1.5"),
        tuple(
            (_gamma_name(one), part.chain.width, part.squared_norm, part.scaled_norm,
             0.5 / math.sqrt(1 - part.alpha.value))
            for one in found for part in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {_gamma_name(one)}: E|M|^2 grows with a slope of {interval(fitted)} in the "
        f"width, 3/2 in the bound of Lemma 13 at one alpha; at width {one.widths[-1]} it is "
        f"{one.averages[-1].scaled_norm.value:.3f} d^1.5, at most "
        f"{0.5 / math.sqrt(1 - one.averages[-1].alpha.value):.3f} by the lemma."
        for one, fitted in zip(found, slopes, strict=True)
    )
    title = "Mean square of M against width, batch = width"
    return Experiment("rank-collapse-9", title, data, table, findings, _draw_9)


def _draw_9(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    widths = data.width.values
    scale = widths**1.5
    scaled = data.assign(
        {name: data[name] / data.width**1.5 for name in data if str(name).startswith("squared")}
    )
    for ax, source, unit in ((left, data, 1.0), (right, scaled, scale)):
        _draw_widths(ax, source, "squared_norm")
        for index, theory in enumerate(data.lemma_13.values):
            ax.plot(widths, theory / unit, ":", color=COLOURS[index % len(COLOURS)])
        ax.plot([], [], ":", color="grey", label="Lemma 13, $\\alpha$ measured")
        label_widths(ax, widths)
    left.plot(widths, scale, "--", color="black", linewidth=1, label="$d^{3/2}$")
    logarithmic(left)
    left.set(ylabel=r"$E\,\|M\|_F^2$", title="As in the paper")
    right.set(ylabel=r"$E\,\|M\|_F^2 \,/\, d^{3/2}$", title="In units of $d^{3/2}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle(r"Mean square of $M$ against width, batch = width: 95 % intervals")


class _Collapse(NamedTuple):
    """Sizes of `lemma_3`; angles are measured as far as float64 resolves them."""

    width: int
    gamma: float
    depth: int
    angle_depth: int
    chains: int


_LEMMA_3 = _Collapse(16, 0.25, 256, 96, 200), _Collapse(16, 0.25, 256, 96, 1000)


@with_parameters
def lemma_3(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Lemma 3: vanilla linear networks collapse to rank one, with and without a residual branch.

    The paper has the statement and no figure.  Width and batch 16, the identity as input, without a
    skip connection and with ``I + γ W``, γ = 1/4 (so that both parts have one size), Gaussian and
    uniform weights; 200 networks, and 1000 with `full`.

    Two samples align at twice the gap of the two largest Lyapunov exponents a layer: with Gaussian
    weights and orthogonal inputs ``E log sin² = 2 l (λ₂ − λ₁)`` exactly at every layer l, with
    the residual branch as well, since the volume that k samples span grows by independent factors.
    The exponents are ``ψ``'s without the branch (`lyapunov_ginibre`); with it the first is known,
    and the second is estimated from its exact law (`lyapunov_residual_estimate`).  Uniform weights
    have no closed form.  Long runs of them have −.0650 a layer where Gaussian weights have −.0689,
    and −.0510 with the branch in place of −.0516: they are slower by 6 and 1 %, which 200
    networks, with standard errors of 4 %, do not show.  ``r − 1`` falls at the same rate: the
    residual branch slows the collapse and does not avoid it.

    The text speaks of limit points of H/‖H‖.  What converges is the direction of its rows only;
    that of its columns changes with every layer.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.lemma_3()  # doctest: +SKIP
    >>> found.plot().savefig("lemma_3.png")  # doctest: +SKIP
    """
    return _lemma_3(chosen(_LEMMA_3, full), full, rng, progress, threads, store)


def _lemma_3(
    sizes: _Collapse,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d, gamma = sizes.width, sizes.gamma
    residual = {"skip": 1.0, "gain": gamma * math.sqrt(d)}
    plain: dict[str, float] = {}
    cases = {
        "no skip, gaussian": (plain, "gaussian"),
        "no skip, uniform": (plain, "uniform"),
        "skip, gaussian": (residual, "gaussian"),
        "skip, uniform": (residual, "uniform"),
    }
    first, second = np.triu_indices(d, 1)
    angles, bounds_of_rank = [], []
    with Parts(
        progress, "rank-collapse-lemma-3", [1.0] * len(cases), sources, full, store
    ) as parts:
        for options, weights in cases.values():
            run = parts.run(
                simulate, Chain(d, d, "linear", norm="none", weights=weights, **options),
                sizes.depth, chains=sizes.chains, initial=np.eye(d), every=4,
                observables="scaled_gram", rng=sources.generator, threads=threads,
            )  # fmt: skip
            matrices = run["scaled_gram"]
            sizes_of = np.einsum("clii->cli", matrices)
            near = matrices[:, run.layers <= sizes.angle_depth]
            of_near = sizes_of[:, run.layers <= sizes.angle_depth]
            squared_cosine = np.square(near[..., first, second]) / (
                of_near[..., first] * of_near[..., second]
            )
            sine = np.maximum(1 - squared_cosine, np.finfo(float).eps / 4)
            angles.append(np.log(sine).mean(axis=-1))
            excess = np.maximum(grams.rank_bound(matrices) - 1, np.finfo(float).eps)
            bounds_of_rank.append(np.exp(banded(np.log(excess))))
    layers = run.layers
    paces = _paces(d, gamma, sources)
    measured = [
        Estimate.from_samples(one[:, -1] / sizes.angle_depth, method="pace of log sin^2")
        for one in angles
    ]
    data = dataset(
        {
            **with_ends(
                "log_squared_sine",
                ("case", "angle_layer"), [banded(one) for one in angles],
                "mean log of the squared sine between samples",
            ),
            **with_ends(
                "excess_rank",
                ("case", "layer"), bounds_of_rank, "r - 1, geometric mean"
            ),
            **with_ends("pace", ("case",), ends(measured), "log squared sine per layer"),
            **with_ends(
                "pace_in_theory",
                ("skip",), ends(paces), "2 (lambda_2 - lambda_1), Gaussian weights"
            ),
        },
        {
            "case": Variable(("case",), list(cases), "network", ""),
            "skip": Variable(("skip",), [0, 1], "factor of the skip connection"),
            "layer": Variable(("layer",), layers, "layer"),
            "angle_layer": Variable(
                ("angle_layer",), layers[layers <= sizes.angle_depth], "layer"
            ),
        },
        sources,
        full,
        {"width": d, "batch": d, "gamma": gamma, "chains": sizes.chains, "start": "identity"},
    )  # fmt: skip
    rows = tuple(
        (name, found, paces[index // 2], rank[-1, 0])
        for index, (name, found, rank) in enumerate(
            zip(cases, measured, bounds_of_rank, strict=True)
        )
    )
    table = Table(("network", "log sin^2 per layer", "Gaussian, in theory", "r - 1, end"), rows)
    findings = tuple(
        f"{name}: log sin^2 between samples changes by {interval(found)} a layer, with Gaussian "
        f"weights in theory by {pace.value:.4g}; at layer {layers[-1]} r is 1 + {rank:.1e}."
        for name, found, pace, rank in rows
    )
    title = f"Collapse of vanilla linear networks to rank one, width and batch {d}"
    return Experiment("rank-collapse-lemma-3", title, data, table, findings, _draw_lemma_3)


def _paces(d: int, gamma: float, sources: Sources) -> list[Estimate]:
    """``2 (λ₂ − λ₁)`` without and with the residual branch."""
    exponents = lyapunov_ginibre(d, [1, 2])
    plain = 2 * float(exponents[1] - exponents[0])
    largest = float(lyapunov_residual(d, gamma))
    second = lyapunov_residual_estimate(d, gamma, 2, samples=40_000, rng=sources.generator)
    low, high = (2 * (end - largest) for end in second.ci)
    pace = 2 * (second.value - largest)
    return [
        Estimate(plain, 0.0, (plain, plain), 1, "closed form"),
        Estimate(pace, 2 * second.stderr, (low, high), second.n, second.method),
    ]


def _draw_lemma_3(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    right.set_yscale("log")
    for index, (case, colour) in enumerate(zip(data.case.values, COLOURS, strict=False)):
        style = ("-", "--")[index % 2]
        near, layers = data.angle_layer.values, data.layer.values
        draw_band(left, near, curve(data, "log_squared_sine")[index], colour, case, linestyle=style)
        draw_band(right, layers, curve(data, "excess_rank")[index], colour, case, linestyle=style)
        if index % 2 == 0:
            pace = float(data.pace_in_theory[index // 2])
            left.plot(near, pace * near, ":", color="black")
            middle, last = len(layers) // 2, data.excess_rank.values[index, -1]
            there = layers[middle:]
            right.plot(there, last * np.exp(pace * (there - there[-1])), ":", color="black")
    left.plot([], [], ":", color="black", label=r"exact: $2\ell(\lambda_2 - \lambda_1)$")
    right.plot([], [], ":", color="black", label=r"slope $2(\lambda_2 - \lambda_1)$")
    left.set(xlabel="layer", ylabel=r"mean of $\log\,\sin^2$ between samples", title="Angles")
    right.set(xlabel="layer", ylabel="$r - 1$, geometric mean", title="Lower bound of the rank")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle(
        f"Collapse without batch norm, width and batch {data.attrs['width']}, "
        rf"$\gamma = {data.attrs['gamma']:g}$: mean of {data.attrs['chains']} networks, "
        "95 % interval"
    )


class _Centring(NamedTuple):
    """Sizes of `centring`: the second half of the layers is averaged over."""

    width: int
    batch: int
    depth: int
    chains: int


_CENTRING = _Centring(128, 16, 120, 100), _Centring(512, 32, 400, 1000)


@with_parameters
def centring(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 7's claim on the chain: what centring does to the rank.

    The paper drops the mean from batch normalization, argues that rows are centred on average
    under the invariant law (Lemma 4), and shows in Fig. 7 that a VGG net trains as well without.
    Here r is measured with and without centring over depth, from nearly equal samples, width 128
    and batch 16 (512 and 32 with `full`), linear and ReLU networks.

    For linear networks the claim holds, and exactly so: centring takes one dimension, since the
    centred chain is the uncentred one with one sample less in law, with
    ``E 1/r = 1/m + E V² ≃ 1/m + (m−1)(m+2)²/(4m(m+1)d)``, m = n − 1 or n (drawn).  Without it the
    squared mean of a row is 1/n of its square, no more than of any other direction.

    For ReLU networks it fails.  Without centring the activations keep a common part, which
    their mean field knows (the fixed point, drawn): r tends to 1/c*² as the batch grows, with
    correlations c* that centring takes from about .5 to .3.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.centring()  # doctest: +SKIP
    >>> found.plot().savefig("centring.png")  # doctest: +SKIP
    """
    return _centring(chosen(_CENTRING, full), full, rng, progress, threads, store)


def _centring(
    sizes: _Centring,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d, n = sizes.width, sizes.batch
    cases = {
        "linear, centred": Chain(d, n, "linear"),
        "linear, uncentred": Chain(d, n, "linear", norm="batch-uncentred"),
        "linear, uncentred, one sample less": Chain(d, n - 1, "linear", norm="batch-uncentred"),
        "relu, centred": Chain(d, n, "relu"),
        "relu, uncentred": Chain(d, n, "relu", norm="batch-uncentred"),
    }
    curves, shares, settled, settled_shares, theory, common = [], [], [], [], [], []
    with Parts(
        progress, "rank-collapse-centring", [1.0] * len(cases), sources, full, store
    ) as parts:
        for chain in cases.values():
            run = parts.run(
                simulate, chain, sizes.depth, chains=sizes.chains, initial="collinear",
                observables=["rank_bound", Observable(_common_part, name="common_part")],
                rng=sources.generator, threads=threads,
            )  # fmt: skip
            half = sizes.depth // 2
            curves.append(banded(run["rank_bound"]))
            shares.append(banded(run["common_part"]))
            settled.append(Estimate.from_samples(run["rank_bound"][:, half:].mean(axis=1)))
            settled_shares.append(Estimate.from_samples(run["common_part"][:, half:].mean(axis=1)))
            rank, part = _in_theory(chain)
            theory.append(rank)
            common.append(part)
    data = dataset(
        {
            **with_ends("rank_bound", ("case", "layer"), curves, "r, lower bound of the rank"),
            **with_ends(
                "common_part",
                ("case", "layer"), shares, "part of the squares that samples share"
            ),
            "rank_in_theory": Variable(("case",), theory, "r in theory"),
            "common_part_in_theory": Variable(("case",), common, "common part in theory"),
        },
        {
            "case": Variable(("case",), list(cases), "network", ""),
            "layer": Variable(("layer",), run.layers, "layer"),
        },
        sources,
        full,
        {"width": d, "batch": n, "chains": sizes.chains, "start": "nearly equal samples",
         "settled_from_layer": sizes.depth // 2},
    )  # fmt: skip
    rows = tuple(zip(cases, settled, theory, settled_shares, common, strict=True))
    table = Table(("network", "r", "r in theory", "common part", "common part in theory"), rows)
    findings = (
        f"Linear: centred r is {interval(settled[0])}, uncentred {interval(settled[1])}, and with "
        f"one sample less {interval(settled[2])}: the law of the centred one.",
        f"ReLU: centred r is {interval(settled[3])} (fixed point {theory[3]:.3f}), uncentred "
        f"{interval(settled[4])} (fixed point {theory[4]:.3f}).",
    )
    title = f"Rank with and without centring, width {d}, batch {n}"
    return Experiment("rank-collapse-centring", title, data, table, findings, _draw_centring)


def _common_part(G: Float64Array) -> float:
    """``1ᵀ G 1 / (n Tr G)``: what part of the squares the mean over samples is."""
    return float(G.sum() / (len(G) * np.trace(G)))


def _in_theory(chain: Chain) -> tuple[float, float]:
    """Where r and `_common_part` settle.

    Of linear networks to order 1/d and, by symmetry, exactly; of others at infinite width.
    """
    if chain.activation.name == "linear":
        is_centred = chain.norm == "batch"
        m = chain.batch - is_centred
        inverse = 1 / m + float(gap_bounds.stationary_squared_gap(chain.width, m))
        return 1 / inverse, 0.0 if is_centred else 1 / chain.batch
    star = MeanField(chain).fixed_point().gram
    return float(grams.rank_bound(star)), _common_part(star)


def _draw_centring(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 3, width=4.6)[0]
    layers = data.layer.values
    last = np.minimum(layers[-1], 60)
    seen = layers <= last
    for index, (case, colour) in enumerate(zip(data.case.values, COLOURS, strict=False)):
        activation, label = case.split(", ", 1)
        style = "--" if "less" in case else "-"
        ax = axes[0] if activation == "linear" else axes[1]
        draw_band(
            ax, layers[seen], curve(data, "rank_bound")[index][seen], colour, label, linestyle=style
        )
        ax.axhline(float(data.rank_in_theory[index]), color=colour, linestyle=":", linewidth=1)
        draw_band(
            axes[2], layers[seen], curve(data, "common_part")[index][seen], colour, case,
            linestyle=style,
        )  # fmt: skip
        axes[2].axhline(
            float(data.common_part_in_theory[index]), color=colour, linestyle=":", linewidth=1
        )
    axes[0].plot([], [], ":", color="grey", label="theory, order $1/d$")
    axes[1].plot([], [], ":", color="grey", label=r"fixed point, $d = \infty$")
    axes[0].set(title="linear", ylabel="$r$, lower bound of the rank", ylim=(0, None))
    axes[1].set(title="relu", ylabel="$r$, lower bound of the rank", ylim=(0, None))
    axes[2].set(title="what samples share", ylabel="part of squares", ylim=(-0.02, 1.02))
    for ax in axes:
        ax.set_xlabel("layer")
        ax.legend(fontsize="small")
    figure.suptitle(
        f"Batch norm with and without centring, width {data.attrs['width']}, batch "
        f"{data.attrs['batch']}: mean of {data.attrs['chains']} networks, 95 % interval"
    )


def _interval(found: Float64Array) -> str:
    mean, low, high = found
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"
