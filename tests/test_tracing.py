"""Coverage is off where it only costs time."""

import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import sharing
import tracing
from tracing import Tracing

ROOT = Path(__file__).parents[1]


class Tracer:
    """A tracer with the lines that it has seen, as that of coverage."""

    def __init__(self):
        self.data = {"file": set()}

    def __call__(self, frame, event, argument):
        return None

    def reach(self, line):
        self.data["file"].add(line)


tracer = Tracer()


def tracers_in(context, action=lambda: None):
    """Return the tracers within a context, after an action, and behind it."""
    before = sys.gettrace(), threading.gettrace()
    sys.settrace(tracer)
    threading.settrace(tracer)
    try:
        with context:
            action()
            during = sys.gettrace(), threading.gettrace()
        return during, (sys.gettrace(), threading.gettrace())
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])


ON, OFF = (tracer, tracer), (None, None)


def spend(reaches=False):
    """Spend processor time, and reach new lines all the time or none.

    On the way is a compilation, which restores the tracer.
    """
    begun = time.process_time()
    for steps in (4, 8):
        while (now := time.process_time()) < begun + steps * tracing.STEP:
            tracer.reach(now if reaches else 0)
        if steps == 4 and sys.gettrace() is None:
            sys.settrace(tracer)


@pytest.mark.parametrize(
    ("named", "idle", "reached", "counted"),
    [
        ((), 0.0, "110111", "111000"),
        ((), 9.0, "110111", "111111"),
        (("untraced",), 9.0, "11", "00"),
        (("simulator",), 0.0, "0000", "1111"),
    ],
)
def test_what_coverage_counts(named, idle, reached, counted, monkeypatch):
    """Cases of a test, until they reach no new line for some time."""
    monkeypatch.delenv("BNMC_TEST_SECONDS", raising=False)
    monkeypatch.setattr(tracing, "IDLE_CASES", idle)
    items = [
        SimpleNamespace(
            nodeid=f"tests/test_a.py::test_b[{number}]",
            get_closest_marker=lambda name: name in named or None,
            fixturenames=named,
        )
        for number in range(len(reached))
    ]

    def work(is_new):
        tracer.reach(object() if is_new else 0)
        begun = time.process_time()
        while time.process_time() == begun:  # a clock of few ticks
            pass

    def seen(plugin):
        return [
            tracers_in(plugin.around(item), partial(work, is_new))
            for item, is_new in zip(items, map(int, reached), strict=True)
        ]

    tracer.reach(0)
    assert seen(Tracing()) == [(ON if int(counts) else OFF, ON) for counts in counted]
    monkeypatch.setenv("BNMC_TEST_SECONDS", "file")
    assert seen(Tracing()) == [(ON, ON)] * len(reached)


@pytest.mark.parametrize(
    ("after", "reaches", "tracers"), [(50.0, True, ON), (50.0, False, OFF), (0.04, True, OFF)]
)
def test_coverage_ends_where_a_test_reaches_no_new_line_or_goes_on(
    after, reaches, tracers, monkeypatch
):
    monkeypatch.setattr(tracing, "STEP", 0.02)
    monkeypatch.setattr(tracing, "IDLE", 0.04)
    tracer.reach(0)
    context = tracing.switched_off(after)
    assert tracers_in(context, lambda: spend(reaches)) == (tracers, ON)
    # Nothing remains that would stop the tracers of later tests.
    assert tracers_in(nullcontext(), spend) == (ON, ON)


def tracers_of(around, wanted):
    """Return the tracers within a wrapper of a hook, and after it, if `wanted` is there before."""
    before = sys.gettrace(), threading.gettrace()
    sys.settrace(wanted)
    threading.settrace(wanted)
    try:
        next(around)
        during = sys.gettrace()
        with pytest.raises(StopIteration, match="result"):
            around.send("result")
        return during, sys.gettrace()
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])


def session_of(**parts):
    return SimpleNamespace(config=SimpleNamespace(**parts))


ALONE = session_of(option=SimpleNamespace())
WORKER = session_of(option=SimpleNamespace(numprocesses=2), workerinput={})
CONTROLLER = session_of(option=SimpleNamespace(numprocesses=2))


@pytest.mark.parametrize("hook", ["pytest_sessionstart", "pytest_runtestloop"])
@pytest.mark.parametrize(
    ("session", "is_traced"),
    [
        (CONTROLLER, False),
        (WORKER, True),
        (session_of(option=SimpleNamespace(numprocesses=None)), True),
        (ALONE, True),
    ],
)
def test_the_process_that_only_hands_out_tests_runs_without_a_tracer(hook, session, is_traced):
    tracers = tracers_of(getattr(Tracing(), hook)(session), tracer)
    assert tracers == (tracer if is_traced else None, tracer)


@pytest.mark.parametrize("session", [ALONE, WORKER, CONTROLLER])
@pytest.mark.parametrize("is_traced", [True, False])
def test_tests_are_collected_without_a_tracer_after_all_modules_are_imported(
    session, is_traced, monkeypatch
):
    imported = {}

    def import_module(name):
        imported[name] = sys.gettrace()

    monkeypatch.setattr(tracing, "import_module", import_module)
    wanted = tracer if is_traced else None
    during = tracer if is_traced and session is CONTROLLER else None
    assert tracers_of(Tracing().pytest_collection(session), wanted) == (during, wanted)
    # Without coverage nothing is imported that no test asks for.
    modules = (ROOT / "src" / "bnmc").rglob("*.py")
    every = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in modules}
    every = {name.removesuffix(".__init__") for name in every} - {"bnmc", "bnmc.__main__"}
    expected = dict.fromkeys(tracing.LARGE_MODULES) | dict.fromkeys(every, tracer)
    assert imported == (expected if is_traced and session is not CONTROLLER else {})


def test_workers_compile_each_file_once(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def files(worker, count, source=pytest.Config.ArgsSource.TESTPATHS):
        parts = {"workerid": f"gw{worker}", "workercount": count}
        return sharing.files(SimpleNamespace(workerinput=parts, args_source=source))

    every = [*(ROOT / "src" / "bnmc").rglob("*.py"), *(ROOT / "tests").rglob("test_*.py")]
    assert sorted(files(0, 3) + files(1, 3) + files(2, 3)) == sorted(every)
    # A run of some tests, or without workers, compiles what it imports.
    assert not files(0, 3, pytest.Config.ArgsSource.ARGS)
    assert not files(0, 1)
    assert not sharing.files(SimpleNamespace())


def test_the_package_is_parsed_once_before_the_report(monkeypatch):
    """The process that hands out tests does so: a report then has the statements at once."""
    parser, file = sharing.python.PythonParser, str(ROOT / "tests" / "slow_cases.py")
    monkeypatch.setattr(sharing.python, "PythonParser", parser)
    monkeypatch.setattr(sharing, "ROOT", ROOT / "tests" / "downstream")
    regex = "if TYPE_CHECKING"
    cov = SimpleNamespace(_exclude_regex=lambda name: regex)
    plugin = SimpleNamespace(cov_controller=SimpleNamespace(cov=cov))
    config = SimpleNamespace(
        option=SimpleNamespace(numprocesses=2), args_source=sharing.TESTPATHS,
        pluginmanager=SimpleNamespace(get_plugin={"_cov": plugin}.get),
    )  # fmt: skip
    sharing.parse_package(SimpleNamespace(**vars(config) | {"workerinput": {}}))
    assert sharing.python.PythonParser is parser
    sharing.parse_package(config)
    expected, first, again = (
        kind(filename=file, exclude=regex)
        for kind in (parser, sharing.python.PythonParser, sharing.python.PythonParser)
    )
    for parsed in (expected, first):
        parsed.parse_source()
    monkeypatch.setattr(parser, "parse_source", None)
    again.parse_source()
    for parsed in (first, again):
        assert parsed.statements == expected.statements != set()
        assert parsed.multiline_map == expected.multiline_map
