"""The errors that bnmc raises.

All but `Interrupted` derive from `BnmcError`.  Those about an argument also derive from
`ValueError` or `TypeError`, the others from the built-in error that comes nearest, so a caller who
knows nothing of bnmc catches what it expects to catch.  Each carries what it says as attributes,
has a one-line message, and survives pickling, so it comes back whole from a worker process.
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
    "MissingExtraError",
    "NonFiniteError",
    "NotMixing",
    "PartialEstimateError",
    "PrecisionWarning",
    "ResultTooLargeError",
    "SingularGramError",
    "StoreError",
    "StoreInUseError",
    "StoreMismatchError",
    "UnknownNameError",
    "WorkersLostError",
    "ZeroVarianceError",
]


_LONGEST_DESCRIPTION = 80


class BnmcError(Exception):
    """Base of every error that bnmc raises on purpose.

    Notes
    -----
    An attribute that cannot be pickled (a lambda that was passed as an activation, say) arrives
    in another process as its description; everything else arrives as it was.
    """

    def __reduce__(self) -> tuple[object, ...]:
        state = {
            name: value if _pickles(value) else _describe(value)
            for name, value in self.__dict__.items()
        }
        return _rebuild, (type(self), self.args, state)


class _AboutArgument(BnmcError):
    """What `ArgumentError` and `ArgumentTypeError` share."""

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
        What was passed.
    allowed : str
        What may be passed, in words.
    hint : str, default ""
        What to do about it.

    Attributes
    ----------
    argument, value, allowed, hint
        The parameters, unchanged.

    Examples
    --------
    >>> raise ArgumentError("width", 0, "an integer >= 1")
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentError: width: got 0, allowed: an integer >= 1
    """


class ArgumentTypeError(_AboutArgument, TypeError):
    """An argument has a type that is not allowed.

    Parameters and attributes are those of `ArgumentError`.

    Examples
    --------
    >>> raise ArgumentTypeError("width", "10", "an integer")
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentTypeError: width: got '10', allowed: an integer
    """


class UnknownNameError(ArgumentError):
    """A name that is not among the known ones.

    Parameters
    ----------
    argument : str
        Name of the argument.
    value : str
        The unknown name.
    known : iterable of str
        The known names, in the order in which the message is to list them.

    Attributes
    ----------
    known : tuple of str
        The known names.
    suggestion : str or None
        The known name nearest to `value`, None where none is near.

    Examples
    --------
    >>> raise UnknownNameError("activation", "rleu", ["linear", "relu"])
    Traceback (most recent call last):
        ...
    bnmc.errors.UnknownNameError: activation: got 'rleu', allowed: linear, relu (did you mean
    'relu'?)
    """

    def __init__(self, argument: str, value: str, known: Iterable[str]) -> None:
        self.known = tuple(known)
        # Names are matched without regard to case: "ReLU" is near "relu".
        by_folded = {name.casefold(): name for name in self.known}
        nearest = difflib.get_close_matches(value.casefold(), by_folded, n=1)
        self.suggestion = by_folded[nearest[0]] if nearest else None
        hint = f"did you mean {self.suggestion!r}?" if self.suggestion is not None else ""
        super().__init__(argument, value, ", ".join(self.known), hint)


class ResultTooLargeError(ArgumentError, MemoryError):
    """A result that would not fit in memory, refused before any work.

    Parameters
    ----------
    argument : str
        The argument, or arguments, that make the result so large.
    requested, available : int
        Size of the result and of the memory that is free, in bytes.
    hint : str, default ""
        How to ask for less.

    Attributes
    ----------
    requested, available : int
        As above; `requested` is also the `value` of the base class.

    Examples
    --------
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
    """A row without variance reached the normalization, which would divide by zero.

    Parameters
    ----------
    chain, layer : int or None
        Where it happened; both None for a row of the input that all chains share.
    row : int
        Index of the row, that is, of the neuron or feature.

    Attributes
    ----------
    chain, layer, row
        The parameters, unchanged.

    Examples
    --------
    >>> raise ZeroVarianceError(chain=0, layer=7, row=2)
    Traceback (most recent call last):
        ...
    bnmc.errors.ZeroVarianceError: zero variance in chain 0, layer 7, row 2: the row cannot be
    normalized
    """

    def __init__(self, chain: int | None, layer: int | None, row: int) -> None:
        self.chain = chain
        self.layer = layer
        self.row = row
        place = f"{_place(chain, layer)}, row {row}"
        hint = "; rows are features, counted from 0" if chain is None and layer is None else ""
        super().__init__(f"zero variance in {place}: the row cannot be normalized{hint}")


class NonFiniteError(BnmcError, ArithmeticError):
    """An overflow or a NaN in the middle of a run.

    Parameters
    ----------
    chain, layer : int or None
        Where it happened; both None for the input itself.
    quantity : str, default "state"
        What is no longer finite.

    Attributes
    ----------
    chain, layer, quantity
        The parameters, unchanged.

    Examples
    --------
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
    """A Gram matrix is singular to rounding where a method needs it regular.

    Parameters
    ----------
    argument : str
        Name of the argument.
    index : tuple of int
        Which matrix of the stack: the indices of the leading axes, () for a single matrix.
    ratio : float
        Its smallest eigenvalue over its largest.

    Attributes
    ----------
    argument, index, ratio
        The parameters, unchanged.

    Examples
    --------
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
    """An optional dependency is not installed.

    Parameters
    ----------
    module : str
        The module that was looked for.
    extra : str
        The extra of bnmc that brings it.

    Attributes
    ----------
    module, extra : str
        The parameters, unchanged.
    command : str
        The command that installs the extra.

    Examples
    --------
    >>> raise MissingExtraError("matplotlib", "plot")
    Traceback (most recent call last):
        ...
    bnmc.errors.MissingExtraError: matplotlib is not installed, the extra 'plot' brings it:
    pip install "bnmc[plot]"
    """

    def __init__(self, module: str, extra: str) -> None:
        self.module = module
        self.extra = extra
        self.command = f'pip install "bnmc[{extra}]"'
        message = f"{module} is not installed, the extra {extra!r} brings it: {self.command}"
        super().__init__(message, name=module)

    def __reduce__(self) -> tuple[object, ...]:
        # ImportError keeps its name outside __dict__, where the base class cannot see it.
        return type(self), (self.module, self.extra)


class BackendError(BnmcError, RuntimeError):
    """A backend cannot run here.

    Parameters
    ----------
    backend : str
        Its name, such as ``"cuda"``.
    reason : str
        Why not, in words.

    Attributes
    ----------
    backend, reason : str
        The parameters, unchanged.

    Examples
    --------
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
    """Workers of an executor died again and again under a task, and nothing was finished any more.

    Parameters
    ----------
    losses : int
        How often the task was lost.
    reason : str
        What the last of them met.

    Attributes
    ----------
    losses : int
    reason : str
        The parameters, unchanged.

    Examples
    --------
    >>> print(WorkersLostError(5, "a process was terminated abruptly"))
    a task was lost 5 times: a process was terminated abruptly
    """

    def __init__(self, losses: int, reason: str) -> None:
        self.losses = losses
        self.reason = reason
        super().__init__(_one_line(f"a task was lost {losses} times: {reason}"))


class StoreError(BnmcError, OSError):
    """A store could not be read or written; what was finished stays, and the same call resumes.

    Parameters
    ----------
    path : str
    reason : str
        What went wrong, in words.

    Attributes
    ----------
    path : str
    reason : str
        The parameters, unchanged.

    Examples
    --------
    >>> print(StoreError("run.zarr", "No space left on device"))
    store 'run.zarr': No space left on device
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(_one_line(f"store {path!r}: {reason}"))


class StoreInUseError(StoreError):
    """Another run is writing the store."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another run is writing it")


class StoreMismatchError(ArgumentError):
    """A store holds another run than the one that was asked for.

    Parameters
    ----------
    path : str
    name : str
        What differs: "width", "key", "version", …
    stored, wanted : str
        What the store has, and what this run has.

    Attributes
    ----------
    path, name, stored, wanted : str
        The parameters, unchanged.

    Examples
    --------
    >>> print(StoreMismatchError("run.zarr", "width", "100", "200"))
    store: expected a run with width = 200, got 'run.zarr', which has width = 100
    """

    def __init__(self, path: str, name: str, stored: str, wanted: str) -> None:
        self.path = path
        self.name = name
        self.stored = stored
        self.wanted = wanted
        super().__init__("store", path, f"a run with {name} = {wanted}")
        self.args = (f"store: expected {self.allowed}, got {path!r}, which has {name} = {stored}",)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came in the middle of a run; what was finished comes along.

    It is a `KeyboardInterrupt`, which ``except Exception`` lets pass.

    Parameters
    ----------
    partial : Trajectory or None
        The layers that all chains had finished; None if there were none.

    Attributes
    ----------
    partial : Trajectory or None
        The parameter.  Its `final_state` continues the run, unless the layer that was being made
        took so long that it was left alone: then that is None.

    Examples
    --------
    >>> try:
    ...     raise Interrupted(None)
    ... except KeyboardInterrupt as stop:
    ...     print(stop.partial)
    None
    """

    def __init__(self, partial: object) -> None:
        self.partial: Any = partial
        done = "nothing is finished" if partial is None else "what is finished is in .partial"
        super().__init__(f"interrupted; {done}")


class PrecisionWarning(UserWarning):
    """Numbers are less precise than their dtype promises; the message says which, and a remedy."""


class PartialEstimateError(BnmcError):
    """An estimator did not get enough data; what it has so far comes along.

    Parameters
    ----------
    reason : str
        What is missing, in words.
    partial : object
        The estimate as far as it goes, usually a `bnmc.Estimate`.

    Attributes
    ----------
    reason : str
    partial : object
        The parameters, unchanged.

    Examples
    --------
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
    """Coupled chains did not meet: the chain degenerates, or does not forget where it started.

    That is a finding about the chain. What was measured comes along.

    Parameters
    ----------
    reason : str
        What was seen, in words.
    partial : object
        What was met so far.
    exponent : float
        Mean change, by a layer, of the logarithm of the distance of two chains that are driven by
        the same normals; negative where they approach each other, NaN where they never did move.
    pivot_trend : float
        Mean change, by a layer, of the logarithm (base 10) of the least relative pivot of the
        Gram matrices: clearly negative where the chain loses rank.

    Attributes
    ----------
    reason, partial, exponent, pivot_trend
        The parameters, unchanged.

    Examples
    --------
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
    """Undo `BnmcError.__reduce__` without running a constructor."""
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError gets them from its constructor only
    error.__dict__.update(state)
    return error


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # a user's object may raise anything when it is pickled
        return False
    return True


def _describe(value: object) -> str:
    """One short line that shows a value, however large it is."""
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return f"a {value.dtype} array of shape {value.shape}"
    try:
        text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    except Exception:  # of a user's object
        return f"a {type(value).__name__}"
    if len(text) <= _LONGEST_DESCRIPTION:
        return text
    return text[: _LONGEST_DESCRIPTION - 3] + "..."


def _one_line(text: str, *, hint: str = "") -> str:
    return " ".join(f"{text} ({hint})".split() if hint else text.split())


def _place(chain: int | None, layer: int | None) -> str:
    named = [
        f"{name} {index}"
        for name, index in (("chain", chain), ("layer", layer))
        if index is not None
    ]
    return ", ".join(named) or "the input"


def _in_binary_units(size: int) -> str:
    amount = float(min(size, 1 << 100))  # a float cannot hold every integer
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
