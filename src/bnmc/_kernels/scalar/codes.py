"""The numbers by which the kernels of every target know norms, laws of weights, stops and streams.

Streams must keep their values: they are part of the address of every random number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Norms.
NORM_NONE, NORM_UNCENTRED, NORM_CENTRED = 0, 1, 2

# Orders of norm and activation in a layer: h' = skip N(h) + gain W σ(N(h)); h' = skip h +
# gain W N(σ(h)); h' = skip h + gain W σ(N(h)).
NORM_FIRST, ACTIVATION_FIRST, NORM_IN_BRANCH = 0, 1, 2

# Laws of weights.
GAUSSIAN, UNIFORM, RADEMACHER, GIVEN = 0, 1, 2, 3

# Why a chain stopped.
RUNNING, ZERO_VARIANCE, NOT_FINITE, UNRESOLVED = 0, 1, 2, 3

#: Why else: a sample has no variance over its features, in place of a row over the batch.
FLAT_SAMPLE = 5

#: Why else: a mean square of activations is so small that the sums of the layer rounded it.
TOO_SMALL = 6

#: Why a coupled pair stopped, besides ZERO_VARIANCE and NOT_FINITE: one of its two Gram matrices
#: lost rank, so the pair cannot meet.
DEGENERATE = 4

# Where δ of the layer above comes from in a backward pass: a readout after the last layer, the
# direction at the top, or the layer above, whose norm makes the sum over each batch zero if it
# centres.
READOUT, TOP, INNER = 0, 1, 2

#: Smallest relative pivot that sums of float32 numbers resolve.  Relative to the diagonal entry,
#: their rounding error is about 1e-7, and 1e-3 relative to such a pivot.
RESOLVED_PIVOT = 2.0**-13

#: Smallest standard deviation of rows for which sums of squares of float32 numbers have their full
#: precision: the unit of rounding of 2**-100 is in the normal range.
RESOLVED_DEVIATION = 2.0**-50

#: The smallest mean squares of float32 and of float64 numbers that sums of products do not round.
#: The unit of float32 numbers is 2**-149 or more, and half of it is 2**-25 of such a square.
#: Products of float64 numbers have units of rounding in the normal range.
LEAST_SQUARES = 2.0**-125, 2.0**-961

#: Between these, sums of squares of float32 and of float64 numbers neither overflow nor lose
#: digits.
LEAST_VARIANCE = RESOLVED_DEVIATION**2, 2.0**-960
MOST_VARIANCE = 2.0**120, 2.0**1000

#: Least relative pivot of zᵀz with which one pass makes the normals z orthogonal: rounding is 1e-5
#: of a column with float32 rows, 1e-14 with float64 rows.
ORTHOGONAL_PIVOT = 2.0**-6

#: Limit of the passes.  Each divides the least pivot by itself or by rounding, so two or three are
#: enough.
MOST_PASSES = 6

#: A pair counts as degenerate after more than this many consecutive layers without a common range.
#: From collinear samples, an activation that is not odd regains full rank within a few layers.
PATIENCE = 64

# Streams are the top four bits of the counter's last word.
STREAM_ROWS = np.uint32(0x00000000)
STREAM_WEIGHTS = np.uint32(0x20000000)
STREAM_FACTOR = np.uint32(0x40000000)
STREAM_CHI = np.uint32(0x60000000)
# Streams of coupled pairs: the first rows of the chain behind, the rows of its residual law, and
# the uniforms that accept or reject.
STREAM_START = np.uint32(0x80000000)
STREAM_RESIDUAL = np.uint32(0xA0000000)
STREAM_COIN = np.uint32(0xC0000000)
#: Stream of a backward pass, which no coupled pairs accompany.
STREAM_BACKWARD = STREAM_RESIDUAL
#: A float64 needs a second word.  Its stream is that of the first word plus this.
SECOND_WORD = np.uint32(0x10000000)

# Limits of the counters.  A layer has a word of 32 bits.  A chain shares a word with the stream,
# which leaves 28 bits.  Four rows share a word.
MOST_LAYERS, MOST_CHAINS, MOST_ROWS = 1 << 32, 1 << 28, 1 << 33

#: The place of a row whose variance leaves the range of its dtype, in place of that of a row
#: without variance.
ROW_OUT_OF_RANGE = MOST_ROWS

#: Largest number of elements of a counter, a word.  After so many, rejection sampling of coupled
#: pairs on a GPU repeats its elements; on the CPU it goes on with another key.
MOST_ELEMENTS = 2**32 - 1

SQRT3 = 1.7320508075688772
LOG_2 = 0.6931471805599453


class LayerSpec(NamedTuple):
    """All numbers that kernels know of a layer and of the linear map that leads to it.

    The rows of a layer are h = skip x + gain W a + b, with x and a of the layer before.  Its
    activations are σ(N(h)) or N(σ(h)), as `order` tells.
    """

    width: int
    batch: int
    columns: int  # batch times inputs
    fan_in: int  # weights of a row of W
    panel: int  # rows of a panel, which one thread makes
    weights: int  # code of their law
    gain: float
    skip: float
    bias: float  # standard deviation, 0 if the norm subtracts the bias
    uniform_bias: bool  # else it is Gaussian
    shared_variance: float  # what the bias adds to all entries of the covariance of W a + b / gain
    order: int
    norm: int  # code of the norm over the batch
    groups: int  # of features, of a norm over the features; else 0
    centred: bool  # whether the norm over the features subtracts the mean
    eps: float
    hides_common: bool  # rows of W a may be drawn without their mean over each batch
    hides_scale: bool  # rows of W a may be drawn in any scale


class Draw(NamedTuple):
    """The address of the random numbers of one layer of one chain, without element and row."""

    layer: int
    stream: np.uint32
    key0: np.uint32
    key1: np.uint32
