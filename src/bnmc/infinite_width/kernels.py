"""The covariance and the tangent kernel of infinitely wide networks: `nngp` and `ntk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bnmc._support.arguments import choice, finite_array, integer, precision, real
from bnmc._support.array_arguments import require_memory
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.layers import NORMS, ORDERS, Layers, Level
from bnmc.mean_field.duals.duals import Dual, dual, require_accuracy
from bnmc.mean_field.field import MeanField
from bnmc.mean_field.float64 import FloatArray

__all__ = ["nngp", "ntk"]

_Spec = str | Activation | Dual | Callable[[Any], Any]

# Rows and columns of a tile: about ten arrays of 0.5 MB stay in the cache through all layers.
_TILE = 256


def nngp(
    x: ArrayLike,
    depth: int,
    *,
    other: ArrayLike | None = None,
    activation: _Spec = "relu",
    norm: str = "none",
    order: str = "norm-activation",
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    skip: float = 0.0,
    rtol: float = 1e-6,
    dtype: DTypeLike = "float64",
    progress: bool | Progress = False,
    rng: Any = None,
) -> NDArray[np.floating[Any]]:
    """Covariance of the outputs of an infinitely wide random network: the kernel of its GP.

    Parameters
    ----------
    x : (features, samples) array_like
        Inputs, one per column.
    depth : int
        Number of hidden layers L, >= 0.
    other : (features, others) array_like, optional
        Second set of inputs. The kernel is then that of `x` with `other`: for example `x` the test
        set and `other` the training set. By default it is that of `x` with itself.
    activation : str, Activation, callable or Dual
        Activation σ; see `dual`.
    norm : {"none", "layer", "rms", "batch"}
        Normalization N. "layer" and "rms" normalize each sample over the features, "batch" each
        feature over the samples.
    order : {"norm-activation", "activation-norm"}
        Whether N acts before or after σ.
    weight_variance, bias_variance : float
        σ_w² > 0, the variance of the weights times the number of their inputs, and σ_b² >= 0.
    skip : float
        Factor of the skip connection from a layer to the next one; 0 removes it.
    rtol : float
        Largest acceptable relative error of the dual activation in a layer (see `dual`), or of the
        mean-field map of batch normalization (see `MeanField.trajectory`). Errors of earlier layers
        propagate to later ones.
    dtype : {"float64", "float32"}
        Type of the result. The computation uses float64.
    progress : bool or callable
        True for a bar (extra ``cli``), or a function of the tiles that are done and all tiles.
    rng : optional
        Seed of the random shifts of the mean-field map of batch normalization.

    Returns
    -------
    (samples, samples) or (samples, others) ndarray
        K, symmetric and positive semidefinite up to rounding for one set.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or a sample to be normalized has no variance. Under norm
        "batch", if `other` or `skip` is given, `order` is "activation-norm" or `activation` is a
        `Dual` or none of the package's.
    NonFiniteError
        If the kernel overflows.
    ResultTooLargeError
        If the result would not fit in memory.
    PartialEstimateError
        If `rtol` is not reached; ``partial`` is the kernel (under norm "batch" the trajectory).

    Notes
    -----
    ``K_0 = σ_w² xᵀx / features + σ_b²``, and for each hidden layer
    ``K ← σ_w² V[K] + σ_b²`` with ``V[K]_ij = E σ(u_i) σ(u_j)``, ``u ~ N(0, K)``. Norms "layer" and
    "rms" before σ replace K by the correlations ``K_ij / √(K_ii K_jj)`` first; after σ they
    normalize V[K]. Source: Lee et al. (arXiv 1711.00165). With a skip connection the kernel is that
    of one coordinate of ``h_L``, which the skip connection joins, too:
    ``h_{l+1} = skip N(h_l) + W σ(N(h_l)) + b`` or ``h_{l+1} = skip h_l + W N(σ(h_l)) + b``.

    Time is O(samples² (features + depth)), memory that of the result.

    See Also
    --------
    ntk : The tangent kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import nngp
    >>> x = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> nngp(x, 1, activation="relu", weight_variance=2.0).round(6)
    array([[2.     , 2.13662],
           [2.13662, 4.     ]])
    >>> nngp(x, 3, activation="tanh", norm="layer").round(6)
    array([[0.394294, 0.245687],
           [0.245687, 0.394294]])
    """
    if norm == "batch":
        options = (other, order, weight_variance, bias_variance, skip, rtol)
        return _nngp_of_batch(x, depth, activation, *options, rng).astype(precision(dtype))
    return _Kernel(
        x, depth, other, activation, norm, order, weight_variance, bias_variance, skip,
        tangent=False,
    ).compute("nngp", rtol, dtype, progress)  # fmt: skip


def ntk(
    x: ArrayLike,
    depth: int,
    *,
    other: ArrayLike | None = None,
    activation: _Spec = "relu",
    norm: str = "none",
    order: str = "norm-activation",
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    skip: float = 0.0,
    rtol: float = 1e-6,
    dtype: DTypeLike = "float64",
    progress: bool | Progress = False,
) -> NDArray[np.floating[Any]]:
    """Tangent kernel of an infinitely wide network: the sum of gradient products of two outputs.

    Parameters
    ----------
    x, depth, other, activation, order, weight_variance, bias_variance, skip, rtol, dtype, progress
        As in `nngp`.
    norm : {"none", "layer", "rms"}
        Normalization N. `bnmc.gradients.tangent_kernel` simulates tangent kernels with batch
        normalization, at finite width.

    Returns
    -------
    (samples, samples) or (samples, others) ndarray
        Θ, symmetric and positive semidefinite up to rounding for one set.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `nngp`, and if `norm` is "batch" or the derivative of `activation` is not known.
    NonFiniteError, ResultTooLargeError, PartialEstimateError
        As `nngp`.

    Notes
    -----
    Let the parameters be standard normal, and each layer multiply them by σ_w / √inputs (weights)
    and σ_b (biases): the NTK parameterization. Then Θ is the limit of ``∇f(x)·∇f(x′)`` over all
    parameters, those of the output layer included. ``Θ_0 = K_0``, and for each hidden layer
    ``Θ ← K_new + σ_w² Θ ⊙ V′[K]`` with ``V′[K]_ij = E σ′(u_i) σ′(u_j)``. Source: Jacot, Gabriel and
    Hongler (arXiv 1806.07572). σ′ is the derivative almost everywhere, so 0 for "step".

    Near correlation 1, V′ of an activation with a kink has a square-root singularity. So rounding
    of products of inputs (relative size 1e-16) changes Θ of nearly equal inputs by up to about
    1e-8 relative to the diagonal, and an eigenvalue that should be 0 may be as negative as that.
    Equal inputs of one set have equal entries.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import ntk
    >>> x = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> ntk(x, 1, activation="relu", weight_variance=2.0).round(6)
    array([[4.     , 3.63662],
           [3.63662, 8.     ]])
    >>> ntk(x[:, :1], 1, other=x, activation="relu", weight_variance=2.0).round(6)
    array([[4.     , 3.63662]])
    """
    if norm == "batch":
        raise ArgumentError(
            "norm", norm, ", ".join(NORMS),
            "the tangent kernel of batch normalization is not implemented; "
            "bnmc.gradients.tangent_kernel simulates it at finite width",
        )  # fmt: skip
    return _Kernel(
        x, depth, other, activation, norm, order, weight_variance, bias_variance, skip,
        tangent=True,
    ).compute("ntk", rtol, dtype, progress)  # fmt: skip


class _Kernel:
    """The checked arguments of a kernel."""

    def __init__(
        self,
        x: ArrayLike,
        depth: int,
        other: ArrayLike | None,
        activation: _Spec,
        norm: str,
        order: str,
        weight_variance: float,
        bias_variance: float,
        skip: float,
        tangent: bool,
    ) -> None:
        self.inputs = [finite_array("x", x, shape=("features", "samples")).astype(np.float64)]
        if other is not None:
            shape = (self.inputs[0].shape[0], "samples")
            self.inputs.append(finite_array("other", other, shape=shape).astype(np.float64))
        self.depth = integer("depth", depth, low=0)
        self.layers = Layers(
            dual(activation),
            choice("norm", norm, (*NORMS, "batch")),
            choice("order", order, ORDERS),
            real("weight_variance", weight_variance, above=0.0),
            real("bias_variance", bias_variance, low=0.0),
            real("skip", skip),
            tangent,
        )

    def compute(
        self, name: str, rtol: float, dtype: DTypeLike, progress: bool | Progress
    ) -> NDArray[np.floating[Any]]:
        """Return the kernel, tile by tile: each tile goes through all layers."""
        rtol = real("rtol", rtol, above=0.0)
        place = None
        if len(self.inputs) == 1:
            # Equal inputs get equal entries, whatever the rounding of their products.
            distinct, position = np.unique(self.inputs[0], axis=1, return_inverse=True)
            if distinct.shape[1] < position.size:
                self.inputs, place = [distinct], position.reshape(-1)
        result_type = np.dtype(precision(dtype))
        rows, columns = self.inputs[0].shape[1], self.inputs[-1].shape[1]
        hint = "compute blocks with other=, or use dtype=float32"
        require_memory("x", rows * columns * result_type.itemsize, hint)
        sides = [
            self._levels(one, argument)
            for one, argument in zip(self.inputs, ("x", "other"), strict=False)
        ]
        result = np.empty((rows, columns), result_type)
        tiles = list(_tiles(rows, columns, symmetric=len(sides) == 1))
        error = 0.0
        with Reporter(as_progress(progress), name, "tiles") as report:
            for done, (i, j) in enumerate(tiles):
                report(done, len(tiles))
                tile, tile_error = self._tile(sides, i, j)
                with np.errstate(over="ignore"):  # beyond the range of float32
                    result[i, j] = tile
                if len(sides) == 1 and i != j:
                    result[j, i] = result[i, j].T
                error = max(error, tile_error)
            report(len(tiles), len(tiles))
        if not np.isfinite(result).all():
            raise NonFiniteError(None, self.depth, "kernel")
        if place is not None:
            result = result[place[:, None], place]
        require_accuracy(self.layers.dual.name, error, rtol, result)
        return result

    def _levels(self, x: FloatArray, argument: str) -> tuple[FloatArray, list[Level]]:
        """Return the variances of h_0 of one set of inputs, and its levels."""
        with np.errstate(over="ignore"):
            variances = self._first(np.einsum("fs,fs->s", x, x))
        return variances, self.layers.levels(variances, self.depth, argument)

    def _first(self, products: FloatArray) -> FloatArray:
        layers, features = self.layers, self.inputs[0].shape[0]
        return np.asarray(layers.weight_variance / features * products + layers.bias_variance)

    def _tile(
        self, sides: list[tuple[FloatArray, list[Level]]], i: slice, j: slice
    ) -> tuple[FloatArray, float]:
        """Return the kernel of some rows and columns, and the largest error of a layer."""
        left, right = self.inputs[0][:, i], self.inputs[-1][:, j]
        on_diagonal = len(sides) == 1 and i == j
        error = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            kernel = self._first(left.T @ right)
            if on_diagonal:
                np.fill_diagonal(kernel, sides[0][0][i])
            tangent = kernel
            for first, second in zip(sides[0][1], sides[-1][1], strict=True):
                levels = first.at(i), second.at(j)
                kernel, tangent, one = self.layers.step(*levels, kernel, tangent, on_diagonal)
                error = max(error, one)
        if on_diagonal:
            # Products of the same numbers, in one order or the other, may round differently.
            tangent = 0.5 * (tangent + tangent.T)
            kernel = 0.5 * (kernel + kernel.T)
        return (tangent if self.layers.tangent else kernel), error


def _tiles(rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of all tiles, or of those on and above the diagonal."""
    for i in range(0, rows, _TILE):
        for j in range(i if symmetric else 0, columns, _TILE):
            yield slice(i, min(rows, i + _TILE)), slice(j, min(columns, j + _TILE))


def _nngp_of_batch(
    x: ArrayLike,
    depth: int,
    activation: _Spec,
    other: ArrayLike | None,
    order: str,
    weight_variance: float,
    bias_variance: float,
    skip: float,
    rtol: float,
    rng: Any,
) -> FloatArray:
    """Return the kernel of a network with batch normalization before σ, for one batch.

    The normalization hides σ_w² and σ_b², so these matter in the last layer only.
    """
    hint = "the kernel of batch normalization is for one batch, without skip connection"
    given = finite_array("x", x, shape=("features", "samples")).astype(np.float64)
    if other is not None:
        raise ArgumentError("other", "a second batch", 'None, with norm="batch"', hint)
    if choice("order", order, ORDERS) != "norm-activation":
        raise ArgumentError("order", order, '"norm-activation", with norm="batch"')
    if real("skip", skip) != 0.0:
        raise ArgumentError("skip", skip, '0, with norm="batch"', hint)
    if isinstance(activation, Dual):
        raise ArgumentError("activation", activation.name, 'an Activation, with norm="batch"')
    weight = real("weight_variance", weight_variance, above=0.0)
    bias = real("bias_variance", bias_variance, low=0.0)
    chain = Chain(1, given.shape[1], as_activation(activation))
    depth = integer("depth", depth, low=0)
    gram = given.T @ given / given.shape[0]
    if depth:
        gram = MeanField(chain).trajectory(gram, depth, rtol=rtol, rng=rng).gram[-1]
    return np.asarray(weight * gram + bias)
