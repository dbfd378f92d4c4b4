"""Kernels that a wheel carries: used for the right Numba, sources and processor, else compiled.

The folder of a wheel is made here of one small kernel, `copy_numbers`.
"""

import pickle
import sys
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config
from programs import finished, printed_here

from bnmc._kernels import compiling, kernel_cache, processor
from bnmc._kernels.cpu.scaling import copy_numbers
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.errors import KernelCacheWarning

LEVEL = "x86-64-v3"
HERE = processor.level_of(processor.cpu_features())
V3, V4 = processor.LEVELS.values()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Return the folder of a wheel with one kernel for this processor, whatever it is."""
    monkeypatch.setattr(processor, "FOLDER", tmp_path / "compiled")
    monkeypatch.setattr(processor, "level_of", lambda features: LEVEL)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "builder"))
    monkeypatch.delenv("BNMC_KERNELS", raising=False)
    forget()
    with kernel_cache.recording(tmp_path / "compiled" / LEVEL):
        assert used() == (0, 1)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "user"))
    forget()
    yield tmp_path / "compiled" / LEVEL
    forget()


def forget():
    processor.wheel_folder.cache_clear()
    processor.processor.cache_clear()


def used(*, quiet=True):
    """Run the kernel in a new dispatcher; return how often it was loaded and compiled."""
    kernel = compiling.kernel(copy_numbers.py_func)
    numbers, out = np.arange(5.0), np.zeros(5)
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("error")
        kernel(numbers, out)
    assert out.tolist() == numbers.tolist()
    return sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())


def test_a_kernel_of_the_wheel_is_loaded(wheel, tmp_path):
    assert used() == (1, 0)
    assert not list(tmp_path.glob("user/**/*"))
    assert kernel_cache.carried() == (wheel, 1, next(wheel.glob("*.nbc")).stat().st_size)
    assert processor.host_cpu().endswith(f"+{LEVEL}")


def test_processors_of_a_level_have_one_identity(wheel, monkeypatch):
    """Unless code that the wheel lacks would have wider vectors."""

    def on(name, features):
        monkeypatch.setattr(processor, "cpu_name", lambda: name)
        monkeypatch.setattr(processor, "cpu_features", lambda: dict.fromkeys(features, True))
        processor.processor.cache_clear()
        return processor.host_cpu()

    assert on("zen2", V3) == on("haswell", V3 | {"sse4a"})
    assert on("zen2", V3) != on("knl", V3 | {"avx512f"})
    monkeypatch.setenv("BNMC_KERNELS", "none")
    forget()
    assert on("zen2", V3) != on("haswell", V3)


def test_the_builder_finds_its_signatures(wheel):
    ((_, description, _, signature, *_),) = kernel_cache.entries_of(wheel)
    assert description.modname == "bnmc._kernels.cpu.scaling"
    assert description.qualname == "copy_numbers"
    assert [str(kind) for kind in signature.args] == ["array(float64, 1d, C)"] * 2


def test_it_is_loaded_where_no_folder_can_be_written(wheel, monkeypatch):
    monkeypatch.setattr(kernel_cache, "folders", lambda: [Path(__file__, "none")])
    assert used() == (1, 0)


def another_level(wheel, monkeypatch):
    wheel.rename(wheel.with_name("x86-64-v4"))
    monkeypatch.setattr(processor, "level_of", lambda features: "x86-64-v4")


MISMATCHES = {
    "numba": lambda wheel, patch: patch.setattr(numba, "__version__", "0.0"),
    "sources": lambda wheel, patch: patch.setattr(kernel_cache, "source_digest", lambda: "other"),
    "python": lambda wheel, patch: patch.setattr(sys.implementation, "cache_tag", "cpython-399"),
    "level": another_level,
    "no level": lambda wheel, patch: patch.setattr(processor, "level_of", lambda features: None),
    "a missing file": lambda wheel, patch: next(wheel.glob("*.nbc")).unlink(),
    "by choice": lambda wheel, patch: patch.setenv("BNMC_KERNELS", "none"),
    "an editable installation": lambda wheel, patch: patch.setattr(
        processor, "FOLDER", wheel / "none"
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_any_mismatch_compiles_in_silence(wheel, monkeypatch, what):
    MISMATCHES[what](wheel, monkeypatch)
    forget()
    assert used() == (0, 1)


def flip(path):
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def other_content(path):
    """Write an entry of the right name whose parts are no compiled code."""
    kernel_cache._write(path, pickle.dumps("no compiled code"))


DAMAGES = {
    "code": (flip, "is damaged: its checksum differs"),
    "open to all": (lambda path: path.chmod(0o666), "is not trusted: every user can write"),
    "content": (other_content, r"cannot be loaded \(ValueError"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_told_once_and_compiled(wheel, monkeypatch, what):
    damage, reason = DAMAGES[what]
    damage(next(wheel.iterdir()))
    monkeypatch.setattr(kernel_cache, "_told", set())
    with pytest.warns(KernelCacheWarning, match=reason) as caught:
        assert used(quiet=False) == (0, 1)
    (warning,) = caught
    assert str(warning.message).startswith(
        f"the folder {wheel} of compiled kernels: an entry of copy_numbers "
    )
    forget()
    assert used() == (1, 0)  # from the cache of the user; the wheel warns once


# --- levels


def test_the_level_of_a_processor():
    everything = dict.fromkeys(V4 | {"avx512vnni"}, True)
    assert processor.level_of(everything) == "x86-64-v4"
    assert processor.level_of({**everything, "avx512vl": False}) == "x86-64-v3"
    assert processor.level_of({**everything, "fma": False}) is None
    assert processor.level_of({"neon": True}) is None


@pytest.mark.parametrize("level", processor.LEVELS)
def test_a_process_may_compile_for_a_level(level, monkeypatch):
    monkeypatch.setattr(config, "CPU_NAME", level)
    monkeypatch.setattr(config, "CPU_FEATURES", processor.feature_text(level))
    features = processor.cpu_features()
    assert processor.level_of(features) == level == processor.cpu_name()
    assert {name for name, on in features.items() if on} == processor.LEVELS[level]


ACTIVATE = """
import numpy as np
from bnmc import Activation
values = np.linspace(-9.0, 9.0, 101)
for name in {names}:
    print(Activation.named(name)(values).tobytes().hex())
"""

SIMULATE = """
import bnmc
for dtype in "float64", "float32":
    print(bnmc.simulate(bnmc.Chain(100, 5, "tanh"), 20, rng=0, dtype=dtype).gram.tobytes().hex())
"""


@pytest.mark.skipif(HERE is None, reason="wheels carry kernels for x86-64-v3 and above only")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ACTIVATE.format(names=["tanh"]), id="tanh"),
        pytest.param(
            ACTIVATE.format(names=list(BUILTIN)), marks=pytest.mark.slow, id="activations"
        ),
        pytest.param(SIMULATE, marks=pytest.mark.slow, id="simulate"),
    ],
)
def test_bits_of_the_level_are_those_of_this_processor(program, tmp_path):
    """Code for the level of this processor and code for the processor itself."""
    target = {"NUMBA_CPU_NAME": HERE, "NUMBA_CPU_FEATURES": processor.feature_text(HERE)}
    there = finished("-c", program, NUMBA_CACHE_DIR=str(tmp_path), **target).stdout
    assert there == printed_here(program)
    assert len(there) > 1000
