"""The command line: ``bnmc simulate``, ``bnmc demo``, and those of `_commands` and `_figure`.

Exit statuses: 0, fine; 1, the reader of a pipe had enough; 2, bad input, with one line on standard
error; 3, a chain that does not mix or too little data, likewise; 4, a claim that `check` finds to
fail; 130, interrupted.
Typer is imported here and the rest of the library in the commands, so that help comes at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bnmc.cli.report import (
    BAD_INPUT,
    BROKEN_PIPE,
    INTERRUPTED,
    NO_ESTIMATE,
    OK,
    chosen_seed,
    print_table,
    progress_report,
    require_destination,
    save,
)
from bnmc.cli.simulate import _number, _shown, _threads, simulate

if TYPE_CHECKING:
    from bnmc.experiments.demonstration import DigitRuns, LinearRuns
    from bnmc.simulation.trajectory import Trajectory

__all__ = ["main"]


with contextlib.suppress(ModuleNotFoundError):  # `main` says which extra brings it
    import typer

    from bnmc.cli import options as options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the name of the program; ``sys.argv[1:]`` unless given.

    Returns
    -------
    int
        0 if all went well, 1 if the reader of a pipe had enough, 2 for bad input, 3 where there is
        no estimate, 4 for a claim that fails, 130 if interrupted.

    Examples
    --------
    >>> main(["--version"])
    bnmc ...
    0
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream that somebody put in their place
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # the reader had enough; nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        message = _explanation(error)
        if message is None:
            raise
        print(f"bnmc: error: {' '.join(message.split())}", file=sys.stderr)
        from bnmc.errors import PartialEstimateError

        return NO_ESTIMATE if isinstance(error, PartialEstimateError) else BAD_INPUT


def _run(arguments: Sequence[str] | None) -> int:
    if "typer" not in globals():
        from bnmc.errors import MissingExtraError

        raise MissingExtraError("typer", "cli")
    command = typer.main.get_command(_app())
    try:
        status = command.main(arguments, prog_name="bnmc", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:  # how some versions of Typer hand on an interrupt
        return _interrupted()
    return _interrupted() if status == INTERRUPTED else int(status or OK)


def _interrupted() -> int:
    print("bnmc: interrupted", file=sys.stderr)
    return INTERRUPTED


def _explanation(error: Exception) -> str | None:
    """Return what to tell the user of an error of theirs, or None if it is one of ours."""
    from bnmc.errors import BnmcError

    if isinstance(error, BnmcError):
        return str(error)
    if hasattr(error, "format_message"):  # what all of Typer's own errors have
        text = str(error.format_message())
        # Pydantic, by which Typer reads values, says what is wrong and not with what.
        of_value = getattr(error.__cause__, "errors", None)
        return f"{text} (got {of_value()[0]['input']!r})" if callable(of_value) else text
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return reason if error.filename is None else f"{error.filename}: {reason}"
    if isinstance(error, MemoryError):
        return f"out of memory: {error}"
    return None


def _app() -> typer.Typer:
    from bnmc.cli.commands import COMMANDS
    from bnmc.cli.figure import FigureCommand, figure

    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_root)
    app.command()(simulate)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    app.command(cls=FigureCommand)(figure)
    app.command()(demo)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Deep random networks with batch normalization, as the Markov chain that they are.

    Every command has examples in its --help. bnmc --install-completion makes the shell complete
    commands, options and the names of figures.
    """
    if version:
        from bnmc._support.version import __version__

        print(f"bnmc {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def demo(
    plot: Annotated[Path, typer.Option(metavar="FILE", help="The picture; it is replaced.")] = Path(
        "bnmc-demo.png"
    ),
    depth: Annotated[int, typer.Option(help="Layers of the comparison.")] = 1000,
    chains: Annotated[
        int, typer.Option(help="Networks with normalization; five times as many without.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Repeats a run.")] = 0,
    threads: Annotated[int | None, typer.Option(help="All processors unless given.")] = None,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show progress on standard error."),
    ] = None,
) -> None:
    """Show digits settling at the mean field.

    Beside them is the error of networks with and without normalization. That is Fig. 1a of Joudaki,
    Daneshmand and Bach, arXiv 2205.13076: linear networks of width 1000 with 5 samples that start
    orthogonal.

    Example: bnmc demo --depth 200 --plot digits.png
    """
    require_destination("plot", plot, force=True)
    from bnmc._support.arguments import integer
    from bnmc.experiments import demonstration as parts

    depth, chains = integer("depth", depth, low=1), integer("chains", chains, low=1)
    if threads is not None:
        threads = integer("threads", threads, low=1)
    seed, report = chosen_seed(seed), progress_report(progress, "layer")
    begun = time.perf_counter()
    settling = parts.simulate_digits(seed, threads=threads, progress=report)
    _print_settling(settling)
    comparison = parts.simulate_linear(depth, chains, seed, threads=threads, progress=report)
    _print_comparison(comparison)
    save(parts.draw(settling, comparison), plot)
    print(f"\nseed {seed}, threads {_threads(threads)}, {time.perf_counter() - begun:.1f} s")
    print(f"picture: {plot}")


def _print_settling(settling: DigitRuns) -> None:
    runs, stars = settling.runs, settling.fixed_points
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
                _number(float(run.mean(name)[row]), float(run.stderr(name)[row]))
                for run in runs.values()
                for name in ("distance", "orthogonality_gap")
            ),
        ]
        for row in _shown(some.layers)
    ]
    print_table(head, rows)
    factors = ", ".join(f"{star.rate:.3f} ({name})" for name, star in stars.items())
    print(f"\nThe mean field says that the distance shrinks by the factor {factors} a layer,")
    print("down to the fluctuations of finite width.\n")


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
        return _number(float(run.mean("distance")[row]), float(run.stderr("distance")[row]))

    rows = [
        [
            str(layers[row]),
            mean(normalised, row),
            mean(vanilla, row),
            _number(float(rms[row]), float(rms_error[row])),
            f"{exact[row]:.4f}",
            f"{growth[row]:.3f}",
        ]
        for row in _shown(layers)
    ]
    print_table(head, rows)
    grown = [
        float(run.mean("distance")[-1] / run.mean("distance")[0]) for run in (vanilla, normalised)
    ]
    print(
        f"\nFrom layer {layers[0]} to {layers[-1]} the error grew by the factor {grown[0]:.1f} "
        f"without normalization, {grown[1]:.1f} with it.\nWithout it, ever fewer networks carry "
        "the mean square: a finite ensemble falls below the exact value."
    )
