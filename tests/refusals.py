"""Calls that raise a typed error: the valid ones of `fuzzing.py`, with one or two wrong arguments.

`tests/test_bad_input.py` makes them.  A case is (changed arguments, error, pattern of the message).
"""

import inspect
import math
import re
import threading

import numpy as np
from fuzzing import FUNCTIONS, RUNS, valid_call

from bnmc import (
    Activation,
    Chain,
    Convolution,
    Distance,
    FirstLayer,
    MeanField,
    Network,
    Observable,
    Residual,
    infinite_width,
    mixing,
    random_matrix,
    regularity,
    simulate,
    testing,
)
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    PartialEstimateError,
    ResultTooLargeError,
    SingularGramError,
    UnknownNameError,
)
from bnmc.infinite_width import dual
from bnmc.mean_field import CorrelationMap, partial_collapse
from bnmc.mixing.absorption import absorbing_events


def values(**wrong):
    """Return a case for each value out of range: the error names the argument and the value."""
    return _cases(ArgumentError, wrong)


def types(**wrong):
    """Return a case for each value of a wrong type."""
    return _cases(ArgumentTypeError, wrong)


def names(**wrong):
    """Return a case for each unknown name."""
    return _cases(UnknownNameError, wrong)


def unfit(*names):
    """Return a case for each of these chains, whose property of the name few functions know."""
    return [({"chain": UNFIT[name]}, ArgumentError, f"^{name}: got") for name in names]


def having(given, cases):
    """Return cases whose other arguments include those that are given."""
    return [(given | changes, error, pattern) for changes, error, pattern in cases]


def _cases(error, wrong):
    return [
        ({argument: value}, error, rf"^{argument}\b[^:]*: got {_pattern(value)}")
        for argument, several in wrong.items()
        for value in several
    ]


def _pattern(value):
    """Return the pattern of a text or number in a message, which may convert an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}(\\.0)?,"
    return re.escape(repr(value)) if isinstance(value, str | int | float) else ""


def call(name, changes):
    """Call a function with valid arguments, except for the changes."""
    function, valid = OTHERS[name] if name in OTHERS else valid_call(name)
    return function(**valid | changes)


def every_case():
    """Yield the label of a function and a case, for all functions and cases."""
    for label, cases in REFUSALS.items():
        yield from ((label, case) for case in cases)
    fuzzed = {label: function for label, (_, function, _) in (FUNCTIONS | RUNS).items()}
    for label, function in (fuzzed | {label: call[0] for label, call in OTHERS.items()}).items():
        names = {} if "," in label else inspect.signature(function).parameters
        for case in EVERYWHERE:
            (argument,) = case[0]
            if argument in names and label not in EXCEPTIONS.get(argument, ()):
                yield label, case


def using(thing):
    return lambda x: thing


def nan_loss(outputs):
    return np.full_like(outputs, np.nan)


def spoilt(value):
    """Return an initial batch with a value at the index (4, 1)."""
    x = np.array(START, dtype=np.longdouble)
    x[4, 1] = value
    return x


def of(function):
    """Return a chain whose activation is a user's function."""
    return Chain(6, 3, Activation(function, name="mine"))


def drawing(weights):
    """Return a chain whose weights are a user's."""
    return Chain(6, 3, "leaky_relu", weights=weights)


def narrow(x):
    return x + 3 * math.exp(-((x - 1.2345) ** 2) * 1e3)


def two_needles(x):
    """Peaks narrower than the first cells; the finer grid of the lower bound detects both."""
    return 0.5 + math.exp(-((x - 0.7774) ** 2) * 1e6) + math.exp(-((x - 1.2316) ** 2) * 1e6)


def pole(x):
    return 1 / (x - 1.0001) ** 8 if x > 1.0001 else 1e200


TOO_LARGE = ResultTooLargeError
NO_NORM, SKIP = Chain(6, 3, norm="none"), Chain(6, 3, skip=1.0)
UNIFORM = Chain(6, 3, weights="uniform")
BRANCH = Chain(6, 3, "relu").repeat(2)
CONVOLVED = Chain(6, 3, norm="none", convolution=Convolution((1, 3), (1, 2)))
CONVOLUTION = Chain.conv(8, 1, "relu", shape=(2, 2), kernel=(2, 2))
UNFIT = {"norm": NO_NORM, "skip": SKIP, "weights": UNIFORM, "convolution": CONVOLUTION}
ASYMMETRIC, INDEFINITE = [[1, 1], [0, 1]], [[1, 2], [2, 1]]
RAGGED = [[1], [1, 2]]
NO_NUMBERS = ["10", None, True, RAGGED, 1j]
ONE, PAIR, TRIPLE = np.ones((1, 1)), np.stack([np.eye(2)] * 2), np.stack([np.eye(2)] * 3)
GRAMS = np.stack([np.eye(3)] * 4)
#: Values of chains that decay to 0 with noise, of shape (chains, layers).
DECAY = 9 * 0.5 ** np.arange(40) + 0.1 * np.random.default_rng(0).standard_normal((9, 40))
NOISE = np.random.default_rng(1).standard_normal((4, 50))
MANY = np.random.default_rng(2).standard_normal((10, 20, 50))
SINGULAR = np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
#: More jumps than are searched for.
STAIRS = Activation(lambda x: np.floor(5.0 * x), derivative=lambda x: 0.0)
DEEP = {"x": np.eye(2), "depth": 1}
MILLION, SAMPLES = np.ones((1, 10**6)), np.random.default_rng(3).standard_normal((9, 7))
DUAL = infinite_width.dual("relu")
BATCHES, SIMULATED = {"norm": "batch"}, {"method": "monte-carlo"}
START = np.random.default_rng(0).normal(size=(6, 3))
THREE = np.stack([START] * 3)
OUT = np.zeros((1, 6, 3, 3))
ACTIVATED = DEEP | BATCHES | {"x": SAMPLES, "order": "activation-norm", "activation": "tanh"}

#: Cases of every function with the argument.
EVERYWHERE = [
    *values(batch=[0], burn_in=[-1], chains=[0], depth=[-1], eps=[-1e-5], every=[0], inputs=[0],
            lag=[0], learning_rate=[0.0, math.nan], level=[0.0, 1.0, math.nan], max_layers=[0],
            rtol=[0, math.nan], skip=[math.inf],
            tau=[math.nan], threads=[0], timeout=[0, math.nan, math.inf], weight_variance=[0.0],
            width=[0], bias_variance=[-1.0]),
    *values(G=[np.ones((2, 3)), np.ones(3), np.ones((0, 0)), [[1, math.nan], [math.nan, 1]],
               ASYMMETRIC, [[1.7e308, 1e308], [0, 1.7e308]]]),
    *types(activation=[3], chain=[3, "relu"], depth=["3"], executor=[3], norm=[3],
           observables=[[3]], progress=[3], rng=["seed", -1, 1.5], step=[3], threads=["all"],
           timeout=["1", True], width=["10"], G=[[[1j, 0], [0, 1]]]),
    *names(activation=["rleu"], backend=["tpu"], dtype=["float16"], initial=["nowhere"],
           loss=["hinge"], norm=["bach"], order=["norm"], sampler=["factor"]),
]  # fmt: skip
#: Functions for which an argument of these names is something else, or plays no part.
EXCEPTIONS = {
    "G": ("gram.distance",),
    "chain": ("drawn_biases", "drawn_weights"),
    "initial": ("infinite_width.descent",),
    "inputs": ("train", "training.largest_rate"),
    "order": ("random_matrix.MarchenkoPastur.moment",),
    **dict.fromkeys(("chains", "rng", "width"), ("infinite_width.nngp", "infinite_width.ntk")),
}

#: A case of functions of a chain and a depth, and of networks and no depth.
NO_DEPTH = {"depth": None}, ArgumentTypeError, r"^depth: .*pass depth=, or chain\.repeat\(3\)"
NO_DEPTH_OF_NETWORK = (
    {"network": Chain(9, 3), "depth": None}, ArgumentTypeError,
    r"^depth: .*pass depth=, or network\.repeat\(3\)",
)  # fmt: skip

#: Cases of both averages over the layers, and of all distances between Gaussian laws.
ERGODIC = [
    *values(burn_in=[1]),
    *types(chains=[2.0]),
    (
        {"chain": Chain(4, 4, "linear", norm="none")}, ArgumentError,
        'norm: got .* "batch" or "batch-uncentred"',
    ),
    ({"depth": 95}, ArgumentError, "depth: got 95, allowed: at least 96 .*burn_in"),
    ({"depth": 950, "rtol": 1e-3}, ArgumentError, "depth: got 950, allowed: at least 960"),
    ({"rtol": 1e-300}, ArgumentError, "depth: got 200000, allowed: at least"),
    ({"burn_in": 60, "depth": 100}, ArgumentError, "burn_in: got 60, allowed: .* <= 50"),
    *unfit("convolution"),
]  # fmt: skip
DISTANCE = [
    *values(rows=[0, -1, 0.5, math.inf]),
    *types(S1=["S"]),
    ({"S1": ASYMMETRIC, "S2": np.eye(2)}, ArgumentError, "^S1: got 1.0, allowed: symmetric"),
    ({"S1": np.eye(2), "S2": ASYMMETRIC}, ArgumentError, "^S2: got 1.0, allowed: symmetric"),
    ({"S1": np.eye(2), "S2": INDEFINITE}, ArgumentError, "^S2: got -1.0, allowed: no negative"),
    ({"S1": ONE, "S2": [[math.nan]]}, ArgumentError, "^S2: got nan"),
    ({"S1": np.eye(2)}, ArgumentError, r"^S2: got \(3, 3\), allowed: matrices of shape \(2, 2"),
    ({"S1": PAIR, "S2": TRIPLE}, ArgumentError, r"^S2: got \(3, 2, 2\), .*leading axes"),
    ({"S1": TRIPLE, "S2": np.eye(2), "rows": [1, 2]}, ArgumentError,
     r"^rows: got \(2,\), .*broadcasts with \(3,\)"),
]  # fmt: skip
#: Cases of Gram matrices of three samples, by the name of the argument.
MATRICES = [
    (np.eye(4), "shape"),
    (np.eye(3)[None], "shape"),
    ([1.0, 2.0, 3.0], "shape"),
    ([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], "symmetric"),
    (np.diag([1.0, 1.0, -0.5]), "negative eigenvalue"),
    (np.diag([1.0, 1.0, np.nan]), "finite"),
    (np.diag([1.0, 1.0, np.inf]), "finite"),
    (np.zeros((3, 3)), "samples that are not all equal"),
    (np.full((3, 3), 0.7), "samples that are not all equal"),
    (np.full((3, 3), 1e200), "samples that are not all equal"),
]
BIASED = Chain(6, 3, norm="batch-uncentred", bias_variance=0.1)
AFTER = Chain(6, 3, order="activation-norm")
CONSTANT = Activation(lambda x: 2.0 + 0.0 * x, name="two")
LAYER = {"norm": "layer"}
#: Activations without a fixed point, or without blocks: two constants, a NaN and one too rough.
FLAT = [CONSTANT, lambda x: 0.0, lambda x: math.nan, lambda x: math.sin(1e6 * x)]
MISMATCHED = [
    (
        {"G": np.eye(3), "H": np.eye(2)},
        ArgumentError,
        r"^H: got \(2, 2\), allowed: matrices of shape",
    ),
    ({"G": TRIPLE, "H": PAIR}, ArgumentError, r"^H: got \(2, 2, 2\), allowed: leading axes"),
]
WITH_ZERO = {"G": [np.eye(2), np.zeros((2, 2))]}
IMAGES = np.ones((8, 3, 4, 4))
APART = {"S1": ONE, "S2": 1e-201 * ONE}, ArgumentError, "^S2: got 1e-201, .* 1e200"
#: Functions and valid arguments that are not in `fuzzing.py`.
OTHERS = {
    "simulate, five layers": (simulate, {
        "chain": Chain(6, 3, "leaky_relu"), "depth": 5, "rng": 0}),
    "simulate, a layer": (simulate, {
        "chain": Chain(6, 3, "leaky_relu"), "depth": 1, "rng": 0}),
    "CorrelationMap": (CorrelationMap, {"activation": "tanh"}),
    "CorrelationMap.of": (CorrelationMap.of, {"chain": NO_NORM}),
    "CorrelationMap()": (
        CorrelationMap("tanh", weight_variance=0.5), {"correlation": 0.5, "variance": 0.1}),
    "CorrelationMap.phase": (CorrelationMap("tanh").phase, {}),
    "MeanField.fixed_point": (
        lambda chain, **options: MeanField(chain).fixed_point(**options), {"chain": Chain(6, 5)}),
    "MeanField.fluctuations": (
        lambda chain, **options: MeanField(chain).fluctuations(**options), {"chain": Chain(6, 4)}),
    "MeanField.step, of a chain": (
        lambda chain, G: MeanField(chain).step(G), {"chain": Chain(6, 3), "G": np.eye(3)}),
    "mean_field.partial_collapse, of eight": (
        partial_collapse, {"activation": "tanh", "batch": 8, "distinct": 3}),
    "infinite_width.Dual": (dual("relu"), {"p": 1.0, "q": 1.0, "c": 0.5}),
    "mixing.absorption.absorbing_events": (
        absorbing_events, {"chain": Chain(8, 3, "relu"), "grams": GRAMS}),
    "infinite_width.Scaling": (infinite_width.Scaling, {"q_sigma": 0, "q_tilde": 0}),
    **{f"infinite_width.Scaling.{name}": (getattr(infinite_width.SCALINGS["ntk"], name), {
        "width": 2, "reference_width": 2}) for name in ("factors", "hidden_rate")},
    "infinite_width.logit_divergence": (infinite_width.logit_divergence, {
        "outputs": NOISE, "reference": NOISE}),
    "infinite_width.train_networks": (infinite_width.train_networks, {
        "scaling": "ntk", "x": NOISE[:3, :6], "y": np.eye(6)[0], "steps": [0, 1], "width": 4}),
    **{f"random_matrix.WishartMoments.{name}": (
        lambda S, width, name=name: getattr(random_matrix.WishartMoments(S, width), name),
        {"S": np.eye(3), "width": 9}) for name in ("inverse", "square", "trace_of_cube")},
    "testing.roofline": (testing.roofline, {"run": int, "width": 10, "batch": 2}),
    "mixing.autocorrelation, of values": (mixing.autocorrelation, {"run": NOISE, "least_times": 1}),
    "mixing.relaxation, of values": (mixing.relaxation, {"run": DECAY, "star": 0.0}),
    "mixing.spectral, of values": (mixing.spectral, {"run": NOISE, "lags": 1}),
    "mixing.RateEstimate": (mixing.rate.RateEstimate, {
        "value": 0.5, "stderr": 0.1, "ci": (0.4, 0.6), "n": 5, "method": "test"}),
    "regularity.averages": (regularity.averages, {
        "chain": Chain(4, 4, "linear", norm="batch-uncentred"), "rng": 0}),
    "regularity.constant": (regularity.constant, {
        "chain": Chain(4, 4, "linear", norm="batch-uncentred"), "rng": 0}),
}  # fmt: skip

REFUSALS = {
    "backpropagate": [
        NO_DEPTH,
        ({"depth": None, "chain": 3}, ArgumentTypeError, "^chain: "),
        *values(loss=[np.ones((3, 4)), np.full((6, 3), np.nan)]),
        *types(loss=[None, np.square], loss_gradient=["squared"]),
        *names(observables=["hidden"]),
        ({"loss": "squared"}, ArgumentError, "^labels: "),
        *having({"loss": "squared"}, values(
            labels=[[0, 1], [0, 1, 0.5], [0, 1, -1], np.ones((2, 2))])),
        ({"loss": "squared", "labels": [0, 1, 0], "classes": 10**12}, TOO_LARGE, "^classes: "),
        ({"loss": "cross-entropy", "labels": [0, 0, 0]}, ArgumentError, "^classes: "),
        ({"loss": "cross-entropy", "labels": np.ones((3, 1))}, ArgumentError, "^classes: "),
        ({"loss": "cross-entropy", "labels": np.ones((3, 2))}, ArgumentError, "^labels: "),
        ({"loss": "cross-entropy", "labels": [0, 3, 0], "classes": 3}, ArgumentError, "^classes: "),
        ({"loss": "gaussian", "labels": [0, 1, 0]}, ArgumentError, "^labels: "),
        ({"loss": np.square}, ArgumentTypeError, "gradient of a loss is loss_gradient="),
        ({"loss_gradient": nan_loss, "classes": 2}, ArgumentError, "^loss_gradient"),
        ({"loss_gradient": nan_loss}, ArgumentError, "^loss_gradient"),
        ({"loss_gradient": nan_loss, "loss": "squared"}, ArgumentError, "^loss: "),
        ({"loss_gradient": nan_loss, "labels": [0, 1, 0]}, ArgumentError, "^labels: "),
        ({"loss_gradient": np.zeros_like, "classes": 10**23}, TOO_LARGE, "^classes: "),
        ({"loss_gradient": lambda f: f[0], "classes": 2}, ArgumentError, "^loss_gradient"),
        ({"loss_gradient": lambda f: "no", "classes": 2}, ArgumentTypeError, "^loss_gradient"),
        ({"observables": {"gram": lambda g, d, h: 0}}, ArgumentError, "^observables"),
        ({"observables": {"a": lambda g, d, h: 0.0}}, ArgumentError, "^observables"),
        ({"observables": {"a": lambda g, d, h: "no"}}, ArgumentTypeError, "^observables"),
        ({"observables": [np.trace, np.linalg.trace]}, ArgumentError, "^observables"),
        ({"chain": UNIFORM, "sampler": "conditional"}, ArgumentError, "^sampler: "),
        ({"chains": 1 << 20, "depth": 1 << 20}, TOO_LARGE, "chains"),
    ],
    "training.largest_rate": [
        *values(
            inputs=[np.ones((3, 4)), np.ones(3), np.full((3, 3), np.inf)], depth=[1], outputs=[0],
            rtol=[0.0, 1.0], readout_gain=[0.0],
        ),
        *types(network=[3]),
        NO_DEPTH_OF_NETWORK,
        *names(loss=["hinge"], parametrization=["default"]),
        ({"network": Chain(9, 3, weights="uniform").repeat(2)}, ArgumentError, "^weights: "),
        ({"network": Chain(9, 3, lambda x: x * x).repeat(1)}, ArgumentError, "derivative"),
        ({"network": Chain(10**8, 3, "relu").repeat(9)}, TOO_LARGE, "^inputs"),
    ],
    "train": [
        *values(
            inputs=[np.ones((3, 4)), np.ones(3), np.full((3, 3), np.inf)],
            labels=[[0, 1], [0, 0.5, 1], [0, 1, -1], np.ones((2, 2))],
            test=[np.ones((2, 2))],
            batches=[np.zeros((2, 2), int), np.full((2, 3), 3)],
            layers=[[0, 0], [3], [[1]]],
            record=[[1, 0], [3], [[1]]],
            parametrization=[infinite_width.SCALINGS["ic-mf"]],
            depth=[1],
        ),
        *types(network=[3], batches=[0.5], observables=[3]),
        *names(
            loss=["hinge"], optimizer=["adam"], parametrization=["default"], start=["zero"],
            matrices=["implied"], batches=["all"], observables=["delta_gram", "state_gram"],
        ),
        NO_DEPTH_OF_NETWORK,
        ({"network": Chain(9, 3, norm="none").repeat(0), "inputs": np.ones((9, 3)),
          "labels": [0, 1, 0]}, ArgumentError, "^network: "),
        ({"network": Chain(9, 3, weights="uniform").repeat(2)}, ArgumentError, "^weights: "),
        ({"network": Network((Chain(9, 3), 1), Residual(
            Chain(8, 3).repeat(1), Chain(8, 3, norm="none", weights="haar")))}, ArgumentError,
         "^weights: "),
        ({"network": Network((Chain(9, 3), 1), (Chain(8, 3, weights="haar"), 1))}, ArgumentError,
         "^weights: "),
        ({"network": Network((Chain(9, 3), 1), (Chain(8, 3), 1)), "start": "maximized"},
         ArgumentError, "^start: "),
        ({"network": Chain(9, 3, lambda x: x * x).repeat(1)}, ArgumentError, "derivative"),
        ({"labels": [0, 0, 0]}, ArgumentError, "^classes: "),
        ({"network": Chain(9, 4).repeat(2), "batches": "epochs"}, ArgumentError, "^inputs: "),
        ({"observables": {"kernel": np.trace}}, ArgumentError, "^observables"),
        ({"steps": 1 << 40}, ArgumentError, "^steps: "),
        ({"steps": 10**7, "chains": 10**6}, TOO_LARGE, "steps"),
    ],
    "gradients.tangent_kernel": [
        NO_DEPTH,
        *values(initial=[np.ones((3, 3))]),
        ({"chain": UNIFORM, "sampler": "conditional"}, ArgumentError, "^sampler: "),
        ({"chain": Chain(9, 4, lambda x: x * x)}, ArgumentError, "derivative"),
        *types(parts=[3], trained_biases=[3]),
        ({"depth": 1 << 30}, TOO_LARGE, "^depth"),
        ({"chain": Chain(100_000, 1000)}, TOO_LARGE, "probes"),
    ],
    "gradients.jacobian": [
        NO_DEPTH,
        *values(directions=[0, 10**6], every=[0]),
        ({"chain": Chain(9, 4, lambda x: x * x)}, ArgumentError, "derivative"),
        ({"chain": Chain(3000, 100, "relu"), "directions": None}, TOO_LARGE, "^directions"),
    ],
    "gradients.jacobian_law": [
        NO_DEPTH,
        *values(mean_square=[0.0]),
        ({"chain": Chain(9, 4, norm="none", skip=1.0)}, ArgumentError, "^skip"),
        ({"chain": Chain(9, 6, "relu")}, ArgumentError, "^mean_square"),
    ],
    "gradients.extreme_singular_values": [
        NO_DEPTH,
        *names(which=["middle"]),
        *values(rtol=[0.0, 1.0]),
        ({"chain": Chain(9, 4, lambda x: x * x)}, ArgumentError, "derivative"),
        ({"chain": Chain(10**8, 1000, "relu")}, TOO_LARGE, "^width"),
    ],
    "random_matrix.Factor": [
        *values(columns=[0], rows=[0], variance=[0.0], values=[[], [-1.0], [0.0]]),
        ({"weights": [0.5, 0.4]}, ArgumentError, "^weights"),
        ({"is_orthogonal": True, "rows": 7}, ArgumentError, "^rows"),
        *values(moments=[(), (1.0, 2.0, 3.0)]),
        ({"moments": (1.0, 0.0)}, ArgumentError, r"^moments\[1\]"),
        *types(moments=[2, "ab"], is_orthogonal=[1], is_bounded=[None]),
    ],
    "random_matrix.ProductLaw": [
        *values(factors=[[]], size=[3]),
        *types(factors=[[1.0], 3]),
    ],
    "gradients.probing_variance": values(kernel=[np.ones((2, 3))]),
    "warmup": [
        *names(dtypes=["float16"], samplers=["gibbs"]),
        *values(samplers=[()]),
        *types(dtypes=[3]),
        ({"activations": ["relu", "rellu"]}, UnknownNameError, "'rellu'"),
        ({"activations": np.log}, ArgumentError, "activation"),
        ({"samplers": "backward", "activations": lambda x: x * x}, ArgumentError, "derivative"),
    ],
    "mixing.absorption.absorbing_events": [
        ({"grams": np.eye(3)}, ArgumentError, "^grams: got .*, allowed: an array of shape"),
        ({"grams": GRAMS * np.nan}, ArgumentError, "^grams: got .*, allowed: finite"),
        ({"grams": GRAMS[:1]}, ArgumentError, "^grams: got .* at least two states"),
        *unfit(*UNFIT),
    ],
    "mixing.autocorrelation, of values": [
        ({"run": np.full((4, 50), 0.1)}, ArgumentError, "observables that vary")],
    "mixing.contraction": [({"chain": SKIP}, ArgumentError, "autocorrelation")],
    "mixing.two_inputs": [
        *values(x=[np.ones((6, 2))], y=[np.full((6, 3), math.nan)]), *types(x=["x"])],
    "mixing.spectral, of values": [
        *values(lags=[0, [1, -2], [], 17]),
        *types(lags=[1.0, "12", [1.5], None]),
        ({"run": MANY}, ArgumentError, "^run: .* 200 pairs of layers"),
        ({"run": np.full((4, 50, 2), 0.1)}, ArgumentError, "^observables: .* that vary"),
        ({"observables": "gap"}, ArgumentError, "got 'gap', allowed: None for an array"),
        ({"run": 1e200 * NOISE}, ArgumentError, "^run: .* values up to 1e"),
        ({"run": np.where(NOISE > 1, np.nan, NOISE)}, ArgumentError, "^run: .*at index"),
    ],
    "mixing.tv_bound": [
        *values(depth=[2**31], horizon=[2**41], max_layers=[2**30 + 1]),
        *types(depth=[1.5]),
        ({"tail_probability": 0.0}, ArgumentError, "^horizon: "),
        ({"tail_probability": -0.1, "horizon": 9}, ArgumentError, "^tail_probability: "),
        *unfit("weights"),
        ({"chain": SKIP}, ArgumentError, "autocorrelation"),
    ],
    "mixing.RateEstimate": [
        *values(ci=[(-0.1, 0.6)]), *having({"ci": (0.9, 1.6)}, values(value=[1.0, 1.5]))],
    "mixing.relaxation, of values": [
        *values(window=[(3, 6), (20, 3), (-1, 10), (3, 40)]),
        *types(window=[(3.0, 10), (3,), "ab"]),
        ({"run": np.zeros((4, 20))}, ArgumentError, "at least 5 chains and 5 recorded layers"),
        ({"run": np.zeros((9, 4))}, ArgumentError, "at least 5 chains and 5 recorded layers"),
        ({"run": np.ones((9, 20)) * np.arange(20)}, ArgumentError, "^run: .* chains that differ"),
        ({"run": np.zeros((9, 20, 2))}, ArgumentError, "^observable: .* a scalar"),
    ],
    "invariant.sample": values(atol=[0.0, 1e-12]),
    "invariant.check": [
        *types(size=[1e3]),
        ({"chains": 10**13}, TOO_LARGE, "^chains: the result needs"),
        ({"chain": SKIP}, ArgumentError, "^skip: got 1.0.*pass samples= of your own"),
        *unfit("weights", "convolution"),
        ({"chain": Chain(3, 3)}, ArgumentError, "^width: got 3, allowed: an integer >= 4"),
    ],
    "invariant.expectation": [
        *types(f=[3]),
        ({"f": "traces"}, UnknownNameError, "got 'traces'"),
        ({"f": "gram"}, ArgumentError, "^f: "),
        ({"f": lambda gram: gram}, ArgumentError, "f"),
        ({"f": Observable(np.diag, shape=(3,), name="diagonal")}, ArgumentError, "^f: "),
        ({"f": lambda gram: "one"}, ArgumentTypeError, "f"),
        ({"f": lambda gram: 0.0 if gram[0, 1] == 0.0 else math.nan}, ArgumentError, "finite"),
        ({"chain": SKIP}, ArgumentError, "autocorrelation"),
    ],
    "regularity.averages": [*ERGODIC, *values(tau=[-1])],
    "regularity.constant": ERGODIC,
    "regularity.figures": [
        *values(tau=[0], rtol=[-1]),
        *types(widths=[4, "48", [4.0]], gamma=["inf"]),
        ({"widths": []}, ArgumentError, "allowed: at least one width"),
        ({"widths": [4, 0]}, ArgumentError, "widths: got 0, allowed: an integer >= 1"),
        ({"gamma": 1e-3, "depth": 200_000}, ArgumentError, "depth: got 200000, allowed: at least"),
        ({"gamma": 1e-320, "depth": 200_000}, ArgumentError, "depth: got 200000, .* at least"),
    ],
    "regularity.one_step_second_moment": [
        *values(H=[[[math.nan]], [1.0, 2.0, 3.0]]),
        ({"H": np.stack([np.eye(3), np.zeros((3, 3))])}, ArgumentError, "matrices other than zero"),
    ],
    "Activation": [
        *values(kinks=[[np.nan]]),
        *types(function=["relu", 3.0, None, Activation.named("relu")],
               kinks=[3, "00", [1j], ["0"]], name=[3]),
        ({"function": using(threading.Lock())}, ArgumentError, "lock, which can change"),
    ],
    "Activation()": types(x=[["a"], [1j], [None], [object()]]),
    "Chain.bn_residual": values(gamma=[0.0, -1.0, np.nan]),
    "Chain.conv": [
        *values(shape=[(8, 0), (8, 8, 8)], kernel=[(9, 3)], batch=[0, 2**52]),
        *types(shape=[8, (8, 2.5)], kernel=["3x3"]),
        ({"channels": 2**53}, ArgumentError, "^width: "),
        ({"channels": 0}, ArgumentError, "^width: "),
        ({"norm": "layer", "channels": 1}, ArgumentError, "^width: "),
        ({"norm": "batch", "batch": 1, "shape": (1, 1), "kernel": (1, 1)}, ArgumentError, "^batch"),
    ],
    "Chain": [
        *values(batch=[1], bias_variance=[np.nan], gain=[np.inf], skip=[np.nan],
                width=[-1, 2**63, 10**30]),
        *types(batch=["a"], eps=[1j], norm=[None], skip=["a"], weights=[3], width=[2.0, True]),
        *having({"norm": "none"}, values(batch=[0])),
        ({"norm": "batch-uncentered"}, UnknownNameError, "^norm: got .* mean 'batch-uncentred'"),
        ({"activation": "rleu"}, UnknownNameError, "^activation: got 'rleu', .* mean 'relu'"),
        ({"weights": "rademachr"}, UnknownNameError, "^weights: got .* mean 'rademacher'"),
        ({"gain": 0}, ArgumentError, "^gain: got 0, allowed: .*other than 0"),
        ({"gain": 10**400}, ArgumentError, r"^gain: got 10+\.\.\., allowed: a finite real number"),
        ({"norm": "group(5)", "width": 12}, ArgumentError, r"^norm: .* divide the width 12"),
        ({"norm": "group(12)", "width": 12}, ArgumentError, "^width: got 12, .*at least 24 .*no v"),
        ({"norm": "group"}, ArgumentError, "^norm: got 'group', .*in parentheses"),
        ({"norm": "group(0)"}, ArgumentError, "^groups: got 0"),
        ({"norm": "groups(2)"}, ArgumentError, "in parentheses"),
        ({"norm": "leyer"}, UnknownNameError, r"group\(g\) \(did you mean 'layer'\?\)"),
        ({"norm": "instance"}, UnknownNameError, r"rms, group\(g\)$"),
        ({"norm": "layer", "width": 1}, ArgumentError, "^width: got 1, "),
    ],
    "FirstLayer": [
        *values(x=[[[1.0, np.inf]]]),
        *types(x=["a", [[1, 2], [3]]]),
        ({"x": np.ones(3)}, ArgumentError, r"^x: got \(3,\), allowed: .*\(features, batch\)"),
    ],
    "Residual": [
        *values(skip=[0.0, np.nan]),
        ({"source": "status"}, UnknownNameError, "^source: got .* mean 'state'"),
        *types(branch=[BRANCH.first, None], projection=[BRANCH]),
        ({"branch": BRANCH.first.repeat(0)}, ArgumentError, "^branch: .*at least one layer"),
        *[({"branch": branch, "activation": None}, ArgumentError, "^branch: .*no skip connection")
          for branch in (Chain(6, 3, skip=1.0).repeat(1), Network(Residual(BRANCH)))],
        ({"projection": Chain(6, 3, "relu")}, ArgumentError, "^projection: .*activation 'linear'"),
        *types(activation=[3]),
        ({"projection": Chain(5, 3, norm="none")}, ArgumentError, "^projection: .*width 6"),
        ({"projection": CONVOLVED}, ArgumentError, "^projection: .*convolution if"),
    ],
    "SoftRank": types(tau=["a"]),
    "Observable": [
        *values(name=[""], shape=[(-1,)]),
        *types(function=[3], name=[3], shape=[("a",), 3]),
        ({"function": lambda G: 0.0, "name": None}, ArgumentError, "^name: got '<lam.*identifier"),
    ],
    "Distance": [
        *values(star=[np.full((3, 3), np.nan)]),
        *types(star=["a"]),
        ({"star": np.ones((2, 3))}, ArgumentError, r"^star: got \(2, 3\), allowed: .*\(n, n\)"),
    ],
    "Estimate": [
        *values(value=[math.nan, math.inf], stderr=[-0.1, math.nan],
                ci=[(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)]),
        *types(value=["1"], ci=[0.5, (0.1,), "ab"], n=[2.0], method=[None],
               assumes=["No wells.", [1], None]),
    ],
    "Estimate.from_samples": values(samples=[[], [1.0], [[1.0, 2.0]], [1.0, math.nan]]),
    "gram.soft_rank": [*values(tau=[0, -1, math.inf]), *types(width=[3.0])],
    "gram.validate_gram": [
        ({"G": [np.eye(2), INDEFINITE], "name": "initial"}, ArgumentError,
         "^initial: got -1.0, allowed: no negative eigenvalue$")],
    "gram.distance": MISMATCHED,
    "gram.relative_deviation": [
        *MISMATCHED,
        *(({"G": G, "H": np.eye(2)}, SingularGramError, "^G: singular")
          for G in (INDEFINITE, np.zeros((2, 2)))),
    ],
    **{f"gram.{name}": [(WITH_ZERO, ArgumentError, "^G: got 0.0, allowed: matrices of positive tr")]
       for name in ("orthogonality_gap", "rank_bound")},
    "gram.correlation": [(WITH_ZERO, ArgumentError, "^G: got 0.0, allowed: a positive diagonal")],
    "gram.cross_gram": [
        ({"a": np.ones((4, 2)), "b": np.ones((3, 2))}, ArgumentError,
         r"^b: got \(3, 2\), allowed: .* width 4"),
        ({"a": np.ones((3, 4, 2)), "b": np.ones((2, 4, 2))}, ArgumentError, "^b: .*leading axes"),
    ],
    "gram.gram": [
        *types(samples_first=[1]),
        *values(a=[[[math.inf]]]),
        ({"a": [[1e200]]}, ArgumentError, "^a: got .*overflow"),
        ({"a": IMAGES}, ArgumentError, "flatten images"),
        ({"a": IMAGES, "samples_first": True}, ArgumentError, r"\(batch, width\).*flatten images"),
    ],
    "infinite_width.ntk": [
        *values(x=[[1.0, 2.0], [[np.nan]]], skip=[1e200], other=[np.ones((3, 2))], batch=[2]),
        *types(x=["x"], depth=[1.5]),
        *names(method=["exact"]),
        (DEEP | {"activation": lambda x: x * x}, ArgumentError, "derivative"),
        (DEEP | SIMULATED | {"activation": lambda x: x * x}, ArgumentError, "derivative"),
        (DEEP | SIMULATED | BATCHES | {"x": np.ones((3, 4))}, ArgumentError, "without variance"),
        (DEEP | SIMULATED | {"x": np.full((2, 2), 1e200)}, NonFiniteError, "kernel"),
        (DEEP | SIMULATED | {"width": 10**8, "depth": 3}, TOO_LARGE, "narrower"),
        ({"x": MILLION, "other": MILLION}, TOO_LARGE, "^x: "),
        (DEEP | {"x": np.zeros((2, 2)), "norm": "rms"}, ArgumentError, "^x: "),
        (DEEP | {"activation": "exp", "depth": 9}, NonFiniteError, "variance"),
        (DEEP | {"x": np.full((2, 2), 1e200)}, NonFiniteError, "variance"),
        (DEEP | {"x": np.eye(2) + 1e-4, "activation": STAIRS, "bias_variance": 500},
         PartialEstimateError, "rtol"),
        *having(DEEP | SIMULATED, [
            *values(width=[1], chains=[0], activation=[DUAL]), *types(rng=["a"], width=["9"])]),
        *having(DEEP | BATCHES, [
            *values(batch=[0, (2, 2)], activation=[DUAL]), *types(batch=["2"])]),
        (DEEP | BATCHES | {"x": np.eye(9)[:, :8], "batch": 3}, ArgumentError, "^batch: .*divisor"),
        (DEEP | BATCHES | {"x": SAMPLES[:, :6], "batch": 3}, ArgumentError, "^x: .*infinite"),
        (DEEP | BATCHES | {"x": np.ones((3, 4))}, ArgumentError, "^x: got '4 equal samples'"),
        (DEEP | BATCHES | {"x": SAMPLES, "other": np.ones((9, 4))}, ArgumentError, "^other: "),
        (DEEP | BATCHES | {"x": SAMPLES[:, :3], "depth": 2, "skip": 0.7}, ArgumentError,
         "^x: .*infinite"),
        (DEEP | BATCHES | {"x": SAMPLES[:, :5], "depth": 2, "skip": 0.7}, ArgumentError,
         "^x: .*infinite variance"),
        (ACTIVATED | {"activation": "relu"}, ArgumentError, "no variance"),
        (ACTIVATED | {"x": SAMPLES[:, :3]}, ArgumentError, "^x: .*infinite"),
        (ACTIVATED | {"x": np.ones((3, 4))}, ArgumentError, "^x: got '4 equal samples'"),
        (ACTIVATED | {"activation": lambda x: x * x * x}, ArgumentError, "derivative"),
    ],
    "infinite_width.nngp": [
        (ACTIVATED | {"activation": "linear", "depth": 4, "skip": 1e100}, NonFiniteError, "kernel"),
        (ACTIVATED | {"activation": "relu"}, ArgumentError, "no variance"),
    ],
    "infinite_width.convergence": [
        *values(widths=[[16], [16, 16]], depth=[0], width=[9], method=["analytic"]),
        ({"widths": [1, 2]}, ArgumentError, "^widths: got 1,"),
    ],
    "infinite_width.alignment": [
        *values(y=[np.ones(2), np.ones((3, 2, 2))],
                kernel=[np.ones((2, 3)), np.diag([1.0, 1.0, -1.0]), [[1.0, 0.5], [0.0, 1.0]],
                        [[1.0, np.inf], [np.inf, 1.0]]]),
        *types(y=["yes"]),
    ],
    "infinite_width.complexity": [
        ({"kernel": SINGULAR}, SingularGramError, "^kernel: ")],
    "infinite_width.descent": [
        *values(times=[np.array(1.0), [1.0, 0.5], [-1.0]], initial=[np.ones(2)],
                test_initial=[np.ones(3)], test_kernel=[np.ones((3, 2))]),
        *types(initial=["0"]),
        ({"y": [1.0, 2.0, 0.0], "loss": "cross-entropy"}, ArgumentError, "^y: "),
        ({"y": np.eye(3) + np.eye(3, k=1), "loss": "cross-entropy"}, ArgumentError, "^y: "),
        *having({"test_kernel": np.ones((2, 3))}, values(test_initial=[np.ones(3)])),
    ],
    "infinite_width.posterior": [
        ({"test_tangent": np.ones((1, 3))}, ArgumentError, "test_prior"),
        ({"prior": np.diag([1.0, -1.0, 1.0])}, ArgumentError, "^prior: "),
    ],
    "infinite_width.Scaling": [
        *values(q_sigma=[np.nan]), *types(q_sigma=["a"], q_tilde=[(1, 2, 3), None])],
    **{f"infinite_width.Scaling.{name}": types(reference_width=[1.5])
       for name in ("factors", "hidden_rate")},
    "infinite_width.logit_divergence": [
        ({"reference": NOISE[:3]}, ArgumentError, "at least 4 networks"),
        ({"outputs": np.ones((5, 50))}, ArgumentError, "variance of 0"),
    ],
    "infinite_width.train_networks": [
        *values(x=[np.ones(3)], y=[np.array(1.0), [0.5] * 5, np.ones((2, 6)), np.ones((10, 5))],
                steps=[[3, 1]], test=[np.ones((2, 2))], activation=[abs],
                rng=[[np.random.default_rng(0)], [*np.random.default_rng(0).spawn(9), 1]]),
        *names(scaling=["meanfield"]),
        *types(steps=[[]]),
        ({"y": [2.0] * 6}, ArgumentError, "^y: got 2.0, .*probabilities"),
        ({"steps": [0, 400], "loss": "squared", "learning_rate": 1e6, "activation": "linear"},
         NonFiniteError, "outputs of the training"),
    ],
    "random_matrix.lyapunov_ginibre": [
        *types(width=[3.0], k=[1.0, "1", True, [[1], [1, 2]], 10**30]),
        ({"width": 10**9, "k": None}, ArgumentError, "^width: got 1000000000, .*pass k"),
        ({"width": 3, "k": 0}, ArgumentError, "^k: got 0, allowed: integers in 1 … 3"),
        ({"width": 3, "k": 4}, ArgumentError, "^k: got 4, allowed: integers in 1 … 3"),
        ({"width": 3, "k": [1, 4]}, ArgumentError, "^k: got 4, allowed: integers in 1 … 3"),
    ],
    "random_matrix.lyapunov_residual": values(
        gamma=[[1.0, -0.1], [1.0, math.nan], [1.0, 1e200]]),
    "random_matrix.lyapunov_residual_estimate": values(gamma=[0.0], k=[5, 0]),
    "random_matrix.linear_covariance": [
        *values(G0=[np.ones((2, 3, 3))]),
        ({"G0": 1e160 * np.eye(2)}, ArgumentError, "overflow"),
    ],
    "random_matrix.vanilla_deviation": types(depth=[0.5]),
    "random_matrix.log_norm": [
        *values(widths=[[0], [2, 2**62], np.array(-1)], slopes=[(0.0, 0.0), (0, math.inf), (1,)]),
        *types(widths=[[2.5], "5"], slopes=["ab", 1j]),
    ],
    "random_matrix.four_point_vertex": values(depth=[-1], slopes=[(0, 0)]),
    "random_matrix.tangent_kernel_dispersion": values(depth=[-1, 10**8]),
    "random_matrix.shaped_relu": [
        *values(gram=[np.ones((2, 3, 3)), [[1.0, 2.0], [2.0, 1.0]]], time=[-1.0, math.inf],
                paths=[0], steps=[0], slopes=[(1.0,), (math.nan, 0.0)]),
        ({"gram": np.eye(3), "time": 2.0, "steps": 6}, ArgumentError, "^steps: got 6, .* 7"),
    ],
    "mean_field.StationaryBulk": [
        *values(width=[0], batch=[1], b=[0.0], c=[-0.3, 1.0], spread=[0.0]),
        ({"width": 8, "spread": 2.0}, ArgumentError, "^width: got 8, .* 10, v times the batch"),
    ],
    "random_matrix.WishartMoments": values(S=[ASYMMETRIC]),
    "random_matrix.WishartMoments.inverse": [
        ({"S": np.eye(2), "width": 3}, ArgumentError, "^width: got 3, allowed: an integer > 3"),
        ({"S": [np.eye(2), np.ones((2, 2))]}, SingularGramError, r"^S\[1\]: singular"),
        ({"S": [np.eye(2), np.zeros((2, 2))]}, SingularGramError, r"^S\[1\]: singular"),
        ({"S": [[1e-320]]}, ArgumentError, "^S: got .*overflow"),
    ],
    **{f"random_matrix.WishartMoments.{name}": [
        ({"S": 1e200 * np.eye(2)}, ArgumentError, "^S: got 1e.200, .*overflow")
    ] for name in ("square", "trace_of_cube")},
    "random_matrix.MarchenkoPastur": [
        *values(ratio=[0, math.inf, 1e200], variance=[-1.0]), *types(ratio=["1"])],
    **{f"random_matrix.MarchenkoPastur.{name}": [*values(x=[[0.5, math.nan]]), *types(x=["0.5"])]
       for name in ("pdf", "cdf", "sf")},
    "random_matrix.MarchenkoPastur.ppf": [
        ({"q": [0.5, q]}, ArgumentError, f"^q: got {q}") for q in (-0.1, 1.1, math.nan)],
    "random_matrix.MarchenkoPastur.moment": values(order=[-1, 1e3]),
    "random_matrix.MarchenkoPastur.rvs": values(size=[-1]),
    "random_matrix.SingularValueLaw": types(squares=[0.5]),
    "random_matrix.kl": [*DISTANCE, APART],
    "random_matrix.total_variation": [*DISTANCE, APART, *values(atol=[math.nan])],
    "random_matrix.wasserstein": DISTANCE,
    "bounds.gaussian.total_variation": [
        *DISTANCE,
        *types(rows=["ten"]),
        ({"S1": [[1.0, 0.0]], "S2": ONE}, ArgumentError, "^S1: "),
    ],
    "bounds.bridging.corollary_8": [
        ({"star": [[1.0]]}, ArgumentError, "^star: "),
        ({"star": np.zeros((2, 2))}, SingularGramError, "^star: "),
    ],
    "bounds.bridging.lemma_5": [
        *values(batch=[5]),
        *types(inverse_norm=[1]),
        ({"star": np.ones((3, 3))}, SingularGramError, "^star: "),
    ],
    "bounds.bridging.poster_theorem": [({"star": None}, ArgumentTypeError, "^condition: ")],
    "bounds.bridging.distortion": [
        *values(curvature=[-1, math.inf]),
        *types(batch=[2.5]),
        ({"activation": narrow, "batch": 5, "curvature": 0.1}, ArgumentError, "^curvature: "),
        ({"activation": two_needles, "batch": 5, "curvature": 0}, ArgumentError, "^curvature: "),
        ({"activation": math.tanh, "batch": 5, "curvature": 0.1}, ArgumentError, "^curvature: "),
        ({"activation": math.tanh, "batch": 5}, ArgumentTypeError, "^curvature: "),
        *having({"batch": 5, "curvature": 1}, values(activation=[math.log, pole])),
    ],
    "bounds.limits.arora_error": values(complexity=[-0.1]),
    "bounds.limits.du_residual": values(time=[-1.0], learning_rate=[math.nan]),
    "bounds.limits.du_width": [
        *values(samples=[0], least_eigenvalue=[0.0]), *types(samples=[2.5])],
    "bounds.limits.song_yang_width": values(delta=[1.0], constant=[0.0]),
    "bounds.orthogonalizes.theorem_1": [
        *values(depth=[[1, 2.5]], width=[2.0**60], alpha=[0.0, math.nan]),
        *types(width=[*NO_NUMBERS, [True]]),
        ({"batch": [2, 4], "alpha": 0.4}, ArgumentError, "^alpha: "),
        ({"depth": [1, 2], "alpha": [0.1, 0.1, 0.1]}, ArgumentError, "^alpha: "),
    ],
    "bounds.orthogonalizes.theorem_5": [
        *values(v_hat=[-0.1, 0.6]),
        ({"v_hat": [0.1, 0.2], "width": [10, 20, 30]}, ArgumentError, "^width: "),
    ],
    "bounds.orthogonalizes.lemma_8": [
        ({"v_hat": [0.1, 0.2], "batch": [2, 2, 2]}, ArgumentError, "^batch: ")],
    "bounds.orthogonalizes.lemma_6": types(width=[*NO_NUMBERS, [True]]),
    "bounds.orthogonalizes.shortfall": [
        *values(eigenvalues=[np.array(1.0), [], [0.0, 0.0]]),
        *types(eigenvalues=[*NO_NUMBERS, [True]]),
    ],
    "bounds.orthogonalizes.expected_shares": values(eigenvalues=[[1.0, -1e-9]]),
    "bounds.orthogonalizes.wasserstein_squared": values(eigenvalues=[[1.0, math.inf]]),
    "bounds.orthogonalizes.one_step_variance": [
        ({"eigenvalues": [[1.0, 2.0]] * 3, "width": [10, 20]}, ArgumentError, "^width: ")],
    "bounds.orthogonalizes.stationary_squared_distance": values(batch=[1]),
    "bounds.rank_collapse.lemma_1": [
        *values(M=[INDEFINITE, np.zeros((2, 2)), [1.0, 2.0]]),
        *types(M=NO_NUMBERS, tau=NO_NUMBERS),
        ({"M": 2 * np.eye(2), "tau": 0.5}, ArgumentError, "^M: "),
        ({"M": np.stack([np.eye(2), 3 * np.eye(2)]), "tau": [0.5, 0.1]}, ArgumentError, "^M: "),
        *having({"M": np.eye(2)}, values(tau=[-0.1, 1.5])),
        *having({"M": TRIPLE}, values(tau=[[0.1, 0.2]])),
    ],
    "bounds.rank_collapse.lemma_5_gamma": values(bound=[0.5]),
    "bounds.rank_collapse.lemma_7": [
        *values(M=[2 * np.eye(2)], gamma=[-0.1, 1.5]),
        *types(gamma=NO_NUMBERS),
        ({"M": TRIPLE, "gamma": [0.1, 0.2]}, ArgumentError, "^M: "),
    ],
    "bounds.rank_collapse.proposition_8": values(
        eigenvalues=[[1.0, 2.0], [2.5, -0.5], [1e308, 1e308], [1.5, math.nan]]),
    "bounds.rank_collapse.lemma_13": [
        *values(width=[3.5], alpha=[1.0]), *types(width=NO_NUMBERS)],
    "bounds.rank_collapse.theorem_14": values(alpha=[-0.1], tau=[2.0]),
    "bounds.rank_collapse.corollary_15": [
        ({"width": [3, 4], "alpha": [0.5, 0.5, 0.5]}, ArgumentError, "^alpha: ")],
    "MeanField.step": [
        *values(rtol=[-1e-3]),
        *types(G=[[["a"] * 3] * 3]),
        *(({"G": G}, ArgumentError, f"^G: .*{said}") for G, said in MATRICES),
    ],
    "MeanField.trajectory": [
        *values(rtol=[-1e-3]),
        *types(depth=[2.0]),
        ({"depth": 10**9}, TOO_LARGE, "^depth"),
        *(({"G0": G}, ArgumentError, f"^G0: .*{said}") for G, said in MATRICES),
        *(({"G0": None, "covariance": G}, ArgumentError, f"^covariance: .*{said}")
          for G, said in MATRICES),
        ({"covariance": np.eye(3)}, ArgumentError, "^covariance: .*None beside it"),
        ({"G0": None}, ArgumentError, "^covariance: got None, .*in place of G0"),
    ],
    "MeanField.trajectory, fluctuations": types(fluctuations=[1]),
    "MeanField.step, of a chain": [
        # With a skip connection, rows are Gaussian unless N(h) is kept with N over the batch.
        ({"chain": SKIP}, ArgumentError, "^skip: .*not Gaussian.*bnmc.simulate measures"),
        *(({"chain": Chain(8, 3, skip=0.5, **options)}, ArgumentError, "^skip: .*covariance=")
          for options in ({"norm": "none"}, {"norm": "rms"}, {"order": "pre-activation"})),
        ({"chain": Chain(6, 3, "relu", order="activation-norm")}, ArgumentError,
         "^activation: .*without eps"),
        ({"chain": Chain(6, 3, norm="batch-uncentred"), "G": np.zeros((3, 3))},
         ArgumentError, "samples not all 0"),
        ({"chain": Chain(10, 3, norm="layer"), "G": np.diag([1.0, 0.0, 1.0])},
         ArgumentError, "^G: .*diagonal has no 0"),
        ({"chain": Chain(6, 3, lambda x: math.log(x) if x > 0 else math.nan)},
         ArgumentError, "activation"),
    ],
    "MeanField.fixed_point": [
        *values(rtol=[0.0, -1.0, math.nan]),
        *unfit("norm", "skip"),
        *(({"chain": Chain(6, 3, norm=norm)}, ArgumentError,
           r"^norm: got .* use bnmc\.mean_field\.CorrelationMap\.of\(chain\)\)$")
          for norm in ("layer", "none")),
        ({"chain": Chain.conv(6, 2, shape=(2, 2), kernel=(2, 2), norm="layer")}, ArgumentError,
         r"CorrelationMap\.of\(chain\) of the fully connected chain, which has the same fixed"),
        ({"chain": Chain(6, 3, eps=1e-5)}, ArgumentError, "^eps: "),
        ({"chain": BIASED}, ArgumentError, "^bias_variance: got 0.1, allowed: 0 .*trajectory"),
        ({"chain": AFTER}, ArgumentError, "^order: got 'activation-norm', .*trajectory"),
        ({"chain": Chain(6, 1, norm="batch-uncentred")}, ArgumentError, "batch"),
        ({"chain": Chain(6, 2, "abs")}, ArgumentError, "^activation: "),
        ({"chain": Chain(6, 4, CONSTANT, norm="batch-uncentred")}, ArgumentError, "constant"),
        *(({"chain": Chain(6, 5, sigma)}, ArgumentError, "^activation: ") for sigma in FLAT),
    ],
    "MeanField.fluctuations": [
        *values(rtol=[0]),
        *(({"chain": Chain(100, 4, activation, **options)}, ArgumentError, said)
          for options, activation, said in (
              ({"norm": "none"}, "relu", r"^norm: .*tends to 0.*trajectory\(.*fluctuations=True"),
              ({"norm": "none", "gain": 2**0.5}, "relu", "random walk"),
              ({"norm": "none", "gain": 2.0}, "relu", "diverges"),
              (LAYER, "linear", "^activation: .*every correlation is a fixed point"),
              ({**LAYER, "skip": 0.5}, "tanh", r"^skip: .*bnmc\.simulate"),
              ({**LAYER, "weights": "haar"}, "tanh", "^weights: "),
              ({"weights": "haar"}, "tanh", "^weights: "),
          )),
        ({"chain": Chain(100, 1, "tanh", norm="layer")}, ArgumentError, "batch"),
        *(({"chain": Chain.conv(8, 1, shape=(1, 4), kernel=(1, 3), norm=norm)}, ArgumentError,
           "^convolution: .*fluctuations=True") for norm in ("batch", "layer")),
    ],
    "mean_field.limit": [({"activation": CONSTANT}, ArgumentError, "constant")],
    "mean_field.stability": [
        *values(batches=[[], [1]], norm=["none", "layer"]),
        *types(batches=[[4, 1.5], "48", 8, [True]]),
        ({"activation": "slu"}, UnknownNameError, "did you mean 'silu'"),
    ],
    "mean_field.atlas": types(activations=["tanh", 3, Activation.named("tanh")]),
    "mean_field.block_symmetric": [
        *having({"batch": 8}, values(minority=[0, 5])),
        *types(minority=[1.0]),
        *having({"batch": 8}, values(activation=FLAT)),
    ],
    "mean_field.partial_collapse, of eight": [
        *values(distinct=[0, 7], activation=FLAT),
        *having({"distinct": 1}, values(batch=[2])),
    ],
    "mean_field.edge_of_chaos": [
        ({"activation": activation, "bias_variance": bias, **options}, ArgumentError, said)
        for activation, bias, options, said in (
            ("relu", 0.1, {}, "single point"),
            ("relu", 0.0, LAYER, "every network is critical"),
            ("tanh", 0.0, LAYER, "every network is chaotic"),
            ("sigmoid", 0.0, {"norm": "rms"}, "every network is ordered"),
            ("relu^2", 0.0, {}, "does not pass here"),
            ("step", 0.1, {}, "every network is chaotic"),
            ("tanh", 0.0, {"norm": "batch"}, "MeanField"),
        )
    ],
    "mean_field.isometry_rate": [({"activation": CONSTANT}, ArgumentError, "constant")],
    "CorrelationMap": [({"norm": "batch"}, ArgumentError, "MeanField")],
    "CorrelationMap.of": [
        ({"chain": Chain(10, 2)}, ArgumentError, "MeanField"),
        ({"chain": Chain.conv(8, 1, shape=(1, 3), kernel=(1, 3), norm="rms")}, ArgumentError,
         "convolution: .*MeanField.*step"),
    ],
    "CorrelationMap()": [
        ({"variance": None}, ArgumentError, "tends to 0"),
        ({"correlation": 1.5}, ArgumentError, ">= -1 and <= 1"),
    ],
    "infinite_width.dual": [
        ({"activation": "relu2"}, UnknownNameError, r"silu, .*cos.*\(did you mean 'relu\^2'\?\)"),
        ({"activation": Activation(np.tanh, derivative=np.cos)}, ArgumentError, "derivative"),
    ],
    "infinite_width.Dual": [
        *types(q=["1"], rtol=["word"]),
        ({"p": -1.0, "c": 0.0}, ArgumentError, ""),
        ({"c": 1.001}, ArgumentError, ""),
        ({"q": math.nan}, ArgumentError, ""),
        ({"p": [1.0, 1.0], "q": [1.0, 1.0, 1.0]}, ArgumentError, ""),
    ],
    "testing.chains": types(widths=[3]),
    "testing.batches": [
        *types(kinds=["generic"]),
        ({"width": Chain(3, 4), "batch": 4}, ArgumentError, "^batch: "),
        ({"kinds": ("colinear",)}, UnknownNameError, "^kinds: "),
    ],
    "testing.roofline": types(run=[3]),
    "testing.from_images": values(shape=[(2, 0)]),
    "testing.gram_matrices": types(regular=[1]),
    "simulate, five layers": [
        NO_DEPTH,
        *values(depth=[2**32], chains=[2**28 + 1], burn_in=[6]),
        *types(depth=[2.0], chains=[1.5], inputs=["a"], every=[1.0], sampler=[None],
               reduce=[3, None, [0]], observables=[3, None], initial=[None, {}, [[1, 2], [3]]],
               out=[[3], OUT]),
        ({"rng": -1}, ArgumentTypeError, "^rng: got -1, allowed: .*a seed >= 0"),
        ({"dtype": np.int64}, UnknownNameError, "^dtype: got 'int64', .*float64, float32"),
        ({"dtype": "double precision"}, ArgumentTypeError, "^dtype: got 'double.*'float64'"),
        ({"sampler": "weight"}, UnknownNameError, "^sampler: got .* mean 'weights'"),
        ({"backend": "cdua"}, UnknownNameError, "^backend: got .* mean 'cuda'"),
        ({"reduce": ["chain", "layers"]}, UnknownNameError, "^reduce: got .* mean 'layer'"),
        ({"initial": "gausian"}, UnknownNameError, "^initial: got .* mean 'gaussian'"),
        ({"observables": ["gra"]}, UnknownNameError, "^observables: got .* mean 'gram'"),
        ({"observables": [np.trace, Observable(np.linalg.det, name="trace")]}, ArgumentError,
         "^observables: got 'trace', allowed: .*once"),
        ({"observables": {"size": Observable(np.trace)}}, ArgumentError,
         "^observables: got 'size', allowed: .*'trace'"),
        ({"observables": "cross_gram"}, ArgumentError, "^observables: got 'cross_.*inputs="),
        ({"observables": "log_pivots"}, ArgumentError, "^observables: got 'log_.*Wishart"),
        ({"observables": Observable(np.trace, (3,))}, ArgumentError,
         r"^observable trace: got \(\), allowed: .*\(3,\)"),
        ({"observables": Distance(np.eye(4))}, ArgumentError, r"\(4, 4\).*\(3, 3\)"),
        ({"out": {"gram": OUT[..., 0]}}, ArgumentError, r"^out: got \(1, 6, 3\), .* for 'gram'"),
        ({"out": {"gram": OUT.astype("f4")}}, ArgumentTypeError, "^out: got a float32.*float64"),
        ({"out": {"gram": np.broadcast_to(0.0, OUT.shape)}}, ArgumentError,
         "^out: got .*a writable array"),
        ({"out": {"grams": OUT}}, ArgumentError, "^out: got 'grams', allowed: .*gram"),
        ({"out": {"gram": OUT}, "reduce": "layer"}, ArgumentError, r"^out: got \['gram'\].*reduce"),
        ({"initial": np.ones}, ArgumentTypeError, "^initial: got <function.* an array"),
        ({"initial": np.full((6, 3), "a")}, ArgumentTypeError, "^initial: got a <U1 array.* real"),
        ({"initial": START + 0j}, ArgumentTypeError, "^initial: got a complex128 array.* real"),
        ({"initial": START > 0}, ArgumentTypeError, "^initial: got a bool array.* real"),
        ({"initial": START[0]}, ArgumentError, r"^initial: got \(3,\), .*\(..., width, batch\)"),
        ({"initial": START.T}, ArgumentError, r"^initial: got \(3, 6\), .*\(6, 3\)"),
        ({"initial": START[:5]}, ArgumentError, r"^initial: got \(5, 3\), .*bnmc.FirstLayer"),
        ({"initial": START[:0]}, ArgumentError, r"^initial: got \(0, 3\), .*no axis may be empty"),
        ({"initial": THREE, "chains": 4}, ArgumentError, r"got \(3, 6, 3\), .*\(4, 6, 3\)"),
        ({"initial": THREE, "inputs": 2}, ArgumentError, r"got \(3, 6, 3\), .*\(2, 6, 3\)"),
        ({"initial": START, "inputs": 2}, ArgumentError, "^initial: .*inputs, width, batch"),
        ({"initial": spoilt(np.nan)}, ArgumentError, r"^initial: got nan, .*index \(4, 1\)"),
        ({"initial": spoilt(-np.inf)}, ArgumentError, r"^initial: got -inf, .*index \(4, 1\)"),
        ({"initial": spoilt(np.longdouble("1e4000"))}, ArgumentError, "^initial: got inf, .*index"),
        ({"initial": FirstLayer(START[:, :2])}, ArgumentError, r"got \(6, 2\), .*batch = 3"),
        ({"initial": FirstLayer(START), "inputs": 1}, ArgumentError,
         r"^initial: got \(6, 3\), .*\(inputs, features, batch\)"),
        ({"initial": FirstLayer(START[None])}, ArgumentError, r"\(1, 6, 3\), .*\(features, b"),
        ({"chain": UNIFORM, "sampler": "conditional"}, ArgumentError,
         "^sampler: got 'conditional', .*'weights' or 'auto'"),
        ({"chain": drawing(lambda rng, shape: np.ones(shape)), "sampler": "conditional"},
         ArgumentError, "^sampler: got 'conditional', .*'weights' or 'auto'"),
        *types(store=[3, b"run.zarr"]),
        *values(store=["run.nc", "nowhere/run.zarr"]),
        ({"store": "a\0b.zarr"}, ArgumentTypeError, "^store"),
        ({"observables": ["gram", "scaled_gram"], "out": {"gram": OUT, "scaled_gram": OUT}},
         ArgumentError, "^out: got 'gram, scaled_gram', .* share no memory"),
        *[({"chain": Chain(width, 2, "relu", weights="uniform")}, ArgumentError,
           "^width: got .*, allowed: at most 4294967295") for width in (2**32, 2**33)],
        ({"chain": Chain.conv(2**32 // 9 + 1, 1, shape=(3, 3)), "sampler": "weights"},
         ArgumentError, "^width"),
        ({"chain": Chain.conv(16, 50, "tanh", shape=(64, 64))}, TOO_LARGE, "."),
        ({"chain": of(np.log)}, ArgumentError, "^activation: got 'mine', .*it is nan at -4"),
        ({"chain": of(lambda x: x + "a")}, ArgumentError,
         "^activation: got 'mine', .*(Invalid use|No implementation|[Cc]annot)"),
    ],
    "simulate, a layer": [
        *[({"observables": {"mine": using(thing)}}, kind, "^observable mine")
          for thing, kind in ((1j, ArgumentTypeError), ("a", ArgumentTypeError),
                              (None, ArgumentTypeError), ([1.0, [2.0]], ArgumentTypeError))],
        *[({"chain": drawing(lambda rng, shape, f=function: f(shape))}, ArgumentError,
           f"^weights: .*{pattern}")
          for function, pattern in (
              (lambda shape: np.ones(3), r"\(3,\).*\(6, 6\)"),
              (lambda shape: np.ones((*shape, 1)), r"\(6, 6, 1\).*\(6, 6\)"),
              (lambda shape: np.full(shape, np.nan), "not finite.*finite"),
              (lambda shape: np.full(shape, 1j), "complex128.*real numbers"),
              (lambda shape: None, "object.*real numbers"),
              (lambda shape: RAGGED, "real numbers"),
          )],
    ],
    "testing.assert_same_law": [
        ({"chain": Chain(3, 5, weights="uniform")}, ArgumentError, "^width: "),
        ({"chain": Chain(20, 4, norm="rms", weights="haar", bias_variance=0.1)}, ArgumentError,
         "^bias_variance: .*orthogonal weights"),
        ({"chain": Chain(8, 4, weights="uniform", convolution=Convolution((2, 2), (2, 2)))},
         ArgumentError, "^weights: .*'gaussian' for a convolution"),
        ({"step": lambda h: h[1:]}, ArgumentError, r"^step\(h\): "),
        ({"step": lambda h: h * np.nan}, ArgumentError, r"^step\(h\): "),
        ({"step": lambda h: np.full_like(h, 1e31)}, ArgumentError, r"^step\(h\): "),
        ({"step": lambda h: "text"}, ArgumentTypeError, r"^step\(h\): "),
    ],
}  # fmt: skip
