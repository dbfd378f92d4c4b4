"""Ranges that make up a count."""

from itertools import pairwise

import pytest

from bnmc._support.splits import even_ranges, ranges


@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize("first", [0, 5])
def test_even_ranges_cover_the_count_and_differ_by_one(count, parts, first):
    found = even_ranges(count, parts, first=first)
    assert len(found) == parts
    assert found[0][0] == first
    assert found[-1][1] == first + count
    assert all(before[1] == after[0] for before, after in pairwise(found))
    lengths = [b - a for a, b in found]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("size", [1, 3, 200])
def test_ranges_are_of_one_size_but_for_the_last(count, size):
    found = ranges(count, size)
    assert [k for a, b in found for k in range(a, b)] == list(range(count))
    assert all(b - a == size for a, b in found[:-1])
