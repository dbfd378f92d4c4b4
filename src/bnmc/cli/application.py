"""The Typer application: the list of the commands, and the options of ``bnmc`` itself."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from bnmc.cli.command import Command
from bnmc.cli.commands.figures import FigureCommand

#: The modules of the commands, by panel of the help. A command is the function of its name.
_PANELS = {
    "First steps": {
        "demo": "figures", "inspect": "inspect", "fixed_point": "mean_field", "simulate": "runs",
    },
    "Infinite width": dict.fromkeys(("width", "stability", "phase"), "mean_field"),
    "Gradients and norms": {"backprop": "runs", "compare_norms": "figures"},
    "Mixing and the stationary law": dict.fromkeys(
        ("certify", "rates", "regularity", "check"), "stationary"
    ),
    "Papers and machine": {"figure": "figures", "bench": "machine", "info": "machine"},
}  # fmt: skip

#: All commands, in the order of the help.
COMMANDS = [name for panel in _PANELS.values() for name in panel]


def application() -> typer.Typer:
    """Return the Typer application with all commands."""
    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        epilog="Begin with bnmc demo, or with bnmc inspect for your own PyTorch model.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_root)
    for panel, commands in _PANELS.items():
        for name, module in commands.items():
            function = getattr(importlib.import_module(f"bnmc.cli.commands.{module}"), name)
            kind = FigureCommand if name == "figure" else Command
            app.command(name.replace("_", "-"), cls=kind, rich_help_panel=panel)(function)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Deep random networks with batch normalization as Markov chains.

    The --help of each command has examples. bnmc --install-completion makes the shell complete
    commands, options and the names of figures.

    Exit statuses: 0 success, 1 broken pipe, 2 invalid input, 3 no estimate, 4 a claim of bnmc check
    fails, 130 Ctrl-C.

    Example: bnmc simulate --activation relu --depth 30 --chains 200 --seed 0
    """
    if version:
        from bnmc._support.version import __version__

        print(f"bnmc {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
