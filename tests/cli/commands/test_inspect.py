"""``bnmc inspect``: its table, its document, its picture, and what it refuses."""

import json
import sys

import numpy as np
import pytest
from torch_models import one_thread, torch  # noqa: F401

import bnmc
from bnmc._support.text import dumps
from bnmc.cli import statuses

MODULE = """
from torch import nn

def factory():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3),
    )

model = factory()
number = 3

def failing():
    raise RuntimeError("not today")

def other():
    return 3
"""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own_models.py").write_text(MODULE)
    generator = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", generator.standard_normal((12, 6)))
    np.save(tmp_path / "y.npy", np.arange(12) % 3)
    yield tmp_path
    sys.modules.pop("own_models", None)


COMMAND = ("inspect", "own_models:factory", "--input", "x.npy", "--seed", "5")


def test_table_and_picture(run, folder):
    status, out, err = run(*COMMAND, "--labels", "y.npy", "--plot", "layers.svg")
    assert (status, err) == (0, "")
    assert out.startswith(
        "input: 12 samples × 6 features\nSequential, 1 network; rows are samples\n"
    )
    assert (folder / "layers.svg").exists()
    assert out.endswith("\nseed 5\npicture: layers.svg\n")
    model = sys.modules["own_models"].factory
    torch.manual_seed(5)
    labels = np.load(folder / "y.npy")
    expected = bnmc.torch.measure(model, np.load(folder / "x.npy"), labels=labels)
    assert str(expected) in out
    assert expected.verdict in out
    assert run(*COMMAND, "--plot", "layers.svg")[0] == statuses.BAD_INPUT


def test_document(document_of, folder):
    found = document_of(*COMMAND, "--labels", "y.npy", "--loss", "cross-entropy", "--networks", "2")
    model = sys.modules["own_models"].factory
    torch.manual_seed(5)
    expected = bnmc.torch.measure(
        model, np.load(folder / "x.npy"), labels=np.load(folder / "y.npy"), networks=2
    )
    assert found == {"seed": 5, "input": [12, 6], **json.loads(dumps(expected.to_dict()))}
    assert [row["layer"] for row in found["table"]] == ["0", "3", "6"]
    assert found["table"][0]["scale_stderr"] > 0.0
    given = document_of(
        "inspect", "own_models:model", "--input", "x.npy", "--eval", "--layers", "1,2"
    )
    assert [row["layer"] for row in given["table"]] == ["1", "2"]
    assert given["gradient_norm"] is None
    assert any("evaluation mode" in one for one in given["prediction"]["reasons"])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("own_models", "MODULE:NAME"),
        ("own_models:gone", "AttributeError"),
        ("no_such_module:model", "ModuleNotFoundError"),
        ("own_models:failing", "not today"),
        ("own_models:other", "it is a int"),
        ("own_models:number", "TypeError"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_models(run, model, said):
    status, out, err = run("inspect", model, "--input", "x.npy")
    assert (status, out) == (statuses.BAD_INPUT, "")
    assert said in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--input", "x.txt"), "input (by its suffix)"),
        (("--input", "gone.npy"), "gone.npy"),
        (("--labels", "x.csv"), "labels (by its suffix)"),
        (("--loss", "squared"), "labels: got None"),
        (("--layers", "99,1"), "layers: got '99'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_options(run, options, said):
    status, out, err = run(*COMMAND, *options)
    assert (status, out) == (statuses.BAD_INPUT, "")
    assert said in err


def test_a_model_that_the_import_draws_has_the_seed(document_of, folder):
    def first_norms():
        sys.modules.pop("own_models", None)
        torch.manual_seed(99)  # what ran before in the process
        torch.rand(int(next(numbers)))
        found = document_of("inspect", "own_models:model", "--input", "x.npy", "--seed", "5")
        return [row["scale"] for row in found["table"]]

    numbers = iter([3, 4])
    assert first_norms() == first_norms()
