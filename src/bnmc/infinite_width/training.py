"""Training of an infinitely wide network by gradient flow: `descent`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp
from scipy.special import expit, softmax

from bnmc._support.arguments import choice, finite_array, real
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.infinite_width.spectrum import eigensystem, labels_of
from bnmc.mean_field.float64 import FloatArray

__all__ = ["Descent", "descent", "learned", "times_of"]

LOSSES = ("squared", "cross-entropy")

#: Tolerance of one step of the solver for cross-entropy, relative and absolute.
_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Descent:
    """The outputs of an infinitely wide network during training.

    Attributes
    ----------
    times : (times,) ndarray of float64
    outputs : (times, samples) or (times, samples, outputs) ndarray of float64
        Outputs at the training inputs.
    test : ndarray of float64 or None
        Outputs at the test inputs, of shape (times, tests) or (times, tests, outputs).
    loss : (times,) ndarray of float64
        Mean loss over the training set, summed over outputs.

    Examples
    --------
    >>> from bnmc.infinite_width import descent
    >>> run = descent([[2.0]], [1.0], [0.0, 0.5], learning_rate=1.0)
    >>> run.outputs.round(6)
    array([[0.      ],
           [0.632121]])
    """

    times: FloatArray
    outputs: FloatArray
    test: FloatArray | None
    loss: FloatArray


def descent(
    kernel: ArrayLike,
    y: ArrayLike,
    times: ArrayLike,
    *,
    learning_rate: float = 1.0,
    loss: str = "squared",
    initial: ArrayLike | None = None,
    test_kernel: ArrayLike | None = None,
    test_initial: ArrayLike | None = None,
) -> Descent:
    """Outputs of an infinitely wide network under gradient flow, at given times.

    Parameters
    ----------
    kernel : (samples, samples) array_like
        G, the tangent kernel of the training inputs, as `ntk` returns it. n is the number of
        samples.
    y : (samples,) or (samples, outputs) array_like
        Labels. For cross-entropy: probabilities of class 1, in [0, 1]; or of each class, with
        rows that sum to 1.
    times : (times,) array_like
        Times t >= 0, nondecreasing. With discrete steps of size η, t counts the steps.
    learning_rate : float, default 1.0
        η > 0.
    loss : {"squared", "cross-entropy"}
        The loss of one sample with outputs f: ``|f − y|² / 2``; or ``−log`` of the probability of
        the label, with probabilities ``1 / (1 + exp(−f))`` or ``softmax(f)``.
    initial : array_like, optional
        Outputs at time 0, of the shape of `y`; 0 by default.
    test_kernel : (tests, samples) array_like, optional
        Tangent kernel of the test inputs with the training inputs: ``ntk(test, depth, other=x)``.
    test_initial : array_like, optional
        Test outputs at time 0, of shape (tests,) or (tests, outputs); 0 by default.

    Returns
    -------
    Descent

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an array, `kernel` is not positive semidefinite, or
        `test_initial` is given without `test_kernel`.
    PartialEstimateError
        If the solver of the differential equation for cross-entropy fails; ``partial`` is the
        solver's message.

    Notes
    -----
    The flow of the mean loss is ``dŷ/dt = −η G ∂ℓ(ŷ) / n``. For squared loss it has the closed form
    ``ŷ_t − y = exp(−η t G / n) (ŷ_0 − y)``, and the test outputs are
    ``f_t = f_0 + G_test G⁻¹ (1 − exp(−η t G / n)) (y − ŷ_0)``, where singular G are no exception.
    For cross-entropy, LSODA solves ``dc/dt = −η ∂ℓ / n`` with ``ŷ = ŷ_0 + G c``,
    ``f = f_0 + G_test c``, to 1e-10 per step. This tolerance is no bound of the error at time t.

    Examples
    --------
    >>> from bnmc.infinite_width import descent
    >>> run = descent([[2.0]], [1.0], [0.0, 0.5], learning_rate=1.0)
    >>> run.outputs.round(6)
    array([[0.      ],
           [0.632121]])
    """
    values, vectors = eigensystem("kernel", kernel)
    n = values.size
    labels = labels_of("y", y, n)
    when = times_of(times)
    rate = real("learning_rate", learning_rate, above=0.0)
    kind = choice("loss", loss, LOSSES)
    if kind == "cross-entropy":
        _require_probabilities(labels)
    start = np.zeros_like(labels)
    if initial is not None:
        start = finite_array("initial", initial, shape=labels.shape).astype(np.float64)
    test, test_start = _test_arguments(test_kernel, test_initial, labels.shape)
    if kind == "squared":
        pulls = learned(values, rate / n * when)  # (times, samples)
        deviations = (vectors.T @ (labels - start)).reshape(n, -1)
        weights = np.einsum("ij,tj,jo->tio", vectors, pulls, deviations, optimize=True)
        decay = np.exp(-rate / n * when[:, None] * values)
        rest = np.einsum("ij,tj,jo->tio", vectors, decay, deviations, optimize=True)
        weights = weights.reshape(when.size, *labels.shape)
        outputs = labels - rest.reshape(weights.shape)
        losses = 0.5 * np.sum((outputs - labels) ** 2, axis=tuple(range(1, outputs.ndim))) / n
    else:
        matrix = (vectors * values) @ vectors.T
        weights = _cross_entropy_flow(matrix, labels, start, rate, when)
        outputs = start + np.einsum("ij,tj...->ti...", matrix, weights)
        losses = _cross_entropy(outputs, labels) / n
    predictions = None
    if test is not None:
        predictions = test_start + np.einsum("ij,tj...->ti...", test, weights)
    return Descent(when, outputs, predictions, losses)


def times_of(times: ArrayLike) -> FloatArray:
    """Return times as float64.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If they are not an array of nondecreasing numbers >= 0.
    """
    when = finite_array("times", times, shape=("times",)).astype(np.float64)
    if when[0] < 0.0 or (np.diff(when) < 0.0).any():
        raise ArgumentError("times", float(when.min()), "nondecreasing numbers >= 0")
    return when


def learned(values: FloatArray, durations: FloatArray) -> FloatArray:
    """Return (1 − exp(−a λ)) / λ for durations a and eigenvalues λ, shape (a, λ); a if λ is 0."""
    a = durations[:, None]
    positive = np.where(values > 0.0, values, 1.0)
    return np.asarray(np.where(values > 0.0, -np.expm1(-a * positive) / positive, a))


# --- arguments


def _require_probabilities(labels: FloatArray) -> None:
    wrong = (labels < 0.0) | (labels > 1.0)
    if wrong.any():
        raise ArgumentError("y", float(labels[wrong][0]), "probabilities, in [0, 1]")
    if labels.ndim == 2:
        sums = labels.sum(axis=1)
        worst = int(np.abs(sums - 1.0).argmax())
        if abs(sums[worst] - 1.0) > 1e-6:
            allowed = "rows that sum to 1"
            raise ArgumentError("y", float(sums[worst]), allowed, f"the sum of row {worst}")


def _test_arguments(
    kernel: ArrayLike | None, initial: ArrayLike | None, shape: tuple[int, ...]
) -> tuple[FloatArray | None, FloatArray]:
    """Return the kernel of the test inputs, and their initial outputs."""
    if kernel is None:
        if initial is not None:
            raise ArgumentError("test_initial", "an array", "None, without test_kernel")
        return None, np.zeros(())
    test = finite_array("test_kernel", kernel, shape=("tests", shape[0])).astype(np.float64)
    expected = (test.shape[0], *shape[1:])
    if initial is None:
        return test, np.zeros(expected)
    return test, finite_array("test_initial", initial, shape=expected).astype(np.float64)


# --- cross-entropy


def _cross_entropy_flow(
    matrix: FloatArray, labels: FloatArray, start: FloatArray, rate: float, when: FloatArray
) -> FloatArray:
    """Return c at all times, shape (times, *labels.shape)."""
    n = len(labels)

    def velocity(_: float, flat: FloatArray) -> FloatArray:
        outputs = start + matrix @ flat.reshape(labels.shape)
        return np.asarray(rate / n * (labels - _probabilities(outputs))).reshape(-1)

    nothing = np.zeros(labels.size)
    if when[-1] == 0.0:
        return np.zeros((when.size, *labels.shape))
    span, moments = (0.0, float(when[-1])), np.unique(when)
    solution = solve_ivp(
        velocity, span, nothing, method="LSODA", t_eval=moments, rtol=_TOLERANCE, atol=_TOLERANCE
    )
    if not solution.success:
        raise PartialEstimateError(f"the solver failed: {solution.message}", solution.message)
    found = np.asarray(solution.y).T[np.searchsorted(moments, when)]
    return found.reshape(when.size, *labels.shape)


def _probabilities(outputs: FloatArray) -> FloatArray:
    return np.asarray(expit(outputs) if outputs.ndim == 1 else softmax(outputs, axis=1))


def _cross_entropy(outputs: FloatArray, labels: FloatArray) -> FloatArray:
    """Return the summed loss at each time."""
    if labels.ndim == 1:
        return np.asarray((np.logaddexp(0.0, outputs) - labels * outputs).sum(axis=1))
    norm = np.logaddexp.reduce(outputs, axis=2)
    return np.asarray((norm - (labels * outputs).sum(axis=2)).sum(axis=1))
