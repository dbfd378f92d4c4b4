"""`orthogonalize_`: weights that make the samples of a batch orthogonal, layer by layer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import optimize

from bnmc._support.arguments import generator, real
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.torch.initializing import orthogonal
from bnmc.torch.layers import called, called_weight_layers, require_own_weight
from bnmc.torch.models import Model, as_batch, as_model, tensor_of, torch
from bnmc.torch.preservation import as_it_was
from bnmc.torch.representations import FloatArray

#: The powers p in print.
POWERS = (-1.0, -0.5, 0.5)

# Patches of a convolution that are multiplied at once, in numbers.
_BLOCK = 1 << 24

#: One sample of so many is held out.
_HELD_OUT = 4

#: The scale of samples that are held out grows by this factor through all layers.
_GROWTH = 1.1

#: A warning says that their outputs are larger than those of the others by more than this factor.
_LARGE = 2.0


def orthogonalize_(
    model: Model,
    batch: Any,
    *,
    power: float = -1.0,
    shrinkage: float | None = None,
    first: bool = False,
    rng: Any = None,
) -> Model:
    """Draw the hidden weights such that they orthogonalize the batch, layer by layer, in place.

    Let H = U S Vᵀ be the input of a layer for the batch, (samples, in), after the layers before it
    were changed. The weight becomes a multiple of O Sᵖ Vᵀ, with O a random matrix with orthonormal
    columns (Haar measure), and the output is a multiple of U S¹⁺ᵖ Oᵀ, with root mean square 1. For
    p = −1 and at most as many linearly independent samples as neurons, the outputs of the samples
    are orthogonal and of equal norm: their orthogonality gap is 0. (A norm over the batch right
    before a layer makes the samples linearly dependent: their mean is 0.) The first weight layer
    and the readout (the last one) are kept. Biases of changed layers become 0.

    Such weights amplify the directions in which the batch is small, and with them other samples.
    Therefore S² in the weight is shrunk towards its mean, to (1 − ρ) S² + ρ mean(S²), as Ledoit and
    Wolf shrink a sample covariance. The last quarter of the batch chooses ρ for each layer: it is
    the least one with which the scale of these samples, relative to that of the others, grows by at
    most a factor 1.1 through all layers, in equal steps.

    Parameters
    ----------
    model : torch.nn.Module
        With or without batch normalization. Each weight layer must be called once. The mode of the
        model is kept, so batch normalization uses the batch if the model is in training mode.
    batch : torch.Tensor or array_like, shape (n, ...)
        Samples on the first axis.
    power : {-1, -0.5, 0.5}
        p. With −1 the gap is smallest.
    shrinkage : float, optional
        ρ of all layers, in [0, 1]; no samples are held out then. With 0 the samples of the batch
        become orthogonal, and outputs of other batches may be larger by orders of magnitude. With 1
        the weight is a multiple of O, as that of `haar_`. Default: chosen for each layer.
    first : bool, default False
        Whether to change the first weight layer too.
    rng : optional
        Seed or generator of O, any argument of `numpy.random.default_rng`. The random state of
        PyTorch does not change.

    Returns
    -------
    torch.nn.Module
        The argument `model`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, a layer is called twice or is no such layer (a transposed or
        grouped convolution), its weight is shared or computed from other parameters, or no layer is
        hidden. The model is then as before.
    NonFiniteError
        If the input of a layer is infinite, NaN, or zero.

    Warns
    -----
    RuntimeWarning
        If the outputs of the samples that are held out are larger than those of the others by a
        factor above 2 that they did not have before. The message has both factors.

    Notes
    -----
    Daneshmand, Joudaki and Bach (arXiv 2106.03970, eq. 6 and their code) print the powers −½ and
    −1, a notebook of theirs +½, all with ``shrinkage=0``. Their O is a slice of U, which is only
    nearly orthogonal; here it is orthogonal. With S singular, only the singular values above the
    rounding of the weights count. If the samples do not span the input of the layer, the weight has
    the mean of Sᵖ as its factor on the directions that the batch lacks, so that other batches are
    not projected. A layer with fewer outputs than independent directions keeps the largest ones. A
    layer with more outputs than independent directions, and fewer outputs than inputs, keeps random
    ones of those that the batch lacks. For the same seed, weights differ between processors by
    rounding only.

    The rows of H of a convolution are the patches of all samples at all positions, so the channels
    become orthogonal. If there are more patches than entries in one, V and S are computed from
    Hᵀ H in float64.

    Examples
    --------
    >>> import torch, bnmc
    >>> from torch import nn
    >>> from bnmc.torch import orthogonalize_
    >>> seed = torch.manual_seed(0)
    >>> layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    >>> model, batch = nn.Sequential(*layers), torch.randn(32, 64)
    >>> model = orthogonalize_(model, batch, shrinkage=0, rng=0)
    >>> gap = bnmc.torch.measure(model, batch, layers=["2"]).orthogonality_gap
    >>> bool(gap < 1e-5)
    True
    """
    inner = as_model(model)
    power = real("power", power)
    if power not in POWERS:
        raise ArgumentError("power", power, ", ".join(f"{allowed:g}" for allowed in POWERS))
    if shrinkage is not None:
        shrinkage = real("shrinkage", shrinkage, low=0.0, high=1.0)
    random = generator(rng)
    data = as_batch(inner, batch)
    held_out = max(1, len(data) // _HELD_OUT) if shrinkage is None else 0
    fitted = len(data) - held_out
    with as_it_was(inner, cure=True), torch.no_grad():
        with as_it_was(inner):
            order = called_weight_layers(inner, data)
            before = _excess(called(inner, data), fitted) if held_out else 1.0
        hidden = dict(order[0 if first else 1 : -1])
        if not hidden:
            raise ArgumentError("model", f"{len(order)} weight layers", "a model with hidden ones")
        for name, module in hidden.items():
            require_own_weight(name, module)
            if getattr(module, "groups", 1) != 1:
                raise ArgumentError("model", f"{name!r} with groups", "convolutions without groups")
        steps = {name: place / len(hidden) for place, name in enumerate(hidden, 1)}

        def change(name: str, module: Any, received: Any) -> None:
            layer = _Layer(name, module, received[:fitted], random)
            rho = shrinkage
            if rho is None:
                rho = layer.least_shrinkage(power, received[fitted:], _GROWTH ** steps[name])
            weight = torch.from_numpy(layer.weight(power, rho))
            module.weight.copy_(weight.reshape(module.weight.shape))
            if module.bias is not None:
                module.bias.zero_()

        output = called(inner, data, hidden, before=change)
        after = _excess(output, fitted) if held_out else 1.0
    if after > _LARGE * max(before, 1.0):
        text = (
            f"outputs of the last {held_out} samples, which chose the shrinkage, are ×{after:.3g} "
            f"those of the others, and were ×{before:.3g} before"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return model


def _excess(output: Any, fitted: int) -> float:
    """Return the scale of the outputs of the last samples, over that of the first ones."""
    values: Any = tensor_of(output)
    parts = values[:fitted].detach().double(), values[fitted:].detach().double()
    first, last = (part.square().mean().sqrt() for part in parts)
    return float(last / first)


class _Layer:
    """A weight layer and its input, of which it gets its weight.

    Parameters
    ----------
    name : str
    module : torch.nn.Module
    received : torch.Tensor
        Input for the samples that become orthogonal.
    random : numpy.random.Generator
        It draws O, and then directions that the input lacks if the weight keeps only some of them.
    """

    def __init__(self, name: str, module: Any, received: Any, random: Any) -> None:
        self.name, self.module = name, module
        self.out, columns = module.weight.flatten(1).shape
        self.values, self.seen = self._spectrum(received)
        self.whole = self.out >= columns
        self.kept = self.seen[:, : self.out]
        lacking = min(self.out, columns) - self.kept.shape[1]
        if lacking and not self.whole:
            # Only a part of the directions that the batch lacks is kept: a random one.
            some = orthogonal(random, columns, lacking)
            further = _nearest(some - self.seen @ (self.seen.T @ some))
            self.kept = np.hstack([self.kept, further])
        # O is a function of a draw and of the directions that turns with them, so that the weight
        # does not depend on the signs of singular vectors, which differ between processors.
        self.drawn = orthogonal(random, self.out, columns)

    def weight(self, power: float, shrinkage: float) -> FloatArray:
        """Return the weight with which the output has root mean square 1."""
        factors, others = self._factors(power, shrinkage)
        turned = self.drawn @ self.kept
        if not self.whole:
            return (_nearest(turned) * factors) @ self.kept.T
        weight: FloatArray = others * self.drawn + (turned * (factors - others)) @ self.kept.T
        return weight

    def least_shrinkage(self, power: float, received: Any, scale: float) -> float:
        """Return the least shrinkage with which the output of other samples has at most a scale."""
        squares, total, count = np.zeros(self.kept.shape[1]), 0.0, 0
        for part in _parts(self.module, received):
            rows = part.cpu().numpy()
            squares += np.square(rows @ self.kept).sum(axis=0)
            total += float(np.square(rows).sum())
            count += len(rows)
        _require_finite(self.name, total)
        outside = max(total - float(squares.sum()), 0.0) if self.whole else 0.0

        def excess(shrinkage: float) -> float:
            factors, others = self._factors(power, shrinkage)
            square = float(factors**2 @ squares) + others**2 * outside
            return math.sqrt(square / (count * self.out)) - scale

        if excess(0.0) <= 0.0:
            return 0.0
        return float(optimize.brentq(excess, 0.0, 1.0)) if excess(1.0) < 0.0 else 1.0

    def _factors(self, power: float, shrinkage: float) -> tuple[FloatArray, float]:
        """Return the factors of the weight in the kept directions, and in all others."""
        squares = self.values**2
        powers = (squares + shrinkage * (squares.mean() - squares)) ** (0.5 * power)
        factors = np.full(self.kept.shape[1], powers.mean())
        count = min(len(powers), len(factors))
        factors[:count] = powers[:count]
        scale = np.linalg.norm(factors[:count] * self.values[:count]) / math.sqrt(self.out)
        return factors / scale, float(powers.mean() / scale)

    def _spectrum(self, received: Any) -> tuple[FloatArray, FloatArray]:
        """Return the singular values over the root of the number of rows, and right vectors.

        Values are descending; those below the rounding of the weights are left out.
        """
        weight = self.module.weight
        columns, precision = weight[0].numel(), float(torch.finfo(weight.dtype).eps)
        count = len(received) * sum(map(len, _parts(self.module, received[:1])))
        if weight.ndim == 2 or count <= columns:
            parts = [part.cpu().numpy() for part in _parts(self.module, received)]
            rows: Any = np.concatenate(parts)
            _require_finite(self.name, rows)
            rows = np.linalg.qr(rows, mode="r") if count > columns else rows
            _, values, right = np.linalg.svd(rows, full_matrices=False)
        else:
            product: Any = sum(part.T @ part for part in _parts(self.module, received))
            moment = product.cpu().numpy()
            _require_finite(self.name, moment)
            squares, vectors = np.linalg.eigh(moment)
            values, right = np.sqrt(np.maximum(squares[::-1], 0.0)), vectors[:, ::-1].T
            precision = max(precision, 1e-7)  # the root of the rounding of HᵀH
        rank = int(np.count_nonzero(values > max(count, columns) * precision * values[0]))
        return values[:rank] / math.sqrt(count), right[:rank].T


def _nearest(matrix: FloatArray) -> FloatArray:
    """Return the matrix with orthonormal columns that is nearest to a matrix of full rank.

    If Q is orthogonal, then that of ``matrix @ Q`` is the result times Q.
    """
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    nearest: FloatArray = left @ right
    return nearest


def _require_finite(name: str, values: Any) -> None:
    if not np.isfinite(values).all():
        raise NonFiniteError(None, None, f"input of {name!r}")
    if not np.any(values):
        raise ArgumentError(
            "batch", f"zero as input of {name!r}", "a batch that reaches all layers"
        )


def _parts(module: Any, received: Any) -> Iterator[Any]:
    """Yield the rows of the input of a layer in float64; of a convolution these are its patches."""
    if module.weight.ndim == 2:
        yield received.detach().to("cpu", torch.float64).reshape(-1, module.weight.shape[1])
        return
    size = max(1, module.weight[0].numel() * received[0].numel())
    for part in received.detach().split(max(1, _BLOCK // size)):
        yield _patches(module, part.double())


def _patches(module: Any, images: Any) -> Any:
    """Return the patches that a convolution sees, (samples · positions, channels · kernel)."""
    padding = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    images = torch.nn.functional.pad(images, padding, mode=mode)
    axes = len(module.kernel_size)
    for axis, (size, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        images = images.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    # Axes: samples, channels, positions …, kernel …
    order = (0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes))
    return images.permute(order).reshape(-1, module.weight[0].numel())
