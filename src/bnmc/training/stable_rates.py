"""`largest_rate`: the largest stable learning rate of random networks, before any training."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, choice, draw_key, finite_array, integer, real
from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.progress import Progress
from bnmc._support.text import Result, text_table
from bnmc._support.workers import Calls, Parallel, Shared
from bnmc.chain.activations import require_derivative
from bnmc.chain.chain import Chain, Network, as_network, options_of, shown_of
from bnmc.errors import ArgumentError, NonFiniteError, PartialEstimateError, ZeroVarianceError
from bnmc.estimate.estimate import Estimate
from bnmc.gradients.lanczos import extreme_eigenvalue
from bnmc.infinite_width.kernels import of_batches
from bnmc.infinite_width.layers_of_networks import require_gaussian_rows, require_limit
from bnmc.infinite_width.networks import HiddenLayer
from bnmc.infinite_width.networks import Network as LimitNetwork
from bnmc.infinite_width.networks import Weights as LimitWeights
from bnmc.infinite_width.scalings import Scaling
from bnmc.plot import axes
from bnmc.plot.drawn import Drawn
from bnmc.training.architecture import ONES, Architecture, architecture_of
from bnmc.training.passes import Model, Tape
from bnmc.training.scalings import HIDDEN, powers_of
from bnmc.training.steps import LOSSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Functions of the outputs whose gradients give the whole kernel with less work than Lanczos'
#: method, which takes about so many steps.
_FEW, _STEPS = 8, 16

#: Relative accuracy of the tangent kernel at infinite width, and of λ of given outputs; and draws
#: of outputs, of whose λ the median is taken.
_LIMIT_RTOL, _OUTPUTS_RTOL, _DRAWS = 5e-3, 1e-3, 201

_NO_NORMED = "0 in layers N(skip x + W σ(x)) with N over the batch, for λ at infinite width"

#: Up to which multiple of 2/λ real gradient descent ended below its start, and from which one it
#: failed, by activation (None: any of relu and tanh) and norm; three layers, squared loss.
_MULTIPLES = {
    ("relu", "none"): (4.0, 6.0),
    ("tanh", "none"): (2.0, 2.2),
    (None, "layer"): (1.5, 3.0),
    (None, "batch"): (1.5, 6.0),
}


#: Rates below this are printed with exponents.
_SMALL = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class LargestRate(Drawn, Result):
    """Largest learning rates of an ensemble of networks; ``print`` shows a table.

    `plot` draws the share of the linearized networks that are stable against the learning rate.

    Attributes
    ----------
    network : Network
    loss : {"squared", "cross-entropy"}
    parametrization : str
    eigenvalues : (chains,) ndarray of float64
        Largest eigenvalue λ of the Gauss-Newton matrix of each network.
    limit : float or None
        λ at infinite width, with a relative error of up to .005; None if it is not known.  For the
        cross-entropy, which depends on the outputs, it is the median over random networks.
    reason : str
        Why `limit` is not known; empty if it is.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x = np.random.default_rng(0).standard_normal((10, 4))
    >>> network = bnmc.Network.of(
    ...     width=[10] + 3 * [4096], batch=4, activation="relu", norm="none", gain=2**0.5
    ... )
    >>> found = bnmc.training.largest_rate(network, x, chains=20, rng=0)
    >>> print(f"{found.rate()}, at infinite width {found.limit_rate:.6f}")
    0.0006318 ± 0.0000056, at infinite width 0.000629
    """

    network: Network
    loss: str
    parametrization: str
    eigenvalues: Float64Array
    limit: float | None
    reason: str
    key: int = field(repr=False)

    @property
    def chains(self) -> int:
        """Number of networks."""
        return len(self.eigenvalues)

    @property
    def rates(self) -> Float64Array:
        """The largest stable rate 2/λ of each linearized network, (chains,)."""
        return 2.0 / self.eigenvalues

    @property
    def limit_rate(self) -> float | None:
        """The rate 2/λ at infinite width, or None if it is not known."""
        return None if self.limit is None else 2.0 / self.limit

    @property
    def multiples(self) -> tuple[float, float] | None:
        """Multiples of 2/λ: up to which real gradient descent converges, and from which it fails.

        Above 1 the loss first grows, and then falls (catapult, Lewkowycz et al., arXiv
        2003.02218).  Networks of ReLU that diverge lose all their units, and then have the outputs
        0.  The numbers were measured with three layers of ReLU or tanh, 4 samples, squared loss and
        widths of 128 to 8192, and depend on the data: with other ones, some networks of ReLU fail
        at 4.  None for another number of layers, loss, activation or norm, for which `bnmc.train`
        measures them.
        """
        chain = self.network.last
        name, norm = chain.activation.name, chain.norm
        measured = self.loss == "squared" and self.network.depth == 3
        if not measured or name not in ("relu", "tanh") or not isinstance(norm, str):
            return None
        return _MULTIPLES.get((name, norm)) or _MULTIPLES.get((None, norm))

    def rate(self, *, level: float = 0.95) -> Estimate:
        """Return the mean of `rates` over networks.

        Raises
        ------
        PartialEstimateError
            If there is one network; `partial` is its rate.
        """
        return self._mean(self.rates, level, "largest rate of linearized networks")

    def eigenvalue(self, *, level: float = 0.95) -> Estimate:
        """Return the mean of `eigenvalues` over networks; errors are those of `rate`."""
        return self._mean(self.eigenvalues, level, "largest eigenvalue")

    def stable_share(self, rate: float) -> float:
        """Return the share of the networks that are stable at a learning rate when linearized."""
        return float((self.rates > real("rate", rate, above=0.0)).mean())

    @property
    def _about(self) -> str:
        return axes.about_network(self.network)

    def _draw(self, ax: Axes) -> None:
        """Draw the share of linearized networks that are stable against the learning rate."""
        shares = 1.0 - np.arange(self.chains) / self.chains
        ax.step(np.sort(self.rates), shares, where="pre", label="linearized networks")
        if self.limit_rate is not None:
            ax.axvline(self.limit_rate, linestyle="--", color="k", label="infinite width")
        ax.set_xlabel("learning rate")
        ax.set_ylabel("share of stable networks")
        ax.legend()

    def __repr__(self) -> str:
        return (
            f"<LargestRate of {self.chains} chains, loss {self.loss!r}; {shown_of(self.network)}>"
        )

    def __str__(self) -> str:
        networks = "1 network" if self.chains == 1 else f"{self.chains} networks"
        head = f"{shown_of(self.network)}: largest learning rates of {networks}, loss {self.loss!r}"
        rows = [(name, "-" if value is None else value) for name, value in self._rows()]
        table = text_table(("quantity", "value"), rows, align="<<")
        reason = f"\nλ at infinite width is not known: {self.reason}" if self.reason else ""
        return f"{head}\n{table}{reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers that `print` shows, for `json.dumps`."""
        return {
            "chain": options_of(self.network), "loss": self.loss,
            "parametrization": self.parametrization, "chains": self.chains,
            "rate": float(self.rates.mean()), "limit_rate": self.limit_rate,
            "reason": self.reason,
            "eigenvalues": self.eigenvalues.tolist(), "multiples": self.multiples,
            "key": str(self.key),
        }  # fmt: skip

    def _rows(self) -> list[tuple[str, str | None]]:
        rate, limit = float(self.rates.mean()), self.limit_rate
        # One notation for all rates.
        digits, of_estimate = (".3e", ".3e") if rate < _SMALL else (".4g", "")
        try:
            shown = f"{self.rate():{of_estimate}}"
        except PartialEstimateError:
            shown = f"{rate:{digits}}"
        ends: list[str | None] = [None, None]
        if self.multiples is not None:
            ends = [f"{multiple * rate:{digits}}" for multiple in self.multiples]
        return [
            ("linearized: stable below 2/λ", shown),
            ("the same at infinite width", None if limit is None else f"{limit:{digits}}"),
            ("gradient descent converges below about", ends[0]),
            ("gradient descent fails above about", ends[1]),
        ]

    def _mean(self, samples: Float64Array, level: float, method: str) -> Estimate:
        if self.chains < 2:
            raise PartialEstimateError("standard errors need at least 2 chains", float(samples[0]))
        return Estimate.from_samples(samples, level=level, method=method)


def largest_rate(
    network: Network | Chain,
    inputs: ArrayLike,
    *,
    depth: int | None = None,
    outputs: int = 1,
    loss: str = "squared",
    parametrization: str | Scaling = "standard",
    reference_width: int = 128,
    readout_gain: float = 1.0,
    chains: int = 10,
    rtol: float = 1e-6,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> LargestRate:
    r"""Return the largest stable learning rate of gradient descent, for networks of any width.

    The Gauss-Newton matrix of the loss at initialization has the non-zero eigenvalues of

    .. math:: \frac{1}{n} H^{1/2} Θ H^{1/2},

    where n is the number of samples, Θ the tangent kernel of the trained parameters, and H the
    Hessian of the loss of a sample with respect to its outputs: 1 for the squared loss, and
    diag(p) − p pᵀ for the cross-entropy with the probabilities p.  With λ its largest eigenvalue,
    gradient descent of the linearized network is stable if the rate is below 2/λ.  Real networks
    leave the linear regime, and converge at larger rates (`LargestRate.multiples`).

    Parameters
    ----------
    network : Network or Chain
        The layers, as in `bnmc.train`.
    inputs : (features, samples) array_like
        Training inputs; their number is the batch of the network.
    depth : int, optional
        Number of layers after layer 0, >= 0, if `network` is a chain.
    outputs : int, default 1
        Number of outputs of the readout, >= 1.
    loss : {"squared", "cross-entropy"}
        As in `bnmc.train`.
    parametrization : {"standard", "standard/n", "ntk", "mean-field", "mup", "symmetric"} or Scaling
        Powers of the width in initial weights and learning rates, as in `bnmc.train`.  The result
        is the rate that `bnmc.train` takes as `learning_rate`.
    reference_width : int, default 128
        The width at which all parametrizations are the same, >= 1.
    readout_gain : float, default 1.0
        The entries of the readout have the standard deviation readout_gain/√width, > 0.
    chains : int, default 10
        Number of independent networks, >= 1.
    rtol : float, default 1e-6
        Relative accuracy of the eigenvalue, in (0, 1).
    rng : optional
        Anything `numpy.random.default_rng` takes.
    threads : int, optional
        Number of threads, one for a network; by default the number of processors.  Results do not
        depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that takes the networks in place of threads.  Results do not depend on it.
    timeout : float, optional
        Seconds, > 0, after which the result has the first networks, up to the first one that is
        not finished.  `PartialEstimateError` if none is finished.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) chains.

    Returns
    -------
    LargestRate

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.
    ResultTooLargeError
        If the networks would not fit in memory, before any work.
    PartialEstimateError
        If the eigenvalue of a network does not converge.
    ZeroVarianceError, NonFiniteError
        If a row of a layer has no variance, or a layer leaves the range of numbers.

    Notes
    -----
    Trained are the weights of all layers, projections and the readout, and the biases of layers
    with a variance of the bias (`bnmc.train`).
    If few gradients give all of Θ, the eigenvalue is that of Θ.  Otherwise Lanczos' method
    multiplies Θ by vectors v: one backward pass for the gradients of the outputs along v, and one
    pass of tangents along these gradients.  Each takes one column for each sample, while Θ takes
    outputs · samples columns, and outputs · samples² under a norm over the batch.  Hidden matrices
    of large width are drawn by direction.

    At infinite width Θ is the kernel of `bnmc.infinite_width.ntk`, with the contribution of each
    matrix times its rate and its number of columns over its gain².  Karakida, Akaho and Amari
    (arXiv 1806.01316): with entries Θ_d on the diagonal and Θ_o elsewhere,
    λ = ((n − 1) Θ_o + Θ_d)/n for the squared loss.  The Hessian of the cross-entropy depends on the
    outputs, which are random at infinite width, too: Gaussian, with the covariance of
    `bnmc.infinite_width.nngp`.  So λ is random, and the limit is its median over 201 draws of the
    outputs.  If outputs are 0, λ is that of the squared loss over the number of outputs.

    The limit is not known, and `LargestRate.reason` tells why, if

    - Θ is random at infinite width, because a skip connection keeps N(h) with N over the batch, or
      a skip path without projection begins with activations;
    - Θ is infinite, as for a batch of 3 samples under batch normalization;
    - a norm over the batch has an eps, or does not subtract the mean.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x = np.random.default_rng(0).standard_normal((10, 4))
    >>> network = bnmc.Network.of(width=[10] + 3 * [1024], batch=4, activation="tanh", norm="none")
    >>> found = bnmc.training.largest_rate(network, x, chains=10, rng=0)
    >>> print(f"{found.rate()}, at infinite width {found.limit_rate:.5f}")
    0.01006 ± 0.00016, at infinite width 0.01001
    """
    layered = as_network(network, depth, name="network")
    for chain in layered.chains:
        require_derivative(chain.activation)
    x = finite_array("inputs", inputs, shape=("features", layered.batch)).astype(np.float64)
    architecture = architecture_of(
        layered, len(x), powers=powers_of(parametrization),
        reference_width=integer("reference_width", reference_width, low=1),
        readout_gain=real("readout_gain", readout_gain, above=0.0), is_maximized=False,
        dtype="float64",
    ).reading(integer("outputs", outputs, low=1))  # fmt: skip
    kind = choice("loss", loss, LOSSES)
    count = integer("chains", chains, low=1)
    accuracy = real("rtol", rtol, above=0.0, below=1.0)
    parallel = Parallel.of(threads, executor, progress, timeout)
    job = _Job(_with_matrices(architecture), x, kind, accuracy, draw_key(rng))
    require_memory("inputs, outputs", min(parallel.threads, count) * job.bytes_of_network())
    inner = Parallel.of(threads, executor, False)
    limit, reason = _limit(architecture, x, kind, job.key, inner)
    calls: Calls[Any] = Calls(
        Shared("executor", parallel.executor, job), [(chain,) for chain in range(count)]
    )
    name = parametrization if isinstance(parametrization, str) else repr(parametrization)

    def joined(parts: list[float]) -> LargestRate:
        return LargestRate(layered, kind, name, np.array(parts), limit, reason, job.key)

    return joined(parallel.results(calls, "largest_rate", "chains", joined))


def _columns(architecture: Architecture) -> tuple[int, int]:
    """Return functions of the outputs whose gradients give all of Θ, and all asked columns."""
    samples = architecture.network.batch
    functions = architecture.outputs * (samples if architecture.mixes_samples else 1)
    passes = functions if functions <= _FEW else 2 * _STEPS
    return functions, samples * (1 + passes)


def _with_matrices(architecture: Architecture) -> Architecture:
    """Return the architecture with hidden matrices implicit if they are asked for few columns."""
    _, columns = _columns(architecture)
    matrices = tuple(
        matrix._replace(
            is_implicit=matrix.place == HIDDEN and 2 * columns < min(matrix.rows, matrix.columns)
        )
        for matrix in architecture.matrices
    )
    return architecture._replace(matrices=matrices)


@dataclass(frozen=True, eq=False)
class _Job:
    """What all networks have in common."""

    architecture: Architecture
    inputs: Float64Array
    loss: str
    rtol: float
    key: int

    def bytes_of_network(self) -> int:
        """Return the bytes of all arrays of one network, about."""
        _, columns = _columns(self.architecture)
        size = 0
        for matrix in self.architecture.matrices:
            if matrix.is_implicit:
                size += 2 * columns * (matrix.rows + matrix.columns)
            else:
                size += 3 * matrix.rows * matrix.columns
        widest = max(matrix.rows for matrix in self.architecture.matrices)
        return 8 * (size + 6 * columns * widest)

    @one_blas_thread()
    def __call__(self, chain: int) -> float:
        """Return the largest eigenvalue of the Gauss-Newton matrix of a network."""
        model = Model(self.architecture, self.key, chain, self.inputs)
        tape = model.forward(self.inputs)
        samples, outputs = tape.outputs.shape
        layers = self.architecture.network.depth
        root = None if self.loss == "squared" else _roots(tape.outputs)
        if _columns(self.architecture)[0] <= _FEW:
            kernel = model.kernel(tape)
            if not np.isfinite(kernel).all():
                raise NonFiniteError(chain, layers, "tangent kernel")
            if root is not None:
                blocks = np.zeros((samples, outputs, samples, outputs))
                blocks[np.arange(samples), :, np.arange(samples), :] = root
                whole = blocks.reshape(kernel.shape)
                kernel = whole @ kernel @ whole
            return float(np.linalg.eigvalsh(kernel)[-1]) / samples
        begin = np.random.default_rng([self.key, chain]).standard_normal(samples * outputs)
        value = extreme_eigenvalue(lambda v: _product(model, tape, root, v), begin, self.rtol)
        if value is None:
            raise PartialEstimateError(f"the eigenvalue of chain {chain} does not converge", None)
        return value / samples


def _product(model: Model, tape: Tape, root: Float64Array | None, v: Float64Array) -> Float64Array:
    """Return H^½ Θ H^½ v."""
    vector = v.reshape(tape.outputs.shape)
    if root is not None:
        vector = np.einsum("sij,sj->si", root, vector)
    moved = model.kernel_times(tape, vector)
    if root is not None:
        moved = np.einsum("sij,sj->si", root, moved)
    return moved.reshape(-1)


def _roots(outputs: Float64Array) -> Float64Array:
    """Return the roots of diag(p) − p pᵀ for the probabilities of each sample."""
    p = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    hessians = p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])
    values, vectors = np.linalg.eigh(hessians)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    return np.asarray(scaled @ vectors.swapaxes(1, 2))


def _limit(
    architecture: Architecture, x: Float64Array, loss: str, key: int, parallel: Parallel
) -> tuple[float | None, str]:
    """Return the largest eigenvalue at infinite width; or None, and why it is not known."""
    try:
        hidden = _LimitNetwork.of(architecture, x)
        kernel = hidden.kernel(True, key, parallel)
        value = float(np.linalg.eigvalsh(kernel)[-1]) / len(kernel)
        if loss != "squared":
            value = _of_cross_entropy(
                architecture, kernel, hidden.kernel(False, key, parallel), key
            )
    except (ArgumentError, ZeroVarianceError, NonFiniteError, PartialEstimateError) as error:
        return None, str(error)
    if not (math.isfinite(value) and value > 0.0):
        return None, "the tangent kernel is 0 or leaves the range of numbers"
    return value, ""


class _LimitNetwork(NamedTuple):
    """A trained network of infinite width: its first weights, and its layers with those behind."""

    inputs: Float64Array
    first: LimitWeights
    layers: tuple[HiddenLayer, ...]

    @classmethod
    def of(cls, architecture: Architecture, x: Float64Array) -> _LimitNetwork:
        """Return the network, or raise if it has no deterministic tangent kernel."""
        require_limit(architecture.network)
        layers = architecture.layers
        weights: dict[tuple[int, bool], LimitWeights] = {}
        for matrix in architecture.matrices:  # biases come after the weights that they belong to
            place = matrix.target, matrix.is_on_path
            former = weights.get(place, LimitWeights())
            variance = matrix.deviation * matrix.deviation  # inf where a power would raise
            if matrix.source.part == ONES:
                assert former.trained is not None
                trained = former.trained[0], matrix.factor
                weights[place] = former._replace(bias=variance, trained=trained)
            else:
                # W = deviation · ω: ∂f/∂W · ∂f/∂W is ∂f/∂ω · ∂f/∂ω over the variance of W.
                columns = float(matrix.columns)
                trained = matrix.factor * columns, 0.0
                weights[place] = LimitWeights(variance * columns, 0.0, trained)
        hidden = []
        for number, layer in enumerate(layers):
            target = number + 1
            after = layers[target] if target < len(layers) else None
            skip, path = (0.0, None) if after is None else (after.rows.skip, after.path)
            rows = layer.rows._replace(batch=1, skip=0.0)
            of_path = weights.get((target, True))
            hidden.append(HiddenLayer(rows, weights[target, False], skip, path, of_path))
        if hidden[0].skip == 0.0 and not layers[1].begins:
            first, hidden = hidden[0].weights, hidden[1:]
        else:  # inputs that are passed on, and have no weights
            first = LimitWeights(1.0, 0.0, (0.0, 0.0))
        keeps_normed = [
            each.skip != 0.0
            and each.path is None
            and each.rows.keeps_normed
            and each.rows.norm.axis == "batch"
            for each in hidden
        ]
        if any(keeps_normed):
            hint = "the tangent kernel of such a network is random at infinite width, too"
            raise ArgumentError("skip", max(each.skip for each in hidden), _NO_NORMED, hint)
        require_gaussian_rows(tuple(hidden))
        return cls(x, first, tuple(hidden))

    def kernel(self, tangent: bool, key: int, parallel: Parallel) -> Float64Array:
        """Return Θ or the covariance of one output, (samples, samples)."""
        batches: list[tuple[int, ...]] = [(self.inputs.shape[1],)]
        network = LimitNetwork([self.inputs], batches, self.first, self.layers, tangent)
        kernel = of_batches(network, _LIMIT_RTOL, key, parallel)
        return 0.5 * (kernel + kernel.T)


def _of_cross_entropy(
    architecture: Architecture, tangent: Float64Array, covariance: Float64Array, key: int
) -> float:
    """Return the median of λ over outputs of infinitely wide networks, N(0, covariance) each."""
    samples, outputs = len(tangent), architecture.outputs
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    random = np.random.default_rng([key, _DRAWS])
    draws = factor @ random.standard_normal((_DRAWS, samples, outputs))
    begin = random.standard_normal(samples * outputs)

    def of(outputs_of_draw: Float64Array) -> float:
        root = _roots(outputs_of_draw)

        def product(v: Float64Array) -> Float64Array:
            moved = np.einsum("sij,sj->si", root, v.reshape(samples, outputs))
            return np.einsum("sij,sj->si", root, tangent @ moved).reshape(-1)

        value = extreme_eigenvalue(product, begin, _OUTPUTS_RTOL)
        return math.nan if value is None else value / samples

    return float(np.median([of(each) for each in draws]))
