"""`MeanField`: the infinite-width limit of a chain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from bnmc._support.arguments import draw_key, instance, integer, real
from bnmc.chain.chain import Chain, Network, as_network, require_no_blocks
from bnmc.chain.needs import INDEPENDENT_ENTRIES, NO_SKIP, require
from bnmc.mean_field.finite_width.path import path_fluctuations
from bnmc.mean_field.finite_width.predicted import WITHOUT_DEPENDENCE, fluctuations
from bnmc.mean_field.finite_width.results import Fluctuations
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.fixed_point.symmetric import fixed_point
from bnmc.mean_field.float64 import within
from bnmc.mean_field.map.iteration import MeanFieldTrajectory, Step, step, trajectory

_NO_SKIP = NO_SKIP._replace(
    hint="with a skip connection the fluctuations depend on those of the rows: measure the spread "
    "of a run of bnmc.simulate"
)


class MeanField:
    """The infinite-width limit of a chain.

    Parameters
    ----------
    chain : Chain or Network
        The chain, or a `Network`, which has a `trajectory` alone. Its width and the law of its
        weights are not used: at infinite width only the variance of the weights matters. If there
        is a normalization and eps is 0, the gain does not matter either: the normalization is
        invariant to the scale of its input. For fixed points of norms over the features and
        without norm, use `bnmc.mean_field.CorrelationMap`.

    Raises
    ------
    ArgumentTypeError
        If `chain` is neither a `Chain` nor a `Network`.

    Examples
    --------
    >>> from bnmc import MeanField
    >>> import bnmc
    >>> point = MeanField(bnmc.Chain(width=1000, batch=10, activation="relu")).fixed_point()
    >>> round(point.b, 9), round(point.c, 9), round(point.rate, 9), point.stable
    (0.5, 0.264721235, 0.791092273, True)
    """

    def __init__(self, chain: Chain | Network) -> None:
        self.network, self._given = as_network(chain, default=1), chain

    @property
    def chain(self) -> Chain:
        """The chain, or `ArgumentTypeError` if layers differ."""
        return self.network.chain

    def fixed_point(self, *, rtol: float = 1e-8) -> FixedPoint:
        """Fixed point of the map that all permutations of the batch preserve, and its stability.

        Parameters
        ----------
        rtol : float, default 1e-8
            Largest acceptable `FixedPoint.error`, > 0. For smooth and piecewise smooth activations
            the error is about 1e-11; the true error is about 1e-13, that of the backward rate about
            1e-12.

        Returns
        -------
        FixedPoint
            With the matrix ``G*``, the eigenvalues of the Jacobian and the rates.

        Raises
        ------
        ArgumentError
            If the norm is not over the batch (for layer and RMS norm see `fluctuations`), skip or
            eps is not 0, the batch is 1, or there is a bias that the norm does not remove.
            Without normalization, the fixed points depend on the gain, and for the linear chain of
            gain 1 every G is one. Also if the activation is not finite, too rough for quadrature,
            or constant on the sphere: then ``G*`` has rank one and no Jacobian. Under norm
            "batch-uncentred", also if the sum of the activations over the batch is always 0.
        PartialEstimateError
            If the error exceeds `rtol`; ``partial`` is the fixed point. For example, if σ is like
            ``|x − 0.3|^0.6``: float64 numbers near 0.3 are too coarse for the backward rate.

        Notes
        -----
        The error is a bound of the true error, under one assumption: σ has no feature that all
        samples miss. Kinks and jumps need not be declared; narrow bumps may have to be: see
        `Activation`. The backward rate is ``inf`` if ``E σ′²`` diverges: σ jumps, or is like
        ``|x − s|^p`` with p ≤ 1/2.

        The fixed point has the form ``G* = b ((1−c) I + c 11ᵀ)``, with n the batch size and 1 the
        vector (1, …, 1). Let φ be the normalized row of ``w ~ N(0, G*)``, φ_i its entry for sample
        i, σ the activation, ``σ_i = σ(φ_i)`` and ``μ = b(1−c)``.

        **Norm "batch".** φ is uniform on the sphere of radius √n orthogonal to 1, so ``F(G*) = G*``
        (Joudaki et al., eq. 5) with

            b = E σ₁²,    b c = E σ₁σ₂.

        For a symmetric matrix Δ with Δ1 = 0 and trace 0, with ``u = φ/√n``, the Jacobian has the
        eigenvalue

            λ_Δ = (n−1) / (2μ‖Δ‖²) · E[(σᵀΔσ)(uᵀΔu)].

        By permutation symmetry there are two values. For ``Δ = P diag(d) P`` with P the projector
        orthogonal to 1 (multiplicity n−1)

            λ_L = n / (2μ(n−2)) · {(1−2/n) E[σ₁²(φ₁²−1)] − 2(1−1/n) E[σ₁σ₂(φ₁²−1)]}.

        For Δ with zero diagonal, for example ``(e₁−e₂)(e₃−e₄)ᵀ`` plus its transpose with e_i the
        unit vectors (multiplicity n(n−3)/2), with ``s = φ₁ + φ₂``,

            λ_M = (n−1)/(nμ) · E[σ₁σ₂ (φ₁φ₂ + s²/(n−2) + (s² + φ₁² + φ₂² − n)/((n−2)(n−3)))].

        This formula contains the average over φ₃ and φ₄ given φ₁ and φ₂. For linear σ, λ_L and λ_M
        are (n−1)/(n+1). With ∇ the gradient on the unit sphere, the backward rate is

            (E|∇σ₁|² − E ∇σ₁·∇σ₂) / (μ(n−3)),

        which is infinite for n = 3. For n = 2 it is infinite as the limit eps → 0; with eps = 0,
        N(w) is ±(1, −1), and gradients are exactly 0. For two batches in the same network, with Γ
        the Gamma function, the entries of the Gram matrix between the batches tend to (E σ₁)² at
        the rate ``2n/(n−1)² [Γ(n/2)/Γ((n−1)/2)]² E[σ₁φ₁]²/μ``.

        **Convolutions.** A convolution averages G over the shifts δ of its taps before F. It keeps
        G*, so b, c, the backward rate and the numbers of two batches are those of the fully
        connected chain with as many columns. On deviations of spatial frequency k the average is
        the factor ``mean_δ exp(2πi k·δ)``, and F keeps the frequency, as shifts are permutations.
        So `FixedPoint.modes` has the products of these factors with λ_L and λ_M, and ``rate`` is
        their largest modulus. The factor of frequency 0 is 1.

        **Norm "batch-uncentred", odd σ.** φ is uniform on the whole sphere of radius √n, and
        ``G* = b I``. The eigenvalues are ``n/(2b(n−1)) E[σ₁²(φ₁²−1)]`` on diagonal Δ
        (multiplicity n−1) and ``E[σ₁σ₂φ₁φ₂]/b`` on Δ with zero diagonal (multiplicity n(n−1)/2).
        For linear σ both are n/(n+2). The backward rate is ``E|∇σ₁|²/(b(n−2))``. The rate between
        two batches is ``2/n [Γ((n+1)/2)/Γ(n/2)]² E[σ₁φ₁]²/b``.

        **Norm "batch-uncentred", other σ.** ``φ = sin ψ 1 + cos ψ x`` with x uniform on the sphere
        of radius √n orthogonal to 1, and ``tan ψ = √(g₀/g₁) tan ψ′``, where ``g₀ = 1 + (n−1)c``,
        ``g₁ = 1 − c``, and ψ′ is that angle for a row of independent standard normal entries. With
        ``S(ψ) = E[σ(φ₁)² | ψ]`` and ``C(ψ) = E[σ(φ₁)σ(φ₂) | ψ]``, the correlation solves
        ``c = Φ(c) = E C/E S``. The eigenvalues are Φ′(c) (multiplicity 1), two on the span of
        diag(d) and d1ᵀ + 1dᵀ for d orthogonal to 1 (multiplicity n−1 each; they may be complex),
        and one on the matrices with zero diagonal and zero row sums (multiplicity n(n−3)/2). The
        backward rate and the rate between batches are the largest eigenvalues of the corresponding
        maps on matrices that permutations preserve.

        Examples
        --------
        >>> from bnmc import MeanField
        >>> import bnmc
        >>> chain = bnmc.Chain(width=1000, batch=5, activation="linear")
        >>> point = MeanField(chain).fixed_point()
        >>> [round(value, 9) for value in point.eigenvalues], point.multiplicities
        ([0.666666667, 0.666666667], (4, 5))
        >>> round(point.backward_rate, 9), round(point.cross_batch_rate, 6)
        (1.5, 0.883573)
        """
        return fixed_point(self.chain, real("rtol", rtol, above=0.0))

    def fluctuations(self, *, rtol: float = 1e-4) -> Fluctuations:
        """Fluctuations of the stationary Gram matrix around the fixed point at finite width.

        Parameters
        ----------
        rtol : float, default 0.0001
            Largest acceptable relative numerical error of ``E‖G − G*‖_F²``, > 0. For named
            activations the error is usually below 1e-6.

        Returns
        -------
        Fluctuations
            With the mean square of the distance, the width for a distance, the covariance of the
            entries, and autocorrelations. `Fluctuations.bias` needs a norm over the batch.

        Raises
        ------
        ArgumentError
            Under a norm over the batch, as in `fixed_point`. Under other norms if skip is not 0,
            the batch is 1, the variance of the pre-activations has no stable fixed point, or every
            correlation is a fixed point. Also if the weights are "haar", whose noise differs, and
            for convolutions. For convolutions, and for chains without stable fixed point,
            `trajectory` has the fluctuations along the path of an input.
        NotMixing
            If the fixed point is unstable; ``partial`` is the `FixedPoint` and ``exponent`` the
            logarithm of its rate. Under a norm over the features or none, if correlations tend to
            1, so that Gram matrices become singular; ``partial`` is the `Phase` and ``exponent``
            half the logarithm of Φ′(1). The pivots are not known, so ``pivot_trend`` is 0.
        PartialEstimateError
            If `rtol` is not reached, or a variance is negative beyond its error; ``partial`` is the
            `Fluctuations`, or the `FixedPoint` if that is not accurate enough, or if the activation
            has so many narrow features that no quadrature is affordable.

        Notes
        -----
        Let d be the width, n the batch size, σ the vector of activations of a normalized row of
        ``w ~ N(0, G*)``, and J the Jacobian of the mean-field map at G*. Given G_l, the Gram matrix
        of the next layer is a mean over d rows with covariance ``C/d``, ``C = Cov(σσᵀ)``, and J
        carries deviations on. So to leading order in 1/d the stationary covariance is S/d with

            S = J S Jᵀ + C.

        Permutations of the samples leave three sectors, in which these are matrices of at most
        2 × 2 numbers; see `Sector`. An eigenvector of Jᵀ with eigenvalue λ has the variance
        ``C/((1 − λ²) d)`` in its direction. C contains E σ_iσ_jσ_kσ_l, which are integrals
        over at most four angles, and five under norm "batch-uncentred" if σ is not odd. They are
        evaluated by nested Gauss rules with panels that end at kinks of σ; for n ≥ 24, Fourier
        transforms replace all angles but the fifth. Every panel on which σ is resolved contains
        nodes of both rules, so none misses a narrow feature of σ. The stated error is the sum over
        the sectors of the difference between two such rules. If σ has features narrower than a
        fifth of its range and n is 5 or more, it often exceeds the default `rtol`. It decreases
        slowly if σ has kinks and n is 4, 5 or 6: to about 1e-6 by four angles. By five, these cases
        take up to a minute with the default `rtol`, others about 10 s.

        The law of the weights does not matter to leading order if their entries are independent.
        For the linear chain with norm "batch" and ``m = n − 1``,

            E‖G − G*‖_F² = n²(m−1)(m+2)²/(4m(m+1)d) + O(1/d²).

        **Norms over the features, no norm.** The map acts on pairs of samples. G* is at the
        variance and the correlation that `CorrelationMap.phase` returns. The derivatives of an
        entry with respect to its own value and to its two diagonal entries determine J. C has the
        terms of the norm that `bnmc.mean_field.finite_width.path` derives. Given one normal
        variable that all samples share, they are independent, so every expectation is an integral
        over two variables; see the module `bnmc.mean_field.finite_width.predicted`. It takes
        about 0.2 s, and the numerical error is about 1e-13. For norms over the features with eps 0,
        the lengths of samples do not matter, so 0 is an eigenvalue of J.

        The documentation page *Derivations* derives the equations.

        Examples
        --------
        >>> from bnmc import MeanField
        >>> import bnmc
        >>> law = MeanField(bnmc.Chain(width=1000, batch=10, activation="relu")).fluctuations()
        >>> print(law.mean_square(1000))
        0.0405666
        >>> law.width_for(0.1)
        4057
        >>> law.least_width
        91
        >>> linear = MeanField(bnmc.Chain(width=1000, batch=4, activation="linear"))
        >>> round(linear.fluctuations().mean_square(1).value, 9), round(16 * 2 * 25 / 48, 9)
        (16.666666667, 16.666666667)
        >>> layer = bnmc.Chain(width=1000, batch=10, activation="tanh", norm="layer")
        >>> print(MeanField(layer).fluctuations().mean_square(1000))
        0.104558
        """
        return fluctuations(self.chain, real("rtol", rtol, above=0.0))

    def step(
        self, G: ArrayLike, *, rtol: float | None = None, rng: Any = None, max_nodes: int = 100_000
    ) -> Step:
        """One step ``F(G) = E[σ(φ) σ(φ)ᵀ]`` of the map, with ``φ = N(w)``, ``w ~ N(0, gain² G)``.

        σ is the activation and N the normalization, with every eps. Before the activation, a norm
        over the features divides each sample by its standard deviation, as the mean over infinitely
        many features is 0. After it, of order "activation-norm", ``F(G)_ij = (V_ij − m_i m_j) /
        √((V_ii − m_i² + eps)(V_jj − m_j² + eps))`` with ``V = E[σ(w) σ(w)ᵀ]`` and m = E σ(w), or 0
        for norm "rms". With biases the covariance of w is gain² G plus their variance, and a
        convolution averages G over its taps first: `bnmc.Convolution`.

        Parameters
        ----------
        G : (batch, batch) array_like
            Gram matrix G, symmetric and positive semidefinite to rounding; it may be singular.
        rtol : float, optional
            Largest acceptable `Step.error`, > 0. The default is 1e-4, and 1e-3 √batch with a norm
            over the batch after σ; then entries have errors of about 1e-3.
        rng : optional
            Seed or generator of the random shifts of the lattices: any argument of
            `numpy.random.default_rng`. Only norms over the batch have lattices or points.
        max_nodes : int, default 100_000
            Largest number of nodes of a lattice, or of points of a set, >= 1. The fewest ones are
            evaluated in any case. With the default, a step for 10 samples takes several seconds at
            most.

        Returns
        -------
        Step
            With `Step.gram`, its standard errors `Step.stderr`, and `Step.error`. As an array it is
            ``F(G)``.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `G` is not such a matrix, or no row can be normalized: with eps 0, equal samples
            under norm "batch", ``G = 0`` under norm "batch-uncentred", a sample 0 under a norm over
            the features. Also if skip is not 0: then `trajectory` starts at a covariance. Also if
            eps is 0 and σ is constant on an interval, like relu, before a norm over the batch; or
            the activation is not finite on [−4, 4], or
            constant and followed by a norm, or has no finite mean square under no norm over the
            batch.
        NonFiniteError
            If the activation overflows.
        PartialEstimateError
            If `rtol` is not reached within `max_nodes`; ``partial`` is the `Step`.

        Notes
        -----
        **Norms over the features, no norm.** Each entry depends on two samples. It has a closed
        form for the activations that `bnmc.infinite_width.dual` lists, and is a Hermite series or,
        for nearly parallel samples if σ has kinks, a quadrature for all others. A step for 10
        samples takes some milliseconds, with a relative error of about 1e-14. So `rng` is not used,
        and only an `rtol` below this error raises `PartialEstimateError`. See the module
        `bnmc.mean_field.pairwise_layer`.

        **Norms over the batch after σ.** ``F(G) = E N(σ(w)) N(σ(w))ᵀ`` is a mean over 8 sets of
        scrambled Sobol points, each with its negative, in as many coordinates as samples. For batch
        size n and 65,536 points, the relative error is about 2e-3 at n = 16 and 5e-3 at n = 64. If
        eps > 0, rows of equal outputs are 0: the diagonal of relu is 1 − 2⁻ⁿ for independent
        samples and small eps, since all n entries of a row are negative with probability 2⁻ⁿ.

        **Norms over the batch before σ.** Let n be the batch size, and S the covariance of the part
        of the row that the normalization sees, divided by its trace t: of ``gain² PGP`` under norm
        "batch", with P the projector orthogonal to (1, …, 1), of ``gain² G`` under norm
        "batch-uncentred". Let ``ε = n eps / t``.

        *Homogeneous* σ, ``σ(x) = αx + β|x|``: linear, relu, leaky relu, abs, or a user's function
        with such values. With ``C(z) = S(I + 2zS)⁻¹``,

            F(G) = n ∫₀^∞ det(I+2zS)^(−1/2) exp(−εz) (α² C(z) + β² A(C(z))) dz,
            A(C)_ij = (2/π) √(C_ii C_jj) (√(1−ρ²) + ρ arcsin ρ),    ρ = C_ij / √(C_ii C_jj).

        The trapezoidal rule, applied to the variable log z, computes this integral with a relative
        error of about 1e-15, for every covariance S. Again `rng` is not used.

        *Other* σ. ``F(G)_ij`` is an integral over z and one angle, whatever n (see the module
        `bnmc.mean_field.map.pairwise`). It is evaluated by a randomly shifted two-dimensional
        lattice of nodes, a randomised quasi-Monte Carlo method. Each shift gives an unbiased
        estimate. The result is the mean over 8 shifts with its standard error (7 degrees of
        freedom). The lattice is refined until the error is at most `rtol`. With the number of
        nodes, the error decreases exponentially for smooth σ, like the power −5/4 for σ with
        corners, and like the power −3/4 for σ with jumps. For smooth σ it is often much smaller
        than `rtol`. Each pair of samples has its own nodes, so a nearly singular ``F(G)`` may be
        indefinite within its error.

        Examples
        --------
        >>> from bnmc import MeanField
        >>> import bnmc
        >>> import numpy as np
        >>> mean_field = MeanField(bnmc.Chain(width=1000, batch=4, activation="tanh"))
        >>> point = mean_field.fixed_point()
        >>> layer = mean_field.step(np.eye(4), rtol=1e-8, rng=0)
        >>> layer.method, bool(np.allclose(layer, point.gram, rtol=0, atol=1e-8))
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
        G0: ArrayLike | None = None,
        depth: int | None = None,
        *,
        covariance: ArrayLike | None = None,
        rtol: float | None = None,
        rng: Any = None,
        max_nodes: int = 100_000,
        fluctuations: bool = False,
        fluctuation_rtol: float = 0.02,
        max_points: int = 1 << 15,
    ) -> MeanFieldTrajectory:
        """Iterates ``G_{l+1} = F(G_l)`` of the map from ``G_0``: the chain at infinite width.

        Layers of a network have maps F of their own. Chains with skip connections start at the
        covariance of their initial state.

        Parameters
        ----------
        G0 : (batch, batch) array_like, optional
            Gram matrix of layer 0, that of σ(x_0) with x_0 the input and σ the activation; see `G`
            of `step`.
        depth : int, optional
            Number of layers l of a chain, >= 0; a network has its own.
        covariance : (batch, batch) array_like, optional
            In place of `G0`: the covariance Σ_0 of the rows of h_0, which are Gaussian, as those of
            the start ``FirstLayer(x)``; then Σ_0 is ``x.T @ x / features``.
        rtol : float, optional
            Largest acceptable `MeanFieldTrajectory.error`, > 0. The default is that of `step`.
        rng, max_nodes
            As in `step`.
        fluctuations : bool, default False
            Whether to predict the fluctuations of chains of finite width around this path, or of a
            network at its own widths.
        fluctuation_rtol : float, default 0.02
            Largest acceptable relative standard error of ``E‖G_l − F^l(G_0)‖_F²``, > 0.
        max_points : int, default 32_768
            Points of an estimate of the Jacobian of one layer, at most, >= 1. The coarsest set, of
            512 points, is evaluated in any case; the cost of a layer is 16 such sets.

        Returns
        -------
        MeanFieldTrajectory
            With ``gram`` and ``stderr`` of shape (depth + 1, batch, batch), layer 0 included. With
            ``covariance`` if that is given, and with ``fluctuations`` if they are asked for.

        Raises
        ------
        ArgumentError, ArgumentTypeError, NonFiniteError
            As in `step`. Also if not exactly one of `G0` and `covariance` is given, if `G0` is and
            layer 1 has a skip connection, and if a skip connection keeps N(h) with N over the
            batch. Also if `fluctuations` is true and a layer has a skip connection, the weights are
            "haar", or samples are parallel, of different lengths, and normalized over the features
            with eps > 0.
        ZeroVarianceError
            If the rows of a later layer cannot be normalized, for example under norm "batch" if σ
            is constant on the sphere (abs for two samples); the message names the layer.
        ResultTooLargeError
            If the result would not fit in memory.
        PartialEstimateError
            If `rtol` is not reached within `max_nodes`, or `fluctuation_rtol` within `max_points`;
            ``partial`` is the `MeanFieldTrajectory`.

        Notes
        -----
        On lattices, each of the 8 random shifts has its own trajectory, on the same
        lattice in all layers; with a norm over the batch after σ, so does each set of points. So
        the standard errors of a layer include the propagated errors of
        earlier layers. These decrease if F is a contraction, and grow otherwise. F is not linear,
        which causes a bias of the order of the squared standard error.

        **Skip connections.** The rows of ``h_{l+1} = skip h_l + gain W a_l + b`` are Gaussian, with

            Σ_{l+1} = skip² Σ_l + gain² C(G_l) + σ_b² 11ᵀ,

        and G_{l+1} depends on Σ_{l+1} as in `step`; C is the average of a convolution. In the order
        "norm-activation" the skip connection keeps N(h_l). If N acts over the features, it divides
        samples by constants. If N acts over the batch, the rows are not Gaussian: all moments of a
        row matter, so no map of covariances exists. `bnmc.infinite_width.nngp` estimates this case
        from paths of rows.

        A `bnmc.Residual` block without projection adds the covariance of the rows where the block
        begins, as long as these rows are Gaussian. If the skip path begins at activations σ(h), the
        rows of W a + σ(h) are not Gaussian, and the block is refused. With a projection P the block
        adds the covariance of the rows of P x: given x, these rows are Gaussian, whatever the law
        of x. An array h_0 is no layer with Gaussian rows, but a fixed set of rows. So a skip
        connection from h_0 is taken as one from ``FirstLayer(x)``, whose rows are Gaussian with the
        same covariance.

        **Fluctuations.** Given G_l, the Gram matrix of a layer of width d is a mean over d rows,
        with covariance ``C_l/d``, ``C_l = Cov(σσᵀ)``; σ is the vector of activations of a row. Let
        J_l be the Jacobian of F at ``F^l(G_0)``. To leading order in 1/d, the covariance of G_l at
        width d is S_l/d with

            S_0 = 0,    S_{l+1} = J_l S_l J_lᵀ + C_l.

        For a network, ``C_l/d_{l+1}`` replaces C_l, with d_{l+1} the width of layer l + 1, and the
        covariance is S_l. From `covariance`, S_0 is that of the rows of layer 0.

        Let R z with z ~ N(0, I) be the part of a row that the normalization sees. Then ``J_l[Δ] = ½
        Cov(σσᵀ, zᵀ R⁺ Δ R⁺ᵀ z)``. The formula has no derivative of σ, so σ may have kinks and
        jumps. C_l and J_l are means over scrambled Sobol points. J_l S_l J_lᵀ uses two
        independent estimates of J_l, so S_l is unbiased. The standard errors are those of 8
        replicates. A norm over the features adds terms to σσᵀ, for the means and lengths of samples
        at finite width: see `bnmc.mean_field.finite_width.path`. Deep layers have the
        fluctuations at the fixed point, if the path tends to a stable one. For batch size n, each
        point of a layer costs about n⁴ operations. The theory
        needs that G_l is far from singular, compared with its fluctuation, in the space that the
        normalization sees; `PathFluctuations.least_widths` judges this. Without normalization, S_l
        grows with depth l, and the theory holds for l much less than d;
        `bnmc.random_matrix.linear_covariance` is exact for linear chains.

        Examples
        --------
        >>> from bnmc import MeanField
        >>> import bnmc
        >>> import numpy as np
        >>> mean_field = MeanField(bnmc.Chain(width=1000, batch=5, activation="relu"))
        >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0, 4.0, 5.0]), depth=30)
        >>> run.gram.shape
        (31, 5, 5)
        >>> point = mean_field.fixed_point()
        >>> gap = bnmc.gram.distance(run.gram, point.gram)
        >>> float((gap[30] / gap[29]).round(3)), round(point.rate, 3)
        (0.61, 0.61)

        Residual blocks, from independent samples: the variance of a row grows linearly.

        >>> blocks = MeanField(bnmc.Chain.resnet(width=1000, batch=5, gain=2**0.5))
        >>> run = blocks.trajectory(covariance=np.eye(5), depth=3)
        >>> run.covariance[:, 0, 0].round(6)
        array([1., 2., 3., 4.])

        A network at its own widths:

        >>> network = bnmc.Chain(500, 3, "relu").repeat(2) + bnmc.Chain(200, 3, "tanh").repeat(1)
        >>> run = MeanField(network).trajectory(np.diag([1.0, 2.0, 3.0]), fluctuations=True, rng=0)
        >>> run.fluctuations.mean_square().value.round(3)
        array([0.   , 0.003, 0.003, 0.006])
        """
        network = as_network(self._given, depth)
        if not instance("fluctuations", fluctuations, bool, "True or False"):
            return trajectory(network, G0, covariance, rtol, rng, max_nodes)
        for chain in network.chains:
            require(chain, [INDEPENDENT_ENTRIES, _NO_SKIP], WITHOUT_DEPENDENCE)
        require_no_blocks(network, _NO_SKIP.hint)
        wanted = real("fluctuation_rtol", fluctuation_rtol, above=0.0)
        most = integer("max_points", max_points, low=1)
        key = draw_key(rng)
        path = trajectory(network, G0, covariance, rtol, key, max_nodes)
        law = path_fluctuations(
            network, path.gram, path.covariance, wanted, key, most,
            has_widths=isinstance(self._given, Network),
        )  # fmt: skip
        complete = replace(path, fluctuations=law)
        note = f" with {most} points"
        return within(complete, law.error, wanted, "mean square", note, "fluctuation_rtol")
