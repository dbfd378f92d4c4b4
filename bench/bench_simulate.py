"""`bnmc.simulate` against the peers and against its own roofline: the main table."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from llvmlite import binding

import bnmc
from bench import peers
from bench.roofline import DTYPES, Rates
from bench.turns import LAYER, THREADS, Candidate, cpu_model, fastest

#: A column: other programs on the machine hardly change it.
BY_PROCESSOR = "of the roofline, processor time"

PEER_CHAINS = (1, 8, 64)  # batch sizes tried for the hand-written conditional samplers


@dataclass(frozen=True)
class Shape:
    """Width and batch, with the smallest speed ratios that will do.

    `roofline` is that of float32 ensembles if drawn normals alone count, by processor: the first
    key that is in its LLVM name or its model counts.
    """

    width: int
    batch: int
    conditional32: float
    conditional64: float
    handwritten: float
    weights: float
    roofline: dict[str, float] | None = None

    def __str__(self) -> str:
        return f"({self.width}, {self.batch})"


SHAPES = (
    Shape(1000, 10, 280, 100, 8, 2, roofline={"znver4": 0.68, "AMD": 0.8, "": 0.6}),
    Shape(4000, 10, 1400, 500, 6.5, 2.5),
    Shape(500, 20, 65, 25, 5, 2),
    Shape(1000, 100, 11, 4.5, 2.2, 1, roofline={"AMD": 0.75, "": 0.6}),
)


@dataclass(frozen=True)
class Ours:
    """One way of calling the library."""

    sampler: str
    dtype: str
    ensemble: bool = True

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

        def make(layers):
            return lambda: bnmc.simulate(
                chain, depth=layers, chains=self.chains, initial="gaussian", rng=0,
                sampler=self.sampler, dtype=self.dtype, threads=THREADS,
                every=layers,  # records layer 0 and the last
            )  # fmt: skip

        return Candidate(self.name, make, self.chains, LAYER)


CONDITIONAL32 = Ours("conditional", "float32")
CONDITIONAL64 = Ours("conditional", "float64")
WEIGHTS32 = Ours("weights", "float32")
ALL_OURS = tuple(
    Ours(each.sampler, each.dtype, ensemble)
    for each in (CONDITIONAL32, CONDITIONAL64, WEIGHTS32)
    for ensemble in (True, False)
)


@pytest.fixture(scope="module")
def verified():
    """Check that the peers compute the chain, before their speed means anything."""
    single, several = peers.Size(300, 5, 60), peers.Size(300, 5, 60, (8,))
    for factory in (peers.weights_peers() | peers.tuned_weights_peers()).values():
        peers.verify(factory(single), 5)
    for factory in peers.conditional_peers().values():
        peers.verify(factory(several), 5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layers(turns, shape, verified):
    width, batch = turns.of((shape.width, shape.batch), (shape.width, shape.batch), (30, 3))
    rounds, seconds = turns.of((5, 0.2), (3, 0.05))
    straightforward, tuned = (
        [weights_candidate(name, factory, width, batch) for name, factory in factories.items()]
        for factories in (peers.weights_peers(), peers.tuned_weights_peers())
    )
    handwritten = [
        conditional_candidate(turns, name, factory, width, batch, seconds)
        for name, factory in peers.conditional_peers().items()
    ]
    turns.group = f"{shape}, relu, {THREADS} cores"
    with ThreadPoolExecutor(THREADS) as pool:
        ours = [each.candidate(width, batch) for each in ALL_OURS]
        rates = [candidate for dtype in DTYPES for candidate in Rates(dtype).candidates(pool)]
        candidates = [*ours, *straightforward, *tuned, *handwritten, *rates]
        timings = turns(candidates, rounds=rounds, seconds=seconds)

    def best(*kinds):
        return timings[fastest(timings, [each.name for kind in kinds for each in kind])]

    rivals = {
        "x drawing W": best(straightforward),
        "x drawing W, tuned too": best(straightforward, tuned),
        "x hand-written": best(handwritten),
    }
    on_processor = {name: timing.on_processor for name, timing in timings.items()}
    speeds = {}
    for each in ALL_OURS:
        layer = {"width": width, "batch": batch, "sampler": each.sampler}
        rivals["of the roofline"] = Rates(each.dtype).layer(timings, **layer)
        rivals["the same, drawn normals"] = Rates(each.dtype).layer(timings, **layer, sampled=True)
        mine = timings[each.name]
        speeds[each.name] = {name: mine.speed_over(rival) for name, rival in rivals.items()}
        ideal = Rates(each.dtype).layer(on_processor, **layer)
        speeds[each.name][BY_PROCESSOR] = mine.on_processor.speed_over(ideal)
        turns.add(each.name, speeds[each.name])
    floors = [
        (CONDITIONAL32, "x drawing W", shape.conditional32),
        (CONDITIONAL64, "x drawing W", shape.conditional64),
        (CONDITIONAL32, "x hand-written", shape.handwritten),
        (WEIGHTS32, "x drawing W", shape.weights),
    ]
    if shape.roofline is not None:
        processor = f"{binding.get_host_cpu_name()} {cpu_model()}"
        limit = next(floor for kind, floor in shape.roofline.items() if kind in processor)
        floors.append((CONDITIONAL32, "the same, drawn normals", limit))
    for each, column, limit in floors:
        turns.hold(each.name, column, speeds[each.name][column], at_least=limit)


def weights_candidate(name, factory, width, batch):
    """A peer that draws W; the unit of work is one layer of its one chain."""
    return Candidate(
        f"weights {name}", lambda layers: factory(peers.Size(width, batch, layers)), shown=LAYER
    )


def conditional_candidate(turns, name, factory, width, batch, seconds):
    """A hand-written conditional sampler, at the number of chains where it is fastest."""

    def candidate(chains):
        return Candidate(
            f"conditional {name}",
            lambda layers: factory(peers.Size(width, batch, layers, (chains,))),
            chains,
            LAYER,
        )

    tried = {f"{chains}": candidate(chains) for chains in PEER_CHAINS}
    renamed = [replace(each, name=chains) for chains, each in tried.items()]
    timings, _ = turns.interleaved(renamed, rounds=1, seconds=seconds / 2)
    return tried[fastest(timings, list(tried))]
