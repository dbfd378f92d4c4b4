"""The benchmarks run at tiny sizes, keep their floors, and compare; the emulator of GPU code."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
FILES = sorted(BENCH.glob("bench_*.py"))

pytestmark = [
    pytest.mark.skipif(not FILES, reason="the benchmarks are not here"),
    pytest.mark.untraced,
]

#: Files whose tiny runs take seconds together; the others compile for longer.
FAST = ("bench_normals", "bench_roofline")


@pytest.fixture
def bench(monkeypatch):
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"bench.{name}")


def run(*arguments):
    """Run pytest on benchmarks in a process of their own, which is no worker of pytest-xdist."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_benchmark.plugin",
         "-q", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=1200,
        # Plugins that the benchmarks do not use take a third of the time.
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [
        FAST,
        *(pytest.param((path.stem,), id=path.stem, marks=pytest.mark.slow)
          for path in FILES if path.stem not in FAST),
    ],
)  # fmt: skip
def test_every_benchmark_runs_at_tiny_sizes(names):
    done = run(*(BENCH / f"{name}.py" for name in names), "--benchmark-disable")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_benchmarks_import_is_there(bench):
    for path in FILES:
        bench(path.stem)


EXAMPLE = """
from functools import partial
from time import sleep

import pytest

from bench.turns import Candidate, only, repeating


@pytest.mark.parametrize("number", only((1, 2), quick=[1], tiny=[]))
def test_numbers(number):
    pass


def test_sleep(turns):
    turns.group = "sleeping"
    naps = [Candidate(name, repeating(partial(sleep, seconds)))
            for name, seconds in (("short", 0.01), ("long", 0.03))]
    timings = turns(naps, rounds=3, seconds=0.01)
    ratio = timings["short"].speed_over(timings["long"])
    turns.hold("short", "x long", ratio, at_least={limit})
    assert turns.timed("call", lambda: 17) == 17
"""


@pytest.mark.parametrize(
    ("limit", "options", "status"), [(1.5, (), 0), (1000, (), 1), (1000, ("--quick",), 0)]
)
def test_a_missed_floor_fails_a_full_run(limit, options, status, tmp_path):
    """And the file has samples, ratios and floors, and can be compared with."""
    path, file = tmp_path / "bench_example.py", tmp_path / "example.json"
    path.write_text(EXAMPLE.replace("{limit}", f"{limit}"))
    settings = ("-c", BENCH / "pytest.ini", "--rootdir", tmp_path, "-p", "bench.conftest")
    arguments = (path, *settings, *options, f"--benchmark-json={file}")
    done = run(*arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("1 deselected" in done.stdout) == ("--quick" in options)
    document = json.loads(file.read_text())
    entries = {entry["name"]: entry for entry in document["benchmarks"]}
    assert list(entries) == ["short", "long", "call"]
    assert {entry["group"] for entry in entries.values()} == {"sleeping"}
    assert len(entries["short"]["stats"]["data"]) == 3
    assert 0.01 <= entries["short"]["stats"]["min"] < entries["long"]["stats"]["min"]
    info = entries["short"]["extra_info"]
    assert info["floors"] == {"x long": [">=", limit]}
    assert 1.5 < info["x long"] < 4.0
    assert info["us"] == pytest.approx(1e6 * entries["short"]["stats"]["median"])
    assert max(info["processor"]) < 0.01  # it sleeps
    assert document["machine_info"]["cores"] >= 1
    assert document["quick"] == bool(options)
    assert ("MISSED" in done.stdout) == (limit == 1000)
    if limit == 1000:
        return
    for entry in document["benchmarks"]:
        entry["stats"]["median"] /= 10.0
    file.write_text(json.dumps(document))
    compared = (f"--benchmark-compare={file}", "--benchmark-compare-fail=median:50%")
    done = run(path, *settings, *compared)
    assert done.returncode != 0
    assert "Performance has regressed" in done.stderr + done.stdout


def test_speeds_are_medians_of_the_ratios_within_rounds(bench):
    timing = bench("turns").Timing
    ours, theirs = timing((1.0, 2.0, 4.0)), timing((3.0, 4.0, 40.0))
    assert ours.speed_over(theirs) == 3.0  # of 3, 2 and 10; the ratio of the medians is 2


def test_tables_and_floors_of_a_file(bench):
    turns = bench("turns")
    info = {"us": 2.0, "ratio": 3.5, "floors": {"ratio": ["<=", 3.0]}, "processor": [1.0]}
    entries = [
        {"group": "a", "name": "ours", "extra_info": info},
        {"group": "a", "name": "theirs", "extra_info": {"us": 7.0}},
    ]
    (table,) = turns.tables(entries)
    assert list(table.cells()) == [["", "us", "ratio"], ["ours", "2", "3.5"], ["theirs", "7", ""]]
    assert turns.floor_lines(entries) == ["MISSED  a: ours: ratio: 3.5 <= 3"]
    info["ratio"] = float("nan")
    assert turns.floor_lines(entries)[0].startswith("MISSED")


def test_results_are_files_of_pytest_benchmark(bench):
    """Each has date, machine and commit; tables show at least one number."""
    files = sorted((BENCH / "results").glob("*.json"))
    assert files
    for path in files:
        document = json.loads(path.read_text(encoding="utf-8"))
        assert {"machine_info", "commit_info", "datetime", "quick", "command"} <= set(document)
        assert path.name.startswith(document["datetime"][:10]), path.name
        assert bench("turns").tables(document["benchmarks"]), path.name


def test_the_table_of_processors_has_the_newest_full_run_of_each(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    bench_tables = pytest.importorskip("bench_tables")

    def document(processor, time, quick, ratio):
        entry = {"group": "(500, 20), relu", "name": "bnmc conditional float32, ensemble"}
        cpu = {"brand_raw": "CPU", "llvm": processor}
        return {
            "machine_info": {"cpu": cpu}, "datetime": time, "quick": quick,
            "benchmarks": [{**entry, "extra_info": {"x hand-written": ratio}}],
        }  # fmt: skip

    headers, *rows = bench_tables.processors({
        "2026-01-03-simulate": document("b", "2026-01-03T01:00", False, 3.0),
        "2026-01-04-simulate": document("b", "2026-01-04T01:00", True, 4.0),
        "2026-01-02-simulate-a": document("a", "2026-01-02T01:00", False, 2.0),
        "2026-01-01-simulate-b": document("b", "2026-01-01T01:00", False, 1.0),
        "2026-01-05-normals": document("c", "2026-01-05T01:00", False, 5.0),
    })  # fmt: skip
    assert headers == [
        "processor",
        "figure",
        "(1000, 10)",
        "(4000, 10)",
        "(500, 20)",
        "(1000, 100)",
    ]
    assert rows == [
        ["CPU (a)", "x hand-written, 2026-01-02", "", "", "2", ""],
        ["CPU (b)", "x hand-written, 2026-01-03", "", "", "3", ""],
    ]


@pytest.mark.parametrize(
    ("sampler", "sampled", "normals"),
    [("conditional", False, 10_000), ("conditional", True, 9000), ("weights", True, 10**6)],
)
def test_the_roofline_can_count_drawn_normals_alone(bench, sampler, sampled, normals):
    """Of width d and batch n, a centred conditional layer draws d (n - 1) normals."""
    rates, timing = bench("roofline").Rates("float32"), bench("turns").Timing
    measured = {rates.normals: timing((1.0,)), rates.flops: timing((0.0,))}
    layer = rates.layer(measured, width=1000, batch=10, sampler=sampler, sampled=sampled)
    assert layer.seconds == (normals,)


def test_a_watcher_sees_an_allocation(bench):
    children = bench("children")
    if not children.CAN_WATCH:
        pytest.skip("the peak of a process cannot be reset")
    memory = children.memory_of("", "bytearray(b'1') * 50_000_000")
    assert 49.0 < memory["added"] < 56.0
    assert memory["peak"] > memory["added"]


#: Thread t counts to max(t, 1) and writes this to place t of shared memory.
LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   CS2R R2, SRZ ;
        /*0020*/                   LEA R4, R0, 0x400, 0x2 ;
        /*0030*/                   BSSY B0, `(.L_x_1) ;
.L_x_0:
        /*0040*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0050*/                   ISETP.GT.U32.AND P0, PT, R0, R2, PT ;
        /*0060*/               @P0 BRA `(.L_x_0) ;
        /*0070*/                   BSYNC B0 ;
.L_x_1:
        /*0080*/                   STS [R4], R2 ;
        /*0090*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00a0*/                   EXIT ;
"""


def test_the_emulator_counts_instructions_of_warps(bench):
    program = bench("sass.program").Program.of_listing(LISTING)
    memory = bench("sass.state").Memory(*(np.zeros(1024, np.uint32) for _ in range(3)))
    issued = bench("sass.run").run(program, memory, 64)
    assert np.array_equal(memory.shared[256:320], np.maximum(np.arange(64), 1))
    # The first warp goes round 31 times, the second one 63 times.  Threads that have left the loop
    # wait for the others, because these have a lower address.
    assert list(issued) == [2, 2, 2, 2, 94, 94, 94, 2, 2, 2, 2]
