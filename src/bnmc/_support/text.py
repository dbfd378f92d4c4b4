"""Tables as aligned text, which read in a log and in a terminal alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
