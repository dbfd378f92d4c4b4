"""The plane of the powers of the width, its regions, and the named scalings."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Progress, Run, Table
from bnmc.infinite_width import SCALINGS, Properties, Scaling
from bnmc.plot.axes import COLOURS

#: Ranges of q_sigma and q_tilde.
_SIGMA, _TILDE = (Fraction(-3, 2), Fraction(1, 2)), (Fraction(-1), Fraction(2))

_PROPERTIES = ("finite outputs", "finite kernels", "kernels like outputs", "evolving kernels")


class Sizes(NamedTuple):
    """Sizes of the figure.

    points: points of the grid in each unit of a power
    """

    points: int = 8


@kit.figure("limits-plane", Sizes(), points=32)
def plane(run: Run, sizes: Sizes) -> Experiment:
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
    sigmas, tildes = _grid(_SIGMA, sizes.points), _grid(_TILDE, sizes.points)

    def properties(progress: Progress) -> NDArray[np.int64]:
        """Return the region (0 outside of the strip) and four properties, (sigmas, tildes, 5).

        Regions are numbered from 1 on, in the order in which they appear.
        """
        at = np.zeros((len(sigmas), len(tildes), 5), np.int64)
        numbers: dict[tuple[int, ...], int] = {}
        for row, q_sigma in enumerate(sigmas):
            progress(row, len(sigmas))
            for column, q_tilde in enumerate(tildes):
                scaling = Scaling(q_sigma, q_tilde)
                limit = scaling.properties()
                if limit.well_defined:
                    at[row, column, 0] = numbers.setdefault(_region(limit), len(numbers) + 1)
                at[row, column, 1:] = _held(limit)
        return at

    of_plane = run.parts(properties, [()])[()]
    regions, held = of_plane[..., 0], of_plane[..., 1:]
    results = kit.Results(
        run, q_sigma=kit.Axis(map(float, sigmas), "power of the output weights"),
        q_tilde=kit.Axis(map(float, tildes), "power of the learning rates"),
        property=kit.Axis(_PROPERTIES, "property", ""),
    )  # fmt: skip
    per = ("q_sigma", "q_tilde")
    results.add("region", per, regions, "number of the region, 0 outside of the strip")
    results.add("held", (*per, "property"), held, "whether the limit has a property")
    table = Table(
        ("scaling", "powers of rates", "outputs", "kernels", "change of kernels", *_PROPERTIES),
        tuple(_row(name, scaling) for name, scaling in SCALINGS.items()),
    )
    return results.experiment(
        "Limits of infinite width in the plane of the powers of the width", table,
        _findings(regions, held, sizes.points), _draw, hidden_layers=1,
    )  # fmt: skip


def _grid(ends: tuple[Fraction, Fraction], points: int) -> list[Fraction]:
    low, high = ends
    return [low + Fraction(k, points) for k in range(int((high - low) * points) + 1)]


def _region(limit: Properties) -> tuple[int, ...]:
    """Return the signs of the powers of outputs, kernels, their ratio and the kernels' change."""
    powers = (limit.logits, max(limit.kernels), limit.ratio, max(limit.evolution))
    return tuple((power > 0) - (power < 0) for power in powers)


def _held(limit: Properties) -> tuple[bool, bool, bool, bool]:
    return limit.finite_logits, limit.finite_kernels, limit.same_order, limit.evolving_kernels


def _row(name: str, scaling: Scaling) -> tuple[Any, ...]:
    limit = scaling.properties()
    return (
        name, _pair(scaling.q_tilde), str(limit.logits), _pair(limit.kernels),
        _pair(limit.evolution), *("yes" if has else "no" for has in _held(limit)),
    )  # fmt: skip


def _pair(powers: tuple[Fraction, Fraction]) -> str:
    first, second = powers
    return str(first) if first == second else f"{first}, {second}"


def _findings(regions: NDArray[Any], held: NDArray[Any], points: int) -> tuple[str, ...]:
    inside = regions > 0
    counts = held.sum(axis=-1)
    sets = set(map(tuple, held[inside].tolist()))
    largest = [these for these in sets if not any(_within(these, other) for other in sets)]
    named = {name: _held(scaling.properties()) for name, scaling in SCALINGS.items()}
    maximal = [name for name, these in named.items() if tuple(map(int, these)) in largest]
    most = [name for name, these in named.items() if sum(these) == counts[inside].max()]
    full = [name for name, these in named.items() if all(these)]
    return (
        f"In the strip the signs of the four powers have {len(np.unique(regions[inside]))} "
        f"combinations, on a grid of step 1/{points}: so many regions and limits.",
        f"With one power of all learning rates, a limit has at most {counts[inside].max()} of the "
        f"four properties; of the named ones {_and(most)}.",
        f"No limit has more properties than {_and(maximal)} in the sense that it has theirs and "
        "further ones: the lectures' largest number is this one.",
        f"All four properties: {_and(full) or 'none'}, whose outputs at initialization are "
        "corrected.",
    )


def _within(first: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return first != other and all(a <= b for a, b in zip(first, other, strict=True))


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _draw(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=7.0, height=5.6)[0, 0]
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
            label=f"the two rates of {name}" if two else None,
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
