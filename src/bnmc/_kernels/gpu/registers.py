"""How many registers a thread may use, so that as many blocks as possible run at once."""

from __future__ import annotations

from bnmc._kernels.gpu.shape import MULTIPLIED, Shape

#: Largest numbers of registers of a thread.  With 256 threads of 128 registers, a multiprocessor
#: runs two blocks; with 80 registers, enough if a thread accumulates few numbers, it runs three.
MOST_REGISTERS, FEW_REGISTERS, FEW_ACCUMULATORS = 128, 80, 40
#: The same if weights are multiplied by threads that have all columns.
REGISTERS_OF_WEIGHTS = 144
#: Bytes of shared memory of a multiprocessor.
SHARED_OF_PROCESSOR = 226 * 1024


def most_registers(shape: Shape) -> int:
    """Return the largest number of registers of a thread of every kernel except `layers`."""
    if shape.spec.source == MULTIPLIED and shape.groups == 1:
        return REGISTERS_OF_WEIGHTS
    if 2 * shape.bytes > SHARED_OF_PROCESSOR and shape.threads <= 256:
        # Shared memory has no room for a second block, so one block may have all registers.
        return 255
    return MOST_REGISTERS


def registers_of_layers(shape: Shape) -> int:
    """Return the largest number of registers of a thread of the kernel `layers`."""
    few = shape.spec.single and shape.accumulators <= FEW_ACCUMULATORS
    return FEW_REGISTERS if few else most_registers(shape)
