"""Layers of a run against the formula, given the random numbers that the run draws.

`laws.networks_of` makes these numbers again: weights and biases from their counters, or rows given
the Gram matrix.  PyTorch applies the weights in its own way.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import CASES, assert_formula, convolved, grams_of, haar, networks_of, normal
from numpy_network import gram_of
from slow_cases import slow, some

import bnmc
from bnmc import Chain
from bnmc.simulation.engine.replay import biases_of_layer
from bnmc.simulation.runs import Run

# Narrow chains have dependent samples, which float32 runs report.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")

ORDERS = {"norm-activation": 0.0, "activation-norm": -0.4, "pre-activation": 1.0}


def laplace(rng, shape):
    return rng.laplace(scale=math.sqrt(0.5), size=shape)


def wide(width=1050, **options):
    return Chain(width, 3, "tanh", gain=1.3, **options), normal(width, 3)


#: Blocks and groups that do not end together; every norm and order; the laws of weights; scales
#: that are hidden, or split off.
WIDE = {
    **{
        f"{norm}, {order}": wide(norm=norm, order=order, skip=skip, eps=0.01, bias_variance=0.2)
        for norm in ("layer", "rms", "group(7)", "batch", "none")
        for order, skip in ORDERS.items()
    },
    "batch": wide(40, bias_variance=0.3),
    "no norm": wide(40, norm="none", skip=0.5),
    "scale": (Chain(40, 4, "relu", norm="none", gain=1e-3, skip=0.4), normal(40, 4)),
    "linear, residual": (Chain.bn_residual(40, 4, "relu", gamma=0.3), normal(40, 4)),
    "two panels": (haar(1300, 6, norm="batch-uncentred", eps=0.1, gain=0.7), normal(1300, 6)),
    "two panels, inputs": (haar(700, 3, skip=0.8, gain=0.6), normal(2, 700, 3)),
    "nine taps": (convolved(70, 24, (3, 4), (3, 3)), normal(70, 24)),
    "two taps, skip": (convolved(70, 24, (3, 4), (2, 1), skip=0.5, gain=1.3), normal(70, 24)),
    "taps": (convolved(70, 10, (1, 5), (1, 2), norm="none", gain=1.2), normal(70, 10)),
}
#: Laws of weights that are drawn.
DRAWN = {
    **{
        f"{name}, bias": wide(20, norm="rms", weights=weights, bias_variance=0.5)
        for name, weights in {"uniform": "uniform", "haar": "haar", "laplace": laplace}.items()
    },
    "haar, 520 rows": wide(520, weights="haar"),
    "laplace, taps": (convolved(5, 8, (2, 2), (2, 2), weights=laplace), normal(5, 8)),
    "signs, taps": (convolved(5, 8, (2, 2), (2, 2), weights="rademacher"), normal(5, 8)),
}
TABLE = CASES | WIDE


def has_plain_rows(name):
    """Return whether weights are Gaussian and no convolution.

    Runs of other layers that record h have kernels of their own, which compile for 2 to 4 seconds
    each.  What adds h to its Gram matrix does not depend on where h comes from.
    """
    chain, _ = TABLE[name]
    return chain.weights == "gaussian" and chain.convolution is None


# A Gram matrix that is nearly singular divides rounding by its least pivot.
@pytest.mark.parametrize("name", TABLE)
def test_rows_are_the_formula_of_their_normals(name):
    assert_formula(*TABLE[name], 1e-9, sampler="conditional", records_h=has_plain_rows(name))


# What a layer does with its rows does not depend on where they come from: weights multiply in every
# second case each time, and record no h: `test_properties.py` records it in slow cases.  An
# orthogonal matrix of 1300 rows takes seconds; one of 520 rows is alike.
@pytest.mark.parametrize(
    "name", some(TABLE | DRAWN, *DRAWN, *(set(list(TABLE)[::2]) - {"two panels"}))
)
def test_weights_have_the_layers_of_the_formula(name):
    assert_formula(*(TABLE | DRAWN)[name], 1e-10, sampler="weights")


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("name", ["layer", "batch after, gain"])
def test_runs_without_states_have_the_formula(name, sampler):
    assert_formula(*TABLE[name], 1e-9, sampler=sampler)


#: An orthogonal matrix of 1300 rows takes seconds.
SINGLE = [
    name for name, (chain, _) in WIDE.items() if chain.convolution is None and name != "two panels"
]


#: Each time: float32 kernels of these compile for other tests, too.
EACH_TIME = [("conditional", "none, norm-activation"), ("weights", "batch, pre-activation")]


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        *EACH_TIME,
        *(
            slow(*case)
            for case in itertools.product(("conditional", "weights"), SINGLE)
            if case not in EACH_TIME
        ),
        slow("conditional", "two taps, skip"),
        slow("weights", "nine taps"),
    ],
)
def test_float32_rows_have_the_formula(name, sampler):
    """Numbers are rounded, and sums of them.  Rows of a norm over the batch record h, too."""
    records_h = name.startswith("batch,") and sampler == "conditional"
    assert_formula(*WIDE[name], 1e-4, sampler=sampler, dtype="float32", records_h=records_h)


@settings(max_examples=60)
@given(
    st.integers(1, 300), st.integers(2, 40), st.integers(1, 3),
    st.sampled_from(["batch", "batch-uncentred", "none"]), st.sampled_from([0.0, 1.0, -0.7]),
    st.sampled_from([1.0, 0.3, -2.5]), st.sampled_from([0.0, 1e-5, 0.5]),
    st.sampled_from(["float64", "float32"]), st.integers(0, 2**32),
)  # fmt: skip
def test_layers_of_any_size_are_what_the_formula_says(
    width, batch, inputs, norm, skip, gain, eps, dtype, seed
):  # fmt: skip
    """Of weights of a user's law."""
    chain = Chain(
        width, batch, "leaky_relu", norm=norm, skip=skip, gain=gain, eps=eps, weights=laplace
    )
    start = normal(inputs, width, batch, seed=seed)
    run = bnmc.simulate(
        chain, 3, initial=start, inputs=inputs, rng=0, dtype=dtype, observables="cross_gram"
    )
    expected = networks_of(run, start, 3).grams[0]
    # A row is known to the rounding of its size, which its normalization magnifies by size over
    # standard deviation: without eps that has no bound, but is below 1e4 for these many rows.
    for layers, tolerance in ((4, {"float64": 1e-10, "float32": 1e-2}[dtype]), (1, 1e-13)):
        size = np.abs(expected[:layers]).max(axis=(-1, -2), keepdims=True)
        error = np.abs(grams_of(run)[0, :layers] - expected[:layers])
        assert np.all(error <= tolerance * size)


# --- PyTorch


@pytest.mark.parametrize("kernel", [None, (3, 3), (2, 4), (1, 1)])
@pytest.mark.parametrize("norm", ["layer", "rms", "group(6)", "batch"])
@pytest.mark.parametrize("order", ORDERS)
def test_layers_are_those_of_torch(order, norm, kernel):
    torch = pytest.importorskip("torch")
    width, samples, (high, wide) = 12, 3, (5, 4) if kernel else (1, 1)
    chain = Chain(
        width, samples * high * wide, "relu", norm=norm, order=order, eps=1e-5, bias_variance=0.1,
        skip=1.0 * (order == "pre-activation"), gain=1.5,
        convolution=kernel and bnmc.Convolution((high, wide), kernel),
    )  # fmt: skip
    norms = {
        "layer": torch.nn.LayerNorm(width, eps=1e-5, elementwise_affine=False),
        "rms": torch.nn.RMSNorm(width, eps=1e-5, elementwise_affine=False),
        "group(6)": torch.nn.GroupNorm(6, width, eps=1e-5, affine=False),
        "batch": torch.nn.BatchNorm1d(width, eps=1e-5, affine=False),
    }
    norm = norms[norm].double()
    linear = torch.nn.Conv2d(
        width, width, kernel or 1, padding="same", padding_mode="circular", dtype=torch.float64
    )
    start = normal(width, chain.batch)
    run = bnmc.simulate(chain, 1, initial=start, sampler="weights", rng=7)

    def through_weights(a):
        images = a.T.reshape(width, samples, high, wide).transpose(0, 1)
        return linear(images).transpose(0, 1).reshape(width, -1).T

    h = torch.from_numpy(start.T.copy())  # samples x features
    with torch.no_grad():
        weights = 1.5 * bnmc.drawn_weights(run, 1)
        linear.weight.copy_(torch.from_numpy(weights.reshape(linear.weight.shape)))
        linear.bias.copy_(torch.from_numpy(bnmc.drawn_biases(run, 1)))
        if order == "activation-norm":
            a = norm(torch.relu(through_weights(norm(torch.relu(h)))))
        else:
            a = torch.relu(norm(chain.skip * h + through_weights(torch.relu(norm(h)))))
    np.testing.assert_allclose(run.gram[0, 1], gram_of(a.numpy().T), rtol=1e-12, atol=1e-13)


# --- the laws of the numbers


def test_biases_are_normal_and_of_their_variance():
    chain = Chain(30_000, 1, norm="none", bias_variance=0.25)
    assert not bnmc.drawn_biases(
        bnmc.simulate(Chain(2, 1, norm="none"), 1, sampler="weights"), 1
    ).any()
    b = biases_of_layer(Run(chain.repeat(1), "weights", 1, None, "float64", 5), 0, 1)
    for power, moment in ((1, 0.0), (2, 0.25), (4, 3 * 0.25**2)):
        spread = math.sqrt(math.prod(range(1, 4 * power, 2)) * 0.25 ** (2 * power) / len(b))
        assert abs((b**power).mean() - moment) < 6 * spread


def test_weights_of_a_convolution_have_their_variance():
    """1/(channels · taps); the mean square of d² k normals is off by 6 of its errors at most."""
    chain = Chain.conv(64, 1, "tanh", shape=(3, 3))
    w = bnmc.drawn_weights(bnmc.simulate(chain, 2, sampler="weights", rng=3), 2)
    assert w.shape == (64, 64, 3, 3)
    assert abs((w**2).mean() * 64 * 9 - 1.0) < 6 * math.sqrt(2 / w.size)
    taps = w.transpose(2, 3, 0, 1).reshape(9, -1)
    np.testing.assert_array_less(np.abs(np.corrcoef(taps) - np.eye(9)), 6 / 64)


def test_weights_are_orthogonal():
    run = bnmc.simulate(haar(520, 3), 1, rng=8, sampler="weights", chains=2)
    weights = bnmc.drawn_weights(run, 1, chain=1)
    np.testing.assert_allclose(weights @ weights.T, np.eye(520), atol=1e-12)
