"""The environment of a result, in the identities of everything that is kept."""

import json

import numpy as np
import pytest
from numba.core import config

import bnmc
from bnmc._kernels import kernel_cache, processor
from bnmc._kernels.cpu.scaling import copy_numbers
from bnmc._support.environment import environment
from bnmc._support.machine import blas_kernel
from bnmc.errors import StoreMismatchError
from bnmc.experiments.runs import Run

CHAIN, OF_WEIGHTS = bnmc.Chain(20, 3, "relu"), bnmc.Chain(20, 3, "relu", weights="uniform")
#: Name: (function of a path that makes a store, name of its header, whether it depends on BLAS).
STORES = {
    "run": (lambda path: bnmc.simulate(CHAIN, 2, rng=0, store=path), "zarr.json", False),
    "spectra": (
        lambda path: bnmc.simulate(CHAIN, 2, rng=0, store=path, observables=["eigenvalues"]),
        "zarr.json", True,
    ),
    "gradients": (
        lambda path: bnmc.backpropagate(CHAIN, 2, rng=0, store=path), "gradients.json", False
    ),
    "gradients of weights": (
        lambda path: bnmc.backpropagate(OF_WEIGHTS, 2, rng=0, store=path), "gradients.json", True
    ),
    "figure": (
        lambda path: Run("x", {}, store=path).parts(lambda progress: 3, [()]),
        "experiment.json", True,
    ),
}  # fmt: skip
#: Settings of Numba that change compiled code, and how they are named.
SETTINGS = {
    "OPT": (config.OPT.__class__("0"), "NUMBA_OPT=0"),
    "max": (config.OPT.__class__("max"), "NUMBA_OPT=max"),
    "DISABLE_JIT": (1, "NUMBA_DISABLE_JIT=1"),
    "USING_SVML": (True, "NUMBA_USING_SVML=True"),
}


@pytest.mark.parametrize("name", STORES)
def test_all_identities_have_the_environment(name, tmp_path, monkeypatch):
    make, header, blas = STORES[name]
    result = make(tmp_path / "x.zarr")
    stored = json.loads((tmp_path / "x.zarr" / header).read_text())["attributes"]
    facts = environment(blas=blas)
    assert {name: stored.get(name) for name in facts} == facts
    assert ("blas" in stored) == blas
    assert f"NumPy {np.__version__}".lower() in facts["versions"]
    if name != "figure":
        assert result.cpu == facts["cpu"] + (f"; {blas_kernel()}" if blas else "")
    monkeypatch.setattr(config, "LOOP_VECTORIZE", 0)
    with pytest.raises(StoreMismatchError, match="with cpu = .*; NUMBA_LOOP_VECTORIZE=0, got"):
        make(tmp_path / "x.zarr")


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_compiler_have_code_and_results_of_their_own(name, monkeypatch):
    value, named = SETTINGS[name]
    entry = kernel_cache.Entry(copy_numbers.py_func, "()", "x")
    before = entry.file_name, kernel_cache.version(), processor.host_cpu()
    monkeypatch.setattr(config, "OPT" if name == "max" else name, value)
    after = entry.file_name, kernel_cache.version(), processor.host_cpu()
    assert not {*before} & {*after}
    assert after[2].endswith(f"; {named}")
