"""Absorbing events of a chain: rare layers after which samples stay dead or equal.

If an activation is constant on an interval, all d activations of a sample may lie on this flat
piece.  The layer then loses information, and some losses are permanent.  Their probabilities per
layer are of the order of q^d for some q < 1, so runs of moderate length miss them.  This file
computes them.  `activation_shape.py` finds the flat pieces and the symmetries of an
activation, and `row_patterns.py` the probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array
from bnmc.chain.chain import Chain
from bnmc.chain.needs import COUPLED, OF_A_RUN, ROW_BY_ROW, lacking, require
from bnmc.errors import ArgumentError
from bnmc.mixing.activation_shape import ActivationShape, FlatPieces, activation_shape, flat_pieces
from bnmc.mixing.row_patterns import Float64Array, OrthantRows, SampledRows

#: Events of a smaller probability per layer are left out.
_LEAST_PROBABILITY = 1e-30

#: Two samples are equal if the variance of their difference is at most this part of the sum of
#: their variances.  Rounding of a Gram matrix is of the order of 1e-16.
_EQUAL = 1e-12

#: Numbers of one temporary array, at most.
PART = 1_000_000

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
class AbsorbingEvent:
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
    size = 1 + PART // n**2
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


def _absorbed(chain: Chain, shape: ActivationShape, covariance: Float64Array) -> NDArray[np.bool_]:
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
    chain: Chain, pieces: FlatPieces, shape: ActivationShape, covariance: Float64Array
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
