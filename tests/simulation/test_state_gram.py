"""The observable "state_gram", the Gram matrix of the state h before the norm."""

import numpy as np
import pytest
from laws import networks_of
from oracle import gram, ks_distance, two_sample_threshold

import bnmc
from bnmc.errors import ArgumentError

NAMES = ["gram", "state_gram"]
#: All norms and orders, a bias that the norm hides, a scale that it hides, one that is split off,
#: and several panels with two inputs.
CHAINS = {
    "batch": bnmc.Chain(40, 4, "tanh", gain=1.7, bias_variance=0.3),
    "residual": bnmc.Chain.bn_residual(40, 4, "relu", gamma=0.3),
    "resnet": bnmc.Chain.resnet(40, 4, "relu", bias_variance=0.2),
    "after": bnmc.Chain(40, 4, "tanh", order="activation-norm", skip=0.5),
    "layer": bnmc.Chain(40, 4, "relu", norm="layer", gain=0.6, skip=0.7),
    "none": bnmc.Chain(40, 4, "tanh", norm="none", bias_variance=0.1),
    "relu": bnmc.Chain(40, 4, "relu", norm="none", gain=1e-3, skip=0.4),
    "convolution": bnmc.Chain.conv(20, 1, "relu", shape=(2, 2), kernel=(2, 1), norm="layer"),
}
STARTS = np.random.default_rng(0).standard_normal((2, 1, 40, 4))


@pytest.mark.parametrize("name", CHAINS)
def test_by_weights_it_is_that_of_numpy(name):
    chain = CHAINS[name]
    start = STARTS[0, 0, : chain.width]
    run = bnmc.simulate(chain, 3, initial=start, sampler="weights", observables=NAMES, rng=1)
    states = np.stack([gram(h[0]) for h in networks_of(run, start, 3).h])
    np.testing.assert_allclose(run["state_gram"][0], states, rtol=1e-10)


@pytest.mark.parametrize("name", ["batch", "resnet", "layer", "relu"])
def test_rows_given_the_gram_matrix_have_the_same_law(name):
    chains, entries = 4000, [(0, 0), (0, 1), (2, 3)]
    options = {"chains": chains, "observables": NAMES, "initial": "collinear"}
    runs = [
        bnmc.simulate(CHAINS[name], 2, sampler=sampler, rng=2, **options)
        for sampler in ("conditional", "weights")
    ]
    limit = two_sample_threshold(chains, 2 * 3 * len(entries))
    for observable in NAMES:
        for layer in range(3):
            for entry in entries:
                pair = (run[observable][:, layer, *entry] for run in runs)
                assert ks_distance(*pair) < limit


def test_linear_chains_without_norm_have_one_gram_matrix():
    run = bnmc.simulate(bnmc.Chain.vanilla(30, 3), 400, rng=0, observables=NAMES, every=100)
    np.testing.assert_array_equal(run["state_gram"], run.gram)


def test_the_scale_of_deep_states_is_split_off():
    """h shrinks by about 2⁻¹⁰ a layer, so float64 holds no Gram matrix of layer 100."""
    chain = bnmc.Chain(30, 3, "relu", norm="none", gain=2.0**-10)
    whole = bnmc.simulate(chain, 40, rng=0, observables=NAMES, dtype="float32")
    larger = bnmc.simulate(
        bnmc.Chain(30, 3, "relu", norm="none"), 40, rng=0, observables=NAMES, dtype="float32"
    )
    for name in NAMES:
        scaled = np.ldexp(whole[name], 20 * np.arange(41)[:, None, None])
        np.testing.assert_array_equal(scaled, larger[name])
    deep = bnmc.simulate(chain, 100, rng=0, observables="state_gram", burn_in=100)
    assert not deep["state_gram"].any()


def test_a_state_has_its_own_state_gram_if_it_keeps_h():
    chain = CHAINS["resnet"]
    run = bnmc.simulate(chain, 2, rng=0, observables=NAMES)
    rest = bnmc.simulate(chain, 1, initial=run.final_state, observables=NAMES)
    np.testing.assert_allclose(rest["state_gram"][:, 0], run["state_gram"][:, -1], rtol=1e-12)


#: Both paths, norms over the batch and the features, each order, x that is not h, and scales that
#: are split off.
ON_GPU = [
    ("batch", "conditional", "float64"),
    ("resnet", "conditional", "float32"),
    ("after", "weights", "float64"),
    ("layer", "weights", "float32"),
    ("relu", "weights", "float64"),
    ("convolution", "conditional", "float64"),
    ("haar", "conditional", "float64"),
]


@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
@pytest.mark.parametrize(("name", "sampler", "dtype"), ON_GPU)
def test_on_a_gpu_it_is_that_of_the_cpu(name, sampler, dtype):
    chain = (CHAINS | {"haar": bnmc.Chain(12, 4, "tanh", weights="haar")})[name]
    options = {"sampler": sampler, "dtype": dtype, "observables": NAMES, "rng": 1, "every": 2}
    a, b = (bnmc.simulate(chain, 3, backend=backend, **options) for backend in ("cpu", "cuda"))
    unit = 2.0**-23 if dtype == "float32" else 2.0**-52
    for observable in NAMES:
        size = np.abs(a[observable]).max(axis=(-2, -1), keepdims=True)
        assert (np.abs(a[observable] - b[observable]) <= 1000 * unit * size).all()


@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
def test_it_begins_on_a_gpu_as_on_the_cpu():
    """With given rows, and with a state that keeps h."""
    chain = CHAINS["resnet"]
    a, b = (
        bnmc.simulate(chain, 1, initial=STARTS[:, 0], observables=NAMES, rng=1, backend=backend)
        for backend in ("cpu", "cuda")
    )
    rest = bnmc.simulate(chain, 0, initial=b.final_state, observables=NAMES, backend="cuda")
    for name in NAMES:
        np.testing.assert_allclose(b[name], a[name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(rest[name][:, 0], b[name][:, -1], rtol=0, atol=1e-12)


def test_what_cannot_be_recorded_is_an_error(tmp_path):
    chain = CHAINS["batch"]
    state = bnmc.simulate(chain, 1, rng=0).final_state
    with pytest.raises(ArgumentError, match="burn_in"):
        bnmc.simulate(chain, 1, initial=state, observables="state_gram")
    with pytest.raises(ArgumentError, match="state_gram"):
        bnmc.invariant.expectation(chain, "state_gram", rng=0)
