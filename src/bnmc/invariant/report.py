"""`CheckReport`: the result of a check, with one row per claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bnmc._claims.evidence import Claim
from bnmc._support.text import plain, text_table
from bnmc.chain.chain import Chain


@dataclass(frozen=True)
class CheckReport:
    """Result of `check`; ``print`` shows a table.

    Attributes
    ----------
    chain : Chain
    rows : tuple of Claim
    alpha : float
        Upper bound of the probability that any claim fails if all are true, up to the accuracy of
        the tests.
    size : int
        Number of samples.
    source : str
        Source of the samples, in words.
    key : int
        The 64-bit key of all random numbers.
    assumes : tuple of str
        For samples that `bnmc.invariant.sample` drew, the conditions under which their law is near
        the stationary law; empty for given samples.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=60, batch=4, activation="relu")
    >>> report = bnmc.invariant.check(chain, size=400, tolerance=0.05, rng=0)
    >>> report.ok, report.failures, report.size
    (True, (), 400)
    """

    chain: Chain
    rows: tuple[Claim, ...]
    alpha: float
    size: int
    source: str
    key: int = field(repr=False)
    assumes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no claim fails."""
        return not self.failures

    @property
    def failures(self) -> tuple[Claim, ...]:
        """The rows that fail."""
        return tuple(row for row in self.rows if row.verdict == "fails")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as strings, numbers, lists and dicts, for `json.dumps`."""
        return {**plain(self), "ok": self.ok}

    def __str__(self) -> str:
        of_test = ("stderr", "p or interval", "adjusted", "verdict")
        heads = ("claim", "statistic", "compared with", *of_test)
        table = text_table(heads, [_cells(row) for row in self.rows], align="<>>>>><")
        count = sum(row.p_value is not None for row in self.rows)
        return "\n".join(
            [
                f"The stationary law of {self.chain}: {self.size} samples, {self.source}",
                table,
                f"{count - len(self.failures)} of {count} claims that were tested hold, at "
                f"alpha = {self.alpha:g} (Holm); {len(self.rows) - count} were not tested",
                *self.assumes,
            ]
        )


def _cells(row: Claim) -> tuple[str, ...]:
    """Return the cells of a row of the table."""
    p = "" if row.interval is None else "[{:.4g}, {:.4g}]".format(*row.interval)
    name = row.claim + (f" (worst of {row.count})" if row.count > 1 else "")
    return (
        name,
        f"{row.statistic:.6g}",
        "" if row.expected is None else f"{row.expected:.6g}",
        "" if row.stderr is None else f"{row.stderr:.2g}",
        p if row.p_value is None else f"{row.p_value:.2g}",
        "" if row.adjusted is None else f"{row.adjusted:.2g}",
        row.verdict,
    )
