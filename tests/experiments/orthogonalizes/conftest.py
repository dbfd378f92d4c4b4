"""Each figure, run once for all tests.  Seeds are fixed."""

import pytest

from bnmc.experiments.orthogonalizes import (
    cosine,
    gap_over_depth,
    gap_over_width,
    gaussian_distance,
    other_activations,
)
from bnmc.experiments.orthogonalizes.common import Sizes
from bnmc.experiments.parts import Call


@pytest.fixture(scope="session")
def fig_1():
    return cosine.experiment(cosine.DEFAULT, Call("orthogonalizes-1", rng=1))


@pytest.fixture(scope="session")
def fig_2a():
    return gap_over_depth.experiment(Sizes((32, 512), 50, 200), Call("orthogonalizes-2a", rng=2))


@pytest.fixture(scope="session")
def fig_2b():
    return gap_over_width.experiment(
        Sizes((16, 256, 4096), 300, 32), Call("orthogonalizes-2b", rng=3)
    )


@pytest.fixture(scope="session")
def fig_6():
    sizes = other_activations.Sizes(other_activations.PUBLISHED[:2], (64, 256, 1024), 50, 32)
    return other_activations.experiment(sizes, Call("orthogonalizes-6", rng=4))


@pytest.fixture(scope="session")
def wasserstein():
    groups = Sizes((32, 512), 40, 100), Sizes((2**15,), 30, 20)
    return gaussian_distance.experiment(groups, Call("orthogonalizes-wasserstein", rng=5))
