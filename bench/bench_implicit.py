"""PyTorch models whose weights are decided where they are asked, and dense ones.

A step is a forward pass, a backward pass and an update by gradient descent.  Models that no memory
holds run in processes of their own, whose resident set is watched.
"""

import pytest

from bench.children import CAN_WATCH, WATCHER, child
from bench.turns import Candidate, only, repeating

torch = pytest.importorskip("torch")
from bnmc.torch import implicit_  # noqa: E402

MILLISECONDS = ("ms", lambda seconds: 1e3 * seconds)
#: Samples of a step, and directions that were asked before.
SAMPLES, ASKED = 16, 160

#: Blocks, width, heads, vocabulary, steps of 16 tokens; the most seconds and MB.
SIZES = {
    "width 65536": (2, 65_536, 64, 1000, 2, 6.0, 2_000.0),
    "GPT-3's shape": (96, 12_288, 96, 50_257, 1, 15.0, 6_000.0),
    "width 10**6": (2, 10**6, 64, 1000, 1, 40.0, 9_000.0),
}
TINY = {name: (2, 64, 4, 50, steps, None, None) for name, (*_, steps, _, _) in SIZES.items()}

PROGRAM = """
import torch
from torch import nn
from bnmc.torch import ImplicitSGD, implicit_

class Transformer(nn.Module):
    def __init__(self, blocks, width, heads, words):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                norm_first=True,
            )
            for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.positions(torch.arange(length))
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))

torch.manual_seed(0)
with Watch() as watch:
    with torch.device("meta"):
        model = Transformer({blocks}, {width}, {heads}, {words})
    weights = sum(weight.numel() for weight in model.parameters())
    implicit_(model, rng=0, columns=64)
    optimizer = ImplicitSGD(model, lr=1e-3)
    tokens = torch.randint({words}, (1, 17))
    seconds = []
    for step in range({steps}):
        begun = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
print(json.dumps([seconds, watch.peak(), weights, loss.item()]))
"""


@pytest.mark.skipif(not CAN_WATCH, reason="the peak of a process cannot be reset here")
@pytest.mark.parametrize(
    "name", only(SIZES, quick=("width 65536",), tiny=("width 65536",)), ids=str
)
def test_beyond_memory(turns, name):
    """Steps of a transformer of which the weights alone take 100 GB to 100 TB."""
    blocks, width, heads, words, steps, most, memory = turns.of(
        SIZES[name], SIZES[name], TINY[name]
    )
    turns.group = f"A transformer of {name}: {steps} steps of 16 tokens"
    sizes = {"blocks": blocks, "width": width, "heads": heads, "words": words, "steps": steps}
    script = WATCHER + PROGRAM.format(**sizes)
    seconds, peak, weights, loss = child(script)
    turns.record("steps", [sum(seconds)])
    turns.add("steps", {"weights": weights, "loss": loss})
    turns.hold("steps", "s of all steps", sum(seconds), at_most=most)
    turns.hold("steps", "MB", peak, at_most=memory)


@pytest.mark.parametrize(
    "width", only((512, 1024, 2048, 4096, 8192), quick=(2048,), tiny=(2048,)), ids="width {}".format
)
def test_steps(turns, width):
    """A step of two square layers, where 160 directions were asked on either side."""
    width = turns.of(width, width, 64)
    asked, floor = turns.of(ASKED, ASKED, 16), 1.0 if width >= 2048 else None
    turns.group = f"A step of two layers of width {width}, {SAMPLES} samples, {asked} asked"

    def network():
        layers = torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width)
        return torch.nn.Sequential(*layers)

    dense, ours = network(), implicit_(network(), rng=0, layers=["0", "2"])

    def step(model):
        """Gradient descent at the rate 0, so that steps can be repeated."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        model(torch.randn(SAMPLES, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    while ours[0].matrix.asked[0] < asked:
        step(ours)

    def undone():
        restore = [layer.matrix.checkpoint() for layer in ours[::2]]
        step(ours)
        for each in restore:
            each()

    candidates = [
        Candidate("implicit", repeating(undone), shown=MILLISECONDS),
        Candidate("dense", repeating(lambda: step(dense)), shown=MILLISECONDS),
    ]
    timings = turns(candidates, rounds=turns.of(7, 3), seconds=0.1)
    faster = timings["implicit"].speed_over(timings["dense"])
    turns.hold("implicit", "x dense", faster, at_least=floor)
