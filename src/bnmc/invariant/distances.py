"""Distances of the stationary law from independent rows N(0, G*), G* the fixed point.

The report of `check` shows them without a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from bnmc import gram as gm
from bnmc import random_matrix
from bnmc._claims.claims import squares
from bnmc._claims.evidence import LEVEL, Claim, FloatArray, reported
from bnmc.bounds import bridging, orthogonalizes
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError, SingularGramError
from bnmc.mean_field import FixedPoint
from bnmc.mean_field.field import MeanField

#: Eigenvalues of G* below this share of the largest are rounding errors of the quadrature.
_NULL = 1e-9


def distances(
    chain: Chain,
    gram: FloatArray,
    square: FloatArray,
    one_step: FloatArray,
    generator: np.random.Generator,
) -> Iterator[Claim]:
    """Yield the rows without a test.

    Parameters
    ----------
    chain : Chain
    gram, square : (samples, n, n) ndarray of float64
        Gram matrices of the activations, and of h / gain, both over the width.
    one_step : (samples,) ndarray of float64
        Variance of the whitened spectrum after one step over that of Marchenko and Pastur's law.
    generator : numpy.random.Generator
        For draws from N(0, G*) and N(0, G).
    """
    yield from _from_star(chain, gram, square, generator)
    yield reported("spectrum, one step: variance over Marchenko–Pastur's n/d", one_step)
    centred = gm.eigenvalues(gm.centre(gram))[:, 1:]
    mean = centred.mean(axis=1)
    if chain.batch > 2 and (mean > _NULL * np.trace(gram, 0, 1, 2)).all():
        ratio = chain.batch / chain.width
        yield reported(
            "spectrum of G, centred: variance over Marchenko–Pastur's n/d",
            centred.var(axis=1) / mean**2 / ratio,
        )


@lru_cache(maxsize=16)
def _fixed_point(chain: Chain) -> FixedPoint | None:
    """Return the fixed point of the mean field, or None if there is none."""
    try:
        return MeanField(chain).fixed_point()
    except (ArgumentError, PartialEstimateError):
        return None


@lru_cache(maxsize=16)
def _epsilon_squared(chain: Chain, star: FixedPoint) -> float | None:
    """Return ε² of Lemma 5 with constant 1, or None if the lemma does not apply to the chain."""
    if not chain.normalization.hides_common_part:
        return None
    try:
        gamma = bridging.distortion(chain.activation, chain.batch)
        bound = bridging.lemma_5(
            width=chain.width, batch=chain.batch, star=star.gram, distortion=gamma
        )
    except (ArgumentError, ArgumentTypeError, SingularGramError):
        return None
    return float(bound)


def _from_star(
    chain: Chain, gram: FloatArray, square: FloatArray, generator: np.random.Generator
) -> Iterator[Claim]:
    """Yield the rows about G*, whitened by G* in its range, if there is a fixed point."""
    star = _fixed_point(chain) if chain.is_gaussian else None
    if star is None:
        return
    values, vectors = np.linalg.eigh(star.gram)
    regular = values > _NULL * values[-1]
    whiten = vectors[:, regular] / np.sqrt(values[regular])
    m = whiten.shape[1]
    relative = whiten.T @ gram @ whiten
    spectrum = np.linalg.eigvalsh(relative)
    printed = _epsilon_squared(chain, star)
    if chain.width >= m:
        wishart = _wishart(chain.width, m, len(gram), generator)
        above = _given_gram(spectrum, wishart, chain.width)
        yield reported("distance of h from N(0, G*)ᵈ, at most", above, printed)
        yield _kolmogorov(
            "distance of h from N(0, G*)ᵈ, at least",
            squares(whiten.T @ square @ whiten - np.eye(m)),
            squares(wishart - np.eye(m)),
            printed,
        )
    wasserstein = random_matrix.wasserstein(gram, star.gram) ** 2
    yield reported("W₂² of a row given G from N(0, G*)", wasserstein)
    if chain.activation.is_linear and m > 1:
        yield from _of_linear(chain.width, np.maximum(spectrum, 0.0))
    else:
        gaps, limit = gm.orthogonality_gap(gram), float(gm.orthogonality_gap(star.gram))
        yield reported("orthogonality gap of G, beside that of G*", gaps, limit)


def _wishart(d: int, m: int, count: int, generator: np.random.Generator) -> FloatArray:
    """Draw ZᵀZ/d for d × m standard normal Z, d >= m, by Bartlett's factor."""
    factor = np.tril(generator.standard_normal((count, m, m)), -1)
    diagonal = np.sqrt(generator.chisquare(d - np.arange(m), size=(count, m)))
    factor[:, range(m), range(m)] = diagonal
    return factor @ factor.swapaxes(1, 2) / d


def _given_gram(spectrum: FloatArray, wishart: FloatArray, d: int) -> FloatArray:
    """Draw (1 − q(h)/p(h))₊, h ~ p, whose mean is the total variation of p from q.

    The d rows are N(0, diag λ) under p and N(0, I) under q.  With S = `wishart`, their second
    moments whitened by p, ln q/p = ½ d Σ_i (ln λ_i − (λ_i − 1) S_ii).
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(spectrum, 0.0)).sum(axis=1)
    quadratic = ((spectrum - 1.0) * np.diagonal(wishart, 0, 1, 2)).sum(axis=1)
    return -np.expm1(np.minimum(0.5 * d * (logs - quadratic), 0.0))


def _kolmogorov(claim: str, first: FloatArray, second: FloatArray, printed: float | None) -> Claim:
    """Report Kolmogorov's distance of two samples, with the Dvoretzky–Kiefer–Wolfowitz band."""
    points = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(x), points, "right") / len(x) for x in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    # Each sample deviates by more than half of this with probability (1 − level)/2.
    band = 2.0 * math.sqrt(math.log(4.0 / (1.0 - LEVEL)) / (2.0 * len(first)))
    interval = max(0.0, distance - band), min(1.0, distance + band)
    return Claim(claim, distance, printed, None, interval)


def _of_linear(d: int, spectrum: FloatArray) -> Iterator[Claim]:
    """Yield the rows for linear chains, with m the dimension that centring leaves."""
    m = spectrum.shape[1]
    shares = spectrum / spectrum.sum(axis=1, keepdims=True)
    squared = np.square(shares - 1.0 / m).sum(axis=1)
    gaps = np.sqrt(squared)
    leading = float(orthogonalizes.stationary_squared_gap(d, m))
    yield reported("orthogonality gap squared, beside (m−1)(m+2)²/(4m(m+1)d)", squared, leading)
    bound = 2.0 * m * float(gaps.mean())
    distance = orthogonalizes.wasserstein_squared(spectrum)
    yield reported("W₂² of W H from N(0, I/m), beside 2m E V", distance, bound)
    least = float(shares.min())
    if least > _NULL:
        plateau = 3.0 * m / (least * math.sqrt(d))
        yield reported("orthogonality gap, beside 3m/(α√d)", gaps, plateau)
