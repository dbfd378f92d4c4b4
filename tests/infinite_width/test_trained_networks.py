"""Training of networks with one hidden layer, against formulas, autograd and kernel descent."""

import numpy as np
import pytest
from infinite_width_checks import central_differences

from bnmc.infinite_width import (
    SCALINGS,
    descent,
    train_networks,
    trained_networks,
)

X = np.random.default_rng(5).standard_normal((3, 6)) / np.sqrt(3.0)
Y = (X[0] > 0).astype(float)


def by_hand(name, steps, width, reference, rate, loss):
    """The weights of a tanh network in NumPy, sample by sample, from the normals of one seed."""
    (child,) = np.random.default_rng(7).spawn(1)
    w = child.standard_normal((width, 3))
    scaling = SCALINGS[name]
    r, q = width / reference, float(scaling.q_sigma)
    sigma = reference**-0.5 * r**q
    a = child.standard_normal(width) * sigma
    qa, qw = map(float, scaling.q_tilde)
    # Rates of weights of variance 1, turned into those of a and w.
    rate_a, rate_w = rate * reference * r**qa * sigma**2, rate * r**qw
    start = a @ np.tanh(w @ X)
    extra = start * (r ** (-q - 0.5) - 1.0) if scaling.corrected else 0.0 * start
    for _ in range(steps):
        da, dw = np.zeros_like(a), np.zeros_like(w)
        for k in range(X.shape[1]):
            f = a @ np.tanh(w @ X[:, k]) + extra[k]
            pull = 1.0 / (1.0 + np.exp(-f)) - Y[k] if loss == "cross-entropy" else f - Y[k]
            da += pull * np.tanh(w @ X[:, k]) / X.shape[1]
            slope = 1.0 - np.tanh(w @ X[:, k]) ** 2
            dw += pull * np.outer(a * slope, X[:, k]) / X.shape[1]
        a, w = a - rate_a * da, w - rate_w * dw
    return a @ np.tanh(w @ X) + extra, a, w


@pytest.mark.parametrize("name", list(SCALINGS))
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_steps_written_out(name, loss):
    run = train_networks(
        name, X, Y, [0, 4], width=24, networks=1, reference_width=8, activation="tanh",
        learning_rate=0.3, loss=loss, rng=7, test=X[:, :2],
    )  # fmt: skip
    for index, steps in enumerate((0, 4)):
        outputs, a, w = by_hand(name, steps, 24, 8, 0.3, loss)
        np.testing.assert_allclose(run.outputs[0, index], outputs, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(run.test_outputs[0, index], outputs[:2], rtol=1e-10, atol=1e-12)
        squares = [np.square(a).mean(), np.square(w).mean()]
        np.testing.assert_allclose(run.weight_squares[0, index], squares, rtol=1e-10)
        _, first_a, first_w = by_hand(name, 0, 24, 8, 0.3, loss)
        changes = [np.square(a - first_a).mean(), np.square(w - first_w).mean()]
        np.testing.assert_allclose(run.weight_changes[0, index], changes, rtol=1e-9)


def deep_by_hand(name, layers, steps, width, reference, rate):
    """Weights of a deep tanh network after steps on the squared loss, by differences of the loss.

    Returns the weights from input to output, the outputs, and the derivatives of each output.
    """
    (child,) = np.random.default_rng(7).spawn(1)
    shapes = [(width, 3), *[(width, width)] * (layers - 1), (1, width)]
    normals = [child.standard_normal(shape) for shape in shapes]
    scaling, r = SCALINGS[name], width / reference
    q = float(scaling.q_sigma)
    # Standard deviations of the weights are 1/sqrt(d*) at the reference width and powers of r.
    deviations = [1.0] + [reference**-0.5 * r**q] * layers
    weights = [s * w for s, w in zip(deviations, normals, strict=True)]
    qa, qw = map(float, scaling.q_tilde)
    powers = [qw] + [float(scaling.q_hidden) + 2 * q] * (layers - 1) + [qa + 2 * q]

    def outputs(of):
        x = X
        for w in of[:-1]:
            x = np.tanh(w @ x)
        return (of[-1] @ x)[0]

    usual = [normals[0]] + [w / np.sqrt(width) for w in normals[1:]]
    extra = outputs(usual) - outputs(weights) if scaling.corrected else 0.0

    def derivatives(of):
        """Central differences of each output in each weight, (samples, rows, columns)."""
        return [central_differences(lambda: outputs(of), w).T.reshape(-1, *w.shape) for w in of]

    for _ in range(steps):
        pull = (outputs(weights) + extra - Y) / X.shape[1]
        moves = derivatives(weights)
        for w, power, move in zip(weights, powers, moves, strict=True):
            w -= rate * r**power * np.tensordot(pull, move, 1)
    return weights, outputs(weights) + extra, derivatives(weights)


@pytest.mark.parametrize("name", list(SCALINGS))
@pytest.mark.parametrize("layers", [2, 3])
def test_deep_networks_by_differences(name, layers):
    width, reference, rate = 5, 2, 0.2
    run = train_networks(
        name, X, Y, [0, 3], width=width, hidden_layers=layers, networks=1, loss="squared",
        reference_width=reference, activation="tanh", learning_rate=rate, rng=7, test=X[:, 2:4],
    )  # fmt: skip
    first = None
    for index, steps in enumerate((0, 3)):
        weights, outputs, moves = deep_by_hand(name, layers, steps, width, reference, rate)
        first = weights if first is None else first
        np.testing.assert_allclose(run.outputs[0, index], outputs, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(run.test_outputs[0, index], outputs[2:4], rtol=1e-7, atol=1e-9)
        squares = [np.square(w).mean() for w in weights[::-1]]
        np.testing.assert_allclose(run.weight_squares[0, index], squares, rtol=1e-7)
        changes = [np.square(w - o).mean() for w, o in zip(weights, first, strict=True)]
        np.testing.assert_allclose(run.weight_changes[0, index], changes[::-1], rtol=1e-6)
        scaling = SCALINGS[name]
        _, output, inputs = scaling.factors(width, reference)
        rates = [inputs, *[scaling.hidden_rate(width, reference)] * (layers - 1), output]
        kernels = [
            rate * eta * np.square(move).sum(axis=(1, 2)).mean()
            for eta, move in zip(rates, moves, strict=True)
        ]
        np.testing.assert_allclose(run.kernels[0, index], kernels[::-1], rtol=1e-6)


@pytest.mark.parametrize(("name", "layers"), [("ntk", 1), ("ic-mf", 1), ("mean-field", 3)])
def test_networks_of_one_group_are_those_of_each_alone(name, layers, monkeypatch):
    """With labels of their own; groups of 3, 3 and 1 networks."""
    labels = np.random.default_rng(1).random((7, 6))
    options = {
        "width": 40, "hidden_layers": layers, "activation": "tanh", "test": X[:, :2],
        "learning_rate": 0.3, "reference_width": 8,
    }  # fmt: skip
    monkeypatch.setattr(trained_networks, "_ROWS", 125)
    whole = train_networks(name, X, labels, [0, 2, 5], networks=7, rng=7, **options)
    children = np.random.default_rng(7).spawn(7)
    for number, child in enumerate(children):
        alone = train_networks(
            name, X, labels[number], [0, 2, 5], networks=1, rng=[child], **options
        )
        for part in ("outputs", "test_outputs", "weight_squares", "weight_changes"):
            np.testing.assert_array_equal(getattr(alone, part)[0], getattr(whole, part)[number])
        np.testing.assert_allclose(alone.kernels[0], whole.kernels[number], rtol=1e-14)
    assert (np.diff(whole.outputs[:, 1], axis=0) != 0.0).all()


def test_labels_of_all_networks_are_those_of_each():
    runs = [
        train_networks("ntk", X, labels, [3], width=8, networks=3, rng=1)
        for labels in (Y > 0, np.tile(Y > 0, (3, 1)))
    ]
    np.testing.assert_array_equal(runs[0].outputs, runs[1].outputs)


def test_kernels_are_those_of_the_gradients():
    run = train_networks("ntk", X, Y, [0], width=16, networks=1, reference_width=16, rng=7,
                        activation="tanh", learning_rate=0.5)  # fmt: skip
    _, a, w = by_hand("ntk", 0, 16, 16, 0.5, "squared")
    h = w @ X
    of_a = 0.5 * np.square(np.tanh(h)).sum(axis=0).mean()
    gradients = (a[:, None] * (1 - np.tanh(h) ** 2))[:, None] * X
    of_w = 0.5 * np.square(gradients).sum(axis=(0, 1)).mean()
    np.testing.assert_allclose(run.kernels[0, 0], [of_a, of_w], rtol=1e-12)


def test_a_wide_network_follows_its_kernel():
    """Outputs under the NTK scaling against descent with the kernel of infinite width."""
    width, steps, rate = 4096, 100, 0.1
    run = train_networks(
        "ntk", X, Y, [0, steps], width=width, networks=8, activation="tanh", reference_width=width,
        learning_rate=rate / width, loss="squared", rng=2,
    )  # fmt: skip
    # The rate of a term of f is rate/width * sum over width of tanh tanh' = rate * mean for the
    # output weights; that of the input weights has a^2 of mean 1/width, and vanishes.
    kernel = _kernel_of_outputs()
    start = run.outputs[:, 0]
    ours = np.array(
        [descent(kernel, Y, [steps], learning_rate=rate, initial=f).outputs[0] for f in start]
    )
    moved = np.abs(ours - start).mean()
    assert np.abs(run.outputs[:, 1] - ours).mean() < 0.1 * moved


def _kernel_of_outputs():
    """E tanh(w x) tanh(w x'), by quadrature of high order."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    kernel = np.empty((X.shape[1],) * 2)
    for i, j in np.ndindex(kernel.shape):
        pair = X[:, [i, j]]
        root = np.linalg.cholesky(pair.T @ pair + 1e-14 * np.eye(2))
        u, v = root[0, 0] * nodes, root[1, 0] * nodes[:, None] + root[1, 1] * nodes
        kernel[i, j] = (weights * np.tanh(u)) @ np.tanh(v) @ weights
    return 0.5 * (kernel + kernel.T)
