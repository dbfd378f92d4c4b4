"""The benchmarks: every name that they import from the package exists; the emulator of GPU code."""

import ast
import importlib
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"
FILES = sorted(BENCH.rglob("*.py"))


@pytest.mark.skipif(not FILES, reason="the benchmarks are not here")
def test_imports():
    missing = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for module, name in imported(node):
                if module.split(".")[0] == "bnmc" and not is_there(module, name):
                    missing.append(f"{path.name}:{node.lineno}: {module}: {name}")
    assert not missing, "\n".join(missing)


def imported(node):
    """Yield modules with the name imported from each, None for the module itself."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.module, alias.name) for alias in node.names)


def is_there(module, name):
    try:
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_missing_names_are_found():
    assert is_there("bnmc.kernels", "c")
    assert not is_there("bnmc.kernels", "no_such_name")
    assert not is_there("bnmc.no_such_module", None)


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


@pytest.mark.skipif(not FILES, reason="the benchmarks are not here")
def test_the_emulator_counts_instructions_of_warps(monkeypatch):
    monkeypatch.syspath_prepend(BENCH.parent)
    program = importlib.import_module("bench.sass.program").Program.of_listing(LISTING)
    state = importlib.import_module("bench.sass.state")
    memory = state.Memory(*(np.zeros(1024, np.uint32) for _ in range(3)))
    issued = importlib.import_module("bench.sass.run").run(program, memory, 64)
    assert np.array_equal(memory.shared[256:320], np.maximum(np.arange(64), 1))
    # The first warp goes round 31 times, the second one 63 times.  Threads that have left the loop
    # wait for the others, because these have a lower address.
    assert list(issued) == [2, 2, 2, 2, 94, 94, 94, 2, 2, 2, 2]


@pytest.mark.skipif(not FILES, reason="the benchmarks are not here")
def test_finished_cases_are_kept(tmp_path, monkeypatch, capsys):
    """A line that a killed run left half written is made again, and so are other cases."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    cases = importlib.import_module("bench.unfinished").Cases
    made = []

    def row(case):
        return lambda: made.append(case) or [case, 0.1, None]

    first = cases("x", tmp_path)
    for case in ("a", "b"):
        first.row(case, row(case))
    file = tmp_path / "x.jsonl"
    file.write_text(file.read_text()[:-4])
    second = cases("x", tmp_path)
    assert [second.row(case, row(case))[0] for case in ("a", "b", "c")] == ["a", "b", "c"]
    assert made == ["a", "b", "b", "c"]
    third = cases("x", tmp_path)
    assert [third.row(case, row(case)) for case in made[1:]] == [
        [case, 0.1, None] for case in made[1:]
    ]
    assert made == ["a", "b", "b", "c"]
    third.done()
    assert not file.exists()
    assert capsys.readouterr().out.splitlines()[0] == "a a 0.1 None"


@pytest.mark.skipif(not FILES, reason="the benchmarks are not here")
@pytest.mark.parametrize(
    ("sampler", "drawn", "normals"),
    [("conditional", False, 10_000), ("conditional", True, 9000), ("weights", True, 10**6)],
)
def test_the_roofline_can_count_drawn_normals_alone(monkeypatch, sampler, drawn, normals):
    """Of width d and batch n, a centred conditional layer draws d (n - 1) normals."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    rates = importlib.import_module("bench.roofline").Rates("float32")
    timings = importlib.import_module("bench.timing").Timings
    measured = {rates.normals: timings((1.0,)), rates.flops: timings((0.0,))}
    found = rates.times(measured, width=1000, batch=10, sampler=sampler, drawn=drawn)
    assert found.seconds == (normals,)
