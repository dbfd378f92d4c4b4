"""What the calls of a step on one state say, and exact tests of it.

Given h, rows of R = (h′ − skip x)/gain are independent N(0, G).  In an orthonormal basis of the
range of G, scaled, they become Z, (width, rank): independent standard normals, whatever h.  All
tails below are those of χ² and normal laws, but for the two of Kolmogorov and Smirnov, where the
inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant bounds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.claims import Layer
from bnmc._claims.evidence import Claim

__all__ = ["OnOneState", "claims"]

FloatArray = NDArray[np.float64]

#: Share of the variance of a coordinate of Z that a single weight must have, to be read off it.
LEVERAGE = 0.99


class OnOneState:
    """Sums over the calls on one state.

    Attributes
    ----------
    name : str
    layer : Layer
        Of one sample, the state.
    calls : int
    rank : int
    outside : float
        Largest mean square outside the range of G, in units of what rounding explains.
    total : (width, rank) ndarray
        Σ Z over calls.
    root : (rank, rank) ndarray
        Triangular, with Σ ZᵀZ = rootᵀ root.
    square : (batch, batch) ndarray
        Σ RᵀR over calls.
    moved : (width, batch) ndarray
        Σ R over calls.
    shift : (width, rank) ndarray
        x in the coordinates of Z.
    last : (width, batch) ndarray
        R of the last call.
    energies, norms, readings : list of ndarray
        |Z|² of calls, |Z_r|² of rows, and √width times single weights where they can be read.
    common : float
        Σ |Σ_r Z_r|²/width over calls.
    neighbours, pairs : (float, float)
        Σ ⟨A, B⟩ and Σ |A|² for rows 2j, 2j + 1 of a call, and for calls 2k, 2k + 1.
    """

    def __init__(self, name: str, layer: Layer, rounding: float) -> None:
        self.name, self.layer = name, layer
        values, vectors = np.linalg.eigh(layer.gram[0])
        n = values.size
        # As in `bnmc._claims.claims.of_one_step`.
        self._null = n * max(64 * np.finfo(np.float64).eps, 100 * rounding**2) * values[-1]
        regular = values > self._null
        self._outside = vectors[:, ~regular]
        self._whiten = vectors[:, regular] / np.sqrt(values[regular])
        self.rank = int(regular.sum())
        d = layer.x.shape[1]
        whitened = self.whitened(layer.a[0])
        leverage = np.square(whitened).sum(axis=1) / d
        largest = int(leverage.argmax())
        self._reader = None
        if leverage[largest] >= LEVERAGE:
            self._reader = whitened[largest] / math.sqrt(d * leverage[largest])
        self.shift = self.whitened(layer.x[0])
        self.calls, self.outside, self.common = 0, 0.0, 0.0
        self.total = np.zeros((d, self.rank))
        self.root = np.zeros((0, self.rank))
        self.square, self.moved = np.zeros((n, n)), np.zeros((d, n))
        self.last = np.zeros((d, n))
        self.energies: list[FloatArray] = []
        self.norms: list[FloatArray] = []
        self.readings: list[FloatArray] = []
        self.neighbours = self.pairs = (0.0, 0.0)

    def add(self, rest: FloatArray) -> None:
        """Take R of an even number of calls, (calls, width, batch)."""
        d = rest.shape[1]
        self.calls += len(rest)
        flat = rest.reshape(-1, rest.shape[2])
        self.square += flat.T @ flat
        self.moved += rest.sum(axis=0)
        self.last = rest[-1]
        excess = np.square(rest @ self._outside).sum(axis=(1, 2)) / d
        self.outside = max(self.outside, float(excess.max()) / (10 * self._null))
        z = self.whitened(rest)
        self.total += z.sum(axis=0)
        root = np.linalg.qr(np.vstack([self.root, z.reshape(-1, self.rank)]), mode="r")
        self.root = np.asarray(root)
        norms = np.square(z).sum(axis=2)
        self.norms.append(norms.ravel())
        self.energies.append(norms.sum(axis=1))
        if self._reader is not None:
            self.readings.append((z @ self._reader).ravel())
        self.common += float(np.square(z.sum(axis=1)).sum()) / d
        self.neighbours = _plus(self.neighbours, z[:, 0 : d - 1 : 2], z[:, 1:d:2])
        self.pairs = _plus(self.pairs, z[0::2], z[1::2])

    def whitened(self, rows: FloatArray) -> FloatArray:
        """Return rows (..., batch) in the coordinates of Z, (..., rank)."""
        z: FloatArray = rows @ self._whiten
        return z

    @property
    def variance(self) -> float:
        """Mean square of the entries of Z, which is 1 in expectation."""
        return float(np.concatenate(self.energies).sum()) / self._numbers

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the samples over calls, of the mean row: G in expectation."""
        about_mean: FloatArray = self.square - self.moved.T @ self.moved / self.calls
        return about_mean / ((self.calls - 1) * len(self.total))

    @property
    def _numbers(self) -> int:
        return self.calls * self.total.size


def claims(states: Sequence[OnOneState]) -> Iterator[Claim]:
    """Yield the tests: of all states together, then of each."""
    numbers = [state._numbers for state in states]
    energy = [state.variance * count for state, count in zip(states, numbers, strict=True)]
    width = len(states[0].total)
    yield _chi2("variance, whitened", sum(energy), sum(numbers))
    yield _normal(
        "calls independent", sum(state.pairs[0] for state in states),
        sum(state.pairs[1] for state in states), sum(numbers) / 2,
    )  # fmt: skip
    yield _chi2(
        "rows: nothing in common", sum(state.common for state in states),
        sum(state.calls * state.rank for state in states),
    )  # fmt: skip
    if width > 1:
        yield _normal(
            "rows: neighbours independent", sum(state.neighbours[0] for state in states),
            sum(state.neighbours[1] for state in states), sum(numbers) / 2,
        )  # fmt: skip
    shifts = sum(state.calls * float(np.square(state.shift).sum()) for state in states)
    yield _normal(
        "nothing of x is added",
        sum(float((s.shift * s.total).sum()) for s in states),
        shifts,
        shifts,
    )
    yield _uniform(
        "rows: norms Gaussian",
        [_chi2_below(np.concatenate(state.norms), state.rank) for state in states],
    )
    yield _uniform(
        "calls: norms Gaussian",
        [_chi2_below(np.concatenate(s.energies), s.total.size) for s in states],
    )
    read = [part for state in states for part in state.readings]
    if read:
        readings = np.concatenate(read)
        yield _largest("weights: largest", readings)
        yield _uniform("weights: Gaussian", [_normal_below(readings)])
    for state in states:
        yield from _of_one(state)


def _of_one(state: OnOneState) -> Iterator[Claim]:
    at = f", {state.name}"
    yield Claim("range of G" + at, state.outside, 0.0, None, p_value=float(state.outside <= 1.0))
    yield _chi2("variance, whitened" + at, state.variance * state._numbers, state._numbers)
    yield _chi2("mean 0" + at, float(np.square(state.total).sum()) / state.calls, state.total.size)
    yield from _covariance(state, at)


def _covariance(state: OnOneState, at: str) -> Iterator[Claim]:
    """Bartlett's decomposition: root has χ²(rows − i) squares on its diagonal, normals above it."""
    rows, rank = state.calls * len(state.total), state.rank
    degrees = rows - np.arange(rank)
    diagonal = np.square(np.diagonal(state.root))
    p = _both_sides(*_chi2_tails(diagonal, degrees))
    worst = int(p.argmin())
    yield Claim(
        "covariance" + at, float(diagonal[worst] / degrees[worst]), 1.0,
        math.sqrt(2 / degrees[worst]), p_value=min(1.0, rank * float(p[worst])), count=rank,
    )  # fmt: skip
    if rank > 1:
        above = float(np.square(np.triu(state.root, 1)).sum())
        yield _chi2("covariance, between coordinates" + at, above, rank * (rank - 1) // 2)


# --- tests


def _chi2(claim: str, value: float, degrees: float) -> Claim:
    p = float(_both_sides(*_chi2_tails(value, degrees)))
    return Claim(claim, value / degrees, 1.0, math.sqrt(2 / degrees), p_value=p)


def _normal(claim: str, product: float, square: float, size: float) -> Claim:
    """Of ⟨A, B⟩ given A, normal with variance |A|²; shown per `size`."""
    from scipy.special import erfc

    root = math.sqrt(square)
    p = float(erfc(abs(product) / (math.sqrt(2) * root))) if root > 0.0 else 1.0
    return Claim(
        claim, product / size if size else 0.0, 0.0, root / size if size else 0.0, p_value=p
    )


def _uniform(claim: str, parts: list[FloatArray]) -> Claim:
    """Kolmogorov's distance from the uniform law; P(distance > t) ≤ 2 exp(−2 count t²)."""
    values = np.sort(np.concatenate(parts))
    count = values.size
    steps = np.arange(count + 1) / count
    distance = float(max((steps[1:] - values).max(), (values - steps[:-1]).max()))
    p = min(1.0, 2.0 * math.exp(-2.0 * count * distance**2))
    return Claim(claim, distance, 0.0, 0.5 / math.sqrt(count), p_value=p)


def _largest(claim: str, values: FloatArray) -> Claim:
    """Of `count` normals in absolute value: P(largest ≤ t) = (1 − erfc(t/√2))^count."""
    from scipy.special import erfc, erfcinv

    largest = float(np.abs(values).max())
    single = float(erfc(largest / math.sqrt(2)))
    below = values.size * math.log1p(-single) if single < 1.0 else -math.inf
    p = min(1.0, 2.0 * min(math.exp(below), -math.expm1(below)))
    median = math.sqrt(2) * float(erfcinv(-math.expm1(math.log(0.5) / values.size)))
    return Claim(claim, largest, median, None, p_value=p)


def _plus(sums: tuple[float, float], first: FloatArray, second: FloatArray) -> tuple[float, float]:
    return sums[0] + float((first * second).sum()), sums[1] + float(np.square(first).sum())


def _chi2_tails(
    value: float | FloatArray, degrees: float | NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    from scipy.special import chdtr, chdtrc

    return np.asarray(chdtr(degrees, value)), np.asarray(chdtrc(degrees, value))


def _chi2_below(value: FloatArray, degrees: int) -> FloatArray:
    return _chi2_tails(value, degrees)[0]


def _normal_below(value: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    return np.asarray(ndtr(value))


def _both_sides(below: FloatArray, above: FloatArray) -> FloatArray:
    return np.minimum(1.0, 2.0 * np.minimum(below, above))
