"""Averages over the stationary law at several γ and widths: shared by Figs. 3a, 8 and 9."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc._support.progress import Progress
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures, statistics
from bnmc.experiments.experiment import Dataset, Table
from bnmc.experiments.runs import Point, Run
from bnmc.experiments.sizes import Several, as_text
from bnmc.plot.axes import COLOURS, estimates
from bnmc.regularity import figures

#: The axes of all quantities.
DIMS = ("gamma", "width")

#: What is measured, named as in `bnmc.regularity.Averages`.
_QUANTITIES = ("alpha", "rank_bound", "soft_rank", "squared_norm", "scaled_norm")

#: Threshold of the soft rank.
_TAU = 0.5

#: Widths of which r is random.
_Widths: TypeAlias = Annotated[tuple[Annotated[int, {"low": 3}], ...], {"least": 2}]


class Sizes(NamedTuple):
    """Sizes of the figures.

    gammas: strengths γ of the weights; inf: no skip connection
    widths: widths for each γ, also the batch sizes
    networks: networks of each width, for each γ
    rtols: target of the relative standard errors for each γ
    depths: largest number of layers for each γ
    """

    gammas: tuple[Annotated[float, {"above": 0.0, "finite": False}], ...] = (math.inf, 1.0, 0.1)
    widths: tuple[_Widths, ...] = ((8, 16, 32, 64, 128), (8, 16, 32), (8, 16))
    networks: Annotated[tuple[Several, ...], {"repeats": True}] = (64, 16, 8)
    rtols: Annotated[tuple[float, ...], {"repeats": True}] = (0.01, 0.03, 0.03)
    depths: Annotated[tuple[Annotated[int, {"low": 4}], ...], {"repeats": True}] = (200_000,) * 3


#: The sizes that differ with ``full=True``.
FULL: dict[str, Any] = {
    "gammas": (math.inf, 1.0, 0.1, 0.01),
    "widths": ((8, 16, 32, 64, 128, 256), (8, 16, 32, 64, 128), (8, 16, 32, 64), (8, 16, 32)),
    "networks": (64, 16, 16, 8), "rtols": (0.01, 0.01, 0.02, 0.03),
    "depths": (200_000, 200_000, 10**6, 10**7),
}  # fmt: skip


class Ensembles(NamedTuple):
    """Results without columns, averages by quantity and point, and attributes of the data."""

    results: kit.Results
    averages: dict[str, dict[Point, Estimate]]
    attributes: dict[str, Any]


def measure(run: Run, sizes: Sizes) -> Ensembles:
    """Average over the stationary law at each γ and width."""
    for name, values in sizes._asdict().items():
        if len(values) != len(sizes.gammas):
            allowed = f"{len(sizes.gammas)} of them, one for each of gammas"
            raise ArgumentError(name, as_text(values), allowed)

    def averages_of(
        gamma: float, widths: tuple[int, ...], networks: int, rtol: float, depth: int,
        progress: Progress,
    ) -> dict[str, Any]:  # fmt: skip
        """Return last layers, and estimates by quantity, of each width."""
        averages = figures(
            widths, gamma=gamma, tau=_TAU, chains=networks, rtol=rtol, depth=depth,
            rng=run.generator, threads=run.threads, progress=progress,
        ).averages  # fmt: skip
        return {
            "layers": [average.layers[1] for average in averages],
            **{
                name: [dataclasses.astuple(getattr(average, name)) for average in averages]
                for name in _QUANTITIES
            },
        }

    points = list(zip(*sizes, strict=True))
    costs = [
        networks * sum(d**1.5 * (d + 30) for d in widths) * (1 + gamma**-2)
        for gamma, widths, networks, *_ in points
    ]
    parts = run.parts(averages_of, points, costs)
    averages = {
        name: {
            (gamma, width): Estimate(*fields)
            for (gamma, widths, *_), part in parts.items()
            for width, fields in zip(widths, part[name], strict=True)
        }
        for name in _QUANTITIES
    }
    results = kit.Results(
        run, gamma=kit.Axis(sizes.gammas, "strength of the weights"),
        width=kit.Axis(sorted(set().union(*sizes.widths)), "width and batch"),
    )  # fmt: skip
    layers = [layer for part in parts.values() for layer in part["layers"]]
    attributes = {"chains": list(sizes.networks), "tau": _TAU, "layers": layers}
    return Ensembles(results, averages, attributes)


def slopes(sizes: Sizes, averages: dict[Point, Estimate]) -> dict[Point, Estimate]:
    """Return the slope of the log of a quantity in the log of the width, for each γ."""
    return {
        (gamma,): statistics.slope(
            widths, [averages[gamma, width] for width in widths],
            method="weighted least squares of logs",
        )
        for gamma, widths in zip(sizes.gammas, sizes.widths, strict=True)
    }  # fmt: skip


def table_of(columns: dict[str, kit.Column]) -> Table:
    """Return a table over γ, as text, and width."""
    table = kit.table_of(columns)
    return Table(table.columns, tuple((f"{gamma:g}", *cells) for gamma, *cells in table.rows))


def draw_widths(ax: Any, data: Dataset, name: str) -> None:
    """Draw a quantity against the width, one colour per γ."""
    widths, shared = data["width"].values, np.isfinite(data[name].values).sum(axis=0) > 1
    gammas = data["gamma"].values
    for index, gamma in enumerate(gammas):
        values = pictures.curve(data.sel(gamma=gamma), name)
        there = np.isfinite(values[:, 0])
        # Points of several γ stand beside each other, because equal points hide each other.
        beside = np.where(shared, 1.04 ** (index - len(gammas) // 2), 1.0) * widths
        label = r"$\gamma = \infty$" if math.isinf(gamma) else rf"$\gamma = {gamma:g}$"
        estimates(
            ax, beside[there], *values[there].T, colour=COLOURS[index % len(COLOURS)],
            fmt="osv^D"[index % 5], label=label,
        )  # fmt: skip
