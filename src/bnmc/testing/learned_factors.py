"""Whether a step treats its features differently, as learned factors of a norm do.

All parts of a layer treat features alike: a permutation of the features of h does not change the
law of h'.  (For group normalization this holds for permutations that keep the groups.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bnmc.chain.chain import Chain

__all__ = ["features_differ"]

FloatArray = NDArray[np.float64]

#: Least calls on each state, and least rows of h' in these calls.
_CALLS, _ROWS = 16, 1 << 14

#: The covariances differ if the likelihood ratio exceeds this quantile so many times.  The quantile
#: is that of normal rows; rows of other weights vary a little more.
_LEVEL, _MARGIN = 1e-6, 2.0

#: Eigenvalues of a covariance up to this part of the largest are rounding errors.
_ROUNDING = 1e-9

#: Size of all entries but one of a sample, in units of that one.
_REST = 0.01


def features_differ(
    chain: Chain, step: Callable[[FloatArray], FloatArray], generator: np.random.Generator
) -> bool:
    """Return whether the covariance of h' given h changes with a permutation of the features of h.

    Parameters
    ----------
    chain : Chain
        Its norm tells which permutations keep the law.
    step : callable
        Function of a state, (width, batch), that returns the next one.
    generator : numpy.random.Generator
    """
    order = _permutation(chain, generator)
    return any(
        _covariances_differ(_rest(step, h), _rest(step, h[order]))
        for h in _states(chain, generator)
    )


def _permutation(chain: Chain, generator: np.random.Generator) -> NDArray[np.intp]:
    """Return a random permutation of the features that keeps the groups of the norm together."""
    groups = np.arange(chain.width).reshape(chain.normalization.groups, -1)
    order: NDArray[np.intp] = generator.permuted(groups, axis=1)[generator.permutation(len(groups))]
    return order.ravel()


def _states(chain: Chain, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return a generic state, and one whose samples have one large entry each."""
    d, n = chain.width, chain.batch
    generic, one = generator.standard_normal((2, d, n))
    one *= _REST
    one[generator.permutation(max(d, n))[:n] % d, np.arange(n)] += 1.0
    return generic, one


def _rest(step: Callable[[FloatArray], FloatArray], h: FloatArray) -> FloatArray:
    """Return the deviations of h' from its mean over calls, (calls, width, batch)."""
    values = np.stack([step(h) for _ in range(max(_CALLS, -(-_ROWS // len(h))))])
    deviations: FloatArray = values - values.mean(axis=0)
    return deviations


def _covariances_differ(first: FloatArray, second: FloatArray) -> bool:
    """Compare the covariances of the rows of two arrays of one shape, (calls, width, batch)."""
    degrees = (len(first) - 1) * first.shape[1]
    pair = [np.einsum("cri,crj->ij", one, one, optimize=True) / degrees for one in (first, second)]
    pooled = (pair[0] + pair[1]) / 2.0
    values, vectors = np.linalg.eigh(pooled)
    regular = values > _ROUNDING * values[-1]
    basis = vectors[:, regular] / np.sqrt(values[regular])
    # Box's test: twice the logarithm of the likelihood ratio.
    logs = [np.linalg.slogdet(basis.T @ one @ basis)[1] for one in pair]
    rank = int(regular.sum())
    quantile = float(stats.chi2.isf(_LEVEL, rank * (rank + 1) // 2))
    return bool(-degrees * sum(logs) > _MARGIN * quantile)
