"""`bnmc.kernels`: from compiled code of one's own, the bits of `simulate`, and no surprises."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numba
import numpy as np
import oracle
import pytest
from numba.core.runtime import _nrt_python, rtsys

import bnmc
from bnmc import kernels
from bnmc._kernels.cpu import workspace
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    UnknownNameError,
    ZeroVarianceError,
)

CHAIN = bnmc.Chain(70, 5, "relu")
SKIP = bnmc.Chain(70, 5, "relu", skip=0.5, gain=2.0, weights="uniform")
RELU = kernels.activation("relu")
HAAR = bnmc.Chain(50, 4, weights="haar")
KEY = np.uint64(0xFEDCBA9876543210)


@numba.njit(nogil=True)
def walk(law, depth, chain, key, gram, work):
    """RELU is a global variable here, a constant of the compiled code."""
    status = kernels.Status.OK
    for layer in range(depth + 1):
        if status == kernels.Status.OK:
            status = kernels.conditional_layer(RELU, law, gram, layer, chain, key, gram, work)
    return status


#: What is compiled: the others make values in Python.
KERNELS = [name for name in kernels.__all__ if hasattr(getattr(kernels, name), "signatures")]


@numba.njit(nogil=True, parallel=True)
def grams_of(law, rows, out, works, codes):
    """Gram matrices of several arrays, a workspace each."""
    for index in numba.prange(len(rows)):
        codes[index] = kernels.gram(law, rows[index], out[index], works[index])


# ---------------------------------------------------------------- the bits of simulate


def test_layers_of_a_run():
    run = bnmc.simulate(CHAIN, 12, chains=3, rng=1, sampler="conditional")
    law, work, key = kernels.law(CHAIN), kernels.workspace(CHAIN), np.uint64(run.key)
    for chain in range(3):
        gram = np.eye(5)
        assert walk(law, 12, chain, key, gram, work) == kernels.Status.OK
        np.testing.assert_array_equal(gram, run.gram[chain, -1])


def test_no_kernel_allocates_or_holds_the_gil():
    law, work, square = kernels.law(CHAIN), kernels.workspace(CHAIN), np.eye(5)
    a, x = kernels.activations(CHAIN), kernels.representation(CHAIN)
    h, numbers = np.random.default_rng(0).standard_normal((600, 5)), np.zeros(64)
    address = 3, 64, 2, 1, KEY, kernels.Stream.ROWS
    calls = {
        "conditional_layer": (RELU, law, square, 1, 0, KEY, square, work, x, a),
        "failed_row": (work,), "gram": (law, h, square, work),
        "normalise_activate": (RELU, law, h, h, work),
        "normalise_activate_row": (RELU, law, h[0], h[0], work),
        "normals": (numbers, *address), "philox": (1, 2, 3, 4, 5, 6),
        "uniforms": (numbers.astype("float32"), *address),
        "weights_layer": (RELU, law, 1, a, 1, 0, KEY, square, work, x),
    }  # fmt: skip
    assert list(calls) == KERNELS

    def allocated(function, *arguments):
        before = rtsys.get_allocation_stats().alloc
        function(*arguments)
        return rtsys.get_allocation_stats().alloc - before

    _nrt_python.memsys_enable_stats()
    # A function of a user wraps Python's arrays, each once; a kernel does not even that.
    assert allocated(walk, law, 0, 0, KEY, square, work) == 2
    for name, arguments in calls.items():
        assert getattr(kernels, name).targetoptions["nogil"], name
        assert allocated(getattr(kernels, name), *arguments) == 0, name


def test_a_parallel_loop_and_threads():
    """Threads share the law, and nothing that is written to."""
    rows = np.random.default_rng(0).standard_normal((16, 300, 5))
    out, codes = np.zeros((16, 5, 5)), np.full(16, -1)
    works = kernels.workspace(CHAIN, threads=16)
    grams_of(kernels.law(CHAIN), rows, out, works, codes)
    assert not codes.any()
    np.testing.assert_allclose(out, oracle.gram(rows), rtol=0, atol=2**-45)

    def walked(chain):
        gram = np.eye(5)
        walk(kernels.law(CHAIN), 50, chain, KEY, gram, works[chain])
        return gram

    alone = [walked(chain) for chain in range(16)]
    with ThreadPoolExecutor(4) as executor:
        for expected, gram in zip(alone, executor.map(walked, range(16)), strict=True):
            np.testing.assert_array_equal(gram, expected)


def test_layers_by_weights_with_a_skip_connection_and_two_inputs():
    run = bnmc.simulate(SKIP, 3, inputs=2, rng=2, observables=("gram", "cross_gram"))
    law, work = kernels.law(SKIP, 2), kernels.workspace(SKIP, inputs=2)
    a, x = kernels.activations(SKIP, inputs=2), kernels.representation(SKIP, inputs=2)
    out = np.zeros((10, 10))
    weights = kernels.weight_law(SKIP)
    assert weights == kernels.WeightCode.UNIFORM
    x[:] = 7.0  # of no meaning before layer 0
    assert (
        kernels.conditional_layer(RELU, law, np.eye(10), 0, 0, np.uint64(run.key), out, work, x, a)
        == 0
    )
    for layer in range(1, 4):
        assert (
            kernels.weights_layer(RELU, law, weights, a, layer, 0, np.uint64(run.key), out, work, x)
            == 0
        )
        blocks = out.reshape(2, 5, 2, 5).swapaxes(1, 2)
        np.testing.assert_array_equal(blocks, run["cross_gram"][0, layer])
    # What was written is what the Gram matrix is of, and N(skip x + gain W a).
    rows = a[1].T[:70, :10]
    np.testing.assert_allclose(oracle.gram(rows), out, rtol=0, atol=70 * 2**-50)
    np.testing.assert_allclose(np.maximum(x.T[:70], 0.0), rows, rtol=0, atol=1e-15)


# It alone compiles these kernels for float32; `_kernels/test_cpu.py` tests where they stop.
@pytest.mark.slow
def test_a_float32_chain_that_loses_its_pivots():
    """`simulate` goes on in float64 there; `UNRESOLVED` says when to."""
    chain = bnmc.Chain(600, 3, "relu", norm="batch-uncentred")
    close = np.full((3, 3), 1.0) + 1e-6 * np.eye(3)
    start = {"initial": "collinear", "rng": 3, "sampler": "conditional"}
    run = bnmc.simulate(chain, 4, dtype="float32", **start)
    assert run.widened == (0,)
    law, dtype, seen = kernels.law(chain), "float32", []
    gram, out = close, np.zeros((3, 3))
    for layer in range(5):
        arguments = RELU, law, gram, layer, 0, np.uint64(run.key), out
        status = kernels.conditional_layer(*arguments, kernels.workspace(chain, dtype))
        seen.append(status)
        if status == kernels.Status.UNRESOLVED:
            np.testing.assert_array_equal(out, gram)
            dtype = "float64"
            status = kernels.conditional_layer(*arguments, kernels.workspace(chain, dtype))
        assert status == kernels.Status.OK
        np.testing.assert_array_equal(out, run.gram[0, layer])
        gram = out.copy()
    assert seen.count(kernels.Status.UNRESOLVED) == 1
    arguments = RELU, law, np.full((3, 3), np.inf), 1, 0, KEY, out
    assert kernels.conditional_layer(*arguments, kernels.workspace(chain, "float32")) == (
        kernels.Status.NOT_FINITE
    )


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "none"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_rows_are_normalised_and_activated(norm, eps):
    chain = bnmc.Chain(1, 5, "relu", norm=norm, eps=eps, skip=0.5)
    law, work = kernels.law(chain, 2), kernels.workspace(chain, inputs=2)
    h = np.random.default_rng(0).standard_normal((1100, 10)) + 1.0
    expected = np.maximum(oracle.normalise(h, norm, 5, eps), 0.0)
    out = np.zeros_like(h)
    assert kernels.normalise_activate(RELU, law, h, out, work) == kernels.Status.OK
    np.testing.assert_allclose(out, expected, rtol=0, atol=64 * 2**-52)
    assert kernels.normalise_activate_row(RELU, law, h[1050], out[0], work) == kernels.Status.OK
    np.testing.assert_array_equal(out[0], out[1050])
    whole = out.copy()
    whole[0] = 0.0
    assert kernels.normalise_activate(RELU, law, h, h, work) == kernels.Status.OK
    np.testing.assert_array_equal(h[1:], whole[1:])


def test_gram_matrix_of_rows():
    law, work = kernels.law(CHAIN), kernels.workspace(CHAIN)
    a = np.random.default_rng(0).standard_normal((1500, 5))
    out = np.zeros((5, 5))
    for rows in (1, 512, 1500):  # what is left of earlier rows does not count
        assert kernels.gram(law, a[-rows:], out, work) == kernels.Status.OK
        np.testing.assert_allclose(out, oracle.gram(a[-rows:]), rtol=0, atol=2**-45)
    a[700, 2] = np.inf
    assert kernels.gram(law, a, out, work) == kernels.Status.NOT_FINITE


def test_a_workspace_serves_several_laws():
    small = bnmc.Chain(9, 2, "relu")
    work = kernels.workspace(CHAIN)
    work[:] = np.nan  # not even zeros are needed
    a = np.random.default_rng(0).standard_normal((20, 5))
    first, second, other = np.zeros((5, 5)), np.zeros((5, 5)), np.zeros((2, 2))
    assert kernels.gram(kernels.law(CHAIN), a, first, work) == kernels.Status.OK
    assert kernels.gram(kernels.law(small), np.ones((9, 2)), other, work) == kernels.Status.OK
    np.testing.assert_array_equal(other, 1.0)
    assert kernels.gram(kernels.law(CHAIN), a, second, work) == kernels.Status.OK
    np.testing.assert_array_equal(first, second)


# ---------------------------------------------------------------- statuses


#: Laws that no kernel takes.
WRONG = (
    {"width": 0}, {"width": 1 << 34}, {"batch": 0}, {"batch": 2}, {"norm": 3}, {"eps": -1.0},
    {"eps": np.nan}, {"skip": 0.5},
)  # fmt: skip


def test_statuses_and_results_are_those_of_the_python_bodies():
    """Nothing touches memory that is not its own; compiled functions are their Python text."""
    law, plain, key = kernels.law(SKIP), kernels.law(CHAIN), np.uint64(7)
    ok, bad, small = kernels.Status.OK, kernels.Status.BAD_ARGUMENT, kernels.Status.SMALL_WORKSPACE
    layer, by_weights = kernels.conditional_layer, kernels.weights_layer
    gram, rows = kernels.gram, kernels.normalise_activate
    results = []
    for how in (lambda kernel: kernel, lambda kernel: kernel.py_func):
        a, x, out = kernels.activations(SKIP), kernels.representation(SKIP), np.eye(5)
        h, work = np.random.default_rng(0).standard_normal((600, 5)), kernels.workspace(SKIP)
        numbers, others, square = np.zeros(64), np.zeros(64, "float32"), np.eye(5)
        address = 3, 64, 2, 1, key, kernels.Stream.WEIGHTS
        short_x, short_a, narrow = x[:, :9].copy(), a[:, :9, :9].copy(), h[:, :4].copy()
        begin, place = (RELU, law, out, 0, 1, key, out), (1, 1, key, out)
        words, to = (RELU, law, 1, a), (key, square, work)
        calls = [
            (ok, layer, *begin, work, x, a), (ok, by_weights, *words, *place, work, x),
            (ok, rows, RELU, law, h, h, work),
            (ok, kernels.normalise_activate_row, RELU, law, h[1] + [1, 0, 0, 0, 0], h[2], work),
            (ok, gram, law, h, out, work), (ok, kernels.normals, numbers, *address),
            (ok, kernels.uniforms, others, *address),
            (kernels.Status.ZERO_VARIANCE, rows, RELU, law, np.ones((2, 5)), h[:2], work),
            (0, kernels.failed_row, work), (-1, kernels.failed_row, work[:1]),
            (bad, layer, *begin, work), (small, layer, *begin, work[:99], x, a),
            (bad, layer, *begin, work, short_x, a), (bad, layer, *begin, work, x, short_a),
            (bad, layer, *begin, work, x, a[:, :4].copy()),
            (bad, layer, *begin, work, x, a[:, :, :500].copy()),
            (bad, layer, RELU, law, np.eye(4), 1, 0, *to, x, a),
            (bad, layer, RELU, law, square, 1, 0, key, np.zeros((5, 6)), work, x, a),
            *((bad, layer, RELU, law, square, *numbers, *to, x, a)
              for numbers in ((-1, 0), (1 << 32, 0), (1, -1), (1, 1 << 28))),
            *((bad, layer, RELU, plain._replace(**change), square, 1, 0, *to) for change in WRONG),
            (bad, by_weights, *words, 0, 1, key, out, work, x),  # layer 0 has no weights
            (bad, by_weights, RELU, law, 9, a, *place, work, x),  # no law of that number
            (bad, by_weights, RELU, law, 1, a[:, :, :9].copy(), *place, work, x),
            (small, by_weights, *words, *place, work[:99], x),
            (bad, by_weights, *words, *place, work, short_x),
            (bad, by_weights, *words, *place, work),
            (bad, rows, RELU, law, narrow, h, work), (small, rows, RELU, law, h, h, work[:99]),
            (bad, rows, RELU, law, h[:3], h[:4], work), (bad, gram, law, h[:0], out, work),
            (bad, gram, law, narrow, out, work), (small, gram, law, h, out, work[:99]),
        ]  # fmt: skip
        for fill in (kernels.normals, kernels.uniforms):
            calls += [(bad, fill, numbers[:3], *address), (bad, fill, np.zeros(63), *address)]
            for place in ((0, 1, 0, 0), (0, -64, 0, 0), (-1, 0, 0, 0), (0, 0, -1, 0),
                          (0, 0, 0, 1 << 28)):  # fmt: skip
                calls.append((bad, fill, np.zeros(64), *place, key, kernels.Stream.ROWS))
        for number, (status, function, *arguments) in enumerate(calls):
            assert how(function)(*arguments) == status, (number, function)
        sizes = [how(workspace.workspace_bytes)(5, 5, 8), *how(kernels.philox)(1, 2, 3, 4, 5, 6)]
        sizes += [how(workspace.lay_out)(part, 5, 5) for part in (work, work, work[:100], work[:4])]
        results.append((sizes, out, a, x, h, numbers, others))
    for compiled, in_python in zip(*results, strict=True):
        np.testing.assert_array_equal(compiled, in_python)


def test_a_workspace_that_is_too_small():
    law, work, out = kernels.law(CHAIN), kernels.workspace(CHAIN), np.eye(5)
    a = np.ones((3, 5))
    assert kernels.gram(law, a, out, work) == kernels.Status.OK
    # Cut off behind its header, it is not taken for the whole; nor is anything shorter.
    for size in (0, 1, 8, 16, len(work) // 2):
        part = work[:size]
        assert kernels.gram(law, a, out, part) == kernels.Status.SMALL_WORKSPACE
        assert kernels.conditional_layer(RELU, law, out, 1, 0, KEY, out, part) == (
            kernels.Status.SMALL_WORKSPACE
        )
        assert kernels.failed_row(part) == -1
    assert kernels.failed_row(np.zeros(1000)) == -1


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "none"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_end_no_kernel_and_have_their_status(norm, number):
    chain = bnmc.Chain(70, 5, "relu", norm=norm)
    law, work = kernels.law(chain), kernels.workspace(chain)
    out, bad = np.zeros((5, 5)), kernels.Status.NOT_FINITE
    for place in ((0, 0), (3, 1), slice(None)):
        gram = np.eye(5)
        gram[place] = gram.T[place] = number
        for layer in (0, 1):
            status = kernels.conditional_layer(RELU, law, gram, layer, 0, KEY, out, work)
            assert (status, kernels.failed_row(work)) == (bad, -1)
    a, h = kernels.activations(chain), np.random.default_rng(0).standard_normal((70, 5))
    x = kernels.representation(chain)
    a[0, :5, :70] = h.T
    a[0, 2, 9] = h[9, 2] = number
    # An enumeration would be another type, for which the layer compiles again.
    code = int(kernels.WeightCode.GAUSSIAN)
    assert kernels.weights_layer(RELU, law, code, a, 1, 0, KEY, out, work, x) == bad
    assert kernels.gram(law, h, out, work) == bad
    # Without a normalization, they pass through.
    expected = kernels.Status.OK if norm == "none" else bad
    assert kernels.normalise_activate(RELU, law, h, h.copy(), work) == expected


def test_centring_that_overflows_ends():
    signs = np.array([1.0, -1.0, -1.0, -1.0, -1.0])  # the first is 1.6 from their mean
    gram, work = 1.7e308 * np.outer(signs, signs), kernels.workspace(CHAIN)
    status = kernels.conditional_layer(RELU, kernels.law(CHAIN), gram, 1, 0, KEY, gram, work)
    assert status == kernels.Status.NOT_FINITE


def test_rows_without_variance_are_named():
    law, work = kernels.law(CHAIN), kernels.workspace(CHAIN)
    h = np.random.default_rng(0).standard_normal((600, 5))
    h[555] = 3.0
    status = kernels.normalise_activate(RELU, law, h, h, work)
    assert (status, kernels.failed_row(work)) == (kernels.Status.ZERO_VARIANCE, 555)
    with pytest.raises(ZeroVarianceError, match="row 555") as caught:
        kernels.raise_status(status, work, layer=3, chain=2)
    assert (caught.value.chain, caught.value.layer, caught.value.row) == (2, 3, 555)
    out = np.zeros((5, 5))
    # Samples that are equal, of which rows have no variance.
    status = kernels.conditional_layer(RELU, law, np.ones((5, 5)), 1, 0, KEY, out, work)
    assert status == kernels.Status.ZERO_VARIANCE
    assert kernels.failed_row(work) >= 0
    assert (
        kernels.conditional_layer(RELU, law, np.eye(5), 1, 0, KEY, out, work) == kernels.Status.OK
    )
    assert kernels.failed_row(work) == -1


# --- arguments of kernels: errors of statuses, and bad arguments


def test_other_statuses_have_errors_too():
    work = kernels.workspace(CHAIN)
    kernels.raise_status(kernels.Status.OK, work, layer=1)
    with pytest.raises(NonFiniteError):
        kernels.raise_status(kernels.Status.NOT_FINITE, work, layer=1)
    for status in (
        kernels.Status.UNRESOLVED,
        kernels.Status.BAD_ARGUMENT,
        kernels.Status.SMALL_WORKSPACE,
        99,
    ):
        with pytest.raises(ArgumentError, match=f"^status:? (got )?{status:d}, [A-Za]"):
            kernels.raise_status(status, work, layer=1)
    with pytest.raises(ArgumentError, match="^status 5, SMALL_WORKSPACE: pass a workspace"):
        kernels.raise_status(5, work, layer=1)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: kernels.law(bnmc.Chain.conv(8, 1, shape=(3, 3))), ArgumentError, "^convolution"),
        (lambda: kernels.law(HAAR), ArgumentError, "weights.*haar.*independent"),
        (lambda: kernels.weight_law(HAAR), ArgumentError, "weights.*haar.*independent"),
        (lambda: kernels.activation("rellu"), UnknownNameError, "."),
        (lambda: kernels.activation(np.log), ArgumentError, "."),
        (lambda: kernels.activation(3), ArgumentTypeError, "."),
        (lambda: kernels.law("relu"), ArgumentTypeError, "."),
        (lambda: kernels.law(CHAIN, 0), ArgumentError, "."),
        (lambda: kernels.workspace(CHAIN, "float16"), UnknownNameError, "precisions only"),
        (lambda: kernels.workspace(CHAIN, "numbers"), ArgumentTypeError, "."),
        (lambda: kernels.workspace(CHAIN, threads=0), ArgumentError, "."),
        (lambda: kernels.activations(None), ArgumentTypeError, "."),
        (lambda: kernels.weight_law(bnmc.Chain(4, 2, weights=np.random.rand)), ArgumentError, "."),
    ],
)
def test_bad_arguments_of_python(call, error, match):
    with pytest.raises(error, match=match):
        call()


@numba.njit
def activated(sigma, x):
    return kernels.activate(sigma, x)


@numba.njit
def layer_of(sigma, law, gram, work):
    return kernels.conditional_layer(sigma, law, gram, 1, 0, KEY, gram, work)


@pytest.mark.parametrize(
    ("function", "arguments", "match"),
    [
        (kernels.activate, ("relu", 1.0), "^sigma: got 'relu', .*activation"),
        (kernels.activate, (RELU, 1), "^x: got 'int', allowed: float64"),
        (activated, ("relu", 1.0), "^sigma: got unicode_type, .*activation"),
        (activated, (RELU, 1), "^x: got 'int64', allowed: float64"),
    ],
)
def test_a_name_is_no_activation(function, arguments, match):
    with pytest.raises(TypeError, match=match):
        function(*arguments)


@pytest.mark.parametrize("function", [kernels.conditional_layer, layer_of])
def test_a_layer_needs_an_activation_and_a_law(function):
    law, gram, work = kernels.law(CHAIN), np.eye(CHAIN.batch), kernels.workspace(CHAIN)
    rest = (gram, work) if function is layer_of else (gram, 1, 0, KEY, gram, work)
    with pytest.raises(ArgumentTypeError, match="^sigma: got .*activation"):
        function("relu", law, *rest)
    with pytest.raises(ArgumentTypeError, match="^law: got .*allowed: .*law.chain"):
        function(RELU, CHAIN if function is kernels.conditional_layer else 3, *rest)
    assert kernels.activate(RELU, 2.5) == 2.5


# --- random numbers of `bnmc.kernels`: those of the address, from Python and compiled code


def draw_of(layer, chain, stream):
    return SimpleNamespace(
        layer=layer, stream=stream | chain, key0=int(KEY) & 0xFFFFFFFF, key1=int(KEY) >> 32
    )


def test_words():
    words = oracle.philox((1, 2, 3, 4), (5, 6))
    assert kernels.philox(1, 2, 3, 4, 5, 6) == tuple(int(word) for word in words)


@pytest.mark.parametrize(("dtype", "units"), [(np.float64, 2**-50), (np.float32, 2**-20)])
@pytest.mark.parametrize("stream", [kernels.Stream.ROWS, kernels.Stream.WEIGHTS])
def test_numbers_are_those_of_the_address(dtype, units, stream):
    out, address = np.zeros(128, dtype), (7, 64, 9, 5, KEY, stream)
    rows, draw = np.arange(64, 192), draw_of(9, 5, stream)
    assert kernels.normals(out, *address) == kernels.Status.OK
    expected = oracle.normals(np.array([7]), rows, draw, dtype)[0]
    np.testing.assert_allclose(out, expected.astype(float), rtol=0, atol=8 * units)
    assert kernels.uniforms(out, *address) == kernels.Status.OK
    high, low = (words[0] for words in oracle.words_in_place(np.array([7]), rows, draw))
    np.testing.assert_array_equal(out, oracle.uniform(high, low, dtype))


def test_numbers_in_compiled_code():
    @numba.njit
    def last(key):
        words = kernels.philox(1, 2, 3, 4, 5, key)
        return words[3], kernels.activate(RELU, -1.0) + kernels.activate(RELU, 2.0)

    assert last(6) == (kernels.philox(1, 2, 3, 4, 5, 6)[3], 2.0)
