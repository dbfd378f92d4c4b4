"""`train_shallow`: networks with one hidden layer of finite width, trained by gradient descent.

They approximate the limits of infinite width of a `Scaling`, and they are the reference with which
`logit_divergence` compares a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, expit

from bnmc._support.arguments import choice, finite_array, integer, real
from bnmc._support.array_arguments import integers, require_memory
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.slopes import require_derivative, slope_at
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.scalings import Scaling, as_scaling
from bnmc.mean_field.float64 import FloatArray

__all__ = ["ShallowTraining", "logit_divergence", "train_shallow"]

#: Derivative of the loss of one sample in the output f, for the label y.
_GRADIENTS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "cross-entropy": lambda f, y: np.asarray(expit(f)) - y,
    "squared": lambda f, y: f - y,
}


@dataclass(frozen=True)
class ShallowTraining:
    """Networks through training; `train_shallow` returns it.

    Attributes
    ----------
    steps : (times,) ndarray of int
        Numbers of steps at which the networks are recorded.
    outputs : (networks, times, samples) ndarray of float64
        Outputs for the training inputs.
    test_outputs : (networks, times, tests) ndarray of float64, or None
        Outputs for the test inputs.
    kernels : (networks, times, 2) ndarray of float64
        Means over the training inputs of the diagonals of the two tangent kernels, of the output
        weights and of the input weights, each times its learning rate.
    weight_squares : (networks, times, 2) ndarray of float64
        Mean squares of the output weights and of the input weights.
    weight_changes : (networks, times, 2) ndarray of float64
        Mean squares of their differences from the initial weights.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import train_shallow
    >>> x = np.random.default_rng(0).standard_normal((3, 8))
    >>> run = train_shallow("ntk", x, x[0] > 0, [0, 10], width=64, networks=4, rng=0)
    >>> run.outputs.shape, run.kernels.shape
    ((4, 2, 8), (4, 2, 2))
    """

    steps: np.ndarray[Any, np.dtype[np.int64]]
    outputs: FloatArray
    test_outputs: FloatArray | None
    kernels: FloatArray
    weight_squares: FloatArray
    weight_changes: FloatArray


def train_shallow(
    scaling: str | Scaling,
    x: ArrayLike,
    y: ArrayLike,
    steps: ArrayLike,
    *,
    width: int,
    networks: int = 10,
    reference_width: int = 128,
    activation: str | Activation | Callable[[Any], Any] = "leaky_relu",
    learning_rate: float = 0.02,
    loss: str = "cross-entropy",
    test: ArrayLike | None = None,
    rng: Any = None,
) -> ShallowTraining:
    """Train networks with one hidden layer, whose weights and rates follow a scaling.

    Parameters
    ----------
    scaling : str or Scaling
        "ntk", "mean-field", "default", "sym-default", "ic-mf", or a `Scaling`.
    x : (features, samples) array_like
        Training inputs. Input weights have variance 1, so columns should have length about 1.
    y : (samples,) array_like
        Labels, real numbers or booleans; for cross-entropy probabilities of class 1, in [0, 1].
    steps : (times,) array_like of int
        Numbers of steps, increasing, >= 0, at which the networks are recorded.
    width : int
        d >= 1.
    networks : int, default 10
        Number of networks.
    reference_width : int, default 128
        d*, the width at which all scalings are one network: output weights of variance 1/d*, and
        the learning rate `learning_rate` for all weights.
    activation : str, Activation or callable
        With a known derivative.
    learning_rate : float, default 0.02
        > 0.
    loss : {"cross-entropy", "squared"}
        The mean over samples of the logistic loss, or of (f − y)²/2.
    test : (features, tests) array_like, optional
        Test inputs.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7).

    Returns
    -------
    ShallowTraining

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.
    NonFiniteError
        If the training diverges beyond the range of float64.
    ResultTooLargeError
        If a network does not fit in memory.

    Notes
    -----
    One step is ``a_r −= η_a mean(∂ℓ φ(w_rᵀx))`` and ``w_r −= η_w mean(∂ℓ a_r φ′(w_rᵀx) x)``, with
    ``f = Σ_r a_r φ(w_rᵀ x)``. `Scaling.factors` has the factors of a, η_a and η_w. With a corrected
    scaling (IC-MF) the outputs are ``f − f_0 + f_0 (d/d*)^(−q_sigma − 1/2)``: f minus its start,
    plus the start of a network with ``q_sigma = −1/2`` and the same normals. The lectures
    add this start without subtracting f_0, which tends to 0 as the width grows.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import train_shallow
    >>> x = np.random.default_rng(0).standard_normal((3, 40)) / np.sqrt(3)
    >>> run = train_shallow("mean-field", x, x[0] > 0, [0, 300], width=256, rng=0)
    >>> right = (run.outputs > 0) == (x[0] > 0)
    >>> bool(right[:, 1].mean() > right[:, 0].mean() + 0.2)
    True
    """
    chosen = as_scaling(scaling)
    inputs = finite_array("x", x, shape=("features", "samples")).astype(np.float64)
    given = np.asarray(y)
    if given.dtype == np.bool_:
        given = given.astype(np.float64)
    labels = finite_array("y", given, shape=(inputs.shape[1],)).astype(np.float64)
    kind = choice("loss", loss, _GRADIENTS)
    if kind == "cross-entropy" and ((labels < 0.0) | (labels > 1.0)).any():
        raise ArgumentError("y", float(np.abs(labels).max()), "probabilities, in [0, 1]")
    when = _steps(steps)
    count = integer("networks", networks, low=1)
    d, reference = (
        integer("width", width, low=1),
        integer("reference_width", reference_width, low=1),
    )
    sigma = as_activation(activation)
    require_derivative(sigma)
    rate = real("learning_rate", learning_rate, above=0.0)
    tests = inputs[:, :0]
    if test is not None:
        tests = finite_array("test", test, shape=(len(inputs), "tests")).astype(np.float64)
    columns = inputs.shape[1] + tests.shape[1]
    require_memory("width", 8 * (d * (len(inputs) + 4 * columns) + count * when.size * columns))
    with np.errstate(over="ignore", invalid="ignore"):  # raises below
        found = [
            list(
                _trained(
                    chosen, inputs, labels, tests, when, d, reference, sigma, rate, kind, child
                )
            )
            for child in np.random.default_rng(rng).spawn(count)
        ]
    outputs, kernels, squares, changes = (
        np.array([[record[part] for record in run] for run in found]) for part in range(4)
    )
    if not np.isfinite(outputs).all():
        raise NonFiniteError(None, None, "outputs of the training, which diverges,")
    samples = inputs.shape[1]
    test_outputs = None if test is None else outputs[..., samples:]
    return ShallowTraining(when, outputs[..., :samples], test_outputs, kernels, squares, changes)


def _steps(steps: ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
    when = integers("steps", steps, low=0).astype(np.int64)
    if when.ndim != 1 or when.size == 0 or (np.diff(when) <= 0).any():
        raise ArgumentError("steps", when.tolist(), "increasing numbers of steps")
    return when


def _trained(
    scaling: Scaling,
    inputs: FloatArray,
    labels: FloatArray,
    tests: FloatArray,
    steps: np.ndarray[Any, np.dtype[np.int64]],
    width: int,
    reference: int,
    sigma: Activation,
    rate: float,
    loss: str,
    rng: np.random.Generator,
) -> Iterator[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """Yield outputs, kernels and mean squares of weights and of their changes at each step."""
    factor, output_rate, input_rate = (f for f in scaling.factors(width, reference))
    output_rate, input_rate = rate * output_rate, rate * input_rate
    w = rng.standard_normal((width, len(inputs)))
    a = rng.standard_normal(width) * (factor / math.sqrt(width))
    first_w, first_a = w.copy(), a
    both, samples = np.hstack([inputs, tests]), inputs.shape[1]
    lengths = np.square(inputs).sum(axis=0)
    shift: FloatArray | float = 0.0
    if scaling.corrected:
        shift = (1.0 / factor - 1.0) * (a @ sigma(w @ both))
    for step in range(int(steps[-1]) + 1):
        h = w @ inputs
        active, slope = sigma(h), slope_at(sigma, h)
        if step in steps:
            f = a @ sigma(w @ both) + shift
            kernels = np.array(
                [
                    output_rate * np.square(active).sum(axis=0).mean(),
                    input_rate * (np.square(a) @ np.square(slope) * lengths).mean(),
                ]
            )
            changes = np.array([np.square(a - first_a).mean(), np.square(w - first_w).mean()])
            yield f, kernels, np.array([np.square(a).mean(), np.square(w).mean()]), changes
        if step == steps[-1]:
            return
        start = shift[:samples] if isinstance(shift, np.ndarray) else shift
        pull = _GRADIENTS[loss](a @ active + start, labels) / samples
        change = (slope * pull) @ inputs.T
        w -= (input_rate * a)[:, None] * change
        a = a - output_rate * (active @ pull)


def logit_divergence(outputs: ArrayLike, reference: ArrayLike, *, corrected: bool = True) -> float:
    """Mean over samples of KL(N(E f, Var f) ‖ N(E f*, Var f*)), from networks with many seeds.

    Parameters
    ----------
    outputs : (networks, samples) array_like
        Outputs f of m >= 2 networks.
    reference : (references, samples) array_like
        Outputs f* of m* >= 4 networks of the reference.
    corrected : bool, default True
        Whether the small-sample bias is removed, for all normal laws.

    Returns
    -------
    float
        ``½ mean(v/v* + (μ* − μ)²/v* − 1 − ln(v/v*))``, with means μ and unbiased variances v over
        the networks. A corrected value may be negative.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the arrays have other shapes, too few networks, or no variance.

    Notes
    -----
    With ν = m − 1, ν* = m* − 1, estimates in place of moments, and normal outputs,
    ``E[v/v*] = ν*/(ν*−2)`` times its true value, ``(μ* − μ)²`` is too large by v/m + v*/m*, and
    ``ln v`` is too large by ψ(ν/2) − ln(ν/2). The correction removes all three, so that the
    expectation is that of the true moments, whatever these are. Without it, the expectation for
    equal laws is ``½[ν*/(ν*−2) (1 + 1/m + 1/m*) − 1 − ψ(ν/2) + ln(ν/2) + ψ(ν*/2) − ln(ν*/2)]``:
    0.271 for m = m* = 10, and 0.042 for 50. Golikov (arXiv 2003.05884) prints values without this
    correction.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import logit_divergence
    >>> one, other = np.random.default_rng(0).standard_normal((2, 10, 10_000))
    >>> round(logit_divergence(one, other, corrected=False), 2)
    0.27
    >>> abs(logit_divergence(one, other)) < 0.02
    True
    """
    f = finite_array("outputs", outputs, shape=("networks", "samples")).astype(np.float64)
    g = finite_array("reference", reference, shape=("networks", f.shape[1])).astype(np.float64)
    for name, values, least in (("outputs", f, 2), ("reference", g, 4)):
        if len(values) < least:
            raise ArgumentError(name, f"{len(values)} networks", f"at least {least} networks")
        if not values.var(axis=0).all():
            raise ArgumentError(name, "a variance of 0", "outputs that differ between networks")
    v, other = f.var(axis=0, ddof=1), g.var(axis=0, ddof=1)
    ratio = v / other
    shift = np.square(g.mean(axis=0) - f.mean(axis=0)) / other
    logs = np.log(ratio)
    if corrected:
        nu, other_nu = len(f) - 1, len(g) - 1
        deflation = (other_nu - 2) / other_nu
        shift = deflation * (shift - ratio / len(f)) - 1.0 / len(g)
        ratio = deflation * ratio
        logs = logs - _mean_log(nu) + _mean_log(other_nu)
    return 0.5 * float(np.mean(ratio + shift - 1.0 - logs))


def _mean_log(freedom: int) -> float:
    """Return E ln(v) of a sample variance v with expectation 1."""
    return float(digamma(freedom / 2) - math.log(freedom / 2))
