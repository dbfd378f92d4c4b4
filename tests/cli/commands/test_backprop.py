"""``bnmc backprop``: its table, its document, its picture, and Ctrl-C."""

import json
from contextlib import nullcontext

import pytest
from slow_cases import some

import bnmc
from bnmc._support import progress
from bnmc._support.text import dumps
from bnmc.cli import statuses
from bnmc.gradients import parts

SMALL = (
    "backprop",
    "--width",
    "40",
    "--batch",
    "4",
    "--depth",
    "8",
    "--chains",
    "6",
    "--seed",
    "3",
)


def as_json(result):
    return json.loads(dumps(result.to_dict()))


def test_backprop(run, document_of, tmp_path):
    expected = bnmc.backpropagate(bnmc.Chain(40, 4, "relu"), 8, chains=6, rng=3)
    found = document_of(*SMALL)
    assert found == {"seed": 3, **as_json(expected)}
    status, out, err = run(*SMALL, "--plot", "norms.svg")
    assert (status, err) == (0, "")
    assert out == f"{expected}\nseed 3\npicture: norms.svg\n"
    assert (tmp_path / "norms.svg").exists()


@pytest.mark.parametrize("loss", some(["cross-entropy", "squared"], "squared"))
def test_losses_of_a_readout(document_of, loss):
    labels = {"labels": [0, 1, 2, 0], "classes": 3}
    expected = bnmc.backpropagate(
        bnmc.Chain(40, 4, "tanh", gain=0.5),
        8,
        chains=6,
        rng=3,
        loss=loss,
        dtype="float32",
        **labels,
    )
    options = "--activation", "tanh", "--gain", "0.5", "--dtype", "float32"
    found = document_of(*SMALL, *options, "--loss", loss, "--classes", "3")
    assert found == {"seed": 3, **as_json(expected)}
    # Ten classes unless another number is given.
    other = document_of(*SMALL, "--loss", loss)
    assert other["table"] == document_of(*SMALL, "--loss", loss, "--classes", "10")["table"]


def test_other_laws_of_weights(document_of):
    chain = bnmc.Chain(40, 4, "relu", weights="rademacher")
    expected = bnmc.backpropagate(chain, 8, chains=6, rng=3)
    assert expected.sampler == "weights"
    found = document_of(*SMALL, "--weights", "rademacher", "--sampler", "weights")
    assert found == {"seed": 3, **as_json(expected)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--loss", "hinge"), "loss: got 'hinge'"),
        (("--loss", "squared", "--classes", "1"), "classes: got 1"),
        (("--classes", "3"), "classes: got 3"),
        (("--weights", "uniform", "--sampler", "conditional"), "sampler"),
        (("--depth", "0"), "depth: got 0"),
    ],
)
def test_bad_input(run, options, said):
    status, out, err = run(*SMALL, *options)
    assert (status, out) == (statuses.BAD_INPUT, "")
    assert said in err


def test_ctrl_c_shows_the_finished_networks(run, monkeypatch):
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)

    monkeypatch.setattr(progress, "_lines", lambda label, unit: nullcontext(_stop_after_three))
    status, out, err = run(*SMALL, "--json", "--threads", "1", "--progress")
    assert status == statuses.INTERRUPTED
    assert "interrupted" in err
    assert 1 <= json.loads(out)["chains"] <= 6


def test_a_store_continues_an_interrupted_command(run, document_of, monkeypatch, tmp_path):
    expected = document_of(*SMALL)
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)
    with monkeypatch.context() as patched:
        patched.setattr(progress, "_lines", lambda label, unit: nullcontext(_stop_after_three))
        status, _, _ = run(*SMALL, "--store", "kept", "--threads", "1", "--progress")
    assert status == statuses.INTERRUPTED
    assert len(list((tmp_path / "kept").glob("part-*.npz"))) >= 3
    assert document_of(*SMALL, "--store", "kept") == expected
    # Without a seed, the random numbers are those of the store.
    without = SMALL[:-2]
    found = document_of(*without, "--store", "kept")
    assert (found.pop("seed"), found["table"]) == (None, expected["table"])
    status, out, _ = run(*without, "--store", "kept")
    assert (status, out.splitlines()[-1]) == (0, f"key {expected['key']} of the store")
    status, _, err = run(*SMALL, "--store", "kept", "--dtype", "float32")
    assert status == statuses.BAD_INPUT
    assert "dtype = float32" in err


def _stop_after_three(done, total):
    if done >= 3:
        raise KeyboardInterrupt
