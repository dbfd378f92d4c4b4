"""Chains with orthogonal weights: the formula, and the law against networks with real matrices.

The law tests compare 20,000 networks of each kind by two-sample Kolmogorov-Smirnov tests of entries
and of functions of the Gram matrices of all layers.  Each of the k comparisons of a test has the
level 1e-6 / k.
"""

import numpy as np
import pytest
from numpy_network import Networks
from oracle import FALSE_ALARM, normalise, normals, projector, semidefinite_cholesky
from scipy import stats
from slow_cases import some

import bnmc
from bnmc import Chain
from bnmc._kernels.cpu import orthogonal
from bnmc._kernels.scalar import codes
from bnmc.errors import ArgumentError, ZeroVarianceError

pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")

COUNT = 20_000
RNG = np.random.default_rng(8)
TWINS = np.repeat(RNG.standard_normal((5, 2)), [2, 1], axis=1)
COLLINEAR = np.outer(RNG.standard_normal(4), [1.0, -2.0, 0.5])


def chain_of(width, batch, activation="tanh", **options):
    return Chain(width, batch, activation, weights="haar", **options)


def grams_of(run):
    """Return the Gram matrices of all samples, (chains, layers, columns, columns)."""
    if run.inputs is None:
        return run.gram
    cross = run["cross_gram"].swapaxes(-3, -2)
    columns = cross.shape[-2] * cross.shape[-1]
    return cross.reshape(*cross.shape[:2], columns, columns)


# --- the formula


def next_gram(chain, a, x, draw):
    """Return the Gram matrix of σ(N(skip x + gain W a)), by QR of the normals of the rows."""
    d, n = a.shape
    p = projector(chain.batch, n // chain.batch) if chain.norm == "batch" else np.eye(n)
    factor = semidefinite_cholesky(p @ a.T @ a @ p / d)
    regular = np.flatnonzero(factor.any(axis=0))
    z = np.zeros((d, n))
    z[:, regular] = normals(regular, np.arange(d), draw, np.float64).T
    q, r = np.linalg.qr(z[:, regular])
    z[:, regular] = q * np.sign(np.diag(r)) * np.sqrt(d)
    h = chain.skip * x + chain.gain * z @ factor.T
    after = np.tanh(normalise(h, chain.norm, chain.batch, chain.eps))
    return after.T @ after / d


@pytest.mark.parametrize(
    ("chain", "inputs"),
    [
        (chain_of(7, 4), 1),
        (chain_of(4, 4, norm="none", gain=1.3), 1),
        (chain_of(1300, 6, norm="batch-uncentred", eps=0.1, gain=0.7), 1),
        (chain_of(700, 3, skip=0.8, gain=0.6), 2),
        (chain_of(30, 5, skip=-0.5), 1),
    ],
)
def test_a_layer_is_the_formula(chain, inputs):
    shape = (chain.width, chain.batch)
    initial = np.random.default_rng(1).standard_normal(shape if inputs == 1 else (inputs, *shape))
    run = bnmc.simulate(
        chain, 1, initial=initial, inputs=None if inputs == 1 else inputs, rng=3,
        observables="gram" if inputs == 1 else "cross_gram",
    )  # fmt: skip
    stacked = initial if inputs == 1 else np.concatenate(list(initial), axis=1)
    x = normalise(stacked, chain.norm, chain.batch, chain.eps)
    keys = np.uint32(run.key & 0xFFFFFFFF), np.uint32(run.key >> 32)
    draw = codes.Draw(1, codes.STREAM_ROWS, *keys)
    expected = next_gram(chain, np.tanh(x), x, draw)
    np.testing.assert_allclose(grams_of(run)[0, 1], expected, atol=1e-12)


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
    chain = chain_of(1, 2, "relu", norm="batch-uncentred")
    with pytest.raises(ZeroVarianceError, match="row 0"):
        bnmc.simulate(chain, 3, chains=20, initial=[[1.0, 2.0]], rng=2)


# --- what orthogonal weights preserve


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [3, 5, 6, 100])
def test_a_linear_chain_without_norm_keeps_its_gram_matrix(width, dtype):
    initial = np.random.default_rng(4).standard_normal((width, 6))
    initial[:, 2], initial[:, 4], initial[:, 5] = -3.0 * initial[:, 0], initial[:, 1], 0.0
    chain = chain_of(width, 6, "linear", norm="none")
    run = bnmc.simulate(chain, 50, chains=3, initial=initial, rng=5, dtype=dtype)
    unit = 1e-12 if dtype == "float64" or run.widened else 3e-5
    np.testing.assert_allclose(run.gram, run.gram[:, :1] + 0.0 * run.gram, atol=unit * 20)
    # Copies stay copies to the bit.
    np.testing.assert_array_equal(run.gram[..., 1, :], run.gram[..., 4, :])


def test_gain_and_scale_of_a_deep_chain():
    chain = chain_of(8, 3, "linear", norm="none", gain=3.0)
    run = bnmc.simulate(chain, 2000, rng=6, observables=("scaled_gram", "log_scale"))
    grown = run.log_scale[0, -1] - run.log_scale[0, 0]
    ratio = np.trace(run.scaled_gram[0, -1]) / np.trace(run.scaled_gram[0, 0])
    np.testing.assert_allclose(grown + np.log(ratio), 4000 * np.log(3.0), rtol=1e-9)


def test_weights_are_orthogonal_and_lead_to_the_next_layer():
    # A layer has two panels of rows.
    chain = chain_of(520, 3)
    initial = np.random.default_rng(7).standard_normal((520, 3))
    run = bnmc.simulate(chain, 1, initial=initial, rng=8, sampler="weights", chains=2)
    weights = bnmc.drawn_weights(run, 1, chain=1)
    np.testing.assert_allclose(weights @ weights.T, np.eye(520), atol=1e-12)
    a = np.tanh(normalise(weights @ np.tanh(normalise(initial, "batch", 3)), "batch", 3))
    np.testing.assert_allclose(run.gram[1, -1], a.T @ a / 520, atol=1e-12)


# --- the law

CASES = {
    "width = rank": (chain_of(4, 4, norm="none", gain=1.5), 3, None, 1),
    "width just above rank": (chain_of(4, 4), 3, None, 1),
    "width below batch": (chain_of(3, 6), 3, None, 1),
    "relu": (chain_of(12, 4, "relu", gain=0.7), 3, None, 1),
    "wide": (chain_of(40, 3, "leaky_relu"), 1, None, 1),
    "uncentred": (chain_of(6, 3, "sin", norm="batch-uncentred"), 3, None, 1),
    "uncentred, width = rank": (chain_of(3, 3, "linear", norm="batch-uncentred"), 3, None, 1),
    "eps": (chain_of(6, 3, gain=0.5, eps=0.3), 3, None, 1),
    "skip": (chain_of(5, 3, skip=0.8, gain=0.6), 3, None, 1),
    "skip without norm": (chain_of(5, 2, "leaky_relu", norm="none", skip=0.8), 3, None, 1),
    "inputs": (chain_of(5, 3), 2, None, 2),
    "inputs, width = rank": (chain_of(4, 2, norm="none"), 2, None, 2),
    "twins": (chain_of(5, 3, norm="none"), 3, TWINS, 1),
    "collinear": (chain_of(4, 3, norm="none", skip=0.5), 2, COLLINEAR, 1),
}


def features(gram):
    """Return numbers of each network whose laws are compared, (networks, numbers)."""
    first, second = gram[:, 1, 0], gram[:, -1, 0]
    parts = [
        gram[:, 1:, 0, 0],
        gram[:, 1:, 0, 1],
        gram[:, 1:, 0, -1],
        np.trace(gram, axis1=-2, axis2=-1)[:, 1:],
        np.linalg.eigvalsh(gram[:, -1])[:, [0, -1]],
        first * second,
    ]
    # Some are constants but for rounding.
    return np.concatenate(parts, axis=1).round(10)


def smallest_p_value(ours, theirs):
    pairs = zip(features(ours).T, features(theirs).T, strict=True)
    values = [stats.ks_2samp(a, b).pvalue for a, b in pairs]
    return min(values) * len(values)


def simulated(chain, depth, initial, inputs, count=COUNT, **options):
    start = {} if initial is None else {"initial": initial}
    name = "gram" if inputs == 1 else "cross_gram"
    run = bnmc.simulate(
        chain, depth, chains=count, inputs=None if inputs == 1 else inputs, observables=name,
        rng=5, threads=2, **start, **options,
    )  # fmt: skip
    return grams_of(run)


def of_networks(chain, depth, initial, inputs, seed=17):
    networks = Networks(chain, depth, COUNT, np.random.default_rng(seed), initial, inputs)
    return np.stack([networks.gram(layer) for layer in range(depth + 1)], axis=1)


@pytest.mark.parametrize(
    "name",
    some(
        CASES, "width = rank", "width below batch", "skip", "inputs",
    ),
)  # fmt: skip
def test_rows_have_the_law_of_real_matrices(name):
    expected = of_networks(*CASES[name])
    assert smallest_p_value(simulated(*CASES[name]), expected) > FALSE_ALARM


def test_float32_has_the_same_law_and_real_matrices_too():
    case = CASES["width just above rank"]
    expected = of_networks(*case)
    assert smallest_p_value(simulated(*case, dtype="float32"), expected) > FALSE_ALARM
    # Each network takes a QR factorization in Python.  A distance of 0.18 is seen.
    by_weights = simulated(*case, count=1000, sampler="weights")
    assert smallest_p_value(by_weights, expected) > FALSE_ALARM


# It tests the test above, not the package.
@pytest.mark.slow
def test_gaussian_weights_have_another_law():
    chain, *case = CASES["relu"]
    gaussian = Chain(chain.width, chain.batch, chain.activation, gain=chain.gain)
    assert smallest_p_value(simulated(gaussian, *case), of_networks(chain, *case)) < FALSE_ALARM


# --- bits


def test_float32_rows_follow_those_of_float64():
    chain = chain_of(200, 6, "relu")
    runs = [bnmc.simulate(chain, 30, rng=12, dtype=dtype) for dtype in ("float32", "float64")]
    np.testing.assert_allclose(runs[0].gram, runs[1].gram, atol=1e-4)
    narrow = bnmc.simulate(chain_of(5, 6, "relu", norm="none"), 3, rng=12, dtype="float32")
    assert narrow.widened == (0,)


# --- where orthogonal weights are not known


def test_what_is_not_known_of_orthogonal_weights_raises():
    chain = chain_of(50, 4)
    for function in (bnmc.kernels.law, bnmc.kernels.weight_law):
        with pytest.raises(ArgumentError, match=r"weights.*haar.*independent"):
            function(chain)
