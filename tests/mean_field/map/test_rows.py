"""The law of a row: which eps it still sees."""

import math

import numpy as np
import pytest

from bnmc import Chain
from bnmc.mean_field.map.rows import gaussian_rows


@pytest.mark.parametrize("rank", [1, 4])
def test_an_eps_below_rounding_is_none(rank):
    """Of four equal or four independent samples the damping is eps; one of 1e-32 changes no
    expectation by more than rounding."""
    gram = np.ones((4, 4)) if rank == 1 else np.eye(4)
    above = math.nextafter(1e-32, 1.0)

    def damping(eps):
        rows = gaussian_rows(Chain(4, 4, norm="batch-uncentred", eps=eps).layers[1], gram)
        assert rows.rank == rank
        return rows.damping

    assert damping(1e-32) == 0.0
    assert damping(above) == pytest.approx(above, rel=1e-15, abs=0.0)
