"""The observable "state_gram", the Gram matrix of h; `test_formula.py` has its values."""

import numpy as np
import pytest
from laws import assert_formula, haar, normal
from slow_cases import some

import bnmc
from bnmc.errors import ArgumentError

NAMES = ["gram", "state_gram"]
RESNET = bnmc.Chain.resnet(40, 4, "relu", bias_variance=0.2)
STARTS = np.random.default_rng(0).standard_normal((2, 1, 40, 4))


def test_linear_chains_without_norm_have_one_gram_matrix():
    run = bnmc.simulate(
        bnmc.Chain(30, 3, "linear", norm="none"), 400, rng=0, observables=NAMES, every=100
    )
    np.testing.assert_array_equal(run["state_gram"], run.gram)


def test_the_scale_of_deep_states_is_split_off():
    """h shrinks by about 2⁻¹⁰ a layer, so float64 holds no Gram matrix of layer 100."""
    chain = bnmc.Chain(30, 3, "relu", norm="none", gain=2.0**-10)
    whole = bnmc.simulate(chain, 40, rng=0, observables=NAMES)
    larger = bnmc.simulate(bnmc.Chain(30, 3, "relu", norm="none"), 40, rng=0, observables=NAMES)
    for name in NAMES:
        scaled = np.ldexp(whole[name], 20 * np.arange(41)[:, None, None])
        np.testing.assert_array_equal(scaled, larger[name])
    deep = bnmc.simulate(chain, 100, rng=0, observables="state_gram", burn_in=100)
    assert not deep["state_gram"].any()


def test_a_state_has_its_own_state_gram_if_it_keeps_h():
    run = bnmc.simulate(RESNET, 2, rng=0, observables=NAMES)
    rest = bnmc.simulate(RESNET, 1, initial=run.final_state, observables=NAMES)
    np.testing.assert_allclose(rest["state_gram"][:, 0], run["state_gram"][:, -1], rtol=1e-12)


#: Both paths, norms over the batch and the features, each order, x that is not h, a bias and a
#: scale that the norm hides, and scales that are split off.
ON_GPU = {
    "batch": (bnmc.Chain(40, 4, "tanh", gain=1.7, bias_variance=0.3), "conditional", "float64"),
    "resnet": (RESNET, "conditional", "float32"),
    "after": (bnmc.Chain(40, 4, "tanh", order="activation-norm", skip=0.5), "weights", "float64"),
    "layer": (bnmc.Chain(40, 4, "relu", norm="layer", gain=0.6, skip=0.7), "weights", "float32"),
    "relu": (bnmc.Chain(40, 4, "relu", norm="none", gain=1e-3, skip=0.4), "weights", "float64"),
    "convolution": (
        bnmc.Chain.conv(20, 1, "relu", shape=(2, 2), kernel=(2, 1), norm="layer"),
        "conditional", "float64",
    ),
    "haar": (haar(12, 4), "conditional", "float64"),
}  # fmt: skip


@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
# Other orders and no norm have such layers in `test_gpu.py`, which records no states.
@pytest.mark.parametrize("name", some(ON_GPU, *(set(ON_GPU) - {"after", "relu"})))
def test_on_a_gpu_it_is_that_of_the_formula(name):
    chain, sampler, dtype = ON_GPU[name]
    assert_formula(
        chain, normal(chain.width, chain.batch), 1e-4 if dtype == "float32" else 1e-10,
        sampler=sampler, dtype=dtype, records_h=True, backend="cuda",
    )  # fmt: skip


@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
def test_it_begins_on_a_gpu_as_on_the_cpu():
    """With given rows, and with a state that keeps h."""
    a, b = (
        bnmc.simulate(RESNET, 1, initial=STARTS[:, 0], observables=NAMES, rng=1, backend=backend)
        for backend in ("cpu", "cuda")
    )
    rest = bnmc.simulate(RESNET, 0, initial=b.final_state, observables=NAMES, backend="cuda")
    for name in NAMES:
        np.testing.assert_allclose(b[name], a[name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(rest[name][:, 0], b[name][:, -1], rtol=0, atol=1e-12)


def test_what_cannot_be_recorded_is_an_error(tmp_path):
    chain = bnmc.Chain(40, 4, "tanh")
    state = bnmc.simulate(chain, 1, rng=0).final_state
    with pytest.raises(ArgumentError, match="burn_in"):
        bnmc.simulate(chain, 1, initial=state, observables="state_gram")
    with pytest.raises(ArgumentError, match="state_gram"):
        bnmc.invariant.expectation(chain, "state_gram", rng=0)
