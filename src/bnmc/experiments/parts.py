"""One call of an experiment: its arguments, its random numbers, and its parts.

A part is one simulation or one estimate.  Parts report their progress as one percentage, and can
be kept in a folder, so that an interrupted experiment continues after its last finished part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from bnmc._support.arguments import draw_key, integer
from bnmc._support.extras import import_extra
from bnmc._support.machine import available_processors
from bnmc._support.progress import Progress, as_progress, reporting
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentTypeError
from bnmc.experiments.kept import KeptParts, opened

__all__ = ["Call", "Parts", "Sources", "Store", "chosen"]

Store: TypeAlias = str | PathLike[str] | None

_Sizes = TypeVar("_Sizes")
_Made = TypeVar("_Made")


def chosen(default: _Sizes, of_paper: _Sizes, full: object) -> _Sizes:
    """Return the default sizes, or those of the paper if `full` is True.

    Raises
    ------
    ArgumentTypeError
        If `full` is no bool.
    """
    if not isinstance(full, (bool, np.bool_)):
        raise ArgumentTypeError("full", full, "a bool")
    return of_paper if full else default


class Sources:
    """Random numbers of an experiment: a seed that repeats it, and a generator.

    Parameters
    ----------
    rng : object
        Seed or generator, as the user passed it.

    Attributes
    ----------
    seed : int
        `rng` itself if it is an integer, else a number drawn from it.
    generator : numpy.random.Generator
        Generator with that seed.
    """

    def __init__(self, rng: Any) -> None:
        is_seed = isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0
        self.seed = int(rng) if is_seed else draw_key(rng)
        self.generator = np.random.default_rng(self.seed)


class Call:
    """The arguments of one call of an experiment, and its random numbers.

    Parameters
    ----------
    name : str
        Name of the experiment.
    full, rng, progress, threads, store, data : object
        As the user passed them to the experiment.

    Attributes
    ----------
    sources : Sources
        Made from `rng`.
    further : dict of str to str
        Further properties that the kept parts depend on, besides name, seed and sizes.
    """

    def __init__(
        self,
        name: str,
        full: bool = False,
        rng: Any = 0,
        progress: bool | Progress = False,
        threads: int | None = None,
        store: Store = None,
        data: Store = None,
    ) -> None:
        self.name = name
        self.full = full
        self.progress = progress
        self.threads = threads
        self.store = store
        self.data = data
        self.sources = Sources(rng)
        self.further: dict[str, str] = {}

    @property
    def generator(self) -> np.random.Generator:
        """The generator from which all parts draw."""
        return self.sources.generator

    def processors(self) -> int:
        """Return the number of threads: the argument `threads`, or all processors."""
        if self.threads is None:
            return available_processors()
        return integer("threads", self.threads, low=1)

    def parts(self, costs: Sequence[float]) -> Parts:
        """Return a context for parts of these relative costs."""
        return Parts(
            self.progress, self.name, costs, self.sources, self.full, self.store, self.further
        )


class Parts:
    """The parts of an experiment, as a context.

    Parameters
    ----------
    progress : bool or callable
        As the user passed it.
    label : str
        The experiment's name.
    costs : sequence of float
        Approximate relative run time of each part.
    sources : Sources
        Random numbers of the parts.
    full : bool
        Whether the sizes are those of the paper.
    store : path, optional
        Folder for finished parts.
    further : mapping of str to str, optional
        Further properties that the parts depend on, besides label, seed and `full`.

    Raises
    ------
    MissingExtraError
        If xarray is not installed.  Raised before any part runs.
    """

    def __init__(
        self,
        progress: bool | Progress,
        label: str,
        costs: Sequence[float],
        sources: Sources,
        full: bool = False,
        store: Store = None,
        further: Mapping[str, str] | None = None,
    ) -> None:
        import_extra("xarray", "xarray")
        self._sources = sources
        self._stored = store, label, full, sources.seed, further
        self._kept: KeptParts | None = None
        self._reporter = reporting(as_progress(progress), label, "%")
        self._ends = np.concatenate([[0.0], np.cumsum(costs) / sum(costs)])
        self._part = -1
        self._last = -1
        self._runs = 0

    def __enter__(self) -> Parts:
        self._kept = opened(*self._stored)
        self._report = self._reporter.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._kept is not None:
            with self._kept as kept:
                if error is None:
                    kept.finish()
        if error is None:
            self._tell(1.0)
        self._reporter.__exit__(kind, error, trace)

    def next(self) -> Progress:
        """Begin the next part, and return the function that it calls with (done, total)."""
        self._part = min(self._part + 1, len(self._ends) - 2)
        low, high = self._ends[self._part : self._part + 2]
        self._tell(low)
        return lambda done, total: self._tell(low + (high - low) * done / max(total, 1))

    def run(self, make: Callable[..., _Made], *arguments: Any, **named: Any) -> _Made:
        """Return ``make(*arguments, progress=…, **named)``, or the kept result of that part.

        A kept part also restores the state of the generator after it, so that all later parts draw
        the same random numbers as in an uninterrupted run.
        """
        progress, number = self.next(), self._runs
        self._runs += 1
        generator = self._sources.generator.bit_generator
        found = None
        if self._kept is not None:
            found = self._kept.get(number, _activations((*arguments, *named.values())))
        made: _Made
        if found is None:
            made = make(*arguments, progress=progress, **named)
            if self._kept is not None:
                self._kept.put(number, (made, generator.state))
        else:
            made, generator.state = found
        return made

    def _tell(self, part: float) -> None:
        done = max(self._last, math.floor(100 * part + 1e-9))
        if done != self._last:
            self._last = done
            self._report(done, 100)


def _activations(arguments: Sequence[object]) -> list[Activation]:
    """Return the activations among the arguments, and those of chains among them."""
    return [
        argument if isinstance(argument, Activation) else argument.activation
        for argument in arguments
        if isinstance(argument, Activation | Chain)
    ]
