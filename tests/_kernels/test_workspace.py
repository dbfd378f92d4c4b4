"""The fields of a workspace: they lie in it one after the other, and fill it."""

import itertools

import numpy as np
import pytest

from bnmc._kernels.cpu import workspace
from bnmc._kernels.cpu.memory import aligned_zeros

LINE = 64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("batch", "columns"), [(1, 1), (5, 5), (3, 12), (40, 40), (7, 70)])
def test_fields_fill_a_workspace_and_do_not_overlap(batch, columns, dtype):
    itemsize = np.dtype(dtype).itemsize
    size = workspace.workspace_bytes.py_func(batch, columns, itemsize)
    assert size % LINE == 0
    # One that begins in the middle of a cache line, and one item more than none.
    memory = aligned_zeros((size // itemsize + LINE // itemsize,), dtype)[8:]
    work = memory[: size // itemsize]
    assert not workspace.lay_out.py_func(work[:-1], batch, columns)
    assert workspace.lay_out.py_func(work, batch, columns)
    parts = workspace.carve(work, batch, columns)
    begin = work.__array_interface__["data"][0]
    ranges = sorted(
        (field.__array_interface__["data"][0] - begin, field.nbytes)
        for field in (*parts[0], *parts[1:])
        if field.size
    )
    for (first, length), (following, _) in itertools.pairwise(ranges):
        assert first + length <= following < first + length + 2 * LINE
    last = sum(ranges[-1])
    assert ranges[0][0] >= 0
    assert last <= size < last + 3 * LINE
