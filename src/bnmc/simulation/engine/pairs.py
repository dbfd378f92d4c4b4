"""Pairs of coupled chains, one ahead of the other by a lag, until they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, pairs, rows, sources
from bnmc._kernels.cpu.moments import moments_of
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import sigma_of
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import check_status, spec_of
from bnmc.chain.start import Representation, Start, write_gram

#: A maximal coupling is tried if the logarithm of the ratio of the two densities has at most this
#: standard deviation s; it is refused with probability 0.4 s.  A refusal costs the layers of a
#: contraction, and waiting costs some layers: near this value the sum of both costs is flat.
THRESHOLD = 0.3

#: The threshold for chains that never try a maximal coupling.
APART = -1.0

#: Layers between two checks of which pairs have met.
BLOCK_LAYERS = 32


@dataclass(frozen=True)
class Meetings:
    """Results of a range of pairs.

    Attributes
    ----------
    layers : (replicates,) ndarray of int
        The layer of the chain ahead at which a pair met; -1 where it has not.
    tries, refusals : (replicates,) ndarray of int
        Maximal couplings that were tried, and refused.
    distance, pivot : (traced, layers) ndarray of float64
        Of the first pairs: the distance of the two covariances before each layer, and the least
        relative pivot of their factors. NaN where a pair was not coupled.
    degenerate : (replicates,) ndarray of int
        The layer at which a Gram matrix had lost rank; 0 where none had.
    """

    layers: NDArray[np.int64]
    tries: NDArray[np.int64]
    refusals: NDArray[np.int64]
    distance: NDArray[np.float64]
    pivot: NDArray[np.float64]
    degenerate: NDArray[np.int64]


class Pairs:
    """A range of pairs of coupled chains, at some layer.

    A pair depends on the key and on its number alone, never on other pairs.

    Parameters
    ----------
    chain : Chain
        A chain that meets the needs `COUPLED`.
    start : Covariance or Representation
        Law of layer 0 of both chains, which start independently.
    lag : int
        Layers by which the first chain is ahead, >= 1.
    first, last : int
        The numbers of the pairs.
    key : int
        The 64-bit key of all random numbers.
    threshold : float
        See `THRESHOLD`.
    behind : Covariance or Representation, optional
        Law of layer 0 of the chain behind, if it is not `start`.
    """

    def __init__(
        self,
        chain: Chain,
        start: Start,
        lag: int,
        first: int,
        last: int,
        key: int,
        threshold: float = THRESHOLD,
        behind: Start | None = None,
    ) -> None:
        n, count = chain.batch, last - first
        self.chain, self.lag, self.first = chain, lag, first
        self.threshold = threshold
        self.layer = 0
        self.met = np.full(count, -1, np.int64)
        self.tries = np.zeros((count, 3), np.int64)
        self.status = np.zeros((count, 3), np.int64)
        self._spec = spec_of(chain)._replace(panel=chain.width)
        self._average = np.zeros((n, n))
        self._layer = chain.layers[-1]
        self._key = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        ahead, later = (
            pairs.Side(memory.work(n, 1, np.float64), moments_of(n, 1, self._spec.groups))
            for _ in range(2)
        )
        self._sides = ahead, later
        self._pair = pairs.Pair(
            relative=np.zeros((n, n)),
            inverse=np.zeros((n, n)),
            wishart=np.zeros((n, n)),
            normals=memory.aligned_zeros(ahead.work.block.shape, np.float64),
            sums=np.zeros_like(ahead.work.sums),
        )
        self._allocate()
        self._begin(start, start if behind is None else behind)

    def _allocate(self) -> None:
        """Make the Gram matrices of all pairs."""
        self.grams = np.zeros((len(self.met), 2, self.chain.batch, self.chain.batch))

    def _begin(self, ahead: Start, behind: Start) -> None:
        """Draw layer 0 of the chains behind, then that of the chains ahead."""
        spec = spec_of(self.chain, layer=0)._replace(panel=self.chain.width)
        for start, stream in ((behind, codes.STREAM_START), (ahead, codes.STREAM_ROWS)):
            if isinstance(start, Representation):
                matrix = np.zeros(self.grams.shape[2:])
                write_gram(start.a[0], matrix)
                self._renew(matrix)
            else:
                self._renew(start.matrix)
                self._run(spec, stream, 0, 1, 0, np.zeros((0, 1, 2)), self._no_record)
        check_status(self.status, self.first, codes.DEGENERATE)

    def _renew(self, matrix: NDArray[np.float64]) -> None:
        """Give the second chains the matrices of the first, and the first chains a new matrix."""
        self.grams[:, 1] = self.grams[:, 0]
        self.grams[:, 0] = matrix

    @property
    def waiting(self) -> NDArray[np.bool_]:
        """Which pairs have neither met nor lost rank: a mask."""
        return (self.met < 0) & (self.status[:, 0] == 0)

    def advance(
        self, layers: int, *, until: int = 0, record: bool = False, traced: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Take all pairs through layers; return the recorded matrices and the trace.

        Parameters
        ----------
        layers : int
        until : int
            Pairs that have met stop after this layer of the chain ahead.
        record : bool
            Whether to return both Gram matrices after each layer: (pairs, layers, 2, n, n).
        traced : int
            Number of pairs whose distance and pivot are returned: (traced, layers, 2).
        """
        n = self.chain.batch
        recorded = self._no_record
        if record:
            recorded = np.full((len(self.met), layers, 2, n, n), np.nan)
        trace = np.full((traced, layers, 2), np.nan)
        trace[..., 1] = np.inf
        self._run(self._spec, codes.STREAM_ROWS, self.layer + 1, layers, until, trace, recorded)
        self.layer += layers
        check_status(self.status, self.first, codes.DEGENERATE)
        return recorded, trace

    def _run(
        self,
        spec: codes.LayerSpec,
        stream: np.uint32,
        first_layer: int,
        layers: int,
        until: int,
        trace: NDArray[np.float64],
        record: NDArray[np.float64],
    ) -> None:
        """Take all pairs through layers; layer 0 is given its covariance, not a Gram matrix."""
        convolution, taps = self._layer.linear.convolution, None
        if first_layer > 0 and convolution is not None and convolution.taps > 1:
            taps = sources.Taps(*convolution.axes(self.chain.batch), self._average)
        source = sources.Drawn(stream, taps)
        course = pairs.PairCourse(
            self.first, first_layer, layers, self.lag, until, self.threshold, *self._key, record,
            trace,
        )  # fmt: skip
        state = pairs.PairState(self.grams, self.met, self.tries, self.status)
        sigma = rows.activation(sigma_of(self._layer.rows.activation), "float64")
        pairs.coupled_layers(source, sigma, spec, state, course, self._sides, self._pair)

    @property
    def _no_record(self) -> NDArray[np.float64]:
        n = self.chain.batch
        return np.zeros((len(self.met), 0, 2, n, n))


def meet(
    chain: Chain,
    start: Start,
    key: int,
    first: int,
    last: int,
    lag: int,
    most_layers: int,
    traced: int = 0,
    kind: type[Pairs] = Pairs,
    behind: Start | None = None,
) -> Meetings:
    """Let pairs meet, within at most `most_layers` layers together."""
    pairs = kind(chain, start, lag, first, last, key, behind=behind)
    traces: list[NDArray[np.float64]] = [np.zeros((traced, 0, 2))]
    end = lag + most_layers
    while pairs.layer < end and pairs.waiting.any():
        ahead = min(lag if pairs.layer == 0 else BLOCK_LAYERS, end - pairs.layer)
        traces.append(pairs.advance(ahead, traced=traced)[1])
    trace = np.concatenate(traces, axis=1)
    lost = pairs.status[:, 0] == codes.DEGENERATE
    return Meetings(
        layers=pairs.met,
        tries=pairs.tries[:, 0],
        refusals=pairs.tries[:, 1],
        distance=trace[..., 0],
        pivot=trace[..., 1],
        degenerate=np.where(lost, pairs.status[:, 1], 0),
    )


def joined(parts: Sequence[Meetings]) -> Meetings:
    """Return what became of consecutive ranges of pairs, of which the first has the trace."""
    of_pairs = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("layers", "tries", "refusals", "degenerate")
    }
    return replace(parts[0], **of_pairs)
