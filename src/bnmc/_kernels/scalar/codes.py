"""Codes and constants that all kernels share, on the CPU and on the GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Norms and laws of weights as kernels know them.
NORM_NONE, NORM_UNCENTRED, NORM_CENTRED = 0, 1, 2
GAUSSIAN, UNIFORM, RADEMACHER, GIVEN = 0, 1, 2, 3

# What may happen to a chain.
RUNNING, ZERO_VARIANCE, NOT_FINITE, UNRESOLVED = 0, 1, 2, 3

# The least pivot, as a part of its diagonal entry, that sums of float32 numbers resolve: their
# rounding is about 1e-7 of the entry, so 1e-3 of such a pivot.
RESOLVED_PIVOT = 2.0**-13

# Streams: the top four bits of the counter's last word.  The second word of a float64 has the
# number of the first, plus one.
STREAM_ROWS = np.uint32(0x00000000)
STREAM_WEIGHTS = np.uint32(0x20000000)
STREAM_FACTOR = np.uint32(0x40000000)
STREAM_CHI = np.uint32(0x60000000)
SECOND_WORD = np.uint32(0x10000000)
SQRT3 = 1.7320508075688772
LOG_2 = 0.6931471805599453


class Law(NamedTuple):
    """What a kernel needs to know of a chain; `columns` is batch times the number of inputs."""

    width: int
    batch: int
    columns: int
    norm: int
    skip: float
    gain: float
    eps: float


class Draw(NamedTuple):
    """Where the random numbers of a layer of one chain are: all but element and row."""

    layer: int
    stream: np.uint32
    key0: np.uint32
    key1: np.uint32
