"""``bnmc inspect``: its table, its document, its picture, and what it refuses."""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from torch_models import one_thread, torch  # noqa: F401

import bnmc
from bnmc._support.text import dumps
from bnmc.cli.commands import inspect as command
from bnmc.torch import measuring, prediction, trying

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

def wide(width):
    hidden = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, width), *hidden, nn.Linear(width, 3))

def without_bias():
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))

class Talking(nn.Linear):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def talking():
    print("factory")
    return nn.Sequential(Talking(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

def leaving():
    raise SystemExit(0)

class Leaving(nn.Linear):
    def forward(self, x):
        raise SystemExit(0)

def leaving_later():
    return nn.Sequential(Leaving(6, 8), nn.ReLU(), nn.Linear(8, 3))

def failing():
    raise RuntimeError("not today")

def other():
    return 3
"""

pytestmark = pytest.mark.usefixtures("one_thread", "folder")
FACTORY = "inspect own_models:factory --input x.npy --seed 5"
ZERO = "inspect own_models:without_bias --input x.npy --layers 0"
MODEL = "inspect own_models:model --input x.npy"
X, Y = np.random.default_rng(0).standard_normal((12, 6)), np.arange(12) % 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with models and samples; predictions simulate few networks."""
    monkeypatch.setattr(prediction, "_MOST", 40)
    (tmp_path / "own_models.py").write_text(MODULE)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    yield tmp_path
    sys.modules.pop("own_models", None)


def measured(**options):
    """Return the measurement of the factory with the seed of the command."""
    torch.manual_seed(5)
    return bnmc.torch.measure(sys.modules["own_models"].factory, X, labels=Y, **options)


def test_table_and_picture(printed, refusal, folder):
    out = printed(f"{FACTORY} --labels y.npy --plot layers.svg")
    assert (folder / "layers.svg").exists()
    head = "input: 12 samples × 6 features"
    assert out == f"{head}\n{measured()}\nseed 5\npicture: layers.svg\n"
    refusal(f"{FACTORY} --plot layers.svg")


def test_a_verdict_without_labels_names_the_option(printed, document_of):
    verdict = document_of(FACTORY)["verdict"]
    assert verdict.endswith(". Add --labels FILE for an outlook.")
    out = printed(FACTORY)
    assert verdict in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100


def test_document(document_of):
    document = document_of(f"{FACTORY} --labels y.npy --loss cross-entropy --networks 2")
    expected = json.loads(dumps(measured(networks=2).to_dict()))
    head = {"bnmc": bnmc.__version__, "command": "inspect", "seed": 5, "input": [12, 6]}
    assert document == {**head, **expected}
    assert [row["layer"] for row in document["rows"]] == ["0", "3", "6"]
    assert document["rows"][0]["scale_stderr"] > 0.0
    other = document_of(f"{MODEL} --eval --layers 1,2")
    assert [row["layer"] for row in other["rows"]] == ["1", "2"]
    assert other["gradient_norm"] is None
    assert any("evaluation mode" in reason for reason in other["prediction"]["reasons"])


def test_files_of_pytorch(document_of, refusal, folder):
    document_of(f"{FACTORY} --labels y.npy")  # imports the models
    torch.manual_seed(9)
    model = sys.modules["own_models"].factory()
    torch.save(model.state_dict(), folder / "w.pt")
    torch.save(torch.from_numpy(X), folder / "x.pt")
    torch.save(model, folder / "code.pt")
    document = document_of("inspect own_models:factory --input x.pt --labels y.npy --weights w.pt")
    expected = bnmc.torch.measure(model, X, labels=Y).to_dict()
    assert document["rows"] == json.loads(dumps(expected))["rows"]
    line = "inspect own_models:factory --input"
    assert "a .pt file of tensors alone" in refusal(f"{line} x.npy --weights code.pt")
    assert "the state_dict of the model" in refusal(f"{line} x.npy --weights x.pt")
    assert "a file with one tensor" in refusal(f"{line} w.pt")
    assert "gone.pt" in refusal(f"{line} gone.pt")


def cosines_of(rows):
    """Return smallest, mean and largest cosine of two rows, pair by pair."""
    units = [row / math.sqrt(math.fsum(row * row)) for row in rows.reshape(len(rows), -1)]
    pairs = [math.fsum(a * b) for a, b in itertools.combinations(units, 2)]
    return [min(pairs), math.fsum(pairs) / len(pairs), max(pairs)]


def test_cosines_of_pairs_of_samples(document_of, printed):
    """Against the states and the gradients of PyTorch, one sample at a time."""
    document = document_of(f"{FACTORY} --labels y.npy --cosines")
    torch.manual_seed(5)
    model = sys.modules["own_models"].factory().double()
    x, losses = torch.from_numpy(X), []
    with torch.no_grad():
        for row, end in zip(document["cosines"], (3, 6, 9), strict=True):
            expected = cosines_of(model[:end](x).numpy())
            assert [row[name] for name in ("smallest", "mean", "largest")] == pytest.approx(
                expected, abs=1e-5
            )
    losses = torch.nn.functional.cross_entropy(model(x), torch.from_numpy(Y), reduction="none")
    for row, (name, weight) in zip(
        document["gradient_cosines"], model.named_parameters(), strict=True
    ):
        assert row["parameter"] == name
        if name.endswith(".weight"):  # a bias before a norm has gradients of rounding errors
            by_sample = [torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses]
            expected = cosines_of(torch.stack(by_sample).numpy())
            assert [row["smallest"], row["mean"], row["largest"]] == pytest.approx(
                expected, abs=1e-4
            )
    out = printed(f"{FACTORY} --labels y.npy --cosines")
    assert out.index("Cosines of two samples:") < out.index("Cosines of the gradients")
    for row in [*document["cosines"], *document["gradient_cosines"]]:
        assert [f"{row['smallest']:.4g}", f"{row['mean']:.4g}", f"{row['largest']:.4g}"] in [
            line.split()[1:] for line in out.splitlines()
        ]
    assert out.startswith(f"input: 12 samples × 6 features\n{measured()}\n")
    assert out.endswith("\nseed 5\n")


def test_tables_of_cosines_have_at_most_24_rows():
    numbers = {"smallest": -0.5, "mean": 0.25, "largest": None}
    names = [f"{number}.weight" for number in range(54)]
    pairs = {"gradient_cosines": [{"parameter": name, **numbers} for name in names]}
    _, table, more = command._tables_of(pairs)
    assert more == "24 of 54 parameters are shown"
    head, *rows = map(str.split, str(table).splitlines())
    assert (head, len(rows)) == (["parameter", *numbers], 24)
    shown = [row[0] for row in rows]
    assert shown == [name for name in names if name in shown]  # in order
    assert (rows[0], shown[-1]) == ([names[0], "-0.5", "0.25", "-"], names[-1])
    pairs = {"cosines": [{"layer": name, **numbers} for name in names[:24]]}
    assert len(list(command._tables_of(pairs))) == 2


def test_cosines_of_samples_that_are_zero(printed, document_of, folder):
    np.save(folder / "x.npy", np.zeros((2, 6)))
    document = document_of(f"{ZERO} --cosines")
    (row,) = document["cosines"]
    assert row == {"layer": "0", "smallest": None, "mean": None, "largest": None}
    assert "gradient_cosines" not in document
    assert ["0", "-", "-", "-"] in [
        line.split() for line in printed(f"{ZERO} --cosines").split("\n")
    ]


def test_twenty_steps_are_tried(document_of):
    document = document_of(f"{FACTORY} --labels y.npy --tries")
    expected = json.loads(dumps(measured(tries=True).to_dict()))
    assert document["outlook"] == expected["outlook"]
    assert any("20 steps of Adam" in text for text in document["outlook"]["beside"])


def test_a_long_measurement_is_announced(run, monkeypatch):
    line, asked = f"{FACTORY} --labels y.npy", []

    def seconds_of_a_pass(model, batch, goal):
        asked.append((type(model).__name__, batch.samples, goal.name))
        return 0.2

    monkeypatch.setattr(trying, "seconds_of_a_pass", seconds_of_a_pass)
    monkeypatch.setattr(measuring, "steps_tried", lambda *about: (0.5, about[3]))  # seconds
    status, out, err = run(f"{line} --tries --json")
    assert (status, json.loads(out)["networks"]) == (0, 1)
    # 148 passes take 29.6 s, and the random networks 10 s.
    assert err == (
        "bnmc: inspect takes about 40 s: 148 passes through the model, each 0.2 s (147 of them "
        "with steps of Adam), and up to 200 random networks of its layers\n"
    )
    assert asked == [("Sequential", 12, "cross-entropy")]
    # Several networks are not tried.
    assert "takes about 11 s: 3 passes through" in run(f"{line} --networks 3 --tries")[2]
    assert run(f"{line} --tries --no-progress")[2] == ""
    assert len(asked) == 2


def test_an_announcement_changes_no_bit(document_of):
    line = f"{MODEL} --labels y.npy --seed 5"
    assert document_of(line) == document_of(f"{line} --no-progress")


def test_widths_beyond_memory(document_of, printed):
    """A layer of the largest width has 40 GB of weights."""
    widths = "inspect own_models:wide --input x.npy --labels y.npy --seed 5 --widths"
    document = document_of(f"{widths} 8,100000")
    narrow, wide = document["rows"]
    assert (document["input"], narrow["width"], wide["width"]) == ([12, 6], 8, 100_000)
    assert [row["layout"] for row in wide["rows"]] == ["12 samples × 100000 features"] * 3

    def factory():
        with torch.device("meta"):
            model = sys.modules["own_models"].wide(8)
        return bnmc.torch.implicit_(model)

    torch.manual_seed(5)
    expected = bnmc.torch.measure(factory, X, labels=Y).to_dict()
    assert narrow == {"width": 8, **json.loads(dumps(expected))}
    lines = printed(f"{widths} 8 --layers 1").splitlines()
    last = expected["rows"][1]
    shown = [last[name] for name in ("soft_rank", "orthogonality_gap", "mean_correlation")]
    assert lines[1].split() == ["width", "soft", "rank", "gap", "correlation", "scale", "‖∂L/∂W‖"]
    assert lines[2].split()[:4] == ["8", *(f"{number:.5g}" for number in shown)]
    assert lines[4] == "width 8:"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("inspect own_models --input x.npy", "MODULE:NAME"),
        ("inspect own_models:gone --input x.npy", "AttributeError"),
        ("inspect no_such_module:model --input x.npy", "ModuleNotFoundError"),
        ("inspect own_models:failing --input x.npy", "not today"),
        ("inspect own_models:other --input x.npy", "it is a int"),
        ("inspect own_models:leaving --input x.npy", "SystemExit: 0"),
        ("inspect own_models:leaving_later --input x.npy", "SystemExit: 0"),
        ("inspect own_models:number --input x.npy", "TypeError"),
        (f"{FACTORY} --input x.txt", "input (by its suffix)"),
        (f"{FACTORY} --input gone.npy", "gone.npy"),
        (f"{FACTORY} --labels x.csv", "labels (by its suffix)"),
        (f"{FACTORY} --loss squared", "labels: got None"),
        (f"{FACTORY} --layers 99,1", "layers: got '99'"),
        (f"{MODEL} --widths 8,16", "a function of the width"),
        (f"{FACTORY} --widths 8 16", "(16): several values of an option"),
        ("inspect --widths 8 16 own_models:wide --input x.npy", "several values of an option"),
        (f"{FACTORY} --layers 0 --layers=3", "layers: got '0 3', allowed: one list"),
        (f"{FACTORY} --widths 8", "TypeError"),
        ("inspect own_models:wide --input x.npy --widths 8,a", "integers, separated by commas"),
        ("inspect own_models:wide --input x.npy --widths 8,0", "widths: got 0"),
    ],
)
def test_what_is_not_allowed(refusal, line, said):
    assert said in refusal(line)


def test_prints_of_a_model_go_to_standard_error(run):
    status, out, err = run("inspect own_models:talking --input x.npy --seed 5 --json")
    assert (status, json.loads(out)["seed"]) == (0, 5)
    assert {*err.split()} == {"factory", "forward"}
    status, out, err = run("inspect own_models:talking --input x.npy --seed 5")
    assert (status, {*err.split()}) == (0, {"factory", "forward"})
    assert "forward" not in out.splitlines()


def test_the_verdict_is_printed_before_random_networks_run(monkeypatch, run, capsys):
    def interrupted(*_):
        assert next(measured(layers=["0"]).parts()) in capsys.readouterr().out
        raise KeyboardInterrupt

    monkeypatch.setattr(prediction.Prediction, "table", interrupted)
    status, out, err = run(f"{FACTORY} --labels y.npy --layers 0")
    assert (status, out, err) == (130, "", "bnmc: interrupted\n")


def test_a_terminal_says_at_once_what_is_loaded(monkeypatch, run):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    line = "bnmc: inspect: loading PyTorch and the module own_models\n"
    assert run(FACTORY)[2] == line
    assert run(f"{FACTORY} --no-progress")[2] == ""


def test_a_missing_file_is_named_before_pytorch_is_imported(tmp_path):
    code = "import sys; from bnmc import cli; print(cli.main(), 'torch' in sys.modules)"
    words = ["inspect", "own_models:factory", "--input", "x.npy", "--labels", "gone.npy"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "2 False\n"
    assert done.stderr == "bnmc: error: gone.npy: No such file or directory\n"


def test_a_model_that_the_import_draws_has_the_seed(document_of):
    def scales(numbers):
        sys.modules.pop("own_models", None)
        torch.manual_seed(99)  # what ran before in the process
        torch.rand(numbers)
        return [row["scale"] for row in document_of(f"{MODEL} --seed 5")["rows"]]

    assert scales(3) == scales(4)
