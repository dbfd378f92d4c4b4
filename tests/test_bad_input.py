"""Invalid input raises a typed error of one line: argument, value and allowed values."""

import itertools
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest import mock

import numpy as np
import pytest
import refusals
from slow_cases import some

from bnmc import Chain, FirstLayer, Observable, simulate
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.numbers import BLOCK
from bnmc._support import machine
from bnmc.errors import (
    ArgumentError,
    BackendError,
    BnmcError,
    NonFiniteError,
    PartialEstimateError,
    ResultTooLargeError,
    SingularGramError,
    UnknownNameError,
    ZeroVarianceError,
)
from bnmc.simulation import memory as memory_of_runs
from bnmc.simulation import run as simulating
from bnmc.simulation import segment, tiles
from bnmc.simulation.engine.sampler import Sampler
from bnmc.testing import LawMismatch

SIGMA = "leaky_relu"
CHAIN = Chain(6, 3, SIGMA)
X = np.random.default_rng(0).normal(size=(6, 3))


def constant_row(row, x=X, value=2.5):
    x = x.copy()
    x[..., row, :] = value
    return x


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fail if a sampler of chains is made: invalid arguments raise before any work."""
    make = Sampler.__init__

    def refuse(sampler, run, *arguments):
        assert run.chains == 0, "work began"
        make(sampler, run, *arguments)  # its buffers are counted and take no memory

    monkeypatch.setattr(Sampler, "__init__", refuse)


def fails(kind, function, *arguments, **options):
    """Call a function, which must raise exactly this type of error; return the error."""
    with pytest.raises(BnmcError) as caught:
        function(*arguments, **options)
    error = caught.value
    assert type(error) is kind
    message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 400
    return error


#: Arguments whose errors come after the estimate of memory, since they need work: functions of the
#: user are evaluated in a layer, arrays are copied and normalized, and results may overflow.
LATER = {
    "backpropagate": {"loss_gradient", "observables"},
    "gradients.tangent_kernel": {"initial"},
    "infinite_width.nngp": {"x"},
    "infinite_width.ntk": {"x"},
    "infinite_width.train_networks": {"learning_rate"},
    "invariant.expectation": {"f"},
    "simulate, a layer": {"chain", "observables"},
    "simulate, five layers": {"chain", "initial", "observables"},
}


def refuse(name, changes, kind, pattern, patch):
    """Require that a call with one wrong argument raises, before it asks for memory."""
    # Matrices too far apart, and singular ones, are found by their eigenvalues.
    needs_spectra = kind is SingularGramError or set(changes) == {"S1", "S2"}
    is_later = kind is not UnknownNameError and LATER.get(name, set()) & set(changes)
    if not is_later and kind is not ResultTooLargeError and not needs_spectra:
        for module in (machine, memory_of_runs):
            patch.setattr(module, "available_memory", lambda: 0)
    error = fails(kind, refusals.call, name, changes)
    assert getattr(error, "argument", "") in str(error)
    assert re.search(pattern, str(error))


#: Wrong arguments of each call.  One test makes all calls of a function: there are 1700.
CASES = {}
for called, wrong in refusals.every_case():
    CASES.setdefault(called, []).append(wrong)


@pytest.mark.parametrize("name", CASES)
def test_one_wrong_argument(name, request):
    if name in ("simulate", "simulate, five layers"):
        request.getfixturevalue("nothing_runs")
    for number, case in enumerate(CASES[name]):
        with pytest.MonkeyPatch.context() as patch:
            try:
                refuse(name, *case, patch)
            except BaseException as error:
                error.add_note(f"{name}, case {number}: {', '.join(case[0])}")
                raise


# Every second call each time.
@pytest.mark.parametrize("name", some(CASES, *[*CASES][::2]))
def test_the_other_arguments_are_valid(name):
    with suppress(PartialEstimateError, LawMismatch):
        refusals.call(name, {})


# --- simulate ----------------------------------------------------------------------------


def test_there_is_no_gpu(nothing_runs):
    with mock.patch("bnmc._kernels.gpu.device.why_not", return_value="no CUDA device"):
        error = fails(BackendError, simulate, CHAIN, 1, backend="cuda")
    assert error.backend == "cuda"
    assert isinstance(error, RuntimeError)
    assert "'cuda'" in str(error)


def test_states():
    """A state determines chains, inputs, dtype, key and sampler; other values raise."""
    # Other tests compile the kernels of this activation too.
    chain = Chain(6, 3, "relu")
    state = simulate(chain, 1, chains=2, rng=0, sampler="conditional").final_state
    single = simulate(chain, 1, rng=0, dtype="float32").final_state
    other = Chain(6, 4, "relu")
    for start, changes, pattern in (
        (state, {"chains": 3}, "chains: got 3, .*2"),
        (state, {"inputs": 1}, "inputs: got 1, .*None"),
        (state, {"dtype": "float32"}, "dtype: got 'float32', .*float64"),
        (state, {"rng": 0}, "rng: got 0, .*None"),
        (state, {"sampler": "weights"}, "sampler: got 'weights', .*conditional"),
        (state, {"chain": other}, r"initial: got Chain\(width=6.*a state of"),
        (state, {"burn_in": 6}, "burn_in: got 6, .*<= 5"),
        (single, {"chains": 2}, "chains: got 2, .*1"),
    ):
        options = {"chain": chain, "depth": 5, "initial": start, **changes}
        assert re.match(pattern, str(fails(ArgumentError, simulate, **options)))
    # Values that agree with the state are allowed.
    again = simulate(chain, 1, chains=2, initial=state, sampler="conditional", dtype="float64")
    assert again.chains == 2


# --- activations ----------------------------------------------------------------------------


def high_only(x):
    return x if x < 4.5 else np.nan


def test_an_activation_that_returns_nan_in_mid_run():
    """The check before the run covers [-4, 4]; the first entry beyond 4.5 stops the chain."""
    chain = Chain(6, 3, high_only, norm="none", gain=1.5)
    run = {"chains": 3, "rng": 0, "sampler": "conditional"}
    error = fails(NonFiniteError, simulate, chain, 30, **run)
    assert 0 <= error.chain < 3
    assert 1 < error.layer <= 30
    assert f"chain {error.chain}, layer {error.layer}" in str(error)
    alone = simulate(chain, error.layer - 1, **{**run, "chains": error.chain + 1})
    assert np.isfinite(alone.gram).all()


# --- results larger than memory -------------------------------------------------------------

TOO_LARGE = {
    "depth": (CHAIN, 10_000_000, {}),
    "depth, of which a list of layers is left": (CHAIN, 2**24, {"reduce": ("layer", "chain")}),
    "chains": (CHAIN, 1, {"chains": 2**27}),
    "chains, reduced": (CHAIN, 1, {"chains": 2**27, "reduce": ("layer", "chain")}),
    "chains, of which a mean is left": (CHAIN, 1, {"chains": 2**20, "reduce": "chain"}),
    "chains, to a store": (CHAIN, 1, {"chains": 2**22, "store": "large.zarr"}),
    "depth 0": (CHAIN, 0, {"chains": 2**21}),
    "depth 0, nothing kept": (CHAIN, 0, {"chains": 2**21, "observables": ()}),
    "cross-Gram": (CHAIN, 1, {"inputs": 600, "observables": "cross_gram"}),
    "rows, copied": (
        Chain(10**7, 3, SIGMA), 1, {"initial": np.broadcast_to(np.arange(3.0), (10**7, 3))}
    ),
    "rows of each chain": (
        CHAIN, 1, {"chains": 10**6, "initial": np.broadcast_to(np.arange(3.0), (10**6, 6, 3))}
    ),
    "batch": (Chain(6, 4_000, SIGMA), 1, {}),
    "batch, reduced": (Chain(6, 4_000, SIGMA), 1, {"reduce": "chain"}),
    "batch, nothing kept": (Chain(6, 4_000, SIGMA), 1, {"observables": ["orthogonality_gap"]}),
    "batch of a first layer": (
        Chain(6, 4_000, SIGMA), 1, {"initial": FirstLayer(np.arange(4_000.0)[None])}
    ),
    "width, weights": (Chain(10**8, 3, SIGMA), 1, {"sampler": "weights"}),
    "width, skip": (Chain(10**8, 3, SIGMA, skip=1.0), 1, {}),
    "inputs": (CHAIN, 1, {"inputs": 1_400}),
    "an observable": (CHAIN, 1, {"observables": Observable(np.trace, (10**9,))}),
    "an observable of a mapping": (CHAIN, 1, {"observables": {"a": (np.trace, (10**9,))}}),
}  # fmt: skip


@pytest.mark.parametrize("what", TOO_LARGE)
def test_results_that_would_not_fit(what, nothing_runs, monkeypatch):
    """The error names the size, and comes before any allocation: here memory has 100 MB."""
    monkeypatch.setattr(memory_of_runs, "available_memory", lambda: 100_000_000)
    chain, depth, options = TOO_LARGE[what]
    tracemalloc.start()
    try:
        error = fails(ResultTooLargeError, simulate, chain, depth, rng=0, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30_000_000
    assert error.requested > error.available == 100_000_000
    assert isinstance(error, MemoryError)
    assert "95.4 MiB" in str(error)


# --- rows without variance ------------------------------------------------------------------


def place(error):
    return error.chain, error.layer, error.row


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_constant_rows_of_the_input(sampler, nothing_runs):
    error = fails(ZeroVarianceError, simulate, CHAIN, 1, initial=constant_row(4), sampler=sampler)
    assert place(error) == (None, None, 4)
    assert "row 4" in str(error)
    assert isinstance(error, ValueError)
    initial_of_each = np.stack([X, X, constant_row(2), constant_row(1)])
    error = fails(ZeroVarianceError, simulate, CHAIN, 1, initial=initial_of_each, sampler=sampler)
    assert place(error) == (2, 0, 2)
    inputs = np.stack([X, constant_row(3)])
    error = fails(ZeroVarianceError, simulate, CHAIN, 1, initial=inputs, inputs=2, sampler=sampler)
    assert place(error) == (None, None, 3)


def test_zero_rows_of_the_input_without_centring(nothing_runs):
    chain = Chain(6, 3, SIGMA, norm="batch-uncentred")
    error = fails(ZeroVarianceError, simulate, chain, 1, initial=constant_row(5, value=0.0))
    assert place(error) == (None, None, 5)
    for zero in (np.zeros((4, 3)), np.zeros((4, 3), int)):
        error = fails(ZeroVarianceError, simulate, chain, 1, initial=FirstLayer(zero))
        assert error.layer is None


def test_equal_samples_of_a_first_layer(nothing_runs):
    for x in (np.ones((4, 3)), [[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]]):
        error = fails(ZeroVarianceError, simulate, CHAIN, 1, initial=FirstLayer(x))
        assert error.layer is None


def test_constant_rows_that_do_no_harm():
    for chain in (
        Chain(6, 3, SIGMA, norm="none"),
        Chain(6, 3, SIGMA, norm="batch-uncentred"),
        Chain(6, 3, SIGMA, eps=1e-5),
    ):
        run = simulate(chain, 3, initial=constant_row(4), rng=0)
        assert np.isfinite(run.gram).all()


def test_signs_that_cancel():
    """Rademacher weights of a narrow layer: the error names the chain, the layer and the row."""
    seen = set()
    for seed in range(40):
        matrices = []

        def signs(generator, shape, matrices=matrices):
            matrices.append(generator.choice([-1.0, 1.0], shape))
            return matrices[-1]

        chain = Chain(4, 2, "linear", weights=signs)
        run = {"initial": np.array([[1.0, -1.0]] * 4), "rng": seed, "threads": 1}
        with suppress(ZeroVarianceError):
            simulate(chain, 3, **run)
            continue
        error = fails(ZeroVarianceError, simulate, chain, 3, **run)
        # All rows are ±(1, -1), so a row has no variance if its signs cancel.
        x = np.ones(4)
        for weights in matrices[: error.layer - 1]:
            assert (weights @ x != 0).all()
            x = np.sign(weights @ x)
        zero = np.flatnonzero(matrices[error.layer - 1] @ x == 0)
        assert place(error) == (0, error.layer, zero[0])
        seen.add((error.layer, error.row))
    assert len(seen) > 3


#: Of eight chains the sixth and seventh stop.
STOPS, COUNT = 5, 8


def starts(width, batch, dtype=np.float64):
    """A batch for each chain, in general position."""
    return np.random.default_rng(5).normal(size=(COUNT, width, batch)).astype(dtype)


def without_variance():
    """Rows ±(1, -1, 1, -1): after the absolute value all samples are equal."""
    x = starts(40, 4)
    x[STOPS : STOPS + 2] = np.outer(np.ones(40), [1.0, -1.0, 1.0, -1.0])
    return x


def scaled(factor, width=6, batch=3):
    """Positive entries, so that relu keeps them."""
    x = np.abs(starts(width, batch))
    x[STOPS : STOPS + 2] *= factor
    return x


def normals(generator, shape):
    return generator.standard_normal(shape)


FLAT = {"initial": without_variance(), "depth": 2}
STOPPED = {
    "no variance": (Chain(40, 4, "abs"), FLAT, ZeroVarianceError, 1),
    "no variance, drawn weights": (
        Chain(40, 4, "abs"), {**FLAT, "sampler": "weights"}, ZeroVarianceError, 1,
    ),
    "no variance, float32": (
        Chain(40, 4, "abs"), {**FLAT, "dtype": "float32"}, ZeroVarianceError, 1,
    ),
    **{f"no variance, {name}": (Chain(40, 4, "abs", weights=law), FLAT, ZeroVarianceError, 1)
       for name, law in (("uniform weights", "uniform"), ("weights of a user", normals))},
    "the start overflows": (
        Chain(6, 3, "relu", norm="none"), {"initial": scaled(1e200)}, NonFiniteError, 0,
    ),
    "the start overflows float32": (
        Chain(6, 3, "tanh", norm="none", skip=0.5),
        {"initial": scaled(1e39), "dtype": "float32"}, NonFiniteError, 0,
    ),
    "the recorded matrix overflows": (
        Chain(6, 3, "relu", norm="none"), {"initial": scaled(1e151)}, NonFiniteError, 0,
    ),
    "a state is too small": (
        Chain(6, 3, "tanh", norm="none"), {"initial": scaled(1e-146)}, NonFiniteError, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["one thread", "three threads", "parts of 2", "parts of 4"])
@pytest.mark.parametrize("name", STOPPED)
def test_the_chain_that_stops_is_named_wherever_it_is(name, way, monkeypatch):
    """In whatever part of the run it is, and whichever thread has it."""
    chain, options, kind, layer = STOPPED[name]
    options = {"depth": 1, "rng": 0, "chains": COUNT, **options}
    if way.startswith("parts"):
        part = int(way[-1])
        monkeypatch.setattr(
            simulating,
            "grid_of",
            lambda run, *_: tiles.Grid.of_slots(run.chains, run.recorded, part, 2),
        )
    else:
        options["threads"] = 1 if way == "one thread" else 3
    with ThreadPoolExecutor(1) as pool:
        if way.startswith("parts"):
            options["executor"] = pool
        error = fails(kind, simulate, chain, **options)
    assert (error.chain, error.layer) == (STOPS, layer)
    assert getattr(error, "row", 0) == 0
    assert f"chain {STOPS}" in str(error)


def test_the_chain_that_stops_is_named_where_threads_share_a_layer(monkeypatch, tmp_path):
    """One chain in each part of a store, and several threads for each part."""
    chain, options, kind, layer = STOPPED["no variance"]
    wide = np.repeat(options["initial"], 13, axis=1)
    wide[STOPS + 1] = wide[0]  # of two parts, the one that ends first would be named
    chain = Chain(wide.shape[1], 4, "abs")
    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    monkeypatch.setattr(memory, "panel_rows", lambda width, columns: BLOCK)
    run = {"initial": wide, "rng": 0, "chains": COUNT}
    for where in ({"threads": 3 * COUNT}, {"threads": 4 * COUNT, "store": tmp_path / "run.zarr"}):
        error = fails(kind, simulate, chain, 2, **run, **where)
        assert (error.chain, error.layer, error.row) == (STOPS, layer, 0)


# --- numbers that leave the range -----------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_overflow_names_chain_and_layer(sampler, dtype):
    """A layer may square numbers above the root of the largest float."""
    run = {"chains": 2, "rng": 0, "sampler": sampler, "dtype": dtype, "threads": 1}
    error = fails(NonFiniteError, simulate, Chain(20, 3, SIGMA, norm="none", gain=1e200), 9, **run)
    assert isinstance(error, ArithmeticError)
    assert (error.chain, error.layer) == (0, 1)
    assert "chain 0, layer 1" in str(error)


def test_an_overflow_of_the_input():
    chain = Chain(6, 3, "gelu", norm="none")
    for initial in (1e200 * np.abs(X), np.stack([np.abs(X), 1e200 * np.abs(X)])):
        error = fails(NonFiniteError, simulate, chain, 1, initial=initial, rng=0)
        assert error.chain == (None if initial.ndim == 2 else 1)


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
def test_large_and_small_input_is_no_overflow(norm):
    x = X / np.abs(X).max()
    expected = simulate(Chain(6, 3, SIGMA, norm=norm), 0, initial=x, rng=0).gram
    for scale in (1e300, 1.7e308, 1e-300):
        run = simulate(Chain(6, 3, SIGMA, norm=norm), 0, initial=scale * x, rng=0)
        np.testing.assert_allclose(run.gram, expected, rtol=1e-12, atol=1e-13)
        # Relative to such a variance, eps is negligible or dominates.
        run = simulate(Chain(6, 3, SIGMA, norm=norm, eps=1e-5), 0, initial=scale * x, rng=0)
        limit = expected if scale > 1 else np.zeros_like(expected)
        np.testing.assert_allclose(run.gram, limit, rtol=1e-12, atol=1e-13)


@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
def test_float32_that_cannot_hold_the_input():
    huge = {"rng": 0, "dtype": "float32", "initial": 2.0**200 * X}
    chain = Chain(6, 3, "gelu", norm="none")
    fails(NonFiniteError, simulate, chain, 1, sampler="weights", **huge)
    # The scale of a homogeneous chain is split off.
    chain = Chain(6, 3, "leaky_relu", norm="none")
    for sampler in ("conditional", "weights"):
        large = simulate(chain, 1, sampler=sampler, **huge).gram
        small = simulate(chain, 1, sampler=sampler, **{**huge, "initial": X}).gram
        np.testing.assert_array_equal(large, 2.0**400 * small)


def test_a_scale_beyond_float64_is_for_the_log_scale():
    chain = Chain(6, 3, "linear", norm="none", gain=100.0)
    error = fails(NonFiniteError, simulate, chain, 200, rng=0)
    assert "log_scale" in str(error)
    run = simulate(chain, 200, rng=0, observables=["scaled_gram", "log_scale"])
    assert np.isfinite(run.scaled_gram).all()
    # exp(690) is the limit, with room for sums of entries.
    assert error.layer == np.argmax(run.log_scale[0] > 690)
    assert error.layer > 0
    assert run.log_scale[0, -1] > 1000


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("activation", ["linear", SIGMA])
def test_a_zero_input_stays_zero_without_normalization(activation, sampler):
    chain = Chain(6, 3, activation, norm="none")
    run = simulate(chain, 3, initial=np.zeros((6, 3)), rng=0, sampler=sampler)
    assert not run.gram.any()


# --- user functions -------------------------------------------------------------


class Mine(Exception):
    pass


def test_errors_of_user_functions_come_through():
    """Errors of user functions pass unchanged, from every thread."""

    def fail(*arguments):
        raise Mine("here")

    for threads, options in itertools.product((1, 2), ({"observables": {"a": fail}}, {})):
        chain = Chain(6, 3, SIGMA, weights="gaussian" if options else fail)
        with pytest.raises(Mine, match="here"):
            simulate(chain, 2, chains=4, rng=0, threads=threads, **options)
