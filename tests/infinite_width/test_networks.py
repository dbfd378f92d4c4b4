"""Kernels of networks of finite width against all their gradients, by finite differences."""

import itertools
from functools import partial
from unittest import mock

import numpy as np
import pytest
from infinite_width_checks import central_differences

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
        return np.hstack(
            [(p - p.mean(axis=1, keepdims=True)) / p.std(axis=1, keepdims=True) for p in parts]
        )
    if norm == "rms":
        return h / np.sqrt(np.mean(h**2, axis=0))
    return (h - h.mean(axis=0)) / h.std(axis=0)


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
        "bias_variance": BIAS, "method": "monte-carlo", "width": WIDTH, "networks": 2, "rng": 3,
    }  # fmt: skip
    sets = (X, None) if batch is None else (X[:, :4], X[:, 4:])
    simulated = ntk(sets[0], depth, other=sets[1], batch=batch, **options)
    for number in range(2):
        rng = np.random.Generator(np.random.Philox(key=simulated.key, counter=[0, 0, 0, number]))
        parameters = [rng.standard_normal(shape) for shape in shapes_of(depth)]
        if depth == 0:
            parameters = [np.ones((1, 3)), np.ones((1, 1))]  # the gradient has no parameters
        outputs = partial(outputs_of, parameters, depth, norm, order, skip, sizes)
        gradients = np.concatenate([central_differences(outputs, each) for each in parameters])
        theta = gradients.T @ gradients
        expected = theta if batch is None else theta[:4, 4:]
        np.testing.assert_allclose(simulated.kernels[number], expected, rtol=1e-6, atol=1e-7)


def test_covariances_are_means_over_the_output_weights():
    options = {"weight_variance": WEIGHT, "bias_variance": BIAS, "method": "monte-carlo"}
    few = nngp(X, 2, width=64, networks=200, rng=1, skip=0.5, **options)
    limit = nngp(X, 2, weight_variance=WEIGHT, bias_variance=BIAS, skip=0.5)
    # The mean is the limit in the first layer, and differs by O(1/width) in the second one.
    assert (np.abs(few.mean() - limit) < 6.5 * few.stderr() + 2.0 * limit / 64).all()
    exact = nngp(X, 0, networks=1, rng=0, **options)
    np.testing.assert_allclose(exact, nngp(X, 0, weight_variance=WEIGHT, bias_variance=BIAS))


def test_infinite_moments_raise_with_what_there_is():
    options = {"norm": "batch", "method": "monte-carlo", "width": 16, "networks": 3, "rng": 0}
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
        ntk(x, 1, method="monte-carlo", networks=1, rng=0).stderr()


def test_bits_do_not_depend_on_the_threads_of_blas():
    """Of products of 500 x 500 matrices with 25 columns they do."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    x, kernels = np.random.default_rng(1).standard_normal((20, 5)), []
    for threads in (1, 2, 3):
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            simulated = ntk(x, 2, norm="batch", method="monte-carlo", width=500, networks=2, rng=0)
        kernels.append(simulated.kernels.tobytes())
    assert kernels[0] == kernels[1] == kernels[2]


def test_progress_and_text():
    calls = []
    simulated = ntk(
        X, 1, method="monte-carlo", networks=2, width=8, rng=0,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls == [(0, 2), (1, 2), (2, 2)]
    assert isinstance(simulated, SimulatedKernel)
    assert repr(simulated) == "<SimulatedKernel of 2 networks of width 8>"
    assert simulated.networks == 2


def test_dimensions_are_those_of_the_smallest_batch():
    """Differences of three samples in general position span 2 dimensions, of two samples 1."""
    x = np.random.default_rng(3).standard_normal((4, 5))
    for width, expected, *parts in (
        (9, 1, x[:, :3], x[:, 3:]), (9, 1, x[:, 3:], x[:, :3]), (9, 4, x), (3, 3, x),
    ):  # fmt: skip
        network = mock.Mock(is_batched=True, tangent=True, width=width)
        network.parts.return_value = parts
        assert networks._dimensions(network) == expected
