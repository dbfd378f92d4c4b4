"""The Typer application: the list of the commands, and the options of ``bnmc`` itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from bnmc.cli.command import Command
from bnmc.cli.commands.backprop import backprop
from bnmc.cli.commands.bench import bench
from bnmc.cli.commands.certify import certify
from bnmc.cli.commands.check import check
from bnmc.cli.commands.compare_norms import compare_norms
from bnmc.cli.commands.demo import demo
from bnmc.cli.commands.figure import FigureCommand, figure
from bnmc.cli.commands.fixed_point import fixed_point
from bnmc.cli.commands.info import info
from bnmc.cli.commands.inspect import inspect
from bnmc.cli.commands.phase import phase
from bnmc.cli.commands.rates import rates
from bnmc.cli.commands.regularity import regularity
from bnmc.cli.commands.simulate import simulate
from bnmc.cli.commands.stability import stability
from bnmc.cli.commands.width import width

#: The commands by name, in the order of the help.
COMMANDS: dict[str, Callable[..., None]] = {
    "simulate": simulate,
    "backprop": backprop,
    "fixed-point": fixed_point,
    "width": width,
    "stability": stability,
    "phase": phase,
    "compare-norms": compare_norms,
    "certify": certify,
    "rates": rates,
    "regularity": regularity,
    "check": check,
    "inspect": inspect,
    "bench": bench,
    "info": info,
    "figure": figure,
    "demo": demo,
}


def application() -> typer.Typer:
    """Return the Typer application with all commands."""
    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_root)
    for name, command in COMMANDS.items():
        app.command(name, cls=FigureCommand if name == "figure" else Command)(command)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Deep random networks with batch normalization as Markov chains.

    The --help of each command has examples. bnmc --install-completion makes the shell complete
    commands, options and the names of figures.
    """
    if version:
        from bnmc._support.version import __version__

        print(f"bnmc {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
