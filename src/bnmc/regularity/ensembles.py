"""Ensembles of chains whose layers are measured: fused linear chains, and all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bnmc import gram
from bnmc._kernels.cpu import lanes as kernels
from bnmc._kernels.scalar.codes import Draw
from bnmc._support.arguments import Float64Array
from bnmc._support.machine import require_memory
from bnmc._support.workers import Calls, Parallel, ranges
from bnmc.chain.chain import Chain
from bnmc.chain.layers import over_square
from bnmc.simulation.engine.replay import replaying, representation
from bnmc.simulation.run import simulate
from bnmc.simulation.runs import seconds_of

#: Layers from one measured layer to the next without a skip connection.  Autocorrelation times are
#: 2 to 3 layers for α and 2 to 6 for r, at widths 4 to 32.
PACE = 4

#: Layers per call of a kernel; dead directions are dropped after each call.
ROUND_LAYERS = 32

#: Share of the trace below which a direction is dead, if this holds in all lanes.
_DEAD = 1e-20
_MOMENTS = ("squared_norm", "cubes", "squares")


class FusedEnsemble:
    """Linear chains without a skip connection, by kernels that take a group of chains at a time."""

    def __init__(self, chain: Chain, chains: int, key: int, parallel: Parallel) -> None:
        self.chains = chains
        self.most = min(chain.width, chain.normalization.dimensions(chain.batch))
        self.rank = _rank_of(chain)
        count, threads = -(-chains // kernels.LANES), parallel.threads
        matrices = count + (2 + ROUND_LAYERS // PACE) * min(threads, count)
        numbers = matrices * self.rank**2 + min(threads, count) * (chain.width + 8) * self.rank
        require_memory("chain", 8 * kernels.LANES * numbers, "a smaller width, or fewer chains=")
        self.groups: Sequence[_Group] = [
            _Group(chain, self.rank, number, key) for number in range(count)
        ]

    def measured(
        self, pool: Parallel, every: int, slots: int, tau: float | None
    ) -> dict[str, Float64Array]:
        """Go through slots * every layers on a pool, and measure one layer in `every`.

        Returns sums over the measured layers, (chains,), by name; with `tau` also sums of ranks.
        """
        calls: Calls[tuple[_Group, dict[str, Float64Array]]] = Calls(
            _measured, [(group, every, slots, tau) for group in self.groups]
        )
        self.groups, parts = zip(*pool.results(calls, "", ""), strict=True)
        return {
            name: np.concatenate([part[name] for part in parts])[: self.chains] for name in parts[0]
        }

    @property
    def has_forgotten_start(self) -> bool:
        """Whether every direction is there, or every group has dropped one."""
        return self.rank == self.most or all(group.order < self.rank for group in self.groups)


class _Group:
    """Chains side by side, one per lane; only their spectra are simulated."""

    def __init__(self, chain: Chain, rank: int, number: int, key: int) -> None:
        self.chain = chain
        self.number = number
        self.key_words = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        self.layer = 0
        self.order = rank
        self.gram = np.repeat(np.eye(rank), kernels.LANES)

    def measured(self, every: int, slots: int, tau: float | None) -> dict[str, Float64Array]:
        """Go through layers and measure some of them, as an ensemble."""
        chain, order, lanes = self.chain, self.order, kernels.LANES
        shape = kernels.Shape(
            chain.width, order, chain.batch, over_square(chain.batch * chain.eps, chain.gain)
        )
        moments = np.empty((slots, len(_MOMENTS), lanes))
        grams = np.empty((0 if tau is None else slots, self.gram.size))
        first = Draw(self.layer, np.uint32(self.number), *self.key_words)
        kernels.linear_layers(
            shape, self.gram, first, every, moments, grams, kernels.space_of(shape)
        )
        self.layer += every * slots
        self._bury()
        return _summed(moments, grams.reshape(-1, order, order, lanes), chain, tau)

    def _bury(self) -> None:
        """Drop the last directions, which are sorted by size, if they are dead in every lane."""
        matrices = self.gram.reshape(self.order, self.order, kernels.LANES)
        sizes = np.einsum("iil->il", matrices)
        shares = (sizes / sizes.sum(axis=0)).max(axis=1)
        self.order = int(np.flatnonzero(shares > _DEAD)[-1]) + 1
        self.gram = matrices[: self.order, : self.order].flatten()


def _measured(
    group: _Group, every: int, slots: int, tau: float | None
) -> tuple[_Group, dict[str, Float64Array]]:
    """Return a group after some layers, and what it measured: another process has a copy of it."""
    return group, group.measured(every, slots, tau)


class SimulatedEnsemble:
    """All other chains: `simulate` takes them through layers, and a replay makes their rows."""

    #: These chains start with all directions.
    has_forgotten_start = True

    def __init__(self, chain: Chain, chains: int, key: int, parallel: Parallel) -> None:
        self.chain = chain
        self.chains = chains
        self.options: dict[str, Any] = {"threads": parallel.threads, "executor": parallel.executor}
        width, order = chain.width, chain.batch
        groups = min(parallel.threads, -(-chains // kernels.LANES))
        # The rows of all chains; for each thread the rows of a group, twice, and Gram matrices.
        of_group = 2 * kernels.LANES * (width + order) * order
        require_memory("chains", 8 * (chains * width * order + groups * of_group))
        run = simulate(
            chain, 0, chains=chains, rng=np.random.default_rng(key), observables=(),
            **self.options,
        )  # fmt: skip
        self.state = run.final_state

    def measured(
        self, pool: Parallel, every: int, slots: int, tau: float | None
    ) -> dict[str, Float64Array]:
        """Simulate `every` layers at a time, and measure the last of them."""
        sums: dict[str, Float64Array] = {}
        for _ in range(slots):
            run = simulate(
                self.chain, every, initial=self.state, every=every, observables=(),
                **self.options,
            )  # fmt: skip
            self.state = run.final_state
            for name, values in self._moments(pool, tau).items():
                sums[name] = sums.get(name, 0.0) + values
        return sums

    def _rows(self, threads: int) -> Float64Array:
        """Return x of a layer of the stationary law, (chains, batch, width)."""
        if "x" in self.state.arrays:  # the state of a chain with a skip connection
            return self.state.arrays["x"][:, :, : self.chain.width]
        # Other states have no rows, so the rows of the next layer are made.
        sampler = replaying(self.state)
        rows = np.empty((self.chains, self.chain.batch, self.chain.width))

        def make(index: int) -> None:
            # A replayed layer is a part of a longer buffer, which a view would keep.
            rows[index] = representation(sampler, index)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(make, range(self.chains)))
        return rows

    def _moments(self, pool: Parallel, tau: float | None) -> dict[str, Float64Array]:
        x = self._rows(pool.threads)
        calls = Calls(
            _moments_of,
            [(self.chain, tau, x[first:last]) for first, last in ranges(len(x), kernels.LANES)],
        )
        parts = pool.results(calls, "", "")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _moments_of(chain: Chain, tau: float | None, x: Float64Array) -> dict[str, Float64Array]:
    """Return the moments of chains with the rows x, (chains, batch, width)."""
    width, order = chain.width, chain.batch
    shape = kernels.Shape(width, order, order, 0.0)
    lanes = np.zeros((width, order, kernels.LANES))
    lanes[:, :, : len(x)] = x.transpose(2, 1, 0)
    gram_, moments = np.empty(order**2 * kernels.LANES), np.empty((1, 3, kernels.LANES))
    kernels.measure(shape, lanes.reshape(-1), gram_, moments[0])
    grams = gram_.reshape(1, order, order, kernels.LANES)[..., : len(x)]
    return _summed(moments[..., : len(x)], grams, chain, tau)


def ensemble_of(
    chain: Chain, chains: int, key: int, parallel: Parallel
) -> FusedEnsemble | SimulatedEnsemble:
    """Return independent chains before their first layer."""
    kind = FusedEnsemble if _is_fused(chain) else SimulatedEnsemble
    return kind(chain, chains, key, parallel)


def seconds_of_layer(chain: Chain, every: int) -> float:
    """Return the approximate seconds of a layer of one chain, if one in `every` is measured."""
    width, batch = chain.width, chain.batch
    if _is_fused(chain):
        return 1e-6 + 2.5e-10 * width * _rank_of(chain) ** 2
    measured = 1.5e-4 + 5e-10 * width * batch**2 + 3e-10 * batch**3
    return measured / every + seconds_of("conditional", chain.layers[1], batch, "float64")


def _is_fused(chain: Chain) -> bool:
    return chain.activation.is_linear and chain.is_gaussian and chain.skip == 0.0


def _rank_of(chain: Chain) -> int:
    """Return the directions of a fused chain; centred rows are orthogonal to the ones."""
    most = min(chain.width, chain.normalization.dimensions(chain.batch))
    return min(most, 3 * math.ceil(math.sqrt(chain.width)) + 8)


def _summed(
    moments: Float64Array, grams: Float64Array, chain: Chain, tau: float | None
) -> dict[str, Float64Array]:
    """Return sums over slots of moments, (slots, 3, lanes), and of ranks if tau is given."""
    sums = dict(zip(_MOMENTS, moments.sum(axis=0), strict=True))
    if tau is not None:
        order = grams.shape[1]
        matrices = np.moveaxis(grams, -1, 1)
        sums["rank_bound"] = gram.rank_bound(matrices).sum(axis=0)
        # The threshold is in units of the batch, here rotated into fewer samples.
        soft_ranks = gram.soft_rank(matrices, tau * chain.batch / order, width=chain.width)
        sums["soft_rank"] = soft_ranks.sum(axis=0).astype(np.float64)
    return sums
