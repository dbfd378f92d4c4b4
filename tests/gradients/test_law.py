"""The joint law of forward and backward pass, against networks with real weights and readouts.

Each test compares networks of each kind by two-sample Kolmogorov-Smirnov tests: of the gradient
norm of each layer, of sums and differences over layers, and of entries of G, δᵀδ and hᵀδ.  Each of
the k tests has the level 1e-6 / k.  For k = 20 normal variables are told apart if their means
differ by 0.47 standard deviations (500 networks), 0.17 (4000), 0.10 (10,000) or 0.08 (20,000, the
slow cases).

Two faults were put into the networks.  A factor of 1.05 per layer is seen of 8000 networks.
Backward weights that are independent of the forward ones are seen of 8000 networks whose rank is
below the batch, and of 4000 with orthogonal weights; hence the numbers of `FAST`.

The networks of a GPU are few, because Numba's simulator takes about a second for each.
"""

from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from gradient_runs import ALL, assert_same_law
from laws import convolved, haar
from numpy_network import Block, Networks, network_of
from oracle import FALSE_ALARM
from scipy import special, stats
from slow_cases import slow, some

import bnmc
from bnmc import Chain
from bnmc.chain.start import Representation
from bnmc.gradients import parts
from bnmc.gradients.directions import GivenRows, NormalRows, Readout
from bnmc.gradients.network import NetworkTask
from bnmc.gradients.observables import as_gradient_observables
from bnmc.implicit import GaussianMatrix, HaarMatrix
from bnmc.simulation.runs import Recorded, Run

MANY = 20_000
#: Networks of a GPU, and networks in NumPy that they are compared with.
OF_GPU, OF_NUMPY = 300, 10_000
#: Networks of the cases that are not slow.
FAST = {
    "centred": 4_000,
    "rank below batch": 8_000,
    "inputs": 4_000,
    "haar, width = rank": 4_000,
    "haar, skip": 2_000,
    "cross-entropy": 4_000,
    "haar, readout": 1_000,
}

RNG = np.random.default_rng(8)
TWINS = np.repeat(RNG.standard_normal((5, 2)), [2, 1], axis=1)
COLLINEAR = np.outer(RNG.standard_normal(4), [1.0, -2.0, 0.5])


CASES = {
    "centred": (Chain(5, 3, "tanh"), 3, None, 1),
    "rank below batch": (Chain(3, 6, "tanh"), 3, None, 1),
    "relu": (Chain(12, 4, "relu", gain=0.7), 3, None, 1),
    "wide": (Chain(40, 3, "leaky_relu"), 3, None, 1),
    "uncentred": (Chain(6, 3, "sin", norm="batch-uncentred"), 3, None, 1),
    "eps": (Chain(6, 3, "tanh", gain=0.5, eps=0.3), 3, None, 1),
    "none": (Chain(6, 4, "tanh", norm="none", gain=1.5), 3, None, 1),
    "linear": (Chain(3, 5, "linear", norm="none"), 3, None, 1),
    "skip": (Chain(5, 3, "tanh", skip=0.8, gain=0.6), 3, None, 1),
    "skip without norm": (Chain(5, 2, "leaky_relu", norm="none", skip=0.8), 3, None, 1),
    "inputs": (Chain(5, 3, "tanh"), 2, None, 2),
    "twins": (Chain(5, 3, "tanh", norm="none"), 3, TWINS, 1),
    "collinear": (Chain(4, 3, "linear", norm="none"), 2, COLLINEAR, 1),
    "convolution": (convolved(4, 3, (1, 3), (1, 2)), 3, None, 1),
    "convolution, rank below batch": (convolved(2, 8, (2, 2), (2, 1)), 3, None, 1),
    "convolution, inputs": (
        convolved(3, 4, (2, 2), (2, 2), norm="none", skip=0.7, gain=1.3), 2, None, 2
    ),
    "haar, width = rank": (haar(4, 4, norm="none"), 2, None, 1),
    "haar, one direction left": (haar(3, 3, "sin"), 3, None, 1),
    "haar, fewer directions left than samples": (haar(6, 4, norm="batch-uncentred"), 3, None, 1),
    "haar, rank below batch": (haar(3, 6), 3, None, 1),
    "haar, skip": (haar(6, 3, skip=0.8, gain=0.6), 3, None, 1),
    "haar, inputs": (haar(6, 3, gain=0.5, eps=0.3), 2, None, 2),
}  # fmt: skip


def features(log_norms, gram, delta, hidden):
    """Return numbers of each network whose laws are compared, (networks, numbers)."""
    scale = np.trace(delta, axis1=-2, axis2=-1)[..., None, None]
    hidden = hidden / np.sqrt(scale)
    parts = [
        log_norms,
        log_norms[:, :1] - log_norms[:, 1:],
        log_norms.sum(axis=1, keepdims=True),
        gram[:, -1, 0, 0, None] + log_norms[:, :1],
        (delta / scale)[:, :, 0, 0],
        (delta / scale)[:, :, 0, 1],
        hidden[:, :, 0, 0],
        hidden[:, :-1, 0, 1] + log_norms[:, 1:],
    ]
    return np.concatenate(parts, axis=1)


def of_run(run):
    return run.log_gradient_norm, run.gram, run.delta_gram, run.hidden_delta


def of_networks(networks, delta):
    deltas, gradients = networks.backward(delta)
    logs = [0.5 * np.log((each**2).sum(axis=(1, 2))) for each in gradients]
    layers = range(1, networks.depth + 1)
    hidden = map(networks.hidden, layers)
    return (
        np.stack(logs, axis=1),
        np.stack([networks.gram(layer) for layer in layers], axis=1),
        np.stack([each.swapaxes(1, 2) @ each for each in deltas], axis=1),
        np.stack([h.swapaxes(1, 2) @ each for h, each in zip(hidden, deltas, strict=True)], axis=1),
    )


def assert_law_of(networks, delta, run):
    ours = of_run(run)
    theirs = of_networks(networks, delta)
    # One mean for both, so that the laws and not the shapes are compared.
    middle = theirs[0].mean()
    first = features(ours[0] - middle, *ours[1:])
    second = features(theirs[0] - middle, *theirs[1:])
    assert_same_law(first, second)


def cases(names):
    """Return names and numbers of networks."""
    few = [pytest.param(name, FAST[name], id=name) for name in names if name in FAST]
    more = [
        pytest.param(name, MANY, id=f"{name}, {MANY}", marks=pytest.mark.slow) for name in names
    ]
    return pytest.mark.parametrize(("name", "count"), few + more)


def simulated(chain, depth, count, initial=None, inputs=1, **options):
    start = {}
    if initial is not None:
        start["initial"] = initial
    if inputs > 1:
        start["inputs"] = inputs
    return bnmc.backpropagate(
        chain, depth, chains=count, observables=ALL,
        rng=5, sampler="conditional", threads=2, **start, **options,
    )  # fmt: skip


# Convolutions have slow cases alone: their layers are made by NumPy, in 4 ms a network, and
# `test_network_pass.py` compares gradients of drawn kernels to rounding.
@cases(CASES)
def test_normal_directions(name, count):
    chain, depth, initial, inputs = CASES[name]
    rng = np.random.default_rng(17)
    networks = Networks(chain, depth, count, rng, initial, inputs)
    delta = rng.standard_normal(networks.h[-1].shape)
    assert_law_of(networks, delta, simulated(chain, depth, count, initial, inputs))


@pytest.mark.slow
@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_convolutions_on_a_gpu():
    """300 networks of the GPU against 10,000 with weights, by 12 exact tests at 1e-6 / 12 each.

    A distance of 0.17 of two distribution functions fails: means of normal variables that differ by
    0.43 standard deviations.  If NumPy's networks have a fault in their backward pass, the test
    fails in so many of 20 runs:

    ==========================================  ====
    factor of 1.25 or 1.2 of the gradient of a  20
    factor of 1.15                              16
    one of four taps is missing                 19
    backward weights independent of forward     0
    ==========================================  ====

    `test_on_gpu.py` compares with the CPU for the same normals, and finds the last one.
    """
    chain = convolved(3, 12, (2, 3), (2, 2))
    rng = np.random.default_rng(29)
    networks = Networks(chain, 2, OF_NUMPY, rng)
    delta = rng.standard_normal(networks.h[-1].shape)
    run = simulated(chain, 2, OF_GPU, backend="cuda")
    assert run.backend == "cuda"
    assert_law_of(networks, delta, run)


TARGETS = np.eye(3)[[0, 2, 1]]

READOUTS = {
    "cross-entropy": (
        Chain(5, 3, "tanh"), 3, {"loss": "cross-entropy", "labels": [0, 2, 1]},
        lambda f: (special.softmax(f, axis=-1) - TARGETS) / 3,
    ),
    "squared, with gain": (
        Chain(6, 3, "sin", norm="batch-uncentred", gain=3.0), 2,
        {"loss": "squared", "labels": TARGETS}, lambda f: (f - TARGETS) / 3,
    ),
    "cubes, with a skip connection": (
        Chain(5, 3, "tanh", norm="none", skip=0.5), 2,
        {"loss_gradient": lambda f: f**3, "classes": 4}, lambda f: f**3,
    ),
    "haar, readout": (
        haar(5, 3, norm="none", skip=0.5, gain=1.5), 2,
        {"loss_gradient": lambda f: f**3, "classes": 4}, lambda f: f**3,
    ),
    "means over pixels": (
        convolved(4, 6, (1, 2), (1, 2)), 2,
        {"loss": "cross-entropy", "labels": [0, 2, 1]},
        lambda f: (special.softmax(f, axis=-1) - TARGETS) / 3,
    ),
    "more classes than rows": (
        Chain(2, 3, "tanh"), 2, {"loss": "cross-entropy", "labels": [0, 2, 1]},
        lambda f: (special.softmax(f, axis=-1) - TARGETS) / 3,
    ),
}  # fmt: skip


@cases(READOUTS)
def test_losses_of_a_readout(name, count):
    chain, depth, options, gradient = READOUTS[name]
    rng = np.random.default_rng(23)
    networks = Networks(chain, depth, count, rng)
    classes = options.get("classes", 3)
    readout = rng.standard_normal((count, classes, chain.width)) / np.sqrt(chain.width)
    delta = networks.delta_of_outputs(readout, gradient(networks.outputs(readout)))
    assert_law_of(networks, delta, simulated(chain, depth, count, **options))


# --- layers that differ

UNEQUAL = {
    # A scale that is hidden before one that is not, and a skip connection that ends; weights that
    # are orthogonal in one layer; biases that a norm subtracts, and others.
    "norms": [
        Chain(6, 3, norm="none"),  # the input
        Chain(7, 3, "tanh", norm="none", gain=1.3, bias_variance=0.3),
        Chain(5, 3, "leaky_relu", gain=0.8, bias_variance=0.2),
        Chain(5, 3, "tanh", skip=0.7, gain=0.6),
        Chain(9, 3, "sin", norm="batch-uncentred", eps=0.1, bias_variance=0.2, gain=0.5),
        haar(9, 3, norm="batch-uncentred", eps=0.2, gain=1.2),
        Chain(4, 3, "sin", norm="none", gain=1.1),
    ],
    # The scale is split off, with another exponent for each gain.
    "scales": [
        Chain(4, 3, norm="none"),
        Chain(7, 3, "leaky_relu", norm="none", gain=3000.0),
        Chain(6, 3, "linear", norm="none", gain=1.5),
        Chain(6, 3, "leaky_relu", norm="none", gain=0.002, skip=0.001),
        Chain(4, 3, "leaky_relu", norm="none", gain=600.0),
    ],
    # One call of the kernel makes all these layers, with a spec for each.
    "one stage": [
        Chain(8, 3, norm="none"),
        Chain(7, 3, "tanh", gain=1.4),
        Chain(12, 3, "tanh", norm="none", gain=0.6),
        Chain(5, 3, "tanh", norm="batch-uncentred", gain=0.8, eps=0.2),
        Chain(5, 3, "tanh", skip=0.7, gain=0.5),
        Chain(9, 3, "tanh", norm="none", gain=1.2),
    ],
}
#: Task, path, direction, precision, and networks.
KINDS = {
    "normal": (parts.Task, "conditional", "normal", "float64", 4_000),
    "given": (parts.Task, "conditional", "given", "float32", 4_000),
    "readout": (parts.Task, "conditional", "readout", "float64", 4_000),
    "weights": (NetworkTask, "weights", "normal", "float64", 1_000),
}
#: Kernels of layers with norms compile for 15 seconds in float32.  Gradients of drawn weights are
#: those of autograd in `simulation/test_layers_that_differ.py`.  A readout sees the last layer
#: alone, as in `test_losses_of_a_readout`; a given direction has the scales of a normal one.
LATER = [
    ("norms", "given"), ("norms", "weights"), ("norms", "readout"), ("scales", "normal"),
    ("scales", "readout"), ("scales", "weights"),
]  # fmt: skip


def of_task(kind, path, chains, count, direction, dtype="float64"):
    """A run through layers of these chains from one start, with the attributes of `of_run`."""
    run = Run(
        network_of(chains), path, count, None, dtype, 5,
        recorded=Recorded(1, 1, len(chains) - 1),
    )  # fmt: skip
    names = ("gram", "delta_gram", "hidden_delta")
    rows = start_of(chains)
    start = Representation(rows[None], rows[None])
    result = kind(run, direction, as_gradient_observables(names))(start, 0, count)
    return SimpleNamespace(
        log_gradient_norm=result[parts.NORMS], **{name: result[name] for name in names}
    )


def start_of(chains):
    return np.random.default_rng(3).standard_normal((chains[0].width, chains[0].batch))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("one stage", "normal"),
        *(slow(*case) if case in LATER else case for case in product(("norms", "scales"), KINDS)),
    ],
)
def test_layers_that_differ(name, what):
    kind, path, direction, dtype, count = KINDS[what]
    chains, rng = UNEQUAL[name], np.random.default_rng(31)
    networks = Networks(chains, len(chains) - 1, count, rng, start_of(chains))
    delta = rng.standard_normal(networks.h[-1].shape)
    if direction == "given":
        of_top = GivenRows(delta.swapaxes(1, 2).copy())
        delta = delta[rng.permutation(count)]
    elif direction == "readout":
        of_top = Readout(4, lambda f: f**3, "cubes")
        readout = rng.standard_normal((count, 4, chains[-1].width)) / np.sqrt(chains[-1].width)
        delta = networks.delta_of_outputs(readout, networks.outputs(readout) ** 3)
    else:
        of_top = NormalRows()
    assert_law_of(networks, delta, of_task(kind, path, chains, count, of_top, dtype))


#: Networks for `backpropagate`: rows one by one, two passes over rows, and weights of two laws.
PUBLIC = {
    "plain": (UNEQUAL["one stage"], "conditional", 4_000),
    "norms": (UNEQUAL["norms"], "weights", 1_000),
    "features": (
        [
            Chain(8, 3, norm="none"), Chain(9, 3, "tanh", norm="layer", bias_variance=0.2),
            Chain(7, 3, "tanh", gain=2.0, order="pre-activation"), Chain.resnet(7, 3, "tanh"),
            Chain(5, 3, "tanh", norm="rms", order="activation-norm"),
        ],
        "conditional", 1_000,
    ),
    "blocks": (
        [
            Chain(8, 3, norm="none"), Chain(9, 3, "tanh", order="pre-activation", gain=2.0),
            Block([Chain(6, 3, "tanh", norm="rms"),
                   Chain(9, 3, "tanh", order="pre-activation", bias_variance=0.4)], skip=0.8),
            Block([Chain(8, 3, "tanh", norm="none"), Chain(5, 3, "tanh", norm="layer")],
                  Chain(5, 3, norm="none", gain=1.3, bias_variance=0.2)),
        ],
        "conditional", 500,
    ),
    "blocks by weights": (
        [
            Chain(8, 3, "tanh", norm="none"),
            Block([Chain(6, 3, "tanh", weights="rademacher"), Chain(7, 3, "tanh", norm="none")],
                  Chain(7, 3, norm="none", weights="pytorch"), source="activations"),
            Chain(4, 3, "tanh", norm="batch-uncentred", eps=0.1),
        ],
        "weights", 1_000,
    ),
    "norms before a sum": (
        [
            Chain(8, 3, norm="none"), Chain(8, 3, "tanh", norm="none"),
            Block([Chain(6, 3, "tanh"), Chain(7, 3, "linear", norm="layer", bias_variance=0.2)],
                  Chain(7, 3, norm="rms", gain=1.3), source="activations", activation="tanh"),
            Chain(5, 3, "tanh", norm="none"),
        ],
        "conditional", 1_000,
    ),
    "weights": (
        [
            Chain(8, 3, norm="none"), Chain(9, 3, "tanh", weights="uniform", norm="layer"),
            Chain(7, 3, "relu", norm="none", gain=1.4),
            Chain(4, 3, "tanh", weights="pytorch", eps=0.1),
        ],
        "weights", 1_000,
    ),
}  # fmt: skip


# Layers without blocks have the law of `test_layers_that_differ`.
@pytest.mark.parametrize("name", some(PUBLIC, "blocks"))
def test_gradients_of_networks(name):
    chains, sampler, count = PUBLIC[name]
    rng = np.random.default_rng(47)
    networks = Networks(chains, len(chains) - 1, count, rng, start_of(chains))
    run = bnmc.backpropagate(
        network_of(chains), chains=count, initial=start_of(chains), rng=6,
        observables=("gram", "delta_gram", "hidden_delta"),
    )  # fmt: skip
    assert run.sampler == sampler
    assert_law_of(networks, rng.standard_normal(networks.h[-1].shape), run)


def test_the_noise_has_a_row_for_a_bias():
    """Without it, squared gradients of such narrow layers lose a quarter a layer."""
    count, rng = 8_000, np.random.default_rng(37)
    chains = [Chain(1, 1, "linear", norm="none", gain=0.7, bias_variance=0.5)] * 7
    networks = Networks(chains, 6, count, rng, start_of(chains))
    expected = of_networks(networks, rng.standard_normal((count, 1, 1)))[0]
    result = of_task(parts.Task, "conditional", chains, count, NormalRows()).log_gradient_norm
    assert stats.ks_2samp(result[:, 0], expected[:, 0]).pvalue > FALSE_ALARM


class OfNetwork:
    """An implicit matrix as the weights of an ensemble of one network."""

    def __init__(self, matrix, scale=1.0):
        self.matrix, self.scale = matrix, scale

    def __rmul__(self, scale):
        return OfNetwork(self.matrix, scale * self.scale)

    def __matmul__(self, a):
        return self.scale * (self.matrix @ a[0])[None]

    def swapaxes(self, *_):
        return OfNetwork(self.matrix.T, self.scale)


# `implicit/test_matrix.py` has the law of such answers each time, `test_jacobians.py` products.
@pytest.mark.slow
@pytest.mark.parametrize("count", [150, 5000])
@pytest.mark.parametrize("weights", ["gaussian", "haar"])
def test_implicit_matrices_answer_as_the_kernels(weights, count):
    """Kernels draw the first answers of matrices that are drawn by direction."""
    chain, depth, rng = Chain(9, 4, "tanh", weights=weights, skip=0.5), 3, np.random.default_rng(5)
    matrix = partial(*((GaussianMatrix, 9, 9) if weights == "gaussian" else (HaarMatrix, 9)))
    run = bnmc.backpropagate(chain, depth, chains=10 * count, observables=ALL, rng=6)
    parts = []
    for number in range(count):
        matrices = [OfNetwork(matrix(rng=(number, layer))) for layer in range(depth)]
        networks = Networks(chain, depth, 1, rng, weights=matrices)
        parts.append(of_networks(networks, rng.standard_normal(networks.h[-1].shape)))
    theirs = [np.concatenate(part) for part in zip(*parts, strict=True)]
    middle, ours = theirs[0].mean(), of_run(run)
    assert_same_law(
        features(ours[0] - middle, *ours[1:]), features(theirs[0] - middle, *theirs[1:])
    )
