"""Consecutive ranges that make up a count, to share work among workers."""

from __future__ import annotations

from itertools import pairwise


def even_ranges(count: int, parts: int, *, first: int = 0) -> list[tuple[int, int]]:
    """Cut ``range(first, first + count)`` into ranges whose lengths differ by at most 1.

    Parameters
    ----------
    count : int
        Number of elements, >= 0.
    parts : int
        Number of ranges, >= 1. If it exceeds `count`, some ranges are empty.
    first : int, default 0
        First element.

    Returns
    -------
    list of (int, int)
        First element of each range, and the one after its last.

    Examples
    --------
    >>> from bnmc._support.splits import even_ranges
    >>> even_ranges(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return list(pairwise(first + count * part // parts for part in range(parts + 1)))


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """Cut ``range(count)`` into ranges of `size` elements, the last of which may be shorter.

    Examples
    --------
    >>> from bnmc._support.splits import ranges
    >>> ranges(10, 4)
    [(0, 4), (4, 8), (8, 10)]
    """
    return [(first, min(first + size, count)) for first in range(0, count, size)]
