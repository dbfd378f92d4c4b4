"""kill -9 of several processes that resume one store under three names.

The names are an absolute path, a path through a link to its folder, and a relative path.  A process
is killed at a drawn event (a file that is opened, renamed or removed, or the begin or end of a step
of the store), in the file of a tile, or at a drawn time.
"""

import collections
import functools
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

from reliability.processes import die_with_parent
from reliability.stored_runs import damaged, finished, run, same

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


def test_processes_that_resume_one_store(stores, numbers, option):
    """Kill processes until the count is reached, and check each store after each round."""
    expected = run(depth=DEPTH)
    context = multiprocessing.get_context("fork")
    (stores / "real").mkdir()
    (stores / "linked").symlink_to(stores / "real")
    run(stores / "real" / "warm.zarr", depth=DEPTH)
    resume = functools.partial(_resume, expected)
    events, life = _measured(context, stores, resume)
    phases, rounds, number = collections.Counter(), 0, numbers("names").start
    while number < numbers("names").stop:
        path = stores / "real" / f"run-{rounds}.zarr"
        rng = random.Random(f"{option('case-seed')} names {number} {rounds}")
        before = finished(path)
        killed, ended = _round(context, stores, path.name, rng, events, life, resume)
        phases.update(killed)
        number += len(killed)
        after = finished(path)
        assert before <= after, "finished tiles are lost"
        assert not (after and damaged(path, expected)), "tiles with other bits"
        if ended:
            rounds += 1
            assert same(run(path, depth=DEPTH), expected)
            assert not list(path.parent.glob(".*"))
    print(f"phases of the kills: {dict(phases)}; {rounds} stores were finished")


def _measured(context, folder, resume):
    """Return the events and the seconds of a run that makes its store."""
    state = context.Array("q", 2, lock=False)
    begun = time.perf_counter()
    child = context.Process(target=resume, args=(str(folder / "real" / "m.zarr"), state, 0))
    child.start()
    child.join()
    return int(state[0]), time.perf_counter() - begun


def _round(context, folder, name, rng, events, life, resume):
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
    for child, state, how, until in sorted(children, key=lambda each: each[3]):
        child.join(max(0.0, until - time.monotonic()))
        hangs = child.exitcode is None and how != "time"
        child.kill()
        child.join()
        assert not hangs, f"{name}: a process hangs in the phase {PHASES[state[1]]}"
        if child.exitcode == -signal.SIGKILL:
            killed.append(PHASES[state[1]])
            continue
        said = (folder / "errors").read_text() if (folder / "errors").exists() else ""
        assert child.exitcode == 0, f"{name}: status {child.exitcode}: {said[-200:]}"
        ended = True
    return killed, ended


# --- in a process that is killed ----------------------------------------------------------------


def _resume(expected, path, state, at, folder="."):
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
            is_same = same(run(Path(path), depth=DEPTH), expected)
        except StoreInUseError:
            if time.monotonic() < until:
                time.sleep(0.005)
                continue
            raise
        except BnmcError as error:
            Path(folder, "errors").write_text(f"{type(error).__name__}: {error}")
            os._exit(RAISED)
        os._exit(0 if is_same else OTHER_VALUES)


def _count_events(state, at):
    """Count events and note the phase in `state`; die where `at` says, as in `_resume`."""

    def count():
        state[0] += 1
        if state[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, _):
        if event in EVENTS:
            count()

    def in_phase(name, function):
        @functools.wraps(function)
        def inner(*arguments, **named):
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

    def torn(self, name, content):
        """Write the file of a tile, or a part of it and die."""
        nonlocal files
        files += 1
        if files == -at:
            partial = (self.folder.place / name).with_suffix(".partial")
            partial.write_bytes(content[: files * 70])
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, name, content)

    put = setattr  # the methods of the package are replaced in this process only
    put(store.RunStore, "__init__", in_phase("opening", store.RunStore.__init__))
    put(store.RunStore, "_document", in_phase("creation", store.RunStore._document))
    put(store.RunStore, "put", in_phase("values", store.RunStore.put))
    put(store.RunStore, "replace", in_phase("file of a tile", torn))
    put(Folder, "sync", in_phase("fsync", Folder.sync))
    put(store.RunStore, "check", in_phase("check at the end", store.RunStore.check))
    sys.addaudithook(hook)
