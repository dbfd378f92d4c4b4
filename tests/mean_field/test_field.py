"""`MeanField`: its argument."""

import pytest

from bnmc.errors import ArgumentTypeError
from bnmc.mean_field import MeanField


def test_only_chains_have_a_mean_field():
    with pytest.raises(ArgumentTypeError, match="^chain"):
        MeanField("relu")
