"""The header for C: it compiles, and its declarations change with the version only."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from bnmc import kernels
from bnmc.kernels import c
from bnmc.kernels.c_header import DECLARED

SOURCE = Path(__file__).with_name("embedding.c")


COMPILER = shutil.which("cc") or shutil.which("gcc")


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("c")
    c.write_header(path)
    return path


@needs_compiler
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_is_c99_and_cpp(folder, language):
    standard = "-std=c99" if language == "c" else "-std=c++11"
    command = [COMPILER, "-x", language, standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command += ["-fsyntax-only", str(folder / "bnmc.h")]
    done = subprocess.run(command, capture_output=True, text=True)
    if language == "c++" and "cc1plus" in done.stderr:
        pytest.skip("the compiler knows no C++")
    assert done.returncode == 0, done.stderr


#: Of the declarations of each version that was released.  What is added gets a new minor version,
#: what is changed a new major one, and a line here; lines stay.
KNOWN = {(1, 0): "2c0af513cf3a6d29"}


def test_declarations_change_with_the_version_only():
    text = repr([(one.name, one.returns, one.arguments) for one in DECLARED])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == KNOWN[c.ABI_VERSION]


def test_constants_of_the_header_are_those_of_the_kernels():
    header = c.header()
    for name in ("OK", "ZERO_VARIANCE", "NOT_FINITE", "UNRESOLVED", "BAD_ARGUMENT"):
        assert f"BNMC_{name} = {getattr(kernels, name)}" in header
    assert f"BNMC_SMALL_WORKSPACE = {kernels.SMALL_WORKSPACE}" in header
    for name in ("GAUSSIAN", "UNIFORM", "RADEMACHER"):
        assert f"BNMC_{name} = {getattr(kernels, name)}" in header
    assert f"BNMC_WEIGHTS UINT32_C(0x{kernels.WEIGHTS:08X})" in header
    assert f"BNMC_ROWS UINT32_C(0x{kernels.ROWS:08X})" in header
