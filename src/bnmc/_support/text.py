"""Results as text: aligned tables, JSON, and `Result`, the base of all results.

JSON has no arrays, and no numbers that are infinite or NaN.
"""

from __future__ import annotations

import html
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

_Item = TypeVar("_Item")


class Table(NamedTuple):
    """A table of text: aligned by `str`, with lines and colours if Rich prints it.

    Attributes
    ----------
    heads : sequence of str
        Heads of the columns.
    rows : sequence of sequence of str
        Cells.
    align : str, default "><"
        Alignment of the columns, as of `text_table`.

    Examples
    --------
    >>> from bnmc._support.text import Table
    >>> print(Table(["quantity", "value"], [["rate", "0.5"]]))
    quantity  value
        rate  0.5
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = "><"

    def __str__(self) -> str:
        return text_table(self.heads, self.rows, align=self.align)

    def __rich__(self) -> Any:
        from bnmc._support.extras import import_extra  # not above: it imports NumPy

        table = import_extra("rich.table", "cli").Table(header_style="bold", row_styles=["", "dim"])
        for index, head in enumerate(self.heads):
            sign = self.align[min(index, len(self.align) - 1)]
            table.add_column(head, justify="left" if sign == "<" else "right")
        for row in self.rows:
            table.add_row(*row)
        return table


def text_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    align: str = "<>",
    gap: str = "  ",
    least_width: int = 0,
) -> str:
    r"""Return a table as text, one line for the heads and one for each row.

    Parameters
    ----------
    heads : sequence of str, length k
        Heads of the columns.
    rows : iterable of sequence of str, each of length k
        Cells.
    align : str, default "<>"
        Alignment of each column: ``"<"`` for left, ``">"`` for right. The last character serves all
        further columns, so that the default aligns the first column left and the others right.
    gap : str, default two spaces
        Text between two columns.
    least_width : int, default 0
        Least width of a column, in characters. Each column is as wide as its widest cell or head.

    Returns
    -------
    str
        Lines without trailing spaces, and without a newline at the end.

    Raises
    ------
    ValueError
        If a row does not have k cells.

    Examples
    --------
    >>> from bnmc._support.text import text_table
    >>> print(text_table(["norm", "rate"], [["batch", "0.5"], ["none", "1.25"]]))
    norm   rate
    batch   0.5
    none   1.25
    """
    lines = [list(heads), *map(list, rows)]
    columns = zip(*lines, strict=True)
    widths = [max(least_width, *map(len, column)) for column in columns]
    signs = align.ljust(len(widths), align[-1])[: len(widths)]
    return "\n".join(
        gap.join(
            f"{cell:{sign}{width}}" for cell, sign, width in zip(line, signs, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def fitting(
    columns: Sequence[tuple[str, str, Sequence[str]]], least_useful: Sequence[str]
) -> tuple[list[tuple[str, str, Sequence[str]]], list[str]]:
    """Return the columns of a table that fit into 100 characters, and a line about the others.

    Parameters
    ----------
    columns : sequence of (str, str, sequence of str)
        Name, head and cells.
    least_useful : sequence of str
        Names of columns that may be left out, the first one first.

    Examples
    --------
    >>> from bnmc._support.text import fitting
    >>> columns = [("layer", "layer", ["0"]), ("rank", "rank", ["4"]), ("gap", "gap", [96 * "0"])]
    >>> fitting(columns, ["gap", "rank"])[1]
    ['left out of the table, which is full: gap (to_dict and --json have it)']
    """
    shown, gone = list(columns), []
    for name in least_useful:
        widths = [max(len(head), *map(len, cells)) for _, head, cells in shown]
        if sum(widths) + 2 * (len(widths) - 1) <= _COLUMNS:
            break
        if any(column[0] == name for column in shown):
            shown = [column for column in shown if column[0] != name]
            gone.append(name)
    have = "it" if len(gone) == 1 else "them"
    names = f"{', '.join(gone)} (to_dict and --json have {have})"
    return shown, [f"left out of the table, which is full: {names}"] if gone else []


def first_of(items: Sequence[_Item], most: int, what: str) -> tuple[Sequence[_Item], list[str]]:
    """Return the first items, and a line about the others if there are some.

    Examples
    --------
    >>> from bnmc._support.text import first_of
    >>> first_of([3, 4, 5, 6], 2, "rows")
    ([3, 4], ['… and 2 more rows'])
    >>> first_of([3, 4, 5], 2, "rows")
    ([3, 4], ['… and 1 more row'])
    """
    rest = len(items) - most
    if rest == 1:
        what = re.sub(r"s\b", "", what, count=1)
    return (items[:most], [f"… and {rest} more {what}"]) if rest > 0 else (items, [])


#: The longest line of a printed result.
_COLUMNS = 100


def wrapped(text: str, indent: str = "") -> str:
    """Return a text in lines of at most 100 characters, of which all but the first are indented.

    Examples
    --------
    >>> from bnmc._support.text import wrapped
    >>> [len(line) for line in wrapped(30 * "words ", indent="  ").splitlines()]
    [95, 85]
    """
    return textwrap.fill(
        text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def dumps(document: Any) -> str:
    """Return the text of a JSON document, without a newline at the end.

    Parameters
    ----------
    document : object
        Any argument of `plain`.

    Returns
    -------
    str

    Raises
    ------
    ArgumentTypeError
        If the document contains an object that JSON cannot represent.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.text import dumps
    >>> print(dumps({"rate": np.float64(0.5), "timescale": np.inf}))
    {
      "rate": 0.5,
      "timescale": "Infinity"
    }
    """
    return json.dumps(plain(document), indent=2, allow_nan=False)


#: Numbers of an array in the `repr` of a result, and entries of a tuple.
_MOST_NUMBERS = 8


class Result:
    """The base of results, which are dataclasses: short texts, a dict for JSON, and HTML.

    A subclass with a table has `__str__` and `to_dict` of its own.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from bnmc._support.text import Result
    >>> @dataclass(frozen=True)
    ... class Found(Result):
    ...     rate: float
    ...     gram: np.ndarray
    >>> found = Found(0.5, np.zeros((9, 9)))
    >>> found
    Found(rate=0.5, gram=<float64 (9, 9)>)
    >>> print(found)
    Found
      rate  0.5
      gram  <float64 (9, 9)>
    >>> len(found.to_dict()["gram"])
    9
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # `dataclass` leaves one that is there
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        shown = (f"{name}={_short(value)}" for name, value in self._shown_fields())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __str__(self) -> str:
        rows = [(name, _short(value, 100)) for name, value in self._shown_fields()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(
            [type(self).__name__, *(f"  {name:{width}}  {text}" for name, text in rows)]
        )

    def to_dict(self) -> Any:
        """Return the fields for `json.dumps`, arrays as lists, and objects as their texts."""
        return {field.name: entry(getattr(self, field.name)) for field in _fields_of(self)}

    def _repr_html_(self) -> str:
        """Return what notebooks show: the text that is printed."""
        return f"<pre>{html.escape(str(self))}</pre>"

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(self._missing(name), name=name, obj=self)

    def _missing(self, name: str, otherwise: str = "") -> str:
        """Return the message about an attribute that is not there: its present name, if any."""
        from bnmc._support.keywords import renamed

        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        for kind in type(self).__mro__:
            if name in (names := renamed(kind)):
                return f"{text}; it is now {names[name]!r}"
        return otherwise or text

    def _shown_fields(self) -> Iterator[tuple[str, Any]]:
        return ((field.name, getattr(self, field.name)) for field in _fields_of(self) if field.repr)


def _fields_of(result: Any) -> list[Field[Any]]:
    return [field for field in fields(result) if not field.name.startswith("_")]


def _short(value: Any, most: int = 1000) -> str:
    """Return the `repr` of a value, of arrays, results and long texts a part."""
    if hasattr(value, "dtype") and (value.ndim > 1 or value.size > _MOST_NUMBERS):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, Result) and most < 1000:
        lines = str(value).splitlines()
        return lines[0] if len(lines) == 1 else f"<{type(value).__name__}>"
    if type(value) is tuple:
        parts = [_short(part, most) for part in value[:_MOST_NUMBERS]]
        if len(value) > len(parts):
            parts.append(f"and {len(value) - len(parts)} more")
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def entry(value: Any) -> Any:
    """Return a value of a document: as `plain`, results as dicts, and objects as their texts."""
    if isinstance(value, Result):
        return entry(value.to_dict())
    from bnmc.errors import ArgumentTypeError

    try:
        return plain(value)
    except ArgumentTypeError:
        return repr(value)


def loads(text: str | bytes) -> Any:
    """Return the document of a text that may come from anywhere.

    Parameters
    ----------
    text : str or bytes

    Returns
    -------
    object

    Raises
    ------
    ValueError
        If it is no JSON, or is nested too deeply.

    Examples
    --------
    >>> from bnmc._support.text import loads
    >>> loads('{"rate": 0.5}')
    {'rate': 0.5}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def plain(value: Any) -> Any:
    """Return a value as dicts, lists, strings, finite numbers, bools and None.

    Parameters
    ----------
    value : object
        A number, a string, None, an array, a list, a tuple, a mapping, a dataclass, or an object
        whose method ``as_json()`` returns one of these.

    Returns
    -------
    object
        An infinite number becomes "Infinity" or "-Infinity", which `float` and JavaScript's
        ``Number`` read. NaN becomes None. A dataclass becomes a dict of its fields; one that has a
        ``__repr__`` of its own, such as a chain, becomes that text.

    Raises
    ------
    ArgumentTypeError
        If `value` is, or contains, another object.
    """
    if hasattr(value, "as_json"):
        return plain(value.as_json())
    if is_dataclass(value) and not isinstance(value, type):
        if not value.__dataclass_params__.repr:  # type: ignore[attr-defined]
            return repr(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    import numpy as np  # not above: the help of commands makes tables, and should come at once

    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    from bnmc.errors import ArgumentTypeError

    raise ArgumentTypeError("value", value, "a string, a number, or lists or dicts of them")
