"""TODO-DOC bnmc.mixing.meetings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import choice, integer
from bnmc._support.keys import draw_key
from bnmc._support.machine import available_processors
from bnmc._support.progress import Reporter, as_progress
from bnmc._support.workers import as_executor, ranges, run_tasks
from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, Representation, prepare
from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError, NotMixing
from bnmc.mixing.meeting_bound import TVBound
from bnmc.simulation.engine.pairs import Meetings, joined, meet, require_coupling

__all__ = ["MOST_DEPTH", "PILOT_REPLICATES", "Couplings"]

#: Pairs of the pilot run, and the layers by which one is ahead in it.
PILOT_REPLICATES, PILOT_LAG = 32, 16

#: The share of the pilot's pairs that have met within the lag, counted from when they are coupled.
LAG_QUANTILE = 0.9

#: The last layer a bound may be asked for: the result has a few numbers for each.
MOST_DEPTH = 2**20

#: What a task of one thread should take, in layers times numbers of a layer.
TASK_NUMBERS = 5e8


class Couplings:
    """Coupled pairs of a chain, whose every argument has been checked."""

    def __init__(
        self,
        chain: Chain,
        initial: Any,
        rng: Any,
        max_layers: int,
        executor: object,
        progress: object,
        backend: str = "cpu",
    ) -> None:
        self.backend = _usable(choice("backend", backend, ("cpu", "cuda")), executor)
        if not isinstance(chain, Chain):
            raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
        require_coupling(chain)
        self.chain = chain
        self.max_layers = integer("max_layers", max_layers, low=1, high=2**30)
        self.executor = as_executor(executor)
        self.progress = as_progress(progress)
        chain.activation.check()
        self.start: Covariance | Representation = prepare(chain, initial, 1, None)
        self.key = draw_key(rng)

    def choose_lag(self, first: int) -> int:
        """Let a few pairs meet that are not among the replicates, and look how long that takes."""
        meetings = self.run(PILOT_LAG, first, first + PILOT_REPLICATES)
        apart = meetings.layers < 0
        waited = np.sort(np.where(apart, math.inf, meetings.layers - PILOT_LAG))
        lag = waited[math.ceil(LAG_QUANTILE * (PILOT_REPLICATES - 1))]
        if lag == math.inf:
            raise self.finding(meetings, None)
        return int(lag)

    def run(self, lag: int, first: int, last: int) -> Meetings:
        """Let pairs first:last meet, a range of them a task."""
        if self.backend == "cuda":
            from bnmc.simulation.engine.gpu.pairs import meet_on_devices

            return meet_on_devices(
                self.chain, self.start, lag, first, last, self.key, self.max_layers
            )
        processors = available_processors()
        numbers = 2.0 * (lag + 30) * self.chain.width * self.chain.batch
        size = int(np.clip(TASK_NUMBERS / numbers, 1, max(1, (last - first) // (4 * processors))))
        tasks = [
            (self.chain, self.start, lag, first + a, first + b, self.key, self.max_layers,
             min(1, b - a) if a == 0 else 0)
            for a, b in ranges(last - first, size)
        ]  # fmt: skip
        with Reporter(self.progress, "coupling", "tasks") as report:
            return joined(run_tasks(meet, tasks, self.executor, processors, report))

    def finding(self, meetings: Meetings, partial: TVBound | None) -> NotMixing:
        """Return the error that says why pairs did not meet."""
        count = len(meetings.layers)
        with np.errstate(divide="ignore"):
            exponent, trend = _slope(np.log(meetings.distance)), _slope(np.log10(meetings.pivot))
        lost = np.count_nonzero(meetings.degenerate)
        if lost:
            layer = int(np.median(meetings.degenerate[meetings.degenerate > 0]))
            reason = (
                f"{lost} of {count} pairs lost rank, half of them by layer {layer}: the least "
                f"pivot of their Gram matrices changes by a factor of 10^{trend:.2g} a layer"
            )
        else:
            unmet = np.count_nonzero(meetings.layers < 0)
            reason = (
                f"{unmet} of {count} pairs had not met after {self.max_layers} layers; driven by "
                f"the same normals they change their distance by e^{exponent:.2g} a layer"
            )
        return NotMixing(reason, partial, exponent, trend)


def _usable(backend: str, executor: object) -> str:
    """Return a backend that can run here, or raise what is missing."""
    if backend == "cuda":
        if executor is not None:
            raise ArgumentError("executor", executor, "None with backend='cuda'")
        from bnmc._kernels.gpu.device import why_not

        reason = why_not()
        if reason is not None:
            raise BackendError("cuda", reason)
    return backend


def _slope(values: NDArray[np.float64]) -> float:
    """Mean change by a layer of the first pair's values, where they are finite."""
    kept = np.flatnonzero(np.isfinite(values[0]))
    if kept.size < 2:
        return math.nan
    return float(np.polyfit(kept, values[0][kept], 1)[0])
