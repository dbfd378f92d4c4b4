"""What a norm over the features costs over batch normalization: its second pass over the rows.

All candidates are `simulate` with the conditional sampler, relu and one thread, without recorded
layers between.  Runs have 200 layers: samples of layer normalization before relu become equal, and
after thousands of layers float32 chains would continue in float64.  The candidates take turns.  The
clock counts the time of the processor in this process, which other programs on the machine change
less than the time on the wall.
"""

from __future__ import annotations

import time
from functools import partial

import bnmc
from bench.report import Floor, Report, Table
from bench.timing import Candidate, Run, interleave

#: Layers of a run, so that its beginning takes a small part of its time.
LAYERS = 200

#: Candidates by name: arguments of `Chain`.
CHAINS = {
    "batch": {"norm": "batch"},
    "layer": {"norm": "layer"},
    "rms": {"norm": "rms"},
    "group(8)": {"norm": "group(8)"},
    "layer after the activation": {"norm": "layer", "order": "activation-norm"},
    "uncentred batch": {"norm": "batch-uncentred"},
    "uncentred batch, bias": {"norm": "batch-uncentred", "bias_variance": 0.1},
}

#: A layer of a norm over the features takes at most so many times as long as batch normalization.
LIMIT = 2.2
LIMITED = ("layer", "rms", "group(8)")

WIDTH, BATCH = 1000, 10


def benchmark(*, quick: bool) -> Report:
    """Time all chains in both precisions; quick runs have fewer and shorter rounds."""
    report = Report("norms")
    rounds, seconds = (5, 0.05) if quick else (9, 0.15)
    columns = []
    for dtype in ("float64", "float32"):
        candidates = [
            Candidate(name, partial(_run, options, dtype), LAYERS)
            for name, options in CHAINS.items()
        ]
        timings = interleave(candidates, rounds=rounds, seconds=seconds, clock=time.process_time)
        ratios = {name: timings["batch"].speed_over(mine) for name, mine in timings.items()}
        columns.append([(1e6 * timings[name].median, ratios[name]) for name in CHAINS])
        report.samples[dtype] = {name: mine.seconds for name, mine in timings.items()}
        for name in LIMITED:
            what = f"{name} over batch at ({WIDTH}, {BATCH}), {dtype}"
            report.floors.append(Floor(what, ratios[name], LIMIT, at_most=True))
    headers = ["norm", "float64: us a layer", "over batch", "float32: us a layer", "over batch"]
    rows = [[name, *double, *single] for name, double, single in zip(CHAINS, *columns, strict=True)]
    title = f"A layer of a chain at ({WIDTH}, {BATCH}), relu, one thread, processor time"
    report.tables.append(Table(title, headers, rows))
    return report


def _run(options: dict[str, object], dtype: str, size: int) -> Run:
    chain = bnmc.Chain(WIDTH, BATCH, "relu", **options)  # type: ignore[arg-type]

    def run() -> object:
        return bnmc.simulate(
            chain, LAYERS, chains=size, rng=0, sampler="conditional", dtype=dtype, every=LAYERS,
            threads=1,
        )  # fmt: skip

    return run
