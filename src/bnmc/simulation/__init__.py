"""Ensembles of chains in depth: `simulate`, its plan, its workers, its stores, its result.

Data runs one way: arguments become a `Plan`, and a plan becomes segments or tiles. These call the
samplers of `engine`. Recorded values go to sinks or a store, and become a `Trajectory`.
The package may import `chain`, `gram`, `estimate`, `kernels` and lower levels.  Read `run.py`
first, then `plan.py` and `engine/sampler.py`.
"""

from __future__ import annotations

from bnmc.simulation.observables import Distance, Observable, SoftRank
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
