"""``bnmc demo``: a demonstration with handwritten digits, and Fig. 1a of *On bridging …*."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnmc._support.text import Table
from bnmc.cli.command import Report, command

if TYPE_CHECKING:
    from bnmc.experiments.demonstration import DigitRuns, LinearRuns


@command()
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
    force: Annotated[bool, typer.Option(hidden=True)] = True,
    *,
    threads: int | None,
    progress: bool,
) -> Report:
    """Simulate handwritten digits until the fixed point.

    The first table shows the distance of their Gram matrix from the fixed point of the mean field.
    The second table is Fig. 1a of Joudaki, Daneshmand and Bach, arXiv 2205.13076: the error of the
    mean field with and without normalization, for linear networks of width 1000 with 5 orthogonal
    samples.

    Example: bnmc demo --depth 200 --plot digits.png
    """
    from bnmc._support.arguments import integer
    from bnmc._support.workers import thread_count
    from bnmc.experiments.demonstration import draw, simulate_digits, simulate_linear

    depth, chains = integer("depth", depth, low=1), integer("chains", chains, low=1)
    count, begun = thread_count(threads), time.perf_counter()
    digits = simulate_digits(seed, threads=threads, progress=progress)
    comparison = simulate_linear(depth, chains, seed, threads=threads, progress=progress)
    document = {
        "digits": {name: run.to_dict() for name, run in digits.runs.items()},
        "linear": {
            "batch": comparison.normalised.to_dict(), "none": comparison.vanilla.to_dict()
        },
    }  # fmt: skip
    repeat = {"threads": count, "seconds": round(time.perf_counter() - begun, 3)}
    text = [*_text_of_digits(digits), *_text_of_comparison(comparison)]
    return Report(document, text, lambda: draw(digits, comparison), repeat=repeat)


def _text_of_digits(digits: DigitRuns) -> list[object]:
    runs = digits.runs
    some = next(iter(runs.values()))
    heads = ["layer"]
    for name in runs:
        heads += [f"{name}: ‖G − G*‖", "orthogonality gap"]
    tables = [run.table() for run in runs.values()]
    rows = [
        [parts[0][0], *(cell for part in parts for cell in part[1:])]
        for parts in zip(*(table.rows for table in tables), strict=True)
    ]
    factors = ", ".join(f"{star.rate:.3f} ({name})" for name, star in digits.fixed_points.items())
    return [
        f"{some.chain.batch} handwritten digits through {some.chains} random networks of width "
        f"{some.chain.width} with batch normalization\n",
        Table(heads, rows),
        f"\nThe mean field predicts that the distance shrinks by the factor {factors} per layer\n"
        "until it reaches the size of the fluctuations at finite width.\n",
    ]


def _text_of_comparison(comparison: LinearRuns) -> list[object]:
    import numpy as np

    from bnmc.estimate.estimate import with_error
    from bnmc.experiments.bridging.linear_networks import equation_6
    from bnmc.random_matrix import vanilla_deviation

    normalised, vanilla = comparison.normalised, comparison.vanilla
    chain, layers = vanilla.chain, vanilla.layers
    squares = np.square(vanilla["distance"])
    rms = np.sqrt(squares.mean(axis=0))
    rms_error = squares.std(axis=0, ddof=1) / np.sqrt(vanilla.chains) / (2 * rms)
    exact = np.sqrt(vanilla_deviation(chain.width, chain.batch, layers))
    growth = equation_6(chain.width, layers)
    heads = ["layer", "batch norm", "no norm", "no norm r.m.s.", "exact r.m.s.", "exp(layer/width)"]
    rows = []
    for with_norm, without in zip(normalised.table().rows, vanilla.table().rows, strict=True):
        row = int(np.flatnonzero(layers == int(without[0]))[0])
        rows.append(
            [
                *(*with_norm, without[1], with_error(float(rms[row]), float(rms_error[row]))),
                *(f"{exact[row]:.4f}", f"{growth[row]:.3f}"),
            ]
        )
    means = [run.mean("distance") for run in (vanilla, normalised)]
    grown = [float(mean[-1] / mean[0]) for mean in means]
    return [
        f"Error of the mean field, ‖G − G*‖: linear, {chain.batch} samples, width {chain.width}, "
        f"{normalised.chains} networks with batch\nnormalization, {vanilla.chains} without\n",
        Table(heads, rows),
        f"\nFrom layer {layers[0]} to {layers[-1]} the error grew by the factor {grown[0]:.1f} "
        f"without normalization and {grown[1]:.1f} with it.\nWithout normalization, a few networks "
        "make up the mean square, so an ensemble underestimates the exact value.\n",
    ]
