"""The parts of the benchmark by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.memory import add_memory
from bench.reliability.counting import Counting
from bench.reliability.cuts import add_cuts
from bench.reliability.damage import add_corruption, add_full_disk
from bench.reliability.hostile_calls import add_fuzz
from bench.reliability.hostile_files import add_files
from bench.reliability.kills import add_dask, add_kills
from bench.reliability.long_runs import add_overhead, add_soak
from bench.reliability.names import add_names
from bench.reliability.streams import add_normals, add_words
from bench.report import Report

#: Parts that take no options.
PLAIN: dict[str, Callable[[Report, bool], None]] = {
    "kills": add_kills, "dask": add_dask, "fuzz": add_fuzz, "soak": add_soak,
    "overhead": add_overhead, "corruption": add_corruption, "full disk": add_full_disk,
    "memory": add_memory,
}  # fmt: skip

#: Parts that count drawn cases, with their counts and those of a quick run.
COUNTED: dict[str, tuple[Callable[[Report, Counting], None], int, int]] = {
    "names": (add_names, 1000, 10),
    "files": (add_files, 10_000, 200),
    "cuts": (add_cuts, 100_000, 300),
}
#: Parts that need another program, with GiB of a stream.  They run only when they are named.
STREAMS = {"words": (add_words, 1024, 1), "normals": (add_normals, 1024, 1)}


def benchmark(*, quick: bool, only: str | None = None, **options: Any) -> Report:
    """Kills, damage, cuts of work, hostile calls, memory of long runs, overhead."""
    counted = COUNTED if only is None else COUNTED | STREAMS
    names = [*PLAIN, *counted]
    if only is not None and only not in names:
        raise SystemExit(f"--only {only}: none of {', '.join(names)}")
    if options and only not in counted:
        raise SystemExit(f"--{next(iter(options))} needs --only with one of {', '.join(counted)}")
    report = Report("reliability" if only is None else f"reliability-{only.replace(' ', '-')}")
    for name in names if only is None else (only,):
        if name in PLAIN:
            PLAIN[name](report, quick)
        else:
            function, full, few = counted[name]
            function(report, Counting(name, **{"count": few if quick else full, **options}))
    return report
