"""TODO-DOC bnmc.experiments.rank_collapse.common.collapse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc import gram as grams
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
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
    with_parameters,
)
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import lyapunov_ginibre, lyapunov_residual, lyapunov_residual_estimate
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["lemma_3"]


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
