"""The certificate of mixing: it bounds the distance, and its intervals cover."""

import json
import math

import numpy as np
import pytest

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, NotMixing
from bnmc.mixing import meeting_bound
from bnmc.mixing.meeting_bound import tv_bound

RELU = bnmc.Chain(20, 3, "relu")


def two_numbers(gram):
    """What a linear chain of n = 2 uncentred samples sees of G, of trace 2, in [-1, 1]²."""
    return np.stack([gram[:, 0, 0] - gram[:, 1, 1], gram[:, 0, 1] + gram[:, 1, 0]], axis=1) / 2.0


def shape_of_plane(gram):
    """What a chain of n = 3 centred samples sees of G: PGP without its scale, in [-1, 1]²."""
    basis = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    basis /= np.linalg.norm(basis, axis=1)[:, None]
    plane = basis @ gram @ basis.T
    numbers = [plane[:, 0, 0] - plane[:, 1, 1], 2.0 * plane[:, 0, 1]]
    return np.stack(numbers, axis=1) / np.trace(plane, axis1=1, axis2=2)[:, None]


@pytest.mark.parametrize(
    ("chain", "initial", "numbers"),
    [
        (bnmc.Chain(20, 2, "linear", norm="batch-uncentred"), "near", two_numbers),
        (bnmc.Chain(20, 3, "relu"), "line", shape_of_plane),
    ],
    ids=["uncentred", "centred"],
)
def test_the_bound_is_above_the_distance_and_within_a_factor_of_ten(chain, initial, numbers):
    # The law of these two numbers of G_l is no farther from its limit than that of x_l, and on bins
    # that of the numbers no farther yet. Of N draws each on K bins the estimate is, in expectation,
    # too large by at most sqrt(K/N), and above that by t with probability exp(-N t²) (McDiarmid).
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 1)) * np.ones(chain.batch)
    x = x + (0.1 if initial == "near" else 1.0) * np.linspace(-1.0, 1.0, chain.batch)
    x += 0.02 * rng.standard_normal(x.shape)
    count, side, depth = 100_000, 6, 10
    above = math.sqrt(math.log(4 * depth / 1e-6) / count)

    def histogram(gram):
        found, *_ = np.histogram2d(*numbers(gram).T, bins=side, range=[[-1, 1], [-1, 1]])
        return found / count

    limit = histogram(bnmc.simulate(chain, 30, chains=count, rng=1, burn_in=30).gram[:, 0])
    run = bnmc.simulate(chain, depth, chains=count, initial=x, rng=2)
    distance = np.array(
        [0.5 * np.abs(histogram(run.gram[:, at]) - limit).sum() for at in range(depth + 1)]
    )
    least = distance - above - side / math.sqrt(count)
    cert = tv_bound(
        chain, depth, lag=30, replicates=2000, initial=x, rng=3, level=1.0 - 1e-6 / (4 * depth)
    )
    assert (cert.ci[:, 1] >= least).all()
    seen = least >= 0.02
    assert seen.sum() >= 3
    assert (cert.bound[seen] <= 10.0 * (distance[seen] + above)).all()


def test_layers_to_a_tolerance():
    cert = tv_bound(RELU, 60, replicates=500, rng=0)
    layer = cert.layers_to(0.05)
    assert cert.ci[layer, 1] <= 0.05 < cert.ci[layer - 1, 1]
    assert cert.layers_to(1e-9) is None
    with pytest.raises(ArgumentError, match="tolerance"):
        cert.layers_to(0.0)


def test_the_certificate_is_a_table_a_dictionary_and_a_picture():
    cert = tv_bound(RELU, 20, lag=3, replicates=200, rng=1)
    lines = str(cert).splitlines()
    assert lines[0].endswith("200 pairs, lag 3")
    assert [int(line.split()[0]) for line in lines[3:-1]] == [0, 1, 2, 4, 8, 16, 20]
    assert float(lines[3].split()[1]) == pytest.approx(cert.bound[0], rel=1e-3)
    assert lines[-1].startswith("rate 0.")
    content = json.loads(json.dumps(cert.to_dict()))
    assert content["bound"] == cert.bound.tolist()
    assert content["rate"]["ci"] == list(cert.rate_estimate.ci)
    ax = cert.plot()
    line, one = ax.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), cert.bound[cert.bound > 0])
    assert set(one.get_ydata()) == {1.0}
    assert ax.get_title().endswith("200 pairs")
    assert (ax.get_yscale(), ax.get_xlabel()) == ("log", r"layer $\ell$")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "mean, in steps of the lag of 3 layers", "95 % intervals",
    ]  # fmt: skip
    assert cert.plot(ax=ax) is ax


def test_what_has_been_met_comes_with_the_error():
    with pytest.raises(NotMixing) as raised:
        tv_bound(RELU, 10, lag=4, replicates=400, max_layers=4, rng=0)
    partial = raised.value.partial
    assert isinstance(partial, meeting_bound.TVBound)
    assert 0 < partial.unmet < 400
    assert f"Too small: {partial.unmet} pairs had not met." in str(partial)
    assert (partial.meeting_times == 8).sum() >= partial.unmet
    assert f"{partial.unmet} of 400" in str(raised.value)
    # The contraction of relu at n = 3 is about 0.4 a layer.
    assert raised.value.exponent < -0.3


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"chain": bnmc.Chain(20, 3, "linear", norm="none")}, ArgumentError, "norm"),
        ({"chain": bnmc.Chain(20, 3, "relu", skip=1.0)}, ArgumentError, "autocorrelation"),
        ({"chain": bnmc.Chain(20, 3, "relu", weights="uniform")}, ArgumentError, "weights"),
        ({"chain": "relu"}, ArgumentTypeError, "chain"),
        ({"depth": -1}, ArgumentError, "depth"),
        ({"depth": 2**31}, ArgumentError, "depth"),
        ({"depth": 1.5}, ArgumentTypeError, "depth"),
        ({"replicates": 1}, ArgumentError, "replicates"),
        ({"lag": 0}, ArgumentError, "lag"),
        ({"level": 1.0}, ArgumentError, "level"),
        ({"max_layers": 0}, ArgumentError, "max_layers"),
        ({"initial": "nowhere"}, ArgumentError, "initial"),
        ({"executor": 3}, ArgumentTypeError, "executor"),
        ({"progress": 3}, ArgumentTypeError, "progress"),
    ],
)
def test_bad_input(options, error, said):
    with pytest.raises(error, match=said):
        tv_bound(**({"chain": RELU, "depth": 3, "rng": 0} | options))
