"""The typed errors: what they say, what they are, and that they survive a process boundary."""

import copy
import inspect
import pickle

import numpy as np
import pytest

from bnmc import errors

# By the message that it must carry, one of each.
EXAMPLES = {
    "something is wrong": errors.BnmcError("something is wrong"),
    "width: got 0, allowed: an integer >= 1": errors.ArgumentError("width", 0, "an integer >= 1"),
    "batch: got 1, allowed: an integer >= 2 (centring needs two samples)": errors.ArgumentError(
        "batch", 1, "an integer >= 2", "centring needs two samples"
    ),
    "width: got '10', allowed: an integer": errors.ArgumentTypeError("width", "10", "an integer"),
    "activation: got 'ReUL', allowed: linear, relu, tanh (did you mean 'relu'?)": (
        errors.UnknownNameError("activation", "ReUL", ["linear", "relu", "tanh"])
    ),
    "depth: the result needs 1.5 TiB, available: 200.0 MiB (use every=100)": (
        errors.ResultTooLargeError("depth", 3 << 39, 200 << 20, "use every=100")
    ),
    "zero variance in chain 3, layer 12, row 7: the row cannot be normalized": (
        errors.ZeroVarianceError(3, 12, 7)
    ),
    "zero variance in the input, row 7: the row cannot be normalized; rows are features, "
    "counted from 0": errors.ZeroVarianceError(None, None, 7),
    "Gram matrix no longer finite in chain 0, layer 12": (
        errors.NonFiniteError(0, 12, "Gram matrix")
    ),
    "G[2, 0]: singular Gram matrix, smallest over largest eigenvalue is 1.25e-18": (
        errors.SingularGramError("G", (2, 0), 1.25e-18)
    ),
    "G: singular Gram matrix, smallest over largest eigenvalue is 0": (
        errors.SingularGramError("G", (), 0.0)
    ),
    "matplotlib is not installed; the extra 'plot' installs it: pip install \"bnmc[plot]\", or "
    'pip install ".[plot]" in a checkout': errors.MissingExtraError("matplotlib", "plot"),
    "backend 'cuda': no device found": errors.BackendError("cuda", "no device found"),
    "too few layers": errors.PartialEstimateError(
        "too few layers", {"value": 0.8, "layers": (0, 1)}
    ),
    "a task was lost 6 times: a process was terminated abruptly": (
        errors.WorkersLostError(6, "a process was terminated abruptly")
    ),
    "store 'run.zarr': No space left on device": (
        errors.StoreError("run.zarr", "No space left on device")
    ),
    "store 'run.zarr': another run is writing it": errors.StoreInUseError("run.zarr"),
    "store 'run.zarr': its file system cannot lock files (No locks available); use another one": (
        errors.StoreLockError("run.zarr", "No locks available")
    ),
    "store 'run.zarr': it was removed or replaced while this run wrote it": (
        errors.StoreReplacedError("run.zarr")
    ),
    "store: expected a run with width = 200, got 'run.zarr', which has width = 100": (
        errors.StoreMismatchError("run.zarr", "width", "100", "200")
    ),
    "3 of 32 pairs lost rank": errors.NotMixing("3 of 32 pairs lost rank", None, 0.01, -0.03),
}
#: The built-in errors, and the others of this package, that an error must be.
KINDS = {
    errors.ArgumentError: (ValueError,),
    errors.ArgumentTypeError: (TypeError,),
    errors.UnknownNameError: (errors.ArgumentError,),
    errors.ResultTooLargeError: (errors.ArgumentError, MemoryError),
    errors.ZeroVarianceError: (ValueError,),
    errors.NonFiniteError: (ArithmeticError,),
    errors.SingularGramError: (ValueError,),
    errors.MissingExtraError: (ImportError,),
    errors.BackendError: (RuntimeError,),
    errors.WorkersLostError: (RuntimeError,),
    errors.StoreError: (OSError,),
    errors.StoreInUseError: (errors.StoreError,),
    errors.StoreLockError: (errors.StoreError,),
    errors.StoreReplacedError: (errors.StoreError,),
    errors.StoreMismatchError: (errors.ArgumentError,),
    errors.NotMixing: (errors.PartialEstimateError,),
}


ALL = list(EXAMPLES.values())


def test_examples_cover_every_public_error():
    expected = {
        name for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.BnmcError) and not name.startswith("_")
    }  # fmt: skip
    assert {type(error).__name__ for error in ALL} == expected


def test_an_interruption_is_a_keyboard_interrupt_and_nothing_else():
    stop = errors.Interrupted("what there is")
    assert (stop.partial, str(stop)) == (
        "what there is", "interrupted; .partial contains the finished layers"
    )  # fmt: skip
    assert str(errors.Interrupted(None)) == "interrupted; no layer is finished"
    assert errors.Interrupted.__mro__[1] is KeyboardInterrupt
    assert not issubclass(errors.Interrupted, Exception)


@pytest.mark.parametrize("message", EXAMPLES)
def test_message_and_kind(message):
    error = EXAMPLES[message]
    assert str(error) == message
    for kind in (errors.BnmcError, *KINDS.get(type(error), ())):
        assert isinstance(error, kind)


def assert_same_error(received, sent):
    assert type(received) is type(sent)
    assert str(received) == str(sent)
    assert received.args == sent.args
    assert vars(received) == vars(sent)


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_copies_and_pickles(error):
    assert_same_error(copy.deepcopy(error), error)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert_same_error(pickle.loads(pickle.dumps(error, protocol)), error)


def test_missing_extra_keeps_the_name_of_the_module():
    received = pickle.loads(pickle.dumps(errors.MissingExtraError("zarr", "xarray")))
    assert received.name == "zarr"


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


def test_of_many_names_the_message_has_the_nearest():
    names = [f"figure-{number}" for number in range(60)]
    error = errors.UnknownNameError("name", "figure-5x", names)
    near = "figure-5, figure-59, figure-58"
    assert str(error) == (
        f"name: got 'figure-5x', allowed: one of 60 names, the nearest of which are {near} "
        "(did you mean 'figure-5'?)"
    )
    assert error.names == tuple(names)
    assert errors.UnknownNameError("name", "0000", names).suggestion is None


def test_argument_errors_carry_their_fields():
    fields = {"argument": "width", "value": 0, "allowed": "an integer >= 1", "hint": "of neurons"}
    error = errors.ArgumentError(*fields.values())
    assert {name: getattr(error, name) for name in fields} == fields


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
