"""kill -9 of several processes that resume one store under three names.

The names are an absolute path, a path through a link to its folder, and a relative path.  A process
is killed at a drawn event (a file that is opened, renamed or removed, or the begin or end of a step
of the store), in the file of a tile, or at a drawn time.
"""

from __future__ import annotations

import collections
import functools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bnmc
from bench.reliability.counting import Counting
from bench.reliability.stored_runs import (
    damaged,
    die_with_parent,
    finished,
    many_tiles,
    run,
    same,
)
from bench.report import Report
from bnmc.errors import BnmcError, StoreInUseError
from bnmc.simulation.store import store
from bnmc.simulation.store.folder import Folder

DEPTH = 3000
#: Longest time of a process, in seconds.
LONGEST = 120.0
#: Exit status of a process whose run has other values, and of one that raised an error.
OTHER_VALUES, RAISED = 3, 4
#: Phases of a run, in their order.
PHASES = [
    "start", "opening", "creation", "values", "file of a tile", "fsync", "check at the end",
    "return",
]  # fmt: skip
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.truncate"}


def add_names(report: Report, counting: Counting) -> None:
    """Kill processes until the count is reached, and check each store after each round."""
    expected = run(depth=DEPTH)
    phases: collections.Counter[str] = collections.Counter()
    context = multiprocessing.get_context("fork")
    with many_tiles() as folder, counting.until_interrupted():
        (folder / "real").mkdir()
        (folder / "linked").symlink_to(folder / "real")
        run(folder / "real" / "warm.zarr", depth=DEPTH)
        resume = functools.partial(_resume, expected)
        events, life = _measured(context, folder, resume)
        stores = 0
        while not counting.is_over():
            path = folder / "real" / f"run-{stores}.zarr"
            rng = random.Random(f"{counting.seed} names {counting.next} {stores}")
            before = finished(path)
            killed, ended = _round(context, folder, path.name, rng, events, life, counting, resume)
            phases.update(killed)
            counting.next += len(killed)
            after = finished(path)
            if not before <= after or (after and damaged(path, expected)):
                counting.findings.append(f"{path.name}: finished tiles are lost or have other bits")
            if ended:
                stores += 1
                if not same(run(path, depth=DEPTH), expected):
                    counting.findings.append(f"{path.name}: other values in the end")
                left = [one.name for one in path.parent.glob(".*")]
                if left:
                    counting.findings.append(f"{path.name}: files remain: {left}")
            counting.tell()
    counting.ends.update({f"killed in the phase: {name}": phases[name] for name in PHASES})
    counting.ends["stores that were finished"] = stores
    counting.add_to(report, "kill -9 under three names of one store", "lost or mixed values")


def _measured(context: Any, folder: Path, resume: Callable[..., None]) -> tuple[int, float]:
    """Return the events and the seconds of a run that makes its store."""
    state = context.Array("q", 2, lock=False)
    begun = time.perf_counter()
    child = context.Process(target=resume, args=(str(folder / "real" / "m.zarr"), state, 0))
    child.start()
    child.join()
    return int(state[0]), time.perf_counter() - begun


def _round(
    context: Any,
    folder: Path,
    name: str,
    rng: random.Random,
    events: int,
    life: float,
    counting: Counting,
    resume: Callable[..., None],
) -> tuple[list[str], bool]:
    """Let three processes resume a store; return the phases of kills, and whether one finished."""
    spellings = [str(folder / "real" / name), str(folder / "linked" / name), f"./real/{name}"]
    rng.shuffle(spellings)
    children = []
    for spelling in spellings:
        how = rng.choices(["event", "tile", "time", "never"], [5, 1, 3, 0.4])[0]
        state = context.Array("q", 2, lock=False)
        at = rng.randrange(1, events + events // 20) if how == "event" else 0
        if how == "tile":
            at = -rng.randrange(1, 9)
        child = context.Process(target=resume, args=(spelling, state, at, str(folder)))
        child.start()
        until = time.monotonic() + (rng.uniform(0.0, 2.0 * life) if how == "time" else LONGEST)
        children.append((child, state, how, until))
    killed, ended = [], False
    for child, state, how, until in sorted(children, key=lambda one: one[3]):
        child.join(max(0.0, until - time.monotonic()))
        if child.exitcode is None and how != "time":
            counting.findings.append(f"{name}: a process hangs in the phase {PHASES[state[1]]}")
        child.kill()
        child.join()
        if child.exitcode == -signal.SIGKILL:
            killed.append(PHASES[state[1]])
        elif child.exitcode == 0:
            counting.ends["processes that finished with the same values"] += 1
            ended = True
        else:
            what = {OTHER_VALUES: "other values", RAISED: "an error"}.get(child.exitcode, "a crash")
            said = (folder / "errors").read_text() if (folder / "errors").exists() else ""
            counting.findings.append(f"{name}: {what}, status {child.exitcode}: {said[-200:]}")
    return killed, ended


# --- in a process that is killed ----------------------------------------------------------------


def _resume(expected: bnmc.Trajectory, path: str, state: Any, at: int, folder: str = ".") -> None:
    """Resume a store, and die at the event of number `at`, or in the file of tile number -`at`.

    0 stands for neither.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    _count_events(state, at)
    until = time.monotonic() + LONGEST
    while True:
        try:
            found = run(Path(path), depth=DEPTH)
            is_same = same(found, expected)
        except StoreInUseError:
            if time.monotonic() < until:
                time.sleep(0.005)
                continue
            raise
        except BnmcError as error:
            Path(folder, "errors").write_text(f"{type(error).__name__}: {error}")
            os._exit(RAISED)
        os._exit(0 if is_same else OTHER_VALUES)


def _count_events(state: Any, at: int) -> None:
    """Count events and note the phase in `state`; die where `at` says, as in `_resume`."""

    def count() -> None:
        state[0] += 1
        if state[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, _: Any) -> None:
        if event in EVENTS:
            count()

    def in_phase(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*arguments: Any, **named: Any) -> Any:
            former, state[1] = state[1], PHASES.index(name)
            count()
            try:
                return function(*arguments, **named)
            finally:
                count()
                state[1] = PHASES.index("return") if name == "check at the end" else former

        return inner

    replace = store.RunStore.replace
    files = 0

    def torn(self: Any, name: str, content: bytes) -> Path:
        """Write the file of a tile, or a part of it and die."""
        nonlocal files
        files += 1
        if files == -at:
            partial = (self.folder.place / name).with_suffix(".partial")
            partial.write_bytes(content[: files * 70])
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, name, content)

    put: Any = setattr  # the methods of the package are replaced in this process only
    put(store.RunStore, "__init__", in_phase("opening", store.RunStore.__init__))
    put(store.RunStore, "_document", in_phase("creation", store.RunStore._document))
    put(store.RunStore, "put", in_phase("values", store.RunStore.put))
    put(store.RunStore, "replace", in_phase("file of a tile", torn))
    put(Folder, "sync", in_phase("fsync", Folder.sync))
    put(store.RunStore, "check", in_phase("check at the end", store.RunStore.check))
    sys.addaudithook(hook)
