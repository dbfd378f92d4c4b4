"""One run of a figure: its random numbers, its parts, and the folder that keeps them.

A part is one simulation or one estimate.  Parts report their progress as one percentage, and can
be kept in a folder, so that an interrupted run continues after its last finished part.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bnmc._support.archives import Foreign
from bnmc._support.arguments import Key, draw_key
from bnmc._support.arithmetic import StandardArithmetic
from bnmc._support.environment import environment
from bnmc._support.progress import Progress, Reporter, announce, duration_text, reporting
from bnmc._support.text import loads
from bnmc._support.workers import Parallel
from bnmc.simulation.store.parts import PartStore, as_folder, with_facts, without_facts

#: Labels of one point of the axes of a figure.
Point: TypeAlias = tuple[Any, ...]

#: A folder, or none.
Store: TypeAlias = str | PathLike[str] | None

#: Seconds of work after which there is a forecast of the rest.
_FIRST_SECONDS = 10.0

#: The entry of the archive of a part with everything but its arrays.
_DOCUMENT = "document"


class Run:
    """One run of a figure.

    Parameters
    ----------
    name : str
        Name of the figure.
    facts : mapping of str to str
        The sizes as text, on which the parts depend.
    full, rng, progress, threads, executor, store, data, timeout : object
        As the user passed them to the figure.

    Attributes
    ----------
    seed : int
        `rng` itself if it is an integer, else a number drawn from it.
    generator : numpy.random.Generator
        Generator with that seed, from which all parts draw.
    parallel : Parallel
        Who runs the simulations.
    data : path or None
        Folder with the images.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is invalid.
    """

    def __init__(
        self,
        name: str,
        facts: Mapping[str, str],
        full: bool = False,
        rng: Any = 0,
        progress: bool | Progress = False,
        threads: int | None = None,
        executor: Any = None,
        store: Store = None,
        data: Store = None,
        timeout: float | None = None,
    ) -> None:
        is_seed = isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0
        self.name, self.full, self.data = name, full, data
        self.seed = int(rng) if is_seed and not isinstance(rng, Key) else draw_key(rng)
        self.generator = np.random.default_rng(self.seed)
        self.parallel = Parallel.of(threads, executor, progress, timeout)
        self._folder = as_folder(store)
        self._facts = {
            "experiment": name, **facts, "seed": str(self.seed), **environment(blas=True),
        }  # fmt: skip
        self._parts = 0

    def options(self, progress: bool | Progress) -> dict[str, Any]:
        """Return the arguments that all simulations of a part share."""
        return {**self.parallel.options, "rng": self.generator, "progress": progress}

    def parts(
        self,
        make: Callable[..., Any],
        points: Sequence[Point],
        costs: Sequence[float] = (),
        facts: Mapping[str, str] | None = None,
    ) -> dict[Point, Any]:
        """Return what ``make(*point, progress)`` returns for each point, by point.

        Each call is a part.  If the run has a folder, finished parts are read from it, and then the
        generator has the state after them, so that all later parts draw the same random numbers as
        in a run without interruption.

        Parameters
        ----------
        make : callable
            Returns an array, or a tuple or a dict of arrays and of values that JSON can represent;
            the tuples among those come back as lists.
        points : sequence of tuple
            Different points, in the order of their parts.
        costs : sequence of float, optional
            Approximate relative run time of each part.  Default: equal.
        facts : mapping of str to str, optional
            Further properties that the parts depend on, such as a digest of the images.

        Raises
        ------
        StoreMismatchError
            If the folder holds another figure, or the same with other sizes, another seed,
            another environment (`bnmc._support.environment`) or further property.
        ArgumentError, StoreError
            If it holds other files, or cannot be read or written.
        PartialEstimateError
            If the time limit ends before the last part begins.
        """
        shares = np.concatenate([[0.0], np.cumsum(costs or [1.0] * len(points))])
        shares /= shares[-1]
        made = {}
        with contextlib.ExitStack() as stack:
            folder = None
            if self._folder is not None:
                folder = stack.enter_context(_Parts(self._folder, {**self._facts, **(facts or {})}))
            label = f"{self.name}, {len(points)} part{'s'[: len(points) > 1]}"
            report = stack.enter_context(reporting(self.parallel.progress, label, "%"))
            percentage = _Percentage(report, label)
            for place, point in enumerate(points):
                progress = partial(percentage.between, *shares[place : place + 2])
                made[point] = self._part(folder, make, point, progress)
            if folder is not None:
                folder.finish()
            percentage.reach(1.0)
        return made

    def _part(
        self,
        folder: _Parts | None,
        make: Callable[..., Any],
        point: Point,
        progress: Callable[[], Progress],
    ) -> Any:
        """Return a part of the folder, or make it."""
        number, self._parts = self._parts, self._parts + 1
        generator = self.generator.bit_generator
        content = None if folder is None else folder.content(number, _read)
        if content is None:
            if self.parallel.stop():
                done = f"{number} parts, which a store keeps for the same call, are finished"
                raise self.parallel.stop.error(done)
            with StandardArithmetic():
                made = make(*point, progress())
            content = _packed(made, generator.state)
            if folder is not None:
                folder.write(number, with_facts(content, folder.facts_of(number)))
        made, generator.state = _unpacked(content)
        return made


class _Parts(PartStore):
    """The folder of a run, with one file for each finished part."""

    header, what = "experiment.json", "an earlier run of the experiment"


class _Percentage:
    """Progress in percent, which only grows, and one forecast of the rest."""

    def __init__(self, report: Reporter, label: str) -> None:
        self._report, self._label, self._last = report, label, -1
        self._begun, self._first, self._is_announced = time.perf_counter(), 0.0, False

    def reach(self, share: float) -> None:
        """Report a share of the whole."""
        if self._last < 0:  # a store has the parts before
            self._begun, self._first = time.perf_counter(), share
        self._announce(time.perf_counter() - self._begun, share)
        done = math.floor(100 * share + 1e-9)
        if done > self._last:
            # Parts before the first one that is made are in the folder.
            is_resumed = self._last < 0 < done
            self._last = done
            (self._report.resume if is_resumed else self._report)(done, 100)

    def _announce(self, seconds: float, share: float) -> None:
        """Say once how long the rest will take, by what the first seconds did."""
        if self._is_announced or seconds < _FIRST_SECONDS or share <= self._first:
            return
        self._is_announced = True
        part = share - self._first
        announce(
            f"the rest of {self._label},", seconds * (1.0 - share) / part,
            f"the first {100 * part:.2g} % took {duration_text(seconds)}", self._report.say,
        )  # fmt: skip

    def between(self, low: float, high: float) -> Progress:
        """Reach one share, and return the progress of a part from there to another share."""
        self.reach(low)
        return lambda done, total: self.reach(low + (high - low) * done / max(total, 1))


def _packed(made: Any, state: Any) -> dict[str, NDArray[Any]]:
    """Return a part and the state of the generator after it as arrays and one document."""
    names = list(made) if isinstance(made, dict) else None
    values = made.values() if isinstance(made, dict) else made
    values = list(values) if isinstance(made, dict | tuple) else [made]
    arrays = {
        str(k): np.asarray(value, order="C")  # as they are read: a sum has the same bits
        for k, value in enumerate(values)
        if isinstance(value, np.ndarray | np.generic)
    }
    others = [None if str(k) in arrays else value for k, value in enumerate(values)]
    document = json.dumps([isinstance(made, tuple), names, others, state])
    return {**arrays, _DOCUMENT: np.frombuffer(document.encode(), np.uint8)}


def _unpacked(content: Mapping[str, NDArray[Any]]) -> tuple[Any, Any]:
    """Return a part and the state of the generator after it."""
    is_tuple, names, others, state = loads(content[_DOCUMENT].tobytes())
    values = [content.get(str(k), value) for k, value in enumerate(others)]
    if names is not None:
        return dict(zip(names, values, strict=True)), state
    return tuple(values) if is_tuple else values[0], state


def _read(content: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a file of a part and its facts.

    Raises
    ------
    Foreign
        If they are not those of a part.
    """
    arrays, facts = without_facts(content)
    try:
        _, np.random.PCG64().state = _unpacked(arrays)
    except Exception as error:  # a document that is none raises many errors
        raise Foreign(str(error)) from error
    return arrays, facts
