"""`tangent_kernel`: the neural tangent kernel of networks of finite width, by Monte Carlo."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import (
    Float64Array,
    choice,
    draw_key,
    finite_array,
    instance,
    integer,
)
from bnmc._support.linalg import binary_scale, require_finite
from bnmc._support.machine import one_blas_thread, require_memory
from bnmc._support.progress import Progress
from bnmc._support.text import Result, text_table
from bnmc._support.workers import Calls, Parallel, Shared, ranges
from bnmc.chain.activations import require_derivative
from bnmc.chain.chain import Chain, Network, as_network, layers_of, pattern_of, shown_of
from bnmc.chain.layers import Layer, linears_of
from bnmc.chain.start import FirstLayer, Start, as_initial, prepare
from bnmc.errors import ArgumentError, NonFiniteError, PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.gradients.network import (
    DrawnWeights,
    UnseenWeights,
    generator_of,
    in_range,
    linear_of,
    start_rows,
    times_power,
)
from bnmc.gradients.network import Network as LayersOfRows
from bnmc.plot.drawn import Kernels
from bnmc.simulation.runs import Recorded, Run, number_of_projection
from bnmc.simulation.starting import run_of

#: Bytes of the arrays of the networks that are computed together.
TOGETHER_BYTES = 1 << 25


@dataclass(frozen=True, eq=False, repr=False)
class TangentKernel(Kernels, Result):
    """Neural tangent kernels of an ensemble of networks.

    `plot` draws the median over networks of each entry as an image.

    Attributes
    ----------
    network : Network
    kernels : (chains, samples, samples) ndarray of float64
        Θ of each network; with `probes`, an unbiased estimate of it.
    probes : int or None
        Number of random combinations of the outputs, None for all outputs.
    sampler : str
        "conditional" or "weights".
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.
    inputs : int or None
        Number of batches that went through each network.  If there are several, the samples are
        those of the first batch, then those of the second one, ….  Those of a convolutional chain
        are its images.
    parts : (chains, depth + 1, samples, samples) ndarray of float64, or None
        With ``parts=True``, what the parameters of each layer contribute: first ω_0 and β_0, last
        the readout v.  Their sum is `kernels`, up to rounding.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.gradients.tangent_kernel(bnmc.Chain(100, 6, "relu"), 3, chains=50, rng=0)
    >>> found.mean().shape, found.stderr().shape
    ((6, 6), (6, 6))
    """

    network: Network
    kernels: Float64Array
    probes: int | None
    sampler: str
    key: int = field(repr=False)
    inputs: int | None = None
    parts: Float64Array | None = None

    @property
    def chain(self) -> Chain:
        """The chain, whose layer repeats; `ArgumentTypeError` if layers differ."""
        return self.network.chain

    @property
    def depth(self) -> int:
        """Number of layers after layer 0."""
        return self.network.depth

    @property
    def chains(self) -> int:
        """Number of networks."""
        return len(self.kernels)

    def mean(self) -> Float64Array:
        """Return the mean over networks, (samples, samples).

        Raises
        ------
        PartialEstimateError
            If the expectation is infinite: eps is 0 and rows after centring have at most 2
            dimensions (a centred norm of 3 samples, for example).  `partial` is the median of each
            entry.

        Notes
        -----
        Take relu, a norm over the batch with eps 0, and a batch of 4 or more.  If the depth is 2 or
        more, the expectation is infinite at every width.  If layer 0 is random, so it is at depth
        1.  The cause is a rare event: all activations of a layer are 0 except those of two samples,
        so rows of the next layer have only 2 dimensions.  For 4 independent samples under a centred
        norm its probability is at most 6 (1/4 − arcsin(1/3)/(2π))^width: .9 % at width 4, and 1e-70
        at width 100.  If the event does not occur in the simulated networks, their mean estimates
        the expectation given that it does not occur.  Other activations that are constant on an
        interval lose rank, too.
        """
        if _lacks_moment(self.network, 1):
            raise PartialEstimateError(
                "the expectation of the kernel is infinite, since that of 1/variance of rows is",
                np.median(self.kernels, axis=0),
            )
        return self.kernels.mean(axis=0)

    def stderr(self) -> Float64Array:
        """Return the standard errors of `mean`, (samples, samples).

        Raises
        ------
        PartialEstimateError
            As for `mean`; if the variance is infinite: eps is 0 and rows after centring have at
            most 4 dimensions (a centred norm of up to 5 samples); or if there is one network.
            `partial` is the mean.
        """
        mean = self.mean()
        if _lacks_moment(self.network, 2):
            raise PartialEstimateError(
                "the variance of the kernel is infinite, since that of 1/variance of rows is", mean
            )
        if self.chains < 2:
            raise PartialEstimateError("standard errors need at least 2 chains", mean)
        return self.kernels.std(axis=0, ddof=1) / np.sqrt(self.chains)

    def estimate(self, i: int, k: int, *, level: float = 0.95) -> Estimate:
        """Return the expectation of Θ_ik as an estimate, with Student's interval.

        Parameters
        ----------
        i, k : int
            Samples, from 0 on.
        level : float, default 0.95

        Raises
        ------
        ArgumentError
            If there is no such sample.
        PartialEstimateError
            As for `stderr`.
        """
        high = self.kernels.shape[1] - 1
        i, k = integer("i", i, low=0, high=high), integer("k", k, low=0, high=high)
        self.stderr()
        return Estimate.from_samples(
            self.kernels[:, i, k], level=level, method="mean over networks"
        )

    def __repr__(self) -> str:
        by = "" if self.probes is None else f", {self.probes} probes"
        layers = f"{self.chains} chains, {self.depth} layers{by}"
        return f"<TangentKernel of {layers}; {shown_of(self.network)}>"

    def __str__(self) -> str:
        """Medians and quantiles over networks, of the mean entries on and off the diagonal."""
        size, trace = self.kernels.shape[1], np.trace(self.kernels, axis1=1, axis2=2)
        entries = {"diagonal": trace / size}
        if size > 1:
            others = self.kernels.sum(axis=(1, 2)) - trace
            entries["off the diagonal"] = others / (size * (size - 1))
        rows = [
            (name, *(f"{number:.4g}" for number in np.quantile(each, (0.5, 0.05, 0.95))))
            for name, each in entries.items()
        ]
        return (
            f"{shown_of(self.network)}: tangent kernels of {self.chains} networks, "
            f"{self.depth} layers, {size} samples\n"
            + text_table(("mean entry", "median of networks", "5 %", "95 %"), rows)
        )


def tangent_kernel(
    chain: Chain | Network,
    depth: int | None = None,
    *,
    chains: int = 100,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    inputs: int | None = None,
    probes: int | None = None,
    parts: bool = False,
    trained_biases: bool = False,
    rng: Any = None,
    sampler: str = "auto",
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> TangentKernel:
    r"""Simulate the neural tangent kernel of random networks of finite width.

    The network is that of `bnmc.backpropagate`, with one output per sample,

    .. math:: h_{l+1} = \mathrm{skip}\, x_l
              + \frac{\mathrm{gain}}{\sqrt{d}}\, ω_l σ(x_l) + s\, β_l 1^T, \qquad
              x_{l+1} = N(h_{l+1}), \qquad f_i = \frac{1}{\sqrt{d}}\, v^T σ(x_L)_i,

    or as its order says (`bnmc.Chain`), where d is the width, L the depth, s² the variance of the
    bias, and the parameters ω_l, β_l and v have independent entries of mean 0 and variance 1.  If
    layers differ, d is the width of layer l.  The projections of blocks (`bnmc.Residual`) have
    parameters like the others.  `bnmc.infinite_width.ntk` of the same network has no readout v: it
    is the kernel of h_L, and of a chain it also counts the weights of the first layer.  The kernel
    is

    .. math:: Θ_{ik} = \Big\langle \frac{∂f_i}{∂v}, \frac{∂f_k}{∂v} \Big\rangle
              + \sum_{l=0}^{L-1}
                \Big\langle \frac{∂f_i}{∂ω_l}, \frac{∂f_k}{∂ω_l} \Big\rangle
              + \Big\langle \frac{∂f_i}{∂β_l}, \frac{∂f_k}{∂β_l} \Big\rangle .

    The samples of a convolutional chain are its images, and the readout takes the mean of σ(x_L)
    over the pixels of an image.  There d is the number of channels, and the factor of ω_l is
    gain/√(d · taps).

    Under batch normalization the output of a sample depends on its whole batch, and its gradient
    has a column for each sample of it: inputs · batch² columns for all outputs.  Of a convolutional
    chain, these columns are times the number of pixels.

    Parameters
    ----------
    chain : Chain or Network
        A network has a depth and layers of its own.
    depth : int
        L >= 1, of a chain; None for a network.
    chains : int, default 100
        Number of independent networks.
    initial : str, array_like or FirstLayer, default "gaussian"
        The input of the normalization of layer 0, as in `bnmc.simulate`.
    inputs : int, optional
        Number k of batches that go through the same networks, as in `bnmc.simulate`; each is
        normalized on its own.  The kernel is that of all k · batch samples: for example of a batch
        for training and one for testing.
    probes : int, optional
        Number m >= 2 of random combinations of the outputs that replace the outputs.  They take
        m columns per sample, or pixel.  Default: all outputs, exactly.
    parts : bool, default False
        Whether the result has what each layer contributes, as `TangentKernel.parts`.
    trained_biases : bool, default False
        Whether the layers of a chain without random biases have biases b_l that begin at 0 and are
        trained: they change no output, but ⟨∂f_i/∂b_l, ∂f_k/∂b_l⟩ counts, which is the term of
        β_l with s = 1.  Under a norm that subtracts them it is 0, up to rounding.
    rng : optional
        Anything `numpy.random.default_rng` takes.
    sampler : {"auto", "conditional", "weights"}
        "conditional" makes no weight matrix and needs Gaussian weights; it is the default for
        these.  "weights" draws the matrices and multiplies by them, for every law of weights.
    threads : int, optional
        Number of threads; each takes some of the networks.  The default is the number of
        processors.  Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that takes the networks in place of threads.  Results do not depend on it.
    timeout : float, optional
        Seconds, > 0, after which the result has the first networks, up to the first one that is
        not finished: see `TangentKernel.chains`.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) chains.

    Returns
    -------
    TangentKernel

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the derivative of the activation is not known.
    ResultTooLargeError
        If one network would not fit in memory, before any work; take fewer `probes`.
    ZeroVarianceError, NonFiniteError
        If a row of a layer has no variance, or a layer leaves the range of numbers.
    PartialEstimateError
        If no network is finished within `timeout`.
    Interrupted
        On Ctrl-C; `partial` has the finished networks.

    Notes
    -----
    With δ⁽ⁱ⁾ the gradient of f_i with respect to h_{l+1} (width × batch) and a the activations of
    layer l, layer l contributes

    .. math:: \sum_{jm} \langle δ^{(i)}_j, δ^{(k)}_m \rangle\,
              (\mathrm{gain}^2 \langle a_j, a_m \rangle / d + s^2),

    and v contributes the Gram matrix of layer L.  A convolution shares its weights over the pixels:
    the average of a Gram matrix over the taps takes its place (`bnmc.Convolution`), and v
    contributes the mean over the pixels of two images.  Products with Gaussian weights are drawn
    given the forward pass (see `bnmc.backpropagate`), so the joint law of the entries is exact at
    every width.  Without a norm over the batch δ⁽ⁱ⁾ has the columns of sample i alone.

    With probes u_1, …, u_m of independent random signs, a network yields
    :math:`K_{pq} = u_p^T Θ u_q`, and the estimate
    :math:`\hat{Θ} = \sum_{p \ne q} u_p K_{pq} u_q^T / (m (m - 1))` is unbiased.  Its variance given
    Θ is that of `probing_variance`.  The standard errors over networks contain it.

    The rows are float64.  Eigenvalues of a Gram matrix below 1e-14 of the largest one count as
    zero.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(100, 6, "relu")
    >>> found = bnmc.gradients.tangent_kernel(chain, 3, chains=100, rng=0)
    >>> found.kernels.shape
    (100, 6, 6)
    >>> bool((found.stderr() < 0.1 * abs(found.mean()).max()).all())
    True
    """
    network = as_network(chain, depth, low=1)
    initial, depth = as_initial(network.first, initial), network.depth
    chains = integer("chains", chains, low=1)
    parallel = Parallel.of(threads, executor, progress, timeout)
    workers = parallel.threads
    if probes is not None:
        probes = integer("probes", probes, low=2)
    instance("parts", parts, bool, "True or False")
    are_random = any(each.bias_variance for each in network.chains)
    if instance("trained_biases", trained_biases, bool, "True or False") and are_random:
        hint = "random biases are trained in any case"
        raise ArgumentError("trained_biases", True, "False with bias_variance > 0", hint)
    choice("sampler", sampler, ("auto", "conditional", "weights"))
    laws = [each.layers[1].linear.law for each in network.chains]
    are_gaussian = all(law.rows_given_gram or law.is_identity for law in laws)
    path = "conditional" if are_gaussian and sampler != "weights" else "weights"
    if sampler not in ("auto", path):
        raise ArgumentError("sampler", sampler, "'weights' or 'auto' unless weights are Gaussian")
    run = run_of(
        network, initial, chains=chains, inputs=inputs, rng=rng, sampler=path, dtype="float64"
    )
    run = replace(run, path=path, recorded=Recorded(depth, 1, depth), key=draw_key(rng))
    job = _Job(run, probes, parts, trained_biases)
    size = job.bytes_of_network()
    hint = "take fewer probes" if probes else "probes=m takes m columns per sample"
    together = max(1, min(TOGETHER_BYTES // size, -(-chains // workers)))
    matrices = chains * (depth + 2 if parts else 1)
    needed = min(workers, chains) * together * size + 8 * matrices * job.samples**2
    for each in network.chains:
        each.activation.check()
        require_derivative(each.activation)
    require_memory("depth, batch", needed, hint)
    start = prepare(network, initial, chains, run.inputs)
    pieces = ranges(chains, together)
    calls: Calls[Float64Array] = Calls(
        Shared("executor", parallel.executor, job),
        [(start.part(first, last), first, last) for first, last in pieces],
        [last - first for first, last in pieces],
    )
    return job.result(parallel.results(calls, "tangent_kernel", "chains", job.result))


def probing_variance(kernel: ArrayLike, probes: int) -> Float64Array:
    r"""Return the variance that probing adds to each entry of a tangent kernel.

    It is the variance of the estimate of `tangent_kernel` with `probes` = m, given the kernel Θ of
    the network, by the theory of U-statistics:

    .. math:: \mathrm{Var}\, \hat{Θ}_{ik} = \frac{4 (m - 2) ζ_1 + 2 ζ_2}{m (m - 1)},

    where, for i ≠ k,

    .. math:: ζ_1 = \tfrac14 \Big( (Θ_{ii} + Θ_{kk})^2
              + \sum_{p \ne i, k} (Θ_{pi}^2 + Θ_{pk}^2) \Big), \qquad
              ζ_2 = \tfrac12 \|Θ\|_F^2 + Θ_{ii} Θ_{kk},

    and, for i = k, :math:`ζ_1 = \sum_{p \ne i} Θ_{pi}^2` and
    :math:`ζ_2 = \|Θ\|_F^2 - Θ_{ii}^2`.

    Parameters
    ----------
    kernel : (n, n) array_like
        A symmetric matrix Θ, for example the mean of a first run.
    probes : int
        m >= 2.

    Returns
    -------
    (n, n) ndarray of float64

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `kernel` is no finite square matrix, the variance overflows float64, or `probes` is no
        integer >= 2.

    Examples
    --------
    >>> from bnmc.gradients import probing_variance
    >>> probing_variance([[1.0, 0.0], [0.0, 1.0]], 4).round(3).tolist()
    [[0.167, 1.0], [1.0, 0.167]]
    """
    theta = finite_array("kernel", kernel, shape=("n", "n")).astype(np.float64)
    m = integer("probes", probes, low=2)
    given, scale = theta, binary_scale(theta)
    theta = theta / scale
    total = np.square(theta).sum()
    diagonal = np.diagonal(theta)
    squares, others = diagonal**2, np.square(theta).sum(axis=0)
    apart = others[:, None] + others - squares[:, None] - squares - 2.0 * theta**2
    first = 0.25 * ((diagonal[:, None] + diagonal) ** 2 + apart)
    second = 0.5 * total + np.outer(diagonal, diagonal)
    np.fill_diagonal(first, others - squares)
    np.fill_diagonal(second, total - squares)
    with np.errstate(over="ignore"):  # raises below, by name
        variance = (4.0 * (m - 2) * first + 2.0 * second) / (m * (m - 1)) * scale * scale
    require_finite("kernel", given, variance)
    return np.asarray(variance)


def _lacks_moment(network: Network, order: int) -> bool:
    """Whether E (1/v)^order is infinite for the variance v of a row of h of any layer."""
    return any(
        _layer_lacks_moment(each, order) for each in layers_of(pattern_of(network)).layers[1:]
    )


def _layer_lacks_moment(layer: Layer, order: int) -> bool:
    linear, norm = layer.linear, layer.rows.norm
    if norm.is_identity or layer.rows.eps > 0.0:
        return False
    # Near 0, the density of v is that of a chi-squared number with these degrees of freedom.
    if norm.axis == "features":
        degrees = linear.width // norm.groups - norm.centred
    else:
        degrees = norm.dimensions(layer.rows.batch)
    shows_bias = linear.bias_variance > 0.0 and not layer.rows.hides_common_part()
    return degrees != 1 and min(degrees, linear.fan_in + shows_bias) <= 2 * order


@dataclass(frozen=True)
class _Job:
    """What all networks have in common."""

    run: Run
    probes: int | None
    parts: bool
    trained_biases: bool

    @property
    def pixels(self) -> int:
        """Number of columns of a sample: the pixels of an image, or 1."""
        return self.run.layers[-1].linear.patches.positions

    @property
    def samples(self) -> int:
        """Number of samples in all batches."""
        return self.run.columns // self.pixels

    @property
    def groups(self) -> int:
        """Number of sets of samples, of which one output or combination sees only its own."""
        if self.probes is not None:
            return 1
        is_batched = any(layer.rows.norm.axis == "batch" for layer in self.run.layers)
        return self.run.inputs or 1 if is_batched else self.samples

    @property
    def combinations(self) -> int:
        """Number of combinations of outputs: the probes, or the outputs of a set of samples."""
        return self.samples // self.groups if self.probes is None else self.probes

    def bytes_of_network(self) -> int:
        """Return the bytes of all arrays of one network, about."""
        run, linears = self.run, linears_of(self.run.layers)
        width = max(each.width for each in linears)
        columns = run.columns * self.combinations
        layers = 8 * width * (2 * run.columns + (run.inputs or 1)) * (run.depth + 1)
        rows = 5 * 8 * width * columns
        if self.pixels > 1:  # patches, and gradients with respect to them
            rows += 4 * 8 * max(each.fan_in for each in linears) * columns
        square = 3 * 8 * width**2 if run.path == "weights" or columns >= width else 0
        small = 4 * 8 * columns**2
        return layers + rows + square + small

    # The bits of products of narrow matrices depend on the number of their threads.
    @one_blas_thread()
    def __call__(self, start: Start, first: int, last: int) -> Float64Array:
        """Return the kernels of networks first:last, and their parts, in place 0 and from 1 on."""
        run = self.run.part(first, last)
        depth, x = run.depth, start_rows(run, start)
        generators = [generator_of(run, index) for index in range(run.chains)]
        is_drawn = run.path == "weights"
        weights = DrawnWeights(run) if is_drawn else UnseenWeights(run, generators)
        network = LayersOfRows(run, x, weights, depth)
        width = run.layer(depth).linear.width
        readout = np.stack([each.standard_normal(width) for each in generators])
        directions = self._directions(generators)
        # The gradients of combinations of outputs with respect to the last activations.
        at_a = readout[:, :, None] / np.sqrt(width) * directions.reshape(len(x), 1, -1)
        if self.pixels > 1:
            at_a = np.repeat(at_a / self.pixels, self.pixels, axis=2)
        delta = network.through_activation(depth, at_a)
        kernels = self._of_readout(directions, network.gram(depth))
        parts = [kernels]
        for layer in range(depth, 0, -1):
            inner, by = in_range(delta)
            maps = []
            if not run.layer(layer).linear.law.is_identity:  # which nobody trains
                maps.append((layer, network.gram(layer - 1), 1.0, inner))
            if (number := number_of_projection(layer)) in run.projections:
                taken = network.taken(layer)
                gram = taken.swapaxes(1, 2) @ taken / taken.shape[1]
                factor = run.layer(layer).rows.skip
                maps.append((number, gram, factor, network.at_projection(layer, inner)))
            part = np.zeros_like(kernels)
            for number, gram, factor, at_rows in maps:
                # The Gram matrix of what weights and bias multiply.
                linear = linear_of(run, number)
                gain, unit = (factor * times_power(each, by) for each in (linear.gain, 1.0))
                part += gain * gain * self._contribution(at_rows, linear.covariance()(gram))
                if self.trained_biases:
                    part += unit * unit * self._contribution(at_rows, np.ones_like(gram))
            kernels = kernels + part
            if self.parts:
                parts.append(part)
            if not np.isfinite(kernels).all():
                wrong = int(np.isfinite(kernels).all(axis=(1, 2)).argmin())
                raise NonFiniteError(run.first + wrong, layer, "tangent kernel")
            if layer > 1:
                delta = network.down(layer, delta)
        every = np.stack([kernels, *reversed(parts)] if self.parts else [kernels], axis=1)
        return every if self.probes is None else _unprobed(directions[:, None], every)

    def _directions(self, generators: list[np.random.Generator]) -> Float64Array:
        """Return the combinations of outputs, (networks, combinations, samples).

        Without probes, outputs of several groups share a combination: with respect to one group,
        the gradient of their sum is the gradient of the output of that group.
        """
        if self.probes is not None:
            shape = self.probes, self.samples
            return np.stack([1.0 - 2.0 * each.integers(0, 2, shape) for each in generators])
        groups = np.tile(np.eye(self.combinations), (1, self.groups))
        return np.broadcast_to(groups, (len(generators), *groups.shape))

    def _of_readout(self, directions: Float64Array, gram: Float64Array) -> Float64Array:
        """Return the kernel of the weights of the readout, which multiply means over pixels."""
        if self.pixels > 1:
            shape = self.samples, self.pixels
            gram = gram.reshape(len(gram), *shape, *shape).mean(axis=(2, 4))
        return gram if self.probes is None else directions @ gram @ directions.swapaxes(1, 2)

    def _contribution(self, delta: Float64Array, gram: Float64Array) -> Float64Array:
        """Return the kernel of the weights between activations of a Gram matrix and gradients."""
        products = delta.swapaxes(1, 2) @ delta
        # Combination i of set b has the columns j of this set.
        shape = self.combinations, self.groups, self.run.columns // self.groups
        by_group = products.reshape(len(delta), *shape, *shape)
        grams = gram.reshape(len(delta), *shape[1:], *shape[1:])
        by_output = np.einsum("zibjkcm,zbjcm->zbick", by_group, grams, optimize=True)
        outputs = self.groups * self.combinations
        return by_output.reshape(len(delta), outputs, outputs)

    def result(self, done: list[Float64Array]) -> TangentKernel:
        """Return the result of finished networks."""
        run, every = self.run, np.concatenate(done)
        return TangentKernel(
            run.network, every[:, 0], self.probes, run.path, run.key, run.inputs,
            every[:, 1:] if self.parts else None,
        )  # fmt: skip


def _unprobed(probes: Float64Array, kernels: Float64Array) -> Float64Array:
    """Return the estimates of kernels from uᵀΘu of different probes u, (networks, …, m, n)."""
    m = probes.shape[-2]
    different = kernels * (1.0 - np.eye(m))
    return probes.swapaxes(-1, -2) @ different @ probes / (m * (m - 1))
