"""Each figure, run once for all tests.  Seeds are fixed."""

import math
from unittest import mock

import numpy as np
import pytest
from numpy_network import grams as plain_networks

import bnmc
from bnmc.experiments.parts import Call
from bnmc.experiments.rank_collapse import (
    broken_norm,
    centred_or_not,
    gradient_directions,
    pretrained_ranks,
    rank_and_accuracy,
    rank_in_training,
    rank_over_depth,
    spectrum_over_depth,
    vanilla_collapse,
)
from bnmc.mean_field.fixed_point import uncentred


@pytest.fixture(scope="session")
def fig_1():
    sizes = rank_and_accuracy.Sizes(32, (1, 12), 32, 320, 3, (0.02, 0.1), 5)
    return rank_and_accuracy.experiment(sizes, Call("rank-collapse-1", rng=6))


@pytest.fixture(scope="session")
def fig_2():
    return rank_over_depth.experiment(
        rank_over_depth.Sizes(16, 2048, 24), Call("rank-collapse-2", rng=1)
    )


@pytest.fixture(scope="session")
def fig_4():
    # More layers, or a larger rate of the pre-training, multiply rounding errors without bounds:
    # processors then show other numbers.  These sizes multiply them by less than 1e5.
    sizes = pretrained_ranks.Sizes(24, (2, 5), 32, 96, 1, 1, 2, 40, 0.01, (0.01,), 4.0, 5)
    return pretrained_ranks.experiment(sizes, Call("rank-collapse-4", rng=7))


@pytest.fixture(scope="session")
def fig_5():
    sizes = broken_norm.Sizes(16, 6, ((4,), (4,)), 32, 160, 5, 0.1, 5)
    return broken_norm.experiment(sizes, Call("rank-collapse-5", rng=8))


@pytest.fixture(scope="session")
def fig_6():
    # As for Fig. 4: more steps, or a larger rate, multiply rounding errors without bounds.
    sizes = rank_in_training.Sizes(24, 4, 32, 96, 2, (5, 20), 4, 0.3, 0.1, 3)
    return rank_in_training.experiment(sizes, Call("rank-collapse-6", rng=9))


@pytest.fixture(scope="session")
def fig_10():
    # With 4 channels the last ReLU is 0 for some image in one of few networks: it has no direction.
    sizes = gradient_directions.Sizes(((6,) * 3, (6,) * 3), 32, 96, 3, 0.03, 3)
    return gradient_directions.experiment(sizes, Call("rank-collapse-10", rng=10))


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
