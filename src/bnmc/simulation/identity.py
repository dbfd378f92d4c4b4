"""The identity of a run: everything that determines its values, and one digest of it.

Two runs of one identity have the same bits.  The identity is the same in every process: functions
enter by their code and objects by their state, never by an address; see `chain/code_digest.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnmc._support.version import versions
from bnmc.chain.chain import Chain
from bnmc.chain.code_digest import digest_of
from bnmc.errors import ArgumentTypeError
from bnmc.simulation.engine.state import State
from bnmc.simulation.runs import Run
from bnmc.simulation.tiles import Origin

#: Facts about a run that its `Trajectory.attributes` contain.
_FROM_ATTRIBUTES = (
    "bnmc_version", "cpu", "chain", "sampler", "dtype", "backend", "chains", "inputs", "key",
)  # fmt: skip


def run_facts(run: Run, start: Origin, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return everything that determines the values of a run, each fact by its name.

    Functions and arrays enter by digests.

    Parameters
    ----------
    run : Run
    start : Covariance, Representation or State
    attributes : mapping
        `Trajectory.attributes` of the run.

    Raises
    ------
    ArgumentTypeError
        If a function of the user refers to something that other processes cannot compare.
    """
    facts = {name: str(attributes[name]) for name in _FROM_ATTRIBUTES}
    return facts | chain_facts(run.chain) | {
        "start": start_digest(start),
        "first_layer": str(run.start_layer),
        "depth": str(run.depth),
        "burn_in": str(run.recorded.first - run.start_layer),
        "every": str(run.recorded.every),
        "observables": ", ".join(
            f"{each.name} ({argument_digest('observables', each, each.content)[:32]})"
            for each in run.observables
        ),
    }  # fmt: skip


def chain_facts(chain: Chain) -> dict[str, str]:
    """Return the facts about a chain that its `repr` does not have, and the versions of packages.

    Raises
    ------
    ArgumentTypeError
        If a function of the chain refers to something that other processes cannot compare.
    """
    return {
        "versions": versions(),
        "activation_digest": chain.activation.digest,
        "weights_digest": argument_digest("weights", chain.weights, chain.weights),
        "chain_digest": argument_digest(
            "chain", chain, (type(chain), chain.normalization, chain.covariance)
        ),
    }


def argument_digest(name: str, argument: object, value: object) -> str:
    """Return the digest of a value that belongs to an argument, or raise about the argument."""
    if isinstance(value, str):
        return value
    try:
        return digest_of(value)
    except TypeError as error:
        allowed = "what another process can compare, as a store needs"
        hint = (
            f"{error}; refer to numbers, arrays and functions, "
            "or leave other objects out in __getstate__"
        )
        raise ArgumentTypeError(name, argument, allowed, hint) from error


def start_digest(start: Origin) -> str:
    """Return the digest of a start."""
    named = start.arrays if isinstance(start, State) else vars(start)
    return digest_of((type(start).__name__, sorted(named.items())))
