"""How commands report: seeds, progress, tables and pictures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bnmc._support.text import text_table
from bnmc.simulation import export

__all__ = [
    "BAD_INPUT",
    "BROKEN_PIPE",
    "FAILED",
    "INTERRUPTED",
    "NO_ESTIMATE",
    "OK",
    "chosen_seed",
    "kept_for_later",
    "plain_number",
    "print_json",
    "print_table",
    "progress_report",
    "raise_first",
    "require_destination",
    "save",
]


#: Exit statuses: NO_ESTIMATE of a chain that does not mix, FAILED of a check whose claims fail.
OK, BROKEN_PIPE, BAD_INPUT, NO_ESTIMATE, FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130


def chosen_seed(seed: int | None) -> int:
    """Return the seed of a run: a new one unless given."""
    import secrets

    from bnmc._support.arguments import integer

    return secrets.randbits(32) if seed is None else integer("seed", seed, low=0)


def progress_report(wanted: bool | None, unit: str = "task") -> bool | Callable[[int, int], None]:
    """Return a bar on a terminal, and lines elsewhere if the user insists."""
    if sys.stderr.isatty():
        return wanted is not False
    if not wanted:
        return False
    last = -1
    begun = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // max(total, 1)
        if tenth != last:
            last = tenth
            left = (time.monotonic() - begun) * (total - done) / max(done, 1)
            estimate = f", about {left:.0f} s left" if 0 < done < total else ""
            print(f"bnmc: {unit} {done} of {total}{estimate}", file=sys.stderr, flush=True)

    return report


def require_destination(name: str, path: Path, force: bool) -> None:
    """Refuse what could not be written when the work is done."""
    from bnmc._support import files

    if name == "output":
        files.require_writable(name, path, export.OUTPUT_FORMATS)
        export.require_extras(path)
    else:
        from bnmc.plot.axes import figure

        formats = figure()[0].canvas.get_supported_filetypes()
        files.require_writable(name, path, [f".{suffix}" for suffix in formats])
    files.require_free(name, path, force=force)


def save(figure: Any, path: Path) -> None:
    """Write a figure; a file that is there is replaced at once or not at all."""
    from bnmc._support.files import replacing

    with replacing(path) as temporary:
        figure.savefig(temporary)


@contextmanager
def kept_for_later(failures: list[Exception]) -> Iterator[None]:
    """Append what writing a file raises, so that the results are printed all the same."""
    from bnmc.errors import BnmcError

    try:
        yield
    except (OSError, BnmcError) as error:
        failures.append(error)


def raise_first(failures: list[Exception]) -> None:
    """Raise what was kept for later, if anything was."""
    if failures:
        raise failures[0]


def plain_number(value: float) -> str:
    """Write a number to six figures."""
    return f"{value:.6g}"


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document."""
    from bnmc._support.json import dumps

    print(dumps(document))


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table: lines and colours on a terminal, aligned text elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(header_style="bold", row_styles=["", "dim"])
        for index, name in enumerate(head):
            table.add_column(name, justify="right" if index == 0 else "left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    print(text_table(head, rows, align="><"))
