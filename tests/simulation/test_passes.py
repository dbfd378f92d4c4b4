"""Norms over the features, biases, and the orders of norm and activation.

The sampler "weights" is compared with the formula, given its own weights and biases, and the
conditional sampler with the sampler "weights" in law.
"""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import laws
import numpy as np
import pytest
from laws import assert_one_law, formula_of
from numpy_network import grams, normalised

import bnmc
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.simulation import segment

# Narrow chains have dependent samples, which float32 runs report.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")

ORDERS = ("norm-activation", "activation-norm", "pre-activation")

#: Networks on each side of a comparison of laws, and the layers that are compared.  The threshold
#: of the distance is 0.060 for 24 comparisons of 5000 networks, and 0.030 of 20,000, which the slow
#: tests take: normal variables are told apart if their means differ by 0.15 or 0.08 standard
#: deviations.
NETWORKS, MORE_NETWORKS = 5_000, 20_000
LAYERS = (1, 3)


# --- the sampler "weights" against the formula


# The widths have blocks and groups that do not end together.
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("norm", ["layer", "rms", "group(7)", "batch", "none"])
@pytest.mark.parametrize("order", ORDERS)
def test_weights_have_the_layers_of_the_formula(norm, order, dtype):
    start = np.random.default_rng(1).standard_normal((1050, 3))
    skip = {"norm-activation": 0.0, "activation-norm": -0.4, "pre-activation": 1.0}[order]
    chain = bnmc.Chain(
        1050, 3, "tanh", norm=norm, order=order, skip=skip, gain=1.3, eps=0.01, bias_variance=0.2
    )
    run = bnmc.simulate(chain, 2, initial=start, sampler="weights", dtype=dtype, rng=2)
    expected = formula_of(run, start, 2)
    rtol = {"float64": 1e-12, "float32": 2e-5}[dtype]
    np.testing.assert_allclose(run.gram[0], expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("weights", ["uniform", "haar", lambda rng, shape: rng.laplace(size=shape)])
def test_biases_are_added_under_every_law_of_weights(weights):
    start = np.random.default_rng(3).standard_normal((20, 3))
    chain = bnmc.Chain(20, 3, "tanh", norm="rms", weights=weights, bias_variance=0.5)
    run = bnmc.simulate(chain, 2, initial=start, rng=4)
    assert run.sampler == "weights"
    expected = formula_of(run, start, 2)
    np.testing.assert_allclose(run.gram[0], expected, rtol=1e-12)


def test_biases_are_normal_and_of_their_variance():
    chain = bnmc.Chain(30_000, 1, norm="none", bias_variance=0.25)
    b = bnmc.drawn_biases(bnmc.simulate(bnmc.Chain(2, 1, norm="none"), 1, sampler="weights"), 1)
    assert not b.any()
    from bnmc.simulation.engine.replay import biases_of_layer
    from bnmc.simulation.runs import Run

    b = biases_of_layer(Run(chain, "weights", 1, None, "float64", 5), 0, 1)
    for power, moment in ((1, 0.0), (2, 0.25), (4, 3 * 0.25**2)):
        spread = math.sqrt(math.prod(range(1, 4 * power, 2)) * 0.25 ** (2 * power) / len(b))
        assert abs((b**power).mean() - moment) < 6 * spread


def test_layers_are_those_of_torch():
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(6).standard_normal((48, 5))

    def columns(module):
        """Apply a module of samples x features to features x samples."""
        return lambda h: module(torch.from_numpy(h.T)).detach().numpy().T

    norms = {
        "layer": torch.nn.LayerNorm(48, eps=1e-5, elementwise_affine=False),
        "rms": torch.nn.RMSNorm(48, eps=1e-5, elementwise_affine=False),
        "group(6)": torch.nn.GroupNorm(6, 48, eps=1e-5, affine=False),
        "batch": torch.nn.BatchNorm1d(48, eps=1e-5, affine=False),
    }
    for name, module in norms.items():
        norm = columns(module.double())
        for order in ORDERS:
            chain = bnmc.Chain(
                48, 5, "relu", norm=name, order=order, eps=1e-5, bias_variance=0.1,
                skip=1.0 * (order == "pre-activation"),
            )  # fmt: skip
            run = bnmc.simulate(chain, 1, initial=start, sampler="weights", rng=7)
            linear = torch.nn.Linear(48, 48, dtype=torch.float64)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(bnmc.drawn_weights(run, 1)))
                linear.bias.copy_(torch.from_numpy(bnmc.drawn_biases(run, 1)))
                dense, relu = columns(linear), columns(torch.nn.ReLU())
                if order == "activation-norm":
                    a = norm(relu(dense(norm(relu(start)))))
                else:
                    x = chain.skip * start + dense(relu(norm(start)))
                    a = relu(norm(x))
            np.testing.assert_allclose(run.gram[0, 1], a.T @ a / 48, rtol=1e-12, atol=1e-13)


# --- the conditional sampler against the sampler "weights"

# d < n, singular G, two features of a group, every norm, order and bias.
CASES = {
    "layer": {"width": 4, "batch": 3, "norm": "layer"},
    "rms, d < n, bias": {"width": 3, "batch": 4, "norm": "rms", "bias_variance": 0.4},
    "groups, skip": {"width": 6, "batch": 3, "norm": "group(2)", "skip": 0.7, "gain": 1.4},
    "layer after": {"width": 5, "batch": 3, "norm": "layer", "order": "activation-norm"},
    "rms after, skip, bias": {
        "width": 4, "batch": 2, "norm": "rms", "order": "activation-norm", "skip": 0.5,
        "bias_variance": 0.3, "eps": 0.1,
    },
    "groups after, bias": {
        "width": 8, "batch": 3, "norm": "group(2)", "order": "activation-norm",
        "bias_variance": 0.3,
    },
    "batch after, gain": {"width": 4, "batch": 3, "order": "activation-norm", "gain": 1.7},
    "batch after, skip, bias": {
        "width": 5, "batch": 3, "order": "activation-norm", "skip": -0.6, "bias_variance": 0.5,
    },
    "uncentred after, d < n": {
        "width": 2, "batch": 4, "norm": "batch-uncentred", "order": "activation-norm",
    },
    "layer, residual": {
        "width": 4, "batch": 3, "norm": "layer", "order": "pre-activation", "skip": 1.0,
        "bias_variance": 0.2,
    },
    "batch, residual": {
        "width": 4, "batch": 4, "order": "pre-activation", "skip": 1.0, "bias_variance": 0.2,
        "gain": 0.8,
    },
    "none, bias": {"width": 4, "batch": 3, "norm": "none", "bias_variance": 0.3},
    "uncentred, bias": {
        "width": 3, "batch": 3, "norm": "batch-uncentred", "bias_variance": 0.5, "gain": 0.5,
    },
}  # fmt: skip


def law_of(options, sampler, seed, networks=NETWORKS, **more):
    chain = bnmc.Chain(activation="tanh", **options)
    return laws.law_of(chain, sampler, seed, networks, LAYERS, **more)


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "networks"),
    [pytest.param(name, NETWORKS, id=name) for name in list(CASES)[::2]]
    + [
        pytest.param(name, MORE_NETWORKS, id=f"{name}, {MORE_NETWORKS}", marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_samplers_have_one_law(name, networks):
    options = CASES[name]
    start = np.random.default_rng(8).standard_normal((options["width"], options["batch"]))
    samplers = "conditional", "weights"
    assert_one_law(*(law_of(options, sampler, 9, networks, initial=start) for sampler in samplers))


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["layer", "batch after, gain"])
def test_the_law_is_that_of_networks_in_numpy(name):
    chain = bnmc.Chain(activation="tanh", **CASES[name])
    start = np.random.default_rng(10).standard_normal((chain.width, chain.batch))
    expected = grams(chain, 3, NETWORKS, np.random.default_rng(11), start)[:, LAYERS]
    assert_one_law(law_of(CASES[name], "conditional", 12, initial=start), expected)


@pytest.mark.slow
@pytest.mark.untraced
def test_float32_rows_and_named_starts_have_the_law():
    for name in ("groups, skip", "batch after, gain"):
        pair = [
            law_of(CASES[name], sampler, 13, MORE_NETWORKS, dtype=dtype)
            for sampler, dtype in (("conditional", "float32"), ("weights", "float64"))
        ]
        # Entries that are 0 or 1 but for rounding.
        assert_one_law(*pair, digits=4)


@pytest.mark.untraced
def test_inputs_share_weights_and_biases():
    options = {"width": 6, "batch": 2, "norm": "rms", "bias_variance": 0.3}
    start = np.random.default_rng(14).standard_normal((2, 6, 2))
    chain = bnmc.Chain(activation="tanh", **options)

    def crossed(sampler):
        run = bnmc.simulate(
            chain, 2, chains=NETWORKS, sampler=sampler, rng=15, threads=1, initial=start,
            inputs=2, observables="cross_gram",
        )  # fmt: skip
        return run["cross_gram"][:, 2:].swapaxes(3, 4).reshape(NETWORKS, 1, 4, 4)

    assert_one_law(crossed("conditional"), crossed("weights"))


def test_the_wrong_law_is_seen():
    """A bias that is missing, and a mean that is not subtracted."""
    start = np.random.default_rng(16).standard_normal((4, 3))
    right = law_of(CASES["layer"], "conditional", 17, initial=start)
    for changes in ({"norm": "rms"}, {"bias_variance": 0.1}, {"order": "activation-norm"}):
        with pytest.raises(AssertionError):
            assert_one_law(right, law_of(CASES["layer"] | changes, "weights", 18, initial=start))


def test_norms_that_are_the_same_have_the_same_bits():
    """Orders without norm, residual blocks without skip, biases that centring removes."""
    plain = {"width": 40, "batch": 3, "activation": "tanh"}
    for first, other in (
        ({"norm": "none"}, {"norm": "none", "order": "activation-norm"}),
        ({"norm": "rms"}, {"norm": "rms", "order": "pre-activation"}),
        ({}, {"bias_variance": 0.5}),
        ({"norm": "layer"}, {"norm": "group(1)"}),
        ({"norm": "group(4)"}, {"norm": bnmc.GroupNorm(4)}),
    ):
        runs = [
            bnmc.simulate(bnmc.Chain(**plain, **options), 3, chains=2, rng=0).gram
            for options in (first, other)
        ]
        assert np.array_equal(*runs)


def test_copies_of_a_sample_stay_copies_to_the_bit():
    x = np.random.default_rng(19).standard_normal((12, 4))
    x[:, 2] = x[:, 0]
    for name in ("layer", "groups, skip", "layer after", "batch after, gain", "none, bias"):
        options = CASES[name] | {"width": 12, "batch": 4}
        for sampler in ("conditional", "weights"):
            chain = bnmc.Chain(activation="tanh", **options)
            g = bnmc.simulate(chain, 5, initial=x, rng=20, sampler=sampler).gram[0]
            assert np.array_equal(g[:, 2], g[:, 0])


# The wide layer has two panels of rows, and its last group is in both.
@pytest.mark.parametrize("width", [90, 6000])
def test_unit_samples_have_unit_size(width):
    """After layer normalization a sample has mean square 1 exactly, in every group."""
    chain = bnmc.Chain(width, 3, "relu", norm="group(3)", order="activation-norm")
    g = bnmc.simulate(chain, 4, chains=2, rng=21).gram
    np.testing.assert_allclose(np.diagonal(g, axis1=-2, axis2=-1), 1.0, rtol=1e-13)


# --- the same bits


#: Chains, attributes of their stores, and the chains of other runs.
STORED = {
    "passes": (
        {"norm": "group(4)", "skip": 0.5, "bias_variance": 0.1}, {"bias_variance": 0.1},
        [{"norm": "group(2)"}, {"bias_variance": 0.2}, {"order": "pre-activation"}],
    ),
    "convolution": (
        {"batch": 4, "convolution": bnmc.Convolution((2, 2), (1, 2))},
        {"convolution": "Convolution(shape=(2, 2), kernel=(1, 2))"},
        [{"convolution": bnmc.Convolution(shape, (2, 1))} for shape in ((2, 2), (4, 1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_a_store_continues_a_run(name, path, small_tiles):
    pytest.importorskip("zarr")
    options, attributes, others = STORED[name]
    options = {"width": 40, "batch": 3, "activation": "tanh", **options}
    run = {"chains": 3, "every": 5, "rng": 23}
    whole = bnmc.simulate(bnmc.Chain(**options), 12, **run).gram
    with ThreadPoolExecutor(1) as pool:
        stored = bnmc.simulate(bnmc.Chain(**options), 12, store=path, executor=pool, **run)
    assert np.array_equal(whole, np.asarray(stored.gram))
    assert stored.layers.tolist() == [0, 5, 10, 12]
    assert attributes.items() <= stored.attributes().items()
    for other in others:
        with pytest.raises(bnmc.errors.StoreMismatchError):
            bnmc.simulate(bnmc.Chain(**options | other), 12, store=path, **run)


def test_float32_chains_whose_samples_are_dependent_continue_in_float64():
    chain = bnmc.Chain(64, 3, "relu", norm="layer")
    x = np.random.default_rng(24).standard_normal((64, 3))
    x[:, 1] = x[:, 0] + 1e-3 * x[:, 1]
    runs = {
        dtype: bnmc.simulate(chain, 4, initial=x, dtype=dtype, rng=25)
        for dtype in ("float32", "float64")
    }
    assert runs["float32"].widened == (0,)
    np.testing.assert_allclose(runs["float32"].gram, runs["float64"].gram, rtol=1e-4)


# --- what cannot be normalized


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_without_variance_is_named(monkeypatch, sampler, threads):
    """The activation is 0 except for rare rows, so a group of 2 features soon has none."""
    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    chain = bnmc.Chain(2000, 3, "relu", norm="group(1000)", order="activation-norm")
    start = 1.0 + np.random.default_rng(26).random((2000, 3))
    with pytest.raises(ZeroVarianceError, match="chain 0, layer 1, sample") as caught:
        bnmc.simulate(chain, 3, initial=start, sampler=sampler, threads=threads, rng=27)
    assert caught.value.sample in (0, 1, 2)
    assert caught.value.row is None
    assert pickle.loads(pickle.dumps(caught.value)).sample == caught.value.sample
    bnmc.simulate(
        bnmc.Chain(2000, 3, "relu", norm="group(1000)", order="activation-norm", eps=1e-5), 3,
        initial=start, sampler=sampler, threads=threads, rng=27,
    )  # fmt: skip


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_one_sample_without_variance_is_named(monkeypatch, sampler, threads):
    """Its features in the first chain have one size, which the activation takes to 0."""

    def beyond(x):
        return max(abs(x) - 1.5, 0.0)

    monkeypatch.setattr(segment, "SHARED_LAYER_SECONDS", 0.0)
    chain = bnmc.Chain(40, 3, bnmc.Activation(beyond, name="beyond"), norm="rms")
    start = np.random.default_rng(31).standard_normal((2, 40, 3))
    start[0, :, 2] = 1.0
    with pytest.raises(ZeroVarianceError, match="chain 0, layer 1, sample 2") as caught:
        bnmc.simulate(chain, 2, initial=start, sampler=sampler, threads=threads, rng=32)
    assert (caught.value.sample, caught.value.row) == (2, None)


def test_a_flat_start_is_refused():
    x = np.random.default_rng(28).standard_normal((6, 3))
    x[:, 1] = 0.5
    chain = bnmc.Chain(6, 3, "tanh", norm="layer")
    with pytest.raises(ZeroVarianceError, match="the input, sample 1"):
        bnmc.simulate(chain, 1, initial=x)
    with pytest.raises(ZeroVarianceError, match="chain 1, layer 0, sample 1"):
        bnmc.simulate(chain, 1, initial=np.stack([x + np.arange(6)[:, None], x]))
    x[:, 1] = 0.0
    with pytest.raises(ZeroVarianceError, match="the input, sample 1"):
        bnmc.simulate(chain, 1, initial=bnmc.FirstLayer(x))
    bnmc.simulate(bnmc.Chain(6, 3, "tanh", norm="layer", eps=0.1), 1, initial=x)
    with pytest.raises(ZeroVarianceError, match="the input, row 0"):
        bnmc.simulate(
            bnmc.Chain(6, 3, "relu", order="activation-norm"), 1, initial=-np.ones((6, 3))
        )


def test_the_chain_that_stops_in_a_pass_is_named():
    """A rare value of the activation is no number; the chains before the named one run without."""

    def rare(x):
        return x if x <= 4.0 else np.nan

    chain = bnmc.Chain(40, 3, bnmc.Activation(rare, name="rare"), norm="rms")
    with pytest.raises(NonFiniteError) as alone:
        bnmc.simulate(chain, 4, chains=40, rng=24, threads=1)
    assert alone.value.chain > 0
    bnmc.simulate(chain, 4, chains=alone.value.chain, rng=24, threads=1)


def test_the_scale_of_the_weights_does_not_matter_before_a_norm_of_samples():
    """In float32 the squares of such numbers under- and overflow."""
    plain = bnmc.simulate(bnmc.Chain(30, 3, "tanh", norm="rms"), 2, dtype="float32", rng=29).gram
    for gain in (1e-30, 1e30):
        chain = bnmc.Chain(30, 3, "tanh", norm="rms", gain=gain)
        assert np.array_equal(plain, bnmc.simulate(chain, 2, dtype="float32", rng=29).gram)


def test_the_oracle_has_the_norms_of_the_package():
    h = np.random.default_rng(30).standard_normal((2, 12, 4)) + 3.0
    for name in ("batch", "batch-uncentred", "none", "layer", "rms", "group(3)"):
        norm = bnmc.Chain(12, 4, norm=name).normalization
        np.testing.assert_allclose(norm(h, 0.1), normalised(h, name, 0.1), rtol=1e-12)
