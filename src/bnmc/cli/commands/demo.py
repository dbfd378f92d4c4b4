"""``bnmc demo``: a demonstration with handwritten digits, and Fig. 1a of *On bridging …*."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, save
from bnmc.cli.report import (
    chosen_seed,
    number_with_error,
    print_table,
    progress_report,
    shown_rows,
)

if TYPE_CHECKING:
    from bnmc.experiments.demonstration import DigitRuns, LinearRuns
    from bnmc.simulation.trajectory import Trajectory

__all__ = ["demo"]


def demo(
    plot: Annotated[
        Path,
        typer.Option(metavar="FILE", help="File for the picture; an existing file is replaced."),
    ] = Path("bnmc-demo.png"),
    depth: Annotated[int, typer.Option(help="Number of layers of the comparison.")] = 1000,
    chains: Annotated[
        int,
        typer.Option(help="Number of networks with normalization; five times as many have none."),
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    threads: options.Threads = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Simulate handwritten digits until the fixed point.

    The first table shows the distance of their Gram matrix from the fixed point of the mean field.
    The second table is Fig. 1a of Joudaki, Daneshmand and Bach, arXiv 2205.13076: the error of the
    mean field with and without normalization, for linear networks of width 1000 with 5 orthogonal
    samples.

    Example: bnmc demo --depth 200 --plot digits.png
    """
    require_destination("plot", plot, force=True)
    from bnmc._support.arguments import integer
    from bnmc._support.workers import thread_count
    from bnmc.experiments.demonstration import draw, simulate_digits, simulate_linear

    depth, chains = integer("depth", depth, low=1), integer("chains", chains, low=1)
    if threads is not None:
        threads = integer("threads", threads, low=1)
    seed, report = chosen_seed(seed), progress_report(progress, "layer")
    begun = time.perf_counter()
    digits = simulate_digits(seed, threads=threads, progress=report)
    _print_digits(digits)
    comparison = simulate_linear(depth, chains, seed, threads=threads, progress=report)
    _print_comparison(comparison)
    save(draw(digits, comparison), plot)
    print(f"\nseed {seed}, threads {thread_count(threads)}, {time.perf_counter() - begun:.1f} s")
    print(f"picture: {plot}")


def _print_digits(digits: DigitRuns) -> None:
    runs, stars = digits.runs, digits.fixed_points
    some = next(iter(runs.values()))
    print(
        f"{some.chain.batch} handwritten digits through {some.chains} random networks of width "
        f"{some.chain.width} with batch normalization\n"
    )
    head = ["layer"]
    for name in runs:
        head += [f"{name}: ‖G − G*‖", "orthogonality gap"]
    rows = [
        [
            str(some.layers[row]),
            *(
                number_with_error(float(run.mean(name)[row]), float(run.stderr(name)[row]))
                for run in runs.values()
                for name in ("distance", "orthogonality_gap")
            ),
        ]
        for row in shown_rows(some.layers)
    ]
    print_table(head, rows)
    factors = ", ".join(f"{star.rate:.3f} ({name})" for name, star in stars.items())
    print(f"\nThe mean field predicts that the distance shrinks by the factor {factors} per layer")
    print("until it reaches the size of the fluctuations at finite width.\n")


def _print_comparison(comparison: LinearRuns) -> None:
    import numpy as np

    from bnmc.experiments.bridging.linear_networks import equation_6
    from bnmc.random_matrix import vanilla_deviation

    normalised, vanilla = comparison.normalised, comparison.vanilla
    chain, layers = vanilla.chain, vanilla.layers
    squares = np.square(vanilla["distance"])
    rms = np.sqrt(squares.mean(axis=0))
    rms_error = squares.std(axis=0, ddof=1) / np.sqrt(vanilla.chains) / (2 * rms)
    exact = np.sqrt(vanilla_deviation(chain.width, chain.batch, layers))
    growth = equation_6(chain.width, layers)
    print(
        f"Error of the mean field, ‖G − G*‖: linear, {chain.batch} samples, width {chain.width}, "
        f"{normalised.chains} networks with batch\nnormalization, {vanilla.chains} without\n"
    )
    head = ["layer", "batch norm", "no norm", "no norm r.m.s.", "exact r.m.s.", "exp(layer/width)"]

    def mean(run: Trajectory, row: int) -> str:
        return number_with_error(
            float(run.mean("distance")[row]), float(run.stderr("distance")[row])
        )

    rows = [
        [
            str(layers[row]),
            mean(normalised, row),
            mean(vanilla, row),
            number_with_error(float(rms[row]), float(rms_error[row])),
            f"{exact[row]:.4f}",
            f"{growth[row]:.3f}",
        ]
        for row in shown_rows(layers)
    ]
    print_table(head, rows)
    grown = [
        float(run.mean("distance")[-1] / run.mean("distance")[0]) for run in (vanilla, normalised)
    ]
    print(
        f"\nFrom layer {layers[0]} to {layers[-1]} the error grew by the factor {grown[0]:.1f} "
        f"without normalization and {grown[1]:.1f} with it.\nWithout normalization, a few networks "
        "make up the mean square, so an ensemble underestimates the exact value."
    )
