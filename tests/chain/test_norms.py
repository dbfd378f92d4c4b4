"""Norms as values, and the arguments of chains that belong to them."""

import pickle

import numpy as np
import pytest
from numpy_network import normalised

import bnmc
from bnmc.chain.norms import NORMS, ROW_NORMS, GroupNorm, as_norm


@pytest.mark.parametrize("name", [*NORMS, "group(3)"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_norms_are_those_of_the_formula(name, eps):
    x = np.random.default_rng(0).standard_normal((2, 12, 4)) + 2.0
    norm = bnmc.Chain(12, 4, norm=name).normalization
    np.testing.assert_allclose(norm(x, eps), normalised(x, name, eps), rtol=1e-12, atol=1e-14)


def test_rows_without_variance():
    x = np.random.default_rng(1).standard_normal((2, 12, 4))
    x[1, 5] = 7.0
    x[0, 3] = 0.0
    for name, expected in (
        ("batch", [[0, 3], [1, 5]]), ("batch-uncentred", [[0, 3]]), ("none", []),
    ):  # fmt: skip
        result = as_norm(name).without_variance(x)
        assert (result.shape, result.dtype) == ((2, 12), bool)
        assert np.argwhere(result).tolist() == expected


def test_samples_without_variance():
    x = np.random.default_rng(1).standard_normal((2, 12, 4))
    x[1, 4:8, 2] = 7.0
    assert np.argwhere(as_norm("group(3)").without_variance(x)).tolist() == [[1, 2]]
    for name in ("layer", "rms"):
        assert not as_norm(name).without_variance(x).any()
    x[0, :, 3] = 0.0
    assert np.argwhere(as_norm("rms").without_variance(x)).tolist() == [[0, 3]]
    assert as_norm("layer").without_variance(x).shape == (2, 4)


def test_groups_have_a_name_and_a_value():
    chain = bnmc.Chain(12, 4, norm=bnmc.GroupNorm(3))
    assert chain.norm == "group(3)"
    assert chain == bnmc.Chain(12, 4, norm="group(3)")
    assert chain != bnmc.Chain(12, 4, norm="group(4)")
    assert repr(chain.normalization) == "GroupNorm(3)"
    assert eval(repr(chain), {"Chain": bnmc.Chain}) == chain
    assert pickle.loads(pickle.dumps(chain)) == chain
    assert hash(GroupNorm(3)) == hash(as_norm("group(3)"))
    assert bnmc.Chain(1, 4, norm="rms").normalization.groups == 1
    assert ROW_NORMS == ("batch", "batch-uncentred", "none")


def test_residual_blocks_have_the_norm_inside():
    chain = bnmc.Chain.resnet(12, 4, "tanh", norm="rms", gain=0.5, eps=0.1, bias_variance=0.2)
    expected = bnmc.Chain(
        12, 4, "tanh", norm="rms", skip=1.0, gain=0.5, eps=0.1, order="pre-activation",
        bias_variance=0.2,
    )  # fmt: skip
    assert chain == expected
    assert bnmc.Chain.resnet(12, 4).norm == "batch"


def test_chains_tell_what_their_samplers_ask():
    def asked(**options):
        chain = bnmc.Chain(12, 4, "tanh", **options)
        return chain.is_row_by_row, chain.shows_bias, chain.covariance.is_identity

    assert asked() == (True, False, True)
    assert asked(bias_variance=1.0) == (True, False, True)
    assert asked(norm="none", bias_variance=1.0) == (True, True, False)
    assert asked(norm="none", order="activation-norm") == (True, False, True)
    assert asked(order="pre-activation") == (True, False, True)
    assert asked(order="pre-activation", skip=1.0, bias_variance=1.0) == (False, False, True)
    assert asked(order="activation-norm", bias_variance=1.0) == (False, True, False)
    assert asked(norm="layer", bias_variance=1.0) == (False, True, False)
    chain = bnmc.Chain(12, 4, norm="none", gain=2.0, bias_variance=1.0)
    assert not chain.is_vanilla_linear
    np.testing.assert_array_equal(chain.covariance(np.eye(4)), np.eye(4) + 0.25)


def test_subnormal_parts_beside_eps_are_zero():
    x = np.array([[1e-315, -2e-315, 3e-315], [1.0, 2.0, 4.0]])
    normed = as_norm("batch")(x, 1e-12)
    assert abs(normed[0]).max() < 1e-305
    np.testing.assert_allclose(normed[1], normalised(x, eps=1e-12)[1])
