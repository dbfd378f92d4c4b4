"""Training of networks with one hidden layer, against formulas, autograd and kernel descent."""

import numpy as np
import pytest
from infinite_width_checks import derivatives

from bnmc.infinite_width import SCALINGS, descent, nngp, train_networks, trained_networks

X = np.random.default_rng(5).standard_normal((3, 6)) / np.sqrt(3.0)
Y = (X[0] > 0).astype(float)


def by_hand(name, layers, loss, steps, width, reference, rate):
    """Weights of a tanh network after steps of gradient descent, from the normals of one seed.

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
    for _ in range(steps):
        f = outputs(weights) + extra
        pull = ((1 / (1 + np.exp(-f)) if loss == "cross-entropy" else f) - Y) / X.shape[1]
        for w, power, move in zip(weights, powers, derivatives(outputs, weights), strict=True):
            w -= rate * r**power * move @ pull
    return weights, outputs(weights) + extra, derivatives(outputs, weights)


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("name", list(SCALINGS))
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_steps_by_hand(name, layers, loss):
    width, reference, rate = 5, 2, 0.2
    run = train_networks(
        name, X, Y, [0, 3], width=width, hidden_layers=layers, chains=1, loss=loss,
        reference_width=reference, activation="tanh", learning_rate=rate, rng=7, test=X[:, 2:4],
    )  # fmt: skip
    scaling, first = SCALINGS[name], None
    _, output, inputs = scaling.factors(width, reference)
    rates = [inputs, *[scaling.hidden_rate(width, reference)] * (layers - 1), output]
    for index, steps in enumerate((0, 3)):
        weights, outputs, moves = by_hand(name, layers, loss, steps, width, reference, rate)
        first = weights if first is None else first
        np.testing.assert_allclose(run.outputs[0, index], outputs, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(run.test_outputs[0, index], outputs[2:4], rtol=1e-10, atol=1e-12)
        squares = [np.square(w).mean() for w in weights]
        np.testing.assert_allclose(run.weight_squares[0, index], squares[::-1], rtol=1e-10)
        changes = [np.square(w - start).mean() for w, start in zip(weights, first, strict=True)]
        np.testing.assert_allclose(run.weight_changes[0, index], changes[::-1], rtol=1e-9)
        kernels = [
            rate * eta * np.square(move).sum(axis=(0, 1)).mean()
            for eta, move in zip(rates, moves, strict=True)
        ]
        np.testing.assert_allclose(run.kernels[0, index], kernels[::-1], rtol=1e-10)


@pytest.mark.parametrize(("name", "layers"), [("ntk", 1), ("ic-mf", 1), ("mean-field", 3)])
def test_networks_of_one_group_are_those_of_each_alone(name, layers, monkeypatch):
    """With labels of their own; groups of 3, 3 and 1 networks."""
    labels = np.random.default_rng(1).random((7, 6))
    options = {
        "width": 40, "hidden_layers": layers, "activation": "tanh", "test": X[:, :2],
        "learning_rate": 0.3, "reference_width": 8,
    }  # fmt: skip
    monkeypatch.setattr(trained_networks, "_ROWS", 125)
    whole = train_networks(name, X, labels, [0, 2, 5], chains=7, rng=7, **options)
    children = np.random.default_rng(7).spawn(7)
    for number, child in enumerate(children):
        alone = train_networks(name, X, labels[number], [0, 2, 5], chains=1, rng=[child], **options)
        for part in ("outputs", "test_outputs", "weight_squares", "weight_changes"):
            np.testing.assert_array_equal(getattr(alone, part)[0], getattr(whole, part)[number])
        np.testing.assert_allclose(alone.kernels[0], whole.kernels[number], rtol=1e-14)
    assert (np.diff(whole.outputs[:, 1], axis=0) != 0.0).all()


def test_labels_of_all_networks_are_those_of_each():
    runs = [
        train_networks("ntk", X, labels, [3], width=8, chains=3, rng=1)
        for labels in (Y > 0, np.tile(Y > 0, (3, 1)))
    ]
    np.testing.assert_array_equal(runs[0].outputs, runs[1].outputs)


def test_a_wide_network_follows_its_kernel():
    """Outputs under the NTK scaling against descent with the kernel of infinite width."""
    width, steps, rate = 4096, 100, 0.1
    run = train_networks(
        "ntk", X, Y, [0, steps], width=width, chains=8, activation="tanh", reference_width=width,
        learning_rate=rate / width, loss="squared", rng=2,
    )  # fmt: skip
    # The rate of a term of f is rate/width * sum over width of tanh tanh' = rate * mean for the
    # output weights; that of the input weights has a^2 of mean 1/width, and vanishes.
    kernel = nngp(np.sqrt(3.0) * X, 1, activation="tanh")
    start = run.outputs[:, 0]
    ours = np.array(
        [descent(kernel, Y, [steps], learning_rate=rate, initial=f).outputs[0] for f in start]
    )
    moved = np.abs(ours - start).mean()
    assert np.abs(run.outputs[:, 1] - ours).mean() < 0.1 * moved
