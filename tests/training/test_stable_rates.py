"""Largest stable rates: Gauss-Newton matrices by PyTorch, the limit, and real gradient descent."""

import re

import numpy as np
import pytest
from scipy import stats
from slow_cases import slow

import bnmc
from bnmc import Chain, Network, Residual, errors
from bnmc.infinite_width import ntk
from bnmc.training import largest_rate, stable_rates

torch = pytest.importorskip("torch")

FEATURES, SAMPLES = 5, 4
X = np.random.default_rng(0).standard_normal((FEATURES, SAMPLES))
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
GAINS = {"relu": 2**0.5, "tanh": 1.0}


def network_of(width, depth=3, activation="relu", norm="none", **options):
    gain = GAINS[activation] if norm == "none" else 1.0
    return Network.of(
        width=[FEATURES] + depth * [width], batch=SAMPLES, activation=activation, norm=norm,
        gain=gain, **options,
    )  # fmt: skip


def block_of(width):
    """Return a network of a layer and a pre-activation block with biases and a projection."""
    options = {"order": "pre-activation", "norm": "batch", "bias_variance": 0.2}
    chain = Chain(width, SAMPLES, "tanh", **options)
    last = Chain(width + 1, SAMPLES, "tanh", **options)
    path = Chain(width + 1, SAMPLES, norm="none", gain=0.8, bias_variance=0.2)
    block = Residual(Network((chain, 1), (last, 1)), path, skip=0.7)
    return Network((Chain(FEATURES, SAMPLES, norm="none"), 0), (chain, 1), block)


def of_block(*matrices):
    """Return the rows of h of the outputs of `block_of`, by the formula."""
    w1, w2, w3, readout, path, b1, b2, b3, b = matrices

    def activated(h):
        x = (h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True, unbiased=False)
        return torch.tanh(x)

    h1 = w1 @ torch.tensor(X) + b1
    h2 = w2 @ activated(h1) + b2
    h3 = w3 @ activated(h2) + b3 + 0.7 * (path @ h1 + b)
    return readout @ activated(h3)


def largest_by_autograd(model, activation, norm, skip, loss):
    """Return λ of the Gauss-Newton matrix from all gradients of the entries of all matrices."""
    entries = []
    for weights in model.weights:
        decided = weights.entries() if hasattr(weights, "matrix") else weights.value
        entries.append(torch.tensor(np.array(decided)))
    factors = [matrix.factor for matrix in model.architecture.matrices]

    def outputs(*matrices):
        if norm == "of a block":
            return of_block(*matrices).T.reshape(-1)
        h = matrices[0] @ torch.tensor(X)
        for matrix in matrices[1:]:
            x = h
            if norm == "batch":
                x = (h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True, unbiased=False)
            if norm == "layer":
                x = (h - h.mean(0)) / h.std(0, unbiased=False)
            a = ACTIVATIONS[activation](x)
            is_last = matrix is matrices[-1]
            h = matrix @ a + (skip * x if skip and not is_last else 0.0)
        return h.T.reshape(-1)

    jacobians = torch.autograd.functional.jacobian(outputs, tuple(entries))
    kernel = sum(
        factor * part.flatten(1) @ part.flatten(1).T
        for factor, part in zip(factors, jacobians, strict=True)
    ).numpy()
    if loss == "cross-entropy":
        f = outputs(*entries).reshape(SAMPLES, -1)
        p = torch.softmax(f, 1).numpy()
        hessian = np.zeros_like(kernel)
        count = p.shape[1]
        for sample, of_sample in enumerate(p):
            at = slice(sample * count, (sample + 1) * count)
            hessian[at, at] = np.diag(of_sample) - np.outer(of_sample, of_sample)
        kernel = hessian @ kernel
    return np.linalg.eigvals(kernel).real.max() / SAMPLES


CASES = {
    "kernel": (network_of(15), "relu", "none", 0.0, "squared", 1, "standard"),
    "kernel, implicit": (network_of(90, 2), "relu", "none", 0.0, "squared", 1, "ntk"),
    "kernel, cross-entropy": (
        network_of(12, 2, "tanh"), "tanh", "none", 0.0, "cross-entropy", 3, "standard",
    ),
    "products": (network_of(12, 2, "tanh"), "tanh", "none", 0.0, "squared", 9, "mup"),
    "products, implicit": (
        network_of(290, 2, "tanh"), "tanh", "none", 0.0, "cross-entropy", 9, "standard",
    ),
    "batch": (network_of(20, 2, "tanh", "batch"), "tanh", "batch", 0.0, "squared", 3, "ntk"),
    "layer, skip": (
        network_of(20, 3, "tanh", "layer", skip=[0.0, 0.7, 0.7]), "tanh", "layer", 0.7,
        "cross-entropy", 10, "standard/n",
    ),
    "block": (block_of(12), "tanh", "of a block", 0.0, "squared", 1, "mup"),
    "block, products": (block_of(12), "tanh", "of a block", 0.0, "cross-entropy", 9, "mup"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_eigenvalue_is_that_of_autograd(name, monkeypatch):
    network, activation, norm, skip, loss, outputs, parametrization = CASES[name]
    models = []

    class Watched(stable_rates.Model):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            models.append(self)

    monkeypatch.setattr(stable_rates, "Model", Watched)
    ours = largest_rate(
        network, X, outputs=outputs, loss=loss, parametrization=parametrization,
        reference_width=16, chains=1, rtol=1e-10, rng=3,
    )  # fmt: skip
    is_implicit = [matrix.is_implicit for matrix in models[0].architecture.matrices]
    assert any(is_implicit) == ("implicit" in name)
    exact = largest_by_autograd(models[0], activation, norm, skip, loss)
    assert ours.eigenvalues[0] == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("name", ["none", "batch", "blocks"])
def test_the_limit_is_the_tangent_kernel(name):
    """With gain 1 and the features as reference width all matrices have the same factor.

    So do biases of variance 1/features.  A linear layer more has the law of the outputs.
    """
    x = np.random.default_rng(2).standard_normal((FEATURES, 7))
    common = {"batch": 7, "bias_variance": 1.0 / FEATURES}
    plain = Chain(width=9, activation="tanh", norm="none", **common)
    batch = Chain(width=9, activation="relu", order="pre-activation", **common)
    path = Chain(width=11, norm="none", **common)
    last = Chain(width=11, activation="relu", norm="layer", order="activation-norm", **common)
    start = (Chain(FEATURES, 7, norm="none"), 0)
    network = {
        "none": Network(start, (plain, 3)),
        "batch": Network(start, (batch, 3)),
        "blocks": Network(
            start, (batch, 1), Residual(batch.repeat(2), skip=0.6),
            Residual(Network((plain, 1), (last, 1)), path, skip=1.5, source="activations"),
        ),
    }[name]  # fmt: skip
    ours = largest_rate(
        network, x, parametrization="ntk", reference_width=FEATURES, chains=1, rng=0
    )
    theirs = FEATURES * ntk(Network(*network.stages, (Chain(1, 7, norm="none"), 1)), x)
    assert ours.limit == pytest.approx(np.linalg.eigvalsh(theirs)[-1] / 7, rel=1e-6)


def test_the_limit_of_cross_entropy():
    """Outputs near 0 have the probabilities 1/C, and H the eigenvalues 1/C and 0.

    Beside that, λ of outputs f is an average over p of what it is at f = 0, and less for certain
    outputs.
    """
    network = network_of(10, 2)
    limits = [
        largest_rate(
            network, X, loss=loss, outputs=3, readout_gain=gain, chains=1, rng=0
        ).limit
        for loss, gain in (("squared", 1e-4), ("cross-entropy", 1e-4), ("cross-entropy", 30.0))
    ]  # fmt: skip
    assert limits[1] == pytest.approx(limits[0] / 3, rel=2e-3)
    certain = largest_rate(network, X, readout_gain=30.0, chains=1, rng=0).limit
    assert limits[2] < 0.25 * certain


LIMITS = {
    **{
        f"{norm}, {parametrization}": (
            lambda norm=norm: network_of(2000, 2, "tanh", norm, skip=[0.0, 0.5]),
            {"parametrization": parametrization},
        )
        for norm in ("none", "layer") for parametrization in ("standard", "ntk", "mup")
    },
    "biases, cross-entropy": (
        lambda: network_of(2000, 2, "tanh", bias_variance=0.5),
        {"loss": "cross-entropy", "outputs": 4, "parametrization": "ntk"},
    ),
    "batch, block": (lambda: batched(2000), {"parametrization": "mup"}),
}  # fmt: skip


#: Each norm and the scalings of all sizes are in another case.
COSTLY = (
    "biases, cross-entropy", "batch, block", "none, ntk", "none, mup", "layer, standard",
    "layer, ntk",
)  # fmt: skip


def batched(width):
    """Return a batch of 12 samples, whose rows seldom have a small variance, and a block."""
    chain = Chain(width, 12, "relu", order="pre-activation", bias_variance=0.3)
    start = (Chain(FEATURES, 12, norm="none"), 0)
    return Network(start, (chain, 1), Residual(chain.repeat(1), skip=0.5))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in COSTLY else ()) for name in LIMITS],
)
def test_wide_networks_tend_to_the_limit(name):
    """Means of 60 networks within 5 standard errors plus a bias of order 1/width.

    The limit of cross-entropy is a median, whose standard error is a quarter larger, and has an
    error of its own.
    """
    make, settings = LIMITS[name]
    network = make()
    x = np.random.default_rng(0).standard_normal((FEATURES, network.batch))
    ours = largest_rate(network, x, chains=60, rng=1, **settings)
    ratios = ours.eigenvalues / ours.limit
    error = ratios.std(ddof=1) / np.sqrt(len(ratios))
    if settings.get("loss") == "cross-entropy":
        assert abs(np.median(ratios) - 1.0) < 5 * 1.6 * error + 10 / 2000
        assert error < 0.05
        return
    assert abs(ratios.mean() - 1.0) < 5 * error + 10 / 2000
    assert error < 0.02


@pytest.mark.parametrize(
    ("options", "samples", "reason"),
    [
        ({"norm": "batch", "skip": [0.0, 0.5]}, 4, "random at infinite width"),
        ({"norm": "batch"}, 3, "tangent kernel is infinite"),
        ({"norm": "batch", "eps": 1e-3}, 4, "eps: .*idealized"),
        ({"norm": "batch-uncentred"}, 4, "norm: .*batch-uncentred"),
    ],
)
def test_why_a_limit_is_not_known(options, samples, reason):
    network = Network.of(width=[FEATURES, 6, 6], batch=samples, activation="tanh", **options)
    ours = largest_rate(network, X[:, :samples], chains=1, rng=0)
    assert ours.limit_rate is None
    assert re.search(reason, ours.reason)
    assert re.search("λ at infinite width is not known: .*" + reason, str(ours))


@pytest.mark.parametrize(
    ("norm", "exact"), [("none", 2.1481), pytest.param("batch", 0.3224, marks=pytest.mark.slow)]
)
def test_karakidas_formula_at_256_samples(norm, exact):
    """λ of the Fisher matrix is ((n − 1) Θ_o + Θ_d)/n: ReLU, three layers, NTK parametrization.

    All weights have the variance 2.  Published values are of other normal inputs, whose randomness
    changes λ by .3 %, and the formula by less than that beside λ.
    """
    features, n, gain = 1000, 256, 2**0.5
    x = np.random.default_rng(0).standard_normal((features, n))
    network = Network.of(
        width=[features, 10, 10, 10], batch=n, activation="relu", norm=norm, gain=gain
    )
    ours = largest_rate(
        network, x, parametrization="ntk", reference_width=features, readout_gain=gain, chains=1,
        rng=0,
    )  # fmt: skip
    theta = ntk(x, 3, activation="relu", norm=norm, weight_variance=2.0)
    outside = (theta.sum() - np.trace(theta)) / (n * (n - 1))
    formula = ((n - 1) * outside + np.trace(theta) / n) / n
    largest = ours.limit * 2.0 / features
    assert largest == pytest.approx(formula, rel=2.5e-3)
    assert largest == pytest.approx(exact, rel=0.01)
    centred = theta - theta.mean(0) - theta.mean(1)[:, None] + theta.mean()
    assert np.linalg.eigvalsh(centred)[-1] / n < 0.04


@pytest.mark.parametrize(("chains", "error"), [(100, 0.36), (1000, 0.15)])
# `test_wide_networks_tend_to_the_limit` has the means of such networks.
@pytest.mark.slow
@pytest.mark.parametrize(("activation", "at_512"), [("relu", 0.13), ("tanh", 0.06)])
def test_fluctuations_fall_like_the_root_of_the_width(activation, at_512, chains, error):
    """Standard deviations of 100 networks have an error of 7 %: 5 of these are 36 %.

    Those of 1000 have one of 2.2 to 3 %, and slopes one of 1.5 %.
    """
    widths = np.array([256, 512, 1024, 4096])
    deviations = []
    for width in widths:
        ours = largest_rate(network_of(width, 3, activation), X, chains=chains, rng=2)
        deviations.append((ours.eigenvalues / ours.limit).std(ddof=1))
    slope = stats.linregress(np.log(widths), np.log(deviations)).slope
    assert abs(slope + 0.5) < 0.6 * error
    assert deviations[1] == pytest.approx(at_512, rel=error)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_wide_linearized_networks_have_the_rate_of_the_limit(activation):
    ours = largest_rate(network_of(8192, 3, activation), X, chains=100, rng=4)
    assert ours.stable_share(0.9 * ours.limit_rate) >= 0.95
    assert ours.stable_share(1.1 * ours.limit_rate) <= 0.05


def shares(activation, width, multiple, chains, steps=80):
    """Return the share of networks that learn at a multiple of their 2/λ.

    Their loss ends below its start, and below that of outputs 0: ReLU networks that diverge lose
    all their units, and then have these outputs.  Each network has the key of a training of its
    own.
    """
    network, ends = network_of(width, 3, activation), []
    targets = np.random.default_rng(9).standard_normal((SAMPLES, 1))
    of_zeros = 0.5 * float(np.square(targets).mean())
    for key in range(chains):
        rate = largest_rate(network, X, chains=1, rng=key).rates[0]
        run = bnmc.train(
            network, X, targets, loss="squared", steps=steps, observables=(),
            learning_rate=multiple * rate, rng=key,
        )  # fmt: skip
        least = min(run.loss[0, 0], 0.999 * of_zeros)
        ends.append(run.diverged[0] < 0 and bool(run.loss[0, -1] < least))
    return np.mean(ends)


@pytest.mark.parametrize(
    ("activation", "multiple", "chains"),
    [slow("relu", 10.0, 3), slow("tanh", 2.6, 3), ("tanh", 2.6, 1)],
)
def test_real_descent_survives_the_rate_and_fails_at_a_multiple(activation, multiple, chains):
    assert shares(activation, 512, 1.1, chains) == 1.0
    assert shares(activation, 512, multiple, chains) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("width", [512, 2048])
@pytest.mark.parametrize(("activation", "multiple"), [("relu", 10.0), ("tanh", 2.6)])
def test_real_descent_of_many_networks(activation, multiple, width):
    assert shares(activation, width, 1.1, 20) == 1.0
    assert shares(activation, width, multiple, 20) == 0.0


def test_bits_texts_and_pictures():
    network = network_of(100, 3, "relu")
    runs = [largest_rate(network, X, chains=4, threads=threads, rng=7) for threads in (1, 3)]
    assert runs[0].eigenvalues.tobytes() == runs[1].eigenvalues.tobytes()
    ours = runs[0]
    assert ours.multiples == (4.0, 6.0)
    assert ours.rate().value == pytest.approx((2.0 / ours.eigenvalues).mean())
    assert ours.eigenvalue().value == pytest.approx(ours.eigenvalues.mean())
    assert len(ours.plot().lines) == 2
    assert ours.to_dict()["limit_rate"] == ours.limit_rate
    skip = [0.0, 0.0, 1.0]
    single = largest_rate(network_of(20, 3, "tanh", "batch", skip=skip), X, chains=1, rng=7)
    assert single.multiples == (1.5, 6.0)
    assert "infinite width" in str(single)
    with pytest.raises(errors.PartialEstimateError):
        single.rate()
    for activation, depth in (("gelu", 3), ("relu", 2)):  # of which nothing was measured
        other = network_of(8, depth, activation, "layer")
        assert largest_rate(other, X, chains=1, rng=0).multiples is None


@pytest.mark.parametrize(
    ("eigenvalue", "cells"),
    [
        (50_000.0, ["4.005e-05 ± 1.706e-07", "3.950e-05", "1.602e-04", "2.403e-04"]),
        (500.0, ["0.004005 ± 0.000017", "0.00395", "0.01602", "0.02403"]),
    ],
)
def test_all_rates_of_a_table_have_one_notation(eigenvalue, cells):
    values = eigenvalue * np.array([0.99, 1.0, 1.01, 1.0 / 1.005])
    ours = stable_rates.LargestRate(
        network_of(100, 3, "relu"), "squared", "standard", values,
        eigenvalue * (4.0e-5 / 3.95e-5), "", 0,
    )  # fmt: skip
    assert [line.split("  ")[-1].strip() for line in str(ours).splitlines()[2:]] == cells


def test_gradients_has_it_too():
    assert bnmc.gradients.largest_rate is bnmc.training.largest_rate
    with pytest.raises(AttributeError, match="bnmc.gradients.*'largest'"):
        _ = bnmc.gradients.largest
