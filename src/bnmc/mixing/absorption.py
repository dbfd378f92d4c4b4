"""Absorbing events of a chain: rare layers after which samples stay dead or equal.

If an activation is constant on an interval, all d activations of a sample may lie on this flat
piece.  The layer then loses information, and some losses are permanent.  Their probabilities per
layer are of the order of q^d for some q < 1, so runs of moderate length miss them.  This file
computes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from bnmc._support.arguments import Float64Array, finite_array
from bnmc._support.linalg import semidefinite_root
from bnmc._support.text import Result
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.needs import COUPLED, OF_A_RUN, ROW_BY_ROW, lacking, require
from bnmc.errors import ArgumentError

#: Events of a smaller probability per layer are left out.
_LEAST_PROBABILITY = 1e-30

#: Two samples are equal if the variance of their difference is at most this part of the sum of
#: their variances.  Rounding of a Gram matrix is of the order of 1e-16.
_EQUAL = 1e-12

#: Numbers of one temporary array, at most.
_PART = 1_000_000

_DEAD = ("dead sample", "All activations of a sample are 0; they stay 0 in all later layers.")
_COINCIDING = (
    "coinciding samples",
    "The activations of two samples are equal in all rows; they stay equal in all later layers.",
)
_OPPOSITE = (
    "opposite samples",
    "The activations of two samples are opposite in all rows; they stay opposite in all later "
    "layers.",
)
_OPPOSITE_EVEN = (
    "opposite samples",
    "The activations of two samples are opposite in all rows; they coincide in all later layers.",
)
_COLLINEAR = (
    "collinear samples",
    "The activations of two samples have the same positive ratio in all rows; their correlation "
    "stays 1 in all later layers.",
)
_RANK_ONE = (
    "one active row",
    "The activations are 0 in all rows but one; the Gram matrix has rank 1 in all later layers.",
)
_BALANCED = (
    "balanced pairs",
    "In each row, the activations of all pairs of a partition of the batch have the same sum; the "
    "two samples of each pair stay opposite in all later layers.",
)


@dataclass(frozen=True)
class AbsorbingEvent(Result):
    """An event of one layer that restricts all later layers.

    Attributes
    ----------
    name : str
        For example "dead sample".
    description : str
        One sentence.
    probability : float
        Probability per layer, summed over all samples or pairs of samples (union bound), at most 1.
        If `is_bound`, an upper bound that does not depend on the Gram matrix of the layer before.
        Otherwise the mean over the given Gram matrices.
    stderr : float
        Standard error of the mean over the given states; 0.0 if `is_bound`, and infinite if only
        one of the given states was not yet absorbed.
    is_bound : bool
        Whether `probability` is an upper bound for all Gram matrices, rather than a mean.

    Examples
    --------
    >>> from bnmc.mixing import AbsorbingEvent
    >>> event = AbsorbingEvent("dead sample", "All outputs are 0.", 1e-5, 0.0, is_bound=True)
    >>> round(1 / event.probability)  # layers per event, on average
    100000
    """

    name: str
    description: str
    probability: float
    stderr: float
    is_bound: bool


def absorbing_events(chain: Chain, grams: ArrayLike) -> tuple[AbsorbingEvent, ...]:
    r"""Compute the probabilities per layer of the known absorbing events of a chain.

    Parameters
    ----------
    chain : Chain
        With norm "batch" or "batch-uncentred" before the activation, Gaussian weights, no skip
        connection and no bias that the norm shows.
    grams : (states, n, n) array_like
        At least two Gram matrices of the chain, from independent replicates: the rows of the next
        layer are i.i.d. N(0, G).  States that are already absorbed are left out of the means.

    Returns
    -------
    tuple of AbsorbingEvent
        The most probable event first.  Events with a probability below 1e-30 per layer are left
        out.  Empty if the activation has no flat piece.  If all states are absorbed already, one
        event with probability 1.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Notes
    -----
    A flat piece is an interval on which σ is constant.  With d rows, a row x = N(h), h ~ N(0, G),
    and activations a = σ(x), the events are:

    ================== ======================================== ==============================
    name               event                                    condition
    ================== ======================================== ==============================
    dead sample        :math:`a_i = 0` in all rows              uncentred; σ(0) = 0
    coinciding samples :math:`a_i = a_j` in all rows            none
    opposite samples   :math:`a_i = -a_j` in all rows           uncentred; σ odd or even
    collinear samples  :math:`a_i = c a_j` in all rows, c > 0   uncentred; σ homogeneous for x > 0
                                                                and for x < 0
    one active row     a = 0 in d − 1 rows                      uncentred; σ odd, even, or 0 on one
                                                                side of 0 and of one sign on the
                                                                other
    balanced pairs     :math:`a_i + a_j` is the same for all    centred; σ odd up to a constant
                       pairs of a partition of the batch
    ================== ======================================== ==============================

    In exact arithmetic each event is permanent: a linear relation between the activations of two
    samples holds for h in the next layer, N preserves it, and σ preserves it under the condition in
    the table.  Centring preserves equality.  It does not preserve 0, so a dead sample revives if
    rows are centred.  If all samples die, or coincide under the centred norm, the next layer raises
    `ZeroVarianceError`.

    If the flat pieces begin at 0, as those of relu and of step functions do, the probability of a
    pair has a closed form, with ρ the correlation of the two samples under G, or under PGP for
    centred rows (P projects out the mean):

    .. math:: P(h_i \le 0, h_j \le 0) = \frac14 + \frac{\arcsin \rho}{2\pi}.

    Otherwise 1024 rows or more are drawn for each of some states, with a fixed key.  The estimate
    is unbiased for widths up to 65536, and too large on average for larger widths.

    Not covered:

    - the event "balanced pairs" of a batch of more than 8;
    - a Gram matrix of rank 1 whose rows are proportional without the events of the table, which
      needs an activation with two flat values of different size, neither of them 0;
    - convergence to an absorbing set over many layers, by contraction, as of linear chains of small
      width;
    - flat pieces shorter than 1/1000 of the range of x, unless both ends are declared as kinks;
    - functions that are constant by rounding only, such as tanh beyond 19.

    Examples
    --------
    >>> from bnmc.mixing.absorption import absorbing_events
    >>> import numpy as np
    >>> import bnmc
    >>> chain = bnmc.Chain(16, 2, "relu", norm="batch-uncentred")
    >>> run = bnmc.simulate(chain, 20, chains=100, rng=0)
    >>> for event in absorbing_events(chain, run.gram[:, -1]):
    ...     print(f"{event.name}: {event.probability:.2g} per layer")
    dead sample: 3.1e-05 per layer
    collinear samples: ...e-0... per layer
    """
    require(chain, COUPLED, OF_A_RUN)
    require(chain, ROW_BY_ROW, "no absorbing event of other layers is known")
    n = chain.batch
    covariance = finite_array("grams", grams, shape=("states", n, n)).astype(np.float64)
    if len(covariance) < 2:
        raise ArgumentError("grams", covariance.shape, "at least two states")
    if chain.normalization.dimensions(n) == 1 and chain.eps == 0.0:
        # x is (1, −1) or (−1, 1) in every row of a centred batch of two.
        above, below = chain.activation(np.array([1.0, -1.0]))
        return (AbsorbingEvent(*_COINCIDING, 1.0, 0.0, True),) if above == below else ()
    reach = math.sqrt(chain.normalization.dimensions(n))
    pieces = flat_pieces(chain.activation, reach)
    if not len(pieces):
        return ()
    shape = activation_shape(chain.activation, reach)
    if chain.normalization.hides_common_part:
        covariance = covariance - covariance.mean(axis=1, keepdims=True)
        covariance -= covariance.mean(axis=2, keepdims=True)
    size = 1 + _PART // n**2
    absorbed = [_absorbed(chain, shape, covariance[first : first + size])
                for first in range(0, len(covariance), size)]  # fmt: skip
    alive = covariance[~np.concatenate(absorbed)]
    if not len(alive):
        return (AbsorbingEvent("absorbed", "All given states are absorbed.", 1.0, 0.0, True),)
    likely = [event for event in _events(chain, pieces, shape, alive)
             if event.probability >= _LEAST_PROBABILITY]  # fmt: skip
    return tuple(sorted(likely, key=lambda event: -event.probability))


def may_be_absorbed(chain: Chain) -> bool:
    """Return whether `absorbing_events` can find an event, whatever the states.

    Parameters
    ----------
    chain : Chain
        As in `absorbing_events`.

    Returns
    -------
    bool
        False if the activation has no flat piece on the range of x.  Also for convolutions, norms
        over the features, other orders, and biases that the norm shows: no event is known.
    """
    if lacking(chain, ROW_BY_ROW):
        return False
    dimensions = chain.normalization.dimensions(chain.batch)
    return dimensions == 1 or len(flat_pieces(chain.activation, math.sqrt(dimensions))) > 0


def _absorbed(chain: Chain, shape: _ActivationShape, covariance: Float64Array) -> NDArray[np.bool_]:
    """Return which states are absorbed already, (states,)."""
    variance = np.maximum(np.einsum("sii->si", covariance), 0.0)
    total = variance[:, :, None] + variance[:, None, :]
    other = ~np.eye(covariance.shape[-1], dtype=np.bool_)
    equal = (total - 2.0 * covariance <= _EQUAL * total) & other
    zero = variance <= _EQUAL**2 * variance.max(axis=1, keepdims=True)
    opposite = total + 2.0 * covariance <= _EQUAL * total
    absorbed: NDArray[np.bool_] = equal.any(axis=(1, 2))
    if chain.normalization.hides_common_part:
        if shape.is_odd_about_centre:
            alone = zero[:, :, None] & ~other & shape.is_centred_at_zero
            absorbed |= ((opposite & other) | alone).any(axis=2).all(axis=1)
        return absorbed
    if shape.is_zero_at_zero:
        absorbed |= zero.any(axis=1)
    if shape.has_parity:
        absorbed |= (opposite & other).any(axis=(1, 2))
    scale = np.sqrt(variance)
    product = scale[:, :, None] * scale[:, None, :]
    collinear = product * (1.0 - _EQUAL) <= covariance
    if shape.degree is not None:
        absorbed |= (collinear & other).any(axis=(1, 2))
    if shape.preserves_lines:
        signed = product * (1.0 - _EQUAL) <= np.abs(covariance) if shape.has_parity else collinear
        absorbed |= signed.all(axis=(1, 2))
    return absorbed


def _events(
    chain: Chain, pieces: FlatPieces, shape: _ActivationShape, covariance: Float64Array
) -> Iterator[AbsorbingEvent]:
    signs = OrthantRows(covariance, pieces, chain.width) if pieces.depends_on_signs else None
    sampled = cache(lambda: SampledRows(covariance, pieces, chain))
    rows = signs or sampled()
    centred = chain.normalization.hides_common_part
    dies = bool((pieces.value == 0.0).any()) and shape.is_zero_at_zero and not centred
    if dies:
        yield _mean(_DEAD, rows.zero(), is_bound=signs is not None)
    # If 0 is the only flat value, samples that coincide are dead.
    if not dies or pieces.value.any():
        yield _mean(_COINCIDING, rows.equal())
    if centred:
        if shape.is_odd_about_centre:
            yield _mean(_BALANCED, sampled().balanced(shape.is_centred_at_zero))
        return
    if shape.has_parity and pieces.value.any():
        yield _mean(_OPPOSITE if shape.is_odd else _OPPOSITE_EVEN, rows.opposite())
    if signs and shape.degree == 0.0 and shape.above * shape.below > 0.0:
        yield _mean(_COLLINEAR, signs.separated())
    if signs and shape.degree and shape.is_one_sided:
        yield _mean(_COLLINEAR, signs.one_active())
    elif shape.preserves_lines and shape.degree is None and (pieces.value == 0.0).any():
        yield _mean(_RANK_ONE, sampled().one_active())


def _mean(kind: tuple[str, str], sums: Float64Array, is_bound: bool = False) -> AbsorbingEvent:
    """Return an event from its union bound in each state."""
    sums = np.minimum(sums, 1.0)
    stderr = float(sums.std(ddof=1) / math.sqrt(len(sums))) if len(sums) > 1 else math.inf
    return AbsorbingEvent(*kind, float(sums.mean()), 0.0 if is_bound else stderr, is_bound)


# --- probabilities that all rows of a layer put samples on flat pieces of the activation
#
# Given the Gram matrix G, the d rows of a layer are i.i.d.: h ~ N(0, G), x = N(h).  If q is the
# probability of a pattern in one row, all rows have it with probability q^d.  `OrthantRows` has q
# in closed form; it needs pieces that begin at 0.  `SampledRows` draws rows, for all other pieces.
# Methods return, for each state, the sum of these probabilities over samples or pairs: (states,).

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


# --- the shape of an activation: intervals on which it is constant, and symmetries
#
# The symmetries make linear relations between samples permanent.

#: Number of points of each sign where the symmetries are tested, and relative tolerance.
_POINTS, _TOLERANCE = 2000, 1e-12

#: Intervals of the grid that is searched.  A flat piece shorter than three of them is found only
#: if both of its ends are declared as kinks.
_INTERVALS = 6000

#: Points inside a run of equal values that must have the same value, and bisections of its ends.
_INNER_POINTS, _BISECTIONS = 33, 64


@dataclass(frozen=True)
class _ActivationShape:
    """Symmetries of an activation σ on [−reach, reach].

    Attributes
    ----------
    is_zero_at_zero : bool
        Whether σ(0) = 0.
    is_odd, is_even : bool
        Whether σ(−x) = −σ(x), and σ(−x) = σ(x), for x > 0.
    is_odd_about_centre : bool
        Whether σ(x) + σ(−x) is the same for all x > 0.
    is_centred_at_zero : bool
        Whether that sum is 2 σ(0).
    degree : float or None
        p >= 0 if σ(x) = A x^p and σ(−x) = B x^p for x > 0 with constants A, B not both 0.
    above, below : float
        A and B; 0.0 if `degree` is None.
    is_one_sided : bool
        Whether σ is 0 on one side of 0, and not of both signs on the other side.
    """

    is_zero_at_zero: bool
    is_odd: bool
    is_even: bool
    is_odd_about_centre: bool
    is_centred_at_zero: bool
    degree: float | None
    above: float
    below: float
    is_one_sided: bool

    @property
    def has_parity(self) -> bool:
        """Whether σ is odd or even."""
        return self.is_odd or self.is_even

    @property
    def preserves_lines(self) -> bool:
        """Whether uncentred Gram matrices of rank 1 stay of rank 1.

        If G = v vᵀ, all rows are multiples of v, and N takes them to u or −u with u = N(v).  So
        σ(u) and σ(−u) must be proportional.
        """
        return self.has_parity or self.is_one_sided


def activation_shape(activation: Activation, reach: float) -> _ActivationShape:
    """Return the symmetries of an activation, tested at points of [−reach, reach].

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.mixing.absorption import activation_shape
    >>> shape = activation_shape(Activation.named("relu"), 3.0)
    >>> shape.degree, shape.above, shape.below, shape.is_one_sided
    (1.0, 1.0, 0.0, True)
    """
    # The golden ratio keeps the points off 0 and off round numbers, where σ may jump: values at
    # jumps have probability 0, and may break the symmetry.
    x = reach * (np.arange(_POINTS) + 0.5 * (math.sqrt(5.0) - 1.0)) / _POINTS
    above = np.asarray(activation(x), np.float64)
    below = np.asarray(activation(-x), np.float64)
    zero = float(activation(np.zeros(1))[0])
    size = _TOLERANCE * float(max(np.abs(above).max(), np.abs(below).max()))

    def agree(a: Float64Array, b: Float64Array | float) -> bool:
        return bool((np.abs(a - b) <= size).all())

    total = above + below
    degree, factor_above, factor_below = _power_law(x, above, below, size)
    one_sided = not above.any() or not below.any()
    signed = bool((total >= 0.0).all() or (total <= 0.0).all())
    return _ActivationShape(
        is_zero_at_zero=zero == 0.0,
        is_odd=agree(above, -below),
        is_even=agree(above, below),
        is_odd_about_centre=agree(total, float(total[0])),
        is_centred_at_zero=bool(abs(total[0] - 2.0 * zero) <= size),
        degree=degree,
        above=factor_above,
        below=factor_below,
        is_one_sided=one_sided and signed,
    )


def _power_law(
    x: Float64Array, above: Float64Array, below: Float64Array, size: float
) -> tuple[float | None, float, float]:
    """Return the common degree of both sides and their factors, if both are powers."""
    larger = above if abs(above[-1]) >= abs(below[-1]) else below
    middle = larger[len(x) // 2]
    if larger[-1] * middle > 0.0:
        degree = math.log(larger[-1] / middle) / math.log(x[-1] / x[len(x) // 2])
        degree = round(degree, 9) + 0.0
        powers = x**degree
        sides = np.stack([above, below])
        factors = sides[:, -1] / powers[-1]
        if degree >= 0.0 and (np.abs(sides - factors[:, None] * powers) <= 1e3 * size).all():
            return degree, float(factors[0]), float(factors[1])
    return None, 0.0, 0.0


@dataclass(frozen=True)
class FlatPieces:
    """The flat pieces of an activation on [−reach, reach], in increasing order.

    Attributes
    ----------
    low, high : (pieces,) ndarray of float64
        Ends of the pieces.  A piece that ends at ±reach has the end ±inf here.
    value : (pieces,) ndarray of float64
        Value of the activation on each piece.
    """

    low: Float64Array
    high: Float64Array
    value: Float64Array

    def __len__(self) -> int:
        return len(self.value)

    @property
    def depends_on_signs(self) -> bool:
        """Whether each piece is a half-line that begins at 0, so that signs decide the piece."""
        above = (self.low == 0.0) & np.isposinf(self.high)
        below = np.isneginf(self.low) & (self.high == 0.0)
        return bool((above | below).all())

    @property
    def values(self) -> Float64Array:
        """The distinct values, in increasing order."""
        return np.unique(self.value)

    def labels(self, x: Float64Array) -> NDArray[np.int16]:
        """Return for each entry of x the index of its value in `values`; −1 outside the pieces."""
        piece = np.searchsorted(self.low, x, side="right") - 1
        inside = (piece >= 0) & (x <= self.high[piece])
        index = np.searchsorted(self.values, self.value)
        return np.where(inside, index[piece], -1).astype(np.int16)


def flat_pieces(activation: Activation, reach: float) -> FlatPieces:
    """Find the flat pieces of an activation on [−reach, reach].

    Parameters
    ----------
    activation : Activation
    reach : float
        Positive.

    Returns
    -------
    FlatPieces
        Pieces shorter than reach/1000 are missing, unless both ends are declared as kinks.  Ends
        are exact to one unit in the last place, and to 1e-12 reach near 0.

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.mixing.absorption import flat_pieces
    >>> flat_pieces(Activation.named("relu"), 3.0)
    FlatPieces(low=array([-inf]), high=array([0.]), value=array([0.]))
    """
    if activation.builtin and activation.name != "relu":
        # The others are strictly monotone on intervals: they are constant by rounding only.
        return FlatPieces(*np.empty((3, 0)))
    x = _grid(activation, reach)
    y = np.asarray(activation(x), np.float64)
    bounds = np.flatnonzero(np.concatenate([[True], y[1:] != y[:-1], [True]]))
    first, last = bounds[:-1], bounds[1:] - 1
    long = last - first >= 2
    first, last = first[long], last[long]
    inner = np.linspace(0.0, 1.0, _INNER_POINTS + 2)[1:-1, None]
    probes = x[first] + (x[last] - x[first]) * (inner + 0.1 * np.sin(inner * 40.0) / _INNER_POINTS)
    flat = (np.asarray(activation(probes), np.float64) == y[first]).all(axis=0)
    first, last = first[flat], last[flat]
    value = y[first] + 0.0  # -0.0 and 0.0 are one value
    low = _end(activation, value, x[first], x[np.maximum(first - 1, 0)])
    high = _end(activation, value, x[last], x[np.minimum(last + 1, len(x) - 1)])
    low[first == 0] = -np.inf
    high[last == len(x) - 1] = np.inf
    for end in (low, high):
        end[np.abs(end) <= 1e-12 * reach] = 0.0
    return FlatPieces(low, high, value)


def _grid(activation: Activation, reach: float) -> Float64Array:
    """Return the points where the activation is evaluated, in increasing order, without 0."""
    # The value at a point of discontinuity may be that of neither side: evaluate beside it, and
    # within each interval between kinks at points enough to see a run.
    kinks = np.array([kink for kink in activation.kinks if abs(kink) < reach])
    ends = np.concatenate([[-reach], kinks, [reach]])
    shares = np.array([0.01, 0.2, 0.5, 0.8, 0.99])[:, None]
    between = ends[:-1] + shares * np.diff(ends)
    even = np.linspace(-reach, reach, _INTERVALS)  # an even number of points: 0 is none of them
    return np.unique(np.concatenate([even, between.ravel()]))


def _end(activation: Activation, value: Float64Array, inside: Any, outside: Any) -> Float64Array:
    """Bisect between points where the activation has a value and points where it has another."""
    inside, outside = inside.copy(), outside.copy()
    for _ in range(_BISECTIONS):
        middle = 0.5 * (inside + outside)
        equal = np.asarray(activation(middle), np.float64) == value
        inside = np.where(equal, middle, inside)
        outside = np.where(equal, outside, middle)
    return inside
