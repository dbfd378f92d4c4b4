"""Each figure, run once for all tests.  Seeds are fixed."""

import pytest

from bnmc.experiments.orthogonalizes import (
    cosine,
    gap_and_training,
    gap_over_depth,
    gap_over_width,
    gaussian_distance,
    orthogonal_convolutions,
    orthogonal_perceptrons,
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
def fig_3():
    sizes = gap_and_training.Sizes(24, (2, 12), 32, 160, 4, 1, 0.03, 5)
    return gap_and_training.experiment(sizes, Call("orthogonalizes-3", rng=6))


@pytest.fixture(scope="session")
def fig_4():
    sizes = orthogonal_perceptrons.Sizes(24, (3, 8), 32, 160, 2, 1, -0.5, (0.01, 0.1), 3)
    return orthogonal_perceptrons.experiment(sizes, Call("orthogonalizes-4", rng=7))


@pytest.fixture(scope="session")
def fig_7():
    sizes = orthogonal_convolutions.Sizes(
        ((4,), (4,)), (2, 6), 96, 32, 64, 2, 1, (0.03,), 3
    )  # fmt: skip
    return orthogonal_convolutions.experiment(sizes, Call("orthogonalizes-7", rng=8))


@pytest.fixture(scope="session")
def fig_6():
    sizes = other_activations.Sizes(other_activations.PUBLISHED[:2], (64, 256, 1024), 50, 32)
    return other_activations.experiment(sizes, Call("orthogonalizes-6", rng=4))


@pytest.fixture(scope="session")
def wasserstein():
    groups = Sizes((32, 512), 40, 100), Sizes((2**15,), 30, 20)
    return gaussian_distance.experiment(groups, Call("orthogonalizes-wasserstein", rng=5))
