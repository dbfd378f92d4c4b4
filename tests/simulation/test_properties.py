"""Symmetries of the law, and what results must not depend on: threads, chunks, layout, depth.

Everything here runs one activation, so that few kernels are compiled: the leaky ReLU has a kink,
is not odd, and maps no row that varies to one that does not, so no chain stops half-way.
"""

import os
import pickle
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_cases import some

from bnmc import Chain, Convolution, simulate
from bnmc._kernels.cpu import layers
from bnmc.simulation import run as simulating
from bnmc.simulation import segment
from bnmc.simulation.engine import threads as threads_of_engine
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.runs import choose_sampler

SIGMA = "leaky_relu"
#: Examples of each property; `make fuzz` draws more.
EXAMPLES = settings(max_examples=60 if os.environ.get("BNMC_FUZZ") == "1" else 25)


def gaussian_weights(generator, shape):
    return generator.standard_normal(shape)


# Options of a chain that takes each way through the samplers, and the way that it takes.
PATHS = {
    "conditional": ({"activation": SIGMA}, "conditional", "conditional"),
    "conditional, skip": ({"activation": SIGMA, "skip": 0.5}, "conditional", "conditional"),
    "weights": ({"activation": SIGMA}, "weights", "weights"),
    "weights, skip": ({"activation": SIGMA, "skip": 0.5}, "weights", "weights"),
    "rademacher": ({"activation": SIGMA, "weights": "rademacher"}, "weights", "weights"),
    "user weights": ({"activation": SIGMA, "weights": gaussian_weights}, "weights", "weights"),
    "factor": ({"activation": "linear", "norm": "none"}, "conditional", "factor"),
}
ROWS = [name for name in PATHS if name != "factor"]
NORMS = ("batch", "batch-uncentred", "none")
DTYPES = ("float64", "float32")

PATH_NAMES = st.sampled_from(list(PATHS))
SEEDS = st.integers(0, 2**32 - 1)
BATCHES = st.integers(2, 40)
# Wide enough, now and then, for a layer to have several panels.
WIDTHS = st.one_of(st.integers(1, 300), st.integers(257, 300))


@st.composite
def runs(draw, paths=PATH_NAMES, most_chains=5, **fixed):
    """A chain of any path, and the arguments of a run of it."""
    path = draw(paths)
    options, sampler, _ = PATHS[path]
    options = dict(options)
    options.setdefault("norm", draw(st.sampled_from(NORMS)))
    # Signs that cancel take the variance of a row where width or batch is small.
    generic = path != "rademacher"
    width, batch = draw(WIDTHS), draw(BATCHES)
    chain = Chain(width if generic else width + 30, batch if generic else batch + 1, **options)
    laws = ["gaussian", "collinear"] if chain.batch > 2 else ["gaussian"]
    arguments = {
        "sampler": sampler,
        "chains": draw(st.integers(1, most_chains)),
        "inputs": draw(st.sampled_from([None, None, 1, 2, 3])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "rng": draw(SEEDS),
        "initial": draw(st.sampled_from(laws)),
    }
    return chain, {**arguments, **fixed}


# Random chains may have dependent samples, which float32 runs report.
# Tests of single functions reach the same lines.
pytestmark = [
    pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning"),
    pytest.mark.untraced,
]

#: What a task should take, in seconds: as it is, some layers of a narrow chain, a single layer.
TASKS = st.sampled_from([segment.TASK_SECONDS, 2e-5, 0.0])


@contextmanager
def chunks(task_seconds, share):
    """Force small blocks of layers, and all threads on each layer."""
    forced = {"TASK_SECONDS": task_seconds}
    if share:
        forced["SHARED_LAYER_SECONDS"] = 0.0
    with (
        mock.patch.multiple(segment, **forced),
        mock.patch.object(simulating, "BRIEF_SECONDS", 0.0),
    ):
        yield


def assert_same_bits(first, other):
    assert first.key == other.key
    for name, values in first.observables.items():
        assert np.array_equal(values, other[name], equal_nan=True), name


def assert_same_state(first, other):
    assert first.layer == other.layer
    assert first.arrays.keys() == other.arrays.keys()
    for name, values in first.arrays.items():
        # Activations of the layer before the last are of no use, so they need not agree.
        here, there = (
            array[:, state.layer % 2] if name == "activations" else array
            for array, state in ((values, first), (other.arrays[name], other))
        )
        assert np.array_equal(here, there), name


def test_the_paths_are_what_their_names_say():
    for options, sampler, path in PATHS.values():
        chain = Chain(20, 3, **options)
        assert choose_sampler(chain.repeat(1), None, sampler, "float64") == path


# --- the same bits --------------------------------------------------------------------------


@EXAMPLES
@given(runs(), st.integers(1, 6), st.integers(2, 3), TASKS, st.booleans())
def test_threads_and_chunks_do_not_change_a_bit(run, depth, threads, task_seconds, share):
    chain, arguments = run
    alone = simulate(chain, depth, threads=1, **arguments)
    with chunks(task_seconds, share):
        chunked = simulate(chain, depth, threads=threads, **arguments)
    assert_same_bits(alone, chunked)
    assert_same_state(alone.final_state, chunked.final_state)


def divided(width, batch, activation="tanh", sampler="conditional", **options):
    """Return a chain and the options of a run, which have names of their own."""
    of_run = ("dtype", "initial", "inputs", "observables")
    run = {name: options.pop(name) for name in of_run if name in options}
    return Chain(width, batch, activation, **options), {"sampler": sampler, **run}


OF_STATES = ["gram", "state_gram"]
SCALED = {"batch": 2, "norm": "none", "gain": 2.0**-40}
#: Runs that are divided in any way: panels and groups that do not end together, rows that are kept
#: between two passes or not, several panels of columns.
DIVIDED = {
    **{
        f"{path}, {dtype}": (
            Chain(*shape, **PATHS[path][0]),
            {"sampler": PATHS[path][1], "dtype": dtype, "initial": "collinear"},
        )
        for path, shape in {
            "conditional": (6200, 10), "conditional, skip": (6200, 10), "weights": (700, 5),
            "weights, skip": (700, 5), "user weights": (700, 5),
        }.items()
        for dtype in DTYPES
    },
    **{
        f"{sampler}: {name}": divided(width, sampler=sampler, **{"batch": 3, **options})
        for sampler, width in {"conditional": 5000, "weights": 1300}.items()
        for name, options in {
            "groups": {"norm": "group(5)", "skip": 0.5, "bias_variance": 0.1},
            "layer after": {"norm": "layer", "order": "activation-norm"},
            "batch after": {"order": "activation-norm", "skip": 0.5, "eps": 0.1},
            "uncentred with bias": {"norm": "batch-uncentred", "bias_variance": 0.1},
            "layer, states": {"norm": "layer", "inputs": 2, "observables": OF_STATES},
            "bias, states": {"bias_variance": 0.3, "inputs": 2, "observables": OF_STATES},
            "scale": {**SCALED, "activation": SIGMA},
            "scale, skip": {**SCALED, "activation": SIGMA, "skip": 2.0**-41},
            "scale, states": {**SCALED, "activation": "relu", "observables": OF_STATES},
            "convolution": {"batch": 4, "convolution": Convolution((2, 2), (2, 1))},
        }.items()
    },
    **{
        f"haar, {skip}, {dtype}": divided(
            9000, 5, "relu", weights="haar", skip=skip, dtype=dtype
        )
        for skip in (0.0, 0.5)
        for dtype in DTYPES
    },
    "many columns": divided(1100, 150, "relu"),
}  # fmt: skip


#: Each of these compiles a kernel for threads that share a layer; others have the same way through
#: such a kernel, with other types.
LATER = {
    "conditional, float32",
    "conditional, skip, float64",
    "weights, float32",
    "user weights, float32",
    "conditional: layer, states",
    "weights: layer, states",
    "weights: bias, states",
    "weights: scale, states",
    "weights: scale, skip",
    "conditional, skip, float32",
    "conditional: bias, states",
    "conditional: convolution",
    "conditional: scale, states",
    "haar, 0.0, float64",
    "haar, 0.0, float32",
    "haar, 0.5, float32",
}


@pytest.mark.parametrize("name", some(DIVIDED, *(DIVIDED.keys() - LATER)))
def test_bits_do_not_depend_on_the_division_of_a_run(name, monkeypatch):
    """Through threads, restarts, layers that threads share, and rows that are not kept."""
    chain, options = DIVIDED[name]
    options = {"observables": ["scaled_gram", "log_scale"], "chains": 2, "rng": 5, **options}
    whole = simulate(chain, 3, threads=1, **options)
    begun = pickle.loads(pickle.dumps(simulate(chain, 1, threads=2, **options).final_state))
    rest = simulate(chain, 2, initial=begun, burn_in=1, observables=options["observables"])
    for observable, values in rest.observables.items():
        assert np.array_equal(values, whole[observable][:, 2:])
    assert_same_state(rest.final_state, whole.final_state)
    advance = RowSampler.advance

    def by_threads(*arguments):
        *_, threads_of_layer = arguments
        assert isinstance(threads_of_layer, Threads)
        advance(*arguments)

    monkeypatch.setattr(threads_of_engine, "SHARED_ROWS", 1)
    with chunks(0.0, True), mock.patch.object(RowSampler, "advance", by_threads):
        for threads in (3, 4):
            shared = simulate(chain, 3, threads=threads, **options)
            assert_same_bits(whole, shared)
            assert_same_state(whole.final_state, shared.final_state)
    monkeypatch.setattr(layers, "KEPT_BYTES", 0)
    assert_same_bits(whole, simulate(chain, 3, threads=1, **options))


@EXAMPLES
@example(
    (
        Chain(1, 2, "leaky_relu", norm="none"),
        {"sampler": "conditional", "chains": 1, "dtype": "float64", "rng": 0},
    ),
    1, 1, segment.TASK_SECONDS,
)  # fmt: skip
@given(runs(), st.integers(0, 5), st.integers(0, 5), TASKS)
def test_a_run_continues_at_any_layer(run, first, more, task_seconds):
    chain, arguments = run
    names = ["gram", "log_scale"]
    whole = simulate(chain, first + more, observables=names, **arguments)
    with chunks(task_seconds, True):
        start = simulate(chain, first, observables=names, threads=2, **arguments)
        rest = simulate(chain, more, initial=start.final_state, observables=names, threads=3)
    assert list(rest.layers) == list(range(first, first + more + 1))
    assert rest.key == whole.key
    assert (rest.chains, rest.inputs, rest.dtype) == (whole.chains, whole.inputs, whole.dtype)
    assert rest.sampler == whole.sampler
    for name in names:
        assert np.array_equal(start[name], whole[name][:, : first + 1])
        assert np.array_equal(rest[name], whole[name][:, first:])
    assert_same_state(rest.final_state, whole.final_state)


@EXAMPLES
@given(runs(), st.integers(1, 3), st.booleans())
def test_a_chain_does_not_depend_on_how_many_there_are(run, depth, shared):
    chain, arguments = run
    if shared:
        shape = (arguments["inputs"],) * (arguments["inputs"] is not None)
        shape = (*shape, chain.width, chain.batch)
        arguments["initial"] = np.random.default_rng(1).normal(size=shape)
    fewer = simulate(chain, depth, **arguments)
    more = simulate(chain, depth, **{**arguments, "chains": arguments["chains"] + 1})
    assert np.array_equal(fewer.gram, more.gram[:-1])
    # A chain that repeats another makes less of an ensemble than it seems to be.
    if chain.width > 20 and chain.batch > 2:
        for gram in more.gram[:-1]:
            assert not np.array_equal(more.gram[-1, 1:], gram[1:])


@EXAMPLES
@given(runs(inputs=None, most_chains=3), st.data())
def test_layout_and_type_of_the_input_do_not_matter(run, data):
    chain, arguments = run
    of_each = data.draw(st.booleans(), label="one batch a chain")
    shape = (arguments["chains"],) * of_each + (chain.width, chain.batch)
    generator = np.random.default_rng(arguments["rng"])
    # Each row varies, and every type holds these numbers.
    integers = generator.integers(-100, 101, shape) + 1000 * np.eye(*shape[-2:], dtype=int)
    integers[..., 0] += 300
    reference = integers.astype(np.float64)
    makers = {
        "float32": lambda x: x.astype(np.float32),
        "int": lambda x: x.astype(np.int64),
        "int16": lambda x: x.astype(np.int16),
        "other byte order": lambda x: x.astype(">f8"),
        "long double": lambda x: x.astype(np.longdouble),
        "Fortran": np.asfortranarray,
        "strided": lambda x: np.repeat(np.repeat(x, 2, -1), 3, -2)[..., ::3, ::2],
        "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
        "transposed": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2),
        "list": lambda x: x.tolist(),
        "read-only": lambda x: np.lib.stride_tricks.as_strided(x.copy(), writeable=False),
    }
    make = makers[data.draw(st.sampled_from(list(makers)), label="made as")]
    given_as = make(reference)
    before = np.array(given_as)
    run = simulate(chain, 2, **{**arguments, "initial": given_as})
    assert_same_bits(simulate(chain, 2, **{**arguments, "initial": reference}), run)
    assert np.array_equal(given_as, before)


# --- symmetries -----------------------------------------------------------------------------


@EXAMPLES
@given(runs(st.sampled_from(["weights", "weights, skip"]), inputs=None), st.data())
def test_permuted_samples_permute_the_gram_matrix(run, data):
    """Exactly, but for the rounding of means over the samples of a row.

    A row of W a is known to 1e-16 of its size (float32: 1e-7), which its normalization magnifies
    by size over standard deviation.
    """
    chain, arguments = run
    order = np.array(data.draw(st.permutations(range(chain.batch)), label="order"))
    x = np.random.default_rng(arguments["rng"]).normal(size=(chain.width, chain.batch))
    plain = simulate(chain, 2, **{**arguments, "initial": x}).gram
    permuted = simulate(chain, 2, **{**arguments, "initial": x[:, order]}).gram
    tolerance = 1e-8 if arguments["dtype"] == "float64" else 5e-3
    size = np.trace(plain, axis1=-2, axis2=-1)[..., None, None]
    assert np.all(np.abs(permuted - plain[..., order[:, None], order]) <= tolerance * size)
    if chain.norm == "none":  # no means: no rounding differs
        assert np.array_equal(permuted, plain[..., order[:, None], order])


@EXAMPLES
@given(runs(st.sampled_from(ROWS), inputs=None), st.data())
def test_scaled_rows_change_nothing_under_normalization(run, data):
    chain, arguments = run
    norm = data.draw(st.sampled_from(NORMS[:2]), label="norm")
    options = {"norm": norm, "skip": chain.skip, "weights": chain.weights}
    chain = Chain(chain.width, chain.batch, SIGMA, **options)
    generator = np.random.default_rng(arguments["rng"])
    x = generator.normal(size=(chain.width, chain.batch))
    powers = 2.0 ** generator.integers(-300, 301, size=(chain.width, 1))
    plain = simulate(chain, 2, **{**arguments, "initial": x})
    assert_same_bits(plain, simulate(chain, 2, **{**arguments, "initial": powers * x}))
    # Other factors change the last bit of an entry, so only the first layers are near.
    factors = np.exp(generator.uniform(-200, 200, size=(chain.width, 1)))
    scaled = simulate(chain, 0, **{**arguments, "initial": factors * x})
    assert np.allclose(scaled.gram, plain.gram[:, :1], rtol=1e-9, atol=1e-9 * chain.batch)


def test_eps_breaks_the_invariance():
    x = np.random.default_rng(0).normal(size=(30, 4))
    chain = Chain(30, 4, SIGMA, eps=0.1)
    small, other = (simulate(chain, 0, initial=scale * x, rng=0).gram for scale in (1.0, 2.0))
    assert np.abs(small - other).max() > 0.01


# --- which layers are recorded --------------------------------------------------------------


@EXAMPLES
@given(
    st.integers(0, 40), st.integers(1, 45), st.data(), st.integers(0, 20),
    TASKS, st.sampled_from(["conditional", "factor"]),
)  # fmt: skip
def test_recorded_layers(depth, every, data, before, task_seconds, path):
    """burn_in, burn_in + every, ... and always the last, counted from where a run starts."""
    burn_in = data.draw(st.integers(0, depth), label="burn_in")
    options, sampler, _ = PATHS[path]
    chain = Chain(5, 3, **options)
    full = simulate(chain, before + depth, chains=2, rng=1, sampler=sampler)
    start = simulate(chain, before, chains=2, rng=1, sampler=sampler)
    asked = {"every": every, "burn_in": burn_in}
    with chunks(task_seconds, False):
        rest = simulate(chain, depth, initial=start.final_state, **asked)
        fresh = simulate(chain, depth, chains=2, rng=1, sampler=sampler, **asked)
    expected = [
        layer
        for layer in range(depth + 1)
        if layer == depth or (layer >= burn_in and (layer - burn_in) % every == 0)
    ]
    assert list(fresh.layers) == expected
    assert list(rest.layers) == [before + layer for layer in expected]
    assert np.array_equal(fresh.gram, full.gram[:, expected])
    assert np.array_equal(rest.gram, full.gram[:, rest.layers])


# --- several inputs through one network -----------------------------------------------------


@EXAMPLES
@given(runs(st.sampled_from(ROWS), inputs=2), st.booleans())
def test_equal_inputs_have_equal_gram_matrices(run, of_each):
    chain, arguments = run
    shape = (arguments["chains"],) * of_each + (chain.width, chain.batch)
    x = np.random.default_rng(arguments["rng"]).normal(size=shape)
    arguments = {**arguments, "initial": np.stack([x, x], axis=-3)}
    run = simulate(chain, 3, observables=["scaled_gram", "cross_gram"], **arguments)
    grams = run.scaled_gram
    assert grams.shape == (arguments["chains"], 4, 2, chain.batch, chain.batch)
    assert np.array_equal(grams[:, :, 0], grams[:, :, 1])
    assert np.array_equal(run.cross_gram[:, :, 0, 1], run.cross_gram[:, :, 0, 0])


@EXAMPLES
@given(runs(st.sampled_from(ROWS)), st.integers(1, 3))
def test_cross_gram_matrices(run, inputs):
    chain, arguments = run
    n, chains = chain.batch, arguments["chains"]
    arguments = {**arguments, "inputs": inputs}
    run = simulate(chain, 2, observables=["gram", "cross_gram"], **arguments)
    assert run.gram.shape == (chains, 3, inputs, n, n)
    assert run.cross_gram.shape == (chains, 3, inputs, inputs, n, n)
    for i in range(inputs):
        assert np.array_equal(run.cross_gram[:, :, i, i], run.gram[:, :, i])
        for j in range(inputs):
            transposed = run.cross_gram[:, :, j, i].swapaxes(-1, -2)
            assert np.array_equal(run.cross_gram[:, :, i, j], transposed)


@EXAMPLES
@given(runs(st.sampled_from([name for name in ROWS if "conditional" not in name]), inputs=None))
def test_what_one_input_sees_does_not_depend_on_the_others(run):
    chain, arguments = run
    generator = np.random.default_rng(arguments["rng"])
    x, y, z = generator.normal(size=(3, chain.width, chain.batch))
    alone = simulate(chain, 2, **{**arguments, "initial": x})
    for batches, place in (([x, y], 0), ([x, z], 0), ([y, x, z], 1)):
        stacked = {**arguments, "inputs": len(batches), "initial": np.stack(batches)}
        run = simulate(chain, 2, **stacked)
        assert np.array_equal(run.gram[:, :, place], alone.gram)


def test_cross_gram_of_inputs_is_that_of_one_network():
    """Linear, no norm: E of the cross-Gram matrix stays that of the inputs, in both samplers.

    4,000 chains; 18 entries at 5.8 standard errors: a false alarm has probability 1.3e-7.
    """
    chain = Chain(20, 3, "linear", norm="none")
    x = np.random.default_rng(5).normal(size=(2, 20, 3))
    expected = x[0].T @ x[1] / 20
    run = simulate(chain, 2, chains=4_000, initial=x, inputs=2, rng=6, observables="cross_gram")
    mean, error = (part("cross_gram")[1:, 0, 1] for part in (run.mean, run.stderr))
    assert np.all(np.abs(mean - expected) < 5.8 * error)
    assert np.abs(expected).max() > 20 * error.max()


# --- means and variances --------------------------------------------------------------------

REDUCTIONS = st.sampled_from(["chain", "layer", ("chain", "layer")])


@EXAMPLES
@given(
    runs(), st.integers(0, 8), st.integers(1, 3), REDUCTIONS, st.integers(2, 3),
    TASKS,
)  # fmt: skip
def test_moments_are_those_of_the_whole_run(run, depth, every, reduce, threads, task_seconds):
    chain, arguments = run
    names = ["scaled_gram", "orthogonality_gap", "log_scale"]
    asked = {"observables": names, "every": every, **arguments}
    whole = simulate(chain, depth, **asked)
    reduced = simulate(chain, depth, reduce=reduce, threads=1, **asked)
    with chunks(task_seconds, True):
        chunked = simulate(chain, depth, reduce=reduce, threads=threads, **asked)
    assert np.array_equal(reduced.layers, whole.layers)
    assert not reduced.observables
    axes = tuple(axis for axis, name in enumerate(("chain", "layer")) if name in reduce)
    for name in names:
        moments, values = reduced.moments[name], whole[name]
        count = np.prod([values.shape[axis] for axis in axes])
        assert moments.count == count
        scale = np.abs(values).max() + 1e-300
        np.testing.assert_allclose(moments.mean, values.mean(axis=axes), rtol=0, atol=1e-13 * scale)
        if count > 1:
            variance = values.var(axis=axes, ddof=1)
            np.testing.assert_allclose(moments.variance, variance, rtol=0, atol=1e-12 * scale**2)
        else:
            assert np.isnan(moments.variance).all()
        for field in ("mean", "variance"):
            here, there = getattr(moments, field), getattr(chunked.moments[name], field)
            assert np.array_equal(here, there, equal_nan=True)
