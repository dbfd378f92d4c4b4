"""Training of infinitely wide networks by gradient flow: `descent` and `posterior`.

`alignment` and `complexity` relate the eigenvalues of a kernel to labels.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp
from scipy.special import expit, softmax

from bnmc._support.arguments import choice, finite_array, real
from bnmc._support.linalg import binary_scale, require_finite, require_regular, rounding_unit
from bnmc._support.machine import require_memory
from bnmc._support.text import Result
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field.float64 import FloatArray
from bnmc.plot.axes import COLOURS
from bnmc.plot.drawn import Curves, Drawn, draw_outputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# --- eigenvalues of a kernel, and labels


@dataclass(frozen=True, eq=False)
class Alignment(Drawn, Result):
    """The eigenvalues of a kernel and the labels in its eigenbasis.

    `plot` draws the squares, summed over outputs, against the eigenvalues.

    Attributes
    ----------
    eigenvalues : (samples,) ndarray of float64
        λ_i, descending.
    squares : (samples,) or (samples, outputs) ndarray of float64
        ``(yᵀv_i)²``, with v_i the unit eigenvectors. They sum to ``|y|²``. If eigenvalues are
        equal, only the sum of their squares is determined.

    Examples
    --------
    >>> from bnmc.infinite_width import alignment
    >>> found = alignment([[2.0, 0.0], [0.0, 1.0]], [3.0, 4.0])
    >>> float(found.squares[0] / found.squares.sum())
    0.36
    """

    eigenvalues: FloatArray
    squares: FloatArray

    def _draw(self, ax: Axes) -> None:
        squares = self.squares.reshape(len(self.eigenvalues), -1).sum(axis=1)
        ax.plot(self.eigenvalues, squares, "o", markersize=4, color=COLOURS[0])
        ax.set(xlabel="eigenvalue of the kernel", ylabel="squared projection of the labels")


def alignment(kernel: ArrayLike, y: ArrayLike) -> Alignment:
    """Squared projections of labels onto the eigenvectors of a kernel.

    Parameters
    ----------
    kernel : (samples, samples) array_like
        G, symmetric and positive semidefinite, as `ntk` returns it.
    y : (samples,) or (samples, outputs) array_like
        Labels, real numbers.

    Returns
    -------
    Alignment

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `kernel` is not such a matrix, the shapes do not match, or a result overflows float64.

    Notes
    -----
    Under gradient flow with squared loss and initial outputs 0, `descent` has
    ``|ŷ_t − y|² = Σ_i (yᵀv_i)² exp(−2 η λ_i t / n)``. The component of the labels along v_i is
    learned at a rate proportional to λ_i (Arora et al., arXiv 1901.08584, Theorem 4.1).

    Examples
    --------
    >>> from bnmc.infinite_width import alignment
    >>> found = alignment([[2.0, 0.0], [0.0, 1.0]], [3.0, 4.0])
    >>> found.eigenvalues, found.squares
    (array([2., 1.]), array([ 9., 16.]))
    """
    values, vectors, scale = _eigensystem("kernel", kernel)
    labels = _labels_of("y", y, values.size)
    unit = binary_scale(labels)
    with np.errstate(over="ignore"):  # raises below, by name
        values = values * scale
        squares = (vectors.T @ (labels / unit)) ** 2 * unit * unit
    require_finite("kernel", finite_array("kernel", kernel, shape=(..., "n", "n")), values)
    require_finite("y", labels, squares)
    return Alignment(values[::-1].copy(), squares[::-1].copy())


def complexity(kernel: ArrayLike, y: ArrayLike) -> float:
    """Complexity of labels with respect to a kernel, √(2 yᵀG⁻¹y / n).

    Parameters
    ----------
    kernel : (samples, samples) array_like
        G, symmetric and positive definite, as `ntk` returns it; n is the number of samples.
    y : (samples,) array_like
        Labels, real numbers.

    Returns
    -------
    float
        The leading term of the bound of the generalization error of a wide network with one hidden
        layer (Arora et al., arXiv 1901.08584, Theorem 5.1).

    Raises
    ------
    SingularGramError
        If `kernel` is singular to rounding.
    ArgumentError, ArgumentTypeError
        If `kernel` is not such a matrix, the shapes do not match, or the complexity overflows
        float64.

    Examples
    --------
    >>> from bnmc.infinite_width import complexity
    >>> complexity([[2.0, 0.0], [0.0, 1.0]], [2.0, 1.0])
    1.7320508075688772
    """
    values, vectors, scale = _eigensystem("kernel", kernel)
    given = finite_array("kernel", kernel, shape=("samples", "samples"))
    labels = finite_array("y", y, shape=(values.size,)).astype(np.float64)
    require_regular("kernel", values, rounding_unit(given))
    unit = binary_scale(labels)
    with np.errstate(over="ignore"):  # raises below, by name
        root = np.sqrt(2.0 * np.mean((vectors.T @ (labels / unit)) ** 2 / values))
        result = root * (unit / np.sqrt(scale))
    require_finite("y", labels, result)
    return float(result)


def _eigensystem(name: str, kernel: ArrayLike) -> tuple[FloatArray, FloatArray, float]:
    """Return eigenvalues, ascending, divided by a scale; eigenvectors, in columns; and the scale.

    The scale is the `binary_scale` of the kernel. Eigenvalues that are negative by rounding are
    returned as 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the argument `name` is not one symmetric, positive semidefinite matrix. The tolerance for
        negative eigenvalues is the root of the rounding unit, since tangent kernels of nearly equal
        inputs are no more accurate (see `ntk`).
    """
    given = finite_array(name, kernel, shape=("samples", "samples"))
    scale = float(binary_scale(given.astype(np.float64)))
    matrix = given.astype(np.float64) / scale
    difference = np.abs(matrix - matrix.T).max()
    tolerance = np.sqrt(rounding_unit(given))
    if difference > tolerance * np.abs(matrix).max():
        asymmetry = f"an asymmetry of {difference * scale:.3g}"
        raise ArgumentError(name, asymmetry, "a symmetric matrix")
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    if values[0] < -tolerance * np.abs(values[-1]):
        raise ArgumentError(name, float(values[0]) * scale, "no negative eigenvalue")
    return np.maximum(values, 0.0), vectors, scale


def _labels_of(name: str, y: ArrayLike, samples: int) -> FloatArray:
    """Return labels as float64, of shape (samples,) or (samples, outputs)."""
    given = finite_array(name, y, shape=(...,))
    if given.ndim not in (1, 2) or given.shape[0] != samples or given.size == 0:
        allowed = f"an array of shape ({samples},) or ({samples}, outputs)"
        raise ArgumentError(name, given.shape, allowed)
    return given.astype(np.float64)


# --- gradient flow: one network

_LOSSES = ("squared", "cross-entropy")

#: Tolerance of one step of the solver for cross-entropy, relative and absolute.
_TOLERANCE = 1e-10

#: Its first step, at most, and its number of steps: 16,000 reach outputs of 700.
_FIRST_STEP, _MOST_STEPS = 1e-5, 20_000


@dataclass(frozen=True)
class Descent(Curves, Result):
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

    _axis = "times", "time"
    _curves = MappingProxyType({"loss": "mean loss over the training set"})

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
        If an argument is not such an array, `kernel` is not positive semidefinite, `test_initial`
        is given without `test_kernel`, or a result overflows float64.
    ResultTooLargeError
        If the outputs at all times would not fit in memory. For cross-entropy, the solver needs the
        square of the number of outputs, samples × outputs.
    PartialEstimateError
        If the solver of the differential equation for cross-entropy fails, or takes more than
        20,000 steps; ``partial`` is its message.

    Notes
    -----
    The flow of the mean loss is ``dŷ/dt = −η G ∂ℓ(ŷ) / n``. For squared loss it has the closed form
    ``ŷ_t − y = exp(−η t G / n) (ŷ_0 − y)``, and the test outputs are
    ``f_t = f_0 + G_test G⁻¹ (1 − exp(−η t G / n)) (y − ŷ_0)``, where singular G are no exception.
    For cross-entropy, LSODA solves ``dc/ds = −∂ℓ`` with ``s = η g t / n``, ``ŷ = ŷ_0 + G c / g``
    and ``f = f_0 + G_test c / g``, to 1e-10 per step, where g is near the largest entry of G. This
    tolerance is no bound of the error at time t.

    Examples
    --------
    >>> from bnmc.infinite_width import descent
    >>> run = descent([[2.0]], [1.0], [0.0, 0.5], learning_rate=1.0)
    >>> run.outputs.round(6)
    array([[0.      ],
           [0.632121]])
    """
    n = len(finite_array("kernel", kernel, shape=("samples", "samples")))
    labels = _labels_of("y", y, n)
    when = _times_of(times)
    rate = real("learning_rate", learning_rate, above=0.0)
    kind = choice("loss", loss, _LOSSES)
    if kind == "cross-entropy":
        _require_probabilities(labels)
    start = _start("initial", initial, labels.shape)
    test, test_start = _test_arguments(test_kernel, test_initial, labels.shape)
    _require_memory(kind, labels, when.size, 0 if test is None else len(test))
    values, vectors, scale = _eigensystem("kernel", kernel)
    predictions = None
    with np.errstate(over="ignore", invalid="ignore"):  # raises below, by name
        if kind == "squared":
            unit = np.maximum(binary_scale(labels), binary_scale(start))
            goal = labels / unit
            motion, pulls = _learned(values, scale, rate / n, when)  # (times, samples)
            deviations = (vectors.T @ (goal - start / unit)).reshape(n, -1)
            shape = (when.size, *labels.shape)
            rest = np.einsum("ij,tj,jo->tio", vectors, np.exp(-motion), deviations, optimize=True)
            ends = goal - rest.reshape(shape)
            losses = 0.5 * np.sum((ends - goal) ** 2, axis=tuple(range(1, ends.ndim))) / n
            outputs, losses = ends * unit, losses * unit * unit
            weights = np.einsum("ij,tj,jo->tio", vectors, pulls, deviations, optimize=True)
            weights = weights.reshape(shape) * unit
        else:
            matrix = (vectors * values) @ vectors.T
            moments = np.ldexp(*_products(when, rate / n, scale))
            require_finite("times", when, moments)
            weights = _cross_entropy_flow(matrix, labels, start, moments)
            outputs = start + np.einsum("ij,tj...->ti...", matrix, weights)
            losses = _cross_entropy(outputs, labels) / n
        require_finite("y", labels, outputs, losses)
        if test is not None:
            predictions = test_start + np.einsum("ij,tj...->ti...", test / scale, weights)
            require_finite("test_kernel", test, predictions)
    return Descent(when, outputs, predictions, losses)


def _times_of(times: ArrayLike) -> FloatArray:
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


def _learned(
    values: FloatArray, scale: float, rate: float, when: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return a λ and scale · (1 − exp(−a λ)) / λ, shape (times, samples), for a = rate · time.

    `values` are λ / scale. If λ is 0, the second result is scale · a. Exponents of 2 are summed, so
    no product overflows unless the result does.
    """
    digits, exponents = _products(when[:, None], rate, scale)
    positive = np.where(values > 0.0, values, 1.0)
    with np.errstate(over="ignore"):  # infinite, as the result is, or not selected
        motion = np.ldexp(digits * values, exponents)
        pulls = np.where(values > 0.0, -np.expm1(-motion) / positive, np.ldexp(digits, exponents))
    return motion, np.asarray(pulls)


def _products(times: FloatArray, *factors: float) -> tuple[FloatArray, NDArray[np.integer[Any]]]:
    """Return numbers and exponents of 2 whose products are times multiplied by factors."""
    digits, exponents = np.frexp(times)
    for factor in factors:
        digit, exponent = np.frexp(factor)
        digits, exponents = digits * digit, exponents + exponent
    return digits, exponents


# --- arguments


def _require_memory(kind: str, labels: FloatArray, times: int, tests: int) -> None:
    """Raise unless outputs, and what they are computed from, fit in memory."""
    n, size = len(labels), labels.size
    numbers = 3 * n**2 + times * (2 * tests * (size // n))
    if kind == "squared":
        numbers += times * (6 * size + 3 * n)
    else:  # LSODA has the matrix of derivatives
        numbers += times * 3 * size + size**2
    require_memory("y, times", 8 * numbers, "take fewer times, or samples")


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
    return test, _start("test_initial", initial, (test.shape[0], *shape[1:]))


def _start(name: str, given: ArrayLike | None, shape: tuple[int, ...]) -> FloatArray:
    """Return initial outputs, by default 0."""
    if given is None:
        return np.zeros(shape)
    return finite_array(name, given, shape=shape).astype(np.float64)


# --- cross-entropy


def _cross_entropy_flow(
    matrix: FloatArray, labels: FloatArray, start: FloatArray, moments: FloatArray
) -> FloatArray:
    """Return the solution of dc/ds = −∂ℓ(start + matrix c) at all s, (moments, *labels.shape).

    Raises
    ------
    PartialEstimateError
        If the solver fails, or takes more than `_MOST_STEPS` steps.
    """
    steps = itertools.count()

    def velocity(_: float, flat: FloatArray) -> FloatArray:
        p, rest = _probabilities(start + matrix @ flat.reshape(labels.shape))
        # labels − p without cancellation: a label of 1 is learned until 1 − p vanishes in float64
        return np.asarray(labels * rest - (1.0 - labels) * p).reshape(-1)

    def ending(_: float, __: FloatArray) -> float:
        """Count the steps: the solver asks for the value of an event once in each."""
        if next(steps) > _MOST_STEPS:
            raise _failed(f"more than {_MOST_STEPS} steps")
        return 1.0

    nothing, end = np.zeros(labels.size), float(moments[-1])
    if end == 0.0:
        return np.zeros((moments.size, *labels.shape))
    distinct = np.unique(moments)
    # LSODA would choose the first step by the square of the last moment, which may vanish.
    solution = solve_ivp(
        velocity, (0.0, end), nothing, method="LSODA", t_eval=distinct, events=ending,
        rtol=_TOLERANCE, atol=_TOLERANCE, first_step=min(end, _FIRST_STEP),
    )  # fmt: skip
    if not solution.success:
        raise _failed(solution.message)
    states = np.asarray(solution.y).T[np.searchsorted(distinct, moments)]
    return states.reshape(moments.size, *labels.shape)


def _failed(message: str) -> PartialEstimateError:
    return PartialEstimateError(f"the solver failed: {message}", message)


def _probabilities(outputs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return probabilities p and 1 − p, both to a relative error of rounding."""
    if outputs.ndim == 1:
        return expit(outputs), expit(-outputs)
    p = softmax(outputs, axis=1)
    rest, others, top = 1.0 - p, p.copy(), p.argmax(axis=1, keepdims=True)
    np.put_along_axis(others, top, 0.0, axis=1)
    np.put_along_axis(rest, top, others.sum(axis=1, keepdims=True), axis=1)  # no cancellation
    return p, rest


def _cross_entropy(outputs: FloatArray, labels: FloatArray) -> FloatArray:
    """Return the summed loss at each time."""
    if labels.ndim == 1:
        return np.asarray((np.logaddexp(0.0, outputs) - labels * outputs).sum(axis=1))
    norm = np.logaddexp.reduce(outputs, axis=2)
    return np.asarray((norm - (labels * outputs).sum(axis=2)).sum(axis=1))


# --- gradient flow: an ensemble of networks


@dataclass(frozen=True)
class Posterior(Drawn, Result):
    """Mean and covariance of the outputs of an ensemble of networks during training.

    `plot` draws the means against the time, in bands of two standard deviations.

    Attributes
    ----------
    times : (times,) ndarray of float64
    mean : (times, points) or (times, points, outputs) ndarray of float64
        Mean over initializations.
    covariance : (times, points, points) ndarray of float64
        Covariance of each output; different outputs are independent.

    Examples
    --------
    >>> from bnmc.infinite_width import posterior
    >>> law = posterior([[2.0]], [[1.0]], [3.0], [0.0, 100.0])
    >>> law.mean[:, 0].round(6), law.covariance[:, 0, 0].round(6)
    (array([0., 3.]), array([1., 0.]))
    """

    times: FloatArray
    mean: FloatArray
    covariance: FloatArray

    def _draw(self, ax: Axes) -> None:
        variances = np.maximum(np.diagonal(self.covariance, axis1=1, axis2=2), 0.0)
        mean = self.mean.reshape(*variances.shape, -1)
        reach = 2.0 * np.sqrt(variances)[:, :, None]
        edges = mean, mean - reach, mean + reach
        draw_outputs(ax, self.times, *(edge.reshape(len(mean), -1) for edge in edges))
        ax.set(xlabel="time", ylabel="output: mean, two standard deviations")


def posterior(
    tangent: ArrayLike,
    prior: ArrayLike,
    y: ArrayLike,
    times: ArrayLike,
    *,
    learning_rate: float = 1.0,
    test_tangent: ArrayLike | None = None,
    test_prior: ArrayLike | None = None,
    test_covariance: ArrayLike | None = None,
) -> Posterior:
    """Law of the outputs of infinitely wide networks, trained from random initializations.

    Parameters
    ----------
    tangent : (samples, samples) array_like
        Θ of the training inputs, as `ntk` returns it. With Θ = K only the output layer is trained;
        for t → ∞ the result is then the posterior of the Gaussian process without noise.
    prior : (samples, samples) array_like
        K of the training inputs, as `nngp` returns it: the covariance of the initial outputs.
    y : (samples,) or (samples, outputs) array_like
        Labels, real numbers; the loss is squared.
    times : (times,) array_like
        Times t >= 0, nondecreasing; see `descent`.
    learning_rate : float, default 1.0
        η > 0.
    test_tangent, test_prior : (tests, samples) array_like, optional
        Θ and K of the test inputs with the training inputs.
    test_covariance : (tests, tests) array_like, optional
        K of the test inputs. The three are given together; without them the result is for the
        training inputs.

    Returns
    -------
    Posterior
        Outputs at different points are jointly Gaussian, at each time.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an array, `tangent` or `prior` is not positive semidefinite, only
        some of the three test arguments are given, or a result overflows float64.
    ResultTooLargeError
        If the covariances at all times would not fit in memory.

    Notes
    -----
    Gradient flow maps the initial outputs linearly. With n samples and
    ``M_t = Θ_test Θ⁻¹ (1 − exp(−η t Θ / n))``, the outputs are ``f_t = f_0 + M_t (y − ŷ_0)``, and

        E f_t = M_t y,
        Cov f_t = K_test,test − M_t K_testᵀ − K_test M_tᵀ + M_t K M_tᵀ

    (Lee et al., arXiv 1902.06720, eq. (15) and (16), where the loss is a sum, not a mean).

    Examples
    --------
    >>> from bnmc.infinite_width import posterior
    >>> law = posterior([[2.0]], [[1.0]], [3.0], [0.0, 100.0])
    >>> law.mean.round(6), law.covariance.round(6)
    (array([[0.],
           [3.]]), array([[[1.]],
    <BLANKLINE>
           [[0.]]]))
    """
    values, vectors, scale = _eigensystem("tangent", tangent)
    n = values.size
    labels = _labels_of("y", y, n)
    when = _times_of(times)
    rate = real("learning_rate", learning_rate, above=0.0)
    square = finite_array("prior", prior, shape=(n, n)).astype(np.float64)
    _eigensystem("prior", square)
    names = ("test_tangent", "test_prior", "test_covariance")
    tests = test_tangent, test_prior, test_covariance
    missing = [name for name, value in zip(names, tests, strict=True) if value is None]
    if 0 < len(missing) < len(tests):
        allowed = "all of test_tangent, test_prior and test_covariance, or none"
        raise ArgumentError(missing[0], None, allowed)
    m, unit = n, binary_scale(square)
    if not missing:
        across = finite_array("test_tangent", test_tangent, shape=("tests", n))
        m = len(across)
        cross = finite_array("test_prior", test_prior, shape=(m, n)).astype(np.float64)
        among = finite_array("test_covariance", test_covariance, shape=(m, m))
        unit = np.maximum(unit, binary_scale(among.astype(np.float64)))
    # Maps, covariances, and the products between them.
    numbers = m * ((3 * m if missing else 4 * m + 3 * n) + 2 * (labels.size // n))
    require_memory("times", 8 * when.size * numbers, "take fewer times, or samples")
    with np.errstate(over="ignore", invalid="ignore"):  # raises below, by name
        motion, pulls = _learned(values, scale, rate / n, when)
        if missing:
            # Without test inputs M_t = 1 − exp(−η t Θ / n), and f_t − y is the rest of ŷ_0 − y.
            rest = np.einsum("ij,tj,kj->tik", vectors, np.exp(-motion), vectors, optimize=True)
            goal = labels / binary_scale(labels)
            mean = (goal - np.einsum("tik,k...->ti...", rest, goal)) * binary_scale(labels)
            covariance = rest @ (square / unit) @ np.swapaxes(rest, 1, 2)
        else:
            maps = across.astype(np.float64) / scale @ vectors
            maps = np.einsum("ij,tj,kj->tik", maps, pulls, vectors, optimize=True)
            mean = np.einsum("tik,k...->ti...", maps, labels)
            mixed = maps @ (cross / unit).T
            covariance = among / unit - mixed - np.swapaxes(mixed, 1, 2)
            covariance = covariance + maps @ (square / unit) @ np.swapaxes(maps, 1, 2)
        covariance = 0.5 * (covariance + np.swapaxes(covariance, 1, 2)) * unit
    require_finite("y", labels, mean)
    require_finite("prior", square, covariance)
    return Posterior(when, mean, np.asarray(covariance))
