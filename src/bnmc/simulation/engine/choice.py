"""Which sampler takes a chain through its layers, and how long a layer takes."""

from __future__ import annotations

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError

#: The samplers, by the names that `simulate` takes.  "factor" is the form of the conditional
#: sampler for linear chains without normalization.
NAMES = {"conditional": "conditional", "weights": "weights", "factor": "conditional"}


def choose_sampler(
    chain: Chain, inputs: int | None, wanted: str, dtype: str, *, shows_state: bool = False
) -> str:
    """Return the cheapest valid sampler, or the wanted one; raise if that is not valid.

    `shows_state` tells whether the Gram matrices of h are recorded, which then have their biases.
    """
    if wanted == "weights":
        return "weights"
    shows_bias = chain.shows_bias or (shows_state and chain.bias_variance > 0.0)
    if chain.is_orthogonal and chain.is_row_by_row and not shows_bias:
        return "conditional"
    if not chain.is_gaussian:
        if wanted == "conditional":
            raise ArgumentError(
                "sampler",
                wanted,
                "'weights' or 'auto' unless the weights are Gaussian or Haar",
                "Haar: for norms over the batch before the activation, without bias"
                if chain.is_orthogonal
                else "",
            )
        return "weights"
    if chain.is_vanilla_linear:
        return "factor"
    if wanted == "conditional":
        return "conditional"
    columns = chain.batch * (inputs or 1)
    return min("conditional", "weights", key=lambda path: seconds_of(path, chain, columns, dtype))


def seconds_of(path: str, chain: Chain, columns: int, dtype: str, backend: str = "cpu") -> float:
    """Return the estimated time of one layer of one chain, in seconds.

    That is the time of one thread, or of one GPU.
    """
    scale = np.dtype(dtype).itemsize / 4
    entries = chain.width * (chain.fan_in if path == "weights" else columns)
    if backend == "cuda":
        return 1e-9 + entries * (2 + 0.05 * columns) * 1e-12 * scale
    if path == "factor":
        return 1e-6 + 1e-7 * columns**2 + 1e-9 * columns**3
    if path == "weights":
        # An orthogonal matrix takes a factorization.
        of_entry = 5e-10 * chain.width if chain.is_orthogonal else 0.5e-9
        return 1e-6 + entries * (of_entry + 6e-11 * columns) * scale
    # Orthogonal weights, and norms over the features, take a second pass over the rows.
    passes = 1.7 if chain.is_orthogonal or not chain.normalization.acts_on_rows else 1.0
    of_matrix = 4e-10 + 2e-11 * columns
    if chain.convolution is not None:  # the averages over taps
        of_matrix += 0.6e-9 * sum(chain.convolution.kernel)
    return 1e-6 + entries * (0.6e-9 + 4e-11 * columns) * passes * scale + columns**2 * of_matrix
