"""`chain_of`: the `Chain` of a model, read from its layers and their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bnmc._support.arguments import integer
from bnmc.chain.chain import Chain
from bnmc.errors import BnmcError
from bnmc.torch.models import as_model, uses_batch_statistics
from bnmc.torch.preservation import as_it_was
from bnmc.torch.steps import Step, steps_of

if TYPE_CHECKING:
    import torch

__all__ = ["ModelChain", "chain_of"]

# Rows of a matrix that are tested for orthogonality.
_ROWS = 64


@dataclass(frozen=True)
class ModelChain:
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
    >>> found = chain_of(nn.Sequential(*blocks, nn.Linear(32, 2)), batch=8)
    >>> found.chain.width, found.unfit, found.layers
    (32, (), ('1.0', '2.0'))
    """

    chain: Chain | None
    unfit: tuple[str, ...]
    layers: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.chain, self.unfit))

    def __str__(self) -> str:
        lines = [f"{self.chain}: {len(self.layers)} hidden layers"]
        return "\n".join([*lines, *(f"does not fit: {one}" for one in self.unfit)])


@dataclass(frozen=True)
class _Block:
    """A weight layer with all steps up to the next one."""

    weight: Step
    others: tuple[Step, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What two blocks of a chain have in common."""
        names = tuple((one.kind, one.name) for one in self.others)
        return (*self.weight.module.weight.shape, names)


def chain_of(model: torch.nn.Module, *, batch: int = 64) -> ModelChain:
    """Read the chain of a model: width, activation, normalization, gain, law of the weights, ε.

    The hidden layers are all weight layers but the first one and the readout. If they differ, the
    chain describes the most frequent kind of layer with equal input and output width.

    Parameters
    ----------
    model : torch.nn.Module
        Read by tracing its forward pass symbolically (`torch.fx`), so that functions such as
        ``torch.relu`` count like modules.
    batch : int, default 64
        Batch size of the chain, which a model does not know.

    Returns
    -------
    ModelChain
        ``chain, unfit = chain_of(model)`` unpacks it.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `model` is no module with initialized parameters, or `batch` is no integer >= 2.

    Notes
    -----
    The gain is √(width · mean W²), over all hidden weights W. The law is "haar" if W Wᵀ is a
    multiple of the identity (as far as 64 rows tell), "rademacher" or "uniform" if the largest
    absolute entry is near the root mean square or √3 times it, and otherwise "gaussian". The chain
    is that of random weights: whether the weights were trained cannot be read from the model.

    Examples
    --------
    >>> from torch import nn
    >>> from bnmc.torch import chain_of
    >>> def block(width):
    ...     return [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()]
    >>> model = nn.Sequential(*block(128), *block(128), *block(128), nn.Linear(128, 10))
    >>> chain, unfit = chain_of(model, batch=32)
    >>> chain.width, chain.batch, chain.activation.name, chain.norm, chain.weights, chain.eps
    (128, 32, 'relu', 'batch', 'uniform', 1e-05)
    >>> round(chain.gain, 2), unfit
    (0.58, ())
    """
    inner = as_model(model)
    batch = integer("batch", batch, low=2)
    with as_it_was(inner):
        found, troubles = steps_of(inner)
        if found is None:
            return ModelChain(None, tuple(troubles))
        blocks = _blocks_of(found)
        hidden = blocks[1:-1] if blocks and not blocks[-1].others else blocks[1:]
        square = [one for one in hidden if one.kind[0] == one.kind[1]]
        if not square:
            reason = "there is no hidden layer with equal input and output width"
            return ModelChain(None, (*troubles, reason))
        (kind, _), *_ = Counter(one.kind for one in square).most_common(1)
        members = [one for one in square if one.kind == kind]
        for one in hidden:
            if one.kind != kind:
                troubles.append(f"{one.weight.label}: another width, norm or activation")
        return _chain(members, batch, troubles)


def _blocks_of(steps: Sequence[Step]) -> list[_Block]:
    starts = [index for index, one in enumerate(steps) if one.kind == "weight"]
    ends = [*starts[1:], len(steps)]
    # A flattening, a dropout of probability 0 and the like change nothing.
    return [
        _Block(steps[start], tuple(one for one in steps[start + 1 : end] if one.kind != "none"))
        for start, end in zip(starts, ends, strict=True)
    ]


def _chain(members: list[_Block], batch: int, troubles: list[str]) -> ModelChain:
    """Return the chain of equal blocks."""
    first = members[0]
    norms = [one for one in first.others if one.kind == "norm"]
    activations = [one for one in first.others if one.kind == "activation"]
    for block in members:
        troubles.extend(one.trouble for one in block.others if one.trouble)
        if block.weight.trouble:
            troubles.append(block.weight.trouble)
    kinds = [one.kind for one in first.others]
    if len(norms) > 1 or len(activations) > 1:
        troubles.append(f"{first.weight.label}: several norms or activations in one layer")
    if kinds[:2] == ["activation", "norm"]:
        troubles.append(f"{norms[0].label}: the norm follows the activation")
    names = [one.weight.label for one in members]
    for name, count in Counter(names).items():
        if count > 1:
            troubles.append(f"{name}: {count} layers share its weights")
    norm = norms[0] if norms else None
    if norm is None:
        troubles.extend(
            f"{one.weight.label}: the chain has no bias" for one in members if _has_bias(one)
        )
    for block in members:
        troubles.extend(_norm_troubles(block))
    gain, law, same = _weights(members)
    if not same and norm is None:
        troubles.append("the variances of the weights differ from layer to layer")
    try:
        chain = Chain(
            int(first.weight.module.weight.shape[1]), batch,
            activations[0].name if activations else "linear",
            norm="none" if norm is None or norm.name != "batch" else "batch",
            gain=gain, weights=law, eps=0.0 if norm is None else float(norm.module.eps),
        )  # fmt: skip
    except BnmcError as error:
        return ModelChain(None, (*_unique(troubles), str(error)), tuple(names))
    return ModelChain(chain, _unique(troubles), tuple(names))


def _has_bias(block: _Block) -> bool:
    bias = block.weight.module.bias
    return bias is not None and bool((bias != 0).any())


def _norm_troubles(block: _Block) -> Iterator[str]:
    for one in block.others:
        if one.kind != "norm" or one.name != "batch":
            continue
        if not uses_batch_statistics(one.module):
            yield f"{one.label}: evaluation mode, so it does not use the statistics of the batch"
        weight, bias = one.module.weight, one.module.bias
        if weight is not None and not (bool((weight == 1).all()) and bool((bias == 0).all())):
            yield f"{one.label}: affine parameters that are not 1 and 0, as after training"


def _weights(members: list[_Block]) -> tuple[float, str, bool]:
    """Return gain and law of the weights, and whether all layers have nearly the same variance."""
    gains = []
    laws: Counter[str] = Counter()
    for block in members:
        weight = block.weight.module.weight.detach().double().flatten(1)
        root = math.sqrt(float(weight.square().mean()))
        gains.append(root * math.sqrt(weight.shape[1]))
        laws[_law(weight, root)] += 1
    gain = math.sqrt(math.fsum(one * one for one in gains) / len(gains))
    law = laws.most_common(1)[0][0]
    # The root mean square of d² entries has a relative standard error of at most 1/d.
    near = 5.0 / math.sqrt(members[0].weight.module.weight.numel())
    return gain, law, all(abs(one - gain) <= near * gain for one in gains)


def _law(weight: Any, root: float) -> str:
    rows = weight[:_ROWS]
    product = rows @ rows.T
    product = product / product.diagonal().mean()
    product.diagonal().sub_(1.0)
    if float(product.abs().max()) < 1e-3:
        return "haar"
    peak = float(weight.abs().max()) / root if root > 0.0 else 0.0
    if peak < 1.01:
        return "rademacher"
    return "uniform" if peak < 1.05 * math.sqrt(3.0) else "gaussian"


def _unique(sentences: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences))
