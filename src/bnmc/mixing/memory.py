"""The memory of runs of coupled pairs, estimated before any pair is made."""

from __future__ import annotations

import math

from bnmc._kernels.cpu import memory
from bnmc._support.array_arguments import require_memory
from bnmc.chain.chain import Chain

#: Bytes of the numbers of a pair while it runs: its meeting, its tries, its status.
RUNNING = 56

#: Bytes of the results of a pair, of its part and of all parts together.
RESULTS = 100

#: Bytes of the description of a task and of the objects of its result.
_TASK = 1500


def require_memory_of_pairs(
    chain: Chain, replicates: int, size: int, workers: int, *, layers: int = 0, numbers: int = 0
) -> None:
    """Raise unless coupled pairs fit in memory.

    Parameters
    ----------
    chain : Chain
    replicates : int
        Number of pairs.
    size : int
        Number of pairs of a task.
    workers : int
        Number of tasks that run at the same time.
    layers : int
        Number of layers whose Gram matrices a task keeps, and evaluates.
    numbers : int
        Number of further float64 numbers that are kept of each pair.

    Raises
    ------
    ResultTooLargeError
        With the size.
    """
    n = chain.batch
    matrix = 8 * n * n
    sizes = memory.shapes(n, n)
    # Each chain of a pair has buffers; the pair has three matrices and a second block of rows.
    buffers = 2 * 8 * sum(map(math.prod, sizes)) + 3 * matrix + 8 * math.prod(sizes[0])
    # Two Gram matrices in each layer, and what an observable makes of those of one chain.
    of_pair = 2 * matrix + RUNNING + layers * 5 * matrix
    busy = min(workers, -(-replicates // size))
    tasks = _TASK * -(-replicates // size)
    results = replicates * (RESULTS + 8 * numbers) + tasks
    require_memory("replicates", 3 * matrix + busy * (buffers + size * of_pair) + results)
