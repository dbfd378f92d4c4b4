"""Sizes of figures: their types and ranges, their values as text, and their documentation.

The sizes of a figure are a `NamedTuple` with a default for each.  Its annotations decide which
values a size takes:

- ``int``: integers >= 1; ``float``: finite numbers > 0; ``str``: texts; `Named`: activations.
- ``Annotated[int, {"low": 0}]`` (`Natural`): other ranges, as arguments of `integer` and `real`.
- ``Annotated[str, {"allowed": NAMES}]`` (`Builtin`): one of some names.
- ``tuple[X, ...]``: one or more different values, ``tuple[X, Y]``: one of each.
- ``Annotated[tuple[X, ...], {"least": 2}]`` (`Integers`): two or more.
- ``Annotated[tuple[X, ...], {"repeats": True}]``: values that may be equal.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.arguments import choice, instance, integer, real
from bnmc._support.keywords import RENAMED
from bnmc.chain.activations import Activation, as_activation
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

#: A name of an activation, or an activation.
Named: TypeAlias = str | Activation

#: A name of a built-in activation.
Builtin: TypeAlias = Annotated[str, {"allowed": tuple(BUILTIN)}]

#: An integer >= 0.
Natural: TypeAlias = Annotated[int, {"low": 0}]

#: An integer >= 2: for example as many networks as an interval of their mean needs.
Several: TypeAlias = Annotated[int, {"low": 2}]

#: Two or more integers: as many widths as a slope needs.
Integers: TypeAlias = Annotated[tuple[int, ...], {"least": 2}]

#: What sizes are, for those that the docstring of a figure's sizes does not describe.
_MEANINGS = {
    "activations": "activations",
    "batch": "batch size",
    "batches": "batch sizes",
    "chains": "networks of each kind",
    "classes": "the two classes of images",
    "depth": "number of layers",
    "depths": "numbers of hidden layers",
    "epochs": "epochs of training",
    "every": "epochs between records",
    "first": "first layer of the average",
    "images": "largest number of images",
    "last": "last layer of the average",
    "layers": "number of layers",
    "norms": "norms",
    "rate": "learning rate",
    "rates": "learning rates, of which each kind of network has its best one",
    "stages": "channels of the convolutions of each stage",
    "steps": "recorded steps",
    "weights": "laws of the weights",
    "width": "width",
    "widths": "widths",
}

#: Arguments that all figures share.
_OPTIONS = ("full", "rng", "progress", "threads", "executor", "store", "timeout", "data")

#: What separates the values of a tuple in a text, and those of a tuple in a tuple.
_SEPARATORS = ",:"


def checked(sizes: tuple[Any, ...], changes: Mapping[str, object]) -> tuple[Any, ...]:
    """Return sizes, some of which are changed.

    Parameters
    ----------
    sizes : NamedTuple
    changes : mapping of str to object
        New values by name; None is no change.

    Raises
    ------
    UnknownNameError
        If a name is that of no size.
    ArgumentError, ArgumentTypeError
        If a size does not take a value.
    """
    kinds = _kinds(type(sizes))
    given = {_name("size", name, kinds): value for name, value in changes.items()}
    values = {
        name: _checked(name, value, kinds[name])
        for name, value in given.items()
        if value is not None
    }
    changed: tuple[Any, ...] = sizes._replace(**values)  # type: ignore[attr-defined]
    return changed


def parsed(sizes: type[tuple[Any, ...]], texts: Iterable[str]) -> dict[str, Any]:
    """Return sizes that are given as texts: ``width=500``, ``widths=100,200``, ``stages=8:8,16``.

    Raises
    ------
    UnknownNameError
        If a name is that of no size.
    ArgumentError, ArgumentTypeError
        If a text has no equals sign, a size occurs twice, or it does not take the value.
    """
    kinds, values = _kinds(sizes), {}
    for text in texts:
        name, sign, content = text.partition("=")
        if not sign:
            raise ArgumentError("set", text, "a size and its value", "for example width=500")
        kind = kinds[_name("set", name, kinds)]
        if name in values:
            raise ArgumentError("set", text, "each size once, with all its values")
        values[name] = _checked(name, _parsed(content, kind, _SEPARATORS), kind)
    return values


def as_text(value: object, separators: str = _SEPARATORS) -> str:
    """Return the value of a size as text, as `parsed` reads it."""
    if isinstance(value, tuple):
        return separators[0].join(as_text(item, separators[1:]) for item in value)
    if isinstance(value, Activation):
        return value.name
    return f"{value!r}" if isinstance(value, float) else str(value)


def facts(sizes: tuple[Any, ...]) -> dict[str, str]:
    """Return sizes as text by name; an activation of the user has its digest, too."""
    return {
        name: " ".join([as_text(value), *_digests(value)])
        for name, value in sizes._asdict().items()  # type: ignore[attr-defined]
    }


def documented(default: tuple[Any, ...], full: tuple[Any, ...]) -> str:
    """Return a paragraph of numpydoc for each size."""
    lines = []
    for name, meaning in meanings(type(default)).items():
        value, in_full = getattr(default, name), getattr(full, name)
        text = f"{meaning[0].upper()}{meaning[1:]}."
        if in_full != value:
            text += f"  With `full`: {literal(in_full)}."
        kind = _in_words(_kinds(type(default))[name])
        lines += _wrapped(f"{name} : {kind}, default {literal(value)}", "", "    ")
        lines += _wrapped(text, "    ", "    ")
    return "\n".join(lines) + "\n"


def meanings(sizes: type[tuple[Any, ...]]) -> dict[str, str]:
    """Return by name what each size is.

    It is a line ``name: meaning`` of the docstring, or the usual meaning of the name.
    """
    text = inspect.getdoc(sizes) or ""
    special = dict(re.findall(r"^(\w+): (.*(?:\n +.*)*)", text, re.MULTILINE))
    return {
        name: " ".join((special.get(name) or _MEANINGS[name]).split())
        for name in sizes._fields  # type: ignore[attr-defined]
    }


def _name(argument: str, name: str, kinds: Mapping[str, Any]) -> str:
    """Return the name of a size; the error about an earlier name has the present one."""
    renamed = RENAMED["experiments.run"]
    if name not in kinds and name in renamed:
        new = renamed[name] if renamed[name] in kinds else "chains"
        raise UnknownNameError(argument, name, kinds, f"`{name}` is now `{new}`")
    if name not in kinds and argument == "size" and not get_close_matches(name, kinds):
        near = ["rng"] if name == "seed" else get_close_matches(name, _OPTIONS)
        raise UnknownNameError(
            argument, name, kinds, f"did you mean the argument {near[0]!r}?" if near else ""
        )
    return choice(argument, name, kinds)


def _kinds(sizes: type[tuple[Any, ...]]) -> dict[str, Any]:
    return get_type_hints(sizes, include_extras=True)


def _taken_apart(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Return a type without its range, and the range."""
    if get_origin(kind) is Annotated:
        base, options = get_args(kind)
        return base, dict(options)
    return kind, {}


def _of_items(kind: Any, count: int) -> tuple[Any, ...]:
    """Return the types of the items of a tuple that should have `count` of them."""
    kinds = get_args(kind)
    return (kinds[0],) * count if kinds[-1] is Ellipsis else kinds


def _checked(name: str, value: object, kind: Any) -> Any:
    """Return a value in its canonical type."""
    base, options = _taken_apart(kind)
    if get_origin(base) is not tuple:
        return _CHECKS[base](name, value, **options)
    items = _items(name, value, kind)
    may_repeat = options.get("repeats", get_args(base)[-1] is not Ellipsis)
    if not may_repeat and len(set(items)) < len(items) and not isinstance(items[0], tuple):
        raise ArgumentError(name, as_text(items), "different values")
    return items


def _items(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    """Return the items of a tuple in their canonical types."""
    base, options = _taken_apart(kind)
    allowed = f"a sequence, {_in_words(kind)}"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ArgumentTypeError(name, value, allowed)
    given = tuple(value)
    kinds = _of_items(base, max(len(given), options.get("least", 1)))
    if len(given) != len(kinds):
        least = "at least " if get_args(base)[-1] is Ellipsis else ""
        raise ArgumentError(name, given, f"{allowed}, of {least}{len(kinds)} values")
    return tuple(
        _items(name, item, of) if get_origin(of) is tuple else _checked(name, item, of)
        for item, of in zip(given, kinds, strict=True)
    )


def _activation(name: str, value: Any) -> Named:
    """Return the name of a built-in activation, or an activation."""
    if isinstance(value, str):
        as_activation(value)
        return value
    if not (callable(value) or isinstance(value, Activation)):
        raise ArgumentTypeError(name, value, "an activation: a name, a function or an Activation")
    return as_activation(value)


def _text(name: str, value: object, allowed: Sequence[str] = ()) -> str:
    return choice(name, value, allowed) if allowed else instance(name, value, str, "a text")


def _integer(name: str, value: object, low: int = 1, high: int | None = None) -> int:
    return integer(name, value, low=low, high=high)


def _real(name: str, value: object, **bounds: Any) -> float:
    return real(name, value, **bounds or {"above": 0.0})


_CHECKS: dict[Any, Callable[..., Any]] = {
    int: _integer, float: _real, str: _text, Named: _activation,
}  # fmt: skip


def _parsed(text: str, kind: Any, separators: str) -> Any:
    """Return the value that a text stands for; the text itself if it stands for none."""
    base, _ = _taken_apart(kind)
    if get_origin(base) is tuple:
        pieces = text.split(separators[0])
        kinds = _of_items(base, len(pieces))
        if len(kinds) != len(pieces):
            return tuple(pieces)
        return tuple(
            _parsed(piece, of, separators[1:]) for piece, of in zip(pieces, kinds, strict=True)
        )
    if base in (int, float):
        try:
            return base(text)
        except ValueError:
            return text
    return text


def _digests(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [digest for item in value for digest in _digests(item)]
    return [value.digest] if isinstance(value, Activation) else []


def _in_words(kind: Any) -> str:
    """Return a type in words."""
    base, _ = _taken_apart(kind)
    if base == Named:
        return "str or Activation"
    if get_origin(base) is not tuple:
        return str(base.__name__)
    kinds = [_in_words(item) for item in get_args(base) if item is not Ellipsis]
    if get_args(base)[-1] is not Ellipsis:
        return f"({', '.join(kinds)})"
    inner = kinds[0]
    return f"tuple of {inner.replace('tuple', 'tuples', 1) if 'tuple' in inner else inner}"


def literal(value: object) -> str:
    """Return a value as Python writes it; an activation as its name."""
    if isinstance(value, tuple):
        items = ", ".join(map(literal, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value.name) if isinstance(value, Activation) else repr(value)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, 98, initial_indent=first, subsequent_indent=rest, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
