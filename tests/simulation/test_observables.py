"""What is recorded of a layer, against the functions of Gram matrices and NumPy."""

import threading
from contextlib import suppress

import numpy as np
import pytest

from bnmc import Chain, Distance, Observable, SoftRank, gram, simulate
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.observables import OBSERVABLES, View

CHAIN = Chain(12, 3, "leaky_relu", norm="none", gain=1.2)
RUN = {"depth": 4, "chains": 5, "rng": 0, "sampler": "conditional"}


def record(observables, chain=CHAIN, **options):
    return simulate(chain, **{**RUN, **options}, observables=observables)


def spectrum(G):
    return np.linalg.eigvalsh(G)


def corner(G):
    return G[0, 0]


# --- the library's --------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [None, 2])
def test_every_one_of_them(inputs):
    left_out = {"log_pivots", "state_gram"} | (set() if inputs else {"cross_gram"})
    run = record([name for name in OBSERVABLES if name not in left_out], inputs=inputs)
    G = run.gram
    expected = {
        "gram": G,
        "scaled_gram": G,
        "eigenvalues": gram.eigenvalues(G),
        "log_scale": np.zeros((5, 5)),
        "orthogonality_gap": gram.orthogonality_gap(G),
        "rank_bound": gram.rank_bound(G),
        "soft_rank": gram.soft_rank(G, 0.5, width=12),
    }
    assert expected.keys() == run.observables.keys() - {"cross_gram"}
    for name, values in expected.items():
        assert (run[name].dtype, run[name].shape) == (np.float64, values.shape)
        np.testing.assert_allclose(run[name], values, rtol=1e-13, atol=1e-14, err_msg=name)
    assert run.dims["log_scale"] == ("chain", "layer")
    # They are what they are called, in NumPy's terms.
    np.testing.assert_allclose(np.sort(run.eigenvalues), np.linalg.eigvalsh(G), atol=1e-12)
    trace = np.trace(G, axis1=-2, axis2=-1)
    np.testing.assert_allclose(run.rank_bound, trace**2 / np.sum(G**2, axis=(-2, -1)), rtol=1e-12)


def test_scaled_gram_matrices_and_their_scale():
    chain = Chain(12, 3, "linear", norm="none", gain=2.0)
    run = record(["gram", "scaled_gram", "log_scale", "log_pivots", "eigenvalues"], chain)
    np.testing.assert_allclose(np.trace(run.scaled_gram, axis1=-2, axis2=-1), 3.0, rtol=1e-12)
    scale = np.exp(run.log_scale)[..., None, None]
    np.testing.assert_allclose(run.gram, run.scaled_gram * scale, rtol=1e-12)
    # G = F'F, so the determinant of G is the product of the squared pivots.
    _, log_determinant = np.linalg.slogdet(run.gram)
    np.testing.assert_allclose(run.log_pivots.sum(axis=-1), log_determinant, atol=1e-9)
    np.testing.assert_allclose(run.log_pivots[..., 0], np.log(run.gram[..., 0, 0]), atol=1e-10)
    np.testing.assert_allclose(np.sort(run.eigenvalues), np.linalg.eigvalsh(run.gram), rtol=1e-10)


def test_pivots_beyond_the_width_are_zero():
    run = record("log_pivots", Chain(2, 3, "linear", norm="none"))
    assert np.isneginf(run.log_pivots[..., 2]).all()
    assert np.isfinite(run.log_pivots[..., :2]).all()


def test_soft_rank_with_a_threshold():
    run = record(["gram", SoftRank(0.01), SoftRank(2.0, name="large")])
    np.testing.assert_array_equal(run.soft_rank, gram.soft_rank(run.gram, 0.01, width=12))
    np.testing.assert_array_equal(run.large, gram.soft_rank(run.gram, 2.0, width=12))
    assert (run.large < run.soft_rank).any()


def test_distance():
    """A distance keeps the matrix that it was given."""
    stars = {"distance": np.eye(3) + 0.1, "other": 2 * np.eye(3)}
    matrix = stars["distance"].copy()
    chosen = [Distance(matrix), Distance(stars["other"], name="other")]
    matrix[:] = 7.0
    run = record(["gram", *chosen])
    for name, star in stars.items():
        expected = np.linalg.norm(run.gram - star, axis=(-2, -1))
        np.testing.assert_allclose(run[name], expected, rtol=1e-12)


# --- the user's -----------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "gain"), [(None, 1.2), (2, 1.2), (None, 2.0)])
def test_functions_of_the_gram_matrix(inputs, gain):
    """Of each input, and of G itself where a run has scaled matrices."""
    chosen = ["gram", np.trace, corner, Observable(spectrum, (3,), name="modes")]
    run = record(chosen, Chain(12, 3, "linear", norm="none", gain=gain), inputs=inputs)
    np.testing.assert_array_equal(run["trace"], np.trace(run.gram, axis1=-2, axis2=-1))
    np.testing.assert_array_equal(run.corner, run.gram[..., 0, 0])
    np.testing.assert_array_equal(run.modes, np.linalg.eigvalsh(run.gram))
    assert run.dims["modes"] == ("chain", "layer", *["input"] * (inputs == 2), "modes_0")


def test_a_mapping_names_them():
    run = record(
        {
            "gram": OBSERVABLES["gram"],
            "size": np.trace,
            "modes": (spectrum, (3,)),
            "trace": Observable(np.trace),
        }
    )
    assert list(run.observables) == ["gram", "size", "modes", "trace"]
    np.testing.assert_array_equal(run.size, run["trace"])
    np.testing.assert_array_equal(run.modes, np.linalg.eigvalsh(run.gram))


def test_one_alone_needs_no_list():
    for observables in ("gram", Observable(np.trace), [Observable(np.trace)], {"trace": np.trace}):
        assert len(record(observables).observables) == 1
    assert record(np.trace)["trace"].shape == (5, 5)


def test_the_same_one_twice_is_one():
    trace = Observable(np.trace)
    assert list(record(["gram", trace, "gram", trace]).observables) == ["gram", "trace"]


def test_none_at_all():
    run = record([])
    assert not run.observables
    assert run.final_state.layer == 4


def test_functions_run_on_several_threads_at_once():
    """Two chains on two threads: each waits for the other, after the call that finds the shape."""
    both = threading.Barrier(2)
    calls = []

    def meet(G):
        calls.append(threading.get_ident())
        if len(calls) > 1:
            both.wait(timeout=30)
        return G[0, 0]

    run = record({"gram": OBSERVABLES["gram"], "met": meet}, chains=2, depth=0, threads=2)
    assert np.array_equal(run.met, run.gram[..., 0, 0])
    assert len(set(calls[1:])) == 2


def test_a_function_cannot_change_what_others_see():
    def spoil(G):
        value = G[0, 0]
        with suppress(ValueError):  # what is read-only cannot be spoilt
            G[:] = 0.0
        return value

    plain = record(["gram"])
    spoilt = record([Observable(spoil), "gram"])
    assert np.array_equal(plain.gram, spoilt.gram)
    rest = simulate(CHAIN, 1, initial=plain.final_state).gram
    assert np.array_equal(rest, simulate(CHAIN, 1, initial=spoilt.final_state).gram)


@pytest.mark.parametrize("observable", [Observable(np.trace), Observable(spectrum, (3,), "modes")])
def test_repr(observable):
    assert repr(observable) == f"Observable({observable.name!r}, shape={observable.shape})"
    assert repr(OBSERVABLES["gram"]) == "Observable('gram')"


def test_an_observable_cannot_make_its_matrix_writeable():
    def spoils(G):
        array = G
        while isinstance(array, np.ndarray):
            with suppress(ValueError):
                array.flags.writeable = True
            with suppress(ValueError):
                array[...] = np.nan
            array = array.base
        return float(G[0, 0])

    out = np.zeros((5, 5, 3, 3))
    chosen = [Observable(spoils, name="before"), "gram", Observable(spoils, name="after")]
    run = record(chosen, out={"gram": out})
    np.testing.assert_array_equal(out, record(["gram"])["gram"])
    for name in ("before", "after"):
        np.testing.assert_array_equal(run[name], out[..., 0, 0])


# --- the range of float64 -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gram", "cross_gram", "eigenvalues"])
def test_values_beyond_the_range_of_float64_are_errors_and_never_infinite(name):
    """exp(709.78) is the largest float64; sums of n entries of 1 need room above the limit."""
    n, chains = 3, 2
    for log_scale, fits in ((-745.0, True), (680.0, True), (689.9, True), (705.0, False),
                            (709.7, False), (709.8, False), (715.0, False)):  # fmt: skip
        scale = np.array([[0.0], [log_scale]])
        frames = Frames(np.ones((chains, 1, n, n)), scale, np.zeros((chains, 1, 0)))
        view = View(CHAIN, frames, 1, 7, lambda index: 40 + index)
        if fits:
            values = OBSERVABLES[name].evaluate(view)
            factor = n if name == "eigenvalues" else 1.0
            assert np.abs(values[1]).max() == pytest.approx(factor * np.exp(log_scale), rel=1e-12)
            continue
        # The first chain of the frames has number 7.
        with pytest.raises(NonFiniteError, match="scaled_gram") as caught:
            OBSERVABLES[name].evaluate(view)
        assert (caught.value.chain, caught.value.layer) == (8, 40)
