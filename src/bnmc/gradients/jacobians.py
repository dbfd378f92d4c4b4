"""`jacobian`: singular values of input-output Jacobians of random networks, exact in law."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, draw_key, integer
from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.progress import Progress
from bnmc._support.workers import Calls, Parallel, Shared, ranges
from bnmc.chain.activations import require_derivative
from bnmc.chain.chain import Chain, as_network, require_plain_sums
from bnmc.chain.chain import Network as Specification
from bnmc.chain.layers import linears_of
from bnmc.chain.start import FirstLayer, Representation, Start, as_initial, prepare
from bnmc.errors import NonFiniteError
from bnmc.gradients.directions import scaled
from bnmc.gradients.jacobian_result import Jacobian
from bnmc.gradients.limit_law import activated
from bnmc.gradients.matrices import Matrices
from bnmc.gradients.network import Network, generator_of, path_to, start_rows
from bnmc.simulation.runs import Recorded, Run, number_of_projection
from bnmc.simulation.starting import run_of


def jacobian(
    chain: Chain | Specification,
    depth: int | None = None,
    *,
    directions: int | None = None,
    chains: int = 100,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    every: int = 1,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Jacobian:
    r"""Simulate the singular values of the Jacobians of random networks, layer by layer.

    Let s_l be the state of layer l: the activations a_l, which the next weights multiply, or, if a
    skip connection or the path of a block (`bnmc.Residual`) takes it, x_l, which the layer keeps
    (see `bnmc.Chain`).  The Jacobian of layer l is

    .. math:: J_l = \frac{∂ s_l}{∂ s_0}.

    Without a norm over the batch, samples do not mix, and each sample has a Jacobian of its own,
    width_l × width_0.  Under a norm over the batch the whole batch has one,
    (width_l · batch) × (width_0 · batch).  In a convolutional network an image is a sample, and its
    pixels multiply both sizes.

    Parameters
    ----------
    chain : Chain or Network
        The network.
    depth : int, optional
        Number of layers of a chain, >= 1.
    directions : int, optional
        Number k of orthonormal directions of s_0.  The singular values are those of J_l restricted
        to their span, which is uniformly distributed.  Default: all, so that the values are the
        singular values of J_l.
    chains : int, default 100
        Number of independent networks.
    initial : str, array_like or FirstLayer, default "gaussian"
        The input of the normalization of layer 0, as in `bnmc.simulate`.
    every : int, default 1
        The singular values are computed in every so many layers, and in the last one.
    rng : optional
        Anything `numpy.random.default_rng` takes.
    threads : int, optional
        Number of threads; each takes some of the networks.  The default is the number of
        processors.  Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that takes the networks in place of threads.  Results do not depend on it.
    timeout : float, optional
        Seconds, > 0, after which the result has the first networks, up to the first one that is
        not finished.  `PartialEstimateError` if none is finished.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) chains.

    Returns
    -------
    Jacobian

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the derivative of the activation is not known: pass
        ``Activation(function, derivative=…)``.
    ResultTooLargeError
        If one network would not fit in memory, before any work; take fewer `directions`.
    ZeroVarianceError, NonFiniteError
        If a row of a layer has no variance, or a layer leaves the range of numbers.
    Interrupted
        On Ctrl-C; `partial` has the finished networks.

    Notes
    -----
    Tangents go through the layers beside the state.  If the tangents of a layer are
    :math:`\dot a_1, …, \dot a_k`, then the rows of :math:`W [a, \dot a_1, …, \dot a_k]` have a
    known law given the Gram matrix of all columns, and

    .. math:: \dot h = \mathrm{skip}\, \dot x + \mathrm{gain}\, W \dot a, \qquad
              \dot x = N'(h)\, \dot h, \qquad \dot a = σ'(x) ⊙ \dot x,

    or as the order of the layer says.  In a block the last layer adds the tangents that the skip
    path takes, times its projection.  So the law is exact at every width.  If all columns together
    are fewer than the width, no Gaussian or orthogonal matrix is drawn (`bnmc.implicit`).  A layer
    takes O(width · (batch · k)²) operations, and its singular values O(width · batch · k²).

    Singular values have an absolute error of about 1e-16 times the largest one for each layer, so
    those below 1e-14 of the largest one are rounding errors.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(60, 1, "relu", norm="none", gain=2**0.5)
    >>> found = bnmc.gradients.jacobian(chain, 4, chains=50, rng=0)
    >>> found.squared_singular_values.shape
    (50, 60)
    >>> print(found.mean())
    1.004 ± 0.045
    """
    network = as_network(chain, depth, low=1)
    initial = as_initial(network.first, initial)
    chains = integer("chains", chains, low=1)
    step = integer("every", every, low=1)
    parallel = Parallel.of(threads, executor, progress, timeout)
    workers = parallel.threads
    run = one_by_one(network, initial, chains, rng, step)
    features = _size(run, 0)
    k = features if directions is None else integer("directions", directions, low=1, high=features)
    job = _Job(run, k)
    hint = f"take fewer directions: there are {features}, and k take k + 1 columns per sample"
    needed = min(workers, chains) * job.bytes_of_network() + chains * job.bytes_of_results()
    require_memory("directions, width, batch", needed, hint)
    start = prepare(network, initial, chains, None)
    mean_squares = _mean_squares(run, start)
    pieces = ranges(chains, 1)
    calls: Calls[Any] = Calls(
        Shared("executor", parallel.executor, job),
        [(start.part(first, last), first) for first, last in pieces],
    )

    def joined(parts: list[Float64Array]) -> Jacobian:
        return Jacobian(
            network=network, depth=network.depth,
            layers=run.recorded.layers(0, run.recorded.count), log_singular_values=np.stack(parts),
            features=features, mean_squares=mean_squares, key=run.key,
            initial=initial if isinstance(initial, str) else type(initial).__name__,
        )  # fmt: skip

    return joined(parallel.results(calls, "jacobian", "chains", joined))


def one_by_one(network: Specification, initial: Any, chains: int, rng: Any, every: int = 1) -> Run:
    """Return a run for functions that take its networks one by one, and know their derivatives."""
    require_plain_sums(network)
    for of_layer in network.chains:
        of_layer.activation.check()
        require_derivative(of_layer.activation)
    is_gaussian = all(of_layer.is_gaussian for of_layer in network.chains)
    path = "conditional" if is_gaussian else "weights"
    run = run_of(
        network, initial, chains=chains, inputs=None, rng=rng,
        sampler="conditional" if is_gaussian else "auto", dtype="float64",
    )  # fmt: skip
    step = min(every, network.depth)
    return replace(run, path=path, recorded=Recorded(step, step, network.depth), key=draw_key(rng))


def _mean_squares(run: Run, start: Start) -> tuple[float, float]:
    """Return the smallest and the largest mean square of a_0, over the samples."""
    if isinstance(start, Representation):
        unit = np.ldexp(1.0, start.exponents.astype(np.int32))
        squares = np.square(start.a).mean(axis=1) * unit**2
        return float(squares.min()), float(squares.max())
    if run.layer(0).rows.norm.axis == "batch":
        return 1.0, 1.0
    variances = np.diagonal(start.matrix) * np.ldexp(1.0, 2 * start.exponents[0].astype(np.int32))
    ends = (activated(run.layer(0), float(end(variances)))[0] for end in (np.min, np.max))
    low, high = ends
    return low, high


def keeps_streams(run: Run) -> bool:
    """Whether the state of a layer is x, which a skip connection takes, and not a."""
    return any(
        layer.rows.skip != 0.0 and not (layer.path is not None and layer.path.takes_activations)
        for layer in run.layers
    )


def _columns_that_mix(run: Run) -> int:
    """Return the number of columns of a state that depend on each other: those of a sample."""
    if any(layer.rows.norm.axis == "batch" for layer in run.layers):
        return run.columns
    return run.layers[-1].linear.patches.positions


def _size(run: Run, layer: int) -> int:
    """Return the number of entries of the state of a layer, of samples that mix."""
    return run.layer(layer).linear.width * _columns_that_mix(run)


@dataclass(frozen=True)
class _Job:
    """What all networks have in common."""

    run: Run
    directions: int

    @property
    def columns(self) -> int:
        """Number of columns of the state and all tangents."""
        return self.run.columns * (1 + self.directions)

    def bytes_of_network(self) -> int:
        """Return the bytes of all arrays of one network, about."""
        linears = linears_of(self.run.layers)
        width, fan_in = (
            max(each.width for each in linears),
            max(each.fan_in for each in linears),
        )
        matrix = 3 * width * min(self.columns, fan_in)
        return 8 * (6 * self.columns * max(width, fan_in) + matrix)

    def bytes_of_results(self) -> int:
        """Return the bytes of the singular values of one network."""
        return 8 * self.run.recorded.count * self.directions * self.run.columns

    # The bits of products of narrow matrices depend on the number of their threads.
    @one_blas_thread()
    def __call__(self, start: Start, number: int) -> Float64Array:
        """Return ln of the singular values of a network, (layers, samples, directions)."""
        run = self.run.part(number, number + 1)
        matrices = _Beside(run, self.columns)
        network = Network(run, start_rows(run, start), matrices, 0)
        tangents = self._start(run)
        is_stream, last_use = keeps_streams(run), _last_uses(run)
        at_a = network.layers[0].activated(tangents) if is_stream else tangents
        # Derivatives of x and a by layer, in units of 2**exponent.
        at = {0: (tangents, at_a)}
        exponent, values = 0, []
        recorded = set(run.recorded.layers(0, run.recorded.count).tolist())
        for layer in range(1, run.depth + 1):
            linear, made, *_ = run.layer(layer)
            path, number = path_to(run, layer), number_of_projection(layer)
            taken = at[layer - path.length][path.takes_activations]
            matrices.tangents = {layer: at[layer - 1][1], number: taken}
            network.advance(layer)
            at_h = linear.gain * matrices.products.pop(layer)
            if made.skip != 0.0:
                if number in run.projections:
                    taken = run.layer(number).linear.gain * matrices.products.pop(number)
                    matrices.forget(number)
                at_h += made.skip * taken
            at_a, at_x = network.layers[layer].along(at_h)
            matrices.forget(layer)
            if not (np.isfinite(at_x).all() and np.isfinite(at_a).all()):
                raise NonFiniteError(run.first, layer, "Jacobian")
            state, more = scaled(at_x if is_stream else at_a)
            at[layer] = at_x, at_a
            for before in [each for each in at if last_use.get(each, each + 1) <= layer]:
                del at[before], network.layers[before]
            at = {each: (np.ldexp(x, -more), np.ldexp(a, -more)) for each, (x, a) in at.items()}
            exponent += more
            if layer in recorded:
                values.append(self._values(run, state) + exponent * math.log(2.0))
        return np.stack(values)

    def _start(self, run: Run) -> Float64Array:
        """Return the directions, (1, width, directions, columns): the same number per sample."""
        mixing, k, size = _columns_that_mix(run), self.directions, _size(run, 0)
        samples, width = run.columns // mixing, run.layer(0).linear.width
        if k == size:
            bases = np.broadcast_to(np.eye(size), (samples, size, size))
        else:
            normals = generator_of(run, 0).standard_normal((samples, size, k))
            bases, _ = np.linalg.qr(normals)
        by_sample = bases.reshape(samples, width, mixing, k)
        return by_sample.transpose(1, 3, 0, 2).reshape(1, width, k, run.columns)

    def _values(self, run: Run, state: Float64Array) -> Float64Array:
        """Return ln of the singular values of the tangents of each sample, (samples, k)."""
        _, width, k, columns = state.shape
        mixing = _columns_that_mix(run)
        by_sample = state.reshape(width, k, columns // mixing, mixing).transpose(2, 0, 3, 1)
        values = np.linalg.svd(by_sample.reshape(columns // mixing, -1, k), compute_uv=False)
        logs = np.full((len(values), k), -np.inf)
        with np.errstate(divide="ignore"):
            logs[:, : values.shape[1]] = np.log(values)
        return logs


class _Beside(Matrices):
    """Weights that multiply tangents together with the activations."""

    def __init__(self, run: Run, columns: int) -> None:
        super().__init__(run, columns)
        #: Derivatives of what weights multiply, and their products, by layer or projection.
        self.tangents: dict[int, Float64Array] = {}
        self.products: dict[int, Float64Array] = {}

    def product(self, layer: int, a: Float64Array) -> Float64Array:
        """Return W a, and keep W times the tangents."""
        tangents = self.tangents[layer]
        _, width, k, columns = tangents.shape
        both = np.concatenate([a, tangents.reshape(1, width, k * columns)], axis=2)
        product = super().product(layer, both)
        self.products[layer] = product[:, :, columns:].reshape(1, -1, k, columns)
        return np.ascontiguousarray(product[:, :, :columns])


def _last_uses(run: Run) -> dict[int, int]:
    """Return the last layer that takes something of a layer, for layers where skip paths begin."""
    uses: dict[int, int] = {}
    for layer in range(1, run.depth + 1):
        begin = layer - path_to(run, layer).length
        uses[begin] = layer
        uses[layer - 1] = layer
    return uses
