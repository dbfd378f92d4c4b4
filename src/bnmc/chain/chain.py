"""`Chain`: the specification of a network, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from bnmc._support.arguments import instance, integer, real
from bnmc._support.keywords import explains_keywords
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.covariance import IDENTITY, CovarianceMap
from bnmc.chain.norms import NORMS, Norm, as_norm
from bnmc.chain.weights import WeightLaw, WeightSampler, weight_law
from bnmc.errors import ArgumentError

__all__ = ["Chain", "as_chain"]
#: Largest width: float64 holds all whole numbers up to it.
MOST_WIDTH = 2**53


@dataclass(frozen=True, init=False, repr=False)
class Chain:
    r"""The specification of a network: width, batch, activation, normalization, weights.

    It fixes a Markov chain up to its start and its random numbers.

    With width d and batch n, the representation :math:`x_l \in R^{d \times n}` goes to

    .. math:: x_{l+1} = N(\mathrm{skip}\, x_l + \mathrm{gain}\, W_l \sigma(x_l)),
              \qquad G_l = \sigma(x_l)^T \sigma(x_l) / d,

    where the entries of :math:`W_l` have mean 0 and variance 1/d, and are i.i.d. unless W is
    orthogonal.  N normalizes each row (Joudaki, Daneshmand and Bach, arXiv:2205.13076, eq. (2), is
    skip = 0, gain = 1).

    Parameters
    ----------
    width : int
        d, number of neurons per layer, from 1 to 2**53.
    batch : int
        n >= 1, number of samples; at least 2 if `norm` is "batch".
    activation : str, Activation or callable
        :math:`\sigma`: a built-in name, or a scalar function that Numba can compile.
    norm : {"batch", "batch-uncentred", "none"}
        N of a row r: (r - mean r) / sqrt(Var r + eps) with the variance divided by n; or
        r / sqrt(mean(r^2) + eps); or r.
    skip : float
        Factor of the skip connection; 0 removes it.
    gain : float
        Factor of the weights; not 0.
    weights : {"gaussian", "uniform", "rademacher", "haar"} or callable
        Law of the entries of W times sqrt(d), with mean 0 and variance 1.  With "haar", W is
        uniformly distributed on the orthogonal matrices.  A callable takes a
        `numpy.random.Generator` and a shape, and returns an array of that shape; several threads
        call it.
    eps : float
        Number >= 0 that is added to the variance.  The papers use 0; PyTorch uses 1e-5.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a value is not allowed; the message names it.

    Examples
    --------
    >>> from bnmc import Chain
    >>> Chain(width=1000, batch=10, activation="relu")
    Chain(width=1000, batch=10, activation='relu')
    >>> Chain.bn_residual(width=32, batch=32, gamma=0.1).gain
    0.5656854249492381
    """

    width: int
    batch: int
    activation: Activation
    norm: str
    skip: float
    gain: float
    weights: str | WeightSampler
    eps: float
    #: The normalization as a value: what it does, and what it does not see of a Gram matrix.
    normalization: Norm = field(init=False)

    @explains_keywords
    def __init__(
        self,
        width: int,
        batch: int,
        activation: str | Activation | Callable[[Any], Any] = "linear",
        *,
        norm: str | Norm = "batch",
        skip: float = 0.0,
        gain: float = 1.0,
        weights: str | WeightSampler = "gaussian",
        eps: float = 0.0,
    ) -> None:
        def keep(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        keep("normalization", as_norm(norm))
        keep("norm", self.normalization.name)
        keep("width", integer("width", width, low=1, high=MOST_WIDTH))
        least = self.normalization.least_batch
        keep("batch", integer("batch", batch, low=least, high=MOST_WIDTH))
        keep("activation", as_activation(activation))
        keep("skip", real("skip", skip))
        keep("gain", real("gain", gain))
        if self.gain == 0.0:
            raise ArgumentError("gain", gain, "a finite real number other than 0")
        keep("weights", weights if callable(weights) else weight_law(weights).name)
        keep("eps", real("eps", eps, low=0.0))

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: getattr(self, name) for name in ("skip", "gain", "eps")}
        options["norm"] = self.norm if self.norm in NORMS else self.normalization
        weights = self.weights if isinstance(self.weights, str) else _by_value(self.weights)
        return _rebuilt, (self.width, self.batch, self.activation, weights, options)

    def __repr__(self) -> str:
        shown = [
            f"width={self.width}",
            f"batch={self.batch}",
            f"activation={self.activation.name!r}",
        ]
        defaults: dict[str, Any] = {
            "norm": "batch", "skip": 0.0, "gain": 1.0, "weights": "gaussian", "eps": 0.0
        }  # fmt: skip
        for name, default in defaults.items():
            value = getattr(self, name)
            if callable(value):  # without its address, which differs from process to process
                shown.append(f"{name}=<{getattr(value, '__qualname__', type(value).__qualname__)}>")
            elif value != default:
                shown.append(f"{name}={value!r}")
        return f"Chain({', '.join(shown)})"

    @property
    def covariance(self) -> CovarianceMap:
        """The map from the Gram matrix of a layer to the covariance of the rows of W a."""
        return IDENTITY

    @cached_property
    def weight_law(self) -> WeightLaw:
        """The law of the weights as a value."""
        return weight_law(self.weights)

    @property
    def is_gaussian(self) -> bool:
        """Whether the weights are Gaussian, so that rows can be drawn given the Gram matrix."""
        return self.weight_law.rows_given_gram

    @property
    def is_orthogonal(self) -> bool:
        """Whether the weights are uniformly distributed orthogonal matrices."""
        return self.weight_law.is_orthogonal

    @property
    def is_vanilla_linear(self) -> bool:
        """Whether the chain is linear without norm and skip: G is a product of Wishart factors."""
        linear = self.activation.name == "linear" and self.activation.builtin
        return self.is_gaussian and linear and self.normalization.is_identity and self.skip == 0.0

    @classmethod
    def bn_mlp(
        cls, width: int, batch: int, activation: str | Activation | Callable[..., Any]
    ) -> Self:
        """Return the chain of *On bridging …*, eq. (2): BN before a nonlinear activation."""
        return cls(width, batch, activation)

    @classmethod
    def bn_linear(cls, width: int, batch: int) -> Self:
        """Return the chain of *Batch normalization orthogonalizes …*: linear, uncentred BN."""
        return cls(width, batch, "linear", norm="batch-uncentred")

    @classmethod
    def bn_residual(
        cls,
        width: int,
        batch: int,
        activation: str | Activation | Callable[..., Any] = "linear",
        *,
        gamma: float,
    ) -> Self:
        """Return the chain of *… avoids rank collapse*: x + gamma W x, uncentred BN.

        Their W has unit variance, so the gain is gamma sqrt(width).  gamma = inf removes the skip
        connection.
        """
        gamma = real("gamma", gamma, above=0.0, finite=False)
        width = integer("width", width, low=1, high=MOST_WIDTH)
        skip, gain = (0.0, 1.0) if gamma == np.inf else (1.0, gamma * float(np.sqrt(width)))
        return cls(width, batch, activation, norm="batch-uncentred", skip=skip, gain=gain)

    @classmethod
    def vanilla(
        cls, width: int, batch: int, activation: str | Activation | Callable[..., Any] = "linear"
    ) -> Self:
        """Return the chain without normalization."""
        return cls(width, batch, activation, norm="none")


def as_chain(chain: object) -> Chain:
    """Return the argument `chain` of a function, or raise.

    Raises
    ------
    ArgumentTypeError
        If it is not a chain.
    """
    return instance("chain", chain, Chain, "a bnmc.Chain")


def _by_value(weights: WeightSampler) -> bytes:
    """Pickle a sampler of weights, a lambda too, for another process."""
    from numba import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(weights)
    except Exception as error:  # the variables of the function may raise anything
        allowed = "a function that can be pickled, to send it to another process"
        hint = f"{type(error).__name__}: {error}"
        raise ArgumentError("weights", weights, allowed, hint) from error


def _rebuilt(
    width: int, batch: int, activation: Activation, weights: str | bytes, options: dict[str, Any]
) -> Chain:
    if isinstance(weights, str):
        return Chain(width, batch, activation, weights=weights, **options)
    from numba import cloudpickle

    return Chain(width, batch, activation, weights=cloudpickle.loads(weights), **options)
