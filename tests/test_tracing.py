"""Coverage leaves out only tests whose lines others reach, and its list names tests that exist."""

import ast
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import tracing
from tracing import LIST, Tracing, listed, others_reach

ROOT = Path(__file__).parents[1]


def missing(names, root):
    """Return those of the names whose file has no such test, nor such an example."""

    @cache
    def defined(file):
        tree = ast.parse((root / file).read_text())
        return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    found = []
    for name in names:
        file, _, test = name.partition("[")[0].partition("::")
        absent = not (root / file).is_file()
        if absent or (file.startswith("tests/") and test.rpartition("::")[2] not in defined(file)):
            found.append(name)
    return found


def test_listed_tests_exist_and_others_are_found(tmp_path):
    assert missing(sorted(listed(LIST.read_text())), ROOT) == []
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text("def test_a(x):\n    pass\n")
    names = ["tests/test_one.py::test_a[3]", "tests/test_one.py::test_b", "tests/test_two.py::test"]
    assert missing(names, tmp_path) == names[1:]


def test_a_test_is_left_out_only_if_others_reach_its_lines():
    lines = {"slow": {1, 2}, "alone": {2, 9}, "fast": {1}, "twin": {3}, "other": {3}}
    seconds = {"slow": 5.0, "alone": 4.0, "fast": 0.01, "twin": 2.0, "other": 1.0}
    # Of twins the faster one counts; a fast test is not worth leaving out.
    assert others_reach(lines, seconds) == ["slow", "twin"]
    assert others_reach({**lines, "other": {4}}, seconds) == ["slow"]
    assert others_reach(lines, dict.fromkeys(lines, 0.1)) == []


def test_a_name_stands_for_all_cases_unless_one_must_remain():
    lines = {"a[1]": {1}, "a[2]": {1}, "b[1]": {1}, "b[2]": {1, 2}, "c": {1}}
    seconds = {"a[1]": 0.2, "a[2]": 0.2, "b[1]": 3.0, "b[2]": 3.0, "c": 0.1}
    assert others_reach(lines, seconds) == ["a", "b[1]"]
    assert listed("# a\n\n a \nb[2]\n") == {"a", "b[2]"}


def item(nodeid, *marks):
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: name in marks or None)


def test_what_coverage_counts(monkeypatch):
    monkeypatch.delenv("BNMC_TEST_SECONDS", raising=False)
    items = [
        *(item(f"tests/chain/test_a.py::test_b[{case}]") for case in range(5)),
        *(item(f"tests/cli/test_a.py::test_b[{case}]") for case in range(5)),
        item("tests/cli/test_c.py::test_c"),
        item("tests/cli/test_c.py::test_d", "untraced"),
    ]
    names = {"tests/cli/test_a.py::test_b[1]", "tests/cli/test_c.py::test_c"}
    plugin = Tracing(names)
    counted = [1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0]
    assert [plugin.traces(one) for one in items] == [bool(one) for one in counted]
    monkeypatch.setenv("BNMC_TEST_SECONDS", "file")
    plugin = Tracing(names)
    assert all(plugin.traces(one) for one in items)


def test_a_listed_test_runs_without_a_tracer(monkeypatch):
    monkeypatch.delenv("BNMC_TEST_SECONDS", raising=False)

    def tracer(frame, event, argument):
        return None

    seen = []
    before = sys.gettrace()
    for name in ("a", "b"):
        hook = Tracing({"a"}).pytest_runtest_call(item(name))
        sys.settrace(tracer)
        try:
            next(hook)
            seen.append(sys.gettrace())
            with pytest.raises(StopIteration):
                hook.send(None)
            seen.append(sys.gettrace())
        finally:
            sys.settrace(before)
    assert seen == [None, tracer, tracer, tracer]


def tracer(frame, event, argument):
    return None


def tracers_of(around, wanted):
    """Return the tracers within a wrapper of a hook, and after it, if `wanted` is there before."""
    before = sys.gettrace()
    sys.settrace(wanted)
    try:
        next(around)
        during = sys.gettrace()
        with pytest.raises(StopIteration, match="result"):
            around.send("result")
        return during, sys.gettrace()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("hook", ["pytest_sessionstart", "pytest_runtestloop"])
@pytest.mark.parametrize(
    ("parts", "is_traced"),
    [
        ({"option": SimpleNamespace(numprocesses=2)}, False),
        ({"option": SimpleNamespace(numprocesses=2), "workerinput": {}}, True),
        ({"option": SimpleNamespace(numprocesses=None)}, True),
        ({"option": SimpleNamespace()}, True),
    ],
)
def test_the_process_that_only_hands_out_tests_runs_without_a_tracer(hook, parts, is_traced):
    session = SimpleNamespace(config=SimpleNamespace(**parts))
    found = tracers_of(getattr(Tracing(()), hook)(session), tracer)
    assert found == (tracer if is_traced else None, tracer)


@pytest.mark.parametrize("is_traced", [True, False])
def test_tests_are_collected_without_a_tracer_after_all_modules_are_imported(
    is_traced, monkeypatch
):
    imported = {}

    def import_module(name):
        imported[name] = sys.gettrace()

    monkeypatch.setattr(tracing, "import_module", import_module)
    wanted = tracer if is_traced else None
    assert tracers_of(Tracing(()).pytest_collection(), wanted) == (None, wanted)
    # Without coverage nothing is imported that no test asks for.
    modules = (ROOT / "src" / "bnmc").rglob("*.py")
    every = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in modules}
    every = {name.removesuffix(".__init__") for name in every} - {"bnmc", "bnmc.__main__"}
    assert imported == (dict.fromkeys(every, tracer) if is_traced else {})


def test_the_list_is_written_from_what_tests_execute(monkeypatch, tmp_path, capsys):
    of_line = {"one.py": {1: ["x[1]", "x[2]", "y"], 2: ["y"]}}
    seconds = {"x[1]": 2.0, "x[2]": 1.0, "y": 3.0, "z": 4.0}
    learned = SimpleNamespace(of_line=of_line, seconds=seconds)
    import mutants

    monkeypatch.setattr(mutants, "learn", lambda where, folder: learned)
    monkeypatch.setattr(tracing, "LIST", tmp_path / "list.txt")
    tracing.main(tmp_path)
    assert (tmp_path / "list.txt").read_text() == tracing.HEAD + "x\nz\n"
    assert capsys.readouterr().out == "2 tests run without coverage: 7 s of 10 s\n"
