"""Fig. 3b and Lemma 3: eigenvalues and angles over depth, from nearly equal or apart samples."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import banded, interval, short_interval
from bnmc.gram import rank_bound
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre, lyapunov_residual, lyapunov_residual_estimate
from bnmc.simulation.run import simulate

# --- Fig. 3b: the largest eigenvalues of M, from nearly equal samples


#: Eigenvalues below this count as this, because rounding can make them 0 or negative.
_SMALLEST = float(np.finfo(np.float64).tiny)


class _SpectrumSizes(NamedTuple):
    """Sizes of the figure.

    width: width and batch size
    shown: number of eigenvalues
    """

    width: Several = 50
    depth: Annotated[int, {"low": 10}] = 100
    chains: Several = 64
    shown: Several = 10


@kit.figure("rank-collapse-3b", _SpectrumSizes(), chains=500)
def fig_3b(run: Run, sizes: _SpectrumSizes) -> Experiment:
    r"""Fig. 3b: the ten largest eigenvalues of M over depth, from nearly equal samples.

    The paper uses width and batch size 50, and 100 layers of one network.  Its input is a constant
    matrix of about 50 plus noise of 1e-5.  Its γ is .01 with weights of standard deviation 100,
    which equals γ = 1 with weights of standard deviation 1.  Here there are 64 networks, and 500
    with `full`.

    Expected: all eigenvalues except the largest start near 1e-13 and rise, the second within ten
    layers; the largest falls from d.  One after the other, all converge to the stationary values
    from Gaussian inputs (strokes at the right).

    Errors of the figure: the authors' code iterates M itself in float64, and the small eigenvalues
    of the printed figure are rounding errors.  At layer 5 its tenth eigenvalue is 30 times too
    large, and at layer 10 a thousand times.  Until layer 100 the rounding errors hide how slowly
    the directions return.  The two largest eigenvalues are right.  Iterating H with the same
    weights gives the values shown here, in float64 and in higher precision.  The authors also
    write ``x @ x.T`` for a vector, which is a number.  So their input is constant except for the
    noise, and their first M has no unit diagonal.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3b()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3b.png")  # doctest: +SKIP
    """
    d, depth, networks = sizes.width, sizes.depth, sizes.chains
    if sizes.shown > d:
        raise ArgumentError("shown", sizes.shown, f"at most the width {d}")
    chain = Chain.bn_residual(d, d, gamma=1.0)
    noise = run.generator.standard_normal((networks, d, d))
    starts: dict[str, dict[str, Any]] = {
        "nearly equal": {"depth": depth, "initial": d + 1e-5 * noise, "sampler": "weights"},
        "Gaussian": {"depth": 4 * depth, "burn_in": 2 * depth, "every": 4, "chains": networks},
    }

    def spectra(start: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return logs of the largest eigenvalues, (networks, layers, shown), and r."""
        eigenvalues = simulate(
            chain, observables="eigenvalues", **run.options(progress), **starts[start]
        )["eigenvalues"]
        r = np.square(eigenvalues.sum(axis=-1)) / np.square(eigenvalues).sum(axis=-1)
        return _largest_logs(eigenvalues, sizes.shown), r

    parts = run.parts(spectra, [(start,) for start in starts], costs=[1.0, 2.0])
    (logs, r), (deep, _) = parts.values()
    results = kit.Results(
        run, layer=np.arange(depth + 1),
        mode=kit.Axis(range(1, sizes.shown + 1), "eigenvalue, largest first"),
    )  # fmt: skip
    eigenvalue = results.add(
        "eigenvalue", ("layer", "mode"), np.exp(banded(logs)), "eigenvalues of M, geometric mean",
        chains=networks,
    )  # fmt: skip
    settled = results.add(
        "settled", ("mode",), np.exp(banded(deep.mean(axis=1))),
        "the same from Gaussian inputs, deep layers", chains=networks,
    )  # fmt: skip
    rank = results.add_means(
        "rank_bound", ("layer",), {(): r}, "r, lower bound of the rank"
    ).cells()

    def texts(column: kit.Column) -> kit.Column:
        """Return means as texts with their intervals."""
        intervals = {point: short_interval(mean) for point, mean in column.cells().items()}
        return results.column(("mode",), intervals)

    table = kit.table_of({
        "layer 0": eigenvalue.means().at(layer=0), "layer 10": eigenvalue.means().at(layer=10),
        "last layer": texts(eigenvalue.at(layer=-1)), "from Gaussian inputs": texts(settled),
    }, heads=("eigenvalue",))  # fmt: skip
    (_, *first), (_, *second) = table.rows[:2]
    findings = (
        f"The second eigenvalue rises from {second[0]:.1e} to {second[1]:.2f} in ten layers, "
        f"while the largest falls from {first[0]:.1f} to {first[1]:.1f}.",
        f"At layer {depth} the largest is {first[2]} and the second {second[2]}; from Gaussian "
        f"inputs {first[3]} and {second[3]}.",
        f"r rises from {rank[0,].value:.2f} to {short_interval(rank[depth,])}.",
    )
    return results.experiment(
        f"Largest eigenvalues of M from nearly equal samples, width and batch {d}", table,
        findings, _draw_spectrum, width=d, batch=d, gamma=1.0, chains=networks,
        start=f"{d} plus noise of 1e-5",
    )  # fmt: skip


def _largest_logs(eigenvalues: Float64Array, count: int) -> Float64Array:
    """Return the logs of the largest eigenvalues, largest first, from ascending eigenvalues."""
    logs: Float64Array = np.log(np.maximum(eigenvalues[..., : -count - 1 : -1], _SMALLEST))
    return logs


def _draw_spectrum(data: Dataset, figure: Drawing) -> None:
    from matplotlib import colormaps

    ((ax,),) = pictures.axes_of(figure, 1, width=7.6, height=4.8)
    ax.set_yscale("log")
    layers = data["layer"].values
    colours = colormaps["viridis"](np.linspace(0, 0.9, data.sizes["mode"]))
    for mode, colour in zip(data["mode"].values, colours, strict=True):
        of_mode = data.sel(mode=mode)
        values = pictures.curve(of_mode, "eigenvalue")
        pictures.draw_band(ax, layers, values, colour, rf"$\lambda_{{{mode}}}$")
        ax.plot(layers[[-1]] * [1.01, 1.06], [float(of_mode["settled"])] * 2, color=colour)
    ax.plot([], [], color="grey", label="from Gaussian\ninputs (right)")
    ax.set(xlabel="layer", ylabel="eigenvalues of $M$, geometric mean", ylim=(1e-14, 100))
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = "Largest eigenvalues of $M$ from nearly equal samples, width and batch {width}"
    ax.set_title(pictures.about(data, text, "\n"))


# --- Lemma 3: vanilla linear networks collapse, with and without a skip connection


#: Layers between records.
_EVERY = 4


class _CollapseSizes(NamedTuple):
    """Sizes of the figure.

    width: width and batch size
    gamma: strength γ of the weights beside the skip connection
    angle_depth: last layer for angles; float64 does not resolve those of much deeper layers
    """

    width: Several = 16
    gamma: float = 0.25
    depth: Annotated[int, {"low": _EVERY}] = 256
    angle_depth: Annotated[int, {"low": _EVERY}] = 96
    chains: Several = 200


@kit.figure("rank-collapse-lemma-3", _CollapseSizes(), chains=1000)
def lemma_3(run: Run, sizes: _CollapseSizes) -> Experiment:
    r"""Lemma 3: vanilla linear networks collapse to rank one, with and without a skip connection.

    The paper contains the statement and no figure.  Here width and batch size are 16, and the input
    is the identity.  A layer multiplies by W, or by ``I + γ W`` with γ = 1/4, which gives both
    terms the same norm.  Weights are Gaussian and uniform.

    Expected: the angle of two samples shrinks, per layer, by twice the gap of the two largest
    Lyapunov exponents λ₁ and λ₂.  With Gaussian weights and orthogonal inputs, ``E log sin² =
    2 l (λ₂ − λ₁)`` holds exactly at every layer l.  It also holds with the skip connection, because
    the volume that k samples span grows by independent factors.  Without the skip connection the
    exponents are values of ψ (`lyapunov_ginibre`).  With it, the first exponent is known, and the
    second is estimated from its exact law (`lyapunov_residual_estimate`).

    Uniform weights have no closed form.  In long runs they change ``log sin²`` by −.0650 per layer,
    and Gaussian weights by −.0689.  With the skip connection the changes are −.0510 and −.0516.  So
    uniform weights are slower by 6 and 1 %, which 200 networks, with standard errors of 4 %, do not
    resolve.  ``r − 1`` falls at the same rate: the skip connection slows the collapse and does not
    prevent it.

    The text speaks of limit points of H/‖H‖.  Only the direction of its rows converges; the
    direction of its columns changes with every layer.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.lemma_3()  # doctest: +SKIP
    >>> found.plot().savefig("lemma_3.png")  # doctest: +SKIP
    """
    d, layers = sizes.width, np.arange(0, sizes.depth + 1, _EVERY)
    is_near = layers <= sizes.angle_depth
    near = layers[is_near]
    cases = _chains(sizes)

    def collapse(case: str, progress: Progress) -> dict[str, Float64Array]:
        """Return means with intervals of log sin² and log(r − 1) over layers, and paces."""
        matrices = simulate(
            cases[case], sizes.depth, chains=sizes.chains, initial=np.eye(d), every=_EVERY,
            observables="scaled_gram", **run.options(progress),
        )["scaled_gram"]  # fmt: skip
        sines = _mean_log_squared_sines(matrices[:, is_near])
        excess = np.maximum(rank_bound(matrices) - 1, np.finfo(float).eps)
        return {
            "sines": banded(sines), "excess": banded(np.log(excess)),
            "paces": sines[:, -1] / near[-1],
        }  # fmt: skip

    results = kit.Results(
        run, case=kit.Axis(cases, "network", ""),
        skip=kit.Axis((0, 1), "factor of the skip connection"), layer=layers,
        angle_layer=kit.Axis(near, "layer"),
    )  # fmt: skip
    parts = run.parts(collapse, results.points("case"))
    results.add(
        "log_squared_sine", ("case", "angle_layer"), kit.entry(parts, "sines"),
        "mean log of the squared sine between samples", chains=sizes.chains,
    )  # fmt: skip
    excess = results.add(
        "excess_rank", ("case", "layer"), kit.each(parts, lambda part: np.exp(part["excess"])),
        "r - 1, geometric mean", chains=sizes.chains,
    )  # fmt: skip
    paces = kit.each(
        kit.entry(parts, "paces"), partial(Estimate.from_samples, method="pace of log sin^2")
    )
    pace = results.add("pace", ("case",), paces, "log squared sine per layer")
    theory = _paces_in_theory(d, sizes.gamma, run.generator)
    results.add("pace_in_theory", ("skip",), theory, "2 (lambda_2 - lambda_1), Gaussian weights")
    table = kit.table_of({
        "log sin^2 per layer": pace,
        "Gaussian, in theory": results.column(("case",), [theory[0]] * 2 + [theory[1]] * 2),
        "r - 1, end": excess.means().at(layer=-1),
    }, heads=("network",))  # fmt: skip
    findings = (
        f"{name}: log sin^2 between samples changes by {interval(measured)} per layer, with "
        f"Gaussian weights in theory by {exact.value:.4g}; at layer {layers[-1]} r is 1 + "
        f"{rank:.1e}."
        for name, measured, exact, rank in table.rows
    )
    return results.experiment(
        f"Collapse of vanilla linear networks to rank one, width and batch {d}", table,
        findings, _draw_collapse, width=d, batch=d, gamma=sizes.gamma,
        chains=sizes.chains, start="identity",
    )  # fmt: skip


def _chains(sizes: _CollapseSizes) -> dict[str, Chain]:
    """Return chains by name: without and with skip connection, Gaussian and uniform weights."""
    d = sizes.width
    skips: dict[str, dict[str, Any]] = {
        "no skip": {},
        "skip": {"skip": 1.0, "gain": sizes.gamma * math.sqrt(d)},
    }
    return {
        f"{skip}, {weights}": Chain(d, d, "linear", norm="none", weights=weights, **options)
        for skip, options in skips.items()
        for weights in ("gaussian", "uniform")
    }


def _mean_log_squared_sines(matrices: Float64Array) -> Float64Array:
    """Return log sin² averaged over pairs of samples, (networks, layers)."""
    first, second = np.triu_indices(matrices.shape[-1], 1)
    squared_norms = np.einsum("clii->cli", matrices)
    squared_cosine = np.square(matrices[..., first, second]) / (
        squared_norms[..., first] * squared_norms[..., second]
    )
    squared_sine = np.maximum(1 - squared_cosine, np.finfo(float).eps / 4)
    means: Float64Array = np.log(squared_sine).mean(axis=-1)
    return means


def _paces_in_theory(width: int, gamma: float, generator: np.random.Generator) -> list[Estimate]:
    """Return ``2 (λ₂ − λ₁)`` for Gaussian weights, without and with the skip connection."""
    exponents = lyapunov_ginibre(width, [1, 2])
    plain = 2 * float(exponents[1] - exponents[0])
    largest = float(lyapunov_residual(width, gamma))
    second = lyapunov_residual_estimate(width, gamma, 2, samples=40_000, rng=generator)
    low, high = (2 * (end - largest) for end in second.ci)
    pace = 2 * (second.value - largest)
    return [
        Estimate(plain, 0.0, (plain, plain), 1, "closed form"),
        Estimate(pace, 2 * second.stderr, (low, high), second.n, second.method),
    ]


def _draw_collapse(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2)[0]
    right.set_yscale("log")
    near, layers = data["angle_layer"].values, data["layer"].values
    there = layers[len(layers) // 2 :]
    for index, (case, colour) in enumerate(zip(data["case"].values, COLOURS, strict=False)):
        of_case = data.sel(case=case)
        for ax, x, name in ((left, near, "log_squared_sine"), (right, layers, "excess_rank")):
            values = pictures.curve(of_case, name)
            pictures.draw_band(ax, x, values, colour, case, linestyle=("-", "--")[index % 2])
        if index % 2 == 0:
            pace = float(data["pace_in_theory"][index // 2])
            last = float(of_case["excess_rank"][-1])
            left.plot(near, pace * near, ":", color="black")
            right.plot(there, last * np.exp(pace * (there - there[-1])), ":", color="black")
    left.plot([], [], ":", color="black", label=r"exact: $2\ell(\lambda_2 - \lambda_1)$")
    right.plot([], [], ":", color="black", label=r"slope $2(\lambda_2 - \lambda_1)$")
    left.set(xlabel="layer", ylabel=r"mean of $\log\,\sin^2$ between samples", title="Angles")
    right.set(xlabel="layer", ylabel="$r - 1$, geometric mean", title="Lower bound of the rank")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    text = r"Collapse without batch norm, width and batch {width}, $\gamma = {gamma:g}$"
    figure.suptitle(pictures.about(data, text))
