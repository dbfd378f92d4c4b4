"""`backpropagate`: bits, rates, directions, limits and errors."""

import itertools
import math
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
from gradient_runs import ALL, assert_same_bits
from numpy_network import covariance
from oracle import FALSE_ALARM
from scipy import stats
from slow_cases import slow, some

import bnmc
from bnmc import Activation, Chain, Network, errors
from bnmc.gradients import network, parts

TANH = Chain(30, 4, "tanh")


def correlations(gram):
    lengths = np.sqrt(np.diag(gram))
    return gram / np.outer(lengths, lengths)


CUTS = [
    TANH,
    Chain(30, 4, "tanh", skip=0.5),
    Chain(600, 3, "relu", norm="none", gain=0.1),
    Chain(600, 4, "tanh", weights="haar"),
    Chain(30, 4, "leaky_relu", norm="none", skip=0.5, gain=3.0),
    Chain(12, 4, "relu", norm="layer", skip=0.5, order="pre-activation"),
    Chain(12, 4, "tanh", norm="rms", bias_variance=0.1),
    Chain(12, 4, "tanh", weights="uniform"),
    Chain.conv(12, 1, "tanh", shape=(2, 2), kernel=(2, 1)),
]


#: Other chains have no norm, a skip connection, or a norm over the features.
LATER = (CUTS[4], CUTS[6])


def cuts():
    """In float32 one chain shows that the buffers are those of its dtype; the division is equal."""
    for chain in CUTS:
        marks = [pytest.mark.slow] if chain in LATER else []
        yield pytest.param(chain, "float64", id=f"{chain}", marks=marks)
        marks = [] if chain is TANH else [pytest.mark.slow]
        yield pytest.param(chain, "float32", id=f"float32, {chain}", marks=marks)


@pytest.mark.parametrize(("chain", "dtype"), list(cuts()))
def test_bits_do_not_depend_on_threads_parts_and_checkpoints(chain, dtype, monkeypatch):
    def run(**options):
        return bnmc.backpropagate(
            chain, 30, chains=5, rng=3, dtype=dtype, observables=ALL, every=7, **options
        )

    whole = run(threads=1)
    assert_same_bits(whole, run(threads=3))
    with ThreadPoolExecutor(2) as pool:
        assert_same_bits(whole, run(executor=pool))
    # Five layers to a stretch, and one chain to a part.
    monkeypatch.setattr(parts, "STRETCH_BYTES", 1)
    monkeypatch.setattr(network, "ROWS_BYTES", 1)
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)
    assert_same_bits(whole, run(threads=2))


# Any task can go to a process: `_support/test_workers.py` runs others there each time.
@pytest.mark.slow
def test_orthogonal_weights_on_processes():
    chain = Chain(600, 4, "tanh", weights="haar")
    options = {"chains": 3, "rng": 3, "threads": 1}
    back, alone = bnmc.backpropagate(chain, 4, **options), bnmc.simulate(chain, 4, **options)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert_same_bits(back, bnmc.backpropagate(chain, 4, executor=pool, **options))
        there = bnmc.simulate(chain, 4, executor=pool, **options)
    assert alone.gram.tobytes() == there.gram.tobytes()


@pytest.mark.parametrize("chain", CUTS[:4], ids=str)
def test_the_forward_pass_is_that_of_simulate(chain):
    back = bnmc.backpropagate(chain, 12, chains=3, rng=9, observables=("gram",))
    run = bnmc.simulate(chain, 12, chains=3, rng=9, sampler="conditional")
    np.testing.assert_array_equal(back.gram, run.gram[:, 1:])
    assert back.key == run.key
    assert back.layers.tolist() == list(range(1, 13))


@pytest.mark.slow
def test_networks_have_the_bits_of_their_chain_and_of_all_ways(tmp_path):
    chain = Chain(20, 4, "tanh")
    expected = bnmc.backpropagate(chain, 3, chains=2, rng=0)
    same = bnmc.backpropagate(Network((chain, 1), (chain, 2)), chains=2, rng=0)
    assert_same_bits(same, expected)
    network = chain.repeat(2) + Chain(9, 4, "relu", norm="rms").repeat(2)
    options = {"chains": 3, "rng": 0, "observables": ("delta_gram", "gram")}
    runs = [
        bnmc.backpropagate(network, **options, **way)
        for way in ({"threads": 1}, {"threads": 2}, {"store": tmp_path}, {"store": tmp_path})
    ]
    for run in runs[1:]:
        assert_same_bits(run, runs[0])
    assert (runs[0].network, runs[0].depth) == (network, 4)
    assert repr(network) in str(runs[0])
    assert runs[0].mean_field_backward_rate() is None
    assert np.isfinite(runs[0].cosines()).all()
    with pytest.raises(errors.BackendError, match="layers that differ"):
        bnmc.backpropagate(network, backend="cuda")
    with pytest.raises(errors.ArgumentError, match="at least 1 layers"):
        bnmc.backpropagate(chain.repeat(0))


@pytest.mark.parametrize("name", some(["relu", "tanh", "gelu"], "relu"))
def test_the_rate_is_that_of_the_mean_field(name):
    # 40 chains of 60 layers: the standard error is 0.1 %, and the effect of the width, of order
    # (batch / width) = 0.25 %, is allowed for once.
    chain = Chain(4000, 10, name)
    run = bnmc.backpropagate(chain, 60, chains=40, rng=1, dtype="float32", observables=())
    rate = run.backward_rate()
    predicted = bnmc.MeanField(chain).fixed_point().backward_rate
    assert rate.stderr < 0.002 * rate.value
    assert abs(rate.value / predicted - 1) < 5 * rate.stderr / rate.value + 10 / 4000


@pytest.mark.slow
def test_the_rate_of_convolutions_is_that_of_the_mean_field():
    """64 columns, relu: 1.4931.  The interval is Student's, for 15 degrees of freedom.

    At 64 channels the rate is 1.490 ± .003 and at 256 1.496 ± .002, so the effect of 512 channels
    is less than the error.
    """
    chain = Chain.conv(512, 4, shape=(4, 4))
    run = bnmc.backpropagate(chain, 60, chains=16, rng=1, observables=())
    rate = run.backward_rate()
    assert rate.stderr < 0.003
    assert run.mean_field_backward_rate() == pytest.approx(1.4931, abs=5e-5)
    assert abs(rate.value - 1.4930629) < stats.t.isf(FALSE_ALARM / 2, 15) * rate.stderr


def test_the_sampler_of_convolutions_is_the_cheaper_one():
    for channels, expected in ((8, "conditional"), (7, "weights")):
        chain = Chain.conv(channels, 2, "tanh", shape=(2, 2), kernel=(2, 2))
        assert bnmc.backpropagate(chain, 1, rng=0).sampler == expected
        for given in ("conditional", "weights"):
            assert bnmc.backpropagate(chain, 1, rng=0, sampler=given).sampler == given


def test_gradients_of_images():
    chain = Chain.conv(6, 3, "tanh", shape=(1, 2), kernel=(1, 2))
    images = np.random.default_rng(2).standard_normal((2, 6, 3, 1, 2))
    runs = [
        bnmc.backpropagate(chain, 2, chains=2, initial=images[0], loss=loss, rng=1)
        for loss in (images, images.reshape(2, 6, 6))
    ]
    assert_same_bits(*runs)
    with pytest.raises(errors.ArgumentError, match="labels"):
        bnmc.backpropagate(chain, 2, loss="squared", labels=[0, 1] * 3)
    shapes = []

    def gradient(outputs):
        shapes.append(outputs.shape)
        return outputs

    bnmc.backpropagate(chain, 2, loss_gradient=gradient, classes=4, rng=1)
    assert shapes == [(3, 4)]


@pytest.mark.parametrize("width", [6, 7, 30])
def test_linear_orthogonal_networks_keep_the_size_of_gradients(width):
    """With W orthogonal |Wᵀδ| = |δ|, and G is constant: Meterez et al., arXiv:2310.02012."""
    chain = Chain(width, 6, "linear", norm="none", weights="haar")
    run = bnmc.backpropagate(chain, 40, chains=3, rng=2, observables=ALL)
    size = np.trace(run.delta_gram, axis1=2, axis2=3) * np.exp(2 * run.log_scale)
    np.testing.assert_allclose(size, size[:, -1:] + 0.0 * size, rtol=1e-9)
    # hᵀδ is constant too, as h = W a and (W a)ᵀ δ = aᵀ Wᵀ δ.
    hidden = run.hidden_delta * np.exp(run.log_scale)[..., None, None]
    np.testing.assert_allclose(hidden, hidden[:, -1:] + 0.0 * hidden, atol=1e-8)
    if width == 6:
        logs = run.log_gradient_norm
        np.testing.assert_allclose(logs, logs[:, :1] + 0.0 * logs, atol=1e-9)


# It alone compiles the backward pass of orthogonal weights for float32.
@pytest.mark.slow
@pytest.mark.parametrize("width", [5, 8, 700])
def test_orthogonal_gradients_of_float32_rows(width):
    chain = Chain(width, 4, "tanh", weights="haar")
    runs = [
        bnmc.backpropagate(chain, 6, chains=4, rng=4, dtype=dtype)
        for dtype in ("float32", "float64")
    ]
    np.testing.assert_allclose(*(run.log_gradient_norm for run in runs), atol=2e-2)


def test_scales_beyond_float64_are_split_off():
    # A gain of 2**-17 is a power of two, so it changes scales and no other bit.
    chain = Chain(8, 3, "relu", norm="none", gain=2.0**-17)
    plain = Chain(8, 3, "relu", norm="none")
    small = bnmc.backpropagate(chain, 90, chains=4, rng=2)
    first = bnmc.backpropagate(plain, 90, chains=4, rng=2)
    # δ of layer l + 1 passed 89 - l layers and a of layer l as many as l; W has the factor itself.
    shift = -90 * 17 * math.log(2)
    both = np.isfinite(first.log_gradient_norm)
    np.testing.assert_array_equal(both, np.isfinite(small.log_gradient_norm))
    assert both[:, -1].any()
    np.testing.assert_allclose(
        small.log_gradient_norm[both], first.log_gradient_norm[both] + shift, rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("skip", [0.0, 0.5])
def test_linear_layers_keep_the_products_of_samples_and_gradients(skip):
    """As h_{l+1} = A h_l and δ_l = Aᵀδ_{l+1}, hᵀδ is one matrix, from the outputs downwards."""
    outputs = []

    def cubes(f):
        outputs.append(f.copy())
        return f**3

    run = bnmc.backpropagate(
        Chain(20, 3, "linear", norm="none", gain=1.5, skip=skip), 4, chains=1, rng=1,
        loss_gradient=cubes, classes=2, sampler="conditional", observables="hidden_delta",
    )  # fmt: skip
    result = run.hidden_delta[0] * np.exp(run.log_scale[0])[:, None, None]
    f = outputs[-1]
    # Rounding of sums of 20 products, through four layers.
    np.testing.assert_allclose(
        result, np.broadcast_to(f @ (f**3).T, (4, 3, 3)), rtol=0, atol=1e-11 * np.abs(result).max()
    )


def test_a_norm_of_two_samples_has_no_gradient():
    run = bnmc.backpropagate(Chain(9, 2, "tanh"), 4, chains=3, rng=0)
    assert (run.log_gradient_norm[:, :-1] == -np.inf).all()
    assert np.isfinite(run.log_gradient_norm[:, -1]).all()
    assert (run.delta_gram[:, :-1] == 0.0).all()


def nearly_equal_directions():
    """Gradients of which float32 does not resolve two: δᵀδ has a relative pivot of 1e-8."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((64, 4))
    rows[:, 1] = rows[:, 0] + 1e-4 * rng.standard_normal(64)
    return rows


def assert_same_means(runs):
    """Means of log norms of two sets of chains, at 6 standard errors."""
    norms = [run.log_gradient_norm for run in runs]
    spread = np.hypot(*(values.std(0) for values in norms)) / math.sqrt(len(norms[0]))
    assert (np.abs(norms[0].mean(0) - norms[1].mean(0)) < 6 * spread).all()


def test_gradients_that_float32_does_not_resolve_continue_in_float64(dtypes_seen):
    chain, options = Chain(64, 4, "tanh"), {"chains": 50, "rng": 0, "observables": ()}
    rows = nearly_equal_directions()
    run = bnmc.backpropagate(chain, 6, loss=rows, dtype="float32", **options)
    assert ("float32", "float64") in dtypes_seen
    assert_same_means([run, bnmc.backpropagate(chain, 6, loss=rows, **options)])


@pytest.mark.parametrize(
    ("weights", "distance"),
    [("gaussian", 1.0), ("gaussian", 1e-4), slow("haar", 1.0), slow("haar", 1e-4)],
)
def test_float32_goes_on_unless_the_gradients_of_samples_are_too_alike(
    weights, distance, dtypes_seen
):
    """Directions at this distance of two samples: δᵀδ has a relative pivot of its square."""
    rows = np.random.default_rng(2).standard_normal((64, 4))
    rows[:, 1] = (1.0 - distance) * rows[:, 0] + distance * rows[:, 1]
    run = bnmc.backpropagate(
        Chain(64, 4, "tanh", weights=weights), 3, loss=rows, dtype="float32", rng=0
    )
    assert run.widened == ()
    assert dtypes_seen == {("float32", "float32")} | (
        set() if distance == 1.0 else {("float32", "float64")}
    )


@pytest.mark.parametrize("weights", ["gaussian", "haar"])
def test_the_backward_pass_names_the_layer_of_a_row_without_variance(weights, monkeypatch):
    """A forward pass finds such a row first, so the Gram matrix changes between the two passes."""
    make = parts.RowPass._stretch

    def changed(*arguments):
        stretch = make(*arguments)
        # Layer 2 has equal samples, so no row of layer 3 has a variance.
        stretch.grams[:, 2] = 1.0
        return stretch

    monkeypatch.setattr(parts.RowPass, "_stretch", changed)
    with pytest.raises(errors.ZeroVarianceError) as raised:
        bnmc.backpropagate(Chain(30, 4, "tanh", weights=weights), 5, chains=2, rng=0, threads=1)
    assert (raised.value.chain, raised.value.layer, raised.value.row) == (0, 3, 0)


@pytest.mark.parametrize("skip", [0.0, 0.5])
def test_float64_gradients_are_those_of_float32_rows(skip, dtypes_seen):
    """Linear layers keep hᵀδ, if the rows of the backward pass are those of the forward pass."""
    run = bnmc.backpropagate(
        Chain(64, 4, "linear", norm="none", skip=skip), 6, chains=2, loss=nearly_equal_directions(),
        dtype="float32", rng=0, observables=ALL,
    )  # fmt: skip
    assert ("float32", "float64") in dtypes_seen
    unit = np.exp(run.log_scale)[..., None, None]
    result = run.hidden_delta * unit
    # Each of six layers rounds sums of 64 products to the size of the vectors.
    lengths = (
        np.sqrt(np.diagonal(each, axis1=-2, axis2=-1))
        for each in (64 * run.gram, run.delta_gram * unit**2)
    )
    h, delta = (each.max(axis=1) for each in lengths)
    bound = 6 * 64 * np.finfo(np.float32).eps * h[:, :, None] * delta[:, None, :]
    assert (np.abs(result - result[:, -1:]) <= bound[:, None]).all()


@pytest.mark.parametrize("skip", [0.0, 0.5])
def test_a_float32_chain_that_widens_on_its_way(skip):
    # Samples approach each other without a norm, so that float32 soon does not resolve them.
    chain = Chain(64, 4, "relu", norm="none", gain=2**0.5 * (1 - skip), skip=skip)
    options = {"chains": 40, "rng": 0, "observables": ()}
    single = bnmc.backpropagate(chain, 150, dtype="float32", **options)
    # Most chains have come that far, and none has with a skip connection.
    assert (20 < len(single.widened) < 40) if skip == 0.0 else not single.widened
    assert_same_means([single, bnmc.backpropagate(chain, 150, **options)])


def test_labels_are_classes_or_targets():
    def run(**options):
        return bnmc.backpropagate(TANH, 3, chains=2, rng=0, **options)

    first = run(loss="squared", labels=[0, 1, 2, 1])
    assert_same_bits(first, run(loss="squared", labels=np.eye(3)[[0, 1, 2, 1]]))
    targets = np.eye(3)[[0, 1, 2, 1]]
    assert_same_bits(first, run(loss_gradient=lambda f: (f - targets) / 4, classes=3))
    three = run(loss="cross-entropy", labels=[0, 1, 0, 1], classes=3)
    assert (three.log_gradient_norm != first.log_gradient_norm).all()


def test_a_readout_without_a_gradient_gives_zeros():
    run = bnmc.backpropagate(TANH, 3, rng=0, loss_gradient=np.zeros_like, classes=2)
    assert (run.log_gradient_norm == -np.inf).all()


def test_observables_are_functions_of_three_matrices():
    seen = []

    def ratio(gram, delta, hidden):
        seen.append((gram.shape, delta.shape, hidden.shape))
        return np.trace(hidden, axis1=-2, axis2=-1) / np.trace(delta, axis1=-2, axis2=-1)

    run = bnmc.backpropagate(
        TANH, 10, chains=3, rng=0, every=4, threads=1,
        observables={"ratio": ratio, "sides": (lambda g, d, h: g[..., 0, :2], (2,))},
    )  # fmt: skip
    assert run.ratio.shape == (3, 3)
    assert run.sides.shape == (3, 3, 2)
    assert run.layers.tolist() == [4, 8, 10]
    assert seen == [((3, 3, 4, 4),) * 3]


def test_own_activations_with_their_derivative():
    custom = Activation(lambda x: x / (1 + abs(x)), derivative=lambda x: 1 / (1 + abs(x)) ** 2)
    run = bnmc.backpropagate(Chain(20, 3, custom), 3, chains=2, rng=0)
    assert np.isfinite(run.log_gradient_norm).all()
    with pytest.raises(errors.ArgumentError, match="derivative"):
        bnmc.backpropagate(Chain(20, 3, Activation(lambda x: x / (1 + abs(x)))), 3)
    wrong = Activation(lambda x: x / (1 + abs(x)), derivative=lambda x: 1 / (1 + abs(x)))
    with pytest.raises(errors.ArgumentError, match="differences of the function"):
        bnmc.backpropagate(Chain(20, 3, wrong), 3)


def test_rate_needs_chains_and_layers():
    run = bnmc.backpropagate(TANH, 8, rng=0)
    with pytest.raises(errors.PartialEstimateError, match="2 chains") as caught:
        run.backward_rate()
    expected = run.log_gradient_norm[0, 2] - run.log_gradient_norm[0, 6]
    assert caught.value.partial == pytest.approx(math.exp(2 * expected / 4))
    with pytest.raises(errors.ArgumentError, match="last"):
        run.backward_rate(first=5, last=3)
    dead = bnmc.backpropagate(Chain(9, 2, "tanh"), 8, chains=3, rng=0)
    with pytest.raises(errors.PartialEstimateError, match="zero"):
        dead.backward_rate()


def test_the_rate_is_the_slope_of_the_logarithms():
    run = bnmc.backpropagate(TANH, 8, chains=5, rng=0)
    rate = run.backward_rate(first=1, last=5)
    slopes = (run.log_gradient_norm[:, 1] - run.log_gradient_norm[:, 5]) / 2
    assert rate.value == pytest.approx(math.exp(slopes.mean()))
    error = slopes.std(ddof=1) / math.sqrt(5)
    assert rate.stderr == pytest.approx(rate.value * error)
    # 2.776445 is the upper 2.5 % point of Student's t with 4 degrees of freedom.
    assert math.log(rate.ci[1]) == pytest.approx(slopes.mean() + 2.776445 * error, rel=1e-6)
    assert math.log(rate.ci[0]) == pytest.approx(slopes.mean() - 2.776445 * error, rel=1e-6)


def test_cosines_of_the_parts_of_samples():
    run = bnmc.backpropagate(TANH, 5, chains=2, rng=0, observables=ALL)
    cosines = run.cosines()
    assert cosines.shape == (2, 4, 4, 4)
    np.testing.assert_allclose(np.diagonal(cosines, axis1=-2, axis2=-1), 1.0)
    chain = Chain.conv(6, 2, "tanh", shape=(1, 3), kernel=(1, 2))
    run = bnmc.backpropagate(chain, 2, rng=0, observables=ALL)
    patches = covariance(run.gram[0, 0], (1, 3), (1, 2))
    expected = correlations(run.delta_gram[0, 1]) * correlations(patches)
    np.testing.assert_allclose(run.cosines()[0, 0], expected, rtol=1e-12)
    with pytest.raises(errors.ArgumentError, match="gram"):
        bnmc.backpropagate(TANH, 5, rng=0).cosines()
    with pytest.raises(errors.ArgumentError, match="every"):
        bnmc.backpropagate(TANH, 5, rng=0, observables=ALL, every=2).cosines()


@pytest.mark.parametrize("loss", ["gaussian", "cross-entropy"])
@pytest.mark.parametrize(
    "chain",
    [
        Chain(9, 4, "tanh", norm="layer", skip=0.4, weights="uniform"), Chain(9, 4, "tanh"),
        Chain.resnet(7, 4, "tanh"), Chain(8, 4, "tanh", skip=0.5, order="activation-norm"),
        Chain(9, 4, "sin", norm="none", gain=1e-10),
    ],
    ids=["layer", "batch", "residual", "after", "small"],
)  # fmt: skip
def test_log_norms_of_gradients_and_biases(chain, loss):
    """δ 1 is the gradient of the bias: it is 0 where all outputs see h without its mean."""
    names = ("delta_gram", "log_delta_norm", "log_bias_norm")
    labels = [0, 1, 0, 1] if loss == "cross-entropy" else None
    run = bnmc.backpropagate(
        chain, 5, chains=3, rng=2, loss=loss, labels=labels, observables=names, every=2
    )
    squares = np.trace(run.delta_gram, axis1=2, axis2=3)
    expected = 0.5 * np.log(squares) + run.log_scale
    np.testing.assert_allclose(run.log_delta_norm, expected, rtol=1e-14, atol=1e-12)
    sums = run.delta_gram.sum(axis=(2, 3)) / squares
    is_seen = np.isfinite(run.log_bias_norm)
    assert (np.abs(sums[~is_seen]) < 1e-12).all()
    assert (sums[is_seen] > 1e-9).all()
    expected = 0.5 * np.log((sums * squares)[is_seen]) + run.log_scale[is_seen]
    np.testing.assert_allclose(run.log_bias_norm[is_seen], expected, rtol=1e-14, atol=1e-12)
    assert run.to_xarray()["log_delta_norm"].dims == ("chain", "layer")


@pytest.mark.parametrize("loss", ["gaussian", "cross-entropy"])
@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
def test_biases_of_residual_blocks_are_hidden_if_all_that_sees_them_does(norm, loss):
    """A block of two layers, the first under a norm that subtracts biases, the last under any."""
    first, last = Chain(8, 4, "tanh"), Chain(8, 4, "tanh", norm=norm)
    block = bnmc.Residual(bnmc.Network((first, 1), (last, 1)))
    network = bnmc.Network((first, 2), block, (first, 1))
    labels = [0, 1, 0, 1] if loss == "cross-entropy" else None
    run = bnmc.backpropagate(
        network, chains=2, rng=0, loss=loss, labels=labels,
        observables=("delta_gram", "log_bias_norm"),
    )  # fmt: skip
    squares = np.trace(run.delta_gram, axis1=2, axis2=3)
    shares = run.delta_gram.sum(axis=(2, 3)) / squares
    is_seen = np.isfinite(run.log_bias_norm)
    assert (np.abs(shares[~is_seen]) < 1e-12).all()
    assert (shares[is_seen] > 1e-9).all()


def test_names_of_observables_are_attributes_and_variables():
    run = bnmc.backpropagate(TANH, 5, chains=2, rng=0, every=2)
    assert run.delta_gram is run["delta_gram"]
    with pytest.raises(AttributeError, match="nothing"):
        _ = run.nothing
    with pytest.raises(errors.ArgumentError, match="gram"):
        _ = run["gram"]
    data = run.to_xarray()
    assert data.delta_gram.dims == ("chain", "layer", "sample_i", "sample_j")
    assert data.log_gradient_norm.shape == (2, 5)
    assert data.layer.values.tolist() == [2, 4, 5]
    assert data.attrs["loss"] == "gaussian"


def test_ctrl_c_hands_over_finished_chains(monkeypatch):
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)

    def interrupt(done, total):
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(errors.Interrupted) as caught:
        bnmc.backpropagate(TANH, 5, chains=8, rng=0, threads=1, progress=interrupt)
    partial = caught.value.partial
    assert partial.chains >= 1
    whole = bnmc.backpropagate(TANH, 5, chains=8, rng=0)
    np.testing.assert_array_equal(
        partial.log_gradient_norm, whole.log_gradient_norm[: partial.chains]
    )


def test_a_timeout_returns_the_first_chains(monkeypatch):
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)
    begun = time.monotonic()

    def loss(outputs):
        time.sleep(0.05)
        return outputs

    def run(timeout):
        return bnmc.backpropagate(
            TANH, 5, chains=200, rng=0, loss_gradient=loss, classes=2, threads=2, timeout=timeout
        )

    partial = run(1.5)
    assert time.monotonic() - begun < 4.0
    assert not partial.complete
    assert "interrupted" in repr(partial)
    assert "incomplete: the run ended after" in str(partial)
    assert 1 <= partial.chains < 200
    whole = bnmc.backpropagate(
        TANH, 5, chains=partial.chains, rng=0, loss_gradient=np.copy, classes=2, timeout=60
    )
    assert whole.complete
    assert_same_bits(whole, partial)
    with pytest.raises(errors.PartialEstimateError, match="timeout"):
        run(1e-9)


def test_a_continued_run_has_no_gradients():
    state = bnmc.simulate(TANH, 2, rng=0).final_state
    with pytest.raises(errors.ArgumentError, match="initial"):
        bnmc.backpropagate(TANH, 2, initial=state)


def test_small_chains_of_float32_have_the_gradients_of_float64():
    """G leaves the range of float32 after 30 of the layers."""
    chain = Chain(60, 5, "tanh", norm="none", gain=0.3)
    single, double = (
        bnmc.backpropagate(chain, 60, chains=4, rng=0, dtype=dtype).log_gradient_norm
        for dtype in ("float32", "float64")
    )
    np.testing.assert_allclose(single, double, atol=1e-3)


@pytest.mark.parametrize(
    ("norm", "sampler"),
    # Drawn weights without a norm are left out: the rows of such a chain leave float64, too.
    [("none", "auto"), *itertools.product(["batch", "layer"], ["auto", "weights"])],
)
def test_gradients_of_gains_whose_squares_leave_float64(norm, sampler):
    """Only the factor of ∂L/∂W sees the gain, or without a norm that of each layer."""
    run = partial(bnmc.backpropagate, depth=3, chains=2, rng=0, sampler=sampler)
    most = 1022 if norm == "layer" else 1000  # |gain| √(width · fan_in) leaves float64, too
    logs = [
        run(Chain(6, 4, "relu", norm=norm, gain=2.0**exponent)).log_gradient_norm
        for exponent in (0, -1000, -520, 520, most)
    ]
    factors = (3 if norm == "none" else 1) * np.log(2.0) * np.array([-1000, -520, 520, most])
    np.testing.assert_allclose(logs[1:] - factors[:, None, None], logs[:1] * 4, rtol=0, atol=1e-11)


def test_a_recorded_matrix_that_leaves_float64_is_an_error():
    chain = Chain(6, 4, "relu", norm="none", gain=1e150)
    with pytest.raises(errors.NonFiniteError, match="gram, too large for float64") as caught:
        bnmc.backpropagate(chain, 3, chains=2, rng=0, observables="gram", threads=1)
    assert (caught.value.chain, caught.value.layer) == (0, 2)


@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
def test_which_rows_are_float64_does_not_depend_on_the_scale_of_layers():
    """A power of two is split off each layer, forward and backward."""
    near, far = (
        bnmc.backpropagate(
            Chain(60, 5, "relu", norm="none", gain=gain), 100, chains=4, rng=0, dtype="float32"
        ).log_gradient_norm
        for gain in (1.0, 2.0**-60)
    )
    # Each gradient is a product with all the other layers, and with its own map.
    np.testing.assert_allclose(far + 100 * 60 * np.log(2.0), near, rtol=0, atol=1e-9)
