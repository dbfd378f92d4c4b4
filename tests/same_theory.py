"""Results of the theory before and after a change: which differ, by how much, and which are slower?

    python tests/same_theory.py record before.npz    # at the commit before
    python tests/same_theory.py compare before.npz   # at the commit after

The cases call the public functions, classes and methods of `mean_field`, `infinite_width`,
`random_matrix`, `bounds` and `testing`, so that one file serves both commits.  A result is recorded
with its public attributes, properties and methods without arguments, an error with its message.
`compare` prints

- the arrays whose bits differ, with the largest absolute and relative difference, and with the
  ratio of that difference to the stated error, if the result states one;
- the texts that differ: messages, representations, warnings;
- the cases that take at least 5 % and 1 ms longer, by the clock and by the time of the processor.

`-k WORD` selects cases by name (several words: all of them), `list` prints the names, `show` the
results, and `--above R` hides relative differences up to R.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fractions
import functools
import importlib
import inspect
import itertools
import json
import math
import numbers
import os
import re
import signal
import time
import warnings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import numpy as np

import bnmc
from bnmc import infinite_width, mean_field, random_matrix, testing
from bnmc.bounds import bridging, gaussian, limits, orthogonalizes, rank_collapse

PUBLIC = (
    bnmc.bounds,
    bridging,
    gaussian,
    infinite_width,
    limits,
    mean_field,
    orthogonalizes,
    random_matrix,
    rank_collapse,
    testing,
    testing.examples,
)

# --- activations, chains, matrices


def own(x):
    """Not homogeneous, with a kink at 0."""
    return np.maximum(x, 0.3 * x) + np.exp(-x * x)


def kinked(x):
    """A kink at 0.4."""
    return x - 0.4 if x > 0.4 else 0.3 * math.sin(x - 0.4)


def kinked_slope(x):
    return 1.0 if x > 0.4 else 0.3 * math.cos(x - 0.4)


def step(x):
    """A jump at 0.5."""
    return 1.0 + 0.1 * x if x > 0.5 else math.tanh(x)


def bump(x):
    """Smooth, with a narrow bump at 1.1."""
    return math.tanh(x) + math.exp(-200.0 * (x - 1.1) ** 2)


def smooth(x):
    return x * math.exp(-0.5 * x * x) + 0.2 * x


def smooth_slope(x):
    return (1.0 - x * x) * math.exp(-0.5 * x * x) + 0.2


def rough(x):
    """An infinite slope at 0.3."""
    return abs(x - 0.3) ** 0.6


def constant(x):
    return 1.0 + 0.0 * x


def explosive(x):
    """E σ(z)² is infinite for standard normal z."""
    return math.exp(0.3 * x * x)


NAMED = ("relu", "tanh", "sin", "gelu", "silu", "linear")
ACTIVATIONS = {
    **{name: name for name in NAMED},
    "own": own,
    "bump": bump,
    "step": step,
    "declared": bnmc.Activation(kinked, kinks=(0.4,), derivative=kinked_slope, name="declared"),
    "smooth": bnmc.Activation(smooth, derivative=smooth_slope, name="smooth"),
}
AWKWARD = {
    "rough": bnmc.Activation(rough, kinks=(0.3,), name="rough"),
    "constant": constant,
    "explosive": explosive,
}
NORMS = ("none", "batch", "batch-uncentred", "layer", "rms", "group(4)")
ORDERS = ("norm-activation", "activation-norm")
EVERY_NAME = (
    *NAMED, "leaky_relu", "abs", "sigmoid", "elu", "selu", "erf", "hermite2",
)  # fmt: skip


def _gram(n, seed=0):
    x = np.random.default_rng(seed).standard_normal((n + 3, n))
    return x.T @ x / (n + 3) + 0.1


def _inputs(samples=6, features=10, seed=1):
    return np.random.default_rng(seed).standard_normal((features, samples))


def _kernels(samples=6, tests=3):
    """Kernels of training inputs, across, and of test inputs."""
    x = _inputs(samples + tests)
    whole = x.T @ x / len(x) + 0.05 * np.eye(samples + tests)
    return whole[:samples, :samples], whole[samples:, :samples], whole[samples:, samples:]


G4 = _gram(4)

#: Values that few arguments allow.
WRONG = {
    "word": "word",
    "nan": math.nan,
    "inf": math.inf,
    "negative": -1.5,
    "zero": 0,
    "large": 1e300,
    "none": None,
    "empty": [],
    "oblong": np.ones((2, 3)),
    "indefinite": np.array([[1.0, 2.0], [2.0, 1.0]]),
    "object": object,
}
#: Fewer of them, for arguments whose other values may start long work.
TRIED = {
    "rng": ("negative", "word"),
    "progress": ("object",),
    "dtype": ("word",),
    **dict.fromkeys(("rtol", "fluctuation_rtol", "tolerance"), ("word", "nan", "negative", "zero")),
    **dict.fromkeys(
        ("weight_variance", "learning_rate"), ("word", "nan", "inf", "negative", "none", "empty")
    ),
}


def _call(function, *arguments, **options):
    return functools.partial(function, *arguments, **options)


def _wrong(name, function, base, skip=()):
    """Cases that replace each argument of `base` in turn by each value of `WRONG`."""
    for argument in base:
        if argument in skip:
            continue
        tried = TRIED.get(argument, WRONG)
        yield (
            f"{name} wrong {argument}",
            lambda a=argument, t=tried: {
                kind: _outcome(lambda k=kind: function(**{**base, a: WRONG[k]})) for kind in t
            },
        )


# --- cases of mean_field


def _chain(activation="relu", batch=4, **options):
    return bnmc.Chain(64, batch, activation, **options)


def _field(*arguments, **options):
    return bnmc.MeanField(_chain(*arguments, **options))


def _fixed_points():
    for name, sigma in (ACTIVATIONS | AWKWARD).items():
        for norm, batch in itertools.product(("batch", "batch-uncentred"), (3, 4, 9)):
            odd = name in ("tanh", "sin", "linear", "smooth")
            quick = odd or name in ("relu", "gelu", "own")
            if not (odd or batch == 4 or (norm == "batch" and name != "rough")):
                continue  # these take some seconds
            if norm == "batch-uncentred" and not quick:
                continue
            yield (
                f"fixed_point {name} {norm} {batch}",
                lambda s=sigma, n=norm, b=batch: _field(s, b, norm=n).fixed_point(),
            )
        yield (
            f"fixed_point {name} convolution",
            lambda s=sigma: bnmc.MeanField(
                bnmc.Chain.conv(16, 2, s, shape=(2, 3), kernel=(2, 2))
            ).fixed_point(),
        )
        for norm in ("batch", "batch-uncentred"):
            if norm == "batch" or odd or name == "own":
                yield (
                    f"limit {name} {norm}",
                    lambda s=sigma, n=norm: mean_field.limit(s, norm=n),
                )
    for changed in (
        {"norm": "none"}, {"norm": "layer"}, {"skip": 0.5}, {"eps": 0.1}, {"gain": 2.0},
        {"bias_variance": 0.1}, {"bias_variance": 0.1, "norm": "batch-uncentred"},
        {"order": "activation-norm"}, {"weights": "haar"}, {"weights": "uniform"},
    ):  # fmt: skip
        yield (
            f"fixed_point with {json.dumps(changed)}",
            lambda c=changed: _field("tanh", **c).fixed_point(),
        )
    yield "fixed_point rtol", lambda: _field("own", 5).fixed_point(rtol=1e-17)
    yield "limit rtol", lambda: mean_field.limit("gelu", rtol=1e-17)
    yield "MeanField of no chain", lambda: bnmc.MeanField("relu")
    yield from _wrong("fixed_point", _field("relu").fixed_point, {"rtol": 1e-8})
    yield from _wrong(
        "limit", mean_field.limit, {"activation": "tanh", "norm": "batch", "rtol": 1e-8}
    )


def _stabilities():
    for name in ("relu", "tanh", "gelu", "own", "declared", "sin"):
        sigma = ACTIVATIONS[name]
        yield f"stability {name}", lambda s=sigma: mean_field.stability(s, (3, 5, 8, 16, 40))
    for name in ("tanh", "sin"):
        yield (
            f"stability {name} uncentred",
            lambda s=name: mean_field.stability(s, range(3, 9), norm="batch-uncentred"),
        )
    yield "stability of elements", lambda: mean_field.stability("sin", (4, 6)).points[0].gram
    yield "atlas", lambda: mean_field.atlas(["relu", "tanh", bump], (4, 6))
    yield (
        "atlas uncentred",
        lambda: mean_field.atlas(["tanh", "sin"], (4, 6), norm="batch-uncentred"),
    )
    yield "plot_stability", lambda: _drawn(mean_field.plot_stability(_stability()))
    yield (
        "plot_stability of two",
        lambda: _drawn(mean_field.plot_stability(mean_field.atlas(["relu", "sin"], (4, 7, 9)))),
    )
    base = {"activation": "tanh", "batches": (4, 6), "norm": "batch"}
    yield from _wrong("stability", mean_field.stability, base)
    base = {"activations": ["tanh"], "batches": (4, 6), "norm": "batch"}
    yield from _wrong("atlas", mean_field.atlas, base)
    yield from _wrong("plot_stability", mean_field.plot_stability, {"entries": 1})


@functools.cache
def _stability():
    return mean_field.stability("gelu", (4, 6, 9))


def _drawn(axes):
    """The texts and points of a picture."""
    texts = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    legend = axes.get_legend()
    texts += [] if legend is None else [text.get_text() for text in legend.get_texts()]
    return {"texts": texts, "points": [line.get_xydata() for line in axes.lines]}


def _steps():
    changes = {
        "": {},
        "eps ": {"eps": 0.1, "gain": 1.3},
        "bias ": {"bias_variance": 0.1},
    }
    for name, norm, order in itertools.product(ACTIVATIONS, NORMS, ORDERS):
        for kind, changed in changes.items():
            if kind and name not in ("relu", "tanh", "own"):
                continue
            yield (
                f"step {name} {norm} {order} {kind}",
                lambda s=ACTIVATIONS[name], n=norm, o=order, c=changed: _field(
                    s, norm=n, order=o, **c
                ).step(G4, rng=3, rtol=1e-3, max_nodes=2**13),
            )
    for name, norm in itertools.product(("relu", "tanh", "own", "declared", "linear"), NORMS):
        for order in ORDERS:
            yield (
                f"trajectory {name} {norm} {order}",
                lambda s=ACTIVATIONS[name], n=norm, o=order: _field(
                    s, norm=n, order=o
                ).trajectory(G4, 3, rng=3, rtol=1e-2, max_nodes=2**13),
            )  # fmt: skip
    for name, sigma in AWKWARD.items():
        for norm in ("none", "batch", "layer"):
            yield (
                f"step {name} {norm}",
                lambda s=sigma, n=norm: _field(s, norm=n).step(G4, rng=0, max_nodes=2**12),
            )
    for norm in NORMS:
        for kind, G in _odd_matrices().items():
            yield (
                f"step of {kind} matrix {norm}",
                lambda g=G, n=norm: _field("relu", len(g), norm=n).step(g, rng=0),
            )
            yield (
                f"trajectory of {kind} matrix {norm}",
                lambda g=G, n=norm: _field("tanh", len(g), norm=n, order=ORDERS[1]).trajectory(
                    g, 2, rng=0, rtol=0.1, max_nodes=2**12
                ),
            )
    for name in ("relu", "tanh"):
        yield (
            f"step convolution {name}",
            lambda s=name: bnmc.MeanField(
                bnmc.Chain.conv(16, 2, s, shape=(1, 3), kernel=(1, 2))
            ).step(_gram(6), rng=0, rtol=0.1),
        )
    for changed in ({"skip": 0.5}, {"skip": 0.5, "norm": "layer"}, {"weights": "haar"}):
        yield (
            f"step with {json.dumps(changed)}",
            lambda c=changed: _field("tanh", **c).step(G4, rng=0),
        )
    yield "step rtol", lambda: _field("tanh").step(G4, rng=0, rtol=1e-12, max_nodes=500)
    yield "step as an array", lambda: np.asarray(_field("relu").step(G4), dtype=np.float32)
    yield "trajectory is long", lambda: _field("relu").trajectory(G4, 10**14)
    base = {"G": G4, "rtol": 0.01, "rng": 0, "max_nodes": 1000}
    yield from _wrong("step", _field("tanh").step, base)
    base = {
        "G0": G4, "depth": 1, "rtol": 0.1, "rng": 0, "max_nodes": 1000, "fluctuations": True,
        "fluctuation_rtol": 0.5, "max_points": 2048,
    }  # fmt: skip
    yield from _wrong("trajectory", _field("tanh").trajectory, base)


def _odd_matrices():
    x = np.array([1.0, -2.0, 0.5])
    return {
        "collinear": np.outer(x, x),
        "equal": np.ones((3, 3)),
        "zero": np.zeros((3, 3)),
        "with a zero": np.diag([1.0, 0.0, 2.0]),
        "twins": np.array([[1.0, 1.0, 0.2], [1.0, 1.0, 0.2], [0.2, 0.2, 1.0]]),
        "tiny": 1e-200 * np.eye(3),
        "huge": 1e200 * np.eye(3),
        "two samples": np.array([[1.0, 0.3], [0.3, 2.0]]),
    }


def _kept(make):
    """A function that keeps its results and errors, and `fresh`, which makes them anew."""
    known = {}

    def fresh(*arguments):
        known[arguments] = _outcome(lambda: make(*arguments))
        return again(*arguments)

    def again(*arguments):
        if arguments not in known:
            return fresh(*arguments)
        if isinstance(known[arguments], Failure):
            raise known[arguments].error
        return known[arguments]

    again.fresh = fresh
    return again


@_kept
def _fluctuations(name, norm, batch):
    changed = {"gain": 1.8, "bias_variance": 0.05} if norm == "none" else {}
    return _field(ACTIVATIONS[name], batch, norm=norm, **changed).fluctuations(rtol=1e-3)


def _gap(G):
    """A function of Gram matrices for which the laws are asked."""
    return float(G[0, 1] / G[0, 0])


def _all_fluctuations():
    laws = [
        *itertools.product(("relu", "tanh", "linear"), ("batch",), (4, 5, 9)),
        ("own", "batch", 9),
        ("gelu", "batch", 26), ("relu", "batch", 30), ("declared", "batch", 6),
        *itertools.product(("tanh", "smooth"), ("batch-uncentred",), (3, 5, 8)),
        *itertools.product(("tanh", "sin"), ("layer", "rms", "none"), (2, 4)),
        ("declared", "none", 3), ("declared", "layer", 3), ("relu", "rms", 3),
        ("tanh", "group(4)", 3),
    ]  # fmt: skip
    methods = {
        "bias": lambda law: law.bias(100),
        "covariance": lambda law: law.covariance(100),
        "between": lambda law: law.covariance(100).between((0, 1), (1, 1)),
        "gap": lambda law: law.gap(100),
        "mean_distance": lambda law: law.mean_distance(100),
        "mean_square": lambda law: law.mean_square(100),
        "spectrum": lambda law: law.spectrum(100),
        "width_for": lambda law: law.width_for(0.05),
        "autocorrelation": lambda law: law.autocorrelation(_gap, [0, 1, 4]),
    }
    for law in laws:
        label = f"fluctuations {law[0]} {law[1]} {law[2]}"
        yield label, lambda a=law: _fluctuations.fresh(*a)
        for name, method in methods.items():
            yield f"{label} {name}", lambda a=law, m=method: m(_fluctuations(*a))
    for changed in (
        {"skip": 0.5}, {"skip": 0.5, "norm": "layer"}, {"weights": "haar"}, {"eps": 0.1},
        {"eps": 0.1, "norm": "layer"}, {"order": "activation-norm", "norm": "rms"},
        {"order": "activation-norm", "norm": "layer"}, {"batch": 1, "norm": "layer"},
        {"norm": "none", "gain": 3.0}, {"norm": "none", "gain": 0.5}, {"weights": "uniform"},
        {"order": "activation-norm"}, {"bias_variance": 0.1},
    ):  # fmt: skip
        yield (
            f"fluctuations with {json.dumps(changed)}",
            lambda c=changed: _field("tanh", **c).fluctuations(),
        )
    for name, sigma in AWKWARD.items():
        if name != "rough":
            yield f"fluctuations {name}", lambda s=sigma: _field(s).fluctuations()
    yield (
        "fluctuations convolution",
        lambda: bnmc.MeanField(bnmc.Chain.conv(8, 2, "relu", shape=(1, 3))).fluctuations(),
    )
    yield "fluctuations unstable", lambda: _field("sin", 3).fluctuations()
    yield "fluctuations rtol", lambda: _field("own", 5).fluctuations(rtol=1e-15)
    yield from _wrong("fluctuations", _field("tanh").fluctuations, {"rtol": 1e-4})
    bases = {
        "bias": {"width": 10}, "covariance": {"width": 10}, "gap": {"width": 10},
        "mean_distance": {"width": 10}, "mean_square": {"width": 10}, "spectrum": {"width": 10},
        "width_for": {"distance": 0.1}, "autocorrelation": {"observable": _gap, "lags": [0]},
    }  # fmt: skip
    for kind in ("batch", "layer"):
        for name, base in bases.items():
            yield from _wrong(
                f"fluctuations {kind} {name}",
                lambda n=name, k=kind, **b: getattr(_fluctuations("tanh", k, 4), n)(**b),
                base,
            )
    yield from _wrong(
        "between", _fluctuations("tanh", "batch", 4).covariance(9).between,
        {"first": (0, 1), "second": (1, 1)},
    )  # fmt: skip


@_kept
def _path(name, norm, order):
    changed = {"gain": 1.3, "bias_variance": 0.1} if norm == "none" else {}
    return _field(ACTIVATIONS[name], norm=norm, order=order, **changed).trajectory(
        G4, 2, rng=5, fluctuations=True, fluctuation_rtol=0.3, max_points=4096, rtol=0.02
    )


def _paths():
    kinds = [
        *itertools.product(("relu", "tanh", "own", "declared"), NORMS, ORDERS[:1]),
        *itertools.product(("tanh", "relu"), NORMS, ORDERS[1:]),
    ]
    methods = {
        "band": lambda path: path.band(50),
        "band of observable": lambda path: path.band(50, _gap, level=0.5),
        "covariance": lambda path: path.covariance(2, 50),
        "mean_square": lambda path: path.mean_square(50),
    }
    for kind in kinds:
        label = f"path {' '.join(kind)}"
        yield label, lambda k=kind: _path.fresh(*k)
        for name, method in methods.items():
            yield f"{label} {name}", lambda k=kind, m=method: m(_path(*k).fluctuations)
    yield (
        "path of twins",
        lambda: _field("tanh", 3, norm="rms").trajectory(
            _odd_matrices()["twins"], 2, rng=0, fluctuations=True, fluctuation_rtol=0.5
        ),
    )
    yield (
        "path rtol",
        lambda: _field("tanh").trajectory(
            G4, 2, rng=0, fluctuations=True, fluctuation_rtol=1e-5, max_points=2048
        ),
    )
    for name, base in {
        "band": {"width": 50, "observable": _gap, "level": 0.9},
        "covariance": {"layer": 1, "width": 50},
        "mean_square": {"width": 50},
    }.items():
        yield from _wrong(
            f"path {name}",
            lambda n=name, **b: getattr(_path("tanh", "batch", ORDERS[0]).fluctuations, n)(**b),
            base,
        )


def _blocks():
    for name in ("relu", "gelu", "tanh"):
        for batch, minority in ((4, 1), (6, 2)) if name != "relu" else ((4, 1),):
            yield (
                f"block_symmetric {name} {batch} {minority}",
                lambda s=ACTIVATIONS[name], b=batch, m=minority: mean_field.block_symmetric(
                    s, b, minority=m
                ),
            )
    for name in ("relu", "tanh", "gelu", "sin", "own"):
        for batch, distinct in ((5, 2), (8, 3)):
            yield (
                f"partial_collapse {name} {batch} {distinct}",
                lambda s=ACTIVATIONS[name], b=batch, d=distinct: mean_field.partial_collapse(
                    s, b, distinct=d
                ),
            )
    for name, sigma in AWKWARD.items():
        if name != "rough":
            yield f"block_symmetric {name}", lambda s=sigma: mean_field.block_symmetric(s, 5)
        yield f"partial_collapse {name}", lambda s=sigma: mean_field.partial_collapse(
            s, 5, distinct=2
        )  # fmt: skip
    yield "block_symmetric rtol", lambda: mean_field.block_symmetric("gelu", 5, rtol=1e-17)
    yield "partial_collapse rtol", lambda: mean_field.partial_collapse(
        "gelu", 5, distinct=2, rtol=1e-17
    )  # fmt: skip
    base = {"activation": "gelu", "batch": 6, "minority": 2, "rtol": 1e-4}
    yield from _wrong("block_symmetric", mean_field.block_symmetric, base)
    base = {"activation": "gelu", "batch": 6, "distinct": 2, "rtol": 1e-4}
    yield from _wrong("partial_collapse", mean_field.partial_collapse, base)


def _correlation_map(name, norm, order, kind):
    changed = {
        "plain": {},
        "bias": {"weight_variance": 1.7, "bias_variance": 0.1},
        "skip": {"skip": 0.5},
        "eps": {"eps": 0.1, "bias_variance": 0.2},
    }[kind]
    sigma = (ACTIVATIONS | AWKWARD)[name]
    return mean_field.CorrelationMap(sigma, norm=norm, order=order, **changed)


def _correlations():
    c = np.linspace(-1.0, 1.0, 9)
    methods = {
        "values": lambda f: f(c),
        "values at a variance": lambda f: f(c, variance=0.7),
        "slope": lambda f: f.slope(c[1:-1]),
        "slope at a variance": lambda f: f.slope(c[1:-1], variance=0.7),
        "fixed_points": lambda f: f.fixed_points(),
        "variance_fixed_points": lambda f: f.variance_fixed_points(),
        "phase": lambda f: f.phase(),
        "trajectory": lambda f: f.trajectory(5, correlation=0.3, variance=1.2),
    }
    kinds = itertools.product(
        (*ACTIVATIONS, *AWKWARD), ("none", "layer", "rms"), ORDERS, ("plain", "bias", "skip", "eps")
    )
    for kind in kinds:
        name, norm, order, change = kind
        if norm == "none" and (order != ORDERS[0] or change == "eps"):
            continue
        if change != "plain" and name not in ("relu", "tanh", "own", "declared"):
            continue
        for method, function in methods.items():
            yield (
                f"CorrelationMap {' '.join(kind)} {method}",
                lambda k=kind, f=function: f(_correlation_map(*k)),
            )
    for norm in (*NORMS, bnmc.GroupNorm(4)):
        yield (
            f"CorrelationMap.of {norm}",
            lambda n=norm: mean_field.CorrelationMap.of(
                _chain("tanh", norm=n, gain=1.2, bias_variance=0.1, skip=0.3)
            )(c),
        )
    yield (
        "CorrelationMap.of a convolution",
        lambda: mean_field.CorrelationMap.of(bnmc.Chain.conv(8, 2, norm="layer")),
    )
    yield "CorrelationMap.of no chain", lambda: mean_field.CorrelationMap.of(3)
    yield (
        "CorrelationMap of critical relu",
        lambda: mean_field.CorrelationMap("relu", weight_variance=2.0).phase(start=2.0),
    )
    yield (
        "CorrelationMap rtol",
        lambda: {
            name: _outcome(function)
            for name, function in {
                "values": lambda: _correlation_map("own", "none", ORDERS[0], "bias")(c, rtol=1e-17),
                "fixed_points": lambda: _correlation_map(
                    "own", "none", ORDERS[0], "bias"
                ).fixed_points(rtol=1e-17),
                "phase": lambda: _correlation_map("own", "none", ORDERS[0], "bias").phase(
                    rtol=1e-17
                ),
                "trajectory": lambda: _correlation_map("own", "none", ORDERS[0], "bias").trajectory(
                    3, correlation=0.2, rtol=1e-17
                ),
                "overflow": lambda: mean_field.CorrelationMap(
                    "relu", weight_variance=1e200
                ).trajectory(5, correlation=0.2),
            }.items()
        },
    )
    base = {
        "activation": "tanh", "weight_variance": 1.0, "bias_variance": 0.0, "norm": "none",
        "order": ORDERS[0], "skip": 0.0, "eps": 0.0,
    }  # fmt: skip
    yield from _wrong("CorrelationMap", mean_field.CorrelationMap, base)
    for name, base in {
        "__call__": {"correlation": 0.2, "variance": 1.0, "rtol": 1e-6},
        "slope": {"correlation": 0.2, "variance": 1.0, "rtol": 1e-6},
        "fixed_points": {"variance": 1.0, "tolerance": 1e-9, "rtol": 1e-6},
        "phase": {"start": 1.0, "tolerance": 1e-9, "rtol": 1e-6},
        "trajectory": {"depth": 2, "correlation": 0.2, "variance": 1.0, "rtol": 1e-6},
    }.items():
        function = getattr(mean_field.CorrelationMap("tanh", weight_variance=1.5), name)
        yield from _wrong(f"CorrelationMap {name}", function, base)


def _rates():
    for name, sigma in (ACTIVATIONS | AWKWARD).items():
        for norm, order in itertools.product(("none", "layer", "rms"), ORDERS):
            yield (
                f"edge_of_chaos {name} {norm} {order}",
                lambda s=sigma, n=norm, o=order: mean_field.edge_of_chaos(
                    s, [0.0, 0.1], norm=n, order=o
                ),
            )
        yield f"edge_of_chaos {name} alone", lambda s=sigma: mean_field.edge_of_chaos(s)
        for variance in (1.0, 0.3):
            yield (
                f"isometry_rate {name} {variance}",
                lambda s=sigma, v=variance: mean_field.isometry_rate(s, variance=v),
            )
        for norm, bias in itertools.product(("none", "layer", "rms"), (0.0, 0.2)):
            yield (
                f"residual_growth {name} {norm} {bias}",
                lambda s=sigma, n=norm, b=bias: mean_field.residual_growth(
                    s, weight_variance=1.4, bias_variance=b, norm=n
                ),
            )
    yield "edge_of_chaos rtol", lambda: mean_field.edge_of_chaos("gelu", 0.1, rtol=1e-17)
    yield "isometry_rate rtol", lambda: mean_field.isometry_rate("gelu", rtol=1e-17)
    base = {
        "activation": "tanh", "bias_variance": 0.1, "norm": "none", "order": ORDERS[0],
        "rtol": 1e-8,
    }  # fmt: skip
    yield from _wrong("edge_of_chaos", mean_field.edge_of_chaos, base)
    base = {"activation": "tanh", "variance": 1.0, "rtol": 1e-8}
    yield from _wrong("isometry_rate", mean_field.isometry_rate, base)
    base = {"activation": "tanh", "weight_variance": 1.0, "bias_variance": 0.0, "norm": "none"}
    yield from _wrong("residual_growth", mean_field.residual_growth, base)


# --- cases of infinite_width


def _duals():
    p, q = np.array([0.5, 1.0, 2.0]), np.array([1.5, 1.0, 0.3])
    c = np.array([0.1, 1.0, -0.4])

    def parts(sigma):
        dual = infinite_width.dual(sigma)
        left, right = dual.side(p, True), dual.side(q, True)
        pair = dual.pair(left, right, np.array([[0.1, 0.2, 0.0]] * 3), True)
        return dual.mean(left), dual.mean_square(left), pair

    for name in sorted({*EVERY_NAME, *ACTIVATIONS, *AWKWARD}):
        sigma = (ACTIVATIONS | AWKWARD).get(name, name)
        yield f"dual {name}", lambda s=sigma: infinite_width.dual(s)
        yield f"dual {name} values", lambda s=sigma: infinite_width.dual(s)(p, q, c)
        yield f"dual {name} parts", lambda s=sigma: parts(s)
    yield "dual rtol", lambda: infinite_width.dual("gelu")(1.0, 1.0, 0.999, rtol=1e-17)
    yield "dual of a dual", lambda: infinite_width.dual(infinite_width.dual("tanh"))(1.0, 2.0, 0.5)
    yield from _wrong("dual", infinite_width.dual, {"activation": "relu"})
    yield from _wrong(
        "dual values", infinite_width.dual("tanh"), {"p": 1.0, "q": 1.0, "c": 0.5, "rtol": 1e-6}
    )


def _kernel_cases():
    x, other = _inputs(), _inputs(3, seed=2)
    changes = {
        "": {},
        "bias ": {"bias_variance": 0.2, "weight_variance": 1.6},
        "skip ": {"skip": 0.5},
        "other ": {"other": other},
    }
    for function in (infinite_width.nngp, infinite_width.ntk):
        for name, norm, order in itertools.product(
            ACTIVATIONS, ("none", "layer", "rms", "batch"), ORDERS
        ):
            if norm == "none" and order != ORDERS[0]:
                continue
            options = {"rtol": 0.03, "rng": 4} if norm == "batch" else {}
            for kind, changed in changes.items():
                if kind and name not in ("relu", "tanh", "declared"):
                    continue
                yield (
                    f"{function.__name__} {name} {norm} {order} {kind}",
                    _call(
                        function, x, 2, activation=ACTIVATIONS[name], norm=norm, order=order,
                        **options, **changed,
                    ),
                )  # fmt: skip
        for name, sigma in AWKWARD.items():
            for norm in ("none", "batch"):
                yield (
                    f"{function.__name__} {name} {norm}",
                    _call(function, x, 1, activation=sigma, norm=norm, rng=0, rtol=0.1),
                )
        yield f"{function.__name__} of a dual", _call(function, x, 2, activation=_dual("tanh"))
        yield f"{function.__name__} of no layers", _call(function, x, 0)
        yield (
            f"{function.__name__} of batches",
            _call(function, x, 2, other=other, norm="batch", batch=(3, 3), rng=0),
        )
        for samples in (2, 3, 4):
            yield (
                f"{function.__name__} of a batch of {samples}",
                _call(function, _inputs(samples), 2, norm="batch", activation="tanh", rng=0,
                      rtol=0.1),
            )  # fmt: skip
        yield (
            f"{function.__name__} of equal samples",
            _call(function, np.ones((4, 3)), 2, norm="batch"),
        )
        yield f"{function.__name__} of zeros", _call(function, 0.0 * x, 2, norm="layer")
        yield f"{function.__name__} overflow", _call(function, 1e160 * x, 2)
        yield (
            f"{function.__name__} rtol",
            _call(function, x, 2, activation="tanh", norm="batch", rng=0, rtol=1e-9),
        )
        yield f"{function.__name__} rtol of a series", _call(
            function, x, 2, activation="gelu", rtol=1e-17
        )  # fmt: skip
        for norm in NORMS:
            for options in ({}, {"skip": 0.4, "bias_variance": 0.1}, {"order": ORDERS[1]}):
                yield (
                    f"{function.__name__} networks {norm} {json.dumps(options)}",
                    _call(function, x, 2, norm=norm, method="monte-carlo", width=32, networks=4,
                          rng=6, activation="tanh", **options),
                )  # fmt: skip
        yield (
            f"{function.__name__} networks float32",
            _call(function, x, 2, method="monte-carlo", width=32, networks=1, rng=6,
                  dtype="float32"),
        )  # fmt: skip
        base = {
            "x": x, "depth": 1, "other": other, "activation": "relu", "norm": "none",
            "order": ORDERS[0], "weight_variance": 1.0, "bias_variance": 0.0, "skip": 0.0,
            "batch": None, "rtol": None, "method": "analytic", "width": 32, "networks": 2,
            "dtype": "float64", "progress": False, "rng": 0,
        }  # fmt: skip
        yield from _wrong(function.__name__, function, base)
        networks = {**base, "method": "monte-carlo"}
        yield from _wrong(f"{function.__name__} networks", function, networks)
        of_batch = {**base, "norm": "batch", "batch": 3, "rtol": 0.1, "activation": "tanh"}
        yield from _wrong(
            f"{function.__name__} batch", function,
            {k: of_batch[k] for k in base if k not in ("width", "networks", "dtype")},
        )  # fmt: skip


@functools.cache
def _dual(name):
    return infinite_width.dual(name)


def _simulated_kernels():
    values = np.random.default_rng(0).standard_normal((5, 3, 3))
    made = infinite_width.SimulatedKernel
    yield "SimulatedKernel", lambda: made(values, 32, 1)
    for dimensions in (1, 2, 3, 5):
        yield f"SimulatedKernel {dimensions}", lambda d=dimensions: made(values, 32, 1, d)
    yield "SimulatedKernel of one network", lambda: made(values[:1], 32, 1)
    x = _inputs()
    for options in ({}, {"norm": "batch", "activation": "tanh", "rtol": 0.1}, {"skip": 0.3}):
        yield (
            f"convergence {json.dumps(options)}",
            lambda o=options: infinite_width.convergence(
                x, 1, widths=[16, 32, 64], networks=4, rng=2, **o
            ),
        )
    yield "convergence plot", lambda: _drawn(
        infinite_width.convergence(x, 1, widths=[16, 32], networks=3, rng=2).plot()
    )  # fmt: skip
    base = {"x": x, "depth": 1, "widths": [16, 32], "networks": 2, "rng": 0, "progress": False}
    yield from _wrong("convergence", infinite_width.convergence, base)
    for name in ("method", "width", "dtype", "unknown"):
        yield f"convergence with {name}", _call(infinite_width.convergence, x, 1, **{name: 3})


def _training():
    theta, across, covariance = _kernels()
    y = np.sin(np.arange(6.0))
    times = [0.0, 0.5, 3.0, 100.0]
    labels = {"squared": y, "cross-entropy": (y > 0).astype(float)}
    for loss, targets in labels.items():
        base = {"kernel": theta, "y": targets, "times": times, "loss": loss}
        yield f"descent {loss}", _call(infinite_width.descent, **base)
        yield (
            f"descent {loss} of tests",
            _call(infinite_width.descent, **base, learning_rate=0.3, initial=0.1 * y,
                  test_kernel=across, test_initial=np.ones(3)),
        )  # fmt: skip
        two = np.stack([targets, 1.0 - targets], axis=1)
        yield (
            f"descent {loss} of two outputs",
            _call(infinite_width.descent, theta, two, times, loss=loss, test_kernel=across),
        )
        yield from _wrong(
            f"descent {loss}", infinite_width.descent,
            {**base, "learning_rate": 1.0, "initial": y, "test_kernel": across,
             "test_initial": np.ones(3)},
        )  # fmt: skip
    yield "descent without test_kernel", _call(
        infinite_width.descent, theta, y, times, test_initial=np.ones(3)
    )  # fmt: skip
    prior = theta + 0.1 * np.eye(6)
    base = {"tangent": theta, "prior": prior, "y": y, "times": times}
    tests = {"test_tangent": across, "test_prior": across, "test_covariance": covariance}
    yield "posterior", _call(infinite_width.posterior, **base)
    yield "posterior of tests", _call(
        infinite_width.posterior, **base, **tests, learning_rate=0.5
    )  # fmt: skip
    yield "posterior of singular", _call(
        infinite_width.posterior, np.ones((6, 6)), prior, y, [0.0, math.inf]
    )  # fmt: skip
    yield from _wrong(
        "posterior", infinite_width.posterior, {**base, "learning_rate": 1.0, **tests}
    )
    for name in ("alignment", "complexity"):
        function = getattr(infinite_width, name)
        yield name, _call(function, theta, y)
        yield f"{name} of two outputs", _call(function, theta, np.stack([y, y**2], axis=1))
        yield f"{name} of singular", _call(function, np.ones((6, 6)), y)
        yield from _wrong(name, function, {"kernel": theta, "y": y})
    rng = np.random.default_rng(3)
    outputs, reference = rng.standard_normal((2, 8, 5))
    base = {"outputs": outputs, "reference": 1.2 * reference, "corrected": True}
    for corrected in (True, False):
        changed = {**base, "corrected": corrected}
        yield f"logit_divergence {corrected}", _call(infinite_width.logit_divergence, **changed)
    yield from _wrong("logit_divergence", infinite_width.logit_divergence, base)


def _scalings():
    for name, scaling in infinite_width.SCALINGS.items():
        yield f"Scaling {name}", lambda s=scaling: (s, s.factors(64, 16), s.hidden_rate(64, 16))
        x, y = _inputs(), (np.arange(6.0) % 2)
        for layers in (1, 2):
            yield (
                f"train_networks {name} {layers}",
                _call(infinite_width.train_networks, name, x, y, [0, 2, 5], width=16,
                      hidden_layers=layers, networks=2, rng=1, test=_inputs(3, seed=5)),
            )  # fmt: skip
    for loss in ("squared", "cross-entropy"):
        yield (
            f"train_networks {loss}",
            _call(infinite_width.train_networks, infinite_width.Scaling(-0.5, 0), x, y,
                  [0, 3], width=16, networks=2, loss=loss, activation="tanh", rng=1),
        )  # fmt: skip
    yield (
        "train_networks diverges",
        _call(infinite_width.train_networks, "ntk", x, y, [0, 200], width=16, networks=1,
              loss="squared", learning_rate=1e6, rng=1),
    )  # fmt: skip
    for powers in ((-0.5, 0), (-0.5, -0.5), (-1, (0, 1)), (0, 0)):
        for corrected in (False, True):
            yield (
                f"Scaling {powers} {corrected}",
                _call(infinite_width.Scaling, *powers, corrected=corrected),
            )
    base = {"q_sigma": -0.5, "q_tilde": 0, "q_hidden": None, "corrected": False}
    yield from _wrong("Scaling", infinite_width.Scaling, base)
    for name in ("factors", "hidden_rate"):
        function = getattr(infinite_width.SCALINGS["ntk"], name)
        yield from _wrong(f"Scaling {name}", function, {"width": 8, "reference_width": 4})
    base = {
        "scaling": "ntk", "x": x, "y": y, "steps": [0, 1], "width": 8, "hidden_layers": 1,
        "networks": 2, "reference_width": 8, "activation": "tanh", "learning_rate": 0.1,
        "loss": "squared", "test": _inputs(3), "rng": 0,
    }  # fmt: skip
    yield from _wrong("train_networks", infinite_width.train_networks, base)


# --- cases of random_matrix


def _laws():
    x = np.array([-1.0, 0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0])
    q = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    for ratio, variance in itertools.product((0.2, 1.0, 3.0), (1.0, 2.5)):
        eigenvalues = random_matrix.MarchenkoPastur(ratio, variance)
        for kind, law in (("eigen", eigenvalues), ("singular", eigenvalues.singular_values)):
            label = f"{type(law).__name__} {kind} {ratio} {variance}"
            yield label, lambda a=law: a
            for name in ("pdf", "cdf", "sf"):
                yield f"{label} {name}", _call(getattr(law, name), x)
            yield f"{label} ppf", _call(law.ppf, q)
            yield f"{label} moment", lambda a=law: [a.moment(k) for k in (0, 0.5, 1, 2, 3.7, 8)]
            yield f"{label} rvs", _call(law.rvs, (3, 2), rng=0)
    law = random_matrix.MarchenkoPastur(0.5)
    yield from _wrong("MarchenkoPastur", random_matrix.MarchenkoPastur, {"ratio": 1.0})
    yield from _wrong("MarchenkoPastur", lambda variance: (
        random_matrix.MarchenkoPastur(1.0, variance)), {"variance": 1.0})  # fmt: skip
    yield from _wrong("SingularValueLaw", random_matrix.SingularValueLaw, {"squares": law})
    for kind, given in (("MarchenkoPastur", law), ("SingularValueLaw", law.singular_values)):
        for name, base in {
            "pdf": {"x": 1.0}, "cdf": {"x": 1.0}, "sf": {"x": 1.0}, "ppf": {"q": 0.5},
            "moment": {"order": 1}, "rvs": {"size": 2, "rng": 0},
        }.items():  # fmt: skip
            yield from _wrong(f"{kind} {name}", getattr(given, name), base)


def _covariances():
    pairs = {
        "regular": (_gram(4), _gram(4, 5)),
        "single": (_gram(3).astype(np.float32), _gram(3, 1).astype(np.float32)),
        "near": (_gram(4), _gram(4) + 1e-9 * np.eye(4)),
        "far": (_gram(3), 1e6 * _gram(3, 1)),
        "equal": (_gram(3), _gram(3)),
        "singular": (np.ones((3, 3)), np.ones((3, 3)) * 2.0),
        "other range": (np.ones((3, 3)), np.diag([1.0, 1.0, 0.0])),
        "stack": (np.stack([_gram(3, s) for s in range(4)]), _gram(3, 9)),
        "apart": (1e-200 * np.eye(2), 1e200 * np.eye(2)),
        "sizes": (np.eye(2), np.eye(3)),
        "stacks": (np.ones((2, 1, 1)), np.ones((3, 1, 1))),
    }
    functions = {
        "kl": random_matrix.kl,
        "wasserstein": random_matrix.wasserstein,
        "total_variation": random_matrix.total_variation,
        "gaussian.total_variation": gaussian.total_variation,
        "gaussian.spectral_deviation": gaussian.spectral_deviation,
    }
    for name, function in functions.items():
        options = [{}] if "deviation" in name else [{}, {"rows": [1, 7, 300, 1e4]}, {"rows": 5}]
        for (kind, pair), (index, rows) in itertools.product(pairs.items(), enumerate(options)):
            yield f"{name} {kind} {index}", _call(function, *pair, **rows)
        base = {"S1": _gram(2), "S2": np.eye(2), **({} if "deviation" in name else {"rows": 2})}
        yield from _wrong(name, function, base)
    yield "total_variation atol", _call(
        random_matrix.total_variation, _gram(4), _gram(4, 5), atol=1e-30
    )  # fmt: skip
    yield from _wrong(
        "total_variation",
        lambda atol: random_matrix.total_variation(_gram(2), np.eye(2), atol=atol),
        {"atol": 1e-12},
    )  # fmt: skip
    for kind, S in {"regular": _gram(3), "singular": np.ones((3, 3)), "stack": pairs["stack"][0],
                    "huge": 1e200 * np.eye(2)}.items():  # fmt: skip
        for width in (1, 3, 20, 10**6):
            yield f"WishartMoments {kind} {width}", _call(random_matrix.WishartMoments, S, width)
            yield f"linear_covariance {kind} {width}", _call(
                random_matrix.linear_covariance, S, width, 4
            )  # fmt: skip
    for width, batch in itertools.product((1, 8, 1000), (1, 4)):
        yield f"vanilla_deviation {width} {batch}", _call(
            random_matrix.vanilla_deviation, width, batch, [0, 1, 10, 1000]
        )  # fmt: skip
    for width in (1, 2, 30, 10**5):
        yield f"lyapunov_ginibre {width}", _call(random_matrix.lyapunov_ginibre, width)
        yield f"lyapunov_ginibre {width} k", _call(random_matrix.lyapunov_ginibre, width, [1])
        yield f"lyapunov_residual {width}", _call(
            random_matrix.lyapunov_residual, width, [0.0, 0.01, 0.5, 3.0, 1e3]
        )  # fmt: skip
    yield "lyapunov_residual_estimate", _call(
        random_matrix.lyapunov_residual_estimate, 10, 0.5, 3, samples=200, rng=0
    )  # fmt: skip
    for function, base in {
        random_matrix.WishartMoments: {"S": np.eye(2), "width": 5},
        random_matrix.linear_covariance: {"G0": np.eye(2), "width": 5, "depth": 2},
        random_matrix.vanilla_deviation: {"width": 5, "batch": 2, "depth": 2},
        random_matrix.lyapunov_ginibre: {"width": 5, "k": 1},
        random_matrix.lyapunov_residual: {"width": 5, "gamma": 0.5},
        random_matrix.lyapunov_residual_estimate: {
            "width": 5, "gamma": 0.5, "k": 1, "samples": 10, "rng": 0,
        },
    }.items():  # fmt: skip
        yield from _wrong(function.__name__, function, base)


# --- cases of bounds

#: Arguments by name.
REALS = {
    "depth": 20, "width": 100, "batch": 4, "alpha": 0.2, "t": 2.0, "constant": 1.5, "rows": 3,
    "depth_constant": 2.0, "total_variation": 0.3, "inverse_norm": 3.0,
    "condition": 5.0, "distortion": 1.4, "tau": 0.1, "gamma": 0.3, "bound": 1.5, "v_hat": 0.1,
    "samples": 50, "least_eigenvalue": 0.2, "delta": 0.05, "complexity": 3.0, "time": 2.0,
    "learning_rate": 0.1,
}  # fmt: skip
MATRICES = {
    "M": np.array([[1.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 1.0]]),
    "eigenvalues": np.array([0.2, 0.7, 2.1]),
    "C1": _gram(3),
    "C2": _gram(3, 1),
    "S1": _gram(3),
    "S2": _gram(3, 2),
    "star": np.eye(4) + 0.2,
}
ARRAYS = {
    "depth": [[1], [30]], "width": [50, 1000, 10**6], "alpha": [0.2, 0.1, 0.01], "t": [0.5, 1, 9],
    "total_variation": [0.0, 0.5, 1.0], "inverse_norm": [1.0, 2.0, 9.0], "gamma": [0.0, 0.5, 1.0],
    "distortion": [1.0, 1.5, 40.0], "samples": [1, 30, 1000], "time": [0.0, 1.0, 50.0],
    "tau": [0.0, 0.0, 0.0], "v_hat": [0.0, 0.1, 0.25], "bound": [1.0, 1.4, 30.0],
    "eigenvalues": [[1.0, 1.0, 1.0], [0.0, 1.0, 2.0], [0.1, 0.1, 2.8]], "rows": [1, 10, 100],
}  # fmt: skip


def _all_bounds():
    for module in (bridging, gaussian, limits, orthogonalizes, rank_collapse):
        room = module.__name__.rpartition(".")[2]
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isclass(function) or name == "distortion":
                continue
            yield from _one_bound(f"{room}.{name}", function)


def _one_bound(label, function):
    asked = inspect.signature(function).parameters
    known = {k: v for k, v in {**REALS, **MATRICES}.items() if k in asked}
    alternatives = [name for name in ("inverse_norm", "condition") if name in asked]
    plain = {k: v for k, v in known.items() if not (k == "star" and alternatives)}
    yield f"{label} reals", _call(function, **plain)
    yield f"{label} defaults", _call(
        function, **{k: v for k, v in plain.items() if asked[k].default is asked[k].empty}
    )  # fmt: skip
    arrays = {k: np.array(ARRAYS.get(k, v)) for k, v in plain.items()}
    yield f"{label} arrays", _call(function, **arrays)
    yield f"{label} unequal arrays", _call(
        function, **{k: np.ones(2 + i) for i, k in enumerate(plain)}
    )  # fmt: skip
    for name in plain:
        for factor in (0.0, 1e-12, 1e12):
            changed = {**plain, name: factor * np.asarray(plain[name])}
            yield f"{label} {name} times {factor}", _call(function, **changed)
    if "star" in asked:
        rest = {k: v for k, v in known.items() if k not in alternatives}
        for kind, star in {
            "matrix": MATRICES["star"], "fixed point": _point(), "singular": np.ones((4, 4)),
            "of another batch": np.eye(3), "single": np.eye(1),
        }.items():  # fmt: skip
            yield f"{label} star {kind}", _call(function, **{**rest, "star": star})
        yield f"{label} star and number", _call(function, **known)
        neither = {k: v for k, v in rest.items() if k != "star"}
        yield f"{label} neither", _call(function, **neither)
    if "distortion" in asked:
        given = {**plain, "distortion": bridging.distortion("tanh", 4)}
        yield f"{label} of a Distortion", _call(function, **given)
    yield from _wrong(label, function, plain)


@functools.cache
def _point():
    return _field("relu").fixed_point()


def _distortions():
    for name, batch in itertools.product(
        (*EVERY_NAME, "own", "declared", "step", *AWKWARD), (2, 3, 5, 20)
    ):
        sigma = (ACTIVATIONS | AWKWARD).get(name, name)
        curvature = 30.0 if callable(sigma) else None
        yield f"distortion {name} {batch}", _call(
            bridging.distortion, sigma, batch, curvature=curvature
        )  # fmt: skip
    yield "distortion without curvature", _call(bridging.distortion, own, 4)
    yield "distortion of small curvature", _call(bridging.distortion, own, 4, curvature=1e-3)
    base = {"activation": "tanh", "batch": 4, "curvature": 1.0}
    yield from _wrong("distortion", bridging.distortion, base)


# --- cases of testing


def _layer(
    seed, *, weights="normal", ddof=0, eps=0.0, centred=True, sigma=None, order=0, **changed
):
    """A layer in NumPy, of width 20, with the mistakes that the arguments name."""
    rng = np.random.default_rng(seed)
    sigma = sigma or (lambda x: np.maximum(x, 0.0))
    kept = rng.standard_normal((20, 20))

    def drawn():
        if weights == "same":
            return kept
        if weights == "uniform":
            return rng.uniform(-math.sqrt(3.0), math.sqrt(3.0), (20, 20))
        if weights == "rows":
            return rng.standard_normal((20, 20)) + rng.standard_normal(20)
        return rng.standard_normal((20, 20))

    def normalized(h, axis=1):
        x = h - h.mean(axis=axis, keepdims=True) if centred else h
        variance = np.square(x).sum(axis=axis, keepdims=True) / (h.shape[axis] - ddof)
        return x / np.sqrt(variance + eps)

    def call(h):
        if order:
            x = normalized(sigma(h), changed.get("axis", 1))
            return changed.get("scale", 1.0) * drawn() @ x / math.sqrt(20)
        x = normalized(h, changed.get("axis", 1))
        own_part = changed.get("skip", 0.0) * x + changed.get("shift", 0.0)
        return own_part + changed.get("scale", 1.0) * drawn() @ sigma(x) / math.sqrt(20)

    return call


FAULTS = {
    "none": {}, "ddof": {"ddof": 1}, "eps": {"eps": 1e-5}, "uncentred": {"centred": False},
    "tanh": {"sigma": np.tanh}, "scale": {"scale": 2.0}, "he": {"scale": math.sqrt(2.0)},
    "skip": {"skip": 0.3}, "shift": {"shift": 0.3}, "same": {"weights": "same"},
    "uniform": {"weights": "uniform"}, "rows": {"weights": "rows"}, "layer": {"axis": 0},
    "order": {"order": 1}, "ddof and scale": {"ddof": 1, "scale": 2.0},
    "abs": {"sigma": np.abs},
}  # fmt: skip


def _same_laws():
    chains = {
        "relu": bnmc.Chain(20, 5, "relu"),
        "layer": bnmc.Chain(20, 5, "relu", norm="layer"),
        "after": bnmc.Chain(20, 5, "relu", order="activation-norm"),
        "group": bnmc.Chain(20, 5, "relu", norm="group(4)", bias_variance=0.1),
        "tanh": bnmc.Chain(20, 5, "tanh", skip=0.5, gain=1.2),
    }
    given = {
        "layer": {"axis": 0},
        "after": {"order": 1, "eps": 1e-12},
        "tanh": {"sigma": np.tanh, "skip": 0.5, "scale": 1.2},
    }
    for kind, chain in chains.items():
        for fault in FAULTS if kind == "relu" else ("none", "ddof"):
            yield (
                f"assert_same_law {kind} {fault}",
                lambda k=kind, c=chain, f=fault: testing.assert_same_law(
                    _layer(1, **{**given.get(k, {}), **FAULTS[f]}), c, rng=0, rows=1024
                ),
            )
    steps = {
        "raises": lambda h: 1 / 0,
        "shape": lambda h: h[:-1],
        "nan": lambda h: h * math.nan,
        "text": lambda h: "h",
    }
    for kind, wrong in steps.items():
        yield f"assert_same_law step {kind}", _call(
            testing.assert_same_law, wrong, chains["relu"], rng=0
        )  # fmt: skip
    for kind, chain in {
        "narrow": bnmc.Chain(3, 5, weights="uniform"),
        "haar": bnmc.Chain(20, 5, weights="haar", bias_variance=0.1),
        "convolution": bnmc.Chain(20, 18, weights="uniform", convolution=bnmc.Convolution((3, 3))),
    }.items():
        yield f"assert_same_law chain {kind}", _call(testing.assert_same_law, _layer(0), chain)
    base = {"step": _layer(0), "chain": chains["relu"], "rng": 0, "alpha": 1e-6, "rows": 64}
    yield from _wrong("assert_same_law", testing.assert_same_law, base)
    yield (
        "LawMismatch",
        lambda: testing.LawMismatch(chains["relu"], ("the output is scaled by 2",), (), 32),
    )
    yield "Roofline", lambda: testing.Roofline(2.0, 1.0, 2.0)
    base = {"run": lambda: None, "width": 8, "batch": 4, "layers": 1, "rounds": 1}
    checked = {"width": 8, "batch": 4, "layers": 1}
    for name in ("sampler", "dtype"):
        base[name] = {"sampler": "conditional", "dtype": "float64"}[name]
        yield f"roofline wrong {name}", _call(testing.roofline, base["run"], **{**checked, name: 3})
    for name in ("run", *checked, "rounds"):
        for kind in ("word", "negative", "nan"):
            changed = {**base, name: WRONG[kind]}
            yield f"roofline wrong {name} {kind}", _call(testing.roofline, **changed)


def _adapters():
    h = _inputs(5, 20)
    layer, images = (lambda a: a[::-1] + a.mean(axis=0)), _inputs(6, 4)
    yield "from_features_last", lambda: testing.from_features_last(layer)(h)
    yield "from_linear_first", lambda: testing.from_linear_first(layer, np.tanh, np.abs)(h)
    yield "from_images", lambda: testing.from_images(lambda a: 2.0 * a[:, ::-1], (1, 3))(images)
    yield "from_images shape", lambda: testing.from_images(lambda a: a[:1], (1, 3))(images)
    yield "from_images size", lambda: testing.from_images(lambda a: a, (2, 2))(images)
    yield "from_linear_first alone", lambda: testing.from_linear_first(layer)
    yield "from_linear_first number", lambda: testing.from_linear_first(layer, 3)
    yield from _wrong("from_features_last", testing.from_features_last, {"step": layer})
    yield from _wrong("from_images", testing.from_images, {"step": layer, "shape": (1, 3)})
    for name in ("torch_step", "jax_step"):
        function = getattr(testing.examples, name)
        for options in ({}, {"training": False}, {"weights": "default"}, {"eps": 1e-5}):
            label = f"{name} {json.dumps(options)}"
            yield label, lambda f=function, o=options: _twice(f(20, seed=3, **o), h)
        base = {
            "width": 5, "activation": "relu", "eps": 0.0, "training": True, "weights": "lecun",
            "seed": 0,
        }  # fmt: skip
        extra = {"momentum": 0.1} if name == "torch_step" else {"ddof": 0}
        yield from _wrong(name, lambda f=function, **o: _texts(f(**o)), {**base, **extra})
    conv = testing.examples.torch_conv_step
    for norm in ("batch", "instance", "flattened", "layer"):
        yield f"torch_conv_step {norm}", lambda n=norm: _twice(
            conv(4, shape=(1, 3), kernel=(1, 2), norm=n, seed=3), images
        )  # fmt: skip
    base = {
        "channels": 4, "activation": "relu", "shape": (1, 3), "kernel": (1, 2),
        "padding": "circular", "norm": "batch", "weights": "lecun", "eps": 0.0, "seed": 0,
    }  # fmt: skip
    yield from _wrong("torch_conv_step", lambda **o: _texts(conv(**o)), base)


def _twice(function, h):
    return np.asarray(function(h)), np.asarray(function(h))


def _texts(made):
    return f"a {type(made).__name__}"


def _strategies():
    try:
        import hypothesis
    except ImportError:
        return

    def examples(strategy):
        found = []

        @hypothesis.settings(derandomize=True, database=None, max_examples=20, deadline=None)
        @hypothesis.given(strategy)
        def kept(value):
            found.append(value if isinstance(value, np.ndarray) else repr(value))

        kept()
        return found

    made = {
        "activations": testing.activations,
        "chains": testing.chains,
        "batches": _call(testing.batches, 4, 3),
        "batches of a chain": _call(testing.batches, bnmc.Chain(6, 3)),
        "batches of a kind": _call(testing.batches, 4, 3, kinds=("collinear", "huge scale")),
        "gram_matrices": _call(testing.gram_matrices, 3),
        "gram_matrices regular": _call(testing.gram_matrices, 3, regular=True),
    }
    for name, make in made.items():
        yield f"strategy {name}", lambda m=make: examples(m())
    kinds = ("generic",)
    yield from _wrong("batches", lambda **o: _texts(testing.batches(**o)),
                      {"width": 4, "batch": 3, "kinds": kinds})  # fmt: skip
    yield "batches of a chain and a number", _call(testing.batches, bnmc.Chain(6, 3), 3)
    yield from _wrong("gram_matrices", lambda **o: _texts(testing.gram_matrices(**o)),
                      {"batch": 3, "regular": True})  # fmt: skip
    base = dict.fromkeys(
        ("widths", "batches", "activations", "norms", "skips", "gains", "weights", "epsilons")
    )
    yield from _wrong("chains", lambda **o: _texts(testing.chains(**o)), base)


# --- public names


def _names():
    for module in PUBLIC:
        yield f"names {module.__name__}", lambda m=module: sorted(m.__all__)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                yield f"names {module.__name__}.{name}", lambda v=value: _interface(v)
    yield "names bnmc.MeanField", lambda: _interface(bnmc.MeanField)
    yield "names moved", lambda: [mean_field.pairwise.__name__]
    yield "names unknown", lambda: mean_field.unknown


def _interface(value):
    """Names and defaults of the arguments, and the public names of a class."""

    def arguments(function):
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return ""
        return ", ".join(
            f"{p.kind.name.lower()} {p.name}"
            + ("" if p.default is p.empty else f"={p.default!r}")
            for p in parameters
        )  # fmt: skip

    if not inspect.isclass(value):
        return arguments(value)
    own = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    found = {name: arguments(a) if callable(a) else type(a).__name__ for name, a in own.items()}
    return {"()": arguments(value), **found}


FAMILIES = (
    _names, _fixed_points, _stabilities, _steps, _all_fluctuations, _paths, _blocks,
    _correlations, _rates, _duals, _kernel_cases, _simulated_kernels, _training, _scalings,
    _laws, _covariances, _all_bounds, _distortions, _same_laws, _adapters, _strategies,
)  # fmt: skip


# --- results as arrays and texts

#: Attributes that draw, are random, or are no result.
UNSEEN = {"plot", "rvs", "layer", "with_traceback", "add_note", "args"}
#: Seconds of the processor after which a call ends, so that one that hangs hides no other.
LIMIT = 20.0

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Failure:
    """An error in place of a result."""

    def __init__(self, error):
        self.error = error


def _outcome(function):
    """The result of a call, or its error, also if it takes longer than `LIMIT`."""
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
    return np.array(_ADDRESS.sub("", str(value)))


def _leaves(value, path="", above=()):
    """Yield the arrays and texts of a result, each with its path."""
    if value is None or isinstance(value, (str, bool, fractions.Fraction)):
        yield path, _text(value)
    elif isinstance(value, Failure):
        error = value.error
        yield f"{path}!", _text(f"{type(error).__name__}: {error}")
        for name, attribute in sorted(vars(error).items()):
            if name not in ("value", "chain") and not name.startswith("_"):
                yield from _leaves(attribute, f"{path}!{name}", above)
    elif isinstance(value, (np.ndarray, numbers.Number, np.generic)):
        array = np.asarray(value)
        yield path, array if array.dtype.kind in "biufc" else _text(array)
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
        yield path, _text(repr(value))


def _attributes(value, path, above):
    """Yield the leaves of the public attributes, properties and methods without arguments."""
    if id(value) in above or len(above) > 6:
        return
    above = (*above, id(value))
    yield f"{path}()", _text(repr(value))
    if type(value).__str__ is not object.__str__:
        yield f"{path} text", _text(value)
    names = {name for name in dir(value) if not name.startswith("_")} - UNSEEN
    if dataclasses.is_dataclass(value):
        names |= {f.name for f in dataclasses.fields(value) if not f.name.startswith("_")}
    for name in sorted(names):
        found = _outcome(lambda n=name: getattr(value, n))
        if inspect.ismethod(found) or inspect.isfunction(found):
            if inspect.isclass(getattr(found, "__self__", None)):
                continue
            required = [
                p for p in inspect.signature(found).parameters.values() if p.default is p.empty
            ]
            if required:
                continue
            found = _outcome(found)
        yield from _leaves(found, f"{path}.{name}", above)


# --- running


def _selected(words):
    for family in FAMILIES:
        room = family.__name__[1:]
        try:
            for name, function in family():
                label = f"{room}: {name}".strip()
                if all(word in label for word in words):
                    yield label, function
        except Exception as error:
            yield f"{room}: cases that cannot be made", _call(Failure, error)


def _timed(function):
    """Return a result with its warnings, and the seconds by the clock and of the processor."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seconds, processor = time.perf_counter(), time.process_time()
        result = _outcome(function)
        used = time.perf_counter() - seconds, time.process_time() - processor
    return result, [f"{w.category.__name__}: {w.message}" for w in caught], used


def _times(function, first):
    """Return the medians of the times: of one call if it is long, else of some calls."""
    if first[0] >= 0.2:
        return np.array(first)
    calls = 4 if first[0] < 0.01 else 2
    return np.median([first, *(_timed(function)[2] for _ in range(calls))], axis=0)


def _run(name, function):
    """Return the record of one case: its leaves and its times."""
    result, warned, first = _timed(function)
    found = dict(_leaves(result))
    if warned:
        found["warnings"] = _text("\n".join(warned))
    if not found:
        found[""] = _text("nothing")
    return found, _times(function, first)


def _warm():
    """Do the work that only the first calls of a process do."""
    for call in (
        lambda: _field("relu").fixed_point(),
        lambda: _field("tanh").step(G4, rng=0, rtol=0.1),
        lambda: infinite_width.ntk(_inputs(), 1, activation="tanh"),
        lambda: _layer(0)(_inputs(5, 20)),
        lambda: importlib.import_module("torch"),
        lambda: importlib.import_module("jax"),
    ):
        _outcome(call)


# --- comparison

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")


def _excerpts(a, b):
    """Return both texts from a little before their first difference on."""
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    start = max(first - 30, 0)
    return repr(a[start : start + 160]), repr(b[start : start + 160])


def _stated_error(found, path):
    """Return the stated error next to an array and its name, or None."""
    parent, _, name = path.rpartition(".")
    for kind in ("stderr", "error"):
        stated = found.get(f"{parent}.{kind}")
        if name not in ("stderr", "error") and stated is not None and stated.dtype.kind == "f":
            return kind, stated
    return None


def _difference(before, a, b, path):
    """Return the largest relative difference of two arrays, and a description."""
    if a.shape != b.shape:
        return math.inf, f"shape {a.shape}, now {b.shape}"
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return math.inf, f"finite entries differ: {a.ravel()[:3]}, now {b.ravel()[:3]}"
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.result_type(a, b, np.float64)
        change = np.nan_to_num(np.abs(a.astype(wide) - b.astype(wide)), nan=0.0)
    size = float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0)) or 1e-300
    relative = float(change.max(initial=0.0)) / size
    text = f"{change.max(initial=0.0):.2g} absolute, {relative:.2g} relative"
    stated = _stated_error(before, path)
    if stated is not None:
        kind, error = stated
        unit = error if kind == "stderr" else error * max(size, 1.0)
        with contextlib.suppress(ValueError), np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(change / np.abs(unit), nan=0.0, posinf=math.inf)
            text += f", {float(ratio.max(initial=0.0)):.2g} {kind}"
    return relative, text


def _compare_case(before, after, above):
    """Return lines about the arrays and lines about the texts of a case that differ."""
    arrays, texts = [], []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            here = b if a is None else a
            shown = f": {str(here)[:150]!r}" if here.dtype.kind == "U" else ""
            texts.append(f"{path} only {'after' if a is None else 'before'}{shown}")
        elif a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes():
            continue
        elif a.dtype.kind == "U" and b.dtype.kind == "U":
            one, two = str(a), str(b)
            if _NUMBER.sub("0", one) == _NUMBER.sub("0", two):
                if above == 0.0:
                    texts.append(f"{path} differs in numbers only")
            else:
                texts.append("{}\n    {}\n    {}".format(path, *_excerpts(one, two)))
        elif "U" in (a.dtype.kind, b.dtype.kind):
            texts.append(f"{path}: {str(a)[:150]}, now {str(b)[:150]}")
        else:
            relative, text = _difference(before, a, b, path)
            if a.dtype != b.dtype:
                text += f", {a.dtype}, now {b.dtype}"
            if relative > above or a.dtype != b.dtype:
                arrays.append(f"{path}: {text}")
    return arrays, texts


def _is_slower(before, after):
    """Whether both times are at least 5 % and 1 ms longer."""
    return bool(np.all(after > np.maximum(1.05 * before, before + 1e-3)))


def _compare(arguments):
    words = arguments.k.split()
    with np.load(arguments.file) as kept:
        index = json.loads(str(kept["index"]))
        paths = kept["paths"].tolist()
        records = {
            name: {paths[i]: kept[f"v{i}"] for i in range(start, end)}
            for name, (start, end) in zip(index, kept["ranges"], strict=True)
            if all(word in name for word in words)
        }
        times = dict(zip(index, kept["times"], strict=True))
    missing = set(records)
    lines = {"arrays": [], "texts": [], "slower": []}
    cases = count = 0
    total = np.zeros((2, 2))
    for name, function in _selected(words):
        found, used = _run(name, function)
        cases, count = cases + 1, count + len(found)
        if name not in records:
            lines["texts"].append(f"{name}: only after")
            continue
        missing.discard(name)
        arrays, texts = _compare_case(records[name], found, arguments.above)
        lines["arrays"] += [f"{name} | {line}" for line in arrays]
        lines["texts"] += [f"{name} | {line}" for line in texts]
        for _ in range(4):
            if not _is_slower(times[name], used):
                break
            used = np.minimum(used, np.median([_timed(function)[2] for _ in range(3)], axis=0))
        if _is_slower(times[name], used):
            before, after = times[name], used
            lines["slower"].append(
                f"{name}: {before[0]:.4f} s, now {after[0]:.4f} s "
                f"(processor {before[1]:.4f} s, now {after[1]:.4f} s)"
            )
        total += [times[name], used]
    lines["texts"] += [f"{name}: only before" for name in sorted(missing)]
    for kind, title in {
        "arrays": "Arrays that differ", "texts": "Texts that differ", "slower": "Slower cases",
    }.items():  # fmt: skip
        if lines[kind]:
            print(f"{title}:", *lines[kind], "", sep="\n")
    print(
        f"{cases} cases, {count} arrays and texts: {len(lines['arrays'])} arrays differ, "
        f"{len(lines['texts'])} texts differ, {len(lines['slower'])} cases are slower; "
        f"in total {total[0, 1]:.1f} s of the processor, now {total[1, 1]:.1f} s"
    )


def _record(arguments):
    index, ranges, paths, times, values = [], [], [], [], {}
    for name, function in _selected(arguments.k.split()):
        found, used = _run(name, function)
        if name in index:
            raise ValueError(f"two cases have the name {name}")
        index.append(name)
        times.append(used)
        ranges.append((len(paths), len(paths) + len(found)))
        for path, value in found.items():
            values[f"v{len(paths)}"] = value
            paths.append(path)
    np.savez_compressed(
        arguments.file, index=json.dumps(index), ranges=ranges, paths=paths, times=times, **values
    )
    texts = sum(value.dtype.kind == "U" for value in values.values())
    print(f"{len(index)} cases, {len(values) - texts} arrays, {texts} texts")


def _show(arguments):
    for name, function in _selected(arguments.k.split()):
        found, (seconds, processor) = _run(name, function)
        print(f"{name}: {seconds:.4f} s, processor {processor:.4f} s")
        for path, value in found.items():
            print(f"    {path}: {str(value)[:300]}")


def _main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=("record", "compare", "list", "show"))
    parser.add_argument("file", nargs="?")
    parser.add_argument("-k", default="", metavar="WORDS")
    parser.add_argument("--above", type=float, default=0.0, metavar="R")
    arguments = parser.parse_args()
    if arguments.do in ("record", "compare") and arguments.file is None:
        parser.error("FILE is missing")
    if arguments.do == "list":
        print(*(name for name, _ in _selected(arguments.k.split())), sep="\n")
        return
    _warm()
    {"record": _record, "compare": _compare, "show": _show}[arguments.do](arguments)


if __name__ == "__main__":
    _main()
