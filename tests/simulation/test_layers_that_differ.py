"""Runs whose layers differ in width, activation and norm, against plain NumPy.

Weights, and normals of rows given the Gram matrix, are made again from their counters, so layers
agree to rounding.  Laws are compared with those of drawn weights (`oracle.two_sample_threshold`);
each case of `TRAPS` comes with a fault of the package that this comparison sees.
"""

import pickle
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from laws import DrawnProducts
from numpy_network import Block, Networks, network_of
from oracle import gram, ks_distance, two_sample_threshold
from slow_cases import pairs, slow, some

import bnmc
from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc.chain import chain as chain_module
from bnmc.chain import compiled
from bnmc.chain.chain import ORDERS, Chain, Network, Residual, layer_after, layers_of
from bnmc.chain.layers import Layer, Normalised, Path, RowMap
from bnmc.chain.start import Representation, prepare
from bnmc.errors import ArgumentError, BackendError, NonFiniteError, StoreMismatchError
from bnmc.gradients import parts
from bnmc.gradients.directions import GivenRows, NormalRows, Readout
from bnmc.gradients.network import NetworkTask, generator_of
from bnmc.gradients.observables import as_gradient_observables
from bnmc.gradients.on_gpu import GpuTask
from bnmc.gradients.tangent import _Job
from bnmc.simulation import runs, starting
from bnmc.simulation.engine import rows
from bnmc.simulation.engine.gpu import samplers
from bnmc.simulation.engine.replay import biases_of_layer, unit_weights_of_layer
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.observables import OBSERVABLES
from bnmc.simulation.runs import Recorded, Run
from bnmc.simulation.segment import Segment

KEY, START = 3 + (5 << 32), np.random.default_rng(0).standard_normal((20, 5))
#: An activation without norm before a batch norm, a hidden common part before a visible one, a
#: scale that is hidden before one that is not, and widths that grow and fall.
CHAINS = [
    bnmc.Chain(20, 5, norm="none"),  # the input
    bnmc.Chain(24, 5, "tanh", norm="none", gain=1.3, bias_variance=0.3),
    bnmc.Chain(40, 5, "tanh"),
    bnmc.Chain(12, 5, "relu", norm="layer", eps=0.01),
    bnmc.Chain(30, 5, "tanh", norm="batch-uncentred", eps=0.1, bias_variance=0.2),
    bnmc.Chain(30, 5, "relu", skip=0.8, gain=0.9, bias_variance=0.1),
]


def segment_of(
    networks, path, names=("gram",), chains=CHAINS, backend="cpu", dtype="float64", key=KEY
):
    """The chains of a run with these layers, each with the width of the one before as fan-in."""
    observables = tuple(OBSERVABLES[name] for name in names)
    recorded = Recorded(1, 1, len(chains) - 1)
    return Segment(
        Run(
            network_of(chains), path, networks, None, dtype, key, observables=observables,
            recorded=recorded, backend=backend,
        ),
        1,
    )  # fmt: skip


def simulated(segment, start=START):
    """The observables of all layers after the input, each (networks, layers, ...)."""
    run = segment.run
    values = {name: np.zeros((run.chains, run.depth, *shape)) for name, shape in run.shapes.items()}
    segment.begin(Representation(start[None], start[None]), values)
    segment.advance(run.depth, values, 0)
    return list(values.values())


# What records h does not depend on where h comes from, and compiles for 8 seconds.
@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("conditional", ["gram"]), ("weights", ["gram"]), ("conditional", ["gram", "state_gram"]),
        slow("weights", ["gram", "state_gram"]),
    ],
)  # fmt: skip
def test_layers_are_the_formula_of_their_numbers(path, names):
    segment, layers = segment_of(2, path, names), range(1, len(CHAINS))
    run, actual = segment.run, simulated(segment)
    for network in range(2):
        if path == "weights":
            weights = [
                unit_weights_of_layer(run, network, layer)[None] / np.sqrt(CHAINS[layer - 1].width)
                for layer in layers
            ]
            biases = [biases_of_layer(run, network, layer)[:, None] for layer in layers]
        else:
            sees = "state_gram" in names
            weights = [DrawnProducts(run, layer, sees, CHAINS[layer], network) for layer in layers]
            biases = [np.zeros(1) for _ in layers]
        networks = Networks(CHAINS, len(layers), 1, None, START, 1, weights, biases)
        states = np.stack([gram(h[0]) for h in networks.h])
        for mine, expected in zip(actual, (networks.grams[0], states), strict=False):
            np.testing.assert_allclose(mine[network], expected[1:], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("path", ["conditional", "weights"])
def test_layers_have_the_same_bits_in_one_call_and_in_several(path):
    """Gain, skip and eps of each layer are those of its own spec."""
    chains = [
        bnmc.Chain(30, 5, "tanh", skip=skip, gain=gain, eps=eps)
        for skip, gain, eps in ((0.0, 1.0, 0.0), (0.5, 1.0, 0.1), (0.0, 0.7, 0.2), (0.9, 1.3, 0.0))
    ]
    start = np.random.default_rng(2).standard_normal((30, 5))
    whole, cut = (segment_of(2, path, chains=chains) for _ in range(2))
    cut_into_layers(cut.run)
    np.testing.assert_array_equal(simulated(whole, start), simulated(cut, start))
    other = [chains[0], chains[2], *chains[2:]]
    assert (
        simulated(segment_of(2, path, chains=other), start)[0] != simulated(cut, start)[0]
    ).any()


def cut_into_layers(run):
    """Let each layer from 1 on be a stage."""
    first, rest = run.stages
    places = np.minimum(np.arange(run.depth), len(rest.specs) - 1)
    vars(run)["stages"] = [first] + [
        rest._replace(first=layer, end=layer + 1, specs=rest.specs[place : place + 1])
        for layer, place in enumerate(places, 1)
    ]


EQUAL_LAYERS = {
    "tanh": (bnmc.Chain(30, 5, "tanh"), NormalRows()),
    "skip": (bnmc.Chain(30, 5, "relu", skip=0.8, eps=0.1), Readout(2, np.tanh, "tanh")),
    "scales": (bnmc.Chain(30, 5, "relu", norm="none", gain=900.0, skip=300.0), NormalRows()),
    "haar": (bnmc.Chain(30, 5, "tanh", weights="haar"), Readout(2, np.tanh, "tanh")),
}


# In float32 each chain compiles kernels of its own for 5 to 10 seconds, and takes the same way
# through the layers.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float64") for name in EQUAL_LAYERS if name != "haar"),
        slow("haar", "float64"),
        *(slow(name, "float32") for name in EQUAL_LAYERS),
    ],
)
def test_gradients_of_equal_layers_have_the_bits_of_a_chain(name, dtype):
    """Also if each layer is a stage."""
    chain, direction = EQUAL_LAYERS[name]
    run = segment_of(2, "conditional", chains=[chain] * 5).run
    run = replace(run, observables=(), dtype=dtype)
    cut = replace(run)
    cut_into_layers(cut)
    start = np.random.default_rng(2).standard_normal((30, 5))
    expected = gradients(run, start, direction)
    for name, values in gradients(cut, start, direction).items():
        np.testing.assert_array_equal(values, expected[name])


def gradients(run, start, direction):
    task = parts.Task(run, direction, as_gradient_observables(("delta_gram", "hidden_delta")))
    return task(Representation(start[None], start[None]), 0, run.chains)


def test_float32_rows_are_float64_where_those_of_their_own_layer_need_it():
    """The bias makes samples alike, which the last layer would subtract from them."""
    chains = [
        bnmc.Chain(20, 5, norm="none"),
        bnmc.Chain(30, 5, "relu", norm="none", bias_variance=1e6),
        bnmc.Chain(12, 5, "tanh"),
    ]
    run = replace(segment_of(2, "conditional", chains=chains).run, observables=())
    single = gradients(replace(run, dtype="float32"), START, NormalRows())
    assert single.pop(parts.WIDE).all()
    for name, values in single.items():
        np.testing.assert_array_equal(values, gradients(run, START, NormalRows())[name])


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
def test_equal_layers_have_the_bits_of_a_chain(backend):
    chain, x = bnmc.Chain(30, 5, "tanh"), START[:5, :].repeat(6, 0) ** 2
    run = bnmc.simulate(chain, 3, initial=x, chains=2, rng=0, backend=backend)
    segment = segment_of(2, "conditional", chains=[chain] * 4, backend=backend, key=run.key)
    values = {"gram": np.zeros((2, 3, 5, 5))}
    segment.begin(prepare(chain.repeat(0), x, 2, None), values)
    with mock.patch.object(samplers, "forward", wraps=samplers.forward) as forward:
        segment.advance(3, values, 0)
    np.testing.assert_array_equal(values["gram"], run.gram[:, 1:])
    # A launch makes layers as long as they are equal.
    assert forward.call_count == (backend == "cuda")


def relu(width, gain, skip=0.0):
    return bnmc.Chain(width, 5, "relu", norm="none", gain=gain, skip=skip)


#: Runs for the simulator: samplers, observables, precision and layers.
ON_GPU = {
    "all norms": ("conditional", ["gram"], "float64", CHAINS),
    "weights": ("weights", ["gram", "state_gram"], "float64", CHAINS),
    "float32": ("conditional", ["gram"], "float32", CHAINS[1:4]),
    # Taps of several sizes, a norm over groups after the activation, a residual block, and no taps.
    "taps": (
        "weights", ["gram"], "float64",
        [
            bnmc.Chain(9, 4, norm="none"),
            bnmc.Chain.conv(12, 1, "tanh", shape=(2, 2), kernel=(2, 1)),
            bnmc.Chain.conv(6, 1, "relu", shape=(2, 2), kernel=(2, 2), norm="none"),
            bnmc.Chain(6, 4, "tanh", norm="group(2)", order="activation-norm", skip=0.7),
            bnmc.Chain.resnet(6, 4, "relu", bias_variance=0.1),
            bnmc.Chain(8, 4, "tanh", weights="rademacher"),
        ],
    ),
    "orthogonal": (
        "conditional", ["gram"], "float64",
        [bnmc.Chain(20, 5, norm="none"), bnmc.Chain(20, 5, "tanh", weights="haar"), CHAINS[1]],
    ),
    # Powers of two of several sizes are split off.
    "no norm": (
        "weights", ["gram"], "float64",
        [CHAINS[0], relu(20, 2.0**-20), relu(20, 1.0, 0.5), relu(7, 2.0**30), relu(12, 3.0)],
    ),
}  # fmt: skip


@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize("what", some(ON_GPU, "all norms", "float32", "orthogonal"))
def test_layers_on_a_gpu_are_those_of_the_cpu(what):
    path, names, dtype, chains = ON_GPU[what]
    start = np.random.default_rng(3).standard_normal((chains[0].width, chains[0].batch))
    runs = [
        simulated(segment_of(2, path, names, chains, backend, dtype), start)
        for backend in ("cpu", "cuda")
    ]
    unit = 2.0**-23 if dtype == "float32" else 2.0**-52
    for mine, others in zip(*runs, strict=True):
        size = np.abs(mine).max(axis=(-2, -1), keepdims=True)
        assert (size > 0.0).all()
        assert (np.abs(mine - others) <= 1000 * unit * size).all()


@pytest.mark.parametrize(("backend", "layers"), [("cpu", 40), ("cuda", 24)])
@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
def test_rows_of_a_wider_layer_before_keep_their_units(backend, layers):
    """In those of the layers after it they would become infinite."""
    chains = [bnmc.Chain(100, 1, norm="none")]
    for width, count in ((100, 1), (20, layers)):
        layer = bnmc.Chain(width, 1, "abs", norm="none", gain=2.0**-8, skip=2.0**-8)
        chains += [replace(layer, skip=0.0), *[layer] * count]
    segment = segment_of(1, "conditional", ["gram"], chains, backend, "float32")
    simulated(segment, np.ones((100, 1)))
    assert np.isfinite(segment.state.arrays["x"]).all()


def test_gradients_of_drawn_weights_are_those_of_autograd():
    """Of a linear function of h of the last layer, with respect to the weights of each layer."""
    run, delta = replace(segment_of(2, "weights").run, observables=()), np.cos(np.arange(150.0))
    task = NetworkTask(run, GivenRows(delta.reshape(1, 5, 30)), ())
    part = task(Representation(START[None], START[None]), 0, 2)
    for network in range(2):
        h, _, parameters = by_autograd(run, network)
        (h * torch.tensor(delta.reshape(5, 30).T)).sum().backward()
        expected = [
            torch.log(torch.linalg.norm(w.grad) * np.sqrt(w.shape[1])) for w, _ in parameters
        ]
        np.testing.assert_allclose(part[parts.NORMS][network], expected, rtol=0, atol=1e-10)


def test_tangent_kernels_are_those_of_autograd():
    run = replace(segment_of(2, "weights").run, observables=())
    kernels = _Job(run, None, False, False)(Representation(START[None], START[None]), 0, 2)
    for network in range(2):
        _, a, parameters = by_autograd(run, network)
        readout = torch.tensor(generator_of(run, network).standard_normal(30))
        every = [each for pair in parameters for each in pair]
        kernel = (a.T @ a / 30).detach()
        gradients = [
            torch.autograd.grad(output, every, retain_graph=True)
            for output in readout @ a / np.sqrt(30)
        ]
        for i, left in enumerate(gradients):
            for j, right in enumerate(gradients):
                kernel[i, j] += sum((x * y).sum() for x, y in zip(left, right, strict=True))
        np.testing.assert_allclose(kernels[network, 0], kernel, rtol=1e-10, atol=1e-10)


def by_autograd(run, network):
    """h and a of the last layer, and the unit weights and biases of each layer, in PyTorch."""
    x = a = torch.tensor(START)
    parameters = []
    for number, chain in enumerate(CHAINS[1:], 1):
        w = torch.tensor(unit_weights_of_layer(run, network, number), requires_grad=True)
        deviation = np.sqrt(chain.bias_variance)
        b = biases_of_layer(run, network, number) / (deviation or 1.0)
        b = torch.tensor(b, requires_grad=True)
        parameters.append((w, b))
        h = chain.gain * w @ a / np.sqrt(a.shape[0]) + chain.skip * (x if chain.skip else 0.0)
        h = h + deviation * b[:, None]
        axis = {"none": None, "layer": 0}.get(chain.norm, 1)
        y = h - h.mean(axis, keepdim=True) if chain.norm in ("batch", "layer") else h
        if axis is not None:
            y = y / torch.sqrt((y**2).mean(axis, keepdim=True) + chain.eps)
        x, a = y, getattr(torch, chain.activation.name)(y)
    return h, a, parameters


def test_a_backward_pass_makes_the_rows_of_the_run_again():
    run = segment_of(2, "conditional").run
    task = NetworkTask(run, GivenRows(np.ones((1, 5, 30))), as_gradient_observables("gram"))
    part = task(Representation(START[None], START[None]), 0, 2)
    expected = simulated(segment_of(2, "conditional"))[0]
    np.testing.assert_allclose(part["gram"], expected, atol=1e-11)


def test_kernels_that_repeat_a_layer_refuse_others():
    run = segment_of(2, "conditional").run
    with pytest.raises(BackendError, match="layers of the run differ"):
        GpuTask(run, NormalRows(), ()).require_device()


def test_orthogonal_weights_that_are_not_square_are_drawn():
    """Their frames are not those that the conditional sampler draws."""
    network = network_of([CHAINS[0], bnmc.Chain(24, 5, "tanh", weights="haar")])
    with pytest.raises(ArgumentError, match="'weights' or 'auto' unless.*Haar: square"):
        bnmc.simulate(network, sampler="conditional")
    assert bnmc.simulate(network, rng=0).sampler == "weights"


# --- laws

#: Layers, samplers, and an attribute of the package with its fault: a rule that holds for the
#: layers of a chain alone.
PLAIN, AFTER = {"norm": "none"}, {"order": "activation-norm"}
TRAPS = {
    # Rows of W a have no means only if the layer before has a norm over the batch after σ.
    "uncentred before a norm after σ": (
        [Chain(6, 3, **PLAIN), Chain(8, 3, "relu", **PLAIN), Chain(9, 3, "tanh", **AFTER)],
        ["conditional"],
        (Layer, "is_centred", lambda layer, previous: True),
    ),
    # The means that the norm of a layer does not see, the norm of the next one does.
    "hidden, then seen": (
        [
            Chain(8, 3, **PLAIN), Chain.resnet(8, 3, "tanh", bias_variance=0.5),
            Chain.resnet(8, 3, "tanh", norm="layer"), Chain(5, 3, "tanh", norm="rms"),
        ],
        ["conditional"],
        (Layer, "hides_common_part", lambda layer, others: layer.rows.hides_common_part()),
    ),
    # A layer without a skip connection keeps h for the next one, as its order tells.
    "a skip after no skip": (
        [
            Chain(6, 3, **PLAIN), Chain(8, 3, "tanh", gain=2.0, order="pre-activation"),
            Chain.resnet(8, 3, "relu"), Chain(7, 3, "tanh", norm="none"),
        ],
        ["conditional", "weights"],
        (
            Chain, "_order_code_beside_skips",
            property(lambda chain: ORDERS[chain.order] if chain.skip else NORM_FIRST),
        ),
    ),
    "widths of linear layers": (
        [Chain(40, 3, **PLAIN), Chain(40, 3, **PLAIN), Chain(10, 3, **PLAIN)],
        ["auto"],
        (starting, "choose_sampler", lambda *arguments, **options: "factor"),
    ),
    "fan-in": (
        [
            Chain(24, 3, **PLAIN), Chain(12, 3, "tanh", **PLAIN, weights="uniform"),
            Chain(24, 3, "relu", **PLAIN), Chain(6, 3, "tanh", **PLAIN, weights="pytorch"),
            Chain(12, 3, "tanh", norm="layer", skip=0.0, weights="pytorch"),
        ],
        ["weights", "auto"],
        (chain_module, "layer_after", lambda chain, width: chain.layers[1]),
    ),
    "scales split off for some layers alone": (
        [
            Chain(6, 3, **PLAIN), Chain(9, 3, "relu", **PLAIN, gain=2.0**40),
            Chain(8, 3, "tanh", **PLAIN, gain=2.0**-40), Chain(8, 3, "relu", **PLAIN, skip=0.5),
        ],
        ["conditional", "weights"],
        (runs, "all", any),
    ),
    "a dead stage": (
        [
            Chain(6, 3, **PLAIN), Chain(2, 3, "relu", **PLAIN), Chain(5, 3, "tanh", **PLAIN),
            Chain(6, 3, "tanh", **PLAIN, bias_variance=0.2),
        ],
        ["conditional", "weights"],
        (Sampler, "has_zeros", False),
    ),
    "rows, then weights, then rows": (
        [
            Chain(4, 3, **PLAIN), Chain(3, 3, "tanh", **PLAIN),
            Chain(5, 3, "tanh", **PLAIN, weights="rademacher"),
            Chain(5, 3, "tanh", norm="rms", skip=0.6), Chain(3, 3, "relu", **PLAIN),
            Chain(4, 3, "linear", **PLAIN, weights="haar"),
        ],
        ["auto"],
        (runs, "is_drawn", lambda layer, shows_state=False: layer.linear.law.name != "haar"),
    ),
}  # fmt: skip


#: Blocks with a skip path around several layers, in the same form.
BATCH = {"order": "pre-activation", "bias_variance": 0.4}
OUT = Chain(5, 3, "tanh", **PLAIN)
TRAPS |= {
    # The last layer adds what the layer before the block keeps, not the layer before it.
    "a block": (
        [Chain(8, 3, "tanh", **PLAIN), Block([Chain(8, 3, "relu", **PLAIN, gain=2.0)] * 2), OUT],
        ["conditional", "weights"],
        (rows.RowSampler, "_xs", lambda sampler, level: sampler.xs),
    ),
    # The columns of P are the features of the layer before the block.
    "a projection": (
        [
            Chain(12, 3, "relu", **PLAIN),
            Block(
                [Chain(6, 3, "tanh", **BATCH), Chain(5, 3, "linear", norm="rms")],
                Chain(5, 3, **PLAIN, weights="pytorch", gain=1.5), skip=0.7,
            ),
            OUT,
        ],
        ["auto", "weights"],
        (chain_module, "layer_after", lambda chain, width: chain.layers[1]),
    ),
    "a Gaussian projection": (
        [
            Chain(12, 3, "relu", **PLAIN),
            Block([Chain(6, 3, "relu"), Chain(5, 3, "tanh", **PLAIN)],
                  Chain(5, 3, **PLAIN, gain=0.8, bias_variance=0.3)),
            OUT,
        ],
        ["conditional", "weights"],
        (
            Residual, "path_after", lambda block, width: Path(
                2, replace(layer_after(block.projection, width).linear, gain=1.0)
            ),
        ),
    ),
    "a block after activations": (
        [
            Chain(6, 3, "relu", **PLAIN),
            Block([Chain(8, 3, "tanh", **PLAIN), Chain(6, 3, "relu", **PLAIN)],
                  source="activations"),
            OUT,
        ],
        ["conditional", "weights"],
        (rows.RowSampler, "_begin_paths", lambda *arguments: None),
    ),
    # The means that the norm before a block hides, the norm at its end sees.
    "hidden, then seen after a block": (
        [
            Chain(8, 3, **PLAIN), Chain(8, 3, "tanh", **BATCH),
            Block([Chain(6, 3, "tanh", **BATCH), Chain(8, 3, "tanh", norm="layer")]), OUT,
        ],
        ["conditional"],
        (compiled, "ends_of_skips", lambda layers: [[] for _ in layers]),
    ),
    # Inside, skip connections of layers and a block; each level keeps an array of its own.
    "a block in a block": (
        [
            Chain(6, 3, "tanh", **PLAIN),
            Block([
                Chain(8, 3, "tanh", **PLAIN), Chain.resnet(8, 3, "relu", norm="rms"),
                Block([Chain(6, 3, "relu", **BATCH), Chain(8, 3, "tanh", norm="none", gain=1.5)]),
                Chain(6, 3, "tanh", norm="batch-uncentred", eps=0.1),
            ], skip=-1.5),
            Chain(6, 3, "linear", **PLAIN, skip=0.5), OUT,
        ],
        ["conditional", "weights"],
        (rows, "name_of_x", lambda level: "x1"),
    ),
    # ResNet v1: norms at the end of the branch and of the skip path, then the activation.
    "norms before a sum": (
        [
            Chain(6, 3, "tanh", **PLAIN),
            Block([Chain(6, 3, "tanh"), Chain(8, 3, "linear")],
                  Chain(8, 3, gain=1.5), source="activations", activation="relu"),
            Block([Chain(6, 3, "tanh"), Chain(8, 3, "linear", norm="rms", bias_variance=0.3)],
                  skip=-0.7, source="activations", activation="tanh"),
            OUT,
        ],
        ["auto", "weights"],
        (RowMap, "normalise", lambda rows, y: Normalised(y, None, None)),
    ),
}  # fmt: skip


#: Networks of the cases that are not slow; NumPy makes layers with a norm before a sum, in 0.5 ms.
FEW = dict.fromkeys(TRAPS, 4_000) | {"norms before a sum": 1_000}


def features(grams):
    """Numbers of networks, from Gram matrices (networks, layers, n, n)."""
    before, after = grams[:, :-1], grams[:, 1:]
    along = (before * after).sum(axis=(-2, -1))
    numbers = np.concatenate([after[..., 0, 0], after[..., 0, 1], along], axis=1)
    # Products of samples without a common active row are zero to rounding, which depends on dtype.
    return np.round(numbers, 5)


def distances(chains, count, sampler, dtype):
    start = np.random.default_rng(3).standard_normal((chains[0].width, chains[0].batch))
    run = bnmc.simulate(
        network_of(chains), chains=count, initial=start, sampler=sampler, dtype=dtype, rng=41,
    )  # fmt: skip
    networks = Networks(chains, None, count, np.random.default_rng(43), start)
    pairs = zip(features(run.gram).T, features(networks.grams).T, strict=True)
    return [ks_distance(*pair) for pair in pairs]


def forget():
    for function in (layers_of, runs._derived, runs._chosen):
        function.cache_clear()


@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize("number", some(["few", "many"], "few"))
@pytest.mark.parametrize(("trap", "dtype"), pairs(TRAPS, ["float64", "float32"]))
def test_networks_have_the_law_of_drawn_weights(trap, dtype, number):
    chains, samplers, _ = TRAPS[trap]
    count = FEW[trap] if number == "few" else 20_000
    for sampler in samplers:
        far = distances(chains, count, sampler, dtype)
        assert max(far) < two_sample_threshold(count, len(far))


# Faults of each kind: of what is drawn, of what is kept, and of what is raised.
@pytest.mark.parametrize(
    "trap",
    some(TRAPS, "hidden, then seen", "fan-in", "a dead stage", "a block", "norms before a sum"),
)
def test_a_rule_of_one_chain_is_seen(trap):
    chains, samplers, (owner, name, fault) = TRAPS[trap]
    # Without this rule, zeros look like rounding.
    raises = pytest.raises(NonFiniteError) if trap == "a dead stage" else nullcontext()
    forget()
    try:
        with mock.patch.object(owner, name, fault, create=True), raises:
            far = distances(chains, FEW[trap], samplers[0], "float64")
            assert max(far) > two_sample_threshold(FEW[trap], len(far))
    finally:
        forget()


# --- states

TANH, RELU = Chain(20, 3, "tanh"), Chain(12, 3, "relu", **PLAIN)
BLOCK = Chain.resnet(20, 3, "relu", bias_variance=0.1)
DRAWN = {"weights": "uniform"}
#: Networks and their continuations, which have the bits of both in one.
CONTINUED = {
    "another width": (TANH.repeat(2), RELU.repeat(2)),
    "scales, then none": (RELU.repeat(3), Chain(30, 3, "tanh", norm="layer").repeat(2)),
    "a skip connection ends": (BLOCK.repeat(2), TANH.repeat(1) + RELU.repeat(2)),
    "a skip connection begins after a layer": (RELU.repeat(2), TANH.repeat(1) + BLOCK.repeat(2)),
    "skip connections": (BLOCK.repeat(2), Chain.resnet(20, 3, "tanh", gain=0.5).repeat(2)),
    "weights": (Chain(20, 3, "tanh", **DRAWN).repeat(2), Chain(34, 3, **PLAIN, **DRAWN).repeat(2)),
    "several": (TANH.repeat(1) + RELU.repeat(2), RELU.repeat(1) + TANH.repeat(3)),
    "weights after rows": (
        Chain(20, 3, "relu", **DRAWN).repeat(1) + TANH.repeat(1),
        Chain(9, 3, "tanh", **DRAWN).repeat(1) + RELU.repeat(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CONTINUED)
def test_a_state_continues_with_other_layers(name, dtype):
    before, after = CONTINUED[name]
    options = {"chains": 3, "dtype": dtype, "rng": 7}
    if "weights" not in name:
        options["sampler"] = "conditional"
    whole = bnmc.simulate(before + after, **options)
    part = bnmc.simulate(before, **options)
    rest = bnmc.simulate(after, initial=part.final_state)
    assert rest.network == before + after
    np.testing.assert_array_equal(rest.layers, whole.layers[before.depth :])
    np.testing.assert_array_equal(rest.gram, whole.gram[:, before.depth :])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (TANH, Chain(20, 3, **DRAWN), "activations, of a run by weights"),
        (TANH, BLOCK, "what its skip connection adds"),
        (BLOCK, Chain.resnet(20, 3, norm="layer"), "what its skip connection adds"),
        (TANH, Chain(20, 4), "a state of Chain"),
        (Chain(20, 3, "linear", norm="none"), TANH, "not a factor of it"),
    ],
)  # fmt: skip
def test_a_state_that_lacks_what_a_layer_needs_is_refused(before, after, message):
    run = bnmc.simulate(before, 2, sampler="conditional", rng=0)
    with pytest.raises(ArgumentError, match=f"initial: .*{message}") as raised:
        bnmc.simulate(after, 2, initial=run.final_state)
    assert ("both networks as one" in str(raised.value)) == ("a state of" not in message)


# --- whole runs

#: Rows, weights of two laws, scales that are split off, and two kinds of widths.
NETWORK = Network.of(
    width=[6, 30, 20, 20, 11], batch=3, activation=["tanh", "relu", "relu", "tanh"],
    norm=["batch", "none", "layer", "none"], weights=["gaussian", "uniform", "gaussian", "haar"],
    skip=[0.0, 0.0, 0.5, 0.0], bias_variance=[0.0, 0.1, 0.0, 0.2],
) + Chain(11, 3, "relu", **PLAIN).repeat(6)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tiles_stores_and_threads_have_the_same_bits(dtype, require_same_bits):
    options = require_same_bits(NETWORK, dtype=dtype)
    with pytest.raises(StoreMismatchError, match="depth"):
        bnmc.simulate(NETWORK.until(9), **options)
    with pytest.raises(StoreMismatchError, match="chain"):
        bnmc.simulate(NETWORK.until(3) + Chain(20, 3).repeat(7), **options)


def test_a_store_continues_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr("bnmc.simulation.run.STORED_TILE_SECONDS", 1e-9)
    path, layers = tmp_path / "run.zarr", []
    step = Segment._go

    def stops(segment, layer, *arguments):
        layers.append(layer)
        if len(layers) == 5:
            raise KeyboardInterrupt
        return step(segment, layer, *arguments)

    with mock.patch.object(Segment, "_go", stops), pytest.raises(KeyboardInterrupt):
        bnmc.simulate(NETWORK, rng=3, store=path)
    run = bnmc.simulate(NETWORK, store=path)
    np.testing.assert_array_equal(run.gram, bnmc.simulate(NETWORK, rng=3).gram)


def test_a_store_of_a_network_grows_by_layers_of_its_last_chain(tmp_path, monkeypatch):
    monkeypatch.setattr("bnmc.simulation.run.STORED_TILE_SECONDS", 1e-9)
    path = tmp_path / "run.zarr"
    bnmc.simulate(NETWORK.until(7), rng=3, store=path)
    with mock.patch.object(Segment, "_go", autospec=True, side_effect=Segment._go) as step:
        run = bnmc.simulate(NETWORK, store=path)
    assert min(call.args[1] for call in step.call_args_list) == 8
    np.testing.assert_array_equal(run.gram, bnmc.simulate(NETWORK, rng=3).gram)


def test_runs_of_networks_are_sent_to_other_processes():
    run = Run(NETWORK, "mixed", 2, None, "float64")
    sent = pickle.loads(pickle.dumps(run))
    assert sent == run
    assert sent.specs == run.specs


def test_the_soft_rank_has_the_width_of_its_layer():
    run = bnmc.simulate(NETWORK, rng=0, observables=["gram", "soft_rank"])
    expected = [
        bnmc.gram.soft_rank(run.gram[:, layer], 0.5, width=width)
        for layer, width in enumerate(NETWORK.widths)
    ]
    np.testing.assert_array_equal(run.soft_rank, np.transpose(expected))


def test_many_equal_layers_are_one_entry():
    """A stage ends after many layers, without a copy of their numbers for each of them."""
    network = Chain(8, 3, "tanh").repeat(10**6) + Chain(8, 3, "tanh", gain=2.0).repeat(3)
    run = Run(network, "conditional", 1, None, "float64")
    assert sum(len(stage.specs) for stage in run.stages) < 100
    assert [run.spec(layer).fan_in for layer in (10**6, 10**6 + 1)] == [8, 8]
    assert [run.layer(layer).linear.gain for layer in (10**6, 10**6 + 1)] == [1.0, 2.0]
    few = Chain(8, 3, "tanh", norm="rms", eps=0.1).repeat(40)
    few = few + Chain(8, 3, "tanh", norm="rms", gain=2.0, eps=0.2).repeat(40)
    expected = bnmc.simulate(few, rng=1).gram
    with mock.patch.object(compiled, "_MOST_RECORDS", 100):
        runs._derived.cache_clear()
        np.testing.assert_array_equal(bnmc.simulate(few, rng=1).gram, expected)
    runs._derived.cache_clear()


def test_weights_of_layers_have_their_shapes():
    network = Network.of(width=[6, 9, 4], batch=3, weights="pytorch", norm="none")
    run = bnmc.simulate(network, rng=0)
    assert run.sampler == "weights"
    shapes = [bnmc.drawn_weights(run, layer).shape for layer in (1, 2)]
    assert shapes == [(9, 6), (4, 9)]
    assert np.abs(bnmc.drawn_biases(run, 1)).max() < 1 / np.sqrt(6)


def test_a_gpu_takes_no_mixed_network():
    with pytest.raises(BackendError, match="CPU"):
        bnmc.simulate(NETWORK, backend="cuda")
