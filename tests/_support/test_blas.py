"""The BLAS of NumPy: runs name it if a value depends on it, and no state depends on it."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc._support import blas

CHAIN = bnmc.Chain(30, 4, "relu")


def test_the_kernel_is_named_with_and_without_threadpoolctl():
    blas.blas_kernel.cache_clear()
    with mock.patch.object(blas, "find_spec", return_value=None):
        plain = blas.blas_kernel()
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    assert plain.startswith(name)
    blas.blas_kernel.cache_clear()
    pytest.importorskip("threadpoolctl")
    assert blas.blas_kernel().endswith(" threads")


def test_a_run_names_blas_if_its_values_depend_on_it():
    plain = bnmc.simulate(CHAIN, 1, rng=0).cpu
    for observable in ("eigenvalues", "soft_rank", bnmc.SoftRank(0.1, "other")):
        with ThreadPoolExecutor(1) as pool:
            for executor in (None, pool):
                run = bnmc.simulate(CHAIN, 1, rng=0, observables=[observable], executor=executor)
                assert run.cpu == f"{plain}; {blas.blas_kernel()}"
    for observable in ("orthogonality_gap", bnmc.Observable(np.trace)):
        assert bnmc.simulate(CHAIN, 1, rng=0, observables=[observable]).cpu == plain


def test_states_do_not_depend_on_blas(capsys):
    """OpenBLAS with kernels for another processor; only eigenvalues may change."""
    if "openblas" not in blas.blas_kernel():
        pytest.skip("OPENBLAS_CORETYPE has an effect on OpenBLAS only")
    script = """
        import hashlib, numpy as np, bnmc
        x = np.random.default_rng(0).normal(size=(7, 30))
        digest = hashlib.sha256()
        for activation, norm in (("relu", "batch"), ("linear", "none")):
            chain = bnmc.Chain(7, 30, activation, norm=norm)
            wide = bnmc.Chain(40, 30, activation, norm=norm)
            for one, start in ((wide, bnmc.FirstLayer(x)), (chain, x), (chain, "collinear")):
                run = bnmc.simulate(one, 2, rng=0, initial=start, observables=["scaled_gram"])
                digest.update(run["scaled_gram"].tobytes())
        print(digest.hexdigest())
    """
    script = textwrap.dedent(script)
    exec(script, {})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "OPENBLAS_CORETYPE": "Prescott"},
    )  # fmt: skip
    # This process has the kernels for its own processor, which is newer.
    assert done.stdout == capsys.readouterr().out


def test_one_thread_of_blas():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads():
        known = threadpoolctl.threadpool_info()
        return {one["num_threads"] for one in known if one["user_api"] == "blas"}

    before = threads()
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        with blas.one_blas_thread():
            assert threads() == {1}
        assert threads() == {3}
    assert threads() == before
    # Two threads leave in the order in which they came.
    first, second = blas.one_blas_thread(), blas.one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert threads() == {1}
    second.__exit__(None, None, None)
    assert threads() == before
    # The first may come in a worker, after this thread has set limits, and the last leave in one.
    with threadpoolctl.threadpool_limits(3, user_api="blas"), ThreadPoolExecutor(1) as pool:
        first, second = blas.one_blas_thread(), blas.one_blas_thread()
        pool.submit(first.__enter__).result()
        assert threads() == {1}
        second.__enter__()
        second.__exit__(None, None, None)
        assert threads() == {1}
        pool.submit(first.__exit__, None, None, None).result()
        assert threads() == {3}
        third = blas.one_blas_thread()
        third.__enter__()
        assert threads() == {1}
        pool.submit(third.__exit__, None, None, None).result()
        assert threads() == {3}
    assert threads() == before
    with mock.patch.object(blas, "find_spec", return_value=None), blas.one_blas_thread():
        assert threads() == before
