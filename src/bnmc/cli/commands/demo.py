"""``bnmc demo``: two figures, of handwritten digits and Fig. 1a of *On bridging …*."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnmc.cli.command import Report, command
from bnmc.cli.commands.figure import report_of

if TYPE_CHECKING:
    from bnmc.experiments import Experiment


@command()
def demo(
    plot: Path = Path("bnmc-demo.png"),
    depth: int = 1000,
    chains: int = 200,
    seed: int = 0,
    force: Annotated[bool, typer.Option(hidden=True)] = True,
    *,
    threads: int | None,
    progress: bool,
) -> Report:
    """Simulate handwritten digits until the fixed point.

    The first table shows the distance of their Gram matrix from the fixed point of the mean field:
    bnmc figure digits. The second table is Fig. 1a of Joudaki, Daneshmand and Bach, arXiv
    2205.13076, bnmc figure bridging-1a: the error of the mean field with and without normalization,
    for linear networks of width 1000 with 5 orthogonal samples.

    Example: bnmc demo --depth 200 --plot digits.png

    Parameters
    ----------
    plot : FILE
        File for the picture; an existing file is replaced.
    depth
        Number of layers of the comparison.
    chains
        Number of networks with normalization; five times as many have none.
    seed
        Seed of the random numbers.
    """
    from bnmc._support.arguments import integer
    from bnmc._support.workers import thread_count
    from bnmc.experiments import beyond, bridging

    depth, chains = integer("depth", depth, low=1), integer("chains", chains, low=2)
    count, begun = thread_count(threads), time.perf_counter()
    shared: dict[str, Any] = {"rng": seed, "threads": threads, "progress": progress}
    figures = (
        beyond.digits(**shared),
        bridging.fig_1a(depth=depth, networks=chains, vanilla=5 * chains, **shared),
    )
    repeat = {"threads": count, "seconds": round(time.perf_counter() - begun, 3)}
    document = {figure.name: figure.to_dict() for figure in figures}
    first, second = (report_of(figure).text for figure in figures)
    text = [*first, "", *second, ""]
    return Report(document, text, lambda: _beside(*figures), repeat=repeat)


def _beside(*figures: Experiment) -> Any:
    """Draw figures beside each other."""
    from bnmc._support.extras import import_extra

    made = import_extra("matplotlib.figure", "plot").Figure(
        (7.0 * len(figures), 5.2), dpi=150, layout="constrained"
    )
    for part, figure in zip(made.subfigures(1, len(figures)), figures, strict=True):
        figure.plot(part)
    return made
