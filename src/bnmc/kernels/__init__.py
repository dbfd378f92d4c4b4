"""The kernels, for compiled code of your own: layers and rows without Python around them.

Functions of this module are Numba dispatchers.  Call them from functions under ``numba.njit`` and
from ``prange`` loops: they hold no GIL, allocate nothing, raise nothing, and keep no state.  Python
may call them too.  They are what `bnmc.simulate` runs: the same key, chain, layer and dtype give
the same bits.

What they take:

* an activation, `activation("relu")`: a value whose Numba type is its own, so that every activation
  has compiled code of its own.  It can be an argument, a global or a closure variable;
* a law, `law(chain)`: a named tuple with what a kernel needs to know of a `bnmc.Chain`;
* a key, ``np.uint64(run.key)`` for that of a run, and the numbers of layer and chain, which address
  the random numbers;
* arrays for all results, named `out`, and for all that goes on from layer to layer;
* a `workspace`, one a thread.  What is in it between calls has no meaning, and it may be used for
  other laws next, at the price of clearing it when batch or inputs change.  Its dtype, float32 or
  float64, is the precision of rows and weights.

Arrays are C-contiguous.  What comes back is a status code: `OK`, `ZERO_VARIANCE`, `NOT_FINITE`,
`UNRESOLVED`, `BAD_ARGUMENT` or `SMALL_WORKSPACE`; `raise_status` turns it into the typed error.

Rows of all chains of a layer are kept as ``rows``, (columns, stride) arrays with columns = batch x
inputs, and stride the width rounded up to whole blocks of 512: `activations` and `representation`
make such.  A representation of shape (width, batch) is ``rows.T[:width]``.

`bnmc.kernels.c` has the same functions for C, `bnmc.kernels.cuda` some for CUDA kernels.  Names of
this module, and the C interface, follow semantic versioning.

Functions of yours that Numba keeps on disk (``cache=True``) contain these: clear that cache when
you change the version of bnmc.

Examples
--------
Thirty layers of a chain, without Python between them:

>>> import numba, numpy as np, bnmc
>>> from bnmc import kernels
>>> @numba.njit(nogil=True)
... def walk(sigma, law, depth, key, gram, work):
...     status = kernels.OK
...     for layer in range(depth + 1):
...         if status == kernels.OK:
...             status = kernels.conditional_layer(sigma, law, gram, layer, 0, key, gram, work)
...     return status
>>> chain = bnmc.Chain(100, 4, "relu")
>>> run = bnmc.simulate(chain, 30, rng=0, sampler="conditional")
>>> gram = np.eye(4)
>>> relu, law = kernels.activation("relu"), kernels.law(chain)
>>> walk(relu, law, 30, np.uint64(run.key), gram, kernels.workspace(chain))
0
>>> bool((gram == run.gram[0, -1]).all())
True
"""

from bnmc._kernels.compiling import Sigma, activate
from bnmc._kernels.scalar.codes import GAUSSIAN, RADEMACHER, UNIFORM, Law
from bnmc.kernels.layers import (
    BAD_ARGUMENT,
    NOT_FINITE,
    OK,
    ROWS,
    SMALL_WORKSPACE,
    UNRESOLVED,
    WEIGHTS,
    ZERO_VARIANCE,
    conditional_layer,
    failed_row,
    gram,
    normalise_activate,
    normalise_activate_row,
    weights_layer,
)
from bnmc.kernels.random_numbers import normals, philox, uniforms
from bnmc.kernels.values import (
    activation,
    activations,
    law,
    raise_status,
    representation,
    weight_law,
    workspace,
)

__all__ = [
    "BAD_ARGUMENT",
    "GAUSSIAN",
    "NOT_FINITE",
    "OK",
    "RADEMACHER",
    "ROWS",
    "SMALL_WORKSPACE",
    "UNIFORM",
    "UNRESOLVED",
    "WEIGHTS",
    "ZERO_VARIANCE",
    "Law",
    "Sigma",
    "activate",
    "activation",
    "activations",
    "conditional_layer",
    "failed_row",
    "gram",
    "law",
    "normalise_activate",
    "normalise_activate_row",
    "normals",
    "philox",
    "raise_status",
    "representation",
    "uniforms",
    "weight_law",
    "weights_layer",
    "workspace",
]
