"""`tv_bound` compared with the same coupling in NumPy, and `contraction` with the mean field."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.linalg import helmert

import bnmc
from bench.bench_scaling import against_size
from bench.roofline import Rates
from bench.turns import THREADS, Candidate, Timing, only, repeating
from bnmc._support.workers import Parallel
from bnmc.mixing.contraction_rate import contraction
from bnmc.mixing.coupling import PILOT_REPLICATES, CoupledPairs
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.testing.machine_limits import layer_flops

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
#: Largest seconds of `expectation` of a function of the user.
EXPECTATION = 3.0


@dataclass(frozen=True)
class Job:
    """Numbers of pairs, and the allowed seconds on two cores."""

    width: int
    batch: int
    replicates: int
    seconds: float
    peer_replicates: int

    def __str__(self) -> str:
        return f"({self.width}, {self.batch})"


# The peer's time is per pair, so fewer pairs suffice. At width 10^5 it processes one at a time.
JOBS = (
    Job(1000, 10, 2000, 4.0, 200),
    Job(1000, 5, 2000, 1.5, 400),
    Job(100_000, 10, 200, 45.0, 4),
)


@pytest.mark.parametrize("job", only(JOBS, quick=JOBS[:2], tiny=JOBS), ids=str)
def test_certificate(turns, job):
    """Time `tv_bound`, its pairs alone, and the peer.  The library's pilot chooses the lag.

    The peer couples pairs, and has neither a pilot nor pairs from other starts.  So the ratio
    compares pairs alone, which the library draws as `tv_bound` does.
    """
    job = turns.of(job, job, Job(30, 4, 16, job.seconds, 8))
    chain = bnmc.Chain(job.width, job.batch, "relu")
    replicates = job.replicates // turns.of(1, 4, 1)
    peer_replicates = max(2, job.peer_replicates // turns.of(1, 4, 4))
    turns.group = f"tv_bound to depth {DEPTH} of {replicates} pairs at {job}, {THREADS} cores"
    bound = tv_bound(chain, DEPTH, chains=64, rng=0)  # compiles, and chooses the lag
    coupled = CoupledPairs(chain, "gaussian", 0, MOST_LAYERS, Parallel.of())
    layers = coupled.run(bound.lag, 0, replicates).layers
    times = []

    def peer():
        times.append(numpy_coupling(job.width, job.batch, bound.lag, peer_replicates))

    runs = {
        "tv_bound": (lambda: tv_bound(chain, DEPTH, chains=replicates, rng=0), 1),
        "pairs": (lambda: coupled.run(bound.lag, 0, replicates), replicates),
        "NumPy, pairs": (peer, peer_replicates),
    }
    rates = Rates("float64")
    with ThreadPoolExecutor(THREADS) as pool:
        candidates = [
            *(Candidate(name, repeating(run), units) for name, (run, units) in runs.items()),
            *rates.candidates(pool),
        ]
        timings = turns(candidates, rounds=turns.of(3, 1), seconds=0.1)
    pairs = timings["pairs"]
    layer = rates.layer(
        timings, width=job.width, batch=job.batch, sampler="conditional", sampled=True
    )
    # Both chains have the same normals, once they move together.
    flops = layer_flops(job.width, job.batch, "conditional")
    ahead, behind = float(layers.mean()), float((layers - bound.lag).mean())
    ideal = Timing(tuple(
        ahead * both + behind * flops * products
        for both, products in zip(layer.seconds, timings[rates.flops].seconds, strict=True)
    ))  # fmt: skip
    seconds = timings["tv_bound"].median * job.replicates / replicates
    column = f"s for {job.replicates} pairs, pilot of {PILOT_REPLICATES}"
    turns.hold("tv_bound", column, seconds, at_most=job.seconds)
    turns.hold("pairs", "of the roofline", pairs.speed_over(ideal), at_least=ROOFLINE)
    turns.add("pairs", {"x NumPy": pairs.speed_over(timings["NumPy, pairs"])})
    # The comparison is valid only if the peer runs the same coupling. Its mean meeting time must be
    # within 6 standard errors.
    both = bound.meeting_times - bound.lag, np.concatenate(times) - bound.lag
    for name, sample in zip(("pairs", "NumPy, pairs"), both, strict=True):
        turns.add(name, {"lag": int(bound.lag), "mean time": float(sample.mean())})
    error = math.sqrt(sum(sample.var() / sample.size for sample in both)) + 0.5
    if abs(both[0].mean() - both[1].mean()) > 6.0 * error:
        raise AssertionError(f"meeting times {both[0].mean()} and {both[1].mean()} at {job}")


def test_expectation(turns):
    """`expectation` of a function of the user, for 1000 pairs, beside `tv_bound` for 2000."""
    width, batch, replicates = turns.of((1000, 10, 2000), (1000, 10, 2000), (30, 3, 8))
    options = turns.of({}, {}, {"chains": 8})
    chain = bnmc.Chain(width, batch, "relu")
    turns.group = "expectation of a function of the user"
    runs = {
        "expectation": lambda: bnmc.invariant.expectation(
            chain, lambda gram: gram[0, 1], rng=0, **options
        ),
        f"tv_bound of {replicates} pairs": lambda: tv_bound(chain, DEPTH, chains=replicates, rng=0),
    }
    candidates = [Candidate(name, repeating(run)) for name, run in runs.items()]
    timings = turns(candidates, rounds=turns.of(3, 1), seconds=0.001)
    turns.hold("expectation", "s", timings["expectation"].median, at_most=EXPECTATION)


def test_scaling(turns):
    """A pair against width, at one lag. Linear time has a log-log slope of 1."""
    turns.group = "A pair against width, batch 10, lag 16"

    def candidate(width):
        chain = bnmc.Chain(width, turns.of(10, 10, 3), "relu")
        coupled = CoupledPairs(chain, "gaussian", 0, MOST_LAYERS, Parallel.of())
        return Candidate("", lambda size: lambda: coupled.run(16, 0, 2 * size), 2)

    widths = turns.of(WIDTHS, WIDTHS[:3], (20, 30))
    rounds, seconds = turns.of((7, 0.5), (3, 0.1))
    against_size(turns, {width: candidate(width) for width in widths}, 1, rounds, seconds)


@pytest.mark.parametrize("batch", only(BATCHES, quick=BATCHES[:2], tiny=BATCHES))
@pytest.mark.parametrize("activation", only(ACTIVATIONS, quick=["relu"], tiny=ACTIVATIONS))
def test_contraction(turns, activation, batch):
    """The contraction at width 10^4 beside the rate of the mean-field fixed point."""
    width, pairs = turns.of((10_000, 32), (10_000, 8), (200, 2))
    turns.group = f"Contraction at width {width}"
    chain = bnmc.Chain(width, batch, activation)
    name = f"{activation}, {batch}"
    measured = turns.timed(name, lambda: contraction(chain, chains=pairs, rng=0))
    field = bnmc.MeanField(chain).fixed_point().rate
    turns.add(name, {"mean field": field, "contraction": measured.rate,
                     "stderr": measured.rate_estimate.stderr})  # fmt: skip
    turns.hold(name, "relative deviation", abs(measured.rate / field - 1.0), at_most=0.01)


def numpy_coupling(width, batch, lag, replicates):
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


def _couple(rng, width, batch, lag, pairs):
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


def _activate(rows, basis):
    """Return Gram matrices of relu of the normalised rows, given in a basis orthogonal to 1."""
    batch = basis.shape[1]
    rows /= np.sqrt(np.einsum("pri,pri->pr", rows, rows) / batch)[..., None]
    a = rows @ basis
    np.maximum(a, 0.0, out=a)
    return np.asarray(a.swapaxes(1, 2) @ a / rows.shape[1])


def _log_ratio(relative, z, *, inverse):
    """Return log p'/p of rows Lz, or log p/p' of rows L'z, with C = L^-1 L'."""
    matrix = np.linalg.inv(relative) if inverse else relative
    half = 0.5 * np.sum((matrix.T @ matrix - np.eye(len(matrix))) * (z.T @ z))
    log_determinant = float(np.log(np.diag(relative)).sum())
    return float(-half - len(z) * log_determinant if inverse else len(z) * log_determinant - half)
