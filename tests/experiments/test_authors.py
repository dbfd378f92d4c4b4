"""The experiments beside what the code of the papers' authors gives at the same settings.

`reference/authors.json` has means and standard errors that their public code gave, run at its own
settings with other seeds and counts (`docs/papers_code.rst` says how, and what is wrong with it).
Each quantity is measured here again, by an experiment or, where the definition or the start of
theirs is another than the experiment's, by `bnmc.simulate` with theirs.  All comparisons together
fail with probability at most 1e-6 if the two have one law: by Bonferroni, with Student's
quantiles at the smaller count of networks.  Seeds are fixed.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import special

import bnmc
from bnmc.experiments import bridging, orthogonalizes, rank_collapse
from bnmc.experiments.bridging.common import bulk
from bnmc.experiments.pictures import curve

FALSE_ALARM = 1e-6

ROOT = Path(__file__).parents[2]
REFERENCE = json.loads((Path(__file__).parents[1] / "reference/authors.json").read_text("utf-8"))
COMPARISONS = sum(len(entry["quantities"]) for entry in REFERENCE["figures"])


def mean(samples):
    """Mean, standard error and count of independent networks, the first axis."""
    samples = np.asarray(samples, dtype=float)
    return samples.mean(), samples.std(ddof=1) / math.sqrt(len(samples)), len(samples)


def banded(interval, count):
    """The same of (mean, low, high) at level 0.95."""
    value, low, high = interval
    return value, (high - low) / 2 / special.stdtrit(count - 1, 0.975), count


def times(measured, factor):
    value, stderr, count = measured
    return value * factor, stderr * abs(factor), count


# ---------------------------------------------------------------- orthogonalizes


def orthogonalizes_1(chains):
    data = orthogonalizes.fig_1(width=32, layers=49, chains=chains, rng=1).data
    curves = {
        "batch norm, absolute cosine": curve(data, "cosine")[0],
        "vanilla, log sin²": curve(data, "log_squared_sine")[1],
    }
    return {
        f"{name}, layer {layer}": banded(bands[layer - 1], chains)
        for name, bands in curves.items()
        for layer in (10, 49)
    }


def orthogonalizes_2a(chains):
    data = orthogonalizes.fig_2a(widths=(32, 512), layers=50, chains=chains, rng=2).data
    logs = np.log(curve(data, "gap"))
    return {
        f"log V, width {width}, layer {layer}": banded(logs[row, layer - 1], chains)
        for row, width in enumerate((32, 512))
        for layer in (5, 10, 20, 50)
    }


def orthogonalizes_2b(chains):
    """Theirs is divided by the number of networks, 20, before the mean over these."""
    widths = (16, 32, 64, 128, 256, 512)
    data = orthogonalizes.fig_2b(widths=widths, layers=500, chains=chains, rng=3).data
    gaps = curve(data, "gap_of_all_layers")
    return {
        f"V over 20, width {width}": times(banded(gap, chains), 1 / 20)
        for width, gap in zip(widths, gaps, strict=True)
    }


def orthogonalizes_6(chains):
    """Theirs is of x, normalized and before the activation: given G its rows are those of N(0, G).

    Rows have length 1 there, which relu alone does not see.
    """
    generator = np.random.default_rng(4)
    measured = {}
    for width in (32, 64):
        chain = bnmc.Chain(width, 4, "relu", norm="batch-uncentred")
        run = bnmc.simulate(
            chain, 200, burn_in=104, every=6, chains=chains, rng=generator, observables="gram"
        )
        x = rows(run["gram"], width, generator)
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        M = np.swapaxes(x, -1, -2) @ x / width
        deviation = np.linalg.norm(M - M.mean(axis=(0, 1)), axis=(-2, -1))
        measured[f"L, relu, width {width}"] = mean(deviation.mean(axis=1))
    return measured


def rows(gram, width, generator):
    """Rows N(0, G): (..., width, n)."""
    factor = np.linalg.cholesky(gram)
    normals = generator.standard_normal((*gram.shape[:-2], width, gram.shape[-1]))
    return normals @ np.swapaxes(factor, -1, -2)


# ---------------------------------------------------------------- rank collapse


def rank_collapse_2(chains, depth):
    """Their "relu" is tanh."""
    laws = ("gaussian", "uniform")
    data = rank_collapse.fig_2(
        depth=depth, chains=chains, activations=("linear", "tanh"), weights=laws, rng=5
    ).data

    def at(quantity, name, network, law, layer):
        place = data.sel(activation=name, network=network, weights=law, layer=layer)
        return banded(curve(place, quantity), chains)

    measured = {}
    for law in laws:
        for layer in (16, 512):
            for name in ("linear", "tanh"):
                r = at("rank_bound", name, "batch norm", law, layer)
                measured[f"r, {name}, {law}, layer {layer}"] = r
            ranks = at("numerical_rank", "linear", "batch norm", law, layer)
            measured[f"rank at 1e-12, linear, {law}, layer {layer}"] = ranks
        r = at("rank_bound", "linear", "vanilla", law, 16)
        measured[f"vanilla, r, linear, {law}, layer 16"] = r
    return measured


def rank_collapse_3a(chains, rtol):
    data = rank_collapse.fig_3a(
        gammas=(1.0,), widths=((8, 32),), chains=(chains,), rtols=(rtol,), depths=(200_000,),
        rng=6,
    ).data  # fmt: skip
    return {
        f"{text}, gamma 1, width {width}": banded(curve(data, name)[0, k], chains)
        for text, name in (("r", "rank_bound"), ("soft rank", "soft_rank"))
        for k, width in enumerate((8, 32))
    }


def rank_collapse_3b(chains):
    data = rank_collapse.fig_3b(width=50, depth=100, chains=chains, rng=7).data
    logs = np.log(curve(data, "eigenvalue"))
    return {
        f"log eigenvalue {mode}, layer {layer}": banded(logs[layer, mode - 1], chains)
        for layer in (5, 10, 30, 100)
        for mode in (1, 2, 5, 10)
    }


# ---------------------------------------------------------------- bridging


def bridging_1a(chains):
    """Vanilla: theirs starts from Gaussian samples, one layer after orthogonal ones."""
    data = bridging.fig_1a(depth=71, chains=2, vanilla_chains=chains, points=14, rng=8).data
    vanilla = data.sel(norm="none", layer=[11, 41, 71])
    return {
        f"vanilla, square of the error, iteration {layer - 2}": banded(square, chains)
        for layer, square in zip((11, 41, 71), curve(vanilla, "rms") ** 2, strict=True)
    }


def nearly_rank_one(chains, width, batch, generator):
    """Their start, one layer on: the same row in every neuron but for noise of 1e-6, times weights.

    Given the noise's Gram matrix the rows of the product are independent: r g + 1e-6 z.
    """
    row = generator.standard_normal((chains, 1, batch))
    factor = generator.standard_normal((chains, width, 1))
    return row * factor + 1e-6 * generator.standard_normal((chains, width, batch))


def bridging_relu(chains):
    """Notebook cells 1 and 3: relu, from nearly equal rows; G* in closed form.

    Weights are drawn: a Gram matrix alone does not resolve the start, and is later to leave it.  At
    width 1000, where that takes long, layers are compared that have forgotten it.
    """
    generator = np.random.default_rng(9)
    measured = {}
    for batch, width in ((5, 1000), (10, 100), (10, 500)):
        chain = bnmc.Chain(width, batch, "relu")
        wide = width == 1000
        start = "gaussian" if wide else nearly_rank_one(chains, width, batch, generator)
        distance = bnmc.simulate(
            chain, 69, chains=chains, initial=start, rng=generator,
            sampler="conditional" if wide else "weights",
            observables=bnmc.Distance(bnmc.MeanField(chain).fixed_point().gram),
        )["distance"]  # fmt: skip
        if not wide:
            for iteration in (0, 9, 30):
                label = f"n = {batch}, width {width}, iteration {iteration}"
                measured[f"relu, error, {label}"] = mean(distance[:, iteration])
        late = distance[:, 48:70:3].mean(axis=1)
        measured[f"relu, error, n = {batch}, width {width}, iterations 48 to 69"] = mean(late)
    return measured


def bridging_two(chains):
    """Notebook cell 6: two inputs through one network, spectral norm of the difference.

    One of theirs is nearly of rank one, which these layers have forgotten.
    """
    generator = np.random.default_rng(10)
    measured = {}
    for width in (100, 1000):
        chain = bnmc.Chain(width, 10, "relu")
        start = generator.standard_normal((2, width, 10))
        run = bnmc.simulate(
            chain, 69, chains=chains, initial=start, inputs=2, rng=generator, burn_in=48, every=3,
            observables="gram",
        )  # fmt: skip
        difference = run["gram"][:, :8, 0] - run["gram"][:, :8, 1]
        late = np.linalg.norm(difference, ord=2, axis=(-2, -1)).mean(axis=1)
        measured[f"two inputs, relu, width {width}, iterations 48 to 69"] = mean(late)
    return measured


def bridging_width(chains):
    """Notebook cell 8: without centring, of W times activations, in layers that forgot the start.

    As printed: tanh is compared with the second moment of sin, and the error of sin divided by 51.
    """
    generator = np.random.default_rng(11)
    level = second_moment(np.sin, 10) * np.eye(10)
    measured = {}
    for name, divisor in (("tanh", 1), ("sin", 51)):
        for width in (50, 400, 800):
            chain = bnmc.Chain(width, 10, name, norm="batch-uncentred")
            run = bnmc.simulate(
                chain, 99, chains=chains, rng=generator, burn_in=99, observables="gram"
            )
            h = rows(run["gram"][:, -1], width, generator)
            G = np.swapaxes(h, -1, -2) @ h / width
            error = np.linalg.norm(G - level, ord=2, axis=(-2, -1)) / divisor
            measured[f"{name}, error as printed, width {width}"] = mean(error)
    return measured


def second_moment(function, batch):
    """E σ(√n u)² for u uniform on the sphere of n dimensions."""
    nodes, weights = special.roots_jacobi(200, (batch - 3) / 2, (batch - 3) / 2)
    return float(weights @ np.square(function(math.sqrt(batch) * nodes)) / weights.sum())


#: What `torch.nn.init.calculate_gain` gives.
GAINS = {"relu": math.sqrt(2), "tanh": 5 / 3, "selu": 3 / 4}


def mlp(activation, width, batch, degeneracy, layer, chains, generator):
    """Gram matrices of their MLP at one of its layers, over the gain's square, and the fixed point.

    Its G is of h, the products of weights and activations; its first batch norm has no activation.
    """
    chain = bnmc.Chain(width, batch, activation)
    sizes = np.ones(batch)
    sizes[0] = degeneracy
    basis = np.linalg.qr(generator.standard_normal((chains, batch, batch)))[0]
    basis *= generator.choice([-1.0, 1.0], size=(chains, 1, batch))
    first = generator.standard_normal((chains, width, batch)) * sizes @ np.swapaxes(basis, -1, -2)
    first -= first.mean(axis=-1, keepdims=True)
    first /= np.sqrt(np.square(first).mean(axis=-1, keepdims=True))
    gram = np.swapaxes(first, -1, -2) @ first / width
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :] @ np.swapaxes(vectors, -1, -2)
    second = generator.standard_normal((chains, width, batch)) @ root
    run = bnmc.simulate(
        chain, layer - 3, initial=second, rng=generator, burn_in=layer - 3, observables="gram"
    )
    h = rows(run["gram"][:, -1], width, generator)
    return np.swapaxes(h, -1, -2) @ h / width, bnmc.MeanField(chain).fixed_point()


def bridging_poster(chains):
    generator = np.random.default_rng(12)
    measured = {}
    sizes = [(50, 10), (200, 10), (1000, 10), (1000, 20)]
    for activation in GAINS:
        for width, batch in sizes:
            G, star = mlp(activation, width, batch, 20.0, 20, chains, generator)
            error = np.linalg.norm(G - star.gram, axis=(-2, -1))
            measured[f"{activation}, error of h, n = {batch}, width {width}"] = mean(error)
    return measured


def bridging_spectrum(chains):
    generator = np.random.default_rng(13)
    measured = {}
    for activation in ("tanh", "relu"):
        G, star = mlp(activation, 1000, 20, 1.0, 19, chains, generator)
        measured[f"{activation}, variance of the bulk of h over n/d"] = spread(G, star, 20 / 1000)
    return measured


def spread(G, star, ratio):
    eigenvalues = np.linalg.eigvalsh(bulk(G) / (star.b * (1.0 - star.c)))
    return mean(np.square(eigenvalues - 1.0).mean(axis=1) / ratio)


# ---------------------------------------------------------------- the comparison

#: Every figure, and how many networks (and layers) take part.
MEASURED = {
    "orthogonalizes-1": (orthogonalizes_1, (2000,)),
    "orthogonalizes-2a": (orthogonalizes_2a, (400,)),
    "orthogonalizes-2b": (orthogonalizes_2b, (48,)),
    "orthogonalizes-6": (orthogonalizes_6, (64,)),
    "rank-collapse-2": (rank_collapse_2, (24, 512)),
    "rank-collapse-3a": (rank_collapse_3a, (32, 0.01)),
    "rank-collapse-3b": (rank_collapse_3b, (64,)),
    "bridging-1a": (bridging_1a, (400,)),
    "bridging-1a, notebook": (bridging_relu, (24,)),
    "bridging-two-inputs": (bridging_two, (48,)),
    "bridging-1b, notebook": (bridging_width, (48,)),
    "bridging-poster": (bridging_poster, (48,)),
    "bridging-2": (bridging_spectrum, (48,)),
}  # fmt: skip


#: These take seconds each; other tests compare the same experiments with theory and NumPy.
LATER = (
    "orthogonalizes-2a", "rank-collapse-2", "rank-collapse-3a", "rank-collapse-3b",
    "bridging-1a, notebook", "bridging-poster", "bridging-two-inputs",
)  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(
            entry, id=entry["name"], marks=[pytest.mark.slow] if entry["name"] in LATER else []
        )
        for entry in REFERENCE["figures"]
    ],
)
def test_agrees_with_the_authors_code(figure):
    measure, sizes = MEASURED[figure["name"]]
    ours = measure(*sizes)
    assert set(ours) == set(figure["quantities"])
    for name, theirs in figure["quantities"].items():
        value, stderr, count = ours[name]
        allowed = special.stdtrit(
            min(count, theirs["networks"]) - 1, 1 - FALSE_ALARM / COMPARISONS / 2
        )
        spread = math.hypot(stderr, theirs["stderr"])
        assert spread > 0.0
        assert abs(value - theirs["value"]) <= allowed * spread, (name, value, stderr, theirs)


def test_the_published_relu_fixed_point_is_ours():
    """The matrix that a notebook prints, of relu and 5 samples."""
    star = bnmc.MeanField(bnmc.Chain(1000, 5, "relu")).fixed_point().gram
    printed = np.full((5, 5), REFERENCE["relu_fixed_point"][1])
    np.fill_diagonal(printed, REFERENCE["relu_fixed_point"][0])
    np.testing.assert_allclose(star, printed, rtol=0, atol=5e-9)


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the documentation is not here")
def test_the_page_has_these_numbers():
    page = (ROOT / "docs/papers_code.rst").read_text("utf-8")
    shown = dict(re.findall(r'^   ("[^"]+", "[^"]+"), ([^,]+), [^,]+, [^,]+$', page, re.MULTILINE))
    assert len(shown) == COMPARISONS
    for figure in REFERENCE["figures"]:
        for name, theirs in figure["quantities"].items():
            value, stderr = shown[f'"{figure["name"]}", "{name}"'].split(" ± ")
            assert float(value) == pytest.approx(theirs["value"], abs=0.06 * theirs["stderr"])
            assert float(stderr) == pytest.approx(theirs["stderr"], rel=0.06)
    for entry in REFERENCE["repositories"].values():
        assert entry["repository"] in page
        assert entry["commit"][:7] in page
