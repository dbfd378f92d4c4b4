"""Ensembles of chains in depth: `simulate`, its workers, its stores, its result.

Data runs one way: arguments become a `Run` and a start, and a run becomes tiles, parts of chains
times blocks of layers.  These call the samplers of `engine`.  Recorded values go to sinks or a
store, and become a `Trajectory`.
The package may import `chain`, `gram`, `estimate`, `kernels` and lower levels.  Read `run.py`
first, then `runs.py`, `tiles.py` and `engine/sampler.py`.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc._support.keywords import explain_calls
from bnmc.simulation.observables import Distance, Observable, SoftRank
from bnmc.simulation.run import drawn_biases as drawn_biases
from bnmc.simulation.run import drawn_weights, simulate
from bnmc.simulation.trajectory import Moments, Trajectory

__all__ = [
    "Distance",
    "Moments",
    "Observable",
    "SoftRank",
    "Trajectory",
    "drawn_weights",
    "simulate",
]

# Observables are for runs, which call them often.
explain_calls(Distance, Observable, SoftRank)
make_public(__name__, "Trajectory", "drawn_biases", "drawn_weights", "simulate")
