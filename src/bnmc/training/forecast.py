"""Memory and time of a training before it begins, and which of its matrices are drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bnmc.training.architecture import Matrix
from bnmc.training.course import Course
from bnmc.training.scalings import HIDDEN

#: Operations of a processor core per second, bytes that it moves, and normals that it draws.
_OPERATIONS, _BYTES, _NORMALS = 2e10, 4e9, 1e8

#: Seconds that Python takes for a product with an implicit matrix.
_CALL = 5e-4

#: Bytes of a float64.
_WORD = 8


class _Asked(NamedTuple):
    """Columns that a matrix multiplies in a training.

    Attributes
    ----------
    forward, backward : int
        Columns that W and Wᵀ multiply.
    calls : int
    """

    forward: int
    backward: int
    calls: int


def _asked_of(course: Course) -> _Asked:
    """Return how many columns each hidden matrix multiplies, at most."""
    samples, outputs = course.targets.shape
    times, steps = len(course.times), course.steps
    names = {each.name for each in course.observables}
    tests = course.tests.shape[1]
    forward, backward, calls = tests * times, 0, 2 * steps + 2 * times
    if course.batches is None:
        forward += samples * (steps + 1)
        backward += samples * steps
        # The gradient of a step is that of the loss of all inputs, but none follows the last step.
        backward += samples * ("gradient_norm" in names) * (course.times[-1:] == steps).sum()
    else:
        batch = course.architecture.network.batch
        forward += batch * steps + samples * times
        backward += batch * steps + samples * times * ("gradient_norm" in names)
    if "kernel" in names:
        mixing = samples if course.architecture.mixes_samples else 1
        backward += samples * outputs * mixing * times
    if "kernel_on_targets" in names:
        forward, backward = forward + samples * times, backward + samples * times
    return _Asked(int(forward), int(backward), calls)


class Forecast(NamedTuple):
    """What a training needs.

    Attributes
    ----------
    seconds : float
        Of one network on one core, within a factor of about 3.
    bytes_of_chain, bytes_of_results : int
        Of a network in training, and of the results of one.
    """

    seconds: float
    bytes_of_chain: int
    bytes_of_results: int


def with_matrices(course: Course, matrices: str) -> Course:
    """Return a course whose hidden matrices are "implicit", "drawn", or the faster ("auto").

    The choice depends on sizes alone, so a seed has the same bits on all machines.
    """
    asked = _asked_of(course)

    def chosen(matrix: Matrix) -> Matrix:
        if matrix.place != HIDDEN or matrices == "drawn":
            return matrix
        pays = _implicit_seconds(matrix, asked) < _drawn_seconds(matrix, asked, course)
        is_implicit = matrices == "implicit" or pays
        return matrix._replace(is_implicit=is_implicit, directions=_directions(matrix, asked))

    architecture = course.architecture
    new = tuple(chosen(matrix) for matrix in architecture.matrices)
    return replace(course, architecture=architecture._replace(matrices=new))


def forecast_of(course: Course) -> Forecast:
    """Return the forecast of a course."""
    asked, architecture = _asked_of(course), course.architecture
    seconds, size = 0.0, 0
    for matrix in architecture.matrices:
        if matrix.is_implicit:
            seconds += _implicit_seconds(matrix, asked)
            size += _implicit_bytes(matrix, asked, course)
        else:
            seconds += _drawn_seconds(matrix, asked, course)
            size += 4 * _itemsize(course) * matrix.rows * matrix.columns
            if matrix.is_orthogonal:
                size += 8 * _WORD * matrix.rows * matrix.columns
    samples, outputs = course.targets.shape
    widths = [matrix.columns for matrix in architecture.matrices]
    passes = max(samples, course.tests.shape[1])
    size += _WORD * passes * (8 * sum(widths) + 12 * max(widths))
    if any(each.name == "kernel" for each in course.observables):
        seeds = samples * outputs * (samples if architecture.mixes_samples else 1)
        size += _WORD * (seeds * (sum(widths) + 4 * max(widths)) + 3 * (seeds * samples))
    results = _WORD * sum(math.prod(shape) for shape in course.shapes.values())
    return Forecast(seconds, size, results)


def _itemsize(course: Course) -> int:
    return np.dtype(course.architecture.dtype).itemsize


def _directions(matrix: Matrix, asked: _Asked) -> tuple[int, int]:
    """Return how many directions W and Wᵀ have, at most."""
    if matrix.is_orthogonal:
        both = min(asked.forward + asked.backward, matrix.columns)
        return both, both
    return min(asked.forward, matrix.columns), min(asked.backward, matrix.rows)


def _implicit_bytes(matrix: Matrix, asked: _Asked, course: Course) -> int:
    right, left = _directions(matrix, asked)
    vectors = right if matrix.is_orthogonal else right + left
    values = 6 * _WORD * (1 + right) * (1 + left)
    return _itemsize(course) * vectors * (matrix.rows + matrix.columns) + values


def _implicit_seconds(matrix: Matrix, asked: _Asked) -> float:
    """Return the time of products: projections, images and normals of new directions."""
    right, left = _directions(matrix, asked)
    size = matrix.rows + matrix.columns
    columns = asked.forward + asked.backward
    new = right + left
    operations = 2.0 * columns * (right + left) / 2 * 5 * size
    coefficients = 2.0 * asked.calls / 2 * right * left * 4
    return (operations + coefficients) / _OPERATIONS + new * size / _NORMALS + _CALL * asked.calls


def _drawn_seconds(matrix: Matrix, asked: _Asked, course: Course) -> float:
    """Return the time of drawing, of products and gradients, and of steps."""
    entries = float(matrix.rows) * matrix.columns
    operations = 2.0 * entries * (asked.forward + 2 * asked.backward)
    if matrix.is_orthogonal:
        operations += 10.0 * entries * matrix.columns
    if course.optimizer == "muon" and matrix.place == HIDDEN:
        operations += 30.0 * course.steps * entries * min(matrix.rows, matrix.columns)
    moved = 6.0 * _itemsize(course) * entries * course.steps
    return operations / _OPERATIONS + entries / _NORMALS + moved / _BYTES
