"""The tangent kernel: its law, its limit at infinite width, probing, moments and bad input."""

import math

import numpy as np
import pytest
from gradient_runs import assert_same_law, generator_of, networks_as_drawn, readouts_of
from numpy_network import Block, Networks, network_of
from scipy import stats

from bnmc import Chain, Convolution, drawn_weights, errors, simulate
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
    return parts_of(networks, readout).sum(axis=1)


def parts_of(networks, readout, variance=None):
    """Return what the parameters of each layer contribute to Θ, and last those of the readout.

    Weights are parameters ω / √fan_in, biases are parameters β times the root of their variance,
    and the readout multiplies means over the pixels of an image.
    """
    chain, count = networks.chain, len(readout)
    pixels = 1 if chain.convolution is None else chain.convolution.positions
    samples = chain.batch * networks.inputs // pixels
    gradients = []
    for sample in range(samples):
        one_hot = np.zeros((count, samples, 1))
        one_hot[:, sample] = 1.0
        deltas, of_weights = networks.backward(networks.delta_of_outputs(readout, one_hot))
        deviation = math.sqrt(chain.bias_variance if variance is None else variance)
        gradients.append([
            np.hstack([
                weight.reshape(count, -1) / math.sqrt(chain.fan_in), deviation * delta.sum(axis=2)
            ])
            for weight, delta in zip(of_weights, deltas, strict=True)
        ])  # fmt: skip
    by_layer = [np.stack(every, axis=1) for every in zip(*gradients, strict=True)]
    shape = count, samples, pixels, samples, pixels
    of_readout = networks.gram(networks.depth).reshape(shape).mean(axis=(2, 4))
    return np.stack([*(each @ each.swapaxes(1, 2) for each in by_layer), of_readout], axis=1)


def features(kernels):
    """Return numbers of each network whose laws are compared."""
    sums = kernels.sum(axis=(1, 2))
    # Of two batches, the last sample is in the second one.
    entries = kernels[:, 0, 0], kernels[:, 1, 1], kernels[:, 0, 1], kernels[:, 1, -1]
    squares = np.square(kernels).sum(axis=(1, 2))
    ratio = kernels[:, 0, 0] / np.trace(kernels, axis1=1, axis2=2)
    return np.stack([*entries, sums, squares, ratio], axis=1)


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

#: Of each kind, the cases that are not slow.
AT_FIRST = "two batches", "bias, layer, skip"


@pytest.mark.parametrize(
    ("name", "count"),
    [pytest.param(name, FEW, id=name) for name in AT_FIRST]
    + [pytest.param(name, MANY, id=f"{name}, {MANY}", marks=pytest.mark.slow)
       for name in CASES | SHARED],
)  # fmt: skip
def test_the_joint_law_is_that_of_real_networks(name, count):
    """Seven two-sample Kolmogorov-Smirnov tests, of level 1e-6 / 7.

    Normal variables are told apart if their means differ by 0.16 standard deviations, or by 0.07 in
    the slow cases: the threshold of the distance is 0.064 of 4000 networks and 0.029 of 20,000.
    """
    chain, depth, initial, inputs = CASES.get(name) or (SHARED[name], 2, None, 1)
    rng = np.random.default_rng(4)
    networks = Networks(chain, depth, count, rng, initial, inputs)
    readout = rng.standard_normal((count, 1, chain.width)) / math.sqrt(chain.width)
    theirs = features(kernels_of(networks, readout))
    start = {} if initial is None else {"initial": initial}
    if inputs > 1:
        start["inputs"] = inputs
    ours = tangent_kernel(
        chain, depth, chains=count, rng=2, sampler="conditional", **start
    )  # fmt: skip
    assert_same_law(features(ours.kernels), theirs)


def test_a_sum_has_no_weights_to_train():
    """A block of norms before a sum; by the gradients of the networks that `drawn_weights` has."""
    first = Chain(6, 3, "tanh", norm="none")
    block = Block([Chain(6, 3, "tanh"), Chain(7, 3, "linear")], Chain(7, 3, gain=1.3),
                  source="activations", activation="tanh")  # fmt: skip
    chains, start = [first, block], np.random.default_rng(0).standard_normal((6, 3))
    network = network_of(chains)
    ours = tangent_kernel(network, chains=2, initial=start, rng=5, sampler="weights")
    run = simulate(network, chains=2, initial=start, rng=5, sampler="weights")
    for chain in range(2):
        weights = [drawn_weights(run, layer, chain=chain)[None] for layer in (1, 2, 3)]
        of_path = drawn_weights(run, 3, chain=chain, projection=True)[None]
        networks = Networks(chains, None, 1, None, start, 1, weights, [np.zeros(1)] * 3,
                            [(of_path, 0.0)])  # fmt: skip
        readout = readouts_of(run.key, chain + 1, 1, 7)[chain:]
        kernel, gradients = networks.gram(3)[0], []
        for sample in range(3):
            at = np.zeros((1, 3, 1))
            at[0, sample] = 1.0
            deltas, by_layer = networks.backward(networks.delta_of_outputs(readout, at))
            others = networks.gradients_of_projections(deltas)
            gradients.append([*by_layer[:2], *others])  # not those of the sum
        for i, j in np.ndindex(3, 3):
            pairs = zip(gradients[i], gradients[j], strict=True)
            kernel[i, j] += sum((a * b).sum() for a, b in pairs) / 6  # of 6 columns each
        np.testing.assert_allclose(ours.kernels[chain], kernel, rtol=1e-10, atol=1e-12)


DRAWN = {
    "skip": (Chain(7, 4, "tanh", skip=0.3, weights="uniform"), None),
    "two batches": (Chain(7, 3, "tanh", weights="rademacher"), 2),
    "two batches without norm": (Chain(7, 3, "tanh", norm="none", weights="rademacher"), 2),
    "of pytorch": (Chain(6, 3, "tanh", norm="layer", weights="pytorch", eps=0.1), None),
    **{name: (chain, None) for name, chain in SHARED.items()},
}


@pytest.mark.parametrize("probes", [None, 3])
@pytest.mark.parametrize("name", DRAWN)
def test_drawn_weights_give_the_kernel_of_these_weights(name, probes):
    (chain, inputs), depth, count = DRAWN[name], 2, 2
    shape = (chain.width, chain.batch) if inputs is None else (inputs, chain.width, chain.batch)
    initial = np.random.default_rng(1).standard_normal(shape)
    options = {"initial": initial, "inputs": inputs, "sampler": "weights"}
    kernel = tangent_kernel(chain, depth, probes=probes, chains=count, rng=5, **options)
    assert (kernel.sampler, kernel.inputs) == ("weights", inputs)
    networks, key = networks_as_drawn(chain, depth, initial, count, inputs)
    expected = kernels_of(networks, readouts_of(key, count, 1, chain.width))
    if probes:
        signs = np.stack(
            [signs_of(key, n, chain.width, (probes, expected.shape[1])) for n in (0, 1)]
        )
        expected = tangent._unprobed(signs, signs @ expected @ signs.swapaxes(1, 2))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(kernel.kernels, expected, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize("name", ["skip", "two batches", "bias, layer, skip", "convolution"])
def test_parts_are_those_of_the_layers(name):
    """Of drawn weights they are exact, and all parts of all layers differ."""
    (chain, inputs), depth = DRAWN[name], 3
    shape = (chain.width, chain.batch) if inputs is None else (inputs, chain.width, chain.batch)
    initial = np.random.default_rng(1).standard_normal(shape)
    options = {"initial": initial, "inputs": inputs, "sampler": "weights", "rng": 5}
    kernel = tangent_kernel(chain, depth, chains=2, parts=True, **options)
    networks, key = networks_as_drawn(chain, depth, initial, 2, inputs)
    expected = parts_of(networks, readouts_of(key, 2, 1, chain.width))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(kernel.parts, expected, rtol=1e-9, atol=1e-10 * scale)
    np.testing.assert_allclose(kernel.parts.sum(axis=1), kernel.kernels, rtol=1e-13, atol=0)
    without = tangent_kernel(chain, depth, chains=2, **options)
    assert without.kernels.tobytes() == kernel.kernels.tobytes()
    assert without.parts is None


def test_parts_with_probes_have_the_mean_of_the_parts():
    """28 · 3 entries, each within 6 standard errors of the difference: 84 · 2e-9 = 2e-7."""
    chain, options = Chain(20, 4, "tanh", norm="layer", eps=0.1), {"chains": 800, "parts": True}
    whole = tangent_kernel(chain, 2, rng=0, **options).parts
    probed = tangent_kernel(chain, 2, rng=1, probes=3, **options).parts
    errors_of = [parts.std(axis=0, ddof=1) / math.sqrt(800) for parts in (whole, probed)]
    far = np.abs(whole.mean(axis=0) - probed.mean(axis=0)) / np.hypot(*errors_of)
    assert far.max() < 6.0


@pytest.mark.parametrize(
    "chain",
    [
        Chain(7, 4, "tanh", norm="layer", skip=0.3, weights="uniform", gain=1.5),
        Chain.resnet(6, 4, "tanh"), Chain(7, 4, "tanh", weights="uniform"),
        Chain.conv(4, 2, "tanh", shape=(2, 3), kernel=(2, 2), norm="none"),
    ],
    ids=["layer, skip", "residual", "batch", "convolution"],
)  # fmt: skip
def test_biases_that_begin_at_zero_are_trained(chain):
    initial = np.random.default_rng(1).standard_normal((chain.width, chain.batch))
    options = {"initial": initial, "sampler": "weights", "rng": 5, "chains": 2}
    kernel = tangent_kernel(chain, 3, trained_biases=True, parts=True, **options)
    networks, key = networks_as_drawn(chain, 3, initial)
    expected = parts_of(networks, readouts_of(key, 2, 1, chain.width), variance=1.0)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(kernel.parts, expected, rtol=1e-9, atol=1e-10 * scale)


def test_random_biases_are_trained_in_any_case():
    with pytest.raises(errors.ArgumentError, match="trained_biases: got True, .* in any case"):
        tangent_kernel(Chain(6, 3, "tanh", bias_variance=0.1), 2, trained_biases=True)


def signs_of(key, number, width, shape):
    """Return the probes of a network, which its generator draws after the readout."""
    generator = generator_of(key, number)
    generator.standard_normal(width)
    return 1.0 - 2.0 * generator.integers(0, 2, shape)


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
        result = tangent_kernel(
            chain, depth, chains=chains, initial=np.tile(rows, (width // 8, 1)), rng=0
        )
        squares = np.square(result.kernels - limit).sum(axis=(1, 2)) / np.square(limit).sum()
        distances.append(math.sqrt(squares.mean()))
        # The mean is the limit but for O(1/width).
        far = np.abs(result.mean() - limit) / (5.5 * result.stderr() + 4.0 * limit / width)
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
        result = tangent._unprobed(probes, probes @ theta @ probes.swapaxes(1, 2))
        variance = probing_variance(theta, m)
        error = np.sqrt(variance / len(probes))
        assert (np.abs(result.mean(axis=0) - theta) < 5.5 * error).all()
        # Squares have a kurtosis of at most about 30.
        spread = result.var(axis=0)
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
    first = tangent_kernel(plain, 2, chains=2000, rng=0)
    other = tangent_kernel(plain, 2, chains=2000, rng=1, probes=4)
    far = np.abs(first.mean() - other.mean()) / np.hypot(first.stderr(), other.stderr())
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
            result = tangent_kernel(Chain(1000, 10, "relu"), 2, chains=1, rng=0, threads=1)
        kernels.append(result.kernels.tobytes())
    assert kernels[0] == kernels[1] == kernels[2]


def test_moments_that_are_infinite_are_not_estimated():
    three = tangent_kernel(Chain(10, 3, "relu"), 2, chains=9, rng=0)
    with pytest.raises(errors.PartialEstimateError, match="expectation") as caught:
        three.mean()
    np.testing.assert_array_equal(caught.value.partial, np.median(three.kernels, axis=0))
    five = tangent_kernel(Chain(10, 5, "relu"), 2, chains=9, rng=0)
    with pytest.raises(errors.PartialEstimateError, match="variance") as caught:
        five.stderr()
    np.testing.assert_array_equal(caught.value.partial, five.kernels.mean(axis=0))
    for chain in (
        Chain(10, 6, "relu"),
        Chain(10, 5, "relu", norm="batch-uncentred"),
        Chain(10, 3, "relu", eps=1e-5),
        Chain(10, 2, "relu", norm="none"),
        Chain(10, 2, "relu"),
    ):
        result = tangent_kernel(chain, 1, chains=3, rng=0)
        estimate = result.estimate(0, 1)
        assert estimate.value == result.mean()[0, 1]
        assert estimate.stderr == pytest.approx(result.stderr()[0, 1], rel=1e-9, abs=1e-300)
    with pytest.raises(errors.PartialEstimateError, match="2 chains"):
        tangent_kernel(Chain(10, 6, "relu"), 1, chains=1, rng=0).stderr()


def test_relu_that_keeps_two_samples_has_a_kernel_of_infinite_mean():
    """P(Θ > t) falls like 1/t if all activations but those of two samples are 0.

    `TangentKernel.mean` states that this happens with positive probability.  Hill's estimate of
    the exponent from the 400 largest of 20,000 values has the standard error .05; its bias is
    below .1.  With activations of full rank the exponent is 1.5.
    """
    start = np.array(
        [[3, 2, -1, -4], [1, 3, -3, -1], [2, 2, -1, -3], [3, 1, -1, -3], [1, 2, -1, -2]]
    )
    chain = Chain(5, 4, "relu")
    traces = np.trace(
        tangent_kernel(chain, 1, chains=20_000, initial=start, rng=0).kernels, axis1=1, axis2=2
    )
    largest = np.sort(traces)[-401:]
    assert np.log(largest[1:] / largest[0]).mean() > 1 / (1 + 0.1 + 4.9 * 0.05)


def test_two_samples_under_a_norm_have_no_gradient():
    result = tangent_kernel(Chain(9, 2, "tanh"), 2, chains=3, rng=0)
    # N(h) is 1 or -1, so only the readout has a gradient; its kernel is the Gram matrix.
    np.testing.assert_allclose(result.kernels[:, 0, 0], math.tanh(1) ** 2, rtol=1e-12)


def test_repr_names_probes():
    result = tangent_kernel(Chain(9, 4, "tanh"), 2, chains=3, rng=0, probes=2)
    assert repr(result) == (
        "<TangentKernel of 3 chains, 2 layers, 2 probes; "
        "Chain(width=9, batch=4, activation='tanh')>"
    )


@pytest.mark.parametrize("batch", [4, 1])
def test_printed_kernels_are_a_table(batch):
    result = tangent_kernel(Chain(9, batch, "tanh", norm="none"), 2, chains=5, rng=0)
    _, heads, *rows = str(result).splitlines()
    assert heads.split() == ["mean", "entry", "median", "of", "networks", "5", "%", "95", "%"]
    assert len(rows) == min(batch, 2)
    diagonal = np.median(np.trace(result.kernels, axis1=1, axis2=2) / batch)
    assert float(rows[0].split()[1]) == pytest.approx(diagonal, rel=1e-3)
    if batch > 1:
        others = result.kernels[:, ~np.eye(batch, dtype=bool)].mean(axis=1)
        assert float(rows[1].split()[3]) == pytest.approx(np.median(others), rel=1e-3)


def test_ctrl_c_hands_over_finished_networks(monkeypatch):
    monkeypatch.setattr(tangent, "TOGETHER_BYTES", 1)

    def interrupt(done, total):
        if done >= 2:
            raise KeyboardInterrupt

    chain, options = Chain(9, 4, "tanh"), {"chains": 5, "rng": 0, "threads": 1}
    with pytest.raises(errors.Interrupted) as caught:
        tangent_kernel(chain, 2, progress=interrupt, **options)
    result, whole = caught.value.partial, tangent_kernel(chain, 2, **options)
    assert result.chains >= 2
    np.testing.assert_array_equal(result.kernels, whole.kernels[: result.chains])


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
    with pytest.raises(errors.ZeroVarianceError, match="layer"):
        tangent_kernel(chain, 40, chains=20, rng=0)
    with pytest.raises(errors.NonFiniteError, match="layer"):
        tangent_kernel(Chain(9, 3, "relu", norm="none", gain=1e10), 20, chains=2, rng=0)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_a_gain_that_the_norm_does_not_see_changes_no_kernel(norm, sampler):
    """Also if its square leaves float64; one whose product with a row overflows raises."""
    kernels = [
        tangent_kernel(
            Chain(6, 4, "tanh", norm=norm, gain=2.0**exponent), 3, chains=2, rng=0, sampler=sampler
        ).kernels
        for exponent in (0, -1000, -520, 520, 1000)
    ]
    np.testing.assert_allclose(kernels[1:], kernels[:1] * 4, rtol=1e-9, atol=1e-12)
    with pytest.raises(errors.NonFiniteError, match="representation"):
        tangent_kernel(Chain(50, 4, "tanh", norm=norm, gain=1.7e308), 3, rng=0, sampler=sampler)


def test_the_variance_of_probing_scales_with_the_square():
    kernel = np.random.default_rng(0).standard_normal((4, 4))
    kernel = kernel @ kernel.T
    expected = probing_variance(kernel, 5)
    np.testing.assert_array_equal(probing_variance(kernel * 2.0**500, 5), expected * 2.0**1000)
    for large in (1e154, 1e155, 1e308):
        with pytest.raises(errors.ArgumentError, match="^kernel: .* does not overflow float64"):
            probing_variance(large * np.ones((3, 3)), 3)
