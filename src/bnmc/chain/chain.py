"""`Chain` and `Network`: specifications of a layer that repeats, and of layers that differ."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    MOST_LAYERS,
    NORM_FIRST,
    NORM_IN_BRANCH,
)
from bnmc._support.arguments import choice, instance, integer, real
from bnmc._support.keywords import NamesReplacements
from bnmc._support.workers import received, sendable
from bnmc.chain.activations import Activation, ActivationLike, as_activation
from bnmc.chain.convolution import NO_CONVOLUTION, Convolution
from bnmc.chain.layers import CovarianceMap, Layer, Linear, Path, RowMap, start_of
from bnmc.chain.norms import NORMS, Norm, as_norm
from bnmc.chain.weights import WeightLaw, WeightSampler, identity, weight_law
from bnmc.errors import ArgumentError, ArgumentTypeError

#: The orders of norm and activation in a layer, and what kernels call them.
ORDERS = {
    "norm-activation": NORM_FIRST,
    "activation-norm": ACTIVATION_FIRST,
    "pre-activation": NORM_IN_BRANCH,
}

#: Largest width: float64 holds all whole numbers up to it.
MOST_WIDTH = 2**53


@dataclass(frozen=True, init=False, repr=False)
class Chain(metaclass=NamesReplacements):
    r"""The specification of a network: width, batch, activation, normalization, weights.

    It fixes a Markov chain up to its start and its random numbers.

    With width d and batch n, the representation :math:`x_l \in R^{d \times n}` goes to

    .. math:: x_{l+1} = N(\mathrm{skip}\, x_l + \mathrm{gain}\, W_l \sigma(x_l)),
              \qquad G_l = \sigma(x_l)^T \sigma(x_l) / d,

    where the entries of :math:`W_l` have mean 0 and variance 1/d, and are i.i.d. unless W is
    orthogonal.  N normalizes each row, over the batch (Joudaki, Daneshmand and Bach,
    arXiv:2205.13076, eq. (2), is skip = 0, gain = 1), or each column, over the features.

    Parameters
    ----------
    width : int
        d, number of neurons per layer, from 1 to 2**53.
    batch : int
        n >= 1, number of samples; at least 2 if `norm` is "batch".
    activation : str, Activation or callable, default "linear"
        :math:`\sigma`: a built-in name, or a scalar function that Numba can compile.
    norm : {"batch", "batch-uncentred", "none", "layer", "rms", "group(g)"} or GroupNorm
        N.  "batch" of a row r: (r - mean r) / sqrt(Var r + eps) with the variance divided by n.
        "batch-uncentred": r / sqrt(mean(r^2) + eps).  "none": r.  "layer" and "rms" are the same
        for the d features of a sample in place of a row, "group(g)" and ``GroupNorm(g)`` for each
        of g groups of neighbouring features.  There are no learned factors.
    skip : float, default 0.0
        Factor of the skip connection; 0 removes it.
    gain : float, optional
        Factor of the weights; not 0.  The default is 1, or 1/sqrt(3) if `weights` is "pytorch".
    weights : {"gaussian", "uniform", "rademacher", "haar", "pytorch"} or callable
        Law of the entries of W times sqrt(d), with mean 0 and variance 1.  With "haar", W is
        uniformly distributed on the orthogonal matrices.  "pytorch" is the default initialization
        of ``torch.nn.Linear(d, d)``; see Notes.  A callable takes a `numpy.random.Generator` and a
        shape, and returns an array of that shape; several threads call it.
    eps : float, default 0.0
        Number >= 0 that is added to the variance.  The papers use 0; PyTorch uses 1e-5.
    order : {"norm-activation", "activation-norm", "pre-activation"}
        Which state a layer keeps, and what W multiplies; see Notes.
    bias_variance : float, optional
        Variance >= 0 of the entries of a bias b in R^d, which is added to all samples.  They are
        Gaussian, or uniform if `weights` is "pytorch".  The default is 0, or 1/(3 d) if `weights`
        is "pytorch" (1/(3 d · taps) for a convolution).
    convolution : Convolution, optional
        W is a convolution of images; see `Chain.conv`.  Then d is the number of channels, the
        entries of W have variance 1/(d · taps), and n is the number of samples times that of the
        pixels: column ``(s * height + y) * width + x`` is pixel (y, x) of sample s.  Functions of
        samples, such as the norm over the batch, act on these columns.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a value is not allowed; the message names it.

    Notes
    -----
    The orders differ in the activations :math:`a_l` that W multiplies, and in what the skip
    connection keeps.  The formula above is "norm-activation".  The other two have a state h before
    the norm:

    .. math:: h_{l+1} = \mathrm{skip}\, h_l + \mathrm{gain}\, W_l a_l + b_l 1^T,
              \qquad G_l = a_l^T a_l / d,

    with :math:`a_l = N(\sigma(h_l))` for "activation-norm", and :math:`a_l = \sigma(N(h_l))` for
    "pre-activation", the residual block of `Chain.resnet`.  :math:`h_0` is the initial state.  In
    the order "norm-activation" the bias is added before N, and the input of layer 0 has none.

    Without skip connection, "pre-activation" has the same law as "norm-activation".  Without norm
    all orders have the same law.

    ``torch.nn.Linear(d, d)`` draws weights and biases from the uniform law on
    :math:`\pm 1/\sqrt d`.  So ``weights="pytorch"`` is uniform weights W, the gain 1/sqrt(3) and
    uniform biases of variance 1/(3 d), and ``bias_variance=0`` is ``Linear(d, d, bias=False)``.
    The layer of PyTorch has the weights gain W.  These rows are not Gaussian given G, so only the
    sampler "weights" draws them.  The mean field takes the variance of the bias at width d, not
    its limit 0 at infinite width.

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
    order: str
    bias_variance: float
    convolution: Convolution | None
    #: The normalization as a value: its NumPy form, and the part of a Gram matrix that it ignores.
    normalization: Norm = field(init=False)
    _law: WeightLaw = field(init=False, compare=False)

    def __init__(
        self,
        width: int,
        batch: int,
        activation: ActivationLike = "linear",
        *,
        norm: str | Norm = "batch",
        skip: float = 0.0,
        gain: float | None = None,
        weights: str | WeightSampler = "gaussian",
        eps: float = 0.0,
        order: str = "norm-activation",
        bias_variance: float | None = None,
        convolution: Convolution | None = None,
    ) -> None:
        def keep(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        keep("normalization", as_norm(norm))
        keep("norm", self.normalization.name)
        keep("width", integer("width", width, low=1, high=MOST_WIDTH))
        self.normalization.require_width(self.width)
        least = 2 if self.normalization.hides_common_part else 1  # one sample has no variance
        keep("batch", integer("batch", batch, low=least, high=MOST_WIDTH))
        keep("activation", as_activation(activation))
        keep("skip", real("skip", skip))
        law = weight_law(weights)
        keep("_law", law)
        keep("weights", weights if callable(weights) else law.name)
        keep("gain", law.gain if gain is None else real("gain", gain))
        if self.gain == 0.0:
            raise ArgumentError("gain", gain, "a finite real number other than 0")
        keep("eps", real("eps", eps, low=0.0))
        keep("order", choice("order", order, tuple(ORDERS)))
        keep("convolution", convolution)
        if convolution is not None:
            self._require_convolution()
        variance = law.bias_over_width / self.fan_in if bias_variance is None else bias_variance
        keep("bias_variance", real("bias_variance", variance, low=0.0))

    def _require_convolution(self) -> None:
        """Raise unless the chain can have its convolution."""
        instance("convolution", self.convolution, Convolution, "a bnmc.Convolution or None")
        assert self.convolution is not None
        if self.batch % (pixels := self.convolution.positions):
            allowed = f"a multiple of {pixels}, the number of pixels of an image"
            raise ArgumentError("batch", self.batch, allowed)
        integer("width", self.width, low=1, high=MOST_WIDTH // self.convolution.taps)
        if self.is_orthogonal:
            hint = "an orthogonal matrix takes the channels alone, not the taps of a convolution"
            raise ArgumentError("weights", self.weights, "a law with independent entries", hint)

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("skip", "gain", "eps", "order", "bias_variance", "convolution")
        options = {name: getattr(self, name) for name in names}
        options["norm"] = self.norm if self.norm in NORMS else self.normalization
        weights: str | bytes | WeightSampler = self.weights
        if not isinstance(weights, str):
            weights = sendable("weights", weights, weights)
        return _rebuilt, (self.width, self.batch, self.activation, weights, options)

    def __repr__(self) -> str:
        shown = [
            f"width={self.width}",
            f"batch={self.batch}",
            f"activation={self.activation.name!r}",
        ]
        defaults: dict[str, Any] = {
            "convolution": None, "norm": "batch", "skip": 0.0, "gain": self._law.gain,
            "weights": "gaussian", "eps": 0.0, "order": "norm-activation",
            "bias_variance": self._law.bias_over_width / self.fan_in,
        }  # fmt: skip
        for name, default in defaults.items():
            value = getattr(self, name)
            if callable(value):  # without its address, which differs from process to process
                shown.append(f"{name}=<{getattr(value, '__qualname__', type(value).__qualname__)}>")
            elif value != default:
                shown.append(f"{name}={value!r}")
        return f"Chain({', '.join(shown)})"

    def as_json(self) -> dict[str, Any]:
        """Return the options by name, for a JSON document.

        Examples
        --------
        >>> from bnmc import Chain
        >>> options = Chain(64, 4, "relu").as_json()
        >>> options["width"], options["activation"], options["norm"]
        (64, 'relu', 'batch')
        """
        names = ("skip", "gain", "eps", "order", "bias_variance")
        weights = self.weights if isinstance(self.weights, str) else "user"
        return {
            "width": self.width, "batch": self.batch, "activation": self.activation.name,
            "norm": self.norm, "weights": weights,
            **{name: getattr(self, name) for name in names},
            "convolution": None if self.convolution is None else asdict(self.convolution),
        }  # fmt: skip

    @cached_property
    def layers(self) -> tuple[Layer, Layer]:
        """Layer 0, and the layer that repeats."""
        linear = Linear(
            self.width, self.fan_in, self._law, self.gain, self.bias_variance,
            self.convolution,
        )  # fmt: skip
        rows = RowMap(
            self.activation, self.normalization, self._order_code, self.batch, self.eps, self.skip
        )
        layer = Layer(linear, rows)
        return start_of(layer), layer

    def repeat(self, depth: int) -> Network:
        """Return the network of this chain alone, with layers 0, …, depth.

        Examples
        --------
        >>> from bnmc import Chain
        >>> network = Chain(64, 4, "relu").repeat(3) + Chain(32, 4, "tanh").repeat(2)
        >>> network.depth, network.widths
        (5, [64, 64, 64, 64, 32, 32])
        """
        return Network((self, depth))

    @cached_property
    def covariance(self) -> CovarianceMap:
        """The map from the Gram matrix of a layer to the covariance of the rows of W a.

        With a bias it is that of the rows of W a + b 1ᵀ / gain, unless the norm subtracts it.
        """
        return self.layers[1].covariance

    @cached_property
    def covariance_of_states(self) -> CovarianceMap:
        """The same map with a bias that the norm subtracts: that of the rows before the norm."""
        return self.layers[1].linear.covariance()

    @cached_property
    def _order_code(self) -> int:
        """Code of the order in kernels; the first of the orders that have the same law."""
        code = self._order_code_beside_skips
        return NORM_FIRST if code == NORM_IN_BRANCH and self.skip == 0.0 else code

    @property
    def _order_code_beside_skips(self) -> int:
        """Code of the order, if a layer after this one has a skip connection."""
        return NORM_FIRST if self.normalization.is_identity else ORDERS[self.order]

    @cached_property
    def shows_bias(self) -> bool:
        """Whether the law of the activations depends on a bias."""
        return self.bias_variance > 0.0 and not self.layers[1].rows.hides_common_part()

    @property
    def fan_in(self) -> int:
        """Number of weights of a row of W: the width, times the taps of a convolution."""
        return self.width * (self.convolution or NO_CONVOLUTION).taps

    @property
    def is_row_by_row(self) -> bool:
        """Whether N acts on each row alone, before the activation and at the state's own place.

        If so, kernels draw, normalize and activate rows one by one.
        """
        return self.layers[1].is_row_by_row

    @property
    def is_gaussian(self) -> bool:
        """Whether the weights are Gaussian, so that rows can be drawn given the Gram matrix."""
        return self._law.rows_given_gram

    @property
    def is_orthogonal(self) -> bool:
        """Whether the weights are uniformly distributed orthogonal matrices."""
        return self._law.is_orthogonal

    @property
    def is_vanilla_linear(self) -> bool:
        """Whether the chain is linear without norm and skip: G is a product of Wishart factors."""
        without = self.normalization.is_identity and self.skip == 0.0
        linear = self.activation.is_linear and self.covariance.is_identity
        return self.is_gaussian and linear and without

    def idealized(self) -> Self:
        """Return the chain with eps 0, and Gaussian weights and biases of the same variances.

        The theory of the papers covers it, and at large width it differs little from the chain.

        Examples
        --------
        >>> from bnmc import Chain
        >>> Chain(64, 4, "relu", weights="pytorch", eps=1e-5, bias_variance=0.0).idealized()
        Chain(width=64, batch=4, activation='relu', gain=0.5773502691896258)
        """
        return type(self)(
            self.width, self.batch, self.activation, norm=self.normalization, skip=self.skip,
            gain=self.gain, order=self.order, bias_variance=self.bias_variance,
            convolution=self.convolution,
        )  # fmt: skip

    @classmethod
    def bn_residual(
        cls, width: int, batch: int, activation: ActivationLike = "linear", *, gamma: float
    ) -> Self:
        """Return the chain of *… avoids rank collapse*: x + gamma W x, uncentred BN.

        The entries of the paper's W have variance 1, so the gain is gamma sqrt(width).  If gamma is
        inf, the chain has no skip connection.
        """
        gamma = real("gamma", gamma, above=0.0, finite=False)
        width = integer("width", width, low=1, high=MOST_WIDTH)
        skip, gain = (0.0, 1.0) if gamma == np.inf else (1.0, gamma * float(np.sqrt(width)))
        return cls(width, batch, activation, norm="batch-uncentred", skip=skip, gain=gain)

    @classmethod
    def resnet(
        cls,
        width: int,
        batch: int,
        activation: ActivationLike = "relu",
        *,
        norm: str | Norm = "batch",
        gain: float = 1.0,
        eps: float = 0.0,
        bias_variance: float = 0.0,
    ) -> Self:
        """Return the chain of residual blocks h + gain W σ(N(h)), with the norm inside the branch.

        This is the pre-activation block of He, Zhang, Ren and Sun (arXiv:1603.05027) with one
        linear layer, and with ``norm="layer"`` the MLP block of transformers without its second
        linear layer.  The chain of the rank-collapse paper, `Chain.bn_residual`, normalizes the
        sum instead.

        Examples
        --------
        >>> from bnmc import Chain
        >>> Chain.resnet(64, 4, norm="layer")
        Chain(width=64, batch=4, activation='relu', norm='layer', skip=1.0, order='pre-activation')
        """
        return cls(
            width, batch, activation, norm=norm, skip=1.0, gain=gain, eps=eps,
            order="pre-activation", bias_variance=bias_variance,
        )  # fmt: skip

    @classmethod
    def conv(
        cls,
        channels: int,
        batch: int,
        activation: ActivationLike = "relu",
        *,
        shape: tuple[int, int] = (8, 8),
        kernel: tuple[int, int] = (3, 3),
        norm: str | Norm = "batch",
        gain: float = 1.0,
        eps: float = 0.0,
    ) -> Self:
        r"""Return a convolutional chain with circular padding.

        Its layers are those of ``torch.nn.Conv2d`` with ``padding_mode="circular"`` and
        ``padding="same"``, without bias, after ``torch.nn.BatchNorm2d`` and the activation.

        Parameters
        ----------
        channels : int
            Number of channels of every layer: the width of the chain.
        batch : int
            Number of samples.  The batch of the chain is the number of samples times that of the
            pixels, and its Gram matrices are over samples and pixels, with the sample as the
            slower index.
        activation : str, Activation or callable, default "relu"
        shape : (int, int), default (8, 8)
            Height and width of the images in pixels.
        kernel : (int, int), default (3, 3)
            Height and width of the kernel, at most those of the images.  See `Convolution` for
            kernels of even size.
        norm : str or GroupNorm, default "batch"
            "batch" takes mean and variance of a channel over samples and pixels.  A norm over the
            features acts on the channels of each pixel.
        gain, eps : float, default 1.0 and 0.0
            As in `Chain`.  Weights have variance gain²/(channels · taps).

        Returns
        -------
        Chain
            With the attribute `convolution`.  `bnmc.simulate` takes `initial` of shape
            (channels, batch, height, width) for it.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If a value is not allowed; the message names it.

        Examples
        --------
        >>> from bnmc import Chain
        >>> chain = Chain.conv(64, 4, "relu", shape=(4, 4))
        >>> chain.width, chain.batch, chain.convolution.kernel
        (64, 64, (3, 3))
        """
        convolution = Convolution(shape, kernel)
        samples = integer("batch", batch, low=1, high=MOST_WIDTH // convolution.positions)
        return cls(
            channels, samples * convolution.positions, activation, norm=norm, gain=gain, eps=eps,
            convolution=convolution,
        )  # fmt: skip


class Layers(NamedTuple):
    """The layers of a network, each with the number of the first of several equal ones.

    The last one has no end.
    """

    firsts: tuple[int, ...]
    layers: tuple[Layer, ...]

    def at(self, number: int) -> int:
        """Return the place of the layer of a number."""
        return bisect_right(self.firsts, number) - 1


@dataclass(frozen=True, init=False, repr=False)
class Network:
    r"""Layers that differ: several chains, one after the other, as a value.

    `bnmc.simulate` takes it in place of a chain and a depth.

    Parameters
    ----------
    *stages : (Chain, int) or Residual
        A chain and a number of layers, or a block of layers with a skip path.  Layer 0, which is
        the initial state, and the next layers are of the first chain, the layers after these of the
        second chain, and so on.  The first number is at least 0, the others are at least 1.

    Attributes
    ----------
    stages : tuple of (Chain, int) or Residual
        The same, with equal neighbours as one stage.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If there is no stage, a stage is neither such a pair nor a block, chains differ in the
        batch, images differ in size, or a skip connection leads to another width.

    Notes
    -----
    The chain of a layer has the linear map that leads to the layer: width, gain, bias, law of W,
    and the factor of the skip connection; and the norm and the activation after it.  W has as many
    columns as the layer before has rows, and entries of variance 1/columns.  If the law of W is
    "pytorch", the default variance of the bias is 1/(3 columns).  A skip connection adds what the
    layer before keeps, as its own order tells; see `Chain`.

    Examples
    --------
    >>> import bnmc
    >>> network = bnmc.Network((bnmc.Chain(64, 4, "relu"), 2), (bnmc.Chain(32, 4, "tanh"), 1))
    >>> bnmc.simulate(network, rng=0).gram.shape
    (1, 4, 4, 4)
    """

    stages: tuple[Stage, ...]

    def __init__(self, *stages: Stage) -> None:
        if not stages:
            raise ArgumentError("stages", stages, "at least one pair (chain, depth)")
        joined: list[Stage] = []
        for stage in stages:
            if isinstance(stage, Residual):
                joined.append(stage)
                continue
            if not isinstance(stage, tuple) or len(stage) != 2:
                raise ArgumentTypeError("stages", stage, "pairs (chain, depth), or blocks")
            (chain, depth), least = stage, min(len(joined), 1)
            if type(depth) is not int or depth < least:  # each run makes a network
                depth = integer("depth", depth, low=least)
            chain = as_chain(chain)
            if joined and isinstance(before := joined[-1], tuple) and before[0] == chain:
                depth += before[1]
                joined.pop()
            joined.append((chain, depth))
        object.__setattr__(self, "stages", tuple(joined))
        if self.depth >= MOST_LAYERS:
            raise ArgumentError("depth", self.depth, f"at most {MOST_LAYERS - 1} layers")
        for span, after in pairwise(_spans(self.stages)):
            _require_successor(span.chain, after.chain)
            for block in after.begins:
                block._require_width(span.chain)

    @classmethod
    def of(
        cls,
        *,
        width: int | Sequence[int],
        batch: int,
        depth: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the network of a perceptron, layer by layer, after the input itself.

        Layer 0 is the input, without norm and activation.

        Parameters
        ----------
        width : int or sequence of int
            The number of features of the input, and the widths of layers 1, …, L; or the same
            number for all of them.
        batch : int
        depth : int, optional
            L, if `width` is a number.
        **options
            Arguments of `Chain`.  Each is a value for all layers, a list of L values, or a function
            of the number l of the layer, from 1 to L.  `activation` and `weights` are no such
            functions, because a function is a value of theirs.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If a value is not allowed.

        Examples
        --------
        >>> from bnmc import Network
        >>> Network.of(width=[784, 64, 10], batch=4, activation=["relu", "linear"], norm="none")
        Network((Chain(width=784, batch=4, activation='linear', norm='none'), 0),
                (Chain(width=64, batch=4, activation='relu', norm='none'), 1),
                (Chain(width=10, batch=4, activation='linear', norm='none'), 1))
        >>> Network.of(width=50, depth=3, batch=4, gain=lambda l: 1 / l).stages[-1][0].gain
        0.3333333333333333
        """
        if isinstance(width, _LISTS):
            if depth is not None:
                raise ArgumentError("depth", depth, "None with a list of widths")
            widths = list(width)
        elif depth is None:
            hint = "one width has no number of layers: pass depth=, or a list of widths"
            raise ArgumentTypeError("depth", depth, "an integer >= 1", hint)
        else:
            widths = [width] * (1 + integer("depth", depth, low=1, high=_MOST_LISTED))
        if not 2 <= len(widths) <= _MOST_LISTED + 1:
            raise ArgumentError("width", width, f"2 to {_MOST_LISTED + 1} widths")
        layers = len(widths) - 1
        lists = {
            name: _of_layers(name, value, layers)
            for name, value in {"width": widths[1:], **options}.items()
        }
        chains = [
            Chain(batch=batch, **{name: values[place] for name, values in lists.items()})
            for place in range(layers)
        ]
        return cls((Chain(widths[0], batch, norm="none"), 0), *((chain, 1) for chain in chains))

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, self.stages

    def __repr__(self) -> str:
        return f"Network({', '.join(map(repr, self.stages))})"

    def __str__(self) -> str:
        """Return the `repr` if it is short, or else a line with depth, widths and batch."""
        if len(text := repr(self)) < _LONGEST_TEXT:
            return text
        widths = sorted({chain.width for chain in self.chains})
        ends = f"width {widths[0]}" if len(widths) == 1 else f"widths {widths[0]} to {widths[-1]}"
        return f"network of {self.depth} layers, {ends}, batch {self.batch}"

    def __add__(self, other: object) -> Network:
        if not isinstance(other, Network):
            return NotImplemented
        # Layer 0 of the other one is the last layer of this one.
        return Network(*self.stages, *_after_input(other))

    @property
    def depth(self) -> int:
        """The number of layers after layer 0."""
        return sum(_depth_of(stage) for stage in self.stages)

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.first.batch

    @property
    def first(self) -> Chain:
        """The chain of layer 0."""
        stage = self.stages[0]
        return stage.branch.first if isinstance(stage, Residual) else stage[0]

    @property
    def last(self) -> Chain:
        """The chain of the last layer."""
        stage = self.stages[-1]
        return stage.last if isinstance(stage, Residual) else stage[0]

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chains of the layers in order, with those of blocks and of their projections."""
        chains: list[Chain] = []
        for span in _spans(self.stages):
            chains += [block.projection for block in span.begins if block.projection is not None]
            chains.append(span.chain)
        return tuple(chains)

    @property
    def blocks(self) -> tuple[Residual, ...]:
        """The blocks among the stages."""
        return tuple(stage for stage in self.stages if isinstance(stage, Residual))

    @property
    def is_repeated(self) -> bool:
        """Whether all layers are of one chain, without a block."""
        return len(self.stages) == 1 and not self.blocks

    @property
    def chain(self) -> Chain:
        """The chain that repeats.

        Raises
        ------
        ArgumentTypeError
            If layers differ.
        """
        if not self.is_repeated:
            raise _of_layers_that_differ(self)
        return self.first

    @property
    def widths(self) -> list[int]:
        """The widths of layers 0, …, depth."""
        return [layer_at(self, number).linear.width for number in range(self.depth + 1)]

    def until(self, layer: int) -> Network:
        """Return the network of layers 0, …, layer; the last one repeats.

        Raises
        ------
        ArgumentError
            If the layer is inside a block, or beyond one that ends the network.
        """
        stages, left = [], layer
        for place, stage in enumerate(self.stages):
            depth, is_last = _depth_of(stage), place == len(self.stages) - 1
            if left > depth and not is_last:
                stages.append(stage)
                left -= depth
                continue
            if isinstance(stage, tuple):
                stages.append((stage[0], left))
            elif left == depth:
                stages.append(stage)
            elif left > 0 or stages:
                raise ArgumentError("layer", layer, "a layer that is not inside a block")
            else:
                stages.append((stage.branch.first, 0))
            break
        return Network(*stages)


@dataclass(frozen=True, init=False, repr=False)
class Residual:
    r"""A block of several layers with a skip path around them.

    It stands in a `Network` where a pair (chain, depth) stands.  With x what the skip path takes of
    the layer before the block, and a the activations of the last but one layer of the branch, the
    last layer of the branch has the rows

    .. math:: h = \mathrm{skip}\, x + \mathrm{gain}\, W a + b 1^T
              \quad\text{or}\quad \mathrm{skip}\, (P x) + \mathrm{gain}\, W a + b 1^T.

    Its own norm and activation follow.  If an activation of the sum is given, they come before the
    sum, which is then one more layer: h = skip x + a or skip N(P x) + a, with a the activations of
    the last layer of the branch.  Its weights are the identity, which `tangent_kernel` does not
    train, but `backpropagate` has gradients with respect to its entries.

    Parameters
    ----------
    branch : Network
        Its layer 0 is the layer before the block, so a chain of depth 0 at its beginning is not
        used.  It has at least one layer.  Unless the sum is a layer, it ends with a layer without a
        skip connection.
    projection : Chain, optional
        P: the width, gain, law of weights and bias of a linear layer, and the norm after it.  It
        has the activation "linear", no skip connection, and the width of the last layer.  Without a
        projection, the layer before the block has this width.
    skip : float, default 1.0
        Factor of the skip path; not 0.
    source : {"state", "activations"}
        What the skip path takes: "state" is what a skip connection takes, x or h as the order of
        the layer before the block tells (`Chain`); "activations" is a, which W multiplies.
    activation : str, Activation or callable, optional
        The activation after the sum, which is then a layer of its own.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a value is not allowed; the message names it.

    Notes
    -----
    Blocks of PyTorch, with N a norm and σ an activation:

    =====================================  =====================================================
    block                                  chains of the layers
    =====================================  =====================================================
    x + W₂ σ(N(W₁ σ(N(x))))                order "pre-activation", also of the layer before
    N(x + W₂ σ(W₁ x))                      the last one "linear" with a norm, the others without
    σ(x + W₂ σ(W₁ x))                      source "activations"
    σ(N(P x) + N(W₂ σ(N(W₁ x))))           the last one "linear"; source and activation of the sum
    =====================================  =====================================================

    Given x, the rows of W a are Gaussian given the Gram matrix of a, and those of P x given that of
    x.  So the conditional sampler keeps x, and draws no weights.

    Examples
    --------
    >>> from bnmc import Chain, Network, Residual, simulate
    >>> chain = Chain(64, 4, "relu", order="pre-activation")
    >>> block = Residual(Network((chain, 2)))
    >>> narrow = Chain(32, 4, "relu", order="pre-activation")
    >>> last = Residual(Network((narrow, 2)), Chain(32, 4, norm="none"))
    >>> network = Network((chain, 1), block, block, last)
    >>> network.depth, network.widths
    (7, [64, 64, 64, 64, 64, 64, 32, 32])
    >>> simulate(network, rng=0).gram.shape
    (1, 8, 4, 4)
    """

    branch: Network
    projection: Chain | None
    skip: float
    source: str
    activation: Activation | None

    def __init__(
        self,
        branch: Network,
        projection: Chain | None = None,
        *,
        skip: float = 1.0,
        source: str = "state",
        activation: ActivationLike | None = None,
    ) -> None:
        def keep(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        keep("branch", instance("branch", branch, Network, "a bnmc.Network"))
        if branch.depth == 0:
            raise ArgumentError("branch", branch, "a network of at least one layer after layer 0")
        keep("activation", None if activation is None else as_activation(activation))
        ends_itself = isinstance(branch.stages[-1], Residual) or branch.last.skip != 0.0
        if ends_itself and activation is None:
            hint = "the skip path of the block leads to its last layer"
            raise ArgumentError(
                "branch", branch, "a network whose last layer has no skip connection", hint
            )
        keep("projection", projection)
        if projection is not None:
            self._require_projection()
        keep("skip", real("skip", skip))
        if self.skip == 0.0:
            raise ArgumentError("skip", skip, "a finite real number other than 0")
        keep("source", choice("source", source, _SOURCES))

    def _require_projection(self) -> None:
        """Raise unless the projection is linear and leads to the last layer."""
        chain = instance("projection", self.projection, Chain, "a bnmc.Chain or None")
        assert chain is not None
        if not chain.activation.is_linear or chain.skip != 0.0:
            allowed = "a chain of the activation 'linear' with skip 0"
            raise ArgumentError("projection", chain, allowed)
        last = self.branch.last
        if (chain.width, chain.batch) != (last.width, last.batch):
            allowed = f"a chain of width {last.width} and batch {last.batch}, as the last layer"
            raise ArgumentError("projection", chain, allowed)
        if (chain.convolution is None) != (last.convolution is None):
            raise ArgumentError("projection", chain, "a convolution if the last layer is one")

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"skip": self.skip, "source": self.source, "activation": self.activation}
        return _rebuilt_block, (self.branch, self.projection, options)

    def __repr__(self) -> str:
        shown = [repr(self.branch)]
        defaults = {"projection": None, "skip": 1.0, "source": "state"}
        for name, default in defaults.items():
            if (value := getattr(self, name)) != default:
                shown.append(f"{name}={value!r}")
        if self.activation is not None:
            shown.append(f"activation={self.activation.name!r}")
        return f"Residual({', '.join(shown)})"

    @property
    def sum(self) -> Chain | None:
        """The layer of the sum, whose weights are the identity, or None if it has no own layer."""
        if self.activation is None:
            return None
        last = self.branch.last
        return Chain(last.width, last.batch, self.activation, norm="none", weights=identity)

    @property
    def last(self) -> Chain:
        """The chain of the last layer."""
        return self.sum or self.branch.last

    @property
    def depth(self) -> int:
        """The number of layers."""
        return self.branch.depth + (self.activation is not None)

    def _path_after(self, width: int) -> Path:
        """Return the skip path after a layer of a width."""
        linear = norm = None
        if self.projection is not None:
            linear, rows, *_ = layer_after(self.projection, width)
            norm = None if rows.norm.is_identity else rows
        return Path(self.depth, linear, self.source == "activations", norm)

    def _require_width(self, before: Chain) -> None:
        """Raise unless the skip path can begin after a layer of a chain."""
        last = self.branch.last
        if self.projection is None and last.width != before.width:
            allowed = f"a chain, from width {before.width} to width {last.width}"
            raise ArgumentError("projection", None, allowed, "a skip path keeps the width")
        if self.projection is not None:
            _require_images(before, self.projection)


#: What a skip path of a block takes.
_SOURCES = ("state", "activations")

#: Some layers of a network.
Stage = tuple[Chain, int] | Residual

#: The stages of a network, apart from the number of layers at its end.
Pattern = tuple[Stage, ...]


def layer_after(chain: Chain, width: int) -> Layer:
    """Return the layer that repeats, after a layer of a width; a default bias is for it."""
    layer, fan_in = chain.layers[1], width * (chain.fan_in // chain.width)
    of_default = layer.linear.law.bias_over_width
    is_default = chain.bias_variance == of_default / chain.fan_in
    variance = of_default / fan_in if is_default else chain.bias_variance
    return layer._replace(linear=replace(layer.linear, fan_in=fan_in, bias_variance=variance))


def options_of(network: Network | Residual) -> dict[str, Any]:
    """Return the options of the chains of a network or a block, for a JSON document."""
    if isinstance(network, Residual):
        projection, activation = network.projection, network.activation
        return {
            "branch": _stages_as_json(network.branch),
            "projection": None if projection is None else projection.as_json(),
            "skip": network.skip, "source": network.source,
            "activation": None if activation is None else activation.name,
        }  # fmt: skip
    return network.first.as_json() if network.is_repeated else _stages_as_json(network)


def _stages_as_json(network: Network) -> dict[str, Any]:
    stages = [
        options_of(stage)
        if isinstance(stage, Residual)
        else {**stage[0].as_json(), "depth": stage[1]}
        for stage in network.stages
    ]
    return {"stages": stages}


def shown_of(network: Network) -> Chain | Network:
    """Return the chain of a network, or the network if layers differ."""
    return network.first if network.is_repeated else network


def pattern_of(network: Network) -> Pattern:
    """Return the stages with at most two layers of the last one, the second of which repeats."""
    last = network.stages[-1]
    if isinstance(last, Residual):
        return network.stages
    depth = 2 if len(network.stages) == 1 else min(last[1], 2)
    return (*network.stages[:-1], (last[0], depth))


def layer_at(network: Network, number: int) -> Layer:
    """Return a layer of a network; the last one repeats."""
    layers = layers_of(pattern_of(network))
    return layers.layers[layers.at(number)]


def _after_input(network: Network) -> tuple[Stage, ...]:
    """Return the stages of the layers after layer 0."""
    stage = network.stages[0]
    return network.stages[isinstance(stage, tuple) and stage[1] == 0 :]


def _depth_of(stage: Stage) -> int:
    """Return the number of layers of a stage after layer 0."""
    return stage.depth if isinstance(stage, Residual) else stage[1]


class _Span(NamedTuple):
    """Consecutive layers of one chain, and the blocks that begin before and end with them."""

    chain: Chain
    layers: int
    begins: tuple[Residual, ...] = ()
    ends: Residual | None = None

    @property
    def takes_state(self) -> bool:
        """Whether a skip connection leads on from what the layer before keeps."""
        return self.chain.skip != 0.0 or any(block.source == "state" for block in self.begins)


def _spans(stages: Pattern) -> Iterator[_Span]:
    """Yield the layers of a network, from layer 0 on, chain by chain."""
    stage = stages[0]
    if isinstance(stage, Residual):
        yield _Span(stage.branch.first, 1)
    else:
        yield _Span(stage[0], 1 + stage[1])
        stages = stages[1:]
    for stage in stages:
        yield from _spans_of_stage(stage)


def _spans_of_stage(stage: Stage) -> Iterator[_Span]:
    if not isinstance(stage, Residual):
        yield _Span(*stage)
        return
    spans = [span for inner in _after_input(stage.branch) for span in _spans_of_stage(inner)]
    if stage.sum is not None:
        spans.append(_Span(stage.sum, 1))
    spans[0] = spans[0]._replace(begins=(stage, *spans[0].begins))
    spans[-1] = spans[-1]._replace(ends=stage)
    yield from spans


#: Characters of the `repr` of a network that is its `str`, too.
_LONGEST_TEXT = 100

#: Types of values by layer.
_LISTS = list, tuple, range, np.ndarray

#: The most layers whose arguments `Network.of` takes layer by layer.
_MOST_LISTED = 10_000


@lru_cache(maxsize=64)
def layers_of(pattern: Pattern) -> Layers:
    """Return the layers of a network."""
    firsts: list[int] = []
    layers: list[Layer] = []
    number = width = 0
    spans, open_paths = [*_spans(pattern)], list[Path]()
    for place, (chain, count, begins, ends) in enumerate(spans):
        # Layer 1 of a span follows another layer; the last one precedes another layer.
        parts = [chain.layers[0] if place == 0 else layer_after(chain, width)]
        parts += [chain.layers[1]] * min(count - 1, 2)
        paths = tuple(block._path_after(width) for block in begins)
        parts[0] = parts[0]._replace(begins=paths)
        open_paths += paths
        if ends is not None:
            # It keeps its state, as a layer with a skip connection does.
            rows = parts[-1].rows._replace(skip=ends.skip, order=chain._order_code_beside_skips)
            parts[-1] = parts[-1]._replace(rows=rows, path=open_paths.pop())
        if place == len(spans) - 1:
            parts = parts if ends else parts[:2]
        elif spans[place + 1].takes_state:
            # A skip connection sees what the order of this layer keeps.
            rows = parts[-1].rows._replace(order=chain._order_code_beside_skips)
            parts[-1] = parts[-1]._replace(rows=rows)
        firsts += [number, number + 1, number + count - 1][: len(parts)]
        layers += parts
        number += count
        width = chain.width
    return Layers(tuple(firsts), tuple(layers))


def _require_successor(before: Chain, chain: Chain) -> None:
    """Raise unless a chain can follow another one."""
    if chain.batch != before.batch:
        raise ArgumentError("batch", chain.batch, f"{before.batch}, that of the first chain")
    if chain.skip != 0.0 and chain.width != before.width:
        allowed = f"0 from width {before.width} to width {chain.width}"
        raise ArgumentError("skip", chain.skip, allowed, "a skip connection keeps the width")
    _require_images(before, chain)


def _require_images(before: Chain, chain: Chain) -> None:
    """Raise if images of two chains differ in size."""
    images = [each.convolution.shape for each in (before, chain) if each.convolution is not None]
    if images[:1] != images[-1:]:
        raise ArgumentError("convolution", images[1], f"images of {images[0]} pixels")


def _of_layers(name: str, value: Any, layers: int) -> list[Any]:
    """Return the values of an argument for layers 1, …, layers."""
    if isinstance(value, _LISTS):
        if len(value) != layers:
            raise ArgumentError(name, value, f"a value, or a list of {layers} values")
        return list(value)
    if callable(value) and name not in ("activation", "weights"):
        function: Callable[[int], Any] = value
        return [function(layer) for layer in range(1, layers + 1)]
    return [value] * layers


def as_chain(chain: object) -> Chain:
    """Return the argument `chain` of a function of one layer that repeats, or raise.

    Raises
    ------
    ArgumentTypeError
        If it is not a chain.
    """
    if isinstance(chain, Network):
        raise _of_layers_that_differ(chain)
    return instance("chain", chain, Chain, "a bnmc.Chain")


def as_network(
    chain: object,
    depth: object = None,
    *,
    low: int = 0,
    default: int | None = None,
    name: str = "chain",
) -> Network:
    """Return the network that the arguments `chain` and `depth` of a function mean, or raise.

    `low` is the least depth, `default` that of a chain without one, and `name` the name of the
    argument `chain`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is neither a chain with a depth nor a network without.
    """
    if isinstance(chain, Network):
        if depth is not None:
            integer("depth", depth, low=0)
            raise ArgumentError("depth", depth, "None with a network, which has a depth")
        if chain.depth < low:
            raise ArgumentError(name, chain, f"a network of at least {low} layers")
        return chain
    repeated = instance(name, chain, Chain, "a bnmc.Chain or a bnmc.Network")
    if depth is None and default is None:
        hint = f"a Chain has no number of layers: pass depth=, or {name}.repeat({max(low, 3)})"
        raise ArgumentTypeError("depth", depth, f"an integer >= {low}", hint)
    number = integer("depth", default if depth is None else depth, low=low, high=MOST_LAYERS - 1)
    return repeated.repeat(number)


def require_no_blocks(network: Network, hint: str, name: str = "chain") -> None:
    """Raise if there is a block among the stages of an argument.

    Raises
    ------
    ArgumentError
        With a hint.
    """
    if network.blocks:
        raise ArgumentError(name, network, "a network without residual blocks", hint)


def require_plain_sums(network: Network, name: str = "chain") -> None:
    """Raise if a sum of a block is a layer, or comes after the norm of a projection.

    Raises
    ------
    ArgumentError
    """
    for layer in layers_of(pattern_of(network)).layers:
        if layer.linear.law.is_identity or (layer.path is not None and layer.path.norm is not None):
            allowed = "a network whose blocks have no norm before their sums"
            raise ArgumentError(name, network, allowed, "bnmc.backpropagate takes them")


def _of_layers_that_differ(network: Network) -> ArgumentTypeError:
    hint = "it has a meaning for one repeated layer only; network.stages has the chains"
    return ArgumentTypeError("chain", network, "a bnmc.Chain", hint)


def _rebuilt_block(branch: Network, projection: Chain | None, options: dict[str, Any]) -> Residual:
    return Residual(branch, projection, **options)


def _rebuilt(
    width: int, batch: int, activation: Activation, weights: str | bytes, options: dict[str, Any]
) -> Chain:
    law = weights if isinstance(weights, str) else received(weights)
    return Chain(width, batch, activation, weights=law, **options)
