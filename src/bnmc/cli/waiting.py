"""How long ``bnmc certify`` and ``bnmc rates`` will take, and lines while they run.

The mean field predicts the number of layers until coupled chains meet. With the seconds of a layer
this gives the seconds of the command, to a factor of about 2.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bnmc.cli.report import progress_report
from bnmc.cli.threads import thread_count

if TYPE_CHECKING:
    from bnmc.chain.chain import Chain

__all__ = ["Forecast", "forecast", "require_hours", "time_text", "waiting"]

#: Seconds between two lines, and of the shortest command that announces its duration.
LINE_SECONDS = 10.0

#: Duration of a layer of coupled chains, in units of that of a chain alone; measured.
PAIR_FACTOR = 2.2

#: Pairs beside the replicates of `tv_bound`: of the pilot run, and from six other starts.
OTHER_PAIRS = 32 + 6 * 32

#: The lag that `tv_bound` chooses, in units of the typical waiting time.
LAG_FACTOR = 1.3

#: Distances through which the pairs of `contraction` shrink: from 1 to 1e-10.
APPROACH = math.log(1e10)


class Forecast(NamedTuple):
    """What the mean field predicts of coupled chains.

    Attributes
    ----------
    rate : float
        Factor per layer by which deviations shrink.
    wait : float
        Layers until two chains meet; infinite if the fixed point is unstable.
    seconds : float
        Duration of a layer of one chain on one thread.
    """

    rate: float
    wait: float
    seconds: float

    def certificate(self, replicates: int, lag: int | None = None, most: int = 4000) -> float:
        """Return the seconds of `tv_bound` on one thread.

        If the fixed point is unstable, the pilot run of 32 pairs ends the command.
        """
        pairs = replicates + OTHER_PAIRS if self.wait < most else 32
        ahead = min(LAG_FACTOR * self.wait, most) if lag is None else lag
        layers = pairs * (2.0 * min(self.wait, most) + ahead)
        return layers * PAIR_FACTOR * self.seconds

    def rates(self) -> float:
        """Return the seconds of `compare` on one thread."""
        timescale = 10.0 if self.rate >= 1.0 else -1.0 / math.log(self.rate)
        approach = 32 * 2.0 * min(APPROACH * timescale, 4000.0) * PAIR_FACTOR
        stationary = 50 * (12.0 * timescale + max(200.0, 150.0 * timescale))
        relaxation = 200 * (8.0 * timescale + 6.0)
        alone = (approach + stationary + relaxation) * self.seconds
        return alone + self.certificate(500)


def forecast(chain: Chain) -> Forecast | None:
    """Return what the mean field predicts, or None if it knows no fixed point of the chain."""
    from bnmc.errors import BnmcError
    from bnmc.mean_field.field import MeanField
    from bnmc.simulation.runs import seconds_of

    try:
        rate = float(MeanField(chain).fixed_point().rate)
    except BnmcError:
        return None
    wait = math.inf
    if rate < 1.0:
        # Chains meet once their distance is below the fluctuations of width times batch numbers.
        timescale = 0.0 if rate <= 0.0 else -1.0 / math.log(rate)
        wait = 1.0 + timescale * 0.5 * math.log(chain.width * chain.batch)
    seconds = seconds_of("conditional", chain, chain.batch, "float64")
    return Forecast(rate, wait, seconds)


def time_text(seconds: float) -> str:
    """Return a duration in the unit that a reader would choose."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def require_hours(seconds: float, hours: float) -> None:
    """Raise if a command will take longer than the option ``--hours`` allows.

    Raises
    ------
    ArgumentError
    """
    from bnmc._support.arguments import real
    from bnmc.errors import ArgumentError

    hours = real("hours", hours, above=0.0)
    if seconds > 3600.0 * hours:
        raise ArgumentError(
            "hours", hours, f"at least {seconds / 3600.0:.2g}, as the mean field predicts",
            "fewer replicates, a smaller batch or width take less time",
        )  # fmt: skip


@contextmanager
def waiting(
    label: str,
    found: Forecast | None,
    seconds: float,
    hours: float,
    threads: int | None,
    progress: bool | None,
) -> Iterator[bool | Callable[[int, int], None]]:
    """Announce a command, refuse one of many hours, and print lines while it runs.

    Parameters
    ----------
    label : str
        Name of the command.
    found : Forecast or None
    seconds : float
        Duration on one thread, by the forecast.
    hours : float
        The option ``--hours``.
    threads : int or None
        The option ``--threads``.
    progress : bool or None
        The option ``--progress``. If it is omitted and standard error is no terminal, a line is
        printed every 10 s.

    Yields
    ------
    bool or callable
        The argument `progress` of library functions.

    Raises
    ------
    ArgumentError
    """
    expected = seconds / thread_count(threads)
    require_hours(expected, hours)
    if found is not None and expected >= LINE_SECONDS and progress is not False:
        meet = "the fixed point is unstable"
        if math.isfinite(found.wait):
            meet = f"chains meet after about {found.wait:.0f} layers"
        print(
            f"bnmc: {label} takes about {time_text(expected)}: by the mean field, {meet} "
            f"(rate {found.rate:.3g} per layer)",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    if progress is not None or sys.stderr.isatty():
        yield progress_report(progress)
        return
    with _lines(label) as report:
        yield report


@contextmanager
def _lines(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, total), and print what it was told last every 10 s."""
    begun = time.monotonic()
    ended = threading.Event()
    latest = [0, 0]

    def report(done: int, total: int) -> None:
        latest[:] = done, total

    def write() -> None:
        while not ended.wait(LINE_SECONDS):
            done, total = latest
            tasks = f", {done} of {total} tasks of this part" if total else ""
            print(
                f"bnmc: {label}: {time_text(time.monotonic() - begun)}{tasks}",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    writer = threading.Thread(target=write, name="bnmc-lines", daemon=True)
    writer.start()
    try:
        yield report
    finally:
        ended.set()
        writer.join()
