"""The assumptions of a bound of the distance from the stationary law, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bnmc.mixing.absorption import AbsorbingEvent
from bnmc.mixing.coupling import CrossedStart

#: Layers for which the probability of absorption is stated.
_SHOWN_HORIZON = 10_000


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
