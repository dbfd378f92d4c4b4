"""The typed errors: what they say, what they are, and that they survive a process boundary."""

import copy
import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from bnmc import errors

# One of each, with the message it must carry and the built-in errors it must be.
EXAMPLES = [
    (
        errors.BnmcError("something is wrong"),
        "something is wrong",
        (Exception,),
    ),
    (
        errors.ArgumentError("width", 0, "an integer >= 1"),
        "width: got 0, allowed: an integer >= 1",
        (ValueError,),
    ),
    (
        errors.ArgumentError("batch", 1, "an integer >= 2", "centring needs two samples"),
        "batch: got 1, allowed: an integer >= 2 (centring needs two samples)",
        (ValueError,),
    ),
    (
        errors.ArgumentTypeError("width", "10", "an integer"),
        "width: got '10', allowed: an integer",
        (TypeError,),
    ),
    (
        errors.UnknownNameError("activation", "ReUL", ["linear", "relu", "tanh"]),
        "activation: got 'ReUL', allowed: linear, relu, tanh (did you mean 'relu'?)",
        (errors.ArgumentError, ValueError),
    ),
    (
        errors.ResultTooLargeError("depth", 3 << 39, 200 << 20, "use every=100"),
        "depth: the result needs 1.5 TiB, available: 200.0 MiB (use every=100)",
        (errors.ArgumentError, ValueError, MemoryError),
    ),
    (
        errors.ZeroVarianceError(3, 12, 7),
        "zero variance in chain 3, layer 12, row 7: the row cannot be normalized",
        (ValueError,),
    ),
    (
        errors.ZeroVarianceError(None, None, 7),
        "zero variance in the input, row 7: the row cannot be normalized; rows are features, "
        "counted from 0",
        (ValueError,),
    ),
    (
        errors.NonFiniteError(0, 12, "Gram matrix"),
        "Gram matrix no longer finite in chain 0, layer 12",
        (ArithmeticError,),
    ),
    (
        errors.SingularGramError("G", (2, 0), 1.25e-18),
        "G[2, 0]: singular Gram matrix, smallest over largest eigenvalue is 1.25e-18",
        (ValueError,),
    ),
    (
        errors.SingularGramError("G", (), 0.0),
        "G: singular Gram matrix, smallest over largest eigenvalue is 0",
        (ValueError,),
    ),
    (
        errors.MissingExtraError("matplotlib", "plot"),
        "matplotlib is not installed; the extra 'plot' installs it: pip install \"bnmc[plot]\", or "
        'pip install ".[plot]" in a checkout',
        (ImportError,),
    ),
    (
        errors.BackendError("cuda", "no device found"),
        "backend 'cuda': no device found",
        (RuntimeError,),
    ),
    (
        errors.PartialEstimateError("too few layers", {"value": 0.8, "layers": (0, 1)}),
        "too few layers",
        (Exception,),
    ),
    (
        errors.WorkersLostError(6, "a process was terminated abruptly"),
        "a task was lost 6 times: a process was terminated abruptly",
        (RuntimeError,),
    ),
    (
        errors.StoreError("run.zarr", "No space left on device"),
        "store 'run.zarr': No space left on device",
        (OSError,),
    ),
    (
        errors.StoreInUseError("run.zarr"),
        "store 'run.zarr': another run is writing it",
        (errors.StoreError, OSError),
    ),
    (
        errors.StoreLockError("run.zarr", "No locks available"),
        "store 'run.zarr': its file system cannot lock files (No locks available); use another one",
        (errors.StoreError, OSError),
    ),
    (
        errors.StoreReplacedError("run.zarr"),
        "store 'run.zarr': it was removed or replaced while this run wrote it",
        (errors.StoreError, OSError),
    ),
    (
        errors.StoreMismatchError("run.zarr", "width", "100", "200"),
        "store: expected a run with width = 200, got 'run.zarr', which has width = 100",
        (errors.ArgumentError, ValueError),
    ),
    (
        errors.NotMixing("3 of 32 pairs lost rank", None, 0.01, -0.03),
        "3 of 32 pairs lost rank",
        (errors.PartialEstimateError,),
    ),
]


ALL = [error for error, _, _ in EXAMPLES]


def test_examples_cover_every_public_error():
    # Those that are no BnmcError: Ctrl-C, and warnings.
    assert {type(error).__name__ for error in ALL} == set(errors.__all__) - {
        "Interrupted",
        "KernelCacheWarning",
        "LayoutWarning",
        "LinearTheoryWarning",
        "PlainNumbaWarning",
        "PrecisionWarning",
    }


def test_an_interruption_is_a_keyboard_interrupt_and_nothing_else():
    stop = errors.Interrupted("what there is")
    assert (stop.partial, str(stop)) == (
        "what there is", "interrupted; .partial contains the finished layers"
    )  # fmt: skip
    assert str(errors.Interrupted(None)) == "interrupted; no layer is finished"
    assert errors.Interrupted.__mro__[1] is KeyboardInterrupt
    assert not issubclass(errors.Interrupted, Exception)


@pytest.mark.parametrize(("error", "message", "kinds"), EXAMPLES)
def test_message_and_kind(error, message, kinds):
    assert str(error) == message
    assert isinstance(error, (errors.BnmcError, *kinds))
    assert all(isinstance(error, kind) for kind in kinds)
    assert isinstance(error, errors.BnmcError)


def raise_it(error):
    """Raise in a worker process; a top-level function, because workers are spawned."""
    raise error


def assert_same_error(received, sent):
    assert type(received) is type(sent)
    assert str(received) == str(sent)
    assert received.args == sent.args
    assert vars(received) == vars(sent)


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_round_trip(error, protocol):
    assert_same_error(pickle.loads(pickle.dumps(error, protocol)), error)


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_copy(error):
    assert_same_error(copy.deepcopy(error), error)


def test_missing_extra_keeps_the_name_of_the_module():
    received = pickle.loads(pickle.dumps(errors.MissingExtraError("zarr", "xarray")))
    assert received.name == "zarr"


def test_errors_come_back_from_a_worker_process():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(raise_it, error) for error in ALL]
        for future, sent in zip(futures, ALL, strict=True):
            received = future.exception()
            assert type(received) is type(sent)
            assert str(received) == str(sent)


def test_notes_survive_pickling():
    error = errors.NonFiniteError(0, 1)
    error.add_note("seen at gain 1e300")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen at gain 1e300"]


def test_a_value_that_cannot_be_pickled_arrives_as_its_description():
    error = errors.ArgumentTypeError("activation", lambda x: x, "a name or a function")
    received = pickle.loads(pickle.dumps(error))
    assert str(received) == str(error)
    assert received.value.startswith("<function ")
    assert received.argument == "activation"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.float64(0.5), "0.5"),
        (np.int32(7), "7"),
        (np.zeros((1000, 10)), "a float64 array of shape (1000, 10)"),
        (np.array(3), "array(3)"),
        ("two\nlines", "'two\\nlines'"),
        (list(range(1000)), "[0, 1, 2,"),
    ],
)
def test_values_are_shown_on_one_short_line(value, shown):
    message = str(errors.ArgumentError("x", value, "nothing"))
    assert message.startswith(f"x: got {shown}")
    assert "\n" not in message
    assert len(message) < 120


def test_the_message_is_one_line_whatever_the_hint():
    message = str(errors.ArgumentError("x", 1, "nothing", "a hint\nof two lines"))
    assert message == "x: got 1, allowed: nothing (a hint of two lines)"


def test_unknown_name_without_a_near_one():
    error = errors.UnknownNameError("norm", "zzzzzz", ["batch", "none"])
    assert error.suggestion is None
    assert str(error) == "norm: got 'zzzzzz', allowed: batch, none"


def test_argument_errors_carry_their_fields():
    error = errors.ArgumentError("width", 0, "an integer >= 1", "widths count neurons")
    assert (error.argument, error.value, error.allowed, error.hint) == (
        "width",
        0,
        "an integer >= 1",
        "widths count neurons",
    )


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(size, shown):
    assert f"needs {shown}," in str(errors.ResultTooLargeError("depth", size, 1))


def test_every_public_error_documents_its_parameters():
    for name in errors.__all__:
        assert inspect.getdoc(getattr(errors, name)), name
