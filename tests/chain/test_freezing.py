"""Activations are frozen: what a function reads may change later, and its kernels do not."""

import ctypes
import enum
import functools
import operator
import pickle
import random
import sys
import threading
import types

import numba
import numpy as np
import pytest
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.experimental import jitclass
from numba.extending import intrinsic, overload, register_jitable
from programs import finished
from slow_cases import slow

from bnmc.chain.activations import Activation
from bnmc.chain.code_digest import digest_of
from bnmc.errors import ArgumentError


def namespace(**values):
    """A module that is changed by assignments."""
    module = types.ModuleType("changing")
    vars(module).update(values)
    return module


ARRAY, FILL = "a = np.full(3, 2.0)", "a.fill(3.0)"
GLOBAL, SET, CALL = "global K; K = 2.0", "global K; K = 3.0", "lambda x: helper(x)"
#: What is done before, a function that multiplies by 2, and a change after which it does by 3.
CHANGES = {
    "variable": ("k = 2.0", "lambda x: k * x", "nonlocal k; k = 3.0"),
    "captured array": (ARRAY, "lambda x: a[1] * x", FILL),
    "captured array that is not contiguous": (
        "a = np.full((4, 4), 2.0)[::2, ::2]", "lambda x: a[1, 1] * x", FILL,
    ),
    "0-d array": ("a = np.array(2.0)", "lambda x: a[()] * x", FILL),
    "array that no cache holds": ("a = np.full(2_000_000, 2.0)", "lambda x: a[1] * x", FILL),
    "array in a tuple": (f"{ARRAY}; pair = (1, a)", "lambda x: pair[1][0] * x", FILL),
    "array in a named tuple": (
        f"from collections import namedtuple; {ARRAY}; pair = namedtuple('Pair', 'a')(a)",
        "lambda x: pair.a[0] * x", FILL,
    ),
    "record": (
        "r = np.full(1, 2.0, [('a', 'f8')])[0]", "lambda x: r.a * x", "r['a'] = 3.0",
    ),
    "array as default": (ARRAY, "lambda x, a=a: a[0] * x", FILL),
    "other default": ("f = lambda x, k=2.0: k * x", "f", "f.__defaults__ = (3.0,)"),
    "other code": (
        "f = lambda x: 2.0 * x", "f", "f.__code__ = (lambda x: 3.0 * x).__code__",
    ),
    "attribute of a module": ("m = namespace(K=2.0)", "lambda x: m.K * x", "m.K = 3.0"),
    "array of a module of a module": (
        f"{ARRAY}; m = namespace(inner=namespace(a=a))", "lambda x: m.inner.a[0] * x", FILL,
    ),
    "function of a module": (
        "m = namespace(f=numba.njit(lambda x: 2.0 * x))", "lambda x: m.f(x)",
        "m.f = numba.njit(lambda x: 3.0 * x)",
    ),
    "function in a tuple": (
        f"{GLOBAL}; pair = numba.njit(lambda x: x), numba.njit(lambda x: K * x)",
        "lambda x: pair[1](x)", SET,
    ),
    "closure of a closure": (
        f"{ARRAY}; inner = numba.njit(lambda x: a[0] * x); helper = numba.njit(lambda x: inner(x))",
        CALL, FILL,
    ),
    "default of a helper": (f"{ARRAY}; helper = numba.njit(lambda x, a=a: a[0] * x)", CALL, FILL),
    **{compiles: (f"{GLOBAL}; helper = {compiles}(lambda x: K * x)", CALL, SET) for compiles in (
        "numba.njit", "numba.njit('float64(float64)')", "numba.vectorize",
        "numba.vectorize(['float64(float64)'])", "numba.cfunc('float64(float64)')",
        "register_jitable",
    )},
}  # fmt: skip


def made(what):
    """Return a function of `CHANGES` or `MADE`, and a function without arguments for the change."""
    if what in MADE:
        return MADE[what]()
    before, function, change = CHANGES[what]
    space = {**globals(), "__name__": "elsewhere"}
    change = f"def change():\n        {change}"
    exec(f"def make():\n    {before}\n    {change}\n    return {function}, change", space)
    return space["make"]()


def of_array(array):
    return functools.partial(array.fill, 3.0)


def with_values(x, out):
    for i in range(x.shape[0]):
        out[i] = K * x[i]  # noqa: F821


def generalized():
    variables = {"range": range, "K": 2.0}
    fill = types.FunctionType(with_values.__code__, variables)
    helper = numba.guvectorize(["(float64[:], float64[:])"], "(n)->(n)")(fill)

    def function(x):
        values, out = np.full(1, x), np.empty(1)
        helper(values, out)
        return out[0]

    return function, functools.partial(operator.setitem, variables, "K", 3.0)


def jit_class():
    array = np.full(1, 2.0)

    def start(self, a):
        self.a = a

    body = {"__init__": start, "value": lambda self, x: array[0] * self.half * self.twice(x) / 1.0}
    body |= {"half": property(lambda self: 0.5), "twice": staticmethod(lambda x: 2.0 * x)}
    kind = jitclass([("a", numba.float64)])(type("Scaled", (), body))
    return lambda x: kind(1.0).value(x), of_array(array)


def intrinsic_function():
    array = np.full(1, 2.0)

    @intrinsic
    def helper(typing_context, x):
        def generate(context, builder, signature, arguments):
            with builder.goto_entry_block():  # the compiler may enter what it likes
                pass
            return builder.fmul(arguments[0], context.get_constant(x, array[0]))

        return x(x), generate

    return lambda x: helper(x), of_array(array)


def overloaded():
    array = np.full(1, 2.0)

    def helper(x):
        return 7.0 * x

    overload(helper)(lambda x: lambda x: array[0] * x)
    return lambda x: helper(x), of_array(array)


def recursive():
    array = np.full(1, 2.0)

    @numba.njit
    def helper(x, n):
        return array[0] * x if n == 0 else helper(x, n - 1)

    return lambda x: helper(x, 2), of_array(array)


#: Makers of functions and changes whose source is longer.
MADE = {
    "guvectorize": generalized,
    "overload": overloaded,
    "intrinsic": intrinsic_function,
    "jitclass": jit_class,
    "recursive function": recursive,
}


def compiled_value(activation, x=1.0):
    """Return the value of the function that kernels compile."""
    return numba.njit(activation.scalar("float64"))(x)


@pytest.mark.filterwarnings("ignore::numba.NumbaExperimentalFeatureWarning")
# Functions of Numba with and without signatures take the same way.
@pytest.mark.parametrize(
    "what",
    [slow(what) if "(" in what and "cfunc" not in what else what for what in (*CHANGES, *MADE)],
)
def test_changes_after_an_activation_was_made_do_not_reach_it(what):
    function, change = made(what)
    before = Activation(function)
    assert (
        before.digest == Activation(function).digest == digest_of(function, by_version=False)
    )  # of all that it reads
    change()
    after = Activation(function)
    assert before.digest != after.digest
    assert compiled_value(before) == 2.0
    assert compiled_value(after) == 3.0


@pytest.mark.parametrize(
    "compiles", ["numba.njit", slow("numba.vectorize"), slow("numba.cfunc('float64(float64)')")]
)
def test_code_that_was_compiled_with_earlier_values_is_not_used(compiles):
    """Its digest is that of the present values, and other processes have these."""
    function, change = made(compiles)
    assert numba.njit(function)(1.0) == 2.0
    change()
    activation = Activation(function)
    assert compiled_value(activation) == 3.0
    assert numba.njit(function)(1.0) == 2.0, "the function of the user was changed"


def test_values_that_only_python_reads_are_copied():
    values, more = [2.0], {"k": [2.0]}
    activation = Activation(lambda x, *, also=values: also[0] * more["k"][0] * x)
    values[0] = more["k"][0] = 3.0
    assert activation.scalar("float64")(1.0) == 4.0


CHANGED = """
import numpy as np, sys
from bnmc import Activation
slopes = np.full(2, 2.0)
activation = Activation(lambda x: slopes[1] * x)
slopes[:] = float(sys.argv[1])
print(activation(1.0))
"""


# In this process: `test_code_that_was_compiled_with_earlier_values_is_not_used`.
@pytest.mark.slow
def test_no_process_gets_a_changed_value_from_the_cache(tmp_path):
    for changed in ("3", "2"):
        done = finished("-c", CHANGED, changed, NUMBA_CACHE_DIR=str(tmp_path))
        assert (done.stdout, done.stderr) == ("2.0\n", "")


def test_the_order_in_memory_is_no_part_of_a_function():
    values = np.arange(6.0).reshape(2, 3)
    activations = [
        Activation(lambda x, a=array: a[1, 2] * x) for array in (values, np.asfortranarray(values))
    ]
    assert activations[0].digest == activations[1].digest
    for activation in activations:
        (copy,) = activation.scalar("float64").__defaults__
        assert copy.flags.c_contiguous
        assert not copy.flags.writeable
    assert values.flags.writeable


def test_modules_that_refer_to_themselves():
    module = namespace(K=2.0)
    module.itself = module
    activation = Activation(lambda x: module.itself.itself.K * x)
    assert compiled_value(activation) == 2.0
    assert pickle.loads(pickle.dumps(activation)) == activation


# --- refusals


class Slopes:
    """A class of a user."""

    slope = 2.0

    def value(self, x):
        return self.slope * x


class OtherCompiler(CompilerBase):
    def define_pipelines(self):
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


def leaving(x):
    with numba.objmode(y="float64"):
        y = random.random()
    return x + y


def using(value):
    return lambda x: value(x)


def nested_jit_class():
    inner = jitclass([("a", numba.float64)])(type("A", (), {"__init__": lambda self: None}))
    field = inner.class_type.instance_type
    return jitclass([("b", field)])(type("B", (), {"__init__": lambda self: None}))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        pytest.param(lambda x: Slopes.slope * x, "the class Slopes", id="class"),
        pytest.param(using(Slopes()), "the class Slopes", id="object"),
        pytest.param(Slopes().value, "the class method", id="bound method"),
        pytest.param(functools.partial(pow, 2.0), "the class partial", id="partial"),
        pytest.param(using(threading.Lock()), "the class lock", id="lock"),
        pytest.param(using(numba.typed.List([1.0])), "the class List", id="typed list"),
        pytest.param(using(np.array([1, "a"], object)), "the class ndarray", id="array of objects"),
        pytest.param(using(enum.Enum("E", {"A": np.zeros(1)})), "the class E", id="enum of arrays"),
        pytest.param(using(ctypes.CDLL(None).sin), "pointer to a C function", id="pointer"),
        pytest.param(using(nested_jit_class()), "field of another jitclass", id="jitclass"),
        pytest.param(
            using(numba.njit(pipeline_class=OtherCompiler)(lambda x: x)), "compiler of its own",
            id="compiler",
        ),
        pytest.param(leaving, "leaving has a with statement", id="objmode"),
        pytest.param(using(numba.njit(leaving)), "leaving has a with", id="inner objmode"),
        pytest.param(using(register_jitable(leaving)), "leaving has a with", id="jitable objmode"),
    ],
)  # fmt: skip
def test_what_cannot_be_copied_is_refused(function, reason):
    with pytest.raises(ArgumentError, match=f"allowed: a function of numbers.*{reason}"):
        Activation(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + np.random.normal(),  # noqa: NPY002
        lambda x: x + (random.random() < 0.5),
        using(numba.njit(lambda x: np.nan if x < -3 else x * np.random.rand())),  # noqa: NPY002
    ],
)
def test_a_function_that_draws_random_numbers_is_refused(function):
    # Two evaluations agree at 700 points or more with probability below 2^-700.
    with pytest.raises(ArgumentError, match=r"depends on its argument only \(at -[234]"):
        Activation(function).check()


# --- other processes

SLOPE = 2.0


def sloped(x):
    return SLOPE * x


def test_a_function_by_reference_must_be_the_same_one(monkeypatch):
    module = sys.modules[__name__]
    activation = Activation(sloped)
    content = pickle.dumps(activation)
    assert pickle.loads(content) == activation
    monkeypatch.setattr(module, "SLOPE", 3.0)
    with pytest.raises(ArgumentError, match="'sloped', allowed: the function that was pickled"):
        pickle.loads(content)
