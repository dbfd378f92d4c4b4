"""`sample`: draws whose law is certified to be within a tolerance of the stationary law."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, draw_key, integer, real
from bnmc._support.linalg import semidefinite_root
from bnmc._support.machine import require_memory
from bnmc._support.progress import Progress
from bnmc._support.text import Result, wrapped
from bnmc._support.workers import Parallel
from bnmc.chain.chain import Chain
from bnmc.chain.needs import COUPLED, OF_A_RUN, require
from bnmc.chain.start import FirstLayer, as_initial
from bnmc.errors import PartialEstimateError
from bnmc.mixing.meeting_bound import HORIZON_LAGS, MOST_DEPTH, TVBound, tv_bound
from bnmc.simulation.run import simulate

#: Pairs of the certificate, as a multiple of those with which `atol` can be certified if all
#: pairs meet early.
SPARE = 1.25


@dataclass(frozen=True)
class InvariantSample(Result):
    """Independent draws of the state of a chain, with a bound of their distance to stationarity.

    Attributes
    ----------
    chain : Chain
    gram : (chains, n, n) ndarray of float64
        Gram matrices of the activations.
    layer : int
        The layer of the draws.
    atol : float
        Upper bound of the total-variation distance of their law from the law that
        ``certificate.law`` names, at the level of `certificate`.
    certificate : TVBound
        The bound of each layer.
    key : int
        The 64-bit key: as `rng` it repeats the call.

    Examples
    --------
    >>> import bnmc
    >>> drawn = bnmc.invariant.sample(bnmc.Chain(300, 4, "relu"), 10, atol=0.05, rng=0)
    >>> drawn.gram.shape
    (10, 4, 4)
    """

    chain: Chain
    gram: Float64Array
    layer: int
    atol: float
    certificate: TVBound
    key: int = field(repr=False)

    @property
    def assumes(self) -> tuple[str, ...]:
        """Conditions under which the draws are near the stationary law: those of `certificate`."""
        return self.certificate.assumes

    def __str__(self) -> str:
        """The layer of the draws, the distance that is certified, and its assumptions."""
        bound = self.certificate
        lines = (
            f"{len(self.gram)} independent draws from layer {self.layer} of {self.chain}",
            f"Their law is within {self.atol:g} of the {bound.law} law in total variation, by "
            f"{bound.chains} coupled pairs, at level {bound.level:g}.",
            *self.assumes,
        )
        return "\n".join(map(wrapped, lines))

    def preactivations(self) -> Float64Array:
        """Draw the pre-normalization state h of the next layer for each Gram matrix.

        Returns
        -------
        (chains, width, batch) ndarray of float64
            Rows are N(0, gain² G + ``bias_variance`` 11ᵀ) given G (of a convolution with C(G) in
            place of G, see `bnmc.Convolution`), so h is within the same total-variation distance of
            its stationary law.  Every call returns the same numbers.

        Raises
        ------
        ResultTooLargeError
            If the states do not fit in memory.
        """
        # The generator of the key itself drew the certificate and the run.
        rng = np.random.default_rng(np.random.SeedSequence(self.key, spawn_key=(1,)))
        chains, n = len(self.gram), self.chain.batch
        require_memory("chains", 8 * (chains + 1) * self.chain.width * n)
        out = np.empty((chains, self.chain.width, n))
        for index, gram in enumerate(self.gram):
            normals = rng.standard_normal((self.chain.width, n))
            root = semidefinite_root(self.chain.covariance_of_states(gram))
            np.matmul(normals, self.chain.gain * root, out=out[index])
        return out


def sample(
    chain: Chain,
    chains: int,
    atol: float = 0.01,
    *,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: bool | Progress = False,
) -> InvariantSample:
    """Draw independent states whose law is within a tolerance of the stationary law.

    Parameters
    ----------
    chain : Chain
        As in `bnmc.mixing.tv_bound`.
    chains : int
        Number of draws, one of each chain, >= 1.
    atol : float, default 0.01
        Largest total-variation distance, in [1e-6, 1).  At level 0.95 the certificate uses
        9.2/atol pairs, at least 200.
    initial, rng, level, max_layers, threads, executor, progress
        As in `bnmc.mixing.tv_bound`.  There is no time limit: the certificate comes from coupled
        pairs, of which those that have met by then would be the fast ones.

    Returns
    -------
    InvariantSample

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.
    ResultTooLargeError
        If the draws do not fit in memory.
    NotMixing
        As `bnmc.mixing.tv_bound`.
    PartialEstimateError
        If no layer is certified; ``partial`` is the certificate.

    Notes
    -----
    First, `bnmc.mixing.tv_bound` computes a certificate from separate random numbers.  Each draw is
    then a chain of its own, simulated to the first layer at which the upper end of the confidence
    interval of the bound is at most `atol`.  The upper end does not increase with the layer,
    so choosing the layer by it keeps the level.  The certificate is of the quasi-stationary law,
    which is the stationary law under the conditions of `InvariantSample.assumes`.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=300, batch=4, activation="relu")
    >>> drawn = bnmc.invariant.sample(chain, 10, atol=0.05, rng=0)
    >>> drawn.gram.shape, drawn.preactivations().shape
    ((10, 4, 4), (10, 300, 4))
    """
    require(chain, COUPLED, OF_A_RUN)
    chains = integer("chains", chains, low=1)
    atol = real("atol", atol, low=1e-6, below=1.0)
    level = real("level", level, above=0.0, below=1.0)
    max_layers = integer("max_layers", max_layers, low=1, high=2**30)
    initial = as_initial(chain, initial)
    parallel = Parallel.of(threads, executor, progress)
    key = draw_key(rng)
    generator = np.random.default_rng(key)
    # The state, a frame of it, a copy for the observable, and the result.
    require_memory("chains", 4 * 8 * chains * chain.batch**2)
    certificate = tv_bound(
        chain, min(max_layers, MOST_DEPTH), chains=pairs_for(atol, level), initial=initial,
        rng=generator, level=level, max_layers=max_layers, **parallel.options,
    )  # fmt: skip
    layer = certificate.layers_to(atol)
    if layer is None:
        raise PartialEstimateError(
            f"no layer up to {max_layers} is certified to be within {atol}", certificate
        )
    run = simulate(
        chain, layer, chains=chains, initial=initial, rng=generator, burn_in=layer,
        **parallel.options,
    )  # fmt: skip
    return InvariantSample(chain, run.gram[:, -1], layer, atol, certificate, key)


def pairs_for(atol: float, level: float) -> int:
    """Return the number of pairs of the certificate."""
    needed = HORIZON_LAGS * math.log(2.0 / (1.0 - level)) / atol
    return max(200, math.ceil(SPARE * needed))
