"""Programs in fresh processes, and the memory that they add."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def child(script: str, *, cache: str | None = None) -> Any:
    """Run a script in a fresh interpreter and return the JSON value of its last line."""
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = cache
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"child process failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


#: A watcher of its own process, for scripts.  The peak of a process never falls, so one that was
#: left by compilation would hide what a call adds; Linux lets a process reset its own peak
#: (proc_pid_clear_refs(5)).
WATCHER = """
import gc, json, time

class Watch:
    def __enter__(self):
        gc.collect()
        self.reset()
        self.begun = time.perf_counter()
        return self
    def reset(self):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = self.resident()
    def resident(self, field="VmRSS:"):
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) * 1.024e-3 for line in lines if line.startswith(field))
    def peak(self):
        return self.resident("VmHWM:")
    def __exit__(self, *_):
        self.seconds, self.added = time.perf_counter() - self.begun, self.peak() - self.before
"""

#: Whether a process can reset its peak.
CAN_WATCH = os.access("/proc/self/clear_refs", os.W_OK)


def memory_of(setup: str, statement: str, *, cache: str | None = None) -> dict[str, float]:
    """Return what a statement does to the resident set of a process, in MB (10^6 bytes).

    "added" is what it adds at most to what `setup` leaves, "peak" the most of the process, and
    "seconds" its time.
    """
    lines = f"""
with Watch() as watch:
    {statement}
print(json.dumps({{"added": watch.added, "peak": watch.peak(), "seconds": watch.seconds}}))
"""
    memory: dict[str, float] = child("\n".join([WATCHER, setup, lines]), cache=cache)
    return memory
