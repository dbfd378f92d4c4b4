"""Calls of the public API and the command line with hostile arguments and files.

A group and a seed determine a call, so ``fuzz("functions", 17, folder)`` repeats one.  A call may
return a result without NaN, or raise a `BnmcError`.  Anything else is a `Finding`.
"""

import atexit
import contextlib
import dataclasses
import datetime
import decimal
import fractions
import importlib
import inspect
import io
import math
import pickle
import random
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from damaging import HEADERS, archive, damage_store, damaged_bytes, header
from small_stores import run as run_in_store

import bnmc
from bnmc import cli, gram, infinite_width, invariant, mean_field, mixing, random_matrix
from bnmc import regularity as reg
from bnmc import testing as tools
from bnmc.cli import inputs
from bnmc.errors import BnmcError, LayoutWarning
from bnmc.simulation import export

#: Longest time of a call, in seconds.
LONGEST = 20.0
#: Exit statuses that the command line documents.
STATUSES = (0, 2, 3, 4)


class Finding(AssertionError):
    """A call returned NaN, failed with an error of another type, or did harm."""


def fuzz(group, seed, folder):
    """Make a call; return "returned" or "refused".

    Parameters
    ----------
    group : str
        One of `GROUPS`.
    seed : int
        Determines the call.
    folder : Path
        For the files of the call, which stay there.

    Raises
    ------
    Finding
        If the call neither returns a valid result nor raises a `BnmcError` of one line.
    """
    shown = []
    with warnings.catch_warnings(), np.errstate(all="warn", under="raise"):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LayoutWarning)  # hostile shapes earn it
        try:
            end = GROUPS[group](random.Random(f"{group} {seed}"), Path(folder), shown)
        except tools.LawMismatch:
            return "refused"
        except BnmcError as error:
            if "\n" in str(error) or not str(error):
                raise Finding(_said(group, seed, shown, error)) from error
            return "refused"
        except Exception as error:
            raise Finding(_said(group, seed, shown, error)) from error
    return end or "returned"


def _said(group, seed, shown, error):
    return f"fuzz({group!r}, {seed}): {' '.join(shown)[:300]}: {type(error).__name__}: {error}"


# --- hostile values -------------------------------------------------------------------------


class Raising:
    """Raises an error in every conversion."""

    def __init__(self, kind):
        self.kind = kind

    def __array__(self, *arguments, **options):
        raise self.kind("no array")

    def __float__(self):
        raise self.kind("no number")

    __index__ = __len__ = __iter__ = __bool__ = __int__ = __float__

    def __repr__(self):
        if self.kind is ValueError:
            raise self.kind("no text")
        return "a Raising"


class Lying:
    """Has the attributes of an array, but another content."""

    shape = (3, 3)
    dtype = "float64"
    ndim = 2

    def __init__(self, content):
        self.content = content

    def __array__(self, *arguments, **options):
        return self.content

    def __len__(self):
        return 10**9


class Text(str):
    """A text that claims to equal everything."""

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Number(float):
    def __float__(self):
        return math.nan


class Subclass(np.ndarray):
    pass


def _array(rng, shape=None):
    """Return an array of any kind, shape and content."""
    if shape is None or rng.random() < 0.3:
        shape = tuple(rng.choice([0, 1, 1, 2, 3, 3, 6]) for _ in range(rng.randrange(5)))
    generator = np.random.default_rng(rng.randrange(2**32))
    values = generator.normal(size=shape)
    spoilt = rng.choice(
        [0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-200, 1e200]
    )
    where = rng.random()
    if values.size and where < 0.5:
        values.reshape(-1)[rng.randrange(values.size)] = spoilt
    elif where < 0.6:
        values[...] = spoilt
    elif where < 0.7:
        values *= 10.0 ** rng.choice([-300, -150, 150, 300])
    dtype = rng.choice(DTYPES)
    if dtype is not None:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = values.astype(dtype)
    return rng.choice(VIEWS)(values)


DTYPES = [None] * 12 + [
    "f2", "f4", ">f8", "g", "i1", "u8", ">i4", "?", "c16", "U5", "S3", "O", "M8[s]", "m8[s]",
]  # fmt: skip
VIEWS = [lambda a: a] * 6 + [
    lambda a: a.T,
    lambda a: a[..., ::-1] if a.ndim else a,
    lambda a: np.asfortranarray(a),
    lambda a: a.tolist(),
    lambda a: a.view(Subclass),
    lambda a: np.ma.masked_array(a, mask=a == a),
    lambda a: np.broadcast_to(a, (3, *a.shape)),
    lambda a: Lying(a),
    lambda a: memoryview(np.ascontiguousarray(a)) if a.dtype.kind in "iuf" else a,
    lambda a: iter(a) if a.ndim else a,
]

#: Values of any type, and functions that make those that a call may change.
HOSTILE = [
    None, True, 0, 1, 2, 3, -1, -(2**70), 2**63, 2**64, 2**70, 10**400, 0.0, -0.0, 0.5, 1.0, -1.5,
    1e300, 1e-300, 5e-324, math.nan, math.inf, -math.inf, 1j, np.float64("nan"), np.float32(0.25),
    np.int8(-1), np.uint64(2**64 - 1), np.array(3), np.array(0.5), np.array([3]),
    np.longdouble("1e4000") if np.finfo(np.longdouble).max > 1e308 else np.inf,
    fractions.Fraction(1, 3), decimal.Decimal("0.1"), Number(0.5), "", "relu", "gaussian", "gram",
    "chain", "linear\x00", "\udcff", "a" * 5000, "3", "nan", Text("batch"), b"relu",
    datetime.date(2020, 1, 1), (), range(3), slice(1), ..., object(), NotImplemented, np,
    np.dtype("f8"), Raising(ValueError), Raising(RuntimeError), Raising(TypeError),
    Raising(OverflowError), Lying("text"), Lying(None), Path("no/such/folder/x.zarr"),
    lambda: bytearray(9), lambda: [], lambda: {}, lambda: set(), lambda: [[1.0], [1.0, 2.0]],
    lambda: [None], lambda: ["gram", 3], lambda: {"gram": "gram"}, lambda: (n for n in range(3)),
    lambda: iter([]), lambda: np.random.default_rng(0), lambda: np.random.SeedSequence(1),
    lambda: [1, 2], lambda: Lying([1.0, "a"]), lambda: Exception("as a value"), lambda: nested(200),
    lambda: itself(), lambda: chain(),
]  # fmt: skip


def nested(depth):
    value = 1.0
    for _ in range(depth):
        value = [value]
    return value


def itself():
    value = []
    value.append(value)
    return value


def hostile(rng):
    """Return a value of any type."""
    if rng.random() < 0.4:
        return _array(rng)
    value = rng.choice(HOSTILE)
    return value() if inspect.isfunction(value) else value


# --- calls with valid arguments --------------------------------------------------------------


@cache
def chain(**options):
    return bnmc.Chain(**{"width": 6, "batch": 3, "activation": "relu", **options})


@cache
def trajectory(chains=6, depth=20):
    return bnmc.simulate(
        chain(), depth, chains=chains, rng=0, observables=["gram", "orthogonality_gap"]
    )


@cache
def path_of_store():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return bnmc.simulate(chain(), 2, rng=0, store=f"{folder}/run.zarr").observables.path


@cache
def weighed():
    return bnmc.simulate(chain(), 3, rng=0, sampler="weights")


@cache
def law():
    return random_matrix.MarchenkoPastur(0.5)


@cache
def product_law():
    return random_matrix.ProductLaw([random_matrix.Factor(4, 4, 1.0, [0.5, 2.0])] * 2)


@cache
def field():
    return bnmc.MeanField(chain())


def a_gram(rng):
    a = np.random.default_rng(rng.randrange(99)).normal(size=(5, 3))
    return a.T @ a / 5


def a_correlation(rng):
    return gram.correlation(a_gram(rng))


def a_matrix(rng):
    return np.random.default_rng(rng.randrange(99)).normal(size=(6, 3))


def wide(rng):
    return np.random.default_rng(rng.randrange(99)).normal(size=(6, 5))


def number(*allowed):
    return lambda rng: rng.choice(allowed)


def value(thing):
    return lambda rng: thing


G, X = a_gram, a_matrix
WIDTH, BATCH, DEPTH, ROWS = number(8, 50), number(2, 3), number(0, 1, 9), number(1, 4)
ALPHA, T, POSITIVE = number(0.1, 0.5), number(0.5, 2.0), number(0.5, 3.0)
CHAIN = value(chain())
RNG = value(0)
PAIRS = {"chain": CHAIN, "rng": RNG, "max_layers": value(30), "level": number(0.9, 0.95)}
SHORT = {"rng": RNG, "rtol": value(0.9), "chains": value(8), "depth": value(200)}

#: What makes an argument of a formula, by the name of the argument.
ARGUMENTS = {
    **dict.fromkeys(("G", "H", "G0", "S1", "S2", "C1", "C2", "star"), G),
    **dict.fromkeys(("alpha", "tau", "v_hat", "delta", "total_variation"), ALPHA),
    **dict.fromkeys(("t", "time", "complexity", "least_eigenvalue"), T),
    **dict.fromkeys(("gamma", "constant", "learning_rate"), POSITIVE),
    **dict.fromkeys(("batch", "samples"), BATCH),
    **dict.fromkeys(("a", "b"), X),
    "width": WIDTH,
    "depth": DEPTH,
    "rows": ROWS,
    "bound": number(3.0, 2.0),
    "distortion": number(1.0, 2.0),
    "eigenvalues": value([0.2, 0.7, 2.1]),
    "activation": value("relu"),
    "rng": RNG,
}


def _by_name(module, weight, **others):
    """Return the functions of a module of formulas, with arguments from `ARGUMENTS` or others."""
    public, makers, entries = importlib.import_module(f"bnmc.{module}"), ARGUMENTS | others, {}
    for name in public.__all__:
        function = getattr(public, name)
        if inspect.isfunction(function):
            names = [each for each in inspect.signature(function).parameters if each in makers]
            entries[f"{module}.{name}"] = weight, function, {each: makers[each] for each in names}
    return entries


#: By name: the relative frequency of calls, the function, and a function that makes each argument.
FUNCTIONS = {
    "Activation": (3, bnmc.Activation, {"function": value(abs), "kinks": value((0.0,))}),
    "Activation.named": (2, bnmc.Activation.named, {"name": value("tanh")}),
    "Activation()": (3, chain().activation, {"x": X}),
    "Activation.scalar": (1, chain().activation.scalar, {"dtype": value("float64")}),
    "Chain": (9, bnmc.Chain, {
        "width": WIDTH, "batch": BATCH, "activation": value("relu"), "norm": value("batch"),
        "skip": number(0, 1.0), "gain": POSITIVE, "weights": value("uniform"), "eps": value(1e-5),
        "order": value("activation-norm"), "bias_variance": number(0, 0.1),
    }),
    "Chain.resnet": (1, bnmc.Chain.resnet, {
        "width": WIDTH, "batch": BATCH, "norm": value("rms"), "gain": POSITIVE}),
    "Chain.conv": (1, bnmc.Chain.conv, {
        "channels": WIDTH, "batch": BATCH, "shape": value((2, 2)), "kernel": value((1, 2)),
        "norm": value("rms"), "gain": POSITIVE, "eps": value(1e-5)}),
    "Chain.bn_residual": (2, bnmc.Chain.bn_residual, {
        "width": WIDTH, "batch": BATCH, "gamma": POSITIVE}),
    "Chain.repeat": (1, chain().repeat, {"depth": DEPTH}),
    "Network.of": (2, bnmc.Network.of, {
        "width": WIDTH, "batch": BATCH, "depth": number(1, 3), "activation": value("relu"),
        "gain": POSITIVE}),
    "Residual": (2, bnmc.Residual, {
        "branch": value(bnmc.Network((chain(), 2))), "skip": number(0.5, 2.0),
        "source": value("activations"), "activation": value("relu"), "projection": value(
            bnmc.Chain(chain().width, chain().batch, norm="none"))}),
    "Convolution": (1, bnmc.Convolution, {"shape": value((2, 2)), "kernel": value((1, 2))}),
    "Distance": (2, bnmc.Distance, {"star": G}),
    "Estimate": (3, bnmc.Estimate, {
        "value": value(1.0), "stderr": value(0.1), "ci": value((0.8, 1.2)), "n": value(9),
        "method": value("mean"), "level": value(0.95)}),
    "Estimate.from_samples": (3, bnmc.Estimate.from_samples, {
        "samples": value([1.0, 2.0, 4.0]), "level": value(0.9), "method": value("mean")}),
    "FirstLayer": (3, bnmc.FirstLayer, {"x": X}),
    "GroupNorm": (1, bnmc.GroupNorm, {"groups": number(1, 2)}),
    "MeanField": (2, bnmc.MeanField, {"chain": CHAIN}),
    "MeanField.step": (1, field().step, {"G": G, "rtol": value(1e-2), "rng": RNG,
                                         "max_nodes": value(1000)}),
    "MeanField.trajectory": (1, field().trajectory, {
        "G0": G, "depth": value(1), "rtol": value(1e-2), "rng": RNG, "max_nodes": value(1000)}),
    "MeanField.trajectory, covariance": (1, field().trajectory, {
        "covariance": G, "depth": value(1), "rtol": value(1e-2), "rng": RNG}),
    "MeanField.trajectory, fluctuations": (1, field().trajectory, {
        "G0": G, "depth": value(1), "rng": RNG, "fluctuations": value(True),
        "fluctuation_rtol": value(0.5), "max_points": value(512)}),
    "Observable": (3, bnmc.Observable, {
        "function": value(np.trace), "shape": value(()), "name": value("trace")}),
    "SoftRank": (1, bnmc.SoftRank, {"tau": POSITIVE}),
    "drawn_biases": (1, bnmc.drawn_biases, {
        "run": lambda rng: weighed(), "layer": number(1, 3), "chain": value(0),
        "projection": value(False)}),
    "drawn_weights": (2, bnmc.drawn_weights, {
        "run": lambda rng: weighed(), "layer": number(1, 3), "chain": value(0),
        "projection": value(False)}),
    "open": (1, bnmc.open, {"paths": lambda rng: path_of_store()}),
    **_by_name("gram", 3, tau=POSITIVE),
    "mixing.autocorrelation": (2, mixing.autocorrelation, {
        "run": lambda rng: trajectory(), "observable": value("orthogonality_gap"),
        "burn_in": value(1), "least_times": value(1.0), "level": value(0.9)}),
    "mixing.relaxation": (2, mixing.relaxation, {
        "run": lambda rng: trajectory(), "star": value(None),
        "observable": value("orthogonality_gap"), "window": value((1, 9)), "level": value(0.9)}),
    "mixing.spectral": (2, mixing.spectral, {
        "run": lambda rng: trajectory(), "lags": value((1, 2)),
        "observables": value("orthogonality_gap"), "burn_in": value(1), "level": value(0.9)}),
    "random_matrix.MarchenkoPastur": (2, random_matrix.MarchenkoPastur, {
        "ratio": POSITIVE, "variance": POSITIVE}),
    "random_matrix.MarchenkoPastur.pdf": (2, law().pdf, {"x": number(0.5, [0.1, 1.0])}),
    "random_matrix.MarchenkoPastur.cdf": (2, law().cdf, {"x": number(0.5, [0.1, 1.0])}),
    "random_matrix.MarchenkoPastur.sf": (1, law().sf, {"x": number(0.5, [0.1, 1.0])}),
    "random_matrix.MarchenkoPastur.ppf": (1, law().ppf, {"q": number(0.5, [0.1, 0.9])}),
    "random_matrix.MarchenkoPastur.moment": (1, law().moment, {"order": number(1, 2)}),
    "random_matrix.MarchenkoPastur.rvs": (1, law().rvs, {"size": value(3), "rng": RNG}),
    "random_matrix.SingularValueLaw": (1, random_matrix.SingularValueLaw, {
        "squares": value(law())}),
    "random_matrix.Factor": (1, random_matrix.Factor, {
        "columns": value(4), "rows": value(4), "variance": POSITIVE, "values": value([0.5, 2.0]),
        "weights": value(None), "is_orthogonal": value(False), "moments": value(None),
        "is_bounded": value(True)}),
    "random_matrix.ProductLaw": (1, random_matrix.ProductLaw, {
        "factors": value([random_matrix.Factor(4, 4, 1.0, [0.5, 2.0])]), "size": value(4)}),
    "random_matrix.ProductLaw.density": (1, product_law().density, {"x": number(0.5, [0.1, 1.0])}),
    "random_matrix.WishartMoments": (2, random_matrix.WishartMoments, {"S": G, "width": WIDTH}),
    **_by_name("random_matrix", 2, width=value(4), k=value(2), atol=value(1e-6),
               widths=value([5, 8]), slopes=value((0.5, 1.0)), gram=G, time=number(0.5, 0.1),
               steps=value(20), paths=value(2)),
    "regularity.one_step_second_moment": (2, reg.one_step_second_moment, {"H": X}),
    "testing.activations": (1, tools.activations, {}),
    "testing.batches": (1, tools.batches, {"width": WIDTH, "batch": BATCH}),
    "testing.chains": (1, tools.chains, {
        "widths": value(None), "norms": value(None), "weights": value(None)}),
    "testing.gram_matrices": (1, tools.gram_matrices, {"batch": BATCH, "regular": value(True)}),
    "testing.generators": (1, tools.generators, {}),
    "testing.from_features_last": (1, tools.from_features_last, {"step": value(abs)}),
    "testing.from_images": (1, tools.from_images, {"step": value(abs), "shape": value((1, 2))}),
    "testing.from_linear_first": (1, tools.from_linear_first, {}),
    **_by_name("bounds.bridging", 1, batch=value(3), curvature=value(None)),
    **_by_name("bounds.gaussian", 2),
    **_by_name("bounds.limits", 1),
    **_by_name("bounds.orthogonalizes", 1),
    **_by_name("bounds.rank_collapse", 1, M=a_correlation, gamma=ALPHA),
}  # fmt: skip

#: The same for functions that simulate; most calls take milliseconds.
RUNS = {
    "simulate": (30, bnmc.simulate, {
        "chain": lambda rng: chain(norm=rng.choice(["batch", "batch-uncentred", "none"])),
        "depth": number(0, 1, 4), "chains": value(2), "rng": RNG, "initial": value("gaussian"),
        "sampler": number("auto", "weights"), "every": number(1, 2), "burn_in": value(0),
        "observables": number("gram", ["eigenvalues", "orthogonality_gap"]), "reduce": value(()),
        "threads": number(None, 1), "backend": value("cpu"), "dtype": value("float64"),
    }),
    "simulate, from an array": (10, bnmc.simulate, {
        "chain": CHAIN, "depth": value(2), "initial": X, "chains": number(None, 2), "rng": RNG,
        "inputs": value(None),
    }),
    "simulate, options": (10, bnmc.simulate, {
        "chain": CHAIN, "depth": value(2), "rng": RNG, "executor": value(None),
        "timeout": value(9.0), "progress": value(False), "out": value(None), "store": value(None),
    }),
    "warmup": (2, bnmc.warmup, {
        "dtypes": value("float64"), "activations": value("relu"),
        "samplers": value("conditional")}),
    "mixing.tv_bound": (4, mixing.tv_bound, {
        **PAIRS, "depth": value(3), "lag": value(2), "chains": value(4),
        "initial": value("gaussian")}),
    "mixing.contraction": (4, mixing.contraction, {**PAIRS, "chains": value(2)}),
    "mixing.two_inputs": (3, mixing.two_inputs, {
        "chain": CHAIN, "x": X, "y": X, "depth": value(3), "chains": value(2), "rng": RNG}),
    "mixing.compare": (1, mixing.compare, {
        **PAIRS, "chains": value(5)}),
    "infinite_width.alignment": (1, infinite_width.alignment, {
        "kernel": G, "y": value([1.0, -1.0, 1.0])}),
    "infinite_width.complexity": (1, infinite_width.complexity, {
        "kernel": G, "y": value([1.0, -1.0, 1.0])}),
    "infinite_width.convergence": (1, infinite_width.convergence, {
        "x": X, "depth": value(1), "widths": value((4, 8)), "chains": value(2), "rng": RNG}),
    "infinite_width.descent": (1, infinite_width.descent, {
        "kernel": G, "y": value([1.0, -1.0, 1.0]), "times": value([0.0, 1.0]),
        "learning_rate": POSITIVE, "loss": value("squared")}),
    "infinite_width.dual": (1, infinite_width.dual, {"activation": value("relu")}),
    "infinite_width.logit_divergence": (1, infinite_width.logit_divergence, {
        "outputs": X, "reference": X, "corrected": value(True)}),
    "infinite_width.nngp": (3, infinite_width.nngp, {
        "x": X, "depth": number(0, 1), "other": value(None), "activation": value("relu"),
        "norm": number("none", "layer", "rms", "batch"), "order": value("norm-activation"),
        "weight_variance": POSITIVE, "bias_variance": number(0, 0.1), "skip": value(0.0),
        "rtol": value(None), "dtype": value("float64"), "progress": value(False), "rng": RNG}),
    "infinite_width.nngp, monte-carlo": (1, infinite_width.nngp, {
        "x": X, "depth": number(0, 1), "method": value("monte-carlo"), "width": value(8),
        "chains": value(2), "rng": RNG}),
    "infinite_width.ntk": (3, infinite_width.ntk, {
        "x": wide, "depth": number(0, 1), "other": value(None), "activation": value("relu"),
        "norm": number("none", "layer", "rms", "batch"), "order": value("norm-activation"),
        "batch": value(None), "rtol": value(None), "method": value("analytic"), "rng": RNG}),
    "infinite_width.ntk, batches": (1, infinite_width.ntk, {
        "x": wide, "depth": value(1), "other": wide, "norm": value("batch"),
        "batch": number(5, (5, 5)), "rng": RNG}),
    "infinite_width.ntk, monte-carlo": (1, infinite_width.ntk, {
        "x": X, "depth": number(0, 1), "method": value("monte-carlo"), "width": value(8),
        "norm": number("none", "layer", "rms", "batch"), "chains": value(2), "rng": RNG}),
    "infinite_width.posterior": (1, infinite_width.posterior, {
        "tangent": G, "prior": G, "y": value([1.0, -1.0, 1.0]), "times": value([0.0, 1.0]),
        "learning_rate": POSITIVE}),
    "invariant.expectation": (4, invariant.expectation, {
        **PAIRS, "f": value("orthogonality_gap"), "chains": value(4), "burn_in": value(1),
        "length": value(2), "lag": value(2)}),
    "invariant.sample": (3, invariant.sample, {
        **PAIRS, "chains": value(2), "atol": value(0.3)}),
    "invariant.check": (1, invariant.check, {
        "chain": CHAIN, "chains": value(200), "atol": value(0.3), "alpha": value(0.01),
        "rng": RNG, "max_layers": value(40), "samples": value(None), "ahead": value(1)}),
    "backpropagate": (6, bnmc.backpropagate, {
        "chain": CHAIN, "depth": value(3), "chains": value(2), "initial": value("gaussian"),
        "loss": value("gaussian"), "labels": value(None), "classes": value(None), "rng": RNG,
        "loss_gradient": value(None), "observables": value(("delta_gram",)), "every": value(1),
        "dtype": value("float64"),
        "threads": value(1), "inputs": value(None), "progress": value(False),
        "sampler": number("auto", "weights"), "backend": value("cpu"), "timeout": value(9.0)}),
    "train": (6, bnmc.train, {
        "network": value(chain(width=8).repeat(2)), "inputs": value(np.eye(3)),
        "labels": value([0, 1, 0]), "steps": value(2), "learning_rate": POSITIVE,
        "depth": value(None),
        "loss": number("cross-entropy", "squared"), "test": value(None), "batches": value(None),
        "optimizer": number("sgd", "muon"), "momentum": value(0.5), "weight_decay": value(0.1),
        "parametrization": number("standard", "mup", "ntk"), "reference_width": value(128),
        "readout_gain": value(1.0), "start": number("random", "maximized"), "chains": value(2),
        "observables": value(("kernel", "gram")), "layers": value(None), "record": value(None),
        "matrices": number("auto", "implicit", "drawn"), "dtype": value("float64"), "rng": RNG,
        "threads": value(1), "timeout": value(9.0), "progress": value(False)}),
    "training.largest_rate": (4, bnmc.training.largest_rate, {
        "network": value(chain(width=8).repeat(2)), "inputs": value(np.eye(3)),
        "depth": value(None), "outputs": value(2),
        "loss": number("squared", "cross-entropy"),
        "parametrization": number("standard", "mup", "ntk"), "reference_width": value(128),
        "readout_gain": value(1.0), "chains": value(2), "rtol": value(0.01), "rng": RNG,
        "threads": value(1), "progress": value(False)}),
    "gradients.tangent_kernel": (4, bnmc.gradients.tangent_kernel, {
        "chain": CHAIN, "depth": value(2), "chains": value(2), "initial": value("gaussian"),
        "probes": value(None), "parts": value(False), "trained_biases": value(False), "rng": RNG,
        "sampler": value("auto"), "progress": value(False)}),
    "gradients.jacobian": (4, bnmc.gradients.jacobian, {
        "chain": CHAIN, "depth": value(2), "directions": value(2), "chains": value(2),
        "initial": value("gaussian"), "every": value(1), "rng": RNG, "threads": value(1),
        "progress": value(False)}),
    "gradients.jacobian_law": (2, bnmc.gradients.jacobian_law, {
        "chain": value(bnmc.Chain(9, 2, "tanh", norm="none")), "depth": value(2),
        "mean_square": value(0.4)}),
    "gradients.extreme_singular_values": (2, bnmc.gradients.extreme_singular_values, {
        "chain": CHAIN, "depth": value(2), "which": value("largest"), "chains": value(2),
        "initial": value("gaussian"), "rtol": value(0.01), "rng": RNG, "threads": value(1),
        "progress": value(False)}),
    "gradients.probing_variance": (2, bnmc.gradients.probing_variance, {
        "kernel": G, "probes": value(3)}),
    "regularity.averages": (2, reg.averages, {"chain": CHAIN, **SHORT, "tau": value(0.5)}),
    "regularity.constant": (2, reg.constant, {"chain": CHAIN, **SHORT, "burn_in": value(2)}),
    "regularity.figures": (1, reg.figures, {"widths": value((4,)), **SHORT, "gamma": value(0.5)}),
    "mean_field.StationaryBulk": (1, mean_field.StationaryBulk, {
        "width": value(50), "batch": value(5), "b": value(0.5), "c": value(0.2),
        "spread": value(2.0)}),
    "mean_field.atlas": (1, mean_field.atlas, {
        "activations": value(["relu"]), "batches": value([3]), "norm": value("batch")}),
    "mean_field.stability": (1, mean_field.stability, {
        "activation": value("relu"), "batches": value([3]), "norm": value("batch")}),
    "mean_field.limit": (1, mean_field.limit, {
        "activation": value("relu"), "norm": value("batch"), "rtol": value(1e-4)}),
    "mean_field.block_symmetric": (1, mean_field.block_symmetric, {
        "activation": value("relu"), "batch": value(3), "minority": value(1),
        "rtol": value(1e-2)}),
    "mean_field.partial_collapse": (1, mean_field.partial_collapse, {
        "activation": value("relu"), "batch": value(4), "distinct": value(2),
        "rtol": value(1e-2)}),
    "mean_field.edge_of_chaos": (1, mean_field.edge_of_chaos, {
        "activation": value("tanh"), "bias_variance": value(0.1), "norm": value("none"),
        "order": value("norm-activation"), "rtol": value(1e-6)}),
    "mean_field.isometry_rate": (1, mean_field.isometry_rate, {
        "activation": value("relu"), "variance": value(1.0), "rtol": value(1e-6)}),
    "mean_field.residual_growth": (1, mean_field.residual_growth, {
        "activation": value("relu"), "weight_variance": value(1.0), "bias_variance": value(0.1),
        "norm": value("none"), "batch": value(None), "skip": value(1.0)}),
    "testing.assert_same_law": (1, tools.assert_same_law, {
        "step": value(abs), "chain": CHAIN, "rng": RNG, "alpha": value(1e-3), "rows": value(64)}),
}  # fmt: skip


class _First(random.Random):
    """Chooses the first of several valid arguments."""

    def choice(self, allowed):
        return allowed[0]


def valid_call(name):
    """Return a function and valid arguments, without a timeout: the first call compiles."""
    _, function, makers = (FUNCTIONS | RUNS)[name]
    arguments = {argument: make(_First(0)) for argument, make in makers.items()}
    return function, {name: valid for name, valid in arguments.items() if name != "timeout"}


def _call(table, rng, folder, shown):
    name = rng.choices(list(table), [weight for weight, _, _ in table.values()])[0]
    _, function, makers = table[name]
    arguments = {argument: make(rng) for argument, make in makers.items()}
    for argument in rng.sample(list(makers), min(len(makers), rng.choice([0, 1, 1, 1, 1, 2, 3]))):
        arguments[argument] = hostile(rng)
    shown.append(name)
    shown += [f"{argument}={_shown(given)}" for argument, given in arguments.items()]
    result = function(**arguments)
    # An activation may return NaN: it takes any number.
    if has_nan(result) and function is not chain().activation:
        raise Finding(f"NaN in {result!r}")


def _shown(given):
    try:
        return " ".join(repr(given).split())[:60]
    except Exception:
        return f"<{type(given).__name__}>"


def has_nan(result):
    """Return whether any number of a result is NaN."""
    return any(bool(np.isnan(numbers).any()) for numbers in numbers_of(result))


def has_infinity(result):
    """Return whether any number of a result is infinite."""
    return any(bool(np.isinf(numbers).any()) for numbers in numbers_of(result))


def numbers_of(result):
    """Yield the floating-point numbers of a result, in arrays."""
    if isinstance(result, (np.ndarray, float, complex)):
        if np.asarray(result).dtype.kind in "fc":
            yield np.asarray(result)
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from numbers_of(part)
    elif isinstance(result, bnmc.Trajectory):
        yield from numbers_of(list(result.observables.values()))
    elif dataclasses.is_dataclass(result) and not isinstance(result, (bnmc.Chain, type)):
        for field in dataclasses.fields(result):
            # Documented to be NaN where it is too small to compute, or where a network diverged.
            is_small = isinstance(result, mixing.Contraction) and field.name == "distance"
            if not (is_small or getattr(result, "diverged", np.zeros(1) - 1).max() >= 0):
                yield from numbers_of(getattr(result, field.name))


def _functions(rng, folder, shown):
    _call(FUNCTIONS, rng, folder, shown)


def _runs(rng, folder, shown):
    _call(RUNS, rng, folder, shown)


# --- files ----------------------------------------------------------------------------------


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def _npy(array, allow_pickle=True):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def hostile_bytes(rng, suffix, mark):
    """Return the content of a file: valid, damaged, or with code that unpickling would run."""
    payload = np.array([Payload(mark)], dtype=object)
    matrix = np.random.default_rng(rng.randrange(9)).normal(size=(3, 4))
    member = rng.choice([
        lambda: _npy(matrix), lambda: _npy(_plain(rng)), lambda: _npy(payload),
        lambda: pickle.dumps(payload), lambda: header(rng.choice(HEADERS)) + bytes(64),
        lambda: b"",
    ])()  # fmt: skip
    if suffix == ".npz" and rng.random() < 0.9:
        names = rng.sample(["x.npy", "y.npy", "x", "../z.npy", ""], rng.choice([1, 1, 2]))
        content = archive({name: member for name in names if name})
    elif suffix == ".csv" and rng.random() < 0.9:
        fields = ["1", "2.5", "nan", "inf", "", "a", "1e999", "0x3", "\x00", "é", '"', "1_0", "-"]
        rows = [
            ",".join(rng.choices(fields, [9, 9, *[1] * 11], k=rng.choice([3, 3, 3, 1, 0])))
            for _ in range(rng.randrange(5))
        ]
        content = "\n".join(rows).encode(rng.choice(["utf-8", "utf-16", "latin1"]))
    else:
        content = member
    return damaged_bytes(rng, content) if rng.random() < 0.5 else content


def _plain(rng):
    array = _array(rng)
    return np.asarray(array) if isinstance(array, (np.ndarray, list)) else np.zeros(3)


def _files(rng, folder, shown):
    suffix = rng.choice([".npy", ".npz", ".csv"])
    path = folder / f"hostile{rng.choice([suffix] * 9 + ['.txt', '.NPY'])}"
    path.write_bytes(hostile_bytes(rng, suffix, folder / "mark"))
    shown.append(path.name)
    try:
        if rng.random() < 0.7:
            options = {"array": rng.choice([None, None, None, "x", "é", 3]),
                       "samples_first": rng.random() < 0.5}  # fmt: skip
            result = inputs.read_input(path, **options)
        else:
            result = inputs.read_states(path)
            if result.dtype.kind == "O":
                raise Finding("objects")
            result = None  # callers of `read_states` check the shape and the values
    finally:
        if (folder / "mark").exists():
            raise Finding("a file was unpickled")
    if result is not None and not (result.ndim == 2 and np.isfinite(result).all()):
        raise Finding(repr(result))


def _written(rng, folder, shown):
    """Write runs with hostile arguments."""
    out = folder / "run.npz"
    out.unlink(missing_ok=True)
    given = {"path": out, "attributes": {"a": 1}, "star": np.eye(3), "force": False}
    name = rng.choice([*given, "run"])
    if name in given:
        given[name] = hostile(rng)
        shown += [f"write_run {name}={_shown(given[name])}"]
    run = trajectory() if rng.random() < 0.9 else hostile(rng)
    export.write_run(run, **given)


# --- stores ---------------------------------------------------------------------------------


def stored(path, **options):
    """Return a run in a store; the run is the same in each call."""
    options = {"observables": ["gram", "eigenvalues"], **options}
    return run_in_store(path, chain(), 30, **options)


@cache
def _values():
    return stored(None).observables


def _stores(rng, folder, shown):
    base = folder / "base.zarr"
    if not base.exists():
        stored(base)
    path = folder / "hostile.zarr"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    damage_store(path, rng, shown)
    run = stored(path)
    for name, expected in _values().items():
        if not np.array_equal(run[name], expected):
            raise Finding(f"other values of {name!r}")
    if not np.array_equal(run.to_xarray()["layer"], run.layers):
        raise Finding("other layers")


# --- pickles --------------------------------------------------------------------------------


def _spec(rng):
    return rng.choice([
        lambda: chain(norm=rng.choice(["batch", "none"]), skip=rng.choice([0.0, 0.5])),
        lambda: bnmc.Activation.named(rng.choice(["relu", "tanh"])),
        lambda: trajectory().final_state, trajectory, lambda: law(),
        lambda: bnmc.Estimate.from_samples([1.0, 2.0, 4.0], method="mean"),
        lambda: bnmc.FirstLayer(np.eye(3)),
        lambda: BnmcErrors[rng.randrange(len(BnmcErrors))],
    ])()  # fmt: skip


BnmcErrors = [
    bnmc.errors.ArgumentError("width", 0, "an integer >= 1"),
    bnmc.errors.ArgumentTypeError("f", lambda: 0, "a number"),
    bnmc.errors.ZeroVarianceError(0, 1, 2),
    bnmc.errors.StoreMismatchError("run.zarr", "key", "1", "2"),
    bnmc.errors.NotMixing("they did not meet", (1, 2), 0.5, 0.0),
]


def _pickles(rng, folder, shown):
    spec = _spec(rng)
    content = pickle.dumps(spec, protocol=rng.randrange(2, 6))
    shown.append(type(spec).__name__)
    if rng.random() < 0.5:
        again = pickle.loads(content)
        same = isinstance(spec, bnmc.FirstLayer) or repr(again) == repr(spec)
        if type(again) is not type(spec) or not same:
            raise Finding(repr(again))
        if isinstance(spec, (bnmc.Chain, bnmc.Activation)) and again != spec:
            raise Finding(repr(again))
        if isinstance(spec, bnmc.Trajectory) and not np.array_equal(again.gram, spec.gram):
            raise Finding("other values")
        return "returned"
    cut = content[: rng.randrange(len(content))]
    try:
        pickle.loads(cut)
    except Exception:  # `pickle` documents no list of errors
        return "refused"
    raise Finding("a part of a pickle was loaded")


# --- the command line -----------------------------------------------------------------------

WORDS = [
    "", "-1", "0", "1", "2", "3", "-0", "nan", "inf", "-inf", "1e400", "1e-320", "0.5", "3.0",
    "99999999999999999999999", "-99999999999999999999999", "0x10", "1_0", "é", "\udcff", "a" * 3000,
    "--", "-", "relu", "batch", "none", "gaussian", ",", "3,,3", "3,a", "../x", "/", "/dev/null",
    "no/such/x.npy", "True", "null", "[]", "%s", "\n", " ", "٣", "auto", "weights", "float16",
]  # fmt: skip
COMMANDS = {
    "simulate": (6, "--width 6 --depth 3 --chains 2 --seed 0 --threads 1 --every 1 --input {input} "
        "--batch 3"),
    "backprop": (1, "--width 6 --batch 3 --depth 3 --chains 2 --seed 0 --threads 1 --loss squared "
        "--classes 2"),
    "fixed-point": (2, "--batch 3 --activation relu --norm batch --gain 1"),
    "stability": (1, "--batches 3 --activation relu --norm batch"),
    "phase": (1, "--activation relu --norm none --skip 1"),
    "compare-norms": (0.2, "--width 8 --batch 3 --depth 4 --chains 2 --norm layer --seed 0"),
    "certify": (2, "--width 6 --batch 3 --depth 3 --chains 4 --lag 2 --seed 0"),
    "check": (1, "--width 6 --batch 3 --samples {input} --size 50"),
    "regularity": (1, "--width 3 --batch 3 --rtol 0.9 --seed 0"),
    "rates": (0.2, "--width -1 --batch 3"),
    "info": (1, "--json"),
    "demo": (1, "--no-such-option 3"),
    "": (1, "--version --help"),
}  # fmt: skip


def _command_line(rng, folder, shown):
    name = rng.choices(list(COMMANDS), [weight for weight, _ in COMMANDS.values()])[0]
    arguments = COMMANDS[name][1].split()
    path = folder / f"input{rng.choice(['.npy', '.npz', '.csv'])}"
    if rng.random() < 0.5:
        path.write_bytes(hostile_bytes(rng, path.suffix, folder / "mark"))
    else:
        path = folder / "sound.npy"
        np.save(path, a_matrix(rng))
    arguments = [str(path) if word == "{input}" else word for word in arguments]
    # Replace a value, insert a word or remove one.
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        at = rng.randrange(len(arguments) or 1)
        kind = rng.random() if arguments else 0.8
        if kind < 0.7:
            values = range(1, len(arguments), 2)
            arguments[rng.choice(values) if values and name else at] = rng.choice(WORDS)
        elif kind < 0.85:
            arguments.insert(at, rng.choice(WORDS))
        else:
            del arguments[at]
    line = [name, *arguments] if name else arguments
    # With valid arguments these commands take long, so the line always ends with a hostile word.
    if name in ("rates", "demo"):
        line = [name, *COMMANDS[name][1].split(), rng.choice(WORDS)]
    shown.append("bnmc " + " ".join(line))
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(line)
    except SystemExit as end:
        raise Finding(f"exit {end.code}") from end
    finally:
        if (folder / "mark").exists():
            raise Finding("a file was unpickled")
    if status not in STATUSES:
        raise Finding(f"status {status}: {err.getvalue()}")
    if status in (2, 3) and len(err.getvalue().splitlines()) != 1:
        raise Finding(f"status {status}: {err.getvalue()!r}")
    return "refused" if status in (2, 3) else "returned"


#: Each makes one call; it may return "refused" where an error is not raised but caught or printed.
GROUPS = {
    "functions": _functions,
    "runs": _runs,
    "files": _files,
    "written": _written,
    "stores": _stores,
    "pickles": _pickles,
    "command line": _command_line,
}
