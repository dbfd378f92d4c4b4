"""Gradient descent without weights: a network that no memory holds, and the choice to draw."""

import numpy as np
import pytest

import bnmc
from bench.children import CAN_WATCH, WATCHER, child
from bench.turns import Candidate, only, repeating

MILLISECONDS = ("ms", lambda seconds: 1e3 * seconds)
#: Samples of a batch, and steps.
SAMPLES, STEPS = 8, 20

PROGRAM = """
import numpy as np
import bnmc

x = np.random.default_rng(0).standard_normal((10, {samples}))

def network(width):
    return bnmc.Network.of(
        width=[10] + 5 * [width], batch={samples}, activation="relu", norm="none",
        gain=[1] + 4 * [2**0.5],
    )

def trained(width, steps):
    return bnmc.train(
        network(width), x, np.arange({samples}) % 2, steps=steps, learning_rate=0.1,
        parametrization="mup", dtype="float32", matrices="implicit", observables=(), rng=0,
    )

trained(64, 1)  # compiles
with Watch() as watch:
    run = trained({width}, {steps})
print(json.dumps([watch.seconds, watch.peak(), run.loss[0, [0, -1]].tolist()]))
"""


@pytest.mark.skipif(not CAN_WATCH, reason="the peak of a process cannot be reset here")
def test_beyond_memory(turns):
    """Twenty steps of a network whose four hidden matrices would take 160 GB in float32."""
    width, steps = turns.of(100_000, 100_000, 64), turns.of(STEPS, STEPS, 2)
    turns.group = f"A network of four hidden matrices of width {width}: {steps} steps of 8 samples"
    script = WATCHER + PROGRAM.format(samples=SAMPLES, width=width, steps=steps)
    seconds, peak, losses = child(script)
    turns.record("steps", [seconds])
    turns.add("steps", {"first loss": losses[0], "last loss": losses[1]})
    turns.hold("steps", "s", seconds, at_most=turns.of(10.0, 10.0, None))
    turns.hold("steps", "MB", peak, at_most=turns.of(2_000.0, 2_000.0, None))


@pytest.mark.parametrize(
    "width", only((256, 1024), quick=(1024,), tiny=(256,)), ids="width {}".format
)
def test_choice(turns, width):
    """The same training with implicit and with drawn matrices; "auto" is about the faster one."""
    width, steps = turns.of(width, width, 32), turns.of(STEPS, STEPS, 2)
    turns.group = f"Three hidden matrices of width {width}: {steps} steps of 8 samples"
    x = np.random.default_rng(0).standard_normal((10, SAMPLES))
    network = bnmc.Network.of(
        width=[10] + 4 * [width], batch=SAMPLES, activation="relu", norm="none"
    )

    def trained(matrices):
        return lambda: bnmc.train(
            network, x, np.arange(SAMPLES) % 2, steps=steps, learning_rate=0.1, observables=(),
            parametrization="mup", matrices=matrices, threads=1, rng=0,
        )  # fmt: skip

    candidates = [
        Candidate(name, repeating(trained(name)), shown=MILLISECONDS)
        for name in ("auto", "implicit", "drawn")
    ]
    timings = turns(candidates, rounds=turns.of(3, 2), seconds=0.1)
    for name in ("implicit", "drawn"):
        turns.hold("auto", f"x {name}", timings["auto"].speed_over(timings[name]), at_least=None)
