"""`orthogonalize_`: weights that make the samples of a batch orthogonal, layer by layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bnmc._support.arguments import generator, real
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.torch.initializing import orthogonal
from bnmc.torch.layers import called, called_weight_layers, require_own_weight
from bnmc.torch.models import Model, as_batch, as_model, torch
from bnmc.torch.preservation import as_it_was
from bnmc.torch.representations import FloatArray

#: The powers p in print.
POWERS = (-1.0, -0.5, 0.5)

# Patches of a convolution that are multiplied at once, in numbers.
_BLOCK = 1 << 24


def orthogonalize_(
    model: Model, batch: Any, *, power: float = -1.0, first: bool = False, rng: Any = None
) -> Model:
    """Draw the hidden weights such that they orthogonalize the batch, layer by layer, in place.

    Let H = U S Vᵀ be the input of a layer for the batch, (samples, in), after the layers before it
    were changed. The weight becomes a multiple of O Sᵖ Vᵀ, with O a random matrix with orthonormal
    columns (Haar measure), and the output is a multiple of U S¹⁺ᵖ Oᵀ, with root mean square 1. For
    p = −1 and at most as many linearly independent samples as neurons, the outputs of the samples
    are orthogonal and of equal norm: their orthogonality gap is 0. (A norm over the batch right
    before a layer makes the samples linearly dependent: their mean is 0.) The first weight layer
    and the readout (the last one) are kept. Biases of changed layers become 0.

    Parameters
    ----------
    model : torch.nn.Module
        With or without batch normalization. Each weight layer must be called once. The mode of the
        model is kept, so batch normalization uses the batch if the model is in training mode.
    batch : torch.Tensor or array_like, shape (n, ...)
        Samples on the first axis.
    power : {-1, -0.5, 0.5}
        p. With −1 the gap is smallest.
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

    Notes
    -----
    Daneshmand, Joudaki and Bach (arXiv 2106.03970, eq. 6 and their code) print the powers −½ and
    −1, a notebook of theirs +½. Their O is a slice of U, which is only nearly orthogonal; here it
    is orthogonal. With S singular, only the singular values above the rounding of the weights
    count. If the samples do not span the input of the layer, the weight has the mean of Sᵖ as its
    factor on the directions that the batch lacks, so that other batches are not projected. A layer
    with fewer outputs than independent directions keeps the largest ones. A layer with more outputs
    than independent directions, and fewer outputs than inputs, keeps random ones of those that the
    batch lacks. For the same seed, weights differ between processors by rounding only.

    The rows of H of a convolution are the patches of all samples at all positions, so the channels
    become orthogonal. For convolutions, V and S are computed from Hᵀ H in float64.

    Examples
    --------
    >>> import torch, bnmc
    >>> from torch import nn
    >>> from bnmc.torch import orthogonalize_
    >>> seed = torch.manual_seed(0)
    >>> layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    >>> model, batch = nn.Sequential(*layers), torch.randn(32, 64)
    >>> model = orthogonalize_(model, batch, rng=0)
    >>> gap = bnmc.torch.measure(model, batch, layers=["2"]).orthogonality_gap
    >>> bool(gap < 1e-5)
    True
    """
    inner = as_model(model)
    power = real("power", power)
    if power not in POWERS:
        raise ArgumentError("power", power, ", ".join(f"{allowed:g}" for allowed in POWERS))
    random = generator(rng)
    data = as_batch(inner, batch)
    with as_it_was(inner, cure=True), torch.no_grad():
        with as_it_was(inner):
            order = called_weight_layers(inner, data)
        hidden = dict(order[0 if first else 1 : -1])
        if not hidden:
            raise ArgumentError("model", f"{len(order)} weight layers", "a model with hidden ones")
        for name, module in hidden.items():
            require_own_weight(name, module)
            if getattr(module, "groups", 1) != 1:
                raise ArgumentError("model", f"{name!r} with groups", "convolutions without groups")

        def change(name: str, module: Any, received: Any) -> None:
            _change(name, module, received, power, random)

        called(inner, data, hidden, before=change)
    return model


def _change(name: str, module: Any, received: Any, power: float, random: Any) -> None:
    """Give a layer its weight for the input that it receives."""
    out, columns = module.weight.flatten(1).shape
    precision = float(torch.finfo(module.weight.dtype).eps)
    if module.weight.ndim == 2:
        rows = received.detach().to("cpu", torch.float64).reshape(-1, columns).numpy()
        count = len(rows)
        _require_finite(name, rows)
        _, values, right = np.linalg.svd(rows, full_matrices=True)
        values = np.concatenate([values, np.zeros(columns - len(values))])
    else:
        moment, count = _second_moment(module, received)
        _require_finite(name, moment)
        squares, vectors = np.linalg.eigh(moment)
        values = np.sqrt(np.maximum(squares[::-1], 0.0))
        right = vectors[:, ::-1].T
        precision = max(precision, 1e-7)  # the root of the rounding of HᵀH
    seen = values > max(count, columns) * precision * values[0]
    powers = np.zeros(columns)
    powers[seen] = values[seen] ** power
    powers[~seen] = powers[seen].mean()
    size, rank = min(out, columns), int(np.count_nonzero(seen))
    basis = right[:size].T
    if rank < size < columns:
        # Only a part of the directions that the batch lacks is kept: a random one.
        lacking = right[rank:]
        some = orthogonal(random, columns, size - rank)
        basis = np.hstack([basis[:, :rank], _nearest(lacking.T @ (lacking @ some))])
    # O is a function of a draw and of `basis` that turns with it, so that the weight does not
    # depend on the signs of singular vectors, which differ between processors.
    turned = _nearest(orthogonal(random, out, columns) @ basis)
    weight = (turned * powers[:size]) @ basis.T
    output = math.sqrt(float(np.sum((powers[:size] * values[:size]) ** 2)) / (count * out))
    weight /= output
    module.weight.copy_(torch.from_numpy(weight).reshape(module.weight.shape))
    if module.bias is not None:
        module.bias.zero_()


def _nearest(matrix: FloatArray) -> FloatArray:
    """Return the matrix with orthonormal columns that is nearest to a matrix of full rank.

    If Q is orthogonal, then that of ``matrix @ Q`` is the result times Q.
    """
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    nearest: FloatArray = left @ right
    return nearest


def _require_finite(name: str, values: FloatArray) -> None:
    if not np.isfinite(values).all():
        raise NonFiniteError(None, None, f"input of {name!r}")
    if not values.any():
        raise ArgumentError(
            "batch", f"zero as input of {name!r}", "a batch that reaches all layers"
        )


def _second_moment(module: Any, received: Any) -> tuple[FloatArray, int]:
    """Return Hᵀ H and the number of rows of H, the patches of a convolution."""
    moment: Any = 0.0
    count = 0
    size = max(1, module.weight[0].numel() * received[0].numel())
    for part in received.detach().split(max(1, _BLOCK // size)):
        patches = _patches(module, part.double())
        moment = moment + patches.T @ patches
        count += len(patches)
    matrix: FloatArray = torch.as_tensor(moment).cpu().numpy()
    return matrix, count


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
