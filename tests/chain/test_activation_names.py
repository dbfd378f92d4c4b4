"""Activations of other libraries, by their names and as modules."""

import numpy as np
import pytest

import bnmc
from bnmc.chain.activation_names import builtin_name, is_torch_module
from bnmc.errors import ArgumentTypeError, UnknownNameError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("ReLU", "relu"), ("LeakyReLU", "leaky_relu"), ("leaky-relu", "leaky_relu"),
     ("swish", "silu"), ("Identity", "linear"), ("Tanh", "tanh"), ("CELU", "celu")],
)  # fmt: skip
def test_spellings(spelled, name):
    assert bnmc.Chain(10, 3, spelled) == bnmc.Chain(10, 3, name)


def test_an_unknown_name_is_still_an_error():
    assert builtin_name("softmax") is None
    with pytest.raises(UnknownNameError, match="did you mean 'tanh'"):
        bnmc.Chain(10, 3, "Tahn")
    with pytest.raises(ArgumentTypeError, match="activation"):
        bnmc.Activation.named(3)


@pytest.mark.parametrize(
    "kind", ["ReLU", "LeakyReLU", "Tanh", "Sigmoid", "ELU", "CELU", "SELU", "GELU", "SiLU"]
)
def test_modules_of_pytorch_are_the_same_functions(kind):
    module = getattr(torch.nn, kind)()
    x = np.linspace(-4.0, 4.0, 41)
    expected = module(torch.from_numpy(x)).numpy()
    found = bnmc.Chain(10, 3, module).activation
    assert found.builtin
    np.testing.assert_allclose(found(x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "module",
    [torch.nn.LeakyReLU(0.2), torch.nn.GELU(approximate="tanh"), torch.nn.ELU(2.0),
     torch.nn.Softmax(0)],
)  # fmt: skip
def test_modules_with_other_parameters_are_no_built_in_functions(module):
    with pytest.raises(ArgumentTypeError, match="a scalar function"):
        bnmc.Chain(10, 3, module)


def test_functions_are_no_modules():
    assert not is_torch_module(np.tanh)
    assert not is_torch_module("relu")
