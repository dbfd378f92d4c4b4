"""Calls that mypy --strict reads in `make lint`: right ones, and wrong ones which it must refuse.

Public functions and compiled ones have types without stubs.  A "type: ignore" that mypy does
not need is an error, too.
"""

import numpy as np

import bnmc
from bnmc import kernels
from bnmc.kernels import c


def calls() -> tuple[object, ...]:
    """Nobody runs them."""
    chain = bnmc.Chain(10, 2, "relu")
    gram = np.eye(2)
    status: int = kernels.conditional_layer(
        kernels.activation("relu"), kernels.law(chain), gram, 1, 0, np.uint64(7), gram,
        kernels.workspace(chain),
    )  # fmt: skip
    words: tuple[int, int, int, int] = kernels.philox(0, 0, 0, 0, 0, 0)
    address: int = c.table("relu").address
    text: str = c.header()
    seconds: float = bnmc.warmup(activations="relu").seconds
    key: int = bnmc.simulate(chain, 3).key
    bnmc.testing.assert_same_law(lambda h: h, chain)
    samples: int = len(bnmc.infinite_width.ntk(chain, gram, 3))
    gradients = bnmc.backpropagate(chain, 3, loss_gradient=lambda h: h, classes=2, rng=key)
    double: bnmc.Estimate = 2 * gradients.backward_rate()

    kernels.gram(3, gram, gram, gram)  # type: ignore[arg-type]
    kernels.normals(gram, 0, 0, 0, 0, 7, kernels.Stream.ROWS)  # type: ignore[arg-type]
    text = kernels.failed_row(gram)  # type: ignore[assignment]
    bnmc.warmup(dtypes=3)  # type: ignore[arg-type]
    return status, words, address, text, seconds, samples, double
