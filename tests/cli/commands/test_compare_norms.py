"""``bnmc compare-norms``: what it prints, writes and refuses."""

import pytest

import bnmc
from bnmc.experiments.beyond import norms

SMALL = ("compare-norms", "--width", "40", "--batch", "4", "--depth", "4", "--chains", "3")


def test_it_is_the_experiment_with_these_sizes(run, document_of, tmp_path):
    options = (*SMALL, "--activation", "tanh", "--norm", "layer", "--norm", "none", "--seed", "2")
    found = document_of(*options)
    sizes = {"activation": "tanh", "width": 40, "batch": 4, "depth": 4, "networks": 3}
    expected = norms(norms=("layer", "none"), rng=2, **sizes).to_dict()
    assert found["table"] == expected["table"]
    assert found["seed"] == 2
    status, out, _ = run(*options, "--plot", "norms.png")
    assert status == 0
    assert out.startswith("Norms compared: tanh, width 40, batch 4\n")
    assert expected["findings"][-1] in out
    assert out.endswith("seed 2\npicture: norms.png\n")
    assert (tmp_path / "norms.png").stat().st_size > 1000


def test_five_norms_are_the_default(document_of):
    found = document_of(*SMALL, "--seed", "1")
    assert [row["norm"] for row in found["table"]] == ["batch", "layer", "rms", "group(8)", "none"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--depth", "3"), "depth"),
        (("--chains", "1"), "chains"),
        (("--batch", "2"), "batch"),
        (("--norm", "instance"), "norm"),
        (("--norm", "group(7)"), "norm"),
        (("--activation", "rellu"), "relu"),
    ],
)
def test_bad_options(run, options, word):
    status, _, err = run(*SMALL, *options)
    assert status == 2
    assert word in err
    assert bnmc.__name__ in err
