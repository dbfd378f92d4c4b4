"""The Gram matrix with which runs are compared."""

from __future__ import annotations

import numpy as np
import pytest

import bnmc
from bnmc.cli import reference


@pytest.mark.parametrize(("activation", "is_unstable"), [("silu", True), ("relu", False)])
def test_says_so_where_it_is_unstable(activation: str, is_unstable: bool) -> None:
    star = reference.reference_of(bnmc.Chain(50, 32, activation), np.zeros((50, 32)))
    assert star.facts["stable"] is not is_unstable
    assert ("unstable" in star.note) == is_unstable
