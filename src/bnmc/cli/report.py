"""Parts of the reports of commands: seeds, progress, numbers, tables and JSON."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bnmc._support.text import text_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The largest number of layers in a table.
SHOWN_LAYERS = 12


def chosen_seed(seed: int | None) -> int:
    """Return the seed of a run, a random one if `seed` is None."""
    import secrets

    from bnmc._support.arguments import integer

    return secrets.randbits(32) if seed is None else integer("seed", seed, low=0)


def progress_report(wanted: bool | None, unit: str = "task") -> bool | Callable[[int, int], None]:
    """Return the argument `progress` of library functions for the option ``--progress``.

    If standard error is a terminal, the progress is a bar unless `wanted` is False. Otherwise it is
    at most ten lines if `wanted` is True.
    """
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


def number_text(value: float) -> str:
    """Return a number with six significant digits."""
    return f"{value:.6g}"


def number_with_error(mean: float, stderr: float | None) -> str:
    """Return a mean to two significant digits of its standard error, and the standard error."""
    if not stderr or not math.isfinite(stderr):
        return f"{mean:.6g}"
    decimals = 1 - math.floor(math.log10(stderr))
    if not 0 <= decimals <= 7 or abs(mean) >= 1e7:
        return f"{mean:.3g} ± {stderr:.1g}"
    return f"{mean:.{decimals}f} ± {stderr:.{decimals}f}"


def shown_rows(layers: NDArray[np.int64]) -> list[int]:
    """Return the indices of the layers in a table: the first, the last, and round ones between.

    Parameters
    ----------
    layers : (n,) ndarray of int
        Recorded layers, in increasing order.

    Returns
    -------
    list of int
        At most `SHOWN_LAYERS` indices of `layers`, in increasing order.
    """
    import numpy as np

    last = len(layers) - 1
    for steps in ((1, 2, 5), (1,)):
        round_layers = [step * 10**power for power in range(10) for step in steps]
        nearest = {int(np.abs(layers - layer).argmin()) for layer in round_layers}
        if len(nearest) <= SHOWN_LAYERS - 2:
            break
    return sorted(nearest | {0, last})


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document."""
    from bnmc._support.text import dumps

    print(dumps(document))


def print_table(heads: list[str], rows: list[list[str]]) -> None:
    """Print a table: with lines and colours on a terminal, as aligned text elsewhere."""
    if not sys.stdout.isatty():
        print(text_table(heads, rows, align="><"))
        return
    from bnmc._support.extras import import_extra

    rich_table = import_extra("rich.table", "cli")
    table = rich_table.Table(header_style="bold", row_styles=["", "dim"])
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index == 0 else "left")
    for row in rows:
        table.add_row(*row)
    import_extra("rich.console", "cli").Console().print(table)
