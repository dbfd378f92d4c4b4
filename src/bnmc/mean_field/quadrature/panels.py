"""Gauss-Legendre rules on panels, the subintervals between consecutive edges."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from bnmc.mean_field.float64 import FloatArray

__all__ = [
    "GaussLegendre",
    "gauss_legendre",
    "panel_points",
    "power_of_cosine",
    "root_panels",
    "row_panels",
    "subdivided",
]

# `row_panels` drops panels that are at most this long in every row.
_EMPTY = 1e-13


class GaussLegendre(NamedTuple):
    """The Gauss-Legendre rule on [−1, 1] and the polynomials through values at its nodes.

    Attributes
    ----------
    nodes, weights : ndarray of shape (order,)
        The rule; it is exact for polynomials of degree below 2 · order.
    to_coefficients : ndarray of shape (order, order)
        Maps values at the nodes to Legendre coefficients.
    differentiate : ndarray of shape (order, order)
        Maps values at the nodes to values of the derivative there.
    """

    nodes: FloatArray
    weights: FloatArray
    to_coefficients: FloatArray
    differentiate: FloatArray


@lru_cache(maxsize=16)
def gauss_legendre(order: int) -> GaussLegendre:
    """Return the rule with `order` nodes."""
    nodes, weights = legendre.leggauss(order)
    values = legendre.legvander(nodes, order - 1)
    to_coefficients = (np.arange(order) + 0.5)[:, None] * values.T * weights
    slopes = np.stack(
        [legendre.legval(nodes, legendre.legder(row)) for row in np.eye(order)], axis=1
    )
    return GaussLegendre(nodes, weights, to_coefficients, slopes @ to_coefficients)


def subdivided(edges: FloatArray, widest: float) -> FloatArray:
    """Return the edges, with panels wider than `widest` divided evenly into narrower ones."""
    counts = np.maximum(np.ceil(np.diff(edges) / widest), 1.0).astype(int)
    position = np.concatenate([np.arange(count) / count for count in counts])
    low = np.repeat(edges[:-1], counts)
    return np.append(low + position * np.repeat(np.diff(edges), counts), edges[-1])


def panel_points(edges: FloatArray, nodes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the nodes moved to each panel, shape (panels, order), and half lengths, (panels, 1).

    Parameters
    ----------
    edges : ndarray of shape (panels + 1,)
        Ends of the panels, increasing.
    nodes : ndarray of shape (order,)
        Points of [−1, 1].
    """
    half = 0.5 * np.diff(edges)[:, None]
    return 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes, half


def root_panels(edges: FloatArray, order: int) -> tuple[FloatArray, FloatArray]:
    """Return a rule for integrands that may have square roots at the ends of panels.

    The point at position t of a panel from a to b is a + (b−a) sin²(πt/2), t in [0, 1].  It is
    quadratic in t at both ends, so that the root of the distance to an end is smooth in t.

    Parameters
    ----------
    edges : ndarray of shape (..., panels + 1)
        Ends of the panels, nondecreasing along the last axis.
    order : int
        Nodes per panel.

    Returns
    -------
    points, weights : ndarray of shape (..., panels · order)
        The weights sum to 4/π times the length of the interval.
    """
    nodes, weights, _, _ = gauss_legendre(order)
    position, length = 0.25 * np.pi * (nodes + 1.0), np.diff(edges)[..., None]
    points = edges[..., :-1, None] + length * np.sin(position) ** 2
    density = length * weights * np.sin(2.0 * position)
    shape = (*edges.shape[:-1], -1)
    return points.reshape(shape), density.reshape(shape)


def row_panels(edges: FloatArray, order: int) -> tuple[FloatArray, FloatArray]:
    """Return Gauss-Legendre nodes and weights on the panels of each row of edges.

    Parameters
    ----------
    edges : ndarray of shape (rows, panels + 1)
        Ends of the panels, nondecreasing.  Panels that are empty in every row are left out.
    order : int
        Nodes per panel.

    Returns
    -------
    nodes, weights : ndarray of shape (rows, kept panels · order)
    """
    length = np.diff(edges, axis=1)
    kept = (length > _EMPTY).any(axis=0)
    half, low = 0.5 * length[:, kept, None], edges[:, :-1][:, kept, None]
    nodes, weights, _, _ = gauss_legendre(order)
    points, spread = low + half * (nodes + 1.0), half * weights
    return points.reshape(len(edges), -1), spread.reshape(len(edges), -1)


def power_of_cosine(angle: FloatArray, power: float) -> FloatArray:
    """Return cos(angle)^power, accurate near 0 for large powers, where all its weight is."""
    # np.cos(angle)**power would lose `power` units in the last place.
    return np.asarray(np.exp(power * np.log1p(-2.0 * np.sin(0.5 * angle) ** 2)))
