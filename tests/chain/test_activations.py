"""The public activations: names, user functions, identity, pickling, and that they vectorise."""

import copy
import functools
import math
import pickle
import platform
import re
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import oracle
import pytest
from numba import njit
from slow_cases import some

import bnmc
from bnmc._kernels.compiling import OPTIONS, inline_module
from bnmc._kernels.scalar import elementary
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.activations import Activation, as_activation, builtin_name, is_torch_module
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

inline_module(elementary)

SLOPE = 0.25
FORMULAS = {
    **oracle.FORMULAS,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "abs": np.abs,
    "elu": oracle.FORMULAS["celu"],
}
EVERY_DTYPE = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def leaky(x):
    return x if x > 0 else SLOPE * x


@njit
def half(x):
    return 0.5 * x


def with_helper(x):
    return half(x) + np.sin(math.pi * x)


def scaled(factor):
    return Activation(lambda x: factor * x, name="scaled")


def facts(activation):
    return activation.digest, activation(np.linspace(-2, 2, 9))


# --- values


def test_every_name_has_a_formula():
    assert set(FORMULAS) == set(BUILTIN)


@EVERY_DTYPE
@pytest.mark.parametrize("name", FORMULAS)
def test_named_activations_are_what_their_names_say(name, dtype):
    x = np.linspace(-4, 4, 1001).astype(dtype)
    got = Activation.named(name)(x)
    assert got.dtype == dtype
    want = FORMULAS[name](x.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=20 * np.finfo(dtype).eps, atol=1e-300)


def test_kinks_are_where_a_derivative_jumps():
    kinked = {name for name in BUILTIN if Activation.named(name).kinks}
    assert kinked == {"relu", "leaky_relu", "abs", "elu", "celu", "selu"}
    assert all(Activation.named(name).kinks == (0.0,) for name in kinked)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.arange(-3, 3), np.float64),
        (np.array([True, False]), np.float64),
        (np.arange(-3, 3, dtype=np.float16), np.float64),
        (np.arange(-3, 3, dtype=np.float32), np.float32),
        (np.arange(-3, 3, dtype=">f8"), np.float64),
        ([[1, -2], [3, 4]], np.float64),
        (np.empty((0, 3)), np.float64),
    ],
)
@pytest.mark.parametrize("activation", [Activation.named("relu"), Activation(leaky)])
def test_dtypes_and_shapes(activation, given, dtype):
    got = activation(given)
    assert got.dtype == dtype
    assert got.shape == np.shape(given)
    positive = np.asarray(given, dtype) > 0
    np.testing.assert_array_equal(got[positive], np.asarray(given, dtype)[positive])


def test_scalars_give_scalars():
    relu = Activation.named("relu")
    assert type(relu(-1.5)) is np.float64
    assert type(relu(2)) is np.float64
    assert type(relu(np.float32(2))) is np.float32
    assert type(relu(np.array(2.0))) is np.float64


def test_layout_does_not_matter_and_the_argument_is_left_alone():
    x = np.linspace(-2, 2, 24).reshape(4, 6)
    before = x.copy()
    x.flags.writeable = False
    tanh = Activation.named("tanh")
    whole = tanh(x)
    np.testing.assert_array_equal(tanh(x.T), whole.T)
    np.testing.assert_array_equal(tanh(x[::2, ::-3]), whole[::2, ::-3])
    np.testing.assert_array_equal(x, before)


def test_functions_of_c_and_of_numba():
    x = np.linspace(-1, 1, 5)
    for function in (math.tanh, np.tanh, njit(lambda x: math.tanh(x))):
        np.testing.assert_allclose(Activation(function)(x), np.tanh(x), rtol=1e-15)


def test_scalar_is_plain_python():
    for name, entry in BUILTIN.items():
        activation = Activation.named(name)
        assert activation.scalar("float32") is entry.function32
        assert activation.scalar(np.float64) is entry.function64 is activation.function
        assert activation.builtin
    custom = Activation(leaky)
    assert custom.scalar("float32") is custom.scalar("float64")
    assert custom.scalar("float64")(-2.0) == -0.5
    assert custom.function is leaky
    assert not custom.builtin
    with pytest.raises(ArgumentError, match="dtype: got 'int32', allowed: float64, float32"):
        custom.scalar(np.int32)


# --- construction


def test_as_activation():
    assert as_activation("relu") is Activation.named("relu")
    custom = Activation(leaky)
    assert as_activation(custom) is custom
    assert as_activation(leaky) == custom
    with pytest.raises(ArgumentTypeError, match="activation: got 3"):
        as_activation(3)


@pytest.mark.parametrize(("name", "nearest"), [("relv", "relu"), ("tahn", "tanh"), ("xyz", None)])
def test_unknown_names(name, nearest):
    with pytest.raises(UnknownNameError) as caught:
        as_activation(name)
    assert caught.value.suggestion == nearest
    assert caught.value.names == tuple(BUILTIN)


def test_kinks_and_name():
    assert Activation(leaky, kinks=[2, 0, 0.0]).kinks == (0.0, 2.0)
    assert Activation(leaky).name == "leaky"
    with pytest.raises(ArgumentError, match="activation: got 'partial'"):
        Activation(functools.partial(math.pow, 2.0))


def test_repr():
    assert repr(Activation.named("relu")) == "Activation.named('relu')"
    custom = Activation(leaky, kinks=(0,))
    assert repr(custom) == f"<Activation 'leaky', kinks=(0.0,), digest {custom.digest[:8]}>"
    with pytest.raises(AttributeError):
        custom.name = "other"


# --- check


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.log(x), r"finite on \[-4, 4\] \(it is nan at -4\)"),
        (lambda x: 1 / x, r"it is inf at 0"),
        (lambda x: 1j * x, "it returns complex128"),
        (lambda x: "text", "it returns .*str"),
        (lambda x: (x, x), "it returns UniTuple"),
        (lambda x, y: x, "takes 2 arguments"),
        (lambda: 1.0, "takes 0 arguments"),
        (lambda x: no_such_function(x), "no_such_function"),  # noqa: F821
        (lambda x: leaky(x), "Untyped global name 'leaky'"),
    ],
)
def test_check_says_what_is_wrong(function, message):
    activation = Activation(function, name="mine")
    with pytest.raises(ArgumentError, match=f"activation: got 'mine', allowed: .*{message}") as e:
        activation.check()
    assert "\n" not in str(e.value)


def test_check_reports_what_the_function_raises():
    def picky(x):
        if x > 3.9:
            raise ValueError("too large")
        return x

    with pytest.raises(ArgumentError, match="it raises ValueError: too large"):
        Activation(picky).check()


def test_calling_what_does_not_compile_is_a_typed_error():
    with pytest.raises(ArgumentError, match="that Numba can compile"):
        Activation(lambda x: x.no_such_attribute)([1.0])


@pytest.mark.parametrize("name", some(sorted(BUILTIN), "erf", "relu", "tanh"))
def test_functions_may_call_the_scalar_of_a_named_activation(name):
    named = Activation.named(name)
    scalar = named.scalar("float64")
    x = np.linspace(-3.0, 3.0, 7)
    np.testing.assert_array_equal(Activation(lambda x: scalar(x / 2))(x), named(x / 2))


def test_check_accepts_what_is_fine():
    for activation in (Activation.named("gelu"), Activation(leaky), Activation(with_helper)):
        activation.check()


# --- identity


def test_a_value_of_a_module_is_part_of_the_digest(monkeypatch):
    module = sys.modules[__name__]
    function = scaled(module).function
    by_module = lambda x: module.SLOPE * x  # noqa: E731
    before = Activation(by_module).digest
    unrelated = Activation(function).digest
    monkeypatch.setattr(module, "SLOPE", 0.5)
    assert Activation(by_module).digest != before
    assert Activation(function).digest == unrelated


def test_digest_does_not_depend_on_the_place():
    texts = ["f = lambda x: x * 2.0", "\n\n\nf = lambda x: x * 2.0"]
    digests = set()
    for number, text in enumerate(texts):
        namespace = {}
        exec(compile(text, f"file{number}.py", "exec"), namespace)
        digests.add(Activation(namespace["f"]).digest)
    assert len(digests) == 1


def recursive(x):
    return x if x < 1 else recursive(x - 1)


def test_a_function_that_refers_to_itself():
    assert Activation(recursive).digest == Activation(recursive).digest


def test_a_variable_without_a_value():
    def outer():
        activation = Activation(lambda x: x + later)
        digest = activation.digest
        later = 1.0
        assert Activation(lambda x: x + later).digest != digest

    outer()


def test_variables_are_taken_as_they_are():
    activations = []
    for factor in (1.0, 2.0):
        activations.append(Activation(lambda x: factor * x))  # noqa: B023
    assert [activation(1.0) for activation in activations] == [1.0, 2.0]


def test_equality():
    custom = Activation(leaky)
    assert custom == Activation(leaky)
    assert hash(custom) == hash(Activation(leaky))
    assert custom != Activation(leaky, kinks=(0,))
    assert custom != Activation(leaky, name="other")
    assert custom != leaky
    assert len({Activation.named(name) for name in BUILTIN}) == len(BUILTIN)
    assert Activation.named("elu") != Activation.named("celu")
    assert Activation.named("relu").digest == "relu"


# --- other processes


def everything():
    """Every way a function can travel; made afresh, since lambdas belong to their process."""
    closure = 3.0
    return [
        Activation.named("gelu"),
        Activation(leaky, kinks=(0,), name="mine"),
        Activation(lambda x: closure * x + SLOPE),
        Activation(with_helper),
        Activation(lambda x: with_module(x)),
        Activation(math.tanh),
        scaled(2.0),
    ]


@njit
def with_module(x):
    return np.sqrt(abs(x)) + math.pi


@pytest.mark.parametrize("number", range(7))
def test_pickling(number):
    activation = everything()[number]
    for twin in (
        pickle.loads(pickle.dumps(activation)),
        copy.copy(activation),
        copy.deepcopy(activation),
    ):
        assert twin == activation
        assert hash(twin) == hash(activation)
        assert twin.name == activation.name
        np.testing.assert_array_equal(facts(twin)[1], facts(activation)[1])


def test_an_importable_function_travels_by_reference():
    assert pickle.loads(pickle.dumps(Activation(leaky))).function is leaky


def test_what_cannot_travel_is_a_typed_error():
    broken, lock = copy.copy(Activation(lambda x: x)), threading.Lock()
    object.__setattr__(broken, "_scalars", {"float64": lambda x: lock})
    with pytest.raises(ArgumentTypeError, match="can be pickled"):
        pickle.dumps(broken)


def test_a_spawned_process_agrees():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        for activation, (digest, values) in zip(
            everything()[::3], executor.map(facts, everything()[::3]), strict=True
        ):
            assert digest == activation.digest
            np.testing.assert_array_equal(values, facts(activation)[1])


# --- speed

PACKED = re.compile(
    r"^\s+v?p?(f?n?m?(add|sub|mul)\d*|and|max|min|cmp\w*)(p[sd]|[dq])?\s.*%[xyz]mm", re.M
)
LIBRARY = re.compile(r"\b(exp|expm1|log|sin|cos|tanh|erf|erfc|pow)f?\b")


def assembly(function, dtype):
    scalar = njit(forceinline=True, **OPTIONS)(function)

    @njit(nogil=True, **OPTIONS)
    def loop(x, out):
        for i in range(x.size):
            out[i] = scalar(x[i])

    loop(np.zeros(64, dtype), np.zeros(64, dtype))
    (text,) = loop.inspect_asm().values()
    return text


#: Of each kind one: by cases, by a rational function, by reduction, by the exponential function.
KINDS = ("relu", "tanh", "sin", "gelu")
#: The others consist of these.
PARTS = ("erf", "sigmoid", "elu")


def vectors():
    """Return the named activations and dtypes whose machine code is read; some each time."""
    for dtype, names in ((np.float64, (*KINDS, *PARTS)), (np.float32, KINDS)):
        for name in BUILTIN:
            if name != "linear":
                marks = [] if name in names else pytest.mark.slow
                yield pytest.param(name, dtype, marks=marks)


READS_X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86 assembly")


@READS_X86
@pytest.mark.parametrize(("name", "dtype"), list(vectors()))
def test_loops_use_vectors_and_no_library(name, dtype):
    entry = BUILTIN[name]
    text = assembly(entry.function32 if dtype is np.float32 else entry.function64, dtype)
    assert PACKED.search(text)
    assert not LIBRARY.search(text)


@READS_X86
def test_a_call_of_the_library_would_be_seen():
    text = assembly(lambda x: math.exp(x), np.float64)
    assert LIBRARY.search(text)
    assert not PACKED.search(text)


torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("ReLU", "relu"), ("LeakyReLU", "leaky_relu"), ("leaky-relu", "leaky_relu"),
     ("swish", "silu"), ("Identity", "linear"), ("Tanh", "tanh"), ("CELU", "celu")],
)  # fmt: skip
def test_spellings(spelled, name):
    assert bnmc.Chain(10, 3, spelled) == bnmc.Chain(10, 3, name)


def test_names_that_are_unknown():
    assert builtin_name("softmax") is None
    with pytest.raises(ArgumentTypeError, match="activation"):
        bnmc.Activation.named(3)


@pytest.mark.parametrize(
    "kind", ["ReLU", "LeakyReLU", "Tanh", "Sigmoid", "ELU", "CELU", "SELU", "GELU", "SiLU"]
)
def test_modules_of_pytorch_are_the_same_functions(kind):
    module = getattr(torch.nn, kind)()
    x = np.linspace(-4.0, 4.0, 41)
    expected = module(torch.from_numpy(x)).numpy()
    result = bnmc.Chain(10, 3, module).activation
    assert result.builtin
    np.testing.assert_allclose(result(x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "module",
    [torch.nn.LeakyReLU(0.2), torch.nn.GELU(approximate="tanh"), torch.nn.ELU(2.0),
     torch.nn.Softmax(0)],
)  # fmt: skip
def test_modules_with_other_parameters_are_no_built_in_functions(module):
    with pytest.raises(ArgumentTypeError, match="a scalar function"):
        bnmc.Chain(10, 3, module)


def test_functions_are_no_modules():
    assert not is_torch_module(np.tanh)
    assert not is_torch_module("relu")
