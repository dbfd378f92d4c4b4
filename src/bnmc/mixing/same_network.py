"""`two_inputs`: distances of two inputs of one network, *On bridging …*, Corollaries 2 and 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram as grams
from bnmc._kernels.scalar.codes import ACTIVATION_FIRST
from bnmc._support.arguments import finite_array, integer
from bnmc._support.array_arguments import require_memory
from bnmc._support.keywords import explains_keywords
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.needs import STATIONARY, require
from bnmc.simulation.run import simulate


@dataclass(frozen=True)
class TwoInputs:
    """Distances between the Gram matrices of two inputs of the same networks.

    Attributes
    ----------
    layers : (layers,) ndarray of int
    spectral : (chains, layers) ndarray of float64
        ``Σ_i |λ_i/λ′_i − 1|``, both sorted in ascending order: the quantity of Corollary 2.
    relative : (chains, layers) ndarray of float64
        ‖G⁻¹G′ − I‖_F: the quantity of Corollary 4.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 500, 4))
    >>> found = bnmc.mixing.two_inputs(bnmc.Chain(500, 4, "relu"), x, y, depth=20, rng=0)
    >>> bool(found.relative[:, 20].mean() < found.relative[:, 0].mean())
    True
    """

    layers: NDArray[np.int64]
    spectral: NDArray[np.float64]
    relative: NDArray[np.float64]


@explains_keywords
def two_inputs(
    chain: Chain,
    x: ArrayLike,
    y: ArrayLike,
    *,
    depth: int = 50,
    chains: int = 100,
    rng: Any = None,
    progress: bool | Progress = False,
) -> TwoInputs:
    r"""Compare the Gram matrices of two inputs of the same random networks.

    Parameters
    ----------
    chain : Chain
        With a normalization.
    x, y : (width, batch) array_like
        The inputs; their Gram matrices at layer 0 must be regular.
    depth : int, default 50
        Number of layers, >= 0.
    chains : int, default 100
        Number of independent networks; both inputs pass through each of them.
    rng, progress
        As in `bnmc.simulate`.

    Returns
    -------
    TwoInputs

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For arguments that are not allowed.
    SingularGramError
        If a Gram matrix is singular.  For a linear chain with centred rows, only the part
        orthogonal to the vector of ones must be regular: the Gram matrix always maps this vector
        to 0, so the orthogonal parts are compared.

    Notes
    -----
    By Corollaries 2 and 4 of Joudaki, Daneshmand and Bach (arXiv 2205.13076), under their
    assumption of geometric ergodicity both quantities decrease to a level of order
    n ‖G*^{-1/2}‖/√d (for the second, times the distortion of the activation), with d the width, n
    the batch and G* the Gram matrix of the fixed point.  They do not converge to 0: the Gram
    matrices of two inputs fluctuate independently, even though they share the weights.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 500, 4))
    >>> found = bnmc.mixing.two_inputs(bnmc.Chain(500, 4, "relu"), x, y, depth=20, rng=0)
    >>> found.relative.shape
    (100, 21)
    """
    require(chain, STATIONARY)
    inputs = [
        finite_array(name, value, shape=(chain.width, chain.batch)).astype(np.float64, copy=False)
        for name, value in (("x", x), ("y", y))
    ]
    depth = integer("depth", depth, low=0)
    chains = integer("chains", chains, low=1)
    # The matrices of both inputs, with each other four; their regular parts; and temporary arrays.
    require_memory("depth, chains", 8 * 8 * chains * (depth + 1) * chain.batch**2)
    run = simulate(
        chain, depth, chains=chains, initial=np.stack(inputs), inputs=2, rng=rng, progress=progress
    )
    first, second = (_regular_part(chain, run.gram[:, :, k]) for k in range(2))
    relative = grams.relative_deviation(first, second)
    grams.relative_deviation(second, first)  # raises if G′ is singular
    ratio = grams.eigenvalues(first) / grams.eigenvalues(second)
    return TwoInputs(run.layers, np.abs(ratio - 1.0).sum(axis=-1), relative)


def _regular_part(chain: Chain, gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return G, or its part orthogonal to the ones if only this part can be regular."""
    is_last = chain.order_code == ACTIVATION_FIRST
    if not ((chain.activation.is_linear or is_last) and chain.normalization.hides_common_part):
        return gram
    from scipy.linalg import helmert

    basis = helmert(chain.batch)
    return np.asarray(basis @ gram @ basis.T)
