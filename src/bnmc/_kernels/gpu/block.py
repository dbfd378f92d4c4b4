"""A block: the number of a thread, the last block of a chain, and notes of why a chain stopped.

A note is ``(step << STEP_BITS) + reason``, one int64 per chain.  The reason is the number of a row
without variance, or one of the STOPPED codes.  Threads and blocks that share a chain write with an
atomic minimum, so the note of the earliest step remains and, within a step, that of the first row.
"""

from __future__ import annotations

import numpy as np
from numba import int64

from bnmc._kernels.gpu.constants import at_flags, at_zero
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import u32

#: Bits of the reason.
STEP_BITS = 36
REASON_MASK = (1 << STEP_BITS) - 1
#: The note of a chain that has not stopped; larger than any other note.
NOT_STOPPED = 2**62
#: Reasons, larger than the number of any row: an entry of the Gram matrix or the variance of a row
#: leaves the range of numbers; the Gram matrix has pivots that float32 rows do not resolve; or sums
#: over rows rounded its diagonal.
STOPPED_NOT_FINITE, STOPPED_UNRESOLVED, STOPPED_TOO_SMALL = 2**35, 2**35 + 1, 2**35 + 2
#: This reason plus k: the sample in column k has no variance over its features.
STOPPED_FLAT = 2**35 + 3


def begin():
    """Prepare `thread`; every kernel that uses `thread` calls this first."""
    whole = cuda.shared.array(0, int64)
    if cuda.threadIdx.x == 0:
        whole[u32(at_zero)] = 0
    cuda.syncthreads()


def thread():
    """Return the number of the thread.

    Adds a runtime zero, so that the compiler cannot hoist per-layer values into registers.
    """
    whole = cuda.shared.array(0, int64)
    return np.uint32(cuda.threadIdx.x + whole[u32(at_zero)])


def is_last(arrived, chain, blocks):
    """Whether all `blocks` have written their results, which this one may then read."""
    whole = cuda.shared.array(0, int64)
    t = cuda.threadIdx.x
    cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        whole[u32(at_flags)] = cuda.atomic.add(arrived, chain, 1)
    cuda.syncthreads()
    if whole[u32(at_flags)] != blocks - 1:
        return False
    cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        arrived[chain] = 0
        whole[u32(at_flags)] = NOT_STOPPED
    return True
