"""The data on which models are trained: drawn by this file, or the digits of the package.

A task is a function of a number of samples that returns inputs and labels.  The same call returns
the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bnmc.experiments.training.images import digits

#: Inputs and labels; the samples are on the first axis.
Samples: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


class Task(NamedTuple):
    """Data, and the size of a batch.

    Attributes
    ----------
    samples : callable
        Returns so many inputs and labels.  Labels are integers, for the cross-entropy, or
        float64, for half the squared distance.
    batch : int
    """

    samples: Callable[[int], Samples]
    batch: int = 64


def chance_of(labels: NDArray[Any]) -> float:
    """Return the loss of the best constant output: ln C, or half the variance of the targets."""
    if labels.dtype.kind == "i":
        return math.log(labels.max() + 1)
    return 0.5 * float(labels.reshape(len(labels), -1).var(axis=0).sum())


def patterns(count: int) -> Samples:
    """Return noisy copies of ten patterns of 64 pixels, and their labels."""
    rng = np.random.default_rng(0)
    shapes = rng.random((10, 64)) * (rng.random((10, 64)) < 0.5)
    labels = rng.integers(0, 10, count)
    rows = shapes[labels] + 0.3 * rng.standard_normal((count, 64))
    return (rows - rows.mean()) / rows.std(), labels


def _shifted(count: int) -> Samples:
    inputs, labels = patterns(count)
    return inputs + 100.0, labels


def _digits(count: int) -> Samples:
    """Return handwritten digits of 64 pixels, with mean 0 and variance 1 over all pixels."""
    pixels = digits(count).T
    return (pixels - pixels.mean()) / pixels.std(), np.arange(count) % 10


def _bytes(count: int) -> Samples:
    """Return handwritten digits with grey values from 0 to 255."""
    return 255.0 * digits(count).T, np.arange(count) % 10


def _even(count: int) -> Samples:
    """Return handwritten digits; the label is whether the digit is even."""
    inputs, labels = _digits(count)
    return inputs, labels % 2


def _copied(count: int) -> Samples:
    """Return handwritten digits, as inputs and as targets."""
    inputs, _ = _digits(count)
    return inputs, inputs


def _denoised(count: int) -> Samples:
    """Return noisy handwritten digits, and the digits as targets: (count, 1, 8, 8)."""
    pixels = _digits(count)[0].reshape(count, 1, 8, 8)
    return pixels + 0.7 * np.random.default_rng(1).standard_normal(pixels.shape), pixels


def _coded(count: int) -> Samples:
    """Return 16 projections of handwritten digits, and the digits, (count, 1, 8, 8), as targets."""
    pixels, _ = _digits(count)
    codes = pixels @ np.random.default_rng(2).standard_normal((64, 16)) / 8.0
    return codes, pixels.reshape(count, 1, 8, 8)


def _gratings(count: int) -> Samples:
    """Return coloured gratings, (count, 3, 16, 16), of eight orientations, with noise."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 8, count)
    angles, phases = np.pi * labels / 8.0, 2.0 * np.pi * rng.random(count)
    x, y = np.mgrid[:16, :16]
    along = np.cos(angles)[:, None, None] * x + np.sin(angles)[:, None, None] * y
    waves = np.sin(0.5 * np.pi * along + phases[:, None, None])
    colours = rng.standard_normal((count, 3, 1, 1))
    return colours * waves[:, None] + 0.5 * rng.standard_normal((count, 3, 16, 16)), labels


def _majorities(count: int) -> Samples:
    """Return sequences of 24 tokens of 12 kinds; the label is the most frequent token."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 12, count)
    chosen = rng.random((count, 24)) < 0.4
    return np.where(chosen, labels[:, None], rng.integers(0, 12, (count, 24))), labels


def _first_tokens(count: int) -> Samples:
    """Return sequences of 60 tokens of 8 kinds; the label is the first token."""
    tokens = np.random.default_rng(5).integers(0, 8, (count, 60))
    return tokens, tokens[:, 0]


def _waves(count: int) -> Samples:
    """Return signals (count, 2, 64) of six frequencies, with noise."""
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 6, count)
    phases = 2.0 * np.pi * rng.random((count, 2, 1))
    waves = np.sin(0.2 * (1 + labels[:, None, None]) * np.arange(64) + phases)
    return waves + 0.5 * rng.standard_normal(waves.shape), labels


def _teacher(count: int, scale: float = 1.0) -> Samples:
    """Return 20 normal numbers, and four outputs of a random tanh network as targets."""
    rng = np.random.default_rng(7)
    first, last = rng.standard_normal((20, 40)) / 4.0, rng.standard_normal((40, 4)) / 6.0
    inputs = rng.standard_normal((count, 20))
    return inputs, scale * np.tanh(inputs @ first) @ last


TASKS = {
    "patterns": Task(patterns),
    "shifted": Task(_shifted),
    "patterns, four": Task(patterns, 4),
    "digits": Task(_digits),
    "digits, eight": Task(_digits, 8),
    "bytes": Task(_bytes),
    "even": Task(_even),
    "copied": Task(_copied),
    "denoised": Task(_denoised),
    "coded": Task(_coded),
    "gratings": Task(_gratings, 32),
    "majorities": Task(_majorities, 32),
    "first tokens": Task(_first_tokens, 32),
    "waves": Task(_waves, 32),
    "teacher": Task(_teacher),
    "teacher, large": Task(lambda count: _teacher(count, 100.0)),
}  # fmt: skip
