"""`CorrelationMap`: variances and correlations of two inputs through a wide random network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import instance, integer, real, real_numbers
from bnmc._support.text import Result
from bnmc.chain.activations import ActivationLike
from bnmc.chain.chain import Chain, Network, layer_at, require_no_blocks
from bnmc.chain.needs import FULLY_CONNECTED, PAIRWISE, require
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.mean_field.correlation import fixed_points
from bnmc.mean_field.correlation.layer import (
    LEAST_VARIANCE,
    LevelMap,
    PairLayer,
    level_map,
    pair_layer,
)
from bnmc.mean_field.correlation.phases import Phase, phase_of
from bnmc.mean_field.float64 import FloatArray, within
from bnmc.plot.axes import label_layers
from bnmc.plot.drawn import Drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FULLY_CONNECTED = FULLY_CONNECTED._replace(
    hint="its map acts on the Gram matrix of samples and positions: bnmc.MeanField(chain).step; "
    "fixed points are those of the chain without convolution"
)


_correlations = partial(real_numbers, "correlation", low=-1, high=1)


@dataclass(frozen=True, kw_only=True)
class PairTrajectory(Drawn, Result):
    """Variances and correlations over depth; see `CorrelationMap.trajectory`.

    `plot` draws the correlations against the layer.

    Attributes
    ----------
    variance : ndarray of shape (depth + 1,)
        q_l, the variance of the pre-activations of layer l.
    correlation : ndarray of shape (depth + 1, ...)
        c_l, with the shape of the argument `correlation` behind the axis of layers.
    backward_rate : ndarray of shape (depth,)
        Factor of the expected squared gradient norm from layer l + 1 back to layer l.
    error : float
        Bound of the error of one application of the map, relative to the variance.  Errors of
        earlier layers propagate to later ones.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> run = CorrelationMap("tanh").trajectory(2, correlation=0.5)
    >>> run.variance.round(6), run.correlation.round(6)
    (array([1.      , 0.394294, 0.23645 ]), array([0.5     , 0.472551, 0.462135]))
    """

    variance: FloatArray
    correlation: FloatArray
    backward_rate: FloatArray
    error: float

    @property
    def layers(self) -> FloatArray:
        """The layers l, shape (depth + 1,)."""
        return np.arange(len(self.variance), dtype=np.float64)

    def _draw(self, ax: Axes) -> None:
        ax.plot(self.layers, self.correlation.reshape(len(self.layers), -1))
        label_layers(ax)
        ax.set_ylabel("correlation")


class CorrelationMap:
    """The infinite-width limit of networks that treat each pair of inputs on its own.

    These networks have a norm over the features ("layer", "rms", "group") or none, with or without
    biases.  For norms over the batch use `bnmc.MeanField`.

    Parameters
    ----------
    activation : str, Activation or callable
        Activation σ, as for `bnmc.infinite_width.dual`. The derivative of your own function is
        computed if it is not known. Kinks need not be declared; see `bnmc.infinite_width.dual`.
    weight_variance : float, default 1
        σ_w², the variance of the weights times the number of their inputs, from 1e-100 to 1e100.
    bias_variance : float, default 0
        σ_b² >= 0, the variance of the biases.
    norm : {"none", "layer", "rms", "group"} or Norm, default "none"
        Normalization N over the features. The number of groups does not matter at infinite width.
    order : {"norm-activation", "activation-norm", "pre-activation"}
        Whether N acts before or after σ, or before σ in the residual branch only; see Notes.
    skip : float, default 0
        Factor of the skip connection.
    eps : float, default 0
        Number >= 0 that N adds to the variance.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed. For norms over the batch the message names `MeanField`.

    Notes
    -----
    Let h_l be the pre-activations of layer l, q their variance and c the correlation of two inputs
    of equal variance. W and b are random. In each order, one layer maps h as follows:

    =================  ======================================
    "norm-activation"  ``h ← skip N(h) + W σ(N(h)) + b``
    "activation-norm"  ``h ← skip h + W N(σ(h)) + b``
    "pre-activation"   ``h ← skip h + W σ(N(h)) + b``
    =================  ======================================

    Without skip connection and norm it maps, with ``V(q, c) = E σ(u)σ(v)`` for normal u, v of
    variance q and correlation c,

        q ← σ_w² V(q, 1) + σ_b²,    c ← Φ(c) = (σ_w² V(q, c) + σ_b²) / q_new.

    The module `bnmc.mean_field.correlation.layer` has the general formulas. Sources: Poole et al.
    (arXiv 1606.05340); Schoenholz et al. (arXiv 1611.01232). Expectations at one variable are
    Gauss-Legendre sums on panels that end at kinks. V has a closed form, or is a Hermite series.
    Stated errors consist of four times the largest difference between sums on panels of three
    widths, the bound of what the series lacks, and rounding, each propagated to first order. They
    include kinks that were neither declared nor found, but may miss features narrower than 0.01 √q.

    Examples
    --------
    >>> from bnmc.mean_field import CorrelationMap
    >>> tanh = CorrelationMap("tanh", weight_variance=2.5, bias_variance=0.05)
    >>> print(tanh.phase())
    chaotic: variance 1.06396, correlation 0.446804, depth scale 11.8 layers; squared gradient norm
    ×1.13352 per layer, depth scale 7.979 layers
    >>> tanh([0.0, 0.5, 1.0]).round(6)
    array([0.046994, 0.495928, 1.      ])
    """

    def __init__(
        self,
        activation: ActivationLike,
        *,
        weight_variance: float = 1.0,
        bias_variance: float = 0.0,
        norm: str | Norm = "none",
        order: str = "norm-activation",
        skip: float = 0.0,
        eps: float = 0.0,
    ) -> None:
        variances = {"weight_variance": weight_variance, "bias_variance": bias_variance}
        #: The checked arguments.
        self.layer = pair_layer(activation, norm, order, skip=skip, eps=eps, **variances)

    @classmethod
    def of(cls, chain: Chain) -> Self:
        """Return the map of a chain whose norm is "none" or acts over the features.

        Parameters
        ----------
        chain : Chain
            Its gain is the root of σ_w². Width, batch and law of the weights do not matter.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `chain` is no such chain.

        Examples
        --------
        >>> from bnmc.mean_field import CorrelationMap
        >>> import bnmc
        >>> chain = bnmc.Chain(1000, 2, "relu", norm="none", gain=2**0.5)
        >>> CorrelationMap.of(chain).phase().name
        'critical'
        """
        require(chain, [_FULLY_CONNECTED, PAIRWISE])
        return cls(
            chain.activation,
            weight_variance=chain.gain * chain.gain,
            norm=chain.normalization,
            **{name: getattr(chain, name) for name in ("bias_variance", "order", "skip", "eps")},
        )

    def __call__(
        self, correlation: ArrayLike, *, variance: float | None = None, rtol: float = 1e-6
    ) -> FloatArray:
        """Φ(c), the correlation after one layer.

        Parameters
        ----------
        correlation : array_like of real numbers
            c in [−1, 1].
        variance : float, optional
            q >= 1e-300 before the layer. Default: the fixed point of `phase`.
        rtol : float, default 1e-6
            Largest acceptable error of Φ.

        Returns
        -------
        ndarray of float64

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If an argument is not allowed, or the variance has no positive and finite fixed point.
        PartialEstimateError
            If `rtol` is not reached, as near c = ±1 if σ has many kinks that are not declared;
            ``partial`` is the result.
        """
        rtol = real("rtol", rtol, above=0.0)
        c, at = _correlations(correlation), self._at(variance)
        return self._accurate(*_value(at, c, rtol), rtol)

    def slope(
        self, correlation: ArrayLike, *, variance: float | None = None, rtol: float = 1e-6
    ) -> FloatArray:
        """Φ′(c), the derivative of the correlation after one layer.

        Parameters, errors and result are those of a call; `rtol` is relative if Φ′ exceeds 1.

        Examples
        --------
        >>> from bnmc.mean_field import CorrelationMap
        >>> relu = CorrelationMap("relu", weight_variance=2.0)
        >>> relu.slope([-1.0, 0.0, 1.0], variance=1.0)
        array([0. , 0.5, 1. ])
        """
        rtol = real("rtol", rtol, above=0.0)
        c, at = _correlations(correlation), self._at(variance)
        slope, error = at.slope(c)
        # Quadratures have Φ′ if σ′ is known and σ does not jump.
        differentiable = self.layer.sigma.function.derivative is not None
        if error > rtol and differentiable and not math.isinf(at.level.inner.gradient):
            slope, error = at.integrated.slope(c)
        return self._accurate(slope, error, rtol)

    def variance_fixed_points(self) -> tuple[fixed_points.VariancePoint, ...]:
        """Fixed points q* of the variance map, by increasing variance.

        Returns
        -------
        tuple of VariancePoint
            Without those above 1e12. Fixed points below 1e-12 count as 0. Of three whose ratios
            are below 1.33, two may be missed. Empty if the variance diverges from every start, or
            if every variance is a fixed point: relu with σ_w² = 2 and σ_b² = 0.

        Raises
        ------
        ArgumentError
            If σ has no finite mean square.

        Examples
        --------
        >>> from bnmc.mean_field import CorrelationMap
        >>> points = CorrelationMap("tanh", weight_variance=1.5).variance_fixed_points()
        >>> [(round(point.variance, 6), point.stable) for point in points]
        [(0.0, False), (0.286894, True)]
        """
        return fixed_points.variance_points(self.layer)

    def fixed_points(
        self, *, variance: float | None = None, atol: float = 1e-9, rtol: float = 1e-6
    ) -> tuple[fixed_points.CorrelationPoint, ...]:
        """Fixed points c* of the correlation map, by increasing correlation.

        Parameters
        ----------
        variance : float, optional
            q >= 1e-300. Default: the fixed point of `phase`.
        atol : float, default 1e-9
            Φ′(1) up to 1 + atol counts as at most 1.
        rtol : float, default 1e-6
            Largest acceptable error of a fixed point.

        Returns
        -------
        tuple of CorrelationPoint
            All of them: c* = 1; if Φ′(1) > 1, one in [0, 1), which is the attractor; and if Φ is
            odd and Φ′(1) > 1, also −1.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If an argument is not allowed, the variance has no positive and finite fixed point, or Φ
            is the identity.
        PartialEstimateError
            If `rtol` is not reached; ``partial`` is the tuple.

        Notes
        -----
        The coefficients of Φ in powers of c are not negative, which bounds the number of fixed
        points; see the module `bnmc.mean_field.correlation.fixed_points`.

        Examples
        --------
        >>> from bnmc.mean_field import CorrelationMap
        >>> chaos = CorrelationMap("tanh", weight_variance=3.0, bias_variance=0.1)
        >>> [(round(point.correlation, 6), point.stable) for point in chaos.fixed_points()]
        [(0.477539, True), (1.0, False)]
        """
        atol = real("atol", atol, low=0.0)
        at = self._at(variance)
        if at.is_identity:
            name, allowed = self.layer.sigma.name, "an activation or a bias"
            hint = "here every correlation is a fixed point"
            raise ArgumentError("activation", name, f"{allowed} for which Φ(c) is not c", hint)
        points = fixed_points.correlation_points(at, atol)
        worst = max(point.error for point in points)
        rtol = real("rtol", rtol, above=0.0)
        return within(points, worst, rtol, "fixed point of the correlation")

    def phase(self, *, start: float = 1.0, atol: float = 1e-9, rtol: float = 1e-6) -> Phase:
        """Whether the network is ordered, critical or chaotic, with its depth scales.

        Parameters
        ----------
        start : float, default 1
            Variance of the pre-activations of layer 0, > 0. It matters if the variance map has
            several attractors, or every variance is a fixed point.
        atol : float, default 1e-9
            Largest ``|χ − 1|`` of the critical phase.
        rtol : float, default 1e-6
            Largest acceptable error of c* and of χ.

        Returns
        -------
        Phase
            Ordered if χ < 1: gradients vanish. Chaotic if χ > 1: gradients explode. If the variance
            tends to a positive and finite fixed point, ``χ = Φ′(1)``. Then correlations tend to 1
            in the ordered phase, and in the chaotic phase inputs that are nearly equal separate. If
            the variance tends to 0 or to infinity, the name tells nothing about correlations.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If an argument is not allowed, or σ has no finite mean square.
        PartialEstimateError
            If `rtol` is not reached; ``partial`` is the `Phase`.

        Notes
        -----
        Each layer of backpropagation multiplies the expected squared gradient norm by χ
        (Schoenholz et al., 2017, for networks without norm; the same argument gives it for norms
        over the features, before or after the activation). If the variance tends to 0 or to
        infinity, χ is its limit, and Φ′(1) is χ divided by the factor of the variance. For relu
        without bias, ``χ = skip² + σ_w²/2`` and Φ′(1) = 1: correlations tend to 1 in every phase.

        Examples
        --------
        >>> from bnmc.mean_field import CorrelationMap
        >>> CorrelationMap("relu", weight_variance=2.0).phase().name
        'critical'
        >>> CorrelationMap("tanh", weight_variance=0.9, norm="layer").phase().name
        'chaotic'
        >>> print(CorrelationMap("relu", weight_variance=2.0, skip=0.5).phase())
        chaotic: variance inf, correlation 1, depth scale inf layers; squared gradient norm ×1.25
        per layer, depth scale 4.481 layers
        >>> round(
        ...     CorrelationMap("tanh", weight_variance=1.2, bias_variance=0.3)
        ...     .phase()
        ...     .correlation_depth,
        ...     6,
        ... )
        2.217086
        """
        start = real("start", start, above=0.0)
        atol = real("atol", atol, low=0.0)
        variance = fixed_points.attractor(self.layer, start)
        phase, worst = phase_of(self.layer, variance, atol)
        return within(phase, worst, real("rtol", rtol, above=0.0), "phase")

    def trajectory(
        self, depth: int, *, correlation: ArrayLike, variance: float = 1.0, rtol: float = 1e-6
    ) -> PairTrajectory:
        """Variance and correlations of the pre-activations, layer by layer.

        Parameters
        ----------
        depth : int
            Number of layers, >= 0.
        correlation : array_like of real numbers
            Correlations of layer 0, in [−1, 1].
        variance : float, default 1
            Variance of layer 0, >= 1e-300.
        rtol : float, default 1e-6
            Largest acceptable error of one application of the map.

        Returns
        -------
        PairTrajectory

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If an argument is not allowed.
        NonFiniteError
            If the variance overflows or underflows.
        PartialEstimateError
            If `rtol` is not reached; ``partial`` is the `PairTrajectory`.

        Examples
        --------
        >>> from bnmc.mean_field import CorrelationMap
        >>> run = CorrelationMap("relu", weight_variance=2.0).trajectory(3, correlation=[0.0, 0.9])
        >>> run.correlation.round(4)
        array([[0.    , 0.9   ],
               [0.3183, 0.9095],
               [0.4937, 0.9177],
               [0.6048, 0.9249]])
        """
        depth, c = integer("depth", depth, low=0), _correlations(correlation)
        q = real("variance", variance, low=LEAST_VARIANCE)
        rtol = real("rtol", rtol, above=0.0)
        return _path([self.layer] * depth, q, c, rtol)

    @staticmethod
    def path(
        network: Network, *, correlation: ArrayLike, variance: float = 1.0, rtol: float = 1e-6
    ) -> PairTrajectory:
        """Variance and correlations along a network whose layers differ.

        Parameters
        ----------
        network : Network
            Without norms over the batch, convolutions and residual blocks. Layer l owns its norm
            and activation, and the weights that lead to it.
        correlation, variance, rtol
            As in `trajectory`, of the pre-activations of layer 0.

        Returns
        -------
        PairTrajectory
            Widths do not matter: the squared gradient norm of a layer is over all its neurons.

        Raises
        ------
        ArgumentError, ArgumentTypeError, NonFiniteError, PartialEstimateError
            As `trajectory`.

        Examples
        --------
        >>> from bnmc import Chain
        >>> from bnmc.mean_field import CorrelationMap
        >>> relu = Chain(64, 2, "relu", norm="none", gain=2**0.5)
        >>> network = relu.repeat(2) + Chain(32, 2, "tanh", norm="layer").repeat(1)
        >>> CorrelationMap.path(network, correlation=0.5).correlation.round(4)
        array([0.5   , 0.609 , 0.6839, 0.7381])
        """
        network = instance("network", network, Network, "a bnmc.Network")
        require_no_blocks(network, "bnmc.MeanField(network).trajectory has them", "network")
        for chain in network.chains:
            require(chain, [_FULLY_CONNECTED, PAIRWISE])
        c, q = _correlations(correlation), real("variance", variance, low=LEAST_VARIANCE)
        rtol = real("rtol", rtol, above=0.0)
        layers = [layer_at(network, number) for number in range(network.depth + 1)]
        made = [
            PairLayer.of_rows(
                before.rows, layer.linear.gain**2, layer.linear.bias_variance, layer.rows.skip
            )
            for before, layer in pairwise(layers)
        ]
        return _path(made, q, c, rtol)

    def _at(self, variance: float | None) -> LevelMap:
        """Return Φ at the argument `variance`, or at the fixed point of the variance."""
        if variance is not None:
            q = real("variance", variance, low=LEAST_VARIANCE)
        else:
            q = fixed_points.attractor(self.layer, 1.0)
            if not 0.0 < q < math.inf:
                allowed = "a number > 0, as the variance of this network tends to 0 or diverges"
                raise ArgumentError("variance", variance, allowed)
        return level_map(self.layer, q)

    def _accurate(self, value: FloatArray, error: float, rtol: float) -> FloatArray:
        note = ": near correlation 1 or -1, declare the kinks of the activation"
        return within(value, error, rtol, f"the series of {self.layer.sigma.name} is", note)


def _path(layers: Sequence[PairLayer], q: float, c: FloatArray, rtol: float) -> PairTrajectory:
    """Return variance and correlations through some layers; raise if `rtol` is not reached."""
    variances, correlations, gradients, worst = [q], [c], [], 0.0
    for number, layer in enumerate(layers, 1):
        at = level_map(layer, q)
        q = at.level.following
        if not LEAST_VARIANCE <= q < math.inf:
            raise NonFiniteError(None, number, "variance")
        c, error = _value(at, c, rtol)
        variances.append(q)
        correlations.append(c)
        gradients.append(at.level.gradient)
        worst = max(worst, error)
    run = PairTrajectory(
        variance=np.array(variances),
        correlation=np.array(correlations),
        backward_rate=np.array(gradients),
        error=worst,
    )
    return within(run, worst, rtol, "a layer is")


def _value(at: LevelMap, c: FloatArray, rtol: float) -> tuple[FloatArray, float]:
    """Return Φ(c) and its error: by the series, or by quadratures if the series is too short."""
    value, error = at.value(c)
    return at.integrated.value(c) if error > rtol else (value, error)
