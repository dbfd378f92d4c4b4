"""One step and the iterates of the mean-field map, with an estimate of their errors.

`step` and `trajectory` evaluate `MeanField.step` and `MeanField.trajectory`, and `iterates` passes
layers that may differ in anything but the number of samples.  Layers without norm
over the batch are sums of series or closed forms: `bnmc.mean_field.pairwise_layer`.  With such a
norm before the activation, homogeneous activations use `homogeneous_map`, and others
`pairwise_maps` on lattices with 8 random shifts.  With one after it, `points_map` uses 8 sets of
random points.  Each shift has its own trajectory, so the standard errors include propagated errors.

**Skip connections.**  The rows of h_{l+1} = skip h_l + gain W a_l + b 1ᵀ are Gaussian if those of
h_l are, with Σ_{l+1} = skip² Σ_l + gain² C(G_l) + σ_b² 11ᵀ, and G_{l+1} is a function of Σ_{l+1}.
So the state of the map is G and Σ.  A norm over the features divides each sample of h by a
constant, so the rows that a skip connection keeps behind such a norm are Gaussian, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bnmc._support.arguments import draw_key, finite_array, integer, real
from bnmc._support.machine import require_memory
from bnmc._support.text import Result
from bnmc.chain.chain import Chain, Network, layer_at
from bnmc.chain.homogeneity import homogeneous_slopes
from bnmc.chain.layers import Layer, start_of
from bnmc.errors import ArgumentError, NonFiniteError, ZeroVarianceError
from bnmc.gram import validate_gram
from bnmc.mean_field.finite_width.gaussian import PathFluctuations
from bnmc.mean_field.float64 import EPSILON, FloatArray, standard_error, within
from bnmc.mean_field.map.pairwise import pairwise_maps
from bnmc.mean_field.map.points import points_map, require_rows_vary
from bnmc.mean_field.map.rows import (
    Rows,
    follows_activation,
    homogeneous_map,
    row_covariance,
    rows_of,
)
from bnmc.mean_field.pairwise_layer import Level, PairwiseLayer
from bnmc.plot import axes
from bnmc.plot.drawn import Drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, kw_only=True)
class _MapResult(Result):
    """The attributes that `Step` and `MeanFieldTrajectory` share; they convert to `gram`."""

    gram: FloatArray
    stderr: FloatArray
    error: float
    method: str
    nodes: int
    key: int | None

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.gram, dtype=dtype, copy=copy)


@dataclass(frozen=True, eq=False, kw_only=True)
class Step(_MapResult):
    """One step F(G) of the mean-field map; returned by `MeanField.step`.

    ``numpy.asarray(step)`` is `gram`.

    Attributes
    ----------
    gram : (batch, batch) ndarray of float64
        F(G), symmetric.
    stderr : (batch, batch) ndarray of float64
        Standard error of each entry, rounding included; zeros unless `method` is "lattice" or
        "points".
    error : float
        Relative error in the Frobenius norm.  If `method` is "lattice" or "points", it is
        ‖stderr‖ / ‖gram‖; if `method` is "homogeneous", the estimated error of the quadrature; if
        `method` is "pairwise", a bound of the error of a series, plus that of its coefficients.
    method : {"pairwise", "homogeneous", "lattice", "points"}
        "pairwise" without norm over the batch: each entry is a closed form or a series.  With such
        a norm before σ, "homogeneous" for activations with σ(cx) = c σ(x) for all c > 0: a
        one-dimensional integral.  "lattice" for all others: the mean over 8 random shifts of a
        lattice of nodes.  "points" with a norm over the batch after σ: the mean over 8 sets of
        random points.
    nodes : int
        Nodes of the lattice per pair of samples and per shift, or points of a set; 0 unless
        `method` is "lattice" or "points".
    key : int or None
        The 64-bit key of the random shifts and points: as `rng` it repeats the call.  None
        if there are none.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> step = bnmc.MeanField(bnmc.Chain(1000, 3, "relu")).step(np.diag([1.0, 2.0, 3.0]))
    >>> step.method, step.gram.shape, np.asarray(step) is step.gram
    ('homogeneous', (3, 3), True)
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanFieldTrajectory(Drawn, _MapResult):
    """The iterates G_{l+1} = F(G_l) of the mean-field map; returned by `MeanField.trajectory`.

    ``numpy.asarray(trajectory)`` is `gram`.  `plot` draws means of the entries on and off the
    diagonal against the layer, in bands from the least to the largest entry, with two standard
    errors.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int64
        0, 1, …, depth.
    gram : (depth + 1, batch, batch) ndarray of float64
        The Gram matrices; ``gram[0]`` is the argument ``G0``, if that is given.
    stderr : (depth + 1, batch, batch) ndarray of float64
        Standard errors, which include the propagated errors of earlier layers.  Zeros for a given
        matrix, and for all layers unless `method` is "lattice" or "points".
    error : float
        The largest relative error of any layer, as in `Step`.  Unless `method` is "lattice" or
        "points", errors are not propagated: it is the largest error of a single step.
    method, nodes, key
        As in `Step`; `method` is the last one in the list of any layer, and `nodes` the largest
        number.
    covariance : (depth + 1, batch, batch) ndarray of float64 or None
        Σ_l, the covariance of the rows of h_l, if the argument `covariance` is given.  It is the
        limit of the observable "state_gram".
    fluctuations : PathFluctuations or None
        The fluctuations around this path at finite width, if they were asked for.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "relu"))
    >>> run = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), depth=5)
    >>> run.gram.shape, run.method
    ((6, 3, 3), 'homogeneous')
    """

    layers: NDArray[np.int64]
    covariance: FloatArray | None = None
    fluctuations: PathFluctuations | None = None

    def _draw(self, ax: Axes) -> None:
        diagonal = np.eye(self.gram.shape[1], dtype=bool)
        parts = {"on the diagonal": diagonal, "off the diagonal": ~diagonal}
        for (label, part), colour in zip(parts.items(), axes.COLOURS, strict=False):
            values, errors = self.gram[:, part], 2.0 * self.stderr[:, part]
            if values.size:
                low, high = (values - errors).min(axis=1), (values + errors).max(axis=1)
                mean = values.mean(axis=1)
                axes.band(ax, self.layers, mean, low, high, colour=colour, label=label)
        axes.label_layers(ax)
        ax.set_ylabel("entries of the Gram matrix: mean, range")
        ax.legend(fontsize="small")


_GO_ON = "go on from the last layer"

#: Independent random shifts of the lattice; the standard errors come from their spread.
SHIFTS = 8

# Angles of the lattice, one refinement after the other.  Each refinement doubles the number of
# nodes: that wastes little on lattices that are too coarse, and exceeds the necessary number by a
# factor of at most 2.
_ANGLES = (5, 7, 11, 15, 21, 31, 43, 61, 87, 123, 173, 245, 347, 491, 693, 981)

# Rounding error of an entry (i, j), in units of √(F_ii F_jj).
_ROUNDING = 16.0 * EPSILON


class _Pairs(NamedTuple):
    """What a layer without norm over the batch sees: covariances, and the samples alone."""

    layer: PairwiseLayer
    covariance: FloatArray
    level: Level


class _State(NamedTuple):
    """What a layer sees: G of the layer before, and the covariance of what a skip path adds."""

    gram: FloatArray
    added: FloatArray | None = None


class _Source(NamedTuple):
    """What a skip path takes of a layer: G, or the covariance of the rows of its state."""

    gram: FloatArray
    state: FloatArray | None = None


def step(chain: Chain, G: ArrayLike, rtol: float | None, rng: Any, max_nodes: int) -> Step:
    """Return F(G); see `MeanField.step` for the arguments."""
    run, rtol = _run(chain.repeat(1), "G", G, rtol, rng, max_nodes)
    parts = {part.name: getattr(run, part.name) for part in fields(Step)}
    result = Step(**parts | {"gram": run.gram[1], "stderr": run.stderr[1]})
    return within(result, run.error, rtol, "Gram matrix", _effort(run))


def trajectory(
    network: Network,
    G0: ArrayLike | None,
    covariance: ArrayLike | None,
    rtol: float | None,
    rng: Any,
    max_nodes: int,
) -> MeanFieldTrajectory:
    """Return G0, F(G0), F(F(G0)), …; see `MeanField.trajectory` for the arguments."""
    if (G0 is None) == (covariance is None):
        raise ArgumentError("covariance", covariance, "a matrix in place of G0, or None beside it")
    name, start = ("G0", G0) if covariance is None else ("covariance", covariance)
    run, rtol = _run(network, name, start, rtol, rng, max_nodes)
    return within(run, run.error, rtol, "Gram matrix", _effort(run))


def _effort(run: MeanFieldTrajectory) -> str:
    return f" with {run.nodes} nodes for each pair and shift" if run.nodes else ""


# Default largest error; and of points, over the root of the batch size: that of an entry.
_RTOL, _POINTS_RTOL = 1e-4, 1e-3

_NOT_GAUSSIAN = "rows of N(x + W σ(x)) are not Gaussian; bnmc.simulate measures this chain"


def _source_of(layer: Layer, number: int) -> int:
    """Return the number of the layer at which the skip path to a layer begins."""
    return number - (1 if layer.path is None else layer.path.length)


def require_no_sum(layer: Layer) -> None:
    """Raise if a block ends with the layer after a norm, or with a sum that is a layer."""
    hint = "rows of N(W a) + x are not Gaussian; bnmc.simulate measures this network"
    if layer.linear.law.is_identity:
        activation = layer.rows.activation.name
        raise ArgumentError("activation", activation, "None, no sum of its own, for blocks", hint)
    if layer.path is not None and layer.path.norm is not None:
        raise ArgumentError("projection", layer.path.norm.norm.name, "a chain of norm 'none'", hint)


def _require_rows(layers: Sequence[Layer], starts_at_state: bool) -> None:
    """Raise unless the rows of all layers are Gaussian; `layers` are layers 0, 1, …."""
    for number, layer in enumerate(layers):
        if number == 0 or layer.rows.skip == 0.0:
            continue
        require_no_sum(layer)
        source, path = _source_of(layer, number), layer.path
        takes_activations = path is not None and path.takes_activations
        before = layers[source].rows
        is_normed = before.keeps_normed and before.norm.axis == "batch"
        if (path is None or path.projection is None) and (takes_activations or is_normed):
            allowed = '0 after a norm over the batch of the order "norm-activation"'
            hint = _NOT_GAUSSIAN
            if takes_activations:
                allowed = 'that of a block with a projection, or of source "state"'
                hint = "rows of W a + σ(x) are not Gaussian; bnmc.simulate measures this network"
            raise ArgumentError("skip", layer.rows.skip, allowed, hint)
        if source == 0 and not (starts_at_state or takes_activations):
            hint = "with a skip connection the next Gram matrix depends on more than this one: "
            hint += "MeanField(chain).trajectory(covariance=) starts at the initial state"
            raise ArgumentError("skip", layer.rows.skip, "0 in the layer after G0", hint)


def _run(
    network: Network, name: str, start: ArrayLike | None, rtol: float | None, rng: Any, most: int
) -> tuple[MeanFieldTrajectory, float]:
    """Check the arguments; return the trajectory, refined to `rtol` or up to `most` nodes."""
    starts_at_state = name == "covariance"
    last, repeats = network.stages[-1], network.depth
    if isinstance(last, tuple):  # the last layer repeats
        repeats += 1 - last[1] + (not network.is_repeated)
    layers = [
        layer_at(network, number) for number in range(max(1, min(repeats, network.depth)) + 1)
    ]
    _require_rows(layers, starts_at_state)
    layers = [start_of(layers[0]), *layers[1:]] if starts_at_state else layers[1:]
    for layer in layers:
        layer.rows.activation.check()
        if _method(layer) == "points" and layer.rows.eps == 0.0:
            require_rows_vary(layer.rows.activation, layer.rows.norm)
    if rtol is not None:
        rtol = real("rtol", rtol, above=0.0)
    most = integer("max_nodes", most, low=1)
    key = draw_key(rng)
    given = finite_array(name, start, shape=(network.batch, network.batch))
    gram, rounding = validate_gram(given, name), float(np.finfo(given.dtype).eps)
    if rtol is None:
        has_points = "points" in map(_method, layers)
        rtol = _POINTS_RTOL * math.sqrt(network.batch) if has_points else _RTOL
    with np.errstate(over="ignore", invalid="ignore"):
        _seen(layers[0], _State(gram), 1, name, rounding)  # raises before estimates of memory
    require_memory("depth", 2 * (network.depth + 1) * gram.nbytes, _GO_ON)
    run = iterates(
        layers, network.depth, gram, key, rtol, most, name=name, rounding=rounding,
        first=1 - starts_at_state,
    )  # fmt: skip
    return run, rtol


# The methods of layers.  A trajectory has the last one of its layers' methods.
_METHODS = ("pairwise", "homogeneous", "lattice", "points")


def _method(layer: Layer) -> str:
    """Return the method of a layer."""
    if layer.rows.norm.axis != "batch":
        return "pairwise"
    if follows_activation(layer):
        return "points"
    return "lattice" if homogeneous_slopes(layer.rows.activation) is None else "homogeneous"


def _seen(
    layer: Layer, state: _State, number: int, name: str, rounding: float = EPSILON
) -> Rows | _Pairs:
    """Return what a layer sees of a state; `name` is the argument that the first layer sees."""
    largest = float(np.abs(state.gram).max())
    if layer.rows.norm.axis != "batch":
        pairs = _pairs(layer, state, number, name)
        if pairs.level.flat is None:
            return pairs
        if not name:
            raise ZeroVarianceError(None, number, None, pairs.level.flat)
        if not pairs.layer.norm_is_first:
            allowed = "a function that is not constant, since "
            allowed += f'norm="{layer.rows.norm.name}" follows it'
            raise ArgumentError("activation", layer.rows.activation.name, allowed)
        allowed = "a matrix whose diagonal has no 0"
        raise ArgumentError(name, largest, allowed, "no row can be normalized")
    rows = rows_of(layer.rows, *_covariance(layer, state), rounding)
    if rows.has_variance:
        return rows
    if not name:
        raise ZeroVarianceError(None, number, 0)
    centred = layer.rows.norm.hides_common_part
    allowed = "samples that are not all equal" if centred else "samples not all 0"
    raise ArgumentError(name, largest, allowed, "no row can be normalized")


def _covariance(layer: Layer, state: _State, *, seen: bool = True) -> tuple[FloatArray, float]:
    """Return a matrix and a number g: rows have the covariance g² · matrix.

    If `seen`, a bias that the norm subtracts may be missing.
    """
    skip = layer.rows.skip
    law = layer.covariance if seen and skip == 0.0 else layer.linear.covariance()
    matrix, gain = row_covariance(layer, law, state.gram)
    if skip == 0.0:
        return matrix, gain
    assert state.added is not None
    return skip * skip * state.added + gain * gain * matrix, 1.0


def _covariance_of_state(layer: Layer, state: _State) -> FloatArray:
    """Return the covariance of the rows h."""
    matrix, gain = _covariance(layer, state, seen=False)
    return matrix * gain * gain


def _kept_by(layer: Layer, state: _State, seen: Rows | _Pairs) -> FloatArray:
    """Return the covariance of the rows that skip paths take of a layer: h, or N(h)."""
    if not layer.rows.keeps_normed or layer.rows.norm.is_identity:
        return _covariance_of_state(layer, state)
    if isinstance(seen, Rows):
        return homogeneous_map(seen, 1.0, 1.0)[0]
    return seen.covariance / (seen.level.scale[:, None] * seen.level.scale)


def _added(layer: Layer, source: _Source) -> FloatArray | None:
    """Return the covariance of what a skip path adds to the rows of a layer."""
    path = layer.path
    rows = source.gram if path is not None and path.takes_activations else source.state
    if path is None or path.projection is None or rows is None:
        return rows
    linear = path.projection
    return np.asarray(linear.covariance()(rows) * linear.gain * linear.gain)


def _pairs(layer: Layer, state: _State, number: int, name: str) -> _Pairs:
    """Return what a layer without norm over the batch sees of a state."""
    # The next weights have variance 1, as the result is the Gram matrix of the activations.
    outputs = replace(PairwiseLayer.of(layer), weight_variance=1.0, bias_variance=0.0, skip=0.0)
    covariance, gain = _covariance(layer, state)
    if outputs.norm != "none" and outputs.norm_is_first:
        # Only the ratio to eps matters.  The factors are applied one by one, as their product may
        # be outside the range of float64.
        unit = float(np.abs(covariance).max()) or 1.0
        covariance = covariance / unit
        outputs = replace(outputs, eps=outputs.eps / unit / gain / gain)
    else:
        covariance = covariance * gain * gain
    _require_finite(covariance, number)
    try:
        level = outputs.levels(np.maximum(np.diagonal(covariance), 0.0))
    except ArgumentError:
        if name:
            raise
        raise NonFiniteError(None, number, "mean-field Gram matrix") from None
    return _Pairs(outputs, covariance, level)


def _pairwise_map(pairs: _Pairs) -> tuple[FloatArray, float]:
    """Return F(G) of a layer without norm over the batch, and its relative error."""
    layer, level = pairs.layer, pairs.level
    gram, _, error = layer.step(level, level, pairs.covariance, None, same=True)
    # The quadrature of a pair of samples may round otherwise in the other order.
    gram = 0.5 * (gram + gram.T)
    lengths = layer.sigma.mean_square(level.side)
    if not layer.norm_is_first:
        lengths = 3.0 * lengths / level.scale**2
    norm = _norm(gram)
    return gram, max(error, _ROUNDING) * float(lengths.sum()) / norm if norm > 0.0 else 0.0


def _mapped(
    layer: Layer, seen: Sequence[Rows | _Pairs], angles: int, shifts: FloatArray, number: int
) -> tuple[FloatArray, float, int]:
    """Return F(G) of some G, the largest relative error of one, and the nodes of a lattice."""
    activation, method = layer.rows.activation, _method(layer)
    if method in ("lattice", "points"):
        rows = [law for law in seen if isinstance(law, Rows)]
        if method == "lattice":
            grams, nodes = pairwise_maps(rows, activation, angles, shifts)
        else:
            grams, nodes = points_map(rows, layer.rows, angles, shifts, number)
        return grams, 0.0, nodes
    slopes = homogeneous_slopes(activation) or (0.0, 0.0)
    steps = [
        homogeneous_map(law, *slopes) if isinstance(law, Rows) else _pairwise_map(law)
        for law in seen
    ]
    return np.array([gram for gram, _ in steps]), max(error for _, error in steps), 0


def iterates(
    layers: Sequence[Layer],
    depth: int,
    gram: FloatArray,
    key: int,
    rtol: float,
    max_nodes: int,
    *,
    name: str = "G0",
    rounding: float = EPSILON,
    first: int = 1,
) -> MeanFieldTrajectory:
    """Return the mean of 8 trajectories, one per shift, on lattices refined until `rtol` holds.

    If no layer needs random numbers, return a single trajectory.  The caller compares the error
    with `rtol`.

    Parameters
    ----------
    layers : sequence of Layer
        At least one: layer `first` and the next ones; the last one repeats.  The first one is
        without skip connection.  For depth 0, layer 1 checks the matrix.
    depth : int
    gram : ndarray of shape (batch, batch)
        What the first layer maps.
    key : int
        Key of the shifts.
    rtol : float
    max_nodes : int
    name : str
        The argument that the matrix is.
    rounding : float
        Relative rounding error of the matrix.
    first : {0, 1}
        0 if layer 0 maps the matrix, too, which is the covariance of its rows.
    """
    method = max(map(_method, layers), key=_METHODS.index)
    is_random = method in ("lattice", "points")
    last_uses = {
        _source_of(layer, number): number
        for number in range(first, depth + 1)
        if (layer := layers[min(number - first, len(layers) - 1)]).rows.skip != 0.0
    }
    # Two matrices a layer, and those of a step.
    matrices = 2 * (depth + 1) + (3 * SHIFTS if is_random else 10)
    require_memory("depth", matrices * gram.nbytes, _GO_ON)
    shifts = np.random.default_rng(key).random((SHIFTS, 2)) if is_random else np.zeros((1, 2))

    def iterated(angles: int, refinable: float) -> MeanFieldTrajectory:
        """Return the mean over trajectories, one for each shift.

        The iteration ends where the error exceeds `rtol`, if a lattice has at most `refinable`
        nodes.
        """
        grams, stderrs, covariances = [gram], [np.zeros_like(gram)], []
        worst, most = 0.0, 0
        images = np.repeat(gram[None], len(shifts), axis=0)
        sources = {0: [_Source(gram)] * len(shifts)}
        for number in range(first, depth + 1):
            layer = layers[min(number - first, len(layers) - 1)]
            states = [_State(each) for each in images]
            if layer.rows.skip != 0.0:
                begin = _source_of(layer, number)
                pairs = zip(images, sources[begin], strict=True)
                states = [_State(each, _added(layer, source)) for each, source in pairs]
                if last_uses[begin] == number:
                    del sources[begin]
            seen = [start if number == first else _seen(layer, each, number, "") for each in states]
            if first == 0:
                matrices_of_h = [_covariance_of_state(layer, state) for state in states]
                covariances.append(np.mean(matrices_of_h, axis=0))
            images, error, nodes = _mapped(layer, seen, angles, shifts, number)
            if number in last_uses:
                laws = zip(images, states, seen, strict=True)
                sources[number] = [
                    _Source(G, _kept_by(layer, state, rows)) for G, state, rows in laws
                ]
            most = max(most, nodes)
            mean = np.mean(images, axis=0)
            if np.isnan(mean).any() and _method(layer) == "points":
                raise ZeroVarianceError(None, number, 0)
            _require_finite(mean, number)
            grams.append(mean)
            stderrs.append(_standard_error(images, mean))
            norm = _norm(mean)
            worst = max(worst, error, _norm(stderrs[-1]) / norm if norm > 0.0 else 0.0)
            if worst > rtol and 0 < most <= refinable:
                break
        return MeanFieldTrajectory(
            layers=np.arange(depth + 1),
            gram=np.array(grams[1 - first :]),
            stderr=np.array(stderrs[1 - first :]),
            error=worst,
            method=method,
            nodes=most,
            key=key if is_random else None,
            covariance=np.array(covariances) if first == 0 else None,
        )

    with np.errstate(over="ignore", invalid="ignore"):  # `_require_finite` checks each layer
        start = _seen(layers[0], _State(gram), first, name, rounding)
        for angles, next_angles in zip(_ANGLES, (*_ANGLES[1:], math.inf), strict=True):
            finer = (next_angles / angles) ** 2
            run = iterated(angles, max_nodes / finer)
            if run.error <= rtol or not 0 < run.nodes * finer <= max_nodes:
                break
    return run


def _require_finite(gram: FloatArray, layer: int) -> None:
    if not np.isfinite(gram).all():
        raise NonFiniteError(None, layer, "mean-field Gram matrix")


def _standard_error(states: FloatArray, mean: FloatArray) -> FloatArray:
    """Return the standard error of each entry of the mean of the states, plus rounding."""
    if len(states) == 1:
        return np.zeros_like(mean)
    size = np.sqrt(np.abs(np.diagonal(mean)))
    return np.asarray(standard_error(states) + _ROUNDING * size[:, None] * size)


def _norm(matrix: FloatArray) -> float:
    """Return the Frobenius norm, also of entries whose squares leave the range of float64."""
    largest = float(np.abs(matrix).max())
    return largest * float(np.linalg.norm(matrix / largest)) if largest > 0.0 else 0.0
