"""Known mistakes in a step, compared by the likelihood of the covariances of h' given h.

A step may have two of them, such as the bias and the eps of PyTorch's default layers.  Learned
factors of a norm are no such mistake, as their values are unknown.  They show in the features: all
parts of a layer treat features alike, so a permutation of the features of h does not change the law
of h'.  (For group normalization this holds for permutations that keep the groups.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.arguments import Float64Array
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.convolution import Convolution
from bnmc.chain.layers import CovarianceMap, over_square
from bnmc.testing.calls_on_state import LEAST, CallsOnState

_Map = Callable[[Float64Array], Float64Array]

#: Ridge of all covariances, as a share of their mean variance: null spaces get a likelihood.
_RIDGE = 1e-9

#: Least fitted variance; smaller ones are dominated by the ridge.
_LEAST_VARIANCE = 1e-7

#: Two mistakes are tried if one leaves this relative error of the covariances, and lacks this
#: multiple of the likelihood that noise costs.
_ENOUGH, _NOISE = 0.1, 3.0

#: Number of mistakes beside which ε is fitted.
_WITH_EPS = 4

#: Shares of activations that dropout may set to 0.
_SHARES = (1e-3, 0.99)

#: Common activations that are not built in, by name and formula.
_OTHERS: dict[str, _Map] = {
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(0.0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "hardtanh": lambda x: np.clip(x, -1.0, 1.0),
    "hardswish": lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
}

#: Grid of log₁₀ ε.
_EPSILONS = np.arange(-13.0, 0.0, 0.5)


class _Norm(NamedTuple):
    """A norm of the state h, reshaped, over some axes: deviations over their standard deviation.

    `eps` is added to the variance, and `added` to its root.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    centred: bool
    eps: float
    ddof: int = 0
    divides: bool = True
    added: float = 0.0

    def __call__(self, h: Float64Array) -> Float64Array:
        """Return N(h); parts without variance give NaN if eps is 0, which has no likelihood."""
        x = h.reshape(self.shape)
        if self.centred:
            x = x - x.mean(axis=self.axes, keepdims=True)
        if self.divides:
            count = math.prod(self.shape[axis] for axis in self.axes) - self.ddof
            squares = np.square(x).sum(axis=self.axes, keepdims=True)
            x = x / (np.sqrt(squares / count + self.eps) + self.added)
        return x.reshape(h.shape)


class _Step(NamedTuple):
    """The parts of a step that determine the covariance of h' given h.

    norm : _Norm
    activation : callable
    norm_is_last : bool
        Whether a = norm(activation(h)), not a = activation(norm(h)).
    bias : float
        Variance of the bias that is added, over gain².
    covariance : callable
        Map from aᵀa/width to the covariance of rows of W a.
    """

    norm: _Norm
    activation: _Map
    norm_is_last: bool
    bias: float
    covariance: _Map

    def gram(self, h: Float64Array) -> Float64Array:
        """Return the covariance of rows of h' / gain for a state h, (width, batch)."""
        norm, sigma = self.norm, self.activation
        a = norm(sigma(h)) if self.norm_is_last else sigma(norm(h))
        return self.covariance(a.T @ a / len(a)) + self.bias


@dataclass(frozen=True, eq=False)
class Fault:
    """Known mistakes, as the parts of a correct step that they replace.

    Attributes
    ----------
    step : _Step
        The step with these mistakes.
    texts : tuple of str
        Each mistake in words; empty for a correct step.
    changes : dict
        The replaced parts by name.
    parameters : int
        Number of fitted parameters.
    """

    step: _Step
    texts: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0

    def but(self, *texts: str, parameters: int = 0, **changes: Any) -> Fault:
        """Return this step with further mistakes."""
        step, changes = self.step._replace(**changes), self.changes | changes
        return Fault(step, self.texts + texts, changes, self.parameters + parameters)


def likeliest_fault(chain: Chain, states: Sequence[CallsOnState]) -> tuple[Fault, float, float]:
    """Return the fault that fits the covariances of h' best by the Bayesian information criterion.

    Parameters
    ----------
    chain : Chain
    states : sequence of CallsOnState

    Returns
    -------
    fault : Fault
    scale : float
        Factor of the standard deviation besides the fault; 1 if a scale does not improve the fit.
    unexplained : float
        Approximate relative error of the covariances that fault and scale leave.
    """
    evidence = _Evidence(chain, states)
    right, *wrong = _faults(chain)
    with np.errstate(all="ignore"):  # overflows give a likelihood of 0
        fitted = (*_with_eps(chain, right, evidence), *_with_dropout(chain, right, evidence))
        fits = evidence.compared([right, *wrong, *fitted])
        # Against covariances without a model, the true one lacks half a unit per free entry.
        noise = 0.5 * sum(len(gram) * (len(gram) + 1) / 2 for gram in evidence.grams)
        if fits[0].lacking > _NOISE * noise and evidence.error(fits[0]) > _ENOUGH:
            fits += evidence.compared(_pairs(chain, fits, evidence))
    best = min(fits, key=lambda fit: fit.cost)
    return best.fault, best.scale, evidence.error(best)


@dataclass(frozen=True)
class _Fit:
    """How well a fault explains the covariances: `cost` is the information criterion.

    `lacking` is the logarithm of the likelihood of the best covariances over that of this fault.
    """

    cost: float
    fault: Fault
    scale: float
    lacking: float


class _Evidence:
    """The covariances of the rows of h' after some states, and the likelihood of steps.

    Attributes
    ----------
    gain : float
    states : sequence of CallsOnState
    grams : list of (batch, batch) ndarray
        The covariances of h' over gain, estimated from calls.
    directions : int
        Number of numbers in all rows of all calls.
    """

    def __init__(self, chain: Chain, states: Sequence[CallsOnState]) -> None:
        self.gain, self.states = chain.gain, states
        self.grams = [state.covariance for state in states]
        self.directions = sum(state.numbers for state in states)

    def error(self, fit: _Fit) -> float:
        """Return about the relative error that a fit leaves: r in k directions costs k r²/4."""
        return 2.0 * math.sqrt(max(0.0, fit.lacking) / self.directions)

    def compared(self, faults: Iterable[Fault]) -> list[_Fit]:
        """Return the fits of faults, each without and with a scale, the best one first."""
        size = math.log(self.directions)
        fits = []
        for fault in faults:
            grams = self.predicted(fault)
            for free in (False, True):
                likelihood, scale = self.likelihood(grams, free)
                # A known mistake has a larger prior probability than an arbitrary scale.
                parameters = fault.parameters + 1.5 * free + len(fault.texts)
                fits.append(_Fit(0.5 * parameters * size - likelihood, fault, scale, -likelihood))
        return sorted(fits, key=lambda fit: fit.cost)

    def predicted(self, fault: Fault) -> list[Float64Array]:
        """Return the covariance of h' over gain after each state, by a fault."""
        return [fault.step.gram(self.gain * state.layer.y[0]) for state in self.states]

    def likelihood(self, grams: Sequence[Float64Array], free: bool) -> tuple[float, float]:
        """Return the log-likelihood of all rows, if they are normal with the given covariances.

        It is relative to that of the estimated covariances.  The second number is the scale of the
        rows, which is fitted if `free`.
        """
        terms = []
        for state, gram, returned in zip(self.states, grams, self.grams, strict=True):
            n = len(gram)
            if not (gram.any() or returned.any()):
                continue  # the step returns zero, as the fault predicts
            if not (np.isfinite(gram).all() and np.trace(gram) > 0.0):
                return -math.inf, 1.0
            of_returned, of_gram = float(np.trace(returned)), float(np.trace(gram))
            # What a direction contributes that neither covariance has.
            unit = max(of_returned, LEAST) / of_gram if free else 1.0
            size = of_gram if free else max(of_returned, float(np.trace(state.layer.gram[0])))
            ridge = _RIDGE * size / n
            if ridge <= np.finfo(np.float64).eps * of_gram:
                return -math.inf, 1.0  # so much larger than the observed one: it has no chance
            ridged, lifted = returned + unit * ridge * np.eye(n), gram + ridge * np.eye(n)
            values = np.linalg.eigvals(np.linalg.solve(lifted, ridged)).real
            rank = int((np.linalg.eigvalsh(gram) > 10 * ridge).sum())
            trace = float(values.sum()) - (n - rank) * unit
            log = float(np.log(np.maximum(values, LEAST)).sum()) - (n - rank) * math.log(unit)
            terms.append((state.calls * len(state.total), rank, trace, log))
        rows, ranks, traces, logs = np.array(terms, float).reshape(-1, 4).T
        variance = float(rows @ traces / (rows @ ranks)) if free else 1.0
        if variance < _LEAST_VARIANCE:
            return -math.inf, 1.0
        fit = logs + ranks - traces / variance - ranks * math.log(variance)
        likelihood = 0.5 * float(rows @ fit)
        return (likelihood if math.isfinite(likelihood) else -math.inf), math.sqrt(variance)


def _pairs(chain: Chain, singles: Sequence[_Fit], evidence: _Evidence) -> Iterator[Fault]:
    """Yield steps with two mistakes; eps is fitted beside those that explain most alone."""
    ranked = [fault for fault in dict.fromkeys(fit.fault for fit in singles) if fault.texts]
    for first, second in itertools.combinations(ranked, 2):
        if not first.changes.keys() & second.changes.keys():
            yield first.but(*second.texts, parameters=second.parameters, **second.changes)
    beside = [fault for fault in ranked if "norm" not in fault.changes]
    biased = [fault for fault in beside[_WITH_EPS:] if fault.step.bias]
    for fault in [*beside[:_WITH_EPS], *biased]:
        yield from _with_eps(chain, fault, evidence)


def _faults(chain: Chain) -> Iterator[Fault]:
    """Yield the faults, a correct step first."""
    sigma, norm = chain.activation, _norm_of(chain)
    is_last = chain.layers[1].rows.activates_first
    bias = over_square(chain.bias_variance, chain.gain)
    right = Fault(_Step(norm, sigma, is_last, bias, CovarianceMap(chain.convolution)))
    yield right
    if bias > 0.0:
        yield right.but(f"the bias, of variance {chain.bias_variance:g}, is missing", bias=0.0)
    else:
        yield right.but("a bias, with the variance of the weights, is added", bias=1 / chain.fan_in)
    if not chain.normalization.is_identity:
        place = "before the activation" if is_last else "after the activation, not before it"
        yield right.but(f"the norm is {place}", norm_is_last=not is_last)
    for name, other in {**_OTHERS, **{name: Activation.named(name) for name in BUILTIN}}.items():
        if name != sigma.name:
            text = f"the activation is not {sigma.name}: {name} fits better"
            yield right.but(text, activation=other)
    for text, covariance in wrong_covariances(chain):
        yield right.but(text, covariance=covariance)
    for text, wrong in _wrong_norms(chain):
        yield right.but(text, norm=wrong)


def _norm_of(chain: Chain) -> _Norm:
    """Return the norm of a chain."""
    norm, rows = chain.normalization, (chain.width, chain.batch)
    of_samples = norm.groups, chain.width // norm.groups, chain.batch
    shape = rows if norm.acts_on_rows else of_samples
    return _Norm(shape, (1,), norm.centred, chain.eps, divides=not norm.is_identity)


def _divided(what: str, count: int, formula: str = "") -> str:
    """Return the text of a variance of `count` numbers that is divided by one less."""
    ratio = math.sqrt((count - 1) / count)
    return f"the variance of {what} (ddof = 1): N(h) is smaller by {formula}{ratio:.4f}"


def _wrong_norms(chain: Chain) -> Iterator[tuple[str, _Norm]]:
    """Yield texts and wrong norms."""
    d, n, norm = chain.width, chain.batch, chain.normalization
    right = _norm_of(chain)._replace(divides=True)
    rows = right._replace(shape=(d, n))
    unscaled = "the state is not divided by its own standard deviation"
    if not norm.acts_on_rows:
        yield from _wrong_norms_of_samples(chain, right)
        text = "the norm acts on rows, over the batch, not on samples, over the features"
        yield text, rows
        if not norm.centred:
            text = "the norm centres rows and acts on them, over the batch, not on samples"
            yield text, rows._replace(centred=True)
        return
    over_batch = norm.axis == "batch"
    if over_batch and n > 1:
        text = _divided("a row is divided by n - 1, not n", n, "sqrt((n-1)/n) = ")
        yield text, rows._replace(ddof=1)
    if (norm.centred or norm.is_identity) and n > 1:
        yield "rows are normalised without being centred", rows._replace(centred=False)
    if not norm.centred:
        yield "rows are centred", rows._replace(centred=True)
    if over_batch:
        plain = rows._replace(divides=False, centred=False)
        yield f"{unscaled}: evaluation mode, with running statistics?", plain
        # Parts of one image each are instance normalization, which is the better name.
        yield from _wrong_norms_of_images(chain, right)
        yield from _norms_of_parts(rows)
        yield f"{unscaled}, but centred", plain._replace(centred=True)
    if d > 1:
        text = "the norm acts on samples, over the features, not on features"
        yield text, rows._replace(axes=(0,))


def _norms_of_parts(rows: _Norm) -> Iterator[tuple[str, _Norm]]:
    """Yield texts and norms over parts of the batch."""
    d, n = rows.shape
    # Two centred samples are ±1, whatever they were.
    for size in range(3, n // 2 + 1):
        if n % size == 0:
            text = f"the norm acts on parts of {size} samples, not on all {n} (ghost batches)"
            # Equal samples of a part have no variance; the ε of a framework makes them zero.
            eps = max(rows.eps, LEAST)
            yield text, rows._replace(shape=(d, n // size, size), axes=(2,), eps=eps)


def _wrong_norms_of_samples(chain: Chain, right: _Norm) -> Iterator[tuple[str, _Norm]]:
    """Yield texts and wrong norms over the features."""
    groups, size, n = right.shape
    d = chain.width
    if size > 1:
        yield _divided(f"{size} features is divided by {size - 1}", size), right._replace(ddof=1)
    change = "normalised without being centred" if right.centred else "centred"
    yield f"samples are {change}", right._replace(centred=not right.centred)
    if groups > 1:
        text = f"the norm acts on all {d} features, not on {groups} groups of them"
        yield text, right._replace(shape=(1, d, n))
        transposed = right._replace(shape=(size, groups, n))
        text = f"groups are transposed: group i has the features i, i + {groups}, …"
        yield text, transposed._replace(axes=(0,))
        if size not in (1, groups):
            text = f"there are {size} groups of {groups} features, not {groups} of {size}"
            yield text, transposed


def _with_eps(chain: Chain, fault: Fault, evidence: _Evidence) -> Iterator[Fault]:
    """Yield steps that add the best ε to the variance, or to the standard deviation."""
    if chain.batch < 2 or chain.normalization.is_identity:
        return

    def to_variance(eps: float) -> Fault:
        text = f"the norm adds eps = {eps:.2g} to the variance, not {chain.eps:g}"
        return fault.but(text, parameters=1, norm=fault.step.norm._replace(eps=eps))

    def to_deviation(eps: float) -> Fault:
        text = f"the norm adds eps = {eps:.2g} to the standard deviation, not to the variance"
        return fault.but(text, parameters=1, norm=fault.step.norm._replace(eps=0.0, added=eps))

    yield from _with_best_eps(to_variance, evidence)
    yield from _with_best_eps(to_deviation, evidence)


def _with_best_eps(with_eps: Callable[[float], Fault], evidence: _Evidence) -> Iterator[Fault]:
    """Yield a step with the best ε, from a grid and then a search, without and with a scale."""
    from scipy.optimize import minimize_scalar

    @cache
    def grams(log_eps: float) -> list[Float64Array]:
        return evidence.predicted(with_eps(10.0**log_eps))

    for free in (False, True):

        def cost(log_eps: float, free: bool = free) -> float:
            return -evidence.likelihood(grams(float(log_eps)), free)[0]

        best = min(_EPSILONS, key=cost)
        bounds = best - 0.5, best + 0.5
        least = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-3})
        # Prefer a power of ten within four standard errors.
        whole = round(least.x)
        log_eps = whole if cost(whole) - least.fun < 8.0 else float(least.x)
        yield with_eps(10.0**log_eps)


def _with_dropout(chain: Chain, right: Fault, evidence: _Evidence) -> Iterator[Fault]:
    """Yield steps that drop the best share of the activations, without and with a scale.

    If a share p of the activations is 0 and the others are divided by 1 − p, then the expectation
    of aᵀa keeps its other entries, and its diagonal is divided by 1 − p.
    """
    from scipy.optimize import minimize_scalar

    if chain.is_orthogonal:
        return
    covariance = right.step.covariance

    def dropping(share: float) -> Fault:
        text = f"a share {share:.2g} of the activations is 0 at random: dropout, in training mode?"
        factor = 1.0 / (1.0 - share)

        def dropped(gram: Float64Array) -> Float64Array:
            return covariance(gram + (factor - 1.0) * np.diag(np.diagonal(gram)))

        return right.but(text, parameters=1, covariance=dropped)

    for free in (False, True):

        def cost(share: float, free: bool = free) -> float:
            return -evidence.likelihood(evidence.predicted(dropping(share)), free)[0]

        least = minimize_scalar(cost, bounds=_SHARES, method="bounded", options={"xatol": 1e-3})
        yield dropping(float(least.x))


# --- convolutions: the covariances and the norms that mistakes lead to

#: Sizes of other kernels that are tried along an axis.
_SIZES = (1, 2, 3, 5, 7)


def wrong_covariances(chain: Chain) -> Iterator[tuple[str, _Map]]:
    """Yield texts, and maps from Gram matrices to covariances of rows, for convolutions."""
    right = chain.convolution
    if right is None:
        return
    n, (height, width) = chain.batch, right.shape
    if right.taps > 1:
        yield "the padding is zero, not circular", lambda g: _with_zeros(right, g)
    places = np.arange(n).reshape(-1, right.positions)
    if len(places) > 1 and right.taps > 1:
        text = (
            "samples and pixels are transposed: a column is pixel p of sample s at "
            "s * pixels + p, not at p * samples + s"
        )
        yield text, _reordered(right, places.reshape(right.positions, -1).T.ravel())
    if height > 1 and width > 1:
        order = np.arange(n).reshape(-1, width, height).swapaxes(1, 2).ravel()
        yield "height and width of the images are transposed", _reordered(right, order)
    columns = np.arange(n)
    for axis, size in enumerate(right.kernel):
        for by in (-1, 1) if size > 1 else ():
            text = f"images are shifted by {by} pixel along axis {axis}: another padding?"
            moved = np.roll(columns.reshape(-1, height, width), by, axis=axis + 1).ravel()
            yield text, _reordered(right, columns, moved)
    sizes = {(i, j) for i in _SIZES for j in _SIZES if i == j or i == 1 or j == 1}
    for kernel in sorted(sizes | {right.kernel[::-1]}):
        if kernel != right.kernel and kernel[0] <= height and kernel[1] <= width:
            text = "the kernel has {} x {} taps, not {} x {}".format(*kernel, *right.kernel)
            yield text, Convolution(right.shape, kernel).covariance


def _wrong_norms_of_images(chain: Chain, right: _Norm) -> Iterator[tuple[str, _Norm]]:
    """Yield texts and norms over other axes of (channels, samples, pixels)."""
    if chain.convolution is None:
        return
    pixels = chain.convolution.positions
    shape = chain.width, chain.batch // pixels, pixels
    # Equal pixels have no variance; the ε of a framework makes them zero.
    norm = right._replace(shape=shape, eps=max(chain.eps, LEAST))
    if shape[1] > 1 and pixels > 1:
        yield "the norm acts on each pixel, over the samples alone, not over both", norm
        text = "the norm acts on each sample, over its pixels alone: instance normalization"
        yield text, norm._replace(axes=(2,))
    text = "the norm acts on each sample, over channels and pixels: layer normalization of images"
    yield text, norm._replace(axes=(0, 2))


def _with_zeros(convolution: Convolution, gram: Float64Array) -> Float64Array:
    """Return the covariance if taps see zeros outside of the images."""
    (height, width), out = convolution.shape, np.zeros_like(gram)
    rows, columns = np.divmod(np.arange(len(gram)) % convolution.positions, width)
    taps = np.ndindex(*convolution.kernel)
    for (i, j), seen in zip(taps, convolution.neighbours(len(gram)), strict=True):
        y = rows + i - (convolution.kernel[0] - 1) // 2
        x = columns + j - (convolution.kernel[1] - 1) // 2
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        out += gram[np.ix_(seen, seen)] * np.outer(inside, inside)
    return out / convolution.taps


def _reordered(
    convolution: Convolution, order: NDArray[np.int64], back: NDArray[np.int64] | None = None
) -> _Map:
    """Return the covariance if columns are reordered before and, by default back, afterwards."""
    after = np.argsort(order) if back is None else back
    return lambda g: convolution.covariance(g[np.ix_(order, order)])[np.ix_(after, after)]


# --- learned factors of a norm

#: Least calls on each state, and least rows of h' in these calls.
_CALLS, _ROWS = 16, 1 << 14

#: The covariances differ if the likelihood ratio exceeds this quantile so many times.  The quantile
#: is that of normal rows; rows of other weights vary a little more.
_LEVEL, _MARGIN = 1e-6, 2.0

#: Eigenvalues of a covariance up to this part of the largest are rounding errors.
_ROUNDING = 1e-9

#: Size of all entries but one of a sample, in units of that one.
_REST = 0.01


def features_differ(chain: Chain, step: _Map, generator: np.random.Generator) -> bool:
    """Return whether the covariance of h' given h changes with a permutation of the features of h.

    Parameters
    ----------
    chain : Chain
        Its norm tells which permutations keep the law.
    step : callable
        Function of a state, (width, batch), that returns the next one.
    generator : numpy.random.Generator
    """
    order = _permutation(chain, generator)
    states = _states(chain, generator)
    return any(_covariances_differ(_rest(step, h), _rest(step, h[order])) for h in states)


def _permutation(chain: Chain, generator: np.random.Generator) -> NDArray[np.intp]:
    """Return a random permutation of the features that keeps the groups of the norm together."""
    groups = np.arange(chain.width).reshape(chain.normalization.groups, -1)
    order: NDArray[np.intp] = generator.permuted(groups, axis=1)[generator.permutation(len(groups))]
    return order.ravel()


def _states(chain: Chain, generator: np.random.Generator) -> tuple[Float64Array, Float64Array]:
    """Return a generic state, and one whose samples have one large entry each."""
    d, n = chain.width, chain.batch
    generic, peaked = generator.standard_normal((2, d, n))
    peaked *= _REST
    peaked[generator.permutation(max(d, n))[:n] % d, np.arange(n)] += 1.0
    return generic, peaked


def _rest(step: _Map, h: Float64Array) -> Float64Array:
    """Return the deviations of h' from its mean over calls, (calls, width, batch)."""
    values = np.stack([step(h) for _ in range(max(_CALLS, -(-_ROWS // len(h))))])
    return values - values.mean(axis=0)


def _covariances_differ(first: Float64Array, second: Float64Array) -> bool:
    """Compare the covariances of the rows of two arrays of one shape, (calls, width, batch)."""
    degrees = (len(first) - 1) * first.shape[1]
    pair = [np.einsum("cri,crj->ij", h, h, optimize=True) / degrees for h in (first, second)]
    pooled = (pair[0] + pair[1]) / 2.0
    values, vectors = np.linalg.eigh(pooled)
    regular = values > _ROUNDING * values[-1]
    basis = vectors[:, regular] / np.sqrt(values[regular])
    # Box's test: twice the logarithm of the likelihood ratio.
    logs = [np.linalg.slogdet(basis.T @ covariance @ basis)[1] for covariance in pair]
    rank = int(regular.sum())
    quantile = float(stats.chi2.isf(_LEVEL, rank * (rank + 1) // 2))
    return bool(-degrees * sum(logs) > _MARGIN * quantile)
