"""Scales that leave float64, samples that float32 does not tell apart: split off, or reported."""

import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from oracle import binomial_range, gram, normals, semidefinite_cholesky, weights
from slow_cases import some

import bnmc
from bnmc._kernels.scalar import codes
from bnmc.errors import ArgumentError, NonFiniteError, PrecisionWarning
from bnmc.simulation import segment
from bnmc.simulation.engine.rows import least_pivots
from bnmc.simulation.engine.state import exponents_of

RELU = bnmc.Chain(20, 3, "relu", norm="none")
IN_LOGARITHMS = ["scaled_gram", "log_scale"]


# --- scale


def in_logarithms(run):
    """Return the logarithm of the trace and the matrix of trace 1, layer by layer."""
    grams, log_scale = run["scaled_gram"], run["log_scale"]
    trace = np.trace(grams, axis1=-2, axis2=-1)
    log_scale = log_scale.reshape(log_scale.shape + (1,) * (trace.ndim - 2))
    return np.log(trace) + log_scale, grams / trace[..., None, None]


UNIFORM = replace(RELU, weights="uniform")
#: Chains, options, and the exponent of a factor of each layer: also one whose square leaves the
#: range of the rows.
UNITS = {
    "conditional": (RELU, {}, 12),
    "inputs": (bnmc.Chain(20, 3, "leaky_relu", norm="none"), {"inputs": 2}, 12),
    "skip": (replace(RELU, skip=0.5), {"dtype": "float32"}, 12),
    "weights": (UNIFORM, {}, 12),
    "weights, skip": (replace(UNIFORM, skip=1.0), {"inputs": 2}, 12),
    **{
        f"{sampler}, {skip}, {dtype}": (
            bnmc.Chain(20, 1, "relu", norm="none", skip=skip),
            {"sampler": sampler, "dtype": dtype}, exponent,
        )
        for sampler in ("conditional", "weights")
        for skip in (0.0, 0.5)
        for dtype, exponent in (("float64", 600), ("float32", 90))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
def test_another_unit_changes_nothing_but_the_scale(name):
    """With a gain of 2**k the chain is the same one times powers of 2, to the bit.

    So a run that stays in the range of float64 says what one is that leaves it far behind, as long
    as all is scaled with it: the skip connection too.
    """
    chain, options, exponent = UNITS[name]
    depth, unit = 1800 // exponent, 2.0**exponent
    wanted = ["scaled_gram", "log_scale", "orthogonality_gap", "rank_bound"]
    near = bnmc.simulate(chain, depth, chains=2, rng=0, observables=wanted, **options)
    for factor in (unit, 1 / unit):
        scaled = replace(chain, gain=factor, skip=chain.skip * factor)
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


def test_exponents_are_those_of_the_largest_sample():
    """2**(e-1) <= the largest diagonal entry < 2**e, and 0 has the exponent 0."""
    below = np.nextafter(8.0, 0.0)
    diagonals = [(0.0, 0.0), (1.0, 0.0), (0.0, 8.0), (below, 0.5), (2.0**-1000, 2.0**-1010)]
    grams = np.array([np.diag(diagonal) for diagonal in diagonals])
    np.testing.assert_array_equal(exponents_of(grams), [0, 1, 4, 3, -999])


def test_what_is_in_range_is_what_it_is():
    run = bnmc.simulate(RELU, 600, rng=0, observables=["gram", "scaled_gram", "log_scale"])
    assert not run["log_scale"].any()
    np.testing.assert_array_equal(run["gram"], run["scaled_gram"])
    assert 0.0 < run["gram"][0, -1].max() < 1e-150


def test_a_million_layers_of_a_relu_network():
    run = bnmc.simulate(bnmc.Chain(8, 2, "relu", norm="none"), 10**6, rng=1, every=10**5)
    # A narrow one dies: all units are off in some layer, and G is exactly zero from there on.
    assert run.gram[0, 0].any()
    assert not run.gram[0, -1].any()
    run = bnmc.simulate(
        bnmc.Chain(60, 2, "relu", norm="none"), 10**5, rng=1, every=10**4,
        observables=["scaled_gram", "log_scale", "rank_bound"],
    )  # fmt: skip
    assert np.isfinite(run["log_scale"]).all()
    assert run["log_scale"][0, -1] < -60_000
    # The samples become one direction, as far as float64 tells.
    correlation = run["scaled_gram"][0, -1]
    assert correlation[0, 1] ** 2 / correlation[0, 0] / correlation[1, 1] > 1 - 1e-6


def test_what_is_not_homogeneous_has_no_scale_and_says_so():
    chain = bnmc.Chain(8, 2, "tanh", norm="none")
    with pytest.raises(NonFiniteError, match="too small") as caught:
        bnmc.simulate(chain, 10**6, rng=0, every=10**5)
    assert caught.value.chain == 0
    bnmc.simulate(chain, 100, rng=0)


def cube(x):
    return x * x * x


@pytest.mark.parametrize("dtype", some(["float32", "float64"], "float64"))
def test_what_becomes_too_small_for_its_rows_says_so(dtype):
    """The cube of a small number is 0 after a few layers, which is not the law."""
    chain = bnmc.Chain(6, 2, cube, norm="none")
    for sampler in ("conditional", "weights"):
        with pytest.raises(NonFiniteError, match="too small for float"):
            bnmc.simulate(chain, 30, rng=0, initial=np.eye(6, 2) / 9, sampler=sampler, dtype=dtype)
    dead = bnmc.Chain(1, 1, lambda x: max(x, 0.0) ** 3, norm="none")
    run = bnmc.simulate(dead, 60, rng=0, dtype=dtype, sampler="conditional")
    assert not run.gram[0, -1].any()


@pytest.mark.parametrize(
    ("activation", "gain", "depth"), [("tanh", 0.3, 60), ("gelu", 0.5, 100), ("silu", 0.5, 100)]
)
def test_small_chains_of_float32_are_those_of_float64(activation, gain, depth):
    """Each layer divides G by 4 or more, so it leaves float32 after at most 60 layers."""
    chain = bnmc.Chain(60, 5, activation, norm="none", gain=gain)
    options = {"rng": 0, "chains": 8, "every": depth}
    grams = [
        bnmc.simulate(chain, depth, dtype=dtype, **options).gram[:, -1]
        for dtype in ("float32", "float64")
    ]
    size = np.sqrt(np.diagonal(grams[1], axis1=1, axis2=2))
    assert size.max() ** 2 < 2.0**-149
    # Each of the layers moves entries by some units of 2⁻²⁴.
    relative = (grams[0] - grams[1]) / (size[:, :, None] * size[:, None, :])
    assert abs(relative).max() < depth * 2.0**-20


@pytest.mark.parametrize(
    "options", [{"sampler": "weights"}, {"skip": 0.1}], ids=["weights", "skip"]
)
def test_float32_rows_that_are_part_of_the_state_are_right_or_too_small(options):
    """They cannot leave float32, so the layer whose sums round G ends the run."""
    skip = options.pop("skip", 0.0)
    chain = bnmc.Chain(60, 5, "tanh", norm="none", gain=0.25, skip=skip)
    options = {"rng": 0, "dtype": "float32", **options}
    with pytest.raises(NonFiniteError, match="too small for float32") as caught:
        bnmc.simulate(chain, 60, **options)
    last = caught.value.layer - 1
    run = bnmc.simulate(chain, last, **options)
    exact = bnmc.simulate(chain, last, **{**options, "dtype": "float64"}).gram[0]
    diagonal = np.diagonal(run.gram[0], axis1=1, axis2=2)
    assert 2.0**-125 <= diagonal[-1].min() < 2.0**-115
    np.testing.assert_allclose(diagonal, np.diagonal(exact, axis1=1, axis2=2), rtol=last * 2e-6)
    # The layer does not depend on how many layers a block has, and what is recorded.
    error = pytest.raises(NonFiniteError, match=f"layer {last + 1}$")
    with mock.patch.object(segment, "FRAME_BYTES", 1), error:
        bnmc.simulate(chain, 60, **options)


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "layer"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gain_that_the_norm_does_not_see_changes_no_bit(norm, dtype):
    """Powers of two far beyond the range of squares, for both samplers."""
    for sampler in ("conditional", "weights"):
        grams = [
            bnmc.simulate(
                bnmc.Chain(12, 4, "tanh", norm=norm, gain=2.0**exponent),
                4, rng=0, sampler=sampler, dtype=dtype,
            ).gram
            for exponent in (0, -1000, -520, -70, -66, 62, 64, 130, 1000)
        ]  # fmt: skip
        np.testing.assert_array_equal(grams[1:], np.array(grams[:1] * 8))


# Float32 rows by weights, before a norm over the features, compile for 4 seconds.
@pytest.mark.parametrize("sampler", some(["conditional", "weights"], "conditional"))
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "batch", "eps": 1e-5},
        {"norm": "layer", "eps": 1e-5},
        {"norm": "batch-uncentred", "skip": 1.0},
        {"norm": "batch", "order": "activation-norm", "skip": 1.0},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_rows_of_float32_whose_squares_leave_its_range_are_right_or_errors(options, sampler):
    """Relu keeps zeros, so no other check sees that squares of small numbers vanished."""
    for exponent in (-120, -100, -70, -58, 62, 63, 64, 100, 120):
        chain = bnmc.Chain(12, 4, "relu", gain=2.0**exponent, **options)
        run = partial(bnmc.simulate, chain, 3, rng=0, sampler=sampler)
        exact = run(dtype="float64").gram
        size = np.sqrt(np.diagonal(exact, axis1=2, axis2=3))
        with suppress(NonFiniteError):
            relative = (run(dtype="float32").gram - exact) / (size[..., None] * size[..., None, :])
            assert abs(relative).max() < 1e-4


@pytest.mark.parametrize("exponent", [-100, -70, 64])
# What records h compiles for 3 seconds in each case; rows that are not recorded are above.
@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_recorded_states_whose_squares_leave_float32_are_right_or_errors(norm, exponent):
    chain = bnmc.Chain(12, 4, "relu", norm=norm, gain=2.0**exponent)
    run = partial(bnmc.simulate, chain, 2, rng=0, sampler="weights", observables="state_gram")
    with pytest.raises(NonFiniteError):
        run(dtype="float32")
    assert run(dtype="float64").state_gram[0, -1].any()


def small_tanh(x):
    return 1e-22 * np.tanh(x)


def test_normed_chains_whose_activations_are_too_small_say_so():
    """A norm restores the size of numbers that float32 has rounded."""
    chain = bnmc.Chain(20, 3, small_tanh)
    for sampler in ("conditional", "weights"):
        with pytest.raises(NonFiniteError, match="too small for float32"):
            bnmc.simulate(chain, 3, rng=0, sampler=sampler, initial="gaussian", dtype="float32")
        assert bnmc.simulate(chain, 3, rng=0, sampler=sampler, initial="gaussian").gram.all()


def test_a_start_whose_squares_are_zero_is_too_small():
    start = np.ones((6, 2)) * [1.0, 1e-170]
    with pytest.raises(NonFiniteError, match="too small for float64") as caught:
        bnmc.simulate(bnmc.Chain(6, 2, "tanh", norm="none"), 3, rng=0, initial=start)
    assert caught.value.layer == 0
    zero = bnmc.simulate(
        bnmc.Chain(6, 2, "tanh", norm="none"), 3, rng=0, initial=start * [1.0, 0.0]
    )
    assert not zero.gram[0, :, 1].any()
    assert zero.gram[0, :, 0, 0].all()


# --- scale of narrow chains, where one layer may divide a sample by 10**6


def own_leaky(x):
    return max(x, SLOPE * x)


SLOPE = 0.02
SIGMAS = {
    "linear": lambda x: x,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0.0),
    "leaky_relu": lambda x: np.where(x > 0.0, x, 0.01 * x),
    own_leaky: lambda x: np.maximum(x, SLOPE * x),
}


def by_logarithms(chain, x, depth, key, sampler, dtype):
    """Follow one network from x_0 by the formula, with the run's random numbers.

    Every layer divides each sample by its largest activation, and adds the logarithm of that.
    Returns log G_ii and G_ij / sqrt(G_ii G_jj) of each layer; of a sample that is zero, -inf and 0.
    """
    sigma, width, columns = SIGMAS[key_of(chain)], chain.width, x.shape[1]
    logs, logs_of_grams, correlations = np.zeros(columns), [], []
    a = sigma(x)
    for layer in range(depth + 1):
        if layer:
            stream = codes.STREAM_WEIGHTS if sampler == "weights" else codes.STREAM_ROWS
            draw = codes.Draw(layer, stream, np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32))
            if sampler == "weights":
                law = chain.layers[1].linear.law.code
                w = weights(law, np.arange(width), np.arange(width), draw, dtype).T
                h = w.astype(np.float64) @ a / np.sqrt(width)
            else:
                units = 16 * columns * 2.0**-52
                factor = semidefinite_cholesky(gram(a), units)
                z = normals(np.arange(columns), np.arange(width), draw, dtype).astype(np.float64)
                h = (factor @ z).T
            x = chain.skip * x + chain.gain * h
            a = sigma(x)
        largest = np.abs(a).max(axis=0)
        largest = np.where(largest > 0.0, largest, np.abs(x).max(axis=0))
        largest = np.where(largest > 0.0, largest, 1.0)
        x, a, logs = x / largest, a / largest, logs + np.log(largest)
        g = gram(a)
        diagonal = np.diag(g)
        with np.errstate(divide="ignore"):
            logs_of_grams.append(2.0 * logs + np.log(diagonal))
        size = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
        correlations.append(g / np.outer(size, size))
    return np.array(logs_of_grams), np.array(correlations)


def key_of(chain):
    return chain.activation.name if chain.activation.builtin else own_leaky


def state_in_logarithms(state, chain=0):
    """Return log G_ii and the correlations of a state."""
    g, exponents = state.arrays["gram"][chain], state.arrays["exponent"][chain]
    diagonal = np.diag(g)
    size = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    with np.errstate(divide="ignore"):
        return np.log(diagonal) + 2.0 * np.log(2.0) * exponents, g / np.outer(size, size)


def narrow(width, activation, batch=2, **options):
    return bnmc.Chain(width, batch, activation, norm="none", **options)


# With one sample float32 rows resolve the Gram matrix, so the chain does not continue in float64.
NARROW = [
    (narrow(1, "leaky_relu", 1), "conditional", "float32", None),
    (narrow(1, "leaky_relu"), "conditional", "float64", None),
    (narrow(2, "leaky_relu"), "conditional", "float64", 2),
    (narrow(4, "leaky_relu", 1), "conditional", "float32", None),
    (narrow(3, own_leaky), "conditional", "float64", None),
    (narrow(2, own_leaky), "weights", "float32", None),
    (narrow(1, "leaky_relu"), "weights", "float32", 2),
    (narrow(2, "leaky_relu", weights="rademacher"), "weights", "float32", None),
    (narrow(4, "leaky_relu", weights="uniform"), "weights", "float64", None),
    (narrow(1, "linear"), "weights", "float32", None),
    (narrow(2, "abs"), "conditional", "float64", None),
    (narrow(4, "relu"), "weights", "float32", None),
    (narrow(2, "leaky_relu", skip=0.01), "conditional", "float32", None),
    (narrow(2, "leaky_relu", skip=-0.1, weights="rademacher"), "weights", "float32", None),
    (narrow(3, own_leaky, skip=0.02, gain=1e-30), "weights", "float32", 2),
    (narrow(2, "relu", skip=-0.5, gain=0.1), "conditional", "float64", None),
]


# Each activation, law of weights and sampler, with a skip connection and with several inputs.
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize("number", some(range(len(NARROW)), 0, 2, 5, 8, 9, 10, 11, 13, 14, 15))
def test_narrow_chains_follow_their_logarithms(number):
    """In 300 layers G becomes as small as 10**-1000, of samples that differ by as much.

    A run that is cut has the bits of the whole one.
    """
    chain, sampler, dtype, inputs = NARROW[number]
    columns, depth = chain.batch * (inputs or 1), 300
    x = np.random.default_rng(number).normal(size=(chain.width, columns)).astype(dtype)
    x = x.astype(np.float64)
    x[0] = np.abs(x[0])  # so that a rectifier leaves something
    initial = x if inputs is None else np.stack(np.hsplit(x, inputs))
    options = {"initial": initial, "inputs": inputs, "sampler": sampler, "dtype": dtype}
    whole = bnmc.simulate(chain, depth, rng=number, observables=IN_LOGARITHMS, **options)
    key, at, state = whole.key, 0, initial
    logs, correlations = by_logarithms(chain, x, depth, key, sampler, dtype)
    unit = 2.0**-24 if dtype == "float32" else 2.0**-52
    # Of nearly collinear samples a Gram matrix resolves the root of its rounding error; the factor
    # is for numbers near the kink, where slopes differ.
    resolved = (
        np.sqrt(16 * columns * unit) if sampler == "conditional" and columns > 1 else 5 * unit
    )
    allowed = 10 * resolved * np.sqrt(chain.width)
    for layer in (1, 2, 30, 75, depth):
        start = {**options, "initial": state, "rng": None if at else number}
        run = bnmc.simulate(chain, layer - at, observables=IN_LOGARITHMS, **start)
        for name in IN_LOGARITHMS:
            np.testing.assert_array_equal(run[name], whole[name][:, at : layer + 1])
        assert run.key == key
        assert not run.widened
        at, state = layer, run.final_state
        of_state, shape = state_in_logarithms(run.final_state)
        alive = logs[layer] > -np.inf
        np.testing.assert_array_equal(of_state > -np.inf, alive)
        apart = np.abs(of_state[alive] - logs[layer][alive])
        assert apart.max(initial=0.0) < allowed * (layer + 1)
        assert np.abs(shape - correlations[layer]).max() < allowed * (layer + 1)
        # The record holds the largest sample, at any scale.
        trace = np.einsum("...ii->...", run["scaled_gram"][0, -1]).sum()
        if alive.any():
            total = np.log(trace) + run["log_scale"][0, -1]
            assert total == pytest.approx(
                np.logaddexp.reduce(logs[layer]), abs=allowed * (layer + 1)
            )
        else:
            assert trace == 0.0
    for name, values in whole.final_state.arrays.items():
        np.testing.assert_array_equal(values, state.arrays[name])


@pytest.mark.parametrize("start", ["conditional", "weights", "first layer", "first layer, batch"])
@pytest.mark.parametrize("activation", ["linear", "leaky_relu"])
def test_starts_of_any_size_keep_their_scale(start, activation):
    """Multiples by powers of 2 are the same chain to the bit, subnormal numbers included."""
    is_first, norm = start.startswith("first"), "batch" if "batch" in start else "none"
    chain = bnmc.Chain(20, 3, activation, norm=norm, skip=0.5 * (start == "weights"))
    # Whole numbers, so that multiples of the least subnormal number hold all of their digits.
    x = np.random.default_rng(5).integers(-99, 100, size=(7 if is_first else 20, 3))

    def scaled(exponents):
        initial = np.ldexp(x.astype(np.float64), exponents)
        return bnmc.simulate(
            chain, 5, initial=bnmc.FirstLayer(initial) if is_first else initial, rng=0,
            sampler="auto" if is_first else start, observables=IN_LOGARITHMS,
        )  # fmt: skip

    near = scaled(0)
    log_near, shape_near = in_logarithms(near)
    for exponent in (-1074, -530, 530, 1016):
        log_far, shape_far = in_logarithms(scaled(exponent))
        np.testing.assert_allclose(shape_far, shape_near, atol=1e-14 if is_first else 1e-15)
        moved = 2 * exponent * np.log(2.0) * (norm == "none")
        np.testing.assert_allclose(log_far, log_near + moved, rtol=1e-14, atol=1e-12)
    # Each sample has a scale of its own.  Wishart factors have one scale.
    if is_first or (start, activation) == ("conditional", "linear"):
        return
    exponents = np.array([-900, 0, 1000])
    logs, _ = state_in_logarithms(scaled(exponents).final_state)
    expected = np.log(np.diag(near["scaled_gram"][0, -1])) + 2 * exponents * np.log(2.0)
    np.testing.assert_allclose(logs, expected, rtol=0, atol=1e-11)


def test_zero_is_the_law_where_a_rectifier_kills_a_sample():
    chain = narrow(1, "relu", 1)
    run = bnmc.simulate(chain, 5, chains=4000, rng=0, observables=IN_LOGARITHMS)
    alive = (run["scaled_gram"][:, :, 0, 0] > 0.0).sum(axis=0)
    for layer, count in enumerate(alive):
        low, high = binomial_range(4000, 0.5 ** (layer + 1), len(alive))
        assert low <= count <= high
    dead = run["scaled_gram"][:, :-1, 0, 0] == 0.0
    assert not run["scaled_gram"][:, 1:, 0, 0][dead].any()
    assert not run["log_scale"][:, 1:][dead].any()


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
        assert [warning.category for warning in caught] == [PrecisionWarning] * reported
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
            stored = bnmc.simulate(
                run.chain, 1, initial=x, rng=0, dtype="float32", store=tmp_path / "run.zarr"
            )
        assert stored.unresolved == (1,)
    assert bnmc.simulate(chain, 3, rng=0, dtype="float32").unresolved == ()


def test_least_pivots():
    generator = np.random.default_rng(1)
    for n, centred in ((1, False), (4, False), (4, True), (9, True), (80, False), (80, True)):
        width = max(40, 2 * n)
        a = generator.normal(size=(5, 7, width, n))
        a[0, 0] *= np.geomspace(1, 1e-3, n)  # scales of samples do not matter
        grams = a.swapaxes(-1, -2) @ a
        pivots = least_pivots(grams, centred, width)
        projection = np.eye(n) - centred * np.ones((n, n)) / n
        for index in np.ndindex(5, 7):
            projected = (projection @ grams[index] @ projection)[: n - centred, : n - centred]
            factor = np.linalg.cholesky(projected) if len(projected) else np.ones((1, 1))
            scale = np.diag(projected) if len(projected) else 1.0
            assert pivots[index] == pytest.approx((np.diag(factor) ** 2 / scale).min(), rel=1e-6)
    singular = np.ones((3, 3))
    assert least_pivots(singular, False, 3) == 0.0
    assert least_pivots(singular, False, 1) == 1.0
    assert least_pivots(np.zeros((2, 2)), False, 2) == 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gram_matrix_that_vanishes_within_a_layer_raises_with_its_layer(dtype):
    chain = bnmc.Chain(60, 5, "tanh", norm="none", gain=1e-170)
    with pytest.raises(NonFiniteError, match="too small for float64") as caught:
        bnmc.simulate(chain, 3, rng=0, dtype=dtype, threads=1)
    assert caught.value.layer == 1


@pytest.mark.parametrize("exponent", [-80, 80])
def test_slopes_whose_squares_float32_loses_need_float64(exponent):
    """Gram matrices were zero: zeros of homogeneous activations count as exact."""
    slope = 2.0**exponent
    chain = bnmc.Chain(9, 3, bnmc.Activation(lambda x: slope * max(x, 0.0)), norm="none")
    with pytest.raises(ArgumentError, match="dtype: .*'float64' for an activation of slope"):
        bnmc.simulate(chain, 1, rng=0, dtype="float32")
