"""The tangent kernel: its law, its limit at infinite width, probing, moments and bad input."""

import math

import numpy as np
import pytest
from numpy_network import Networks
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc import Chain, Convolution
from bnmc.errors import (
    Interrupted,
    NonFiniteError,
    PartialEstimateError,
    ZeroVarianceError,
)
from bnmc.gradients import probing_variance, tangent, tangent_kernel

# Networks of the slow comparisons of laws, and of the others.
MANY, FEW = 20_000, 4_000

TWINS = np.repeat(np.random.default_rng(8).standard_normal((5, 2)), [2, 1], axis=1)

CASES = {
    "centred": (Chain(6, 4, "tanh", gain=0.8), 2, None, 1),
    "rank below batch": (Chain(3, 5, "tanh"), 2, None, 1),
    "uncentred, eps": (Chain(5, 3, "sin", norm="batch-uncentred", eps=0.2), 2, None, 1),
    "skip": (Chain(5, 3, "tanh", skip=0.8, gain=0.6), 3, None, 1),
    "none": (Chain(6, 3, "leaky_relu", norm="none", gain=1.4), 3, None, 1),
    "twins": (Chain(5, 3, "tanh", norm="none"), 2, TWINS, 1),
    "two batches": (Chain(6, 3, "tanh", eps=0.1), 2, None, 2),
    "two batches without norm": (Chain(5, 2, "tanh", norm="none"), 2, None, 2),
}


def kernels_of(networks, readout):
    """Return Θ of networks with real weights, from all gradients of all parameters."""
    width, samples = networks.chain.width, networks.chain.batch * networks.inputs
    gradients = []
    for sample in range(samples):
        one_hot = np.zeros((len(readout), samples, 1))
        one_hot[:, sample] = 1.0
        _, of_weights = networks.backward(networks.delta_of_outputs(readout, one_hot))
        flat = [one.reshape(len(readout), -1) for one in of_weights]
        gradients.append(np.concatenate(flat, axis=1))
    every = np.stack(gradients, axis=1)
    # Weights are parameters divided by the root of the width.
    return networks.gram(networks.depth) + every @ every.swapaxes(1, 2) / width


def features(kernels):
    """Return numbers of each network whose laws are compared."""
    sums = kernels.sum(axis=(1, 2))
    # Of two batches, the last sample is in the second one.
    entries = kernels[:, 0, 0], kernels[:, 1, 1], kernels[:, 0, 1], kernels[:, 1, -1]
    squares = np.square(kernels).sum(axis=(1, 2))
    ratio = kernels[:, 0, 0] / np.trace(kernels, axis1=1, axis2=2)
    return np.stack([*entries, sums, squares, ratio], axis=1)


@pytest.mark.parametrize(
    ("name", "count"),
    [pytest.param(name, FEW, id=name) for name in ("skip", "two batches")]
    + [pytest.param(name, MANY, id=f"{name}, {MANY}", marks=pytest.mark.slow) for name in CASES],
)
def test_the_joint_law_is_that_of_real_networks(name, count):
    """Seven two-sample Kolmogorov-Smirnov tests, of level 1e-6 / 7.

    Normal variables are told apart if their means differ by 0.16 standard deviations, or by 0.07 in
    the slow cases: the threshold of the distance is 0.064 of 4000 networks and 0.029 of 20,000.
    """
    chain, depth, initial, inputs = CASES[name]
    rng = np.random.default_rng(4)
    networks = Networks(chain, depth, count, rng, initial, inputs)
    readout = rng.standard_normal((count, 1, chain.width)) / math.sqrt(chain.width)
    theirs = features(kernels_of(networks, readout))
    start = {} if initial is None else {"initial": initial}
    if inputs > 1:
        start["inputs"] = inputs
    ours = features(tangent_kernel(chain, depth, chains=count, rng=2, **start).kernels)
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(ours.T, theirs.T, strict=True)]
    assert min(values) > FALSE_ALARM / len(values), np.round(values, 4)


def test_drawn_weights_give_the_kernel_of_these_weights(monkeypatch):
    chain = Chain(7, 4, "tanh", skip=0.3, weights="uniform")
    initial = np.random.default_rng(1).standard_normal((7, 4))
    found = tangent_kernel(chain, 3, chains=2, rng=6, initial=initial)
    assert found.sampler == "weights"
    run = bnmc.simulate(chain, 3, chains=2, rng=6, initial=initial)
    weights = [
        np.stack([bnmc.drawn_weights(run, layer, chain=one) for one in range(2)])
        for layer in (1, 2, 3)
    ]
    networks = Networks(chain, 3, 2, None, initial, 1, weights)
    generators = [
        np.random.Generator(np.random.Philox(key=found.key, counter=[0, 0, 0, one]))
        for one in range(2)
    ]
    readout = np.stack([one.standard_normal((1, 7)) for one in generators]) / math.sqrt(7)
    np.testing.assert_allclose(found.kernels, kernels_of(networks, readout), rtol=1e-11)


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_the_kernel_of_two_batches_is_that_of_these_networks(norm):
    chain = Chain(7, 3, "tanh", norm=norm, weights="rademacher")
    initial = np.random.default_rng(1).standard_normal((2, 7, 3))
    found = tangent_kernel(chain, 2, chains=2, rng=6, initial=initial, inputs=2)
    assert found.inputs == 2
    run = bnmc.simulate(chain, 2, chains=2, rng=6, initial=initial, inputs=2)
    weights = [
        np.stack([bnmc.drawn_weights(run, layer, chain=one) for one in range(2)])
        for layer in (1, 2)
    ]
    networks = Networks(chain, 2, 2, None, np.concatenate(initial, axis=1), 2, weights)
    generators = [
        np.random.Generator(np.random.Philox(key=found.key, counter=[0, 0, 0, one]))
        for one in range(2)
    ]
    readout = np.stack([one.standard_normal((1, 7)) for one in generators]) / math.sqrt(7)
    np.testing.assert_allclose(found.kernels, kernels_of(networks, readout), rtol=1e-11)


SHARED = {
    "bias": Chain(6, 3, "tanh", norm="none", bias_variance=0.3, gain=1.2),
    "bias, layer, skip": Chain(6, 3, "tanh", norm="layer", bias_variance=0.4, skip=0.6, eps=0.1),
    "bias, layer after": Chain(
        6, 3, "tanh", norm="layer", order="activation-norm", bias_variance=0.4, eps=0.1
    ),
    "bias, groups, residual": Chain.resnet(
        6, 3, "tanh", norm="group(2)", bias_variance=0.2, eps=0.1
    ),
    "bias that the norm hides": Chain(6, 4, "tanh", bias_variance=0.4, eps=0.1),
    "of pytorch": Chain(6, 3, "tanh", norm="layer", weights="pytorch", eps=0.1),
    "convolution": Chain.conv(4, 2, "tanh", shape=(2, 3), kernel=(2, 2), eps=0.1),
    "convolution, none, bias": Chain(
        3, 12, "tanh", norm="none", bias_variance=0.3, gain=1.2,
        convolution=Convolution((3, 2), (3, 1)),
    ),
    "convolution, layer, skip, bias": Chain(
        4, 8, "tanh", norm="layer", skip=0.7, bias_variance=0.3, eps=0.1,
        convolution=Convolution((2, 2), (2, 2)),
    ),
}  # fmt: skip


def layers_of_torch(torch, chain):
    """Return N, W * and the pooled readout of states (samples, features, height, width)."""
    functional = torch.nn.functional
    convolution = chain.convolution
    kernel = (1, 1) if convolution is None else convolution.kernel

    def norm(x):
        if chain.norm == "none":
            return x
        if chain.norm == "batch":
            return functional.batch_norm(x, None, None, training=True, eps=chain.eps)
        groups = 2 if chain.norm == "group(2)" else 1
        # Each pixel by itself.
        pixels = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        normed = functional.group_norm(pixels, groups, eps=chain.eps)
        return normed.reshape(x.shape[0], *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)

    def convolved(weight, bias, x):
        (height, width) = kernel
        pads = ((width - 1) // 2, width // 2, (height - 1) // 2, height // 2)
        padded = functional.pad(x, pads, mode="circular") if max(pads) else x
        return functional.conv2d(padded, weight.reshape(*weight.shape[:2], *kernel), bias)

    return norm, convolved


def kernel_of_torch(chain, initial, weights, biases, readout):
    """Return Θ of one network by autograd, with respect to the parameters ω, β and v."""
    torch = pytest.importorskip("torch")
    norm, convolved = layers_of_torch(torch, chain)
    root, spread = math.sqrt(chain.fan_in), math.sqrt(chain.bias_variance)

    def parameter(values):
        return torch.tensor(values, requires_grad=True)

    omegas = [parameter(one * root) for one in weights]
    betas = [parameter(one / spread if spread else one) for one in biases]
    v = parameter(readout * math.sqrt(chain.width))
    pixels = (1, 1) if chain.convolution is None else chain.convolution.shape
    x = torch.tensor(initial).reshape(chain.width, -1, *pixels).transpose(0, 1)
    is_first = chain.order == "norm-activation"
    x = norm(x) if is_first else x
    for omega, beta in zip(omegas, betas, strict=True):
        h = chain.skip * x + convolved(
            chain.gain * omega / root, spread * beta, activations(torch, chain, norm, x)
        )
        x = norm(h) if is_first else h
    a = activations(torch, chain, norm, x).mean(dim=(2, 3))
    outputs = a @ v / math.sqrt(chain.width)
    parameters = [*omegas, *betas, v]
    rows = []
    for output in outputs:
        found = torch.autograd.grad(
            output, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([one.ravel() for one in found]).numpy())
    return np.array(rows) @ np.array(rows).T


def activations(torch, chain, norm, x):
    if chain.order == "activation-norm":
        return norm(torch.tanh(x))
    return torch.tanh(norm(x) if chain.order == "pre-activation" else x)


@pytest.mark.parametrize("probes", [None, 3])
@pytest.mark.parametrize("name", SHARED)
def test_the_kernel_with_biases_and_convolutions_is_that_of_autograd(name, probes):
    chain, depth = SHARED[name], 2
    initial = np.random.default_rng(1).standard_normal((chain.width, chain.batch))
    options = {"chains": 2, "rng": 6, "initial": initial, "sampler": "weights"}
    found = tangent_kernel(chain, depth, probes=probes, **options)
    run = bnmc.simulate(chain, depth, **options)
    layers = range(1, depth + 1)
    for network in range(2):
        counter = [0, 0, 0, network]
        generator = np.random.Generator(np.random.Philox(key=found.key, counter=counter))
        theta = kernel_of_torch(
            chain,
            initial,
            [bnmc.drawn_weights(run, layer, chain=network) for layer in layers],
            [bnmc.drawn_biases(run, layer, chain=network) for layer in layers],
            generator.standard_normal(chain.width) / math.sqrt(chain.width),
        )
        if probes:
            signs = 1.0 - 2.0 * generator.integers(0, 2, (probes, len(theta)))
            theta = tangent._unprobed(signs[None], (signs @ theta @ signs.T)[None])[0]
        scale = np.abs(theta).max()
        np.testing.assert_allclose(found.kernels[network], theta, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize(
    "name",
    ["convolution, none, bias"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in SHARED
        if name not in ("of pytorch", "convolution, none, bias")
    ],
)
def test_the_law_without_weights_is_that_with_weights(name):
    """Seven two-sample Kolmogorov-Smirnov tests, of level 1e-6 / 7, as above.

    With 2000 networks each, means that differ by 0.24 standard deviations are told apart.
    """
    chain = SHARED[name]
    initial = np.random.default_rng(3).standard_normal((chain.width, chain.batch))
    ours, theirs = (
        features(
            tangent_kernel(
                chain, 2, chains=FEW // 2, rng=rng, sampler=sampler, initial=initial
            ).kernels
        )
        for rng, sampler in ((1, "conditional"), (2, "weights"))
    )
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(ours.T, theirs.T, strict=True)]
    assert min(values) > FALSE_ALARM / len(values), np.round(values, 4)


def limit_of_relu(gram, depth):
    """Return the kernel at infinite width without a norm, by the arc-cosine formulas (gain √2)."""
    theta = np.zeros_like(gram)
    for _ in range(depth):
        theta = 2.0 * (gram + theta)
        covariance = 2.0 * gram
        norms = np.sqrt(np.diagonal(covariance))
        cosine = np.clip(covariance / np.outer(norms, norms), -1.0, 1.0)
        angle = np.arccos(cosine)
        gram = np.outer(norms, norms) * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi)
        theta = theta * (np.pi - angle) / (2 * np.pi)
    return gram + theta


def test_relu_networks_tend_to_the_limit_as_the_root_of_the_width():
    rows = np.random.default_rng(3).standard_normal((8, 4)) + 0.5
    depth, chains, widths = 2, 400, np.array([64, 256, 1024])
    active = np.maximum(rows, 0.0)
    limit = limit_of_relu(active.T @ active / 8, depth)
    distances = []
    for width in widths.tolist():
        chain = Chain(width, 4, "relu", norm="none", gain=2**0.5)
        found = tangent_kernel(
            chain, depth, chains=chains, initial=np.tile(rows, (width // 8, 1)), rng=0
        )
        squares = np.square(found.kernels - limit).sum(axis=(1, 2)) / np.square(limit).sum()
        distances.append(math.sqrt(squares.mean()))
        # The mean is the limit but for O(1/width).
        far = np.abs(found.mean() - limit) / (5.5 * found.stderr() + 4.0 * limit / width)
        assert far.max() < 1.0
    slope = np.polyfit(np.log(widths), np.log(distances), 1)[0]
    # Distances have relative standard errors of 3 %, so the slope has one of .015.  Five of these,
    # and .05 for the next order: the distance at width 64 is .35.
    assert slope == pytest.approx(-0.5, abs=0.13)


def test_probing_has_the_mean_and_the_variance_that_it_states():
    theta = np.array([[3.0, 1.0, -0.5], [1.0, 2.0, 0.2], [-0.5, 0.2, 1.0]])
    rng = np.random.default_rng(0)
    for m in (2, 5):
        probes = rng.choice([-1.0, 1.0], (200_000, m, 3))
        found = tangent._unprobed(probes, probes @ theta @ probes.swapaxes(1, 2))
        variance = probing_variance(theta, m)
        error = np.sqrt(variance / len(probes))
        assert (np.abs(found.mean(axis=0) - theta) < 5.5 * error).all()
        # Squares have a kurtosis of at most about 30.
        spread = found.var(axis=0)
        assert (np.abs(spread / variance - 1) < 5.5 * math.sqrt(30 / len(probes))).all()


def test_probes_have_the_mean_of_all_outputs():
    # With ε, rows of small variance do not have infinite fourth moments.
    chain = Chain(30, 7, "relu", eps=0.5)
    whole = tangent_kernel(chain, 2, chains=1500, rng=0)
    probed = tangent_kernel(chain, 2, chains=1500, rng=1, probes=3)
    far = np.abs(whole.mean() - probed.mean()) / np.hypot(whole.stderr(), probed.stderr())
    assert far.max() < 5.8  # 28 entries
    # The spread of networks comes to the variance of probing, which is stated given a network.
    added = np.mean([probing_variance(theta, 3) for theta in whole.kernels], axis=0)
    stated = (added + whole.kernels.var(axis=0))[0, 1:].sum()
    groups = probed.kernels[:, 0, 1:].reshape(30, 50, 6)
    totals = groups.var(axis=1, ddof=1).sum(axis=1) / stated
    reach = stats.t.ppf(1 - 5e-7, 29) * totals.std(ddof=1) / math.sqrt(30)
    assert abs(totals.mean() - 1) < reach < 0.3
    # Without a norm, probes see no other samples.
    plain = Chain(10, 3, "tanh", norm="none")
    one = tangent_kernel(plain, 2, chains=2000, rng=0)
    other = tangent_kernel(plain, 2, chains=2000, rng=1, probes=4)
    far = np.abs(one.mean() - other.mean()) / np.hypot(one.stderr(), other.stderr())
    assert far.max() < 5.5


def test_bits_do_not_depend_on_how_networks_are_grouped(monkeypatch):
    chain = Chain(10, 4, "relu")
    whole = tangent_kernel(chain, 2, chains=5, rng=3)
    monkeypatch.setattr(tangent, "TOGETHER_BYTES", 1)
    alone = tangent_kernel(chain, 2, chains=5, rng=3)
    assert whole.kernels.tobytes() == alone.kernels.tobytes()
    assert whole.key == alone.key
    together = tangent_kernel(chain, 2, chains=5, rng=3, threads=3)
    assert together.kernels.tobytes() == alone.kernels.tobytes()


def test_bits_do_not_depend_on_the_threads_of_blas():
    """Of products of 1000 x 100 matrices they do."""
    threadpoolctl, kernels = pytest.importorskip("threadpoolctl"), []
    for threads in (1, 2, 3):
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            found = tangent_kernel(Chain(1000, 10, "relu"), 2, chains=1, rng=0, threads=1)
        kernels.append(found.kernels.tobytes())
    assert kernels[0] == kernels[1] == kernels[2]


def test_moments_that_are_infinite_are_not_estimated():
    three = tangent_kernel(Chain(10, 3, "relu"), 2, chains=9, rng=0)
    with pytest.raises(PartialEstimateError, match="expectation") as caught:
        three.mean()
    np.testing.assert_array_equal(caught.value.partial, np.median(three.kernels, axis=0))
    five = tangent_kernel(Chain(10, 5, "relu"), 2, chains=9, rng=0)
    with pytest.raises(PartialEstimateError, match="variance") as caught:
        five.stderr()
    np.testing.assert_array_equal(caught.value.partial, five.kernels.mean(axis=0))
    for chain in (
        Chain(10, 6, "relu"),
        Chain(10, 5, "relu", norm="batch-uncentred"),
        Chain(10, 3, "relu", eps=1e-5),
        Chain(10, 2, "relu", norm="none"),
        Chain(10, 2, "relu"),
    ):
        found = tangent_kernel(chain, 1, chains=3, rng=0)
        estimate = found.estimate(0, 1)
        assert estimate.value == found.mean()[0, 1]
        assert estimate.stderr == pytest.approx(found.stderr()[0, 1], rel=1e-9, abs=1e-300)
    with pytest.raises(PartialEstimateError, match="2 chains"):
        tangent_kernel(Chain(10, 6, "relu"), 1, chains=1, rng=0).stderr()


def test_two_samples_under_a_norm_have_no_gradient():
    found = tangent_kernel(Chain(9, 2, "tanh"), 2, chains=3, rng=0)
    # N(h) is 1 or -1, so only the readout has a gradient; its kernel is the Gram matrix.
    np.testing.assert_allclose(found.kernels[:, 0, 0], math.tanh(1) ** 2, rtol=1e-12)


def test_repr_names_probes():
    found = tangent_kernel(Chain(9, 4, "tanh"), 2, chains=3, rng=0, probes=2)
    assert repr(found) == (
        "<TangentKernel of 3 chains, 2 layers, 2 probes; "
        "Chain(width=9, batch=4, activation='tanh')>"
    )


def test_ctrl_c_hands_over_finished_networks(monkeypatch):
    monkeypatch.setattr(tangent, "TOGETHER_BYTES", 1)

    def interrupt(done, total):
        if done >= 2:
            raise KeyboardInterrupt

    chain, options = Chain(9, 4, "tanh"), {"chains": 5, "rng": 0, "threads": 1}
    with pytest.raises(Interrupted) as caught:
        tangent_kernel(chain, 2, progress=interrupt, **options)
    found, whole = caught.value.partial, tangent_kernel(chain, 2, **options)
    assert found.chains >= 2
    np.testing.assert_array_equal(found.kernels, whole.kernels[: found.chains])


def test_progress_counts_networks(monkeypatch):
    monkeypatch.setattr(tangent, "TOGETHER_BYTES", 1)
    seen = []
    tangent_kernel(
        Chain(9, 4, "tanh"), 2, chains=3, rng=0, threads=1,
        progress=lambda *counts: seen.append(counts),
    )  # fmt: skip
    assert seen[-1] == (3, 3)
    assert all(total == 3 and 0 <= done <= 3 for done, total in seen)


def test_layers_out_of_range_are_named():
    chain = Chain(2, 3, "linear", norm="batch", weights="rademacher")
    with pytest.raises(ZeroVarianceError, match="layer"):
        tangent_kernel(chain, 40, chains=20, rng=0)
    with pytest.raises(NonFiniteError, match="layer"):
        tangent_kernel(Chain(9, 3, "relu", norm="none", gain=1e10), 20, chains=2, rng=0)
