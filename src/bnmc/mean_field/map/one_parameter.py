"""Nodes for a normalized row that depends on one random parameter, or on none.

If the covariance S of a row has rank 0 or 1, or rank 2 without damping, the normalized row φ is a
function of at most one parameter, and F(G) = E[σ(φ) σ(φ)ᵀ] is a sum or an integral over it.
"""

from __future__ import annotations

import numpy as np

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.rows import Rows

__all__ = ["has_one_parameter", "one_parameter_nodes"]

# A standard normal variable is cut off at this; the weight beyond is about 1e-20.
_REACH = 9.5


def has_one_parameter(rows: Rows) -> bool:
    """Return whether the normalized row is a function of at most one parameter."""
    return rows.rank < 2 or (rows.rank == 2 and rows.damping == 0.0)


def one_parameter_nodes(rows: Rows, count: int, shift: float) -> tuple[FloatArray, FloatArray]:
    """Return nodes φ, shape (batch, nodes), and their weights, shape (nodes,).

    Parameters
    ----------
    rows : Rows
        The law of the rows, with at most one parameter.
    count : int
        Nodes; one or two if there is no parameter.
    shift : float
        Position of the first node, in [0, 1), in units of the distance of the nodes.
    """
    radius = np.sqrt(rows.scale)
    if rows.rank == 0:
        return np.zeros((len(rows.vectors), 1)), np.ones(1)
    if rows.rank == 1 and rows.damping == 0.0:
        return radius * np.concatenate([rows.vectors, -rows.vectors], axis=1), np.full(2, 0.5)
    position = (np.arange(count) + shift) / count
    return _on_a_line(rows, position) if rows.rank == 1 else _on_a_circle(rows, position)


def _on_a_line(rows: Rows, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rule for rank 1: φ = v g without normalization, √n v g/√(g² + ε) with it.

    Here v is the eigenvector (times the root of the eigenvalue) and g a standard normal variable.
    With g = √ε sinh x, g/√(g² + ε) is tanh x.
    """
    normalized = bool(rows.norm_values.any())
    end = np.arcsinh(_REACH / np.sqrt(rows.damping)) if normalized else _REACH
    x = end * (2.0 * position - 1.0)
    if normalized:
        factor, g = np.sqrt(rows.scale) * np.tanh(x), np.sqrt(rows.damping) * np.sinh(x)
        speed = np.sqrt(rows.damping) * np.cosh(x)
    else:
        factor, g, speed = np.sqrt(rows.values) * x, x, np.ones_like(x)
    weight = np.exp(-0.5 * g * g) * speed * (2.0 * end / position.size / np.sqrt(2.0 * np.pi))
    return rows.vectors * factor, weight


def _on_a_circle(rows: Rows, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rule for rank 2 without damping: φ = √n v with v a unit vector.

    The angle of v has a density proportional to 1/(vᵀ S⁻¹ v), by the formula of `pairwise`
    with all weight at z = ∞, where M = S⁻¹ up to a factor.  The nodes are equally spaced in the
    angle ψ with v ∝ S^¼ (cos ψ, sin ψ), as in `bnmc.mean_field.map.planes`.
    """
    wave = np.stack([np.cos(2.0 * np.pi * position), np.sin(2.0 * np.pi * position)])
    root = rows.values[:, None] ** 0.25
    weight = 1.0 / (position.size * root.prod() * np.sum((wave / root) ** 2, axis=0))
    direction = root * wave
    direction /= np.linalg.norm(direction, axis=0)
    return np.sqrt(rows.scale) * (rows.vectors @ direction), weight
