"""Lemma 3: vanilla linear networks collapse to rank one, with and without a skip connection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval
from bnmc.gram import rank_bound
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre, lyapunov_residual, lyapunov_residual_estimate
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "lemma_3"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width (also the batch size), γ, layers, the last layer for angles, and networks.

    Deeper than `angle_depth`, float64 does not resolve the angles.
    """

    width: int
    gamma: float
    depth: int
    angle_depth: int
    chains: int


DEFAULT = Sizes(16, 0.25, 256, 96, 200)
FULL = Sizes(16, 0.25, 256, 96, 1000)


@with_parameters
def lemma_3(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Lemma 3: vanilla linear networks collapse to rank one, with and without a skip connection.

    The paper contains the statement and no figure.  Here width and batch size are 16, and the input
    is the identity.  A layer multiplies by W, or by ``I + γ W`` with γ = 1/4, which gives both
    terms the same norm.  Weights are Gaussian and uniform.  There are 200 networks, and 1000 with
    `full`.

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
    call = Call("rank-collapse-lemma-3", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Recorded layers, and results by case.

    `angles` is the mean log sin² between samples, (networks, layers up to `angle_depth`).
    `excess_ranks` is the geometric mean of r − 1, (layers, 3).
    """

    layers: NDArray[np.int64]
    angles: list[Float64Array]
    excess_ranks: list[Float64Array]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    d = sizes.width
    cases = _chains(sizes)
    found = _measure(sizes, call, cases)
    layers = found.layers
    paces_in_theory = _paces_in_theory(d, sizes.gamma, call.generator)
    paces = [
        Estimate.from_samples(one[:, -1] / sizes.angle_depth, method="pace of log sin^2")
        for one in found.angles
    ]
    data = dataset(
        {
            **with_ends(
                "log_squared_sine", ("case", "angle_layer"), [banded(one) for one in found.angles],
                "mean log of the squared sine between samples",
            ),
            **with_ends(
                "excess_rank", ("case", "layer"), found.excess_ranks, "r - 1, geometric mean"
            ),
            **estimated("pace", ("case",), paces, "log squared sine per layer"),
            **estimated(
                "pace_in_theory", ("skip",), paces_in_theory,
                "2 (lambda_2 - lambda_1), Gaussian weights",
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
        call,
        {"width": d, "batch": d, "gamma": sizes.gamma, "chains": sizes.chains, "start": "identity"},
    )  # fmt: skip
    rows = tuple(
        (name, pace, paces_in_theory[index // 2], rank[-1, 0])
        for index, (name, pace, rank) in enumerate(
            zip(cases, paces, found.excess_ranks, strict=True)
        )
    )
    table = Table(("network", "log sin^2 per layer", "Gaussian, in theory", "r - 1, end"), rows)
    findings = tuple(
        f"{name}: log sin^2 between samples changes by {interval(pace)} per layer, with Gaussian "
        f"weights in theory by {theory.value:.4g}; at layer {layers[-1]} r is 1 + {rank:.1e}."
        for name, pace, theory, rank in rows
    )
    title = f"Collapse of vanilla linear networks to rank one, width and batch {d}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _chains(sizes: Sizes) -> dict[str, Chain]:
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


def _measure(sizes: Sizes, call: Call, cases: dict[str, Chain]) -> _Measured:
    angles, excess_ranks = [], []
    with call.parts([1.0] * len(cases)) as parts:
        for chain in cases.values():
            run = parts.run(
                simulate, chain, sizes.depth, chains=sizes.chains, initial=np.eye(sizes.width),
                every=4, observables="scaled_gram", rng=call.generator, threads=call.threads,
            )  # fmt: skip
            angles.append(_mean_log_squared_sines(run, sizes.angle_depth))
            excess = np.maximum(rank_bound(run["scaled_gram"]) - 1, np.finfo(float).eps)
            excess_ranks.append(np.exp(banded(np.log(excess))))
    return _Measured(run.layers, angles, excess_ranks)


def _mean_log_squared_sines(run: Trajectory, depth: int) -> Float64Array:
    """Return log sin² averaged over pairs of samples, (networks, layers up to `depth`)."""
    matrices = run["scaled_gram"][:, run.layers <= depth]
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


def _draw(data: xarray.Dataset, figure: Figure) -> None:
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
