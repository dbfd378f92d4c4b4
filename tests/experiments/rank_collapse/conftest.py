"""Plain networks beside which the figures are."""

import math

import numpy as np
import pytest
from numpy_network import grams as plain_networks

import bnmc


@pytest.fixture(scope="session")
def plain():
    """M of plain networks without skip connection, width and batch 8, settled: (networks, …)."""
    chain = bnmc.Chain.bn_residual(8, 8, gamma=math.inf)
    return plain_networks(chain, 160, 400, np.random.default_rng(21))[:, 80:]
