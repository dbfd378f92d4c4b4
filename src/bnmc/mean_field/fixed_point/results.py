"""`FixedPoint`: the symmetric fixed point of the mean-field map, its stability and rates.

At the fixed point of a convolutional chain, the Fourier transform over shifts gives the modes. A
convolution with circular padding averages the Gram matrix over simultaneous shifts of all
images, and the map F after it has the symmetry of all permutations of columns.  Shifts are
permutations.  So both map the matrices of one spatial frequency, and of one sector of the
permutation group, to themselves, and the eigenvalue is the product of both factors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bnmc._support.text import Result
from bnmc.chain.convolution import Convolution
from bnmc.mean_field.float64 import FloatArray

# The error of derivatives of the activation, and so of the backward rate, is at least this.
_KNOWN_RATE = 1e-12


@dataclass(frozen=True, kw_only=True)
class SymmetricFixedPoint(Result):
    """The attributes of the symmetric fixed point for a batch of any size, finite or infinite.

    `FixedPoint` defines the attributes; `bnmc.mean_field.Limit` is the case of an infinite batch,
    for which `jacobians` is empty.
    """

    b: float
    c: float
    eigenvalues: tuple[complex, ...]
    rate: float
    backward_rate: float
    cross_batch: float
    cross_batch_rate: float
    error: float
    jacobians: tuple[FloatArray, ...] = field(default=(), repr=False, compare=False)

    @property
    def stable(self) -> bool:
        """Whether ``rate + error < 1``: then Gram matrices near ``G*`` converge to ``G*``."""
        return self.rate + self.error < 1.0

    @property
    def timescale(self) -> float:
        """Layers over which a small deviation shrinks by the factor e: ``−1/ln(rate)``.

        It is 0 if the rate is 0, and ``inf`` if the rate is at least 1.
        """
        if not 0.0 < self.rate < 1.0:
            return math.inf if self.rate else 0.0
        return -1.0 / math.log(self.rate)

    @property
    def explosion_depth(self) -> float:
        """Number of layers over which the expected squared gradient norm grows by the factor e.

        It is ``1/ln(backward_rate)``: ``inf`` if the backward rate is 1 within its error, 0 if the
        backward rate is infinite. It is never negative: by Poincaré's inequality, ``E|∇σ|²`` is at
        least as large as a multiple of the variance of σ, so the backward rate of a normalized
        chain is at least 1.
        """
        growth = math.log(self.backward_rate)
        return 1.0 / growth if growth > max(self.error, _KNOWN_RATE) else math.inf


@dataclass(frozen=True, kw_only=True)
class FourierMode(Result):
    """Deviations of one spatial frequency from the fixed point of a convolutional chain.

    They are the symmetric matrices Δ whose entry for pixel p of sample s and pixel p + r of sample
    t is a function of (s, t, r) times exp(2πi k·p) for the frequency k, and their real parts.
    `FixedPoint.modes` has one mode for each pair of frequencies k and −k.

    Attributes
    ----------
    frequency : (int, int)
        Whole waves over the height and the width of an image.
    factor : float or complex
        The mean of exp(2πi k·δ) over the taps δ of the kernel, with k·δ in parts of the image: what
        the average over taps multiplies Δ by.  Real for kernels of odd sizes.
    eigenvalues : tuple of float or complex
        `factor` times those `FixedPoint.eigenvalues` whose sectors have this frequency.
    multiplicities : tuple of int
        Their real multiplicities, of k and −k together.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain.conv(64, 2, "relu", shape=(1, 4), kernel=(1, 3))
    >>> for mode in bnmc.MeanField(chain).fixed_point().modes:
    ...     print(mode.frequency, round(mode.factor, 4), round(mode.rate, 4))
    (0, 0) 1.0 0.7436
    (0, 1) 0.3333 0.2479
    (0, 2) -0.3333 0.2479
    """

    frequency: tuple[int, ...]
    factor: complex
    eigenvalues: tuple[complex, ...]
    multiplicities: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Largest modulus of the eigenvalues: the factor per layer; 0 if there are none."""
        return max(map(abs, self.eigenvalues), default=0.0)


@dataclass(frozen=True, kw_only=True)
class FixedPoint(SymmetricFixedPoint):
    """The permutation-symmetric fixed point ``G* = b ((1−c) I + c 11ᵀ)`` of the mean-field map.

    Here 1 is the vector (1, …, 1). `MeanField.fixed_point` returns it and has the formulas.

    ``numpy.asarray(point)`` is `gram`, so functions of Gram matrices take a fixed point.

    Attributes
    ----------
    batch : int
        Batch size n ≥ 2.
    b : float
        Diagonal entries of ``G*``, > 0.
    c : float
        Correlation of two samples: the off-diagonal entries of ``G*`` divided by b, in [−1, 1).
    eigenvalues : tuple of float or complex
        The distinct eigenvalues of the Jacobian of the map at ``G*``, except for the eigenvalue 0
        of what the normalization removes: changes of scale, in the direction ``G*``, and under norm
        "batch" changes ``u1ᵀ + 1uᵀ``. Empty for norm "batch" and n = 2. Real, except that under
        norm "batch-uncentred" two may be a conjugate pair.
    multiplicities : tuple of int
        Their multiplicities.
    rate : float
        Largest modulus of the eigenvalues, or of those of `modes`: asymptotically, a small
        deviation from ``G*`` shrinks by this factor per layer. 0 if there are no eigenvalues.
    backward_rate : float
        Per layer of backpropagation, the expected squared gradient norm grows by this factor.
        ``inf`` if the expectation diverges: for small n, or if the activation has a jump. For n = 2
        under norm "batch" it diverges as eps tends to 0; with eps = 0 gradients are exactly 0.
    cross_batch : float
        Stationary entry of the Gram matrix between a sample of one batch and a sample of another
        batch in the same network.
    cross_batch_rate : float
        Per layer, a small deviation of these entries from `cross_batch` shrinks by this factor.
    error : float
        Bound of the error of the least accurate of the numbers above: absolute for numbers below 1,
        relative for larger ones. It includes the difference to a coarser quadrature, the tails of
        the integrals, the deviation of σ from polynomials on panels, and rounding.
        `MeanField.fixed_point` states its assumption. The true error is usually much smaller.
    jacobians : tuple of ndarray
        The Jacobian of the map at ``G*`` in the sectors "trivial", "standard" (n ≥ 2) and "pairs"
        (n ≥ 4) of symmetric matrices, in the basis of `Sector`. Of a convolutional chain: that of
        the fully connected chain with as many columns.
    modes : tuple of FourierMode
        Of a convolutional chain: the eigenvalues of a layer by spatial frequency. `eigenvalues` and
        `multiplicities` are then those of the fully connected chain with as many columns. Empty for
        other chains.

    Examples
    --------
    >>> import bnmc
    >>> star = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fixed_point()
    >>> round(star.c, 4), round(star.rate, 4), round(star.backward_rate, 3), star.stable
    (0.2647, 0.7911, 1.696, True)
    >>> star.gram.shape, round(star.timescale, 2), round(star.explosion_depth, 2)
    ((10, 10), 4.27, 1.89)
    """

    batch: int
    multiplicities: tuple[int, ...]
    modes: tuple[FourierMode, ...] = ()

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.float64]:
        return np.array(self.gram, dtype=dtype)

    def __str__(self) -> str:
        """Return the matrix, whether it is stable, and the rates, in one line."""
        parts = [
            f"diagonal {self.b:.6g}, correlation {self.c:.6g} of {self.batch} samples",
            f"{'stable' if self.stable else 'unstable'}: perturbations ×{self.rate:.4g} per layer",
        ]
        if math.isinf(self.backward_rate):
            parts.append("squared gradient norm: infinite mean")
        else:
            # If the fixed point is unstable, networks leave it, and have other gradients.
            where = "" if self.stable else " if the network stayed here"
            parts.append(f"squared gradient norm ×{self.backward_rate:.4g} per layer{where}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for `json.dumps`, with ``b`` as "diagonal", ``c`` as "correlation".

        Returns
        -------
        dict
            Also "timescale", −1/ln(rate) in layers, which is None if the rate is 0 or at least 1.
            A complex eigenvalue is a list of its real and its imaginary part.
        """
        return {
            "diagonal": self.b,
            "correlation": self.c,
            "rate": self.rate,
            "timescale": self.timescale if 0.0 < self.rate < 1.0 else None,
            "stable": self.stable,
            "eigenvalues": [
                value.real if value.imag == 0 else [value.real, value.imag]
                for value in self.eigenvalues
            ],
            "backward_rate": self.backward_rate,
            "cross_batch": self.cross_batch,
            "cross_batch_rate": self.cross_batch_rate,
            "error": self.error,
        }

    @property
    def gram(self) -> FloatArray:
        """``G*`` as a new array of shape (batch, batch)."""
        gram = np.full((self.batch, self.batch), self.b * self.c)
        np.fill_diagonal(gram, self.b)
        return gram


def of_batch(
    batch: int, trivial: FloatArray, standard: FloatArray, pairs: FloatArray
) -> tuple[FloatArray, ...]:
    """Return matrices of the sectors that n ≥ 2 samples have; see `Sector`."""
    if batch == 2:
        return trivial, standard[:1, :1]
    return (trivial, standard, pairs)[: min(batch, 4) - 1]


# --- modes of a convolution


def fourier_modes(
    convolution: Convolution,
    columns: int,
    eigenvalues: tuple[complex, ...],
    sectors: tuple[str, ...],
) -> Iterator[FourierMode]:
    """Yield the modes of a layer, one for each frequency up to its sign.

    Parameters
    ----------
    convolution : Convolution
    columns : int
        n, samples times pixels.
    eigenvalues : tuple of complex
        Those of the fully connected layer of n columns; see `FixedPoint`.
    sectors : tuple of str
        Their sectors: "constants", of dimension 1; "differences" of columns, n − 1; "pairs", the
        functions of unordered pairs of columns, n(n−1)/2; "rest", these without the two others.
    """
    shape = convolution.shape
    for frequency in itertools.product(*map(range, shape)):
        opposite = tuple(-k % size for k, size in zip(frequency, shape, strict=True))
        if opposite < frequency:
            continue
        copies = 1 if opposite == frequency else 2
        factor = _factor(convolution, frequency)
        sizes = sector_sizes(shape, columns, frequency)
        present = [pair for pair in zip(sectors, eigenvalues, strict=True) if sizes[pair[0]]]
        yield FourierMode(
            frequency=frequency,
            factor=factor,
            eigenvalues=tuple(factor * value for _, value in present),
            multiplicities=tuple(copies * sizes[sector] for sector, _ in present),
        )


def _factor(convolution: Convolution, frequency: tuple[int, ...]) -> complex:
    """Return the mean of exp(2πi k·δ) over the taps δ; a real number if it is one."""
    factor = 1.0 + 0.0j
    for k, size, taps in zip(frequency, convolution.shape, convolution.kernel, strict=True):
        places = np.arange(taps) - (taps - 1) // 2
        # Whole turns are taken out, so that frequency 0 has the factor 1 exactly.
        turns = k * places % size / size
        factor *= complex(np.mean(np.exp(2j * np.pi * turns)))
    if all(taps % 2 for taps in convolution.kernel) or not any(frequency):
        return factor.real
    return factor


def sector_sizes(
    shape: tuple[int, int], columns: int, frequency: tuple[int, ...]
) -> dict[str, int]:
    """Return how often a frequency occurs in each sector; for the shape (1, 1), the dimensions."""
    is_zero, pairs = int(not any(frequency)), _pairs(shape, columns, frequency)
    differences = columns // math.prod(shape) - is_zero
    rest = pairs - differences - is_zero
    return {"constants": is_zero, "differences": differences, "pairs": pairs, "rest": rest}


def _pairs(shape: tuple[int, int], columns: int, frequency: tuple[int, ...]) -> int:
    """Return how often a frequency occurs in the functions of unordered pairs of columns.

    By Burnside's lemma: no shift but 0 keeps a pair, except that by half of an image, which swaps
    the two columns of n/2 pairs.
    """
    halves = [(0, size // 2) if size % 2 == 0 else (0,) for size in shape]
    fixed = 0.0
    for shift in itertools.product(*halves):
        if any(shift):
            turns = sum(k * r / size for k, r, size in zip(frequency, shift, shape, strict=True))
            fixed += columns / 2 * math.cos(2 * math.pi * turns)
        else:
            fixed += columns * (columns - 1) / 2
    return round(fixed / math.prod(shape))
