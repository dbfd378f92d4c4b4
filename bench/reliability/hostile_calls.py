"""Calls of the public API and the command line with hostile arguments and files."""

from __future__ import annotations

import collections
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.reliability.stored_runs import SEED, die_with_parent
from bench.report import Cell, Floor, Report, Table

#: Calls of each group of `tests/fuzzing.py`, for each 1000.
SHARES = {
    "functions": 640, "runs": 150, "files": 120, "pickles": 40, "command line": 25, "written": 15,
    "stores": 10,
}  # fmt: skip

Calls = list[tuple[str, int]]


def make_calls(
    calls: Calls, at: Any, folder: str, results: Any, first: int
) -> None:  # in a child: a crash is to be seen
    die_with_parent()
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    import fuzzing

    ends: collections.Counter[str] = collections.Counter()
    findings = []
    for number in range(first, len(calls)):
        at.value = number
        try:
            ends[fuzzing.fuzz(*calls[number], Path(folder))] += 1
        except fuzzing.Finding as finding:
            ends["finding"] += 1
            findings.append(str(finding))
    results.put((dict(ends), findings))


def add_fuzz(report: Report, quick: bool) -> None:
    """Hostile calls, of which none may crash, hang or raise what is no error of the library."""
    thousands = 2 if quick else 100
    # Other seeds than those of the tests.
    calls: Calls = [
        (group, 10**6 + number)
        for group, share in SHARES.items()
        for number in range(share * thousands)
    ]
    random.Random(SEED).shuffle(calls)
    context = multiprocessing.get_context("spawn")
    at, results = context.Value("q", 0), context.Queue()
    ends: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        while first < len(calls):
            child = context.Process(target=make_calls, args=(calls, at, folder, results, first))
            child.start()
            stuck, since = -1, time.monotonic()
            while child.is_alive():
                if not results.empty():
                    counted, found = results.get()
                    ends.update(counted)
                    findings += found
                    child.join()
                    break
                if at.value != stuck:
                    stuck, since = at.value, time.monotonic()
                elif time.monotonic() - since > 60.0:  # 20 s of a call, on a machine that is busy
                    child.kill()
                    findings.append(f"a hang: fuzz{calls[stuck]}")
                time.sleep(0.2)
            child.join()
            if child.exitcode == 0:
                break
            findings.append(f"exit status {child.exitcode}: fuzz{calls[at.value]}")
            ends["finding"] += 1
            first = at.value + 1  # what was counted of this child is lost with it
    rows: list[list[Cell]] = [[name, count] for name, count in sorted(ends.items())]
    report.tables.append(Table("Hostile calls", ["end", "n"], rows))
    if findings:
        report.tables.append(Table("Findings", ["what"], [[one[:300]] for one in findings[:20]]))
    report.samples["findings"] = findings
    report.floors += [
        Floor("hostile calls", sum(ends.values()), 1000 * thousands),
        Floor("crashes, hangs and foreign errors", len(findings), 0, at_most=True),
    ]
