"""A chain is a value: what it says, and that it is compared, shown and pickled as one."""

import dataclasses
import pickle

import numpy as np
import pytest

from bnmc import Activation, Chain


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
    assert Chain.vanilla(5, 3).is_vanilla_linear
    assert Chain(5, 3, norm="none", gain=2.0).is_vanilla_linear
    for chain in (
        Chain(5, 3),
        Chain.vanilla(5, 3, "relu"),
        Chain(5, 3, norm="none", skip=1.0),
        Chain(5, 3, norm="none", weights="uniform"),
        Chain(5, 3, Activation(lambda x: x, name="linear"), norm="none"),
    ):
        assert not chain.is_vanilla_linear


def test_the_chains_of_the_papers():
    assert Chain.bn_mlp(9, 3, "tanh") == Chain(9, 3, "tanh")
    assert Chain.bn_linear(9, 3) == Chain(9, 3, norm="batch-uncentred")
    assert Chain.vanilla(9, 3) == Chain(9, 3, norm="none")
    assert Chain.vanilla(9, 3, "relu") == Chain(9, 3, "relu", norm="none")
    residual = Chain.bn_residual(9, 3, "relu", gamma=0.1)
    assert residual == Chain(9, 3, "relu", norm="batch-uncentred", skip=1.0, gain=0.1 * 3.0)
    without_skip = Chain.bn_residual(9, 3, gamma=np.inf)
    assert without_skip == Chain(9, 3, norm="batch-uncentred")


def test_one_sample_has_no_centred_norm_but_has_the_others():
    assert Chain(5, 1, norm="none").batch == 1
    assert Chain(5, 1, norm="batch-uncentred").batch == 1
