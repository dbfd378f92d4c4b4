"""Normalizations as values: their NumPy form, and the part of a representation that they ignore.

Code that depends on the normalization of a chain uses the attributes of its `Norm`.  No other
module compares names of norms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import NORM_CENTRED, NORM_NONE, NORM_UNCENTRED
from bnmc._support.arguments import choice, integer
from bnmc.errors import ArgumentError

Axis = Literal["batch", "features"]

# A batch size: an integer, or inf as a float.
_Size = TypeVar("_Size", int, float)


@dataclass(frozen=True)
class Norm:
    """A normalization N of a representation x of shape (width, batch).

    Parameters
    ----------
    name : str
        What `Chain.norm` is.
    code : int
        What the kernels call a norm over the batch, or that of no norm; see
        `bnmc._kernels.scalar.codes`.
    axis : {"batch", "features"} or None
        The axis over which mean and variance are taken: "batch" acts on each row (neuron) alone,
        "features" on each column (sample) alone.  None for no normalization.
    centred : bool
        Whether the mean is subtracted.
    groups : int, default 1
        Into how many equal groups the features are divided, for a norm over the features.

    Notes
    -----
    A norm over the batch acts on the rows of h = W a, which are i.i.d. N(0, G) given the Gram
    matrix G.  So all that it does not see of a row, it does not see of G: the common part of the
    samples (`hides_common_part`), and the scale (`hides_scale`).
    """

    name: str
    code: int
    axis: Axis | None
    centred: bool
    groups: int = 1

    @property
    def is_identity(self) -> bool:
        """Whether N(x) = x."""
        return self.axis is None

    @property
    def acts_on_rows(self) -> bool:
        """Whether each row is normalized alone, so that a layer needs one pass over its rows."""
        return self.axis != "features"

    def require_width(self, width: int) -> None:
        """Raise unless a width can be divided into groups that have a variance.

        Raises
        ------
        ArgumentError
            About `width` or `norm`.
        """
        if self.axis != "features":
            return
        if width % self.groups:
            allowed = f"a norm whose groups divide the width {width}"
            raise ArgumentError("norm", self.name, allowed)
        if self.centred and width == self.groups:
            allowed = f"at least {2 * self.groups} for norm={self.name!r}"
            raise ArgumentError("width", width, allowed, "one feature has no variance")

    @property
    def hides_common_part(self) -> bool:
        """Whether N sees a Gram matrix G through P G P alone, P the projector orthogonal to 1."""
        return self.axis == "batch" and self.centred

    def hides_scale(self, eps: float) -> bool:
        """Whether N sees a Gram matrix up to a positive factor only."""
        return self.axis is not None and eps == 0.0

    def dimensions(self, batch: _Size) -> _Size:
        """Return the dimension of the space of samples that N sees; the batch may be infinite."""
        return batch - 1 if self.hides_common_part else batch

    @property
    def has_symmetric_fixed_point(self) -> bool:
        """Whether the mean-field map has a fixed point that all permutations of samples preserve.

        The map goes from the Gram matrix G of a layer to that of the next layer at infinite width.
        Both norms over the batch have such a fixed point if eps is 0 and there is no skip
        connection, for two reasons.  N commutes with permutations of the samples, so the map
        preserves the symmetry of G.  N is invariant to positive factors of a row, so the fixed
        point does not depend on the scale of G or on the gain: for a row w ~ N(0, I), N(w) is
        uniform on the sphere of radius sqrt(batch) in the space that N sees, of dimension
        `dimensions(batch)`.
        """
        return self.axis == "batch"

    def parts(self, x: NDArray[Any], batch: int | None = None) -> NDArray[Any]:
        """Return x, (..., width, columns), with the entries of a moment along the last axis.

        That is, (..., width, batches, batch), with one batch by default; or, for a norm over the
        features, (..., groups, columns, width / groups).
        """
        *leading, width, columns = x.shape
        if self.acts_on_rows:
            return x.reshape(*leading, width, -1, batch or columns)
        return x.reshape(*leading, self.groups, width // self.groups, columns).swapaxes(-1, -2)

    def joined(self, parts: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array of a shape from its parts."""
        return (parts if self.acts_on_rows else parts.swapaxes(-1, -2)).reshape(shape)

    def without_variance(
        self, x: NDArray[np.float64], batch: int | None = None
    ) -> NDArray[np.bool_]:
        """Return which rows of x, (..., width, columns), have a batch of exactly zero variance.

        For a norm over the features: which samples have a group without variance, (..., columns).
        All False if the norm does not divide by a variance.
        """
        parts = self.parts(x, batch)
        reference = parts[..., :1] if self.centred else np.zeros(())
        flat = (parts == reference).all(axis=-1) & (not self.is_identity)
        return np.asarray(flat.any(axis=-1 if self.acts_on_rows else -2))

    def __call__(
        self, x: NDArray[np.float64], eps: float = 0.0, batch: int | None = None
    ) -> NDArray[np.float64]:
        """Return N(x) for x of shape (..., width, columns), by default of one batch.

        Rows, or groups of features of a sample, without variance give NaN if eps is 0;
        `without_variance` finds them.
        """
        if self.is_identity:
            return x
        parts = self.parts(x, batch)
        # Squares of very large or small entries would overflow or underflow, so each part is
        # measured in units of its largest entry.
        largest = np.abs(parts).max(axis=-1, keepdims=True)
        unit = np.where(largest > 0.0, largest, 1.0)
        parts = parts / unit
        if self.centred:
            parts = parts - parts.mean(axis=-1, keepdims=True)
        mean_square = np.mean(parts * parts, axis=-1, keepdims=True)
        with np.errstate(over="ignore"):  # beside eps, a part of subnormal numbers is zero
            deviations = np.hypot(np.sqrt(mean_square), np.sqrt(eps) / unit)
        return self.joined(parts / deviations, x.shape)


class GroupNorm(Norm):
    """Group normalization of each sample: the features are divided into equal groups.

    Within each group of neighbouring features N is (h - mean h) / sqrt(Var h + eps), as in
    ``torch.nn.GroupNorm`` without learned factors.  One group is layer normalization.

    Parameters
    ----------
    groups : int
        Number of groups, >= 1.  It divides the width of the chain, and groups have at least two
        features.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `groups` is not such an integer.

    Examples
    --------
    >>> import bnmc
    >>> bnmc.Chain(64, 4, "relu", norm=bnmc.GroupNorm(8))
    Chain(width=64, batch=4, activation='relu', norm='group(8)')
    """

    def __init__(self, groups: int) -> None:
        number = integer("groups", groups, low=1)
        super().__init__(f"group({number})", NORM_NONE, "features", centred=True, groups=number)

    def __repr__(self) -> str:
        return f"GroupNorm({self.groups})"


_ALL = (
    Norm("batch", NORM_CENTRED, "batch", centred=True),
    Norm("batch-uncentred", NORM_UNCENTRED, "batch", centred=False),
    Norm("none", NORM_NONE, None, centred=False),
    Norm("layer", NORM_NONE, "features", centred=True),
    Norm("rms", NORM_NONE, "features", centred=False),
)

#: The names of the norms; group normalization has a name for each number of groups.
NORMS = tuple(norm.name for norm in _ALL)

#: The names of the norms that act on each row alone.
ROW_NORMS = tuple(norm.name for norm in _ALL if norm.acts_on_rows)

_OF_GROUPS = re.compile(r"group\(([0-9]+)\)")


def as_norm(norm: str | Norm) -> Norm:
    """Return a norm by its name, or the norm itself.

    Raises
    ------
    ArgumentTypeError, UnknownNameError, ArgumentError
        If `norm` is neither a norm nor a string, or not the name of a norm.
    """
    if isinstance(norm, Norm):
        return norm
    if isinstance(norm, str) and norm.startswith("group"):
        if match := _OF_GROUPS.fullmatch(norm):
            return GroupNorm(int(match[1]))
        raise ArgumentError("norm", norm, "the number of groups in parentheses, such as 'group(8)'")
    return _ALL[NORMS.index(choice("norm", norm, (*NORMS, "group(g)")))]
