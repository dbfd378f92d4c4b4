"""Transformers of GPT's shapes at initialization: attention, state, gradient and loss."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from bnmc.experiments import kit, pictures
from bnmc.experiments.beyond.implicit_blocks import EPS, Block, attention, layer_norm
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import banded, short_interval
from bnmc.implicit import GaussianMatrix
from bnmc.plot.axes import COLOURS, logarithmic, plain_ticks

#: Width, heads and blocks.
_SHAPES = {
    "GPT-2": (768, 12, 12), "GPT-2 medium": (1024, 16, 24), "GPT-2 large": (1280, 20, 36),
    "GPT-2 XL": (1600, 25, 48), "GPT-3 2.7B": (2560, 32, 32), "GPT-3 6.7B": (4096, 32, 32),
    "GPT-3 13B": (5120, 40, 40), "GPT-3": (12_288, 96, 96),
}  # fmt: skip

_RULES = ("PyTorch", "GPT-2", "width-scaled")

#: Tokens of the vocabulary.
_VOCABULARY = 50_257

#: Tokens of the attention that the picture shows, and the rules.
_SHOWN, _SHOWN_RULES = 48, _RULES[1:]

#: Measured numbers: what they are, and the heads of their columns and of their laws.
_NUMBERS = {
    "deviation": ("standard deviation of logits", "deviation of logits", "law of logits"),
    "attended": ("tokens attended to", "tokens attended to", "normal logits"),
    "loss": ("cross-entropy", "loss", "ln V + σ²d/2"),
}

#: Rows of normal logits whose entropy is the predicted one.
_ROWS = 2000


class Sizes(NamedTuple):
    """Sizes of the figure.

    shapes: names of the shapes
    tokens: tokens of the attention
    blocks: blocks of a pass forward and back, at most those of the shape
    length: tokens of such a pass
    """

    shapes: tuple[Annotated[str, {"allowed": tuple(_SHAPES)}], ...] = (
        "GPT-2", "GPT-3 2.7B", "GPT-3 13B", "GPT-3"
    )  # fmt: skip
    tokens: Annotated[int, {"low": _SHOWN}] = 128
    blocks: int = 3
    length: Annotated[int, {"low": 2}] = 16
    chains: Several = 3


@kit.figure("gpt-sizes", Sizes(), shapes=tuple(_SHAPES), tokens=2048, blocks=96)
def gpt_sizes(run: Run, sizes: Sizes) -> Experiment:
    r"""Attention at initialization, from GPT-2 small to GPT-3: GPT-2's rule breaks by width.

    Transformers with the shapes of GPT-2 (width d = 768) to GPT-3 (12 288) have normal weights of
    three rules.  PyTorch: variance 1/(3 columns), embeddings of variance 1.  GPT-2: standard
    deviation σ = .02, in the matrices that write to the state over √(2 blocks), and the matrix of
    the embedding is also the head.  Width-scaled: as GPT-2 with σ = .02 √(768/d).  Biases are 0.
    No weight is drawn (`bnmc.implicit.GaussianMatrix`).

    The heads are the attention of head 0 of the first block, for 48 tokens.  Below are the standard
    deviation of the logits of attention in the first block, and the tokens that the last one of 128
    attends to: the exponential of the mean entropy (``full``: of 2048).  Both need queries and keys
    of this block only.  State and gradient are those of the largest shape, with 3 blocks and 16
    different tokens (``full``: all blocks).  Means are over 3 networks.

    Expected: logits have the standard deviation σ²d, times the share of the variance of the
    embedding that the ε of layer norm leaves; the entropy is that of independent normal logits; the
    loss is ln V + σ²d/2, with V tokens in the vocabulary and σ that of the head.  So with GPT-2's
    rule the attention of T tokens freezes, as in a random energy model, where σ²d = √(2 ln T): at
    width 7800 for T = 128.  The other rules do not see the width.

    Returns
    -------
    Experiment
        Variables by ``rule``, ``shape``, ``block``, ``query`` and ``key``.
    """
    rng, tokens = run.generator, sizes.tokens

    def measured(rule: str, shape: str, progress: Progress) -> dict[str, Float64Array]:
        """Return the numbers of each network, and the attention of a head of the first one."""
        networks = []
        for network in range(sizes.chains):
            progress(network, sizes.chains)
            first = _attention_of_first_block(rule, shape, tokens, rng)
            networks.append(first | _pass(rule, shape, sizes.blocks, sizes.length, rng))
        return {name: np.stack([each[name] for each in networks]) for name in networks[0]}

    results = kit.Results(
        run, rule=kit.Axis(_RULES, "rule of initialization", ""),
        shape=kit.Axis(sizes.shapes, "shape", ""),
        block=kit.Axis(range(sizes.blocks + 1), "blocks before the state"),
        query=kit.Axis(range(_SHOWN), "query"), key=kit.Axis(range(_SHOWN), "key"),
    )  # fmt: skip
    per = ("rule", "shape")
    points = results.points(*per)
    parts = run.parts(measured, points, [float(_SHAPES[shape][0]) for _, shape in points])
    results.add("width", ("shape",), [_SHAPES[shape][0] for shape in sizes.shapes], "width")
    normals = rng.standard_normal((_ROWS, tokens))
    laws = {(rule, shape): _laws(rule, shape, normals) for rule, shape in points}
    columns = {}
    for name, (text, head, law) in _NUMBERS.items():
        values = results.add_means(name, per, kit.entry(parts, name), text)
        columns[head] = values.means()
        columns[law] = results.add(f"{name}_law", per, kit.entry(laws, name), f"{text}, predicted")
    for name, text in (("state", "root mean square"), ("gradient", "norm of the gradient")):
        results.add_means(name, (*per, "block"), kit.entry(parts, name), text)
    heads = kit.each(parts, lambda part: part["head"][0])
    results.add("head", (*per, "query", "key"), heads, "attention of head 0 in the first block")
    return results.experiment(
        "Attention at initialization, from GPT-2 to GPT-3", kit.table_of(columns),
        _findings(sizes, parts, laws), _draw, chains=sizes.chains, tokens=tokens,
        blocks=sizes.blocks, length=sizes.length, largest=sizes.shapes[-1],
    )  # fmt: skip


def _scale(rule: str, columns: int, width: int) -> float:
    """Return the standard deviation of weights of a matrix."""
    if rule == "PyTorch":
        return (3.0 * columns) ** -0.5
    return 0.02 if rule == "GPT-2" else 0.02 * math.sqrt(768.0 / width)


def _embedding(rule: str, width: int) -> float:
    """Return the standard deviation of the embeddings of tokens, and of positions."""
    return 1.0 if rule == "PyTorch" else _scale(rule, width, width)


def _laws(rule: str, shape: str, normals: Float64Array) -> dict[str, float]:
    """Return the predicted numbers."""
    width, _, _ = _SHAPES[shape]
    square = width * _scale(rule, width, width) ** 2
    variance = 2.0 * _embedding(rule, width) ** 2
    deviation = square * variance / (variance + EPS)
    return {
        "deviation": deviation, "attended": float(np.exp(_entropies(deviation * normals).mean())),
        "loss": math.log(_VOCABULARY) + square / 2.0,
    }  # fmt: skip


def _entropies(logits: Float64Array) -> Float64Array:
    """Return the entropies of rows of softmax."""
    shifted = logits - logits.max(-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(-1)
    return np.asarray(np.log(total) - (weights * shifted).sum(-1) / total)


def _attention_of_first_block(
    rule: str, shape: str, tokens: int, rng: np.random.Generator
) -> dict[str, Float64Array]:
    """Return numbers of the first block of one network, which need its queries and keys only."""
    width, heads, _ = _SHAPES[shape]
    scale = _scale(rule, width, width)
    matrix = GaussianMatrix(2 * width, width, scale=scale, rng=rng, dtype="float32")
    # Different tokens at their positions.
    embedded = math.sqrt(2.0) * _embedding(rule, width) * rng.standard_normal((width, tokens))
    answer = matrix @ layer_norm(embedded).values
    q, k = answer.reshape(2, heads, -1, tokens)
    last = (q[:, None, :, -1] @ k)[:, 0] / math.sqrt(q.shape[1])
    shown = attention(q[:1, :, :_SHOWN], k[:1, :, :_SHOWN])
    return {
        "deviation": last.std(), "attended": np.exp(_entropies(last).mean()), "head": shown[0],
    }  # fmt: skip


def _pass(
    rule: str, shape: str, blocks: int, length: int, rng: np.random.Generator
) -> dict[str, Float64Array]:
    """Return loss, states and gradients of one network, from different tokens, forward and back."""
    width, heads, most = _SHAPES[shape]
    count, deviation = min(blocks, most), _embedding(rule, width)
    residual = 1.0 if rule == "PyTorch" else (2.0 * count) ** -0.5
    layers = [
        Block(width, heads, lambda columns: _scale(rule, columns, width), residual, rng)
        for _ in range(count)
    ]
    embedding, head = (
        GaussianMatrix(_VOCABULARY, width, scale=scale, rng=rng, dtype="float32")
        for scale in (deviation, _scale(rule, width, width))
    )
    if rule != "PyTorch":
        head = embedding
    text = rng.choice(_VOCABULARY, length + 1, replace=False)
    positions = np.arange(length)
    one_hot = np.zeros((_VOCABULARY, length))
    one_hot[text[:-1], positions] = 1.0
    states = [embedding.T @ one_hot + deviation * rng.standard_normal((width, length))]
    for block in layers:
        states.append(block.forward(states[-1]))
    norm = layer_norm(states[-1])
    logits = head @ norm.values
    logits -= logits.max(0)
    chances = np.exp(logits)
    total = chances.sum(0)
    loss = np.mean(np.log(total) - logits[text[1:], positions])
    slope = chances / total
    slope[text[1:], positions] -= 1.0
    gradients = [norm.backward(head.T @ (slope / length))]
    for block in reversed(layers):
        gradients.insert(0, block.backward(gradients[0]))
    padding = [np.nan] * (blocks - count)
    return {
        "loss": loss,
        "state": np.array([np.sqrt(np.mean(np.square(x))) for x in states] + padding),
        "gradient": np.array([np.linalg.norm(g) for g in gradients] + padding),
    }


def _findings(
    sizes: Sizes, parts: dict[kit.Point, dict[str, Float64Array]], laws: dict[kit.Point, Any]
) -> list[str]:
    bands = {point: banded(part["attended"]) for point, part in parts.items()}
    first, last = sizes.shapes[0], sizes.shapes[-1]
    findings = [
        f"{rule}: the last of {sizes.tokens} tokens attends to {short_interval(bands[rule, first])}"
        f" in {first}, and to {short_interval(bands[rule, last])} in {last}."
        for rule in _RULES
    ]
    ratios = {point: band[0] / laws[point]["attended"] for point, band in bands.items()}
    freezing = math.sqrt(2.0 * math.log(sizes.tokens)) / _scale("GPT-2", 1, 1) ** 2
    return [
        *findings,
        f"These numbers are {min(ratios.values()):.3g} to {max(ratios.values()):.3g} times those "
        "of independent normal logits.",
        f"GPT-2: attention of {sizes.tokens} tokens freezes at width {freezing:.3g}.",
    ]


def _draw(data: Dataset, figure: Drawing) -> None:
    shapes, widths = data["shape"].values, data["width"].values
    axes = pictures.axes_of(figure, max(4, len(shapes)), 3, width=2.5, height=2.6)
    for rule, row in zip(_SHOWN_RULES, axes, strict=False):
        for ax, shape in zip(row, shapes, strict=False):
            image = ax.imshow(
                data["head"].sel(rule=rule, shape=shape), cmap="magma", vmin=0.0, vmax=0.5
            )
            ax.grid(visible=False)
            ax.set(xticks=[], yticks=[])
            pictures.finish(ax, f"d = {int(data['width'].sel(shape=shape))}")
        row[0].set_ylabel(f"{rule}: query")
    for ax in axes[1]:
        ax.set_xlabel("key")
    bar = figure.colorbar(image, ax=axes[:2], shrink=0.6, pad=0.02, extend="max")
    bar.set_label("attention")
    for ax in axes[:2, len(shapes) :].flat:
        ax.set_visible(False)
    deviation, attended, state, gradient = axes[2, :4]
    for name, ax in (("deviation", deviation), ("attended", attended)):
        for rule, colour in zip(_RULES, COLOURS, strict=False):
            pictures.points(ax, data.sel(rule=rule), name, "width", colour=colour, label=rule)
            ax.plot(widths, data[f"{name}_law"].sel(rule=rule), color=colour, linewidth=0.8)
        ax.set_xscale("log")
        plain_ticks(ax.xaxis, widths)
        ax.tick_params(axis="x", rotation=45)
    for name, ax in (("state", state), ("gradient", gradient)):
        pictures.lines(ax, data.sel(shape=shapes[-1]), name, "block", "rule", marker="o")
    for ax, title, x, y in (
        (deviation, "Deviation of logits", "width $d$", "std of logits, first block"),
        (attended, "Tokens attended to", "width $d$", "tokens"),
        (state, "State", "blocks before", "root mean square"),
        (gradient, "Gradient", "blocks before", "Frobenius norm"),
    ):
        logarithmic(ax)
        pictures.finish(ax, title, x, y)
    deviation.legend(fontsize="small")
    for ax in axes[2, 4:]:
        ax.set_visible(False)
    text = f"attention of {_SHOWN} of {{tokens}} tokens; state and gradient of {{largest}}"
    figure.suptitle(pictures.about(data, text))
