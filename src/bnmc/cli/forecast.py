"""How long ``bnmc certify``, ``bnmc rates`` and ``bnmc check`` will take.

The mean field predicts the number of layers until coupled chains meet. With the seconds of a layer
this gives the seconds of the command, to a factor of about 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from bnmc.chain.chain import Chain

#: The option ``--progress`` of long commands.
Progress = Annotated[
    bool,
    typer.Option(
        "--progress/--no-progress",
        help="Progress on standard error: a bar on a terminal, lines elsewhere.",
    ),
]

# Duration of a layer of coupled chains, in units of that of a chain alone; measured.
_PAIR_FACTOR = 2.2

# Pairs beside those that are asked of `tv_bound`: of the pilot run, and from six other starts.
_OTHER_PAIRS = 32 + 6 * 32

# The lag that `tv_bound` chooses, in units of the typical waiting time.
_LAG_FACTOR = 1.3

# Distances through which the pairs of `contraction` shrink: from 1 to 1e-10.
_APPROACH = math.log(1e10)


class Forecast(NamedTuple):
    """The prediction of the mean field for coupled chains.

    Attributes
    ----------
    rate : float
        Factor per layer by which deviations shrink; NaN if the mean field has no fixed point.
    wait : float
        Layers until two chains meet; infinite if the fixed point is unstable.
    seconds : float
        Duration of a layer of one chain on one thread; 0 if there is no prediction.
    """

    rate: float
    wait: float
    seconds: float

    def certificate(self, chains: int, lag: int | None = None, most: int = 4000) -> float:
        """Return the seconds of `tv_bound` on one thread.

        If the fixed point is unstable, the pilot run of 32 pairs ends the command.
        """
        pairs = chains + _OTHER_PAIRS if self.wait < most else 32
        ahead = min(_LAG_FACTOR * self.wait, most) if lag is None else lag
        layers = pairs * (2.0 * min(self.wait, most) + ahead)
        return layers * _PAIR_FACTOR * self.seconds

    def check(self, chains: int) -> float:
        """Return the seconds of `check` on one thread: certificates and draws from two starts."""
        from bnmc.invariant.certified_sample import pairs_for

        draws = chains * 2.0 * min(self.wait, 4000.0) * self.seconds
        return 2.0 * (self.certificate(pairs_for(0.01, 0.95)) + draws)

    @property
    def reason(self) -> str:
        """Why coupled chains take so long, in words."""
        meet = "the fixed point is unstable"
        if math.isfinite(self.wait):
            meet = f"chains meet after about {self.wait:.0f} layers"
        return f"by the mean field, {meet} (rate {self.rate:.3g} per layer)"

    def rates(self) -> float:
        """Return the seconds of `compare` on one thread."""
        timescale = 10.0 if self.rate >= 1.0 else _timescale(self.rate)
        approach = 32 * 2.0 * min(_APPROACH * timescale, 4000.0) * _PAIR_FACTOR
        stationary = 50 * (12.0 * timescale + max(200.0, 150.0 * timescale))
        relaxation = 200 * (8.0 * timescale + 6.0)
        alone = (approach + stationary + relaxation) * self.seconds
        return alone + self.certificate(500)


def forecast(chain: Chain) -> Forecast:
    """Return the prediction of the mean field for a chain."""
    from bnmc.errors import BnmcError
    from bnmc.mean_field.field import MeanField
    from bnmc.simulation.runs import seconds_of

    try:
        rate = float(MeanField(chain).fixed_point().rate)
    except BnmcError:
        return Forecast(math.nan, math.inf, 0.0)
    wait = math.inf
    if rate < 1.0:
        # Chains meet once their distance is below the fluctuations of width times batch numbers.
        wait = 1.0 + _timescale(rate) * 0.5 * math.log(chain.width * chain.batch)
    return Forecast(rate, wait, seconds_of("conditional", chain.layers[1], chain.batch, "float64"))


def _timescale(rate: float) -> float:
    """Return the layers over which deviations shrink by the factor e, for a rate below 1."""
    return 0.0 if rate <= 0.0 else -1.0 / math.log(rate)


@contextmanager
def announced(
    label: str,
    expected: Forecast,
    seconds: float,
    hours: float,
    threads: int | None,
    progress: bool,
) -> Iterator[dict[str, Any]]:
    """Announce the duration of a command, or raise if it is longer than allowed.

    Parameters
    ----------
    label : str
        Name of the command.
    expected : Forecast
    seconds : float
        Duration on one thread, by the forecast.
    hours, threads, progress : object
        The options of these names.

    Yields
    ------
    dict
        The arguments `executor` and `progress` of library functions.

    Raises
    ------
    ArgumentError
        If `hours` or `threads` is not allowed, or the command will take longer than `hours`.
    """
    from bnmc._support.arguments import real
    from bnmc._support.progress import announce
    from bnmc._support.workers import thread_count
    from bnmc.errors import ArgumentError

    count = thread_count(threads)
    seconds /= count
    hours = real("hours", hours, above=0.0)
    if seconds > 3600.0 * hours:
        raise ArgumentError(
            "hours",
            hours,
            f"at least {seconds / 3600.0:.2g}, as the mean field predicts",
            "fewer chains, a smaller batch or width take less time",
        )
    if progress:
        announce(label, seconds, expected.reason)
    if threads is None:
        yield {"executor": None, "progress": progress}
        return
    with ThreadPoolExecutor(count) as pool:
        yield {"executor": pool, "progress": progress}
