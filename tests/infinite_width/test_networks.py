"""Kernels of networks of finite width against all their gradients, by complex steps."""

import itertools
from functools import partial
from unittest import mock

import numpy as np
import pytest
from infinite_width_checks import derivatives

from bnmc.errors import PartialEstimateError
from bnmc.infinite_width import SimulatedKernel, networks, nngp, ntk

WIDTH, WEIGHT, BIAS = 5, 1.7, 0.3
X = np.random.default_rng(0).standard_normal((3, 7))
CASES = [
    ("none", "norm-activation", 0.0, 2, None), ("none", "norm-activation", 0.6, 3, None),
    ("layer", "norm-activation", 0.6, 2, None), ("rms", "activation-norm", 0.6, 2, None),
    ("layer", "activation-norm", 0.0, 3, None), ("batch", "norm-activation", 0.0, 2, None),
    ("batch", "norm-activation", 0.5, 3, (4, 3)), ("batch", "activation-norm", 0.5, 2, (4, 3)),
    ("batch", "norm-activation", 0.0, 0, None),
]  # fmt: skip


def norm_of(h, norm, sizes):
    if norm == "none":
        return h
    if norm == "batch":
        parts = np.split(h, np.cumsum(sizes)[:-1], axis=1)
        return np.hstack([norm_of(part.T, "layer", None).T for part in parts])
    centred = h - (h.mean(axis=0) if norm == "layer" else 0.0)
    return centred / np.sqrt(np.mean(centred**2, axis=0))


def shapes_of(depth):
    """Return the shapes of weights and biases, in the order in which they are drawn."""
    widths = [3, *([WIDTH] * depth), 1]
    return [
        shape
        for inputs, outputs in itertools.pairwise(widths)
        for shape in ((outputs, inputs), (outputs, 1))
    ]


def outputs_of(parameters, depth, norm, order, skip, sizes):
    """Return f for all samples, from a list of standard normal parameters."""
    pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
    stream, a = None, X
    for layer, (W, b) in enumerate(pairs):
        h = np.sqrt(WEIGHT / len(a)) * W @ a + np.sqrt(BIAS) * b
        if stream is not None:
            # The output is the first coordinate of its layer.
            h = h + skip * (stream if layer < len(pairs) - 1 else stream[:1])
        if layer == len(pairs) - 1:
            return h[0]
        if order == "norm-activation":
            stream = norm_of(h, norm, sizes)
            a = np.tanh(stream)
        else:
            stream, a = h, norm_of(np.tanh(h), norm, sizes)
    raise AssertionError


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_the_tangent_kernel_is_that_of_all_gradients(case):
    norm, order, skip, depth, batch = case
    sizes = (7,) if batch is None else batch
    options = {
        "activation": "tanh", "norm": norm, "order": order, "skip": skip, "weight_variance": WEIGHT,
        "bias_variance": BIAS, "method": "monte-carlo", "width": WIDTH, "chains": 2, "rng": 3,
    }  # fmt: skip
    sets = (X, None) if batch is None else (X[:, :4], X[:, 4:])
    simulated = ntk(sets[0], depth, other=sets[1], batch=batch, **options)
    for number in range(2):
        rng = np.random.Generator(np.random.Philox(key=simulated.key, counter=[0, 0, 0, number]))
        parameters = [rng.standard_normal(shape) for shape in shapes_of(depth)]
        if depth == 0:
            parameters = [np.ones((1, 3)), np.ones((1, 1))]  # the gradient has no parameters
        parts = derivatives(
            partial(outputs_of, depth=depth, norm=norm, order=order, skip=skip, sizes=sizes),
            parameters,
        )
        gradients = np.concatenate([part.reshape(-1, 7) for part in parts])
        theta = gradients.T @ gradients
        expected = theta if batch is None else theta[:4, 4:]
        np.testing.assert_allclose(simulated.kernels[number], expected, rtol=1e-10, atol=1e-12)


def test_a_network_without_hidden_layers_is_the_limit():
    options = {"weight_variance": WEIGHT, "bias_variance": BIAS}
    simulated = nngp(X, 0, method="monte-carlo", chains=1, rng=0, **options)
    np.testing.assert_allclose(simulated, nngp(X, 0, **options))


def test_infinite_moments_raise_with_what_there_is():
    options = {"norm": "batch", "method": "monte-carlo", "width": 16, "chains": 3, "rng": 0}
    x = np.random.default_rng(4).standard_normal((6, 6))
    with pytest.raises(PartialEstimateError, match="expectation"):
        ntk(x, 1, batch=3, **options).mean()
    four = ntk(x[:, :4], 1, **options)
    assert np.asarray(four).shape == (4, 4)
    with pytest.raises(PartialEstimateError, match="variance of the kernel") as caught:
        four.stderr()
    assert (caught.value.partial == four.mean()).all()
    assert nngp(x, 1, batch=3, **options).stderr().shape == (6, 6)
    with pytest.raises(PartialEstimateError, match="2 networks"):
        ntk(x, 1, method="monte-carlo", chains=1, rng=0).stderr()


def test_bits_do_not_depend_on_the_threads_of_blas():
    """Of products of 500 x 500 matrices with 25 columns they do."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    x, kernels = np.random.default_rng(1).standard_normal((20, 5)), []
    for threads in (1, 2, 3):
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            simulated = ntk(x, 2, norm="batch", method="monte-carlo", width=500, chains=2, rng=0)
        kernels.append(simulated.kernels.tobytes())
    assert kernels[0] == kernels[1] == kernels[2]


def test_progress_and_text():
    calls = []
    simulated = ntk(
        X, 1, method="monte-carlo", chains=2, width=8, rng=0,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls[-1] == (2, 2)
    assert isinstance(simulated, SimulatedKernel)
    assert repr(simulated) == "<SimulatedKernel of 2 networks of width 8>"
    assert simulated.chains == 2


def test_dimensions_are_those_of_the_smallest_batch():
    """Differences of three samples in general position span 2 dimensions, of two samples 1."""
    x = np.random.default_rng(3).standard_normal((4, 5))
    for width, expected, *parts in (
        (9, 1, x[:, :3], x[:, 3:]), (9, 1, x[:, 3:], x[:, :3]), (9, 4, x), (3, 3, x),
    ):  # fmt: skip
        network = mock.Mock(is_batched=True, tangent=True, width=width)
        network.parts.return_value = parts
        assert networks._dimensions(network) == expected
