"""The tool that puts faults into the package: it finds known places, and tests that fail."""

import ast
import signal
import subprocess
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import mutants
import pytest
from faults import Fault, drawn, faults_of, with_fault
from scipy.stats import chi2

SOURCE = '''\
"""Text with 1 < 2."""

LIMIT: int = 3


def f(x, é="ü < 1"):
    """Return 4 + 4."""
    if x < LIMIT and not x:
        x.total += 1
        raise ValueError("got 5 < 6")
    return min(x, 2.0) - é
'''

EXPECTED = {
    (3, "3", "4"), (3, "3", "2"), (8, "x < LIMIT", "(x <= LIMIT)"), (8, "x < LIMIT", "(x > LIMIT)"),
    (8, "x < LIMIT and not x", "(x < LIMIT or not x)"), (8, "not x", "(x)"),
    (9, "x.total += 1", "pass"), (9, "1", "2"), (9, "1", "0"),
    (11, "min(x, 2.0)", "(max(x, 2.0))"), (11, "2.0", "2.2"),
    (11, "min(x, 2.0) - é", "(min(x, 2.0) + é)"),
}  # fmt: skip


@pytest.fixture
def package(tmp_path):
    file = tmp_path / "src/bnmc/one.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    return tmp_path, Path("src/bnmc/one.py")


def test_every_place_that_runs_has_its_faults_and_messages_have_none(package):
    root, path = package
    faults = faults_of(path, root)
    assert {(fault.first[0], fault.was, fault.becomes) for fault in faults} == EXPECTED
    for fault in faults:
        assert ast.dump(ast.parse(with_fault(SOURCE, fault))) != ast.dump(ast.parse(SOURCE))


def test_a_fault_replaces_its_own_bytes_beyond_ascii(package):
    root, path = package
    (fault,) = [f for f in faults_of(path, root) if f.becomes == "(min(x, 2.0) + é)"]
    assert with_fault(SOURCE, fault) == SOURCE.replace("min(x, 2.0) - é", "(min(x, 2.0) + é)")


def test_lines_are_those_of_a_place_in_a_function_and_none_at_import(package):
    root, path = package
    lines = {fault.was: fault.lines for fault in faults_of(path, root)}
    assert lines["3"] == ()
    assert lines["2.0"] == (11,)


def test_the_lines_of_a_default_are_those_of_its_function(tmp_path):
    file = tmp_path / "one.py"
    file.write_text("def f(x=3):\n    def g(y=4):\n        return 5\n    return 6\n")
    faults = {
        fault.was: (fault.lines, fault.is_default) for fault in faults_of(Path("one.py"), tmp_path)
    }
    assert faults == {
        "3": ((1, 2, 3, 4), True), "4": ((2, 3), True), "5": ((3,), False), "6": ((4,), False),
    }  # fmt: skip


def test_a_draw_keeps_its_faults_when_lines_and_files_are_added(package):
    root, path = package
    before = faults_of(path, root)
    (root / path).write_text("\n\n" + SOURCE + "\n\nMORE = 5\n")
    other = Path("src/bnmc/two.py")
    (root / other).write_text("def f(x, y):\n    return x - y\n")
    after = [*faults_of(other, root), *faults_of(path, root)]
    old = [(fault.was, fault.becomes) for fault in drawn(before, len(before), 1)]
    new = [(fault.was, fault.becomes) for fault in drawn(after, len(after), 1)]
    assert len(new) > len(old)
    assert [fault for fault in new if fault in old] == old


def test_draws_of_other_seeds_are_others_and_all_faults_are_drawn_alike(package):
    """Over 4000 seeds, a fault of N is first 4000 / N times on average; all differences together
    are a chi-square of N - 1 degrees of freedom, beyond its 1 - 1e-6 quantile with 1e-6."""
    root, path = package
    faults = faults_of(path, root)
    firsts = Counter(drawn(faults, 1, seed)[0] for seed in range(4000))
    mean = 4000 / len(faults)
    statistic = sum((firsts[fault] - mean) ** 2 / mean for fault in faults)
    assert statistic < chi2.isf(1e-6, len(faults) - 1)
    assert len(set(drawn(faults, len(faults), 3))) == len(faults)


def test_kernels_meet_their_flat_file_and_the_tests_of_their_users():
    """`lanes.py` runs in compiled functions only; `regularity/ensembles.py` imports it."""
    fault = Fault(Path("src/bnmc/_kernels/cpu/lanes.py"), (1, 0), (1, 1), "1", "2", (93,))
    seconds = dict.fromkeys(("tests/_kernels/test_lanes.py::x", "tests/y.py::y"), 1.0)
    users = mutants.users_of(fault.path)
    assert Path("src/bnmc/regularity/ensembles.py") in users
    tests = mutants.Tests({str(users[0]): {3: ["tests/y.py::y"]}}, seconds)
    assert tests.of(fault, 30.0) == list(seconds)
    seconds["tests/z.py::z"] = 2.0  # runs the line as plain Python
    seen = {str(users[0]): {3: ["tests/y.py::y"]}, str(fault.path): {93: ["tests/z.py::z"]}}
    names = mutants.Tests(seen, seconds).of(fault, 30.0)
    assert names == ["tests/_kernels/test_lanes.py::x", "tests/z.py::z", "tests/y.py::y"]


SECONDS = {"tests/a/test_one.py::slow": 9.0, "tests/b.py::x": 2.0, "tests/b.py::y": 1.0}
ALIKE = dict.fromkeys(("tests/a/test_one.py::x", "tests/a/test_one_more.py::y"), 1.0)
IN_ORDER = ["tests/a/test_one.py::slow", "tests/b.py::y", "tests/b.py::x"]


@pytest.mark.parametrize(
    ("is_default", "of_line", "seconds", "most", "expected"),
    [
        # Those of the file, then the fastest, up to a time; a test in any case.
        *((False, {7: sorted(SECONDS), 8: ["other"]}, SECONDS, most, IN_ORDER[:count])
          for most, count in ((30.0, 3), (10.0, 2), (1.0, 1))),
        # Those of the file of the same name: another file may have asked first for a fixture that
        # both share.
        (False, {}, ALIKE, 30.0, ["tests/a/test_one.py::x"]),
        (False, {7: ["tests/c.py::z"]}, ALIKE, 30.0, ["tests/a/test_one.py::x", "tests/c.py::z"]),
        # A default never runs, so it meets the tests that read all of them.
        (True, {}, {f"{mutants.DEFAULTS}bnmc]": 1.0, "tests/b.py::x": 1.0}, 30.0,
         [f"{mutants.DEFAULTS}bnmc]"]),
    ],
)  # fmt: skip
def test_which_tests_meet_a_fault_and_in_which_order(is_default, of_line, seconds, most, expected):
    fault = Fault(Path("src/bnmc/a/one.py"), (1, 0), (1, 1), "1", "2", (7,), is_default)
    assert mutants.Tests({"src/bnmc/a/one.py": of_line}, seconds).of(fault, most) == expected


def test_the_tests_that_ran_a_line():
    """Contexts are names of tests and phases; a fixture may serve all tests of its file."""
    names = {"tests/a.py": {"tests/a.py::f[|x|^2]", "tests/a.py::g"}, "tests/b.py": {"tests/b.py"}}
    tests = mutants._tests(["", "tests/a.py::f[|x|^2]|run"], names)
    assert tests == {"tests/a.py::f[|x|^2]"}
    assert mutants._tests(["tests/a.py::f[|x|^2]|setup"], names) == names["tests/a.py"]


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [(1, "killed"), (0, "survived"), (None, "slow"), (-signal.SIGXCPU, "slow"),
     ("none", "not run")],
)  # fmt: skip
def test_verdicts_and_the_source_is_as_before(package, monkeypatch, outcome, verdict):
    root, path = package
    seen = []

    def run(command, **options):
        seen.append((root / path).read_text())
        if outcome is None:
            raise subprocess.TimeoutExpired(command, 1.0)
        return subprocess.CompletedProcess(command, outcome)

    monkeypatch.setattr(mutants.subprocess, "run", run)
    before = (root / path).stat()
    fault = faults_of(path, root)[0]
    copies = [root]
    tests = [] if outcome == "none" else ["a"]
    assert mutants.judge(fault, tests, 1.0, copies) == verdict
    assert (root / path).read_text() == SOURCE
    assert (root / path).stat().st_mtime_ns == before.st_mtime_ns
    assert copies == [root]
    assert seen == ([] if outcome == "none" else [with_fault(SOURCE, fault)])


def test_tests_that_compute_for_too_long_are_slow_and_those_that_wait_are_not(
    tmp_path, monkeypatch
):
    """Of a second of processor time, a loop takes all, and who sleeps takes nothing."""
    monkeypatch.setattr(mutants, "PATIENCE", 0.0)
    monkeypatch.setattr(mutants, "COMPILING", 1.0)
    monkeypatch.setattr(mutants, "sys", Mock(executable=tmp_path / "python"))
    (tmp_path / "one.py").write_text("x = 1\n")
    fault = faults_of(Path("one.py"), tmp_path)[0]
    for does, verdict in (("while :; do :; done", "slow"), ("sleep 1.5", "survived")):
        (tmp_path / "python").write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "python").chmod(0o755)
        assert mutants.judge(fault, ["a"], 1.0, [tmp_path]) == verdict


def test_with_more_seconds_survivors_meet_the_tests_that_they_have_not_met(
    package, monkeypatch, tmp_path
):
    root, _ = package
    faults = len(EXPECTED)
    every = {name: float(seconds) for seconds, name in enumerate(("a", "b", "c"), 1)}
    of_line = {"src/bnmc/one.py": {line: list(every) for line in range(1, 12)}}
    met = []

    def judge(fault, tests, seconds, copies):
        met.append(tuple(tests))
        return "killed" if "c" in tests or "not" in fault.was else "survived"

    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "learn", lambda where, folder: mutants.Tests(of_line, every))
    monkeypatch.setattr(mutants, "_copy", lambda folder, number: folder)
    monkeypatch.setattr(mutants, "judge", judge)
    options = ["--all", "--jobs", "1", "--json", str(tmp_path / "verdicts.json"), "--seconds"]
    survivors = sum("not" not in was for _, was, _ in EXPECTED)
    for seconds, expected in (
        ("3", [("a", "b")] * faults),
        ("3", []),
        ("6", [("c",)] * survivors),
        ("9", []),
    ):
        mutants.main([*options, seconds])
        assert met == expected
        met.clear()
