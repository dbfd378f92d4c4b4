"""Coverage is off where it only costs time."""

import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import tracing
from tracing import Tracing

ROOT = Path(__file__).parents[1]


def tracer(frame, event, argument):
    return None


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


def spend(seconds):
    """Spend processor time, with a compilation at the end, which restores the tracer."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    sys.settrace(tracer)


def pause():
    end = time.process_time() + 3 * tracing.STEP
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("nodeid", "marks", "counted"),
    [
        ("tests/chain/test_a.py::test_b", (), 3),
        ("tests/experiments/test_figures.py::test_a_figure_is_sound", (), 5),
        ("tests/cli/test_a.py::test_b", (), 5),
        ("tests/cli/test_a.py::test_b", ("untraced",), 0),
    ],
)
def test_what_coverage_counts(nodeid, marks, counted, monkeypatch):
    monkeypatch.delenv("BNMC_TEST_SECONDS", raising=False)
    items = [
        SimpleNamespace(
            nodeid=f"{nodeid}[{case}]", get_closest_marker=lambda name: name in marks or None
        )
        for case in range(5)
    ]
    plugin = Tracing()
    assert [tracers_in(plugin.around(item)) for item in items] == [
        (ON if case < counted else OFF, ON) for case in range(5)
    ]
    monkeypatch.setenv("BNMC_TEST_SECONDS", "file")
    plugin = Tracing()
    assert all(tracers_in(plugin.around(item)) == (ON, ON) for item in items)


def test_coverage_ends_some_time_after_a_test_begins():
    def work():
        spend(0.1)
        pause()

    assert tracers_in(tracing.switched_off(0.05), work) == (OFF, ON)
    assert tracers_in(tracing.switched_off(50.0), work) == (ON, ON)
    # Nothing remains that would stop the tracers of later tests.
    assert tracers_in(nullcontext(), pause) == (ON, ON)


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
    tracers = tracers_of(getattr(Tracing(), hook)(session), tracer)
    assert tracers == (tracer if is_traced else None, tracer)


@pytest.mark.parametrize("is_traced", [True, False])
def test_tests_are_collected_without_a_tracer_after_all_modules_are_imported(
    is_traced, monkeypatch
):
    imported = {}

    def import_module(name):
        imported[name] = sys.gettrace()

    monkeypatch.setattr(tracing, "import_module", import_module)
    wanted = tracer if is_traced else None
    assert tracers_of(Tracing().pytest_collection(), wanted) == (None, wanted)
    # Without coverage nothing is imported that no test asks for.
    modules = (ROOT / "src" / "bnmc").rglob("*.py")
    every = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in modules}
    every = {name.removesuffix(".__init__") for name in every} - {"bnmc", "bnmc.__main__"}
    assert imported == (dict.fromkeys(every, tracer) if is_traced else {})
