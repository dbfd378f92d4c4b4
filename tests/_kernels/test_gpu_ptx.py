"""Every GPU kernel compiles, without a GPU, and the assembler needs no local memory."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import finished

# Where the extra `test` brings compiler and libraries, their absence is a failure.
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the extra `test` has NVVM for Linux alone"
)


@pytest.fixture(scope="module", params=["few", pytest.param("usual", marks=pytest.mark.slow)])
def ptx(request, tmp_path_factory):
    """A folder of PTX files."""
    folder = tmp_path_factory.mktemp("ptx")
    program = Path(__file__).with_name("ptx.py")
    finished(program, folder, request.param, NUMBA_ENABLE_CUDASIM="0")
    return folder


def test_every_kernel_compiles(ptx):
    files = sorted(path.name for path in ptx.iterdir())
    every = {"layers", "observe", "renew", "rescale"}
    # Kernels that share most device functions with another one compile with the slow tests.
    if len(files) > 20:
        every |= {"couple", "rows", "moments", "finish", "top", "begin", "descend"}
        every |= {"mix", "average", "lower", "orthogonalise", "frame", "framed"}
        every |= {"top_orthogonal", "begin_orthogonal", "descend_orthogonal"}
    assert {name.split("-")[0] for name in files} - {"cover", "unfold"} == every
    for name in files:
        text = (ptx / name).read_text()
        # No function is called: all of `core` is part of the kernel.
        assert ".entry" in text
        assert "call.uni" not in text, name


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not found")
def test_registers_suffice(ptx):
    for path in sorted(ptx.iterdir()):
        report = assemble(path)
        sizes = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", report)
        assert sizes, report
        assert all(size == "0" for size in sizes), (path.name, report)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ptxas"), reason="ptxas is not found")
def test_a_layer_has_few_instructions():
    """`bench_instructions.py` executes the machine code, and compares it with the CPU."""
    root = Path(__file__).parents[2]
    if not (root / "bench").is_dir():
        pytest.skip("the benchmarks are not here")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "bench/bench_instructions.py", "-rs"],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if "nvdisasm: not found" in done.stdout:
        pytest.skip("nvdisasm is not found")
    assert done.returncode == 0, done.stdout + done.stderr


def assemble(path):
    """Run ptxas with as many registers as the launch allows; return what it reports."""
    text = path.read_text()
    registers = re.search(r"registers (\d+)", text).group(1)
    command = ["ptxas", "-v", f"-arch=sm_{path.suffixes[-2][1:]}", "-maxrregcount", registers]
    command += [str(path), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    # PTX may be of a later version than the assembler's, and needs nothing of it.
    refused = re.search(r"Unsupported \.version .* current version is '([\d.]+)'", done.stderr)
    if refused:
        path.write_text(re.sub(r"\.version [\d.]+", f".version {refused.group(1)}", text))
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr
