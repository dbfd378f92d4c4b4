"""The samplers have one law: two-sample tests of ensembles of small networks, layer by layer.

A comparison is of 2000 independent chains on each side, by the distance of the empirical
distribution functions and its proven bound (`oracle.two_sample_threshold`).  If the laws are equal,
a test fails with probability at most 1e-6, all its comparisons together.  For 300 comparisons the
threshold is 0.101.  By the same bound a test misses a true distance of 0.162, that of a normal
variable shifted by 0.41 standard deviations, with probability at most 0.001, and a true distance of
0.2 with probability at most 1e-8.

The fault that sets the number is a variance of weights, or of a layer, that is 3 % off.  Without a
norm it adds up over 30 layers to 0.6 standard deviations of log Tr G and more at the widths here,
a distance above 0.2.  What else may be wrong, a norm, a centring, a normal that is missing, is
farther off in a single layer.  At the end, wrong laws are shown to be seen.
"""

import math
from dataclasses import replace
from itertools import product

import laws
import numpy as np
import pytest
from numpy_network import grams as plain_networks
from oracle import (
    FORMULAS,
    gram,
    ks_distance,
    normal_threshold,
    normalise,
    two_sample_threshold,
    user_function,
)
from scipy import stats
from slow_cases import some

import bnmc

# Narrow chains, and starts near a line, have dependent samples, which float32 runs report.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")

CHAINS = 2000


ACTIVATIONS = {
    name: name
    for name in ("linear", "relu", "tanh", "sigmoid", "sin", "selu", "celu", "gelu", "silu", "erf")
} | {"user": bnmc.Activation(user_function, kinks=(0.0,))}
NORMS = ("batch", "batch-uncentred", "none")
SAMPLERS = ("conditional", "weights")
SAMPLERS_OF = dict.fromkeys(("sigmoid", "sin", "selu", "celu", "gelu", "silu"), SAMPLERS[:1])
SAMPLERS_OF["erf"] = SAMPLERS[1:]
# With a skip connection the weights have a factor of their own.
GAINS = {0.0: 1.0, 1.0: 1.6}
SETTINGS = list(product(NORMS, GAINS))
# A norm takes the scale away in each layer, so nothing adds up over many.
LAYERS_OF = dict.fromkeys(NORMS, (1, 2, 5)) | {"none": (1, 2, 5, 30)}

# Widths and batches: two samples, d < n, d = n, d > n.  Each activation meets half of them.
SHAPES = [(3, 2), (3, 4), (5, 5), (12, 3), (4, 3), (2, 3)]
# Where all rows may die and leave nothing to normalise, that must be beyond all odds.
SAFE_SHAPE = (45, 3)
# Without a norm, what is wrong of a scale adds up against fluctuations that fall with the width.
WIDE_SHAPE = (30, 3)


def shape_of(activation, norm, skip):
    if (activation, norm, skip) == ("relu", "batch-uncentred", 0.0):
        return SAFE_SHAPE
    start = list(ACTIVATIONS).index(activation)
    return SHAPES[(start + SETTINGS.index((norm, skip))) % len(SHAPES)]


def grams(chain, sampler, seed, *, layers=(1, 2, 5, 30), **options):
    """Gram matrices at some layers of independent chains, (chains, layers, columns, columns)."""
    name = "cross_gram" if "inputs" in options else "gram"
    run = bnmc.simulate(
        chain, max(layers), chains=CHAINS, rng=seed, sampler=sampler, observables=name, threads=1,
        **options,
    )  # fmt: skip
    out = run[name][:, list(layers)]
    if name == "cross_gram":
        # Blocks side by side: (chains, layers, input, input, n, n) to one matrix.
        k, n = out.shape[3:5]
        out = out.swapaxes(3, 4).reshape(*out.shape[:2], k * n, k * n)
    return out


def star_of(chain):
    """The mean-field fixed point of the chain without skip connection, or I where not centred."""
    if chain.norm == "batch":
        plain = bnmc.Chain(chain.width, chain.batch, chain.activation)
        return bnmc.MeanField(plain).fixed_point().gram
    return np.eye(chain.batch)


def statistics(matrices, star, resolution):
    """What is compared, (..., statistics).

    The trace; the eigenvalues and two off-diagonal entries as parts of it; the distance to G*.

    What is left of a constant or a zero is rounding, and the samplers round differently, so
    nothing finer than the resolution counts, which is that of differences between samples.  In
    products with weights it is that of numbers, but a Gram matrix has their squares, and so the
    square root of its own.
    """
    n = matrices.shape[-1]
    trace = np.trace(matrices, axis1=-2, axis2=-1)[..., None]
    relative = matrices / np.where(trace > 0, trace, 1)[..., None]
    eigenvalues = np.linalg.eigvalsh(relative)
    smallest = 100 * resolution**2
    of_law = [
        np.log(np.maximum(trace, 1e-300)),
        np.log(np.maximum(eigenvalues, smallest)),
        relative[..., [0, n - 2], [1, n - 1]],
    ]
    if star is not None:
        of_law.append(np.linalg.norm(matrices - star, axis=(-2, -1))[..., None])
    return np.round(np.concatenate(of_law, axis=-1) / resolution)


def distances(a, b, star=None, resolution=1e-6):
    """Distance of the laws of every statistic at every layer, (layers, statistics)."""
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    of_a, of_b = statistics(a, star, resolution), statistics(b, star, resolution)
    flat = of_a.reshape(len(a), -1).T, of_b.reshape(len(b), -1).T
    return np.reshape([ks_distance(x, y) for x, y in zip(*flat, strict=True)], of_a.shape[1:])


def assert_one_law(named_distances):
    """No distance of any of the comparisons is one that equal laws would have."""
    comparisons = sum(d.size for d in named_distances.values())
    threshold = two_sample_threshold(CHAINS, comparisons)
    worst = {name: d.max() for name, d in named_distances.items()}
    assert {name: d for name, d in worst.items() if d > threshold} == {}, threshold


# --- conditional and weights


def assert_samplers_agree(cases, first_seed, step=2, resolution=1e-6):
    """Compare pairs of ensembles; a case is a chain and the options of its runs."""
    compared = {}
    for number, (chain, options) in enumerate(cases):
        seeds = enumerate(SAMPLERS, start=first_seed + step * number)
        pair = [grams(chain, sampler, seed, **options) for seed, sampler in seeds]
        star = None if "inputs" in options else star_of(chain)
        compared[number, chain] = distances(*pair, star, resolution)
    assert_one_law(compared)


# Every path of the kernels; an activation makes none of its own but the linear one, whose Wishart
# factors have tests below.
@pytest.mark.untraced
@pytest.mark.parametrize("activation", some(["linear", "tanh"], "tanh"))
def test_samplers_agree_for_every_norm_and_skip(activation):
    shapes = [(norm, skip, shape_of(activation, norm, skip)) for norm, skip in SETTINGS]
    shapes += [("none", skip, WIDE_SHAPE) for skip in (0.0, 1.0)]
    cases = [
        (bnmc.Chain(*shape, activation, norm=norm, skip=skip, gain=GAINS[skip]),
         {"layers": LAYERS_OF[norm]})
        for norm, skip, shape in shapes
    ]  # fmt: skip
    assert_samplers_agree(cases, 0, step=10)


@pytest.mark.parametrize("activation", some(ACTIVATIONS, *[*ACTIVATIONS][::2]))
def test_every_activation_agrees_with_networks_in_numpy(activation):
    """Under two of the norms and skips, with plain networks of the formula.

    Both samplers where both are compiled anyway: what applies an activation is one function.
    """
    formula = FORMULAS.get(activation, user_function)
    place = list(ACTIVATIONS).index(activation)
    compared = {}
    for k in (place, place + 3):
        norm, skip = SETTINGS[k % len(SETTINGS)]
        width, batch = shape_of(activation, norm, skip)
        sigma, gain = ACTIVATIONS[activation], GAINS[skip]
        chain = bnmc.Chain(width, batch, sigma, norm=norm, skip=skip, gain=gain)
        generator = np.random.default_rng([160, k])
        layers = (1, 2, 5)
        reference = plain_networks(chain, 5, CHAINS, generator, function=formula)[:, layers]
        for seed, sampler in enumerate(SAMPLERS_OF.get(activation, SAMPLERS), start=161 + 2 * k):
            ours = grams(chain, sampler, seed, layers=layers)
            compared[norm, skip, width, batch, sampler] = distances(ours, reference, star_of(chain))
    assert_one_law(compared)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("norm", NORMS)
def test_chains_of_an_ensemble_are_independent(norm, sampler):
    """No two are equal, which the law of one chain does not show, and neighbours are unrelated."""
    chain = bnmc.Chain(6, 3, "tanh", norm=norm)
    entries = grams(chain, sampler, 150, layers=(1, 2, 5))[..., 0, 1].T
    for values in entries:
        assert len(np.unique(values)) == CHAINS
        for step in (1, 2, 64):
            # Ranks, whose correlation has variance 1 / (CHAINS - 1) for independent chains.
            related = stats.spearmanr(values[:-step], values[step:]).statistic
            allowed = normal_threshold(3 * len(entries)) / math.sqrt(CHAINS - step - 1)
            assert abs(related) < allowed


@pytest.mark.parametrize("kind", some(laws.SINGULAR, "copies", "nearly equal"))
def test_wishart_factors_agree_from_singular_starts(kind):
    """Ranks stay ranks, and copies stay copies to rounding; `laws.CASES` has other samplers."""
    chain, start = bnmc.Chain(8, 4, "linear", norm="none"), laws.SINGULAR[kind][:8]
    options = {"initial": start, "layers": (1, 2, 5)}
    assert_samplers_agree([(chain, options)], 50)
    matrices = grams(chain, "conditional", 52, **options)
    apart = np.abs(matrices[..., 2, :] - matrices[..., 0, :]).max(axis=-1)
    scale = np.abs(matrices).max(axis=(-2, -1))
    assert kind != "copies" or np.all(apart <= 1e-12 * scale)


@pytest.mark.parametrize("norm", some(NORMS, "batch", "batch-uncentred"))
def test_samplers_and_precisions_agree(norm):
    """float32 rows have the law of float64 rows."""
    compared = {}
    for width, batch in ((3, 4), (12, 3)):
        chain = bnmc.Chain(width, batch, "leaky_relu", norm=norm)
        layers = LAYERS_OF[norm]
        reference = grams(chain, "weights", 90, layers=layers)
        for seed, sampler in enumerate(SAMPLERS, start=91):
            single = grams(chain, sampler, seed, dtype="float32", layers=layers)
            compared[sampler, width] = distances(single, reference, star_of(chain), resolution=3e-4)
    assert_one_law(compared)


# --- both against networks in plain NumPy


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_named_and_first_layer_starts_agree_with_networks_in_numpy(sampler):
    """Layer 0 is drawn by the kernels too; a first layer has another number of features."""
    chain = bnmc.Chain(6, 3, "relu")
    generator = np.random.default_rng(130)
    x = np.random.default_rng(131).standard_normal((4, 3))
    first = generator.standard_normal((CHAINS, 6, 4)) / 2 @ x
    pairs = {}
    for name, initial, start in (
        ("gaussian", "gaussian", None),
        ("first layer", bnmc.FirstLayer(x), first),
    ):
        ours = grams(chain, sampler, 132, layers=(0, 1), initial=initial)
        reference = plain_networks(chain, 1, CHAINS, generator, initial=start)
        pairs[name] = distances(ours, reference, star_of(chain))
    assert_one_law(pairs)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("norm", NORMS)
def test_two_inputs_that_share_a_sample_agree_with_networks_in_numpy(sampler, norm):
    """Its companions differ, so centring makes two of it, and no other norm does."""
    generator = np.random.default_rng(140)
    x = generator.standard_normal((2, 4, 3))
    x[1, :, 0] = x[0, :, 0]
    w = generator.standard_normal((CHAINS, 6, 4)) / 2
    h = normalise(np.concatenate([w @ x[0], w @ x[1]], axis=-1), norm, 3)
    chain = bnmc.Chain(6, 3, "tanh", norm=norm)
    start = bnmc.FirstLayer(x)
    ours = grams(chain, sampler, 141, layers=(0,), inputs=2, initial=start)
    assert_one_law({norm: distances(ours, gram(np.tanh(h))[:, None])})


# --- passes over the rows, orthogonal weights, and convolutions: rows against networks in NumPy

#: Of each kind of layer; `test_formula.py` has the rows of the other ones.
AT_FIRST = [
    "layer", "rms after, skip, bias", "uncentred after, d < n", "batch, residual", "inputs, bias",
    "haar, width = rank", "haar, skip", "one by two", "nearly equal, batch-uncentred",
]  # fmt: skip


def law_of_networks(name, networks):
    chain, start = laws.CASES[name]
    inputs = laws.inputs_of(start) or 1
    columns = np.concatenate(start, axis=1) if inputs > 1 else start
    rng = np.random.default_rng(17)
    return plain_networks(chain, 3, networks, rng, columns, inputs=inputs)[:, [1, 3]]


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "networks"),
    [pytest.param(name, 5_000, id=name) for name in AT_FIRST]
    + [pytest.param(name, 20_000, id=f"{name}, more", marks=pytest.mark.slow)
       for name in laws.CASES],
)  # fmt: skip
def test_rows_have_the_law_of_networks_in_numpy(name, networks):
    """Normal variables are told apart if their means differ by 0.15 standard deviations.

    In the slow tests 0.08: the threshold of the distance is 0.060, or 0.030, for 24 comparisons.
    """
    chain, start = laws.CASES[name]
    rows = laws.law_of(chain, "conditional", 9, networks, [1, 3], start, parts=5)
    laws.assert_one_law(rows, law_of_networks(name, networks))


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("sampler", "networks"),
    # Each network by weights takes a QR factorization in Python.
    [("weights", 1_000), ("conditional", 5_000)],
)
def test_orthogonal_weights_have_their_law_in_float32(sampler, networks):
    chain, start = laws.CASES["haar, width just above rank"]
    single = laws.law_of(chain, sampler, 10, networks, [1, 3], start, dtype="float32")
    expected = law_of_networks("haar, width just above rank", networks)
    laws.assert_one_law(single, expected, digits=4)


# --- tests of the tests


#: A case of `laws`, and changes of its chain; None moves the pixels of the start.
CHANGED = [
    ("layer", {"norm": "rms"}), ("layer", {"bias_variance": 0.1}),
    ("layer", {"order": "activation-norm"}), ("haar, relu", {"weights": "gaussian"}),
    ("one by two", {"convolution": bnmc.Convolution((1, 4), (1, 1))}),
    ("one by two", {"convolution": bnmc.Convolution((1, 4), (1, 3))}), ("one by two", None),
]  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize(("name", "change"), CHANGED)
def test_another_chain_is_seen(name, change):
    chain, start = laws.CASES[name]
    other = start if change else np.roll(start.reshape(4, 2, 1, 4), 1, axis=-1).reshape(4, 8)
    pair = [
        laws.law_of(each, "conditional", seed, 5_000, [1, 3], rows)
        for seed, each, rows in ((1, chain, start), (2, replace(chain, **change or {}), other))
    ]
    with pytest.raises(AssertionError):
        laws.assert_one_law(*pair)


def seen(a, b, star=None):
    """Whether laws are told apart by the threshold of a test of 300 comparisons."""
    return distances(a, b, star).max(axis=1) > two_sample_threshold(CHAINS, 300)


#: Two chains, and whether all layers tell their laws apart, or the last one.
WRONG = {
    **{
        # Without a norm a variance adds up, by layer 30 to what `WIDE_SHAPE` shows.
        f"a variance that is 3 % off, {activation}, {skip}": (
            *(
                bnmc.Chain(*WIDE_SHAPE, activation, norm="none", skip=skip, gain=GAINS[skip] * by)
                for by in (1.0, math.sqrt(1.03))
            ),
            False,
        )
        for activation, skip in (("linear", 0.0), ("linear", 1.0), ("tanh", 0.0))
    },
    **{
        f"a missing centring, {activation}": (
            bnmc.Chain(45, 3, activation), bnmc.Chain(45, 3, activation, norm="batch-uncentred"),
            True,
        )
        for activation in ("relu", "tanh")
    },
    "an epsilon": (bnmc.Chain(5, 4, "tanh"), bnmc.Chain(5, 4, "tanh", eps=0.01), True),
    "another width": (bnmc.Chain(5, 3, "tanh"), bnmc.Chain(6, 3, "tanh"), True),
}  # fmt: skip
AT_ONCE = [
    "a variance that is 3 % off, linear, 0.0", "a missing centring, relu", "an epsilon",
    "another width",
]  # fmt: skip


@pytest.mark.parametrize("what", some(WRONG, *AT_ONCE))
def test_a_wrong_law_is_seen(what):
    right, wrong, everywhere = WRONG[what]
    layers = seen(grams(right, "conditional", 1), grams(wrong, "weights", 2))
    assert layers.all() if everywhere else layers[-1]


def test_a_jitter_is_seen():
    """Of 1e-8, on the covariance that two copies of a sample have."""
    a = np.random.default_rng(3).standard_normal((CHAINS, 40, 3))
    a[..., 2] = a[..., 1]
    b = a + 1e-4 * np.random.default_rng(4).standard_normal(a.shape)
    assert seen(gram(a)[:, None], gram(b)[:, None]).all()
