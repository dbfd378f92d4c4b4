"""The coordinate check of a factory: closed forms of one matrix, parametrizations, errors."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnmc import errors

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bnmc.torch import coordinate_check  # noqa: E402

X, ZEROS = torch.eye(4), torch.zeros(4, 3)


def one_matrix(width):
    return nn.Sequential(nn.Linear(4, 3, bias=False))


def two_layers(width):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


def test_steps_of_one_matrix():
    """On orthonormal inputs and targets 0 each step of rate η multiplies f by 1 − η/4."""
    check = coordinate_check(
        one_matrix, [1, 2], X, ZEROS, learning_rate=0.5, steps=3, networks=2, rng=0
    )
    left = (1 - 0.5 / 4) ** np.arange(4)
    expected = np.broadcast_to(left[:, None], (2, 2, 4, 1))
    assert_allclose(check.sizes / check.sizes[:, :, :1], expected, rtol=1e-5)
    assert_allclose(check.movements / check.sizes[:, :, :1], 1 - expected, atol=1e-5)


def test_rates_of_parameters():
    """A rate of 0 holds the first layer, and the bias of the readout has a rate of its own."""
    asked = []

    def rate(name, width):
        asked.append((name, width))
        return 0.0 if name.startswith("0.") else 0.1

    check = coordinate_check(two_layers, [4, 8], X, ZEROS, learning_rate=rate, networks=1, rng=0)
    assert asked == [(f"{k}.{part}", width) for width in (4, 8) for k in (0, 2)
                     for part in ("weight", "bias")]  # fmt: skip
    assert (check.movements[:, :, 1, 0] == 0.0).all()
    assert (check.movements[:, :, 1, 1] > 0.0).all()


class Readout(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (64 / self.in_features) ** 0.5


def deep(width):
    with torch.device("meta"):
        first, middle = nn.Linear(4, width, bias=False), nn.Linear(width, width, bias=False)
        last = Readout(width, 3, bias=False)
        return nn.Sequential(first, nn.Tanh(), middle, nn.Tanh(), last)


def test_slopes_of_mup_and_of_one_rate():
    """Within 6 standard errors, and .1 for the narrow widths; the widest has 400 MB of weights."""

    def mup(name, width):
        return 0.2 * width / 64 if name == "0.weight" else 0.2

    for rate, expected in ((mup, (0.0, 0.0, 0.0)), (0.2, (-1.0, 0.0, 0.0))):
        check = coordinate_check(
            deep, [256, 10_000], X, torch.ones(4, 3), learning_rate=rate, networks=3, rng=1
        )
        for slope, value in zip(check.slopes.values(), expected, strict=True):
            assert abs(slope.value - value) < 6 * slope.stderr + 0.1
    assert "furthest from 0 is that of 0: -0.9" in str(check) or "of 0: -1.0" in str(check)


def test_a_key_repeats_it_and_nothing_else_moves():
    state = torch.get_rng_state()
    check = coordinate_check(two_layers, [4, 8], X, ZEROS, rng=5)
    assert_array_equal(torch.get_rng_state(), state)
    again = coordinate_check(two_layers, [4, 8], X, ZEROS, rng=check.key)
    assert_array_equal(check.movements, again.movements)
    assert len({*check.sizes[0, :, 0, 0].tolist()}) == 4
    assert json.loads(json.dumps(check.to_dict()))["layers"] == ["0", "2"]


def test_divergence_is_counted():
    check = coordinate_check(
        one_matrix, [1, 2], X, ZEROS, learning_rate=1e30, steps=3, networks=2, rng=0
    )
    assert np.isnan(check.movements[:, :, -1]).all()
    assert check.slopes == {}
    assert "diverged: 4 of 4 networks" in str(check)


def test_picture():
    pytest.importorskip("matplotlib")
    check = coordinate_check(two_layers, [4, 8], X, ZEROS, networks=2, rng=0)
    ax = check.plot()
    assert [line.get_label() for line in ax.lines] == ["0", "2"]
    assert_allclose(ax.lines[1].get_ydata(), check.movements[:, :, -1, 1].mean(axis=1))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"factory": 3}, errors.ArgumentTypeError, "^factory: "),
        ({"factory": lambda width: width}, errors.ArgumentTypeError, "^factory: "),
        ({"widths": [4]}, errors.ArgumentError, "^widths: .*two or more increasing"),
        ({"widths": [8, 4]}, errors.ArgumentError, "^widths: .*two or more increasing"),
        ({"labels": None}, errors.ArgumentError, "^labels: "),
        ({"steps": 0}, errors.ArgumentError, "^steps: "),
        ({"networks": 0}, errors.ArgumentError, "^networks: "),
        ({"learning_rate": -1.0}, errors.ArgumentError, "^learning_rate: "),
        ({"learning_rate": lambda name, width: -1.0}, errors.ArgumentError, "^learning_rate: "),
        ({"layers": ["7"]}, errors.UnknownNameError, "7"),
        (
            {"factory": lambda width: nn.Sequential(*[nn.Linear(4, 4) for _ in range(width)])},
            errors.ArgumentError, "^factory: .*at each width",
        ),
    ],
)  # fmt: skip
def test_refusals(changed, error, message):
    given = {"factory": two_layers, "widths": [4, 5], "batch": X, "labels": torch.zeros(4, 3)}
    if "factory" in changed and message.endswith("width"):
        given["labels"] = torch.zeros(4, 4)
    with pytest.raises(error, match=message):
        coordinate_check(**{**given, **changed})
