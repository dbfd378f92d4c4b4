"""The most likely causes of a failed test, in words.

A cause that concerns the covariance of h' given h comes from `faults`, by likelihood.  The other
causes come from sums over calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.chain.chain import Chain
from bnmc.testing.calls_on_state import LEAST, CallsOnState, correlations
from bnmc.testing.faults import likeliest_fault

#: Squared whitened norms of the vector of ones up to this are rounding errors.
_RIDGE = 1e-9

#: Least deviation, in standard errors, of a cause that is named beside other failed tests.
_ERRORS = 8.0

#: Relative variance of a squared product of rows, for covariances that are moderately wrong.
_SPREAD = 8.0

#: Share of the mean square of h' − skip x, over calls, that may remain after another kept part.
_MOST_LEFT = 0.3

#: Largest relative error of the covariances of h' that a cause may leave unexplained.
_UNEXPLAINED = 0.3

#: Least spread of |h′|² between calls, over its expectation, of weights that are not orthogonal.
_ORTHOGONAL = 0.3

#: Largest deviation from 1 of the correlation of two calls with the same weights, from at least so
#: many entries.
_NEARLY_EQUAL, _ENTRIES = 1e-3, 16

#: Causes of covariances that no known mistake explains.
_LEARNED = (
    "features are treated differently, since a permutation of the features of h changes the law of "
    "h': learned factors or shifts of the norm (affine)?"
)
_UNKNOWN = "the covariances of h' given h are those of no mistake that is known here"


#: Excess kurtosis of other laws of weights.
_KURTOSES = {"Rademacher": -2.0, "uniform": -1.2, "normal, truncated at ±2": -0.6344}


def explained(
    chain: Chain,
    states: Sequence[CallsOnState],
    failed: Iterable[str],
    features_differ: Callable[[], bool],
) -> tuple[str, ...]:
    """Return the most likely causes, the clearest first.

    Parameters
    ----------
    chain : Chain
    states : sequence of CallsOnState
    failed : iterable of str
        Names of the tests that fail.
    features_differ : callable
        Returns whether the step treats its features differently.  It calls the step, and so is
        called only if no known mistake explains the covariances.

    Returns
    -------
    tuple of str
        Empty if no known cause fits.
    """
    failed = {name.removeprefix("one step: ") for name in failed}
    if chain.is_orthogonal and failed <= {"weights orthogonal", "rows independent"}:
        return ("weights are not orthogonal: RᵀR/width of a call is not G",)
    spread_is_right = not any(name.startswith(("variance", "covariance")) for name in failed)
    for part in (
        _order(chain, states),
        _kept_part(chain, states),
        _shared_by_calls(states, failed),
        _shared_up_to_signs(states, failed),
        _history(states),
    ):
        if whole := tuple(part):
            return whole
    fault, scale, unexplained = likeliest_fault(chain, states)
    causes = list(_rows(states, failed, spread_is_right))
    dependent = bool(causes)
    spread, bias = list(fault.texts), fault.step.bias
    # Likelihoods assume independent rows; if rows depend, the scale is less certain.
    if scale != 1.0 and not (dependent and abs(scale - 1.0) < 0.05):
        spread.append(_scaled(chain, states, scale))
    if unexplained > _UNEXPLAINED and not dependent:
        spread = [_LEARNED if features_differ() else _UNKNOWN]
    causes += spread
    added = list(_mean(chain, states, failed, spread_is_right))
    causes += added
    # Norms and weights that are read off h′ contain what is added, and factors of features.
    if (not fault.texts or bias) and not (dependent or added or _LEARNED in spread):
        norms = [*_norms_of_rows(states, failed), *_norms_of_calls(states, failed)][:1]
        causes += norms or _weights(states, failed, has_bias=bias > 0.0)
    return tuple(causes)


def _order(chain: Chain, states: Sequence[CallsOnState]) -> Iterator[str]:
    """Detect another order of the parts of the step: h' is not a pre-normalization state."""
    if not chain.is_row_by_row or chain.normalization.is_identity or chain.batch < 2:
        return
    outputs = [chain.gain * state.last + chain.skip * state.layer.x[0] for state in states]
    takes = "it takes h before normalization and returns W σ(N(h)), before the next one"
    if _share_normalised(chain, outputs) > 0.5:
        yield f"the step ends with the normalization: {takes}"
    elif _activated(chain, outputs):
        yield (
            f"the step ends with the activation: {takes}; blocks Linear → Norm → activation are "
            "for from_linear_first"
        )


def _kept_part(chain: Chain, states: Sequence[CallsOnState]) -> Iterator[str]:
    """Detect a skip connection that keeps the state before the norm in place of that after it."""
    if chain.skip == 0.0 or chain.normalization.is_identity:
        return
    keeps_norm = chain.layers[1].rows.keeps_normed
    left = []
    for state in states:
        h = chain.gain * state.layer.y[0]
        change = chain.normalization(h, chain.eps) - h
        expected = chain.skip / chain.gain * (-change if keeps_norm else change)
        mean = state.moved / state.calls
        left.append(float(np.square(mean - expected).sum() / max(np.square(mean).sum(), LEAST)))
    if _median(left) < _MOST_LEFT:
        keeps, right = ("h", "N(h)") if keeps_norm else ("N(h)", "h")
        yield f"the skip connection keeps {keeps}, not {right}"


def _share_normalised(chain: Chain, states: Sequence[Float64Array]) -> float:
    """Return the share of rows with the moments of normalized rows, for any ddof and eps."""
    rows = np.concatenate(states)
    n = chain.batch
    square = np.square(rows).mean(axis=1)
    near = (square > 0.95 * (n - 1) / n) & (square < 1.05)
    if chain.normalization.hides_common_part:
        near &= np.abs(rows.mean(axis=1)) < 0.05
    return float(near.mean())


def _activated(chain: Chain, states: Sequence[Float64Array]) -> bool:
    """Whether states are values σ(N(h)) rather than sums of them with random weights."""
    reach = math.sqrt(chain.normalization.dimensions(chain.batch))
    x = np.linspace(-reach, reach, 4097)
    values = chain.activation(x)
    if (np.diff(values) >= 0.0).all() and (np.diff(values[np.abs(x) <= 1.0]) > 0.0).all():
        before = [np.interp(state, values, x, left=np.nan, right=np.nan) for state in states]
        return _share_normalised(chain, before) > 0.5
    # σ has no inverse: compare the range of the values with that of σ, and their mean with 0.
    low, high = float(values.min()), float(values.max())
    slack = 1e-6 * (high - low)
    within = [((state >= low - slack) & (state <= high + slack)).all() for state in states]
    every = np.concatenate([state.ravel() for state in states])
    size = math.sqrt(float(np.square(every).mean()))
    return bool(sum(within) > len(states) / 2 and abs(every.mean()) > 0.2 * size)


def _shared_by_calls(states: Sequence[CallsOnState], failed: set[str]) -> Iterator[str]:
    """Detect weights that calls share or repeat."""
    correlation = _median(state.sequence.calls.correlation for state in states)
    if "calls independent" in failed and correlation > 0.5:
        yield (
            f"calls share their weights (correlation {correlation:.3f}): W must be drawn anew at "
            "every call"
        )
    elif any(name.startswith(("mean 0", "calls independent")) for name in failed):
        calls = states[0].calls
        share = _median(part for state in states for part in _kept_by_mean(state))
        if share > 1.5 / calls:
            yield (
                f"weights come back: means over {calls} calls keep {share:.1%} of the variance, as "
                "means of few different W do"
            )


def _shared_up_to_signs(states: Sequence[CallsOnState], failed: set[str]) -> Iterator[str]:
    """Detect weights of earlier calls with other signs, of whole calls or of each row."""
    tests = {f"calls{part} independent, squared correlations" for part in ("", ": the same row")}
    if not failed & (tests | {"calls: largest correlation"}):
        return
    largest = _median(
        math.sqrt(s.call_pairs.largest) for s in states if s.call_pairs.places.size >= _ENTRIES
    )
    width = len(states[0].total)
    if largest > 1.0 - _NEARLY_EQUAL:
        yield (
            "calls share their weights up to signs (two calls on one state have correlation "
            "±1.000): W must be drawn anew at every call"
        )
        return
    # A part of h′ that is the same in all calls correlates them, too, but with one sign.
    signed = _median(state.sequence.lags[width].correlation for state in states)
    square = _square_correlation(states, width)
    if square > 4.0 * signed**2:
        yield (
            "calls share their weights up to signs: a row has mean squared correlation "
            f"{square:.2g} with that row in the next call"
        )


def _kept_by_mean(state: CallsOnState) -> Iterator[float]:
    """Yield |mean Z|² over mean |Z|², after projecting out a bias and parts along x, a and h."""
    layer, mean = state.layer, state.total / state.calls
    explained_by = [state.whitened(rows[0]) for rows in (layer.x, layer.a, layer.y)]
    degrees = mean.size - len(explained_by)
    along = state.whitened(np.ones((1, layer.x.shape[2])))
    if np.square(along).sum() > _RIDGE * state.rank:
        along /= np.linalg.norm(along)
        mean, *explained_by = (z - (z @ along.T) @ along for z in (mean, *explained_by))
        degrees -= len(mean)
    parts = np.column_stack([z.ravel() for z in explained_by])
    rest = mean.ravel() - parts @ np.linalg.lstsq(parts, mean.ravel())[0]
    if degrees > 0 and state.variance > 0.0:
        yield float(np.square(rest).sum()) / (degrees * state.variance)


def _history(states: Sequence[CallsOnState]) -> Iterator[str]:
    """Detect correlated |h'|² in successive calls on a state, which are independent for any law."""
    correlations = []
    for state in states:
        logs = np.log(np.maximum(state.energies, LEAST))
        # A spread far below that of χ² would be rounding, as for orthogonal weights.
        if logs.std() > 0.5 * math.sqrt(2 / state.total.size):
            correlations.append(float(np.corrcoef(logs[:-1], logs[1:])[0, 1]))
    mean = np.mean(correlations) if correlations else 0.0
    if mean > _ERRORS / math.sqrt(max(1, len(correlations)) * states[0].calls):
        yield (
            "a call depends on those before it: |h'|² on one state has correlation "
            f"{mean:.2f} with that of the next call; running statistics (momentum)?"
        )


def _mean(
    chain: Chain, states: Sequence[CallsOnState], failed: set[str], spread_is_right: bool
) -> Iterator[str]:
    """Detect another skip connection, or another part with a mean."""
    added = sum(float((state.shift * state.total).sum()) for state in states)
    sizes = [state.calls * float(np.square(state.shift).sum()) for state in states]
    error = math.sqrt(sum(s.variance * size for s, size in zip(states, sizes, strict=True)))
    # The mean square of sums over calls over that of single calls: 1 on average, with the standard
    # error below for independent rows.
    ratio = _median(float(np.square(s.total).sum()) / (s.numbers * s.unit) for s in states)
    error_of_ratio = math.sqrt(2 / len(states[0].total))
    if abs(added) > _ERRORS * error:
        skip = chain.skip + chain.gain * added / sum(sizes)
        yield f"the skip connection is {skip:.4g}, not {chain.skip:g}"
    elif any(name.startswith("mean 0") for name in failed) and (
        spread_is_right or ratio > 1.0 + _ERRORS * error_of_ratio
    ):
        yield "the mean of h' given h is not skip N(h): a bias, or a residual part?"


def _rows(states: Sequence[CallsOnState], failed: set[str], spread_is_right: bool) -> Iterator[str]:
    """Detect dependent rows."""
    width, calls = len(states[0].total), states[0].calls
    between = _median(state.sequence.lags[1].correlation for state in states)
    ratio = _median(s.common / (s.calls * s.rank * s.unit) for s in states)
    far = abs(ratio - 1.0) > _ERRORS * math.sqrt(2 / calls)
    far = far or abs(between) > _ERRORS * math.sqrt(2 / (calls * width))
    tests = {"rows: no common part", "rows: neighbours independent", "rows independent"}
    # A part of h′ that is the same in all calls correlates rows, too.
    is_explained = far or width < 2 or any(name.startswith("mean 0") for name in failed)
    parts = [] if is_explained else [*_rows_at_a_lag(states), *_most_correlated_rows(states)]
    if parts and any(name.startswith("rows: ") for name in failed):
        yield f"rows depend on each other: {', and '.join(parts)}"
    elif failed & tests and (spread_is_right or far):
        average = (ratio - 1.0) / max(1, width - 1)
        yield (
            f"rows depend on each other: two of them have correlation {average:.2g} on average, "
            f"neighbours {between:.2g}"
        )


def _rows_at_a_lag(states: Sequence[CallsOnState]) -> Iterator[str]:
    """Detect the lag at which rows depend most, with signs that vary."""
    width = len(states[0].total)
    squares = {lag: _square_correlation(states, lag) for lag in states[0].sequence.lags}
    lag = max(squares, key=lambda k: squares[k] * (k < width))
    if lag < width and squares[lag] > 0.0:
        yield f"rows r and r + {lag} have mean squared correlation {squares[lag]:.2g}"


def _square_correlation(states: Sequence[CallsOnState], lag: int) -> float:
    """Return the mean squared correlation of rows at a lag, 0 unless it is clear.

    If rows depend at none of the lags, Σ u² per pair has the same mean at each, whatever the law of
    a row.  So the least one is the unit.
    """
    lags = states[0].sequence.lags
    square = {k: sum(s.sequence.lags[k].square / s.unit for s in states) for k in lags}
    count = {k: max(1, sum(s.sequence.lags[k].count for s in states)) for k in lags}
    unit = max(min(square[k] / count[k] for k in lags), LEAST)
    excess = square[lag] / (unit * count[lag]) - 1.0
    rank = sum(s.rank * s.sequence.lags[lag].count for s in states) / count[lag]
    clear = excess > _ERRORS * math.sqrt(_SPREAD / count[lag]) and rank > 1.0
    return min(1.0, excess / (rank - 1.0)) if clear else 0.0


def _most_correlated_rows(states: Sequence[CallsOnState]) -> Iterator[str]:
    """Detect a pair of rows whose correlation stays from call to call."""
    gram = np.asarray(sum(state.row_pairs.gram / state.unit for state in states))
    of_pairs = correlations(gram)
    first, second = np.unravel_index(np.abs(of_pairs).argmax(), gram.shape)
    largest = float(of_pairs[first, second])
    # For rows with covariance C, a product of independent ones has variance Tr C² over calls.
    spread = sum(
        float(np.square(s.root.T @ s.root / (len(s.total) * s.unit)).sum()) / s.calls
        for s in states
    )
    error = math.sqrt(spread) / sum(state.calls * state.rank for state in states)
    if abs(largest) > _ERRORS * error:
        rows = states[0].row_pairs.rows
        yield f"rows {rows[first]} and {rows[second]} have correlation {largest:.2g}"


def _weights(states: Sequence[CallsOnState], failed: set[str], has_bias: bool) -> Iterator[str]:
    """Detect weights with another law, by their kurtosis."""
    tests = {"weights: largest", "weights: Gaussian", "weights: kurtosis"}
    tests |= {"rows: law of norms", "rows: spread of norms"}
    kurtosis, error = _kurtosis(states)
    if failed & tests and abs(kurtosis) > 5.0 * error:
        name, expected = min(_KURTOSES.items(), key=lambda item: abs(item[1] - kurtosis))
        like = f": {name}?" if abs(expected - kurtosis) < max(0.1, 4.0 * error) else ""
        if kurtosis > 0.0:  # 6/(ν − 4) for Student's t with ν degrees of freedom
            like = f": Student's t with about {4.0 + 6.0 / kurtosis:.0f} degrees of freedom?"
        if has_bias:  # the readings contain the bias
            like = ""
        weights = np.concatenate([state.readings for state in states])
        largest = float(np.abs(weights).max() / np.sqrt(np.square(weights).mean()))
        yield (
            f"weights are not Gaussian{like} (excess kurtosis {kurtosis:.3g}, largest of "
            f"{weights.size} is {largest:.4g} standard deviations)"
        )


def _kurtosis(states: Sequence[CallsOnState]) -> tuple[float, float]:
    """Return the excess kurtosis of the weights that can be read off h′, and its standard error.

    Without such weights, the error is infinite.
    """
    squares = np.square(np.concatenate([state.readings for state in states]))
    if not squares.size:
        return 0.0, math.inf
    squares /= max(float(squares.mean()), LEAST)
    return float(np.square(squares).mean()) - 3.0, math.sqrt(24.0 / squares.size)


def _norms_of_rows(states: Sequence[CallsOnState], failed: set[str]) -> Iterator[str]:
    """Detect rows of W of norm 1, by the spread of the norms of rows of h′."""
    if "rows: spread of norms" not in failed or _spread_of_calls(states) < _ORTHOGONAL:
        return
    width, (kurtosis, error) = len(states[0].total), _kurtosis(states)
    if abs(kurtosis + 6.0 / (width + 2)) > 5.0 * error:
        return
    fourth = sum(np.square(s.norms / s.unit).sum() / (s.rank * (s.rank + 2)) for s in states)
    ratio, expected = fourth / sum(state.norms.size for state in states), width / (width + 2)
    if abs(ratio - expected) < 0.5 * (1.0 - expected):
        yield (
            f"norms of rows vary too little: E|z|⁴ is {ratio:.4f} of that of normal rows, and "
            f"width/(width + 2) = {expected:.4f} if the rows of W are normalized"
        )


def _spread_of_calls(states: Sequence[CallsOnState]) -> float:
    """Return the standard deviation of |h′|² between calls over its expectation."""
    return _median(s.energies.std() / (s.unit * math.sqrt(2 * s.total.size)) for s in states)


def _norms_of_calls(states: Sequence[CallsOnState], failed: set[str]) -> Iterator[str]:
    """Detect orthogonal or rescaled weights, by the spread of |h'|²."""
    spread = _spread_of_calls(states)
    error = 1 / math.sqrt(2 * sum(state.calls for state in states))
    tests = {"calls: law of norms", "calls: spread of norms"}
    mild, (kurtosis, error_of_kurtosis) = 0.7 < spread < 1.4, _kurtosis(states)
    if mild and abs(kurtosis) > 5.0 * error_of_kurtosis:
        return  # the kurtosis of weights changes the spread a little, too
    if failed & tests and (not mild or abs(spread - 1.0) > 5.0 * error):
        share = _median(state.rank / len(state.total) for state in states)
        normalized = math.sqrt(max(0.0, 1.0 - share))
        causes = "are weights orthogonal, or rescaled?"
        if spread > _ORTHOGONAL and abs(spread - normalized) < 4.0 * error:
            causes = "is the Frobenius norm of W normalized?"
        yield f"|h'| varies {spread:.2g} times as much between calls as it should: {causes}"


def _scaled(chain: Chain, states: Sequence[CallsOnState], scale: float) -> str:
    """Return a cause for rows that are scaled by a factor."""
    root, n, convolution = math.sqrt(chain.width), chain.batch, chain.convolution
    taps = 1 if convolution is None else convolution.taps
    ratio = math.sqrt(n / max(1, n - 1))
    scales = {
        "Kaiming's variance 2/width instead of 1/width?": math.sqrt(2),
        "PyTorch's default, uniform within ±1/sqrt(width), has a third of the variance": 3**-0.5,
        "is the factor 1/sqrt(width) missing?": root,
        "is 1/sqrt(width) there twice?": 1 / root,
        "variance 1/channels instead of 1/(channels · taps)?": math.sqrt(taps),
        f"is the gain {chain.gain:g} missing?": 1 / abs(chain.gain),
        "sqrt(n/(n-1)) for the batch n, is something divided by n - 1?": ratio,
        "sqrt((n-1)/n) for the batch n, a normalization with ddof = 1?": 1 / ratio,
    }
    error = 4.0 / math.sqrt(2 * sum(state.calls * state.total.size for state in states))
    fits = [
        text
        for text, factor in scales.items()
        if factor != 1.0 and abs(math.log(factor / scale)) < max(0.005, error)
    ]
    return f"rows are scaled by {scale:.4f}" + (f": {' or: '.join(fits)}" if fits else "")


def _median(values: Iterable[float]) -> float:
    """Return the median, 0 without values."""
    numbers = list(values)
    return float(np.median(numbers)) if numbers else 0.0
