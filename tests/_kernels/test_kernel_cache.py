"""Compiled code on disk: found by the next process, never stale, never shared, not required.

Each test has a cache directory of its own.  Most run programs in fresh processes, where any kernel
will do: the one that applies an activation compiles in a moment.  The others compile `double`.
"""

import compileall
import errno
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba.core import config
from programs import PACKAGE, finished

import bnmc
from bnmc._kernels import compiling, kernel_cache, processor
from bnmc.errors import KernelCacheWarning

REPORT = """
import json

def report(*results):
    from bnmc._kernels.cpu import blocks, elementwise, layers, numbers, rows, sharing, wishart
    modules = blocks, elementwise, layers, numbers, rows, sharing, wishart
    kernels = [f for m in modules for f in vars(m).values() if hasattr(f, "stats")]
    stats = {f.py_func.__name__: f.stats for f in kernels}
    hits = {name: sum(s.cache_hits.values()) for name, s in stats.items()}
    misses = {name: sum(s.cache_misses.values()) for name, s in stats.items()}
    print(json.dumps({
        "results": results,
        "hits": {name: count for name, count in hits.items() if count},
        "misses": {name: count for name, count in misses.items() if count},
    }))
"""


def run(code, **environment):
    """Run a program, which ends with `report(...)`, in a fresh process; return what it reports.

    A warning is an error there.
    """
    return json.loads(finished("-W", "error", "-c", REPORT + code, **environment).stdout)


CALLS = """
import numpy as np
from bnmc import Activation
from bnmc._kernels.cpu import sharing
factor = 1.5
functions = [lambda x: factor * x, lambda x: x * x * x]
if {reverse}: functions.reverse()
gram = np.zeros((2, 2))
assert sharing.merge_tiles(np.ones((3, 16)), 8, gram, 0, 1)
report(gram.tobytes().hex(), *(float(Activation(one)(2.0)) for one in functions))
"""


def test_a_second_process_compiles_nothing(copied, tmp_path):
    """Nor does it mistake two lambdas of one line for each other, whichever comes first.

    Beside the sources of a copy there are no kernels, which other tests may have made.
    """
    options = {"package": copied, "NUMBA_CACHE_DIR": str(tmp_path)}
    cold = run(CALLS.format(reverse=False), **options)
    assert len(set(cold["results"])) == 3
    warm = run(CALLS.format(reverse=True), **options)
    assert not warm["misses"]
    # A kernel that is found brings all that it calls.
    assert cold["misses"]["merge_tiles"] == warm["hits"]["merge_tiles"] == 1
    assert cold["misses"]["apply"] == warm["hits"]["apply"] >= 2
    assert [warm["results"][i] for i in (0, 2, 1)] == cold["results"]


APPLY_LINEAR = "from bnmc import Activation\nreport(float(Activation.named('linear')(2.0)))\n"
APPLY = """
from bnmc import Activation
relu, own = Activation.named("relu"), Activation(lambda x: {formula})
report(float(relu(2.0)), float(own(3.0)))
"""


@pytest.mark.slow
def test_a_function_that_was_edited_is_compiled_anew(tmp_path):
    """On the same line of the same program, with the same name."""
    first = run(APPLY.format(formula="x + 1.0"), NUMBA_CACHE_DIR=str(tmp_path))
    assert first["results"] == [2.0, 4.0]
    other = run(APPLY.format(formula="x + 2.0"), NUMBA_CACHE_DIR=str(tmp_path))
    assert other["results"] == [2.0, 5.0]
    assert other["hits"]["apply"] == other["misses"]["apply"] == 1
    again = run(APPLY.format(formula="x + 1.0"), NUMBA_CACHE_DIR=str(tmp_path))
    assert again["results"] == [2.0, 4.0]
    assert not again["misses"]


#: Parts of the package that an activation does not need.
ABSENT = ("cli", "experiments", "infinite_width", "invariant", "mean_field", "mixing", "torch")


@pytest.fixture
def copied(tmp_path):
    """Return a copy of the package with the kernels and what applies them."""
    ignored = shutil.ignore_patterns("__pycache__", *ABSENT)
    return Path(shutil.copytree(PACKAGE, tmp_path / "copy" / "bnmc", ignore=ignored))


def kernel_files():
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("_kernels/**/*.py"))


def test_an_edit_of_a_callee_invalidates_the_cache(copied, tmp_path):
    """The activation lives in another file than the kernel that calls it, which stays."""
    environment = {"package": copied, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    before = run(APPLY_LINEAR, **environment)
    assert (before["results"], before["misses"]) == ([2.0], {"apply": 1})
    path = copied / "_kernels" / "scalar" / "activations.py"
    head, heading, tail = path.read_text().partition("def linear(x):")
    assert heading
    path.write_text(head + heading + tail.replace("return x", "return x + x", 1))
    after = run(APPLY_LINEAR, **environment)
    assert (after["results"], after["misses"]) == ([4.0], {"apply": 1})
    assert not after["hits"]


def test_every_file_of_the_kernels_is_in_the_digest(copied):
    """The digest that stamps the cache, of the folder as it is and with each file changed."""
    files = kernel_files()
    assert len(files) > 8
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from bnmc._kernels.kernel_cache import source_digest\n"
        "digests = [source_digest()]\n"
        "for name in sys.argv[2:]:\n"
        "    path = Path(sys.argv[1]) / name\n"
        "    path.write_text(path.read_text() + '# An edit.\\n')\n"
        "    source_digest.cache_clear()\n"
        "    digests.append(source_digest())\n"
        "print(len(set(digests)))\n"
    )
    done = finished("-c", program, copied, *files, package=copied)
    assert int(done.stdout) == len(files) + 1


def test_a_read_only_installation_works_without_a_cache(copied, tmp_path):
    """Where no directory can be made: files stand in the way, which stops root as well."""
    folders = [path for path in copied.glob("_kernels/**") if path.is_dir()]
    for folder in (copied, *folders):
        (folder / "__pycache__").write_text("in the way")
    (tmp_path / "home").write_text("in the way")
    home = str(tmp_path / "home")
    environment = {"package": copied, "HOME": home, "XDG_CACHE_HOME": home, "LOCALAPPDATA": home}
    done = finished("-c", REPORT + APPLY_LINEAR, **environment)
    report = json.loads(done.stdout)
    assert report["results"] == [2.0]
    assert done.stderr.count("KernelCacheWarning") == 1
    assert "__pycache__" in done.stderr
    assert home in done.stderr
    assert "nothing can be written there" in done.stderr
    assert not list(copied.rglob("*.nbc"))


# --- zip files and frozen applications, where no module is a file

RECORD = """
import sys
from pathlib import Path
from bnmc import Activation
from bnmc._kernels import kernel_cache, processor
if len(sys.argv) > 1:
    level = processor.level_of(processor.cpu_features())
    with kernel_cache.recording(Path(sys.argv[1]) / level):
        Activation.named("linear")(2.0)
report(kernel_cache.source_digest(), float(Activation.named("linear")(2.0)))
"""


def zipped(package):
    """Return the package in a zip file; what looks like a file of it is none."""
    name = shutil.make_archive(str(package.parents[1] / "app"), "zip", package.parent, "bnmc")
    return Path(name, "bnmc")


@pytest.mark.slow
def test_a_zip_file_keeps_its_kernels_elsewhere(copied, tmp_path):
    """They are found by the next process, and nothing is told: warnings are errors here."""
    packed = zipped(copied)
    options = {"package": packed, "NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "user")}
    first, second = run(RECORD, **options), run(RECORD, **options)
    assert (first["misses"], second["misses"]) == ({"apply": 1}, {})
    assert entries(tmp_path / "user")
    program = "from bnmc._kernels import kernel_cache\nprint(kernel_cache.source_digest())"
    assert first["results"][0] == finished("-c", program, package=copied).stdout.strip()


@pytest.mark.skipif(
    processor.level_of(processor.cpu_features()) is None, reason="wheels carry no kernels for this"
)
def test_the_kernels_of_a_wheel_are_found_in_a_zip_file(copied, tmp_path):
    program, compiled = REPORT + RECORD, copied / "_kernels" / "compiled"
    recorded = finished(
        "-c", program, compiled, package=copied, NUMBA_CACHE_DIR=str(tmp_path / "a")
    )
    assert json.loads(recorded.stdout)["misses"] == {"apply": 1}
    program = RECORD + "assert kernel_cache.carried().entries == 1\n"
    loaded = run(program, package=zipped(copied), NUMBA_CACHE_DIR=str(tmp_path / "b"))
    assert (loaded["hits"], loaded["misses"]) == ({"apply": 1}, {})


@pytest.mark.slow
def test_a_frozen_application_needs_no_sources(copied, tmp_path):
    """The bytecode tells one version from another."""
    done = []
    assert compileall.compile_dir(copied, quiet=1, legacy=True)
    for edit, starts in (("", 2), ("\nDEFAULT = frozenset('abcdef')\n", 1)):
        path = copied / "_kernels" / "scalar" / "activations.py"
        path.write_text(path.read_text() + edit)
        assert compileall.compile_file(path, quiet=1, legacy=True, force=True)
        bare = tmp_path / f"bare{len(edit)}" / "bare" / "bnmc"
        shutil.copytree(copied, bare, ignore=shutil.ignore_patterns("*.py"))
        options = {"package": zipped(bare), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done += [run(RECORD, **options) for _ in range(starts)]
    assert [report["misses"] for report in done] == [{"apply": 1}, {}, {"apply": 1}]
    first, second, edited = (report["results"][0] for report in done)
    assert first == second != edited


def test_a_frozen_application_writes_nothing_into_its_own_folder(tmp_path):
    """That folder may be temporary, so nobody would read the files."""
    program = (
        "import sys\nsys.frozen = True\nfrom bnmc._kernels import kernel_cache\n"
        "print(*kernel_cache.folders(), sep='\\n')\n"
    )
    printed = finished("-c", program, XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path)).stdout
    assert [Path(line).is_relative_to(tmp_path) for line in printed.splitlines()] == [True]


# --- files that are damaged, or cannot be read or written


def entries(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_function_of_a_module_that_is_missing_here_is_compiled(tmp_path):
    """Its cached code refers to the module by its name."""
    (tmp_path / "away").mkdir()
    source = "def own(x):\n    return x + 3.0\n"
    (tmp_path / "away" / "of_user.py").write_text(source)
    program = "from bnmc import Activation\n{}\nreport(float(Activation(own)(2.0)))\n"
    there = f"import sys; sys.path.append({str(tmp_path / 'away')!r})\nfrom of_user import own"
    cached = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(program.format(there), **cached)["results"] == [5.0]
    done = finished("-c", REPORT + program.format(source), **cached)
    assert json.loads(done.stdout)["results"] == [5.0]
    assert "refers to a module that this process cannot import (No module named 'of_user')" in (
        done.stderr
    )


def double(x):
    return x + x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a cache that no other test uses."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(kernel_cache, "BESIDE", tmp_path / "beside")
    monkeypatch.setattr(kernel_cache, "_user_caches", lambda: tmp_path / "user")
    monkeypatch.setattr(kernel_cache, "_told", set())
    return tmp_path / "kernels"


def doubled():
    """Return the hits and misses of a new kernel that is called once."""
    dispatcher = compiling.kernel(double)
    assert dispatcher(1.5) == 3.0
    return tuple(
        sum(c.values()) for c in (dispatcher.stats.cache_hits, dispatcher.stats.cache_misses)
    )


def loaded(dispatcher, signature):
    """Return whether an entry of the disk is used, and the warnings."""
    kernel_cache._told.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entry = dispatcher._cache.load_overload(signature, dispatcher.targetctx)
    return entry is not None, [str(warning.message) for warning in caught]


def test_no_truncation_and_no_flipped_bit_is_executed(folder):
    """At 60 lengths and 60 places; the file itself is used."""
    assert doubled() == (0, 1)
    dispatcher = compiling.kernel(double)
    assert dispatcher(1.5) == 3.0
    (signature,) = dispatcher.signatures
    rng = np.random.default_rng(5)
    (path,) = entries(folder)
    sound = path.read_bytes()
    lengths = {0, 1, len(sound) - 1, *range(30), *rng.integers(len(sound), size=30).tolist()}
    for length in sorted(lengths):
        path.write_bytes(sound[:length])
        used, caught = loaded(dispatcher, signature)
        assert (used, len(caught)) == (False, 1)
        assert str(path.parent) in caught[0]
        assert "damaged" in caught[0]
    for at in [*range(30), *rng.integers(len(sound), size=30).tolist()]:
        flipped = bytearray(sound)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        used, caught = loaded(dispatcher, signature)
        assert (used, len(caught)) == (False, 1)
    path.write_bytes(sound[:100])
    kernel_cache._told.clear()
    with pytest.warns(KernelCacheWarning, match="damaged"):
        assert doubled() == (0, 1)
    assert doubled() == (1, 0)
    path.write_bytes(sound)
    assert loaded(dispatcher, signature) == (True, [])


def test_an_entry_of_another_name_is_not_executed(folder):
    dispatcher = compiling.kernel(double)
    assert (dispatcher(1.5), dispatcher(3)) == (3.0, 6)
    first, second = entries(folder)
    second.write_bytes(first.read_bytes())
    again = compiling.kernel(double)
    with pytest.warns(KernelCacheWarning, match="damaged"):
        assert (again(1.5), again(3), isinstance(again(3), int)) == (3.0, 6, True)
    assert sum(again.stats.cache_misses.values()) == 1


class Place(NamedTuple):
    x: float
    y: float


def named_tuple(name, fields):
    return NamedTuple(name, [(field, float) for field in fields])


def test_named_tuples_of_one_name_are_told_apart(folder):
    """Their Numba types have one text."""

    def first(place):
        return place.x

    for fields in ("xy", "yx", "xy"):
        place = named_tuple("Place", fields)(1.0, 2.0)
        assert compiling.kernel(first)(place) == place.x


def test_closures_with_other_values_have_other_entries(folder):
    def scaled(factor):
        def scale(x):
            return factor * x

        return compiling.kernel(scale)

    for _ in range(2):
        assert [scaled(factor)(3.0) for factor in (2.0, 5.0)] == [6.0, 15.0]
    assert len(entries(folder)) == 2


def test_code_that_refers_to_memory_of_the_process_is_not_kept(folder):
    import ctypes

    address = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(("fabs", ctypes.CDLL(None)))
    address.argtypes, address.restype = [ctypes.c_double], ctypes.c_double

    def absolute(x):
        return address(x)

    with pytest.warns(KernelCacheWarning, match="cannot be written"):
        assert compiling.kernel(absolute)(-2.0) == 2.0
    assert not entries(folder)


def test_old_versions_are_removed(folder, monkeypatch):
    """The eight that were written to last remain, and nothing else is touched."""
    for number in range(12):
        old = folder / f"bnmc-kernels-{number:016x}"
        old.mkdir(parents=True)
        (old / "f-0.nbc").write_bytes(b"")
        os.utime(old, (number, number))
    others = [folder / "bnmc-kernels-of-mine", folder / "bnmc-kernels-0123"]
    for other in others:
        other.mkdir()
    assert doubled() == (0, 1)
    names = {path.name for path in folder.iterdir()}
    newest = {f"bnmc-kernels-{number:016x}" for number in range(5, 12)}
    current = f"bnmc-kernels-{kernel_cache.version()}"
    assert names == {*newest, current, *(other.name for other in others)}


def test_files_of_the_cache_of_numba_do_not_matter(folder):
    from numba import njit

    njit(cache=True)(double)(1.5)
    assert entries(folder)
    assert doubled() == (0, 1)
    assert doubled() == (1, 0)


def failing(number):
    def write(*_, **options):
        raise OSError(number, os.strerror(number))

    return write


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("step", ["open", "replace", "mkdir"])
def test_folders_that_cannot_be_written_to_cost_a_warning(folder, monkeypatch, number, step):
    dispatcher = compiling.kernel(double)
    with monkeypatch.context() as patch:
        if step == "open":
            real, write = os.open, failing(number)
            patch.setattr(
                os, "open", lambda *place: (write if place[1] & os.O_CREAT else real)(*place)
            )
        elif step == "replace":
            patch.setattr(os, "replace", failing(number))
        else:
            patch.setattr(Path, "mkdir", failing(number))
        with pytest.warns(KernelCacheWarning, match=os.strerror(number)) as caught:
            assert (dispatcher(1.5), dispatcher(3)) == (3.0, 6)
    assert len(caught) == 1
    assert str(folder) in str(caught[0].message)
    assert not entries(folder)


def test_another_folder_is_used_if_the_wanted_one_cannot_be_written_to(folder, tmp_path):
    folder.write_text("in the way")
    with pytest.warns(KernelCacheWarning, match="another folder is used") as caught:
        assert doubled() == (0, 1)
    assert len(caught) == 1
    assert str(folder) in str(caught[0].message)
    # A line of the tests, not one of bnmc or Numba.
    assert Path(caught[0].filename).is_relative_to(Path(__file__).parents[1])
    assert len(entries(tmp_path / "beside")) == 1
    assert doubled() == (1, 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is full")
def test_a_full_disk_leaves_no_entry(folder, monkeypatch):
    """A device without space takes bytes until they are flushed."""
    real = open

    def full(path, mode, **options):
        return real("/dev/full", "wb") if "x" in mode else real(path, mode)

    monkeypatch.setattr(kernel_cache, "open", full, raising=False)
    with pytest.warns(KernelCacheWarning, match="No space left"):
        assert doubled() == (0, 1)
    monkeypatch.undo()
    assert not entries(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names")
def test_numba_opens_no_pipe(folder):
    """Without Numba's internals, its own cache keeps kernels, in folders below."""
    cached = kernel_cache.folder_of_numba.__wrapped__()
    assert cached == kernel_cache.usable_folder()
    (cached / "inner").mkdir()
    os.mkfifo(cached / "inner" / "double.nbi")
    with pytest.warns(KernelCacheWarning, match="double.nbi is no regular file"):
        assert kernel_cache.folder_of_numba.__wrapped__() is None


# --- folders that others can write to


def test_a_folder_that_everybody_can_write_to_is_not_used(folder, tmp_path):
    """Nor one that everybody can replace; the next folder in turn is used."""
    assert doubled() == (0, 1)
    (inner,) = folder.iterdir()
    before = [path.read_bytes() for path in entries(folder)]
    for expected, open_to_all in (((0, 1), inner), ((1, 0), folder)):
        open_to_all.chmod(0o777)
        kernel_cache._told.clear()
        with pytest.warns(KernelCacheWarning, match="every user can") as caught:
            assert doubled() == expected
        assert len(caught) == 1
        assert str(inner) in str(caught[0].message)
        open_to_all.chmod(0o755)
    assert before == [path.read_bytes() for path in entries(folder)]
    assert len(entries(tmp_path / "beside")) == 1
    assert kernel_cache.kept().folder == inner


def test_a_temporary_folder_of_the_system_may_contain_the_cache(folder):
    """Anybody can write to it, but nobody can replace the folder of another user in it."""
    folder.mkdir()
    folder.chmod(0o1777)
    assert doubled() == (0, 1)
    assert doubled() == (1, 0)


def status(result, **changed):
    """Return the status of a file with other values."""
    names = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
    values = [changed.get(name, getattr(result, name)) for name in names]
    return os.stat_result((*values, *result[7:10]))


def refuse_to_read(path, patch):
    real = open

    def refusing(path, mode, **options):
        if mode == "rb":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, mode, **options)

    patch.setattr(kernel_cache, "open", refusing, raising=False)


def put_a_pipe(path, patch):
    """To open it for reading would wait until somebody writes."""
    path.unlink()
    os.mkfifo(path)


def with_status(**changed):
    real = os.fstat
    return lambda path, patch: patch.setattr(
        os, "fstat", lambda file: status(real(file), **changed)
    )


#: Entries that are not executed: what is wrong, and the warning.
UNUSABLE = {
    "no permission": (refuse_to_read, "Permission denied"),
    "a pipe": (put_a_pipe, "is no regular file"),
    "of a stranger": (with_status(st_uid=2**31 - 9), f"uid {2**31 - 9}"),
    "open to all": (with_status(st_mode=0o100666), "every user can write to it"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names, and owners of files")
@pytest.mark.parametrize("what", UNUSABLE)
def test_an_entry_that_cannot_be_used_is_replaced(what, folder, monkeypatch):
    assert doubled() == (0, 1)
    (path,) = entries(folder)
    make, warning = UNUSABLE[what]
    with monkeypatch.context() as patch:
        make(path, patch)
        with pytest.warns(KernelCacheWarning, match=warning):
            assert doubled() == (0, 1)
    assert doubled() == (1, 0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners of files")
def test_the_folder_of_another_user_is_not_used(folder, monkeypatch):
    """The user and root are trusted."""
    assert doubled() == (0, 1)
    (inner,) = folder.iterdir()
    owners = {0, os.geteuid(), os.stat(bnmc.__file__).st_uid}
    assert kernel_cache._trusted_owners() == owners
    real = os.stat

    def foreign(path, *rest, **options):
        result = real(path, *rest, **options)
        return status(result, st_uid=max(owners) + 1) if str(path) == str(inner) else result

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", foreign)
        with pytest.warns(KernelCacheWarning, match="belongs to another user"):
            assert doubled() == (0, 1)
        assert kernel_cache.kept().folder != inner
    assert len(entries(folder)) == 1


def test_folders_and_files_are_writable_by_their_owner_alone(folder):
    before = os.umask(0)
    try:
        assert doubled() == (0, 1)
    finally:
        os.umask(before)
    made = [folder, *folder.rglob("*")]
    assert len(made) == 3
    assert not [path for path in made if path.stat().st_mode & 0o022]
    assert doubled() == (1, 0)
