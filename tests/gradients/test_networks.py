"""The NumPy networks by which the backward pass is tested, against finite differences."""

import numpy as np
import pytest
from numpy_network import Networks

from bnmc import Chain, Convolution

CHAINS = {
    "centred": Chain(4, 3, "tanh", gain=1.3),
    "uncentred": Chain(4, 3, "sin", norm="batch-uncentred", eps=0.1),
    "none": Chain(4, 2, "tanh", norm="none", skip=0.5),
    "skip": Chain(4, 3, "tanh", skip=-0.7, gain=0.4),
    "after": Chain(4, 3, "tanh", norm="rms", order="activation-norm", skip=0.5, eps=0.1),
    "residual": Chain.resnet(4, 3, "sin", norm="group(2)", eps=0.2, bias_variance=0.5),
    "convolution": Chain(4, 6, "tanh", convolution=Convolution((2, 3), (2, 2))),
}


def loss(networks, direction):
    return (direction * networks.h[-1]).sum()


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("inputs", [1, 2])
def test_gradients_of_weights_are_finite_differences(name, inputs):
    chain = CHAINS[name]
    rng = np.random.default_rng(3)
    first = Networks(chain, 3, 1, rng, rng.standard_normal((4, chain.batch * inputs)), inputs)
    direction = rng.standard_normal(first.h[-1].shape)
    gradients = first.backward(direction)[1]
    step = 1e-6
    for layer, place in ((0, (1, 2)), (1, (3, 0)), (2, (2, 2))):
        values = []
        for sign in (1, -1):
            weights = [weight.copy() for weight in first.weights]
            weights[layer][0][place] += sign * step
            moved = Networks(chain, 3, 1, rng, first.h[0], inputs, weights, first.biases)
            values.append(loss(moved, direction))
        slope = (values[0] - values[1]) / (2 * step)
        # Third derivatives of order 1 and rounding of the loss: 1e-12 / step.
        assert slope == pytest.approx(gradients[layer][0][place], abs=1e-6, rel=1e-6)


def test_gradients_of_outputs_are_finite_differences():
    chain = CHAINS["centred"]
    rng = np.random.default_rng(4)
    first = Networks(chain, 2, 1, rng, rng.standard_normal((4, 3)))
    readout = rng.standard_normal((1, 5, 4))
    weight = first.weights[1]

    def cubes():
        moved = Networks(chain, 2, 1, rng, first.h[0], 1, [first.weights[0], weight])
        return (moved.outputs(readout) ** 3).sum() / 3

    delta = first.delta_of_outputs(readout, first.outputs(readout) ** 2)
    gradient = first.backward(delta)[1][1][0, 1, 3]
    weight[0, 1, 3] += 1e-6
    high = cubes()
    weight[0, 1, 3] -= 2e-6
    assert (high - cubes()) / 2e-6 == pytest.approx(gradient, rel=1e-6, abs=1e-6)
