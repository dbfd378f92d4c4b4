"""A chain is a value: what it says, and that it is compared, shown and pickled as one."""

import dataclasses
import json
import pickle
from functools import partial

import numpy as np
import pytest

import bnmc
from bnmc import Activation, Chain, MeanField, Network, Residual
from bnmc._kernels.scalar.codes import NORM_FIRST, NORM_IN_BRANCH
from bnmc.chain.chain import (
    as_chain,
    as_network,
    layer_at,
    layers_of,
    options_of,
    pattern_of,
)
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.mixing import tv_bound


def weights(generator, shape):
    return generator.standard_normal(shape)


def test_defaults():
    chain = Chain(1000, 10)
    assert (chain.width, chain.batch) == (1000, 10)
    assert chain.activation is Activation.named("linear")
    assert (chain.norm, chain.skip, chain.gain) == ("batch", 0.0, 1.0)
    assert (chain.weights, chain.eps) == ("gaussian", 0.0)


def test_values_have_canonical_types():
    chain = Chain(
        np.int32(5), np.array(3), "relu", norm="none", skip=1, gain=np.float32(0.5), eps=0
    )
    for name in ("width", "batch"):
        assert type(getattr(chain, name)) is int
    for name in ("skip", "gain", "eps"):
        assert type(getattr(chain, name)) is float
    assert chain == Chain(5, 3, "relu", norm="none", skip=1.0, gain=0.5)


def test_an_activation_may_be_a_name_an_instance_or_a_function():
    relu = Activation.named("relu")
    assert Chain(5, 3, "relu") == Chain(5, 3, relu)
    assert Chain(5, 3, "relu").activation is relu
    custom = Chain(5, 3, np.tanh)
    assert custom.activation.name == "tanh"
    assert not custom.activation.builtin
    assert custom == Chain(5, 3, Activation(np.tanh))
    assert custom != Chain(5, 3, "tanh")


def test_chains_are_frozen_values():
    chain = Chain(5, 3, "relu", weights=weights)
    with pytest.raises(dataclasses.FrozenInstanceError):
        chain.width = 6
    assert hash(chain) == hash(Chain(5, 3, "relu", weights=weights))
    others = [
        Chain(6, 3, "relu", weights=weights),
        Chain(5, 4, "relu", weights=weights),
        Chain(5, 3, "tanh", weights=weights),
        Chain(5, 3, "relu"),
        *(
            Chain(5, 3, "relu", weights=weights, **{name: value})
            for name, value in {"norm": "none", "skip": 1.0, "gain": 2.0, "eps": 1e-5}.items()
        ),
    ]
    assert chain not in others
    assert len({chain, *others}) == 1 + len(others)


def test_repr_shows_what_is_not_the_default():
    assert repr(Chain(5, 3)) == "Chain(width=5, batch=3, activation='linear')"
    chain = Chain(5, 3, "relu", norm="none", skip=0.5, gain=2, weights="uniform", eps=1e-5)
    assert repr(chain) == (
        "Chain(width=5, batch=3, activation='relu', norm='none', skip=0.5, gain=2.0, "
        "weights='uniform', eps=1e-05)"
    )
    assert eval(repr(chain)) == chain
    assert "weights=<weights>" in repr(Chain(5, 3, weights=weights))


def test_pickling():
    for chain in (
        Chain(5, 3, "relu", norm="none", skip=0.5, gain=2.0, weights="uniform", eps=1e-5),
        Chain(5, 3, lambda x: x**2, weights=weights),
    ):
        twin = pickle.loads(pickle.dumps(chain))
        assert twin == chain
        assert hash(twin) == hash(chain)
        assert repr(twin).partition(" at 0x")[0] == repr(chain).partition(" at 0x")[0]


def test_is_gaussian():
    laws = {"gaussian": True, "uniform": False, "rademacher": False, weights: False}
    assert {law: Chain(5, 3, weights=law).is_gaussian for law in laws} == laws


def test_is_vanilla_linear():
    assert Chain(5, 3, "linear", norm="none").is_vanilla_linear
    assert Chain(5, 3, norm="none", gain=2.0).is_vanilla_linear
    for chain in (
        Chain(5, 3),
        Chain(5, 3, "relu", norm="none"),
        Chain(5, 3, norm="none", skip=1.0),
        Chain(5, 3, norm="none", weights="uniform"),
        Chain(5, 3, Activation(lambda x: x, name="linear"), norm="none"),
    ):
        assert not chain.is_vanilla_linear


def test_the_chains_of_the_papers():
    assert Chain(9, 3, "tanh") == Chain(9, 3, "tanh")
    assert Chain(9, 3, "linear", norm="batch-uncentred") == Chain(9, 3, norm="batch-uncentred")
    assert Chain(9, 3, "linear", norm="none") == Chain(9, 3, norm="none")
    assert Chain(9, 3, "relu", norm="none") == Chain(9, 3, "relu", norm="none")
    residual = Chain.bn_residual(9, 3, "relu", gamma=0.1)
    assert residual == Chain(9, 3, "relu", norm="batch-uncentred", skip=1.0, gain=0.1 * 3.0)
    without_skip = Chain.bn_residual(9, 3, gamma=np.inf)
    assert without_skip == Chain(9, 3, norm="batch-uncentred")


def test_one_sample_has_no_centred_norm_but_has_the_others():
    assert Chain(5, 1, norm="none").batch == 1
    assert Chain(5, 1, norm="batch-uncentred").batch == 1


# --- networks

INPUT, WIDE, NARROW = Chain(9, 4, norm="none"), Chain(8, 4, "relu"), Chain(5, 4, "tanh")


def test_networks_are_values():
    network = Network((INPUT, 0), (WIDE, 2), (NARROW, 1))
    assert (network.depth, network.batch, network.widths) == (3, 4, [9, 8, 8, 5])
    assert network == Network((INPUT, 0), (WIDE, 1), (Chain(8, 4, "relu"), 1), (NARROW, 1))
    assert network == INPUT.repeat(0) + WIDE.repeat(2) + NARROW.repeat(1)
    assert hash(network) == hash(Network(*network.stages))
    assert network != Network((INPUT, 0), (WIDE, 1), (NARROW, 2))
    assert pickle.loads(pickle.dumps(network)) == network
    assert eval(repr(network), {"Network": Network, "Chain": Chain}) == network
    # Layer 0 of the second one is the last layer of the first one.
    assert WIDE.repeat(1) + Network((INPUT, 0), (NARROW, 2)) == Network((WIDE, 1), (NARROW, 2))


def test_layers_know_the_width_before():
    network = Network((INPUT, 0), (Chain(8, 4, "relu", weights="pytorch"), 3), (NARROW, 10**9))
    linears = [layer_at(network, number).linear for number in (0, 1, 2, 3, 4, 5, 10**8)]
    assert [each.width for each in linears] == [9, 8, 8, 8, 5, 5, 5]
    assert [each.fan_in for each in linears[1:]] == [9, 8, 8, 8, 5, 5]
    assert linears[1].bias_variance == pytest.approx(1 / 27)
    assert linears[2].bias_variance == pytest.approx(1 / 24)
    given = Network((INPUT, 0), (Chain(8, 4, weights="pytorch", bias_variance=0.5), 1))
    assert layer_at(given, 1).linear.bias_variance == 0.5
    image = Chain.conv(3, 1, shape=(2, 2), kernel=(2, 1))
    assert layer_at(INPUT.repeat(0) + image.repeat(1), 1).linear.fan_in == 18


def test_layers_of_a_network_of_one_chain_are_those_of_the_chain():
    for chain in (WIDE, Chain.resnet(8, 4), Chain(8, 4, weights="haar", gain=2.0)):
        assert layers_of(pattern_of(chain.repeat(5))).layers == chain.layers


def test_a_layer_keeps_what_the_skip_connection_after_it_sees():
    stem = Chain(8, 4, "relu", order="pre-activation")
    network = Network((stem, 3), (Chain.resnet(8, 4), 2))
    orders = [layer_at(network, number).rows.order for number in range(6)]
    assert orders == [NORM_FIRST] * 3 + [NORM_IN_BRANCH] * 3
    assert layer_at(Network((stem, 0), (Chain.resnet(8, 4), 2)), 0).rows.order == NORM_IN_BRANCH
    assert layer_at(Network((stem, 3), (NARROW, 2)), 3).rows.order == NORM_FIRST


@pytest.mark.parametrize(
    ("layer", "stages"),
    [
        (0, [(INPUT, 0)]), (1, [(INPUT, 0), (WIDE, 1)]), (2, [(INPUT, 0), (WIDE, 2)]),
        (3, [(INPUT, 0), (WIDE, 2), (NARROW, 1)]), (7, [(INPUT, 0), (WIDE, 2), (NARROW, 5)]),
    ],
)  # fmt: skip
def test_a_network_until_a_layer(layer, stages):
    assert Network((INPUT, 0), (WIDE, 2), (NARROW, 1)).until(layer) == Network(*stages)
    assert WIDE.repeat(3).until(layer) == WIDE.repeat(layer)


BEFORE = Chain(8, 4, "relu", order="pre-activation")
BLOCK = Residual(Network((INPUT, 0), (NARROW, 2), (BEFORE, 1)))
BLOCK2 = Residual(NARROW.repeat(3))
ACROSS = Residual(
    NARROW.repeat(1), Chain(5, 4, norm="none", gain=2.0), skip=0.5, source="activations"
)
SUM = Residual(Network(ACROSS), Chain(5, 4, norm="rms"), activation="relu")


def test_blocks_are_values():
    network = Network((BEFORE, 1), BLOCK, ACROSS, (NARROW, 2))
    assert (network.depth, network.widths) == (7, [8, 8, 5, 5, 8, 5, 5, 5])
    assert network.chains == (BEFORE, NARROW, BEFORE, ACROSS.projection, NARROW, NARROW)
    assert network == BEFORE.repeat(1) + Network((BEFORE, 0), BLOCK, ACROSS) + NARROW.repeat(2)
    assert pattern_of(network) != Network((BEFORE, 1), BLOCK, BLOCK, (NARROW, 2)).stages
    assert (SUM.depth, Network((BEFORE, 0), SUM).widths) == (2, [8, 5, 5])
    for value in (network, BLOCK, ACROSS, SUM, Network((BEFORE, 0), SUM)):
        assert pickle.loads(pickle.dumps(value)) == value
        names = {"Network": Network, "Chain": Chain, "Residual": Residual}
        assert eval(repr(value), names) == value
        assert hash(value) == hash(eval(repr(value), names))
    assert json.loads(json.dumps(options_of(network)))["stages"][2]["projection"]["gain"] == 2.0
    assert options_of(NARROW.repeat(3)) == NARROW.as_json()
    with pytest.raises(ArgumentTypeError, match="meaning for one repeated layer only"):
        as_chain(Network(ACROSS))


def test_heads_of_results_have_a_short_text_of_a_network():
    small = Network((WIDE, 1))
    assert str(small) == repr(small)
    deep = Network.of(width=[9, 8, 8, 5], batch=4, activation="tanh", norm="none")
    assert str(deep) == "network of 3 layers, widths 5 to 9, batch 4"
    assert str(Network.of(width=7, depth=9, batch=4, gain=lambda layer: layer)) == (
        "network of 9 layers, width 7, batch 4"
    )
    head, *_ = str(bnmc.backpropagate(deep, chains=1, rng=0)).splitlines()
    assert head == f"{deep}: gradients of 1 network, 3 layers, loss 'gaussian'"


def test_layer_0_of_a_block_is_the_layer_before():
    """Alone, a block has the first chain of its branch as layer 0."""
    assert Network(BLOCK2).first == NARROW
    assert Network(BLOCK2).widths == [5, 5, 5, 5]
    assert Network(ACROSS).until(0) == NARROW.repeat(0)
    network = Network((BEFORE, 1), BLOCK, (NARROW, 2))
    assert network.until(4) == Network((BEFORE, 1), BLOCK)
    assert network.until(9) == Network((BEFORE, 1), BLOCK, (NARROW, 5))
    for layer in (2, 3):
        with pytest.raises(ArgumentError, match="layer: .*not inside a block"):
            network.until(layer)


def test_the_last_layer_of_a_block_has_its_skip_path():
    network = Network((BEFORE, 2), ACROSS, (NARROW, 2), BLOCK2, (BEFORE, 1))
    paths = [layer_at(network, number).path for number in range(network.depth + 1)]
    skips = [layer_at(network, number).rows.skip for number in range(network.depth + 1)]
    assert [path and path.length for path in paths] == [None] * 3 + [1] + [None] * 4 + [3, None]
    assert skips == [0.0] * 3 + [0.5] + [0.0] * 4 + [1.0, 0.0]
    linear = paths[3].projection
    assert (linear.width, linear.fan_in, linear.gain) == (5, 8, 2.0)
    # A state is kept for a skip path only if the path takes it.
    orders = [layer_at(network, number).rows.order for number in (2, 8, 9)]
    assert orders == [NORM_FIRST] * 3
    # The end of a block keeps it for the next one.
    other = Network((BEFORE, 2), BLOCK, BLOCK)
    assert [layer_at(other, number).rows.order for number in (1, 2, 5, 8)] == [
        NORM_FIRST, NORM_IN_BRANCH, NORM_IN_BRANCH, NORM_IN_BRANCH,
    ]  # fmt: skip


def test_networks_by_layers():
    network = Network.of(
        width=[9, 8, 8, 5], batch=4, activation=["relu", "relu", "tanh"], norm="layer",
        gain=lambda layer: 1 / layer, weights=["gaussian", "uniform", "uniform"],
    )  # fmt: skip
    assert network == Network(
        (INPUT, 0),
        (Chain(8, 4, "relu", norm="layer"), 1),
        (Chain(8, 4, "relu", norm="layer", gain=1 / 2, weights="uniform"), 1),
        (Chain(5, 4, "tanh", norm="layer", gain=1 / 3, weights="uniform"), 1),
    )
    same = Network.of(width=8, batch=4, depth=10, activation="relu", norm="none")
    assert same == Network((Chain(8, 4, norm="none"), 0), (Chain(8, 4, "relu", norm="none"), 10))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "stages: .*at least one pair"),
        ((WIDE,), "stages: .*pairs"),
        (((WIDE, 1, 2),), "stages: .*pairs"),
        (((3, 1),), "chain: got 3"),
        (((WIDE, -1),), "depth: got -1"),
        (((WIDE, 1), (NARROW, 0)), "depth: got 0"),
        (((WIDE, 2**31), (NARROW, 2**31)), "depth: "),
        (((WIDE, 1), (Chain(8, 5), 1)), "batch: got 5, allowed: 4"),
        (((WIDE, 1), (Chain(5, 4, skip=1.0), 1)), "skip: got 1.0, allowed: 0 from width 8 to .* 5"),
        (((NARROW, 1), BLOCK), "projection: got None, allowed: a chain, from width 5 to width 8"),
        ((BLOCK,), "projection: got None, allowed: a chain, from width 9 to width 8"),
        (((Chain(8, 5), 1), BLOCK), "batch: got 4, allowed: 5"),
        (((NARROW, 1), Residual(Chain(5, 4, skip=0.5).repeat(1) + NARROW.repeat(1)),
          Residual(Network((Chain(8, 4, skip=1.0), 1), (NARROW, 1)))), "skip: .*5 to width 8"),
        (
            [(Chain.conv(3, 1, shape=shape, kernel=(1, 1)), 1) for shape in ((2, 2), (1, 4))],
            "convolution: ",
        ),
    ],
)  # fmt: skip
def test_stages_that_do_not_fit_are_refused(stages, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        Network(*stages)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": [8]}, "width: .*2 to"),
        ({"width": [8, 5], "depth": 1}, "depth: got 1"),
        ({"width": 8}, "depth: got None.*list of widths"),
        ({"width": [8, 5], "gain": [1.0, 2.0]}, "gain: .*list of 1 values"),
        ({"width": [8, 5], "gain": lambda layer: 0.0}, "gain: got 0.0"),
    ],
)
def test_lists_that_do_not_fit_are_refused(options, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        Network.of(batch=4, **options)


def test_a_missing_depth_has_a_remedy():
    with pytest.raises(ArgumentTypeError, match=r"pass depth=, or chain\.repeat\(3\)"):
        bnmc.simulate(WIDE)


def test_what_needs_one_chain_says_so():
    network = Network((WIDE, 1), (NARROW, 1))
    for of_chain in (as_chain, partial(tv_bound, depth=2), lambda given: given.chain):
        with pytest.raises(ArgumentTypeError, match="meaning for one repeated layer only"):
            of_chain(network)
    assert WIDE.repeat(3).chain == WIDE
    with pytest.raises(ArgumentError, match="depth: got 3, allowed: None with a network"):
        as_network(network, 3)
    with pytest.raises(TypeError):
        network + WIDE


def test_the_idealized_chain_has_the_variances_of_the_chain():
    chain = Chain(
        64,
        4,
        "tanh",
        norm="group(8)",
        weights="pytorch",
        eps=1e-5,
        skip=0.5,
        order="pre-activation",
    )
    ideal = chain.idealized()
    assert (ideal.eps, ideal.weights) == (0.0, "gaussian")
    for name in ("width", "batch", "activation", "norm", "skip", "gain", "order", "bias_variance"):
        assert getattr(ideal, name) == getattr(chain, name)
    assert ideal.idealized() == ideal
    conv = Chain.conv(4, 2, shape=(2, 2), kernel=(1, 1), eps=1e-5)
    assert conv.idealized() == Chain.conv(4, 2, shape=(2, 2), kernel=(1, 1))
    real = Chain(64, 4, "relu", weights="pytorch", eps=1e-5)
    with pytest.raises(ArgumentError, match=r"eps: .*chain\.idealized\(\) has eps 0"):
        MeanField(real).fixed_point()
    assert MeanField(real.idealized()).fixed_point().stable
    with pytest.raises(ArgumentError, match=r"weights: .*chain\.idealized\(\) has Gaussian"):
        bnmc.mixing.contraction(real)
