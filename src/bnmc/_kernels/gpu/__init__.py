"""The GPU kernels: layers of an ensemble of chains, and layers of coupled pairs of chains.

This package compiles the scalar functions of `_kernels.scalar` for CUDA devices and builds kernels
from them.  It may import `_kernels.scalar`, `_kernels.compiling`, NumPy and Numba, and nothing else
of the project; only `device` imports Numba's CUDA target.  Read `build` first:
`build.kernels_of(spec)` puts the kernels of one kind of chain together, and its imports name the
file of each part.

A block of threads works on a *tile* of rows of a layer, in shared memory, in the order
(column, row).  Philox makes four words per call, which become the numbers of four rows, a *quad*.
One thread makes one quad, for all columns or for a chunk of them.  If a thread has all columns, it
keeps its rows in registers until they are activated.  Threads sum the Gram matrix of a tile in
registers: each thread sums a square of entries over a share of the rows.  The shares are then added
in float64, in a fixed order.  No sum uses atomic additions, so results depend neither on scheduling
nor on the device, to the bit.

If there are many chains, one block takes one chain through all layers (`layers.layers_kernel`).  If
there are few, several blocks share the rows of one layer, and the last block to finish merges the
sums of all (`layers.rows_kernel`).  Both add the sums of tiles in the order of the tiles.  A layer
of more than `MOST_RANGES` tiles is divided into that many ranges of tiles.  Only `rows_kernel` can
make such a layer; it adds the sums of ranges in their order.  So results do not depend on the
number of blocks either.

Each kernel is compiled for one `shape.Spec`.  Functions of the form `..._functions(shape, ...)`
return device functions whose constants are those of a `shape.Shape`.  They copy the constants to
local names, because Numba treats a captured local integer as a literal: only literals size local
arrays and remove branches.
"""
