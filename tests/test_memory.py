"""The memory that functions ask for before they begin, against measured peaks, from both sides.

The peak is that of `tracemalloc`, which counts the arrays of NumPy.  In each case another term of
the estimate is the largest.  `tests/simulation/test_memory.py` has the cases of `simulate`.
"""

import gc
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from bnmc import Chain, MeanField, backpropagate
from bnmc._support import machine
from bnmc._support.machine import require_memory
from bnmc.errors import ResultTooLargeError
from bnmc.gradients import tangent_kernel
from bnmc.infinite_width import descent, nngp, ntk, posterior, train_networks
from bnmc.mean_field import block_symmetric
from bnmc.mixing import two_inputs
from bnmc.random_matrix import linear_covariance, lyapunov_residual_estimate, total_variation

X = np.random.default_rng(0).standard_normal((20, 60))
LABELS = (X[0] > 0).astype(float)
TWO = np.random.default_rng(1).standard_normal((2, 100, 32))
# The estimates are those of one thread: functions take more threads if more memory is free.
ALONE = {"threads": 1, "rng": 0}
ONE = {"chains": 1, **ALONE}
NETWORKS = {"method": "monte-carlo", **ALONE}
STACK = np.einsum("kin,kjn->kij", *2 * [np.random.default_rng(2).standard_normal((20, 60, 80))])
TIMES = np.arange(200.0)
(POINT, _) = block_symmetric("relu", 64)


def step(batch, *activation, norm="batch"):
    field = MeanField(Chain(1000, batch, *activation, norm=norm))
    rows = np.random.default_rng(3).standard_normal((2 * batch, batch))
    return lambda: field.step(rows.T @ rows / len(rows), rtol=0.1, rng=0)


def backward(*chain, depth=2, norm="batch", skip=0.0, weights="gaussian", **options):
    layer = Chain(*chain, norm=norm, skip=skip, weights=weights)
    return lambda: backpropagate(layer, depth, **ONE | options)


CALLS = {
    "backward, matrices": backward(250, 250),
    "backward, float32": backward(250, 250, dtype="float32"),
    "backward, orthogonal": backward(300, 150, "relu", weights="haar"),
    "backward, scales": backward(300, 150, "relu", norm="none", depth=3),
    "backward, products with h": backward(300, 150, "relu", observables="hidden_delta"),
    "backward, readout": backward(300, 150, "relu", loss="squared", labels=np.eye(150, 3)),
    "backward, representations": backward(5000, 40, "relu", skip=1.0, depth=20, chains=2),
    "backward, rows": backward(20_000, 10, "relu"),
    "backward, results": backward(20, 20, "relu", depth=20, chains=200),
    "step, pairs": step(200, "tanh", norm="layer"),
    "step, homogeneous": step(200, "relu"),
    "step, lattice": step(100, "tanh"),
    "two stacks": lambda: total_variation(STACK[:1], STACK),
    "fourth moments": lambda: linear_covariance(STACK[0, :20, :20], 100, 10),
    "gradient flow": lambda: descent(STACK[0], np.ones((60, 5)), TIMES),
    "gradient flow, one output": lambda: descent(STACK[0], np.ones(60), np.arange(2000)),
    "gradient flow, tests": lambda: descent(
        STACK[0], np.ones((60, 5)), TIMES, test_kernel=np.ones((300, 60))
    ),
    "gradient flow, cross-entropy": lambda: descent(
        STACK[0], np.full((60, 20), 0.05), TIMES[:3], loss="cross-entropy"
    ),
    "posterior": lambda: posterior(STACK[0], STACK[0], np.ones((60, 30)), TIMES),
    "posterior, tests": lambda: posterior(
        STACK[0],
        STACK[0],
        np.ones(60),
        TIMES,
        test_tangent=np.ones((30, 60)),
        test_prior=np.ones((30, 60)),
        test_covariance=np.eye(30),
    ),
    "blocks": lambda: replace(POINT, sizes=(1, 499)).gram,
    "two inputs": lambda: two_inputs(Chain(100, 32), *TWO, depth=20, chains=10, rng=0),
    "exponents": lambda: lyapunov_residual_estimate(16, 0.5, 2, samples=20_000, rng=0),
    "tangent kernel, layers": lambda: tangent_kernel(Chain(256, 8, "relu"), 60, **ONE),
    "tangent kernel, columns": lambda: tangent_kernel(Chain(512, 20, "relu"), 3, **ONE),
    "tangent kernel, combinations": lambda: tangent_kernel(
        Chain(1024, 8, "relu"), 1, probes=20, **ONE
    ),
    "tangent kernel, weights": lambda: tangent_kernel(
        Chain(600, 3, "relu"), 1, sampler="weights", **ONE
    ),
    "tangent kernel, networks together": lambda: tangent_kernel(
        Chain(128, 8, "relu"), 3, chains=40, threads=1, rng=0
    ),
    "training, weights": lambda: train_networks(
        "ntk", X, LABELS, [0, 2], width=384, hidden_layers=2, chains=4, **ALONE
    ),
    "training, rows": lambda: train_networks(
        "ntk", X, LABELS, [0, 2], width=2048, chains=4, **ALONE
    ),
    "training, results": lambda: train_networks(
        "ntk", X, LABELS, np.arange(60), width=2, chains=200, **ALONE
    ),
    "training, results of tests": lambda: train_networks(
        "ntk", X[:, :10], LABELS[:10], np.arange(60), width=2, chains=200, test=X[:, 10:], **ALONE
    ),
    "networks, weights": lambda: nngp(X[:, :6], 3, width=512, chains=2, **NETWORKS),
    "networks, rows": lambda: ntk(X, 8, width=200, chains=2, **NETWORKS),
    "networks, results": lambda: nngp(X, 1, width=8, chains=200, **NETWORKS),
    "networks, results beside others": lambda: nngp(
        X, 1, other=X[:, ::-1], width=8, chains=100, **NETWORKS
    ),
    "networks, batches": lambda: ntk(
        X, 2, activation="tanh", norm="batch", width=128, chains=2, **NETWORKS
    ),
}


@pytest.fixture
def asked(monkeypatch):
    """Return the sizes that functions ask for."""
    sizes = []

    def recorded(name, size, hint=""):
        sizes.append(size)
        require_memory(name, size, hint)

    for name, module in list(sys.modules.items()):
        if name.startswith("bnmc.") and getattr(module, "require_memory", None) is require_memory:
            monkeypatch.setattr(module, "require_memory", recorded)
    return sizes


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("name", CALLS)
def test_what_functions_ask_for_is_what_they_take(name, asked):
    CALLS[name]()  # compiles
    gc.collect()
    tracemalloc.start()
    try:
        CALLS[name]()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Arguments that are checked by their eigenvalues ask for themselves, before.
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
    assert 1 / 1.2 < asked[-1] / peak < 1.7, (asked, peak)


def test_stacks_that_do_not_fit_in_memory_raise_about_memory(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    with pytest.raises(ResultTooLargeError, match="S1, S2: .*smaller stacks"):
        total_variation(STACK[:1], STACK)
