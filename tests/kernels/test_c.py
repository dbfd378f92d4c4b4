"""The C interface, used as others do: ctypes, cffi, compiled C, SciPy's LowLevelCallable."""

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import oracle
import pytest
from scipy import LowLevelCallable, integrate

import bnmc
from bnmc import kernels
from bnmc.errors import UnknownNameError
from bnmc.kernels import c
from bnmc.kernels.c_functions import bodies
from bnmc.kernels.c_header import DECLARED

CHAIN = bnmc.Chain(70, 5, "relu")
KEY = 0xFEDCBA9876543210
SOURCE = Path(__file__).with_name("embedding.c")
PAGE = Path(__file__).parents[2] / "docs" / "embedding.rst"
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


class Law(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "batch", "columns", "norm")),
        *((name, ctypes.c_double) for name in ("skip", "gain", "eps")),
    )


def law_of(chain, **changes):
    return Law(*kernels.law(chain)._replace(**changes))


@pytest.fixture(scope="module")
def relu():
    return c.table("relu").functions


@pytest.fixture
def work(relu):
    law = law_of(CHAIN)
    return np.full(relu["workspace_bytes"](ctypes.byref(law)) // 8 + 1, np.nan)


@pytest.fixture(scope="module")
def run():
    return bnmc.simulate(CHAIN, 20, chains=2, rng=3, sampler="conditional")


# ---------------------------------------------------------------- ctypes


def walked(relu, chain, key):
    """The Gram matrix of a chain after 20 layers, with a workspace of its own."""
    law, gram = law_of(CHAIN), np.eye(5)
    work = np.full(relu["workspace_bytes"](ctypes.byref(law)) // 8 + 1, np.nan)
    for layer in range(21):
        status = relu["conditional_layer"](
            ctypes.byref(law), gram.ctypes.data, layer, chain, key, gram.ctypes.data,
            work.ctypes.data, work.nbytes, None, None,
        )  # fmt: skip
        assert status == kernels.Status.OK
    return gram


@pytest.mark.parametrize("threads", [1, 4])
def test_layers_from_ctypes(threads, relu, run):
    """In threads at once, too: ctypes lets go of the GIL."""
    chains = [0, 1] * 8
    with ThreadPoolExecutor(threads) as executor:
        grams = executor.map(lambda chain: walked(relu, chain, run.key), chains)
        for chain, gram in zip(chains, grams, strict=True):
            np.testing.assert_array_equal(gram, run.gram[chain, -1])


def test_layers_by_weights(relu, work):
    chain = bnmc.Chain(70, 5, "relu", skip=0.5, weights="rademacher")
    run = bnmc.simulate(chain, 2, rng=4)
    law, out = law_of(chain), np.eye(5)
    a, x = kernels.activations(chain), kernels.representation(chain)
    assert relu["stride"](ctypes.byref(law)) == a.shape[2]
    ends = out.ctypes.data, work.ctypes.data, work.nbytes, x.ctypes.data
    status = relu["conditional_layer"](
        ctypes.byref(law), out.ctypes.data, 0, 0, run.key, *ends, a.ctypes.data
    )
    code = kernels.WeightCode.RADEMACHER
    for layer in (1, 2):
        status |= relu["weights_layer"](
            ctypes.byref(law), code, a.ctypes.data, layer, 0, run.key, *ends
        )
    assert status == kernels.Status.OK
    np.testing.assert_array_equal(out, run.gram[0, -1])


def test_rows_and_numbers(relu, work):
    law, rows = law_of(CHAIN), 600
    h = np.random.default_rng(0).standard_normal((rows, 5))
    out, gram = np.zeros_like(h), np.zeros((5, 5))
    ends = work.ctypes.data, work.nbytes
    pointer = ctypes.byref(law)
    assert relu["normalise_activate"](pointer, h.ctypes.data, rows, out.ctypes.data, *ends) == 0
    expected = np.maximum(oracle.normalise(h, "batch", 5), 0.0)
    np.testing.assert_allclose(out, expected, rtol=0, atol=64 * 2**-52)
    assert relu["gram"](pointer, out.ctypes.data, rows, gram.ctypes.data, *ends) == 0
    np.testing.assert_allclose(gram, oracle.gram(out), rtol=0, atol=2**-45)
    for name in ("normals", "uniforms"):
        numbers, same = np.zeros(64), np.zeros(64)
        address = 3, 128, 7, 2, KEY, kernels.Stream.WEIGHTS
        assert relu[name](numbers.ctypes.data, 64, *address) == kernels.Status.OK
        getattr(kernels, name)(same, *address[:4], np.uint64(KEY), kernels.Stream.WEIGHTS)
        np.testing.assert_array_equal(numbers, same)
    counter, key, words = (
        (ctypes.c_uint32 * 4)(1, 2, 3, 4),
        (ctypes.c_uint32 * 2)(5, 6),
        (ctypes.c_uint32 * 4)(),
    )
    assert relu["philox"](counter, key, words) == kernels.Status.OK
    assert tuple(words) == kernels.philox(1, 2, 3, 4, 5, 6)
    h[17] = 1.0
    status = relu["normalise_activate"](pointer, h.ctypes.data, rows, out.ctypes.data, *ends)
    assert (status, relu["failed_row"](*ends)) == (kernels.Status.ZERO_VARIANCE, 17)


# ---------------------------------------------------------------- nothing crosses but a status


#: Laws that no function takes.
WRONG = {"width": -1}, {"batch": 0}, {"columns": 4}, {"norm": 9}, {"skip": 0.5}


def test_statuses_and_results_are_those_of_the_python_bodies(relu, work):
    """In Python pointers are numbers: the same calls, with the same statuses and results."""
    plain, law = bodies(kernels.activation("relu"), np.float64), law_of(CHAIN)
    pointer, ends = ctypes.addressof(law), (work.ctypes.data, work.nbytes)
    wrong = [law_of(CHAIN, **change) for change in WRONG]
    ok, bad, results = kernels.Status.OK, kernels.Status.BAD_ARGUMENT, []
    for functions in (relu, plain):
        a, out, numbers = kernels.activations(CHAIN), np.eye(5), np.zeros(64)
        h = np.random.default_rng(0).standard_normal((70, 5))
        words = np.arange(8, dtype=np.uint32)
        key = KEY if functions is relu else np.uint64(KEY)
        to, of_a, of_h, rows = out.ctypes.data, a.ctypes.data, h.ctypes.data, (h.ctypes.data, 70)
        to_words, address = words.ctypes.data, (1, 0, 2, 3, key, 0)
        layer = [pointer, to, 1, 0, key, to, *ends, None, None]
        changes = [(place, None) for place in (0, 1, 5, 6)]
        changes += [(0, ctypes.addressof(each)) for each in wrong]
        changes += [(2, -1), (3, 1 << 28), (6, ends[0] + 4), (7, -8)]
        calls = [
            (ok, "conditional_layer", pointer, to, 0, 0, key, to, *ends, None, of_a),
            (ok, "weights_layer", pointer, 0, of_a, 1, 0, key, to, *ends, None),
            (ok, "normalise_activate", pointer, *rows, of_h, *ends),
            (ok, "gram", pointer, *rows, to, *ends), (-1, "failed_row", *ends),
            (ok, "normals", numbers.ctypes.data, 64, *address),
            (ok, "uniforms", numbers.ctypes.data, 64, *address),
            (ok, "philox", to_words, to_words, to_words + 16),
            (ok, "conditional_layer", *layer),
            (kernels.Status.SMALL_WORKSPACE, "conditional_layer", *layer[:7], 1000, None, None),
            *((bad, "conditional_layer", *layer[:place], value, *layer[place + 1 :])
              for place, value in changes),
            (bad, "weights_layer", None, 0, of_a, 1, 0, key, to, *ends, None),
            (bad, "weights_layer", pointer, 0, None, 1, 0, key, to, *ends, None),
            (bad, "weights_layer", pointer, 0, of_a, -1, 0, key, to, *ends, None),
            (bad, "normalise_activate", None, *rows, of_h, *ends),
            (bad, "normalise_activate", pointer, of_h, -1, of_h, *ends),
            (bad, "gram", None, *rows, to, *ends), (bad, "gram", pointer, None, 5, to, *ends),
            (bad, "gram", pointer, of_h, 0, to, *ends), (-1, "failed_row", None, 0),
            (bad, "normals", None, 64, *address), (bad, "uniforms", None, 64, *address),
            (bad, "uniforms", numbers.ctypes.data, -64, *address),
            (bad, "philox", None, None, None), (-1, "workspace_bytes", None), (-1, "stride", None),
            (-1, "workspace_bytes", ctypes.addressof(wrong[2])),
        ]  # fmt: skip
        for status, name, *arguments in calls:
            assert functions[name](*arguments) == status, (name, arguments)
        sizes = [functions[name](pointer) for name in ("workspace_bytes", "stride")]
        results.append((sizes, out, a, numbers, words, h))
    for compiled, in_python in zip(*results, strict=True):
        np.testing.assert_array_equal(compiled, in_python)
    assert plain["activate"](np.float64(-1.0)) == 0.0


def test_names_that_are_unknown():
    with pytest.raises(UnknownNameError):
        c.table("rellu")
    with pytest.raises(UnknownNameError):
        c.function("gramm")
    assert c.function("gram", "relu") is c.table("relu").functions["gram"]


# ---------------------------------------------------------------- other languages


def test_cffi(run, work):
    cffi = pytest.importorskip("cffi")
    ffi = cffi.FFI()
    ffi.cdef(c.declarations())
    table = ffi.cast("bnmc_f64 *", c.table("relu").address)
    assert (table.major, table.minor) == c.ABI_VERSION
    assert table.bytes == ffi.sizeof("bnmc_f64")
    law = ffi.new("bnmc_law *", kernels.law(CHAIN)._asdict())
    gram = np.eye(5)
    pointer = ffi.from_buffer("double[]", gram)
    space = ffi.from_buffer("char[]", work)
    for layer in range(21):
        status = table.conditional_layer(
            law, pointer, layer, 0, run.key, pointer, space, len(space), ffi.NULL, ffi.NULL
        )
        assert status == 0
    np.testing.assert_array_equal(gram, run.gram[0, -1])
    assert table.activate(-1.0) == 0.0
    constants = ffi.dlopen(None)
    assert (constants.BNMC_ABI_MAJOR, constants.BNMC_ABI_MINOR) == c.ABI_VERSION
    assert constants.BNMC_WEIGHTS == kernels.Stream.WEIGHTS
    assert constants.BNMC_NOT_FINITE == kernels.Status.NOT_FINITE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("c")
    c.write_header(path)
    return path


def compiled(folder, name, *options, source=SOURCE):
    target = folder / name
    command = [COMPILER, "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{folder}"]
    command += [str(source), "-o", str(target), *options, "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


# ------ header
@needs_compiler
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_is_c99_and_cpp(folder, language):
    standard = "-std=c99" if language == "c" else "-std=c++11"
    command = [COMPILER, "-x", language, standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command += ["-fsyntax-only", str(folder / "bnmc.h")]
    done = subprocess.run(command, capture_output=True, text=True)
    if language == "c++" and "cc1plus" in done.stderr:
        pytest.skip("the C compiler was installed without C++")
    assert done.returncode == 0, done.stderr


#: Of the declarations of each version that was released.  What is added gets a new minor version,
#: what is changed a new major one, and a line here; lines stay.
KNOWN = {(1, 0): "2c0af513cf3a6d29"}


def test_declarations_change_with_the_version_only():
    text = repr([(declared.name, declared.returns, declared.arguments) for declared in DECLARED])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == KNOWN[c.ABI_VERSION]


def test_constants_of_the_header_are_those_of_the_kernels():
    header = c.header()
    for name in ("OK", "ZERO_VARIANCE", "NOT_FINITE", "UNRESOLVED", "BAD_ARGUMENT"):
        assert f"BNMC_{name} = {kernels.Status[name]}" in header
    assert f"BNMC_SMALL_WORKSPACE = {kernels.Status.SMALL_WORKSPACE}" in header
    for name in ("GAUSSIAN", "UNIFORM", "RADEMACHER"):
        assert f"BNMC_{name} = {kernels.WeightCode[name]}" in header
    assert f"BNMC_WEIGHTS 0x{kernels.Stream.WEIGHTS:08X}U" in header
    assert f"BNMC_ROWS 0x{kernels.Stream.ROWS:08X}U" in header


@needs_compiler
def test_a_compiled_library(folder, run):
    library = ctypes.CDLL(str(compiled(folder, "embedding.so", "-shared", "-fPIC")))
    library.run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p)
    grams = np.zeros((2, 5, 5))
    assert library.run(c.table("relu").address, 20, run.key, grams.ctypes.data) == 0
    np.testing.assert_array_equal(grams, run.gram[:, -1])


@needs_compiler
def test_the_programs_of_the_page(folder):
    """The commands of the page, in the folder of its two programs, print what the page shows."""
    page, source = (path.read_text(encoding="utf-8") for path in (PAGE, SOURCE))
    blocks = dict(re.findall(BLOCK, page.partition("From a C program")[0]))
    (folder / "embedding.py").write_text(textwrap.dedent(blocks["python"]))
    start = re.search(r":start-at: (.*)", page)[1]
    (folder / "embedding.c").write_text(source[source.index(start) :])
    printed = ""
    for line in textwrap.dedent(blocks["console"]).strip().splitlines():
        if not line.startswith("$ "):
            assert printed == f"{line}\n"
            continue
        command = re.sub("^python ", f"{shlex.quote(sys.executable)} ", line.removeprefix("$ "))
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    gram = bnmc.simulate(CHAIN, 20, rng="key:0000000000000007", sampler="conditional").gram[0, -1]
    assert printed == f"0 {gram.diagonal().round(2)}\n"


#: Blocks of the page.
BLOCK = r"code-block:: (python|console)\n\n((?:    .*\n|\n)+)"

#: Replacements for functions of C: malloc returns NULL, and the second thread does not start.
FAILING = {
    "malloc": "void *__wrap_malloc(unsigned long bytes) { return (void)bytes, (void *)0; }",
    "pthread_create": """
#include <pthread.h>
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *options, void *(*run)(void *),
                          void *argument) {
  static int calls;
  return calls++ ? 1 : __real_pthread_create(thread, options, run, argument);
}
""",
}


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="the linker replaces no function")
@pytest.mark.parametrize(("function", "status"), [("malloc", -2), ("pthread_create", -3)])
def test_a_program_without_memory_or_threads(function, status, folder, run):
    """If the second thread does not start, the first one ends before the program returns."""
    (folder / "failing.c").write_text(FAILING[function])
    options = "-shared", "-fPIC", str(folder / "failing.c"), f"-Wl,--wrap={function}"
    library = ctypes.CDLL(str(compiled(folder, f"{function}.so", *options)))
    library.run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p)
    grams = np.zeros((2, 5, 5))
    assert library.run(c.table("relu").address, 20, run.key, grams.ctypes.data) == status
    first = 0.0 if function == "malloc" else run.gram[0, -1]
    np.testing.assert_array_equal(grams, [first * np.ones((5, 5)), np.zeros((5, 5))])


PYTHON_H = Path(sysconfig.get_path("include")) / "Python.h"


@needs_compiler
@pytest.mark.skipif(not PYTHON_H.exists(), reason="there are no headers of Python")
def test_a_compiled_program(folder):
    """Python only compiles the functions: threads of C run them.  It prints what the page shows."""
    variables = sysconfig.get_config_vars()
    libraries = [variables["LIBDIR"], variables.get("LIBPL") or variables["LIBDIR"]]
    options = [f"-I{PYTHON_H.parent}", *(f"-L{path}" for path in libraries)]
    options += [f"-Wl,-rpath,{libraries[0]}", "-Wl,--export-dynamic"]
    options += [f"-lpython{variables['LDVERSION']}", *variables["LIBS"].split()]
    options += [*variables["SYSLIBS"].split()]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [compiled(folder, "host", *options, source=SOURCE.with_name("host.c"))],
        env={**os.environ, "PYTHONHOME": sys.base_prefix, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    gram = bnmc.simulate(CHAIN, 20, rng="key:0000000000000007", sampler="conditional").gram[0, -1]
    assert done.stdout == " ".join(["0", *(f"{each:.2f}" for each in gram.diagonal())]) + "\n"
    page = PAGE.read_text(encoding="utf-8")
    (_, shown) = re.findall(BLOCK, page.partition("From a C program")[2])[0]
    assert textwrap.dedent(shown).strip().splitlines()[-1] == done.stdout.strip()


def test_scipys_low_level_callable(relu):
    callable_ = LowLevelCallable(relu["activate"])
    assert callable_.signature == "double (double)"
    value, error = integrate.quad(callable_, -1.0, 2.0, points=[0.0])
    assert abs(value - 2.0) <= error + 2**-50
