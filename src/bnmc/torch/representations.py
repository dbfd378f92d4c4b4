"""The numbers of one representation: Gram matrix, ranks, orthogonality gap, correlations, scale."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc import gram
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.torch.models import is_weight_layer, shape_of, torch

#: The rows of a representation: whole samples, or the positions of all samples.
VIEWS = ("sample", "position")

#: Eigenvalues of at least this part of their mean count for the soft rank, as in `figure norms`.
SOFT_THRESHOLD = 0.1

# Squares of larger numbers overflow float64.
_LARGEST = 1e150

#: Copies of an output that exist at a time.
_COPIES = 4

FloatArray = NDArray[np.float64]


class Numbers(NamedTuple):
    """The numbers of one representation; `bnmc.torch.Measurement` defines them."""

    gram: FloatArray
    spectrum: FloatArray
    rank: int
    rank_threshold: float
    soft_rank: int
    effective_rank: float
    rank_bound: float
    orthogonality_gap: float
    mean_correlation: float
    isometry: float
    scale: float


def channels_second(model: torch.nn.Module) -> bool:
    """Whether the second axis of a tensor of three axes is that of the features.

    Models with one-dimensional convolutions have (samples, channels, length), others have
    (samples, tokens, features).
    """
    kinds = (torch.nn.Conv1d, torch.nn.ConvTranspose1d)
    return any(isinstance(module, kinds) for module in model.modules())


def samples_first(module: torch.nn.Module, tensor: Any, samples: int) -> Any:
    """Return the output of a layer with the samples on the first axis, if they are on the second.

    Layers of PyTorch with ``batch_first=False`` have them there. If two axes have the length of the
    batch, these layers decide.
    """
    shape = tuple(tensor.shape)
    if len(shape) < 3 or shape[1] != samples:
        return tensor
    sequence_first = type(module).__module__.startswith("torch.nn.") and any(
        getattr(part, "batch_first", True) is False for part in module.modules()
    )
    return tensor.movedim(1, 0) if shape[0] != samples or sequence_first else tensor


def features_second(module: torch.nn.Module, shape: tuple[int, ...], of_model: bool) -> bool:
    """Whether the second of three axes is that of the features of a layer.

    The axis whose length is the number of outputs of the last weights of the layer is that of the
    features. If both or none have this length, `of_model` decides.
    """
    widths = [
        shape_of(part)[1 if "Transpose" in type(part).__name__ else 0]
        for part in module.modules()
        if is_weight_layer(part)
    ]
    fits = [len(shape) == 3 and widths and shape[axis] == widths[-1] for axis in (1, 2)]
    return bool(fits[0]) if fits[0] != fits[1] else of_model


def layout(shape: tuple[int, ...], second: bool) -> str:
    """Return the shape of an output in words.

    Examples
    --------
    >>> from bnmc.torch.representations import layout
    >>> layout((64, 256), False), layout((64, 16, 8, 8), False)
    ('64 samples × 256 features', '64 samples × 16 channels × 8·8 positions')
    """
    if len(shape) < 3:
        features = shape[1] if len(shape) == 2 else 1
        return f"{shape[0]} samples × {features} features"
    if len(shape) == 3 and not second:
        return f"{shape[0]} samples × {shape[1]} positions × {shape[2]} features"
    positions = "·".join(map(str, shape[2:]))
    return f"{shape[0]} samples × {shape[1]} channels × {positions} positions"


def measured(name: str, tensor: torch.Tensor, samples: int, view: str, second: bool) -> Numbers:
    """Return the numbers of the real output of a layer, with the samples on the first axis.

    `second` says whether the features of a tensor of three axes are on the second axis.
    """
    shape = tuple(tensor.shape)
    if not shape or shape[0] != samples or tensor.numel() == 0 or tensor.is_complex():
        allowed = f"layers with real outputs of {samples} samples on the first axis"
        raise ArgumentError("layers", f"{name!r}, with an output of shape {shape}", allowed)
    # The output and its rows in float64, with copies of them, and the Gram matrix.
    size = 8 * (_COPIES * tensor.numel() + samples**2)
    require_memory("batch", size, "take fewer samples, or other layers=")
    precision = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else np.spacing(1.0)
    values: FloatArray = tensor.detach().to("cpu", torch.float64).numpy()
    largest = float(np.abs(values).max())
    if not largest < _LARGEST:
        raise NonFiniteError(None, None, f"output of {name!r}")
    whole = values.reshape(samples, -1)
    matrix = gram.cross_gram(whole.T, whole.T)  # `gram` warns if there are fewer features
    if view == "sample" or len(shape) < 3:
        return _numbers(matrix, whole, float(precision))
    axis = 1 if second or len(shape) > 3 else -1
    rows = np.moveaxis(values, axis, -1).reshape(-1, shape[axis])
    return _numbers(matrix, rows, float(precision))


def mean_correlation(batch: torch.Tensor) -> float:
    """Return the mean cosine of two samples of a batch that are not zero."""
    values: FloatArray = batch.detach().to("cpu", torch.float64).flatten(1).numpy()
    return _mean_correlation(values)


def _numbers(matrix: FloatArray, rows: FloatArray, precision: float) -> Numbers:
    """Return the numbers of rows, (n, width), with the Gram matrix of the samples given."""
    n, width = rows.shape
    scale = math.sqrt(float(np.mean(np.square(rows))))
    threshold = max(n, width) * precision
    size = min(n, width)
    if scale == 0.0:
        none = math.nan
        return Numbers(matrix, np.zeros(size), 0, threshold, 0, 0.0, 0.0, none, none, 0.0, 0.0)
    values = _singular_values(rows)
    spectrum = np.square(values)[::-1] / width
    rank = int(np.count_nonzero(values > threshold * values[0]))
    # The functions of Gram matrices depend on the non-zero eigenvalues only, which the smaller of
    # the two products of the rows has too.
    small = np.diag(spectrum)
    bound = float(gram.rank_bound(small))
    soft = int(np.count_nonzero(spectrum >= SOFT_THRESHOLD * spectrum.mean()))
    shares = values[values > 0.0] / values.sum()
    effective = math.exp(-float((shares * np.log(shares)).sum()))
    if size == n:
        unit = spectrum / spectrum.mean()
        gap = float(gram.orthogonality_gap(small))
        isometry = math.exp(float(np.log(unit).mean())) if rank == n else 0.0
    else:  # ‖G/Tr G − I/n‖² = 1/r − 1/n, and 1/r is at least 1/width
        gap, isometry = math.sqrt(1.0 / bound - 1.0 / n), 0.0
    return Numbers(
        matrix, spectrum, rank, threshold, soft, effective, bound, gap, _mean_correlation(rows),
        isometry, scale,
    )  # fmt: skip


def _singular_values(rows: FloatArray) -> FloatArray:
    """Return the singular values, descending, relative to the largest one exact to rounding."""
    long = rows if rows.shape[0] > rows.shape[1] else rows.T
    values: FloatArray = np.linalg.svd(np.linalg.qr(long, mode="r"), compute_uv=False)
    return values


def _mean_correlation(rows: FloatArray) -> float:
    """Return the mean cosine of two rows that are not zero; NaN if there are no two such rows.

    The sum over all pairs is ``‖Σ u_i‖²`` with the unit vectors u_i, so no matrix of pairs is made.
    """
    largest = np.abs(rows).max(axis=1)
    present = rows[largest > 0.0] / largest[largest > 0.0, None]
    count = len(present)
    if count < 2:
        return math.nan
    total = (present / np.linalg.norm(present, axis=1)[:, None]).sum(axis=0)
    return float((total @ total - count) / (count * (count - 1)))
