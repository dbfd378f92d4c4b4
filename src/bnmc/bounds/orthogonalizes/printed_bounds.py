"""Theorems 1 and 5, Corollary 3, and Lemmas 6 and 8, as printed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, broadcast, integers, real_numbers
from bnmc.errors import ArgumentError

__all__ = ["corollary_3", "lemma_6", "lemma_8", "theorem_1", "theorem_5"]


def theorem_1(
    depth: ArrayLike, width: ArrayLike, batch: ArrayLike, alpha: ArrayLike
) -> Float64Array:
    """Theorem 1: bound of the mean orthogonality gap.

    "Under Assumption A₁(α, ℓ), the following holds:
    ``E[V(H_{ℓ+1})] <= 2 (1 − 2α/3)^ℓ + 3n/(α√d)``", with ``V(H) = ‖HᵀH/‖H‖_F² − I/n‖_F``, which
    is `bnmc.gram.orthogonality_gap`.

    ℓ is `depth`, the number of layers after the first normalized layer. That layer is H₁ in the
    paper and layer 0 in `bnmc.simulate`. So the function bounds the gap at layer `depth` of a run
    with ``λ_min(G)/Tr G >= alpha`` at all earlier layers. This α differs from the printed α, see
    `bnmc.bounds.orthogonalizes`.

    Parameters
    ----------
    depth : array_like of int
        Layers ℓ >= 0 after the first normalized layer.
    width, batch : array_like of int
        d and n >= 1.
    alpha : array_like
        Lower bound of the squared singular values of H, in (0, 1/n].

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import theorem_1
    >>> theorem_1([0, 10, 100], width=10**6, batch=3, alpha=0.3).round(4)
    array([2.03  , 0.2447, 0.03  ])
    """
    depth = integers("depth", depth, low=0, accept_floats=True)
    width = integers("width", width, accept_floats=True)
    batch = integers("batch", batch, accept_floats=True)
    alpha = real_numbers("alpha", alpha, "numbers > 0", lambda value: value > 0)
    depth, width, batch, alpha = broadcast(depth=depth, width=width, batch=batch, alpha=alpha)
    _require_at_most_one_over_batch("alpha", alpha, batch)
    with np.errstate(over="ignore"):  # an infinite bound is valid
        bound: Float64Array = 2 * (1 - 2 * alpha / 3) ** depth + 3 * batch / alpha / np.sqrt(width)
    return bound


def corollary_3(
    depth: ArrayLike, width: ArrayLike, batch: ArrayLike, alpha: ArrayLike
) -> Float64Array:
    """Corollary 3: bound of the squared Wasserstein-2 distance of W H from a Gaussian matrix.

    "For G ∈ R^{d×n} with i.i.d. zero-mean 1/d-variance Gaussian elements,
    ``W₂(law(W_ℓ H_ℓ), law(G/√n))² <= 4n (1 − 2α/3)^ℓ + 6n²/(α√d)`` holds under Assumption
    A₁(α, ℓ)". By Lemma 2, ``W₂² <= 2n E[V(H_ℓ)]``, the bound is 2n times `theorem_1`. Since
    `theorem_1` bounds the gap of ``H_{ℓ+1}``, count ℓ as in `theorem_1`, for layer `depth` of
    `bnmc.simulate`.

    For given H the distance itself is `wasserstein_squared`, at most ``2(1 − 1/√n)``. For W of unit
    variance, both the distance and the bound have a factor d.

    Parameters
    ----------
    depth, width, batch, alpha : array_like
        As for `theorem_1`.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As for `theorem_1`.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import corollary_3
    >>> corollary_3([10, 100], width=10**8, batch=3, alpha=0.3).round(4)
    array([1.3065, 0.018 ])
    """
    bound_of_gap = theorem_1(depth, width, batch, alpha)
    with np.errstate(over="ignore"):
        bound: Float64Array = 2 * integers("batch", batch, accept_floats=True) * bound_of_gap
    return bound


def theorem_5(v_hat: ArrayLike, width: ArrayLike, batch: ArrayLike) -> Float64Array:
    """Theorem 5: bound of the mean of V̂ after one layer.

    "Sequence {H_ℓ} obeys
    ``E[V̂(H_{ℓ+1}) | H_ℓ] <= (1 − (2/3)(1/n − V̂(H_ℓ))) V̂(H_ℓ) + 1/√d``", where
    ``V̂(H) = 1/n − σ_n(H)²`` (`shortfall`). The only assumption is d >= n.

    Parameters
    ----------
    v_hat : array_like
        V̂(H_ℓ), in [0, 1/n].
    width, batch : array_like of int
        d and n >= 1.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import theorem_5
    >>> print(theorem_5(0.25, width=10_000, batch=3).round(6))
    0.246111
    """
    width = integers("width", width, accept_floats=True)
    contracted = lemma_8(v_hat, batch)
    broadcast(v_hat=contracted, width=width)
    bound: Float64Array = contracted + 1 / np.sqrt(width)
    return bound


def lemma_6(width: ArrayLike) -> Float64Array:
    """Lemma 6: bound of the variance of ``C = HᵀH`` after one layer.

    "The following concentration always holds ``E‖C_{ℓ+1} − E[C_{ℓ+1}]‖² <= 1/d``", for given H_ℓ
    and with the Frobenius norm. The variance itself is `one_step_variance`, at most (1 − 1/n)/d.

    Parameters
    ----------
    width : array_like of int
        d >= 1.

    Returns
    -------
    ndarray of float64
        Of the shape of `width`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `width` is not an array of integers >= 1.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import lemma_6
    >>> lemma_6([100, 1000])
    array([0.01 , 0.001])
    """
    bound: Float64Array = 1 / integers("width", width, accept_floats=True)
    return bound


def lemma_8(v_hat: ArrayLike, batch: ArrayLike) -> Float64Array:
    """Lemma 8: bound of V̂ after one layer of infinite width.

    "For p_n(σ) defined in Eq. (13), the following holds:
    ``(1/n − p_n(σ)) <= (1 − (2/3)(1/n − V̂(H_ℓ))) V̂(H_ℓ)``". Here p_n is the smallest of
    `expected_shares`. The proof gives 2n/(n+2) in place of 2/3. That is the origin of the rate
    n/(n+2) of the chain near orthogonality.

    Parameters
    ----------
    v_hat : array_like
        V̂(H_ℓ) (`shortfall`), in [0, 1/n].
    batch : array_like of int
        n >= 1.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import lemma_8
    >>> from bnmc.bounds.orthogonalizes import expected_shares, shortfall
    >>> spectrum = [0.1, 0.3, 0.6]
    >>> print(lemma_8(shortfall(spectrum), 3).round(6))
    0.217778
    >>> print((1 / 3 - expected_shares(spectrum)[0]).round(6))
    0.166943
    """
    v_hat = real_numbers("v_hat", v_hat, "numbers >= 0", lambda value: value >= 0)
    batch = integers("batch", batch, accept_floats=True)
    v_hat, batch = broadcast(v_hat=v_hat, batch=batch)
    _require_at_most_one_over_batch("v_hat", v_hat, batch)
    bound: Float64Array = (1 - 2 / 3 * (1 / batch - v_hat)) * v_hat
    return bound


def _require_at_most_one_over_batch(name: str, array: Float64Array, batch: Float64Array) -> None:
    excess = array > 1 / batch
    if excess.any():
        n = int(batch[excess][0])
        raise ArgumentError(name, float(array[excess][0]), f"at most 1/batch = 1/{n}")
