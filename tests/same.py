"""Results before and after a change: which differ, and by how much?

    python tests/same.py record before.npz [KIND ...]    # at the commit before
    python tests/same.py compare before.npz [KIND ...]   # at the commit after

A KIND is

- `theory`: the functions of `fuzzing.py`, and those of `mean_field`, `infinite_width`,
  `random_matrix`, `bounds` and `testing`, with many right and wrong values of each argument;
- `bits`: runs of `simulate` and `backpropagate`, and estimates from coupled pairs.

Tests compare figures with their approved descriptions, commands with the functions that they call,
and benchmarks compare times.

Without a KIND, both are recorded.  `-k WORD` selects cases by name (several words: all of them),
`list` prints the names, `show` the results, and `--above R` hides relative differences up to R.
A result is recorded with its public attributes, properties and methods, an error with its message.
`compare` prints

- the arrays whose bits differ, with the largest absolute and relative difference, and with the
  ratio of that difference to the stated error, if the result states one;
- the texts that differ: messages, representations, warnings.

The cases use the public interface only, so that the `tests` of one commit serve both: if they
differ, run them with `PYTHONPATH` set to the `src` of the other commit.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import importlib
import inspect
import itertools
import json
import math
import numbers
import os
import pathlib
import re
import signal
import tempfile
import warnings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import fuzzing
import hypothesis
import numpy as np
from mean_field_awkward import activation
from numpy_steps import Network

import bnmc
from bnmc import infinite_width, mean_field, random_matrix, testing
from bnmc.bounds import bridging, gaussian, limits, orthogonalizes, rank_collapse


def _each(label, function, *axes):
    """Yield a case for each combination of values from some axes, which the function takes."""
    for values in itertools.product(*axes):
        yield " ".join(map(str, (label, *values))), functools.partial(function, *values)


# --- theory: values of arguments


def kinked(x):
    """Not homogeneous, with a kink at 0."""
    return np.maximum(x, 0.3 * x) + np.exp(-x * x)


ACTIVATIONS = {
    **{name: name for name in ("relu", "tanh", "sin", "gelu", "silu", "linear", "leaky_relu")},
    **{name: name for name in ("abs", "sigmoid", "elu", "selu", "erf", "hermite2")},
    "kinked": kinked,
    "declared": bnmc.Activation(
        lambda x: x - 0.4 if x > 0.4 else 0.3 * math.sin(x - 0.4),
        kinks=(0.4,),
        derivative=lambda x: 1.0 if x > 0.4 else 0.3 * math.cos(x - 0.4),
        name="declared",
    ),
    "constant": lambda x: 1.0 + 0.0 * x,
    # A jump, a bump, two kinks, an infinite slope and an infinite variance.
    **{name: activation(name) for name in ("step at 1.4142", "bump at .7", "bent at ±2.5")},
    **{name: activation(name) for name in ("|x − .3|^.6", "exp x²/4")},
}
FEW = ("relu", "tanh", "kinked", "declared")
NORMS = ("none", "layer", "rms", "group(4)", "batch", "batch-uncentred")
ORDERS = ("norm-activation", "activation-norm")


def _gram(n, seed=0):
    x = np.random.default_rng(seed).standard_normal((n + 3, n))
    return x.T @ x / (n + 3) + 0.1


def _gap(G):
    """A function of Gram matrices for which the laws are asked."""
    return float(G[0, 1] / G[0, 0])


X = np.random.default_rng(1).standard_normal((10, 6))
LINE = np.array([1.0, -2.0, 0.5])
MATRICES = {
    "regular": _gram(3, 5),
    "single": _gram(3).astype(np.float32),
    "collinear": np.outer(LINE, LINE),
    "equal": np.ones((3, 3)),
    "zero": np.zeros((3, 3)),
    "with a zero": np.diag([1.0, 0.0, 2.0]),
    "twins": np.array([[1.0, 1.0, 0.2], [1.0, 1.0, 0.2], [0.2, 0.2, 1.0]]),
    "tiny": 1e-200 * np.eye(3),
    "huge": 1e200 * np.eye(3),
    "correlation": np.array([[1.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 1.0]]),
    "two samples": np.array([[1.0, 0.3], [0.3, 2.0]]),
    "stack": np.stack([_gram(3, seed) for seed in range(4)]),
}
INPUTS = {"regular": X, "two": X[:, :2], "four": X[:, :4], "equal": np.ones((4, 3)),
          "zero": np.zeros((4, 3)), "huge": 1e160 * X}  # fmt: skip
#: Values to try of arguments, by name.
VALUES = {
    "activation": ACTIVATIONS,
    "norm": NORMS,
    "order": ORDERS,
    **dict.fromkeys(("G", "G0", "H", "S", "S1", "S2", "star", "M", "kernel", "tangent"), MATRICES),
    **dict.fromkeys(("x", "other", "y"), INPUTS),
    "batch": (1, 2, 4, 9, 30),
    **dict.fromkeys(("skip", "eps", "bias_variance"), (0.1, 0.5)),
    "rtol": (1e-3, 1e-17),
    "weights": ("haar", "uniform", "rademacher", "pytorch"),
    "loss": ("squared", "cross-entropy"),
    "method": ("analytic", "monte-carlo"),
    "dtype": ("float32",),
    "width": (1, [50, 1000, 10**6]),
    "distortion": (bridging.distortion("tanh", 3),),
    "times": ([0.0, 0.5, 3.0, 100.0], [0.0, math.inf]),
    "eigenvalues": ([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0], [0.1, 0.1, 2.8]],),
    "curvature": (30.0, 1e-3),
    "widths": ([16, 32, 64],),
    "batches": ((4, 6, 9), range(3, 9)),
    "q_tilde": (-0.5, (0, 1)),
}
#: Values that few arguments allow.
WRONG = {
    "word": "word", "nan": math.nan, "inf": math.inf, "negative": -1.5, "zero": 0, "large": 1e300,
    "none": None, "empty": [], "oblong": np.ones((2, 3)), "object": object,
    "indefinite": np.array([[1.0, 2.0], [2.0, 1.0]]),
}  # fmt: skip
#: Fewer of them, for arguments whose other values may start long work.
TRIED = {
    "rng": ("negative", "word"),
    "progress": ("object",),
    "dtype": ("word",),
    **dict.fromkeys(("rtol", "fluctuation_rtol", "atol"), ("word", "nan", "negative", "zero")),
    **dict.fromkeys(("weight_variance", "learning_rate"), ("word", "nan", "negative", "empty")),
}
#: Arguments without a default, of methods and of functions that `fuzzing.py` does not call.
REQUIRED = {
    "width": 100, "reference_width": 50, "batch": 3, "depth": 4, "distance": 0.1, "layer": 1,
    "observable": _gap, "lags": [0, 1, 4], "first": (0, 1), "second": (1, 1), "channels": 4,
    "correlation": np.linspace(-0.9, 0.9, 7), "x": [-1.0, 0.0, 0.1, 0.5, 1.0, 2.0, 9.0],
    "p": [0.5, 1.0, 2.0], "q": [0.0, 0.1, 1.0], "c": [0.1, 1.0, -0.4], "order": 2, "alpha": 0.2,
    "activation": "tanh", "q_sigma": -0.5, "q_tilde": 0, "entries": 1, "constant": 1.5, "t": 2.0,
    "outputs": X[:, :5], "reference": X[:, 1:], "depth_constant": 2.0, "samples": 50,
    "least_eigenvalue": 0.2, "delta": 0.05, "complexity": 3.0, "time": 2.0, "learning_rate": 0.1,
}  # fmt: skip

# --- theory: functions and their arguments

CHAIN = {
    "width": 64, "batch": 3, "activation": "relu", "norm": "batch", "order": ORDERS[0], "skip": 0.0,
    "gain": 1.0, "eps": 0.0, "bias_variance": 0.0, "weights": "gaussian", "convolution": None,
}  # fmt: skip
STEP = {"rng": 3, "rtol": 0.02, "max_nodes": 2**13}
PATH = {**STEP, "fluctuations": True, "fluctuation_rtol": 0.3, "max_points": 4096}
CONVOLUTION = {"batch": 6, "width": 16, "convolution": bnmc.Convolution((1, 3), (1, 2))}
#: Methods of `MeanField`, with the arguments of the chain.
OF_CHAINS = {
    "fixed_point": {"rtol": 1e-8},
    "fluctuations": {"rtol": 1e-3},
    "step": {"G": _gram(3), **STEP},
    "trajectory": {"G0": _gram(3), "depth": 2, **STEP},
    "trajectory, fluctuations": {"G0": _gram(3), "depth": 2, **PATH},
    "fixed_point, convolution": CONVOLUTION,
    "step, convolution": {"G": _gram(6), **STEP, **CONVOLUTION},
}
Y = np.arange(6.0) % 2
KERNEL = X.T @ X / len(X) + 0.05 * np.eye(6)
TESTS = {"test_kernel": KERNEL[:2], "test_initial": np.ones(2), "initial": 0.1 * Y}
NETWORKS = {
    "x": X, "y": Y, "steps": [0, 2, 5], "width": 16, "hidden_layers": 2, "chains": 2,
    "activation": "tanh", "loss": "squared", "learning_rate": 0.5, "test": X[:, :3], "rng": 1,
}  # fmt: skip
#: Further arguments for public functions.
FURTHER = {
    "infinite_width.descent, of tests": {
        "kernel": KERNEL, "y": Y, "times": [0.0, 0.5, 3.0], "loss": "cross-entropy", **TESTS,
    },
    "infinite_width.descent, of two outputs": {
        "kernel": KERNEL, "y": np.stack([Y, 1.0 - Y], axis=1), "times": [0.0, 0.5, 3.0],
        "loss": "cross-entropy", "test_kernel": KERNEL[:2],
    },
    "infinite_width.posterior, of tests": {
        "tangent": KERNEL, "prior": KERNEL + 0.1 * np.eye(6), "y": Y, "times": [0.0, 3.0],
        "test_tangent": KERNEL[:2], "test_prior": KERNEL[:2], "test_covariance": KERNEL[:2, :2],
    },
    "infinite_width.train_networks": {"scaling": "ntk", **NETWORKS},
    "infinite_width.train_networks, diverging": {
        "scaling": "ntk", **NETWORKS, "steps": [0, 200], "learning_rate": 1e6,
    },
    "infinite_width.SimulatedKernel": {
        "values": np.random.default_rng(0).standard_normal((5, 3, 3)), "width": 32, "depth": 1,
    },
    "mean_field.atlas, of three": {"activations": ["relu", "sin", kinked], "batches": (4, 6)},
}  # fmt: skip
PUBLIC = (
    bnmc.bounds, bridging, gaussian, infinite_width, limits, mean_field, orthogonalizes,
    random_matrix, rank_collapse, testing, testing.examples,
)  # fmt: skip


def _with_arguments(label, function):
    """Yield a function with its defaults and values from `REQUIRED`, if these suffice."""
    parameters = inspect.signature(function).parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if all(p.default is not p.empty or p.name in REQUIRED for p in plain):
        yield (
            label,
            function,
            {p.name: REQUIRED[p.name] if p.default is p.empty else p.default for p in plain},
        )


def _calls():
    """Yield labels, functions and their arguments."""
    fuzzed = fuzzing.FUNCTIONS | fuzzing.RUNS
    for label in fuzzed:
        yield label, *fuzzing.valid_call(label)
    for module in PUBLIC:
        for name in module.__all__:
            label, function = f"{module.__name__[5:]}.{name}", getattr(module, name)
            if label not in fuzzed and callable(function) and name != "roofline":
                yield from _with_arguments(label, function)
    for label, arguments in FURTHER.items():
        module, name = label.partition(",")[0].split(".")
        yield label, getattr(importlib.import_module(f"bnmc.{module}"), name), arguments
    for label, arguments in OF_CHAINS.items():
        function = functools.partial(_of_chain, label.partition(",")[0])
        yield f"MeanField.{label}, of chains", function, {**CHAIN, **arguments}
    rows = {**CHAIN, "norm": "layer", "activation": "tanh"}
    path = _of_chain("trajectory", **CHAIN, **OF_CHAINS["trajectory, fluctuations"])
    owners = {
        "Fluctuations": _of_chain("fluctuations", **CHAIN),
        "Fluctuations of rows": _of_chain("fluctuations", **rows),
        "PathFluctuations": path.fluctuations,
        "CorrelationMap": mean_field.CorrelationMap("tanh", weight_variance=1.5),
        "Dual": infinite_width.dual("tanh"),
        "Scaling": infinite_width.SCALINGS["ntk"],
        "SingularValueLaw": random_matrix.MarchenkoPastur(0.5).singular_values,
    }
    for label, owner in owners.items():
        for name, method, arguments in _methods(owner):
            yield f"{label}.{name}", method, arguments


def _of_chain(method, **arguments):
    chain = bnmc.Chain(**{name: arguments.pop(name) for name in CHAIN})
    return getattr(bnmc.MeanField(chain), method)(**arguments)


def _theory():
    for label, function, arguments in _calls():
        call = functools.partial(function, **arguments)
        yield label, call
        for name in arguments:
            yield f"{label} {name}", functools.partial(_tried, call, name)
        axes = [FEW, *(VALUES[name] for name in ("norm", "order") if name in arguments)]
        if "activation" in arguments and len(axes) > 1:
            yield from _each(f"{label} of", functools.partial(_combined, call, arguments), *axes)
    for module in PUBLIC:
        yield f"names of {module.__name__}", functools.partial(_names, module)
    yield from _testing()


def _tried(call, name):
    """Return the outcomes of all values of an argument, and of multiples of a valid number."""
    values, valid = VALUES.get(name, {}), call.keywords[name]
    values = values if isinstance(values, dict) else {str(value): value for value in values}
    values = values | {kind: WRONG[kind] for kind in TRIED.get(name, WRONG)}
    if isinstance(valid, bool):
        values |= {"other": not valid}
    elif isinstance(valid, (int, float)) and name not in TRIED:
        values |= {"twice": 2 * valid, "half": valid / 2, "array": [valid, valid, 2 * valid]}
    return {kind: _outcome(functools.partial(call, **{name: v})) for kind, v in values.items()}


def _combined(call, arguments, activation, *values):
    names = [name for name in ("norm", "order") if name in arguments]
    return call(activation=ACTIVATIONS[activation], **dict(zip(names, values, strict=True)))


def _names(module):
    """Return the signatures of public functions, classes and methods."""
    values = {name: getattr(module, name) for name in module.__all__}
    for name, value in list(values.items()):
        values |= {f"{name}.{part}": getattr(value, part) for part in dir(value) if part[0] != "_"}
    signatures = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            signatures[name] = str(inspect.signature(value))
    return signatures


# --- theory: layers and strategies

FAULTS = (
    *({}, {"ddof": 1}, {"eps": 1e-5}, {"centred": False}, {"sigma": "tanh"}, {"scale": 2.0}),
    *({"skip": 0.3}, {"bias": 0.3}, {"axis": 0}, {"ddof": 1, "scale": 2.0}, {"reused": 1}),
    *({"weights": law} for law in ("uniform", "correlated", "same up to signs", "twins")),
)
LAWS = (
    *({"norm": "layer"}, {"order": ORDERS[1]}, {"norm": "group(4)", "bias_variance": 0.1}),
    *({"skip": 0.5, "gain": 1.2}, {"weights": "uniform"}, {"weights": "haar"}),
)
STRATEGIES = {
    "activations": testing.activations,
    "chains": testing.chains,
    "batches": lambda: testing.batches(4, 3),
    "batches of a chain": lambda: testing.batches(bnmc.Chain(6, 3)),
    "batches of a kind": lambda: testing.batches(4, 3, kinds=("collinear", "huge scale")),
    "matrices": lambda: testing.gram_matrices(3),
    "regular matrices": lambda: testing.gram_matrices(3, regular=True),
}


def _same_law(fault, law):
    chain = bnmc.Chain(20, 5, "relu", **law)
    return testing.assert_same_law(Network(20, **fault), chain, rng=0, rows=1024)


def _example(name, options):
    """Return the outputs of two calls of a layer of PyTorch or JAX."""
    function = getattr(testing.examples, name)
    options = {"shape": (1, 2), **options} if "conv" in name else options
    layer = function(10, seed=3, **options)
    return np.asarray(layer(X)), np.asarray(layer(X))


def _values_of(name):
    """Return the values that Hypothesis draws."""
    values = []

    @hypothesis.settings(derandomize=True, database=None, max_examples=20, deadline=None)
    @hypothesis.given(STRATEGIES[name]())
    def collect(value):
        values.append(value if isinstance(value, np.ndarray) else repr(value))

    collect()
    return values


def _testing():
    yield from _each("assert_same_law", _same_law, FAULTS, [{}])
    yield from _each("assert_same_law", _same_law, FAULTS[:2], LAWS)
    options = ({}, {"training": False}, {"weights": "default"}, {"eps": 1e-5})
    yield from _each("example", _example, ("torch_step", "jax_step"), options)
    norms = [{"norm": norm} for norm in ("batch", "instance", "flattened", "layer")]
    yield from _each("example", _example, ["torch_conv_step"], norms)
    yield from _each("strategy", _values_of, STRATEGIES)


# --- bits: runs, gradients, coupled pairs


def signs(rng, shape):
    """A user's law of weights."""
    return rng.choice([-1.0, 1.0], shape)


AFTER, BIAS = {"order": "activation-norm"}, {"bias_variance": 0.05}
PIXELS = bnmc.Convolution((3, 3), (2, 2))
#: Width, batch, activation and options of chains by name.
CHAINS = {
    "relu": (200, 6, "relu", {}),
    "tanh-uncentred": (70, 5, "tanh", {"norm": "batch-uncentred"}),
    "eps": (70, 5, "relu", {"eps": 1e-3, "gain": 0.7}),
    "skip": (70, 5, "gelu", {"skip": 0.8}),
    "residual": (64, 6, "linear", {"skip": 1.0, "gain": 0.2}),
    "none-tanh": (70, 5, "tanh", {"norm": "none", "gain": 1.3}),
    "none-relu": (70, 5, "relu", {"norm": "none", "gain": 1.4}),
    "none-relu-skip": (70, 5, "relu", {"norm": "none", "skip": 0.9}),
    "vanilla": (50, 4, "linear", {"norm": "none"}),
    "kinked": (70, 5, kinked, {}),
    "layer": (130, 5, "relu", {"norm": "layer"}),
    "rms-skip": (130, 5, "silu", {"norm": "rms", "skip": 0.9}),
    "group-after": (128, 4, "gelu", {"norm": "group(4)", **AFTER}),
    "batch-after": (128, 4, "tanh", {"bias_variance": 0.1, **AFTER}),
    "pre-activation": (96, 5, "relu", {"norm": "none", "order": "pre-activation", "skip": 1.0}),
    "pre-activation-layer": (96, 5, "relu", {"norm": "layer", "order": "pre-activation", **BIAS}),
    "bias": (96, 5, "tanh", {"norm": "none", **BIAS}),
    "bias-uncentred": (96, 5, "tanh", {"norm": "batch-uncentred", **BIAS}),
    "conv": (32, 18, "relu", {"convolution": PIXELS}),
    "conv-layer": (32, 18, "tanh", {"convolution": PIXELS, "norm": "layer"}),
    "haar": (40, 6, "tanh", {"weights": "haar"}),
    "haar-tight": (8, 8, "tanh", {"weights": "haar", "norm": "none"}),
    "haar-layer": (40, 6, "tanh", {"weights": "haar", "norm": "layer"}),
    "uniform": (90, 5, "relu", {"weights": "uniform"}),
    "rademacher": (90, 5, "relu", {"weights": "rademacher", "skip": 0.5}),
    "pytorch": (90, 5, "tanh", {"norm": "none", "weights": "pytorch"}),
    "pytorch-conv": (32, 18, "relu", {"weights": "pytorch", "convolution": PIXELS, **AFTER}),
    "signs": (90, 5, "relu", {"weights": signs}),
    "signs-layer": (90, 5, "relu", {"weights": signs, "norm": "layer"}),
}
SOME = ("relu", "none-relu", "skip", "layer", "bias", "haar", "uniform")


def _of(name):
    width, batch, activation, options = CHAINS[name]
    return bnmc.Chain(width, batch, activation, **options)


def _start(name, inputs=()):
    width, batch, *_ = CHAINS[name]
    return np.random.default_rng(0).standard_normal((*inputs, width, batch))


def _simulated(chain, depth=6, **options):
    chain = _of(chain) if isinstance(chain, str) else chain
    run = bnmc.simulate(chain, depth, **options)
    state = {} if run.final_state is None else dict(run.final_state.arrays)
    return {"values": dict(run.observables), "wide": run.widened, "state": state}


def _continued(name):
    run = bnmc.simulate(_of(name), 3, rng=7, chains=2)
    return _simulated(name, 3, initial=run.final_state)


def _stored(name):
    with tempfile.TemporaryDirectory() as folder:
        return _simulated(name, 5, rng=8, chains=3, store=pathlib.Path(folder) / "run.zarr")


def _wide(name):
    """A layer that threads share."""
    _, _, activation, options = CHAINS[name]
    return _simulated(bnmc.Chain(20_000, 40, activation, **options), 2, rng=9, threads=2)


def _gradients(name, options):
    run = bnmc.backpropagate(_of(name), 5, rng=3, chains=2, **options)
    return {"values": dict(run.observables), "norms": run.log_gradient_norm, "scale": run.log_scale}


def _losses(name, loss):
    labels = np.arange(CHAINS[name][1]) % 3
    observables = ("delta_gram", "gram", "hidden_delta")
    return _gradients(name, {"loss": loss, "labels": labels, "observables": observables})


def _bits():
    yield from _each(
        "simulate",
        lambda name, kind, sampler: _simulated(name, dtype=kind, sampler=sampler, rng=3, chains=3),
        CHAINS, ("float64", "float32"), ("auto", "weights"),
    )  # fmt: skip
    ways = {
        "inputs": lambda c: _simulated(c, inputs=2, initial=_start(c, (2,)), rng=5, chains=2),
        "moments": lambda c: _simulated(c, reduce=("chain", "layer"), rng=5, chains=4, threads=2),
        "observables": lambda c: _simulated(
            c, observables=("orthogonality_gap", "rank_bound", "eigenvalues", "log_scale"),
            every=2, burn_in=1, rng=6, chains=2,
        ),
        "continued": _continued,
        "store": _stored,
    }  # fmt: skip
    given = lambda c: _simulated(c, 3, initial=_start(c), rng=4, threads=2)  # noqa: E731
    yield from _each("simulate, given", given, CHAINS)
    yield from _each("simulate", lambda name, way: ways[way](name), SOME, ways)
    yield from _each("wide layer", _wide, SOME[:-1])
    yield from _each(
        "backpropagate", _gradients, CHAINS,
        ({"dtype": "float64"}, {"dtype": "float32"},
         {"sampler": "weights", "observables": ("delta_gram", "gram")}),
    )  # fmt: skip
    some = ("relu", "skip", "none-relu", "layer", "haar", "residual")
    yield from _each("backpropagate", _losses, some, ("cross-entropy", "squared"))
    yield from _each(
        "tangent kernel",
        lambda c: bnmc.gradients.tangent_kernel(_of(c), 3, chains=2, initial=_start(c), rng=1),
        some,
    )
    yield from _each(
        "pairs",
        lambda c: bnmc.mixing.tv_bound(_of(c), 40, chains=30, rng=2).meeting_times,
        ("relu", "tanh-uncentred", "none-tanh", "layer", "bias", "eps", "conv", "group-after"),
    )
    mean = functools.partial(bnmc.invariant.expectation, f=_gap, chains=20, rng=1)
    yield "expectation", lambda: mean(_of("relu"))
    yield "regularity", lambda: bnmc.regularity.constant(_of("relu"), rng=0)
    yield "contraction", lambda: bnmc.mixing.contraction(_of("relu"), rng=0)


KINDS = {"theory": _theory, "bits": _bits}

# --- results as arrays and texts

#: Attributes that draw, are random, or are no result.
UNSEEN = {"plot", "rvs", "layer", "with_traceback", "add_note", "args"}
#: Seconds of the processor after which a call ends, so that one that hangs hides no other.
LIMIT = 20.0


class Failure:
    """An error in place of a result."""

    def __init__(self, error):
        self.error = error


def _outcome(function):
    """Return the result of a call, or its error, also if it takes longer than `LIMIT`."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        return function()
    except Exception as error:  # also those that should not occur: they are part of the record
        return Failure(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _stop(*_):
    raise TimeoutError(f"more than {LIMIT:g} s of the processor")


def _text(value):
    return np.array(re.sub(" at 0x[0-9a-f]+", "", str(value)))


def _leaves(value, path="", above=()):
    """Yield the arrays and texts of a result, each with its path."""
    if isinstance(value, Failure):
        error = value.error
        yield f"{path}!", _text(f"{type(error).__name__}: {error}")
        for name, attribute in sorted(vars(error).items()):
            if name not in ("value", "chain") and not name.startswith("_"):
                yield from _leaves(attribute, f"{path}!{name}", above)
    elif isinstance(value, (np.ndarray, numbers.Number, np.generic)):
        array = np.asarray(value)
        yield path, array if array.dtype.kind in "biufc" else _text(array.tolist())
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key}]", above)
    elif isinstance(value, (list, tuple, range)):
        if value and all(isinstance(item, (int, float, complex)) for item in value):
            yield path, np.asarray(value)
            return
        yield f"{path}#", np.array(len(value))
        names = getattr(value, "_fields", range(len(value)))
        for name, item in zip(names, value, strict=True):
            yield from _leaves(item, f"{path}.{name}", above)
    elif type(value).__module__.startswith("bnmc") and not isinstance(
        value, (bnmc.Chain, bnmc.Activation)
    ):
        yield from _attributes(value, path, above)
    elif callable(value):
        yield path, _text(getattr(value, "__name__", type(value).__name__))
    else:
        yield path, _text(value)


def _attributes(value, path, above):
    """Yield the leaves of the public attributes, properties and methods without arguments."""
    if id(value) in above or len(above) > 6:
        return
    above = (*above, id(value))
    yield f"{path}()", _text(repr(value))
    if type(value).__str__ is not object.__str__:
        yield f"{path} text", _text(value)
    names = {name for name in dir(value) if not name.startswith("_")} - UNSEEN
    for name in sorted(names):
        attribute = _outcome(lambda n=name: getattr(value, n))
        if not inspect.isroutine(attribute):
            yield from _leaves(attribute, f"{path}.{name}", above)
    for name, method, arguments in _methods(value):
        outcome = _outcome(functools.partial(method, **arguments))
        yield from _leaves(outcome, f"{path}.{name}()", above)


def _methods(owner):
    """Yield the names of public methods, the methods, and arguments for them."""
    for name in dir(owner):
        if (name == "__call__" or name[0] != "_") and name not in UNSEEN:
            method = _outcome(lambda n=name: getattr(owner, n))
            if inspect.ismethod(method) and not inspect.isclass(method.__self__):
                yield from _with_arguments(name, method)


# --- running


def _selected(kinds, words):
    for kind in kinds or KINDS:
        for name, function in KINDS[kind]():
            label = f"{kind}: {name}"
            if all(word in label for word in words):
                yield label, function


def _run(function):
    """Return the arrays and texts of a case, warnings included."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = dict(_leaves(_outcome(function)))
    messages = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    return values | {"warnings": _text("\n".join(messages))}


# --- comparison


def _excerpts(a, b):
    """Return both texts from a little before their first difference on, or a diff of lines."""
    if "\n" in a and "\n" in b:
        lines = difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=1)
        return "\n    ".join(list(lines)[2:])
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    start = max(first - 30, 0)
    return f"{a[start : start + 160]!r}\n    {b[start : start + 160]!r}"


def _stated_error(values, path):
    """Return the stated error next to an array and its name, or None."""
    parent, _, name = path.rpartition(".")
    for kind in ("stderr", "error"):
        stated = values.get(f"{parent}.{kind}")
        if name not in ("stderr", "error") and stated is not None and stated.dtype.kind == "f":
            return kind, stated
    return None


def _difference(before, a, b, path):
    """Return the largest relative difference of two arrays, and a description."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf, f"{a.dtype} {a.shape}, now {b.dtype} {b.shape}"
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return math.inf, f"finite entries differ: {a.ravel()[:3]}, now {b.ravel()[:3]}"
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.result_type(a, b, np.float64)
        change = np.nan_to_num(np.abs(a.astype(wide) - b.astype(wide)), nan=0.0)
    size = float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0)) or 1e-300
    relative = float(change.max(initial=0.0)) / size
    text = f"{change.max(initial=0.0):.2g} absolute, {relative:.2g} relative"
    if (stated := _stated_error(before, path)) is not None:
        kind, error = stated
        unit = error if kind == "stderr" else error * max(size, 1.0)
        with contextlib.suppress(ValueError), np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(change / np.abs(unit), nan=0.0, posinf=math.inf)
            text += f", {float(ratio.max(initial=0.0)):.2g} {kind}"
    return relative, text


def _without_numbers(text):
    return re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "0", text)


def _differences(before, after, above):
    """Yield whether it is of arrays or texts, and a description, of each difference of a case."""
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            shown = str(b if a is None else a)[:150]
            yield "texts", f"{path} only {'after' if a is None else 'before'}: {shown!r}"
        elif a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes():
            continue
        elif "U" not in (a.dtype.kind, b.dtype.kind):
            relative, text = _difference(before, a, b, path)
            if relative > above:
                yield "arrays", f"{path}: {text}"
        elif str(a) != str(b):
            if _without_numbers(str(a)) != _without_numbers(str(b)):
                yield "texts", f"{path}\n    {_excerpts(str(a), str(b))}"
            elif above == 0.0:
                yield "texts", f"{path} differs in numbers only"


def _compare(cases, file, above):
    with np.load(file) as stored:
        index = json.loads(str(stored["index"]))
        arrays = {key: stored[key] for key in stored.files}
    lines, count = {"arrays": [], "texts": []}, 0
    for name, function in cases:
        count += 1
        if name not in index:
            lines["texts"].append(f"{name}: only after")
            continue
        before = {path: arrays[f"v{number}"] for path, number in index[name].items()}
        for kind, text in _differences(before, _run(function), above):
            lines[kind].append(f"{name} | {text}")
    for kind, differences in lines.items():
        if differences:
            print(f"{kind.capitalize()} that differ:", *differences, "", sep="\n")
    counts = [f"{len(differences)} {kind}" for kind, differences in lines.items()]
    print(f"{count} cases: {', '.join(counts)} differ")


def _record(cases, file):
    index, values = {}, {}
    for name, function in cases:
        leaves = _run(function)
        if name in index:
            raise ValueError(f"two cases have the name {name}")
        index[name] = {path: len(values) + place for place, path in enumerate(leaves)}
        values |= {f"v{number}": leaves[path] for path, number in index[name].items()}
    np.savez_compressed(file, index=json.dumps(index), **values)
    print(f"{len(index)} cases, {len(values)} arrays and texts")


def _main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=("record", "compare", "list", "show"))
    parser.add_argument("words", nargs="*", metavar="FILE KIND")
    parser.add_argument("-k", default="", metavar="WORDS")
    parser.add_argument("--above", type=float, default=0.0, metavar="R")
    arguments = parser.parse_args()
    file, *kinds = (
        arguments.words if arguments.do in ("record", "compare") else [None, *arguments.words]
    )
    cases = _selected(kinds, arguments.k.split())
    if arguments.do == "list":
        print(*(name for name, _ in cases), sep="\n")
        return
    if arguments.do == "record":
        _record(cases, file)
    elif arguments.do == "compare":
        _compare(cases, file, arguments.above)
    else:
        for name, function in cases:
            lines = [f"    {path}: {str(value)[:300]}" for path, value in _run(function).items()]
            print(name, *lines, sep="\n")


if __name__ == "__main__":
    _main()
