"""The covariance and the tangent kernel of infinitely wide networks: `nngp` and `ntk`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import wraps
from inspect import signature
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST, NORM_FIRST
from bnmc._support.arguments import choice, draw_key, finite_array, integer, items, precision, real
from bnmc._support.keywords import explains_keywords, require_known
from bnmc._support.machine import require_memory
from bnmc._support.progress import Progress
from bnmc._support.workers import Parallel
from bnmc.chain.activations import Activation, as_activation, require_derivative
from bnmc.chain.chain import ORDERS, Chain, as_network, layer_at
from bnmc.chain.chain import Network as ChainNetwork
from bnmc.chain.homogeneity import homogeneous_slopes
from bnmc.chain.layers import Layer, Linear, RowMap
from bnmc.chain.norms import as_norm
from bnmc.chain.weights import weight_law
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.infinite_width.batches import (
    ActivatedBatches,
    BatchNetwork,
    NormalizedBatches,
    RowPaths,
    batch_kernel,
)
from bnmc.infinite_width.gaussian_batches import GaussianBatches
from bnmc.infinite_width.layers_of_networks import hidden_layers, pairwise_layer
from bnmc.infinite_width.networks import (
    FiniteNetwork,
    HiddenLayer,
    Network,
    SimulatedKernel,
    Weights,
    simulated_kernel,
)
from bnmc.infinite_width.tiles import TiledKernel
from bnmc.mean_field.duals.duals import Dual, dual
from bnmc.mean_field.float64 import EPSILON, TINY, FloatArray
from bnmc.mean_field.map.iteration import iterates
from bnmc.mean_field.map.points import require_rows_vary
from bnmc.mean_field.pairwise_layer import PairwiseLayer

_Spec = str | Activation | Dual | Callable[[Any], Any]
_Analytic = Literal["analytic"]
_Simulated = Literal["monte-carlo"]
_Batch = int | tuple[int, int] | None
_Matrix = NDArray[np.floating[Any]]

# Norms and orders of kernels, and how kernels are computed.
_NORMS = ("none", "layer", "rms", "batch")
_ORDERS = ("norm-activation", "activation-norm")
_METHODS = ("analytic", "monte-carlo")
#: Largest depth.
MOST_LAYERS = 1_000_000

# Largest skip connection: its square is finite.
_MOST_SKIP = 1e150

# Default relative errors: of integrals, and of estimates.
_RTOL, _ESTIMATED_RTOL = 1e-6, 1e-3

# Nodes of the integral of a pair of samples, at most; and evaluations of all pairs, shifts and
# layers if `rtol` is the default, which take some 10 s.
_MOST_NODES, _MOST_EVALUATIONS = 100_000, 50_000_000


class _Options(TypedDict, total=False):
    """The other arguments of `nngp` and `ntk`."""

    other: ArrayLike | None
    activation: _Spec
    norm: str
    order: str
    weight_variance: float
    bias_variance: float
    skip: float
    batch: _Batch
    rtol: float | None
    width: int
    chains: int
    dtype: DTypeLike
    threads: int | None
    executor: Executor | None
    timeout: float | None
    progress: bool | Progress
    rng: Any


class _Kernel(Protocol):
    """The type of `nngp` and `ntk`."""

    @overload
    def __call__(
        self, x: ArrayLike, depth: int, *, method: _Simulated, **options: Unpack[_Options]
    ) -> SimulatedKernel: ...

    @overload
    def __call__(
        self, x: ArrayLike, depth: int, *, method: _Analytic = ..., **options: Unpack[_Options]
    ) -> _Matrix: ...

    @overload
    def __call__(
        self, chain: Chain, x: ArrayLike, depth: int, /, **options: Unpack[_Options]
    ) -> _Matrix: ...

    @overload
    def __call__(
        self, network: ChainNetwork, x: ArrayLike, /, **options: Unpack[_Options]
    ) -> _Matrix: ...


#: Options of kernels that a chain has.
_OF_CHAINS = (
    "activation", "norm", "order", "weight_variance", "bias_variance", "skip", "batch",
    "width", "chains",
)  # fmt: skip

#: Arguments of kernels of a chain.
_BESIDE_CHAINS = (
    "x",
    "depth",
    "other",
    "rtol",
    "dtype",
    "threads",
    "executor",
    "timeout",
    "progress",
    "rng",
)


def _overloaded(function: Callable[..., Any]) -> _Kernel:
    """Return the function, which also takes a chain or a network in front of its arguments."""
    parameters, alone = signature(function), explains_keywords(function)

    @wraps(function)
    def kernel(*arguments: Any, **options: Any) -> Any:
        if not (arguments and isinstance(arguments[0], Chain | ChainNetwork)):
            return alone(*arguments, **options)
        chain, *further = arguments
        for name in _OF_CHAINS:
            if name in options:
                allowed = f"no {name} beside a chain"
                raise ArgumentError(name, options[name], allowed, "the chain has these options")
        if isinstance(chain, ChainNetwork) and len(further) < 2:
            options = {"depth": None, **options}
        try:
            bound = parameters.bind(*further, **options)
        except TypeError as error:
            require_known(function, options)
            call = f"{function.__name__}({type(chain).__name__.lower()}, x"
            call += ")" if isinstance(chain, ChainNetwork) else ", depth)"
            raise TypeError(f"{error}; call {call}, x of shape (features, samples)") from None
        bound.apply_defaults()
        if bound.arguments["method"] != "analytic":
            hint = "bnmc.simulate and bnmc.gradients.tangent_kernel simulate a chain"
            raise ArgumentError("method", bound.arguments["method"], "analytic, of a chain", hint)
        given = {name: bound.arguments[name] for name in _BESIDE_CHAINS}
        return _of_chain(chain, tangent=function.__name__ == "ntk", **given)

    return cast("_Kernel", kernel)


@_overloaded
def nngp(
    x: ArrayLike,
    depth: int,
    *,
    other: ArrayLike | None = None,
    activation: _Spec = "relu",
    norm: str = "none",
    order: str = "norm-activation",
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    skip: float = 0.0,
    batch: _Batch = None,
    rtol: float | None = None,
    method: str = "analytic",
    width: int = 512,
    chains: int = 100,
    dtype: DTypeLike = "float64",
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
    rng: Any = None,
) -> _Matrix | SimulatedKernel:
    """Covariance of the outputs of an infinitely wide random network: the kernel of its GP.

    ``nngp(chain, x, depth)`` is the covariance of a row of h_depth of a `bnmc.Chain` with the start
    ``FirstLayer(x)``, in the limit of infinite width.  ``nngp(network, x)`` is that of the last
    layer of a `bnmc.Network`, at its own depth.  If layer 0 of a network is linear and has no norm,
    as that of `Network.of`, it is the input x itself, without weights.  Of the options below, both
    take `other`, `rtol`, `dtype`, `threads`, `executor`, `timeout`, `progress` and `rng`.

    Parameters
    ----------
    x : (features, samples) array_like
        Inputs, one per column.
    depth : int
        Number of hidden layers L, from 0 to 1,000,000.
    other : (features, others) array_like, optional
        Second set of inputs. The kernel is then that of `x` with `other`: for example `x` the test
        set and `other` the training set. By default it is that of `x` with itself.
    activation : str, Activation, callable or Dual, default "relu"
        Activation σ; see `dual`. Norm "batch" and the Monte Carlo method take no `Dual`, and of the
        names only those of `bnmc.Activation`.
    norm : {"none", "layer", "rms", "batch"}
        Normalization N. "layer" and "rms" normalize each sample over the features, "batch" each
        feature over the samples of a batch.
    order : {"norm-activation", "activation-norm"}
        Whether N acts before or after σ. Norm "batch" after σ excludes functions that are constant
        on an interval, such as relu: rows of equal outputs would have no variance.
    weight_variance, bias_variance : float, default 1 and 0
        σ_w² > 0, the variance of the weights times the number of their inputs, and σ_b² >= 0.
    skip : float, default 0.0
        Factor of the skip connection from a layer to the next one, at most 1e150; 0 removes it.
    batch : int or (int, int), optional
        For norm "batch", the number of samples of a batch, of `x` and of `other`: consecutive
        samples are one batch, which its own mean and variance normalize. By default all samples of
        `x` are one batch, and all samples of `other` another one.
    rtol : float, optional
        Largest acceptable relative error of the dual activation in a layer (see `dual`); for norm
        "batch", of the kernel. Errors of earlier layers propagate to later ones. The default is
        1e-6, and 1e-3 for norm "batch" if the kernel is estimated (see Notes).
    method : {"analytic", "monte-carlo"}
        "monte-carlo" simulates networks of finite width.
    width, chains : int, default 512 and 100
        For the Monte Carlo method, the width of the networks, >= 2, and their number, >= 1.
    dtype : {"float64", "float32"}
        Type of the result of the analytic method. The computation uses float64.
    threads : int, optional
        Number of threads, >= 1. Default: all processors, or fewer if memory is short. Results do
        not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that takes tiles, replicates or networks in place of threads.
    timeout : float, optional
        Seconds, > 0, after which no tile, pair of batches, replicate or network begins.  The Monte
        Carlo method then returns the kernels of the networks that are finished. A kernel of which a
        part is missing raises `PartialEstimateError`.
    progress : bool or callable, default False
        True for a bar (extra ``cli``), or a function of (done, total): tiles, pairs of batches,
        replicates or networks. Replicates count from 1 again if `rtol` needs more points.
    rng : optional
        Seed of the quasi-Monte Carlo points of norm "batch", or of the networks.

    Returns
    -------
    (samples, samples) or (samples, others) ndarray, or SimulatedKernel
        K, symmetric and positive semidefinite up to rounding (norm "batch": up to the error) for
        one set. `SimulatedKernel` if `method` is "monte-carlo".

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, a sample or batch to be normalized has no variance, or the
        squares of a sample that is not 0 vanish in float64. Also for a network in which a skip
        connection keeps N(h) with N over the batch, unless all layers are of this kind.
    ZeroVarianceError
        If batches of a later layer have no variance.
    NonFiniteError
        If the kernel overflows.
    ResultTooLargeError
        If the result would not fit in memory.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the kernel. If `timeout` ends the work,
        ``partial`` is an estimate of the kernel with a larger error, or None.

    Notes
    -----
    ``K_0 = σ_w² xᵀx / features + σ_b²``, and for each hidden layer
    ``K ← σ_w² V[K] + σ_b²`` with ``V[K]_ij = E σ(u_i) σ(u_j)``, ``u ~ N(0, K)``. Norms "layer" and
    "rms" before σ replace K by the correlations ``K_ij / √(K_ii K_jj)`` first; after σ they
    normalize V[K]. Source: Lee et al. (arXiv 1711.00165). With a skip connection the kernel is that
    of one coordinate of ``h_L``, which the skip connection joins, too:
    ``h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b`` or ``h_{l+1} = skip h_l + W N(σ(h_l)) + b``.

    **Norm "batch".** u is a row over all samples, and ``V[K] = E σ(N(u)) σ(N(u))ᵀ``, where N
    normalizes each batch of u. The kernel between two batches follows from the joint law of their
    rows. For linear, relu, leaky relu, abs and other positively homogeneous functions, V is an
    integral over one variable (one batch) or two, with a relative error below 1e-8. For other
    functions, V of one batch is that of `MeanField.trajectory`, if this reaches `rtol`; by default,
    if it does so with evaluations that take some 10 s. Otherwise, and between batches, V is
    estimated with 8 replicates of up to 262,144 randomized quasi-Monte Carlo points (65,536 above
    256 coordinates). The error is the standard error of the kernel, with the errors of earlier
    layers, relative in the Frobenius norm.

    After σ, ``V[K] = E N(σ(u)) N(σ(u))ᵀ``. This is known for linear functions, which commute with
    N, and estimated for all others. Before σ, a skip connection makes rows from h_1 on a sum of a
    vector of fixed length and a Gaussian one. So the outputs are no Gaussian process, K is their
    covariance, and for depth >= 2 it is estimated from random paths of a row through all layers.

    In pre-activation residual blocks ``h + W σ(N(h)) + b``, and in networks of layers of several
    kinds, all rows are Gaussian, so V of each layer is that of its own kind.

    Without norm "batch", time is O(samples² (features + depth)), memory that of the result.

    See Also
    --------
    ntk : The tangent kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import nngp
    >>> x = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> nngp(x, 1, activation="relu", weight_variance=2.0).round(6)
    array([[2.     , 2.13662],
           [2.13662, 4.     ]])
    >>> nngp(x, 3, activation="tanh", norm="layer").round(6)
    array([[0.394294, 0.245687],
           [0.245687, 0.394294]])

    The layers of a chain:

    >>> import bnmc
    >>> nngp(bnmc.Chain(width=100, batch=2, activation="tanh", norm="layer"), x, 2).round(6)
    array([[0.394294, 0.256938],
           [0.256938, 0.394294]])

    A network of two layers:

    >>> network = bnmc.Network.of(width=[2, 50, 3], batch=2, activation="relu", norm="none")
    >>> nngp(network, x).round(6)
    array([[0.5     , 0.534155],
           [0.534155, 1.      ]])

    Two batches of five samples, of which each is normalized alone:

    >>> x = np.random.default_rng(0).standard_normal((3, 10))
    >>> nngp(x, 2, activation="relu", norm="batch", batch=5).shape
    (10, 10)
    """
    return _kernel(tangent=False, **locals())


@_overloaded
def ntk(
    x: ArrayLike,
    depth: int,
    *,
    other: ArrayLike | None = None,
    activation: _Spec = "relu",
    norm: str = "none",
    order: str = "norm-activation",
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    skip: float = 0.0,
    batch: _Batch = None,
    rtol: float | None = None,
    method: str = "analytic",
    width: int = 512,
    chains: int = 100,
    dtype: DTypeLike = "float64",
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
    rng: Any = None,
) -> _Matrix | SimulatedKernel:
    """Tangent kernel of an infinitely wide network: the sum of gradient products of two outputs.

    ``ntk(chain, x, depth)`` and ``ntk(network, x)`` are those of a chain and a network, as of
    `nngp`: the kernel of the last pre-activation.  `bnmc.gradients.tangent_kernel` of the same
    network adds a readout of variance 1 after its last activation.

    Parameters
    ----------
    x : (features, samples) array_like
        Inputs, one per column.
    depth : int
        Number of hidden layers L, from 0 to 1,000,000; of a chain, the number of layers.
    other, activation, norm, order, weight_variance, bias_variance, skip
        As in `nngp`.
    batch, rtol, method, width, chains, dtype, threads, executor, timeout, progress, rng
        As in `nngp`.

    Returns
    -------
    (samples, samples) or (samples, others) ndarray, or SimulatedKernel
        Θ, symmetric and positive semidefinite up to rounding (norm "batch": up to the error) for
        one set. `SimulatedKernel` if `method` is "monte-carlo".

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `nngp`; if the derivative of `activation` is not known; and under norm "batch" if the
        differences of the samples of a batch span two dimensions, as for 3 samples: then Θ is
        infinite. Also if they span 3 or 4, for norm "batch" before σ with a skip connection and
        depth >= 2: then the variance of an estimate is infinite.
    ZeroVarianceError, NonFiniteError, ResultTooLargeError, PartialEstimateError
        As `nngp`.

    Notes
    -----
    Let the parameters be standard normal, and each layer multiply them by σ_w / √inputs (weights)
    and σ_b (biases): the NTK parameterization. Then Θ is the limit of ``∇f(x)·∇f(x′)`` over all
    parameters, those of the output layer included. ``Θ_0 = K_0``, and for each hidden layer
    ``Θ ← K_new + σ_w² Θ ⊙ V′[K]`` with ``V′[K]_ij = E σ′(u_i) σ′(u_j)``. Source: Jacot, Gabriel and
    Hongler (arXiv 1806.07572). σ′ is the derivative almost everywhere, so 0 for "step".

    Near correlation 1, V′ of an activation with a kink has a square-root singularity. So rounding
    of products of inputs (relative size 1e-16) changes Θ of nearly equal inputs by up to about
    1e-8 relative to the diagonal, and an eigenvalue that should be 0 may be as negative as that.
    Equal inputs of one set have equal entries.

    **Norm "batch".** The output of a sample depends on its whole batch. With J(u) the derivative of
    ``σ(N(u))`` with respect to the row u of a batch, an n × n matrix,
    ``Θ ← K_new + σ_w² E J(u) Θ J(u′)ᵀ`` for the rows u and u′ of two batches. The errors are those
    of `nngp`, but functions that are not positively homogeneous are estimated for one batch, too.
    The number of points needed grows with the batch. Yang et al. (arXiv 1902.08129) derive the map
    at its fixed point; the integrals are in the module `bnmc.infinite_width.batch_integrals`.

    After σ, J is the derivative of ``N(σ(u))``, and a skip connection adds ``skip² Θ``. Beside a
    norm before σ it adds ``skip² E D(u) Θ D(u′)ᵀ``, with D the derivative of N. The tangent kernel
    of one output is then random at infinite width, too, since D depends on the row of this output;
    Θ is its expectation.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import ntk
    >>> x = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> ntk(x, 1, activation="relu", weight_variance=2.0).round(6)
    array([[4.     , 3.63662],
           [3.63662, 8.     ]])
    >>> ntk(x[:, :1], 1, other=x, activation="relu", weight_variance=2.0).round(6)
    array([[4.     , 3.63662]])

    Batch normalization, with an error of 1 % or less:

    >>> x = np.random.default_rng(0).standard_normal((5, 6))
    >>> ntk(x, 1, activation="tanh", norm="batch", rtol=0.01, rng=0).shape
    (6, 6)
    """
    return _kernel(tangent=True, **locals())


def _of_chain(
    chain: Chain | ChainNetwork,
    *,
    tangent: bool,
    x: ArrayLike,
    depth: int | None,
    other: ArrayLike | None,
    rtol: float | None,
    dtype: DTypeLike,
    threads: int | None,
    executor: Executor | None,
    timeout: float | None,
    progress: bool | Progress,
    rng: Any,
) -> _Matrix:
    """Check the arguments of a kernel of a chain or a network, and return it."""
    network = as_network(chain, depth)
    if network.depth > MOST_LAYERS:
        raise ArgumentError("depth", network.depth, f"at most {MOST_LAYERS}")
    first, hidden = hidden_layers(network, starts_at_input=isinstance(chain, ChainNetwork))
    sets = _sets(x, other)
    is_batched = any(layer.rows.norm.axis == "batch" for layer in hidden)
    for name, inputs in zip(("x", "other"), sets, strict=False):
        norm = "batch" if layer_at(network, 0).rows.norm.axis == "batch" else "none"
        _require_squares(name, inputs, norm, first)
    rtol = None if rtol is None else real("rtol", rtol, above=0.0)
    dtype, parallel = precision(dtype), Parallel.of(threads, executor, progress, timeout)
    has_paths = any(layer.path is not None for layer in hidden)
    if not (is_batched or has_paths):
        made = {id(layer): pairwise_layer(layer) for layer in hidden}
        tiles = TiledKernel(sets, first, [made[id(layer)] for layer in hidden], tangent)
        return tiles.compute("ntk" if tangent else "nngp", rtol or _RTOL, dtype, parallel)
    norm, batch = ("batch", network.batch) if is_batched else ("none", None)
    batches = _batches([inputs.shape[1] for inputs in sets], norm, batch)
    for rows in {layer.rows for layer in hidden}:
        rows.activation.check()
        if tangent and homogeneous_slopes(rows.activation) is None:
            require_derivative(rows.activation)
    kernel = of_batches(Network(sets, batches, first, hidden, tangent), rtol, rng, parallel)
    with np.errstate(over="ignore"):  # beyond the range of float32
        return kernel.astype(dtype)


def _sets(x: ArrayLike, other: ArrayLike | None) -> list[FloatArray]:
    """Return the inputs of the rows of a kernel, and those of its columns if they are others."""
    sets = [finite_array("x", x, shape=("features", "samples")).astype(np.float64)]
    if other is not None:
        shape = (sets[0].shape[0], "samples")
        sets.append(finite_array("other", other, shape=shape).astype(np.float64))
    return sets


def _kernel(
    x: ArrayLike, depth: int, *, tangent: bool, method: str, **options: Unpack[_Options]
) -> _Matrix | SimulatedKernel:
    """Check the arguments of a kernel, and return it."""
    sets = _sets(x, options["other"])
    depth = integer("depth", depth, low=0, high=MOST_LAYERS)
    norm = choice("norm", options["norm"], _NORMS)
    order = choice("order", options["order"], _ORDERS)
    weights = Weights(
        real("weight_variance", options["weight_variance"], above=0.0),
        real("bias_variance", options["bias_variance"], low=0.0),
    )
    skip = real("skip", options["skip"], low=-_MOST_SKIP, high=_MOST_SKIP)
    for name, inputs in zip(("x", "other"), sets, strict=False):
        _require_squares(name, inputs, norm, weights)
    rtol, activation, rng = options["rtol"], options["activation"], options["rng"]
    if rtol is not None:
        rtol = real("rtol", rtol, above=0.0)
    dtype = precision(options["dtype"])
    parallel = Parallel.of(
        options["threads"], options["executor"], options["progress"], options["timeout"]
    )
    batches = _batches([inputs.shape[1] for inputs in sets], norm, options["batch"])
    is_simulated = choice("method", method, _METHODS) == "monte-carlo"
    if is_simulated:
        width = integer("width", options["width"], low=2)
        chains = integer("chains", options["chains"], low=1)
    elif norm != "batch":
        layer = PairwiseLayer(
            sigma=dual(activation), norm=norm, order=order, weight_variance=weights.variance,
            bias_variance=weights.bias, skip=skip,
        )  # fmt: skip
        tiles = TiledKernel(sets, weights, (layer,) * depth, tangent)
        return tiles.compute("ntk" if tangent else "nngp", rtol or _RTOL, dtype, parallel)
    if isinstance(activation, Dual):
        allowed = 'an Activation, with norm="batch" or method="monte-carlo"'
        raise ArgumentError("activation", activation.name, allowed)
    sigma = as_activation(activation)
    sigma.check()
    if tangent and (is_simulated or homogeneous_slopes(sigma) is None):
        require_derivative(sigma)
    hidden = HiddenLayer(RowMap(sigma, as_norm(norm), ORDERS[order], 1), weights, skip)
    network = Network(sets, batches, weights, (hidden,) * depth, tangent)
    if is_simulated:
        finite = FiniteNetwork(**vars(network), width=width)
        return simulated_kernel(finite, chains, draw_key(rng), parallel)
    kernel = of_batches(network, rtol, rng, parallel)
    with np.errstate(over="ignore"):  # beyond the range of float32
        return kernel.astype(dtype)


def _require_squares(name: str, inputs: FloatArray, norm: str, weights: Weights) -> None:
    """Raise if squares of inputs vanish in float64, or lose digits, and so would the kernel."""
    with np.errstate(over="ignore"):  # raises later, with the layer
        squares = np.square(inputs).mean(axis=0) * min(weights.variance, 1.0)
    visible = inputs.any(axis=0)
    if norm == "batch":  # batches are normalized as a whole, and their means and biases are hidden
        squares, visible = squares.max(keepdims=True), visible.any(keepdims=True)
    elif weights.bias > 0.0:
        return
    least = TINY / EPSILON
    lost = visible & (squares < least)
    if lost.any():
        allowed = f"samples of 0, or of mean squares (times weight_variance) >= {least:.2g}"
        raise ArgumentError(name, float(squares[lost].max()), allowed)


def _batches(counts: list[int], norm: str, batch: _Batch) -> list[tuple[int, ...]]:
    """Return the sizes of the batches of each set, from the numbers of samples of each."""
    if batch is None:
        return [(count,) for count in counts]
    if norm != "batch":
        raise ArgumentError("batch", batch, f'None, with norm="{norm}"')
    if isinstance(batch, (str, bytes)):
        raise ArgumentTypeError("batch", batch, "an integer, or two")
    given: list[Any] = [batch] * len(counts)
    if hasattr(batch, "__len__"):
        given = items("batch", batch, "an integer, or one for x and one for other")
    if len(given) != len(counts):
        raise ArgumentError("batch", given, f"{len(counts)} numbers of samples")
    sizes = []
    for count, number in zip(counts, given, strict=True):
        size = integer("batch", number, low=1)
        if count % size:
            raise ArgumentError("batch", size, f"a divisor of the number of samples, {count}")
        sizes.append((size,) * (count // size))
    return sizes


def of_batches(network: Network, rtol: float | None, rng: Any, parallel: Parallel) -> FloatArray:
    """Return the kernel of a network with batch normalization."""
    is_batched = [layer.rows.norm.axis == "batch" for layer in network.layers]
    orders = {layer.rows.order for layer in network.layers}
    kind: type[BatchNetwork] = GaussianBatches
    is_plain = all(is_batched) and all(layer.path is None for layer in network.layers)
    if is_plain and orders <= {ACTIVATION_FIRST}:
        kind = ActivatedBatches
    elif is_plain and orders <= {NORM_FIRST}:
        has_skips = any(layer.skip for layer in network.layers[:-1])
        kind = RowPaths if has_skips else NormalizedBatches
    for layer in network.layers:
        if layer.rows.activates_first and layer.rows.norm.axis == "batch":
            require_rows_vary(layer.rows.activation, layer.rows.norm)
    batched = kind(**vars(network))
    rows, columns = network.shape
    size = 8 * (3 * rows * columns + (1 << 20) + 30 * max(network.sizes) ** 2 + batched.numbers)
    require_memory("x", size, "take smaller batches")
    is_exact = batched.integrals() is not None
    # The kernel of one batch, without skip connection, is that of `MeanField`.
    if (
        type(batched) is NormalizedBatches
        and not (is_exact or network.tangent)
        and len(network.sizes) == 1
        and not any(layer.skip for layer in network.layers)
    ):
        integrated = _integrated(batched, rtol, rng)
        if integrated is not None:
            return integrated
    rtol = rtol or (_RTOL if is_exact else _ESTIMATED_RTOL)
    return batch_kernel(batched, rtol, draw_key(rng), parallel)


def _integrated(network: NormalizedBatches, rtol: float | None, rng: Any) -> FloatArray | None:
    """Return the covariance for one batch from the mean field; None if it is not accurate.

    The normalization hides σ_w², σ_b² and the mean of the samples, so the variances matter in the
    last layer only.
    """
    gram = network.of_inputs()[0, 0]
    if not network.layers:
        return gram
    network.law(gram, 0, 0)
    most = _MOST_NODES
    if rtol is None:
        most = min(most, _MOST_EVALUATIONS // (4 * len(gram) * (len(gram) + 1) * network.depth))
    linear, rtol = Linear(1, 1, weight_law("gaussian")), rtol or _RTOL
    layers = [Layer(linear, layer.rows._replace(batch=len(gram))) for layer in network.layers]
    path = iterates(layers, network.depth, gram, draw_key(rng), rtol, max(1, most))
    return network.layers[-1].weights.weighed(path.gram[-1]) if path.error <= rtol else None
