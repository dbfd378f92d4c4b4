"""Probabilities that all rows of a layer put samples on flat pieces of the activation.

Given the Gram matrix G, the d rows of a layer are i.i.d.: h ~ N(0, G), x = N(h).  If q is the
probability of a pattern in one row, all rows have it with probability q^d.  `OrthantRows` has q in
closed form; it needs pieces that begin at 0.  `SampledRows` draws rows, for all other pieces.
Methods return, for each state, the sum of these probabilities over samples or pairs: (states,).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from bnmc._support.linalg import semidefinite_root
from bnmc.chain.chain import Chain
from bnmc.mixing.activation_shape import FlatPieces

Float64Array = NDArray[np.float64]
_Flags = NDArray[np.bool_]

#: Numbers that `SampledRows` draws, rows per state at least and at most, and states at least.
_NUMBERS, _LEAST_ROWS, MOST_ROWS, _LEAST_STATES = 1_500_000, 1024, 65_536, 8

#: The batch up to which all partitions into pairs are counted: 105 of them for 8 samples.
_MOST_PAIRED = 8


class OrthantRows:
    """Patterns of signs, in closed form.

    Parameters
    ----------
    covariance : (states, n, n) ndarray of float64
        Covariances of the rows that the norm sees: G, or PGP for centred rows.
    pieces : FlatPieces
        Pieces that begin at 0.
    width : int
        d.
    """

    def __init__(self, covariance: Float64Array, pieces: FlatPieces, width: int) -> None:
        states, batch = covariance.shape[:2]
        self.width = width
        self.values = pieces.value
        self.zeros = int((pieces.value == 0.0).sum())
        self.samples = np.full(states, float(batch))
        scale = np.sqrt(np.maximum(np.einsum("sii->si", covariance), 0.0))
        i, j = np.triu_indices(batch, 1)
        product = scale[:, i] * scale[:, j]
        correlation = covariance[:, i, j] / np.where(product > 0.0, product, 1.0)
        #: Probability that two samples have the same sign: positive, or negative, each.
        self.same = 0.25 + np.arcsin(np.clip(correlation, -1.0, 1.0)) / (2.0 * math.pi)
        self.other = 0.5 - self.same

    def zero(self) -> Float64Array:
        """All activations of a sample are 0; a sum over samples."""
        return self.samples * self.zeros * 0.5**self.width

    def equal(self) -> Float64Array:
        """Both activations of a pair are equal; a sum over pairs."""
        return self._sum(len(self.values) * self.same)

    def opposite(self) -> Float64Array:
        """Both activations of a pair are opposite; a sum over pairs."""
        row = self.zeros * self.same
        if len(self.values) == 2 and self.values.sum() == 0.0:
            row = row + 2.0 * self.other
        return self._sum(row)

    def one_active(self) -> Float64Array:
        """Both activations of a pair are flat except in one row, where neither is.

        For one flat piece; a sum over pairs.
        """
        return self.width * self._sum(self.same)

    def separated(self) -> Float64Array:
        """One sample of a pair is positive in all rows, the other negative; a sum over pairs."""
        return 2.0 * self._sum(self.other)

    def _sum(self, row: Float64Array) -> Float64Array:
        return (row**self.width).sum(axis=1)


class SampledRows:
    """Patterns of any pieces, from rows drawn with a fixed key.

    The probability of d rows is estimated without bias from a pattern's count c in K i.i.d. rows,
    by the share C(c, d)/C(K, d) of the sets of d rows that have the pattern throughout.  If d
    exceeds K = 65536, it is estimated by (c/K)^d, which is too large on average.

    Parameters
    ----------
    covariance : (states, n, n) ndarray of float64
        As in `OrthantRows`.  At most so many of the states are used, evenly spaced, that there are
        1.5 million numbers.
    pieces : FlatPieces
    chain : Chain
    """

    def __init__(self, covariance: Float64Array, pieces: FlatPieces, chain: Chain) -> None:
        states, batch = covariance.shape[:2]
        self.width = chain.width
        self.rows = int(np.clip(4 * chain.width, _LEAST_ROWS, MOST_ROWS))
        count = int(np.clip(_NUMBERS // (self.rows * batch), _LEAST_STATES, states))
        chosen = covariance[np.linspace(0, states - 1, min(count, states)).astype(int)]
        self.values = pieces.values
        #: (n, states, rows): for each sample contiguous.
        self.labels = np.empty((batch, len(chosen), self.rows), np.int16)
        rng = np.random.default_rng(0)
        for state, root in enumerate(semidefinite_root(chosen)):
            h = rng.standard_normal((self.rows, batch)) @ root
            x = chain.normalization(chain.gain * h, chain.eps)
            self.labels[:, state] = pieces.labels(x).T

    def zero(self) -> Float64Array:
        """All activations of a sample are 0; a sum over samples."""
        (label,) = np.flatnonzero(self.values == 0.0)
        return self._sum(labels == label for labels in self.labels)

    def equal(self) -> Float64Array:
        """Both activations of a pair are equal; a sum over pairs."""
        return self._sum(map(_agree, combinations(self.labels, 2)))

    def opposite(self) -> Float64Array:
        """Both activations of a pair are opposite; a sum over pairs."""
        #: For each label that of the opposite value; -2 is none.
        partner = np.full(len(self.values) + 1, -2, np.int16)
        for label, value in enumerate(self.values):
            partner[label] = next(iter(np.flatnonzero(self.values == -value)), -2)
        partners = partner[self.labels]
        pairs = combinations(range(len(self.labels)), 2)
        return self._sum(partners[i] == self.labels[j] for i, j in pairs)

    def one_active(self) -> Float64Array:
        """All activations of all samples are 0 except in one row."""
        (label,) = np.flatnonzero(self.values == 0.0)
        count = np.count_nonzero((self.labels == label).all(axis=0), axis=-1)
        others = _power(count, self.rows, self.width - 1)
        # Given d - 1 rows of a set of d, the last row is one of the other K - d + 1.
        active = (self.rows - count) / max(self.rows - self.width + 1, 1)
        if self.width > self.rows:
            active = 1.0 - count / self.rows
        return self.width * active * others

    def balanced(self, odd_batch: bool) -> Float64Array:
        """All pairs of a partition have the same sum of activations, in each row.

        A sum over the partitions of the batch into pairs.  If the batch is odd, one sample is alone
        and has half of the sum; the result is 0 unless `odd_batch` allows this.
        """
        batch = len(self.labels)
        if batch > _MOST_PAIRED or (batch % 2 and not odd_batch):
            return np.zeros(self.labels.shape[1])
        table = self._labels_of_sums()
        sums = {
            (i, j): table[self.labels[i], self.labels[j]]
            for i, j in combinations_with_replacement(range(batch), 2)
        }
        return self._sum(
            _agree([sums[pair] for pair in pairs]) for pairs in _partitions(list(range(batch)))
        )

    def _labels_of_sums(self) -> NDArray[np.int16]:
        """Return the label of the sum of two values by their labels; −1 where one is not flat."""
        sums = self.values[:, None] + self.values
        unit = 1e-12 * float(np.abs(self.values).max()) or 1.0
        label = np.unique(np.round(sums / unit), return_inverse=True)[1]
        table = np.full((len(sums) + 1, len(sums) + 1), -1, np.int16)
        table[:-1, :-1] = label.reshape(sums.shape)
        return table

    def _sum(self, patterns: Iterable[_Flags]) -> Float64Array:
        total = np.zeros(self.labels.shape[1])
        for pattern in patterns:
            total += _power(np.count_nonzero(pattern, axis=-1), self.rows, self.width)
        return total


def _agree(labels: Sequence[NDArray[np.int16]]) -> _Flags:
    """Return where all labels are the same and none is −1."""
    holds: _Flags = labels[0] >= 0
    for other in labels[1:]:
        holds = holds & (other == labels[0])
    return holds


def _power(count: NDArray[np.int64], rows: int, width: int) -> Float64Array:
    """Estimate q^width from the number of rows of probability q."""
    if width > rows:
        return (count / rows) ** width
    enough = count >= width
    c = np.where(enough, count, width)
    log = gammaln(c + 1) - gammaln(c - width + 1) - gammaln(rows + 1) + gammaln(rows - width + 1)
    return np.where(enough, np.exp(np.minimum(log, 0.0)), 0.0)


def _partitions(samples: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield all partitions into pairs; an odd batch has one sample in a pair with itself."""
    if not samples:
        yield []
        return
    first, rest = samples[0], samples[1:]
    if len(samples) % 2:
        yield from ([(first, first), *pairs] for pairs in _partitions(rest))
    for index, partner in enumerate(rest):
        others = rest[:index] + rest[index + 1 :]
        yield from ([(first, partner), *pairs] for pairs in _partitions(others))
