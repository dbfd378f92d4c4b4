"""`two_inputs`: the certificates of *On bridging …*, Corollaries 2 and 4, for one network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram as grams
from bnmc._support.arguments import finite_array
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.requirements import require_stationary_law
from bnmc.errors import ArgumentTypeError
from bnmc.simulation.run import simulate

__all__ = ["TwoInputs", "two_inputs"]


@dataclass(frozen=True)
class TwoInputs:
    """How far the Gram matrices of two inputs to the same networks are apart.

    Attributes
    ----------
    layers : (layers,) ndarray of int
    spectral : (chains, layers) ndarray of float64
        ``Σ_i |λ_i/λ′_i − 1|``, both sorted by size: the certificate of Corollary 2.
    relative : (chains, layers) ndarray of float64
        ‖G⁻¹G′ − I‖_F: that of Corollary 4.
    """

    layers: NDArray[np.int64]
    spectral: NDArray[np.float64]
    relative: NDArray[np.float64]


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
    r"""Take two inputs through the same random networks and compare their Gram matrices.

    Parameters
    ----------
    chain : Chain
        With a normalization.
    x, y : (width, batch) array_like
        The inputs; their Gram matrices at layer 0 must be regular.
    depth : int, default 50
        Layers, >= 0.
    chains : int, default 100
        Independent networks, each of which both inputs go through.
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
        If a Gram matrix is singular. Those of a linear chain with centred rows always are, in the
        direction of the ones: there the part orthogonal to it is compared, which must be regular.

    Notes
    -----
    By Corollaries 2 and 4 of Joudaki, Daneshmand and Bach (arXiv 2205.13076), under their
    assumption of geometric ergodicity both quantities fall to a level of order
    n ‖G*^{-1/2}‖/√d (times the distortion of the activation for the second) and stay there. They
    do not fall to 0: two inputs that share the weights settle each at its own fluctuation.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 500, 4))
    >>> found = bnmc.mixing.two_inputs(bnmc.Chain(500, 4, "relu"), x, y, depth=20, rng=0)
    >>> found.relative.shape
    (100, 21)
    """
    if not isinstance(chain, Chain):
        raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
    require_stationary_law(chain)
    inputs = [
        finite_array(name, value, shape=(chain.width, chain.batch)).astype(np.float64, copy=False)
        for name, value in (("x", x), ("y", y))
    ]
    run = simulate(
        chain, depth, chains=chains, initial=np.stack(inputs), inputs=2, rng=rng, progress=progress
    )
    first, second = (_regular_part(chain, run.gram[:, :, k]) for k in range(2))
    relative = grams.relative_deviation(first, second)
    grams.relative_deviation(second, first)  # refuses a singular G′ too
    ratio = grams.eigenvalues(first) / grams.eigenvalues(second)
    return TwoInputs(run.layers, np.abs(ratio - 1.0).sum(axis=-1), relative)


def _regular_part(chain: Chain, gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """G, or its part orthogonal to the ones where nothing else can be regular."""
    linear = chain.activation.name == "linear" and chain.activation.builtin
    if not (linear and chain.normalization.hides_common_part):
        return gram
    from scipy.linalg import helmert

    basis = helmert(chain.batch)
    return np.asarray(basis @ gram @ basis.T)
