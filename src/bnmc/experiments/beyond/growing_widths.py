"""Networks of growing width, forward and back, up to matrices that no memory holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.beyond.implicit_blocks import Block, Standardized, layer_norm
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.implicit import GaussianMatrix
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, logarithmic

#: Neurons of a head of attention.
_HEAD = 64

#: The network of each quantity; the first quantity has a known limit.
_NETWORKS = {
    "MLP, Gram matrix": "MLP", "MLP, gradients": "MLP",
    "transformer, attention": "transformer", "transformer, gradients": "transformer",
}  # fmt: skip


class Sizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, multiples of 64
    layers: hidden layers of the MLP
    blocks: blocks of the transformer
    tokens: tokens of the transformer
    batch: samples of the MLP
    """

    widths: Integers = (64, 256, 1024, 4096, 16_384)
    chains: Several = 16
    layers: int = 4
    blocks: int = 2
    tokens: int = 6
    batch: Annotated[int, {"low": 3}] = 12


@kit.figure(
    "wider-than-memory", Sizes(), widths=(64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_000_000)
)
def wider_than_memory(run: Run, sizes: Sizes) -> Experiment:
    r"""An MLP with batch norm and a transformer approach their limits as 1/√width.

    Their matrices are `bnmc.implicit.GaussianMatrix` objects: no weight exists, and a pass forward
    and back has exactly the law of drawn weights.  The MLP has 4 hidden layers with batch norm and
    ReLU.  The transformer has 2 blocks with causal attention in heads of 64 neurons, GELU, layer
    norm before each, and PyTorch's variance 1/(3 columns) of the weights, without biases.  The loss
    is a random linear function of the last layer.

    The picture shows the root mean square, over 16 networks of each width, of
    :math:`\|Q_d - Q\|_F / \|Q\|_F` against the width d from 64 to 16 384 (``full``: to a million).
    Q_d is one of four matrices: the Gram matrix of the last layer of the MLP, the attention of the
    last block as a mean over heads, and in both networks the inner products, between samples or
    tokens, of the gradients with respect to the first state.  For the Gram matrix, Q is the mean
    field; for the others, the mean over the networks of the largest width.  Beside it are the bytes
    of the transformer: those of its weights in float32, and those that its matrices keep.

    Expected: slopes of −1/2, as each matrix is a mean over d neurons or d/64 heads.  The means of
    narrow networks also differ from Q, by order 1/d.

    Returns
    -------
    Experiment
        Variables by ``quantity`` and ``width``.
    """
    for width in sizes.widths:
        if width % _HEAD:
            raise ArgumentError("widths", width, f"multiples of {_HEAD}, the neurons of a head")
    count, widest = sizes.chains, max(sizes.widths)
    inputs = np.eye(sizes.batch) + 0.5

    def draws(kind: str, width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return by name the matrices of each network, and its bytes."""
        networks = []
        for network in range(count):
            progress(network, count)
            if kind == "MLP":
                networks.append(_perceptron(width, sizes.layers, inputs, run.generator))
            else:
                networks.append(_transformer(width, sizes.blocks, sizes.tokens, run.generator))
        return {name: np.stack([each[name] for each in networks]) for name in networks[0]}

    results = kit.Results(
        run, quantity=kit.Axis(_NETWORKS, "quantity", ""), width=sizes.widths
    )  # fmt: skip
    points = [(kind, width) for kind in ("MLP", "transformer") for width in sizes.widths]
    parts = run.parts(draws, points, [float(width) for _, width in points])
    gram = inputs.T @ inputs / len(inputs)
    chain = Chain(widest, sizes.batch, "relu")
    limits = {"MLP, Gram matrix": MeanField(chain).trajectory(gram, sizes.layers).gram[-1]}
    values = {}
    for name, width in results.points("quantity", "width"):
        samples, widest_samples = (parts[_NETWORKS[name], d][name] for d in (width, widest))
        limit = limits.get(name, widest_samples.mean(axis=0))
        distances = np.linalg.norm(samples - limit, axis=(1, 2)) / np.linalg.norm(limit)
        if name not in limits and width == widest:
            # Networks are nearer to their own mean than to the expectation.
            distances *= math.sqrt(count / (count - 1))
        values[name, width] = rms(distances)
    distance = results.add(
        "distance", ("quantity", "width"), values, "relative distance from infinite width"
    )
    slopes = {
        (name,): slope(sizes.widths, [values[name, width] for width in sizes.widths])
        for name in _NETWORKS
    }
    fitted = results.add("slope", ("quantity",), slopes, "slope of its logarithm")
    sizes_of = {(width,): parts["transformer", width]["bytes"][0] for width in sizes.widths}
    weights = results.add("weights", ("width",), kit.entry(sizes_of, 0), "bytes of weights", "B")
    memory = results.add("memory", ("width",), kit.entry(sizes_of, 1), "bytes that are kept", "B")
    findings = [
        f"{name}: slope {interval(estimate)}, theory -0.5; the distance is "
        f"{interval(values[name, widest])} at width {widest}."
        for (name,), estimate in slopes.items()
    ]
    findings.append(
        f"At width {sizes.widths[-1]} the weights of the transformer would take "
        f"{weights.values[-1] / 1e9:.3g} GB in float32; it keeps {memory.values[-1] / 1e9:.3g} GB."
    )
    columns = {f"d = {d}": distance.at(width=k).means() for k, d in enumerate(sizes.widths)}
    return results.experiment(
        "Networks of growing width, distance from infinite width",
        kit.table_of({**columns, "slope": fitted}), findings, _draw, chains=count,
        layers=sizes.layers, blocks=sizes.blocks, tokens=sizes.tokens, batch=sizes.batch,
    )  # fmt: skip


def _perceptron(
    width: int, depth: int, x: Float64Array, rng: np.random.Generator
) -> dict[str, Float64Array]:
    """Return the matrices of an MLP with batch norm, from inputs (features, samples)."""
    a, layers = x, []
    for _ in range(depth):
        matrix = GaussianMatrix(width, len(a), rng=rng)
        layers.append((matrix, Standardized(matrix @ a, 1)))
        a = np.maximum(layers[-1][1].values, 0.0)
    g = delta = _random_loss(a.shape, rng)
    for matrix, norm in reversed(layers):
        delta = norm.backward(g * (norm.values > 0.0))
        g = matrix.T @ delta
    matrices = [matrix for matrix, _ in layers]
    return {
        "MLP, Gram matrix": a.T @ a / width, "MLP, gradients": delta.T @ delta,
        "bytes": _bytes_of(matrices),
    }  # fmt: skip


def _transformer(
    width: int, blocks: int, tokens: int, rng: np.random.Generator
) -> dict[str, Float64Array]:
    """Return the matrices of a transformer, from different tokens at their positions."""
    layers = [
        Block(width, width // _HEAD, lambda columns: (3 * columns) ** -0.5, 1.0, rng)
        for _ in range(blocks)
    ]
    x = math.sqrt(2.0) * rng.standard_normal((width, tokens))
    for block in layers:
        x = block.forward(x)
    g = layer_norm(x).backward(_random_loss(x.shape, rng))
    for block in reversed(layers):
        g = block.backward(g)
    return {
        "transformer, attention": layers[-1].attention.mean(axis=0),
        "transformer, gradients": g.T @ g,
        "bytes": _bytes_of(matrix for block in layers for matrix in block.matrices),
    }


def _random_loss(shape: tuple[int, ...], rng: np.random.Generator) -> Float64Array:
    """Return the gradient of Σ ± wᵀ x / √width over columns x of alternating signs, w normal."""
    width, count = shape
    signs = 1.0 - 2.0 * (np.arange(count) % 2)
    return rng.standard_normal((width, 1)) * signs / math.sqrt(width)


def _bytes_of(matrices: Iterable[GaussianMatrix]) -> Float64Array:
    """Return the bytes of the weights in float32, and of all that is kept."""
    pairs = [(4.0 * math.prod(matrix.shape), float(matrix.nbytes)) for matrix in matrices]
    return np.sum(pairs, axis=0)


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.6, height=4.4)[0]
    widths = data["width"].values
    for row, name in enumerate(data["quantity"].values):
        label = f"{name}: slope {pictures.signed(data['slope'][row], 3)}"
        values = pictures.curve(data, "distance")[row]
        pictures.draw_band(left, widths, values, COLOURS[row], label, marker="o")
    guide = 0.7 * float(data["distance"].min()) * np.sqrt(max(widths) / widths)
    left.plot(widths, guide, "k:", linewidth=0.8, label="slope $-1/2$")
    right.plot(widths, data["weights"], "o-", color="black", label="weights in float32")
    right.plot(widths, data["memory"], "o-", color=COLOURS[0], label="kept, forward and back")
    for ax, title, y in (
        (left, "Root mean square of one network", r"$\|Q_d - Q\|_F\,/\,\|Q\|_F$"),
        (right, "Memory of the transformer", "bytes"),
    ):
        pictures.label_widths(ax, widths)
        logarithmic(ax)
        pictures.finish(ax, title, y=y, legend=True)
    left.set_ylim(top=4.0 * left.get_ylim()[1])  # room for the legend
    figure.suptitle(
        "MLP with batch norm and transformer: {chains} networks, 95 % interval"
        .format(**data.attrs)
    )  # fmt: skip
