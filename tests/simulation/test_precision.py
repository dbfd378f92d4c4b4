"""Scales that leave float64, samples that float32 does not tell apart: split off, or reported."""

import warnings
from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc.errors import NonFiniteError, PrecisionWarning
from bnmc.simulation import segment
from bnmc.simulation.engine import precision

RELU = bnmc.Chain.vanilla(20, 3, "relu")


# --- scale


def in_logarithms(run):
    """Return the logarithm of the trace and the matrix of trace 1, layer by layer."""
    grams, log_scale = run["scaled_gram"], run["log_scale"]
    trace = np.trace(grams, axis1=-2, axis2=-1)
    log_scale = log_scale.reshape(log_scale.shape + (1,) * (trace.ndim - 2))
    return np.log(trace) + log_scale, grams / trace[..., None, None]


@pytest.mark.parametrize(
    ("chain", "options"),
    [
        (RELU, {}),
        (bnmc.Chain.vanilla(20, 3, "leaky_relu"), {"inputs": 2}),
        (bnmc.Chain(20, 3, "relu", norm="none", skip=0.5), {"dtype": "float32"}),
        (bnmc.Chain(20, 3, "relu", norm="none", weights="uniform"), {}),
        (bnmc.Chain(20, 3, "relu", norm="none", weights="uniform", skip=1.0), {"inputs": 2}),
    ],
    ids=["conditional", "inputs", "skip", "weights", "weights, skip"],
)
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
def test_another_unit_changes_nothing_but_the_scale(chain, options):
    """With a gain of 2**k the chain is the same one times powers of 2, to the bit.

    So a run that stays in the range of float64 says what one is that leaves it far behind, as long
    as all is scaled with it: the skip connection too.
    """
    depth, unit = 150, 2.0**12
    wanted = ["scaled_gram", "log_scale", "orthogonality_gap", "rank_bound"]
    near = bnmc.simulate(chain, depth, chains=2, rng=0, observables=wanted, **options)
    for factor in (unit, 1 / unit):
        scaled = bnmc.Chain(
            20, 3, chain.activation, norm="none", weights=chain.weights, gain=factor,
            skip=chain.skip * factor,
        )  # fmt: skip
        far = bnmc.simulate(scaled, depth, chains=2, rng=0, observables=wanted, **options)
        log_near, shape_near = in_logarithms(near)
        log_far, shape_far = in_logarithms(far)
        np.testing.assert_array_equal(shape_far, shape_near)
        np.testing.assert_array_equal(far["rank_bound"], near["rank_bound"])
        expected = log_near + (2 * np.log(factor) * far.layers).reshape(
            (1, -1) + (1,) * (log_near.ndim - 2)
        )
        np.testing.assert_allclose(log_far, expected, rtol=1e-13, atol=1e-12)
        assert abs(log_far[0, -1]).max() > 2000  # far out of the range of float64


def test_what_is_in_range_is_what_it_is():
    run = bnmc.simulate(RELU, 600, rng=0, observables=["gram", "scaled_gram", "log_scale"])
    assert not run["log_scale"].any()
    np.testing.assert_array_equal(run["gram"], run["scaled_gram"])
    assert 0.0 < run["gram"][0, -1].max() < 1e-150


def test_bits_do_not_depend_on_where_the_scale_is_looked_at():
    wanted = ["scaled_gram", "log_scale"]
    expected = bnmc.simulate(RELU, 3000, rng=0, chains=2, observables=wanted)
    assert expected["log_scale"][:, -1].max() < -1000
    with mock.patch.dict(precision._LEEWAY, float64=7.0):
        other = bnmc.simulate(RELU, 3000, rng=0, chains=2, observables=wanted)
    with mock.patch.object(segment, "TASK_SECONDS", 0.0):
        blocks = bnmc.simulate(RELU, 3000, rng=0, chains=2, observables=wanted, threads=2)
    half = bnmc.simulate(RELU, 1700, rng=0, chains=2, observables=wanted)
    rest = bnmc.simulate(RELU, 1300, initial=half.final_state, observables=wanted)
    for name in wanted:
        np.testing.assert_array_equal(other[name], expected[name])
        np.testing.assert_array_equal(blocks[name], expected[name])
        np.testing.assert_array_equal(rest[name], expected[name][:, 1700:])


def test_the_mean_of_the_logarithm_of_the_norm():
    """One input through a linear network: log of a chi-square of d degrees over d, a layer.

    By the weights, so that not the Wishart factors are tested. 1000 layers of 40 chains; the mean
    deviates by more than 6 standard errors with probability 2e-9.
    """
    from scipy.special import digamma, polygamma

    width, depth, chains = 12, 1000, 40
    chain = bnmc.Chain.vanilla(width, 1)
    run = bnmc.simulate(
        chain,
        depth,
        chains=chains,
        rng=0,
        sampler="weights",
        observables=["scaled_gram", "log_scale"],
    )
    log_norm = np.log(run["scaled_gram"][:, :, 0, 0]) + run["log_scale"]
    assert log_norm[:, -1].mean() < -40
    steps = (log_norm[:, -1] - log_norm[:, 0]) / depth
    expected = digamma(width / 2) - np.log(width / 2)
    stderr = np.sqrt(polygamma(1, width / 2) / (depth * chains))
    assert abs(steps.mean() - expected) < 6 * stderr


def test_a_million_layers_of_a_relu_network():
    run = bnmc.simulate(bnmc.Chain.vanilla(8, 2, "relu"), 10**6, rng=1, every=10**5)
    # A narrow one dies: all units are off in some layer, and G is exactly zero from there on.
    assert run.gram[0, 0].any()
    assert not run.gram[0, -1].any()
    run = bnmc.simulate(
        bnmc.Chain.vanilla(60, 2, "relu"), 10**5, rng=1, every=10**4,
        observables=["scaled_gram", "log_scale", "rank_bound"],
    )  # fmt: skip
    assert np.isfinite(run["log_scale"]).all()
    assert run["log_scale"][0, -1] < -60_000
    # The samples become one direction, as far as float64 tells.
    correlation = run["scaled_gram"][0, -1]
    assert correlation[0, 1] ** 2 / correlation[0, 0] / correlation[1, 1] > 1 - 1e-6


def test_what_is_not_homogeneous_has_no_scale_and_says_so():
    chain = bnmc.Chain.vanilla(8, 2, "tanh")
    with pytest.raises(NonFiniteError, match="too small") as caught:
        bnmc.simulate(chain, 10**6, rng=0, every=10**5)
    assert caught.value.chain == 0
    bnmc.simulate(chain, 100, rng=0)


# --- condition


def close(distance, width=50, dtype=np.float64):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(width, 3))
    x[:, 2] = x[:, 1] + distance * generator.normal(size=width)
    return x.astype(dtype)


@pytest.mark.parametrize(
    ("chain", "options"),
    [
        (bnmc.Chain(50, 3, "linear", norm="batch-uncentred", skip=0.5), {}),
        (bnmc.Chain(50, 3, "linear", norm="batch-uncentred", weights="uniform"), {}),
        (bnmc.Chain(50, 3, "linear", norm="none", weights="uniform"), {}),
    ],
    ids=["skip", "weights", "no norm"],
)
def test_samples_that_float32_does_not_tell_apart_are_reported(chain, options):
    for distance, reported in ((1.0, False), (1e-2, False), (1e-5, True), (1e-9, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = bnmc.simulate(
                chain, 2, chains=3, initial=close(distance), rng=0, dtype="float32", **options
            )
        assert run.unresolved == ((0, 1, 2) if reported else ())
        assert [one.category for one in caught] == [PrecisionWarning] * reported
        if reported:
            assert "chains 0, 1, 2" in str(caught[0].message)
            assert caught[0].filename == __file__
        double = bnmc.simulate(chain, 2, chains=3, initial=close(distance), rng=0, **options)
        assert double.unresolved == ()


def test_what_was_not_resolved_is_remembered(tmp_path):
    chain = bnmc.Chain(50, 3, "linear", norm="batch", weights="uniform")
    start = np.stack([close(1.0), close(1e-5), close(1.0)])
    x = start + 0.0
    with pytest.warns(PrecisionWarning, match="chains 1:"):
        run = bnmc.simulate(
            bnmc.Chain(50, 3, norm="none", weights="uniform"), 1, initial=x, rng=0, dtype="float32"
        )
    with pytest.warns(PrecisionWarning, match="chains 1:"):
        deeper = bnmc.simulate(run.chain, 1, initial=run.final_state)
    assert deeper.unresolved == (1,)
    for _ in range(2):
        with pytest.warns(PrecisionWarning):
            kept = bnmc.simulate(
                run.chain, 1, initial=x, rng=0, dtype="float32", store=tmp_path / "run.zarr"
            )
        assert kept.unresolved == (1,)
    assert bnmc.simulate(chain, 3, rng=0, dtype="float32").unresolved == ()


def test_least_pivots():
    generator = np.random.default_rng(1)
    for n, centred in ((1, False), (4, False), (4, True), (9, True)):
        a = generator.normal(size=(5, 7, 40, n))
        a[0, 0] *= np.geomspace(1, 1e-3, n)  # scales of samples do not matter
        grams = a.swapaxes(-1, -2) @ a
        found = precision.least_pivots(grams, centred, 40)
        projection = np.eye(n) - centred * np.ones((n, n)) / n
        for index in np.ndindex(5, 7):
            kept = (projection @ grams[index] @ projection)[: n - centred, : n - centred]
            factor = np.linalg.cholesky(kept) if len(kept) else np.ones((1, 1))
            scale = np.diag(kept) if len(kept) else 1.0
            assert found[index] == pytest.approx((np.diag(factor) ** 2 / scale).min(), rel=1e-6)
    singular = np.ones((3, 3))
    assert precision.least_pivots(singular, False, 3) == 0.0
    assert precision.least_pivots(singular, False, 1) == 1.0
    assert precision.least_pivots(np.zeros((2, 2)), False, 2) == 0.0
