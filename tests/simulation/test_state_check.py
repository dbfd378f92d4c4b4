"""States from outside: changed ones raise a typed error that says what is wrong."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import bnmc
from bnmc._kernels.scalar.codes import MOST_LAYERS
from bnmc.errors import ArgumentError
from bnmc.simulation import state_check
from bnmc.simulation.engine.state import State
from bnmc.simulation.state_check import require_sound

RELU = bnmc.Chain(30, 4, "relu")
#: Runs of all samplers and arrays of states.
RUNS = {
    "conditional": (RELU, {}),
    "skip in float32": (bnmc.Chain(30, 4, "relu", skip=0.5), {"dtype": "float32"}),
    "weights": (bnmc.Chain(24, 3, "relu", weights="uniform", skip=1.0), {"inputs": 2}),
    "factor": (bnmc.Chain(30, 3, "linear", norm="none"), {}),
    "without a norm": (bnmc.Chain(24, 3, "relu", norm="none"), {"dtype": "float32"}),
}


def final_state(name):
    chain, options = RUNS[name]
    observables = ["orthogonality_gap"]
    return bnmc.simulate(chain, 3, chains=2, rng=0, observables=observables, **options).final_state


@pytest.fixture(scope="module")
def states():
    return {name: final_state(name) for name in RUNS}


def continued(state, depth=2, **options):
    return bnmc.simulate(
        state.chain, depth, initial=state, observables=["orthogonality_gap"], **options
    )


def changed(state, name, change):
    return replace(state, arrays={**state.arrays, name: change(state.arrays[name].copy())})


def with_nan(array):
    array[(0,) * array.ndim] = np.nan
    return array


def huge(array):
    array[:] = 2**60
    return array


@pytest.mark.parametrize("name", RUNS)
def test_true_states_go_on(name, states):
    state = states[name]
    expected = continued(state)
    sent = pickle.loads(pickle.dumps(state))
    np.testing.assert_array_equal(
        continued(sent)["orthogonality_gap"], expected["orthogonality_gap"]
    )


@pytest.mark.parametrize("name", RUNS)
def test_arrays_that_were_changed_are_refused(name, states):
    state = states[name]
    for array in state.arrays:
        for change in (
            lambda values: values[:, :1] if values.ndim > 1 else values[:, None],
            lambda values: values.astype(np.complex128),
            lambda values: values[:1],
            lambda values: list(values),
            lambda values: values[:0],
            lambda values: None,
            *([with_nan] if state.arrays[array].dtype.kind == "f" else []),
            *([huge] if state.arrays[array].dtype.kind == "i" else []),
        ):
            if state.arrays[array].shape[1:2] == (1,):
                continue
            with pytest.raises(ArgumentError, match=r"initial: .*final_state"):
                continued(changed(state, array, change))
        fewer = {name: values for name, values in state.arrays.items() if name != array}
        if array != "unresolved":
            with pytest.raises(ArgumentError, match="initial"):
                continued(replace(state, arrays=fewer))
    for arrays in ({}, None, [1], {**state.arrays, "more": np.zeros(2)}):
        with pytest.raises(ArgumentError, match="initial"):
            continued(replace(state, arrays=arrays))


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "key": (-1, 2**64, 1.5, "3", None, True),
        "layer": (-1, 2**40, 1.0, None, "x"),
        "inputs": (0, -1, 2.0, "x", 7),
        "dtype": ("float16", None, 3, "complex128"),
        "path": ("factor", "passes", "weighs", None, 3, []),
    }.items(),
)
def test_fields_that_were_changed_are_refused(field, values, states):
    for value in values:
        with pytest.raises(ArgumentError, match="initial"):
            continued(replace(states["conditional"], **{field: value}))


def test_states_are_of_a_layer_that_has_a_number(states):
    state = states["conditional"]
    for layer in (0, MOST_LAYERS - 1):
        there = replace(state, layer=layer)
        require_sound(there)
        assert continued(there, 0).final_state.layer == layer
    with pytest.raises(ArgumentError, match=f"its layer is no integer from 0 to {MOST_LAYERS - 1}"):
        require_sound(replace(state, layer=MOST_LAYERS))


def test_a_state_has_at_most_as_many_chains_as_there_are_numbers_for(states, monkeypatch):
    state = states["conditional"]
    assert state.chains == 2
    monkeypatch.setattr(state_check, "MOST_CHAINS", 2)
    require_sound(state)
    monkeypatch.setattr(state_check, "MOST_CHAINS", 1)
    with pytest.raises(ArgumentError, match="differ in the number of chains, or have none"):
        require_sound(state)


def test_chains_that_do_not_fit_are_refused(states):
    state = states["skip in float32"]
    for chain in (None, "relu", bnmc.Chain(2**40, 4, "relu", skip=0.5)):
        network = chain.repeat(3) if isinstance(chain, bnmc.Chain) else chain
        wrong = replace(state, network=network)
        with pytest.raises(ArgumentError, match="initial"):
            bnmc.simulate(chain if isinstance(chain, bnmc.Chain) else RELU, 2, initial=wrong)


def test_a_state_of_a_gpu_lacks_arrays(states):
    state = states["skip in float32"]
    fewer = {name: array for name, array in state.arrays.items() if name != "unresolved"}
    assert continued(replace(state, arrays=fewer)).complete


def test_parts_of_cpu_and_gpu_are_joined(states):
    """A GPU does not say which chains its rows did not resolve."""
    state = next(each for each in states.values() if "unresolved" in each.arrays)
    of_gpu = replace(state, arrays={n: a for n, a in state.arrays.items() if n != "unresolved"})
    marked = replace(
        state, arrays={**state.arrays, "unresolved": np.ones_like(state.arrays["unresolved"])}
    )
    for parts, expected in (((of_gpu, marked), [0, 0, 1, 1]), ((marked, of_gpu), [1, 1, 0, 0])):
        joined = State.joined(parts)
        assert joined.chains == 4
        assert joined.arrays["unresolved"].tolist() == expected
        assert joined.arrays["gram"].tolist() == 2 * state.arrays["gram"].tolist()
