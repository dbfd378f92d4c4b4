"""Laws of weights as values: their moments, and the samplers that can make them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import GAUSSIAN, GIVEN, RADEMACHER, UNIFORM
from bnmc._support.arguments import choice, host_array
from bnmc.errors import ArgumentError, ArgumentTypeError

#: A law of weights: called with a generator and a shape, it returns numbers of mean 0 and variance
#: 1, which are i.i.d. unless the law is orthogonal.
WeightSampler = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]


@dataclass(frozen=True)
class WeightLaw:
    """The law of the entries of W times sqrt(width), of mean 0 and variance 1.

    The entries are i.i.d., or W is orthogonal.

    Parameters
    ----------
    name : str
        `Chain.weights`, or "user" for the user's sampler.
    code : int
        Code of the law in kernels; see `bnmc._kernels.scalar.codes`.
    rows_given_gram : bool
        Whether the rows of W a are i.i.d. N(0, G) given the Gram matrix G of a, so that a layer
        can be drawn without weights.
    fourth_moment : float or None
        Of one entry; None if unknown, or if it depends on the width.
    is_symmetric : bool
        Whether an entry and its negative are known to have the same law.
    entries : WeightSampler
        Draws entries with NumPy: called with a generator and a shape.
    is_orthogonal : bool, default False
        Whether W is uniformly distributed on the orthogonal group (Haar measure).  Rows of W a can
        then be drawn without weights too, but not independently of each other.
    gain : float, default 1
        Gain of a chain that specifies none.
    bias_over_width : float, default 0
        Variance of the bias times the width, of a chain that specifies no variance.
    uniform_bias : bool, default False
        Whether the entries of a bias are uniformly distributed, and not Gaussian.
    is_identity : bool, default False
        Whether W is the identity, which is neither drawn nor trained.
    """

    name: str
    code: int
    rows_given_gram: bool
    fourth_moment: float | None
    is_symmetric: bool
    entries: WeightSampler
    is_orthogonal: bool = False
    gain: float = 1.0
    bias_over_width: float = 0.0
    uniform_bias: bool = False
    is_identity: bool = False

    @property
    def has_dependent_rows(self) -> bool:
        """Whether a matrix is made as a whole."""
        return self.is_orthogonal or self.is_identity

    @property
    def samplers(self) -> tuple[str, ...]:
        """The samplers that can make it, by the names that `simulate` takes."""
        without_weights = self.rows_given_gram or self.is_orthogonal
        return ("conditional", "weights") if without_weights else ("weights",)

    def checked(
        self, generator: np.random.Generator, shape: tuple[int, int]
    ) -> NDArray[np.floating[Any]]:
        """Return entries as the user's sampler draws them, or raise unless they are sound."""
        returned = self.entries(generator, shape)
        allowed = f"a sampler of real numbers of shape {shape}"
        try:
            entries: NDArray[Any] = host_array("weights", returned, allowed)
        except ArgumentTypeError as error:  # ragged, or masked
            raise ArgumentError("weights", returned, allowed, str(error)) from None
        if entries.shape != shape or entries.dtype.kind not in "fiu":
            got = f"{entries.dtype} of shape {entries.shape}"
            raise ArgumentError("weights", got, f"real numbers of shape {shape}")
        if not np.isfinite(entries).all():
            raise ArgumentError("weights", "a sample that is not finite", "finite real numbers")
        return entries


def _gaussian(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return generator.standard_normal(shape)


def _uniform(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return generator.uniform(-np.sqrt(3.0), np.sqrt(3.0), shape)


def _rademacher(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return 2.0 * generator.integers(0, 2, shape).astype(np.float64) - 1.0


def _haar(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Draw orthogonal rows, or columns if these are fewer, with entries of variance 1."""
    rows, order = shape
    most, least = max(shape), min(shape)
    vectors, root = np.linalg.qr(generator.standard_normal((most, least)))
    # Without this the law of the factor depends on the signs that the algorithm chooses.
    vectors *= np.copysign(np.sqrt(most), np.diagonal(root))
    return np.ascontiguousarray(vectors.T if rows <= order else vectors)


def identity(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the identity, as entries of variance 1."""
    return math.sqrt(shape[1]) * np.eye(*shape)


_OF_UNIFORM = WeightLaw("uniform", UNIFORM, False, 1.8, True, _uniform)

_NAMED = (
    WeightLaw("gaussian", GAUSSIAN, True, 3.0, True, _gaussian),
    _OF_UNIFORM,
    WeightLaw("rademacher", RADEMACHER, False, 1.0, True, _rademacher),
    WeightLaw("haar", GIVEN, False, None, True, _haar, is_orthogonal=True),
    # nn.Linear draws weights and biases from the uniform law on ±1/sqrt(fan_in).
    replace(
        _OF_UNIFORM, name="pytorch",
        gain=1.0 / math.sqrt(3.0), bias_over_width=1.0 / 3.0, uniform_bias=True,
    ),
)  # fmt: skip

_BY_NAME = {law.name: law for law in _NAMED}

#: The names of the laws.
WEIGHTS = tuple(_BY_NAME)


def weight_law(weights: str | WeightSampler) -> WeightLaw:
    """Return the law for the argument `weights` of `Chain`.

    Raises
    ------
    ArgumentTypeError, UnknownNameError
        If it is neither callable nor the name of a law.
    """
    if weights is identity:
        return WeightLaw("identity", GIVEN, False, None, False, identity, is_identity=True)
    if callable(weights):
        return WeightLaw("user", GIVEN, False, None, False, weights)
    return _BY_NAME[choice("weights", weights, WEIGHTS)]
