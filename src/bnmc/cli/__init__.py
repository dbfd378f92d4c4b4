"""The command line.  Nothing imports this package but `bnmc.__main__`.

Typer is imported when a command line runs.  The package may import everything else.  Read `app.py`
first, then `simulate.py`.
"""

from __future__ import annotations

from bnmc.cli.app import main

__all__ = ["main"]
