"""`assert_same_law` of whole networks: right ones pass, and the layer of each mistake is named.

The networks are those of plain NumPy with drawn weights (`numpy_network`).
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy_network import Block, Networks, network_of
from oracle import FALSE_ALARM
from slow_cases import some

from bnmc import Chain, Network
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.testing import LawMismatch, assert_same_law
from bnmc.testing.whole_networks import NetworkTest

PLAIN = {"norm": "none"}
AFTER = {"norm": "batch", "order": "activation-norm"}
BEFORE = {"order": "pre-activation"}
NETWORKS = {
    "widths, norms and orders": [
        Chain(20, 5, **PLAIN), Chain(24, 5, "tanh", gain=1.3, bias_variance=0.3, **PLAIN),
        Chain(16, 5, "tanh", **AFTER), Chain(12, 5, "relu", norm="layer", eps=0.01),
        Chain(16, 5, "tanh", norm="batch-uncentred", eps=0.1, bias_variance=0.2),
        Chain(16, 5, "relu", skip=0.8, gain=0.9),
    ],
    "blocks": [
        Chain(16, 4, "tanh", **BEFORE),
        Block([Chain(12, 4, "relu", **BEFORE), Chain(16, 4, "tanh", **BEFORE)]),
        Block([
            Chain(8, 4, "tanh", **PLAIN), Chain(8, 4, "tanh", skip=0.7, **PLAIN),
            Block([Chain(8, 4, "tanh"), Chain(8, 4, "tanh", norm="rms")], source="activations"),
            Chain(12, 4, "tanh", **AFTER),
        ], Chain(12, 4, **PLAIN, gain=1.5, bias_variance=0.2), skip=-0.6),
    ],
    "other laws": [
        Chain(16, 4, **PLAIN), Chain(16, 4, "tanh", weights="pytorch"),
        Chain(16, 4, "tanh", weights="haar"),
        Block([Chain(12, 4, "tanh", **PLAIN, weights="rademacher"), Chain(8, 4, "tanh")],
              Chain(8, 4, **PLAIN, weights="uniform")),
        Chain(8, 4, "tanh", weights="uniform", skip=0.5),
    ],
    "sums": [
        Chain(16, 4, "tanh", **BEFORE),
        Block([Chain(12, 4, "tanh"), Chain(16, 4, "linear")], source="activations",
              activation="tanh"),
        Chain(8, 4, "tanh"),
    ],
    "a convolution": [
        Chain.conv(6, 2, "tanh", shape=(2, 2), kernel=(2, 2)),
        Chain.conv(8, 2, "tanh", shape=(2, 2), kernel=(1, 2)),
    ],
}  # fmt: skip
#: Mistakes: a network, the layer of one, another chain of this layer, or of the block that ends
#: there, and a part of the message.
MISTAKES = {
    "gain": ("widths, norms and orders", 3, {"gain": 1.1}, "scaled by 1.(09|10|11)"),
    "no skip": ("widths, norms and orders", 5, {"skip": 0.0}, "is -?0.0.*, not 0.8"),
    "no bias": ("widths, norms and orders", 4, {"bias_variance": 0.0}, "covariance is another"),
    # The norm of a layer shows in the next one.
    "norm before": ("widths, norms and orders", 2, {"order": "norm-activation"}, "covariance"),
    "activation": ("widths, norms and orders", 4, {"activation": "relu"}, "covariance"),
    "no skip path": ("blocks", 2, {"skip": 0.0}, "skip connection is .*, not 1"),
    "factor of a projection": ("blocks", 7, {"skip": -1.0}, "covariance"),
    "activations for the state": ("blocks", 2, {"source": "activations"}, "covariance|skip"),
    "no skip path to a sum": ("sums", 3, {"skip": 1e-9}, "layer 3 has"),
    "uniform weights": ("widths, norms and orders", 1, {"weights": "uniform"}, "layer 1 has"),
    "another gain, uniform": ("other laws", 1, {"gain": 0.7}, "layer 1 has"),
}  # fmt: skip


def network(items, seed=0, dtype=np.float64):
    """A network of NumPy that returns the states of its layers."""
    rng = np.random.default_rng(seed)
    return lambda h: [
        state[0].astype(dtype) for state in Networks(items, 0, 1, rng, initial=h).h[1:]
    ]


def changed(items, layer, options):
    """The items with another chain of a layer, or with another block that ends there."""
    items, last = list(items), 0
    of_block = {name: options[name] for name in ("skip", "source") if name in options}
    for place, item in enumerate(items[1:], 1):
        first = last + 1
        last += 1 if isinstance(item, Chain) else len(network_of([items[0], item]).widths) - 1
        if last < layer:
            continue
        if isinstance(item, Chain):
            items[place] = replace(item, **options)
        elif last == layer:
            items[place] = item._replace(**of_block)
        else:
            inner = changed([items[0], *item.layers], layer - first + 1, options)
            items[place] = item._replace(layers=inner[1:])
        return items
    raise AssertionError


@pytest.mark.parametrize("name", some(NETWORKS, *(set(NETWORKS) - {"sums", "other laws"})))
def test_networks_of_drawn_weights_pass(name):
    items = NETWORKS[name]
    dtype = np.float32 if name == "blocks" else np.float64
    assert_same_law(network(items, 1, dtype), network_of(items), rng=0, rows=256)


#: Each time, such a mistake is in another layer or in another network.
LATER = (
    "no bias", "activation", "activations for the state", "no skip", "factor of a projection",
    "no skip path to a sum", "another gain, uniform",
)  # fmt: skip


@pytest.mark.parametrize("name", some(MISTAKES, *(name for name in MISTAKES if name not in LATER)))
def test_the_layer_of_a_mistake_is_named(name):
    of, layer, options, message = MISTAKES[name]
    wrong = network(changed(NETWORKS[of], layer, options), 1)
    with pytest.raises(LawMismatch, match=message) as raised:
        assert_same_law(wrong, network_of(NETWORKS[of]), rng=0)
    shows = layer + ("norm" in name or name == "activation")
    assert raised.value.causes[0].startswith(f"layer {shows} has another law")
    others = {claim.claim.split(":")[0] for claim in raised.value.failures} - {f"layer {shows}"}
    assert all(name.startswith("layers") for name in others)


def test_weights_that_layers_share_are_found():
    chain, rng = Chain(8, 4, "tanh"), np.random.default_rng(0)

    def shared(h):
        weights = rng.standard_normal((1, 8, 8)) / np.sqrt(8)
        networks = Networks([chain] * 4, 0, 1, rng, initial=h, weights=[weights] * 3)
        return [state[0] for state in networks.h[1:]]

    with pytest.raises(LawMismatch, match="several layers use the same weights"):
        assert_same_law(shared, chain.repeat(3), rng=0)


@pytest.mark.slow
def test_each_p_value_of_a_network_is_uniform_or_above():
    """From 200 repetitions, by Massart's inequality; a narrow ReLU layer changes the rank of G."""
    items = [
        Chain(5, 4, **PLAIN), Chain(3, 4, "relu", **PLAIN), Chain(4, 4, "tanh", **PLAIN),
        Block([Chain(6, 4, "tanh", **PLAIN), Chain(4, 4, "tanh", **PLAIN)]),
    ]  # fmt: skip
    p_values = {}
    for seed in range(200):
        test = NetworkTest(network(items, seed), network_of(items), np.random.default_rng(seed))
        for claim in test.claims_after(2):
            p_values.setdefault(claim.claim, []).append(claim.p_value)
    assert sum(name.startswith("layers l and") for name in p_values) == 6
    for name, values in p_values.items():
        p = np.sort(values)
        allowance = np.sqrt(np.log(len(p_values) / FALSE_ALARM) / (2 * p.size))
        assert (np.arange(1, p.size + 1) / p.size - p).max() <= allowance, name


def test_networks_that_return_no_states_are_refused():
    chain = Chain(8, 4, "tanh")
    with pytest.raises(ArgumentTypeError, match=r"^step\(h\): .*states of layers 1 to 2"):
        assert_same_law(lambda h: h, chain.repeat(2))
    with pytest.raises(ArgumentError, match=r"^step\(h\)\[1\]: .*\(8, 4\)"):
        assert_same_law(lambda h: [h, h[1:]], chain.repeat(2))
    with pytest.raises(ArgumentError, match=r"^step\(h\)\[0\]: .*at most 1e\+30"):
        assert_same_law(lambda h: [h * 1e40, h], chain.repeat(2))
    with pytest.raises(ArgumentError, match="at least 1 layers"):
        assert_same_law(lambda h: [], Network((chain, 0)))
    normed = network_of([chain, Block([chain], Chain(8, 4))])
    with pytest.raises(ArgumentError, match="^projection: .*not Gaussian"):
        assert_same_law(lambda h: [], normed)
    narrower = Network((chain, 1), (Chain(4, 4, "tanh", weights="haar"), 1))
    with pytest.raises(ArgumentError, match="^weights: .*narrower"):
        assert_same_law(lambda h: [], narrower)
    with pytest.raises(ArgumentError, match="^width: .*>= 4"):
        assert_same_law(lambda h: [], Chain(3, 4, weights="uniform").repeat(1))


def test_a_network_that_stops_in_the_middle_fails_where_it_stops():
    """Later layers cannot normalize a state of zeros, and have no claims."""
    chain = Chain(8, 4, "tanh")
    with pytest.raises(LawMismatch, match="layer 1 has another law"):
        assert_same_law(lambda h: [0 * h] * 3, chain.repeat(3), rng=0)
