"""Ensembles of trained networks with one hidden layer, on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.blas import one_blas_thread
from bnmc._support.keys import draw_key
from bnmc._support.progress import Progress
from bnmc.infinite_width import NetworkTraining, train_networks

__all__ = ["train_ensemble"]


def train_ensemble(
    scaling: str,
    x: NDArray[np.float64],
    labels: NDArray[Any],
    steps: tuple[int, ...],
    *,
    networks: int,
    rng: np.random.Generator,
    threads: int,
    progress: Progress,
    **options: Any,
) -> list[NetworkTraining]:
    """Return networks that are trained one by one; results do not depend on `threads`.

    Parameters
    ----------
    scaling, x, steps
        As `train_networks` takes them.
    labels : (samples,) or (networks, samples) ndarray
        Labels of all networks, or of each.
    networks : int
    rng : numpy.random.Generator
        Advances by one draw.
    threads : int
    progress : callable
        Called with (done, networks).
    **options
        Further arguments of `train_networks`.

    Returns
    -------
    list of NetworkTraining
        One for each network.
    """
    # The number of children that a generator has spawned is no part of its state, so the children
    # of `rng` itself would depend on which parts of an experiment were kept.
    seeds = np.random.SeedSequence(draw_key(rng)).spawn(networks)
    each = np.broadcast_to(labels, (networks, x.shape[1]))

    def one(run: int) -> NetworkTraining:
        return train_networks(
            scaling, x, each[run], steps, networks=1, rng=np.random.default_rng(seeds[run]),
            **options,
        )  # fmt: skip

    found = []
    # If the loop ends early, by Ctrl-C for example, `map` cancels the networks that wait.
    with one_blas_thread(), ThreadPoolExecutor(min(threads, networks)) as pool:
        for result in pool.map(one, range(networks)):
            found.append(result)
            progress(len(found), networks)
    return found
