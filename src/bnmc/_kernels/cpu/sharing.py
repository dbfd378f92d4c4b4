"""Whether one thread makes a layer, or several share it by panels.

The loop over layers is plain Python that is compiled, too.  Its argument `threads` is None in
compiled code: one thread makes whole layers.  In Python it may be an object whose methods divide
the work of the functions below, with the same bits.  See `simulation.engine.threads`.

A task is a kernel.  Its first arguments are a range of panels and the `Work` of its thread.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import chooses, inlined, kernel
from bnmc._kernels.cpu import rows
from bnmc._kernels.cpu.blocks import unpack_tiles


def _alone_or(method, alone):
    """Return a function of `threads` that calls its method, or `alone` if it is None."""

    def choose(threads, *arguments):
        return alone(*arguments) if threads is None else getattr(threads, method)(*arguments)

    chooses(choose, lambda *_: alone, leave_out=1)
    return choose


def shared(task):
    """Return a function that calls a task with ranges of panels that make up all of them.

    Its arguments are threads and those of the task for all panels.  It returns the least result
    that is not negative, or -1.
    """

    def choose(threads, first_panel, last_panel, work, *arguments):
        if threads is None:
            return task(first_panel, last_panel, work, *arguments)
        return threads.share(task, last_panel, work, *arguments)

    chooses(choose, lambda *_: task, leave_out=1)
    return choose


@inlined
def keep_sums(number, values, sums):
    """Add `values` of a panel to `sums`, which has a row for each panel, or one for all of them.

    There may be more values, after those.
    """
    row = sums[number % sums.shape[0]]
    if number < sums.shape[0]:
        row[:] = 0.0
    for k in range(np.uintp(row.shape[0])):
        row[k] += values[k]


@kernel
def merge_tiles(sums, width, gram, first, last):
    """Add all rows of `sums` to the first one, in their order, and write it as a Gram matrix.

    For rows first:last of tiles.  Returns whether all of it is finite.
    """
    begin, end = 8 * first * (first + 1), 8 * last * (last + 1)
    total = sums[0]
    for number in range(1, sums.shape[0]):
        row = sums[number]
        for k in range(np.uintp(begin), np.uintp(end)):
            total[k] += row[k]
    return unpack_tiles(total, width, gram, first, last)


#: factorise(threads, gram, spec, work) is `rows.factorise`.
factorise = _alone_or("factorise", rows.factorise)
#: merge(threads, sums, width, gram, 0, rows of tiles) is `merge_tiles`.
merge = _alone_or("merge", merge_tiles)
