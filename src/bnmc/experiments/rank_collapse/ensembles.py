"""Averages over the stationary law at several γ and widths: shared by Figs. 3a, 8 and 9."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, ends, with_ends
from bnmc.experiments.parts import Call
from bnmc.experiments.statistics import slope
from bnmc.plot.axes import COLOURS, estimates
from bnmc.regularity import Figures, figures

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

__all__ = [
    "DEFAULT",
    "FULL",
    "EnsembleSizes",
    "all_widths",
    "dataset_of",
    "draw_widths",
    "gamma_name",
    "measure",
    "slope_in_width",
    "table_of",
]

Float64Array = NDArray[np.float64]


class EnsembleSizes(NamedTuple):
    """Sizes at one γ: widths, networks, target of the relative standard error, and most layers."""

    gamma: float
    widths: tuple[int, ...]
    chains: int
    rtol: float = 0.01
    depth: int = 200_000


DEFAULT = (
    EnsembleSizes(math.inf, (8, 16, 32, 64, 128), 64),
    EnsembleSizes(1.0, (8, 16, 32), 16, 0.03),
    EnsembleSizes(0.1, (8, 16), 8, 0.03),
)
FULL = (
    EnsembleSizes(math.inf, (8, 16, 32, 64, 128, 256), 64),
    EnsembleSizes(1.0, (8, 16, 32, 64, 128), 16),
    EnsembleSizes(0.1, (8, 16, 32, 64), 16, 0.02, 10**6),
    EnsembleSizes(0.01, (8, 16, 32), 8, 0.03, 10**7),
)


def measure(ensembles: tuple[EnsembleSizes, ...], call: Call) -> list[Figures]:
    """Average over the stationary law at each γ and width."""
    costs = [
        one.chains * sum(d**1.5 * (d + 30) for d in one.widths) * (1 + one.gamma**-2)
        for one in ensembles
    ]
    with call.parts(costs) as parts:
        return [
            parts.run(
                figures, one.widths, gamma=one.gamma, chains=one.chains, rtol=one.rtol,
                depth=one.depth, rng=call.generator, threads=call.threads,
            )
            for one in ensembles
        ]  # fmt: skip


def all_widths(found: list[Figures]) -> NDArray[np.int64]:
    """Return the widths of all γ, sorted."""
    return np.unique(np.concatenate([one.widths for one in found]))


def table_of(found: list[Figures], name: str) -> Float64Array:
    """Return estimates by γ and width, (γ, widths, 3); NaN if a γ lacks a width."""
    widths = all_widths(found)
    table = np.full((len(found), len(widths), 3), np.nan)
    for row, one in zip(table, found, strict=True):
        row[np.isin(widths, one.widths)] = ends(getattr(part, name) for part in one.averages)
    return table


def slope_in_width(found: Figures, name: str) -> Estimate:
    """Return the slope of the log of a quantity in the log of the width, at one γ."""
    values = [getattr(one, name) for one in found.averages]
    return slope(found.widths, values, method="weighted least squares of logs")


def dataset_of(
    found: list[Figures],
    ensembles: tuple[EnsembleSizes, ...],
    names: dict[str, str],
    call: Call,
    others: dict[str, Variable],
) -> xarray.Dataset:
    """Return the dataset of the quantities `names`, with their descriptions, and of others."""
    measured: dict[str, Variable] = {}
    for name, label in names.items():
        measured |= with_ends(name, ("gamma", "width"), table_of(found, name), label)
    return dataset(
        measured | others,
        {
            "gamma": Variable(("gamma",), [one.gamma for one in found], "strength of the weights"),
            "width": Variable(("width",), all_widths(found), "width and batch"),
        },
        call,
        {
            "chains": [one.chains for one in ensembles], "tau": found[0].averages[0].tau,
            "layers": [average.layers[1] for one in found for average in one.averages],
        },
    )  # fmt: skip


def gamma_name(found: Figures) -> str:
    """Return γ as text."""
    return "inf" if math.isinf(found.gamma) else f"{found.gamma:g}"


def draw_widths(ax: Axes, data: xarray.Dataset, name: str) -> None:
    """Draw a quantity against the width, one colour per γ."""
    widths, shared = data.width.values, np.isfinite(data[name].values).sum(axis=0) > 1
    for index, gamma in enumerate(data.gamma.values):
        found = curve(data, name)[index]
        there = np.isfinite(found[:, 0])
        # Points of several γ stand beside each other, because equal points hide each other.
        beside = np.where(shared, 1.04 ** (index - len(data.gamma) // 2), 1.0) * widths
        label = r"$\gamma = \infty$" if math.isinf(gamma) else rf"$\gamma = {gamma:g}$"
        estimates(
            ax, beside[there], *found[there].T, colour=COLOURS[index % len(COLOURS)],
            fmt="osv^D"[index % 5], label=label,
        )  # fmt: skip
