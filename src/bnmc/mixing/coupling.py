"""Coupled pairs of a chain on threads, processes or a GPU, and the assumptions that remain.

A chain can have several wells: sets of states that it leaves very rarely.  Pairs of chains that
start alike fall into the same well and meet.  The starts of `other_starts` are far apart, so chains
that begin there and meet nevertheless have left the wells that separate them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc import errors
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.numbers import STRIDE
from bnmc._kernels.scalar.codes import MOST_CHAINS
from bnmc._support.arguments import Float64Array, choice, draw_key, integer
from bnmc._support.device_arrays import require_gpu
from bnmc._support.machine import require_memory
from bnmc._support.text import Result
from bnmc._support.workers import Calls, Parallel, Shared, ranges
from bnmc.chain.chain import Chain
from bnmc.chain.needs import COUPLED, OF_A_RUN, require
from bnmc.chain.start import Covariance, Representation, Start, prepare
from bnmc.mean_field.field import MeanField
from bnmc.mixing.absorption import AbsorbingEvent, absorbing_events, may_be_absorbed
from bnmc.simulation.engine.pairs import Meetings, Pairs, joined, meet

T = TypeVar("T")


#: The name of the given start, for pairs with a lag of one layer.
SAME_START = "the same start, one layer behind"

#: Variance of the independent part of samples near a line, or near to one another.
_SMALL_VARIANCE = 0.01

#: Number of pairs of the pilot run, and its lag.
PILOT_REPLICATES, PILOT_LAG = 32, 16

#: The chosen lag is this quantile of the waiting times of the pilot.
_LAG_QUANTILE = 0.9
LAG_PAIR = math.ceil(_LAG_QUANTILE * (PILOT_REPLICATES - 1))

#: Largest lag.
MOST_LAG = 2**20

#: Number of pairs for each other start, and the lag of these pairs: with a lag of one layer, a
#: chain that alternates between two states does not meet itself.
_CROSSED_REPLICATES, _CROSSED_LAG = 32, 1

#: Pairs from another start are slow if half of them wait longer than this multiple of the typical
#: waiting time, a quantile of the replicates', plus this number of layers: far starts add some
#: layers of contraction.
_TYPICAL, _SLOW_FACTOR, _SLOW_LAYERS = 0.9, 10.0, 100

#: Number of states in which the probabilities of absorbing events are averaged.
STATES = 256

#: Largest number of replicates: pilot and crossed pairs have numbers beyond it.
MOST_REPLICATES = MOST_CHAINS - PILOT_REPLICATES - 16 * _CROSSED_REPLICATES

#: Size of a task of one thread: layers times numbers of a layer.
TASK_NUMBERS = 5e8

#: Layers for which the probability of absorption is stated.
_SHOWN_HORIZON = 10_000

#: Bytes of the numbers of a pair while it runs: its meeting, its tries, its status.
RUNNING = 56

#: Bytes of the results of a pair, of its part and of all parts together.
_RESULTS = 100

#: Bytes of the description of a task and of the objects of its result.
_TASK = 1500


@dataclass(frozen=True)
class CrossedStart(Result):
    """Pairs of one chain from the given start and one chain from another start.

    Attributes
    ----------
    name : str
        The other start, in words.
    waiting_times : (pairs,) ndarray of int
        Layers after the coupling began until the pair met, without absorbed pairs.
    absorbed : int
        Number of pairs of which a chain reached an absorbing state of `absorbing_events`.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=200, batch=3, activation="relu")
    >>> start = bnmc.mixing.tv_bound(chain, depth=20, chains=50, rng=0).crossed_starts[0]
    >>> start.name, len(start.waiting_times), start.absorbed
    ('the same start, one layer behind', 32, 0)
    """

    name: str
    waiting_times: NDArray[np.int64]
    absorbed: int = 0


def other_starts(chain: Chain, start: Start) -> dict[str, Start]:
    """Return the starts to couple with `start`, by name.

    Parameters
    ----------
    chain : Chain
    start : Start
        The given law of layer 0.

    Returns
    -------
    dict of str to (Covariance or Representation)
        The given start itself; samples near a line; independent samples; one sample with n times
        the variance of the others, and a block of samples that nearly coincide (from these, chains
        move to the block-symmetric attractors of `bnmc.mean_field.stability`); the given batch in
        another order.  Starts with the same law as another one are left out.
    """
    n = chain.batch
    identity, number = np.eye(n), np.arange(n)
    places = np.linspace(1.0, 2.0, n)
    starts: dict[str, Start] = {
        "independent samples": Covariance(identity),
        "samples near a line": Covariance(np.outer(places, places) + _SMALL_VARIANCE * identity),
    }
    if n >= 3:
        in_block = (number >= n // 2).astype(np.float64)
        block = np.outer(in_block, in_block) + np.diag(np.where(in_block, _SMALL_VARIANCE, 1.0))
        stands_out = np.diag(np.where(number == 0, n, 1.0))
        starts["one sample that stands out"] = Covariance(stands_out)
        starts["a block of samples that nearly coincide"] = Covariance(block)
    starts["the batch in reverse order"] = _reordered(start, number[::-1])
    if n >= 3:
        starts["the batch shifted by one sample"] = _reordered(start, np.roll(number, 1))
    others = {name: other for name, other in starts.items() if not _same_law(start, other)}
    return {SAME_START: start, **others}


def _reordered(start: Start, order: NDArray[np.int64]) -> Start:
    """Return the start with its samples in another order."""
    if isinstance(start, Representation):
        return Representation(start.x[..., order], start.a[..., order])
    return Covariance(start.matrix[np.ix_(order, order)])


def _same_law(start: Start, other: Start) -> bool:
    if not (isinstance(start, Covariance) and isinstance(other, Covariance)):
        return False
    return np.array_equal(start.matrix, other.matrix)


class CoupledPairs:
    """A run of coupled pairs; the constructor checks all arguments and draws the key.

    Parameters
    ----------
    chain, initial, rng, max_layers, executor, progress, backend
        As in `bnmc.mixing.tv_bound`.

    Attributes
    ----------
    start : Start
        Prepared law of layer 0.
    key : int
        The 64-bit key of all random numbers.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendError
        As `bnmc.mixing.tv_bound`.
    """

    def __init__(
        self,
        chain: Chain,
        initial: Any,
        rng: Any,
        max_layers: int,
        parallel: Parallel,
        backend: str = "cpu",
    ) -> None:
        self.backend = choice("backend", backend, ("cpu", "cuda"))
        if self.backend == "cuda":
            require_gpu(parallel.executor)
        require(chain, COUPLED, OF_A_RUN)
        if self.backend == "cuda" and not chain.is_row_by_row:
            raise errors.BackendError(
                "cuda",
                "norms over the features and orders other than 'norm-activation' are coupled on "
                "the CPU: backend='cpu'",
            )
        self.chain = chain
        self.max_layers = integer("max_layers", max_layers, low=1, high=2**30)
        self.parallel = parallel
        chain.activation.check()
        self.start: Start = prepare(chain.repeat(0), initial, 1, None)
        self.key = draw_key(rng)

    def pilot_waits(self, first: int) -> Float64Array:
        """Return the sorted waiting times of the pairs of a pilot run, inf for those still apart.

        Parameters
        ----------
        first : int
            Number of the first pilot pair: larger than those of all replicates.

        Raises
        ------
        NotMixing
            If more than one of ten pairs do not meet.
        """
        meetings = self.run(PILOT_LAG, first, first + PILOT_REPLICATES)
        apart = meetings.layers < 0
        waits = np.sort(np.where(apart, math.inf, meetings.layers - PILOT_LAG))
        if waits[LAG_PAIR] == math.inf:
            raise not_mixing(self.chain, meetings, self.max_layers, None)
        return waits

    def cross_starts(
        self, waited: NDArray[np.int64], events: Sequence[AbsorbingEvent], partial: object = None
    ) -> tuple[CrossedStart, ...]:
        """Let chains from the given start meet chains from other starts.

        Parameters
        ----------
        waited : (replicates,) ndarray of int
            Waiting times of the replicates, whose random numbers are not used again.
        events : tuple of AbsorbingEvent
            The known absorbing events.
        partial : object
            The estimate so far, for the error.

        Raises
        ------
        NotMixing
            If a pair neither meets nor is absorbed, if most pairs are absorbed, or if half of them
            wait much longer than is typical.  Then the law of deep layers depends on the start for
            a long time.
        """
        crossed = []
        replicates, typical = len(waited), float(np.quantile(waited, _TYPICAL))
        first = replicates + PILOT_REPLICATES
        for name, behind in other_starts(self.chain, self.start).items():
            last = first + min(_CROSSED_REPLICATES, replicates)
            try:
                meetings = self.run(_CROSSED_LAG, first, last, behind)
            except (errors.ZeroVarianceError, errors.NonFiniteError) as error:
                raise errors.NotMixing(
                    f"coupled with chains from {name}, a chain stopped: {error}", partial,
                    math.nan, math.nan,
                ) from error  # fmt: skip
            first += _CROSSED_REPLICATES
            met = meetings.layers >= 0
            # Far starts make known absorbing events likelier.  They are part of the result.
            absorbed = (meetings.degenerate > 0) & bool(events)
            lost, times = int(np.count_nonzero(absorbed)), meetings.layers[met] - _CROSSED_LAG
            reason = ""
            if not (met | absorbed).all() or 2 * lost > len(met):
                reason = "{}"
            elif np.median(times) > _SLOW_FACTOR * typical + _SLOW_LAYERS:
                reason = (
                    f"pairs need {int(np.median(times))} layers (median) to meet, where pairs from "
                    f"the same start need {typical:.0f}: there are wells"
                )
            if reason:
                context = f"the law of deep layers depends on the start: with chains from {name}, "
                raise not_mixing(self.chain, meetings, self.max_layers, partial, context + reason)
            crossed.append(CrossedStart(name, times, lost))
        return tuple(crossed)

    def absorbing_events(self, layer: int, replicates: int) -> tuple[AbsorbingEvent, ...]:
        """Return the known absorbing events of the chain, in states near a layer.

        Parameters
        ----------
        layer : int
            The layer of the states, >= 1.
        replicates : int
            Number of the replicates: the states are those of the first chains of some of them.
        """
        if not may_be_absorbed(self.chain):
            return ()
        count = min(STATES, replicates)
        pairs = Pairs(self.chain, self.start, layer, 0, count, self.key)
        pairs.advance(layer)
        return absorbing_events(self.chain, pairs.grams[:, 0])

    def run(self, lag: int, first: int, last: int, behind: Start | None = None) -> Meetings:
        """Run pairs ``first:last`` until they meet; each task runs a range of them.

        The chains behind begin at `behind`, by default at the given start.  Pairs of two starts run
        on the CPU: they are few.  Raises `ResultTooLargeError` if the pairs do not fit in memory.
        """
        if self.backend == "cuda" and behind is None:
            from bnmc.simulation.engine.gpu.pairs import meet_on_devices

            return meet_on_devices(
                self.chain, self.start, lag, first, last, self.key, self.max_layers
            )
        most = TASK_NUMBERS / (2.0 * (lag + 30) * self.chain.width * self.chain.batch)
        arguments = lag, self.max_layers, 1, Pairs, behind
        return joined(self.map(meet, first, last, "coupling", *arguments, most=most))

    def map(
        self, function: Callable[..., T], first: int, last: int, label: str, *arguments: Any,
        most: float = math.inf, layers: int = 0, numbers: int = 0,
    ) -> list[T]:  # fmt: skip
        """Call a function with ranges of the pairs ``first:last``; return the results in order.

        Parameters
        ----------
        function : callable
            Called with chain, start, key, the range, and the arguments.
        first, last : int
        label : str
            The work, for the report of progress.
        *arguments
        most, layers, numbers
            As in `size_of_task`.

        Raises
        ------
        ResultTooLargeError
            If the pairs do not fit in memory.
        """
        size = self.size_of_task(last - first, most, layers, numbers)
        call = partial(_of_range, function, (self.chain, self.start, self.key), arguments)
        shared = Shared("executor", self.parallel.executor, call)
        calls: Calls[T] = Calls(
            shared, [(first + a, first + b) for a, b in ranges(last - first, size)]
        )
        return self.parallel.results(calls, label, "tasks")

    def size_of_task(self, pairs: int, most: float, layers: int = 0, numbers: int = 0) -> int:
        """Return the number of pairs of a task, or raise if the pairs do not fit in memory.

        Parameters
        ----------
        pairs : int
            Number of all pairs.
        most : float
            Largest number of pairs of a task.
        layers : int
            Number of layers whose Gram matrices a task keeps, and evaluates.
        numbers : int
            Number of further float64 numbers that are kept of each pair.

        Raises
        ------
        ResultTooLargeError
            With the size.
        """
        workers = self.parallel.threads
        size = int(max(1, min(most, pairs // (4 * workers))))
        n = self.chain.batch
        matrix = 8 * n * n
        # Each chain of a pair has buffers; the pair has three matrices and a second block of rows.
        block = 8 * memory.padded(n) * STRIDE
        buffers = 2 * memory.work_bytes(n, 1, "float64") + 3 * matrix + block
        # Two Gram matrices in each layer, and what an observable makes of those of one chain.
        of_pair = 2 * matrix + RUNNING + layers * 5 * matrix
        tasks = -(-pairs // size)
        results = pairs * (_RESULTS + 8 * numbers) + _TASK * tasks
        busy = min(workers, tasks) * (buffers + size * of_pair)
        require_memory("chains", 3 * matrix + busy + results)
        return size


def _of_range(
    function: Callable[..., T], pairs: tuple[Any, ...], options: tuple[Any, ...],
    first: int, last: int,
) -> T:  # fmt: skip
    return function(*pairs, first, last, *options)


def not_mixing(
    chain: Chain, meetings: Meetings, max_layers: int, partial: object, context: str = "{}"
) -> errors.NotMixing:
    """Return the error for pairs that did not meet, with the trends of distance and pivot.

    If the mean field is unstable, the message begins with its rate.

    Parameters
    ----------
    chain : Chain
    meetings : Meetings
        With a trace of at least one pair.
    max_layers : int
        Layers after which pairs were given up.
    partial : object
        The result as far as it goes, or None.
    context : str, default "{}"
        The message, with {} in place of the reason.
    """
    count = len(meetings.layers)
    with np.errstate(divide="ignore"):
        exponent, trend = _slope(np.log(meetings.distance)), _slope(np.log10(meetings.pivot))
    lost = np.count_nonzero(meetings.degenerate)
    if lost:
        layer = int(np.median(meetings.degenerate[meetings.degenerate > 0]))
        reason = (
            f"{lost} of {count} pairs lost rank, half of them by layer {layer}: the least "
            f"pivot of their Gram matrices changes by a factor of 10^{trend:.2g} per layer"
        )
    else:
        unmet = np.count_nonzero(meetings.layers < 0)
        reason = (
            f"{unmet} of {count} pairs had not met after {max_layers} layers; driven by "
            f"the same normals they change their distance by e^{exponent:.2g} per layer"
        )
    message = of_instability(chain) + context.format(reason)
    return errors.NotMixing(message, partial, exponent, trend)


def of_instability(chain: Chain) -> str:
    """Return the beginning of a message; "" unless the mean field has an unstable fixed point."""
    try:
        rate = MeanField(chain).fixed_point().rate
    except errors.BnmcError:
        return ""
    if rate <= 1.0:
        return ""
    return (
        f"the fixed point is unstable (rate {rate:.4g} per layer at infinite width), so a larger "
        "width does not help; in this run, "
    )


def _slope(values: Float64Array) -> float:
    """Return the change per layer of the first pair's finite values, by least squares."""
    finite = np.flatnonzero(np.isfinite(values[0]))
    if finite.size < 2:
        return math.nan
    return float(np.polyfit(finite, values[0][finite], 1)[0])


# --- the assumptions that remain


def assumptions(
    waited: NDArray[np.int64],
    horizon: int,
    tail_probability: float | None,
    crossed_starts: Sequence[CrossedStart],
    absorbing_events: Sequence[AbsorbingEvent],
) -> tuple[str, ...]:
    """Return the conditions under which a quasi-stationary law is the stationary law.

    Parameters
    ----------
    waited : (replicates,) ndarray of int
        Waiting times of the pairs, in layers.
    horizon : int
        Layers over which the bound holds without an assumption.
    tail_probability : float or None
        As in `bnmc.mixing.tv_bound`.
    crossed_starts, absorbing_events
        As in `bnmc.mixing.TVBound`.

    Returns
    -------
    tuple of str
    """
    sentences = [_on_rare_events(waited, horizon, tail_probability)]
    if crossed_starts:
        names = "; ".join(_described(crossed) for crossed in crossed_starts)
        sentences.append(
            f"Other starts: pairs met from {names}. A set of states that few of these chains "
            "enter is invisible."
        )
    else:
        sentences.append("Other starts: not coupled, or without meeting.")
    if absorbing_events:
        events = " ".join(
            f"{event.description} Probability per layer: {event.probability:.3g}"
            + (f" ± {event.stderr:.1g}." if event.stderr else ".")
            for event in absorbing_events
        )
        absorbed = absorption_probability(absorbing_events, _SHOWN_HORIZON)
        about = "at most" if all(event.is_bound for event in absorbing_events) else "about"
        sentences.append(
            f"Absorbing states: {events} Within {_SHOWN_HORIZON} layers this happens with "
            f"probability {about} {absorbed:.3g}. The stationary law is that of absorbed networks; "
            "the bound does not reach that far."
        )
    return tuple(sentences)


def absorption_probability(events: Sequence[AbsorbingEvent], layers: int) -> float:
    """Return the probability of an absorbing event within some layers, at most or about.

    Parameters
    ----------
    events : sequence of AbsorbingEvent
    layers : int
        Number of layers, >= 0.

    Returns
    -------
    float
        The number of layers times the sum of the probabilities, each with three standard errors; at
        most 1.  An upper bound if all events are bounds.  Otherwise an estimate: few states may
        dominate the mean over states, so the truth can be several times larger.
    """
    per_layer = sum(event.probability + 3.0 * event.stderr for event in events)
    return min(1.0, layers * per_layer) if layers else 0.0


def _described(crossed: CrossedStart) -> str:
    """Return the name of a start, its numbers of pairs, and their longest waiting time."""
    absorbed = f", {crossed.absorbed} absorbed" if crossed.absorbed else ""
    times = crossed.waiting_times
    return f"{crossed.name} ({len(times)} pairs within {times.max()} layers{absorbed})"


def _on_rare_events(waited: NDArray[np.int64], horizon: int, tail_probability: float | None) -> str:
    """Return the sentence on events that too few pairs show."""
    replicates, longer = len(waited), np.count_nonzero(waited > horizon)
    seen = (
        f"Of {replicates} pairs, {longer} waited longer than {horizon} layers "
        f"(at most {waited.max()})."
    )
    if tail_probability is None:
        return (
            f"Assumed for the stationary law: no well and no absorbing state that a chain enters "
            f"or leaves with a probability below about 1/{replicates} in {horizon} layers, and no "
            f"pairs that wait much longer than those seen. {seen}"
        )
    if tail_probability == 0.0:
        return f"Stated by the caller: no pair waits longer than {horizon} layers. {seen}"
    return (
        f"Stated by the caller: a pair waits longer than {horizon} layers with probability at "
        f"most {tail_probability:g}. Each lag beyond the horizon adds this probability to the "
        f"bound. {seen}"
    )
