"""Gradients: speed against PyTorch's autograd, memory, and limits of infinite width.

The networks have relu and centred batch normalization; the gradient at the top has independent
normal entries, and the result is the gradient norm of every layer.  PyTorch draws a new W (width x
width) in each layer, differentiates through networks of `LAYERS` layers, and takes the norms.
"""

import numpy as np
import pytest

import bnmc
from bench.children import CAN_WATCH, memory_of
from bench.peers import installed
from bench.turns import LAYER, THREADS, Candidate, repeating

#: Layers of a network of PyTorch: all its weights and their gradients are in memory.
LAYERS = 10

#: Width and batch, with the smallest speed ratio to PyTorch.
SHAPES = {(1000, 10): 150.0, (4000, 10): 700.0, (500, 20): 40.0, (1000, 100): 8.0}

#: Largest time of forward and backward pass, in forward passes.
PASSES = 5.0

#: Width, batch and layers of passes that may add `MOST_MB`.
LONG = ((1000, 10, 100_000), (1_000_000, 10, 100))
MOST_MB = 200.0

#: Activations, and widths with the number of chains, at which rates are measured.
ACTIVATIONS = ("linear", "relu", "tanh", "gelu")
WIDTHS = {1000: 160, 10_000: 40}

#: Widths at which tangent kernels are compared with the limit, and networks of each.
TANGENT_WIDTHS = (64, 256, 1024, 4096)
TANGENT_CHAINS = 200

#: Largest difference of the slope of their distance from -1/2.
SLOPE_ERROR = 0.05


@pytest.fixture(scope="module")
def verified(request):
    """Check that the networks of PyTorch have the gradient norms of the library."""
    width, batch, layers = 60, 6, 5
    count = 50 if request.config.getoption("--benchmark-disable") else 1000
    if not installed("PyTorch"):
        return
    run = torch_network(width, batch, layers, 1)  # such small matrices are faster on one thread
    theirs = np.log([run() for _ in range(count)])
    ours = bnmc.backpropagate(
        bnmc.Chain(width, batch, "relu"), layers, chains=count, observables=(), rng=0
    ).log_gradient_norm
    error = np.sqrt((theirs.var(axis=0) + ours.var(axis=0)) / count)
    if not (np.abs(theirs.mean(axis=0) - ours.mean(axis=0)) < 6 * error).all():
        raise AssertionError(f"PyTorch: {theirs.mean(axis=0)}, not {ours.mean(axis=0)}")


@pytest.mark.parametrize("clock", ["wall", "processor"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_passes(turns, shape, clock, verified):
    """Forward and backward pass: on all cores, and in processor time of one thread.

    Other programs on the machine hardly change the second.
    """
    width, batch = turns.of(shape, shape, (20, 3))
    threads = THREADS if clock == "wall" else 1
    turns.group = f"({width}, {batch}), float32, {threads} threads, {clock} time"
    chain = bnmc.Chain(width, batch, "relu")
    options = {"chains": 4 * threads, "dtype": "float32", "threads": threads, "rng": 0}
    runs = {
        "forward": lambda layers: (
            lambda: bnmc.simulate(chain, layers, sampler="conditional", every=layers, **options)
        ),
        "backpropagate": lambda layers: (
            lambda: bnmc.backpropagate(chain, layers, observables=(), **options)
        ),
    }
    candidates = [Candidate(name, make, 4 * threads, LAYER) for name, make in runs.items()]
    if installed("PyTorch"):
        # A network of width 4000 takes seconds on one thread, half of it for the weights.
        layers = 4 if width >= 4000 and threads == 1 else LAYERS
        network = repeating(torch_network(width, batch, layers, threads))
        candidates.append(Candidate("PyTorch", network, layers, LAYER))
    rounds, seconds = turns.of((7, 0.2), (3, 0.05))
    timings = turns(candidates, rounds=rounds, seconds=seconds, by_processor=clock == "processor")
    both = timings["backpropagate"]
    passes = timings["forward"].speed_over(both)
    turns.hold("backpropagate", "forward passes", passes, at_most=PASSES)
    if "PyTorch" in timings:
        ratio = both.speed_over(timings["PyTorch"])
        turns.hold("backpropagate", "x PyTorch", ratio, at_least=SHAPES[shape])


def torch_network(width, batch, layers, threads):
    """Return a call that draws a network and returns the gradient norms of its weights."""
    import torch

    torch.set_num_threads(threads)
    scale = width**-0.5

    def normalized(h):
        centred = h - h.mean(1, keepdim=True)
        return centred * (centred * centred).mean(1, keepdim=True).rsqrt()

    def run():
        x = normalized(torch.randn(width, batch))
        weights = []
        for _ in range(layers):
            weights.append(torch.randn(width, width).requires_grad_())
            # Scaling the activations is cheaper than scaling W; so its gradient is too small by
            # the root of the width.
            h = weights[-1] @ (torch.relu(x) * scale)
            x = normalized(h)
        gradients = torch.autograd.grad(h, weights, torch.randn(width, batch))
        return [float(gradient.norm()) / scale for gradient in gradients]

    return run


@pytest.mark.skipif(not CAN_WATCH, reason="the peak of a process cannot be reset")
@pytest.mark.parametrize("shape", LONG, ids=str)
def test_memory(turns, shape):
    """What a long and a wide pass add to the resident set of a process."""
    width, batch, depth = turns.of(shape, (*shape[:2], shape[2] // 20), (100, 10, 3))
    turns.group = "Memory of one backward pass"
    options = "dtype='float32', observables=(), threads=1, rng=0"
    setup = f"import bnmc\nbnmc.backpropagate(bnmc.Chain(64, {batch}), 2, {options})"
    call = f"bnmc.backpropagate(bnmc.Chain({width}, {batch}), {depth}, {options})"
    name = f"({width}, {batch}), {depth} layers"
    memory = turns.timed(name, lambda: memory_of(setup, call))
    turns.add(name, {"s": memory["seconds"]})
    turns.hold(name, "MB added", memory["added"], at_most=MOST_MB)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rates(turns, width, activation):
    """The growth of gradients beside the backward rate of the mean field.

    At width 10^4 they must agree; at 1000 the difference is of order batch/width.
    """
    turns.group = "Squared gradient norm per layer, batch 10"
    chain = bnmc.Chain(turns.of(width, width, 30), 10, activation)
    depth, chains = turns.of((80, WIDTHS[width]), (80, WIDTHS[width]), (8, 4))
    name = f"{activation}, {width}"
    run = turns.timed(name, lambda: bnmc.backpropagate(
        chain, depth, chains=chains, dtype="float32", observables=(), threads=THREADS, rng=1
    ))  # fmt: skip
    rate = run.backward_rate()
    predicted = bnmc.MeanField(chain).fixed_point().backward_rate
    difference, error = rate.value / predicted - 1.0, rate.stderr / rate.value
    turns.add(name, {"rate": rate.value, "mean field": predicted, "difference %": 100 * difference})
    is_held = width == max(WIDTHS)
    turns.hold(name, "stderr %", 100 * error, at_most=0.2 if is_held else None)
    turns.hold(name, "off by", abs(difference) / error, at_most=3.0 if is_held else None)


def test_tangent_kernels(turns):
    """Tangent kernels of networks of finite width, and their distance from `infinite_width.ntk`.

    Inputs of all widths are copies of the same eight rows, so layer 0 has one Gram matrix.  Its
    activations are the inputs of the infinite network, whose outputs contain the gain.
    """
    rng = np.random.default_rng(3)
    x, depth, gain = rng.standard_normal((8, 5)) + 0.5, 3, 2.0**0.5
    limit = bnmc.infinite_width.ntk(np.maximum(x, 0.0), depth, weight_variance=gain**2) / gain**2
    turns.group = f"Distance of tangent kernels from the limit, relu, {depth} layers"
    widths = turns.of(TANGENT_WIDTHS, TANGENT_WIDTHS[:3], (8, 16))
    chains = turns.of(TANGENT_CHAINS, TANGENT_CHAINS // 4, 4)
    distances = []
    for width in widths:
        chain = bnmc.Chain(width, 5, "relu", norm="none", gain=gain)
        initial = np.tile(x, (width // 8, 1))
        sample = turns.timed(f"{width}", lambda chain=chain, initial=initial: (
            bnmc.gradients.tangent_kernel(
                chain, depth, chains=chains, initial=initial, rng=0, threads=THREADS
            )
        ))  # fmt: skip
        squares = ((sample.kernels - limit) ** 2).sum(axis=(1, 2)) / (limit**2).sum()
        distances.append(float(squares.mean()) ** 0.5)
        error = float(squares.std()) / len(squares) ** 0.5 / (2.0 * distances[-1])
        turns.add(f"{width}", {"relative distance": distances[-1], "stderr": error})
    slope = float(np.polyfit(np.log(widths), np.log(distances), 1)[0])
    turns.add(f"{width}", {"slope": slope})
    turns.hold(
        f"{width}", "|slope + 1/2|", abs(slope + 0.5), at_most=SLOPE_ERROR * turns.of(1.0, 2.0)
    )
