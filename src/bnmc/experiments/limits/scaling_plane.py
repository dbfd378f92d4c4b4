"""The plane of the powers of the width, its regions, and the named scalings."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.experiments.data import Variable, dataset
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.infinite_width import SCALINGS, Properties, Scaling
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "plane", "region"]


class Sizes(NamedTuple):
    """Points of the grid in each unit of a power."""

    points: int


DEFAULT = Sizes(8)
FULL = Sizes(32)

#: Ranges of q_sigma and q_tilde.
_SIGMA, _TILDE = (Fraction(-3, 2), Fraction(1, 2)), (Fraction(-1), Fraction(2))

_PROPERTIES = ("finite outputs", "finite kernels", "kernels like outputs", "evolving kernels")


@with_parameters
def plane(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Which limits of infinite width there are: the plane of the powers of the width.

    A network with one hidden layer, :math:`f(x) = \sigma \sum_r a_r φ(w_r^T x)`, has output weights
    with factor :math:`\sigma \propto d^{q_\sigma}` and learning rates
    :math:`\hat\eta \propto d^{\tilde q}`.  The picture shows the plane
    :math:`(q_\sigma, \tilde q)`: the strip :math:`-1/2 \le q_\sigma + \tilde q \le 0`, where
    outputs and their change are of one order from some step on, and the line of each of the four
    properties of finite networks (Golikov's lectures, and arXiv 2006.06574): outputs at
    initialization are finite (1), kernels are finite (2), kernels are of the order of the outputs
    (3), and kernels evolve (4).  The scaling "default" has two powers :math:`\tilde q`, 1 of the
    output weights and 0 of the input weights; the picture joins them.

    Expected: the lectures state that only finitely many limits exist, one in each region, and that
    NTK, mean field and sym-default have the largest number of properties.  The regions are counted
    from the signs of four powers, in exact fractions.

    Returns
    -------
    Experiment
        Variables by ``q_sigma`` and ``q_tilde``.  The table has the named scalings.
    """
    call = Call("limits-plane", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def region(scaling: Scaling) -> tuple[int, int, int, int]:
    """Return the signs of the powers of outputs, kernels, their ratio and the kernels' change."""
    found = scaling.properties()
    powers = (found.logits, max(found.kernels), found.ratio, max(found.evolution))
    first, second, third, fourth = ((power > 0) - (power < 0) for power in powers)
    return first, second, third, fourth


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    call.processors()  # nothing runs in parallel; an invalid number raises nevertheless
    sigmas, tildes = _grid(_SIGMA, sizes.points), _grid(_TILDE, sizes.points)
    with call.parts([1.0]) as parts:
        found = parts.run(_properties_of, sigmas, tildes)
    regions, held = found[..., 0], found[..., 1:]
    columns = (
        "scaling",
        "powers of rates",
        "outputs",
        "kernels",
        "change of kernels",
        *_PROPERTIES,
    )
    rows = tuple(_row(name, scaling) for name, scaling in SCALINGS.items())
    title = "Limits of infinite width in the plane of the powers of the width"
    data = _data(call, sigmas, tildes, regions, held)
    findings = _findings(data, sizes)
    return Experiment(call.name, title, data, Table(columns, rows), findings, _draw)


def _grid(ends: tuple[Fraction, Fraction], points: int) -> list[str]:
    """Return fractions as text, which a store keeps exactly."""
    low, high = ends
    return [str(low + Fraction(k, points)) for k in range(int((high - low) * points) + 1)]


def _properties_of(
    sigmas: list[str], tildes: list[str], progress: Progress
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the region (0 outside of the strip) and four properties, (sigmas, tildes, 5).

    Regions are numbered from 1 on, in the order in which they appear.
    """
    found = np.zeros((len(sigmas), len(tildes), 5), np.int64)
    numbers: dict[tuple[int, int, int, int], int] = {}
    for row, q_sigma in enumerate(sigmas):
        progress(row, len(sigmas))
        for column, q_tilde in enumerate(tildes):
            scaling = Scaling(Fraction(q_sigma), Fraction(q_tilde))
            properties = scaling.properties()
            if properties.well_defined:
                found[row, column, 0] = numbers.setdefault(region(scaling), len(numbers) + 1)
            found[row, column, 1:] = _held(properties)
    return found


def _held(found: Properties) -> tuple[bool, bool, bool, bool]:
    return found.finite_logits, found.finite_kernels, found.same_order, found.evolving_kernels


def _row(name: str, scaling: Scaling) -> tuple[Any, ...]:
    found = scaling.properties()
    return (
        name, _pair(scaling.q_tilde), str(found.logits), _pair(found.kernels),
        _pair(found.evolution), *("yes" if one else "no" for one in _held(found)),
    )  # fmt: skip


def _pair(powers: tuple[Fraction, Fraction]) -> str:
    first, second = powers
    return str(first) if first == second else f"{first}, {second}"


def _findings(data: xarray.Dataset, sizes: Sizes) -> tuple[str, ...]:
    held, regions = data["held"].values, data["region"].values
    inside = regions > 0
    counts = held.sum(axis=-1)
    sets = {tuple(one) for one in held[inside].tolist()}
    largest = [one for one in sets if not any(_within(one, other) for other in sets)]
    named = {name: _held(scaling.properties()) for name, scaling in SCALINGS.items()}
    maximal = [name for name, one in named.items() if tuple(map(int, one)) in largest]
    most = [name for name, one in named.items() if sum(one) == counts[inside].max()]
    full = [name for name, one in named.items() if all(one)]
    return (
        f"In the strip the signs of the four powers have {len(np.unique(regions[inside]))} "
        f"combinations, on a grid of step 1/{sizes.points}: so many regions and limits.",
        f"With one power of all learning rates, a limit has at most {counts[inside].max()} of the "
        f"four properties; of the named ones {_and(most)}.",
        f"No limit has more properties than {_and(maximal)} in the sense that it has theirs and "
        "further ones: the lectures' largest number is this one.",
        f"All four properties: {_and(full) or 'none'}, whose outputs at initialization are "
        "corrected.",
    )


def _within(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _data(
    call: Call, sigmas: list[str], tildes: list[str], regions: Any, held: Any
) -> xarray.Dataset:
    over = ("q_sigma", "q_tilde")
    return dataset(
        {
            "region": Variable(over, regions, "number of the region, 0 outside of the strip"),
            "held": Variable((*over, "property"), held, "whether the limit has a property"),
        },
        {
            "q_sigma": Variable(
                ("q_sigma",), [float(Fraction(q)) for q in sigmas], "power of the output weights"
            ),
            "q_tilde": Variable(
                ("q_tilde",), [float(Fraction(q)) for q in tildes], "power of the learning rates"
            ),
            "property": Variable(("property",), list(_PROPERTIES), "property", ""),
        },
        call,
        {"hidden_layers": 1},
    )


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ax = axes_of(figure, 1, width=7.0, height=5.6)[0, 0]
    x = np.array([float(end) for end in _SIGMA])
    ax.fill_between(x, -0.5 - x, -x, color="0.9", label="outputs and their change of one order")
    lines = (
        ("1 finite outputs", [-0.5, -0.5], [float(end) for end in _TILDE]),
        ("2 finite kernels", x, -1.0 - 2.0 * x),
        ("3 kernels like outputs", x, -0.5 - x),
        ("4 evolving kernels", x, -x),
    )
    for index, (label, first, second) in enumerate(lines):
        ax.plot(first, second, color=COLOURS[index], linewidth=1.4, label=label)
    for name in ("default", "ntk", "mean-field", "sym-default"):
        scaling = SCALINGS[name]
        q_sigma, rates = float(scaling.q_sigma), [float(q) for q in scaling.q_tilde]
        shown = f"{name}, ic-mf" if name == "mean-field" else name
        two = rates[0] != rates[1]
        ax.plot(
            [q_sigma] * 2, rates, "o--" if two else "o", color="black", markersize=5,
            markerfacecolor="white" if two else "black",
        )  # fmt: skip
        ax.annotate(shown, (q_sigma, rates[0]), (8, 4), textcoords="offset points")
    ax.set(
        xlim=x, ylim=[float(end) for end in _TILDE],
        xlabel=r"$q_\sigma$: output weights $\propto d^{q_\sigma}$",
        ylabel=r"$\tilde q$: learning rates $\propto d^{\tilde q}$",
    )  # fmt: skip
    ax.set_title("Powers of the width, one hidden layer", loc="left")
    ax.legend(fontsize="small", loc="upper right")
    figure.suptitle("Limits of infinite width: the four properties of finite networks")
