"""The check of a state that comes from outside: from the caller, from a pickle or from a store."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bnmc._kernels.scalar.codes import MOST_CHAINS, MOST_LAYERS
from bnmc._support.arguments import Key
from bnmc.chain.chain import Network, layer_at
from bnmc.errors import ArgumentError, BnmcError
from bnmc.simulation.engine.state import Field, State
from bnmc.simulation.runs import Run, choose_sampler

#: Arrays that the state of a GPU lacks.
_OPTIONAL = {"unresolved"}

#: Largest magnitude of a power of two that a state splits off.
_MOST_EXPONENT = 2**52


def require_sound(state: State) -> None:
    """Raise `ArgumentError` about `initial` unless a state is one that a run may continue."""
    problem = _problem_of_fields(state) or problem_of(state, Run.of_state(state).layout)
    if problem is not None:
        raise ArgumentError("initial", "a state", "the final_state of a run", problem)


def problem_of(state: State, layout: Mapping[str, Field]) -> str | None:
    """Return why the arrays of a state are not those of its sampler, or None if they are."""
    arrays, width = state.arrays, layer_at(state.network, state.layer).linear.width
    missing, foreign = layout.keys() - arrays.keys() - _OPTIONAL, arrays.keys() - layout.keys()
    if missing or foreign - _OPTIONAL:
        return f"its arrays are {', '.join(map(str, arrays))}, not {', '.join(layout)}"
    for name, (shape, dtype) in layout.items():
        array = arrays.get(name)
        if array is None:
            continue
        if array.shape[1:] != shape or array.dtype != dtype:
            return f"its array {name} has {array.dtype} of shape {array.shape}, not {dtype} {shape}"
        # Without the padding after rows.
        rows = array[..., :width] if array.ndim >= 3 else array
        if array.dtype.kind == "f" and not np.isfinite(rows).all():
            return f"its array {name} is not finite"
        if array.dtype.kind == "i" and array.size and np.abs(array).max() > _MOST_EXPONENT:
            return f"its array {name} has a number of more than 52 bits"
    return None


def _problem_of_fields(state: State) -> str | None:
    """Return the defect of the fields of a state, apart from the contents of its arrays."""
    network, arrays, inputs = state.network, state.arrays, state.inputs
    if type(state.key) not in (int, Key) or not 0 <= state.key < 2**64:
        return "its key is no integer of 64 bits"
    if type(state.layer) is not int or not 0 <= state.layer < MOST_LAYERS:
        return f"its layer is no integer from 0 to {MOST_LAYERS - 1}"
    if inputs is not None and (type(inputs) is not int or not 1 <= inputs <= MOST_CHAINS):
        return "its number of inputs is neither None nor a positive integer"
    if state.dtype not in ("float64", "float32"):
        return "its dtype is neither 'float64' nor 'float32'"
    if not isinstance(network, Network):
        return "its network is no bnmc.Network"
    if not isinstance(state.path, str) or state.path not in _paths(network, inputs, state.dtype):
        return f"its sampler, {state.path!r}, does not take its network"
    if not isinstance(arrays, Mapping) or not arrays:
        return "its arrays are no mapping"
    if not all(type(array) is np.ndarray and array.ndim for array in arrays.values()):
        return "its arrays are no arrays of chains"
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1 or not 1 <= lengths.pop() <= MOST_CHAINS:
        return "its arrays differ in the number of chains, or have none"
    return None


def _paths(network: Network, inputs: int | None, dtype: str) -> set[str]:
    """Return the samplers that take a network."""
    paths = set()
    for wanted in ("auto", "conditional", "weights"):
        try:
            paths.add(choose_sampler(network, inputs, wanted, dtype))
        except BnmcError:
            continue
    return paths
