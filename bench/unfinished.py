"""Cases of long benchmarks, kept as they finish, so that a stopped benchmark continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bench.report import RESULTS, Cell

UNFINISHED = RESULTS / "unfinished"


class Cases:
    """Rows of a table by case, in a file with one line per case.

    Parameters
    ----------
    name : str
        Name of the file, which contains the sizes of the benchmark: rows of other sizes are kept in
        other files.
    folder : Path
    """

    def __init__(self, name: str, folder: Path = UNFINISHED) -> None:
        self._path = folder / f"{name}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self._rows: dict[str, list[Cell]] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                try:
                    case, row = json.loads(line)
                except ValueError:  # the last line of a run that was killed while it wrote
                    continue
                self._rows[case] = row

    def __contains__(self, case: str) -> bool:
        """Return whether the row of a case is kept."""
        return case in self._rows

    def row(self, case: str, make: Callable[[], list[Cell]]) -> list[Cell]:
        """Return the kept row of a case, or make, keep and print it."""
        if case not in self._rows:
            self._rows[case] = make()
            with self._path.open("a") as file:
                # The line feed in front ends a line that was cut off.
                file.write("\n" + json.dumps([case, self._rows[case]]) + "\n")
            print(case, *self._rows[case], flush=True)
        return self._rows[case]

    def done(self) -> None:
        """Remove the file, once all rows are in a report."""
        self._path.unlink(missing_ok=True)
