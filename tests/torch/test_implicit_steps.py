"""Training of implicit layers has the law of training with drawn weights."""

from functools import partial

import numpy as np
import pytest
from scipy import stats
from slow_cases import slow
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.torch import implicit_

pytestmark = pytest.mark.usefixtures("one_thread")

FALSE_ALARM = 1e-6
STEPS, WIDTH = 4, 32
X = torch.linspace(-1.0, 2.0, 12, dtype=torch.float64).cos().reshape(4, 3)
IMAGES = torch.linspace(-2.0, 2.0, 96, dtype=torch.float64).sin().reshape(2, 3, 4, 4)
TOKENS = torch.tensor([[0, 3, 3], [7, 4, 0]])


class Transformer(nn.Module):
    """An embedding, blocks with the norm first, and a head, which may be tied."""

    def __init__(self, width=WIDTH, blocks=1, heads=2, words=8, tied=False):
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.Sequential(*(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                norm_first=True,
            )
            for _ in range(blocks)
        ))  # fmt: skip
        self.norm = nn.LayerNorm(width)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens))))


def mlp():
    layers = [nn.Linear(3, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers, nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))


def convolutions():
    first, second = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 4, 3, stride=2)
    return nn.Sequential(first, nn.Tanh(), second, nn.Flatten(), nn.Linear(4, 3))


MODELS = {
    "transformer": (Transformer, TOKENS, torch.tensor([3, 3, 7, 4, 0, 1])),
    "batch norm": (mlp, X, torch.tensor([0, 1, 2, 1])),
    "convolutions": (convolutions, IMAGES, torch.tensor([2, 0])),
}


def with_drawn_weights(make, seed, dtype=torch.float64):
    """Return a model with Gaussian weights, of the variances of PyTorch's own initialization."""
    model, random = make().to(dtype), torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            factor = 2.0 * weight.shape[1] if "in_proj" in name else 3.0 * weight[0].numel()
            std = 1.0 if name == "words.weight" else factor**-0.5
            nn.init.normal_(weight, 0.0, std, generator=random)
    return model


def with_implicit_weights(make, seed, dtype=torch.float64):
    torch.set_default_dtype(dtype)
    with torch.device("meta"):
        model = make()
    layers = [layer for layer in model.children() if any(x.ndim > 1 for x in layer.parameters())]
    model = implicit_(model, rng=seed, layers=layers)
    torch.set_default_dtype(torch.float32)
    return model


def statistics(model, x, y, steps=STEPS):
    """Return losses of steps, the lengths of gradients, and outputs after training."""
    numbers = []
    for name, bias in model.named_parameters():
        if "bias" in name:
            nn.init.constant_(bias, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y)
        loss.backward()
        layers = [layer for layer in model.children() if hasattr(layer, "weight")]
        length = nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
        numbers += [loss.item(), length.item()]
        numbers += [layer.weight.grad.norm().item() for layer in layers]
        optimizer.step()
    with torch.no_grad():
        return [*numbers, *model.eval()(x).flatten()[:3].tolist()]


def alarms(numbers, others, test):
    """Return the least p-value of a test of columns, times their number (Bonferroni)."""
    columns = list(zip(np.transpose(numbers), np.transpose(others), strict=True))
    return len(columns) * min(test(*pair).pvalue for pair in columns)


def kolmogorov_smirnov(numbers, others):
    return stats.ks_2samp(numbers, others, method="asymp")


# 40 networks a side show laws that are apart, 5000 also those that differ by a few per cent.  Each
# time these are transformers; the products of other layers have dense twins.
@pytest.mark.parametrize(
    ("name", "count"),
    [("transformer", 40), *(slow(name, 5000) for name in MODELS)],
)
def test_trained_models_have_the_law_of_drawn_weights(name, count):
    make, x, y = MODELS[name]
    theirs, ours = (
        [statistics(build(make, seed), x, y, 2 if count < 100 else STEPS) for seed in range(count)]
        for build in (with_drawn_weights, with_implicit_weights)
    )
    assert alarms(ours, theirs, kolmogorov_smirnov) > FALSE_ALARM


@pytest.mark.slow
def test_gpt2_small_has_the_law_of_drawn_weights():
    """Of 1.2e8 weights: a step of gradient descent between two forward and backward passes."""
    draws, length = 40, 16
    make = partial(Transformer, 768, 12, 12, 50_257, tied=True)
    tokens = torch.randint(50_257, (1, length + 1), generator=torch.Generator().manual_seed(0))
    x, y = tokens[:, :-1], tokens[0, 1:]

    def numbers(model):
        optimizer, result = torch.optim.SGD(model.parameters(), lr=0.01), []
        for _ in range(2):
            optimizer.zero_grad()
            logits = model(x)[0]
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            lengths = [
                np.linalg.norm([x.grad.double().norm() for x in block.parameters()])
                for block in (*model.blocks, model.head)
            ]
            spread = logits.detach().double()
            result += [loss.item(), spread.std().item(), *spread[-1, :3].tolist(), *lengths]
            optimizer.step()
        return result

    theirs, ours = (
        [numbers(build(make, seed, torch.float32)) for seed in range(draws)]
        for build in (with_drawn_weights, with_implicit_weights)
    )
    assert alarms(ours, theirs, kolmogorov_smirnov) > FALSE_ALARM / 2.0
    welch = partial(stats.ttest_ind, equal_var=False)
    assert alarms(ours, theirs, welch) > FALSE_ALARM / 2.0
