"""All commands: their help, their documents and pictures, and what they refuse."""

import json
import os
import re
from pathlib import Path

import pytest
from slow_cases import some

import bnmc
from bnmc import mean_field, mixing
from bnmc._support.text import dumps
from bnmc.cli import application
from bnmc.experiments.beyond import norms

CHAIN = "--width 40 --batch 4"
BACKPROP = f"backprop {CHAIN} --depth 8 --chains 6 --seed 3"
READOUT = f"{BACKPROP} --activation linear --gain 0.5 --dtype float32 --classes 3 --loss"
CERTIFY = f"certify {CHAIN} --depth 8 --seed 3 --chains"
NORMS = f"compare-norms {CHAIN} --depth 4 --chains 3"
DOCS = Path(__file__).parents[2] / "docs"
SIMULATE = "simulate --width 50 --depth 6 --chains 8 --seed 0 --batch 4"


@pytest.mark.parametrize("name", [name.replace("_", "-") for name in application.COMMANDS])
def test_help_has_an_example(printed, name):
    out = printed(f"{name} --help")
    assert f"Example: bnmc {name}" in " ".join(out.split())
    assert "--json" in out


def test_no_summary_is_cut(printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    commands = printed("--help").partition("Commands:")[2]
    assert "..." not in commands
    assert "…" not in commands
    assert "  certify        Bound the distance of each layer from later layers.\n" in commands


def test_the_help_begins_with_the_first_steps():
    commands = application.application().registered_commands
    names = [command.name for command in commands]
    assert names[:4] == ["demo", "inspect", "fixed-point", "simulate"]
    panels = [command.rich_help_panel for command in commands]
    assert panels == [panel for panel in dict.fromkeys(panels) for _ in range(panels.count(panel))]
    rows = re.findall(r"^``bnmc ([\w-]+)``  ", (DOCS / "commands.rst").read_text(), re.MULTILINE)
    assert rows == names


def chain(activation="relu", **options):
    return bnmc.Chain(40, 4, activation, **options)


def gradients(chain, **options):
    return bnmc.backpropagate(chain, 8, chains=6, rng=3, **options)


def of_readout(loss):
    labels = {"labels": [0, 1, 2, 0], "classes": 3}
    return gradients(chain("linear", gain=0.5), loss=loss, dtype="float32", **labels)


def bound(chain, replicates, **options):
    return mixing.tv_bound(chain, 8, chains=replicates, rng=3, **options)


#: Results of the library by the command lines that have the same ones.
RESULTS = {
    BACKPROP: lambda: gradients(chain()),
    f"{BACKPROP} --weights rademacher --sampler weights": lambda: gradients(
        chain(weights="rademacher"), sampler="weights"
    ),
    f"{READOUT} squared": lambda: of_readout("squared"),
    f"{READOUT} cross-entropy": lambda: of_readout("cross-entropy"),
    f"{CERTIFY} 50": lambda: bound(chain(), 50),
    f"{CERTIFY} 50 --activation tanh --lag 4 --horizon 90 --tail-probability 0": lambda: bound(
        chain("tanh"), 50, lag=4, horizon=90, tail_probability=0.0
    ),
    f"{CERTIFY} 20 --norm layer --order activation-norm --bias-variance 0.1": lambda: bound(
        chain(norm="layer", order="activation-norm", bias_variance=0.1), 20
    ),
    f"rates {CHAIN} --seed 2": lambda: mixing.compare(chain(), rng=2),
    f"{NORMS} --activation tanh --norm layer,none --seed 2": lambda: norms(
        norms=("layer", "none"), activation="tanh", width=40, batch=4, depth=4, chains=3, rng=2
    ),
}


@pytest.mark.parametrize("line", some(RESULTS, *(x for x in RESULTS if "cross-entropy" not in x)))
def test_a_command_has_the_result_of_the_library(printed, document_of, line):
    result = RESULTS[line]()
    document = document_of(line)
    assert document == document | json.loads(dumps(result.to_dict()))
    seed = int(line.rpartition("--seed ")[2].split()[0])
    assert document["seed"] == seed
    out = printed(f"{line} --plot result.png")
    assert str(result) in out
    assert out.endswith(f"\nseed {seed}\npicture: result.png\n")
    assert Path("result.png").stat().st_size > 1000


def test_five_norms_are_the_default(document_of):
    table = document_of(f"{NORMS} --seed 1")["rows"]
    norms = dict.fromkeys(row["norm"] for row in table)
    assert list(norms) == ["batch", "layer", "rms", "group(8)", "none"]


def test_compared_norms_fit_a_terminal_and_appear_once(printed):
    out = printed(f"{NORMS} --seed 1")
    _, rows, findings = out.split("\n\n")[:3]
    assert max(map(len, rows.splitlines())) <= 80
    assert len(rows.splitlines()) == 1 + 5 * 4
    assert not re.search(r"\d\.\d", findings)


def test_threads_change_no_result(document_of):
    line = "certify --width 60 --batch 4 --depth 12 --chains 40 --seed 1"
    assert document_of(line) == document_of(f"{line} --threads 1")


def test_certify_has_the_layer_of_a_distance(printed, document_of):
    layer = bnmc.mixing.tv_bound(chain(), 20, chains=50, rng=3).layers_to(0.3)
    line = f"certify {CHAIN} --depth 20 --seed 3 --chains 50 --distance"
    assert f" at most 0.3 from layer {layer} on (95 %)" in printed(f"{line} 0.3").splitlines()[1]
    assert document_of(f"{line} 0.3")["distance"] == {"at_most": 0.3, "layer": layer}
    assert document_of(f"{line} 0.001")["distance"] == {"at_most": 0.001, "layer": None}


def test_width_for_a_distance(printed, document_of):
    law = bnmc.MeanField(chain("tanh")).fluctuations()
    line = "width --activation tanh --batch 4 --distance"
    document = document_of(f"{line} 0.05")
    assert document["width"] == law.width_for(0.05)
    assert document["least_width"] == law.least_width
    assert printed(f"{line} 0.05").strip().endswith(f"at width {law.width_for(0.05)}")
    assert f"hold from width {law.least_width} on" in printed(f"{line} 2")
    of_layer = bnmc.MeanField(chain("tanh", norm="layer")).fluctuations()
    assert document_of(f"{line} 0.05 --norm layer")["width"] == of_layer.width_for(0.05)


def test_phase(printed, document_of):
    line = "phase --activation tanh --weight-variance 1.5 --bias-variance 0.05"
    document = document_of(line)
    field = mean_field.CorrelationMap("tanh", weight_variance=1.5, bias_variance=0.05)
    star = field.phase()
    assert document["phase"] == "ordered"
    assert document["chain"]["weight_variance"] == 1.5
    assert document["backward_rate"] == star.backward_rate
    assert document["correlation_depth"] == star.correlation_depth
    edge = float(mean_field.edge_of_chaos("tanh", 0.05).weight_variance)
    assert document["edge_weight_variance"] == edge
    out = printed(line)
    assert "phase  ordered" in out
    assert f"{star.backward_rate:.6g}" in out


def test_phase_without_edge_and_with_skip_connection(printed, document_of):
    without = document_of("phase --activation relu --bias-variance 1")
    assert without["edge_weight_variance"] is None
    out = printed("phase --activation relu --weight-variance 2 --skip 1")
    assert "variance  infinite" in out
    assert "edge weight variance  none" in out


def test_stability_of_several_activations(document_of):
    rows = document_of("stability --activation 'silu, relu' --batches 8")["rows"]
    assert [row["activation"] for row in rows] == ["silu", "relu"]


def test_stability(printed, document_of):
    line = "stability --activation silu --batches 8,32"
    (silu,) = document_of(line)["rows"]
    assert (silu["batches"], silu["stable"]) == ([8, 32], [True, False])
    assert silu["crossings"] == [[26, False]]
    assert "unstable from batch 26 on" in printed(f"{line} --plot atlas.png")
    assert Path("atlas.png").stat().st_size > 1000


def test_regularity(printed, document_of):
    line = "regularity --width 8 --rtol 0.02 --seed 0"
    document = document_of(line)
    # The stationary value of square linear networks of width 8: .9119.
    assert document["value"] == pytest.approx(0.9119, abs=6.0 * document["stderr"])
    assert document["stderr"] < 0.02
    assert "regularity constant 0.9" in printed(line)


#: What a command says of each line that is not allowed.
REFUSED = {
    "stability --batches '8;9'": "batches: got '8;9'",
    "stability --batches 8 16": "several values of an option are one list, separated by commas",
    "stability --batches 8, 16 --activation relu": "(16): several values of an option",
    "stability --activation silu --activation relu": "(--activation silu,relu)",
    "stability --batches 8 --batches 8,16": "(--batches 8,8,16)",
    "figure gap --set widths=100 200": "(200): several values of an option",
    "figure gap --set widths=100 --set widths=200": "each size once, with all its values",
    "certify --distance 1": "distance: got 1.0",
    "inspect": "See bnmc inspect --help for examples.",
    "simulate --width 0": "width: got 0",
    "simulate --width 1000000 --depth 6 --chains 100000 --sampler weights": "the result needs",
    "simulate --width 64 32": "(32): several values of an option",
    "compare-norms --norm=batch --norm layer": "norm: got 'batch layer', allowed: one list",
    "fixed-point --activation rulu": "did you mean 'relu'",
    "fixed-point --batch 4 --width 0": "width",
    f"certify {CHAIN} --threads 0": "threads: got 0",
    "certify --distance 0": "distance: got 0",
    "certify --width 100000 --batch 100 --no-progress": "hours: got 1.0, allowed: at least ",
    "rates --batch 1": "batch",
    "simulate --norm layer --batch 0": "<= 1740 (there are 1740 digits)",
    "figure nosuch": "allowed: one of ",
    "figure bridging-1x": "did you mean 'bridging-1",
    "check --samples x.txt": "samples (by its suffix): got '.txt'",
    "check --samples missing.npy": "missing.npy",
    "regularity --gamma nan": "gamma",
    "width --distance 0": "distance",
    "phase --norm batch": "MeanField",
    "bench --seconds 0": "seconds: got 0",
    "bench --seconds 61": "seconds: got 61",
    "bench --threads 0": "threads: got 0",
    **{f"fixed-point --batch {value!r}": f"{value!r}" for value in ("x", "1.5", "")},
    **{f"{BACKPROP} {options}": said for options, said in {
        "--loss hinge": "loss: got 'hinge'",
        "--loss squared --classes 1": "classes: got 1",
        "--classes 3": "classes: got 3",
    }.items()},
    **{f"{NORMS} {options}": said for options, said in {
        "--depth 3": "depth",
        "--chains 1": "chains",
        "--batch 2": "batch",
        "--norm instance": "norm",
        "--norm 'group(7)'": "norm",
        "--activation rellu": "relu",
    }.items()},
    **{f"demo {options}": said for options, said in {
        "--depth 0": "depth: got 0, allowed: an integer >= 1",
        "--chains 0": "chains: got 0, allowed: an integer >= 2",
        "--threads 0": "threads: got 0, allowed: an integer >= 1",
        "--seed -1": "seed: got -1",
        "--plot x.q": "plot",
    }.items()},
    **{f"figure {options}": said for options, said in {
        "": "bnmc figure --list prints their names",
        "bridging1a": "did you mean 'bridging-1a'?",
        "bridging-1b --seed -1": "seed: got -1",
        "bridging-1b --threads 0": "threads: got 0",
        "bridging-1b --fast": "No such option",
        "bridging-1b --list": "name: got 'bridging-1b', allowed: nothing, with --list",
        "bridging-1b --data .": "'bridging-1b' trains no network",
        "gap --set width=3": "set: got 'width', allowed: activations, batches, widths",
        "gap --set widths": "set: got 'widths', allowed: a size and its value",
        "gap --set widths=x": "widths: got 'x', allowed: an integer >= 1",
        "gap --set activations=rleu": "(did you mean 'relu'?)",
    }.items()},
    "certify --replicates 3": "No such option: --replicates (`--replicates` is now `--chains`)",
    "check --size 300": "`--size` is now `--chains`",
    **{f"{SIMULATE} {options}": said for options, said in {
        "--width 0": "width: got '50 0', allowed: one list, separated by commas",
        "--depth -1": "depth: got -1",
        "--batch 100000": "batch: got 100000",
        "--seed -1": "seed: got -1",
        "--weights gausian": "did you mean 'gaussian'",
        "--dtype float16": "dtype: got 'float16'",
        "--wdith 3": "--wdith",
        "--depth 3.5": "--depth",
        "--activation": "--activation",
        "batch.npy": "batch.npy",
        "--input missing.npy": "error: missing.npy: No such file or directory\n",
        "--input .": "input",
        "--input x.txt": "input (by its suffix)",
        "--array x": "input: got None",
        "--samples-first": "input: got None",
        "--output run.h5": "output",
        "--output missing/run.npz": "output",
        "--plot run.npz": "plot",
        "--plot missing/run.png": "plot",
        "--activation abs --batch 2 --chains 9": "chain 0, layer 1, row ",
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_allowed_is_named_before_any_work(refusal, line):
    assert REFUSED[line] in refusal(line)
    assert os.listdir() == []


#: What a command says if it has no estimate.
WITHOUT = {
    "certify --width 25 --batch 10 --activation linear --seed 1": "lost rank",
    "width --activation silu --batch 40": "unstable",
    "width --norm layer --batch 4 --activation relu": "correlation of all samples tends to 1",
}


@pytest.mark.parametrize("line", WITHOUT)
def test_without_an_estimate_there_is_a_status(run, line):
    status, out, err = run(line)
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert WITHOUT[line] in err


DOCUMENTS = (
    f"{SIMULATE} --sampler conditional", BACKPROP, f"{CERTIFY} 20", "fixed-point --batch 4",
    "width --batch 4", "stability --batches 4", "phase", "regularity --width 8 --rtol 0.5 --seed 0",
    "info", "rates --width 12 --batch 3 --seed 0", "bench --width 8 --batch 2 --seconds 0.001",
    "compare-norms --width 12 --batch 3 --depth 4 --chains 2 --norm none", "figure --list",
    "check --width 8 --batch 3 --chains 200 --seed 0", "demo --depth 3 --chains 4",
)  # fmt: skip


def test_all_commands_have_documents_that_are_tested():
    of_torch = {"inspect"}  # has a test of its own
    assert {line.split()[0] for line in DOCUMENTS} | of_torch == {
        name.replace("_", "-") for name in application.COMMANDS
    }


@pytest.mark.parametrize("line", DOCUMENTS)
def test_documents_have_the_same_head(document_of, line):
    document = document_of(line)
    assert list(document)[:2] == ["bnmc", "command"]
    assert document["bnmc"] == bnmc.__version__
    assert document["command"] == line.split()[0]
    if "--seed" in line:
        assert isinstance(document["seed"], int)
        assert document["chain"]["activation"] in ("linear", "relu")
    if line.startswith(("simulate", "backprop", "certify", "rates", "check")):
        assert "key" in document
    if line.startswith(("simulate", "backprop", "certify", "rates", "check", "bench", "stab")):
        assert document["rows"]
    if "key" in document:
        assert document["key"].startswith("key:")
    assert all(isinstance(row, dict) for row in document.get("rows", []))
    assert "table" not in document


def test_without_an_estimate_there_is_a_document(run):
    line = "certify --width 25 --batch 10 --activation linear --seed 1 --chains 8 --json"
    status, out, err = run(line)
    document = json.loads(out)
    assert status == 3
    assert (document["command"], document["error"], document["seed"]) == ("certify", "NotMixing", 1)
    assert document["chain"]["width"] == 25
    assert document["message"] in err
    assert "partial" in document
    assert run(f"{line} document.json")[0] == 3
    assert json.loads(Path("document.json").read_text()) == document
    assert run("certify --width 4 --batch 1 --json")[:2] == (2, "")
