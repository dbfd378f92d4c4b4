"""`extreme_singular_values`: the ends of the spectrum of a Jacobian, by Lanczos' method."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh_tridiagonal

from bnmc._support.arguments import Float64Array, choice, integer, real
from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.progress import Progress
from bnmc._support.text import Result
from bnmc._support.workers import Calls, Parallel, Shared, ranges
from bnmc.chain.chain import Chain, Network, as_network
from bnmc.chain.layers import linears_of
from bnmc.chain.start import FirstLayer, Start, as_initial, prepare
from bnmc.errors import PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.gradients.jacobians import keeps_streams, one_by_one
from bnmc.gradients.linearized import Linearized
from bnmc.gradients.network import generator_of
from bnmc.simulation.runs import Run

#: About the number of steps of Lanczos' method.
_STEPS = 40

#: Steps, at most.
_MOST_STEPS = 300


@dataclass(frozen=True, eq=False)
class ExtremeSingularValues(Result):
    """Largest or smallest squared singular values of Jacobians of an ensemble of networks.

    Attributes
    ----------
    network : Network
    depth : int
    which : {"largest", "smallest"}
    squares : (chains,) ndarray of float64
        The squared singular value of each network, of all samples of the batch.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.

    Examples
    --------
    >>> import bnmc
    >>> from bnmc.gradients import extreme_singular_values
    >>> chain = bnmc.Chain(1000, 1, "linear", norm="none")
    >>> ends = extreme_singular_values(chain, 1, chains=8, rng=0)
    >>> print(ends.mean())  # 4 at infinite width
    3.977 ± 0.011
    """

    network: Network
    depth: int
    which: str
    squares: Float64Array
    key: int = field(repr=False)

    def mean(self, *, level: float = 0.95) -> Estimate:
        """Return the mean over networks.

        Raises
        ------
        PartialEstimateError
            If there is one network; `partial` is its value.
        """
        if len(self.squares) < 2:
            raise PartialEstimateError(
                "standard errors need at least 2 chains", float(self.squares[0])
            )
        method = f"{self.which} squared singular value"
        return Estimate.from_samples(self.squares, level=level, method=method)


def extreme_singular_values(
    chain: Chain | Network,
    depth: int | None = None,
    *,
    which: str = "largest",
    chains: int = 10,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rtol: float = 1e-3,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> ExtremeSingularValues:
    r"""Return the largest or smallest singular value of Jacobians of any width.

    The Jacobian is that of the last layer in `jacobian`, of the whole batch.

    Parameters
    ----------
    chain : Chain or Network
        The network.
    depth : int, optional
        Number of layers of a chain, >= 1.
    which : {"largest", "smallest"}
        The end of the spectrum.  Products of square Gaussian matrices have no gap above 0, so their
        smallest singular values converge only at small widths.
    chains : int, default 10
        Number of independent networks.
    initial : str, array_like or FirstLayer, default "gaussian"
        The input of the normalization of layer 0, as in `bnmc.simulate`.
    rtol : float, default 1e-3
        Relative accuracy of the squared singular value, in (0, 1).
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
    ExtremeSingularValues

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the derivative of the activation is not known.
    ResultTooLargeError
        If one network would not fit in memory, before any work.
    PartialEstimateError
        If the singular value of a network does not converge.
    ZeroVarianceError, NonFiniteError
        If a row of a layer has no variance, or a layer leaves the range of numbers.

    Notes
    -----
    Lanczos' method with full orthogonalization multiplies by :math:`J^T J`, some 20 to 40 times for
    the largest value, and at most 300 times.  It ends when the residual is below `rtol` times the
    Ritz value, which bounds the error.  Gaussian and orthogonal matrices of large width are drawn
    by direction (`bnmc.implicit`), so each product draws the rest of W from its law given all
    products before, and the law of the result is exact.  Memory is about 160 · width · batch
    numbers a layer.

    Examples
    --------
    >>> import bnmc
    >>> from bnmc.gradients import extreme_singular_values
    >>> chain = bnmc.Chain(10_000, 1, "relu", norm="none", gain=2**0.5)
    >>> extreme_singular_values(chain, 2, chains=1, rng=0).squares.round(2)
    array([10.88])
    """
    network = as_network(chain, depth, low=1)
    initial = as_initial(network.first, initial)
    chains = integer("chains", chains, low=1)
    choice("which", which, ("largest", "smallest"))
    rtol = real("rtol", rtol, above=0.0, below=1.0)
    parallel = Parallel.of(threads, executor, progress, timeout)
    workers = parallel.threads
    run = one_by_one(network, initial, chains, rng)
    job = _Job(run, which, rtol)
    needed = min(workers, chains) * job.bytes_of_network()
    require_memory("width, batch, depth", needed, "take fewer threads")
    start = prepare(network, initial, chains, None)
    pieces = ranges(chains, 1)
    calls: Calls[Any] = Calls(
        Shared("executor", parallel.executor, job),
        [(start.part(first, last), first) for first, last in pieces],
    )

    def joined(parts: list[float]) -> ExtremeSingularValues:
        return ExtremeSingularValues(network, network.depth, which, np.array(parts), run.key)

    return joined(parallel.results(calls, "extreme_singular_values", "chains", joined))


@dataclass(frozen=True)
class _Job:
    """What all networks have in common."""

    run: Run
    which: str
    rtol: float

    def bytes_of_network(self) -> int:
        """Return the bytes of all arrays of one network, about."""
        columns, linears = self.run.columns, linears_of(self.run.layers)
        each_layer = [self.run.layer(number) for number in range(1, self.run.depth + 1)]
        rows = sum(
            4 * min(_STEPS * columns, linear.fan_in) * linear.width
            for linear in linears_of(each_layer)
        )
        vectors = 3 * _STEPS * columns * max(each.width for each in linears)
        return 8 * (rows + vectors)

    # The bits of products of narrow matrices depend on the number of their threads.
    @one_blas_thread()
    def __call__(self, start: Start, number: int) -> float:
        """Return the squared singular value of a network."""
        run = self.run.part(number, number + 1)
        network = Linearized(run, start, _STEPS * run.columns)
        shape = 1, run.layer(0).linear.width, 1, run.columns
        size = shape[1] * run.columns
        first, is_stream = network.layers[0], keeps_streams(run)

        def product(vector: Float64Array) -> Float64Array:
            """Return JᵀJ v."""
            v = vector.reshape(shape)
            at_x, at_a = network.forward(v, first.activated(v) if is_stream else v)
            if is_stream:
                _, at_x, at_a = network.back(at_x, np.zeros_like(at_x))
                return first.down_to_state(at_a, at_x).reshape(-1)
            return network.back(np.zeros_like(at_a), at_a)[2].reshape(-1)

        begin = generator_of(run, 0).standard_normal(size)
        value = extreme_eigenvalue(product, begin, self.rtol, self.which)
        if value is None:
            reason = f"the {self.which} singular value of chain {run.first} does not converge"
            raise PartialEstimateError(reason, None)
        return max(value, 0.0)


def extreme_eigenvalue(
    product: Callable[[Float64Array], Float64Array],
    begin: Float64Array,
    rtol: float,
    which: str = "largest",
) -> float | None:
    """Return an end of the spectrum of a symmetric map by Lanczos' method, or None.

    It is None if the method does not converge.

    SciPy's own, ARPACK, does not run in several threads.
    """
    q = begin / np.linalg.norm(begin)
    basis = [q]
    diagonal: list[float] = []
    beside: list[float] = []
    end = -1 if which == "largest" else 0
    for _ in range(min(len(begin), _MOST_STEPS)):
        r = product(q)
        diagonal.append(float(q @ r))
        for _ in range(2):  # a second time, against rounding
            for each in basis:
                r = r - (each @ r) * each
        values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
        length = float(np.linalg.norm(r))
        scale = max(abs(values[0]), abs(values[-1]))
        residual = length * abs(vectors[-1, end])
        if residual <= rtol * abs(values[end]) or length <= 1e-14 * scale:
            return float(values[end])
        beside.append(length)
        q = r / length
        basis.append(q)
    return float(values[end]) if len(begin) <= _MOST_STEPS else None
