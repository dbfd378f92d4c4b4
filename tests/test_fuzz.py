"""Hostile calls, files, stores, pickles and command lines give a result or a `BnmcError`.

``pytest tests/reliability -k calls --calls=100000`` makes more of them, in processes.
"""

import importlib
import inspect
import itertools
import os
import pickle
import time

import fuzzing
import numpy as np
import pytest
from hypothesis import settings
from slow_cases import some

import bnmc
from bnmc import testing
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.cli import inputs
from bnmc.errors import ArgumentError, BnmcError
from bnmc.simulation import export

#: Number of calls of each group.
COUNTS = {
    "functions": 600, "runs": 200, "files": 400, "written": 60, "stores": 25, "pickles": 120,
    "command line": 20,
}  # fmt: skip
#: Longest time of a call, in seconds, with the time to compile kernels.
LONGEST = fuzzing.LONGEST + 60.0
MODULES = (
    "gradients", "gram", "mixing", "invariant", "random_matrix", "regularity", "mean_field",
    "infinite_width", "testing", "training",
    "bounds.bridging", "bounds.gaussian", "bounds.limits", "bounds.orthogonalizes",
    "bounds.rank_collapse",
)  # fmt: skip
#: Functions without fuzzing, since they draw, measure or compile; their own tests call them.  One
#: has another name.
ELSEWHERE = {
    "gradients.backpropagate", "infinite_width.train_networks", "mean_field.plot_stability",
    "testing.roofline", "training.train", "warmup"
}  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize("group", COUNTS)
def test_hostile_calls(group, tmp_path):
    ends = set()
    for seed in range(COUNTS[group]):
        begun = time.perf_counter()
        ends.add(fuzzing.fuzz(group, seed, tmp_path))
        assert time.perf_counter() - begun < LONGEST, (group, seed)
    # If all calls were refused, the test would check little; if none were, checks would be missing.
    assert ends == {"returned", "refused"}


def test_every_public_function_is_called():
    called = {name.partition(",")[0] for name in (*fuzzing.FUNCTIONS, *fuzzing.RUNS)}
    for name in bnmc.__all__:
        if inspect.isfunction(getattr(bnmc, name)):
            assert name in called | ELSEWHERE
    for name in MODULES:
        module = importlib.import_module(f"bnmc.{name}")
        functions = [
            function for function in module.__all__ if inspect.isfunction(getattr(module, function))
        ]
        missing = {f"{name}.{function}" for function in functions} - called - ELSEWHERE
        assert not missing


#: Largest entries of arguments: squares and products of them leave the range of float64.
EXTREMES = (1e-320, 1e-160, 1e100, 1e154, 1e308)


def numbers_among(label):
    """Return the valid arguments of a call that are floating-point numbers, as arrays."""
    valid = fuzzing.valid_call(label)[1]
    arrays = {name: np.asarray(given) for name, given in valid.items() if np.ndim(given) <= 2}
    return {name: array for name, array in arrays.items() if array.dtype == float and array.size}


# Every second function each time.
@pytest.mark.parametrize(
    "label", some(fuzzing.FUNCTIONS | fuzzing.RUNS, *[*fuzzing.FUNCTIONS, *fuzzing.RUNS][::2])
)
@pytest.mark.filterwarnings("ignore")
def test_entries_at_the_ends_of_float64_under_any_error_state(label):
    """No result is NaN, and none is infinite unless the documentation says so.

    What NumPy does at an underflow, or any other floating-point error, is the caller's choice.
    """
    (call, valid), numbers = fuzzing.valid_call(label), numbers_among(label)
    units = {name: array / np.abs(array).max() for name, array in numbers.items()}
    places = {*((name,) for name in units), tuple(units)} - {()}
    # Most functions that simulate normalize their input first.
    extremes = EXTREMES if label in fuzzing.FUNCTIONS else (1e-160, 1e154)
    for names, extreme in [((), None), *itertools.product(places, extremes)]:
        arguments = valid | {name: (extreme * units[name])[()] for name in names}
        try:
            with np.errstate(all="raise"):
                state = np.geterr()
                result = call(**arguments)
                assert np.geterr() == state
        except (BnmcError, testing.LawMismatch):
            continue
        assert not fuzzing.has_nan(result), arguments
        documented = f"{inspect.getdoc(call)} {inspect.getdoc(type(result))}"
        assert not (names and fuzzing.has_infinity(result)) or "infinite" in documented, arguments


@pytest.mark.parametrize("activation", BUILTIN)
def test_methods_of_results_under_any_error_state(activation):
    with np.errstate(all="raise"):
        point = bnmc.MeanField(bnmc.Chain(100, 4, activation)).fixed_point()
        assert point.stable
        assert str(point.modes)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: np.float64(1e300) ** 2, "RuntimeWarning"),
        (lambda: float("nan"), "NaN"),
        (lambda: np.array([1.0, np.nan]), "NaN"),
        (lambda: exec("raise BnmcError('')", {"BnmcError": BnmcError}), "BnmcError"),
    ],
)
def test_what_is_a_finding(call, reason, monkeypatch, tmp_path):
    monkeypatch.setattr(fuzzing, "FUNCTIONS", {"broken": (1, call, {})})
    with pytest.raises(fuzzing.Finding, match=rf"fuzz\('functions', 0\): broken.*{reason}"):
        fuzzing.fuzz("functions", 0, tmp_path)


# --- nothing is unpickled -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("form", ["array", "pickle"])
def test_payloads_are_not_unpickled(tmp_path, suffix, form):
    mark = tmp_path / "mark"
    payload = np.array([fuzzing.Payload(mark)], dtype=object)
    path = tmp_path / f"payload{suffix}"
    with path.open("wb") as file:
        if form == "pickle":
            pickle.dump(payload, file)
        elif suffix == ".npy":
            np.save(file, payload, allow_pickle=True)
        else:
            np.savez(file, x=payload)
    for read in (inputs.read_input, inputs.read_states):
        with pytest.raises(ArgumentError, match="undamaged"):
            read(path)
    assert not mark.exists()
    np.load(path, allow_pickle=True) if suffix == ".npy" else None
    if suffix == ".npz" and form == "array":
        np.load(path, allow_pickle=True)["x"]
    if suffix == ".npz" and form == "pickle":
        pickle.loads(path.read_bytes())
    assert mark.exists()  # whoever unpickles it is told so


# --- what calls like these have found -------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: bnmc.simulate(fuzzing.chain(), 1, rng=fuzzing.itself()),  # NumPy dies of it
        lambda: bnmc.Chain(fuzzing.Raising(ValueError), 3),  # has no text
        lambda: bnmc.FirstLayer(fuzzing.Raising(RuntimeError)),
        lambda: bnmc.gram.gram(fuzzing.Raising(OverflowError)),
        lambda: bnmc.gram.soft_rank(np.eye(2), np.timedelta64("NaT"), width=2),
        lambda: bnmc.gram.relative_deviation(1e-3 * np.eye(2), np.full((2, 2), 1e308)),
        lambda: bnmc.Chain.bn_residual(-1, 3, gamma=1.0),
        lambda: bnmc.Activation.named(fuzzing.Text("rleu")),
        lambda: bnmc.Activation(abs, kinks=np.array(0.0)),
        lambda: bnmc.random_matrix.MarchenkoPastur(0.5).rvs(10**400),
        lambda: bnmc.Estimate.from_samples([1e300, -1e300], method="mean"),
        lambda: export.write_run(fuzzing.trajectory(), None),
        lambda: inputs.read_input("a\x00.npy"),
    ],
)
def test_what_was_found_is_refused(call):
    with pytest.raises(BnmcError):
        call()


def test_layers_of_a_store_are_mended(tmp_path):
    run = fuzzing.stored(tmp_path / "run.zarr")
    (tmp_path / "run.zarr" / "layer" / "c" / "0").write_bytes(b"damaged")
    again = fuzzing.stored(tmp_path / "run.zarr")
    np.testing.assert_array_equal(again.to_xarray()["layer"], run.layers)


def test_the_last_state_of_a_store_is_made_again(tmp_path):
    run = fuzzing.stored(tmp_path / "run.zarr")
    for state in (tmp_path / "run.zarr" / "progress").glob("state-*"):
        state.write_bytes(b"damaged")
    again = fuzzing.stored(tmp_path / "run.zarr")
    for name, array in run.final_state.arrays.items():
        np.testing.assert_array_equal(again.final_state.arrays[name], array)


def test_a_period_beyond_64_bits(tmp_path):
    run = bnmc.simulate(fuzzing.chain(), 4, every=2**70, rng=0)
    assert run.layers.tolist() == [0, 4]


def test_examples_of_hypothesis_are_the_same_in_every_run_but_those_of_make_fuzz():
    assert settings().derandomize == (os.environ.get("BNMC_FUZZ") != "1")
    assert settings().deadline is None
