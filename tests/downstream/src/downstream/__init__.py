"""What other packages do with bnmc: its kernels in their loops, in C, on executors, in tests."""

from __future__ import annotations

import ctypes
from concurrent.futures import Executor

import numba
import numpy as np
from numpy.typing import NDArray

import bnmc
from bnmc import kernels
from bnmc.kernels import c

RELU = kernels.activation("relu")


@numba.njit(nogil=True)
def _gap_after(
    law: kernels.Law, depth: int, key: np.uint64, gram: NDArray[np.float64], work: NDArray
) -> float:
    """Largest off-diagonal entry after some layers; NaN where a layer cannot be made."""
    for layer in range(depth + 1):
        if (
            kernels.conditional_layer(RELU, law, gram, layer, 0, key, gram, work)
            != kernels.Status.OK
        ):
            return np.nan
    largest = 0.0
    for i in range(law.columns):
        for j in range(i):
            largest = max(largest, abs(gram[i, j]))
    return largest


def correlation_after(chain: bnmc.Chain, depth: int, key: int) -> float:
    """Largest correlation of two samples of a relu chain after `depth` layers, by compiled code."""
    gram = np.eye(chain.batch)
    work = kernels.workspace(chain)
    return float(_gap_after(kernels.law(chain), depth, np.uint64(key), gram, work))


class _Law(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "batch", "columns", "norm")),
        *((name, ctypes.c_double) for name in ("skip", "gain", "eps")),
    )


def gram_by_c(chain: bnmc.Chain, a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gram matrix of activations, by the C interface."""
    law = _Law(*kernels.law(chain))
    work = np.zeros(c.function("workspace_bytes")(ctypes.byref(law)) // 8 + 1)
    out = np.zeros((chain.batch, chain.batch))
    status = c.function("gram")(
        ctypes.byref(law), a.ctypes.data, len(a), out.ctypes.data, work.ctypes.data, work.nbytes
    )
    kernels.raise_status(status, work, layer=0)
    return out


def mean_gaps(chains: list[bnmc.Chain], depth: int, executor: Executor) -> list[float]:
    """Mean orthogonality gap of the last layer of several chains, one a task."""
    return list(executor.map(_mean_gap, chains, [depth] * len(chains)))


def _mean_gap(chain: bnmc.Chain, depth: int) -> float:
    run = bnmc.simulate(
        chain, depth, chains=4, rng=0, threads=1, observables="orthogonality_gap", burn_in=depth
    )
    return float(run["orthogonality_gap"].mean())


class Layer:
    """A layer of this package: normalization and weights, in NumPy."""

    def __init__(self, width: int, rng: np.random.Generator, *, ddof: int = 0) -> None:
        self.width, self.rng, self.ddof = width, rng, ddof

    def __call__(self, h: NDArray[np.float64]) -> NDArray[np.float64]:
        centred = h - h.mean(axis=1, keepdims=True)
        x = centred / h.std(axis=1, keepdims=True, ddof=self.ddof)
        weights = self.rng.standard_normal((self.width, self.width)) / np.sqrt(self.width)
        return weights @ x
