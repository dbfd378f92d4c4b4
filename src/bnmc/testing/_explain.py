"""What most likely differs where a step fails: covariances of known mistakes, by likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.start import normalise
from bnmc.testing._evidence import OnOneState

__all__ = ["explained"]

FloatArray = NDArray[np.float64]

Norm = Callable[[FloatArray], FloatArray]

#: What is added to the diagonals of all covariances, of their mean: null spaces get a likelihood.
_RIDGE = 1e-9
_LEAST = 1e-300

#: Of a fitted scale: below it the ridge is all that is seen.
_LEAST_VARIANCE = 1e-7

#: Standard errors by which something must be off to be named where other tests fail, too.
_ERRORS = 8.0

#: Part of the covariances of h' that a cause may leave unexplained.
_UNEXPLAINED = 0.3

#: log₁₀ of the ε that are tried: then the best one is refined.
_EPSILONS = np.arange(-13.0, 0.0, 0.5)

#: Factors of the standard deviation that have a name.
_SCALES = (
    (math.sqrt(2), "Kaiming's variance 2/width instead of 1/width?"),
    (
        1 / math.sqrt(3),
        "PyTorch's default, uniform within ±1/sqrt(width), has a third of the variance",
    ),
)


#: Excess kurtosis of laws of weights.
_KURTOSES = {"Rademacher": -2.0, "uniform": -1.2, "normal, truncated at ±2": -0.6344}


def explained(chain: Chain, states: Sequence[OnOneState], failed: Iterable[str]) -> tuple[str, ...]:
    """Say in words what most likely differs, given the names of the tests that fail."""
    failed = {name.removeprefix("one step: ") for name in failed}
    spread_is_right = not any(name.startswith(("variance", "covariance")) for name in failed)
    whole = list(_order(chain, states)) or list(_shared_by_calls(states, failed))
    whole = whole or list(_history(states))
    if whole:
        return tuple(whole)
    fault, scale, unexplained = _likeliest(chain, states)
    causes = list(_rows(states, failed, spread_is_right))
    dependent = bool(causes)
    spread = [fault.text] if fault.text else []
    # Of dependent rows the variance is known less well than likelihoods take it to be.
    if scale != 1.0 and not (dependent and abs(scale - 1.0) < 0.05):
        spread.append(_scaled(chain, states, scale))
    if unexplained > _UNEXPLAINED and not dependent:
        spread = ["the covariances of h' given h are those of no mistake that is known here"]
    causes += spread
    causes += _mean(chain, states, failed, spread_is_right)
    if (fault.text == "" or fault.bias) and not dependent:
        norms = list(_norms_of_calls(states, failed))
        causes += norms or _weights(states, failed, has_bias=fault.bias)
    return tuple(causes)


def _order(chain: Chain, states: Sequence[OnOneState]) -> Iterator[str]:
    """The parts of the step in another order: h' is not a state before the normalization."""
    outputs = [chain.gain * state.last + chain.skip * state.layer.x[0] for state in states]
    takes = "it takes h before normalization and returns W σ(N(h)), before the next one"
    if chain.norm == "none" or chain.batch < 2:
        return
    if _share_normalised(chain, outputs) > 0.5:
        yield f"the step ends with the normalization: {takes}"
    elif _activated(chain, outputs):
        yield (
            f"the step ends with the activation: {takes}; blocks Linear → Norm → activation are "
            "for from_linear_first"
        )


def _share_normalised(chain: Chain, states: Sequence[FloatArray]) -> float:
    """Share of the rows that have the moments of normalized ones, whatever ddof and eps are."""
    rows = np.concatenate(states)
    n = chain.batch
    square = np.square(rows).mean(axis=1)
    near = (square > 0.95 * (n - 1) / n) & (square < 1.05)
    if chain.norm == "batch":
        near &= np.abs(rows.mean(axis=1)) < 0.05
    return float(near.mean())


def _activated(chain: Chain, states: Sequence[FloatArray]) -> bool:
    """Whether states look like σ(N(h)) rather than like sums of such terms with random signs."""
    reach = math.sqrt(chain.batch - (chain.norm == "batch"))
    x = np.linspace(-reach, reach, 4097)
    values = chain.activation(x)
    if (np.diff(values) >= 0.0).all() and (np.diff(values[np.abs(x) <= 1.0]) > 0.0).all():
        known = [np.interp(one, values, x, left=np.nan, right=np.nan) for one in states]
        return _share_normalised(chain, known) > 0.5
    # Of what has no inverse: all values are among those of σ, and their mean is not zero.
    low, high = float(values.min()), float(values.max())
    slack = 1e-6 * (high - low)
    within = [bool((one >= low - slack).all() and (one <= high + slack).all()) for one in states]
    every = np.concatenate([one.ravel() for one in states])
    return sum(within) > len(states) / 2 and abs(every.mean()) > 0.2 * math.sqrt(
        float(np.square(every).mean())
    )


def _shared_by_calls(states: Sequence[OnOneState], failed: set[str]) -> Iterator[str]:
    correlation = _median(state.pairs[0] / max(state.pairs[1], _LEAST) for state in states)
    if "calls independent" in failed and correlation > 0.5:
        yield (
            f"calls share their weights (correlation {correlation:.3f}): W must be drawn anew at "
            "every call"
        )
    elif any(name.startswith(("mean 0", "calls independent")) for name in failed):
        calls = states[0].calls
        kept = _median(share for state in states for share in _kept_by_mean(state))
        if kept > 1.5 / calls:
            yield (
                f"weights come back: means over {calls} calls keep {kept:.1%} of the variance, as "
                "means of few different W do"
            )


def _kept_by_mean(state: OnOneState) -> Iterator[float]:
    """|mean Z|² over mean |Z|²: without a bias and parts along x, a and h, which are no weights."""
    layer, mean = state.layer, state.total / state.calls
    known = [state.whitened(one[0]) for one in (layer.x, layer.a, layer.y)]
    degrees = mean.size - len(known)
    along = state.whitened(np.ones((1, layer.x.shape[2])))
    if np.square(along).sum() > _RIDGE * state.rank:
        along /= np.linalg.norm(along)
        mean, *known = (one - (one @ along.T) @ along for one in (mean, *known))
        degrees -= len(mean)
    parts = np.column_stack([one.ravel() for one in known])
    rest = mean.ravel() - parts @ np.linalg.lstsq(parts, mean.ravel())[0]
    if degrees > 0 and state.variance > 0.0:
        yield float(np.square(rest).sum()) / (degrees * state.variance)


def _history(states: Sequence[OnOneState]) -> Iterator[str]:
    """|h'|² of one call on a state and of the next, which are independent whatever their law."""
    found = []
    for state in states:
        logs = np.log(np.maximum(np.concatenate(state.energies), _LEAST))
        # Less than chance makes of χ² would be rounding, as of orthogonal weights.
        if logs.std() > 0.5 * math.sqrt(2 / state.total.size):
            found.append(float(np.corrcoef(logs[:-1], logs[1:])[0, 1]))
    if found and np.mean(found) > _ERRORS / math.sqrt(len(found) * states[0].calls):
        yield (
            "a call depends on those before it: |h'|² on one state has correlation "
            f"{np.mean(found):.2f} with that of the next call; running statistics (momentum)?"
        )


def _mean(
    chain: Chain, states: Sequence[OnOneState], failed: set[str], spread_is_right: bool
) -> Iterator[str]:
    added = sum(float((state.shift * state.total).sum()) for state in states)
    sizes = [state.calls * float(np.square(state.shift).sum()) for state in states]
    error = math.sqrt(sum(s.variance * size for s, size in zip(states, sizes, strict=True)))
    # The mean square of sums over calls in units of that of single ones: 1 on average, and as
    # rows are independent within so much of it.
    ratio = _median(
        float(np.square(s.total).sum()) / max(s.calls * s.total.size * s.variance, _LEAST)
        for s in states
    )
    error_of_ratio = math.sqrt(2 / len(states[0].total))
    if abs(added) > _ERRORS * error:
        skip = chain.skip + chain.gain * added / sum(sizes)
        yield f"the skip connection is {skip:.4g}, not {chain.skip:g}"
    elif any(name.startswith("mean 0") for name in failed) and (
        spread_is_right or ratio > 1.0 + _ERRORS * error_of_ratio
    ):
        yield "the mean of h' given h is not skip N(h): a bias, or a residual part?"


def _rows(states: Sequence[OnOneState], failed: set[str], spread_is_right: bool) -> Iterator[str]:
    width, calls = len(states[0].total), states[0].calls
    between = _median(state.neighbours[0] / max(state.neighbours[1], _LEAST) for state in states)
    ratio = _median(s.common / max(s.calls * s.rank * s.variance, _LEAST) for s in states)
    far = abs(ratio - 1.0) > _ERRORS * math.sqrt(2 / calls)
    far = far or abs(between) > _ERRORS * math.sqrt(2 / (calls * width))
    tests = {"rows: nothing in common", "rows: neighbours independent", "rows independent"}
    if failed & tests and (spread_is_right or far):
        average = (ratio - 1.0) / max(1, width - 1)
        yield (
            f"rows depend on each other: two of them have correlation {average:.2g} on average, "
            f"neighbours {between:.2g}"
        )


def _weights(states: Sequence[OnOneState], failed: set[str], has_bias: bool) -> Iterator[str]:
    read = [part for state in states for part in state.readings]
    tests = {"weights: largest", "weights: Gaussian", "rows: norms Gaussian"}
    if not (failed & tests and read):
        return
    weights = np.concatenate(read)
    unit = math.sqrt(float(np.square(weights).mean()))
    kurtosis = float(((weights / unit) ** 4).mean()) - 3.0
    error = math.sqrt(24.0 / weights.size)
    if abs(kurtosis) > 5.0 * error:
        name, known = min(_KURTOSES.items(), key=lambda item: abs(item[1] - kurtosis))
        like = f": {name}?" if abs(known - kurtosis) < max(0.1, 4.0 * error) else ""
        if has_bias:  # and so have what was read
            like = ""
        largest = float(np.abs(weights).max()) / unit
        yield (
            f"weights are not Gaussian{like} (excess kurtosis {kurtosis:.3g}, largest of "
            f"{weights.size} is {largest:.4g} standard deviations)"
        )


def _norms_of_calls(states: Sequence[OnOneState], failed: set[str]) -> Iterator[str]:
    spread = _median(
        float(np.concatenate(s.energies).std())
        / max(s.variance * math.sqrt(2 * s.total.size), _LEAST)
        for s in states
    )
    if failed & {"calls: norms Gaussian"} and not 0.7 < spread < 1.4:
        yield (
            f"|h'| varies {spread:.2g} times as much between calls as it should: are weights "
            "orthogonal, or rescaled?"
        )


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.median(known)) if known else 0.0


# --- covariances


@dataclass(frozen=True)
class _Fault:
    """A covariance aᵀa/width that a mistake leads to; `parameters` are those that were fitted."""

    text: str
    norm: Norm
    activation: Callable[[FloatArray], FloatArray]
    bias: bool = False
    parameters: int = 0


def _likeliest(chain: Chain, states: Sequence[OnOneState]) -> tuple[_Fault, float, float]:
    """The fault, and the scale beside it, that make the covariances of h' likeliest (BIC).

    The third is about how far, relatively, covariances are from what these two make of them.
    """
    seen = [state.covariance for state in states]
    log_numbers = math.log(sum(state.calls * state.total.size for state in states))
    best, best_scale, least, most = next(_faults(chain, states, seen)), 1.0, math.inf, -math.inf
    with np.errstate(all="ignore"):  # a fault that overflows is none
        for fault in _faults(chain, states, seen):
            for free in (False, True):
                likelihood, scale = _fitted(fault, states, seen, free)
                # A known mistake is likelier than a scale of any size.
                parameters = fault.parameters + 1.5 * free + (fault.text != "")
                cost = 0.5 * parameters * log_numbers - likelihood
                if cost < least:
                    best, best_scale, least, most = fault, scale, cost, likelihood
    # A relative error of r in each of k directions costs about k r²/4 a row.
    directions = sum(state.calls * state.total.size for state in states)
    return best, best_scale, 2.0 * math.sqrt(max(0.0, -most) / directions)


def _scaled(chain: Chain, states: Sequence[OnOneState], scale: float) -> str:
    known = list(_SCALES)
    known.append((math.sqrt(chain.width), "is the factor 1/sqrt(width) missing?"))
    known.append((1 / math.sqrt(chain.width), "is 1/sqrt(width) there twice?"))
    if abs(chain.gain) != 1.0:
        known.append((1 / abs(chain.gain), f"is the gain {chain.gain:g} missing?"))
    if chain.batch > 1:
        ratio = math.sqrt(chain.batch / (chain.batch - 1))
        known.append((ratio, "sqrt(n/(n-1)) for the batch n, is something divided by n - 1?"))
        known.append((1 / ratio, "sqrt((n-1)/n) for the batch n, a normalization with ddof = 1?"))
    error = 4.0 / math.sqrt(2 * sum(state.calls * state.total.size for state in states))
    fits = [text for one, text in known if abs(math.log(one / scale)) < max(0.005, error)]
    return f"rows are scaled by {scale:.4f}" + (f": {' or: '.join(fits)}" if fits else "")


def _fitted(
    fault: _Fault, states: Sequence[OnOneState], seen: Sequence[FloatArray], free: bool
) -> tuple[float, float]:
    """Gaussian log-likelihood of all rows, and the factor of the standard deviation if `free`."""
    rows, ranks, traces, logs = [], [], [], []
    for state, one in zip(states, seen, strict=True):
        n = len(one)
        a = fault.activation(fault.norm(state.layer.y[0]))
        gram = a.T @ a / len(a) + (np.ones((n, n)) / len(a) if fault.bias else 0.0)
        if not (np.isfinite(gram).all() and np.trace(gram) > 0.0):
            return -math.inf, 1.0
        of_one, of_gram = float(np.trace(one)), float(np.trace(gram))
        # What a direction contributes that neither covariance has.
        unit = max(of_one, _LEAST) / of_gram if free else 1.0
        size = of_gram if free else max(of_one, float(np.trace(state.layer.gram[0])))
        ridge = _RIDGE * size / n
        lifted = gram + ridge * np.eye(n)
        values = np.linalg.eigvals(np.linalg.solve(lifted, one + unit * ridge * np.eye(n))).real
        rank = int((np.linalg.eigvalsh(gram) > 10 * ridge).sum())
        rows.append(state.calls * len(a))
        ranks.append(rank)
        traces.append(float(values.sum()) - (n - rank) * unit)
        logs.append(float(np.log(np.maximum(values, _LEAST)).sum()) - (n - rank) * math.log(unit))
    weights, rank_of, trace, log = (np.array(part, float) for part in (rows, ranks, traces, logs))
    variance = float(weights @ trace / (weights @ rank_of)) if free else 1.0
    if variance < _LEAST_VARIANCE:
        return -math.inf, 1.0
    # Up to the likelihood of the covariances seen, which all faults share.
    fit = log + rank_of - trace / variance - rank_of * math.log(variance)
    likelihood = 0.5 * float(weights @ fit)
    return (likelihood if math.isfinite(likelihood) else -math.inf), math.sqrt(variance)


def _faults(
    chain: Chain, states: Sequence[OnOneState], seen: Sequence[FloatArray]
) -> Iterator[_Fault]:
    sigma, n = chain.activation, chain.batch

    def right(h: FloatArray) -> FloatArray:
        return _normalised(chain, h)

    yield _Fault("", right, sigma)
    yield _Fault("a bias, with the variance of the weights, is added", right, sigma, bias=True)
    for name in BUILTIN:
        if name != sigma.name:
            text = f"the activation is not {sigma.name}: {name} fits better"
            yield _Fault(text, right, Activation.named(name))
    for text, norm in _norms(chain):
        yield _Fault(text, norm, sigma)
    if n > 1 and chain.norm != "none":
        for free in (False, True):
            yield _with_eps(chain, states, seen, free)


def _normalised(chain: Chain, y: FloatArray) -> FloatArray:
    """N(h), where y is h over the gain."""
    x: FloatArray = normalise(chain, chain.gain * y[None, None], True)[0, 0]
    return x


def _norms(chain: Chain) -> Iterator[tuple[str, Norm]]:
    n, gain = chain.batch, chain.gain
    unscaled = "the state is not divided by its own standard deviation"

    def over(h: FloatArray, axis: int, ddof: float, centred: bool) -> FloatArray:
        if centred:
            h = h - h.mean(axis=axis, keepdims=True)
        variance = np.square(h).sum(axis=axis, keepdims=True) / (h.shape[axis] - ddof)
        x: FloatArray = h / np.sqrt(variance + chain.eps / gain**2)
        return x

    centred = chain.norm == "batch"
    if chain.norm != "none" and n > 1:
        ratio = math.sqrt((n - 1) / n)
        text = (
            "the variance of a row is divided by n - 1, not n (ddof = 1): x is smaller by "
            f"sqrt((n-1)/n) = {ratio:.4f}"
        )
        yield text, lambda h: over(h, 1, 1, centred)
    if chain.norm != "batch-uncentred" and n > 1:
        yield "rows are normalised without being centred", lambda h: over(h, 1, 0, False)
    if chain.norm != "batch":
        yield "rows are centred", lambda h: over(h, 1, 0, True)
    if chain.norm != "none":
        yield f"{unscaled}: evaluation mode, with running statistics?", lambda h: gain * h
        yield f"{unscaled}, but centred", lambda h: gain * (h - h.mean(axis=1, keepdims=True))
    if chain.width > 1:
        text = "the norm acts on samples, over the features, not on features"
        yield text, lambda h: over(h, 0, 0, centred)


def _with_eps(
    chain: Chain, states: Sequence[OnOneState], seen: Sequence[FloatArray], free: bool
) -> _Fault:
    """The ε that fits best, with a scale or without: from a grid, then within its cell."""
    from scipy.optimize import minimize_scalar

    def fault(log_eps: float) -> _Fault:
        eps = 10.0**log_eps
        other = Chain(
            chain.width, chain.batch, chain.activation, norm=chain.norm, gain=chain.gain, eps=eps
        )
        text = f"the norm adds eps = {eps:.2g} to the variance, not {chain.eps:g}"
        return _Fault(text, lambda h: _normalised(other, h), chain.activation, parameters=1)

    def cost(log_eps: float) -> float:
        return -_fitted(fault(log_eps), states, seen, free)[0]

    best = min(_EPSILONS, key=cost)
    bounds = best - 0.5, best + 0.5
    found = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    # A power of ten, if that is within four standard errors.
    whole = round(found.x)
    return fault(whole if cost(whole) - found.fun < 8.0 else float(found.x))
