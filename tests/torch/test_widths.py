"""`measure(factory=…, widths=…)`: the same architecture at other widths."""

import functools

import numpy as np
import pytest
from torch_models import nn, one_thread, resnet, torch  # noqa: F401

from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch import fresh, measure

pytestmark = pytest.mark.usefixtures("one_thread", "few_copies")
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(4)
MEASURED = functools.partial(measure, batch=IMAGES, labels=LABELS)
CHANNELS = functools.partial(resnet, blocks=2)


@pytest.fixture
def few_copies(monkeypatch):
    monkeypatch.setattr(fresh, "_MOST", 40)


def test_a_model_beside_its_architecture_at_other_widths():
    model = CHANNELS(6)
    measured = MEASURED(model, factory=CHANNELS, widths=(6, 16), networks=2, layers=["4", model[5]])
    np.testing.assert_array_equal(measured.scale, MEASURED(model, layers=["4", "5"]).scale)
    assert list(measured.by_width) == [6, 16]
    wide = measured.by_width[16]
    assert wide.layers == measured.layers == ("4", "5")
    assert wide.layouts[0].startswith("4 samples × 16 channels")
    lines = measured.table().splitlines()
    first = next(place for place, line in enumerate(lines) if "at each width" in line)
    assert lines[first].startswith("beside 2 random networks of this architecture at each width")
    cells = lines[first + 3].split()  # below two lines and the heads
    norms = wide.layer_gradient_norm
    expected = (
        "4", measured.scale[0, 0], measured.by_width[6].scale[:, 0].mean(),
        wide.scale[:, 0].mean(), measured.mean_correlation[0, 0],
    )  # fmt: skip
    assert cells[:5] == ["4", *(f"{number:.3g}" for number in expected[1:])]
    assert cells[-1] == f"{(norms[:, 0] / norms[:, 1]).mean():.3g}"
    assert measured.to_dict()["by_width"]["16"] == wide.to_dict()


def test_the_first_width_is_the_model_if_there_is_none():
    torch.manual_seed(5)
    measured = MEASURED(factory=CHANNELS, widths=[6, 8], networks=20)
    assert (measured.networks, list(measured.by_width)) == (20, [8])
    torch.manual_seed(5)
    other = MEASURED(lambda: CHANNELS(6), networks=20)
    np.testing.assert_array_equal(measured.scale, other.scale)
    low, high = np.quantile(other.scale[:, 0], [0.05, 0.95], method="weibull")
    assert f"{low:.2g} to {high:.2g}" in measured.table()


def test_a_wide_layer_has_no_weights():
    def wide(width):
        hidden = nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        return nn.Sequential(nn.Linear(6, width), nn.Tanh(), *hidden, nn.Linear(width, 3))

    measured = measure(wide(20), torch.randn(5, 6), factory=wide, widths=[100_000])
    (other,) = measured.by_width.values()
    assert other.layouts[-1] == "5 samples × 100000 features"
    np.testing.assert_allclose(other.scale, measured.scale, rtol=0.5)


def other_depth(width):
    return resnet(width, blocks=width // 2)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, ArgumentTypeError, "model: got None"),
        ({"widths": [3]}, ArgumentTypeError, "factory: got None"),
        ({"factory": CHANNELS}, ArgumentTypeError, "widths: got None"),
        ({"factory": CHANNELS(3), "widths": [3]}, ArgumentTypeError, "a function of the width"),
        ({"factory": CHANNELS, "widths": []}, ArgumentError, "integers of at least 1"),
        ({"factory": CHANNELS, "widths": [3, 0]}, ArgumentError, "widths: got 0"),
        ({"factory": other_depth, "widths": [4, 6]}, ArgumentError, "the same names"),
    ],
)
def test_what_is_not_allowed(options, error, said):
    with pytest.raises(error, match=said):
        MEASURED(**options)
