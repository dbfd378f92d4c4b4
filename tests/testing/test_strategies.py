"""The Hypothesis strategies: what they promise of what they draw, and what they shrink to."""

import subprocess
import sys
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import bnmc
from bnmc import gram
from bnmc.chain.start import normalise
from bnmc.testing import activations, batches, chains, generators, gram_matrices, strategies
from bnmc.testing.strategies import BATCH_KINDS

FEW = settings(max_examples=30)


def simplest(strategy, predicate=lambda value: True):
    """The simplest value that a predicate accepts."""
    return find(strategy, predicate)


def occurs(strategy, predicate):
    """Return a value that a predicate accepts, not the simplest; fail if there is none."""
    return find(strategy, predicate, settings=settings(max_examples=2000, phases=[Phase.generate]))


# ---------------------------------------------------------------- what is drawn


@FEW
@given(st.data(), chains(norms=st.sampled_from(["batch", "batch-uncentred"])))
def test_batches_of_a_chain_can_be_normalised(data, chain):
    h = data.draw(batches(chain))
    assert h.shape == (chain.width, chain.batch)
    assert h.dtype == np.float64
    assert np.isfinite(h).all()
    x = normalise(chain.layers[0].rows, h[None], True)
    # Mean squares are 1 up to rounding: n terms, each with a few units.
    np.testing.assert_allclose((x**2).mean(axis=-1), 1.0, rtol=16 * chain.batch * 2**-52)


@pytest.mark.parametrize("kind", BATCH_KINDS)
def test_a_kind_of_batch_is_what_it_says(kind):
    @FEW
    @given(batches(st.integers(1, 9), st.integers(3, 6), kinds=(kind,)))
    def check(h):
        assert not (h == h[:, :1]).all(axis=1).any()
        if kind == "duplicated":
            assert len(np.unique(h, axis=1).T) < h.shape[1]
        elif kind == "tiny variance":
            assert (h.std(axis=1) < 2.0**-7).all()
        elif kind == "huge scale":
            assert (np.abs(h).max(axis=1) >= 2.0**4).all()
        elif kind == "large means":
            assert (h.mean(axis=1) > 100.0 * h.std(axis=1)).all()
            naive = np.square(h).mean(axis=1) - h.mean(axis=1) ** 2
            if h.min() > 2.0**30:
                assert not np.allclose(naive, h.var(axis=1))
        else:
            assert (np.abs(h).max(axis=1) <= 32.0).all()

    check()


def test_duplicated_samples_are_not_only_zeros():
    """One pair of equal samples, and no sample of which nothing is left."""

    def is_a_case(h):
        different = len(np.unique(h, axis=1).T)
        return np.abs(h).max(axis=0).min() > 0.0 and different == h.shape[1] - 1

    occurs(batches(4, st.integers(3, 6), kinds=("duplicated",)), is_a_case)


def test_nearly_collinear_samples_span_nearly_a_line():
    def is_a_case(h):
        s = np.linalg.svd(h, compute_uv=False)
        return s[0] > 1.0 and 0.0 < s[1] < 2.0**-6 * s[0]

    h = simplest(batches(3, 3, kinds=("collinear",)), is_a_case)
    # One row has left zero, and carries the line.
    assert np.count_nonzero(np.abs(h).max(axis=1) > 0.5) <= 2


def test_a_collinear_batch_is_multiples_of_a_sample_plus_a_small_generic_state(monkeypatch):
    """The state is (1, 2, 4), the sample 3: what is added is the state times a power of 2."""
    state, sample = np.array([[1.0, 2.0, 4.0]]), np.array([[3.0]])
    entries = {(1, 3): state, (1, 1): sample}
    monkeypatch.setattr(strategies, "_entries", lambda *shape: st.just(entries[shape].copy()))

    @FEW
    @given(batches(1, 3, kinds=("collinear",)))
    def check(h):
        added = h - np.array([[3.0, 6.0, 9.0]])
        assert added[0, 0] in 2.0 ** -np.arange(10.0, 41.0)
        np.testing.assert_array_equal(added, added[0, 0] * state)

    check()


@FEW
@given(gram_matrices(), gram_matrices(regular=True))
def test_gram_matrices_are_gram_matrices(generic, regular):
    for G in (generic, regular):
        gram.validate_gram(G)
        assert (G == G.T).all()
        assert np.trace(G) > 0.0
    # aᵀa + I, with entries of a up to 256 and 32 rows: its condition is at most 16·32·256² + 1.
    values = np.linalg.eigvalsh(regular)
    assert values[0] > 0.0
    assert values[-1] / values[0] < 2.0**26


@given(generators(), generators())
def test_generators_depend_on_their_seeds_alone(first, second):
    """Each example has new ones: what an earlier one drew does not matter."""
    seeds = [rng.bit_generator.seed_seq.entropy for rng in (first, second)]
    drawn_by = [rng.integers(1 << 60, size=3).tolist() for rng in (first, second)]
    assert drawn_by == [
        np.random.default_rng(seed).integers(1 << 60, size=3).tolist() for seed in seeds
    ]


def test_all_named_activations_norms_and_laws_of_weights_occur():
    for strategy, attribute, values in (
        (activations(), "name", ("linear", "relu", "gelu", "silu")),
        (chains(), "norm", ("batch", "batch-uncentred", "none")),
        (chains(), "weights", ("gaussian", "uniform", "rademacher")),
    ):
        for value in values:
            occurs(strategy.map(attrgetter(attribute)), value.__eq__)
    occurs(chains(), lambda chain: chain.skip < 0.0 and chain.gain < -1.0)
    occurs(gram_matrices(), lambda G: len(G) > 1 and np.linalg.matrix_rank(G) == 1)


# ---------------------------------------------------------------- what they shrink to


# The next test shrinks, too.
@pytest.mark.slow
@pytest.mark.untraced
def test_the_simplest_values():
    assert repr(simplest(chains())) == "Chain(width=1, batch=2, activation='linear')"
    assert simplest(activations()).name == "linear"
    np.testing.assert_array_equal(simplest(batches(2, 3)), [[1.0, 0.0, 0.0]] * 2)
    np.testing.assert_array_equal(simplest(batches(1)), [[1.0, 0.0]])
    np.testing.assert_array_equal(simplest(gram_matrices(2)), [[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(simplest(gram_matrices(2, regular=True))[1], [0.0, 1.0])


@pytest.mark.untraced
def test_counterexamples_are_small():
    wide = simplest(chains(), lambda chain: chain.width * chain.batch >= 50)
    assert wide.width * wide.batch <= 64
    assert wide == bnmc.Chain(wide.width, wide.batch)
    h = simplest(batches(4, 4, kinds=("generic",)), lambda h: h[2, 1] < -1.0)
    expected = np.zeros((4, 4))
    expected[:, 0] = 1.0
    expected[2, :2] = 0.0, -1.0 - 1 / 64
    np.testing.assert_array_equal(h, expected)


def test_strategies_of_ones_own():
    single = chains(
        widths=st.just(7), batches=st.just(3), activations=st.just("tanh"),
        norms=st.just("batch-uncentred"), skips=st.just(0.5), gains=st.just(2.0),
        weights=st.just("uniform"), epsilons=st.just(1e-5),
    )  # fmt: skip
    expected = bnmc.Chain(
        7, 3, "tanh", norm="batch-uncentred", skip=0.5, gain=2.0, weights="uniform", eps=1e-5
    )
    assert simplest(single) == expected


def test_large_batches_can_be_drawn():
    # Looking for the simplest one takes seconds.
    assert occurs(batches(100, 20), lambda h: h[50, 3] > 1.0).shape == (100, 20)


# ---------------------------------------------------------------- bad input


# `test_downstream.py` imports the package without Hypothesis each time.
@pytest.mark.slow
def test_hypothesis_is_imported_when_a_strategy_is_made():
    code = """
import sys
from operator import attrgetter
import bnmc
testing = bnmc.testing
assert "hypothesis" not in sys.modules
sys.modules["hypothesis"] = None
try:
    testing.chains()
except bnmc.errors.MissingExtraError as error:
    print(error.command)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == 'pip install "bnmc[testing]"\n'
