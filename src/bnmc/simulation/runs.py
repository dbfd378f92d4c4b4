"""A run as a value: its chains, its random numbers, and what it records of which layers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.numbers import TILE
from bnmc._kernels.scalar.codes import MOST_LAYERS, NORM_FIRST, LayerSpec
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain, Layers, Network, Pattern, layers_of, pattern_of
from bnmc.chain.compiled import Stage, specs_of, stages_of
from bnmc.chain.homogeneity import homogeneous_slopes, keeps_scale
from bnmc.chain.layers import Layer, Linear, RowMap
from bnmc.chain.norms import as_norm
from bnmc.errors import ArgumentError, BackendError
from bnmc.simulation.engine.state import Field, Frames, Measure, State, bytes_of
from bnmc.simulation.observables import Observable, View

#: The samplers, by the names that `simulate` takes.  "factor" is the form of the conditional
#: sampler for linear chains without normalization.
#: "mixed" draws the weights of those layers alone that the conditional sampler cannot make.
NAMES = {
    "conditional": "conditional", "weights": "weights", "mixed": "mixed", "factor": "conditional"
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """Which layers are recorded: first, first + every, … and always the last."""

    first: int
    every: int
    last: int

    @property
    def count(self) -> int:
        """Number of recorded layers."""
        return -(-(self.last - self.first) // self.every) + 1

    def layer(self, slot: int) -> int:
        """Return the layer of a slot, the number of a recorded layer."""
        return min(self.first + slot * self.every, self.last)

    def layers(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the layers of slots first:last."""
        begin, end = self.first + first * self.every, self.first + last * self.every
        return np.minimum(np.arange(begin, end, self.every), self.last)

    def before(self, layer: int) -> int:
        """Return the number of recorded layers below a layer: its slot if it is recorded."""
        if layer > self.last:
            return self.count
        return max(0, -(-(layer - self.first) // self.every))

    def slots(self, first: int, last: int) -> NDArray[np.int64]:
        """Return 0, 1, … for the recorded ones of layers first:last, and -1 for the others."""
        before = self.before(first)
        count = self.before(last) - before
        if count == last - first:
            return np.arange(count)
        slots = np.full(last - first, -1)
        slots[self.layers(before, before + count) - first] = np.arange(count)
        return slots


class _Projected(NamedTuple):
    """The projection of a skip path, as a layer without norm and activation."""

    layer: Layer
    spec: LayerSpec
    stage: Stage


def number_of_projection(layer: int) -> int:
    """Return the number of the projection of the skip path that ends at a layer.

    Its random numbers are those of the layer of this number, which no network reaches.
    """
    return MOST_LAYERS - 1 - layer


@dataclass(frozen=True)
class Run:
    """Independent chains of one kind, and what is recorded of them.

    Attributes
    ----------
    network : Network
    path : str
        Key of the sampler in `NAMES`.
    chains : int
        Number of chains.
    inputs : int or None
        Number of input batches; None for one without an axis of its own.
    dtype : str
        Precision of the rows.
    key : int
        The 64-bit key of all random numbers.
    start_layer : int
        The layer from which the chains start: 0, or that of a state.
    backend : {"cpu", "cuda"}
    observables : tuple of Observable
    recorded : Recorded
        The layers, counted from layer 0 of the chain.
    first : int
        Number of the first chain.
    stays : bool
        Whether recorded Gram matrices stay on the GPU.

    Derived attributes, which do not depend on `key`, `chains`, `first` and `recorded`:

    layers : tuple of Layer
        The layers of the network, each from the layer of a number in `firsts` on.
    projections : dict of _Projected
        The projections of skip paths, by the numbers that address their random numbers.
    specs : tuple of LayerSpec
        What kernels know of `layers`.
    stages : list of Stage
        The layers that a kernel makes in one call.
    columns : int
        Number of samples in all input batches.
    shows_state : bool
        Whether the Gram matrices of h are recorded.
    draws_weights : bool
        Whether rows of any layer are products with weights, so that activations are in the state.
    lacks_norm : bool
        Whether a layer after layer 0 has no norm.
    keeps_x : bool
        Whether the representation, which skip connections add, is part of the state.
    splits_scale : bool
        Whether the scale of each sample is split off, in `Frames.units`.
    seconds : float
        Estimated time of one layer of one chain on one thread, or on one GPU.
    layout : dict of Field
        The arrays of the state of a chain: the table from which buffers and checks follow.
    frame : dict of Field
        The arrays that record a layer of a chain, by their names in `Frames`.
    """

    network: Network
    path: str
    chains: int
    inputs: int | None
    dtype: str
    key: int = 0
    start_layer: int = 0
    backend: str = "cpu"
    observables: tuple[Observable, ...] = ()
    recorded: Recorded = Recorded(0, 1, 0)
    first: int = 0
    stays: bool = False

    firsts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    layers: tuple[Layer, ...] = field(init=False, repr=False, compare=False)
    projections: dict[int, _Projected] = field(init=False, repr=False, compare=False)
    specs: tuple[LayerSpec, ...] = field(init=False, repr=False, compare=False)
    stages: list[Stage] = field(init=False, repr=False, compare=False)
    columns: int = field(init=False, repr=False, compare=False)
    shows_state: bool = field(init=False, repr=False, compare=False)
    draws_weights: bool = field(init=False, repr=False, compare=False)
    lacks_norm: bool = field(init=False, repr=False, compare=False)
    keeps_x: bool = field(init=False, repr=False, compare=False)
    splits_scale: bool = field(init=False, repr=False, compare=False)
    seconds: float = field(init=False, repr=False, compare=False)
    layout: dict[str, Field] = field(init=False, repr=False, compare=False)
    frame: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shows_state = any(each.uses_state for each in self.observables)
        derived = _derived(
            pattern_of(self.network), self.path, self.inputs, self.dtype, self.backend, shows_state
        )
        vars(self).update(derived)
        if self.measures or self.stays:
            numbers = ((len(self.measures), self.inputs or 1), np.dtype(np.float64))
            vars(self).update(frame={"values": numbers})

    @staticmethod
    def of_state(state: State) -> Run:
        """Return the run that continues a state."""
        return Run(
            state.network, state.path, state.chains, state.inputs, state.dtype, state.key,
            state.layer,
        )  # fmt: skip

    @property
    def chain(self) -> Chain:
        """The chain that repeats, or an error if layers differ."""
        return self.network.chain

    @property
    def batch(self) -> int:
        """Number of samples in an input batch."""
        return self.network.batch

    def place(self, number: int) -> int:
        """Return the place of a layer in `layers` and `specs`."""
        return bisect_right(self.firsts, number) - 1

    def layer(self, number: int) -> Layer:
        """Return a layer, or a projection by its number."""
        projected = self.projections.get(number)
        return self.layers[self.place(number)] if projected is None else projected.layer

    @property
    def repeated(self) -> Layer:
        """The layer that repeats after layer 0, for kernels that make no other one.

        Raises
        ------
        BackendError
            If the layers differ.
        """
        if len(self.layers) > 2:
            raise BackendError(self.backend, "kernels repeat one layer; layers of the run differ")
        return self.layers[-1]

    def spec(self, number: int) -> LayerSpec:
        """Return what kernels know of a layer or a projection."""
        projected = self.projections.get(number)
        return self.specs[self.place(number)] if projected is None else projected.spec

    def stage(self, number: int) -> Stage:
        """Return the stage of a layer or a projection."""
        if number in self.projections:
            return self.projections[number].stage
        return self.stages[bisect_right(self.stages, number, key=attrgetter("end"))]

    def outside_of_blocks(self, number: int) -> int:
        """Return the last layer up to this one that is not inside of a block."""
        while (stage := self.stage(number)).level > 0:
            number = stage.first - 1
        return number

    @property
    def tile(self) -> int:
        """Columns of a tile of weights."""
        return TILE if self.draws_weights else 0

    @property
    def depth(self) -> int:
        """Number of layers after that of the start."""
        return self.recorded.last - self.start_layer

    @property
    def devices(self) -> int:
        """Number of GPUs among which the chains are divided; 1 on the CPU."""
        if self.backend == "cpu" or self.stays:
            return 1
        from bnmc._kernels.gpu.device import devices

        return min(len(devices()), self.chains)

    @property
    def bytes_of_chain(self) -> int:
        """Bytes of the state of one chain."""
        return bytes_of(*self.layout.values())

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The numbers that kernels of a GPU record in place of Gram matrices, if they are all."""
        # The numbers of kernels are those of a matrix whose samples have one unit.
        if self.backend == "cpu" or self.splits_scale:
            return ()
        measures = tuple(each.measure for each in self.observables if each.measure is not None)
        return measures if len(measures) == len(self.observables) else ()

    @cached_property
    def _lengths(self) -> dict[str, dict[str, int]]:
        return {each.name: each.lengths(self.batch, self.inputs) for each in self.observables}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one value of each observable."""
        return {name: tuple(lengths.values()) for name, lengths in self._lengths.items()}

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Names of the axes of each observable after chain and layer."""
        return {name: tuple(lengths) for name, lengths in self._lengths.items()}

    @property
    def numbers(self) -> int:
        """Recorded numbers of one layer of one chain."""
        return sum(map(math.prod, self.shapes.values()))

    def check_observables(self) -> None:
        """Evaluate observables once, so that they raise before any work if they do not do.

        Not matrices, which are the default, and spectra, which take seconds for a large batch.
        """
        unsure = [
            each for each in self.observables if each.axes[-1:] not in (("sample_j",), ("mode",))
        ]
        if unsure:
            frames = replace(self, chains=1, observables=(), stays=False).frames(1)
            frames.gram[:] = np.eye(self.columns)
            for each in unsure:
                each.evaluate(self.view(frames))

    def changed(self, **changes: int) -> Run:
        """Return the run with another key or other chains, on which nothing derived depends."""
        run = object.__new__(Run)
        vars(run).update(vars(self), **changes)
        return run

    @property
    def uses_blas(self) -> bool:
        """Whether the bits of an observable depend on the BLAS of NumPy."""
        return any(each.uses_blas for each in self.observables)

    def part(self, first: int, last: int) -> Run:
        """Return the run of chains first:last."""
        if last - first == self.chains:
            return self
        return self.changed(chains=last - first, first=self.first + first)

    def state(self, layer: int, arrays: dict[str, NDArray[Any]]) -> State:
        """Return the state of the chains at a layer."""
        return State(self.network, self.path, self.key, layer, self.inputs, self.dtype, arrays)

    def frames(self, layers: int) -> Frames:
        """Return the arrays in which a sampler records layers of the chains."""
        frames = self._frames(layers)
        if not self.shows_state:
            return frames
        # Without activation and norm, a is h.
        states = frames if self.path == "factor" else self._frames(layers)
        return frames._replace(states=states)

    def _frames(self, layers: int) -> Frames:
        arrays: dict[str, Any] = {
            name: np.zeros((self.chains, layers, *shape), dtype)
            for name, (shape, dtype) in self.frame.items()
        }
        return Frames(**arrays)

    def view(self, frames: Frames, first: int = 0, slot: int = 0) -> View:
        """Return frames as observables take them.

        Parameters
        ----------
        frames : Frames
        first : int
            The first chain of the frames, counted from that of the run.
        slot : int
            The slot of the first layer of the frames.
        """
        return View(
            self.network, frames, self.inputs or 1, self.first + first,
            lambda index: self.recorded.layer(slot + index),
        )  # fmt: skip

    def values(self, observable: Observable, view: View) -> NDArray[np.float64]:
        """Evaluate an observable, without the axis of inputs if `inputs` is None."""
        values, is_single = observable.evaluate(view), self.inputs is None
        return values[:, :, 0] if is_single and "input" in observable.axes else values


@lru_cache(maxsize=64)
def _derived(
    pattern: Pattern,
    path: str,
    inputs: int | None,
    dtype: str,
    backend: str,
    shows_state: bool,
) -> dict[str, Any]:
    """Return the derived attributes of a `Run`; making them takes longer than a short run."""
    spans = layers_of(pattern)
    layers, columns = spans.layers, spans.layers[0].rows.batch * (inputs or 1)
    paths = [layer.path for layer in layers if layer.path is not None]
    specs = specs_of(layers, inputs or 1, shows_state=shows_state)
    by_weights = tuple(
        path == "weights" or (path == "mixed" and place > 0 and not is_drawn(layer, shows_state))
        for place, layer in enumerate(layers)
    )
    specs = tuple(
        _spec_of_weights(spec, backend, place == 0) if by_weights[place] else spec
        for place, spec in enumerate(specs)
    )
    lacks_norm = any(layer.rows.norm.is_identity for layer in layers[1:])
    keeps_x = any(layer.rows.skip != 0.0 for layer in layers[1:])
    # What a skip path keeps has the unit of the layer where it begins.
    splits_scale = path != "factor" and not paths and all(map(keeps_scale, layers[1:]))
    if splits_scale and dtype == "float32":
        for layer in layers[1:]:
            _require_slopes(layer)
    stride = max(memory.stride(spec.width) for spec in specs)
    projections = _projections_of(spans, specs, path, inputs or 1, backend)
    others = tuple(projected.spec for projected in projections.values())
    stages = stages_of(spans, specs, by_weights, splits_scale, others)
    draws_weights = any(by_weights) or any(p.stage.by_weights for p in projections.values())
    keeps_a = draws_weights or any(each.takes_activations for each in paths)
    levels = 1 + max(stage.level + bool(stage.begins) for stage in stages)
    return {
        **spans._asdict(), "specs": specs, "projections": projections, "stages": stages,
        "columns": columns, "shows_state": shows_state, "draws_weights": draws_weights,
        "lacks_norm": lacks_norm, "keeps_x": keeps_x, "splits_scale": splits_scale,
        "seconds": _mean_seconds(pattern, by_weights, path, columns, dtype, backend),
        "layout": _layout_of(
            path, keeps_a, dtype, columns, stride, levels if keeps_x else 0, splits_scale
        ),
        "frame": _frame_of(path, columns, splits_scale),
    }  # fmt: skip


def _is_gaussian(linear: Linear) -> bool:
    """Return whether a projection is drawn given the Gram matrix of what it multiplies."""
    return linear.law.rows_given_gram


def _projections_of(
    spans: Layers, specs: tuple[LayerSpec, ...], path: str, inputs: int, backend: str
) -> dict[int, _Projected]:
    """Return the projections of a network by their numbers."""
    projections: dict[int, _Projected] = {}
    linear_map = Activation.named("linear"), as_norm("none"), NORM_FIRST
    for first, layer in zip(spans.firsts, spans.layers, strict=True):
        linear = layer.path.projection if layer.path is not None else None
        if linear is None:
            continue
        projected = Layer(linear, RowMap(*linear_map, layer.rows.batch))
        by_weights = path == "weights" or not _is_gaussian(linear)
        (spec,) = specs_of([projected], inputs)
        spec = _spec_of_weights(spec, backend, False) if by_weights else spec
        number = number_of_projection(first)
        (stage,) = stages_of(Layers((number,), (projected,)), (spec,), [by_weights], False, specs)
        projections[number] = _Projected(projected, spec, stage)
    return projections


def _require_slopes(layer: Layer) -> None:
    """Raise if float32 loses squares of a homogeneous activation, whose zeros count as exact."""
    for slope in homogeneous_slopes(layer.rows.activation) or ():
        if slope and not 2.0**-60 <= abs(slope) <= 2.0**60:
            allowed = f"'float64' for an activation of slope {slope:g}"
            raise ArgumentError("dtype", "float32", allowed, "or put the factor into gain=")


def _in_unit_scale(spec: LayerSpec) -> LayerSpec:
    """Return the spec of a layer whose norm does not see its scale, divided by a power of 2.

    Squares of the rows then stay in the range of their dtype, and no other bit changes.
    """
    if not spec.hides_scale:
        return spec
    by = -math.frexp(max(abs(spec.gain), spec.bias))[1]
    return spec._replace(gain=math.ldexp(spec.gain, by), bias=math.ldexp(spec.bias, by))


def _spec_of_weights(spec: LayerSpec, backend: str, is_start: bool) -> LayerSpec:
    """Return the spec of a layer whose rows are products with weights: they have all parts."""
    spec = _in_unit_scale(spec)
    if backend != "cpu":
        return spec
    panel = memory.panel_rows(spec.width, max(spec.columns, spec.width))
    return spec._replace(panel=panel, hides_common=spec.hides_common and is_start)


def _frame_of(path: str, columns: int, splits_scale: bool) -> dict[str, Field]:
    return _fields(
        ("gram", True, (columns, columns), np.float64),
        ("log_scale", True, (), np.float64),
        ("log_pivots", path == "factor", (columns,), np.float64),
        ("units", splits_scale, (columns,), np.int64),
    )


def _layout_of(
    path: str,
    keeps_a: bool,
    dtype: str,
    columns: int,
    stride: int,
    levels: int,
    splits_scale: bool,
) -> dict[str, Field]:
    is_watched = dtype == "float32" and (keeps_a or levels > 0)
    return _fields(
        ("factor", path == "factor", (columns, columns), np.float64),
        ("exponent", path == "factor", (columns,), np.float64),
        ("log_start", path == "factor", (), np.float64),
        ("gram", path != "factor", (columns, columns), np.float64),
        ("activations", keeps_a, (2, memory.padded(columns), stride), dtype),
        ("wide", path == "conditional", (), np.bool_),
        ("exponent", splits_scale, (columns,), np.int64),
        ("unresolved", is_watched, (), np.bool_),
        *((name_of_x(level), True, (columns, stride), dtype) for level in range(levels)),
    )


def name_of_x(level: int) -> str:
    """Return the name of the array of representations inside of so many blocks."""
    return f"x{level}" if level else "x"


def _fields(*fields: tuple[str, bool, tuple[int, ...], Any]) -> dict[str, Field]:
    """Return the fields that are there by name: each has a name, whether it is, shape, dtype."""
    return {name: (shape, np.dtype(dtype)) for name, is_there, shape, dtype in fields if is_there}


def choose_sampler(
    network: Network, inputs: int | None, wanted: str, dtype: str, *, shows_state: bool = False
) -> str:
    """Return the cheapest valid sampler, or the wanted one; raise if that is not valid.

    `shows_state` tells whether the Gram matrices of h are recorded, which then have their biases.
    """
    return _chosen(pattern_of(network), inputs, wanted, dtype, shows_state)


@lru_cache(maxsize=64)
def _chosen(
    pattern: Pattern, inputs: int | None, wanted: str, dtype: str, shows_state: bool
) -> str:
    if wanted == "weights":
        return "weights"
    layers, first = layers_of(pattern).layers[1:], pattern[0]
    others = [layer for layer in layers if not is_drawn(layer, shows_state)]
    paths = [layer.path for layer in layers if layer.path is not None]
    linears = [layer.linear for layer in others]
    linears += [each for path in paths if (each := path.projection) and not _is_gaussian(each)]
    weighted = [linear for linear in linears if not linear.law.is_identity]
    if wanted == "conditional" and weighted:
        allowed = "'weights' or 'auto' unless the weights are Gaussian or Haar"
        of_haar = "Haar: square, for norms over the batch before the activation, without bias"
        hint = of_haar if weighted[0].law.is_orthogonal else ""
        raise ArgumentError("sampler", wanted, allowed, hint)
    if linears:
        return "weights" if len(others) == len(layers) else "mixed"
    if any(layer.linear.law.is_orthogonal for layer in layers):
        return "conditional"
    if len(pattern) == 1 and isinstance(first, tuple) and first[0].is_vanilla_linear:
        return "factor"
    if wanted == "conditional":
        return "conditional"
    columns = layers[0].rows.batch * (inputs or 1)

    def seconds(path: str) -> float:
        by_weights = [path == "weights"] * (len(layers) + 1)
        return _mean_seconds(pattern, by_weights, path, columns, dtype, "cpu")

    return min("conditional", "weights", key=seconds)


def is_drawn(layer: Layer, shows_state: bool = False) -> bool:
    """Return whether a layer can be drawn given the Gram matrix of the layer before."""
    linear, rows = layer.linear, layer.rows
    if not linear.law.is_orthogonal:
        return linear.law.rows_given_gram
    has_bias = linear.bias_variance > 0.0 and (shows_state or not rows.hides_common_part())
    return layer.is_row_by_row and not has_bias and linear.width == linear.fan_in


def _mean_seconds(
    pattern: Pattern,
    by_weights: Sequence[bool],
    path: str,
    columns: int,
    dtype: str,
    backend: str,
) -> float:
    """Return the estimated time of one layer of one chain, in the mean over layers."""
    firsts, layers = layers_of(pattern)
    counts = np.array([end - first for first, end in pairwise(firsts[1:])] + [1])
    paths = ["weights" if each else path.replace("mixed", "conditional") for each in by_weights]
    times = [
        seconds_of(of_layer, layer, columns, dtype, backend)
        for of_layer, layer in zip(paths[1:], layers[1:], strict=True)
    ]
    return times[0] if len(times) == 1 else float(np.average(times, weights=counts))


def seconds_of(path: str, layer: Layer, columns: int, dtype: str, backend: str = "cpu") -> float:
    """Return the estimated time of one layer of one chain, in seconds.

    That is the time of one thread, or of one GPU.
    """
    linear = layer.linear
    scale = np.dtype(dtype).itemsize / 4
    entries = linear.width * (linear.fan_in if path == "weights" else columns)
    if backend == "cuda":
        return 1e-9 + entries * (2 + 0.05 * columns) * 1e-12 * scale
    if path == "factor":
        return 1e-6 + 1e-7 * columns**2 + 1e-9 * columns**3
    if path == "weights":
        # An orthogonal matrix takes a factorization.
        of_entry = 5e-10 * linear.width if linear.law.is_orthogonal else 0.5e-9
        return 1e-6 + entries * (of_entry + 6e-11 * columns) * scale
    # Orthogonal weights, and norms over the features, take a second pass over the rows.
    passes = 1.7 if linear.law.is_orthogonal or not layer.rows.norm.acts_on_rows else 1.0
    of_matrix = 4e-10 + 2e-11 * columns
    if linear.convolution is not None:  # the averages over taps
        of_matrix += 0.6e-9 * sum(linear.convolution.kernel)
    return 1e-6 + entries * (0.6e-9 + 4e-11 * columns) * passes * scale + columns**2 * of_matrix
