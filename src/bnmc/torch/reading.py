"""`chain_of`, `network_of`: the `Chain` or `Network` of a model, read from its layers in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from bnmc._support.arguments import integer
from bnmc._support.text import Result
from bnmc.chain.chain import Chain, Network, Residual
from bnmc.chain.convolution import Convolution
from bnmc.errors import BnmcError
from bnmc.torch.models import as_model, own_weight, shape_of, torch
from bnmc.torch.preservation import as_it_was
from bnmc.torch.steps import INSTEAD, Step, steps_of
from bnmc.torch.weights import Weights, weights_of


@dataclass(frozen=True)
class ModelChain(Result):
    """The chain of a model, and what does not fit; it unpacks into these two.

    Attributes
    ----------
    chain : Chain or None
        The chain of the hidden layers; None if there is none.
    unfit : tuple of str
        What the chain does not describe, in sentences. Empty if it describes all hidden layers.
    layers : tuple of str
        Names of the hidden weight layers that the chain describes.

    Examples
    --------
    >>> from torch import nn
    >>> from bnmc.torch import chain_of
    >>> blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(3)]
    >>> reading = chain_of(nn.Sequential(*blocks, nn.Linear(32, 2)), batch=8)
    >>> reading.chain.width, reading.unfit, reading.layers
    (32, (), ('1.0', '2.0'))
    """

    chain: Chain | None
    unfit: tuple[str, ...]
    layers: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.chain, self.unfit))

    def __str__(self) -> str:
        lines = [f"{self.chain}: {len(self.layers)} hidden layers"]
        return "\n".join([*lines, *(f"does not fit: {text}" for text in self.unfit)])


@dataclass(frozen=True)
class ModelNetwork(Result):
    """The network of a model, and what does not fit; it unpacks into these two.

    Attributes
    ----------
    network : Network or None
        From the input, which is layer 0, to the output; None if there is none.
    unfit : tuple of str
        What the network does not describe, in sentences. Empty if it describes the model.
    layers : tuple of str
        Names of the weight layers: those of layers 1, …, depth.
    factors : tuple of float
        Factors of the branches with these layers, which the gains contain; 1 without a factor.
    dropouts : tuple of str
        Names of the dropouts in training mode. The network is that of evaluation mode.

    Examples
    --------
    >>> from torch import nn
    >>> from bnmc.torch import network_of
    >>> model = nn.Sequential(nn.Linear(32, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 2))
    >>> reading = network_of(model, batch=8)
    >>> reading.network.widths, reading.unfit, reading.layers
    ([32, 16, 2], (), ('0', '3'))
    """

    network: Network | None
    unfit: tuple[str, ...]
    layers: tuple[str, ...] = ()
    factors: tuple[float, ...] = ()
    dropouts: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.network, self.unfit))

    def __str__(self) -> str:
        dropped = [f"without dropout: {', '.join(self.dropouts)}"] if self.dropouts else []
        unfit = (f"does not fit: {text}" for text in self.unfit)
        return "\n".join([repr(self.network), *dropped, *unfit])


@dataclass(frozen=True)
class _Block:
    """A weight layer with all steps up to the next one."""

    weight: Step
    others: tuple[Step, ...]
    skipped: tuple[str, ...] | None = None
    path: tuple[str, ...] = ()
    begun: int | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties that all blocks of a chain share."""
        names = tuple((step.kind, step.name) for step in self.others)
        return (*shape_of(self.weight.module), names, self.skipped)

    def of(self, kind: str) -> list[Step]:
        """Return the steps of a kind."""
        return [step for step in self.others if step.kind == kind]

    def begins(self, kind: tuple[Any, ...], last: _Block) -> bool:
        """Whether this is the last hidden layer, with the first steps only of a block of this kind.

        A residual network may end with its last sum, or with a norm.
        """
        *shape, names, skipped = self.kind
        *wanted, others, theirs = kind
        same = shape == wanted and skipped == theirs and names == others[: len(names)]
        return self is last and same and bool(names) and names[0][0] == "sum"

    @property
    def steps(self) -> tuple[str, ...]:
        """The kinds of the steps, without sums."""
        return tuple(step.kind for step in self.others if step.kind != "sum")


def chain_of(
    model: torch.nn.Module, *, batch: int = 64, shape: tuple[int, int] | None = None
) -> ModelChain:
    """Read the chain of a model: width, activation, norm, order, skip connection, weights, biases.

    The hidden layers are all weight layers but the first one and the readout. If they differ, the
    chain describes the most frequent kind of layer with equal input and output width.

    Parameters
    ----------
    model : torch.nn.Module
        Read by tracing its forward pass symbolically (`torch.fx`), so that functions such as
        ``torch.relu`` count like modules.
    batch : int, default 64
        Number of samples of a batch. It cannot be read from a model.
    shape : (int, int), optional
        Height and width of the images in the hidden layers, for convolutions. The height is 1 for
        one-dimensional convolutions.

    Returns
    -------
    ModelChain
        ``chain, unfit = chain_of(model)`` unpacks it.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `model` is no module with initialized parameters, `batch` is no integer >= 2, or `shape`
        is no pair of integers >= 1.

    Notes
    -----
    The gain is √(fan_in · mean W²), over all hidden weights W. The law is "pytorch" if the weights
    may come from the default initialization: within ±1/√fan_in, with its variance. It is "haar" if
    W Wᵀ is a multiple of the identity (as far as 64 rows tell), "rademacher" or "uniform" if the
    largest absolute entry is near the root mean square or √3 times it, and otherwise "gaussian".
    `Chain.bias_variance` is the mean square of the biases. The chain is that of random weights:
    whether the weights were trained cannot be read from the model.

    With x the output of the layer before, h = W a + b, norm N and activation σ, these layers fit:

    ====================================  ================================================
    layer                                 order of the chain
    ====================================  ================================================
    W, N, σ                               "norm-activation"
    W, σ, N                               "activation-norm"
    h ← skip h + gain W σ(N(h))           "pre-activation"
    h ← skip h + gain W N(σ(h))           "activation-norm" with skip connection
    x ← N(skip x + gain W σ(x))           "norm-activation" with skip connection
    ====================================  ================================================

    Convolutions fit `Chain.conv` if they have circular padding and norms over the batch.

    Examples
    --------
    >>> from torch import nn
    >>> from bnmc.torch import chain_of
    >>> def block(width):
    ...     return [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()]
    >>> model = nn.Sequential(*block(128), *block(128), *block(128), nn.Linear(128, 10))
    >>> chain, unfit = chain_of(model, batch=32)
    >>> chain
    Chain(width=128, batch=32, activation='relu', weights='pytorch', eps=1e-05)
    >>> unfit
    ()
    """
    inner = as_model(model)
    batch = integer("batch", batch, low=2)
    size = None if shape is None else Convolution(shape, (1, 1)).shape
    with as_it_was(inner):
        steps, troubles = steps_of(inner)
        if steps is None:
            return ModelChain(None, tuple(troubles))
        troubles.extend(
            f"{step.projection.label}: a branch of its own; a Chain has one branch and a skip "
            "connection without layers"
            for step in steps
            if step.projection is not None
        )
        blocks = _blocks_of(steps)
        hidden = blocks[1:-1] if blocks and not blocks[-1].others else blocks[1:]
        square = [block for block in hidden if block.kind[0] == block.kind[1]]
        if not square:
            reason = (
                "there is no hidden layer with equal input and output width between the first "
                "weight layer and the readout"
            )
            return ModelChain(None, (*troubles, reason))
        (kind, _), *_ = Counter(block.kind for block in square).most_common(1)
        members = [
            block for block in square if block.kind == kind or block.begins(kind, hidden[-1])
        ]
        others = [block.weight.label for block in hidden if block not in members]
        if len(others) > 1:
            others = [
                f"{len(others)} layers ({', '.join(others[:3])}{', …'[: 3 * (len(others) > 3)]})"
            ]
        troubles.extend(f"{label}: another width, norm, activation or skip" for label in others)
        return _chain(members, batch, size, troubles)


def network_of(model: torch.nn.Module, *, batch: int = 64) -> ModelNetwork:
    """Read the network of a model whose layers differ, from its input to its output.

    Each layer has a width, activation, norm, order, skip connection, weights and biases of its own.

    Parameters
    ----------
    model : torch.nn.Module
        Linear layers with norms, activations, and skip connections around one or several layers,
        with or without a linear layer on the skip path. The model takes the features of a sample on
        the last axis. `chain_of` says how it is read.
    batch : int, default 64
        Number of samples of a batch, >= 2.

    Returns
    -------
    ModelNetwork
        ``network, unfit = network_of(model)`` unpacks it.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `model` is no module with initialized parameters, or `batch` is no integer >= 2.

    Notes
    -----
    Layer 0 is the input, with the norm and the activation before the first linear layer. Layer l is
    the l-th linear layer with the norm and the activation after it; the last one is the readout.
    Linear layers on skip paths are `Residual.projection`, and have no number.
    Law, gain and biases are read as by `chain_of`, from all layers with the same shape and the same
    steps if their weights have the same variance, otherwise from each layer alone.

    A network has no dropout. If the model has some in training mode, the network is that of
    evaluation mode. `measure` then draws the weights and the masks of a copy of the model instead.

    Examples
    --------
    >>> import bnmc
    >>> from torch import nn
    >>> from bnmc.torch import network_of
    >>> model = nn.Sequential(
    ...     nn.Linear(784, 512),
    ...     nn.BatchNorm1d(512),
    ...     nn.ReLU(),
    ...     nn.Linear(512, 128),
    ...     nn.ReLU(),
    ...     nn.Linear(128, 10),
    ... )
    >>> network, unfit = network_of(model, batch=32)
    >>> network.widths, unfit
    ([784, 512, 128, 10], ())
    >>> bnmc.simulate(network, rng=0).gram.shape
    (1, 4, 32, 32)
    """
    inner = as_model(model)
    batch = integer("batch", batch, low=2)
    with as_it_was(inner):
        steps, troubles = steps_of(inner)
        if steps is None:
            return ModelNetwork(None, tuple(troubles))
        dropouts = tuple(step.label for step in steps if step.kind == "dropout")
        steps = [
            replace(step, kind="none", trouble="") if step.kind == "dropout" else step
            for step in steps
        ]
        blocks = _blocks_of(steps)
        if not blocks:
            reason = "there is no linear layer"
            return ModelNetwork(None, (*troubles, reason))
        names = tuple(block.weight.label for block in blocks)
        for block in blocks:
            if len(shape_of(block.weight.module)) > 2:
                troubles.append(
                    f"{block.weight.label}: a convolution; chain_of reads equal convolutions"
                )
                return ModelNetwork(None, _unique(troubles), names)
        reading = _network(_input_of(steps), blocks, batch, troubles)
        return replace(reading, dropouts=dropouts)


def _network(start: _Block, blocks: list[_Block], batch: int, troubles: list[str]) -> ModelNetwork:
    """Return the network of linear layers after the input."""
    names = tuple(block.weight.label for block in blocks)
    spans = _spans(blocks)
    paths = [span.projection for span in spans.values() if span.projection is not None]
    troubles.extend(_shared([*blocks, *paths]))
    for before, block in pairwise(blocks):
        width, features = shape_of(before.weight.module)[0], shape_of(block.weight.module)[1]
        if width != features:
            troubles.append(
                f"{block.weight.label}: it has {features} features, and {before.weight.label} has "
                f"{width}; a Network keeps the samples apart"
            )
    if start.of("sum"):
        label = start.of("sum")[0].label
        troubles.append(f"{label}: this sum is a skip connection before the first weights")
    alike: dict[tuple[Any, ...], list[_Block]] = {}
    for block in blocks:
        alike.setdefault(block.kind, []).append(block)
    pooled = {
        kind: weights_of([each.weight.module for each in like]) for kind, like in alike.items()
    }
    lasts = [span.last for span in spans.values()]
    chains: list[tuple[Chain, int]] = []
    try:
        for place, (block, following) in enumerate(
            zip([start, *blocks], [*blocks, None], strict=True)
        ):
            ends = place + 1 in lasts  # the skip connection of the next layer is that of its block
            skipped = None if following is None or ends else following.skipped
            if place in spans:
                skipped = spans[place].skipped or None
            options = _rows(block, skipped, troubles)
            if block is start:
                width = int(shape_of(blocks[0].weight.module)[1])
            else:
                width, weights = int(shape_of(block.weight.module)[0]), pooled[block.kind]
                if weights.troubles or weights.bias_troubles:
                    weights = weights_of([block.weight.module])
                options |= _map(block, weights, troubles)
            if place in lasts:
                options["skip"] = 0.0  # that of the block
            chain = Chain(width, batch, **options)
            if block is not start and chain.shows_bias:
                troubles.extend(weights.bias_troubles)
            chains.append((chain, int(block is not start)))
        network = Network(*_staged(chains, spans, troubles))
    except BnmcError as error:
        return ModelNetwork(None, (*_unique(troubles), str(error)), names)
    factors = tuple(block.of("sum")[0].gain if block.of("sum") else 1.0 for block in blocks)
    return ModelNetwork(network, _unique(troubles), names, factors)


@dataclass(frozen=True)
class _Span:
    """A residual block up to its last layer.

    `skipped` has the kinds of the steps from the start of the skip connection to the first weights,
    and `projection` the layer on the skip path.
    """

    last: int
    skip: float
    skipped: tuple[str, ...]
    projection: _Block | None


def _spans(blocks: list[_Block]) -> dict[int, _Span]:
    """Return the residual blocks of several layers or with a projection, by the layer before."""
    spans: dict[int, _Span] = {}
    for last, block in enumerate(blocks, 1):
        sums = block.of("sum")
        if len(sums) != 1 or block.begun is None:
            continue
        step, inner = sums[0].projection, blocks[block.begun : last - 1]
        is_block = bool(inner) or step is not None
        if is_block and block.begun not in spans and not any(each.of("sum") for each in inner):
            projection = None if step is None else _Block(step, ())
            spans[block.begun] = _Span(last, sums[0].skip, block.path, projection)
    return spans


def _staged(
    chains: list[tuple[Chain, int]], spans: dict[int, _Span], troubles: list[str]
) -> Iterator[tuple[Chain, int] | Residual]:
    """Return the layers and the residual blocks of a network; add what does not fit."""
    place = 0
    while place < len(chains):
        yield chains[place]
        while (span := spans.get(place)) is not None:
            branch = Network(*chains[place + 1 : span.last + 1])
            source = "state" if span.skipped else "activations"
            projection = None
            if span.projection is not None:
                weights = weights_of([span.projection.weight.module])
                options = _map(span.projection, weights, troubles)
                last = branch.last
                projection = Chain(last.width, last.batch, norm="none", **options)
                if last.shows_bias:
                    troubles.extend(weights.bias_troubles)
            yield Residual(branch, projection, skip=span.skip, source=source)
            place = span.last
        place += 1


def _input_of(steps: Sequence[Step]) -> _Block:
    """Return the steps before the first weight layer, as the steps after an identity."""
    first = next(place for place, step in enumerate(steps) if step.kind == "weight")
    others = tuple(step for step in steps[:first] if step.kind != "none")
    return _Block(steps[first], others)


def _blocks_of(steps: Sequence[Step]) -> list[_Block]:
    starts = [index for index, step in enumerate(steps) if step.kind == "weight"]
    ends = [*starts[1:], len(steps)][: len(starts)]
    # A flattening, a dropout of probability 0 and the like change nothing.
    return [
        _Block(
            steps[start],
            tuple(step for step in steps[start + 1 : end] if step.kind != "none"),
            *_path(steps, start, end, starts),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _path(
    steps: Sequence[Step], start: int, end: int, starts: Sequence[int]
) -> tuple[tuple[str, ...] | None, tuple[str, ...], int | None]:
    """Return where the skip connection of a layer begins; None, (), None if it has none.

    The first part has the kinds of the steps between the start of the skip connection and the
    weights, "elsewhere" unless it begins after the previous weights. The second part has those up
    to the next weights, and the last one is the number of weight layers before the start.
    """
    sums = [step for step in steps[start:end] if step.kind == "sum"]
    if not sums:
        return None, (), None
    source = sums[0].source
    begun = sum(place <= source for place in starts)
    kinds = tuple(step.kind for step in steps[source + 1 : starts[begun]] if step.kind != "none")
    is_short = len(sums) == 1 and starts[begun] == start
    return kinds if is_short else ("elsewhere",), kinds, begun


def _chain(
    members: list[_Block], batch: int, shape: tuple[int, int] | None, troubles: list[str]
) -> ModelChain:
    """Return the chain of equal blocks."""
    first = members[0]
    names = tuple(block.weight.label for block in members)
    troubles.extend(_shared(members))
    options = _rows(first, first.skipped, troubles)
    for block in members[1:]:
        _rows(block, None, troubles)
    weights = weights_of([block.weight.module for block in members])
    options |= _map(first, weights, troubles)
    entries = shape_of(first.weight.module)
    columns = batch
    try:
        if len(entries) > 2:
            convolution = _convolution(first, shape, troubles)
            if convolution is None:
                return ModelChain(None, _unique(troubles), names)
            options["convolution"] = convolution
            columns = batch * convolution.positions
        chain = Chain(int(entries[1]), columns, **options)
    except BnmcError as error:
        return ModelChain(None, (*_unique(troubles), str(error)), names)
    if chain.shows_bias:
        troubles.extend(weights.bias_troubles)
    if (
        not first.of("norm") or chain.shows_bias or chain.skip != 0.0
    ):  # else the norm hides the scale
        troubles.extend(weights.troubles)
    return ModelChain(chain, _unique(troubles), names)


def _rows(block: _Block, skipped: tuple[str, ...] | None, troubles: list[str]) -> dict[str, Any]:
    """Return the options of a chain for the steps after the weights; add what does not fit.

    `skipped` has the kinds of the steps between the start of the next layer's skip connection and
    its weights.
    """
    norms, activations = block.of("norm"), block.of("activation")
    troubles.extend(step.trouble for step in (block.weight, *block.others) if step.trouble)
    if len(norms) > 1 or len(activations) > 1:
        troubles.append(
            f"{block.weight.label}: several norms or activations in one layer; a Chain has one each"
        )
    troubles.extend(_norm_troubles(block))
    norm = norms[0] if norms else None
    return {
        "activation": activations[0].name if activations else "linear",
        "norm": norm.name if norm is not None and not norm.trouble else "none",
        "eps": 0.0 if norm is None else _eps(norm, block.weight.module),
        "order": _order(block, skipped, troubles),
    }


def _map(block: _Block, weights: Weights, troubles: list[str]) -> dict[str, Any]:
    """Return the options of a chain for the map that leads to a layer; add what does not fit."""
    sums = block.of("sum")
    options: dict[str, Any] = {"weights": weights.law, "skip": sums[0].skip if sums else 0.0}
    factor = sums[0].gain if sums else 1.0
    if sums and block.others[0].kind != "sum":
        troubles.append(
            f"{sums[0].label}: the skip connection ends after a norm or activation; that of a "
            "Chain ends right after the weights, as in x + W σ(N(x))"
        )
        options["skip"] = 0.0
    if not (weights.law == "pytorch" and factor == 1.0):
        options["gain"] = weights.gain * factor
    if weights.bias_variance is not None:
        options["bias_variance"] = weights.bias_variance * factor**2
    elif factor != 1.0:
        fan_in = math.prod(shape_of(block.weight.module)[1:])
        options["bias_variance"] = factor**2 / (3.0 * fan_in)
    return options


def _shared(members: list[_Block]) -> Iterator[str]:
    """Find weights that several layers use, by calls of one module or by one tensor in several."""
    users: dict[int, list[str]] = {}
    for block in members:
        weight = own_weight(block.weight.module)
        key = id(block.weight.module if weight is None else weight)
        users.setdefault(key, []).append(block.weight.label)
    for labels in users.values():
        if len(labels) > 1:
            yield (
                f"{labels[0]}: {len(labels)} layers share its weights; a Chain draws new weights "
                "in each layer"
            )


def _order(block: _Block, skipped: tuple[str, ...] | None, troubles: list[str]) -> str:
    """Return the order of a layer, which tells where the next skip connection may begin."""
    steps = block.steps
    order = "activation-norm" if steps[:2] == ("activation", "norm") else "norm-activation"
    if skipped is None:
        return order
    after_norm = steps[:1] == ("norm",) and skipped == steps[1:]
    if skipped != steps and not after_norm:
        troubles.append(
            f"{block.weight.label}: the skip connection after it does not begin at its sum, nor at "
            f"the norm after that; a Chain has one weight layer per skip connection{INSTEAD}"
        )
    return "pre-activation" if skipped == steps and steps[:1] == ("norm",) else order


def _convolution(
    block: _Block, shape: tuple[int, int] | None, troubles: list[str]
) -> Convolution | None:
    """Return the convolution of a layer, or None and why there is none."""
    kernel = tuple(block.weight.module.kernel_size)
    if len(kernel) > 2:
        return None
    for norm in block.of("norm"):
        if norm.name != "batch":
            troubles.append(
                f"{norm.label}: {norm.name!r} takes the positions of an image together; in a chain "
                "of convolutions BatchNorm does"
            )
    if shape is None:
        label = block.weight.label
        troubles.append(f"{label}: a convolution needs shape=(height, width) of the images")
        return None
    return Convolution(shape, (1, *kernel) if len(kernel) == 1 else (kernel[0], kernel[1]))


def _eps(norm: Step, weights: Any) -> float:
    """Return ε; PyTorch's RMSNorm without it takes the rounding unit of its input."""
    eps = getattr(norm.module, "eps", 0.0)
    return float(torch.finfo(weights.weight.dtype).eps if eps is None else eps)


def _norm_troubles(block: _Block) -> Iterator[str]:
    for norm in block.of("norm"):
        if norm.trouble:
            continue
        module = norm.module
        if norm.name == "batch" and not (module.training or module.running_mean is None):
            yield (
                f"{norm.label}: evaluation mode, so it does not use the statistics of the batch; "
                "call model.train()"
            )
        weight, bias = module.weight, getattr(module, "bias", None)
        same = weight is None or bool((weight == 1).all())
        if not (same and (bias is None or bool((bias == 0).all()))):
            yield (
                f"{norm.label}: affine parameters that are not 1 and 0, as after training; its "
                "reset_parameters() sets them to 1 and 0"
            )


def _unique(sentences: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences))
