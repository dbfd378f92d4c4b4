"""Networks with residual blocks of several layers, against plain NumPy, forward and backward.

`test_layers_that_differ.py` compares their laws with those of drawn weights.
"""

import numpy as np
import pytest
from laws import DrawnProducts
from numpy_network import Block, Networks, flattened, gram_of, network_of
from slow_cases import slow, some

import bnmc
from bnmc import Chain, Network, Residual
from bnmc.chain.start import Representation, prepare
from bnmc.errors import ArgumentError, BackendError
from bnmc.gradients import network as of_rows
from bnmc.gradients import parts
from bnmc.gradients.directions import GivenRows
from bnmc.gradients.network import NetworkTask, generator_of
from bnmc.gradients.observables import as_gradient_observables
from bnmc.gradients.tangent import _Job
from bnmc.simulation.observables import OBSERVABLES
from bnmc.simulation.runs import Recorded, Run, number_of_projection
from bnmc.simulation.segment import Segment

KEY, START = 3 + (5 << 32), np.random.default_rng(0).standard_normal((20, 5))
PLAIN, BATCH = {"norm": "none"}, {"order": "pre-activation"}
#: A block in a block, a projection after activations, blocks of one layer, and a skip connection.
ITEMS = [
    Chain(20, 5, **PLAIN),
    Chain(24, 5, "tanh", **BATCH, bias_variance=0.3),
    Block(
        [
            Chain(12, 5, "relu", norm="layer", eps=0.01),
            Chain.resnet(12, 5, "tanh", bias_variance=0.1),
            Block([Chain(9, 5, "tanh", **PLAIN), Chain(12, 5, "tanh", gain=1.5)], skip=0.4),
            Chain(24, 5, "tanh", **BATCH, bias_variance=0.2),
        ],
        skip=-0.8,
    ),
    Block(
        [Chain(16, 5, "tanh"), Chain(30, 5, "relu", norm="rms", order="activation-norm")],
        Chain(30, 5, **PLAIN, gain=1.3, bias_variance=0.2), skip=0.7, source="activations",
    ),
    Chain(30, 5, "tanh", norm="batch-uncentred", eps=0.1, skip=0.8),
    Block([Chain(11, 5, "tanh")], Chain(11, 5, **PLAIN, gain=0.6)),
]  # fmt: skip
CHAINS, PATHS = flattened(ITEMS)
LAYERS = range(1, len(CHAINS))


def segment_of(path, names=("gram",)):
    observables = tuple(OBSERVABLES[name] for name in names)
    recorded = Recorded(1, 1, len(CHAINS) - 1)
    run = Run(
        network_of(ITEMS), path, 2, None, "float64", KEY, observables=observables,
        recorded=recorded,
    )  # fmt: skip
    return Segment(run, 1)


def simulated(segment):
    run = segment.run
    values = {name: np.zeros((run.chains, run.depth, *shape)) for name, shape in run.shapes.items()}
    segment.begin(Representation(START[None], START[None]), values)
    segment.advance(run.depth, values, 0)
    return list(values.values())


def by_weights(network):
    """The network with the weights and biases of a run by weights."""
    run = bnmc.simulate(
        network_of(ITEMS), chains=2, initial=START, sampler="weights", rng=np.random.default_rng(4)
    )
    return run, Networks(ITEMS, None, 1, None, START, 1, *maps_of(run, network))


def maps_of(run, network):
    def stacked(layer, **options):
        weights, bias = (
            draw(run, layer, chain=network, **options)
            for draw in (bnmc.drawn_weights, bnmc.drawn_biases)
        )
        return weights[None].astype(float), bias[None, :, None].astype(float)

    weights, biases = zip(*map(stacked, LAYERS), strict=True)
    projections = [
        stacked(path.end, projection=True) for path in PATHS if path.block.projection is not None
    ]
    return list(weights), list(biases), projections


@pytest.mark.parametrize("network", [0, 1])
def test_layers_by_weights_are_the_formula_of_their_numbers(network):
    run, expected = by_weights(network)
    np.testing.assert_allclose(run.gram[network], expected.grams[0], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("names", [["gram"], ["gram", "state_gram"]])
def test_drawn_layers_are_the_formula_of_their_numbers(names):
    segment = segment_of("conditional", names)
    run, actual, sees = segment.run, simulated(segment), "state_gram" in names
    for network in range(2):
        weights = [DrawnProducts(run, layer, sees, CHAINS[layer], network) for layer in LAYERS]
        for each in weights:  # the end of the first block sees the means that layer 1 hides
            each.centred = run.spec(each.layer).hides_common
        projections = [
            (DrawnProducts(run, number_of_projection(path.end), True, path.block.projection,
                           network), np.zeros(1))
            for path in PATHS if path.block.projection is not None
        ]  # fmt: skip
        biases = [np.zeros(1)] * len(LAYERS)
        networks = Networks(ITEMS, None, 1, None, START, 1, weights, biases, projections)
        states = np.stack([gram_of(h[0]) for h in networks.h])
        for mine, expected in zip(actual, (networks.grams[0], states), strict=False):
            np.testing.assert_allclose(mine[network], expected[1:], rtol=1e-9, atol=1e-10)


def test_gradients_of_drawn_weights_are_those_of_numpy(monkeypatch):
    """Also if a stretch has few layers; the ends of stretches are not inside of blocks."""
    names = ("delta_gram", "hidden_delta")
    whole = gradients(names)
    monkeypatch.setattr(of_rows, "ROWS_BYTES", 1)
    cut = gradients(names)
    for name, values in whole.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(cut[name], values, rtol=1e-13)
    for number in range(2):
        _, network = by_weights(number)
        delta = np.cos(np.arange(55.0)).reshape(1, 5, 11).swapaxes(1, 2)
        deltas, of_weights = network.backward(delta)
        norms = [np.log(np.linalg.norm(each)) for each in of_weights]
        np.testing.assert_allclose(whole[parts.NORMS][number], norms, atol=1e-10)
        scales = np.exp(2 * whole[parts.SCALES][number])[:, None, None]
        expected = [each[0].T @ each[0] for each in deltas]
        np.testing.assert_allclose(
            scales * whole["delta_gram"][number], expected, rtol=1e-9, atol=1e-12
        )


def gradients(names):
    run, _ = by_weights(0)
    run = Run(
        network_of(ITEMS), "weights", 2, None, "float64", run.key,
        recorded=Recorded(1, 1, len(CHAINS) - 1),
    )  # fmt: skip
    direction = GivenRows(np.cos(np.arange(55.0)).reshape(1, 5, 11))
    task = NetworkTask(run, direction, as_gradient_observables(names))
    return task(Representation(START[None], START[None]), 0, 2)


def test_tangent_kernels_are_those_of_numpy():
    run, _ = by_weights(0)
    run = Run(
        network_of(ITEMS), "weights", 2, None, "float64", run.key,
        recorded=Recorded(len(CHAINS) - 1, 1, len(CHAINS) - 1),
    )  # fmt: skip
    kernels = _Job(run, None, False, False)(Representation(START[None], START[None]), 0, 2)
    for number in range(2):
        _, network = by_weights(number)
        readout = generator_of(run, number).standard_normal(11) / np.sqrt(11)
        of_outputs = [of_output(network, readout, i) for i in range(5)]
        expected = network.gram(network.depth)[0] + np.array(
            [[sum((x * y).sum() for x, y in zip(left, right, strict=True)) for right in of_outputs]
             for left in of_outputs]
        )  # fmt: skip
        np.testing.assert_allclose(kernels[number, 0], expected, rtol=1e-9, atol=1e-10)


def of_output(network, readout, sample):
    """The gradients of an output with respect to the unit weights and biases of all maps."""
    gradient = np.zeros((1, 5, 1))
    gradient[0, sample] = 1.0
    delta = network.delta_of_outputs(readout[None, None], gradient)
    deltas, of_weights = network.backward(delta)
    of_units = [
        each / np.sqrt(before.width) for each, before in zip(of_weights, CHAINS[:-1], strict=True)
    ]
    biases = [
        each.sum(axis=-1) * np.sqrt(chain.bias_variance)
        for each, chain in zip(deltas, CHAINS[1:], strict=True)
    ]
    ends = [path for path in PATHS if path.block.projection is not None]
    of_projections = [
        each / np.sqrt(CHAINS[path.begin].width)
        for each, path in zip(network.gradients_of_projections(deltas), ends, strict=True)
    ]
    of_projections += [
        path.block.skip * deltas[path.end - 1].sum(axis=-1)
        * np.sqrt(path.block.projection.bias_variance)
        for path in ends
    ]  # fmt: skip
    return of_units + biases + of_projections


# In float32 kernels compile of their own, and take the same way.
@pytest.mark.parametrize("dtype", ["float64", slow("float32")])
@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_a_block_of_one_layer_has_the_bits_of_a_skip_connection(sampler, dtype):
    options = {"chains": 3, "rng": 1, "sampler": sampler, "dtype": dtype}
    layer = Chain(20, 5, "relu", order="pre-activation", bias_variance=0.1)
    block = Residual(layer.repeat(1), skip=0.9)
    blocks = Network((layer, 0), block, block, block)
    chain = Chain(20, 5, "relu", order="pre-activation", bias_variance=0.1, skip=0.9)
    expected = bnmc.simulate(chain, 3, **options)
    np.testing.assert_array_equal(bnmc.simulate(blocks, **options).gram, expected.gram)


# --- whole runs

#: Weights of two laws beside rows without weights.
MIXED = Network(
    (Chain(6, 3, **PLAIN), 0),
    (Chain(20, 3, "tanh", **BATCH), 1),
    Residual(
        Network(
            (Chain(30, 3, "relu", **PLAIN, weights="uniform"), 2),
            Residual(Chain(30, 3, "tanh", **BATCH).repeat(2)),
            (Chain(20, 3, "tanh", **BATCH), 1),
        )
    ),
    Residual(
        Chain(11, 3, "tanh", norm="layer").repeat(2), Chain(11, 3, **PLAIN, weights="haar"),
        source="activations",
    ),
    (Chain(11, 3, "relu", **PLAIN), 3),
)  # fmt: skip


# The kernels of these layers compile for 6 seconds in float32; `test_layers_that_differ.py` has the
# same test of layers without blocks in both.
@pytest.mark.parametrize("dtype", some(["float64", "float32"], "float64"))
def test_tiles_stores_and_threads_have_the_same_bits(dtype, require_same_bits):
    """States pass every boundary, also inside of blocks."""
    require_same_bits(MIXED, dtype=dtype)


@pytest.mark.parametrize("name", ["blocks", "a block after a chain", "a chain after blocks"])
def test_a_state_continues_with_blocks(name):
    layer = Chain(20, 3, "tanh", **BATCH)
    block, bigger = (
        Residual(layer.repeat(2)),
        Residual(Network((Chain(8, 3, **PLAIN), 1), (layer, 1))),
    )
    before, after = {
        "blocks": (Network((layer, 1), block), Network((layer, 0), bigger, block)),
        "a block after a chain": (Chain.resnet(20, 3, "tanh").repeat(2), Network(block)),
        "a chain after blocks": (Network(block), Chain(9, 3, "tanh", norm="layer").repeat(2)),
    }[name]
    options = {"chains": 3, "rng": 7, "sampler": "conditional"}
    whole = bnmc.simulate(before + after, **options)
    part = bnmc.simulate(before, **options)
    rest = bnmc.simulate(after, initial=part.final_state)
    np.testing.assert_array_equal(rest.gram, whole.gram[:, before.depth :])


def test_a_state_inside_of_a_block_is_refused():
    run = Run(MIXED, "mixed", 1, None, "float64", recorded=Recorded(0, 1, MIXED.depth))
    segment = Segment(run, 1)
    segment.begin(prepare(MIXED, "gaussian", 1, None), {})
    segment.advance(3, {}, 0)
    with pytest.raises(ArgumentError, match="not inside a block"):
        bnmc.simulate(MIXED.last.repeat(2), initial=segment.state)


@pytest.mark.parametrize(
    ("source", "lacking"),
    [("state", "what its skip connection adds"), ("activations", "activations, of a run by wei")],
)
def test_a_state_that_lacks_what_a_block_takes_is_refused(source, lacking):
    layer = Chain(20, 3, "tanh", **BATCH)
    run = bnmc.simulate(layer, 2, sampler="conditional", rng=0)
    with pytest.raises(ArgumentError, match=lacking):
        bnmc.simulate(
            Network((layer, 0), Residual(layer.repeat(2), source=source)), initial=run.final_state
        )


def test_a_gpu_takes_no_blocks():
    with pytest.raises(BackendError, match="residual blocks are made on the CPU"):
        bnmc.simulate(MIXED, backend="cuda")
    with pytest.raises(BackendError, match="layers that differ"):
        bnmc.backpropagate(MIXED, backend="cuda")


def test_weights_of_projections_have_their_shapes():
    run = bnmc.simulate(MIXED, sampler="weights", rng=0)
    assert bnmc.drawn_weights(run, 8, projection=True).shape == (11, 20)
    with pytest.raises(ArgumentError, match="no projection ends at layer 7"):
        bnmc.drawn_weights(run, 7, projection=True)
