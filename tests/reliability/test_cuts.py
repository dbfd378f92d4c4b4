"""Drawn cuts of work: states, tiles, threads, executors and stores must not change one bit.

A chain is drawn from a fixed list of activations, so that kernels compile once.  One run of it, on
one thread and in one piece, is the reference of `CUTS` cuttings.
"""

import contextlib
import functools
import itertools
import multiprocessing
import random
import shutil
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from reliability.processes import die_with_parent

import bnmc
from bnmc.chain.chain import ORDERS
from bnmc.chain.start import prepare
from bnmc.errors import BnmcError
from bnmc.simulation import run as simulating
from bnmc.simulation import segment
from bnmc.simulation.engine import pairs
from bnmc.simulation.tiles import Grid

#: Cuttings of one drawn chain.
CUTS = 20

NORMS = ["batch", "batch-uncentred", "none"]
#: Norms over the features, whose layers take two passes.
OVER_FEATURES = ["rms", "layer", "group(2)"]
HOMOGENEOUS = ["linear", "relu", "leaky_relu"]
ACTIVATIONS = [*HOMOGENEOUS, "tanh"]
LAWS = ["gaussian", "uniform", "rademacher"]
SAMPLERS = ["conditional", "weights", "factor", "passes", "pairs"]


def test_cuts_change_no_bit(numbers, option, tmp_path):
    """Cut the work of drawn chains, and compare values and final states bit by bit."""
    # A run in another thread than the main one needs no thread of its own for Ctrl-C.
    with ThreadPoolExecutor(1) as thread, Tools(tmp_path) as tools:
        count = functools.partial(problems, numbers("cuts"), option("case-seed"), tools)
        findings = thread.submit(count).result()
    assert not findings, "\n".join(findings)


def problems(numbers, seed, tools):
    """Return what differs, by case."""
    findings = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnmc.errors.PrecisionWarning)
        for number in numbers:
            case = drawn_chain(seed, number // CUTS)
            rng = random.Random(f"{seed} cut {number}")
            cut = cut_pairs if case.sampler == "pairs" else cut_run
            try:
                problem = cut(case, rng, tools)
            except BnmcError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                findings.append(f"cut {number}: {problem}: {case}")
    return findings


@dataclass
class Drawn:
    """A drawn chain with the arguments of its run."""

    sampler: str
    chain: bnmc.Chain
    depth: int
    options: dict[str, Any]
    whole: Any = field(default=None, repr=False)


@lru_cache(maxsize=2)
def drawn_chain(seed, number):
    """Return a drawn chain with its reference; chains whose reference raises are drawn again."""
    for attempt in range(1000):
        rng = random.Random(f"{seed} chain {number} {attempt}")
        case = _drawn(rng, SAMPLERS[number % len(SAMPLERS)])
        try:
            if case.sampler == "pairs":
                case.whole = met(case, 0, case.options["chains"])
            else:
                case.whole = bnmc.simulate(
                    case.chain, case.depth, threads=1, backend="cpu", **case.options
                )
        except BnmcError:  # a row without variance, or no range without a norm
            continue
        return case
    raise AssertionError("no chain runs")


def _drawn(rng, sampler):
    width, batch = rng.choice([2, 4, 8, 12, 20, 66]), rng.randrange(2, 5)
    if sampler == "pairs":
        activation = rng.choice(["relu", "tanh"])
        chain = bnmc.Chain(rng.randrange(12, 24), batch, activation, norm=rng.choice(NORMS[:2]))
        return Drawn(sampler, chain, 400, {"lag": rng.randrange(1, 40), "chains": 12})
    parts = {"activation": rng.choice(ACTIVATIONS), "norm": rng.choice(NORMS)}
    skip = rng.choice([0.0, 0.0, 0.5, 1.0])
    gain = rng.choice([1.0, 1.0, 0.7, -1.5, 2.0**-20])
    if sampler == "factor":
        parts, skip = {"activation": "linear", "norm": "none"}, 0.0
    elif sampler == "passes":
        parts["norm"] = rng.choice(OVER_FEATURES if width > 2 else OVER_FEATURES[:2])
        parts["order"] = rng.choice(list(ORDERS))
        parts["bias_variance"] = rng.choice([0.0, 0.3])
    elif sampler == "weights":
        parts["weights"] = rng.choice(LAWS)
    eps = 0.0 if parts["norm"] == "none" else rng.choice([0.0, 0.0, 1e-5, 0.1])
    chain = bnmc.Chain(width, batch, skip=skip, gain=gain, eps=eps, **parts)
    options = {
        "rng": rng.randrange(2**32), "chains": rng.randrange(1, 7),
        "dtype": rng.choice(["float64", "float32"]),
        "sampler": sampler if sampler in ("conditional", "weights") else "auto",
        "inputs": rng.choice([None, None, 1, 2, 3]),
        "observables": ["gram", "eigenvalues"],
    }  # fmt: skip
    if chain.norm == "none" and parts["activation"] in HOMOGENEOUS:
        options["observables"] = ["scaled_gram", "log_scale"]
    if options["inputs"]:
        options["observables"] = [*options["observables"], "cross_gram"]
        if chain.norm == "none":
            options["observables"].remove("cross_gram")
    options["initial"] = _start(rng, chain, options["inputs"])
    return Drawn(sampler, chain, rng.randrange(3, 60), options)


def _start(rng, chain, inputs):
    kind = rng.choice(["gaussian", "collinear", "array"])
    if kind != "array":
        return kind
    shape = (chain.width, chain.batch) if inputs is None else (inputs, chain.width, chain.batch)
    return np.random.default_rng(rng.randrange(2**32)).standard_normal(shape)


# --- cuts of runs -----------------------------------------------------------------------------


class Tools(contextlib.ExitStack):
    """Executors of all cuts, and a folder for stores."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.threads = [self.enter_context(ThreadPoolExecutor(count)) for count in range(1, 5)]
        self._processes = None

    @property
    def processes(self):
        """A worker process, which starts when it is first needed."""
        if self._processes is None:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, context, die_with_parent)
            self._processes = self.enter_context(pool)
        return self._processes


def cut_run(case, rng, tools):
    """Run a chain in drawn pieces; return what differs from the reference, or nothing."""
    layers = sorted(rng.sample(range(case.depth + 1), rng.choice([0, 1, 1, 2])))
    names = case.options["observables"]
    options = {**case.options}
    layer, is_dense = 0, True
    for last in (*layers, case.depth):
        how = {"threads": rng.randrange(1, 5), "every": rng.choice([1, 1, 2, 5])}
        is_dense &= how["every"] == 1
        kind = rng.choices(["none", "threads", "store", "process"], [65, 33, 1.5, 0.5])[0]
        if kind == "threads":
            how["executor"] = rng.choice(tools.threads)
        elif kind == "process":
            how["executor"] = tools.processes
        elif kind == "store":
            how["store"] = tools.folder / "run.zarr"
        with drawn_division(rng):
            part = bnmc.simulate(case.chain, last - layer, backend="cpu", **options, **how)
        for name in names:
            if not np.array_equal(part[name], case.whole[name][:, part.layers]):
                return f"{name} of layers {layer} to {last} with {how}"
        if kind == "store":
            shutil.rmtree(how["store"])
        options = {key: options[key] for key in ("observables", "sampler", "dtype", "inputs")}
        options["initial"], layer = part.final_state, last
    result, expected = part.final_state.arrays, case.whole.final_state.arrays
    for name, values in expected.items():
        if name == "unresolved" and not is_dense:  # counts recorded layers only
            continue
        if not np.array_equal(result[name], values):
            return f"state {name} after cuts at {layers}"
    if part.final_state.layer != case.depth or result.keys() != expected.keys():
        return "another kind of state"
    return ""


@contextlib.contextmanager
def drawn_division(rng):
    """Divide runs into tiles, tasks and shared layers of drawn sizes meanwhile."""
    former = simulating.grid_of, segment.TASK_SECONDS, segment.SHARED_LAYER_SECONDS
    brief = simulating.BRIEF_SECONDS
    part, block = rng.randrange(1, 5), rng.choice([1, 2, 3, 7, 20])

    def grid_of(run, *_):
        recorded = run.recorded
        return Grid.of_slots(
            run.chains, recorded, min(part, run.chains), min(block, recorded.count)
        )

    simulating.grid_of = grid_of
    simulating.BRIEF_SECONDS = rng.choice([brief, 0.0, 0.0])
    segment.TASK_SECONDS = rng.choice([former[1], 1e-5, 1e-6])
    segment.SHARED_LAYER_SECONDS = rng.choice([former[2], 0.0])
    try:
        yield
    finally:
        simulating.grid_of, segment.TASK_SECONDS, segment.SHARED_LAYER_SECONDS = former
        simulating.BRIEF_SECONDS = brief


# --- cuts of coupled pairs --------------------------------------------------------------------


def met(case, first, last, traced=1):
    """Let some pairs of a chain meet."""
    start = prepare(case.chain.repeat(0), "gaussian", 1, None)
    lag = case.options["lag"]
    return pairs.meet(case.chain, start, 2026, first, last, lag, case.depth, traced)


def cut_pairs(case, rng, tools):
    """Divide pairs into drawn ranges, and layers into drawn blocks."""
    count = case.options["chains"]
    ends = [0, *sorted(rng.sample(range(1, count), rng.randrange(4))), count]
    former, pairs.BLOCK_LAYERS = pairs.BLOCK_LAYERS, rng.choice([1, 5, 32, 100])
    try:
        tasks = [(case, a, b, int(a == 0)) for a, b in itertools.pairwise(ends)]
        result = pairs.joined(list(rng.choice(tools.threads).map(met, *zip(*tasks, strict=True))))
    finally:
        pairs.BLOCK_LAYERS = former
    for name in ("layers", "tries", "refusals", "degenerate"):
        if not np.array_equal(getattr(result, name), getattr(case.whole, name)):
            return f"{name} of the pairs"
    # The trace goes on until all pairs of a range have met.
    common = min(result.distance.shape[1], case.whole.distance.shape[1])
    for name in ("distance", "pivot"):
        first, second = (getattr(each, name)[:, :common] for each in (result, case.whole))
        if not np.array_equal(first, second, equal_nan=True):
            return f"{name} of the first pair"
    return ""
