"""`Fluctuations`: predictions for the stationary Gram matrix at finite width."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import integer, integers, real
from bnmc._support.text import Result
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.layers import over_square
from bnmc.chain.needs import NORM_OVER_BATCH, require
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.estimate.estimate import Estimate
from bnmc.mean_field.finite_width.bias import mean_bias
from bnmc.mean_field.finite_width.gaussian import gradient_at, mean_norm
from bnmc.mean_field.finite_width.sectors import EntryCovariance, Sector
from bnmc.mean_field.finite_width.stationary_bulk import StationaryBulk
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.float64 import FloatArray, within

_Sectors = tuple[Sector, ...]

# `least_width` is this factor times the width at which the expected relative square of deviations
# equals 1 − rate.
_LINEAR = 10.0

# Rounding error of S, relative to its trace; largest error of an autocorrelation.
_ROUNDING, _ACCURATE = 1e-11, 0.01


@dataclass(frozen=True)
class Prediction(Estimate):
    """A predicted number with its numerical error: an estimate without samples.

    Attributes
    ----------
    value : float
        The number, to leading order in 1/width.
    stderr : float
        Estimated numerical error: the difference of two quadratures, the error of the fixed point,
        and rounding. Terms of higher order in 1/width are not included.
    ci : tuple of (float, float)
        The number less and plus two numerical errors.
    n, method, level, assumes
        As of `bnmc.Estimate`; n is 1.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fluctuations().mean_square(1000)
    >>> round(found.value, 7), found.stderr < 1e-6
    (0.0405666, True)
    """

    @classmethod
    def of(cls, value: float, stderr: float) -> Self:
        """Return the prediction of a number and its numerical error."""
        ci = value - 2.0 * stderr, value + 2.0 * stderr
        return cls(value, stderr, ci, 1, "leading order in 1/width")

    def __float__(self) -> float:
        """Return `value`."""
        return self.value

    def __str__(self) -> str:
        """Return the value to six digits."""
        return f"{self.value:.6g}"


@dataclass(frozen=True, kw_only=True)
class Fluctuations(Result):
    """Fluctuations of the stationary Gram matrix around the fixed point, to leading order.

    `MeanField.fluctuations` returns it and has the formulas.

    Attributes
    ----------
    fixed_point : FixedPoint
        The mean-field fixed point G*.
    sectors : tuple of Sector
        The sectors "trivial", "standard" (n ≥ 2) and "pairs" (n ≥ 4) of the permutation group, with
        noise C, Jacobian J and stationary covariance S, all for width 1. n is the batch size.
    coarse : tuple of Sector
        The sectors by a coarser quadrature, from which the numerical errors are estimated.
    point_error : float
        Bound of the errors of b, c and the eigenvalues at the fixed point.
    chain : Chain
        The chain.

    Examples
    --------
    >>> import bnmc
    >>> law = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fluctuations()
    >>> print(law.mean_square(1000))
    0.0405666
    >>> print(law)
    G at width 1000: distance from G* 0.1986 in the mean, 0.2014 root mean square, if chains stay
    near G*; the linear theory holds from about width 91
    G*: diagonal 0.5, correlation 0.264721 of 10 samples; stable: perturbations ×0.7911 per layer;
    squared gradient norm ×1.696 per layer
    """

    fixed_point: FixedPoint
    sectors: _Sectors
    coarse: _Sectors = field(repr=False)
    point_error: float = field(repr=False)
    chain: Chain = field(repr=False)

    def __str__(self) -> str:
        """Return the distance from G* at the width of the chain, and G*, in words."""
        width = self.chain.width
        mean, square = self.mean_distance(width).value, self.mean_square(width).value
        return (
            f"G at width {width}: distance from G* {mean:.4g} in the mean, {math.sqrt(square):.4g} "
            f"root mean square, if chains stay near G*; the linear theory holds from about width "
            f"{self.least_width}\n"
            f"G*: {self.fixed_point}"
        )

    @property
    def activation(self) -> Activation:
        """The activation."""
        return self.chain.activation

    @property
    def centred(self) -> bool:
        """Whether the normalization subtracts the mean of the batch."""
        return self.chain.normalization.hides_common_part

    @cached_property
    def mean_shift(self) -> tuple[float, float]:
        """The diagonal and the other entries of E G − G*, for width 1; see `bias`."""
        instead = "at finite width the norm adds a bias of its own; bnmc.simulate measures E G"
        require(self.chain, [NORM_OVER_BATCH], instead)
        return mean_bias(self.chain, self.fixed_point, self.sectors, self.covariance(1))

    @property
    def negative_variance(self) -> tuple[str, float]:
        """The sector with the least eigenvalue of S, below 0 and its error, and by how much."""
        total = _total(self.sectors)
        least = {}
        for sector, coarse in zip(self.sectors, self.coarse, strict=True):
            error = float(np.linalg.norm(sector.variance - coarse.variance))
            error += self._error_of_point * float(np.linalg.norm(sector.variance))
            least[sector.name] = float(np.linalg.eigvalsh(sector.variance)[0]) + error
        name = min(least, key=least.__getitem__)
        return name, max(0.0, -least[name] - _ROUNDING * total)

    @property
    def relative_square(self) -> float:
        """The squared relative fluctuation r at width 1, from which `least_width` follows.

        Under norms over the features and without norm, Δ is relative to the covariance of the
        pre-activations, with its trace. A norm over the features that acts before the activation
        does not see changes of the lengths of samples.
        """
        point, norm, n = self.fixed_point, self.chain.normalization, self.fixed_point.batch
        # The covariance of a row over gain², without a bias that the norm does not see.
        chain = self.chain
        bias = over_square(chain.bias_variance, chain.gain) if chain.shows_bias else 0.0
        variance, pair = point.b + bias, point.b * point.c + bias
        across = 1.0 / math.sqrt(variance - pair)
        along = 0.0 if self.centred else 1.0 / math.sqrt(variance + (n - 1.0) * pair)
        if norm.axis == "batch":
            return _traceless_square(self.sectors, n, across, along) / norm.dimensions(n) ** 2

        def relative(matrix: FloatArray) -> FloatArray:
            if not (norm.is_identity or self.chain.order == "activation-norm"):
                lengths = 0.5 * np.diagonal(matrix)
                matrix = matrix - pair / variance * (lengths[:, None] + lengths)
                np.fill_diagonal(matrix, 0.0)
            return _scaled(matrix, across, along)

        return _mean_square_of(relative, self.sectors, n) / n**2

    @property
    def least_width(self) -> int:
        """Width from which on the linear theory holds, within several per cent.

        The linear theory neglects the change of the Jacobian over a fluctuation. In the space that
        the normalization sees, of dimension m, let Δ be the traceless part of
        ``G*^(−½) (G − G*) G*^(−½)``. ``r = E‖Δ‖²/m²`` is the squared relative fluctuation,
        proportional to 1/width. The theory needs ``r ≪ 1 − rate``; `least_width` is the width at
        which ``r = (1 − rate)/10``. The criterion is a heuristic. For the linear chain of 12
        samples, the measured mean square at this width exceeds the predicted one by 2.3 %. It does
        not see other states in which a chain may stay: for abs at batch 32 it is 151, and for relu
        at batch 64 it is 814, and chains of width 2000 leave the fixed point.
        """
        return max(1, math.ceil(_LINEAR * self.relative_square / (1.0 - self.fixed_point.rate)))

    def mean_square(self, width: int) -> Prediction:
        """Return ``E‖G − G*‖_F²`` at stationarity.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        width = integer("width", width, low=1)
        return self._predict(lambda sectors: _total(sectors) / width)

    def mean_distance(self, width: int) -> Prediction:
        """Return ``E‖G − G*‖_F`` at stationarity: the mean norm of a Gaussian matrix.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        width = integer("width", width, low=1)

        def distance_of(sectors: _Sectors) -> float:
            return mean_norm([(0.0, 1), *_spectrum(sectors)]) / math.sqrt(width)

        return self._predict(distance_of, 0.5)

    def width_for(self, distance: float) -> int:
        """Return the least width at which ``√(E‖G − G*‖_F²)`` is at most `distance`.

        Parameters
        ----------
        distance : float
            Distance in the Frobenius norm, > 0. If the result is less than `least_width`, the
            distance is too large for the linear theory.
        """
        distance = real("distance", distance, above=0.0)
        return max(1, math.ceil(_total(self.sectors) / distance**2))

    def covariance(self, width: int) -> EntryCovariance:
        """Return the covariances of the entries of G at stationarity.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        width = integer("width", width, low=1)
        n = self.fixed_point.batch

        def between(i: int, j: int, k: int, m: int) -> float:
            if max(i, j, k, m) >= n:
                return 0.0
            both = self._parts(_unit(i, j, n)), self._parts(_unit(k, m, n))
            return _inner(self.sectors, *both) / width

        # Different letters are different samples.
        samples = {
            entry.name: map("ijkl".index, entry.name.replace("_", ""))
            for entry in fields(EntryCovariance)
        }
        return EntryCovariance(**{name: between(*at) for name, at in samples.items()})

    def bias(self, width: int) -> FloatArray:
        """Return ``E G − G*`` at stationarity, to order 1/width.

        It is ``(I − J)⁻¹ ½F″[S]/d``, with F″ the second derivative of the mean-field map, J its
        Jacobian at G* and S/d the stationary covariance. Permutations leave an integral over two
        coordinates of a sphere. Under norm "batch-uncentred", if the activation is not odd, the
        integral is also over the angle of a row to (1, …, 1) and takes seconds. See the module
        `bnmc.mean_field.finite_width.bias`.

        Parameters
        ----------
        width : int
            Width d, >= 1.

        Returns
        -------
        (batch, batch) ndarray of float64

        Raises
        ------
        ArgumentError
            If the norm does not act over the batch.

        Examples
        --------
        >>> import bnmc
        >>> law = bnmc.MeanField(bnmc.Chain(1000, 5, "relu")).fluctuations()
        >>> round(float(law.bias(1)[0, 1]), 4)
        -0.0452
        """
        width = integer("width", width, low=1)
        n, (diagonal, other) = self.fixed_point.batch, self.mean_shift
        shifts = np.full((n, n), other / width)
        np.fill_diagonal(shifts, diagonal / width)
        return shifts

    def gap(self, width: int) -> Prediction:
        """Return the mean orthogonality gap ``E‖G/Tr G − I/n‖_F`` at stationarity.

        It is the mean norm of a Gaussian matrix. Its mean is the value ``G*/Tr G* − I/n`` at
        infinite width, of norm ``|c|√(1 − 1/n)`` with c the correlation of G*. Its covariance is
        that of the linearized ``G/Tr G``. The bias of E G, of order 1/width, is left out.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        width = integer("width", width, low=1)
        point, n = self.fixed_point, self.fixed_point.batch
        trace, offset = n * point.b, point.c * math.sqrt(1.0 - 1.0 / n)
        # A change of the trace rescales the offset, along the second trivial matrix.
        change = np.array([-offset * math.sqrt(n), 1.0])

        def gap_of(sectors: _Sectors) -> float:
            variances = [(float(change @ sectors[0].variance @ change), 1)]
            variances += _spectrum(sectors[1:])
            scaled = [(value / (width * trace**2), count) for value, count in variances]
            return mean_norm(scaled, offset)

        return self._predict(gap_of)

    def spectrum(self, width: int) -> Prediction:
        """Return the variance of the bulk of the spectrum over that of Marchenko and Pastur.

        Let P be the projector orthogonal to 1 = (1, …, 1), and m = n − 1. Under norm
        "batch-uncentred", G* of an odd activation is a multiple of the identity; then P is the
        identity, and m = n. Let μ be the eigenvalue of G* of multiplicity m. The variance of the m
        eigenvalues of ``PGP/μ``
        around their mean, at stationarity, is divided by n/d, the variance of the Marchenko-Pastur
        law of ratio n/d. To leading order the quotient does not depend on the width.

        Parameters
        ----------
        width : int
            Width d, >= 1.
        """
        integer("width", width, low=1)
        point, n = self.fixed_point, self.fixed_point.batch
        # G* has another eigenvalue on (1, …, 1), or the norm does not see that.
        has_outlier = self.centred or abs(point.c) > self.point_error
        mu, size = point.b * (1.0 - point.c), n - has_outlier

        def quotient(sectors: _Sectors) -> float:
            square = _traceless_square(sectors, n, 1.0, 0.0 if has_outlier else 1.0)
            return square / (size * mu**2 * n)

        return self._predict(quotient)

    def bulk(self, width: int) -> StationaryBulk:
        """Return the law of the stationary spectrum: a bulk, and one eigenvalue outside.

        Parameters
        ----------
        width : int
            Width d, above `spectrum` times the batch.

        Raises
        ------
        ArgumentError
            If the norm sees the mean of the batch, or the width is smaller.
        """
        if not self.centred:
            raise ArgumentError("norm", self.chain.norm, "a norm that centres over the batch")
        point = self.fixed_point
        return StationaryBulk(width, point.batch, point.b, point.c, self.spectrum(width).value)

    def autocorrelation(
        self, observable: Callable[[FloatArray], float] | ArrayLike, lags: ArrayLike
    ) -> FloatArray:
        """Return the stationary autocorrelation of a smooth observable at several lags.

        To leading order, an observable f is linear in the fluctuations. With g its gradient at G*,
        the autocorrelation at lag k is ``⟨g, Jᵏ S g⟩/⟨g, S g⟩``, a mixture of powers of the
        eigenvalues of J. Under norm "batch", the autocorrelation of an observable that
        permutations of the samples preserve is 0 at all lags k ≥ 1, since J is 0 on matrices that
        permutations preserve.

        Parameters
        ----------
        observable : callable or (batch, batch) array_like
            Maps a Gram matrix to a number; its gradient at G* is computed by central differences,
            in batch·(batch + 1) calls. An array is the gradient g itself: f(G) = ⟨g, G⟩.
        lags : (k,) array_like of int
            Lags in layers, >= 0.

        Returns
        -------
        (k,) ndarray of float64

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If the gradient at G* has no variance, as that of ``‖G − G*‖²``, or is not finite; or if
            `lags` are not integers >= 0.
        PartialEstimateError
            If the numerical error exceeds 0.01; ``partial`` is the array.
        """
        steps = np.atleast_1d(integers("lags", lags, low=0)).astype(np.int64)
        if steps.ndim != 1:
            raise ArgumentTypeError("lags", lags, "one-dimensional array of integers >= 0")
        parts = self._parts(gradient_at(observable, self.fixed_point.gram))
        lags = (0, *steps.tolist())
        rules = self.sectors, self.coarse
        products = np.array([[_inner(s, parts, parts, k) for k in lags] for s in rules])
        scale = sum(float(np.sum(part * part)) for part in parts) * _total(self.sectors)
        if not products[0, 0] > 1e-14 * scale:
            allowed = "a function that changes to first order at G*"
            raise ArgumentError("observable", observable, allowed)
        fine = products[0, 1:] / products[0, 0]
        # The error of a ratio of at most 1.
        error = 2.0 * float(np.abs(products[0] - products[1]).max()) / products[0, 0]
        return within(fine, error, _ACCURATE, "autocorrelations", option="their tolerance")

    def _parts(self, matrix: FloatArray) -> list[FloatArray]:
        """Return the coordinates of a symmetric matrix in each sector, shape (orders, copies)."""
        n = self.fixed_point.batch
        diagonal = np.diag(matrix)
        rows = matrix.sum(axis=1) - diagonal
        trivial = np.array([[diagonal.sum() / math.sqrt(n), rows.sum() / math.sqrt(n * (n - 1.0))]])
        if n == 2:
            return [trivial, (diagonal - diagonal.mean())[:, None]]
        spread = (rows - rows.mean()) * 2.0 / math.sqrt(2.0 * (n - 2.0))
        parts = [trivial, np.stack([diagonal - diagonal.mean(), spread], axis=1)]
        if n > 3:
            off = matrix - np.diag(diagonal)
            share = spread / math.sqrt(2.0 * (n - 2.0))
            off = off - share[:, None] - share - rows.sum() / (n * (n - 1.0))
            np.fill_diagonal(off, 0.0)
            parts.append(off.reshape(-1, 1))
        return parts

    def _predict(self, of: Callable[[_Sectors], float], power: float = 1.0) -> Prediction:
        """Return a number that is proportional to a power of S, with its error."""
        value = of(self.sectors)
        # One sector at a time, so that errors of different signs do not cancel.
        changes = [
            of((*self.sectors[:i], coarse, *self.sectors[i + 1 :])) - value
            for i, coarse in enumerate(self.coarse)
        ]
        error = sum(map(abs, changes))
        return Prediction.of(value, error + power * self._error_of_point * abs(value))

    @property
    def _error_of_point(self) -> float:
        """The relative error of S from that of the fixed point."""
        return self.point_error * (4.0 + 2.0 / (1.0 - self.fixed_point.rate**2))


def _inner(
    sectors: _Sectors, first: list[FloatArray], second: list[FloatArray], lag: int = 0
) -> float:
    """Return ⟨g, Jᵏ S h⟩ for the coordinates of two matrices g and h, with k the lag."""
    parts = zip(first, second, sectors, strict=True)
    powers = ((a, b, np.linalg.matrix_power(s.jacobian, lag), s.variance) for a, b, s in parts)
    return sum(float(np.sum((a @ power @ variance) * b)) for a, b, power, variance in powers)


def _scaled(matrix: FloatArray, across: float, along: float) -> FloatArray:
    """Return RΔR for R with the eigenvalues `along` on (1, …, 1), `across` orthogonal to it."""
    means = matrix.mean(axis=0)
    mean = means.mean()
    pairs = means[:, None] + means
    rest = across**2 * (matrix - pairs + mean)
    return rest + across * along * (pairs - 2.0 * mean) + along**2 * mean


def _traceless_square(sectors: _Sectors, batch: int, across: float, along: float) -> float:
    """Return E‖RΔR‖² without the trace, on the space on which R is not 0; see `_scaled`."""
    space = _scaled(np.eye(batch), 1.0, float(along > 0.0))

    def image(matrix: FloatArray) -> FloatArray:
        scaled = _scaled(matrix, across, along)
        return scaled - np.trace(scaled) / np.trace(space) * space

    return _mean_square_of(image, sectors, batch)


def _mean_square_of(
    image: Callable[[FloatArray], FloatArray], sectors: _Sectors, batch: int
) -> float:
    """Return E‖image(Δ)‖² for a deviation Δ at width 1.

    Parameters
    ----------
    image : callable
        A linear map of symmetric matrices that permutations of the samples preserve.
    sectors : tuple of Sector
    batch : int
    """
    total = 0.0
    for sector, basis in zip(sectors, _examples(batch), strict=True):
        images = [image(matrix) for matrix in basis]
        inner = np.array([[float(np.sum(a * b)) for b in images] for a in images])
        copies = len(sector.variance)
        total += sector.multiplicity * float(np.sum(inner[:copies, :copies] * sector.variance))
    return total


def _unit(i: int, j: int, batch: int) -> FloatArray:
    """Return the symmetric matrix g with ⟨g, G⟩ = G_ij."""
    unit = np.zeros((batch, batch))
    unit[i, j] = 0.5
    return unit + unit.T


def _examples(batch: int) -> list[list[FloatArray]]:
    """Return for each sector the matrices of its copies, for one element of the representation."""
    n = batch
    trivial = [np.eye(n) / math.sqrt(n), (1.0 - np.eye(n)) / math.sqrt(n * (n - 1.0))]
    e = np.zeros(n)
    e[:2] = math.sqrt(0.5), -math.sqrt(0.5)
    if n == 2:
        return [trivial, [np.diag(e)]]
    off = e[:, None] + e
    np.fill_diagonal(off, 0.0)
    standard = [np.diag(e), off / math.sqrt(2.0 * (n - 2.0))]
    if n == 3:
        return [trivial, standard]
    first, second = np.zeros(n), np.zeros(n)
    first[:2], second[2:4] = (1.0, -1.0), (1.0, -1.0)
    pairs = np.outer(first, second) + np.outer(second, first)
    return [trivial, standard, [pairs / math.sqrt(8.0)]]


def _spectrum(sectors: _Sectors) -> list[tuple[float, int]]:
    """Return the eigenvalues of S with their multiplicities."""
    return [
        (float(value), sector.multiplicity)
        for sector in sectors
        for value in np.linalg.eigvalsh(sector.variance)
    ]


def _total(sectors: _Sectors) -> float:
    """Return the trace of S."""
    return sum(sector.multiplicity * float(np.trace(sector.variance)) for sector in sectors)


#: Another name of `Fluctuations`.
PairFluctuations = Fluctuations
