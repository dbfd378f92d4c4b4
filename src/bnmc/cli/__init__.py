"""The command line ``bnmc``.

Only `bnmc.__main__` and the installed script import this package; it may import everything else.
`app.py` has `main`, which parses a command line and turns errors into exit statuses: read it first.
`application.py` lists the commands, which are in `commands/`. `command.py` does what all commands
share, and `options.py` has their common options. Importing the package imports neither Typer nor
NumPy, so that help appears without delay: Typer is imported when a command line runs, and the rest
of the library when a command needs it.
"""

from __future__ import annotations

from bnmc.cli.app import main

__all__ = ["main"]
