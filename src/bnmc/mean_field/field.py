"""`MeanField`: the infinite-width limit of a chain."""

from __future__ import annotations

from bnmc._validate import real
from bnmc.chain import Chain
from bnmc.errors import ArgumentTypeError
from bnmc.mean_field.fixed_point import FixedPoint, fixed_point

__all__ = ["MeanField"]


class MeanField:
    """The infinite-width limit of a chain.

    Parameters
    ----------
    chain : Chain
        The chain. Its width, gain and law of the weights play no role at infinite width under
        normalization without eps: it is scale free, and the weights act through their variance.

    Raises
    ------
    ArgumentTypeError
        `chain` is not a `Chain`.

    Examples
    --------
    >>> import bnmc
    >>> star = MeanField(bnmc.Chain(width=1000, batch=10, activation="relu")).fixed_point()
    >>> round(star.b, 9), round(star.c, 9), round(star.rate, 9), star.stable
    (0.5, 0.264721235, 0.791092273, True)
    """

    def __init__(self, chain: Chain) -> None:
        if not isinstance(chain, Chain):
            raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
        self.chain = chain

    def fixed_point(self, *, rtol: float = 1e-8) -> FixedPoint:
        """Fixed point of the map that all permutations of the batch leave alone, and its stability.

        Parameters
        ----------
        rtol : float, optional
            Largest acceptable `FixedPoint.error`, > 0. For smooth and piecewise smooth activations
            the true error is about 1e-13, and 1e-10 for the backward rate.

        Returns
        -------
        FixedPoint

        Raises
        ------
        ArgumentError
            The chain has skip or eps other than 0, a batch of 1, or norm "none" (where every G is a
            fixed point of the linear chain of gain 1, so the fixed point is yours to choose, and
            the fixed points of other chains depend on gain). Or the activation is constant on the
            sphere (so that ``G*`` has rank one and the Jacobian does not exist), not odd under norm
            "batch-uncentred", not finite, or too rough to be resolved.
        PartialEstimateError
            The error estimate exceeds `rtol`; ``partial`` is the fixed point.

        Notes
        -----
        **Centred** (norm "batch"). Under any G of this form, ``φ`` is uniform on the sphere of
        radius √n orthogonal to 1. With ``μ = b(1−c)``, σ₁ = σ(φ₁) and so on,

            b = E σ₁²,    b c = E σ₁σ₂,

        and this G is the fixed point ``F(G*) = G*`` (Joudaki et al., eq. 5). On a symmetric Δ
        orthogonal to 1 and of trace 0 the Jacobian acts as the number

            λ_Δ = (n−1) / (2μ‖Δ‖²) · E[(σᵀΔσ)(uᵀΔu)],    u = φ/√n.

        Permutations leave two values. For ``Δ = P diag(d) P`` (multiplicity n−1)

            λ_L = n / (2μ(n−2)) · {(1−2/n) E[σ₁²(φ₁²−1)] − 2(1−1/n) E[σ₁σ₂(φ₁²−1)]},

        and for the Δ with zero diagonal, say ``(e₁−e₂)(e₃−e₄)ᵀ`` and its transpose (multiplicity
        n(n−3)/2), averaging over the other coordinates, which are uniform given φ₁ and φ₂,

            λ_M = (n−1)/(nμ) · E[σ₁σ₂ (φ₁φ₂ + s²/(n−2) + (s² + φ₁² + φ₂² − n)/((n−2)(n−3)))],

        s = φ₁ + φ₂. For linear σ both are (n−1)/(n+1). With ∇ the gradient on the unit sphere,
        going back a layer multiplies the gradient's squared norm by

            (E|∇σ₁|² − E ∇σ₁·∇σ₂) / (μ(n−3)),

        which is infinite for n ≤ 3. Two batches through the same network: the block between them
        tends to (E σ₁)² at the rate ``2n/(n−1)² [Γ(n/2)/Γ((n−1)/2)]² E[σ₁φ₁]²/μ``.

        **Not centred** (norm "batch-uncentred"), odd σ: φ is uniform on the whole sphere of radius
        √n, ``G* = b I``, and the eigenvalues are ``n/(2b(n−1)) E[σ₁²(φ₁²−1)]`` on diagonal Δ
        (multiplicity n−1) and ``E[σ₁σ₂φ₁φ₂]/b`` off the diagonal (multiplicity n(n−1)/2); for
        linear σ both are n/(n+2). The backward factor is ``E|∇σ₁|²/(b(n−2))``, the rate between
        two batches ``2/n [Γ((n+1)/2)/Γ(n/2)]² E[σ₁φ₁]²/b``.

        Examples
        --------
        >>> import bnmc
        >>> chain = bnmc.Chain(width=1000, batch=5, activation="linear")
        >>> star = MeanField(chain).fixed_point()
        >>> [round(value, 9) for value in star.eigenvalues], star.multiplicities
        ([0.666666667, 0.666666667], (4, 5))
        >>> round(star.backward_rate, 9), round(star.cross_batch_rate, 6)
        (1.5, 0.883573)
        """
        return fixed_point(self.chain, real("rtol", rtol, above=0.0))
