"""Each figure, run once for all tests.  Seeds are fixed."""

import math
from unittest import mock

import numpy as np
import pytest
from numpy_network import grams as plain_networks

import bnmc
from bnmc.experiments.parts import Call
from bnmc.experiments.rank_collapse import (
    centred_or_not,
    rank_over_depth,
    spectrum_over_depth,
    vanilla_collapse,
)
from bnmc.mean_field.fixed_point import uncentred


@pytest.fixture(scope="session")
def fig_2():
    return rank_over_depth.experiment(
        rank_over_depth.Sizes(16, 2048, 24), Call("rank-collapse-2", rng=1)
    )


@pytest.fixture(scope="session")
def fig_3b():
    return spectrum_over_depth.experiment(
        spectrum_over_depth.Sizes(20, 150, 64, shown=4), Call("rank-collapse-3b", rng=3)
    )


@pytest.fixture(scope="session")
def lemma_3():
    return vanilla_collapse.experiment(
        vanilla_collapse.Sizes(16, 0.25, 256, 96, 200), Call("rank-collapse-lemma-3", rng=4)
    )


@pytest.fixture(scope="session")
def centring():
    # The experiment does not show the block between two batches, which takes 3 s.
    with mock.patch.object(uncentred, "cross_batch", return_value=(0.0, 0.0)):
        return centred_or_not.experiment(
            centred_or_not.Sizes(64, 8, 80, 50), Call("rank-collapse-centring", rng=5)
        )


@pytest.fixture(scope="session")
def plain():
    """M of plain networks without skip connection, width and batch 8, settled: (networks, …)."""
    chain = bnmc.Chain.bn_residual(8, 8, gamma=math.inf)
    return plain_networks(chain, 160, 400, np.random.default_rng(21))[:, 80:]
