"""`tv_bound` compared with the same coupling in NumPy, and `contraction` with the mean field."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import helmert

import bnmc
from bench.report import Cell, Floor, Report, Table, usable_cores
from bench.roofline import Rates
from bench.timing import Candidate, Run, Timings, interleave
from bnmc.mixing.contraction_rate import contraction
from bnmc.mixing.coupling import PILOT_REPLICATES, CoupledPairs
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.testing.machine_limits import layer_flops

Float64 = npt.NDArray[np.float64]

DEPTH = 60
#: A maximal coupling is tried if the standard deviation of log p'/p is below this threshold, as in
#: the library.
THRESHOLD = 0.3
#: Largest number of layers of a pair, as by default in the library.
MOST_LAYERS = 4000
#: Least part of a pair's time that its normals and products take at the peaks of the machine.
ROOFLINE = 0.45
#: Numbers in one array of the peer, which limits how many pairs it processes together.
PEER_NUMBERS = 2_000_000
WIDTHS = (500, 2000, 8000, 32000)
ACTIVATIONS = ("linear", "relu", "tanh", "sin", "sigmoid", "selu", "celu")
BATCHES = (5, 10, 20)


@dataclass(frozen=True)
class Job:
    """A row of the table: numbers of pairs, and the allowed seconds on two cores."""

    width: int
    batch: int
    replicates: int
    seconds: float
    peer_replicates: int

    @property
    def label(self) -> str:
        return f"({self.width}, {self.batch})"

    @property
    def chain(self) -> bnmc.Chain:
        return bnmc.Chain(self.width, self.batch, "relu")

    def ours(self, replicates: int, lag: int | None = None) -> Run:
        return lambda: tv_bound(self.chain, DEPTH, replicates=replicates, lag=lag, rng=0)


# The peer's time is per pair, so fewer pairs suffice. At width 10^5 it processes one at a time.
JOBS = (
    Job(1000, 10, 2000, 4.0, 200),
    Job(1000, 5, 2000, 1.5, 400),
    Job(100_000, 10, 200, 45.0, 4),
)


def benchmark(*, quick: bool) -> Report:
    """Time the jobs and the peer, the cost against width, and add the table of rates."""
    report = Report("mixing")
    jobs = JOBS[:2] if quick else JOBS
    rows: list[list[Cell]] = []
    for job in jobs:
        rows.append(_job(report, job, quick))
    headers = ["(width, batch)", "replicates", "tv_bound, s", "lag", "mean time", "ms a pair"]
    headers += ["NumPy, ms a pair", "its mean time", "x NumPy", "of the roofline"]
    title = f"tv_bound to depth {DEPTH}, relu, {usable_cores()} cores; NumPy timed with"
    title += " " + ", ".join(str(job.peer_replicates) for job in jobs) + " pairs"
    report.tables.insert(0, Table(title, headers, rows))
    _scaling(report, quick)
    _rates(report, quick)
    _own_function(report, 1 if quick else 3)
    return report


def _job(report: Report, job: Job, quick: bool) -> list[Cell]:
    """Time one job and the peer in turn. The library's pilot chooses the lag.

    The peer couples pairs, and has neither a pilot nor pairs from other starts.  So the ratio
    compares pairs alone, which the library draws as `tv_bound` does.
    """
    cert = tv_bound(job.chain, DEPTH, replicates=64, rng=0)  # compiles, and chooses the lag
    coupled = CoupledPairs(job.chain, "gaussian", 0, MOST_LAYERS, None, False)
    peer_replicates = max(2, job.peer_replicates // 4) if quick else job.peer_replicates
    replicates = job.replicates // 4 if quick else job.replicates
    times: list[npt.NDArray[np.int64]] = []
    found: dict[str, list[float]] = {name: [] for name in ("tv_bound", "pairs", "NumPy", "ideal")}

    def measured(name: str, run: Run, units: float) -> None:
        start = time.perf_counter()
        run()
        found[name].append((time.perf_counter() - start) / units)

    def peer() -> None:
        times.append(numpy_coupling(job.width, job.batch, cert.lag, peer_replicates))

    layers = coupled.run(cert.lag, 0, replicates).layers
    with ThreadPoolExecutor(usable_cores()) as pool:
        rates = Rates("float64")
        peaks = {item.name: item for item in rates.candidates(pool, usable_cores())}
        for _ in range(1 if quick else 3):
            measured("tv_bound", job.ours(replicates), 1.0)
            measured("pairs", lambda: coupled.run(cert.lag, 0, replicates), replicates)
            measured("NumPy", peer, peer_replicates)
            now = interleave(list(peaks.values()), rounds=1, seconds=0.1)
            layer = rates.times(
                now, width=job.width, batch=job.batch, sampler="conditional", drawn=True
            ).median
            # Both chains have the same normals, once they move together.
            flops = layer_flops(job.width, job.batch, "conditional") * now[rates.flops].median
            ahead, behind = float(layers.mean()), float((layers - cert.lag).mean())
            found["ideal"].append(ahead * layer + behind * flops)
    whole, mine, other, ideal = (Timings(tuple(values)) for values in found.values())
    ratio, share = mine.speed_over(other), mine.speed_over(ideal)
    seconds = whole.median * job.replicates / replicates
    what = f"{job.label}: seconds for {job.replicates} replicates, pilot of {PILOT_REPLICATES}"
    report.floors.append(Floor(what, seconds, job.seconds, at_most=True))
    report.floors.append(Floor(f"{job.label}: pairs, fraction of the roofline", share, ROOFLINE))
    report.samples[job.label] = {name: tuple(values) for name, values in found.items()}
    # The comparison is valid only if the peer runs the same coupling. Its mean meeting time must be
    # within 6 standard errors.
    both = cert.meeting_times - cert.lag, np.concatenate(times) - cert.lag
    error = math.sqrt(sum(sample.var() / sample.size for sample in both)) + 0.5
    if abs(both[0].mean() - both[1].mean()) > 6.0 * error:
        raise AssertionError(f"meeting times {both[0].mean()} and {both[1].mean()} at {job.label}")
    return [
        job.label, job.replicates, seconds, cert.lag, float(both[0].mean()), 1e3 * mine.median,
        1e3 * other.median, float(both[1].mean()), ratio, share,
    ]  # fmt: skip


def _own_function(report: Report, rounds: int) -> None:
    """Time `expectation` of a function of the user, for 1000 pairs, beside `tv_bound` for 2000."""
    job = JOBS[0]

    def expectation() -> None:
        bnmc.invariant.expectation(job.chain, lambda gram: gram[0, 1], rng=0)

    expectation()  # compiles
    seconds: dict[str, list[float]] = {"expectation": [], "tv_bound": []}
    for _ in range(rounds):
        for name, run in (("expectation", expectation), ("tv_bound", job.ours(job.replicates))):
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    mine, other = (Timings(tuple(values)) for values in seconds.values())
    row: list[Cell] = [job.label, mine.median, other.median]
    headers = ["(width, batch)", "expectation, s", f"tv_bound of {job.replicates} pairs, s"]
    report.tables.append(Table("expectation of a function of the user", headers, [row]))
    what = f"{job.label}: seconds for expectation of a function of the user"
    report.floors.append(Floor(what, mine.median, 3.0, at_most=True))


def _scaling(report: Report, quick: bool) -> None:
    """Time a pair against width, at one lag. Linear time has a log-log slope of 1."""
    widths = WIDTHS[:3] if quick else WIDTHS
    candidates = []
    for width in widths:
        chain = bnmc.Chain(width, 10, "relu")
        coupled = CoupledPairs(chain, "gaussian", 0, MOST_LAYERS, None, False)
        candidates.append(
            Candidate(
                f"width {width}",
                lambda count, coupled=coupled: lambda: coupled.run(16, 0, max(2, count)),
            )
        )
    timings = interleave(candidates, rounds=3 if quick else 7, seconds=0.1 if quick else 0.5)
    micros = [1e6 * timing.median for timing in timings.values()]
    local = np.diff(np.log(micros)) / np.diff(np.log(widths))
    rows: list[list[Cell]] = [
        [width, cost, slope]
        for width, cost, slope in zip(widths, micros, [None, *map(float, local)], strict=True)
    ]
    headers = ["width", "us a pair", "local slope"]
    report.tables.append(Table("A pair against width, batch 10, lag 16", headers, rows))
    slope = float(np.polyfit(np.log(widths), np.log(micros), 1)[0])
    report.floors.append(Floor("log-log slope of a pair in width", slope, 1.05, at_most=True))


def _rates(report: Report, quick: bool) -> None:
    """Compare the contraction at width 10^4 with the rate of the mean-field fixed point."""
    rows: list[list[Cell]] = []
    worst = 0.0
    for activation in ("relu",) if quick else ACTIVATIONS:
        for batch in BATCHES[:2] if quick else BATCHES:
            chain = bnmc.Chain(10_000, batch, activation)
            found = contraction(chain, pairs=8 if quick else 32, rng=0)
            field = bnmc.MeanField(chain).fixed_point().rate
            off = found.rate / field - 1.0
            worst = max(worst, abs(off))
            rows.append([activation, batch, field, found.rate, found.rate_estimate.stderr, off])
    headers = ["activation", "batch", "mean field", "contraction", "stderr", "relative deviation"]
    report.tables.append(Table("Contraction at width 10000", headers, rows))
    what = f"largest of {len(rows)} deviations of contraction from the mean field"
    report.floors.append(Floor(what, worst, 0.01, at_most=True))


def numpy_coupling(width: int, batch: int, lag: int, replicates: int) -> npt.NDArray[np.int64]:
    """Return meeting times of the same coupling in NumPy, vectorised over pairs.

    The chain has relu and centred rows. Threshold, tries and residual laws are those of the
    library. The random numbers differ.
    """
    rng = np.random.default_rng(0)
    at_once = max(1, min(replicates, PEER_NUMBERS // (width * batch)))
    parts = [
        _couple(rng, width, batch, lag, min(at_once, replicates - first))
        for first in range(0, replicates, at_once)
    ]
    return np.concatenate(parts)


def _couple(
    rng: np.random.Generator, width: int, batch: int, lag: int, pairs: int
) -> npt.NDArray[np.int64]:
    basis = helmert(batch)
    size = batch - 1
    starts = [rng.standard_normal((pairs, width, size)) for _ in range(2)]
    ahead, behind = (_activate(start, basis) for start in starts)
    for _ in range(lag):
        factor = np.linalg.cholesky(basis @ ahead @ basis.T)
        z = rng.standard_normal((pairs, width, size))
        ahead = _activate(z @ factor.swapaxes(1, 2), basis)
    times = np.zeros(pairs, np.int64)
    left = np.arange(pairs)
    layer = lag
    while left.size:
        layer += 1
        first = np.linalg.cholesky(basis @ ahead @ basis.T)
        second = np.linalg.cholesky(basis @ behind @ basis.T)
        relative = np.linalg.solve(first, second)
        product = relative @ relative.swapaxes(1, 2)
        scale = np.trace(product, axis1=1, axis2=2) / (product**2).sum(axis=(1, 2))
        relative *= np.sqrt(scale)[:, None, None]
        product *= scale[:, None, None]
        distance = np.linalg.norm(product - np.eye(size), axis=(1, 2))
        tried = np.sqrt(0.5 * width) * distance <= THRESHOLD
        z = rng.standard_normal((left.size, width, size))
        ahead = _activate(z @ first.swapaxes(1, 2), basis)
        other = ~tried
        if other.any():
            behind[other] = _activate(z[other] @ second[other].swapaxes(1, 2), basis)
        met = np.zeros(left.size, np.bool_)
        for pair in np.flatnonzero(tried):
            met[pair] = np.log(rng.random()) <= _log_ratio(relative[pair], z[pair], inverse=True)
            while not met[pair]:
                again = rng.standard_normal((width, size))
                if np.log(rng.random()) > _log_ratio(relative[pair], again, inverse=False):
                    behind[pair] = _activate((again @ second[pair].T)[None], basis)[0]
                    break
        times[left[met]] = layer
        left, ahead, behind = left[~met], ahead[~met], behind[~met]
    return times


def _activate(rows: Float64, basis: Float64) -> Float64:
    """Return Gram matrices of relu of the normalised rows, given in a basis orthogonal to 1."""
    batch = basis.shape[1]
    rows /= np.sqrt(np.einsum("pri,pri->pr", rows, rows) / batch)[..., None]
    a = rows @ basis
    np.maximum(a, 0.0, out=a)
    return np.asarray(a.swapaxes(1, 2) @ a / rows.shape[1])


def _log_ratio(relative: Float64, z: Float64, *, inverse: bool) -> float:
    """Return log p'/p of rows Lz, or log p/p' of rows L'z, with C = L^-1 L'."""
    matrix = np.linalg.inv(relative) if inverse else relative
    half = 0.5 * np.sum((matrix.T @ matrix - np.eye(len(matrix))) * (z.T @ z))
    log_determinant = float(np.log(np.diag(relative)).sum())
    return float(-half - len(z) * log_determinant if inverse else len(z) * log_determinant - half)
