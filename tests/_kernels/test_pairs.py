"""Coupled pairs: each chain of a pair has the chain's law, and pairs that meet stay together."""

import math

import numpy as np
import pytest
import scipy.linalg
from numpy_network import normalised
from oracle import FORMULAS, gram, ks_distance, semidefinite_cholesky, two_sample_threshold
from plain_python import run_plainly

import bnmc
from bnmc._kernels.cpu import pairs as cpu_pairs
from bnmc.chain.start import prepare
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.simulation.engine.pairs import APART, Pairs

KEY = 0x0123456789ABCDEF
ALWAYS = math.inf
CHAINS = [
    bnmc.Chain(40, 4, "relu"),
    bnmc.Chain(40, 4, "linear"),
    bnmc.Chain(40, 3, "relu", norm="batch-uncentred"),
]

#: Chains whose layers take passes over the rows, or whose rows have a bias.
OTHERS = [
    bnmc.Chain(20, 3, "tanh", norm="layer"),
    bnmc.Chain(20, 3, "relu", norm="rms", bias_variance=0.1, gain=0.7),
    bnmc.Chain(20, 3, "tanh", norm="group(2)", order="activation-norm"),
    bnmc.Chain(20, 3, "tanh", order="activation-norm", bias_variance=0.4, gain=1.7),
    bnmc.Chain(20, 3, "tanh", norm="batch-uncentred", bias_variance=0.4, eps=0.1),
]


def pairs_of(chain, count, *, lag=1, key=KEY, first=0, initial="gaussian", **options):
    start = prepare(chain.repeat(0), initial, 1, None)
    return Pairs(chain, start, lag, first, first + count, key, **options)


def covariance(chain, gram):
    """The covariance of a row in coordinates in which it is regular."""
    if chain.norm != "batch":
        return gram
    basis = scipy.linalg.helmert(chain.batch)
    return basis @ gram @ basis.T


@pytest.mark.parametrize("chain", OTHERS[3:], ids=repr)
def test_a_bias_in_the_kernel_has_the_bits_of_covariances_in_numpy(chain):
    alone, mapped = (pairs_of(chain, 2, lag=2, threshold=ALWAYS) for _ in range(2))
    records, trace = alone.advance(6, until=5, record=True, traced=1)
    variance = mapped._spec.shared_variance
    mapped._spec = mapped._spec._replace(bias=0.0, shared_variance=0.0)
    layers = []
    for layer in range(1, 7):
        ahead = (mapped.met < 0) | (layer <= 5)
        for side, moves in enumerate((ahead, (mapped.met < 0) & (layer > mapped.lag))):
            mapped.grams[moves, side] += variance
        layers.append(mapped.advance(1, until=5, record=True, traced=1))
    expected, steps = (np.concatenate(arrays, axis=1) for arrays in zip(*layers, strict=True))
    np.testing.assert_array_equal(records, expected)
    np.testing.assert_array_equal(trace, steps)
    np.testing.assert_array_equal(alone.met, mapped.met)


def best_distance(chain, gram, other):
    """min over s of |s S^-1 S' - I|_F, in the basis in which it is symmetric."""
    values = scipy.linalg.eigvalsh(covariance(chain, other), covariance(chain, gram))
    scale = values.sum() / (values**2).sum()
    return scale, math.sqrt(((scale * values - 1.0) ** 2).sum())


@pytest.mark.parametrize("chain", CHAINS, ids=repr)
def test_the_distance_of_a_pair_is_that_of_the_formula(chain):
    pairs = pairs_of(chain, 3, threshold=APART)
    records, trace = pairs.advance(12, record=True, traced=3)
    for pair in range(3):
        for layer in range(1, 12):
            _, expected = best_distance(chain, *records[pair, layer - 1])
            # Eigenvalues are known to about 1e-16 times the condition number.
            assert trace[pair, layer, 0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("chain", CHAINS + OTHERS, ids=repr)
def test_the_chain_ahead_is_the_chain_that_simulate_runs(chain):
    run = bnmc.simulate(chain, 8, chains=5, rng=3, sampler="conditional")
    pairs = pairs_of(chain, 5, lag=3, key=run.key, threshold=ALWAYS)
    np.testing.assert_allclose(pairs.grams[:, 0], run.gram[:, 0], rtol=0, atol=1e-13)
    records, _ = pairs.advance(8, until=8, record=True)
    # Where chains contract, rounding does not grow; 1e-11 is far above it.
    np.testing.assert_allclose(records[:, :, 0], run.gram[:, 1:], rtol=0, atol=1e-11)


def features(chain, gram):
    """Numbers that tell samples apart: the second chain must not favour any."""
    # Diagonals that are 1 but for rounding are equal.
    gram = np.round(gram, 9)
    spectrum = np.round(np.linalg.eigvalsh(gram), 9)
    return {
        "first": gram[:, 0, 0],
        "last": gram[:, -1, -1],
        "pair": gram[:, 0, 1],
        "largest": spectrum[:, -1],
        "trace": gram.trace(axis1=1, axis2=2).round(9) + 1e-9 * gram[:, 0, 1],
        "gap": bnmc.gram.orthogonality_gap(gram),
    }


# The linear chain is a centred one; each norm and each bias is in another case.
@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(
            chain, marks=[pytest.mark.slow] if chain in (CHAINS[1], OTHERS[0], OTHERS[4]) else []
        )
        for chain in CHAINS + OTHERS
    ],
    ids=repr,
)
def test_the_chain_behind_has_its_law_from_wherever_the_pair_is(chain):
    # One layer from one pair of Gram matrices that are far apart: averaged over pairs, as above,
    # a wrong law after refusals nearly cancels. The distance between the laws that the two chains
    # go on by is several times what is allowed.
    grams = pairs_of(chain, 1, threshold=APART, key=KEY + 2).advance(3, record=True)[0][0, 2]
    power = 2.0 if chain in OTHERS else 3.0
    if chain in OTHERS:
        # They contract slowly, so the second matrix is moved towards the first.  Norms over the
        # features do not see its diagonal, which becomes that of the first.
        scale = np.sqrt(np.diag(grams[0]) / np.diag(grams[1]))
        grams[1] *= np.outer(scale, scale)
        values = scipy.linalg.eigvalsh(*(chain.covariance(current) for current in grams[::-1]))
        spread = math.sqrt(0.5 * chain.width) * np.linalg.norm(values - 1.0)
        grams[1] = grams[0] + min(1.0, 3.0 / spread) * (grams[1] - grams[0])
    count = 20_000
    pairs = pairs_of(chain, count, threshold=ALWAYS)
    pairs.layer, pairs.grams[:] = 3, grams
    pairs.advance(1)
    assert 0.2 < np.mean(pairs.tries[:, 1]) < 0.95
    rng = np.random.default_rng(11)

    def next_grams(current):
        bias = chain.bias_variance * np.ones_like(current)
        factor = semidefinite_cholesky(chain.gain**2 * current + bias)
        rows = rng.standard_normal((count, chain.width, chain.batch)) @ factor.T
        sigma = FORMULAS[chain.activation.name]
        if chain.order == "activation-norm":
            return gram(normalised(sigma(rows), chain.norm, chain.eps))
        return gram(sigma(normalised(rows, chain.norm, chain.eps)))

    ahead, behind = (features(chain, next_grams(current)) for current in grams)
    allowed = two_sample_threshold(count, len(behind))
    for name, values in features(chain, pairs.grams[:, 1]).items():
        assert ks_distance(values, behind[name]) < allowed, name
    assert max(ks_distance(ahead[name], behind[name]) for name in behind) > power * allowed


def test_pairs_that_have_met_are_equal_forever_and_differ_before():
    pairs = pairs_of(CHAINS[0], 40, lag=3)
    records, _ = pairs.advance(80, until=80, record=True)
    assert (pairs.met > 3).all()
    for record, met in zip(records, pairs.met, strict=True):
        np.testing.assert_array_equal(record[met - 1 :, 0], record[met - 1 :, 1])
        assert (record[: met - 1, 0] != record[: met - 1, 1]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("chain", CHAINS, ids=repr)
def test_a_maximal_coupling_succeeds_with_one_minus_the_total_variation(chain):
    # TV of the laws of all rows, by 4e5 independent draws of log p'/p.
    pairs = pairs_of(chain, 1, threshold=APART)
    records, _ = pairs.advance(6, record=True)
    first, second = records[0, 5]
    s, other = covariance(chain, first), covariance(chain, second)
    scale, _ = best_distance(chain, first, second)
    values = scale * scipy.linalg.eigvalsh(other, s)
    rng, draws, d = np.random.default_rng(5), 400_000, chain.width
    squares = rng.chisquare(d, size=(draws, len(values)))
    log_ratio = -0.5 * ((1.0 / values - 1.0) * squares).sum(axis=1) - 0.5 * d * np.log(values).sum()
    accepted = np.minimum(1.0, np.exp(log_ratio))

    count = 20_000
    tried = pairs_of(chain, count, threshold=ALWAYS)
    tried.layer, tried.grams[:] = 6, records[0, 5]
    tried.advance(1)
    assert (tried.tries[:, 0] == 1).all()
    share = np.mean(tried.met == 7)
    assert 0.2 < share < 0.98
    # 5 standard errors: a false alarm in 6e-7.
    error = math.hypot(accepted.std() / math.sqrt(draws), math.sqrt(share * (1 - share) / count))
    assert abs(share - accepted.mean()) < 5.0 * error


def test_what_becomes_of_a_pair_does_not_depend_on_the_others():
    chain = CHAINS[0]
    together = pairs_of(chain, 8, lag=2)
    together.advance(60)
    for number in (0, 5):
        alone = pairs_of(chain, 1, lag=2, first=number)
        for _ in range(60):
            alone.advance(1)
        assert alone.met[0] == together.met[number]
        np.testing.assert_array_equal(alone.grams[0], together.grams[number])


def test_copies_of_a_sample_leave_the_coupling_its_range():
    # Two samples are equal: the Gram matrix is singular, in the same way in both chains.
    x = np.random.default_rng(0).normal(size=(60, 4))
    x[:, 3] = x[:, 1]
    pairs = pairs_of(bnmc.Chain(60, 4, "relu"), 10, initial=x)
    pairs.advance(100)
    assert (pairs.met > 0).all()
    np.testing.assert_array_equal(pairs.grams[..., 1, 1], pairs.grams[..., 3, 3])


def test_a_chain_that_loses_rank_is_seen_and_stopped():
    pairs = pairs_of(bnmc.Chain(3, 6, "linear"), 4)
    for _ in range(2):
        pairs.advance(cpu_pairs.PATIENCE + 1)
    assert (pairs.status[:, 0] == cpu_pairs.DEGENERATE).all()
    # Three rows never had rank five.
    assert (pairs.status[:, 1] == 2).all()
    assert not pairs.waiting.any()


def test_rank_that_comes_back_is_not_lost():
    # Rows of one line are ±v: relu makes two vectors of them, and all directions in a few layers.
    # An odd activation keeps the line forever.
    line = np.random.default_rng(0).normal(size=(60, 1)) * np.array([-1.0, -0.2, 0.3, 1.5])
    relu, odd = (
        pairs_of(bnmc.Chain(60, 4, name), 6, initial=line, lag=20) for name in ("relu", "linear")
    )
    for pairs in (relu, odd):
        pairs.advance(200)
    assert (relu.met > 20).all()
    assert (odd.status[:, 0] == cpu_pairs.DEGENERATE).all()


@pytest.mark.parametrize("body", ["compiled", "python"])
def test_a_row_without_variance_names_pair_layer_and_row(body, monkeypatch):
    if body == "python":
        # abs maps the rows ±(1, -1) to (1, 1), so that no row of the next layer varies.
        run_plainly(monkeypatch, cpu_pairs)
        chain, options = bnmc.Chain(5, 2, abs), {}
    else:
        # relu maps rows of negative numbers to 0.
        chain = bnmc.Chain(5, 2, "relu", norm="batch-uncentred")
        options = {"initial": -np.ones((5, 2))}
    with pytest.raises(ZeroVarianceError, match="layer 1"):
        pairs_of(chain, 2, **options).advance(3)


def test_an_activation_that_overflows_is_an_error(monkeypatch):
    run_plainly(monkeypatch, cpu_pairs)
    chain = bnmc.Chain(5, 3, bnmc.Activation(lambda x: x * 1e200, name="huge"))
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError):
        pairs_of(chain, 2).advance(3)


def test_scale_matters_to_pairs_with_eps():
    # With eps the normalization sees scale, and the distance with it: none is taken out.
    chain = bnmc.Chain(40, 3, "relu", norm="batch-uncentred", eps=0.5)
    pairs = pairs_of(chain, 1, threshold=APART)
    records, trace = pairs.advance(3, record=True, traced=1)
    values = scipy.linalg.eigvalsh(records[0, 1, 1], records[0, 1, 0])
    assert trace[0, 2, 0] == pytest.approx(np.linalg.norm(values - 1.0), rel=1e-9)


def test_the_kernels_run_as_plain_python_too(monkeypatch):
    # Both refused and kept couplings, and layers with the same normals, come up.
    chain = bnmc.Chain(12, 3, "relu")
    options = [{"threshold": ALWAYS}, {"threshold": APART}]
    compiled = [pairs_of(chain, 6, **settings) for settings in options]
    expected = [pairs.advance(5, until=5, record=True, traced=6) for pairs in compiled]
    assert compiled[0].tries[:, 1].any()
    assert (compiled[0].met > 0).any()
    run_plainly(monkeypatch, cpu_pairs)
    for settings, (record, trace) in zip(options, expected, strict=True):
        results = pairs_of(chain, 6, **settings).advance(5, until=5, record=True, traced=6)
        np.testing.assert_allclose(results[0], record, rtol=0, atol=1e-11)
        np.testing.assert_allclose(results[1], trace, rtol=1e-8, atol=1e-12)


def test_patience_is_for_layers_in_a_row():
    """A layer with a common range begins the count anew; one more without it ends a pair."""
    regular = pairs_of(CHAINS[0], 3)
    regular.advance(4)
    regular.tries[:, 2] = cpu_pairs.PATIENCE
    regular.met[:] = -1
    regular.grams[:, 1] += 0.1 * np.eye(4)  # apart, with full rank
    regular.advance(1)
    assert (regular.status[:, 0] == 0).all()
    assert (regular.tries[:, 2] == 0).all()
    degenerate = pairs_of(bnmc.Chain(3, 6, "linear"), 3)
    degenerate.advance(1)  # the lag, in which the chain ahead moves alone
    degenerate.advance(cpu_pairs.PATIENCE)
    assert (degenerate.status[:, 0] == 0).all()
    assert (degenerate.tries[:, 2] == cpu_pairs.PATIENCE).all()
    degenerate.advance(1)
    assert (degenerate.status[:, 0] == cpu_pairs.DEGENERATE).all()


def test_each_attempt_has_a_coin_of_its_own(monkeypatch):
    """The first coin decides whether rows are kept, the next ones each decide on new rows."""
    run_plainly(monkeypatch, cpu_pairs)
    coins, coin = [], cpu_pairs._coin

    def recorded(draw, number, attempt):
        coins.append((int(number), int(draw.layer), attempt, coin(draw, number, attempt)))
        return coins[-1][-1]

    monkeypatch.setattr(cpu_pairs, "_coin", recorded)
    pairs = pairs_of(bnmc.Chain(12, 3, "relu"), 12, threshold=ALWAYS)
    pairs.advance(3)
    by_layer = {}
    for number, layer, attempt, value in coins:
        by_layer.setdefault((number, layer), []).append((attempt, value))
    for attempts in by_layer.values():
        assert [attempt for attempt, _ in attempts] == list(range(len(attempts)))
    # Attempts differ, and so do pairs and layers.
    assert max(map(len, by_layer.values())) > 3
    assert len({value for *_, value in coins}) == len(coins)


def test_an_error_names_the_pair_wherever_it_is():
    """A Gram matrix of zeros, in the third of the pairs that begin at number 40."""
    pairs = pairs_of(bnmc.Chain(5, 2, "relu", norm="batch-uncentred"), 4, first=40)
    pairs.grams[2] = 0.0
    with pytest.raises(ZeroVarianceError) as caught:
        pairs.advance(1)
    assert caught.value.chain == 42
