"""Architectures of torchvision, timm and transformers: verdicts written before they were measured.

These packages are large, and `make test-slow` does not install them: without
``pip install torchvision timm transformers`` it skips these tests. All models are known to train
from their own initializations, so each verdict is "trains" for both optimizers.
"""

import time
from functools import partial
from types import SimpleNamespace

import pytest
from torch_models import digest_of, nn, one_thread, torch  # noqa: F401

from bnmc.torch import measure

pytestmark = [
    pytest.mark.slow, pytest.mark.untraced, pytest.mark.usefixtures("one_thread"),
]  # fmt: skip

CLASSES = 10


def images(samples=16, size=64):
    """Return noisy copies of ten smooth patterns, standardized, and their labels."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(CLASSES, 3, 8, 8, generator=generator)
    patterns = nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    labels = torch.arange(samples) % CLASSES
    batch = patterns[labels] + 0.3 * torch.randn(samples, 3, size, size, generator=generator)
    return (batch - batch.mean()) / batch.std(), labels


def tokens(samples=16, length=24, vocabulary=200):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (samples, length), generator=generator)


def vision(name, **options):
    models = pytest.importorskip("torchvision.models")
    return getattr(models, name)(num_classes=CLASSES, **options)


def timm(name, **options):
    return pytest.importorskip("timm").create_model(name, num_classes=CLASSES, **options)


def bert():
    kit = pytest.importorskip("transformers")
    config = kit.BertConfig(
        vocab_size=200, hidden_size=96, num_hidden_layers=6, num_attention_heads=4,
        intermediate_size=384, num_labels=CLASSES,
    )  # fmt: skip
    return kit.BertForSequenceClassification(config)


def gpt2():
    kit = pytest.importorskip("transformers")
    config = kit.GPT2Config(
        vocab_size=200, n_positions=32, n_embd=96, n_layer=6, n_head=4, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return kit.GPT2LMHeadModel(config)


def next_token(output):
    """Return the loss of a language model on the tokens of the batch."""
    logits = output.logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens()[:, 1:].flatten())


#: Functions that make the models.
VISION = {
    "ResNet-18": partial(vision, "resnet18"),
    "ResNet-50": partial(vision, "resnet50"),
    "VGG-11": partial(vision, "vgg11"),
    "VGG-16 with batch norm": partial(vision, "vgg16_bn"),
    "DenseNet-121": partial(vision, "densenet121"),
    "MobileNet v2": partial(vision, "mobilenet_v2"),
    "MobileNet v3": partial(vision, "mobilenet_v3_small"),
    "EfficientNet-B0": partial(vision, "efficientnet_b0"),
    "ShuffleNet v2": partial(vision, "shufflenet_v2_x0_5"),
    "ConvNeXt": partial(vision, "convnext_tiny"),
    "Swin": partial(vision, "swin_t"),
    "ViT": partial(timm, "vit_tiny_patch16_224", img_size=64, patch_size=8),
    "Mixer": partial(timm, "mixer_s32_224", img_size=64),
    "NF-ResNet-26": partial(timm, "nf_resnet26"),
    "RegNet": partial(timm, "regnetx_002"),
}


def made(make):
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("name", VISION)
def test_verdicts_on_vision_models(name):
    model = made(VISION[name])
    batch, labels = images()
    before = digest_of(model)
    measured = measure(model, batch, labels=labels, cosines=False)
    assert digest_of(model) == before
    assert (measured.outlook.sgd, measured.outlook.adam) == ("trains", "trains"), measured.verdict


def test_verdicts_on_language_models():
    model = made(bert)
    labels = torch.arange(16) % CLASSES
    measured = measure(model, {"input_ids": tokens()}, labels=labels, cosines=False)
    assert (measured.outlook.sgd, measured.outlook.adam) == ("trains", "trains"), measured.verdict
    model = made(gpt2)
    measured = measure(model, {"input_ids": tokens()}, loss=next_token)
    assert (measured.outlook.sgd, measured.outlook.adam) == ("trains", "trains"), measured.verdict


def test_time_of_a_measurement():
    """A measurement of ResNet-50 takes at most three forward and backward passes, of CPU time.

    Images have the usual size. Of smaller ones the copies of the weights take a larger part.
    """
    model = made(VISION["ResNet-50"])
    batch, labels = images(8, 224)
    least = SimpleNamespace(step=float("inf"), measure=float("inf"))
    for _ in range(3):
        start = time.process_time()
        nn.functional.cross_entropy(model(batch), labels).backward()
        least.step = min(least.step, time.process_time() - start)
        start = time.process_time()
        measure(model, batch, labels=labels)
        least.measure = min(least.measure, time.process_time() - start)
    assert least.measure <= 3.0 * least.step, vars(least)
