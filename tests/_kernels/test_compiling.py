"""Numba as it is, without `numba_internals`: the same bits, later."""

import tomllib
from pathlib import Path

import pytest
from programs import finished, printed_here
from slow_cases import some

import bnmc
from bnmc._kernels import numba_internals

SMALL = """
import numpy as np
from numba import njit
from bnmc import Activation, kernels
from bnmc.kernels import c

def scalar(x):
    both = np.array([x, 0.5 * x])
    return both.max()

@njit
def total(sigma, values):
    result = 0.0
    for x in values:
        result += kernels.activate(sigma, x)
    return result

values = np.linspace(-9.0, 9.0, 101)
for activation in Activation.named("tanh"), Activation(scalar):
    print(activation(values).tobytes().hex())
print(total(kernels.activation("gelu"), values).hex(), c.function("activate", "gelu")(0.3).hex())
"""

RUNS = """
import bnmc
for dtype in "float64", "float32":
    chain = bnmc.Chain(100, 5, "tanh")
    print(bnmc.simulate(chain, 20, rng=0, dtype=dtype).gram.tobytes().hex())
chain = bnmc.Chain(24, 3, lambda x: abs(x), skip=0.5)
print(bnmc.simulate(chain, 4, rng=0, sampler="weights").gram.tobytes().hex())
"""

GRADIENTS = """
import bnmc
run = bnmc.backpropagate(bnmc.Chain(24, 3, "gelu"), 4, rng=0)
print(run.log_gradient_norm.tobytes().hex())
"""


def outputs(program, **environment):
    """Return what a fresh process prints, and what it warns of."""
    done = finished("-c", program, **environment)
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(SMALL, id="small"),
        pytest.param(RUNS, marks=pytest.mark.slow, id="runs"),
        pytest.param(GRADIENTS, marks=pytest.mark.slow, id="gradients"),
    ],
)
def test_plain_numba_has_the_same_bits(program, tmp_path):
    expected = printed_here(program)
    plain = {"BNMC_PLAIN_NUMBA": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    assert outputs(program, **plain) == (expected, "")
    (folder,) = tmp_path.iterdir()
    before = sorted(folder.rglob("*.nb[ci]"))
    assert before
    assert outputs(program, **plain) == (expected, "")
    assert sorted(folder.rglob("*.nb[ci]")) == before, "the second process compiled"


APPLY = """
from bnmc import Activation
print(Activation.named("relu")(2.0), Activation.named("linear")(3.0))
"""

DIFFERENCES = {
    "a newer version": (
        "import numba; numba.version_info = numba.version_info._replace(short=(0, 99))",
        "does not know Numba 0",
    ),
    "a missing name": (
        "from numba.core import codegen; del codegen.JITCodeLibrary",
        "cannot import name 'JITCodeLibrary'",
    ),
}


@pytest.mark.parametrize("what", some(DIFFERENCES, "a missing name"))
def test_another_numba_is_used_as_it_is_and_told_once(what, tmp_path):
    change, reason = DIFFERENCES[what]
    printed, warned = outputs(change + APPLY, NUMBA_CACHE_DIR=str(tmp_path))
    assert printed == "2.0 3.0\n"
    assert warned.count("PlainNumbaWarning") == 1
    assert reason in warned


def test_the_newest_version_is_the_bound_of_the_package():
    project = Path(bnmc.__file__).parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("the tests are not in the source tree")
    dependencies = tomllib.loads(project.read_text())["project"]["dependencies"]
    major, minor = numba_internals._NEWEST
    assert f"numba>=0.63,<{major}.{minor + 1}" in dependencies
