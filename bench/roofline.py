"""The roofline of a layer, and the two rates of this machine that it consists of.

The roofline of a layer is the time its normals take at the rate of the library's own normal
kernel plus the time its floating-point operations take at the FMA peak, both measured in the same
rounds as the layer itself.

The FMA peak is that of a kernel that touches registers only: independent accumulators in vectors
as wide as the machine has them, each step ``x <- x * factor + offset``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.turns import BILLIONS, THREADS, Candidate, Run, Timing, Timings, at_once
from bnmc.testing.machine_limits import layer_seconds, peak_normals, peak_operations

DTYPES = ("float32", "float64")
#: Steps of multiply-adds in a unit of repetition.
STEPS = 20_000


@dataclass(frozen=True)
class Rates:
    """The two rates of a dtype, measured on some cores at once."""

    dtype: str
    threads: int = THREADS

    @property
    def normals(self) -> str:
        return f"normals {self.dtype}"

    @property
    def flops(self) -> str:
        return f"flops {self.dtype}"

    def candidates(self, pool: ThreadPoolExecutor) -> list[Candidate]:
        """The library's normal kernel, and multiply-adds: units are a normal and an operation."""
        normals = [peak_normals(self.dtype, seed) for seed in range(self.threads)]
        operations = peak_operations(self.dtype)

        def fill(times: int) -> Run:
            return at_once([lambda peak=peak: peak.run(times) for peak in normals], pool)

        def multiply(times: int) -> Run:
            return at_once([lambda: operations.run(times * STEPS)] * self.threads, pool)

        units = self.threads * normals[0].units, self.threads * STEPS * operations.units
        return [
            Candidate(self.normals, fill, units[0], BILLIONS),
            Candidate(self.flops, multiply, units[1], BILLIONS),
        ]

    def layer(
        self, timings: Timings, *, width: int, batch: int, sampler: str, sampled: bool = False
    ) -> Timing:
        """The roofline of a layer in seconds, round by round.

        With `sampled`, only normals count that the conditional sampler draws under centred
        normalization: width (batch - 1).
        """
        fewer = width if sampled and sampler == "conditional" else 0
        pairs = zip(timings[self.normals].seconds, timings[self.flops].seconds, strict=True)
        return Timing(
            tuple(layer_seconds(width, batch, sampler, *pair) - fewer * pair[0] for pair in pairs)
        )
