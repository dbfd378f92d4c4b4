"""The kernels of `bnmc.simulate`, for compiled code of your own.

The kernels are Numba dispatchers. Call them in functions under ``numba.njit``, in ``prange``
loops, or in Python. They hold no GIL, allocate nothing, raise nothing and keep no state. With the
same key, chain, layer, dtype and sampler they give the same bits as `bnmc.simulate`. Functions that
make arguments, such as `law`, `activation` and `workspace`, are Python functions.

They take these arguments:

* an activation, `activation("relu")`. Each activation has a Numba type, and so compiled code, of
  its own. It can be an argument, a global variable or a closure variable;
* a law, `law(chain)`: a named tuple of the parameters of a `bnmc.Chain`;
* a key, ``np.uint64(run.key)`` for that of a run, and the numbers of layer and chain. Together they
  address the random numbers;
* arrays for all results, named `out`, and for the state that passes from layer to layer;
* a `workspace` for each thread. Its contents between calls have no meaning. It may serve several
  laws in turn, but is cleared when batch or inputs change. Its dtype, float32 or float64, is the
  precision of rows and weights.

All arrays are C-contiguous. Kernels that write arrays return the number of a `Status`.
`raise_status` raises the error of a status.

The rows of a layer are stored as an array of shape (columns, stride), with columns = batch × inputs
and the width rounded up to a multiple of 512 as stride. `activations` and `representation` make
such arrays. The representation of shape (width, batch) is ``rows.T[:width]``.

`bnmc.kernels.c` has the same functions for C, `bnmc.kernels.cuda` some of them for CUDA kernels.
The names of this package and the C interface follow semantic versioning.

If Numba keeps your functions on disk (``cache=True``), they contain these kernels: put `digest`
into the name of the folder of that cache, or clear it when you change the version of bnmc.

The package may import `chain` and lower levels. Read `layers.py` first.

Examples
--------
Thirty layers of a chain in compiled code:

>>> import numba, numpy as np, bnmc
>>> from bnmc import kernels
>>> @numba.njit(nogil=True)
... def walk(sigma, law, depth, key, gram, work):
...     status = kernels.Status.OK
...     for layer in range(depth + 1):
...         if status == kernels.Status.OK:
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

import importlib
from typing import TYPE_CHECKING

from bnmc._kernels.compiling import Sigma as Sigma
from bnmc._kernels.compiling import activate
from bnmc.kernels.checks import Law as Law
from bnmc.kernels.checks import Status, Stream, WeightCode
from bnmc.kernels.layers import (
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
    digest,
    law,
    raise_status,
    representation,
    weight_law,
    workspace,
)

__all__ = [
    "Status",
    "Stream",
    "WeightCode",
    "activate",
    "activation",
    "activations",
    "conditional_layer",
    "digest",
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

if TYPE_CHECKING:
    from bnmc.kernels import c as c
    from bnmc.kernels import cuda as cuda
else:  # type checkers find a wrong name by themselves

    def __getattr__(name: str) -> object:
        """Import the module `c` or `cuda`; the error about a former code names its enumeration."""
        if name in ("c", "cuda"):
            return importlib.import_module(f"{__name__}.{name}")
        text = f"module {__name__!r} has no attribute {name!r}"
        for codes in (Status, WeightCode, Stream):
            if name in codes.__members__:
                text = f"{text}; it is now '{codes.__name__}.{name}'"
        raise AttributeError(text, name=name)
