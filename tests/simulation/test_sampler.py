"""What all samplers share: the smallest Gram matrix of a chain without a scale of its own."""

import numpy as np
import pytest

import bnmc
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.runs import Run


def test_gram_matrices_below_the_range_with_full_precision_are_errors():
    """Entries of 2⁻⁹⁶² and more have products with units of rounding in the normal range."""
    chain = bnmc.Chain(6, 2, "tanh", norm="none")
    sampler = RowSampler(Run(chain, "conditional", 3, None, "float64", first=40))
    # The exponent of 2⁻⁹⁶¹ is -960, that of the next smaller number -961.
    least = 2.0**-961
    fits = np.array([least * np.eye(2), np.eye(2), np.diag([1.0, 0.0])])
    sampler.require_scale(fits)
    for small in (
        np.nextafter(least, 0.0) * np.eye(2),
        np.diag([0.0, 2.0**-1000]),
        np.zeros((2, 2)),
    ):
        with pytest.raises(NonFiniteError, match="too small") as caught:
            sampler.require_scale(np.array([fits[1], fits[0], small]))
        assert caught.value.chain == 42
