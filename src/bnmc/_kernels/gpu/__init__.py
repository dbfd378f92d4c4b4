"""The GPU kernels: layers of an ensemble of chains, and layers of coupled pairs of chains.

This package compiles the scalar functions of `_kernels.scalar` for CUDA devices and builds kernels
from them.  It may import `_kernels.scalar`, `_kernels.compiling`, NumPy and Numba, and nothing else
of the project; only `device` imports Numba's CUDA target.  Read `layers` first, which has the
kernels of plain layers; `arguments` tells what kernels take, and `build` links them.

A block of threads works on a *tile* of rows of a layer, in shared memory, in the order
(column, row).  Philox makes four words per call, which become the numbers of four rows, a *quad*.
One thread makes one quad, for all columns or for a chunk of them.  If a thread has all columns, it
keeps its rows in registers until they are activated.  Threads sum the Gram matrix of a tile in
registers: each thread sums a square of entries over a share of the rows.  The shares are then added
in float64, in a fixed order.  No sum uses atomic additions, so results depend neither on scheduling
nor on the device, to the bit.

If there are many chains, one block takes one chain through all layers (`layers.layers`).  If
there are few, several blocks share the rows of one layer, and the last block to finish merges the
sums of all (`layers.rows`).  Both add the sums of tiles in the order of the tiles.  A layer
of more than `MOST_RANGES` tiles is divided into that many ranges of tiles.  Only `rows` can
make such a layer; it adds the sums of ranges in their order.  So results do not depend on the
number of blocks either.

Each kernel is compiled for one `shape.Spec`.  Kernels and device functions are plain functions.
The names of constants that they import from `constants` are those of a `shape.Shape`, and a
`device.Linker` compiles copies of the functions with the values in the place of the names.
"""
