"""Known mistakes in a step, compared by the likelihood of the covariances of h' given h.

A step may have two of them, such as the bias and the eps of PyTorch's default layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._kernels.scalar.codes import ACTIVATION_FIRST
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.convolution_faults import wrong_covariances, wrong_norms_of_images

__all__ = ["Fault", "likeliest_fault"]

FloatArray = NDArray[np.float64]

NormFunction = Callable[[FloatArray], FloatArray]

#: Ridge of all covariances, as a share of their mean variance: null spaces get a likelihood.
_RIDGE = 1e-9

#: Least eigenvalue in a logarithm.
_LEAST = 1e-300

#: Least fitted variance; smaller ones are dominated by the ridge.
_LEAST_VARIANCE = 1e-7

#: Two mistakes are tried if one leaves this relative error of the covariances, and lacks this
#: multiple of the likelihood that noise costs.
_ENOUGH, _NOISE = 0.1, 3.0

#: Number of mistakes beside which ε is fitted.
_WITH_EPS = 4

#: Attributes that a mistake changes.
_PARTS = ("norm", "activation", "bias", "norm_is_last", "covariance")

#: Grid of log₁₀ ε.
_EPSILONS = np.arange(-13.0, 0.0, 0.5)


def _unchanged(gram: FloatArray) -> FloatArray:
    """Return the covariance of rows of W a if W is fully connected."""
    return gram


@dataclass(frozen=True)
class Fault:
    """A known mistake, as the covariance aᵀa/width that it leads to.

    Attributes
    ----------
    texts : tuple of str
        Each mistake in words; empty for a correct step.
    norm, activation : callable
        a = activation(norm(h / gain)).
    bias : float
        Variance of the bias that is added, over gain².
    parameters : int
        Number of fitted parameters.
    norm_is_last : bool
        Whether a = norm(activation(h) / gain) instead.
    gain : float
    covariance : callable
        Map from aᵀa/width to the covariance of rows of W a.
    """

    texts: tuple[str, ...]
    norm: NormFunction
    activation: Callable[[FloatArray], FloatArray]
    bias: float = 0.0
    parameters: int = 0
    norm_is_last: bool = False
    gain: float = 1.0
    covariance: Callable[[FloatArray], FloatArray] = _unchanged

    def apply(self, y: FloatArray) -> FloatArray:
        """Return the activations of a state y = h / gain, both (width, batch)."""
        if self.norm_is_last:
            return self.norm(self.activation(self.gain * y) / self.gain)
        return self.activation(self.norm(y))

    def and_also(self, other: Fault, right: Fault) -> Fault | None:
        """Return both mistakes in one step, or None if they change the same part of `right`."""
        ours, theirs = (
            {name for name in _PARTS if getattr(one, name) != getattr(right, name)}
            for one in (self, other)
        )
        if ours & theirs:
            return None
        changes: dict[str, Any] = {name: getattr(other, name) for name in theirs}
        return replace(
            self,
            texts=self.texts + other.texts,
            parameters=self.parameters + other.parameters,
            **changes,
        )


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
    seen = [state.covariance for state in states]
    right, *wrong = _faults(chain)
    with np.errstate(all="ignore"):  # overflows give a likelihood of 0
        found = _compared([right, *wrong, *_with_eps(chain, right, states, seen)], states, seen)
        # Against covariances without a model, the true one lacks half a unit per free entry.
        noise = 0.5 * sum(len(one) * (len(one) + 1) / 2 for one in seen)
        if found[0].lacking > _NOISE * noise and _error(found[0], states) > _ENOUGH:
            found += _compared(_pairs(chain, right, found, states, seen), states, seen)
    best = min(found, key=lambda one: one.cost)
    return best.fault, best.scale, _error(best, states)


@dataclass(frozen=True)
class _Fit:
    """How well a fault explains the covariances: `cost` is the information criterion.

    `lacking` is the logarithm of the likelihood of the best covariances over that of this fault.
    """

    cost: float
    fault: Fault
    scale: float
    lacking: float


def _error(fit: _Fit, states: Sequence[CallsOnState]) -> float:
    """Return about the relative error of the covariances: r in k directions costs k r²/4 a row."""
    return 2.0 * math.sqrt(max(0.0, fit.lacking) / _directions(states))


def _directions(states: Sequence[CallsOnState]) -> int:
    """Return the number of numbers in all rows of all calls."""
    return sum(state.calls * state.total.size for state in states)


def _compared(
    faults: Iterable[Fault], states: Sequence[CallsOnState], seen: Sequence[FloatArray]
) -> list[_Fit]:
    """Return the fits of faults, each without and with a scale, the best one first."""
    size = math.log(_directions(states))
    fits = []
    for fault in faults:
        grams = _grams(fault, states)
        for free in (False, True):
            likelihood, scale = _fitted(grams, states, seen, free)
            # A known mistake has a larger prior probability than an arbitrary scale.
            parameters = fault.parameters + 1.5 * free + len(fault.texts)
            fits.append(_Fit(0.5 * parameters * size - likelihood, fault, scale, -likelihood))
    return sorted(fits, key=lambda fit: fit.cost)


def _pairs(
    chain: Chain,
    right: Fault,
    singles: Sequence[_Fit],
    states: Sequence[CallsOnState],
    seen: Sequence[FloatArray],
) -> Iterator[Fault]:
    """Yield steps with two mistakes; eps is fitted beside those that explain most alone."""
    ranked = [fault for fault in dict.fromkeys(fit.fault for fit in singles) if fault.texts]
    for one, other in itertools.combinations(ranked, 2):
        both = one.and_also(other, right)
        if both is not None:
            yield both
    beside = [fault for fault in ranked if fault.norm is right.norm]
    for fault in [*beside[:_WITH_EPS], *(one for one in beside[_WITH_EPS:] if one.bias)]:
        yield from _with_eps(chain, fault, states, seen)


def _grams(fault: Fault, states: Sequence[CallsOnState]) -> list[FloatArray]:
    """Return the covariance of the rows of h' after each state, by a fault."""
    activations = [fault.apply(state.layer.y[0]) for state in states]
    return [fault.covariance(a.T @ a / len(a)) + fault.bias for a in activations]


def _fitted(
    grams: Sequence[FloatArray],
    states: Sequence[CallsOnState],
    seen: Sequence[FloatArray],
    free: bool,
) -> tuple[float, float]:
    """Return the Gaussian log-likelihood of all rows, and the scale, which is fitted if `free`."""
    rows, ranks, traces, logs = [], [], [], []
    for state, gram, one in zip(states, grams, seen, strict=True):
        n = len(one)
        if not (gram.any() or one.any()):
            continue  # the step returns zero, as the fault predicts
        if not (np.isfinite(gram).all() and np.trace(gram) > 0.0):
            return -math.inf, 1.0
        of_one, of_gram = float(np.trace(one)), float(np.trace(gram))
        # What a direction contributes that neither covariance has.
        unit = max(of_one, _LEAST) / of_gram if free else 1.0
        size = of_gram if free else max(of_one, float(np.trace(state.layer.gram[0])))
        ridge = _RIDGE * size / n
        if ridge <= np.finfo(np.float64).eps * of_gram:
            return -math.inf, 1.0  # a covariance so much larger than the observed one has no chance
        lifted = gram + ridge * np.eye(n)
        values = np.linalg.eigvals(np.linalg.solve(lifted, one + unit * ridge * np.eye(n))).real
        rank = int((np.linalg.eigvalsh(gram) > 10 * ridge).sum())
        rows.append(state.calls * state.layer.y.shape[1])
        ranks.append(rank)
        traces.append(float(values.sum()) - (n - rank) * unit)
        logs.append(float(np.log(np.maximum(values, _LEAST)).sum()) - (n - rank) * math.log(unit))
    weights, rank_of, trace, log = (np.array(part, float) for part in (rows, ranks, traces, logs))
    variance = float(weights @ trace / (weights @ rank_of)) if free else 1.0
    if variance < _LEAST_VARIANCE:
        return -math.inf, 1.0
    # Relative to the likelihood at the observed covariances, which is the same for all faults.
    fit = log + rank_of - trace / variance - rank_of * math.log(variance)
    likelihood = 0.5 * float(weights @ fit)
    return (likelihood if math.isfinite(likelihood) else -math.inf), math.sqrt(variance)


def _faults(chain: Chain) -> Iterator[Fault]:
    """Yield the faults, a correct step first."""
    sigma, norm = chain.activation, chain.normalization
    is_last = chain.order_code == ACTIVATION_FIRST
    bias = chain.bias_variance / chain.gain**2
    given: dict[str, Any] = {"bias": bias, "norm_is_last": is_last, "gain": chain.gain}
    if chain.convolution is not None:
        given["covariance"] = chain.convolution.covariance

    def right(h: FloatArray) -> FloatArray:
        return _normalised(chain, h)

    yield Fault((), right, sigma, **given)
    if bias > 0.0:
        text = f"the bias, of variance {chain.bias_variance:g}, is missing"
        yield Fault((text,), right, sigma, **{**given, "bias": 0.0})
    else:
        text = "a bias, with the variance of the weights, is added"
        yield Fault((text,), right, sigma, **{**given, "bias": 1.0 / chain.fan_in})
    if not norm.is_identity:
        text = "after the activation, not before it" if not is_last else "before the activation"
        other = {**given, "norm_is_last": not is_last}
        yield Fault((f"the norm is {text}",), right, sigma, **other)
    for name in BUILTIN:
        if name != sigma.name:
            text = f"the activation is not {sigma.name}: {name} fits better"
            yield Fault((text,), right, Activation.named(name), **given)
    for text, covariance in wrong_covariances(chain):
        yield Fault((text,), right, sigma, **{**given, "covariance": covariance})
    for text, wrong in _norms(chain):
        yield Fault((text,), wrong, sigma, **given)


def _normalised(chain: Chain, y: FloatArray) -> FloatArray:
    """Return N(h) for y = h / gain."""
    # A row without variance gives NaN, which has no likelihood.
    return chain.normalization(chain.gain * y, chain.eps)


def _norms(chain: Chain) -> Iterator[tuple[str, NormFunction]]:
    """Yield texts and functions of wrong norms."""
    n, gain = chain.batch, chain.gain
    unscaled = "the state is not divided by its own standard deviation"

    def over(h: FloatArray, axis: int, ddof: float, centred: bool) -> FloatArray:
        if centred:
            h = h - h.mean(axis=axis, keepdims=True)
        variance = np.square(h).sum(axis=axis, keepdims=True) / (h.shape[axis] - ddof)
        x: FloatArray = h / np.sqrt(variance + chain.eps / gain**2)
        return x

    norm = chain.normalization
    if not norm.acts_on_rows:
        yield from _norms_of_samples(chain)
        text = "the norm acts on rows, over the batch, not on samples, over the features"
        yield text, lambda h: over(h, 1, 0, norm.centred)
        if not norm.centred:
            text = "the norm centres rows and acts on them, over the batch, not on samples"
            yield text, lambda h: over(h, 1, 0, True)
        return
    centred = norm.hides_common_part
    over_batch = norm.axis == "batch"
    if over_batch and n > 1:
        ratio = math.sqrt((n - 1) / n)
        text = (
            "the variance of a row is divided by n - 1, not n (ddof = 1): x is smaller by "
            f"sqrt((n-1)/n) = {ratio:.4f}"
        )
        yield text, lambda h: over(h, 1, 1, centred)
    if not (over_batch and not centred) and n > 1:
        yield "rows are normalised without being centred", lambda h: over(h, 1, 0, False)
    if not centred:
        yield "rows are centred", lambda h: over(h, 1, 0, True)
    if over_batch:
        yield f"{unscaled}: evaluation mode, with running statistics?", lambda h: gain * h
        for other, axes in wrong_norms_of_images(chain):
            yield other, partial(_over_images, chain, axes)
        yield f"{unscaled}, but centred", lambda h: gain * (h - h.mean(axis=1, keepdims=True))
    if chain.width > 1:
        text = "the norm acts on samples, over the features, not on features"
        yield text, lambda h: over(h, 0, 0, centred)


def _over_images(chain: Chain, axes: tuple[int, ...], y: FloatArray) -> FloatArray:
    """Normalize y = h / gain over axes of (channels, samples, pixels)."""
    assert chain.convolution is not None
    h = y.reshape(len(y), -1, chain.convolution.positions)
    if chain.normalization.centred:
        h = h - h.mean(axis=axes, keepdims=True)
    variance = np.square(h).mean(axis=axes, keepdims=True) + chain.eps / chain.gain**2
    # Equal pixels have no variance; the ε of a framework makes them zero.
    normed: FloatArray = h / np.sqrt(np.maximum(variance, _LEAST))
    return normed.reshape(y.shape)


def _norms_of_samples(chain: Chain) -> Iterator[tuple[str, NormFunction]]:
    """Yield texts and functions of wrong norms over the features."""
    norm, d, eps = chain.normalization, chain.width, chain.eps / chain.gain**2
    size = d // norm.groups

    def over(h: FloatArray, groups: int, ddof: float, centred: bool) -> FloatArray:
        x = h.reshape(groups, -1, h.shape[1])
        if centred:
            x = x - x.mean(axis=1, keepdims=True)
        variance = np.square(x).sum(axis=1, keepdims=True) / (x.shape[1] - ddof)
        normed: FloatArray = (x / np.sqrt(variance + eps)).reshape(h.shape)
        return normed

    def transposed(h: FloatArray) -> FloatArray:
        order = np.arange(d).reshape(size, norm.groups).T.ravel()
        x = np.empty_like(h)
        x[order] = over(h[order], norm.groups, 0, norm.centred)
        return x

    if size > 1:
        ratio = math.sqrt((size - 1) / size)
        text = (
            f"the variance of {size} features is divided by {size - 1} (ddof = 1): x is smaller "
            f"by {ratio:.4f}"
        )
        yield text, lambda h: over(h, norm.groups, 1, norm.centred)
    change = "normalised without being centred" if norm.centred else "centred"
    yield f"samples are {change}", lambda h: over(h, norm.groups, 0, not norm.centred)
    if norm.groups > 1:
        text = f"the norm acts on all {d} features, not on {norm.groups} groups of them"
        yield text, lambda h: over(h, 1, 0, norm.centred)
        text = f"groups are transposed: group i has the features i, i + {norm.groups}, …"
        yield text, transposed
        if size not in (1, norm.groups):
            text = f"there are {size} groups of {norm.groups} features, not {norm.groups} of {size}"
            yield text, lambda h: over(h, size, 0, norm.centred)


def _with_eps(
    chain: Chain, step: Fault, states: Sequence[CallsOnState], seen: Sequence[FloatArray]
) -> Iterator[Fault]:
    """Yield a step with the best ε, from a grid and then a search, without and with a scale."""
    from scipy.optimize import minimize_scalar

    if chain.batch < 2 or chain.normalization.is_identity:
        return

    def fault(log_eps: float) -> Fault:
        eps = 10.0**log_eps
        other = Chain(
            chain.width, chain.batch, chain.activation, norm=chain.norm, gain=chain.gain, eps=eps
        )
        text = f"the norm adds eps = {eps:.2g} to the variance, not {chain.eps:g}"
        return replace(
            step,
            texts=(*step.texts, text),
            norm=lambda h: _normalised(other, h),
            parameters=step.parameters + 1,
        )

    @cache
    def grams(log_eps: float) -> list[FloatArray]:
        return _grams(fault(log_eps), states)

    for free in (False, True):

        def cost(log_eps: float, free: bool = free) -> float:
            return -_fitted(grams(float(log_eps)), states, seen, free)[0]

        best = min(_EPSILONS, key=cost)
        bounds = best - 0.5, best + 0.5
        found = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-3})
        # Prefer a power of ten within four standard errors.
        whole = round(found.x)
        yield fault(whole if cost(whole) - found.fun < 8.0 else float(found.x))
