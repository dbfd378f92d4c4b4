"""`bnmc.simulate` against the peers, against its own roofline, and its cost in width and batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

import bnmc
from bench import peers
from bench.large_batches import layers_from_state
from bench.report import Cell, Floor, Report, Table, machine, usable_cores
from bench.roofline import DTYPES, Rates
from bench.timing import Candidate, Run, Timings, fastest, interleave

THREADS = usable_cores()
PEER_CHAINS = (1, 8, 64)  # batch sizes tried for the hand-written conditional samplers


@dataclass(frozen=True)
class Shape:
    """A row of the table: width and batch, with the smallest speed ratios that will do.

    `roofline` is that of float32 ensembles if drawn normals alone count: on AMD, and elsewhere.
    """

    width: int
    batch: int
    conditional32: float
    conditional64: float
    handwritten: float
    weights: float
    roofline: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        return f"({self.width}, {self.batch})"


SHAPES = (
    Shape(1000, 10, 280, 100, 8, 2, roofline=(0.8, 0.6)),
    Shape(4000, 10, 1400, 500, 6.5, 2.5),
    Shape(500, 20, 65, 25, 5, 2),
    Shape(1000, 100, 11, 4.5, 2.2, 1, roofline=(0.75, 0.6)),
)


@dataclass(frozen=True)
class Ours:
    """One way of calling the library."""

    sampler: str
    dtype: str
    ensemble: bool

    @property
    def name(self) -> str:
        chains = "ensemble" if self.ensemble else "one chain"
        return f"bnmc {self.sampler} {self.dtype}, {chains}"

    @property
    def chains(self) -> int:
        """Chains a call: enough to share among the cores, few enough to go deep.

        Layer 0, which a call draws besides, is then a small part of the layers that are counted.
        """
        if not self.ensemble:
            return 1
        return 4 * THREADS if self.sampler == "conditional" else 2 * THREADS

    def candidate(self, width: int, batch: int) -> Candidate:
        """The unit of work is one layer of one chain."""
        chain = bnmc.Chain(width=width, batch=batch, activation="relu")

        def make(layers: int) -> Run:
            return lambda: bnmc.simulate(
                chain,
                depth=layers,
                chains=self.chains,
                initial="gaussian",
                rng=0,
                sampler=self.sampler,
                dtype=self.dtype,
                every=layers,  # records layer 0 and the last
                threads=THREADS,
            )

        return Candidate(self.name, make, units=self.chains)


CONDITIONAL32 = Ours("conditional", "float32", ensemble=True)
CONDITIONAL64 = Ours("conditional", "float64", ensemble=True)
WEIGHTS32 = Ours("weights", "float32", ensemble=True)
ALL_OURS = tuple(
    Ours(sampler, dtype, ensemble)
    for sampler, dtype in (
        ("conditional", "float32"),
        ("conditional", "float64"),
        ("weights", "float32"),
    )
    for ensemble in (True, False)
)


def benchmark(*, quick: bool) -> Report:
    """Every shape of the table, candidates interleaved round robin."""
    verify_peers()
    rounds, seconds = (3, 0.05) if quick else (11, 0.2)
    report = Report("simulate")
    for shape in SHAPES:
        timings, sources = measure(shape.width, shape.batch, rounds=rounds, seconds=seconds)
        add_shape(report, shape, timings, sources)
    return report


def scaling(*, quick: bool) -> Report:
    """The cost of a layer against width and against batch, up to a batch of 4096."""
    widths = (500, 1000, 2000, 4000, 8000, 16000)
    batches = (5, 10, 20, 40, 80, 160)
    larger = () if quick else (320, 640, 1280, 2560, 4096)
    report = Report("scaling")
    for dtype in DTYPES:
        ours = Ours("conditional", dtype, ensemble=True)

        def of_batch(batch: int, dtype: str = dtype) -> Candidate:
            """A chain for each core, without layer 0, which takes about as long as a layer."""
            make = layers_from_state(dtype, 2 * batch, batch, THREADS)
            return Candidate(f"{dtype}, batch {batch}", make, units=THREADS)

        for variable, power, candidates in (
            ("width", 1, {width: ours.candidate(width, 10) for width in widths}),
            ("batch", 2, {batch: ours.candidate(1000, batch) for batch in batches}),
            # The products take width batch^2, the factor batch^3 / 3.
            ("batch, width 2 batch", 3, {n: of_batch(n) for n in larger}),
        ):
            if not candidates:
                continue
            timings = interleave(
                [item.renamed(f"{dtype}, {variable} {at}") for at, item in candidates.items()],
                # A layer of the largest batch takes seconds.
                rounds=1 if power == 3 else 3 if quick else 9,
                seconds=0.03 if quick else 0.1,
            )
            add_scaling(report, dtype, variable, power, list(candidates), timings)
    return report


def add_scaling(
    report: Report,
    dtype: str,
    variable: str,
    power: int,
    values: Sequence[int],
    timings: Mapping[str, Timings],
) -> None:
    """Table and log-log slope of the cost of a layer, which should not exceed `power`."""
    micros = [1e6 * timing.median for timing in timings.values()]
    local = np.diff(np.log(micros)) / np.diff(np.log(values))
    rows: list[list[Cell]] = [
        [value, cost, slope]
        for value, cost, slope in zip(values, micros, [None, *map(float, local)], strict=True)
    ]
    title = f"Conditional {dtype} against {variable}"
    report.tables.append(Table(title, [variable, "us a layer-chain", "local slope"], rows))
    slope = float(np.polyfit(np.log(values), np.log(micros), 1)[0])
    # 0.05 of a power is what drift of 15 % between the ends of the range can feign.
    what = f"log-log slope of {dtype} cost in {variable}"
    report.floors.append(Floor(what, slope, power + 0.05, at_most=True))
    report.samples |= {name: timing.seconds for name, timing in timings.items()}


def measure(
    width: int, batch: int, *, rounds: int, seconds: float
) -> tuple[dict[str, Timings], Sources]:
    """Time the library, the peers and the rates of the roofline for one shape."""
    sources = Sources(
        straightforward=weights_candidates(peers.weights_peers(), width, batch),
        tuned=weights_candidates(peers.tuned_weights_peers(), width, batch),
        handwritten=conditional_candidates(width, batch, seconds=seconds),
    )
    with ThreadPoolExecutor(THREADS) as pool:
        candidates = [
            *sources.straightforward,
            *sources.tuned,
            *sources.handwritten,
            *(ours.candidate(width, batch) for ours in ALL_OURS),
            *(item for dtype in DTYPES for item in Rates(dtype).candidates(pool, THREADS)),
        ]
        return interleave(candidates, rounds=rounds, seconds=seconds), sources


@dataclass(frozen=True)
class Sources:
    """The competitors of one shape, by kind."""

    straightforward: Sequence[Candidate]
    tuned: Sequence[Candidate]
    handwritten: Sequence[Candidate]


def weights_candidates(
    factories: Mapping[str, peers.WeightsFactory], width: int, batch: int
) -> list[Candidate]:
    """Peers that draw W; the unit of work is one layer of their one chain."""

    def candidate(name: str, factory: peers.WeightsFactory) -> Candidate:
        return Candidate(f"weights {name}", lambda layers: factory(width, batch, layers))

    return [candidate(name, factory) for name, factory in factories.items()]


def conditional_candidates(width: int, batch: int, *, seconds: float) -> list[Candidate]:
    """Hand-written conditional samplers, each at the batch size where it is fastest."""

    def candidate(name: str, factory: peers.ConditionalFactory, chains: int) -> Candidate:
        return Candidate(
            f"conditional {name}, {chains} chains",
            lambda layers: factory(width, batch, layers, chains),
            units=chains,
        )

    chosen = []
    for name, factory in peers.conditional_peers().items():
        tried = {
            item.name: item for item in (candidate(name, factory, chains) for chains in PEER_CHAINS)
        }
        timings = interleave(list(tried.values()), rounds=3, seconds=seconds / 2)
        chosen.append(tried[fastest(timings, list(tried))])
    return chosen


def add_shape(report: Report, shape: Shape, timings: dict[str, Timings], sources: Sources) -> None:
    """The tables and the floors of one shape."""
    straightforward = fastest(timings, _names(sources.straightforward))
    drawing = fastest(timings, _names([*sources.straightforward, *sources.tuned]))
    handwritten = fastest(timings, _names(sources.handwritten))

    rows: list[list[Cell]] = []
    for ours in ALL_OURS:
        mine = timings[ours.name]
        rows.append(
            [
                ours.name,
                1e6 * mine.median,
                mine.speed_over(timings[straightforward]),
                mine.speed_over(timings[drawing]),
                mine.speed_over(timings[handwritten]),
                roofline_fraction(ours, shape, timings),
                roofline_fraction(ours, shape, timings, drawn=True),
            ]
        )
    for item in (*sources.straightforward, *sources.tuned, *sources.handwritten):
        rows.append([item.name, 1e6 * timings[item.name].median, *[None] * 5])
    headers = ["candidate", "us a layer-chain", "x drawing W", "x drawing W, tuned too"]
    headers += ["x hand-written", "of the roofline", "the same, drawn normals"]
    title = f"(width, batch) = {shape.label}, relu; fastest peers: {straightforward}"
    title += f"; tuned too: {drawing}; hand-written: {handwritten}"
    report.tables.append(Table(title, headers, rows))
    report.tables.append(rates_table(shape, timings))

    for ours, against, limit in (
        (CONDITIONAL32, straightforward, shape.conditional32),
        (CONDITIONAL64, straightforward, shape.conditional64),
        (CONDITIONAL32, handwritten, shape.handwritten),
        (WEIGHTS32, straightforward, shape.weights),
    ):
        ratio = timings[ours.name].speed_over(timings[against])
        report.floors.append(Floor(f"{shape.label} {ours.name} over {against}", ratio, limit))
    if shape.roofline is not None:
        fraction = roofline_fraction(CONDITIONAL32, shape, timings, drawn=True)
        what = f"{shape.label} {CONDITIONAL32.name}, fraction of the roofline, drawn normals"
        limit = shape.roofline[0 if "AMD" in machine()["cpu"] else 1]
        report.floors.append(Floor(what, fraction, limit))
    report.samples[shape.label] = {name: timing.seconds for name, timing in timings.items()}


def roofline_fraction(
    ours: Ours, shape: Shape, timings: dict[str, Timings], *, drawn: bool = False
) -> float:
    """Roofline time of a layer over the time it took; one chain is measured on all cores too."""
    ideal = Rates(ours.dtype).times(
        timings, width=shape.width, batch=shape.batch, sampler=ours.sampler, drawn=drawn
    )
    return timings[ours.name].speed_over(ideal)


def rates_table(shape: Shape, timings: dict[str, Timings]) -> Table:
    """The rates measured between the candidates, and what they make of a conditional layer."""
    rows: list[list[Cell]] = []
    for dtype in DTYPES:
        rates = Rates(dtype)
        ideal = rates.times(timings, width=shape.width, batch=shape.batch, sampler="conditional")
        rows.append(
            [
                dtype,
                1e-9 / timings[rates.normals].median,
                1e-9 / timings[rates.flops].median,
                1e6 * ideal.median,
            ]
        )
    title = f"Roofline of a conditional layer at {shape.label}, {THREADS} cores"
    return Table(title, ["dtype", "1e9 normals/s", "GFlop/s", "us a layer-chain"], rows)


def verify_peers() -> None:
    """Check that the peers compute the chain, before their speed means anything."""
    width, batch, layers = 300, 5, 60
    for factory in (peers.weights_peers() | peers.tuned_weights_peers()).values():
        peers.verify(factory(width, batch, layers), batch)
    for conditional in peers.conditional_peers().values():
        peers.verify(conditional(width, batch, layers, 8), batch)


def _names(candidates: Sequence[Candidate]) -> list[str]:
    return [candidate.name for candidate in candidates]
