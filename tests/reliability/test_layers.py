"""Random layers that have the law of their chain pass `assert_same_law`.

They are of all norms, orders, laws of weights and activations, in float32 and float64, in NumPy and
of modules of PyTorch.
"""

import numpy as np
import pytest
from testing.correct_layers import correct_layer

from bnmc.testing import assert_same_law


def test_correct_layers_pass(numbers):
    """A false alarm has a probability of at most 1e-6 for each layer with Gaussian weights."""
    pytest.importorskip("torch")
    for number in numbers("layers"):
        chain, layer, dtype = correct_layer(number)
        with np.errstate(under="ignore"):
            try:
                assert_same_law(layer, chain, rng=number, rows=512)
            except Exception as error:
                error.add_note(f"layer {number}, {type(layer).__name__} in {dtype}")
                raise
