"""`expectation`: unbiased estimates of stationary expectations, from coupled pairs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, integer, real
from bnmc._support.progress import Progress
from bnmc._support.workers import Parallel, sendable, shares_memory
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer, Start
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.estimate.estimate import Estimate
from bnmc.mixing import coupling
from bnmc.simulation.engine.pairs import BLOCK_LAYERS, Pairs
from bnmc.simulation.observables import Observable, as_observables

#: Number of averaged layers, in units of the burn-in: the median waiting time of the pilot run.
#: With its 0.9 quantile, the squared standard error times the layers of a pair is the same to 6 %
#: (four chains of widths 50 to 1000), but of few pairs that quantile is sometimes the wait of those
#: that were refused once: then runs are 1.7 times as long.
_LENGTH = 5

#: Pairs of a task, at most: a task keeps their Gram matrices in `BLOCK_LAYERS` layers.
_MOST_PAIRS = 64


def expectation(
    chain: Chain,
    f: str | Observable | Callable[[Float64Array], ArrayLike],
    *,
    chains: int = 1000,
    burn_in: int | None = None,
    length: int | None = None,
    lag: int | None = None,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: bool | Progress = False,
) -> Estimate:
    r"""Estimate the expectation of a function of the Gram matrix under the stationary law.

    Parameters
    ----------
    chain : Chain
        As in `bnmc.mixing.tv_bound`.
    f : str, Observable or callable
        One number for each Gram matrix: the name of an observable such as "orthogonality_gap", an
        `Observable`, or a function of an (n, n) array.
    chains : int, default 1000
        Number of independent estimates in the mean, >= 2.
    burn_in, length : int, optional
        First layer k of the average, >= 0, and number of averaged layers, >= 1.  They affect the
        variance and the cost, but not the expectation.  By default a pilot run chooses the burn-in
        as the number of layers within which half of its pairs meet, and five times as many layers
        for the average.
    lag : int, optional
        Layers by which one chain of a pair is ahead, >= 1.  Default: chosen by the pilot run.
    initial, rng, level, max_layers, threads, executor, progress
        As in `bnmc.mixing.tv_bound`.  There is no time limit: the pairs that have met by then would
        be the fast ones, so the mean would be biased.

    Returns
    -------
    Estimate
        Student's interval over pairs; ``n`` is their number.  ``assumes`` lists the
        conditions under which the mean is that of the stationary law: R pairs do not show
        wells and absorbing states that are rarer than about 1/R.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for an `f` whose value is not one number.
    ResultTooLargeError
        If the pairs do not fit in memory.
    NotMixing
        As `bnmc.mixing.tv_bound`.  A replicate whose pair does not meet has no estimate, and the
        mean over the other pairs is biased.  Also if chains from `initial` and from another
        start do not meet.

    Notes
    -----
    With X ahead of Y by L layers until they meet at layer τ of X, the average over l = k … m of

    .. math:: f(X_l) + \sum_{j \ge 1,\, l + jL < \tau} \bigl(f(X_{l+jL}) - f(Y_{l+(j-1)L})\bigr)

    has the expectation of f under the stationary law (Jacob, O'Leary and Atchadé, *Unbiased Markov
    chain Monte Carlo methods with couplings*, 2020; for L > 1 Biswas, Jacob and Vanetti, 2019).

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=300, batch=4, activation="relu")
    >>> mean = bnmc.invariant.expectation(chain, "orthogonality_gap", chains=100, rng=0)
    >>> mean.n, bool(mean.stderr < 0.01)
    (100, True)
    """
    parallel = Parallel.of(threads, executor, progress)
    coupled = coupling.CoupledPairs(chain, initial, rng, max_layers, parallel)
    observable = _as_number(f, chain)
    if not shares_memory(parallel.executor):
        sendable("f", f, f)
    chains = integer("chains", chains, low=2, high=coupling.MOST_REPLICATES)
    level = real("level", level, above=0.0, below=1.0)
    if burn_in is not None:
        burn_in = integer("burn_in", burn_in, low=0, high=2**20)
    if length is not None:
        length = integer("length", length, low=1, high=2**20)
    if lag is not None:
        lag = integer("lag", lag, low=1, high=coupling.MOST_LAG)
    coupled.size_of_task(chains, _MOST_PAIRS, BLOCK_LAYERS)
    if burn_in is None or length is None or lag is None:
        waits = coupled.pilot_waits(chains)
        typical = min(int(waits[len(waits) // 2]), coupling.MOST_LAG // _LENGTH)
        burn_in = typical if burn_in is None else burn_in
        length = _LENGTH * typical if length is None else length
        lag = typical if lag is None else lag
    last = burn_in + length - 1
    average = _Average(burn_in, last, lag, max_layers, observable)
    parts = coupled.map(
        _replicates, 0, chains, "expectation", average, most=_MOST_PAIRS, layers=BLOCK_LAYERS
    )
    values, met = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    unmet = np.flatnonzero(met < 0)
    if unmet.size:
        meetings = coupled.run(lag, int(unmet[0]), int(unmet[0]) + 1)
        context = (
            f"{unmet.size} of {chains} pairs have not met in {max_layers} layers, and without "
            "them the mean over the others is biased; of the first of these, {}"
        )
        raise coupling.not_mixing(chain, meetings, coupled.max_layers, None, context)
    events = coupled.absorbing_events(lag, chains)
    waited = met - lag
    crossed = coupled.cross_starts(waited, events)
    assumes = coupling.assumptions(waited, max(lag, last), None, crossed, events)
    if not np.isfinite(values).all():
        value = float(values[~np.isfinite(values)][0])
        raise ArgumentError("f", value, "a function whose values are finite")
    mean = Estimate.from_samples(values, level=level, method="coupled chains, unbiased")
    return replace(mean, assumes=assumes)


def _as_number(f: object, chain: Chain) -> Observable:
    """Return f as an observable, or raise if its value is not one number."""
    if not isinstance(f, (str, Observable)) and not callable(f):
        raise ArgumentTypeError("f", f, "a name, an Observable or a function of a Gram matrix")
    wanted: Any = f if isinstance(f, (str, Observable)) else Observable(f, name="f")
    (observable,) = as_observables(wanted, False)
    shape = observable.at(chain, np.eye(chain.batch)[None, None]).shape
    if shape != (1, 1):
        raise ArgumentError("f", shape[2:], "a function that returns one number")
    return observable


class _Average(NamedTuple):
    """The average of one number for each Gram matrix over layers from `first` to `last`."""

    first: int
    last: int
    lag: int
    max_layers: int
    observable: Observable

    def sum(self, chain: Chain, grams: Float64Array, weights: NDArray[Any]) -> Float64Array:
        """Return the sum over layers of weights times values, evaluated at weights other than 0."""
        out, chosen = np.zeros(weights.shape), weights != 0
        if chosen.any():
            out[chosen] = weights[chosen] * self.observable.at(chain, grams[chosen][None])[0]
        return np.asarray(out.sum(axis=1))


def _replicates(
    chain: Chain, start: Start, key: int, first_pair: int, last_pair: int, average: _Average
) -> tuple[Float64Array, NDArray[np.int64]]:
    """Return one estimate per pair, and the layer of its meeting: -1 of a pair without estimate."""
    first, last, lag, max_layers, _ = average
    pairs = Pairs(chain, start, lag, first_pair, last_pair, key)
    # Layer 0 is in the average if that begins there.
    in_average = np.full((last_pair - first_pair, 1), first == 0)
    total = average.sum(chain, pairs.grams[:, :1], in_average)
    end = max(lag + max_layers, last)
    while (pairs.layer < last or pairs.waiting.any()) and pairs.layer < end:
        before = pairs.layer
        layers = min(BLOCK_LAYERS, end - before)
        grams, _ = pairs.advance(layers, until=last, record=True)
        numbers = before + 1 + np.arange(layers)
        regular = pairs.status[:, :1] == 0
        averaged = (numbers >= first) & (numbers <= last) & regular
        total += average.sum(chain, grams[:, :, 0], averaged)
        # Multiplicity of X_t − Y_{t−L} in the estimates of layers first to last.
        weight = np.maximum(
            (numbers - first) // lag - (np.maximum(lag, numbers - last) + lag - 1) // lag + 1, 0
        )
        apart = (pairs.met[:, None] < 0) | (numbers < pairs.met[:, None])
        weights = np.where(apart & regular & (numbers >= lag), weight, 0)
        total += average.sum(chain, grams[:, :, 0], weights)
        total -= average.sum(chain, grams[:, :, 1], weights)
    return total / (last - first + 1), pairs.met
