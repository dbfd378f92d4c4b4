"""What a simulation computes, from its arguments; `test_formula.py` has its layers."""

import itertools
import threading
import tracemalloc
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from numpy_network import FUNCTIONS, gram_of, normalised
from scipy import special, stats
from slow_cases import pairs

from bnmc import Activation, Chain, FirstLayer, Observable, drawn_weights, simulate
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.numbers import BLOCK
from bnmc.errors import ArgumentError, ArgumentTypeError, ZeroVarianceError
from bnmc.simulation import run as simulating
from bnmc.simulation import segment, starting

SLOPE = 0.01


@pytest.mark.parametrize("width", [2, 4, 6])
def test_signs_that_cancel_in_rows_beyond_the_width_spoil_nothing(width):
    """Narrow layers of signs often have rows of zero variance; kernels make rows in groups.

    A row cancels with probability p = C(d, d/2) / 2^d, and no row of a chain does with (1 - p)^d:
    0.25, 0.15 and 0.11.  Of 200 chains a binomial number finishes: outside of its 1e-6 quantiles
    with probability 1e-6.
    """
    chain = Chain(width, 3, "linear", weights="rademacher")
    x = np.tile([1.0, -1.0, 0.0], (width, 1))
    finished = 0
    for seed in range(200):
        try:
            run = simulate(chain, 1, initial=x, rng=seed)
        except ZeroVarianceError:
            continue
        finished += 1
        np.testing.assert_allclose(np.trace(run.gram, axis1=-2, axis2=-1), 3, rtol=1e-12)
    cancels = special.comb(width, width // 2) / 2.0**width
    low, high = stats.binom(200, (1 - cancels) ** width).ppf([5e-7, 1 - 5e-7])
    assert low <= finished <= high


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_without_variance_of_the_last_panel_is_named(threads, monkeypatch):
    """The panels have 512, 512 and 76 rows."""

    def weights(generator, shape):
        rows = generator.standard_normal(shape)
        rows[5] *= shape[0] == BLOCK
        return rows

    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    monkeypatch.setattr(memory, "panel_rows", lambda width, columns: BLOCK)
    with pytest.raises(ZeroVarianceError) as caught:
        simulate(Chain(1100, 3, "relu", weights=weights), 2, rng=0, threads=threads)
    assert (caught.value.layer, caught.value.row) == (1, 2 * BLOCK + 5)


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_two_nearly_equal_samples_in_float32(sampler):
    """Rows N(0, 11' + 1e-6 I) of two samples: never equal, whatever float32 makes of them."""
    for skip in (0.0, 0.5):
        chain = Chain(3000, 2, "leaky_relu", skip=skip)
        for seed in range(4):
            arguments = {"initial": "collinear", "dtype": "float32", "sampler": sampler}
            gram = simulate(chain, 0, rng=seed, **arguments).gram[0, 0]
            # Each sample is 1 or -1, and the other the other; with probability 1/2 the first.
            np.testing.assert_allclose(np.trace(gram), 1 + SLOPE**2, rtol=1e-5)
            np.testing.assert_allclose(gram[0, 1], -SLOPE, rtol=1e-5)


# --- activations ----------------------------------------------------------------------------


def steeper(slope):
    def tilted(x):
        return slope * x if x > 0 else x

    return tilted


@pytest.mark.parametrize("slope", [2.0, 3.0])
def test_closures_of_the_user_with_other_values(slope):
    x = np.random.default_rng(1).normal(size=(30, 4))
    function = steeper(slope)
    runs = [
        simulate(Chain(30, 4, activation), 2, initial=x, rng=0, sampler="weights")
        for activation in (function, Activation(function, kinks=[0.0], name="mine"))
    ]
    a = np.maximum(normalised(x), slope * normalised(x))
    for layer in (1, 2):
        h = normalised(drawn_weights(runs[0], layer) @ a)
        a = np.maximum(h, slope * h)
    np.testing.assert_allclose(runs[0].gram[0, -1], gram_of(a), rtol=1e-10, atol=1e-12)
    assert np.array_equal(*(run.gram for run in runs))


# --- the laws of layer 0 --------------------------------------------------------------------
# Means over 2,000 chains are compared at 5.8 standard errors: for a normal law a false alarm has
# probability 7e-9 an entry, for Student's with 1,999 degrees of freedom 8e-9.

CHAINS = 2_000
SIGMAS = 5.8


def assert_mean(run, expected):
    mean, error = run.mean("gram")[0], run.stderr("gram")[0]
    assert np.all(np.abs(mean - expected) < SIGMAS * error)
    assert error.max() < 0.02 * np.abs(expected).max()


FEATURES = np.random.default_rng(7).normal(size=(5, 3)) * [1.0, 2.0, 0.3]


def test_a_first_layer_of_several_inputs_has_one_weight_matrix():
    x = np.random.default_rng(8).normal(size=(2, 5, 3))
    stacked = np.concatenate(x, axis=-1)
    expected = (stacked.T @ stacked / 5).reshape(2, 3, 2, 3).swapaxes(1, 2)
    run = simulate(
        Chain(40, 3, "linear", norm="none"), 0, chains=CHAINS, initial=FirstLayer(x), inputs=2,
        rng=2, observables="cross_gram",
    )  # fmt: skip
    mean, error = run.mean("cross_gram")[0], run.stderr("cross_gram")[0]
    assert np.all(np.abs(mean - expected) < SIGMAS * error)


def numpy_layer_0(chain, formula, draw, width=40):
    """Mean and standard error of G_0 over four times as many chains, drawn by NumPy."""
    h = draw(np.random.default_rng(99), (4 * CHAINS, width, chain.batch))
    x = normalised(h, chain.norm, chain.eps)
    a = formula(x)
    grams = a.swapaxes(-1, -2) @ a / width
    return grams.mean(axis=0), grams.std(axis=0, ddof=1) / np.sqrt(4 * CHAINS)


LAWS = {
    "gaussian": lambda generator, shape: generator.normal(size=shape),
    "collinear": lambda generator, shape: (
        generator.normal(size=(*shape[:2], 1)) + 1e-3 * generator.normal(size=shape)
    ),
}
FIRST_LAYER = FirstLayer(FEATURES)


def through_features(generator, shape):
    return generator.normal(size=(*shape[:2], 5)) @ FEATURES / np.sqrt(5)


@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize(
    ("sampler", "dtype"), pairs(["conditional", "weights"], ["float64", "float32"])
)
@pytest.mark.parametrize(("norm", "eps"), [("batch", 0.0), ("batch", 0.2), ("none", 0.0)])
@pytest.mark.parametrize(
    "initial", ["gaussian", "collinear", FIRST_LAYER], ids=["gaussian", "collinear", "FirstLayer"]
)
def test_laws_of_layer_0(initial, norm, eps, sampler, dtype):
    """Against NumPy's draws: entries of G_0, and what tells samples apart, in the mean.

    The 24 cases of this test compare 12 numbers each: a false alarm has probability 3e-6 for all
    of them together, 1e-7 for each.
    """
    chain = Chain(40, 3, "leaky_relu", norm=norm, eps=eps, gain=3.0)  # not of layer 0
    draw = through_features if initial is FIRST_LAYER else LAWS[initial]
    mean, error = numpy_layer_0(chain, FUNCTIONS["leaky_relu"], draw)
    run = simulate(chain, 0, chains=CHAINS, initial=initial, rng=3, sampler=sampler, dtype=dtype)
    assert len(np.unique(run.gram[:, 0], axis=0)) > 0.99 * CHAINS
    difference = run.mean("gram")[0] - mean
    assert np.all(np.abs(difference) < SIGMAS * np.hypot(run.stderr("gram")[0], error))
    if norm == "none" and initial != "gaussian":
        return
    assert np.abs(mean - np.diag(np.diag(mean))).max() > 10 * error.max()


def test_collinear_samples_differ_by_a_thousandth():
    """Linear, no norm: E |a_i - a_j|^2 / d = 2e-6, while E |a_i|^2 / d = 1 + 1e-6."""
    run = simulate(
        Chain(40, 3, "linear", norm="none"), 0, chains=CHAINS, initial="collinear", rng=4
    )
    gram = run.gram[:, 0]
    apart = gram[:, 0, 0] + gram[:, 1, 1] - 2 * gram[:, 0, 1]
    assert abs(apart.mean() - 2e-6) < SIGMAS * apart.std(ddof=1) / np.sqrt(CHAINS)
    assert_mean(run, np.ones((3, 3)) + 1e-6 * np.eye(3))


def test_an_array_is_one_for_all_chains_or_one_a_chain():
    generator = np.random.default_rng(5)
    chain = Chain(30, 4, "leaky_relu")
    x = generator.normal(size=(3, 30, 4))
    of_each = simulate(chain, 2, initial=x, rng=0)
    assert of_each.chains == 3
    for index in range(3):
        shared = simulate(chain, 2, initial=x[index], chains=3, rng=0)
        assert np.array_equal(shared.gram[index], of_each.gram[index])
        assert np.array_equal(shared.gram[0, 0], shared.gram[2, 0])
    assert simulate(chain, 0, initial=x[0], rng=0).chains == 1
    several = simulate(chain, 2, initial=np.stack([x, x], axis=1), inputs=2, rng=0)
    assert several.gram.shape == (3, 3, 2, 4, 4)


# --- the arguments --------------------------------------------------------------------------

PLAIN = Chain(12, 3, "leaky_relu")


def test_rng_is_what_default_rng_takes():
    """One key is drawn from it, which is recorded: the run can be repeated."""
    expected = int(np.random.default_rng(3).integers(0, 2**64, dtype=np.uint64))
    sources = (
        3, np.int64(3), np.random.SeedSequence(3), np.random.PCG64(3), np.random.default_rng(3)
    )  # fmt: skip
    runs = [simulate(PLAIN, 2, rng=source) for source in sources]
    assert {run.key for run in runs} == {expected}
    for run in runs[1:]:
        assert np.array_equal(run.gram, runs[0].gram)
    generator = np.random.default_rng(3)
    first, second = (simulate(PLAIN, 2, rng=generator) for _ in range(2))
    assert first.key == expected != second.key
    fresh = {simulate(PLAIN, 0).key for _ in range(3)}
    assert len(fresh) == 3


def test_all_bits_of_the_key_matter():
    keys = [0, 1, 1 << 31, 1 << 32, 1 << 63]
    runs = []
    for key in keys:
        with mock.patch.object(starting, "draw_key", return_value=key):
            runs.append(simulate(PLAIN, 1, rng=0).gram)
    for first, other in itertools.combinations(runs, 2):
        assert not np.array_equal(first, other)


def test_the_sampler_that_ran_is_recorded():
    assert simulate(PLAIN, 0, rng=0, sampler="weights").sampler == "weights"
    assert simulate(PLAIN, 0, rng=0, sampler="conditional").sampler == "conditional"
    signs = Chain(40, 3, "leaky_relu", weights="rademacher")
    assert simulate(signs, 0, rng=0).sampler == "weights"
    # Gaussian weights of a wide layer cost far more than its rows.
    assert simulate(Chain(2000, 3, "leaky_relu"), 0, rng=0).sampler == "conditional"
    linear = Chain(12, 3, "linear", norm="none")
    assert simulate(linear, 0, rng=0, sampler="weights").sampler == "weights"
    assert simulate(linear, 0, rng=0).final_state.path == "factor"


def test_precision_is_that_of_the_rows():
    double = simulate(PLAIN, 5, rng=0, sampler="conditional")
    for dtype in ("float32", np.float32, np.dtype("f4")):
        single = simulate(PLAIN, 5, rng=0, sampler="conditional", dtype=dtype)
        assert single.dtype == "float32"
        assert single.gram.dtype == np.float64
        # The same normals: rounding alone differs, and does not grow where chains contract.
        assert 0 < np.abs(single.gram - double.gram).max() < 1e-4
    assert double.dtype == "float64"


def test_out_receives_the_values():
    names = ["gram", "rank_bound"]
    expected = simulate(PLAIN, 6, chains=3, rng=0, every=2, observables=names)
    gram = np.full((3, 8, 3, 3), np.nan)[:, ::2]
    bound = np.asfortranarray(np.full((3, 4), np.nan))
    out = {"gram": gram, "rank_bound": bound}
    run = simulate(PLAIN, 6, chains=3, rng=0, every=2, observables=names, out=out)
    assert run.gram is gram
    assert run.rank_bound is bound
    for name in names:
        assert np.array_equal(run[name], expected[name])
    part = simulate(PLAIN, 6, chains=3, rng=0, every=2, observables=names, out={"gram": gram})
    assert part.gram is gram
    assert np.array_equal(part.rank_bound, bound)


@pytest.mark.parametrize("start", [0, 5])
def test_progress_counts_layers(start):
    state = simulate(PLAIN, start, rng=0).final_state
    reports = []
    with mock.patch.object(segment, "TASK_SECONDS", 1e-5):
        run = simulate(PLAIN, 23, initial=state, progress=lambda *report: reports.append(report))
    done, totals = zip(*reports, strict=True)
    assert set(totals) == {23}
    assert list(done) == sorted(set(done))
    assert 0 < done[0] < done[-1] == 23
    assert np.array_equal(run.gram, simulate(PLAIN, 23, initial=state).gram)


def test_a_progress_bar(capsys):
    pytest.importorskip("rich")
    simulate(PLAIN, 3, rng=0, progress=True)
    assert capsys.readouterr().out == ""


def test_what_stops_progress_stops_the_run():
    def stop(done, total):
        raise KeyboardInterrupt

    with mock.patch.object(segment, "TASK_SECONDS", 0.0), pytest.raises(KeyboardInterrupt):
        simulate(PLAIN, 10, chains=3, threads=3, rng=0, progress=stop)


def test_reduced_layers_need_constant_memory():
    """What a run of 4,000 layers adds to one of 400 is a list of layers, not what was recorded."""

    def peak(depth, **options):
        tracemalloc.start()
        try:
            simulate(Chain(4, 8, "linear", norm="none"), depth, rng=0, threads=1, **options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    options = {"observables": ["scaled_gram", "log_scale"], "reduce": ("layer", "chain")}
    with mock.patch.object(segment, "FRAME_BYTES", 1 << 14):
        peak(4, **options)
        small, large = (peak(depth, **options) for depth in (400, 4_000))
        whole = peak(4_000, observables=options["observables"])
    assert whole > 4_000 * 65 * 8
    assert large - small < 0.1 * whole


def test_many_layers_without_under_or_overflow():
    """Linear, no norm, in factors: the log-scale goes to thousands, and the rest stays in range.

    log det G falls by sum_i log(chi^2_{d-i} / d) a layer (Bartlett), whose mean is
    psi((d - i) / 2) + log(2 / d); its mean over 10^5 layers is compared at 5 standard errors.
    """
    width, batch, depth = 9, 3, 100_000
    run = simulate(
        Chain(width, batch, "linear", norm="none"), depth, rng=1, every=depth,
        observables=["scaled_gram", "log_scale", "log_pivots"],
    )  # fmt: skip
    assert np.isfinite(run.scaled_gram).all()
    np.testing.assert_allclose(np.trace(run.scaled_gram[0, -1]), batch, rtol=1e-12)
    degrees = width - np.arange(batch)
    mean = np.sum(special.digamma(degrees / 2) + np.log(2 / width))
    variance = np.sum(special.polygamma(1, degrees / 2))
    change = np.diff(run.log_pivots[0].sum(axis=-1))[0]
    assert abs(change - depth * mean) < 5 * np.sqrt(depth * variance)
    assert run.log_scale[0, -1] < -1000


def test_arrays_for_results_may_be_parts_of_one():
    chain = Chain(5, 2)
    both = np.zeros((1, 3, 2, 4))
    out = {"gram": both[..., ::2], "scaled_gram": both[..., 1::2]}
    simulate(chain, 2, observables=list(out), out=out, rng=0)
    np.testing.assert_array_equal(both[..., ::2], both[..., 1::2])


@pytest.mark.parametrize("where", ["initial", "weights", "observables"])
def test_masked_elements_raise(where):
    def masked(*_):
        return np.ma.masked_array(np.ones((5, 2)), np.eye(5, 2))

    def weights(rng, shape):
        return np.ma.masked_array(rng.normal(size=shape), np.eye(*shape))

    chain = Chain(5, 2, weights=weights if where == "weights" else "gaussian")
    options = {"initial": masked()} if where == "initial" else {}
    if where == "observables":
        options["observables"] = Observable(masked, (5, 2))
    with pytest.raises((ArgumentTypeError, ArgumentError), match="masked"):
        simulate(chain, 2, **options)


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_layers_beyond_the_counter_raise(sampler):
    chain = Chain(5, 2, "tanh")
    begun = simulate(chain, 1, rng=0, sampler=sampler).final_state
    state = replace(begun, layer=2**32 - 3)
    end = simulate(chain, 2, initial=state).final_state
    assert end.layer == 2**32 - 1
    allowed = "allowed: an integer <= 2: layers have numbers below 2..32, and the state has one of"
    with pytest.raises(ArgumentError, match=f"^depth: got 3, {allowed} 4294967293"):
        simulate(chain, 3, initial=state)
    with pytest.raises(ArgumentError, match="^depth: got 1, allowed: an integer <= 0"):
        simulate(chain, 1, initial=end)


def test_a_small_run_whose_kernels_are_compiled_starts_no_thread(monkeypatch):
    chain, kinds = Chain(16, 4, "relu"), []
    first = simulate(chain, 3, chains=2, rng=0, threads=2)
    started = threading.Thread.start

    def noted(self):
        kinds.append(self.name)
        started(self)

    monkeypatch.setattr(threading.Thread, "start", noted)
    again = simulate(chain, 3, chains=2, rng=0, threads=2)
    assert not kinds
    np.testing.assert_array_equal(again.gram, first.gram)
    # A run that takes longer, or calls a function of the user, does not keep Ctrl-C waiting.
    simulate(chain, 20_000, every=20_000, rng=0)
    assert kinds
    kinds.clear()
    simulate(chain, 3, rng=0, observables={"corner": lambda g: g[0, 0]})
    assert kinds


def test_ten_chains_are_named_and_more_are_counted():
    ten = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert simulating._list((3,)) == "3"
    assert simulating._list(tuple(range(10))) == ten
    assert simulating._list(tuple(range(11))) == f"{ten} and 1 more"
