"""Small sizes of all figures, with the seeds of the approved pictures.

At these sizes a figure takes at most a few seconds.  The tests of a figure and its approved picture
use one run of them.
"""

import functools
import math
from typing import Any, NamedTuple

import pytest

from bnmc.errors import StoreMismatchError
from bnmc.experiments.registry import function_of, sizes_of


class Small(NamedTuple):
    """Sizes by name, and the seed."""

    sizes: dict[str, Any]
    rng: int = 0


#: Widths, networks, relative errors and layers at γ = ∞ and γ = 1.
_ENSEMBLES = {
    "gammas": (math.inf, 1.0), "widths": ((8, 16, 32), (8, 16)), "chains": (32, 16),
    "rtols": (0.01, 0.03), "depths": (200_000, 200_000),
}  # fmt: skip

FIGURES = {
    "bridging-1a": Small({"depth": 200, "chains": 100, "vanilla_chains": 400, "points": 50}),
    "bridging-1b": Small(
        {"widths": (200, 400, 800, 1600), "chains": 16, "first": 41, "last": 240}
    ),
    "bridging-2": Small(
        {"activations": ("linear", "relu"), "width": 2000, "layer": 20, "chains": 100}
    ),
    "bridging-poster": Small({
        "activations": ("relu",), "depth": 24, "chains": 48, "widths": (200, 800, 3200),
        "batches": (4, 8, 16),
    }),
    "bridging-two-inputs": Small(
        {"activations": ("relu",), "widths": (250, 1000, 4000), "depth": 40, "chains": 32}
    ),
    "bridging-conditioning": Small(
        {"activations": ("tanh",), "widths": (200, 3200), "depth": 60, "chains": 48}
    ),
    "bridging-certificate": Small(
        {
            "activations": ("relu",), "width": 1000, "chains": 200, "contraction_chains": 16,
            "depth": 30,
        }
    ),
    "orthogonalizes-1": Small({"width": 32, "layers": 50, "chains": 400}, 1),
    "orthogonalizes-2a": Small({"widths": (32, 512), "layers": 50, "chains": 200}, 2),
    "orthogonalizes-2b": Small({"widths": (16, 256, 4096), "layers": 300, "chains": 32}, 3),
    "orthogonalizes-3": Small({
        "width": 24, "depths": (2, 12), "batch": 32, "images": 160, "epochs": 4, "every": 1,
        "rate": 0.03, "chains": 5,
    }, 6),
    "orthogonalizes-4": Small({
        "width": 24, "depths": (3, 8), "batch": 32, "images": 160, "epochs": 2, "every": 1,
        "power": -0.5, "rates": (0.01, 0.1), "chains": 3,
    }, 7),
    "orthogonalizes-6": Small({
        "activations": ("linear", "relu"), "widths": (64, 256, 1024), "layers": 50,
        "chains": 32,
    }, 4),
    "orthogonalizes-7": Small({
        "stages": ((4,), (4,)), "further": (2, 6), "images": 96, "batch": 32,
        "orthogonalized": 64, "epochs": 2, "every": 1, "rates": (0.03,), "chains": 3,
    }, 8),
    "orthogonalizes-wasserstein": Small({
        "widths": (32, 512), "layers": 40, "chains": 100, "wide": 2**15, "wide_layers": 30,
        "wide_chains": 20,
    }, 5),
    "rank-collapse-1": Small({
        "width": 32, "depths": (1, 12), "batch": 32, "images": 320, "epochs": 3,
        "rates": (0.02, 0.1), "chains": 5,
    }, 6),
    "rank-collapse-2": Small({"width": 16, "depth": 2048, "chains": 24}, 1),
    "rank-collapse-3a": Small(_ENSEMBLES, 2),
    "rank-collapse-3b": Small({"width": 20, "depth": 150, "chains": 64, "shown": 4}, 3),
    # More layers, or a larger rate of the pre-training, multiply rounding errors without bounds:
    # processors then show other numbers.  These sizes multiply them by less than 1e5.
    "rank-collapse-4": Small({
        "width": 24, "depths": (2, 5), "batch": 32, "images": 96, "tests": 32, "epochs": 1,
        "every": 1, "batches": 2, "steps": 40, "pretraining_rate": 0.01, "rates": (0.01,),
        "scale": 4.0, "chains": 5,
    }, 7),
    "rank-collapse-5": Small({
        "width": 16, "depth": 6, "stages": ((4,), (4,)), "batch": 32, "images": 160, "epochs": 5,
        "rate": 0.1, "chains": 5,
    }, 8),
    # As for Fig. 4: more steps, or a larger rate, multiply rounding errors without bounds.
    "rank-collapse-6": Small({
        "width": 24, "depth": 4, "batch": 32, "images": 96, "epochs": 2, "steps": (5, 20),
        "every": 4, "pretraining_rate": 0.3, "rate": 0.1, "chains": 3,
    }, 9),
    "rank-collapse-8": Small(_ENSEMBLES, 2),
    "rank-collapse-9": Small(_ENSEMBLES, 2),
    # With 4 channels the last ReLU is 0 for some image in one of few networks: it has no direction.
    "rank-collapse-10": Small({
        "stages": ((6,) * 3, (6,) * 3), "batch": 32, "images": 96, "epochs": 3, "rate": 0.03,
        "chains": 3,
    }, 10),
    "rank-collapse-lemma-3": Small(
        {"width": 16, "gamma": 0.25, "depth": 256, "angle_depth": 96, "chains": 200}, 4
    ),
    "rank-collapse-centring": Small({"width": 64, "batch": 8, "depth": 80, "chains": 50}, 5),
    "gradients-explosion": Small({
        "width": 300, "batch": 10, "depth": 80, "chains": 12,
        "activations": ("relu", "tanh", "linear"), "weights": ("gaussian",),
    }),
    "gradients-orthogonal": Small({
        "width": 12, "depth": 8, "chains": 400, "kinds": (("linear", 12), ("linear", 6)),
    }),
    "gradients-directions": Small({"width": 24, "batch": 4, "depth": 5, "chains": 500}, 1),
    "isometry-spectrum": Small({"width": 12, "batch": 6, "depth": 3, "deep": 40, "chains": 20}, 1),
    "fisher": Small({"width": 64, "batches": (4, 6), "chains": 20}, 1),
    "limits-ntk-convergence": Small(
        {"depths": (1, 3), "widths": (64, 1024), "chains": 60, "images": 10}, 1
    ),
    "limits-alignment": Small(
        {"images": 40, "draws": 12, "width": 2048, "chains": 4, "steps": (0, 1, 10, 40)}, 1
    ),
    "limits-complexity": Small(
        {"train": 60, "test": 40, "shares": (0.0, 0.5, 1.0), "splits": 8}, 1
    ),
    "limits-plane": Small({"points": 8}),
    "limits-kl": Small({
        "train": 16, "test": 16, "widths": (32, 64), "reference": 16, "chains": 6,
        "reference_chains": 12, "steps": (0, 4, 40), "rate": 0.2,
    }, 1),
    "limits-exponents": Small(
        {"images": 12, "widths": (64, 1024), "reference": 1, "chains": 30}, 1
    ),
    "limits-constant-kernel": Small({
        "width": 4, "depths": (1, 2), "images": 24, "tests": 24, "batch": 8, "epochs": 10,
        "every": 5, "rate": 0.3, "chains": 3,
    }, 1),
    "training-kernel-change": Small({
        "widths": (50, 100, 200), "chains": 8, "steps": 2, "first_chains": 60,
    }),
    "training-orthogonal-start": Small({"widths": (16, 48), "chains": 4, "hidden": 3, "steps": 4}),
    "coordinate-check": Small({"widths": (32, 64, 128), "chains": 6}),
    "training-limits": Small({
        "train": 4, "test": 8, "widths": (32, 96), "hidden": (1, 2), "reference": 16, "chains": 6,
        "reference_chains": 12, "steps": 6, "rate": 0.2,
    }),
    "training-one-step": Small({"widths": (32, 64), "depths": (4, 24), "chains": 4}),
    "training-mean-field": Small({"widths": (64, 256), "chains": 4, "steps": 6}),
    "stability-atlas": Small({
        "activations": ("relu", "silu"), "batches": (8, 24, 32), "measured": ("relu",),
        "at": (4, 8), "width": 1000, "chains": 16,
    }),
    "rates": Small({
        "activations": ("relu",), "batches": (3, 5), "widths": (500, 1000),
        "contraction_chains": 16, "bound_chains": 60, "chains": 10,
    }),
    "scale": Small({
        "widths": (1000, 10_000, 100_000), "chains": 8, "layers": 30, "batches": (8, 64),
        "width": 2048, "batch_chains": 16, "deep": 1,
    }),
    "edge-of-chaos": Small({
        "activations": ("erf",), "curve": (0.0, 0.1, 0.3), "biases": (0.1, 0.3),
        "factors": (0.7, 1.4), "width": 1000, "depth": 4, "chains": 20,
    }, 3),
    "gap": Small({
        "activations": ("linear", "tanh"), "batches": (4, 10), "widths": (200, 1000),
        "chains": 16, "first": 41, "last": 100,
    }),
    "norms": Small({
        "norms": ("batch", "layer", "group(4)", "none"), "activation": "relu", "width": 200,
        "batch": 8, "depth": 10, "chains": 6,
    }, 3),
    "isometry": Small({
        "activations": ("relu", "sigmoid"), "width": 2000, "batch": 4, "depth": 14, "chains": 8,
    }, 3),
    "digits": Small({"width": 200, "batch": 5, "depth": 12, "chains": 20}, 1),
    "conv": Small({
        "activations": ("relu", "tanh"), "channels": 32, "samples": 1, "shape": (3, 3),
        "depth": 24, "chains": 4, "every": 10,
    }, 5),
    "wider-than-memory": Small({"widths": (64, 256, 1024), "chains": 24, "tokens": 4}),
    "depth-over-width": Small({"widths": (24, 48), "ratio": 0.3, "chains": 400}),
    "gpt-sizes": Small({
        "shapes": ("GPT-2", "GPT-3 2.7B"), "tokens": 48, "blocks": 1, "length": 6, "chains": 3,
    }),
    "outlook-table": Small({"models": 2, "steps": 30, "sgd": (0.3,), "adam": (1e-2,)}),
}  # fmt: skip


#: Figures with times, which differ in each run.
TIMED = ("scale",)

#: Figures whose small sizes take more than a second.
SLOW = (
    "gradients-directions", "limits-constant-kernel", "orthogonalizes-3", "rank-collapse-1",
    "rank-collapse-4", "rank-collapse-5", "rank-collapse-10", "rank-collapse-centring",
    "outlook-table",
)  # fmt: skip


def run(name, **arguments):
    """Run a figure at its small sizes, with its seed or other arguments."""
    sizes, rng = FIGURES[name]
    return function_of(name)(**{**sizes, "rng": rng, **arguments})


@functools.cache
def interrupted():
    """Return one fast figure of each file: figures of one file are interrupted alike."""
    names = (name for name in FIGURES if name not in {*SLOW, *TIMED})
    return tuple({function_of(name).__module__: name for name in names}.values())


def run_interrupted(name, folder):
    """Run a figure with a store, stop in the middle, and go on with another number of threads.

    The store is refused to other sizes.
    """

    def stop(done, total):
        if done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(name, store=folder, progress=stop, threads=2)
    told = []
    again = run(
        name, store=folder, threads=1, progress=lambda done, total: told.append((done, total))
    )
    assert told == sorted(set(told))
    assert told[-1] == (100, 100)
    sizes, rng = FIGURES[name]
    full = sizes_of(name)[0]._asdict().items() >= sizes.items()
    others = sizes_of(name)[full]._asdict()
    differing = next(size for size, value in others.items() if sizes.get(size, value) != value)
    with pytest.raises(StoreMismatchError, match=f"{differing} = "):
        function_of(name)(store=folder, rng=rng, full=full)
    return again
