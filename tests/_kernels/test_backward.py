"""The kernels of the backward pass: each as plain Python, and the sums of blocks in NumPy."""

import numpy as np
import pytest
from plain_python import run_plainly
from slow_cases import some

from bnmc import Chain
from bnmc._kernels.cpu import (
    backward,
    backward_matrices,
    backward_rows,
    blocks,
    factor,
    orthogonal,
    rows,
)
from bnmc._kernels.cpu.numbers import STRIDE
from bnmc.gradients import backpropagate

ALL = ("delta_gram", "gram", "hidden_delta")

CHAINS = {
    "centred": Chain(70, 3, "tanh"),
    "uncentred with eps": Chain(20, 3, "relu", norm="batch-uncentred", eps=0.1),
    "skip": Chain(20, 3, "relu", skip=0.5),
    "twins without norm": Chain(20, 3, "tanh", norm="none"),
    "two samples": Chain(20, 2, "relu"),
    "haar": Chain(20, 3, "tanh", weights="haar"),
    "haar, width below batch, skip": Chain(3, 4, "tanh", norm="none", weights="haar", skip=0.5),
}

MODULES = (backward, backward_matrices, backward_rows, blocks, factor, orthogonal, rows)


@pytest.mark.parametrize("loss", ["gaussian", "squared"])
@pytest.mark.parametrize("name", some(CHAINS, "centred", "skip", "twins without norm"))
def test_python_and_compiled_kernels_agree(name, loss, monkeypatch):
    chain = CHAINS[name]
    options = {"labels": [0, 1, 1, 0][: chain.batch]} if loss == "squared" else {}
    if name.startswith("twins"):
        x = np.random.default_rng(0).standard_normal((20, 3))
        x[:, 1] = x[:, 0]
        options["initial"] = x

    def run():
        return backpropagate(chain, 3, rng=1, threads=1, loss=loss, observables=ALL, **options)

    compiled = run()
    run_plainly(monkeypatch, *MODULES)
    python = run()
    # Sums of 70 terms in another order, through three layers.
    np.testing.assert_allclose(
        python.log_gradient_norm, compiled.log_gradient_norm, rtol=0, atol=1e-11
    )
    for each in ALL:
        size = np.abs(compiled[each]).max(axis=(-2, -1), keepdims=True)
        difference = np.abs(python[each] - compiled[each])
        assert (difference <= 1e-11 * size).all(), each


@pytest.mark.parametrize("columns", [1, 3, 4, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_add_cross_is_a_matrix_product(columns, dtype):
    rng = np.random.default_rng(columns)
    whole = (columns + 3) // 4 * 4
    first, second = np.zeros((2, whole, STRIDE), dtype)
    first[:columns], second[:columns] = rng.standard_normal((2, columns, STRIDE))
    tiles = whole // 4
    sums = np.ones(16 * tiles * tiles)
    blocks.add_cross(first.reshape(-1), second.reshape(-1), columns, 192, np.zeros(16, dtype), sums)
    product = sums.reshape(whole, whole) - 1
    a, b = first[:, :192].astype(float), second[:, :192].astype(float)
    # 192 products of normals, each sum of 192 / lanes of them: error of a few roundings.
    bound = 192 * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b).T + 1)
    assert (np.abs(product - a @ b.T) <= bound).all()
