"""Ensembles of trained networks with one hidden layer, on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import draw_key
from bnmc._support.machine import available_memory, one_blas_thread
from bnmc._support.progress import Progress
from bnmc.errors import ArgumentError
from bnmc.infinite_width import NetworkTraining, train_networks

#: Rows of weights of a group of networks, which one thread trains.
_ROWS = 1024

_OF_NETWORKS = [field.name for field in fields(NetworkTraining) if field.name != "steps"]


def require_start(steps: tuple[int, ...]) -> None:
    """Require that the first of the recorded steps is 0."""
    if steps[0] != 0:
        raise ArgumentError("steps", steps, "steps, the first of which is 0")


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
) -> NetworkTraining:
    """Return networks that are trained in groups; their bits do not depend on `threads`.

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
        Fewer are used if their networks would not fit in memory.
    progress : callable
        Called with (done, networks).
    **options
        Further arguments of `train_networks`.

    Returns
    -------
    NetworkTraining
        Of all networks.
    """
    # The number of children that a generator has spawned is no part of its state, so the children
    # of `rng` itself would depend on which parts of a figure were stored.
    seeds = np.random.SeedSequence(draw_key(rng)).spawn(networks)
    children = [np.random.default_rng(seed).spawn(1)[0] for seed in seeds]
    each = np.broadcast_to(labels, (networks, x.shape[1]))
    size = max(1, min(_ROWS // options["width"], -(-networks // threads)))
    groups = [slice(first, first + size) for first in range(0, networks, size)]

    def trained(at: slice) -> NetworkTraining:
        return train_networks(
            scaling, x, each[at], steps, networks=len(each[at]), rng=children[at], **options
        )

    results: list[NetworkTraining] = []
    # Weights with their start, gradient and change, and activations; a thread has one group.
    columns = x.shape[1] + (0 if options.get("test") is None else options["test"].shape[1])
    needed = 8 * size * options["width"] * (4 * len(x) + 6 * columns)
    workers = max(1, min(threads, len(groups), available_memory() // needed))
    # If the loop ends early, by Ctrl-C for example, `map` cancels the networks that wait.
    with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
        for at, result in zip(groups, pool.map(trained, groups), strict=True):
            results.append(result)
            progress(min(at.stop, networks), networks)
    parts = ([getattr(result, name) for result in results] for name in _OF_NETWORKS)
    joined: list[Any] = [None if part[0] is None else np.concatenate(part) for part in parts]
    return NetworkTraining(results[0].steps, *joined)
