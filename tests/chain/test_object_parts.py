"""Digests of objects: class and state, the same in every process, without addresses."""

import collections
import dataclasses
import functools
import random
import sys
import threading
import types

import numpy as np
import pytest
import scipy.stats
from numba import cloudpickle
from worker_processes import printed_by

from bnmc.chain.code_digest import digest_of
from bnmc.chain.object_parts import installed_name, version_of


class Scale:
    """A callable object."""

    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return self.k * x

    def value(self, x):
        return self.k + x


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


@dataclasses.dataclass
class Data:
    k: float
    tail: list = dataclasses.field(default_factory=list)


class Chosen:
    """Says itself which state matters."""

    def __init__(self, k, cache):
        self.k, self.cache = k, cache

    def __getstate__(self):
        return {"k": self.k}


def made_class(k, base=object, **more):
    return type("Made", (base,), {"f": lambda self, x: k * x, **more})


def with_attribute(k):
    def f(x):
        return x * f.k

    f.k = k
    return f


#: Objects, and two texts for ? with which they differ at one point.
DIFFERENT = {
    "state": ("Scale(?)", "1.0", "2.0"),
    "bound method, state": ("Scale(?).value", "1.0", "2.0"),
    "bound method, name": ("Scale(1.0).?", "value", "__call__"),
    "bound method, replaced function": (
        "types.MethodType(lambda self: ?, Scale(1.0))", "1", "2",
    ),
    "slots": ("Slotted(?)", "1.0", "2.0"),
    "dataclass": ("Data(?)", "1.0", "2.0"),
    "dataclass, list": ("Data(1.0, [?])", "1", "2"),
    "class, code": ("made_class(?)", "1.0", "2.0"),
    "class, base": ("made_class(1.0, ?)", "Scale", "object"),
    "class, attribute": ("made_class(1.0, a=?)", "1", "2"),
    "class, property": ("made_class(1.0, a=property(lambda self: ?))", "1", "2"),
    "class, static method": ("made_class(1.0, a=staticmethod(lambda: ?))", "1", "2"),
    "class, kept property": (
        "made_class(1.0, a=functools.cached_property(lambda self: ?))", "1", "2",
    ),
    "method of an instance of another class": ("made_class(?)().f", "1.0", "2.0"),
    "partial, function": ("functools.partial(?, 1)", "max", "min"),
    "partial, argument": ("functools.partial(max, ?)", "1", "2"),
    "partial, keyword": ("functools.partial(max, key=?)", "abs", "len"),
    "cached function": ("functools.lru_cache(Scale(?).value)", "1.0", "2.0"),
    "method of C": ("[?].index", "1", "2"),
    "descriptor": ("str.?", "upper", "lower"),
    "function attribute": ("with_attribute(?)", "1.0", "2.0"),
    "masked array": ("np.ma.MaskedArray(np.zeros(2), [?])", "False, True", "True, False"),
    "subclass of arrays": ("np.zeros(1).view(?)", "type('Own', (np.ndarray,), {})", "np.ndarray"),
    "array of objects": ("np.array([1, '?'], object)", "a", "b"),
    "generator, seed": ("np.random.default_rng(?)", "1", "2"),
    "generator, kind": ("np.random.Generator(np.random.?(1))", "PCG64", "Philox"),
    "np.vectorize": ("np.vectorize(lambda x: ?)", "x", "-x"),
    "ordered dict": ("collections.OrderedDict(?)", "a=1, b=2", "b=2, a=1"),
    "default dict": ("collections.defaultdict(?, a=1)", "int", "list"),
    "deque": ("collections.deque([?])", "1, 2", "2, 1"),
    "slice": ("slice(?)", "1", "2"),
    "range": ("range(?)", "1", "2"),
    "mapping": ("types.MappingProxyType({'a': ?})", "1", "2"),
    "subclass of float": ("?(1.0)", "type('F', (float,), {})", "float"),
    "subclass of list": ("?([1])", "type('L', (list,), {})", "list"),
    "subclass of dict": ("collections.Counter('a?b')", "a", "b"),
    "simple namespace": ("types.SimpleNamespace(a=?)", "1", "2"),
}  # fmt: skip
SPACE = {**globals(), "collections": collections}


def pair(what):
    """Return the two objects of a name in `DIFFERENT`."""
    template, *texts = DIFFERENT[what]
    return [eval(template.replace("?", text), SPACE) for text in texts]


@pytest.mark.parametrize("what", DIFFERENT)
def test_objects_that_differ_at_one_point_have_different_digests(what):
    first, other = pair(what)
    assert digest_of(first) == digest_of(first)
    assert digest_of(first) != digest_of(other)
    assert digest_of(lambda g: first) != digest_of(lambda g: other)


#: A lock cannot be sent; nor can what pickle looks up by a name; a lambda as a method is copied.
NOT_SENT = ("class, kept property", "cached function", "method of an instance of another class")


@pytest.mark.parametrize("what", [what for what in DIFFERENT if what not in NOT_SENT])
def test_an_object_that_was_sent_has_the_same_digest(what):
    first, _ = pair(what)
    sent = cloudpickle.loads(cloudpickle.dumps(first))
    assert digest_of(sent) == digest_of(first)


def test_an_object_may_refer_to_itself():
    first, other = Scale(1.0), Scale(1.0)
    first.k, other.k = first, other
    assert digest_of(first) == digest_of(other)


def test_the_state_that_an_object_declares_is_compared():
    assert digest_of(Chosen(1, "a")) == digest_of(Chosen(1, "b")) != digest_of(Chosen(2, "a"))


def test_the_order_of_attributes_is_no_part_of_an_object():
    first, other = types.SimpleNamespace(a=1, b=2), types.SimpleNamespace(b=2, a=1)
    assert digest_of(first) == digest_of(other)


def test_calls_leave_digests_as_they_are():
    square = np.vectorize(lambda x: x * x, otypes=[float])
    remaining = functools.lru_cache(lambda x: x * x)
    before = digest_of((square, remaining))
    square([1.0, 2.0])
    remaining(3)
    assert digest_of((square, remaining)) == before


def test_distributions_of_scipy_may_draw_weights():
    """They refer to the global generator of NumPy, whose state no digest contains."""
    law = scipy.stats.t(5)
    before = digest_of((law, law.rvs, np.random.normal, random.gauss))
    np.random.normal()  # noqa: NPY002
    random.gauss(0, 1)
    law.rvs(size=3, random_state=np.random.default_rng(0))
    law.cdf(1.0)
    assert digest_of((law, law.rvs, np.random.normal, random.gauss)) == before
    assert digest_of(scipy.stats.t(6)) != digest_of(law)


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), sys.stdout, (n for n in [1]), np.frompyfunc(lambda x: x, 1, 1)],
    ids=["lock", "file", "generator", "ufunc of a Python function"],
)
def test_what_has_no_state_has_no_digest(value):
    with pytest.raises(TypeError):
        digest_of(lambda g: value)


def test_an_error_of_an_object_is_a_type_error():
    class Broken:
        def __reduce_ex__(self, protocol):
            raise OSError("gone")

    with pytest.raises(TypeError, match="gone"):
        digest_of(Broken())


def test_code_that_a_function_imports_is_part_of_it(monkeypatch):
    """The author may change it between two runs."""

    def observable(g):
        import own_module

        return own_module.value(g)

    def with_a_missing_one(g):
        import nowhere_at_all

        return nowhere_at_all

    digests = []
    for k in (1.0, 2.0, 1.0):
        module = types.ModuleType("own_module")
        module.value = lambda g, k=k: k * g
        monkeypatch.setitem(sys.modules, "own_module", module)
        digests.append(digest_of(observable))
    assert digests[0] == digests[2] != digests[1]
    assert digest_of(with_a_missing_one) == digest_of(with_a_missing_one)


def test_installed_packages_enter_by_version():
    assert (
        installed_name(pytest.approx) == f"{pytest.approx.__module__}.approx {pytest.__version__}"
    )
    assert installed_name(Scale) is None
    assert version_of("json") is None
    assert version_of("zarr") is not None
    import bnmc

    assert version_of("bnmc") == bnmc.__version__
    # Their modules, too: a method that was replaced in one process is none of another.
    assert digest_of(lambda g: pytest.approx(g)) == digest_of(lambda g: pytest.approx(g))


PROGRAM = """
import dataclasses, enum, functools, math, numba, numpy as np
from bnmc.chain.activations import Activation
from bnmc.chain.code_digest import digest_of

class Scale:
    names = {"a", "b", "c", "d"}
    def __init__(self, k): self.k, self.seen = k, {"x", "y", "z"}
    def __call__(self, generator, shape): return self.k * generator.normal(size=shape)
    def value(self, g): return len(self.names) * g[0, 0]

@dataclasses.dataclass
class Data:
    k: float = 1.0
    def __call__(self, g): return self.k

COLOURS = {"red", "green", "blue"}
def of_set(g): return g[0, 0] + (g[0, 1] in {1.0, 2.0, 3.0}) + len(COLOURS)
def local(g):
    import fractions
    return float(fractions.Fraction(1, 2))
table, names = np.arange(3.0), ("a", "b")
@numba.njit
def helper(x):
    return x if x in (1.0, 2.0) else np.exp(x)
def f(x, k=2.0):
    return helper(x) * table[1] + k * math.pi * len(names) + (names[0] in {"a", "b", "c", "d"})
E = enum.Enum("E", {"A": 1.5})
import scipy.stats
LAW = scipy.stats.laplace(0.0, 0.5**0.5)
values = [Scale(2.0), Scale(2.0).value, Data(), of_set, local, functools.partial(of_set, g=1),
          lambda g: Scale(g), Scale, np.random.default_rng(1), functools.lru_cache(of_set),
          lambda g: np.linalg.norm(g) + np.random.rand(),
          lambda generator, shape: LAW.rvs(size=shape, random_state=generator)]
values += [E.A, E, numba.vectorize(lambda x: 2.0 * x), {"b", "a", "c"}, {"k": np.zeros(2)},
           numba.float64, f]
for value in values: print(digest_of(value))
print(Activation(f).digest)
"""


# `simulation/test_identity.py` resumes a run with such objects in another process each time.
@pytest.mark.slow
def test_objects_of_the_main_module_have_the_same_digest_in_every_process():
    """Whatever the order of sets, and the lines of the source."""
    runs = [
        printed_by(lines + PROGRAM, PYTHONHASHSEED=seed).split()
        for seed, lines in (("1", ""), ("2", "\n\n\n"))
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 20
