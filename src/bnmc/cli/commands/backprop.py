"""``bnmc backprop``: gradients of random networks against depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnmc.cli.command import Report, command, finished


@command("width", "batch", "activation", "norm", "skip", "gain", "weights", "eps", plot=True)
def backprop(
    chain: Any,
    depth: int = 50,
    chains: int = 64,
    loss: str = "gaussian",
    classes: int | None = None,
    *,
    seed: int | None,
    sampler: str,
    dtype: str,
    threads: int | None,
    store: Path | None,
    timeout: float | None,
    progress: bool,
) -> Report:
    """Measure how gradients explode or vanish with depth.

    The table shows, for the weights W of some layers, the mean over networks of the logarithm of
    the Frobenius norm of the gradient ∂L/∂W, and its standard error. Below are the growth of the
    squared norm per layer towards the input, and its value at infinite width.

    The samples are independent and Gaussian; bnmc.backpropagate takes any others.

    Ctrl-C ends a run with the networks that are finished, which are shown and drawn all the same;
    the exit status is then 130.

    Example: bnmc backprop --activation tanh --depth 100 --plot gradients.png

    Example: bnmc backprop --loss cross-entropy --classes 2 --width 500 --seed 0 --json

    Parameters
    ----------
    depth
        Number of layers.
    chains
        Number of independent networks.
    loss : NAME
        gaussian (a gradient with independent normal entries at the last layer),
        cross-entropy or squared (of a Gaussian readout).
    classes
        Outputs of the readout; sample i has the class i modulo this number. Default: 10
        with cross-entropy and squared.
    """
    from bnmc._support.arguments import integer
    from bnmc.gradients import backpropagate

    readout: dict[str, Any] = {"classes": classes}
    if loss in ("cross-entropy", "squared"):
        count = integer("classes", 10 if classes is None else classes, low=2)
        readout = {"classes": count, "labels": [sample % count for sample in range(chain.batch)]}
    result, status = finished(
        lambda: backpropagate(
            chain, depth, chains=chains, loss=loss, rng=seed, sampler=sampler, observables=(),
            dtype=dtype, threads=threads, store=store, timeout=timeout, progress=progress,
            **readout,
        )
    )  # fmt: skip
    # Without a seed, the random numbers are those of the store.
    repeat = {"key": f"{result.key} of the store"} if seed is None else {}
    return Report(result.to_dict(), [result], result.plot, status, repeat=repeat)
