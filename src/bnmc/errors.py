"""The errors that bnmc raises.

All errors except `Interrupted` derive from `BnmcError`. Errors about an argument also derive from
`ValueError` or `TypeError`, the others from the nearest built-in error; so code that knows nothing
of bnmc can catch them. Each error has a one-line message, and the parts of the message as
attributes. Errors can be pickled, and come back complete from a worker process.
"""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendError",
    "BnmcError",
    "Interrupted",
    "NonFiniteError",
    "NotMixing",
    "PartialEstimateError",
    "SingularGramError",
    "StoreError",
    "WorkersLostError",
    "ZeroVarianceError",
]


#: The longest description of a value in a message, in characters.
_LONGEST_DESCRIPTION = 80

#: The most names that a message lists.
_MOST_NAMES = 40


class BnmcError(Exception):
    """Base class of the errors of bnmc.

    Notes
    -----
    If an attribute cannot be pickled, such as a lambda that was passed as an activation, another
    process receives its description instead.

    Examples
    --------
    >>> import bnmc
    >>> try:
    ...     bnmc.Chain(width=0, batch=10)
    ... except bnmc.errors.BnmcError as error:
    ...     print(error)
    width: got 0, allowed: an integer >= 1 and <= 9007199254740992
    """

    def __reduce__(self) -> tuple[object, ...]:
        state = {
            name: value if _pickles(value) else _describe(value)
            for name, value in self.__dict__.items()
        }
        return _rebuild, (type(self), self.args, state)


class _AboutArgument(BnmcError):
    """Base class of `ArgumentError` and `ArgumentTypeError`."""

    def __init__(self, argument: str, value: object, allowed: str, hint: str = "") -> None:
        self.argument = argument
        self.value = value
        self.allowed = allowed
        self.hint = hint
        super().__init__(
            _one_line(f"{argument}: got {_describe(value)}, allowed: {allowed}", hint=hint)
        )


class ArgumentError(_AboutArgument, ValueError):
    """An argument has a value that is not allowed.

    Parameters
    ----------
    argument : str
        Name of the argument, as the caller wrote it.
    value : object
        The value that was passed.
    allowed : str
        The allowed values, in words.
    hint : str, default ""
        A remedy.

    Attributes
    ----------
    argument, value, allowed, hint
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import ArgumentError
    >>> raise ArgumentError("width", 0, "an integer >= 1")
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentError: width: got 0, allowed: an integer >= 1
    """


class ArgumentTypeError(_AboutArgument, TypeError):
    """An argument has a type that is not allowed, or a function has no argument of this name.

    Parameters and attributes are those of `ArgumentError`.

    Examples
    --------
    >>> from bnmc.errors import ArgumentTypeError
    >>> raise ArgumentTypeError("width", "10", "an integer")
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentTypeError: width: got '10', allowed: an integer
    """


class UnknownNameError(ArgumentError):
    """An argument is a name that is not among the allowed ones.

    Parameters
    ----------
    argument : str
        Name of the argument.
    value : str
        The unknown name.
    names : iterable of str
        The allowed names, in the order of the message, which has the nearest three of more than 40.
    hint : str, default ""
        What to do. By default it is the nearest name.

    Attributes
    ----------
    names : tuple of str
        The allowed names.
    suggestion : str or None
        The allowed name nearest to `value`, or None if no name is near.

    Examples
    --------
    >>> from bnmc.errors import UnknownNameError
    >>> raise UnknownNameError("activation", "rleu", ["linear", "relu"])
    Traceback (most recent call last):
        ...
    bnmc.errors.UnknownNameError: activation: got 'rleu', allowed: linear, relu (did you mean
    'relu'?)
    """

    def __init__(self, argument: str, value: str, names: Iterable[str], hint: str = "") -> None:
        self.names = tuple(names)
        # The comparison ignores case: "ReLU" is near "relu".
        by_folded = {name.casefold(): name for name in self.names}
        folded = value.casefold()
        nearest = difflib.get_close_matches(folded, by_folded, n=1)
        self.suggestion = by_folded[nearest[0]] if nearest else None
        if self.suggestion is not None:
            hint = hint or f"did you mean {self.suggestion!r}?"
        allowed = ", ".join(self.names)
        if len(self.names) > _MOST_NAMES:
            near = [by_folded[name] for name in difflib.get_close_matches(folded, by_folded, 3, 0)]
            allowed = f"one of {len(self.names)} names, the nearest of which are {', '.join(near)}"
        super().__init__(argument, value, allowed, hint)


class ResultTooLargeError(ArgumentError, MemoryError):
    """The result would not fit in memory; raised before any work.

    Parameters
    ----------
    argument : str
        The argument or arguments that determine the size of the result.
    requested : int
        Size of the result in bytes.
    available : int
        Free memory in bytes.
    hint : str, default ""
        A way to a smaller result.

    Attributes
    ----------
    requested, available : int
        The parameters, unchanged. `requested` is also the attribute `value`.

    Examples
    --------
    >>> from bnmc.errors import ResultTooLargeError
    >>> raise ResultTooLargeError("depth", 3 << 40, 8 << 30, "record every=100 layers")
    Traceback (most recent call last):
        ...
    bnmc.errors.ResultTooLargeError: depth: the result needs 3.0 TiB, available: 8.0 GiB
    (record every=100 layers)
    """

    def __init__(self, argument: str, requested: int, available: int, hint: str = "") -> None:
        self.requested = requested
        self.available = available
        super().__init__(argument, requested, f"at most {available} bytes", hint)
        needs = f"{argument}: the result needs {_in_binary_units(requested)}"
        self.args = (_one_line(f"{needs}, available: {_in_binary_units(available)}", hint=hint),)


class ZeroVarianceError(BnmcError, ValueError):
    """A row or a sample without variance reached the normalization, which would divide by zero.

    Parameters
    ----------
    chain, layer : int or None
        Numbers of the chain and the layer. Both are None for an input that all chains share.
    row : int or None
        Index of the row, that is, of the neuron or the feature; None for a norm over the features.
    sample : int, optional
        Index of the sample, for a norm over the features.

    Attributes
    ----------
    chain, layer, row, sample
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import ZeroVarianceError
    >>> raise ZeroVarianceError(chain=0, layer=7, row=2)
    Traceback (most recent call last):
        ...
    bnmc.errors.ZeroVarianceError: zero variance in chain 0, layer 7, row 2: the row cannot be
    normalized
    """

    def __init__(
        self, chain: int | None, layer: int | None, row: int | None, sample: int | None = None
    ) -> None:
        self.chain = chain
        self.layer = layer
        self.row = row
        self.sample = sample
        if sample is not None:
            place = f"{_place(chain, layer)}, sample {sample}"
            hint = "a group of its features cannot be normalized; eps > 0 allows it"
            super().__init__(f"zero variance in {place}: {hint}")
            return
        place = f"{_place(chain, layer)}, row {row}"
        hint = "; rows are features, counted from 0" if chain is None and layer is None else ""
        super().__init__(f"zero variance in {place}: the row cannot be normalized{hint}")


class NonFiniteError(BnmcError, ArithmeticError):
    """A quantity became infinite or NaN during a run.

    Parameters
    ----------
    chain, layer : int or None
        Numbers of the chain and the layer. Both are None for the input.
    quantity : str, default "state"
        Name of the quantity.

    Attributes
    ----------
    chain, layer, quantity
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import NonFiniteError
    >>> raise NonFiniteError(chain=3, layer=1200, quantity="Gram matrix")
    Traceback (most recent call last):
        ...
    bnmc.errors.NonFiniteError: Gram matrix no longer finite in chain 3, layer 1200
    """

    def __init__(self, chain: int | None, layer: int | None, quantity: str = "state") -> None:
        self.chain = chain
        self.layer = layer
        self.quantity = quantity
        super().__init__(f"{quantity} no longer finite in {_place(chain, layer)}")


class SingularGramError(BnmcError, ValueError):
    """A Gram matrix is numerically singular, and a method needs a regular one.

    Parameters
    ----------
    argument : str
        Name of the argument.
    index : tuple of int
        Indices of the matrix on the leading axes of a stack; () for a single matrix.
    ratio : float
        Smallest eigenvalue divided by the largest.

    Attributes
    ----------
    argument, index, ratio
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import SingularGramError
    >>> raise SingularGramError("G", (4, 0), 1e-17)
    Traceback (most recent call last):
        ...
    bnmc.errors.SingularGramError: G[4, 0]: singular Gram matrix, smallest over largest
    eigenvalue is 1e-17
    """

    def __init__(self, argument: str, index: tuple[int, ...], ratio: float) -> None:
        self.argument = argument
        self.index = index
        self.ratio = ratio
        which = f"{argument}[{', '.join(map(str, index))}]" if index else argument
        super().__init__(
            f"{which}: singular Gram matrix, smallest over largest eigenvalue is {ratio:.3g}"
        )


class MissingExtraError(BnmcError, ImportError):
    """Optional dependencies are not installed.

    Parameters
    ----------
    module : str
        Name of the missing module; several are separated by ", ".
    extra : str
        Name of the extra of bnmc that installs it; several are separated by ",".

    Attributes
    ----------
    module, extra : str
        The parameters, unchanged.
    command : str
        The command that installs all of them. The message also has the command for a checkout.

    Examples
    --------
    >>> from bnmc.errors import MissingExtraError
    >>> raise MissingExtraError("matplotlib", "plot")
    Traceback (most recent call last):
        ...
    bnmc.errors.MissingExtraError: matplotlib is not installed; the extra 'plot' installs it:
    pip install "bnmc[plot]", or pip install ".[plot]" in a checkout
    """

    def __init__(self, module: str, extra: str) -> None:
        self.module = module
        self.extra = extra
        self.command = f'pip install "bnmc[{extra}]"'
        is_one, is_one_extra = ", " not in module, "," not in extra
        message = (
            f"{module} {'is' if is_one else 'are'} not installed; "
            f"the extra{'' if is_one_extra else 's'} {extra!r} "
            f"install{'s' if is_one_extra else ''} {'it' if is_one else 'them'}: {self.command}, "
            f'or pip install ".[{extra}]" in a checkout'
        )
        super().__init__(message, name=module)

    def __reduce__(self) -> tuple[object, ...]:
        # ImportError keeps its name outside of __dict__, which the base class pickles.
        return type(self), (self.module, self.extra)


class BackendError(BnmcError, RuntimeError):
    """A backend cannot run on this machine.

    Parameters
    ----------
    backend : str
        Name of the backend, such as ``"cuda"``.
    reason : str
        Reason, in words.

    Attributes
    ----------
    backend, reason : str
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import BackendError
    >>> raise BackendError("cuda", "no device found")
    Traceback (most recent call last):
        ...
    bnmc.errors.BackendError: backend 'cuda': no device found
    """

    def __init__(self, backend: str, reason: str) -> None:
        self.backend = backend
        self.reason = reason
        super().__init__(_one_line(f"backend {backend!r}: {reason}"))


class WorkersLostError(BnmcError, RuntimeError):
    """A task lost its worker several times, while no other task finished.

    Parameters
    ----------
    losses : int
        Number of losses of the task.
    reason : str
        Message of the last loss.

    Attributes
    ----------
    losses : int
    reason : str
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import WorkersLostError
    >>> print(WorkersLostError(5, "a process was terminated abruptly"))
    a task was lost 5 times: a process was terminated abruptly
    """

    def __init__(self, losses: int, reason: str) -> None:
        self.losses = losses
        self.reason = reason
        super().__init__(_one_line(f"a task was lost {losses} times: {reason}"))


class StoreError(BnmcError, OSError):
    """A store could not be read or written.

    Finished tiles stay in the store, and the same call resumes the run.

    Parameters
    ----------
    path : str
        Path of the store.
    reason : str
        Reason, in words.

    Attributes
    ----------
    path : str
    reason : str
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import StoreError
    >>> print(StoreError("run.zarr", "No space left on device"))
    store 'run.zarr': No space left on device
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(_one_line(f"store {path!r}: {reason}"))


class StoreInUseError(StoreError):
    """Another run is writing the store.

    Examples
    --------
    >>> from bnmc.errors import StoreInUseError
    >>> print(StoreInUseError("run.zarr"))
    store 'run.zarr': another run is writing it
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "another run is writing it")


class StoreLockError(StoreError):
    """The file system of the store has no locks, so two runs could write the store at once.

    Write the store to another file system, such as a local disk.

    Parameters
    ----------
    path : str
        Path of the store.
    reason : str
        Message of the operating system.

    Attributes
    ----------
    path, reason : str
        The path, and the reason in words.

    Examples
    --------
    >>> from bnmc.errors import StoreLockError
    >>> print(StoreLockError("run.zarr", "No locks available"))
    store 'run.zarr': its file system cannot lock files (No locks available); use another one
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, f"its file system cannot lock files ({reason}); use another one")


class StoreReplacedError(StoreError):
    """The store was removed, or another one took its place, while a run wrote it.

    The run wrote nothing to the other store.

    Parameters
    ----------
    path : str
        Path of the store.

    Examples
    --------
    >>> from bnmc.errors import StoreReplacedError
    >>> print(StoreReplacedError("run.zarr"))
    store 'run.zarr': it was removed or replaced while this run wrote it
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "it was removed or replaced while this run wrote it")


class StoreMismatchError(ArgumentError):
    """A store contains another run than the requested one.

    Parameters
    ----------
    path : str
        Path of the store.
    name : str
        Name of the setting that differs: "width", "key", "version", …
    stored, wanted : str
        Value of the setting in the store, and in the requested run.
    hint : str, default ""
        What to do.

    Attributes
    ----------
    path, name, stored, wanted : str
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import StoreMismatchError
    >>> print(StoreMismatchError("run.zarr", "width", "100", "200"))
    store: expected a run with width = 200, got 'run.zarr', which has width = 100
    """

    def __init__(self, path: str, name: str, stored: str, wanted: str, hint: str = "") -> None:
        self.path = path
        self.name = name
        self.stored = stored
        self.wanted = wanted
        want, have = (  # the text of a key begins with its name
            text if text.startswith(f"{name}:") else f"{name} = {text}" for text in (wanted, stored)
        )
        super().__init__("store", path, f"a run with {want}")
        text = f"store: expected {self.allowed}, got {path!r}, which has {have}"
        self.args = (_one_line(text, hint=hint),)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run. The finished layers are in the attribute `partial`.

    The error is a `KeyboardInterrupt`, so ``except Exception`` does not catch it.

    Parameters
    ----------
    partial : Trajectory or None
        The layers that all chains had finished; None if there are none.

    Attributes
    ----------
    partial : Trajectory or None
        The parameter. `partial.final_state` continues the run. It raises if the current layer did
        not end in time, since the run then has no final state.

    Examples
    --------
    >>> from bnmc.errors import Interrupted
    >>> try:
    ...     raise Interrupted(None)
    ... except KeyboardInterrupt as stop:
    ...     print(stop.partial)
    None
    """

    def __init__(self, partial: object) -> None:
        self.partial: Any = partial
        done = (
            "no layer is finished" if partial is None else ".partial contains the finished layers"
        )
        super().__init__(f"interrupted; {done}")


class PrecisionWarning(UserWarning):
    """Results are less precise than their dtype allows; the message names them and a remedy.

    Examples
    --------
    >>> import warnings
    >>> from bnmc.errors import PrecisionWarning
    >>> warnings.simplefilter("error", PrecisionWarning)  # raise instead
    """


class KernelCacheWarning(UserWarning):
    """Compiled code cannot be kept on disk or read from there, so the process compiles.

    The message names the folder and the reason: it cannot be written to, a file is damaged, or
    another user may have written code there. A process warns once per folder and kind of failure.

    Examples
    --------
    >>> import warnings
    >>> from bnmc.errors import KernelCacheWarning
    >>> warnings.simplefilter("error", KernelCacheWarning)  # raise instead
    """


class PlainNumbaWarning(UserWarning):
    """Numba is a version that bnmc does not know, so kernels compile slowly; results are the same.

    `pip install "numba<0.69"` installs a version that bnmc knows. The environment variable
    BNMC_PLAIN_NUMBA=1 requests the slow compilation, without a warning.

    Examples
    --------
    >>> import warnings
    >>> from bnmc.errors import PlainNumbaWarning
    >>> warnings.simplefilter("error", PlainNumbaWarning)  # raise instead
    """


class LayoutWarning(UserWarning):
    """A matrix has more columns than rows, so its samples may be in the rows.

    Arrays of this package have one sample in each column.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> import bnmc
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     gram = bnmc.gram.gram(np.ones((2, 5)))
    >>> caught[0].category.__name__
    'LayoutWarning'
    """


class LinearTheoryWarning(UserWarning):
    """A prediction of `bnmc.mean_field.PathFluctuations` is for a width that is too small for it.

    The message names the layer and the width from which on the linear theory holds.

    Examples
    --------
    >>> import warnings
    >>> import bnmc
    >>> import numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(10, 2, "linear", norm="none"))
    >>> run = mean_field.trajectory(np.eye(2), 5, fluctuations=True, rng=0)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     found = run.fluctuations.mean_square(10)
    >>> caught[0].category.__name__
    'LinearTheoryWarning'
    """


class PartialEstimateError(BnmcError):
    """An estimator did not get enough data.

    Parameters
    ----------
    reason : str
        The missing data, in words.
    partial : object
        The estimate from the data at hand, usually a `bnmc.Estimate`.

    Attributes
    ----------
    reason : str
    partial : object
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import PartialEstimateError
    >>> try:
    ...     raise PartialEstimateError("120 layers are too few for a lag of 60", partial=0.8)
    ... except PartialEstimateError as error:
    ...     print(error.partial)
    0.8
    """

    def __init__(self, reason: str, partial: object) -> None:
        self.reason = reason
        self.partial = partial
        super().__init__(_one_line(reason))


class NotMixing(PartialEstimateError):
    """Coupled chains did not meet: the chain degenerates, or depends on its start at all depths.

    This is a finding about the chain.

    Parameters
    ----------
    reason : str
        The observation, in words.
    partial : object
        The meetings so far.
    exponent : float
        Mean change per layer of the logarithm of the distance of two chains with common normals.
        Negative if the chains approach each other; NaN if their distance did not change.
    pivot_trend : float
        Mean change per layer of the logarithm, base 10, of the smallest relative pivot of the Gram
        matrices. Clearly negative if the chain loses rank.

    Attributes
    ----------
    reason, partial, exponent, pivot_trend
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.errors import NotMixing, PartialEstimateError
    >>> try:
    ...     raise NotMixing("0 of 32 pairs met in 4000 layers", None, 0.01, 0.0)
    ... except PartialEstimateError as error:
    ...     print(error)
    0 of 32 pairs met in 4000 layers
    """

    def __init__(self, reason: str, partial: object, exponent: float, pivot_trend: float) -> None:
        super().__init__(reason, partial)
        self.exponent = exponent
        self.pivot_trend = pivot_trend


def _rebuild(
    kind: type[BnmcError], args: tuple[object, ...], state: dict[str, object]
) -> BnmcError:
    """Make an error of pickled attributes without running its constructor."""
    error = kind.__new__(kind, *args)
    error.args = args  # OSError sets them in its constructor only
    error.__dict__.update(state)
    return error


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # an object of the user may raise anything
        return False
    return True


def _describe(value: object) -> str:
    """Return a short line that shows a value of any size."""
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return f"a {value.dtype} array of shape {value.shape}"
    try:
        text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    except Exception:  # an object of the user may raise anything
        return f"a {type(value).__name__}"
    if len(text) <= _LONGEST_DESCRIPTION:
        return text
    return text[: _LONGEST_DESCRIPTION - 3] + "..."


def _one_line(text: str, *, hint: str = "") -> str:
    return " ".join(f"{text} ({hint})".split() if hint else text.split())


def _place(chain: int | None, layer: int | None) -> str:
    numbers = {"chain": chain, "layer": layer}
    named = [f"{name} {index}" for name, index in numbers.items() if index is not None]
    return ", ".join(named) or "the input"


def _in_binary_units(size: int) -> str:
    amount = float(min(size, 1 << 100))  # a float cannot hold every integer
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
