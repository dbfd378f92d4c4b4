"""Observables: the functions of the Gram matrix of a layer that a run records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram as grams
from bnmc._kernels.scalar import measures
from bnmc._support.arguments import choice, finite_array, host_array, integer, items, real
from bnmc.chain.chain import Chain, Network, layer_at
from bnmc.errors import ArgumentError, ArgumentTypeError, NonFiniteError
from bnmc.simulation.engine.state import Frames, Measure
from bnmc.simulation.trajectory import Trajectory


class View(NamedTuple):
    """The Gram matrices of a block of layers, for observables.

    Attributes
    ----------
    network : Network
    frames : Frames
    inputs : int
        Number of input batches, side by side in the columns of the frames.
    first_chain : int
        Number of the first chain, for messages.
    layer_of : callable
        Returns the layer of an index from 0 on.
    """

    network: Network
    frames: Frames
    inputs: int = 1
    first_chain: int = 0
    layer_of: Callable[[int], int] = int

    @property
    def cross(self) -> NDArray[np.float64]:
        """Gram matrices times exp(-log_scale) of pairs of inputs, (…, inputs, inputs, n, n)."""
        gram, n = self.frames.gram, self.network.batch
        return gram.reshape(*gram.shape[:2], self.inputs, n, self.inputs, n).swapaxes(3, 4)

    @property
    def scaled(self) -> NDArray[np.float64]:
        """The same for each input batch, (chains, layers, inputs, n, n)."""
        if self.inputs == 1:
            return self.frames.gram[:, :, None]
        same = np.arange(self.inputs)
        return self.cross[:, :, same, same]

    def rescaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values times exp(log_scale), or raise if that overflows.

        Values below the range of float64 become zero.
        """
        log_scale = self.frames.log_scale
        if not np.count_nonzero(log_scale):
            return values
        extreme = np.argwhere(log_scale > 690.0)
        if extreme.size:
            chain, layer = (int(index) for index in extreme[0])
            what = "Gram matrix (record 'scaled_gram' and 'log_scale' instead), whose scale is"
            raise NonFiniteError(self.first_chain + chain, self.layer_of(layer), what)
        shape = log_scale.shape + (1,) * (values.ndim - 2)
        return values * np.exp(np.maximum(log_scale, -745.2)).reshape(shape)

    @property
    def gram(self) -> NDArray[np.float64]:
        """The Gram matrices themselves."""
        return self.rescaled(self.scaled)


#: Types of values that need no further check.
_NUMBERS = (float, np.float64)


def _name(name: object) -> str:
    """Return `name` if it is an identifier that a `Trajectory` does not use, or raise."""
    if not isinstance(name, str):
        raise ArgumentTypeError("name", name, "an identifier, to call the result by")
    taken = name in Trajectory.__dataclass_fields__ or hasattr(Trajectory, name)
    if not name.isidentifier() or taken or name in ("layer", "input"):
        raise ArgumentError("name", name, "an identifier that a Trajectory does not use itself")
    return name


def _shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        raise ArgumentTypeError("shape", shape, "a tuple of integers")
    return tuple(integer("shape", length, low=0) for length in shape)


class Observable:
    """A function of the Gram matrix that is recorded at each recorded layer.

    Parameters
    ----------
    function : callable
        Maps G, a read-only (n, n) array, to a number or an array of `shape`.  It must be pure:
        several threads call it, in any order.
    shape : tuple of int, default ()
        Shape of its values.
    name : str, optional
        Name of the result; the default is the name of the function.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `function` is not callable, or the result has no name.  A run raises them if the function
        returns another shape.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> trace = bnmc.Observable(np.trace, name="trace")
    >>> run = bnmc.simulate(bnmc.Chain(100, 3), 2, observables=["gram", trace], rng=0)
    >>> run["trace"].shape
    (1, 3)
    """

    #: The number that kernels compute for it, if they can.
    measure: Measure | None = None
    #: Whether BLAS computes it, whose kernel and threads decide on the last bits.
    uses_blas = False
    #: Whether it is a function of the Gram matrix of h.
    uses_state = False
    #: Arrays that its evaluation takes at its peak, in multiples of the Gram matrices of a block,
    #: without the copy of those of several inputs: in units of exp(log_scale) 0, in other units.
    temporaries = (1, 2)

    def __init__(
        self,
        function: Callable[[NDArray[np.float64]], ArrayLike],
        shape: tuple[int, ...] = (),
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise ArgumentTypeError("function", function, "a callable that takes a Gram matrix")
        self.function = function
        self.shape = _shape(shape)
        self.name = _name(getattr(function, "__name__", "") if name is None else name)

    def __repr__(self) -> str:
        return f"Observable({self.name!r}, shape={self.shape})"

    @property
    def content(self) -> object:
        """What its values depend on besides the Gram matrix, for the identity of a run."""
        return type(self), sorted(vars(self).items())

    def evaluate(self, view: View) -> NDArray[np.float64]:
        """Return values of shape ``(chains, layers, inputs, *shape)``."""
        # Other observables, and the array of the user, share the numbers.  So the function gets a
        # copy, in memory that cannot be made writeable.
        gram = view.gram
        matrices = np.frombuffer(gram.tobytes()).reshape(-1, *gram.shape[3:])
        out = np.empty((len(matrices), *self.shape))
        for index, matrix in enumerate(matrices):
            out[index] = self._checked(self.function(matrix))
        return out.reshape(gram.shape[:3] + self.shape)

    def at(self, chain: Chain, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at Gram matrices (chains, layers, n, n) of one input."""
        layers = gram.shape[:2]
        frames = Frames(gram, np.zeros(layers), np.zeros((*layers, 0)))
        values = self.evaluate(View(chain.repeat(0), frames))
        return values[:, :, 0] if "input" in self.axes else values

    def _checked(self, value: ArrayLike) -> ArrayLike:
        """Return the value of the function, a number or array of the declared shape, or raise."""
        if type(value) in _NUMBERS and self.shape == ():
            return value
        about = f"observable {self.name}"
        array = host_array(about, value, "real numbers")
        if array.dtype.kind not in "biuf":
            raise ArgumentTypeError(about, value, "real numbers")
        if array.shape != self.shape:
            raise ArgumentError(about, array.shape, f"the declared shape {self.shape}")
        return array

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes after chain and layer."""
        return ("input", *(f"{self.name}_{axis}" for axis in range(len(self.shape))))

    def lengths(self, batch: int, inputs: int | None) -> dict[str, int]:
        """Return the lengths of the axes after chain and layer, by name."""
        k = inputs or 1
        of_axes = {
            "input": k, "input_i": k, "input_j": k, "column": k * batch, "sample_i": batch,
            "sample_j": batch, "mode": batch, **dict(zip(self.axes[1:], self.shape, strict=False)),
        }  # fmt: skip
        return {axis: of_axes[axis] for axis in self.axes if axis != "input" or inputs is not None}


class _Builtin(Observable):
    """A named observable: vectorised, and with named axes."""

    axes: tuple[str, ...] = ("input",)
    shape = ()

    def __init__(
        self,
        name: str,
        compute: Callable[[View], NDArray[np.float64]],
        axes: tuple[str, ...] = ("input",),
        measure: Measure | None = None,
        temporaries: tuple[int, int] = (0, 0),
    ) -> None:
        self.name, self.compute, self.axes = name, compute, axes
        self.measure, self.temporaries = measure, temporaries
        self.uses_blas = name == "eigenvalues"
        self.uses_state = name == "state_gram"

    def __repr__(self) -> str:
        return f"Observable({self.name!r})"

    def evaluate(self, view: View) -> NDArray[np.float64]:
        return self.compute(view)


class SoftRank(_Builtin):
    """The soft rank of the activations: the number of squared singular values of at least tau n.

    Parameters
    ----------
    tau : float, default 0.5
        Threshold > 0; see `bnmc.gram.soft_rank`.
    name : str, default "soft_rank"
        Name of the result.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(100, 4, "relu"), 3, observables=[bnmc.SoftRank(0.1)], rng=0)
    >>> run["soft_rank"].shape
    (1, 4)
    """

    def __init__(self, tau: float = 0.5, name: str = "soft_rank") -> None:
        self.tau = tau = real("tau", tau, above=0.0)
        super().__init__(
            _name(name),
            lambda view: _soft_rank(view, tau),
            temporaries=(2, 3),
        )
        self.uses_blas = True


def _soft_rank(view: View, tau: float) -> NDArray[np.float64]:
    gram, layers = view.gram, range(len(view.frames.log_scale[0]))
    widths = [layer_at(view.network, view.layer_of(layer)).linear.width for layer in layers]
    of_layers = [(gram, widths[0])] if len({*widths}) == 1 else [
        (gram[:, layer : layer + 1], width) for layer, width in enumerate(widths)
    ]  # fmt: skip
    ranks = [grams.soft_rank(matrices, tau, width=width) for matrices, width in of_layers]
    return np.concatenate(ranks, axis=1).astype(float)


class Distance(_Builtin):
    """The Frobenius distance of the Gram matrix from a given matrix.

    Parameters
    ----------
    star : (n, n) array_like
        The matrix, for example the Gram matrix of a fixed point.
    name : str, default "distance"
        Name of the result.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(100, 4, "relu")
    >>> star = bnmc.MeanField(chain).fixed_point().gram
    >>> run = bnmc.simulate(chain, 3, observables=[bnmc.Distance(star)], rng=0)
    >>> run["distance"].shape
    (1, 4)
    """

    def __init__(self, star: ArrayLike, name: str = "distance") -> None:
        self.star = fixed = finite_array("star", star, shape=("n", "n")).astype(np.float64)
        super().__init__(
            _name(name),
            lambda view: grams.distance(view.gram, fixed),
            measure=Measure(measures.DISTANCE, fixed),
            temporaries=(3, 4),
        )


def _log_pivots(view: View) -> NDArray[np.float64]:
    if view.frames.log_pivots.shape[-1] == 0:
        allowed = "other ones for this chain, as only Wishart factors have it"
        raise ArgumentError("observables", "log_pivots", allowed)
    return view.frames.log_pivots


def _state_gram(view: View) -> NDArray[np.float64]:
    if view.frames.states is None:
        allowed = "functions of the Gram matrix alone, as bnmc.simulate records it"
        raise ArgumentError("observables", "state_gram", allowed)
    return view._replace(frames=view.frames.states).gram


_MATRIX = ("input", "sample_i", "sample_j")

OBSERVABLES: dict[str, Observable] = {
    observable.name: observable
    for observable in (
        _Builtin("gram", lambda view: view.gram, _MATRIX, temporaries=(0, 1)),
        _Builtin("scaled_gram", lambda view: view.scaled, _MATRIX),
        _Builtin(
            "cross_gram",
            lambda view: view.rescaled(view.cross),
            ("input_i", "input_j", "sample_i", "sample_j"),
        ),
        _Builtin(
            "eigenvalues",
            lambda view: view.rescaled(grams.eigenvalues(view.scaled)),
            ("input", "mode"),
            temporaries=(2, 2),
        ),
        _Builtin("log_scale", lambda view: view.frames.log_scale, ()),
        _Builtin("log_pivots", _log_pivots, ("column",)),
        _Builtin(
            "orthogonality_gap",
            lambda view: grams.orthogonality_gap(view.scaled),
            measure=Measure(measures.GAP),
            temporaries=(4, 4),
        ),
        _Builtin(
            "rank_bound",
            lambda view: grams.rank_bound(view.scaled),
            measure=Measure(measures.RANK_BOUND),
            temporaries=(2, 2),
        ),
        SoftRank(),
        _Builtin("state_gram", _state_gram, _MATRIX, temporaries=(0, 1)),
    )
}


_ALLOWED = "names, Observables or functions of G"


#: What has a name.
_N = TypeVar("_N", bound=Any)


def observables_of(
    wanted: Any, allowed: str, of: Callable[[str | None, Any], _N]
) -> tuple[_N, ...]:
    """Return what an argument `observables` means, each name once, or raise.

    Parameters
    ----------
    wanted : object
        An observable as `of` takes it, several, or a mapping of names to observables.
    allowed : str
        The allowed values, for the message.
    of : callable
        Takes the name, or None unless there is a mapping, and the value.
    """
    if isinstance(wanted, Mapping):
        pairs = [*wanted.items()]
    else:
        is_single = isinstance(wanted, (str, Observable)) or callable(wanted)
        several = [wanted] if is_single else items("observables", wanted, allowed)
        pairs = [(None, value) for value in several]
    chosen: dict[str, _N] = {}
    for name, value in pairs:
        observable = of(name, value)
        if chosen.setdefault(observable.name, observable) != observable:
            raise ArgumentError("observables", observable.name, "each name once")
    return tuple(chosen.values())


def as_observables(
    wanted: str | Observable | Iterable[str | Observable] | Mapping[str, Any], has_inputs: bool
) -> tuple[Observable, ...]:
    """Return the observables that an argument `observables` means, without equal names."""
    chosen = observables_of(wanted, _ALLOWED, _observable)
    if not has_inputs and "cross_gram" in [each.name for each in chosen]:
        raise ArgumentError("observables", "cross_gram", "other ones unless inputs= is given")
    return chosen


def _observable(name: str | None, value: Any) -> Observable:
    """Return the observable of a value, or of an item of a mapping: a function, or with a shape."""
    if isinstance(value, Observable):
        if name not in (None, value.name):
            raise ArgumentError("observables", name, f"the observable's own name, {value.name!r}")
        return value
    if name is None:
        if isinstance(value, str):
            return OBSERVABLES[choice("observables", value, OBSERVABLES)]
        if not callable(value):
            raise ArgumentTypeError("observables", value, _ALLOWED)
    elif isinstance(value, tuple) and len(value) != 2:
        raise ArgumentError("observables", value, "a function, or (function, shape), for each name")
    function, shape = value if isinstance(value, tuple) else (value, ())
    return Observable(function, shape, name)
