"""Orthogonal columns, and what chains with orthogonal weights preserve.

`simulation/test_formula.py` and `test_law.py` have their formula and their law.
"""

import numpy as np
import pytest
from laws import haar
from slow_cases import some

import bnmc
from bnmc._kernels.cpu import orthogonal
from bnmc.errors import ZeroVarianceError

pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")


def test_columns_are_orthogonal_however_near_the_normals_are_to_singular():
    # The third column is the first but for 1e-9: one pass leaves an error of order 1.
    z = np.random.default_rng(2).standard_normal((5, 4))
    z[:, 2] = z[:, 0] + 1e-9 * z[:, 2]
    inverse, passes, least = np.eye(4), 0, 0.0
    while least < orthogonal.ORTHOGONAL_PIVOT:
        columns = z @ inverse.T
        least = orthogonal.invert_root(columns.T @ columns / 5, inverse)
        passes += 1
    columns = z @ inverse.T
    # What remains is rounding of the columns themselves, 1e-16 / 1e-9.
    np.testing.assert_allclose(columns.T @ columns / 5, np.eye(4), atol=2e-6)
    assert 1 < passes <= orthogonal.MOST_PASSES


@pytest.mark.parametrize("limit_rank", [orthogonal.limit_rank, orthogonal.limit_rank.py_func])
def test_columns_beyond_the_possible_rank_are_dropped(limit_rank):
    factor, regular = np.tril(np.ones((6, 6))), np.array([True, False, True, True, True, False])
    assert limit_rank(3, regular, factor) == 3
    assert regular.tolist() == [True, False, True, True, False, False]
    assert not factor[:, 4].any()
    assert factor[:, [0, 2, 3]].any(axis=0).all()
    assert limit_rank(4, regular, factor) == 3


def test_dead_rows_raise():
    # W is 1 or -1, and after -1 the activations are zero.
    chain = haar(1, 2, "relu", norm="batch-uncentred")
    with pytest.raises(ZeroVarianceError, match="row 0"):
        bnmc.simulate(chain, 3, chains=20, initial=[[1.0, 2.0]], rng=2)


# --- what orthogonal weights preserve


# Kernels of layers without norm compile for 4 seconds in float32, and differ in the scale that is
# split off.
@pytest.mark.parametrize("dtype", some(["float64", "float32"], "float64"))
@pytest.mark.parametrize("width", [3, 5, 6, 100])
def test_a_linear_chain_without_norm_keeps_its_gram_matrix(width, dtype):
    initial = np.random.default_rng(4).standard_normal((width, 6))
    initial[:, 2], initial[:, 4], initial[:, 5] = -3.0 * initial[:, 0], initial[:, 1], 0.0
    chain = haar(width, 6, "linear", norm="none")
    run = bnmc.simulate(chain, 50, chains=3, initial=initial, rng=5, dtype=dtype)
    unit = 1e-12 if dtype == "float64" or run.widened else 3e-5
    np.testing.assert_allclose(run.gram, run.gram[:, :1] + 0.0 * run.gram, atol=unit * 20)
    # Copies stay copies to the bit.
    np.testing.assert_array_equal(run.gram[..., 1, :], run.gram[..., 4, :])


def test_gain_and_scale_of_a_deep_chain():
    chain = haar(8, 3, "linear", norm="none", gain=3.0)
    run = bnmc.simulate(chain, 2000, rng=6, observables=("scaled_gram", "log_scale"))
    grown = run.log_scale[0, -1] - run.log_scale[0, 0]
    ratio = np.trace(run.scaled_gram[0, -1]) / np.trace(run.scaled_gram[0, 0])
    np.testing.assert_allclose(grown + np.log(ratio), 4000 * np.log(3.0), rtol=1e-9)
