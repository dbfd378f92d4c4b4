"""Compilation ahead of time, for services and for workers with a common cache.

It is here because this is the lowest package from which all kernels can be reached.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnmc._support.arguments import choice, items
from bnmc._support.keywords import explains_keywords
from bnmc.chain.activations import Activation, as_activation, require_derivative
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.gradients.backpropagation import backpropagate
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.run import simulate
from bnmc.simulation.runs import Run

#: Width and batch of the small chains, which have a single panel of rows.
_NARROW, _BATCH = 4, 2

#: Widths at which a layer has several panels, which threads share.
_SEVERAL_PANELS = {"conditional": 8192, "weights": 1024}


@dataclass(frozen=True)
class Warmed:
    """A program that `warmup` compiled, or found on disk.

    Attributes
    ----------
    sampler : {"conditional", "weights", "factor", "c", "haar", "backward", "haar-backward"}
        Name of the program.
    activation : str or None
        Name of the activation; None for "factor", which has no activation.
    dtype : {"float64", "float32"}
        Precision of rows and weights.
    seconds : float
        Duration.
    """

    sampler: str
    activation: str | None
    dtype: str
    seconds: float


@dataclass(frozen=True)
class Warmup:
    """The programs that `warmup` compiled; ``print`` shows them as a table.

    Attributes
    ----------
    compiled : tuple of Warmed
        The programs, in the order of their compilation.
    """

    compiled: tuple[Warmed, ...]

    @property
    def seconds(self) -> float:
        """Total duration in seconds."""
        return sum(program.seconds for program in self.compiled)

    def __str__(self) -> str:
        lines = [
            f"{program.sampler:12}{program.activation or '':14}{program.dtype:8} "
            f"{program.seconds:8.2f} s"
            for program in self.compiled
        ]
        return "\n".join([*lines, f"{'together':34} {self.seconds:8.2f} s"])


@explains_keywords
def warmup(
    *,
    dtypes: str | Iterable[str] = ("float64",),
    activations: str | Activation | Callable[[Any], Any] | Iterable[Any] = ("relu",),
    samplers: str | Iterable[str] = ("conditional", "weights"),
) -> Warmup:
    """Compile the kernels of later calls, so that these calls start without delay.

    There is one set of kernels per precision, for chains of all sizes and norms over the batch.
    Those of norms over the features and of other orders compile at their first use. Numba keeps
    kernels on disk, in ``NUMBA_CACHE_DIR`` if that is set, and other processes on the same kind of
    processor load them from there. Each activation adds one loop, which compiles in less than a
    second. For "c", all functions are compiled for each activation.

    Parameters
    ----------
    dtypes : {"float64", "float32"} or iterable of them, default ("float64",)
        Precisions of rows and weights.
    activations : str, Activation, callable or iterable of them, default ("relu",)
        Activations, as in `bnmc.Chain`.
    samplers : iterable of names, or one of them, default ("conditional", "weights")
        Programs to compile. "conditional" and "weights" are samplers of `bnmc.simulate`, "factor"
        is its sampler for linear chains without normalization, and "c" is `bnmc.kernels.c.table`.
        "haar" is the sampler "conditional" for orthogonal weights. "backward" and "haar-backward"
        are `bnmc.backpropagate` with Gaussian and with orthogonal weights; a float32 chain that
        goes on in float64 compiles once more.

    Returns
    -------
    Warmup
        The compiled programs and their durations.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or the derivative of an activation is not known, which a
        backward pass needs.

    Notes
    -----
    Kernels of a GPU are not compiled here: the driver compiles them at their first launch.

    Examples
    --------
    >>> from bnmc import warmup
    >>> found = warmup(samplers="factor")
    >>> found.compiled[0].sampler, found.seconds > 0.0
    ('factor', True)
    """
    kinds = [choice("dtypes", name, ("float64", "float32")) for name in _several("dtypes", dtypes)]
    wanted = [as_activation(value) for value in _several("activations", activations)]
    ways = [choice("samplers", name, tuple(_WARM)) for name in _several("samplers", samplers)]
    for activation in wanted:
        activation.check()
        if any(way.endswith("backward") for way in ways):
            require_derivative(activation)
    compiled = []
    for way in ways:
        for activation, dtype in itertools.product(wanted, kinds):
            start = time.perf_counter()
            _WARM[way](activation, dtype)
            seconds = time.perf_counter() - start
            if way == "factor":  # no activation, and float64 only
                compiled.append(Warmed(way, None, "float64", seconds))
                break
            compiled.append(Warmed(way, activation.name, dtype, seconds))
    return Warmup(tuple(compiled))


def _several(name: str, value: Any) -> list[Any]:
    if isinstance(value, str | Activation) or callable(value):
        return [value]
    try:
        values = list(dict.fromkeys(items(name, value, "one, or a sequence")))
    except TypeError:  # an item cannot be hashed, so is no name
        raise ArgumentTypeError(name, value, "one, or a sequence") from None
    if not values:
        raise ArgumentError(name, value, "at least one")
    return values


def _warm_rows(name: str, activation: Activation, dtype: str, weights: str = "gaussian") -> None:
    """Run every kernel of a sampler: from an array and from a law, on one thread and on several."""
    # Batch normalization needs rows with a variance; other chains need small numbers.
    squares = np.arange(1.0, 1.0 + _NARROW * _BATCH).reshape(_NARROW, _BATCH) ** 2
    for norm, array in (("batch", squares), ("none", np.eye(_NARROW, _BATCH))):
        chain = Chain(_NARROW, _BATCH, activation, norm=norm, weights=weights)
        # For linear chains without normalization, "conditional" would run the sampler "factor".
        if name != "conditional" or not chain.is_vanilla_linear:
            for initial in (array, "gaussian"):
                simulate(
                    chain, 1, initial=initial, sampler=name, dtype=dtype, rng=0, threads=1,
                    backend="cpu", reduce="layer",
                )  # fmt: skip
    wide = Chain(_SEVERAL_PANELS[name], _BATCH, activation, norm="none", weights=weights)
    run = Run(wide.repeat(1), name, 1, None, dtype)
    sampler = RowSampler(run)
    sampler.grams[0] = np.eye(_BATCH)
    with ThreadPoolExecutor(1) as executor, np.errstate(all="ignore"):
        shared = Threads(executor, 2, sampler.work)
        sampler.advance(0, sampler.chains, 1, np.zeros(1, np.int64), run.frames(1), shared)


def _warm_backward(activation: Activation, dtype: str, weights: str) -> None:
    """Take gradients down from rows and from a readout."""
    # Small numbers, since rows of batch normalization may lack a variance.
    chain = Chain(_NARROW, _BATCH, activation, norm="none", weights=weights)
    directions: tuple[dict[str, Any], ...] = ({}, {"loss": "squared", "labels": [0, 1]})
    for direction in directions:
        backpropagate(
            chain, 2, initial=np.eye(_NARROW, _BATCH), dtype=dtype, rng=0, threads=1, **direction
        )


def _warm_factor(activation: Activation, dtype: str) -> None:
    simulate(Chain(_NARROW, _BATCH, norm="none"), 1, rng=0, threads=1, backend="cpu")


def _warm_c(activation: Activation, dtype: str) -> None:
    from bnmc.kernels import c

    c.table(activation, dtype)


#: Programs by name: samplers of `simulate`; "c", the functions for C; orthogonal weights; and the
#: backward passes without weights of Gaussian and of orthogonal weights.
_WARM: dict[str, Callable[[Activation, str], None]] = {
    "conditional": lambda activation, dtype: _warm_rows("conditional", activation, dtype),
    "weights": lambda activation, dtype: _warm_rows("weights", activation, dtype),
    "factor": _warm_factor,
    "c": _warm_c,
    "haar": lambda activation, dtype: _warm_rows("conditional", activation, dtype, "haar"),
    "backward": lambda activation, dtype: _warm_backward(activation, dtype, "gaussian"),
    "haar-backward": lambda activation, dtype: _warm_backward(activation, dtype, "haar"),
}
