"""Compilation ahead of time, for services and for workers that share a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnmc._support.arguments import choice, items
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.engine.weights import WeightsSampler
from bnmc.simulation.run import simulate

__all__ = ["WARMED", "Warmed", "Warmup", "warmup"]

#: What can be compiled ahead.
WARMED = ("conditional", "weights", "factor", "c")

#: Of chains that go through every kernel: of one panel, and of several that threads share.
_NARROW, _BATCH, _SEVERAL_PANELS = 4, 2, {"conditional": 8192, "weights": 1024}


@dataclass(frozen=True)
class Warmed:
    """What was compiled, or found on disk, in one go.

    Attributes
    ----------
    sampler : str
        One of "conditional", "weights", "factor" and "c".
    activation : str or None
        Its name; None for "factor", which has none.
    dtype : str
    seconds : float
    """

    sampler: str
    activation: str | None
    dtype: str
    seconds: float


@dataclass(frozen=True)
class Warmup:
    """What `warmup` did.

    Attributes
    ----------
    compiled : tuple of Warmed
        In the order in which it was done.
    """

    compiled: tuple[Warmed, ...]

    @property
    def seconds(self) -> float:
        """All seconds."""
        return sum(one.seconds for one in self.compiled)

    def __str__(self) -> str:
        lines = [
            f"{one.sampler:12}{one.activation or '':14}{one.dtype:8} {one.seconds:8.2f} s"
            for one in self.compiled
        ]
        return "\n".join([*lines, f"{'together':34} {self.seconds:8.2f} s"])


def warmup(
    *,
    dtypes: str | Iterable[str] = ("float64",),
    activations: str | Activation | Callable[[Any], Any] | Iterable[Any] = ("relu",),
    samplers: str | Iterable[str] = ("conditional", "weights"),
) -> Warmup:
    """Compile what later calls need, so that none of them waits.

    Kernels are compiled for a precision, whatever else a chain has, and kept on disk
    (``NUMBA_CACHE_DIR``): another process with the same processor finds them there.  Each
    activation adds a loop of its own, in less than a second; only "c" compiles all for each.

    Parameters
    ----------
    dtypes : "float64", "float32" or several of them
    activations : str, Activation, callable or several of them
    samplers : one or several of "conditional", "weights", "factor", "c"
        The samplers of `bnmc.simulate`; "factor" is that of linear chains without normalization.
        "c" is `bnmc.kernels.c.table`.

    Returns
    -------
    Warmup
        What was compiled, and the seconds that it took.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Notes
    -----
    Kernels of GPUs are compiled by the driver when they are first launched, and not here.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.warmup(samplers="factor")
    >>> found.compiled[0].sampler, found.seconds > 0.0
    ('factor', True)
    """
    kinds = [choice("dtypes", one, ("float64", "float32")) for one in _several("dtypes", dtypes)]
    wanted = [as_activation(one) for one in _several("activations", activations)]
    ways = [choice("samplers", one, WARMED) for one in _several("samplers", samplers)]
    for activation in wanted:
        activation.check()
    compiled = []
    for way, activation, dtype in _combined(ways, wanted, kinds):
        start = time.perf_counter()
        _WARM[way](activation, dtype)
        seconds = time.perf_counter() - start
        name = None if way == "factor" else activation.name
        compiled.append(Warmed(way, name, dtype, seconds))
    return Warmup(tuple(compiled))


def _several(name: str, value: Any) -> list[Any]:
    if isinstance(value, str | Activation) or callable(value):
        return [value]
    try:
        found = list(dict.fromkeys(items(name, value, "one, or a sequence")))
    except TypeError:  # something in it cannot be hashed; no name is like that
        raise ArgumentTypeError(name, value, "one, or a sequence") from None
    if not found:
        raise ArgumentError(name, value, "at least one")
    return found


def _combined(
    ways: list[str], activations: list[Activation], dtypes: list[str]
) -> Iterator[tuple[str, Activation, str]]:
    for way in ways:
        if way == "factor":  # it has no activation, and is always float64
            yield way, activations[0], "float64"
            continue
        for activation in activations:
            for dtype in dtypes:
                yield way, activation, dtype


def _warm_rows(
    kind: type[ConditionalSampler | WeightsSampler], activation: Activation, dtype: str
) -> None:
    """Run every kernel of a sampler: from an array and from a law, alone and shared by threads."""
    name = kind.name
    for norm in ("batch", "none"):
        chain = Chain(_NARROW, _BATCH, activation, norm=norm)
        for initial in (np.eye(_NARROW, _BATCH), "gaussian"):
            if norm == "batch" and not isinstance(initial, str):
                initial = np.arange(1.0, 1.0 + initial.size).reshape(initial.shape) ** 2
            _tried(chain, initial, name, dtype)
    wide = Chain(_SEVERAL_PANELS[name], _BATCH, activation, norm="none")
    sampler = kind(wide, 1, None, dtype, 0)
    sampler.grams[0] = np.eye(_BATCH)
    frames = Frames(np.zeros((1, 1, _BATCH, _BATCH)), np.zeros((1, 1)), np.zeros((1, 1, 0)))
    with ThreadPoolExecutor(1) as executor, np.errstate(all="ignore"):
        sampler.advance_together(executor, 2, 1, np.zeros(1, np.int64), frames)


def _tried(chain: Chain, initial: Any, sampler: str, dtype: str) -> None:
    # A linear chain without normalization has a sampler of its own unless weights are wanted.
    if sampler == "conditional" and chain.is_vanilla_linear:
        return
    simulate(
        chain, 1, initial=initial, sampler=sampler, dtype=dtype, rng=0, threads=1, backend="cpu",
        reduce="layer",
    )  # fmt: skip


def _warm_factor(activation: Activation, dtype: str) -> None:
    simulate(Chain(_NARROW, _BATCH, norm="none"), 1, rng=0, threads=1, backend="cpu")


def _warm_c(activation: Activation, dtype: str) -> None:
    from bnmc.kernels import c

    c.table(activation, dtype)


_WARM: dict[str, Callable[[Activation, str], None]] = {
    "conditional": lambda activation, dtype: _warm_rows(ConditionalSampler, activation, dtype),
    "weights": lambda activation, dtype: _warm_rows(WeightsSampler, activation, dtype),
    "factor": _warm_factor,
    "c": _warm_c,
}
