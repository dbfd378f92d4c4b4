"""`MeanField`: the infinite-width limit of a chain."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from bnmc._support.arguments import real
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentTypeError
from bnmc.mean_field.fixed_point.fixed_point import fixed_point
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.map.map import MeanFieldTrajectory, Step, step, trajectory

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
            sphere (so that ``G*`` has rank one and the Jacobian does not exist; under norm
            "batch-uncentred" so does a sum over the batch that is always 0), not finite, or too
            rough to be resolved.
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

        **Not centred**, other σ: ``φ = sin ψ 1 + cos ψ x`` with x uniform on the centred sphere and
        ``tan ψ = √(g₀/g₁) tan ψ′``, where g₀ = 1 + (n−1)c, g₁ = 1 − c and ψ′ is the angle of an
        isotropic vector. With S(ψ) = E σ(φ₁)² and C(ψ) = E σ(φ₁)σ(φ₂) at given ψ, the correlation
        solves ``c = Φ(c) = E C/E S``. The eigenvalues are Φ′(c) (multiplicity 1), two of a block of
        the standard representation (n−1 each; they may be complex), and that of the matrices with
        zero diagonal and zero row sums (n(n−3)/2). Backward and cross-batch rate are the leading
        eigenvalues of the maps on what permutations leave alone.

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

    def step(
        self, G: ArrayLike, *, rtol: float = 1e-4, rng: Any = None, max_nodes: int = 100_000
    ) -> Step:
        """One step ``F(G) = E[σ(φ) σ(φ)ᵀ]`` of the map: ``φ = N(gain · w)``, ``w ~ N(0, G)``.

        All norms, and eps, are allowed.

        Parameters
        ----------
        G : (batch, batch) array_like
            Gram matrix, symmetric and positive semidefinite to rounding; it may be singular.
        rtol : float, optional
            Largest acceptable ``‖stderr‖ / ‖F(G)‖`` (Frobenius norms), > 0.
        rng : optional
            Anything `numpy.random.default_rng` takes (SPEC 7), for the shifts of the lattices.
        max_nodes : int, optional
            Largest number of nodes of a lattice, >= 1; the coarsest is tried in any case.  With
            the default a layer of 10 samples takes several seconds at most.

        Returns
        -------
        Step
            With `Step.gram`, its standard errors `Step.stderr`, and `Step.error`; it can be used
            as the array ``F(G)``.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            `G` is not such a matrix, or no row can be normalized: equal samples under "batch",
            ``G = 0`` under "batch-uncentred", eps 0.  Or skip is not 0, or the activation is not
            finite on [−4, 4].
        NonFiniteError
            The activation overflows.
        PartialEstimateError
            `rtol` is not met within `max_nodes`; ``partial`` is the `Step`.

        Notes
        -----
        **Homogeneous** σ (linear, relu, leaky relu, abs, or a user's: that is found from values),
        ``σ(x) = αx + β|x|``.  With S what the normalization sees of G (``PGP``, or G), and
        ``C(z) = S(I + 2zS)⁻¹``,

            F(G) = n ∫₀^∞ det(I+2zS)^(−1/2) exp(−z n eps) (α² C(z) + β² A(C(z))) dz,
            A(C)_ij = (2/π) √(C_ii C_jj) (√(1−ρ²) + ρ arcsin ρ),    ρ = C_ij / √(C_ii C_jj),

        and ``F(G) = α² G + β² A(G)``, times gain², without normalization.  The trapezoidal rule in
        log z gives it to about 1e-15, whatever the spectrum of S; rtol and rng hardly matter.

        **Other** σ.  ``F(G)_ij`` is an integral over z and one angle
        (`bnmc.mean_field.map.pairwise`), whatever the batch.  It is evaluated on a two-dimensional
        lattice of nodes that is shifted at random, a form of randomised quasi-Monte Carlo: each
        shift is an unbiased estimate, the mean over 8 of them is returned with its standard
        error (7 degrees of freedom), and lattices are refined until that meets `rtol`.  For a
        smooth σ the error falls exponentially as they are, so it is often much smaller than
        `rtol`; for a σ with kinks it falls like the number of nodes to the power −5/4, for one
        that jumps −3/4.  Each pair of samples has nodes of its own, so a nearly singular ``F(G)``
        may be indefinite within its error.

        Examples
        --------
        >>> import bnmc
        >>> import numpy as np
        >>> mean_field = MeanField(bnmc.Chain(width=1000, batch=4, activation="tanh"))
        >>> star = mean_field.fixed_point()
        >>> layer = mean_field.step(np.eye(4), rtol=1e-8, rng=0)
        >>> layer.method, bool(np.allclose(layer, star.gram, rtol=0, atol=1e-8))
        ('lattice', True)
        >>> relu = MeanField(bnmc.Chain(width=1000, batch=3, activation="relu"))
        >>> relu.step(np.diag([1.0, 2.0, 3.0])).gram.round(6)
        array([[0.436141, 0.067732, 0.053003],
               [0.067732, 0.5     , 0.042762],
               [0.053003, 0.042762, 0.563859]])
        """
        return step(self.chain, G, rtol, rng, max_nodes)

    def trajectory(
        self,
        G0: ArrayLike,
        depth: int,
        *,
        rtol: float = 1e-4,
        rng: Any = None,
        max_nodes: int = 100_000,
    ) -> MeanFieldTrajectory:
        """Iterates ``G_{l+1} = F(G_l)`` of the map from ``G_0``: the chain at infinite width.

        Parameters
        ----------
        G0 : (batch, batch) array_like
            Gram matrix of layer 0, that of σ(x_0), as `G` of `step`.
        depth : int
            Layers to go, >= 0.
        rtol : float, optional
            Largest acceptable ``‖stderr‖ / ‖G_l‖`` (Frobenius norms) of any layer, > 0.
        rng, max_nodes
            As in `step`.

        Returns
        -------
        MeanFieldTrajectory
            With ``gram`` and ``stderr`` of shape (depth + 1, batch, batch), layer 0 included.

        Raises
        ------
        ArgumentError, ArgumentTypeError, NonFiniteError
            As in `step`.
        ZeroVarianceError
            The rows of a later layer cannot be normalized (under "batch" a σ that is constant on
            the sphere, as abs is for two samples); it names the layer.
        ResultTooLargeError
            The result would not fit in memory.
        PartialEstimateError
            `rtol` is not met within `max_nodes`; ``partial`` is the `MeanFieldTrajectory`.

        Notes
        -----
        Where σ is not homogeneous each of the 8 random shifts has a trajectory of its own, on the
        same lattice in all layers, so the standard errors of a layer include what became of those
        before: they stay where F contracts, and grow where it does not.  The map is not linear,
        which makes a bias of the order of their square.

        Examples
        --------
        >>> import bnmc
        >>> import numpy as np
        >>> mean_field = MeanField(bnmc.Chain(width=1000, batch=5, activation="relu"))
        >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0, 4.0, 5.0]), depth=30)
        >>> run.gram.shape
        (31, 5, 5)
        >>> star = mean_field.fixed_point()
        >>> gap = bnmc.gram.distance(run.gram, star.gram)
        >>> float((gap[30] / gap[29]).round(3)), round(star.rate, 3)
        (0.61, 0.61)
        """
        return trajectory(self.chain, G0, depth, rtol, rng, max_nodes)
