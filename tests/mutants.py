"""Put small faults into the package, one at a time, and see which ones the tests find.

``make mutants`` draws 40 faults in the files that differ from the branch ``main``;
``make mutants ARGS="--all --faults 300 --seed 7"`` draws them in all files.  A draw stays the same
where the package does, so that it can be repeated when there are more tests.  First the tests that
are not slow run once without a fault, to learn which tests execute which lines.  Then each fault
meets the tests that execute its line: those that belong to its file first, then the fastest.  Tests
that take more than `--seconds` together are left out.  A fault that no test finds *survives*:
either it changes nothing that matters, or a test is missing.

Compiled lines are not seen to run, so a fault in a kernel meets the tests that run the kernel as
plain Python, and those in the simulator of the GPU; then those that run the files that import it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from architecture import imports
from faults import Fault, drawn, faults_of, with_fault

__all__ = ["main"]

ROOT = Path(__file__).parents[1]

#: Processor time of the tests with a fault: a multiple of their own, and seconds beside it.
PATIENCE, COMPILING = 5.0, 120.0
#: The same by the clock, as a multiple of it: tests that wait are stopped, and those that compute
#: are not, although tests of the lowest priority may get a tenth of a core of a busy machine.
WAITING = 20.0
#: Runs a command, each process of which may take `$0` seconds of processor time.
LIMITED = 'ulimit -c 0; ulimit -S -t "$0"; exec "$@"'


#: The tests of all defaults, which read them without running a line.
DEFAULTS = "tests/test_public_api.py::test_docstrings_tell_the_defaults["


@cache
def users_of(path: Path) -> tuple[Path, ...]:
    """Return the files outside of `_kernels` that import a kernel, also through other kernels."""
    package = ROOT / "src/bnmc"
    todo = kernels = {path.relative_to("src/bnmc")}
    users: set[Path] = set()
    while todo:
        files = {edge.file for edge in imports(package) if edge.target in todo and not edge.typing}
        inside = {file for file in files if file.parts[0] == "_kernels"}
        users |= {file for file in files - inside if file.name != "__init__.py"}
        todo = inside - kernels
        kernels = kernels | todo
    return tuple(sorted(Path("src/bnmc", file) for file in users))


@dataclass(frozen=True)
class Tests:
    """Which tests execute which lines, and how long they take.

    Attributes
    ----------
    of_line : dict
        By file and line, the names of the tests.
    seconds : dict
        By name, the time of a test.
    """

    of_line: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def of(self, fault: Fault, most: float) -> list[str]:
        """Return the tests for a fault, in the order in which they run.

        The file of the same name belongs to them in any case, in the same folder of the tests or in
        one above: a fixture of several files runs where no test of that file is seen.  To a kernel,
        whose compiled lines are not seen, belong the tests of the files that import it, too; they
        come last.
        """
        lines = self.of_line.get(str(fault.path), {})
        wanted = fault.lines or tuple(lines)
        names = {name for line in wanted for name in lines.get(line, [])}
        seen = frozenset(names)
        if "_kernels" in fault.path.parts:
            users = [self.of_line.get(str(path), {}) for path in users_of(fault.path)]
            names.update(name for file in users for of_line in file.values() for name in of_line)
        parts = Path(*fault.path.parts[2:])  # without src/bnmc
        test = f"test_{parts.name}::"
        beginnings = tuple(f"{Path('tests', folder, test)}" for folder in parts.parents)
        names.update(name for name in self.seconds if name.startswith(beginnings))
        if fault.is_default:
            names.update(name for name in self.seconds if name.startswith(DEFAULTS))
        chosen: list[str] = []
        total = 0.0
        for name in sorted(
            names,
            key=lambda name: (
                not name.startswith(beginnings), name not in seen, self.seconds.get(name, 0.0), name
            ),
        ):  # fmt: skip
            total += self.seconds.get(name, 0.0)
            if chosen and total > most:
                break
            chosen.append(name)
        return chosen


class Recorder:
    """A pytest plugin that writes the times of tests to a file, and which ones failed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add the time of one phase of a test."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write all times."""
        if "PYTEST_XDIST_WORKER" not in os.environ:
            record = {"seconds": self.seconds, "failed": sorted(self.failed)}
            Path(self.path).write_text(json.dumps(record))


def pytest_configure(config: Any) -> None:
    """Record times if `learn` asks for it (this module is then a plugin)."""
    path = os.environ.get("BNMC_TEST_SECONDS")
    if path:
        config.pluginmanager.register(Recorder(path))


def learn(where: Sequence[str], folder: Path) -> Tests:
    """Run tests without a fault and return what they execute; those that fail are left out."""
    record, data = folder / "seconds.json", folder / "coverage"
    if not record.exists():
        environment = _environment(ROOT) | {
            "BNMC_TEST_SECONDS": str(record),
            "COVERAGE_FILE": str(data),
        }
        command = ["-p", "mutants", "-n", "2", "--dist", "worksteal", "-q"]
        command += ["--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *command, *where],
            cwd=ROOT, env=environment, check=False,
        )  # fmt: skip
        # 1: some tests failed.
        if done.returncode > 1 or not record.exists():
            record.unlink(missing_ok=True)
            raise SystemExit(f"without a fault, pytest ends with status {done.returncode}")
    from coverage import CoverageData

    recorded = json.loads(record.read_text())
    seconds, failed = recorded["seconds"], set(recorded["failed"])
    if failed:
        print("left out, since they fail without a fault:", *sorted(failed), sep="\n  ")
    of_file = defaultdict(set)
    for name in seconds:
        of_file[name.partition("::")[0]].add(name)
    coverage = CoverageData(str(data))
    coverage.read()
    of_line = {}
    for path in coverage.measured_files():
        contexts = coverage.contexts_by_lineno(path).items()
        names = {line: _tests(phases, of_file) - failed for line, phases in contexts}
        of_line[str(Path(path).relative_to(ROOT))] = {
            line: sorted(tests) for line, tests in names.items() if tests
        }
    return Tests(of_line, seconds)


def _tests(contexts: Sequence[str], of_file: Mapping[str, Collection[str]]) -> set[str]:
    """Return the tests that execute a line, given the tests and phases in which it ran.

    What runs while a fixture is made belongs to all tests of the file, which may share it.
    """
    tests = set()
    for context in filter(None, contexts):
        name, _, phase = context.rpartition("|")  # names may have bars
        tests.update(of_file[name.partition("::")[0]] if phase == "setup" else [name])
    return tests


def _environment(root: Path) -> dict[str, str]:
    paths = f"{root / 'src'}{os.pathsep}{root / 'tests'}"
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def changed_files(base: str) -> list[Path]:
    """Return the Python files of the package that differ from a branch."""
    command = ["git", "diff", "--name-only", base, "--", "src/bnmc/*.py"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in names.splitlines() if (ROOT / name).exists()]


def judge(fault: Fault, tests: list[str], seconds: float, copies: list[Path]) -> str:
    """Return "killed", "survived", "slow" or "not run" for a fault, in one of the `copies`."""
    if not tests:
        return "not run"
    copy = copies.pop()
    file = copy / fault.path
    source, times = file.read_text(), file.stat()
    limit = PATIENCE * seconds + COMPILING
    try:
        file.write_text(with_fault(source, fault))
        done = subprocess.run(
            ["sh", "-c", LIMITED, f"{limit:.0f}", sys.executable, "-m", "pytest", "-x", "-q",
             "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests],
            cwd=copy, env=_environment(copy), check=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=WAITING * limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "slow"
    finally:
        file.write_text(source)
        # Numba's cache knows a file by its time.
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        copies.append(copy)
    if done.returncode == -signal.SIGXCPU:
        return "slow"
    return "killed" if done.returncode else "survived"


def _copy(folder: Path, number: int) -> Path:
    copy = folder / f"copy-{number}"
    names = ("src", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md", "docs", "bench")
    for name in names:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "_build")
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy(source, copy / name)
    return copy


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw faults, judge them, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--faults", type=int, default=40, help="how many faults to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--since", default="main", help="files that differ from this branch")
    parser.add_argument("--all", action="store_true", help="all files of the package")
    parser.add_argument("--files", nargs="*", help="these files or folders of src/bnmc")
    parser.add_argument(
        "--tests", nargs="*", default=["-m", "not slow"], help="run these tests only"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests for one fault")
    parser.add_argument("--keep", type=Path, help="folder that keeps what the tests execute")
    parser.add_argument(
        "--json",
        type=Path,
        help="file for the verdicts; a stopped run continues after those in it, and with more "
        "--seconds the survivors meet the tests that they have not met",
    )
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    given = parser.parse_args(arguments)

    if given.files:
        folders = [ROOT / name for name in given.files]
        paths = [p for folder in folders for p in (sorted(folder.rglob("*.py")) or [folder])]
        files = [path.relative_to(ROOT) for path in paths]
    elif given.all:
        files = [path.relative_to(ROOT) for path in sorted((ROOT / "src/bnmc").rglob("*.py"))]
    else:
        files = changed_files(given.since)
    every = [fault for path in files for fault in faults_of(path, ROOT)]
    if not every:
        raise SystemExit("no file of the package differs: use --all, --files or --since")
    faults = drawn(every, given.faults, given.seed)
    print(f"{len(faults)} of {len(every)} faults in {len(files)} files, seed {given.seed}")

    with tempfile.TemporaryDirectory() as temporary:
        keep = given.keep or Path(temporary)
        keep.mkdir(exist_ok=True, parents=True)
        tests = learn(given.tests, keep.resolve())
        verdicts = _kept(given.json, given.seed)
        copies = [_copy(Path(temporary), number) for number in range(given.jobs)]

        def verdict(fault: Fault) -> None:
            before = verdicts.get(str(fault), {"verdict": "survived", "tests": 0})
            chosen = tests.of(fault, given.seconds)[before["tests"] :]
            if before["verdict"] != "survived" or (before["tests"] and not chosen):
                return
            begin = time.monotonic()
            seconds = sum(tests.seconds.get(name, 0.0) for name in chosen)
            what = judge(fault, chosen, seconds, copies)
            print(f"{what:9} {time.monotonic() - begin:5.0f} s {len(chosen):4} tests  {fault}",
                  flush=True)  # fmt: skip
            met = before["tests"] + len(chosen)
            verdicts[str(fault)] = {"verdict": what, "fault": str(fault), "tests": met}
            if given.json:
                text = json.dumps(
                    {"seed": given.seed, "verdicts": list(verdicts.values())}, indent=1
                )
                given.json.write_text(text)

        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(verdict, faults))
    counts = Counter(verdicts[str(fault)]["verdict"] for fault in faults)
    killed = counts["killed"] + counts["slow"]
    print(f"found {killed} of {len(faults)}: {dict(counts)}")


def _kept(path: Path | None, seed: int) -> dict[str, Any]:
    """Return the verdicts that a run with the same seed has left in a file, by fault."""
    if path is None or not path.exists():
        return {}
    record = json.loads(path.read_text())
    return (
        {verdict["fault"]: verdict for verdict in record["verdicts"]}
        if record["seed"] == seed
        else {}
    )


if __name__ == "__main__":
    main()
