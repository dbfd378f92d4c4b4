"""What kernels take: arrays and numbers that are the same in every launch of a run of layers.

Kernels end with what differs from launch to launch.  Numba passes the entries of a tuple one by
one, so that a tuple costs nothing.  In place of an array that a kernel does not read there is an
empty tuple.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: In place of an array.
NOTHING: Any = ()


class State(NamedTuple):
    """The state of chains.

    grams : (chains, rows of a Gram matrix, columns) float64
    xs : (chains, columns, >= width)
        With a skip connection, the representations.
    activations : (chains, 2, >= width, columns)
        If weights are multiplied, the activations of even and of odd layers.
    """

    grams: Any
    xs: Any
    activations: Any


class Target(NamedTuple):
    """Where layers are recorded; see `gram.record_layer`."""

    record: Any
    values: Any
    kinds: Any
    stars: Any


class Work(NamedTuple):
    """How far chains are, and the sums of their layers.

    status : (chains,) int64
        Notes of `block`.
    arrived : (chains,) int32
        Number of blocks that have finished; zeros before and after a launch.
    sums : (chains, ranges, entries) float64
        Of the ranges of tiles of a layer.
    """

    status: Any
    arrived: Any
    sums: Any


class Address(NamedTuple):
    """The number of the first chain, and the key."""

    first_chain: Any
    key0: Any
    key1: Any


class Passes(NamedTuple):
    """Work space of layers in passes over their rows.

    covariances : (chains, columns, columns) float64
        Of the rows of W a, but for the gain.
    factors : (chains, fan_in, columns)
        What weights of several taps multiply, if these are multiplied.
    segments : (chains, places, 2, columns) float64
        Moments; see `passes.segments_of`.
    shifts, scales : (chains, groups, columns) float64
        What a norm over the features subtracts, and by what it multiplies.
    """

    covariances: Any
    factors: Any
    segments: Any
    shifts: Any
    scales: Any


class Frames(NamedTuple):
    """Work space of layers with orthogonal weights.

    inverse : (chains, columns, columns) float64
        L⁻¹.
    matrices : (chains, rows of a Gram matrix, columns) float64
    leasts : (chains,) float64
        The least pivot of the launch before, and of this one.
    """

    inverse: Any
    matrices: Any
    leasts: Any


class Layers(NamedTuple):
    """The layers of a stretch that a backward pass goes down through.

    What belongs to the layer before a layer is at the layer's place.

    covariances : (chains, layers, columns, columns) float64
        Of the rows of W a, but for their scale.
    scales, ratios : (chains, layers) float64, (chains, layers, columns) float64
        The scale of the rows h, and the units of the activations before in those of the basis.
    xs : (chains, layers, columns, >= width)
        With a skip connection, the representations before.
    """

    covariances: Any
    scales: Any
    ratios: Any
    xs: Any


class Descents(NamedTuple):
    """Where the backward passes of chains are, and what they record.

    given : (chains or 1, columns, width) float64, or (1, 0, 1)
        δ of the last layer, or nothing if its entries are independent standard normals.
    above : (chains, columns, >= width)
        With a skip connection, δ of the layer above; replaced by that of the layer.
    state : (chains, 2, columns, columns) float64
        δᵀδ / width and zᵀδ / width of the layer above.
    basis : (chains, columns, columns) float64
        The factor of what the layer above saw; replaced by that of what the layer saw.
    mixing : (chains, columns, columns) float64
        M.
    record : (chains, layers, 2 or 3, columns, columns) float64
        Receives the state, and hᵀδ / width if `Numbers.hidden`.
    factors : (chains, layers) float64
        Receives the power of two by which δ of the layer above was multiplied.
    """

    given: Any
    above: Any
    state: Any
    basis: Any
    mixing: Any
    record: Any
    factors: Any


class Standards(NamedTuple):
    """Of a backward pass of layers in passes.

    shifts, inverses : (chains, groups, columns) float64
        What a norm over the features subtracts, and its inverse scale.
    means : (chains, 2, groups, columns) float64
        The means of gradients with respect to N(u), and of their products with N(u).
    segments : (chains, 2, places, 2, columns) float64
        Work space; see `passes.segments_of`.
    taps, one_tap : (taps, columns) int64
        The column that each tap sees from a column, for layers and for a readout.
    """

    shifts: Any
    inverses: Any
    means: Any
    segments: Any
    taps: Any
    one_tap: Any


class Noise(NamedTuple):
    """Of a backward pass with orthogonal weights; see `backward`.

    inverse : (chains, columns, columns) float64
        L⁻¹.
    work : (chains, 2, columns, columns) float64
        Work space.
    root, regular : (chains, columns, columns) float64, (chains, columns) float64
        E, and 1 or 0: whether a column of E has entries.
    powers : (chains,) float64
        The power of two by which E is multiplied.
    leasts : (chains,) float64
        The least pivot of the launch before, and of this one.
    number : int
        Number of the launch for a layer.
    with_rest : bool
        Whether E is needed.
    """

    inverse: Any
    work: Any
    root: Any
    regular: Any
    powers: Any
    leasts: Any
    number: Any
    with_rest: Any


class Numbers(NamedTuple):
    """The layers of a backward pass, their gain in the units of the rows, and more.

    constant : float
        The entries of the row of a that a bias multiplies, divided by the square root of the number
        of taps; 0 without a bias.
    hidden : bool
        Whether hᵀδ is wanted.
    """

    law: Any
    gain: Any
    constant: Any
    hidden: Any


class RowInputs(NamedTuple):
    """What the rows of a layer of one chain are made of."""

    law: Any
    draw: Any
    #: The representation.
    x: Any
    #: What weights multiply.
    a: Any
    #: Where activations are kept, or what an earlier pass has kept.
    stored: Any
    #: The rows of layer 0, if they are given.
    given: Any
    #: Of a norm over the features; see `Passes`.
    shifts: Any
    scales: Any
